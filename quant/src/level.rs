//! Processor features that the kernels are compiled for.

/// A set of processor features. All levels compute identical bytes; they differ in speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Level {
    /// What the target guarantees: SSE2 on x86-64.
    Base,
    /// AVX2 and F16C, on x86-64.
    Avx2,
}

impl Level {
    /// All levels, the fastest last.
    pub const ALL: [Self; 2] = [Self::Base, Self::Avx2];

    /// Whether this processor has the level's features.
    #[must_use]
    pub fn is_available(self) -> bool {
        match self {
            Self::Base => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c"),
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx2 => false,
        }
    }

    /// The fastest level of this processor.
    #[must_use]
    pub fn detect() -> Self {
        if Self::Avx2.is_available() { Self::Avx2 } else { Self::Base }
    }
}
