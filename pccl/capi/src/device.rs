//! Tensors on devices.

use crate::{
    communicator::check_initialized,
    failure::{Failure, Outcome, call},
    raw,
    registry::{Registry, new_key},
    types::{Handle, ResultCode, code},
};
use parking_lot::Mutex;
use pccl::{DeviceMemory, Staged};
use std::{cell::Cell, ffi::c_void, sync::Arc};

/// Where the buffers of a collective are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Host,
    /// On a device, after what is queued on a stream of it.
    Device(*mut c_void),
    /// Each where its address says: on a device, after what is queued on that stream, or on the host.
    ByAddress(*mut c_void),
}

thread_local! {
    /// Where those of calls of this thread are.
    static THREAD_PLACE: Cell<Place> = const { Cell::new(Place::Host) };
}

/// Where the buffers of a call are that this thread makes now.
pub(crate) fn place() -> Place {
    THREAD_PLACE.with(Cell::get)
}

/// `pcclSetThreadDevice`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pcclSetThreadDevice(on_device: bool, stream: *mut c_void) -> ResultCode {
    call(|| {
        check_initialized()?;
        if !on_device && !stream.is_null() {
            return Err(Failure::argument("a stream, but no device"));
        }
        THREAD_PLACE.with(|place| place.set(if on_device { Place::Device(stream) } else { Place::Host }));
        Ok(())
    })
}

/// `pcclSetThreadByAddress`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pcclSetThreadByAddress(stream: *mut c_void) -> ResultCode {
    call(|| {
        check_initialized()?;
        THREAD_PLACE.with(|place| place.set(Place::ByAddress(stream)));
        Ok(())
    })
}

impl Place {
    /// The device memory that a buffer is; `None` if it is on the host.
    ///
    /// # Safety
    /// As [`named`].
    pub(crate) unsafe fn device_memory(self, data: *const c_void, bytes: usize) -> Option<DeviceMemory> {
        match self {
            Self::Host => None,
            // SAFETY: by the contract of this function.
            Self::Device(stream) => Some(unsafe { named(data, bytes, stream) }),
            Self::ByAddress(stream) => {
                // SAFETY: by the contract of this function.
                let memory = unsafe { named(data, bytes, stream) };
                (bytes > 0 && memory.is_known()).then_some(memory)
            }
        }
    }
}

/// Memory of the host that stands for tensors on devices, until it is unstaged.
static STAGED: Registry<Mutex<Option<Staged>>> = Registry::new("staged tensor");

/// `pcclGetDeviceCount`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclGetDeviceCount(count_out: *mut u32) -> ResultCode {
    call(|| {
        raw::check(count_out, "count_out")?;
        // No driver is no error for who asks.
        // SAFETY: by the contract of this function.
        unsafe { raw::write(count_out, pccl::usable_devices().unwrap_or(0)) };
        Ok(())
    })
}

/// `pcclStage`.
///
/// # Safety
/// As for all functions here.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclStage(
    device_data: *const c_void,
    bytes: usize,
    stream: *mut c_void,
    reads: bool,
    staged_out: *mut Handle,
    host_out: *mut *mut c_void,
) -> ResultCode {
    call(|| {
        raw::check(staged_out, "staged_out")?;
        raw::check(host_out, "host_out")?;
        // SAFETY: by the contract of this function.
        let memory = unsafe { memory(device_data, bytes, stream) }?;
        let mut staged = match reads {
            true => Staged::read(memory).map_err(|error| Failure::of(&error, code::INVALID_USAGE))?,
            false => Staged::zeros(memory),
        };
        let host = staged.bytes_mut().as_mut_ptr();
        // SAFETY: by the contract of this function.
        unsafe {
            raw::write(host_out, host.cast());
            raw::write(staged_out, STAGED.insert(new_key(), Arc::new(Mutex::new(Some(staged)))));
        }
        Ok(())
    })
}

/// `pcclUnstage`.
///
/// # Safety
/// The device's memory and its stream are still there, and no operation is under way that uses what stands for it.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclUnstage(staged: Handle, writes: bool) -> ResultCode {
    call(|| unstage(staged, |staged| if writes { staged.write_back() } else { Ok(()) }))
}

/// `pcclUnstageOnStream`.
///
/// # Safety
/// As of [`pcclUnstage`], until the stream has done what is queued on it when this returns.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclUnstageOnStream(staged: Handle) -> ResultCode {
    // SAFETY: by the contract of this function.
    call(|| unstage(staged, |staged| unsafe { staged.write_back_on_stream() }))
}

/// Takes what stands for a tensor, and ends it so.
fn unstage(staged: Handle, end: impl FnOnce(Staged) -> Result<(), pccl::Error>) -> Outcome<()> {
    let staged = STAGED.remove(staged)?.lock().take();
    staged.map_or(Ok(()), end).map_err(|error| Failure::of(&error, code::INVALID_USAGE))
}

/// Device memory that a caller names for a collective, which fails for all peers if it is none: nobody waits then for
/// the caller.
///
/// # Safety
/// It is, if it is any, for as long as the call that the caller makes.
unsafe fn named(data: *const c_void, bytes: usize, stream: *mut c_void) -> DeviceMemory {
    // SAFETY: by the contract of this function.
    unsafe { DeviceMemory::named(data as u64, bytes, stream as u64) }
}

/// Device memory that a caller names.
///
/// # Safety
/// It is, for as long as the call that the caller makes, or until it is unstaged.
pub(crate) unsafe fn memory(data: *const c_void, bytes: usize, stream: *mut c_void) -> Outcome<DeviceMemory> {
    // SAFETY: by the contract of this function.
    let memory = unsafe { DeviceMemory::from_raw(data as u64, bytes, stream as u64) };
    memory.map_err(|error| Failure::argument(error.to_string()))
}
