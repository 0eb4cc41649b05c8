//! The largest elements only: of each block the same number, with their places in 12 bits and their values in 8, as in
//! SparseLoCo ([arXiv 2508.15706](https://arxiv.org/abs/2508.15706)). Values are in proportion to the largest of their
//! block. The other elements are errors like any other, and are sent when they have grown.

/// Elements of a block: their places take 12 bits.
pub(super) const BLOCK: usize = 4096;
const SCALE_BYTES: usize = size_of::<f32>();
/// The greatest code of a value.
const MOST: f32 = 127.0;

/// Elements that are kept of a block with this number of them: one of `one_of`, at least one.
fn kept(elements: usize, one_of: usize) -> usize {
    elements.div_ceil(one_of.max(1)).min(elements)
}

/// Bytes of a block: scale, places by pairs in three bytes, values.
fn block_bytes(elements: usize, one_of: usize) -> usize {
    let kept = kept(elements, one_of);
    SCALE_BYTES + (3 * kept).div_ceil(2) + kept
}

/// Bytes of a number of elements.
pub(super) fn encoded_bytes(elements: usize, one_of: usize) -> usize {
    let rest = elements % BLOCK;
    let last = if rest == 0 { 0 } else { block_bytes(rest, one_of) };
    elements / BLOCK * block_bytes(BLOCK, one_of) + last
}

/// Writes for each block its scale, the places in ascending order, and the values.
pub(super) fn encode(values: &[f32], one_of: usize, to: &mut Vec<u8>) {
    for block in values.chunks(BLOCK) {
        let places = largest(block, kept(block.len(), one_of));
        let value = |place: &u16| block.get(usize::from(*place)).copied().unwrap_or_default();
        let scale = places.iter().map(|place| value(place).abs()).fold(0.0, f32::max) / MOST;
        to.extend(scale.to_le_bytes());
        for pair in places.chunks(2) {
            let both = u32::from(pair[0]) | u32::from(pair.get(1).copied().unwrap_or_default()) << 12;
            to.extend(both.to_le_bytes().iter().take(if pair.len() == 2 { 3 } else { 2 }));
        }
        to.extend(places.iter().map(|place| {
            let code = if scale > 0.0 { (value(place) / scale).round_ties_even() } else { 0.0 };
            code.clamp(-MOST, MOST) as i8 as u8
        }));
    }
}

/// The places of the elements of greatest magnitude, in ascending order; of equal ones those that come first.
fn largest(block: &[f32], count: usize) -> Vec<u16> {
    let magnitude = |place: &u16| block.get(usize::from(*place)).map_or(0, |value| value.abs().to_bits());
    let mut places: Vec<u16> = (0..block.len() as u16).collect();
    if count < places.len() {
        // Bits of magnitudes are in the order of the magnitudes.
        places.select_nth_unstable_by_key(count, |place| (std::cmp::Reverse(magnitude(place)), *place));
        places.truncate(count);
    }
    places.sort_unstable();
    places
}

/// Appends the elements of an encoded form, which has the right length. Places beyond the block are left out.
pub(super) fn decode(encoded: &[u8], elements: usize, one_of: usize, to: &mut Vec<f32>) {
    let (mut rest, mut left) = (encoded, elements);
    while left > 0 {
        let count = left.min(BLOCK);
        let kept = kept(count, one_of);
        let begin = to.len();
        to.resize(begin + count, 0.0);
        let Some((scale, behind)) = rest.split_first_chunk::<SCALE_BYTES>() else { return };
        let (places, behind) = behind.split_at((3 * kept).div_ceil(2).min(behind.len()));
        let (codes, others) = behind.split_at(kept.min(behind.len()));
        let scale = f32::from_le_bytes(*scale);
        for (at, code) in codes.iter().enumerate() {
            let byte = |at: usize| u16::from(places.get(at).copied().unwrap_or_default());
            let first = at / 2 * 3;
            let place = match at % 2 {
                0 => byte(first) | (byte(first + 1) & 0xF) << 8,
                _ => byte(first + 1) >> 4 | byte(first + 2) << 4,
            };
            if let Some(value) = to.get_mut(begin..).and_then(|block| block.get_mut(usize::from(place))) {
                *value = f32::from(*code as i8) * scale;
            }
        }
        (rest, left) = (others, left - count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_bytes_are_a_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..300), elements in 0_usize..9000, one_of in 1_usize..200,
        ) {
            let mut values = Vec::new();
            decode(&bytes, elements, one_of, &mut values);
            prop_assert!(values.len() <= elements.next_multiple_of(BLOCK));
        }
    }

    #[test]
    fn the_largest_are_kept_at_their_places() {
        let mut values = vec![0.001; 5000];
        for (place, value) in [(0, 1.0), (1, -0.5), (4095, 2.0), (4096, -3.0), (4999, 1.5)] {
            values[place] = value;
        }
        let (mut encoded, mut decoded) = (Vec::new(), Vec::new());
        encode(&values, 1024, &mut encoded);
        assert_eq!(encoded.len(), encoded_bytes(5000, 1024));
        decode(&encoded, 5000, 1024, &mut decoded);
        assert_eq!(decoded.len(), 5000);
        // Four of the first 4,096, one of the other 904.
        let kept: Vec<_> = (0..5000).filter(|at| decoded[*at] != 0.0).collect();
        assert_eq!(kept, [0, 1, 4095, 4096]);
        for at in kept {
            assert!((decoded[at] - values[at]).abs() < 0.02, "{at}: {}", decoded[at]);
        }
    }

    #[test]
    fn of_equal_ones_the_first_are_kept() {
        assert_eq!(largest(&[1.0, -1.0, 1.0, 1.0], 2), [0, 1]);
        assert_eq!(largest(&[0.0; 3], 3), [0, 1, 2]);
    }
}
