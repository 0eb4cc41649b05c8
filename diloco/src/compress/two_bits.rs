//! Two bits for each element: four levels around zero, half a step and one and a half steps from it. The step of a
//! block is 1.25 times its mean magnitude, which is near the best for values with a normal distribution.

/// Elements that share a step.
pub(super) const BLOCK: usize = 64;
/// A step for each mean magnitude.
const STEP: f32 = 1.25;
const SCALE_BYTES: usize = size_of::<f32>();

/// Bytes of a number of elements.
pub(super) fn encoded_bytes(elements: usize) -> usize {
    elements.div_ceil(BLOCK) * SCALE_BYTES + elements.div_ceil(4)
}

/// Writes the step of each block, followed by its codes.
pub(super) fn encode(values: &[f32], to: &mut Vec<u8>) {
    for block in values.chunks(BLOCK) {
        let sum: f64 = block.iter().map(|value| f64::from(value.abs())).sum();
        let step = STEP * (sum / block.len() as f64) as f32;
        to.extend(step.to_le_bytes());
        for four in block.chunks(4) {
            let codes = four.iter().enumerate().map(|(at, value)| code(*value, step) << (2 * at));
            to.push(codes.fold(0, |byte, code| byte | code));
        }
    }
}

/// The nearest level, by its number from below.
fn code(value: f32, step: f32) -> u8 {
    match value {
        value if value < -step => 0,
        value if value < 0.0 => 1,
        value if value <= step => 2,
        _ => 3,
    }
}

/// Appends the elements of an encoded form, which has the right length.
pub(super) fn decode(encoded: &[u8], elements: usize, to: &mut Vec<f32>) {
    let mut rest = encoded;
    let mut left = elements;
    while left > 0 {
        let count = left.min(BLOCK);
        let Some((step, codes)) = rest.split_first_chunk::<SCALE_BYTES>() else { return };
        let (codes, others) = codes.split_at(count.div_ceil(4).min(codes.len()));
        let step = f32::from_le_bytes(*step);
        to.extend((0..count).map(|at| {
            let code = codes.get(at / 4).unwrap_or(&0) >> (2 * (at % 4)) & 3;
            (f32::from(code) - 1.5) * step
        }));
        (rest, left) = (others, left - count);
    }
}
