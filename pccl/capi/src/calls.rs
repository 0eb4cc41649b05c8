//! Starting, and the shared state.

use crate::{
    communicator::{INITIALIZED, enter},
    convert,
    failure::{Failure, Outcome, call},
    fork, logging, raw,
    types::{BuildInfo, Handle, ResultCode, SharedState, SyncInfo, SyncProgress, TensorInfo, code},
};
use pccl::{StateMemory, SyncOptions};
use std::{
    ffi::{c_int, c_void},
    sync::atomic::Ordering,
};

/// `pcclInit`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pcclInit() -> ResultCode {
    call(|| {
        logging::start();
        fork::watch();
        INITIALIZED.store(true, Ordering::Release);
        Ok(())
    })
}

/// `pcclGetBuildInfo`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclGetBuildInfo(info: *mut BuildInfo) -> ResultCode {
    call(|| {
        raw::check(info, "info")?;
        // SAFETY: by the contract of this function.
        unsafe { raw::write(info, BuildInfo { has_cuda_support: false }) };
        Ok(())
    })
}

/// `pcclSynchronizeSharedState`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclSynchronizeSharedState(
    comm: Handle,
    state: *mut SharedState,
    strategy: c_int,
    info_out: *mut SyncInfo,
) -> ResultCode {
    // SAFETY: by the contract of this function.
    unsafe { pcclSynchronizeSharedStateWith(comm, state, strategy, info_out, None, std::ptr::null_mut()) }
}

/// Hears how far a sync is.
type ProgressCallback = unsafe extern "C" fn(*const SyncProgress, *mut c_void);

/// `pcclSynchronizeSharedStateWith`.
///
/// # Safety
/// As for all functions here; the callback is null or may be called with `user` until this returns.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclSynchronizeSharedStateWith(
    comm: Handle,
    state: *mut SharedState,
    strategy: c_int,
    info_out: *mut SyncInfo,
    progress: Option<ProgressCallback>,
    user: *mut c_void,
) -> ResultCode {
    call(|| {
        let comm = enter(comm)?;
        let strategy = convert::strategy(strategy)?;
        // SAFETY: by the contract of this function.
        let given = unsafe { raw::read(state, "shared_state") }?;
        // SAFETY: by the contract of this function.
        let (mut shared, _) = unsafe { state_of(&given) }?;
        let options = SyncOptions { strategy, timeout: comm.call_timeout() };
        let result = comm.connected()?.sync_shared_state_with(&mut shared, options, |seen| {
            if let Some(progress) = progress {
                let seen = SyncProgress {
                    done_bytes: seen.done_bytes,
                    total_bytes: seen.total_bytes,
                    bytes_per_s: seen.rate,
                    sources: u32::try_from(seen.sources).unwrap_or(u32::MAX),
                };
                // SAFETY: by the contract of this function.
                unsafe { progress(&raw const seen, user) };
            }
        });
        let info = result.map_err(|error| Failure::of(&error, code::INVALID_USAGE))?;
        // SAFETY: by the contract of this function.
        unsafe {
            raw::write(state, SharedState { revision: shared.revision(), ..given });
            raw::write(info_out, SyncInfo { tx_bytes: info.tx_bytes, rx_bytes: info.rx_bytes });
        }
        Ok(())
    })
}

/// The state that a caller describes, and the names of its tensors in the caller's order.
///
/// # Safety
/// The tensors are what the header says, for as long as `'a`.
pub(crate) unsafe fn state_of<'a>(given: &SharedState) -> Outcome<(pccl::SharedState<'a>, Vec<String>)> {
    // SAFETY: by the contract of this function.
    let infos = unsafe { raw::items(given.infos, given.count, "infos") }?;
    let mut shared = pccl::SharedState::new(given.revision);
    // SAFETY: by the contract of this function.
    let names = infos.iter().map(|info| unsafe { add_tensor(&mut shared, info) });
    let names = names.collect::<Outcome<_>>()?;
    Ok((shared, names))
}

/// Returns the name.
///
/// # Safety
/// Name and data are null or what the header says, for as long as `'a`.
unsafe fn add_tensor<'a>(shared: &mut pccl::SharedState<'a>, info: &TensorInfo) -> Outcome<String> {
    // SAFETY: by the contract of this function.
    let name = unsafe { raw::text(info.name, "the name of a tensor") }?;
    let data_type = convert::data_type(info.data_type)?;
    convert::device_type(info.device_type)?;
    if info.count > isize::MAX as usize / data_type.size_bytes() {
        return Err(Failure::argument(format!("{} elements", info.count)));
    }
    let data = raw::buffer(info.data, info.count, &name)?;
    // SAFETY: not null and of this length, by the contract of this function.
    let memory: StateMemory<'a> = unsafe { StateMemory::from_raw(data, info.count, data_type) };
    let added = shared.memory(&name, memory, info.allow_content_inequality != 0);
    added.map_err(|error| Failure::of(&error, code::INVALID_ARGUMENT))?;
    Ok(name)
}
