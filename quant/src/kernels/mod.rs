//! The kernels for bytes of a type known at run time: arguments are checked here, and the level is chosen here.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod base;
mod generic;

use thiserror::Error;

use crate::{DataType, Level, ReduceOp, copy};

/// Bytes that [`Kernels::fold_in_place_saving`] saves before it folds them: a small part of the first-level cache, so
/// that the fold finds them there and memory is read once. A multiple of every element size.
const SAVE_BLOCK_BYTES: usize = 8 * 1024;

/// Why a kernel refused its arguments. It has then written nothing.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum KernelError {
    /// Two buffers that must be equally long are not.
    #[error("{other} has {other_bytes} bytes, but {one} has {one_bytes}: they must be equally long")]
    LengthMismatch {
        /// The purpose of the first buffer.
        one: &'static str,
        /// Its length in bytes.
        one_bytes: usize,
        /// The purpose of the second buffer.
        other: &'static str,
        /// Its length in bytes.
        other_bytes: usize,
    },
    /// A buffer ends within an element.
    #[error("{bytes} bytes are not a whole number of {data_type} elements of {} bytes", data_type.size_bytes())]
    PartialElement {
        /// The buffer's length in bytes.
        bytes: usize,
        /// The type of its elements.
        data_type: DataType,
    },
    /// An average over no ranks.
    #[error("an average needs at least 1 rank, not 0")]
    NoRanks,
}

/// The kernels at one [`Level`]. The functions of this module take the fastest one; this is for tests and benchmarks
/// which compare the levels.
#[derive(Clone, Copy, Debug)]
pub struct Kernels {
    /// Invariant: available on this processor. The calls into a level rely on it.
    level: Level,
}

impl Kernels {
    /// The fastest kernels of this processor.
    #[must_use]
    pub fn detect() -> Self {
        Self { level: Level::detect() }
    }

    /// The kernels of `level`, if this processor has its features.
    #[must_use]
    pub fn at(level: Level) -> Option<Self> {
        level.is_available().then_some(Self { level })
    }

    /// The level of these kernels.
    #[must_use]
    pub fn level(self) -> Level {
        self.level
    }

    /// See [`fold_in_place`].
    ///
    /// # Errors
    /// As there.
    pub fn fold_in_place(
        self,
        data_type: DataType,
        op: ReduceOp,
        own: &mut [u8],
        received: &[u8],
    ) -> Result<(), KernelError> {
        whole_elements(data_type, own)?;
        same_length(("own", own), ("received", received))?;
        self.fold_in_place_checked(data_type, op, own, received);
        Ok(())
    }

    /// See [`fold_into`].
    ///
    /// # Errors
    /// As there.
    pub fn fold_into(
        self,
        data_type: DataType,
        op: ReduceOp,
        out: &mut [u8],
        own: &[u8],
        received: &[u8],
    ) -> Result<(), KernelError> {
        whole_elements(data_type, own)?;
        same_length(("own", own), ("received", received))?;
        same_length(("own", own), ("out", out))?;
        self.fold_into_checked(data_type, op, out, own, received);
        Ok(())
    }

    /// See [`fold_in_place_saving`].
    ///
    /// # Errors
    /// As there.
    pub fn fold_in_place_saving(
        self,
        data_type: DataType,
        op: ReduceOp,
        own: &mut [u8],
        received: &[u8],
        saved: &mut [u8],
    ) -> Result<(), KernelError> {
        whole_elements(data_type, own)?;
        same_length(("own", own), ("received", received))?;
        same_length(("own", own), ("saved", saved))?;
        let blocks = own.chunks_mut(SAVE_BLOCK_BYTES);
        let others = received.chunks(SAVE_BLOCK_BYTES).zip(saved.chunks_mut(SAVE_BLOCK_BYTES));
        for (own, (received, saved)) in blocks.zip(others) {
            copy::stream(saved, own);
            self.fold_in_place_checked(data_type, op, own, received);
        }
        copy::finish_streaming();
        Ok(())
    }

    /// See [`finish_average`].
    ///
    /// # Errors
    /// As there.
    pub fn finish_average(self, data_type: DataType, data: &mut [u8], ranks: u32) -> Result<(), KernelError> {
        whole_elements(data_type, data)?;
        if ranks == 0 {
            return Err(KernelError::NoRanks);
        }
        self.finish_average_checked(data_type, data, ranks);
        Ok(())
    }
}

/// The calls into the levels, the only place that chooses between them.
#[allow(unsafe_code)]
impl Kernels {
    fn fold_in_place_checked(self, data_type: DataType, op: ReduceOp, own: &mut [u8], received: &[u8]) {
        match self.level {
            // SAFETY: by the invariant of `level`, the processor has the features that the function is compiled for.
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 | Level::Avx512 => unsafe { avx2::fold_in_place(data_type, op, own, received) },
            _ => base::fold_in_place(data_type, op, own, received),
        }
    }

    fn fold_into_checked(
        self,
        data_type: DataType,
        op: ReduceOp,
        out: &mut [u8],
        own: &[u8],
        received: &[u8],
    ) {
        match self.level {
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 | Level::Avx512 => unsafe { avx2::fold_into(data_type, op, out, own, received) },
            _ => base::fold_into(data_type, op, out, own, received),
        }
    }

    fn finish_average_checked(self, data_type: DataType, data: &mut [u8], ranks: u32) {
        match self.level {
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 | Level::Avx512 => unsafe { avx2::finish_average(data_type, data, ranks) },
            _ => base::finish_average(data_type, data, ranks),
        }
    }
}

/// `own = own OP received`. [`ReduceOp::Avg`] folds as a sum; see [`finish_average`]. The buffers may lie at any
/// address.
///
/// # Errors
/// If the lengths differ or are not whole elements; nothing is written then.
pub fn fold_in_place(
    data_type: DataType,
    op: ReduceOp,
    own: &mut [u8],
    received: &[u8],
) -> Result<(), KernelError> {
    Kernels::detect().fold_in_place(data_type, op, own, received)
}

/// `out = own OP received`, otherwise as [`fold_in_place`].
///
/// # Errors
/// If the lengths differ or are not whole elements; nothing is written then.
pub fn fold_into(
    data_type: DataType,
    op: ReduceOp,
    out: &mut [u8],
    own: &[u8],
    received: &[u8],
) -> Result<(), KernelError> {
    Kernels::detect().fold_into(data_type, op, out, own, received)
}

/// `saved = own`, then `own = own OP received`, in one pass over memory: for an operation that may have to be undone.
/// The saved bytes go by the caches, as in [`copy_streaming`](crate::copy_streaming). Otherwise as [`fold_in_place`].
///
/// # Errors
/// If the lengths differ or are not whole elements; nothing is written then.
pub fn fold_in_place_saving(
    data_type: DataType,
    op: ReduceOp,
    own: &mut [u8],
    received: &[u8],
    saved: &mut [u8],
) -> Result<(), KernelError> {
    Kernels::detect().fold_in_place_saving(data_type, op, own, received, saved)
}

/// `data = data / ranks`, the one division at the end of an average, after all folds.
///
/// # Errors
/// If `data` is not whole elements or `ranks` is 0; nothing is written then.
pub fn finish_average(data_type: DataType, data: &mut [u8], ranks: u32) -> Result<(), KernelError> {
    Kernels::detect().finish_average(data_type, data, ranks)
}

fn whole_elements(data_type: DataType, data: &[u8]) -> Result<(), KernelError> {
    if data.len().is_multiple_of(data_type.size_bytes()) {
        Ok(())
    } else {
        Err(KernelError::PartialElement { bytes: data.len(), data_type })
    }
}

fn same_length(one: (&'static str, &[u8]), other: (&'static str, &[u8])) -> Result<(), KernelError> {
    if one.1.len() == other.1.len() {
        Ok(())
    } else {
        let (one, one_bytes, other, other_bytes) = (one.0, one.1.len(), other.0, other.1.len());
        Err(KernelError::LengthMismatch { one, one_bytes, other, other_bytes })
    }
}
