//! The order of the samples: a pseudo-random permutation for each epoch, without a table.

use crate::Error;

/// Greatest number of positions.
const MAX_TOTAL: u64 = 1 << 62;
/// Rounds of the Feistel network: four make a permutation that no statistics of a training tell from a random one.
const ROUNDS: u64 = 4;

/// The order of the samples of a data set.
///
/// Each epoch has a permutation of its own: a Feistel network over the next power of four, walked until it comes to a
/// sample (cycle walking; Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002). So any position is found
/// at once, on every machine alike, and nothing is kept in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order {
    length: u64,
    seed: Option<u64>,
    /// Bits of one half of the network's input.
    half_bits: u32,
}

impl Order {
    /// The order of `length` samples, by a seed or as they are, and how many positions `epochs` epochs of them have.
    ///
    /// # Errors
    /// `Argument` if there are none, or more than 2^62.
    pub fn of(length: u64, seed: Option<u64>, epochs: u64) -> Result<(Self, u64), Error> {
        let total = length.checked_mul(epochs).filter(|total| (1..=MAX_TOTAL).contains(total));
        let total = total.ok_or_else(|| Error::Argument(format!("{length} samples in {epochs} epochs")))?;
        let bits = u64::BITS - (length - 1).leading_zeros();
        Ok((Self { length, seed, half_bits: bits.div_ceil(2).max(1) }, total))
    }

    /// Samples in the data set.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// A number that differs, but for chance, between orders and between values of `other`.
    pub fn key(&self, other: u64) -> u64 {
        let seed = self.seed.map_or(0, |seed| mix(seed).max(1));
        mix(self.length ^ mix(seed ^ mix(other)))
    }

    /// The sample at a position, `0..length`.
    pub fn sample(&self, position: u64) -> u64 {
        let (epoch, place) = (position / self.length, position % self.length);
        let Some(seed) = self.seed else { return place };
        let key = mix(seed ^ mix(epoch));
        let mut at = place;
        loop {
            at = self.permute(at, key);
            if at < self.length {
                return at;
            }
        }
    }

    /// A permutation of the numbers of twice `half_bits` bits.
    fn permute(&self, value: u64, key: u64) -> u64 {
        let mask = u64::MAX >> (u64::BITS - self.half_bits);
        let (mut left, mut right) = (value >> self.half_bits, value & mask);
        for round in 0..ROUNDS {
            let scrambled = mix(right ^ key.rotate_left(16 * round as u32) ^ round << 60) & mask;
            (left, right) = (right, left ^ scrambled);
        }
        left << self.half_bits | right
    }
}

/// The last step of SplitMix64: all bits of the result depend on all of the argument.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let value = (value ^ value >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ value >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ value >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_epoch_has_each_sample_once_in_an_order_of_its_own() {
        for length in [1, 2, 3, 4, 5, 16, 17, 1000, 4097] {
            let (order, _) = Order::of(length, Some(7), 2).expect("a data set");
            let epochs: Vec<Vec<u64>> = (0..2)
                .map(|epoch| (0..length).map(|place| order.sample(epoch * length + place)).collect())
                .collect();
            for epoch in &epochs {
                let mut sorted = epoch.clone();
                sorted.sort_unstable();
                assert!(sorted.into_iter().eq(0..length), "length {length}");
            }
            assert!(length < 16 || epochs[0] != epochs[1], "length {length}");
            assert!(length < 16 || epochs[0] != (0..length).collect::<Vec<_>>(), "length {length}");
        }
    }

    #[test]
    fn another_seed_gives_another_order_and_none_gives_none() {
        let of = |seed| {
            (0..100).map(|at| Order::of(100, seed, 1).expect("a data set").0.sample(at)).collect::<Vec<_>>()
        };
        assert_ne!(of(Some(1)), of(Some(2)));
        assert!(of(None).into_iter().eq(0..100));
    }

    /// Neighbours in the order are apart in the data set, as those of a random permutation are: a third of its length.
    #[test]
    fn neighbours_are_scattered() {
        let length = 10_000;
        let (order, _) = Order::of(length, Some(3), 1).expect("a data set");
        let apart: u64 = (1..length).map(|at| order.sample(at).abs_diff(order.sample(at - 1))).sum();
        let mean = apart as f64 / (length - 1) as f64 / length as f64;
        assert!((0.31..0.36).contains(&mean), "{mean}");
    }

    /// All machines of a run, and all versions of this library, have the same order.
    #[test]
    fn the_order_stays() {
        let (order, _) = Order::of(1000, Some(42), 1).expect("a data set");
        let first: Vec<_> = (0..6).map(|at| order.sample(at)).collect();
        assert_eq!(first, [305, 701, 807, 463, 291, 898]);
    }
}
