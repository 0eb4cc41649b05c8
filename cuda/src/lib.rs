//! Device memory of CUDA: state hashes, quantisation and copies, with a driver that is looked for at run time.
//!
//! Nothing is linked: `libcuda.so` is loaded when device memory is first named ([`DeviceMemory::from_raw`]) or somebody
//! asks for a device ([`usable`]). A machine without it pays nothing, and gets [`CudaError::NoDriver`] only then. The
//! kernels (`kernels/`) are compiled at first use by NVRTC, which comes with CUDA and with frameworks, and are kept in
//! files for later processes; where there is no NVRTC, contents are copied to the host to be hashed there.
//!
//! All work is done on streams of this crate. It begins after what the caller has queued on the stream that came with
//! the memory, and calls return when it is over, or that stream waits for it if asked. Nothing synchronises a whole
//! device.
//!
//! Modules from top to bottom, each of which uses only those below it: `memory`, `quantise`, `hash`, `lane`, `device`,
//! `kernels`, `cache`, `driver`, `error`.

// `log::warn!` and the like put a record into a queue: nothing here waits for the logger of the program.
extern crate pccl_log as log;

mod cache;
mod device;
#[allow(unsafe_code)]
mod driver;
mod error;
#[allow(unsafe_code)]
mod hash;
mod kernels;
#[allow(unsafe_code)]
mod lane;
#[allow(unsafe_code)]
mod memory;
#[allow(unsafe_code)]
mod quantise;

pub use device::{is_cuda_supported, usable};
pub use error::CudaError;
pub use memory::DeviceMemory;

/// Whether this build looks for a driver.
pub const HAS_CUDA: bool = cfg!(feature = "driver");
