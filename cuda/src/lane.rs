//! A lane: a stream of this crate with a ring of pinned buffers, through which bytes go to and from a device.
//!
//! A lane belongs to one call at a time. A call that queues something on it waits until that is over before it returns
//! ([`with_lane`]), or makes the caller's stream wait for it ([`ahead_of_stream`]); if it fails, it waits in any case:
//! what the device reads or writes is alive as long as it may. A lane that has failed is not used again.

use crate::{
    CudaError,
    device::Device,
    driver::{Address, Handle, call},
};
use parking_lot::Mutex;
use std::{ffi::c_void, ops::Range, ptr::null_mut, sync::Arc};

/// Buffers of the ring: while one is filled or emptied here, the others are under way.
const RING: usize = 4;
/// Buffers of the ring of a lane that the caller does not wait for, at most: what they hold is copied behind its back.
const WIDE_RING: usize = 64;
/// Bytes of one.
const BUFFER_BYTES: usize = 1 << 20;
/// Bytes of device memory for arguments and results of kernels.
pub(crate) const SCRATCH_BYTES: usize = 1 << 20;
/// A stream that waits for no other one, not even for the default one.
const NON_BLOCKING: u32 = 1;
/// Usable in every context.
const PORTABLE: u32 = 1;
/// Lanes that no call has, of all devices together: they are kept for later calls, or still at work.
const MAX_IDLE: usize = 8;

/// The oldest one first.
static IDLE: Mutex<Vec<Lane>> = Mutex::new(Vec::new());

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Lane {
    device: Arc<Device>,
    stream: Handle,
    /// For the order after the stream of a caller.
    event: Handle,
    ring: Vec<Slot>,
    /// Device memory; 0 until it is first needed.
    scratch: Address,
}

/// A buffer of the ring.
#[derive(Debug)]
struct Slot {
    /// Pinned memory, of [`BUFFER_BYTES`] bytes.
    start: *mut u8,
    /// Recorded behind the last copy that uses it.
    over: Handle,
}

// SAFETY: the buffer belongs to the slot alone, and to the device between a copy and the wait for it.
unsafe impl Send for Slot {}

/// An argument of a kernel.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Argument {
    /// A number of four bytes.
    U32(u32),
    /// A number, or an address, of eight bytes.
    U64(u64),
}

/// Runs `work` with a lane of a device, which begins after what is queued on `stream` now, if there is one, and is over
/// when this returns.
pub(crate) fn with_lane<R>(
    device: &Arc<Device>,
    stream: Option<u64>,
    work: impl FnOnce(&mut Lane) -> Result<R, CudaError>,
) -> Result<R, CudaError> {
    run(device, stream, work, Lane::synchronize)
}

/// The same, but what the work has queued may be under way when this returns without an error. Work that is queued on
/// `stream` from then on begins after it.
pub(crate) fn ahead_of_stream<R>(
    device: &Arc<Device>,
    stream: u64,
    work: impl FnOnce(&mut Lane) -> Result<R, CudaError>,
) -> Result<R, CudaError> {
    run(device, Some(stream), work, |lane| lane.precede(stream))
}

fn run<R>(
    device: &Arc<Device>,
    stream: Option<u64>,
    work: impl FnOnce(&mut Lane) -> Result<R, CudaError>,
    end: impl FnOnce(&Lane) -> Result<(), CudaError>,
) -> Result<R, CudaError> {
    let entered = device.enter()?;
    let mut lane = match idle(device) {
        Some(lane) => lane,
        None => Lane::new(device)?,
    };
    let followed = stream.map_or(Ok(()), |stream| lane.follow(stream));
    let result = followed.and_then(|()| work(&mut lane));
    let result = result.and_then(|result| end(&lane).map(|()| result));
    let result = match result {
        Ok(result) => {
            keep(lane);
            Ok(result)
        }
        // Nothing is under way after this.
        Err(error) => Err(lane.synchronize().err().unwrap_or(error)),
    };
    drop(entered);
    result
}

/// A lane of the present device with nothing under way.
fn idle(device: &Arc<Device>) -> Option<Lane> {
    let mut idle = IDLE.lock();
    let at = idle.iter().position(|lane| Arc::ptr_eq(&lane.device, device) && lane.is_over())?;
    Some(idle.remove(at))
}

/// Keeps a lane for later calls. If there are too many the oldest one goes, when nothing is under way on it.
fn keep(lane: Lane) {
    let mut idle = IDLE.lock();
    idle.push(lane);
    let oldest = (idle.len() > MAX_IDLE).then(|| idle.remove(0));
    drop(idle);
    drop(oldest);
}

impl Lane {
    /// In the current context, which is that of the device.
    fn new(device: &Arc<Device>) -> Result<Self, CudaError> {
        let driver = device.driver;
        let (device, none) = (device.clone(), Handle(null_mut()));
        // Handles that were made are freed with the lane, also if the rest fails.
        let mut lane = Self { device, stream: none, event: none, ring: Vec::new(), scratch: 0 };
        // SAFETY: each call writes one handle.
        unsafe {
            call!(driver, cuStreamCreate(&mut lane.stream.0, NON_BLOCKING))?;
            call!(driver, cuEventCreate(&mut lane.event.0, EVENT_WITHOUT_TIME))?;
        }
        lane.widen(RING)?;
        Ok(lane)
    }

    /// Makes the ring this number of buffers long, if it is not.
    fn widen(&mut self, buffers: usize) -> Result<(), CudaError> {
        let driver = self.device.driver;
        while self.ring.len() < buffers {
            let (mut start, mut over): (*mut c_void, _) = (null_mut(), null_mut());
            // SAFETY: each call writes one handle or address.
            unsafe {
                call!(driver, cuMemHostAlloc(&mut start, BUFFER_BYTES, PORTABLE))?;
                self.ring.push(Slot { start: start.cast(), over: Handle(null_mut()) });
                call!(driver, cuEventCreate(&mut over, EVENT_WITHOUT_TIME))?;
                // The system may hand out what was another process's; nobody reads what is not written.
                start.cast::<u8>().write_bytes(0, BUFFER_BYTES);
            }
            if let Some(slot) = self.ring.last_mut() {
                slot.over = Handle(over);
            }
        }
        Ok(())
    }

    /// The device on which the lane works.
    pub(crate) fn device(&self) -> Arc<Device> {
        self.device.clone()
    }

    /// Work that is queued from now on begins after the work that is queued on the caller's stream now.
    fn follow(&mut self, stream: u64) -> Result<(), CudaError> {
        let driver = self.device.driver;
        // SAFETY: both handles are the lane's own; that of the caller is one of its context, which it has promised.
        unsafe {
            call!(driver, cuEventRecord(self.event.0, stream as *mut c_void))?;
            call!(driver, cuStreamWaitEvent(self.stream.0, self.event.0, 0))
        }
    }

    /// Work that is queued on the caller's stream from now on begins after the work that is queued here now.
    fn precede(&self, stream: u64) -> Result<(), CudaError> {
        let driver = self.device.driver;
        // SAFETY: as in `follow`.
        unsafe {
            call!(driver, cuEventRecord(self.event.0, self.stream.0))?;
            call!(driver, cuStreamWaitEvent(stream as *mut c_void, self.event.0, 0))
        }
    }

    /// Whether nothing is under way, as far as the driver says.
    fn is_over(&self) -> bool {
        // SAFETY: the handle is the lane's own.
        unsafe { (self.device.driver.cuStreamQuery)(self.stream.0) == 0 }
    }

    /// Waits until all that was queued is over.
    pub(crate) fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: the handle is the lane's own.
        unsafe { call!(self.device.driver, cuStreamSynchronize(self.stream.0)) }
    }

    /// Copies from a device into `to`.
    ///
    /// # Safety
    /// As many bytes from `from` on as `to` has are memory of the device, and stay so until this returns.
    pub(crate) unsafe fn read(&mut self, from: Address, to: &mut [u8]) -> Result<(), CudaError> {
        let bytes = to.len();
        let pieces = bytes.div_ceil(BUFFER_BYTES);
        let range = |piece: usize| piece * BUFFER_BYTES..bytes.min((piece + 1) * BUFFER_BYTES);
        for ahead in 0..pieces.min(RING - 1) {
            self.start_read(ahead, from, range(ahead))?;
        }
        for piece in 0..pieces {
            let ahead = piece + RING - 1;
            if ahead < pieces {
                // Its buffer was emptied in the turn before.
                self.start_read(ahead, from, range(ahead))?;
            }
            let slot = &self.ring[piece % RING];
            let wanted = range(piece);
            // SAFETY: the handle is the slot's own. After the wait nobody but this thread uses the buffer, which is
            // as long as each range.
            let bytes = unsafe {
                call!(self.device.driver, cuEventSynchronize(slot.over.0))?;
                std::slice::from_raw_parts(slot.start, wanted.len())
            };
            to[wanted].copy_from_slice(bytes);
        }
        Ok(())
    }

    fn start_read(&self, piece: usize, from: Address, range: Range<usize>) -> Result<(), CudaError> {
        let (driver, slot) = (self.device.driver, &self.ring[piece % RING]);
        let from = from + range.start as u64;
        // SAFETY: the buffer is as long as the range, is the device's until the event, and outlives the wait for it;
        // the address is that of the caller's promise.
        unsafe {
            call!(driver, cuMemcpyDtoHAsync_v2(slot.start.cast(), from, range.len(), self.stream.0))?;
            call!(driver, cuEventRecord(slot.over.0, self.stream.0))
        }
    }

    /// Copies `bytes` to a device. They are there when the lane is synchronised, or for whatever follows on it.
    ///
    /// # Safety
    /// As many bytes from `to` on as `bytes` has are memory of the device until the lane is synchronised, and nobody
    /// else uses them.
    pub(crate) unsafe fn write(&mut self, to: Address, bytes: &[u8]) -> Result<(), CudaError> {
        let driver = self.device.driver;
        for (number, piece) in bytes.chunks(BUFFER_BYTES).enumerate() {
            let slot = &self.ring[number % self.ring.len()];
            let to = to + (number * BUFFER_BYTES) as u64;
            // SAFETY: after the wait for its last copy nobody but this thread uses the buffer, which is as long as
            // each piece; then it is the device's until the event. The address is that of the caller's promise.
            unsafe {
                call!(driver, cuEventSynchronize(slot.over.0))?;
                std::slice::from_raw_parts_mut(slot.start, piece.len()).copy_from_slice(piece);
                call!(driver, cuMemcpyHtoDAsync_v2(to, slot.start.cast(), piece.len(), self.stream.0))?;
                call!(driver, cuEventRecord(slot.over.0, self.stream.0))?;
            }
        }
        Ok(())
    }

    /// The same with a longer ring: it waits only for room for what is more than [`WIDE_RING`] buffers.
    ///
    /// # Safety
    /// As of [`Lane::write`], until what is queued now is over.
    pub(crate) unsafe fn write_wide(&mut self, to: Address, bytes: &[u8]) -> Result<(), CudaError> {
        self.widen(bytes.len().div_ceil(BUFFER_BYTES).min(WIDE_RING))?;
        // SAFETY: the caller's promise.
        unsafe { self.write(to, bytes) }
    }

    /// Queues a copy on the device.
    ///
    /// # Safety
    /// The bytes from both addresses on, `bytes` of each, are memory of the device until the lane is synchronised, they
    /// do not overlap, and nobody else uses those at `to` or writes those at `from`.
    pub(crate) unsafe fn copy(&mut self, to: Address, from: Address, bytes: usize) -> Result<(), CudaError> {
        // SAFETY: the caller's promise.
        unsafe { call!(self.device.driver, cuMemcpyDtoDAsync_v2(to, from, bytes, self.stream.0)) }
    }

    /// Device memory of the lane, [`SCRATCH_BYTES`] of it.
    pub(crate) fn scratch(&mut self) -> Result<Address, CudaError> {
        if self.scratch == 0 {
            // SAFETY: it writes one address.
            unsafe { call!(self.device.driver, cuMemAlloc_v2(&mut self.scratch, SCRATCH_BYTES))? };
        }
        Ok(self.scratch)
    }

    /// Queues a kernel.
    ///
    /// # Safety
    /// The arguments are those of the kernel, and what their addresses name stays until the lane is synchronised.
    pub(crate) unsafe fn launch(
        &mut self,
        kernel: Handle,
        blocks: u32,
        threads: u32,
        arguments: &[Argument],
    ) -> Result<(), CudaError> {
        let mut addresses: Vec<*mut c_void> = arguments
            .iter()
            .map(|argument| match argument {
                Argument::U32(value) => std::ptr::from_ref(value).cast_mut().cast(),
                Argument::U64(value) => std::ptr::from_ref(value).cast_mut().cast(),
            })
            .collect();
        let (driver, stream) = (self.device.driver, self.stream.0);
        // SAFETY: the driver copies the arguments before it returns; the rest is the caller's promise.
        unsafe {
            call!(
                driver,
                cuLaunchKernel(
                    kernel.0,
                    blocks,
                    1,
                    1,
                    threads,
                    1,
                    1,
                    0,
                    stream,
                    addresses.as_mut_ptr(),
                    null_mut()
                )
            )
        }
    }
}

/// No time is kept with events.
const EVENT_WITHOUT_TIME: u32 = 2;

impl Drop for Lane {
    fn drop(&mut self) {
        let driver = self.device.driver;
        let Ok(entered) = self.device.enter() else {
            // A device that is lost: its memory goes with the process, and pinned memory had better stay than be
            // taken from under a copy.
            return;
        };
        if !self.stream.0.is_null() && self.synchronize().is_err() {
            return;
        }
        // SAFETY: nothing is under way; the handles are the lane's own, and not used afterwards. A call that fails here
        // fails because the device is lost.
        unsafe {
            for slot in self.ring.drain(..) {
                if !slot.over.0.is_null() {
                    let _ = call!(driver, cuEventDestroy_v2(slot.over.0));
                }
                let _ = call!(driver, cuMemFreeHost(slot.start.cast()));
            }
            if self.scratch != 0 {
                let _ = call!(driver, cuMemFree_v2(self.scratch));
            }
            if !self.event.0.is_null() {
                let _ = call!(driver, cuEventDestroy_v2(self.event.0));
            }
            if !self.stream.0.is_null() {
                let _ = call!(driver, cuStreamDestroy_v2(self.stream.0));
            }
        }
        drop(entered);
    }
}
