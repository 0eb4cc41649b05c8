//! Parts that the tests share.

use pccl_cuda::{CudaError, DeviceMemory};
use pccl_testkit::{random::Rng, standin::Standin};

/// Device memory with a content, which is freed with it.
pub(crate) struct Filled<'s> {
    standin: &'s Standin,
    address: u64,
    pub(crate) memory: DeviceMemory,
}

impl<'s> Filled<'s> {
    /// `content`, `skew` bytes behind the beginning of an allocation.
    pub(crate) fn new(standin: &'s Standin, content: &[u8], skew: usize) -> Self {
        let address = standin.device_memory(content.len() + skew + 1);
        assert_ne!(address, 0, "device memory");
        standin.put(address + skew as u64, content);
        let memory = memory(address + skew as u64, content.len(), 0);
        Self { standin, address, memory }
    }
}

impl Drop for Filled<'_> {
    fn drop(&mut self) {
        self.standin.free(self.address);
    }
}

pub(crate) fn memory(address: u64, bytes: usize, stream: u64) -> DeviceMemory {
    // SAFETY: the tests free memory after their last use of it, and nothing else writes it.
    unsafe { DeviceMemory::from_raw(address, bytes, stream) }.expect("device memory")
}

/// Writes all of `memory`, for its stream.
pub(crate) fn write_on_stream(memory: &DeviceMemory, content: &[u8]) -> Result<(), CudaError> {
    // SAFETY: the tests free memory after the stream has done everything, and nothing else writes it.
    unsafe { memory.clone().write_on_stream(0, content) }
}

/// Bytes that look random.
pub(crate) fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    Rng::keyed(&[seed]).bytes(bytes)
}
