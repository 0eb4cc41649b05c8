//! The outer optimiser of DiLoCo and the state that all peers share.
//!
//! Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", 2023 (arXiv:2311.08105):
//! each worker takes many local steps, the workers average how far they have moved, and that average is the gradient
//! of a Nesterov step on the shared parameters.

use crate::model;

/// Settings of the outer step; the same on every peer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct OuterConfig {
    /// Outer learning rate.
    pub(crate) learning_rate: f32,
    /// Nesterov momentum.
    pub(crate) momentum: f32,
}

/// Everything that a newcomer has to receive in order to go on like the others.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct OuterState {
    /// Parameters of the model after the last outer step.
    pub(crate) params: Vec<f32>,
    /// Momentum of the outer optimiser, as long as `params`.
    pub(crate) momentum: Vec<f32>,
    /// Outer steps done, one element: a tensor like the others, so that it travels with them.
    pub(crate) step: [u64; 1],
}

impl OuterState {
    /// The state before the first step, a function of `seed`.
    pub(crate) fn new(seed: u64) -> Self {
        let params = model::init(seed);
        let momentum = vec![0.0; params.len()];
        Self { params, momentum, step: [0] }
    }

    /// Outer steps done.
    pub(crate) const fn step(&self) -> u64 {
        self.step[0]
    }

    /// How far `local` has moved away from the shared parameters, in the direction of a gradient.
    pub(crate) fn delta_from(&self, local: &[f32]) -> Vec<f32> {
        self.params.iter().zip(local).map(|(shared, local)| shared - local).collect()
    }

    /// One Nesterov step along the averaged delta.
    ///
    /// Only multiplications and additions of f32, element by element, each rounded once: equal inputs give equal
    /// bytes on every machine, which is what lets the state hashes of all peers agree.
    pub(crate) fn apply(&mut self, config: OuterConfig, delta: &[f32]) {
        for ((param, momentum), slope) in self.params.iter_mut().zip(&mut self.momentum).zip(delta) {
            *momentum = config.momentum * *momentum + slope;
            *param -= config.learning_rate * (slope + config.momentum * *momentum);
        }
        self.step[0] = self.step[0].saturating_add(1);
    }

    /// FNV-1a (64 bits) over the bytes of all tensors: the proof, told by each peer at the end, that they are equal.
    ///
    /// Deliberately not the hash of the library, which is what is on trial here.
    pub(crate) fn hash(&self) -> u64 {
        let floats = self.params.iter().chain(&self.momentum).flat_map(|value| value.to_bits().to_le_bytes());
        let steps = self.step.iter().flat_map(|value| value.to_le_bytes());
        floats.chain(steps).fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: OuterConfig = OuterConfig { learning_rate: 0.5, momentum: 0.5 };

    fn small() -> OuterState {
        OuterState { params: vec![1.0, -2.0], momentum: vec![0.0, 4.0], step: [6] }
    }

    #[test]
    fn nesterov_by_hand() {
        let mut state = small();
        state.apply(CONFIG, &[2.0, 1.0]);
        // momentum: 0.5*0+2 = 2, 0.5*4+1 = 3; move: 0.5*(2+0.5*2) = 1.5, 0.5*(1+0.5*3) = 1.25
        assert_eq!(state, OuterState { params: vec![-0.5, -3.25], momentum: vec![2.0, 3.0], step: [7] });
    }

    #[test]
    fn without_momentum_and_at_rate_one_the_average_is_adopted() {
        let mut state = small();
        state.momentum = vec![0.0; 2];
        let delta = state.delta_from(&[0.5, -1.0]);
        state.apply(OuterConfig { learning_rate: 1.0, momentum: 0.0 }, &delta);
        assert_eq!(state.params, [0.5, -1.0]);
    }

    #[test]
    fn hash_sees_every_part() {
        let base = small().hash();
        assert_eq!(base, small().hash());
        let changes: [fn(&mut OuterState); 4] = [
            |s| s.params[1] = -2.000_000_2,
            |s| s.momentum[0] = -0.0,
            |s| s.step[0] += 1,
            |s| s.params.swap(0, 1),
        ];
        for change in changes {
            let mut state = small();
            change(&mut state);
            assert_ne!(state.hash(), base);
        }
    }
}
