//! Random numbers for stochastic rounding: a function of (seed, operation, rank, index of the element) and nothing
//! else, so that threads, frames and processor levels do not matter, and ranks round independently of each other.

/// Elements that draw from one key.
pub(super) const SEGMENT: usize = 64;
/// Random bits per element.
pub(super) const BITS: u32 = 15;

/// Which random numbers stochastic rounding draws.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoiseKey(u64);

impl NoiseKey {
    /// The stream of one rank in one operation. Ranks must differ, else their errors add up instead of averaging out;
    /// so must the operations of a run, for example by a count.
    #[must_use]
    pub fn new(seed: u64, operation: u64, rank: u32) -> Self {
        let key = mixed(seed ^ 0x7063_636C_7175_616E);
        let key = mixed(key ^ operation);
        Self(mixed(key ^ u64::from(rank)))
    }

    /// The key as a number, from which the random numbers follow: what a kernel on a device is given.
    #[must_use]
    pub fn bits(self) -> u64 {
        self.0
    }

    /// The random 15-bit numbers of the elements `segment * 64` and on.
    ///
    /// One hash of 32 bits serves two elements, 32 apart.
    #[inline(always)]
    pub(super) fn segment(self, segment: u64) -> [u32; SEGMENT] {
        let key = mixed(self.0.wrapping_add(segment.wrapping_mul(0x9E37_79B9_7F4A_7C15)));
        let (low, high) = (key as u32, (key >> 32) as u32);
        let mut numbers = [0; SEGMENT];
        let (first, second) = numbers.split_at_mut(SEGMENT / 2);
        for (index, (first, second)) in first.iter_mut().zip(second).enumerate() {
            let hash = hashed(low.wrapping_add((index as u32).wrapping_mul(0x9E37_79B9)), high);
            (*first, *second) = (hash >> (32 - BITS), hash & ((1 << BITS) - 1));
        }
        numbers
    }
}

/// The finaliser of SplitMix64: a bijection of which every input bit changes every output bit half of the time.
#[inline(always)]
const fn mixed(value: u64) -> u64 {
    let value = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

/// The same for 32 bits (constants by C. Wellons, public domain), with a second key in the middle.
#[inline(always)]
const fn hashed(value: u32, key: u32) -> u32 {
    let value = (value ^ (value >> 16)).wrapping_mul(0x7FEB_352D);
    let value = (value ^ (value >> 15) ^ key).wrapping_mul(0x846C_A68B);
    value ^ (value >> 16)
}
