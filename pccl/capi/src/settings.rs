//! How a communicator is made and set up.

use crate::{
    communicator::{COMMUNICATORS, Comm, THREAD_TIMEOUT, check_initialized, enter},
    convert::{self, DEFAULT_TIMEOUT, NO_TIMEOUT},
    failure::{Failure, Outcome, call},
    raw,
    registry::new_key,
    types::{CommCreateParams, Handle, ResultCode},
};
use pccl::Communicator;
use std::{
    ffi::{c_char, c_int},
    sync::Arc,
    time::Duration,
};

/// `pcclCreateCommunicator`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclCreateCommunicator(
    params: *const CommCreateParams,
    comm_out: *mut Handle,
) -> ResultCode {
    call(|| {
        check_initialized()?;
        raw::check(comm_out, "comm_out")?;
        // SAFETY: by the contract of this function.
        let params = unsafe { raw::read(params, "params") }?;
        let master = convert::socket_address(&params.master_address)?;
        let comm = new_communicator(&master.to_string(), params.peer_group, params.pool_connections)?;
        // SAFETY: by the contract of this function.
        unsafe { raw::write(comm_out, comm) };
        Ok(())
    })
}

/// `pcclCreateCommunicatorByName`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclCreateCommunicatorByName(
    master: *const c_char,
    peer_group: u32,
    pool_connections: u32,
    comm_out: *mut Handle,
) -> ResultCode {
    call(|| {
        check_initialized()?;
        raw::check(comm_out, "comm_out")?;
        // SAFETY: by the contract of this function.
        let master = unsafe { raw::text(master, "master_address") }?;
        let comm = new_communicator(&master, peer_group, pool_connections)?;
        // SAFETY: by the contract of this function.
        unsafe { raw::write(comm_out, comm) };
        Ok(())
    })
}

/// Makes a communicator and its handle.
pub(crate) fn new_communicator(master: &str, group: u32, pool_connections: u32) -> Outcome<Handle> {
    let pool = pool_size(pool_connections)?;
    let comm = Comm::new(Communicator::builder(master).peer_group(group).pool_size(pool))?;
    Ok(COMMUNICATORS.insert(new_key(), Arc::new(comm)))
}

/// The number that [`pccl::Builder::pool_size`] gets. Programs of the original pass 1 without a wish for no more than
/// that, so it leaves the number to the library: one connection does not fill a long path.
fn pool_size(connections: u32) -> Outcome<u16> {
    match u16::try_from(connections) {
        Ok(1) => Ok(0),
        Ok(number) => Ok(number),
        Err(_) => Err(Failure::argument(format!("pool of {connections} connections"))),
    }
}

/// `pcclSetOption`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclSetOption(
    comm: Handle,
    name: *const c_char,
    value: *const c_char,
) -> ResultCode {
    call(|| {
        let comm = enter(comm)?;
        // SAFETY: by the contract of this function.
        let (name, value) = unsafe { (raw::text(name, "name")?, raw::text(value, "value")?) };
        comm.set(&name, &value)
    })
}

/// `pcclSetSchedule`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pcclSetSchedule(comm: Handle, schedule: c_int) -> ResultCode {
    call(|| {
        let comm = enter(comm)?;
        comm.set_schedule(convert::schedule(schedule)?);
        Ok(())
    })
}

/// `pcclSetCallTimeout`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pcclSetCallTimeout(comm: Handle, milliseconds: u64) -> ResultCode {
    call(|| {
        let comm = enter(comm)?;
        if milliseconds == DEFAULT_TIMEOUT {
            return Err(Failure::argument("PCCL_DEFAULT_TIMEOUT has a meaning for threads only"));
        }
        comm.set_call_timeout(limit(milliseconds)?);
        Ok(())
    })
}

/// `pcclSetThreadCallTimeout`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pcclSetThreadCallTimeout(milliseconds: u64) -> ResultCode {
    call(|| {
        check_initialized()?;
        let own = if milliseconds == DEFAULT_TIMEOUT { None } else { Some(limit(milliseconds)?) };
        THREAD_TIMEOUT.with(|slot| slot.set(own));
        Ok(())
    })
}

/// A limit of calls. None that is over at once: a call without patience is a mistake of units.
fn limit(milliseconds: u64) -> Outcome<Option<Duration>> {
    match milliseconds {
        0 => Err(Failure::argument("a limit of 0 ms")),
        NO_TIMEOUT => Ok(None),
        some => Ok(Some(Duration::from_millis(some))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_connection_leaves_the_number_to_the_library() {
        let given = [0, 1, 2, 64, 65_535].map(|connections| pool_size(connections).expect("a number"));
        assert_eq!(given, [0, 0, 2, 64, 65_535]);
        assert!(pool_size(65_536).is_err());
    }
}
