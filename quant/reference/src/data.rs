//! Elements to quantise.

use half::{bf16, f16};
use pccl_quant::DataType;
use pccl_testkit::random::Rng;

/// The types that are quantised.
pub const FLOATS: [DataType; 4] =
    [DataType::Float32, DataType::Float64, DataType::Float16, DataType::BFloat16];

/// Values as elements of a type.
#[must_use]
pub fn bytes_of(data_type: DataType, values: &[f64]) -> Vec<u8> {
    let element = |value: &f64| match data_type {
        DataType::Float16 => f16::from_f64(*value).to_le_bytes().to_vec(),
        DataType::BFloat16 => bf16::from_f64(*value).to_le_bytes().to_vec(),
        DataType::Float32 => (*value as f32).to_le_bytes().to_vec(),
        _ => value.to_le_bytes().to_vec(),
    };
    values.iter().flat_map(element).collect()
}

/// Elements of many kinds, numbered from 0 to 9: what is usual, and what is not. The last kind is any bytes.
#[must_use]
pub fn elements_of(data_type: DataType, kind: u8, elements: usize, rng: &mut Rng) -> Vec<u8> {
    let greatest = [65_504.0, f64::from(f32::MAX), f64::MAX];
    let mut values: Vec<f64> = match kind {
        0 => (0..elements).map(|_| rng.normal()).collect(),
        1 => (0..elements).map(|_| 1000.0 + 0.001 * rng.normal()).collect(),
        2 => vec![rng.normal(); elements],
        3 => (0..elements).map(|_| rng.normal() * 2_f64.powi((rng.next() % 300) as i32 - 150)).collect(),
        4 => (0..elements).map(|_| rng.normal() * 1e-40).collect(),
        5 => {
            let pick =
                |rng: &mut Rng| greatest[(rng.next() % 3) as usize] * (1.0 - 2.0 * rng.uniform()).signum();
            (0..elements).map(|_| pick(rng)).collect()
        }
        6 => (0..elements).map(|_| -1000.0 - rng.uniform()).collect(),
        // Whole numbers: many ties.
        7 => (0..elements).map(|_| (rng.next() % 511) as f64 / 2.0).collect(),
        8 => (0..elements).map(|_| if rng.next().is_multiple_of(2) { 0.0 } else { -0.0 }).collect(),
        _ => return (0..elements * data_type.size_bytes()).map(|_| rng.next() as u8).collect(),
    };
    // In half of the cases, something that is not finite, in one place.
    if elements > 0 && rng.next().is_multiple_of(2) && kind < 5 {
        let at = rng.next() as usize % elements;
        values[at] = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY][(rng.next() % 3) as usize];
    }
    bytes_of(data_type, &values)
}
