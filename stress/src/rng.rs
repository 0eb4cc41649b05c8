//! Random numbers from a seed: the same ones on every machine and in every version.

/// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
#[derive(Debug, Clone)]
pub(crate) struct Rng(u64);

/// What the state of a generator grows by.
pub(crate) const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Spreads every bit over all others.
pub(crate) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Rng {
    /// A generator for one purpose: equal parts give equal streams, any difference a different one.
    pub(crate) fn keyed(parts: &[u64]) -> Self {
        let mut state = 0x5eed;
        for &part in parts {
            state = Self(state ^ part).next();
        }
        Self(state)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix(self.0)
    }

    /// A number below `bound`, which is not 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        // The bias of the remainder is below 2^-32 for every bound used here.
        self.next() % bound
    }

    /// A number from `low` to `high`, both included.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_repeat_and_differ_by_key() {
        let stream = |parts: &[u64]| {
            let mut rng = Rng::keyed(parts);
            [rng.next(), rng.next()]
        };
        assert_eq!(stream(&[1, 2]), stream(&[1, 2]));
        assert_ne!(stream(&[1, 2]), stream(&[2, 1]));
        assert_ne!(stream(&[1]), stream(&[1, 0]));
    }

    #[test]
    fn numbers_stay_in_their_range_and_reach_its_ends() {
        let mut rng = Rng::keyed(&[1]);
        let drawn: std::collections::BTreeSet<u64> = (0..1000).map(|_| rng.between(3, 7)).collect();
        assert_eq!(drawn, (3..=7).collect());
    }
}
