//! The functions that run a master. They need no `pcclInit`.

use crate::{
    convert::{self, NO_TIMEOUT},
    failure::{Failure, call},
    fork, logging,
    masters::{self, MASTERS},
    raw,
    types::{Handle, ResultCode, SocketAddress},
};
use pccl_master::{KeyError, RunNameError, StopHandle, WireMode};
use std::{ffi::c_char, time::Duration};

/// `pcclCreateMaster`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclCreateMaster(
    listen: SocketAddress,
    handle_out: *mut Handle,
) -> ResultCode {
    call(|| {
        raw::check(handle_out, "p_master_handle_out")?;
        let address = convert::socket_address(&listen)?;
        prepare();
        let handle = masters::create(address.to_string())?;
        // SAFETY: by the contract of this function.
        unsafe { raw::write(handle_out, handle) };
        Ok(())
    })
}

/// `pcclCreateMasterByName`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclCreateMasterByName(
    listen: *const c_char,
    handle_out: *mut Handle,
) -> ResultCode {
    call(|| {
        raw::check(handle_out, "p_master_handle_out")?;
        // SAFETY: by the contract of this function.
        let listen = unsafe { raw::text(listen, "listen_address") }?;
        prepare();
        let handle = masters::create(listen)?;
        // SAFETY: by the contract of this function.
        unsafe { raw::write(handle_out, handle) };
        Ok(())
    })
}

/// Prepares a process that has a master and has not called `pcclInit`.
pub(crate) fn prepare() {
    logging::start();
    fork::watch();
}

/// `pcclMasterSetMinWorldSize`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pcclMasterSetMinWorldSize(handle: Handle, peers: u32) -> ResultCode {
    call(|| MASTERS.get(handle)?.set(|config| config.min_world_size = peers))
}

/// `pcclMasterSetPeerTimeout`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pcclMasterSetPeerTimeout(handle: Handle, milliseconds: u64) -> ResultCode {
    call(|| MASTERS.get(handle)?.set(|config| config.peer_timeout = Duration::from_millis(milliseconds)))
}

/// `pcclMasterSetStragglerTimeout`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pcclMasterSetStragglerTimeout(handle: Handle, milliseconds: u64) -> ResultCode {
    let time = (milliseconds != NO_TIMEOUT).then(|| Duration::from_millis(milliseconds));
    call(|| MASTERS.get(handle)?.set(|config| config.straggler_timeout = time))
}

/// `pcclMasterSetEdgeTimeout`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pcclMasterSetEdgeTimeout(handle: Handle, milliseconds: u64) -> ResultCode {
    call(|| MASTERS.get(handle)?.set(|config| config.edge_timeout = Duration::from_millis(milliseconds)))
}

/// `pcclMasterSetRunKey`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclMasterSetRunKey(handle: Handle, key: *const c_char) -> ResultCode {
    call(|| {
        let master = MASTERS.get(handle)?;
        // SAFETY: by the contract of this function.
        let key = unsafe { raw::text(key, "key") }?;
        let key = key.parse().map_err(|error: KeyError| Failure::argument(error.to_string()))?;
        master.set(|config| config.run_key = Some(key))
    })
}

/// `pcclMasterSetRunName`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclMasterSetRunName(handle: Handle, name: *const c_char) -> ResultCode {
    call(|| {
        let master = MASTERS.get(handle)?;
        // SAFETY: by the contract of this function.
        let name = unsafe { raw::text(name, "name") }?;
        let name = name.parse().map_err(|error: RunNameError| Failure::argument(error.to_string()))?;
        master.set(|config| config.run_name = Some(name))
    })
}

/// `pcclMasterSetWireMode`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclMasterSetWireMode(handle: Handle, mode: *const c_char) -> ResultCode {
    call(|| {
        let master = MASTERS.get(handle)?;
        // SAFETY: by the contract of this function.
        let mode = unsafe { raw::text(mode, "mode") }?;
        let mode: WireMode = mode.parse().map_err(Failure::argument)?;
        master.set(|config| config.wire = mode)
    })
}

/// `pcclMasterSetJournal`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclMasterSetJournal(handle: Handle, directory: *const c_char) -> ResultCode {
    call(|| {
        let master = MASTERS.get(handle)?;
        // SAFETY: by the contract of this function.
        let directory = unsafe { raw::text(directory, "directory") }?;
        master.set(|config| config.journal = Some(directory.into()))
    })
}

/// `pcclMasterSetAcceptStandbys`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pcclMasterSetAcceptStandbys(handle: Handle, accept: bool) -> ResultCode {
    call(|| MASTERS.get(handle)?.set(|config| config.accept_standbys = accept))
}

/// `pcclMasterSetStandbyOf`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclMasterSetStandbyOf(handle: Handle, masters: *const c_char) -> ResultCode {
    call(|| {
        let master = MASTERS.get(handle)?;
        // SAFETY: by the contract of this function.
        let masters = unsafe { raw::text(masters, "masters") }?;
        master.set(|config| config.standby_of = places(&masters))
    })
}

/// `pcclMasterSetMasters`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclMasterSetMasters(
    handle: Handle,
    masters: *const c_char,
    me: *const c_char,
) -> ResultCode {
    call(|| {
        let master = MASTERS.get(handle)?;
        // SAFETY: by the contract of this function.
        let masters = unsafe { raw::text(masters, "masters") }?;
        let me = match me.is_null() {
            true => None,
            // SAFETY: by the contract of this function.
            false => Some(unsafe { raw::text(me, "me") }?),
        };
        master.set(|config| (config.masters, config.me) = (places(&masters), me))
    })
}

/// The places of a list.
fn places(list: &str) -> Vec<String> {
    list.split(',').map(str::to_owned).collect()
}

/// `pcclMasterSetAdvertisedHost`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclMasterSetAdvertisedHost(
    handle: Handle,
    host: *const c_char,
) -> ResultCode {
    call(|| {
        let master = MASTERS.get(handle)?;
        // SAFETY: by the contract of this function.
        let host = unsafe { raw::text(host, "host") }?;
        master.set(|config| config.advertised_host = Some(host))
    })
}

/// `pcclMasterAddTrustedSeeder`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclMasterAddTrustedSeeder(
    handle: Handle,
    name: *const c_char,
) -> ResultCode {
    call(|| {
        let master = MASTERS.get(handle)?;
        // SAFETY: by the contract of this function.
        let name = unsafe { raw::text(name, "name") }?;
        master.set(|config| config.trusted_seeders.push(name))
    })
}

/// `pcclRunMaster`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pcclRunMaster(handle: Handle) -> ResultCode {
    call(|| MASTERS.get(handle)?.run())
}

/// `pcclInterruptMaster`, for signal handlers too.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pcclInterruptMaster(handle: Handle) -> ResultCode {
    masters::interrupt(handle, StopHandle::stop)
}

/// `pcclMasterEndRun`, for signal handlers too.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pcclMasterEndRun(handle: Handle) -> ResultCode {
    masters::interrupt(handle, StopHandle::end_run)
}

/// `pcclMasterAwaitTermination`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pcclMasterAwaitTermination(handle: Handle) -> ResultCode {
    call(|| {
        let instance = MASTERS.get(handle)?;
        let ended = instance.running()?.wait();
        ended.map_err(|error| Failure::internal(error.to_string()))
    })
}

/// `pcclDestroyMaster`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pcclDestroyMaster(handle: Handle) -> ResultCode {
    call(|| masters::destroy(handle))
}

/// `pcclMasterGetPort`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclMasterGetPort(handle: Handle, port_out: *mut u16) -> ResultCode {
    call(|| {
        let instance = MASTERS.get(handle)?;
        raw::check(port_out, "port_out")?;
        let port = instance.running()?.local_addr().port();
        // SAFETY: by the contract of this function.
        unsafe { raw::write(port_out, port) };
        Ok(())
    })
}

/// `pcclMasterHasEnded`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclMasterHasEnded(handle: Handle, ended_out: *mut bool) -> ResultCode {
    call(|| {
        let instance = MASTERS.get(handle)?;
        raw::check(ended_out, "ended_out")?;
        let ended = instance.running()?.has_ended();
        // SAFETY: by the contract of this function.
        unsafe { raw::write(ended_out, ended) };
        Ok(())
    })
}
