//! The functions that run a master. They need no `pcclInit`.

use crate::{
    convert,
    failure::{Failure, call},
    fork, logging,
    masters::{self, MASTERS},
    raw,
    types::{Handle, ResultCode, SocketAddress},
};
use pccl_master::StopHandle;
use std::ffi::c_char;

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

/// `pcclMasterSetOption`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclMasterSetOption(
    handle: Handle,
    name: *const c_char,
    value: *const c_char,
) -> ResultCode {
    call(|| {
        let master = MASTERS.get(handle)?;
        // SAFETY: by the contract of this function.
        let (name, value) = unsafe { (raw::text(name, "name")?, raw::text(value, "value")?) };
        master.set(&name, &value)
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
