//! A small seeded random source, so that a run can be repeated.

/// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014).
#[derive(Debug, Clone)]
pub(crate) struct Rng {
    state: u64,
}

impl Rng {
    /// A source whose whole output is a function of `seed`.
    pub(crate) const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// A source of its own for each combination of `parts`, so that streams for (peer, step) do not overlap by design.
    pub(crate) fn from_parts(parts: &[u64]) -> Self {
        let mut seed = 0x5d16_1715;
        for &part in parts {
            seed = Self::new(seed ^ part).next_u64();
        }
        Self::new(seed)
    }

    /// The next 64 bits.
    pub(crate) const fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `0..bound`; 0 when `bound` is 0.
    pub(crate) const fn below(&mut self, bound: usize) -> usize {
        // Multiply-shift; the bias is below 2^-50 for the bounds used here.
        ((self.next_u64() as u128 * bound as u128) >> 64) as usize
    }

    /// A number in `[-1, 1)` with 24 random bits, exact in f32.
    pub(crate) fn symmetric(&mut self) -> f32 {
        (self.next_u64() >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    }

    /// Puts `items` into random order (Fisher-Yates).
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_output() {
        // First outputs for seed 0 of the reference implementation by Vigna.
        let mut rng = Rng::new(0);
        assert_eq!(rng.next_u64(), 0xe220_a839_7b1d_cdaf);
        assert_eq!(rng.next_u64(), 0x6e78_9e6a_a1b9_65f4);
    }

    #[test]
    fn stays_in_range() {
        let mut rng = Rng::new(3);
        for bound in 0..50 {
            assert!(rng.below(bound) < bound.max(1));
            assert!((-1.0..1.0).contains(&rng.symmetric()));
        }
    }

    #[test]
    fn shuffle_keeps_every_item() {
        let mut items: Vec<u32> = (0..100).collect();
        Rng::from_parts(&[1, 2]).shuffle(&mut items);
        assert_ne!(items, (0..100).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
    }
}
