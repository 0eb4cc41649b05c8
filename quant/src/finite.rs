//! Whether all elements of a tensor are numbers.

use crate::DataType;

/// Bytes that are looked at before one of them is looked for: a loop without a way out in the middle is vectorised.
const BLOCK_BYTES: usize = 4096;

/// The first element of `bytes` that is not finite (NaN or an infinity), by its number; `None` if there is none. The
/// elements are of `data_type`, at any address; integers always are finite.
///
/// ```
/// let values: Vec<u8> = [1.0_f32, f32::NAN].iter().flat_map(|value| value.to_ne_bytes()).collect();
/// assert_eq!(pccl_quant::first_non_finite(pccl_quant::DataType::Float32, &values), Some(1));
/// ```
#[must_use]
pub fn first_non_finite(data_type: DataType, bytes: &[u8]) -> Option<usize> {
    match data_type {
        // A float is not finite if all bits of its exponent are set.
        DataType::Float16 => find(bytes, |element| is_full(u16::from_ne_bytes(element), 0x7c00)),
        DataType::BFloat16 => find(bytes, |element| is_full(u16::from_ne_bytes(element), 0x7f80)),
        DataType::Float32 => find(bytes, |element| !f32::from_ne_bytes(element).is_finite()),
        DataType::Float64 => find(bytes, |element| !f64::from_ne_bytes(element).is_finite()),
        DataType::Uint8
        | DataType::Int8
        | DataType::Int16
        | DataType::Uint16
        | DataType::Uint32
        | DataType::Int32
        | DataType::Uint64
        | DataType::Int64 => None,
    }
}

const fn is_full(bits: u16, exponent: u16) -> bool {
    bits & exponent == exponent
}

fn find<const N: usize>(bytes: &[u8], is_bad: impl Fn([u8; N]) -> bool) -> Option<usize> {
    let per_block = BLOCK_BYTES / N;
    let (elements, _) = bytes.as_chunks::<N>();
    let (number, block) = elements
        .chunks(per_block)
        .enumerate()
        .find(|(_, block)| block.iter().fold(false, |bad, element| bad | is_bad(*element)))?;
    let within = block.iter().position(|element| is_bad(*element))?;
    Some(number * per_block + within)
}

#[cfg(test)]
mod tests {
    use super::first_non_finite;
    use crate::DataType;

    /// Bits of one element that is not finite, and of the largest one that is.
    const FLOATS: [(DataType, &[u64], u64); 4] = [
        (DataType::Float16, &[0x7c00, 0xfc00, 0x7c01, 0xffff], 0x7bff),
        (DataType::BFloat16, &[0x7f80, 0xff80, 0x7fc0, 0xff81], 0x7f7f),
        (DataType::Float32, &[0x7f80_0000, 0xff80_0000, 0x7fc0_0000, 0xff80_0001], 0x7f7f_ffff),
        (
            DataType::Float64,
            &[0x7ff0_0000_0000_0000, 0xfff0_0000_0000_0000, 0x7ff8_0000_0000_0000],
            0x7fef_ffff_ffff_ffff,
        ),
    ];

    #[test]
    fn the_first_one_is_named_wherever_it_is() {
        for (data_type, bad, good) in FLOATS {
            let size = data_type.size_bytes();
            let element = |bits: u64| bits.to_ne_bytes()[..size].to_vec();
            for count in [0, 1, 7, 4096 / size, 3 * 4096 / size + 5] {
                // At an odd address.
                let mut bytes = vec![0];
                bytes.extend((0..count).flat_map(|_| element(good)));
                assert_eq!(first_non_finite(data_type, &bytes[1..]), None, "{data_type}, {count}");
                for at in [0, count / 2, count.saturating_sub(1)].into_iter().filter(|at| *at < count) {
                    for bits in bad {
                        let mut bytes = bytes.clone();
                        for place in [at, count - 1] {
                            bytes[1 + place * size..][..size].copy_from_slice(&element(*bits));
                        }
                        let found = first_non_finite(data_type, &bytes[1..]);
                        assert_eq!(found, Some(at), "{data_type}, {bits:x} of {count}");
                    }
                }
            }
        }
    }

    #[test]
    fn integers_are_finite() {
        let floats = [DataType::Float16, DataType::BFloat16, DataType::Float32, DataType::Float64];
        for data_type in DataType::ALL.into_iter().filter(|data_type| !floats.contains(data_type)) {
            assert_eq!(first_non_finite(data_type, &[0xff; 64]), None);
        }
    }
}
