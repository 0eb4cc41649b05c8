//! Starting, and the shared state.

use crate::{
    communicator::{INITIALIZED, enter},
    convert, device,
    failure::{Failure, Outcome, call},
    fork, logging, raw,
    types::{
        BuildInfo, Handle, ProgressCallback, ResultCode, SharedState, SyncInfo, SyncOptions, SyncProgress,
        SyncReport, TensorInfo, code,
    },
};
use pccl::StateMemory;
use std::{
    ffi::{c_int, c_void},
    ptr::null_mut,
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
        unsafe { raw::write(info, BuildInfo { has_cuda_support: pccl::is_cuda_supported() }) };
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
    let unchanged = std::ptr::null();
    let options = SyncOptions { strategy, unchanged_count: 0, unchanged, progress, user };
    call(|| {
        // SAFETY: by the contract of this function.
        let info = unsafe { sync(comm, state, &options) }?;
        // SAFETY: by the contract of this function.
        unsafe { raw::write(info_out, SyncInfo { tx_bytes: info.tx_bytes, rx_bytes: info.rx_bytes }) };
        Ok(())
    })
}

/// `pcclSyncSharedState`.
///
/// # Safety
/// As for all functions here; the callback is null or may be called with its user until this returns.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclSyncSharedState(
    comm: Handle,
    state: *mut SharedState,
    options: *const SyncOptions,
    info_out: *mut SyncReport,
) -> ResultCode {
    call(|| {
        let (unchanged, user) = (std::ptr::null(), std::ptr::null_mut());
        let mut given = SyncOptions { strategy: 0, unchanged_count: 0, unchanged, progress: None, user };
        if !options.is_null() {
            // SAFETY: by the contract of this function.
            given = unsafe { raw::read(options, "options") }?;
        }
        // SAFETY: by the contract of this function.
        let info = unsafe { sync(comm, state, &given) }?;
        let (tx_bytes, rx_bytes, came_ahead) = (info.tx_bytes, info.rx_bytes, info.came_ahead);
        // SAFETY: by the contract of this function.
        unsafe { raw::write(info_out, SyncReport { tx_bytes, rx_bytes, came_ahead }) };
        Ok(())
    })
}

/// Syncs a state, and writes its revision.
///
/// # Safety
/// Pointers are null or point to what the header says; the callback is null or may be called with its user until this
/// returns.
unsafe fn sync(comm: Handle, state: *mut SharedState, options: &SyncOptions) -> Outcome<pccl::SyncInfo> {
    let comm = enter(comm)?;
    // Whatever becomes of the sync: from now on the memory is that of the sync, or of the caller.
    comm.end_loan(0);
    let strategy = convert::strategy(options.strategy)?;
    // SAFETY: by the contract of this function.
    let given = unsafe { raw::read(state, "shared_state") }?;
    // SAFETY: by the contract of this function.
    let (mut shared, _) = unsafe { state_of(&given) }?;
    // SAFETY: by the contract of this function.
    for word in unsafe { raw::items(options.unchanged, options.unchanged_count, "unchanged") }? {
        // SAFETY: by the contract of this function.
        let name = unsafe { raw::text(word.name, "the name of a tensor") }?;
        let said = shared.unchanged_since(&name, word.revision);
        said.map_err(|error| Failure::of(&error, code::INVALID_USAGE))?;
    }
    let whole = pccl::SyncOptions { strategy, timeout: comm.call_timeout() };
    // SAFETY: by the contract of this function.
    let progress = unsafe { listener(options.progress, options.user) };
    let result = comm.connected()?.sync_shared_state_with(&mut shared, whole, progress);
    let info = result.map_err(|error| Failure::of(&error, code::INVALID_USAGE))?;
    // SAFETY: by the contract of this function.
    unsafe { raw::write(state, SharedState { revision: shared.revision(), ..given }) };
    Ok(info)
}

/// Tells a function of the caller how far a sync is.
///
/// # Safety
/// The function is null or may be called with `user` as long as what this returns is used.
pub(crate) unsafe fn listener(
    progress: Option<ProgressCallback>,
    user: *mut c_void,
) -> impl FnMut(pccl::SyncProgress) {
    move |seen| {
        let Some(progress) = progress else { return };
        let seen = SyncProgress {
            done_bytes: seen.done_bytes,
            total_bytes: seen.total_bytes,
            bytes_per_s: seen.rate,
            sources: u32::try_from(seen.sources).unwrap_or(u32::MAX),
        };
        // SAFETY: by the contract of this function.
        unsafe { progress(&raw const seen, user) };
    }
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
    let is_on_device = convert::is_on_device(info.device_type)?;
    if info.count > isize::MAX as usize / data_type.size_bytes() {
        return Err(Failure::argument(format!("{} elements", info.count)));
    }
    let memory: StateMemory<'a> = if is_on_device {
        let bytes = info.count * data_type.size_bytes();
        // SAFETY: by the contract of this function.
        let memory = unsafe { device::memory(info.data, bytes, null_mut()) }?;
        StateMemory::on_device(memory, data_type)
            .map_err(|error| Failure::of(&error, code::INVALID_ARGUMENT))?
    } else {
        let data = raw::buffer(info.data, info.count, &name)?;
        // SAFETY: not null and of this length, by the contract of this function.
        unsafe { StateMemory::from_raw(data, info.count, data_type) }
    };
    let added = shared.memory(&name, memory, info.allow_content_inequality != 0);
    added.map_err(|error| Failure::of(&error, code::INVALID_ARGUMENT))?;
    Ok(name)
}
