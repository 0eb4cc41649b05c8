//! The Euclidean norm of tensors, and tensors made shorter: for contributions whose norm is bounded.
//!
//! The norm of the same elements is the same number on every processor: squares are added up in double precision, in
//! one order that depends on nothing but the number of elements. Within each block of 4096 elements, element `i` goes
//! to the partial sum `i mod 8`, in the order of the elements; the eight are added in pairs, and the blocks one after
//! the other. Several partial sums make vector code of the loop, and keep rounding errors small.

use crate::{
    DataType,
    float16::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16},
};

/// Partial sums of a block.
const LANES: usize = 8;
/// Elements that are added up before the sum goes to that of the tensor.
const BLOCK: usize = 4096;
/// 2^600. Squares of elements times this, or divided by it, neither overflow nor vanish where the plain ones do.
const FAR: f64 = f64::from_bits((1023 + 600) << 52);
/// 2^-900. A sum of squares below it may lack some that were too small.
const SMALL: f64 = f64::from_bits((1023 - 900) << 52);

/// The sum of the squares of `elements`, each times `scale`, in the order that the module states. The elements are of
/// `data_type`, at any address; NaN or infinite if one of them is.
///
/// # Panics
/// For a type that is no float.
#[must_use]
pub fn sum_of_squares(data_type: DataType, elements: &[u8], scale: f64) -> f64 {
    let single = |value: f32| f64::from(value) * scale;
    match data_type {
        DataType::Float16 => sum(elements, |element| single(f16_to_f32(u16::from_ne_bytes(element)))),
        DataType::BFloat16 => sum(elements, |element| single(bf16_to_f32(u16::from_ne_bytes(element)))),
        DataType::Float32 => sum(elements, |element| single(f32::from_ne_bytes(element))),
        DataType::Float64 => sum(elements, |element| f64::from_ne_bytes(element) * scale),
        other => panic!("{other} has no norm"),
    }
}

/// The Euclidean norm of elements whose [`sum_of_squares`] for a scale is `sum_at(scale)`: of one tensor, or of several
/// together if it adds up theirs. It is asked for another scale if squares overflow or vanish in double precision, so
/// the norm does neither; one beyond the largest finite number counts as that. Not finite if an element is not.
///
/// ```
/// use pccl_quant::{DataType, norm, sum_of_squares};
///
/// let elements: Vec<u8> = [3e200_f64, 4e200].iter().flat_map(|value| value.to_ne_bytes()).collect();
/// let norm = norm(|scale| sum_of_squares(DataType::Float64, &elements, scale));
/// assert!((norm / 5e200 - 1.0).abs() < 1e-15);
/// ```
#[must_use]
pub fn norm(sum_at: impl Fn(f64) -> f64) -> f64 {
    let plain = sum_at(1.0);
    if plain.is_nan() || (SMALL..f64::INFINITY).contains(&plain) {
        return plain.sqrt();
    }
    let (scale, back) = if plain < SMALL { (FAR, 1.0 / FAR) } else { (1.0 / FAR, FAR) };
    let scaled = sum_at(scale).sqrt();
    if scaled.is_finite() { (scaled * back).min(f64::MAX) } else { scaled }
}

/// Replaces each of `elements` by its product with `factor`, computed in double precision and rounded to single (for
/// double precision: as it is), and for halves once more to the type, each time to nearest, ties to even.
///
/// # Panics
/// As [`sum_of_squares`].
pub fn scale(data_type: DataType, elements: &mut [u8], factor: f64) {
    let single = |value: f32| (f64::from(value) * factor) as f32;
    match data_type {
        DataType::Float16 => each(elements, |element| {
            f32_to_f16(single(f16_to_f32(u16::from_ne_bytes(element)))).to_ne_bytes()
        }),
        DataType::BFloat16 => each(elements, |element| {
            f32_to_bf16(single(bf16_to_f32(u16::from_ne_bytes(element)))).to_ne_bytes()
        }),
        DataType::Float32 => {
            each(elements, |element| single(f32::from_ne_bytes(element)).to_ne_bytes());
        }
        DataType::Float64 => {
            each(elements, |element| (f64::from_ne_bytes(element) * factor).to_ne_bytes());
        }
        other => panic!("{other} has no norm"),
    }
}

fn sum<const N: usize>(bytes: &[u8], value: impl Fn([u8; N]) -> f64) -> f64 {
    let (elements, _) = bytes.as_chunks::<N>();
    elements.chunks(BLOCK).fold(0.0, |sum, block| sum + sum_of_block(block, &value))
}

fn sum_of_block<const N: usize>(block: &[[u8; N]], value: impl Fn([u8; N]) -> f64) -> f64 {
    let mut lanes = [0.0; LANES];
    let (rows, rest) = block.as_chunks::<LANES>();
    for row in rows {
        for (lane, element) in lanes.iter_mut().zip(row) {
            let value = value(*element);
            *lane += value * value;
        }
    }
    for (lane, element) in lanes.iter_mut().zip(rest) {
        let value = value(*element);
        *lane += value * value;
    }
    let [a, b, c, d, e, f, g, h] = lanes;
    ((a + b) + (c + d)) + ((e + f) + (g + h))
}

fn each<const N: usize>(bytes: &mut [u8], convert: impl Fn([u8; N]) -> [u8; N]) {
    for element in bytes.as_chunks_mut::<N>().0 {
        *element = convert(*element);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};

    fn norm_of(data_type: DataType, elements: &[u8]) -> f64 {
        norm(|scale| sum_of_squares(data_type, elements, scale))
    }

    fn doubles(values: &[f64]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_ne_bytes()).collect()
    }

    #[test]
    fn the_norm_of_each_type_is_that_of_its_numbers() {
        let singles: Vec<u8> = [3.0_f32, -4.0].iter().flat_map(|value| value.to_ne_bytes()).collect();
        let halves: Vec<u8> =
            [3.0, -4.0].iter().flat_map(|value| f16::from_f32(*value).to_ne_bytes()).collect();
        let brains: Vec<u8> =
            [3.0, -4.0].iter().flat_map(|value| bf16::from_f32(*value).to_ne_bytes()).collect();
        assert_eq!(norm_of(DataType::Float64, &doubles(&[3.0, -4.0])), 5.0);
        assert_eq!(norm_of(DataType::Float32, &singles), 5.0);
        assert_eq!(norm_of(DataType::Float16, &halves), 5.0);
        assert_eq!(norm_of(DataType::BFloat16, &brains), 5.0);
        assert_eq!(norm_of(DataType::Float32, &[]), 0.0);
    }

    #[test]
    fn elements_are_added_up_in_the_order_that_is_stated() {
        for count in [1, 7, 8, 9, BLOCK - 1, BLOCK, 2 * BLOCK + 13] {
            let values: Vec<f32> = (0..count).map(|index| 1.0 / (index as f32 + 1.3)).collect();
            // At an odd address.
            let mut bytes = vec![0];
            bytes.extend(values.iter().flat_map(|value| value.to_ne_bytes()));
            let mut stated = 0.0;
            for block in values.chunks(BLOCK) {
                let mut lanes = [0.0_f64; LANES];
                for (index, value) in block.iter().enumerate() {
                    lanes[index % LANES] += f64::from(*value) * f64::from(*value);
                }
                let pairs = [0, 2, 4, 6].map(|lane| lanes[lane] + lanes[lane + 1]);
                stated += (pairs[0] + pairs[1]) + (pairs[2] + pairs[3]);
            }
            let found = sum_of_squares(DataType::Float32, &bytes[1..], 1.0);
            assert_eq!(found.to_bits(), stated.to_bits(), "{count}");
        }
    }

    #[test]
    fn squares_beyond_the_range_do_not_lose_the_norm() {
        for size in [1e300, 1e-300, f64::MIN_POSITIVE / 1024.0] {
            let norm = norm_of(DataType::Float64, &doubles(&[3.0 * size, 4.0 * size]));
            assert!((norm / (5.0 * size) - 1.0).abs() < 1e-12, "{size}: {norm}");
        }
        assert_eq!(norm_of(DataType::Float64, &doubles(&[f64::MAX; 4])), f64::MAX);
        assert_eq!(norm_of(DataType::Float64, &doubles(&[0.0, -0.0])), 0.0);
        let tiny = f32::from_bits(1);
        assert_eq!(norm_of(DataType::Float32, &tiny.to_ne_bytes()), f64::from(tiny));
    }

    #[test]
    fn what_is_not_finite_has_no_finite_norm() {
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert!(!norm_of(DataType::Float64, &doubles(&[1.0, bad, 1e300])).is_finite(), "{bad}");
            assert!(!norm_of(DataType::Float32, &(bad as f32).to_ne_bytes()).is_finite(), "{bad}");
        }
    }

    #[test]
    fn products_are_rounded_to_the_type() {
        let mut single = 3.0_f32.to_ne_bytes();
        scale(DataType::Float32, &mut single, 1.0 / 3.0);
        assert_eq!(f32::from_ne_bytes(single), 1.0);
        let mut double = doubles(&[3.0, -6.0]);
        scale(DataType::Float64, &mut double, 0.5);
        assert_eq!(double, doubles(&[1.5, -3.0]));
        let mut half = f16::from_f32(1000.0).to_ne_bytes();
        scale(DataType::Float16, &mut half, 0.1);
        assert_eq!(f16::from_ne_bytes(half), f16::from_f32(100.0));
        let mut brain = bf16::from_f32(-8.0).to_ne_bytes();
        scale(DataType::BFloat16, &mut brain, 1.0 / 3.0);
        assert_eq!(bf16::from_ne_bytes(brain), bf16::from_f32(-8.0 / 3.0));
    }
}
