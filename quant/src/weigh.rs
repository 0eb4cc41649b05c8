//! Weighted averages: each value times a weight before it is added up, and the sum divided by the sum of the weights.
//!
//! Halves and single precision travel in single precision, so that a product fits where the element may not hold it;
//! double precision in itself. A product and a quotient are computed in double precision and rounded once.

use crate::{
    DataType,
    float16::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16},
};

/// The type in which weighted values of `data_type` are added up; `None` if it is no float.
pub const fn weighted_type(data_type: DataType) -> Option<DataType> {
    match data_type {
        DataType::Float16 | DataType::BFloat16 | DataType::Float32 => Some(DataType::Float32),
        DataType::Float64 => Some(DataType::Float64),
        _ => None,
    }
}

/// Writes `elements`, each times `weight`, to `out` in the type that [`weighted_type`] names.
///
/// # Panics
/// For a type that is no float, and for lengths that do not go together.
pub fn weigh(data_type: DataType, elements: &[u8], weight: f64, out: &mut [u8]) {
    let single = |value: f32| ((f64::from(value) * weight) as f32).to_ne_bytes();
    match data_type {
        DataType::Float16 => {
            each(elements, out, |element| single(f16_to_f32(u16::from_ne_bytes(element))));
        }
        DataType::BFloat16 => {
            each(elements, out, |element| single(bf16_to_f32(u16::from_ne_bytes(element))));
        }
        DataType::Float32 => each(elements, out, |element| single(f32::from_ne_bytes(element))),
        DataType::Float64 => {
            each(elements, out, |element| (f64::from_ne_bytes(element) * weight).to_ne_bytes());
        }
        other => panic!("{other} has no weighted average"),
    }
}

/// Writes `sums`, which are in the type that [`weighted_type`] names, each divided by `weights`, to `out`.
///
/// # Panics
/// As [`weigh`].
pub fn unweigh(data_type: DataType, sums: &[u8], weights: f64, out: &mut [u8]) {
    let quotient = |sum: [u8; 4]| (f64::from(f32::from_ne_bytes(sum)) / weights) as f32;
    match data_type {
        DataType::Float16 => each(sums, out, |sum| f32_to_f16(quotient(sum)).to_ne_bytes()),
        DataType::BFloat16 => each(sums, out, |sum| f32_to_bf16(quotient(sum)).to_ne_bytes()),
        DataType::Float32 => each(sums, out, |sum| quotient(sum).to_ne_bytes()),
        DataType::Float64 => each(sums, out, |sum| (f64::from_ne_bytes(sum) / weights).to_ne_bytes()),
        other => panic!("{other} has no weighted average"),
    }
}

fn each<const FROM: usize, const TO: usize>(
    from: &[u8],
    to: &mut [u8],
    convert: impl Fn([u8; FROM]) -> [u8; TO],
) {
    let ((from, rest), (to, rest_to)) = (from.as_chunks::<FROM>(), to.as_chunks_mut::<TO>());
    assert!(from.len() == to.len() && rest.is_empty() && rest_to.is_empty(), "one element for each");
    for (from, to) in from.iter().zip(to) {
        *to = convert(*from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};

    fn average<const N: usize>(data_type: DataType, values: &[([u8; N], f64)]) -> [u8; N] {
        let carrier = weighted_type(data_type).unwrap();
        let mut sum = vec![0; carrier.size_bytes()];
        let mut scaled = sum.clone();
        for (value, weight) in values {
            weigh(data_type, value, *weight, &mut scaled);
            crate::fold_in_place(carrier, crate::ReduceOp::Sum, &mut sum, &scaled).unwrap();
        }
        let mut out = [0; N];
        unweigh(data_type, &sum, values.iter().map(|(_, weight)| weight).sum(), &mut out);
        out
    }

    #[test]
    fn the_average_of_floats_is_that_of_the_numbers() {
        let single = [(1.0_f32, 3.0), (5.0, 1.0)].map(|(value, weight)| (value.to_ne_bytes(), weight));
        assert_eq!(f32::from_ne_bytes(average(DataType::Float32, &single)), 2.0);
        let double = [(1.0_f64, 3.0), (5.0, 1.0)].map(|(value, weight)| (value.to_ne_bytes(), weight));
        assert_eq!(f64::from_ne_bytes(average(DataType::Float64, &double)), 2.0);
        // Products that the element itself could not hold.
        let half = [(f16::from_f32(60_000.0), 1e6), (f16::from_f32(30_000.0), 1e6)];
        let half = half.map(|(value, weight)| (value.to_ne_bytes(), weight));
        assert_eq!(f16::from_ne_bytes(average(DataType::Float16, &half)), f16::from_f32(45_000.0));
        let brain = [(bf16::from_f32(-2.0), 0.0), (bf16::from_f32(7.0), 0.5)];
        let brain = brain.map(|(value, weight)| (value.to_ne_bytes(), weight));
        assert_eq!(bf16::from_ne_bytes(average(DataType::BFloat16, &brain)), bf16::from_f32(7.0));
    }

    #[test]
    fn only_floats_have_one() {
        let floats = DataType::ALL.into_iter().filter(|data_type| weighted_type(*data_type).is_some());
        let floats: Vec<DataType> = floats.collect();
        assert_eq!(floats.len(), 4);
        assert!(!floats.contains(&DataType::Int32));
    }
}
