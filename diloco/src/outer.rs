//! The outer optimiser: parameters and momentum that all members share, and the step that a mean is turned into.

use crate::Fragments;
use pccl::{Error, SharedState};
use std::{fmt, sync::Arc};

/// A step of the caller's own: outer parameters, momentum, and the mean pseudo-gradient of a fragment, each of its
/// length. It must be the same arithmetic on every machine, or the members part.
pub type OwnStep = Arc<dyn Fn(&mut [f32], &mut [f32], &[f32]) + Send + Sync>;

/// How the mean of the pseudo-gradients moves the outer parameters.
///
/// Each operation is rounded to f32 by itself, with no fused multiply-add, so the result is the same on every
/// processor.
#[derive(Clone)]
#[non_exhaustive]
pub enum OuterStep {
    /// Gradient descent with Nesterov momentum: `m = momentum * m + mean`, `p -= rate * (mean + momentum * m)`. The
    /// default has a rate of 0.7 and a momentum of 0.9, which DiLoCo found best among those that it tried.
    Nesterov {
        /// Above 0.
        rate: f32,
        /// At least 0, below 1.
        momentum: f32,
    },
    /// The mean of the members' parameters (local SGD): `p -= mean`.
    Average,
    /// The caller's own, with a name that tells it apart from others.
    Own(&'static str, OwnStep),
}

impl Default for OuterStep {
    fn default() -> Self {
        Self::Nesterov { rate: 0.7, momentum: 0.9 }
    }
}

/// Steps of callers' own are the same if their names are.
impl PartialEq for OuterStep {
    fn eq(&self, other: &Self) -> bool {
        self.to_string() == other.to_string()
    }
}

impl fmt::Display for OuterStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nesterov { rate, momentum } => write!(f, "nesterov {rate} {momentum}"),
            Self::Average => f.write_str("average"),
            Self::Own(name, _) => write!(f, "own step {name}"),
        }
    }
}

impl fmt::Debug for OuterStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl OuterStep {
    pub(crate) fn check(&self) -> Result<(), Error> {
        let &Self::Nesterov { rate, momentum } = self else { return Ok(()) };
        if !(rate > 0.0 && rate.is_finite()) {
            return Err(Error::InvalidArgument(format!("an outer rate of {rate}: above 0")));
        }
        if !(0.0..1.0).contains(&momentum) {
            return Err(Error::InvalidArgument(format!("an outer momentum of {momentum}: from 0, below 1")));
        }
        Ok(())
    }

    fn apply(&self, parameters: &mut [f32], momenta: &mut [f32], mean: &[f32]) {
        match self {
            &Self::Nesterov { rate, momentum } => {
                for ((parameter, m), mean) in parameters.iter_mut().zip(momenta).zip(mean) {
                    *m = momentum * *m + mean;
                    *parameter -= rate * (mean + momentum * *m);
                }
            }
            Self::Average => parameters.iter_mut().zip(mean).for_each(|(parameter, mean)| *parameter -= mean),
            Self::Own(_, step) => step(parameters, momenta, mean),
        }
    }
}

/// The shared state of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Outer {
    pub(crate) parameters: Vec<f32>,
    pub(crate) momentum: Vec<f32>,
    /// Rounds made, and what they stood for in thousandths of the unit of weight.
    pub(crate) progress: [u64; 2],
    /// The ledger of samples; empty if members choose theirs by themselves.
    pub(crate) samples: Vec<u64>,
}

impl Outer {
    /// Before the first round.
    pub(crate) fn new(parameters: &[f32], samples: Vec<u64>) -> Self {
        let momentum = vec![0.0; parameters.len()];
        Self { parameters: parameters.to_vec(), momentum, progress: [0, 0], samples }
    }

    /// Outer parameters.
    pub fn parameters(&self) -> &[f32] {
        &self.parameters
    }

    /// Outer momentum.
    pub fn momentum(&self) -> &[f32] {
        &self.momentum
    }

    /// Rounds made since the run began.
    pub fn rounds(&self) -> u64 {
        self.progress[0]
    }

    /// The sum of all weights that were contributed, such as tokens, to a thousandth of one. A step counts in parts,
    /// with each fragment.
    pub fn weight(&self) -> f64 {
        self.progress[1] as f64 / 1000.0
    }

    /// One round: the mean of its fragment and the weight behind it, or none if nobody contributed.
    pub(crate) fn advance(&mut self, fragments: &Fragments, step: &OuterStep, round: Option<(&[f32], f64)>) {
        if let Some((mean, weight)) = round {
            let range = fragments.range(fragments.of_round(self.rounds()));
            let parameters = self.parameters.get_mut(range.clone()).unwrap_or_default();
            let momentum = self.momentum.get_mut(range).unwrap_or_default();
            step.apply(parameters, momentum, mean);
            // Each step is part of a contribution of each fragment.
            let weight = weight / fragments.count() as f64;
            self.progress[1] = self.progress[1].wrapping_add((weight * 1000.0).round() as u64);
        }
        self.progress[0] += 1;
    }

    /// As what the members sync: a tensor of each kind per fragment, so that a round changes few of them.
    pub(crate) fn shared(&mut self, revision: u64, fragments: &Fragments) -> Result<SharedState<'_>, Error> {
        let mut state = SharedState::new(revision);
        let (mut parameters, mut momentum) = (self.parameters.as_mut_slice(), self.momentum.as_mut_slice());
        for fragment in 0..fragments.count() {
            let [parameters_key, momentum_key] = Self::keys(fragment);
            let length = fragments.range(fragment).len();
            state.tensor(&parameters_key, split_off(&mut parameters, length))?;
            state.tensor(&momentum_key, split_off(&mut momentum, length))?;
        }
        state.tensor("diloco.progress", &mut self.progress)?;
        if !self.samples.is_empty() {
            state.tensor("diloco.samples", &mut self.samples)?;
        }
        Ok(state)
    }

    /// The names of the tensors of a fragment.
    pub(crate) fn keys(fragment: usize) -> [String; 2] {
        [format!("diloco.parameters.{fragment}"), format!("diloco.momentum.{fragment}")]
    }
}

/// Takes the first elements away, or all if there are fewer.
fn split_off<'a>(from: &mut &'a mut [f32], length: usize) -> &'a mut [f32] {
    let length = length.min(from.len());
    let (first, rest) = std::mem::take(from).split_at_mut(length);
    *from = rest;
    first
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nesterov_is_that_of_the_paper_bit_for_bit() {
        let fragments = Fragments::even(2, 1).expect("fragments");
        let (mut outer, step) = (Outer::new(&[1.0, -3.0], Vec::new()), OuterStep::default());
        let (mut parameters, mut momenta) = ([1.0_f32, -3.0], [0.0_f32; 2]);
        for round in 0..50 {
            let mean = [0.1 / (1.0 + round as f32), 1e-3 * round as f32];
            outer.advance(&fragments, &step, Some((&mean, 2.5)));
            for ((parameter, momentum), mean) in parameters.iter_mut().zip(&mut momenta).zip(mean) {
                let decayed = 0.9_f32 * *momentum;
                *momentum = decayed + mean;
                let ahead = 0.9_f32 * *momentum;
                let direction = mean + ahead;
                let change = 0.7_f32 * direction;
                *parameter -= change;
            }
        }
        assert_eq!(outer.parameters.map_bits(), parameters.to_vec().map_bits());
        // Computed once, on another machine: nothing of it may depend on the processor.
        assert_eq!((outer.rounds(), outer.weight()), (50, 125.0));
    }

    trait Bits {
        fn map_bits(&self) -> Vec<u32>;
    }

    impl Bits for Vec<f32> {
        fn map_bits(&self) -> Vec<u32> {
            self.iter().map(|value| value.to_bits()).collect()
        }
    }

    #[test]
    fn fragments_take_turns_and_a_round_of_nobody_changes_nothing() {
        let fragments = Fragments::of_lengths(&[1, 2]).expect("fragments");
        let mut outer = Outer::new(&[0.0; 3], Vec::new());
        outer.advance(&fragments, &OuterStep::Average, Some((&[1.0], 1.0)));
        assert_eq!(outer.parameters, [-1.0, 0.0, 0.0]);
        outer.advance(&fragments, &OuterStep::Average, None);
        assert_eq!((outer.parameters.as_slice(), outer.rounds()), ([-1.0, 0.0, 0.0].as_slice(), 2));
        outer.advance(
            &fragments,
            &OuterStep::Own("halve", Arc::new(|p, _, mean| p[0] = mean[0] / 2.0)),
            Some((&[3.0], 1.0)),
        );
        assert_eq!(outer.parameters, [1.5, 0.0, 0.0]);
    }
}
