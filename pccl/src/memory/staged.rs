//! A tensor on a device, for collectives: memory of the host that stands for it.

use super::on_device::{refused, unwritten};
use crate::Error;
use pccl_cuda::DeviceMemory;
use pccl_quant::Element;

/// Bytes of the words that the memory is made of: those of the largest element, so that any elements may lie in it.
const WORD_BYTES: usize = size_of::<u64>();

/// Memory of the host that stands for a tensor on a device in collectives.
///
/// Every collective takes it as it takes any slice. The device has the result after [`Staged::write_back`]; until then
/// its memory is as it was, whatever fails.
///
/// ```no_run
/// # fn run(comm: &pccl::Communicator, gradient: pccl::DeviceMemory) -> Result<(), pccl::Error> {
/// let mut staged = pccl::Staged::read(gradient)?;
/// comm.all_reduce(staged.elements_mut::<f32>(), pccl::ReduceOp::Avg)?;
/// staged.write_back()
/// # }
/// ```
#[derive(Debug)]
pub struct Staged {
    memory: DeviceMemory,
    words: Vec<u64>,
}

impl Staged {
    /// Copies the content of `memory` to the host, after what is queued on its stream.
    ///
    /// # Errors
    /// `System` with what the driver refuses.
    pub fn read(memory: DeviceMemory) -> Result<Self, Error> {
        let mut staged = Self::zeros(memory);
        let memory = staged.memory.clone();
        memory.read(0, staged.bytes_mut()).map_err(|error| refused("reading a tensor on a device", error))?;
        Ok(staged)
    }

    /// Zeros in the place of `memory`, for what a collective only writes.
    pub fn zeros(memory: DeviceMemory) -> Self {
        let words = vec![0; memory.bytes().div_ceil(WORD_BYTES)];
        Self { memory, words }
    }

    /// The elements. If the bytes are not a multiple of an element's, the last ones are left out.
    pub fn elements_mut<T: Element>(&mut self) -> &mut [T] {
        let count = self.memory.bytes() / size_of::<T>();
        // SAFETY: the words are at least as many bytes, aligned for every element, and borrowed exclusively; elements
        // are plain numbers, of which every bit pattern is one.
        unsafe { std::slice::from_raw_parts_mut(self.words.as_mut_ptr().cast(), count) }
    }

    /// The bytes.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.elements_mut::<u8>()
    }

    /// Copies the elements to the device. When this returns they are there.
    ///
    /// # Errors
    /// `System` with what the driver refuses; the content of the device's memory is undefined then.
    pub fn write_back(mut self) -> Result<(), Error> {
        let mut memory = self.memory.clone();
        memory.write(0, self.bytes_mut()).map_err(unwritten)
    }

    /// The same for the stream that came with the memory: what is queued there from now on comes after it, and this
    /// returns before the elements are there. Of more than 64 MiB it waits for all but the last ones. An error of the
    /// device that comes later is told by the stream, and by later uses of the device.
    ///
    /// # Safety
    /// Until what is queued on the stream when this returns is over, the memory stays memory of the device, and nobody
    /// uses it but by what is queued on the stream afterwards. After an error it is the caller's at once.
    ///
    /// # Errors
    /// `System` with what the driver refuses; no copy is under way then, and the content of the device's memory is
    /// undefined.
    pub unsafe fn write_back_on_stream(mut self) -> Result<(), Error> {
        let mut memory = self.memory.clone();
        // SAFETY: the caller's promise.
        unsafe { memory.write_on_stream(0, self.bytes_mut()) }.map_err(unwritten)
    }
}
