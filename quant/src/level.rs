//! Processor features that the kernels are compiled for.

use std::sync::atomic::{AtomicU8, Ordering};

/// The fastest level that [`Level::detect`] may find, as its place in [`Level::ALL`].
static FASTEST: AtomicU8 = AtomicU8::new(u8::MAX);

/// A set of processor features. All levels compute identical bytes; they differ in speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Level {
    /// The features that the target guarantees: SSE2 on x86-64.
    Base,
    /// AVX2 and F16C, on x86-64.
    Avx2,
    /// The above and AVX-512 with F, BW, VL and DQ. Only quantisation makes use of it; reduce kernels are those of
    /// AVX2, which are as fast as memory.
    Avx512,
}

impl Level {
    /// All levels, the fastest last.
    pub const ALL: [Self; 3] = [Self::Base, Self::Avx2, Self::Avx512];

    /// Whether this processor has the level's features.
    #[must_use]
    pub fn is_available(self) -> bool {
        match self {
            Self::Base => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                Self::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
            }
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx2 | Self::Avx512 => false,
        }
    }

    /// The fastest level of this processor.
    #[must_use]
    pub fn detect() -> Self {
        let fastest = FASTEST.load(Ordering::Relaxed);
        let usable = |level: &Self| *level as u8 <= fastest && level.is_available();
        Self::ALL.into_iter().rev().find(usable).unwrap_or(Self::Base)
    }

    /// For tests: from now on [`Level::detect`] finds no faster one than this, in the whole process.
    #[doc(hidden)]
    pub fn limit(self) {
        FASTEST.store(self as u8, Ordering::Relaxed);
    }
}
