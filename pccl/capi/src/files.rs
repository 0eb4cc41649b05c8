//! The shared state in files, and what a peer offers.

use crate::{
    calls::state_of,
    communicator::enter,
    failure::{Failure, call},
    raw,
    types::{Handle, ResultCode, SharedState, code},
};
use pccl::{Remedy, SaveOptions, StateFileError};
use std::ffi::c_char;

/// A failure of a file. What cannot be read is no shared state.
fn failure(error: StateFileError) -> Failure {
    let text = error.to_string();
    match error {
        StateFileError::InvalidArgument(text) => Failure::argument(text),
        StateFileError::Io { .. } => Failure::with(code::INTERNAL_ERROR, "System", Remedy::GiveUp, text),
        _ => Failure::with(code::NO_SHARED_STATE_AVAILABLE, "StateFileError", Remedy::GiveUp, text),
    }
}

/// `pcclSaveSharedState`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclSaveSharedState(
    state: *const SharedState,
    path: *const c_char,
    keep_previous: bool,
    bytes_written_out: *mut u64,
) -> ResultCode {
    call(|| {
        // SAFETY: by the contract of this function.
        let given = unsafe { raw::read(state, "shared_state") }?;
        // SAFETY: by the contract of this function.
        let path = unsafe { raw::text(path, "path") }?;
        // SAFETY: by the contract of this function; the state does not outlive this call.
        let shared = unsafe { state_of(&given) }?;
        let options = SaveOptions::default();
        let options = if keep_previous { options.keep_previous() } else { options };
        let info = shared.save(path, &options).map_err(failure)?;
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
        let mut shared = unsafe { state_of(&given) }?;
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
        let shared = unsafe { state_of(&given) }?;
        comm.inner().offer_resume(&shared);
        Ok(())
    })
}
