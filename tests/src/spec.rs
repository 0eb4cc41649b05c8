//! Tensors as tests and peer processes talk about them, in one word each.

use crate::pattern;
use pccl_quant::{DataType, ReduceOp};
use std::{fmt, str::FromStr};

fn data_type(name: &str) -> Result<DataType, String> {
    DataType::ALL
        .into_iter()
        .find(|data_type| data_type.name() == name)
        .ok_or_else(|| format!("no type {name}"))
}

fn number<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text:?} is not a number"))
}

/// A tensor to be reduced: `f32:sum:1025:7:in`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spec {
    /// Type of the elements.
    pub data_type: DataType,
    /// The reduction.
    pub op: ReduceOp,
    /// Number of elements.
    pub count: usize,
    /// Seed of the content; each peer mixes its own number in.
    pub seed: u64,
    /// In place, or from one buffer into another.
    pub in_place: bool,
}

impl Spec {
    /// An f32 sum in place.
    #[must_use]
    pub fn sum(count: usize, seed: u64) -> Self {
        Self { data_type: DataType::Float32, op: ReduceOp::Sum, count, seed, in_place: true }
    }

    /// What peer number `index` puts in.
    #[must_use]
    pub fn input(&self, index: usize) -> Vec<u8> {
        pattern::bytes(self.data_type, self.count, pattern::mix(self.seed ^ (index as u64 + 1) << 48))
    }

    /// What comes out, if these peers take part in this order.
    #[must_use]
    pub fn result(&self, indices_in_ring_order: &[usize]) -> Vec<u8> {
        let inputs: Vec<_> = indices_in_ring_order.iter().map(|&index| self.input(index)).collect();
        let inputs: Vec<_> = inputs.iter().map(Vec::as_slice).collect();
        pattern::expected(self.data_type, self.op, &inputs)
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.in_place { "in" } else { "out" };
        write!(f, "{}:{}:{}:{}:{place}", self.data_type, self.op, self.count, self.seed)
    }
}

impl FromStr for Spec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fields: Vec<_> = text.split(':').collect();
        let [ty, op, count, seed, place] = fields[..] else { return Err(format!("no tensor: {text:?}")) };
        let op = ReduceOp::ALL.into_iter().find(|o| o.name() == op).ok_or_else(|| format!("no op {op}"))?;
        Ok(Self {
            data_type: data_type(ty)?,
            op,
            count: number(count)?,
            seed: number(seed)?,
            in_place: place == "in",
        })
    }
}

/// A tensor of a shared state: `weights:f32:1024:7:0:same`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateSpec {
    /// Its key, without a colon or comma.
    pub key: String,
    /// Type of the elements.
    pub data_type: DataType,
    /// Number of elements.
    pub count: usize,
    /// Seed of the content.
    pub seed: u64,
    /// Elements by which the tensor is moved from the start of its allocation.
    pub skip: usize,
    /// May differ between peers.
    pub loose: bool,
}

impl StateSpec {
    /// A tensor of f32.
    #[must_use]
    pub fn new(key: &str, count: usize, seed: u64) -> Self {
        Self { key: key.into(), data_type: DataType::Float32, count, seed, skip: 0, loose: false }
    }

    /// The content.
    #[must_use]
    pub fn content(&self) -> Vec<u8> {
        pattern::bytes(self.data_type, self.count, self.seed)
    }

    /// State hash of the content.
    #[must_use]
    pub fn digest(&self) -> String {
        pattern::digest(&self.content())
    }
}

impl fmt::Display for StateSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let loose = if self.loose { "loose" } else { "same" };
        let Self { key, data_type, count, seed, skip, .. } = self;
        write!(f, "{key}:{data_type}:{count}:{seed}:{skip}:{loose}")
    }
}

impl FromStr for StateSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fields: Vec<_> = text.split(':').collect();
        let [key, ty, count, seed, skip, loose] = fields[..] else {
            return Err(format!("no state: {text:?}"));
        };
        Ok(Self {
            key: key.into(),
            data_type: data_type(ty)?,
            count: number(count)?,
            seed: number(seed)?,
            skip: number(skip)?,
            loose: loose == "loose",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_go_there_and_back() {
        let spec = Spec { in_place: false, ..Spec::sum(1025, 7) };
        assert_eq!(spec.to_string(), "f32:sum:1025:7:out");
        assert_eq!(spec.to_string().parse(), Ok(spec));
        let state = StateSpec { skip: 3, loose: true, ..StateSpec::new("w", 10, 9) };
        assert_eq!(state.to_string().parse(), Ok(state));
        assert!("f32:sum:x:7:out".parse::<Spec>().is_err());
    }
}
