//! The shared state in files, and what a peer offers.

use crate::{
    calls::state_of,
    communicator::enter,
    failure::{Failure, Outcome, call},
    fork, raw,
    registry::new_key,
    savings::{SAVINGS, Slot},
    types::{Handle, ResultCode, SaveOptions, SharedState, code},
};
use pccl::{Remedy, StateFileError};
use std::{ffi::c_char, sync::Arc};

/// A failure of a file. A file that cannot be read is no shared state.
fn failure(error: StateFileError) -> Failure {
    let text = error.to_string();
    match error {
        StateFileError::InvalidArgument(text) => Failure::argument(text),
        StateFileError::Io { .. } => Failure::with(code::INTERNAL_ERROR, "System", Remedy::GiveUp, text),
        _ => Failure::with(code::NO_SHARED_STATE_AVAILABLE, "StateFileError", Remedy::GiveUp, text),
    }
}

/// # Safety
/// The pointer is null or points to what the header says.
unsafe fn options_of(given: *const SaveOptions) -> Outcome<pccl::SaveOptions> {
    let mut options = pccl::SaveOptions::default();
    if given.is_null() {
        return Ok(options);
    }
    // SAFETY: by the contract of this function.
    let given = unsafe { raw::read(given, "options") }?;
    // SAFETY: by the contract of this function.
    for shape in unsafe { raw::items(given.shapes, given.shape_count, "shapes") }? {
        // SAFETY: by the contract of this function.
        let name = unsafe { raw::text(shape.name, "the name of a tensor") }?;
        // SAFETY: by the contract of this function.
        let lengths = unsafe { raw::items(shape.lengths, shape.dimensions, "lengths") }?;
        options = options.shape(&name, &lengths);
    }
    Ok(if given.keep_previous != 0 { options.keep_previous() } else { options })
}

/// `pcclSaveSharedState`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclSaveSharedState(
    state: *const SharedState,
    path: *const c_char,
    options: *const SaveOptions,
    bytes_written_out: *mut u64,
) -> ResultCode {
    call(|| {
        // SAFETY: by the contract of this function.
        let given = unsafe { raw::read(state, "shared_state") }?;
        // SAFETY: by the contract of this function.
        let path = unsafe { raw::text(path, "path") }?;
        // SAFETY: by the contract of this function; the state does not outlive this call.
        let (shared, _) = unsafe { state_of(&given) }?;
        // SAFETY: by the contract of this function.
        let options = unsafe { options_of(options) }?;
        let info = shared.save(path, &options).map_err(failure)?;
        // SAFETY: by the contract of this function.
        unsafe { raw::write(bytes_written_out, info.bytes_written) };
        Ok(())
    })
}

/// `pcclSaveSharedStateAsync`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclSaveSharedStateAsync(
    state: *const SharedState,
    path: *const c_char,
    options: *const SaveOptions,
    saving_out: *mut Handle,
) -> ResultCode {
    call(|| {
        raw::check(saving_out, "saving_out")?;
        // SAFETY: by the contract of this function.
        let given = unsafe { raw::read(state, "shared_state") }?;
        // SAFETY: by the contract of this function.
        let path = unsafe { raw::text(path, "path") }?;
        // SAFETY: by the contract of this function; the state does not outlive this call.
        let (shared, _) = unsafe { state_of(&given) }?;
        // SAFETY: by the contract of this function.
        let options = unsafe { options_of(options) }?;
        // A forked child has no thread that saves, and must not wait for one.
        fork::watch();
        let saving = shared.save_while(path, options).map_err(failure)?;
        let handle = SAVINGS.insert(new_key(), Arc::new(Slot::new(saving)));
        // SAFETY: by the contract of this function.
        unsafe { raw::write(saving_out, handle) };
        Ok(())
    })
}

/// `pcclTestSaving`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclTestSaving(saving: Handle, done_out: *mut bool) -> ResultCode {
    call(|| {
        raw::check(done_out, "done_out")?;
        let done = SAVINGS.get(saving)?.is_over();
        // SAFETY: by the contract of this function.
        unsafe { raw::write(done_out, done) };
        Ok(())
    })
}

/// `pcclAwaitSaving`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclAwaitSaving(saving: Handle, bytes_written_out: *mut u64) -> ResultCode {
    call(|| {
        let awaited = SAVINGS.get(saving)?.take()?.wait();
        SAVINGS.remove(saving)?;
        let info = awaited.map_err(failure)?;
        // SAFETY: by the contract of this function.
        unsafe { raw::write(bytes_written_out, info.bytes_written) };
        Ok(())
    })
}

/// `pcclLoadSharedState`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclLoadSharedState(
    state: *mut SharedState,
    path: *const c_char,
) -> ResultCode {
    call(|| {
        // SAFETY: by the contract of this function.
        let given = unsafe { raw::read(state, "shared_state") }?;
        // SAFETY: by the contract of this function.
        let path = unsafe { raw::text(path, "path") }?;
        // SAFETY: by the contract of this function; the state does not outlive this call.
        let (mut shared, _) = unsafe { state_of(&given) }?;
        let revision = shared.load(path).map_err(failure)?;
        // SAFETY: by the contract of this function.
        unsafe { raw::write(state, SharedState { revision, ..given }) };
        Ok(())
    })
}

/// `pcclOfferResume`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclOfferResume(comm: Handle, state: *const SharedState) -> ResultCode {
    call(|| {
        let comm = enter(comm)?;
        // SAFETY: by the contract of this function.
        let given = unsafe { raw::read(state, "shared_state") }?;
        // SAFETY: by the contract of this function; the state does not outlive this call.
        let (shared, _) = unsafe { state_of(&given) }?;
        comm.inner().offer_resume(&shared);
        Ok(())
    })
}
