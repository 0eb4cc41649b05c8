//! Failures of the driver, and of the compiler of kernels.

/// A refusal of the driver, or of the compiler of kernels.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// There is no driver, or it finds no device.
    #[error("device memory cannot be used on this machine: {0}")]
    NoDriver(String),
    /// There is no compiler of kernels, or it does not take them.
    #[error("kernels cannot be compiled: {0}")]
    NoCompiler(String),
    /// An address that is not of device memory.
    #[error("address {address:#x} is not device memory")]
    NotDeviceMemory {
        /// The address.
        address: u64,
    },
    /// Neither device memory nor pinned memory of the host is left.
    #[error("{call}: out of memory")]
    OutOfMemory {
        /// The function of the driver.
        call: &'static str,
    },
    /// The device does nothing any more in this process.
    #[error("{call}: the device is lost: {name} ({code})")]
    Lost {
        /// The function of the driver.
        call: &'static str,
        /// How the driver calls the error.
        name: String,
        /// Its number.
        code: u32,
    },
    /// Any other error of the driver.
    #[error("{call}: {name} ({code})")]
    Failed {
        /// The function of the driver.
        call: &'static str,
        /// How the driver calls the error.
        name: String,
        /// Its number.
        code: u32,
    },
}

const OUT_OF_MEMORY: u32 = 2;
/// Device unavailable, uncorrectable error of memory, illegal address, time-out of a launch, and all that a kernel may
/// do wrong: after these every call fails.
const LOST: &[u32] = &[46, 214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719];

/// Codes of the driver for an image that it does not take: nothing in it for the device, not well formed, no compiler
/// for it, of a newer version than its own, or that it must not compile.
const NOT_TAKEN: &[u32] = &[209, 218, 221, 222, 223];

impl CudaError {
    pub(crate) fn of(call: &'static str, code: u32, name: String) -> Self {
        match code {
            OUT_OF_MEMORY => Self::OutOfMemory { call },
            _ if call == "cuModuleLoadData" && NOT_TAKEN.contains(&code) => Self::NoCompiler(format!(
                "the driver does not take what NVRTC makes ({name}, {code}): use NVRTC of the driver's version, or a \
                 newer driver"
            )),
            _ if LOST.contains(&code) => Self::Lost { call, name, code },
            _ => Self::Failed { call, name, code },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_that_is_older_than_the_compiler_is_as_good_as_no_compiler() {
        let of = |call, code| CudaError::of(call, code, "NAME".to_owned());
        let Err(CudaError::NoCompiler(text)) = Err::<(), _>(of("cuModuleLoadData", 222)) else {
            panic!("kernels can be done without");
        };
        assert!(text.contains("NAME, 222"), "{text}");
        assert!(matches!(of("cuModuleLoadData", 719), CudaError::Lost { .. }));
        assert!(matches!(of("cuModuleLoadData", 2), CudaError::OutOfMemory { .. }));
        assert!(matches!(of("cuLaunchKernel", 222), CudaError::Failed { code: 222, .. }));
    }
}
