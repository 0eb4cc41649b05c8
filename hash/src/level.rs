//! Which instruction set the kernels use.

/// An instruction set level of the kernels.
///
/// Results never depend on it. The ordinary functions use [`SimdLevel::best`]; the `_at` variants take a level, for
/// tests and measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SimdLevel {
    /// The code that the compiler makes of portable code for the build's baseline.
    Portable,
    /// x86-64 with SSE4.2.
    Sse42,
    /// x86-64 with AVX2 (and SSE4.2).
    Avx2,
    /// x86-64 with AVX-512 (and AVX2).
    Avx512,
}

impl SimdLevel {
    /// All levels, rising.
    pub const ALL: [Self; 4] = [Self::Portable, Self::Sse42, Self::Avx2, Self::Avx512];

    /// Whether this machine can run the level. A level that it cannot run is treated as the next lower one that it
    /// can.
    pub fn is_available(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        {
            match self {
                Self::Portable => true,
                Self::Sse42 => is_x86_feature_detected!("sse4.2"),
                Self::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("sse4.2"),
                Self::Avx512 => is_x86_feature_detected!("avx512f") && Self::Avx2.is_available(),
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            self == Self::Portable
        }
    }

    /// The highest level that this machine can run.
    pub fn best() -> Self {
        Self::Avx512.clamped()
    }

    /// This level, or the highest available one below it.
    pub fn clamped(self) -> Self {
        Self::ALL
            .into_iter()
            .rev()
            .find(|level| *level <= self && level.is_available())
            .unwrap_or(Self::Portable)
    }
}

#[cfg(test)]
mod tests {
    use super::SimdLevel;

    #[test]
    fn best_is_available_and_highest() {
        let best = SimdLevel::best();
        assert!(best.is_available());
        assert!(SimdLevel::ALL.into_iter().all(|level| level <= best || !level.is_available()));
        assert_eq!(SimdLevel::Portable.clamped(), SimdLevel::Portable);
    }
}
