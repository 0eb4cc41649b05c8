//! The functions of the original that run a master. They need no `pcclInit`.

use crate::{
    convert,
    failure::{Failure, call},
    fork, logging,
    masters::{self, MASTERS},
    raw,
    types::{Handle, ResultCode, SocketAddress, code},
};

/// `pcclCreateMaster`.
///
/// # Safety
/// The pointer is null or points to what the header says.
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

/// What a process needs that has a master and has not called `pcclInit`.
pub(crate) fn prepare() {
    logging::start();
    fork::watch();
}

/// `pcclRunMaster`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pcclRunMaster(handle: Handle) -> ResultCode {
    call(|| MASTERS.get(handle)?.run())
}

/// `pcclInterruptMaster`, for signal handlers too.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pcclInterruptMaster(handle: Handle) -> ResultCode {
    if fork::is_child() { code::INVALID_USAGE } else { masters::interrupt(handle) }
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
