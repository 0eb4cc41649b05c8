//! Random numbers from a seed: the same ones on every machine and in every version.

/// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014).
#[derive(Debug, Clone)]
pub struct Rng(
    /// The state: the next number is a function of it.
    pub u64,
);

/// The increment of the state of a generator.
pub const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Spreads every bit over all others.
#[must_use]
pub const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Rng {
    /// A generator for one purpose: equal parts give equal streams, any difference a different one.
    #[must_use]
    pub const fn keyed(parts: &[u64]) -> Self {
        let mut state = 0x5eed;
        let mut index = 0;
        while index < parts.len() {
            state = Self(state ^ parts[index]).next();
            index += 1;
        }
        Self(state)
    }

    /// The next 64 bits.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix(self.0)
    }

    /// A number below `bound`, which is not 0. The bias of the remainder is below `bound / 2^64`.
    pub const fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Index of one of `count` things, which is not 0.
    pub const fn index(&mut self, count: usize) -> usize {
        self.below(count as u64) as usize
    }

    /// A number from `low` to `high`, both included.
    pub const fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// A number in `[0, 1)` with 53 random bits.
    pub const fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A number in `[-1, 1)` with 24 random bits, exact in f32.
    pub const fn symmetric(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1_u32 << 23) as f32 - 1.0
    }

    /// A number of the normal distribution with mean 0 and deviation 1 (Box and Muller, 1958).
    pub fn normal(&mut self) -> f64 {
        (-2.0 * (1.0 - self.uniform()).ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos()
    }

    /// Random bytes.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..count.div_ceil(8)).flat_map(|_| self.next().to_le_bytes()).collect();
        bytes.truncate(count);
        bytes
    }

    /// Puts `items` into random order (Fisher-Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.index(last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_output() {
        // First outputs for seed 0 of the reference implementation by Vigna.
        let mut rng = Rng(0);
        assert_eq!(rng.next(), 0xe220_a839_7b1d_cdaf);
        assert_eq!(rng.next(), 0x6e78_9e6a_a1b9_65f4);
    }

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
        for _ in 0..100 {
            assert!((-1.0..1.0).contains(&rng.symmetric()));
            assert!((0.0..1.0).contains(&rng.uniform()));
        }
        assert_eq!(rng.bytes(13).len(), 13);
    }

    #[test]
    fn shuffle_keeps_every_item() {
        let mut items: Vec<u32> = (0..100).collect();
        Rng::keyed(&[1, 2]).shuffle(&mut items);
        assert_ne!(items, (0..100).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
    }
}
