//! The only source of choices: xoshiro256** seeded by splitmix64 (Blackman and Vigna, public domain algorithms).

/// A small generator; equal seeds give equal choices on every machine.
#[derive(Debug, Clone)]
pub(crate) struct Rng([u64; 4]);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        let mut seeds = pccl_testkit::random::Rng(seed);
        Self([(); 4].map(|()| seeds.next()))
    }

    pub(crate) fn next(&mut self) -> u64 {
        let s = &mut self.0;
        let result = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// A number below `limit`, which is not 0.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// A number from `low` to `high`, both included.
    pub(crate) fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True in `percent` of 100 cases.
    pub(crate) fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Index of an entry, with the chance that its weight gives it; `None` if all weights are 0.
    pub(crate) fn weighted(&mut self, weights: &[u64]) -> Option<usize> {
        let sum: u64 = weights.iter().sum();
        if sum == 0 {
            return None;
        }
        let mut at = self.below(sum);
        weights.iter().position(|weight| {
            let hit = at < *weight;
            at = at.saturating_sub(*weight);
            hit
        })
    }
}
