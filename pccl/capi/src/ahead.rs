//! Joining without a stop: shared state that is lent, and fetched by newcomers before they are let in.

use crate::{
    calls::{listener, state_of},
    communicator::enter,
    convert::{self, DEFAULT_TIMEOUT, NO_TIMEOUT},
    failure::{Failure, Outcome, call},
    raw,
    types::{Ahead, Handle, ProgressCallback, ResultCode, SharedState, code},
    world::is_to_give_up,
};
use std::{
    ffi::{c_int, c_void},
    time::Duration,
};

fn as_c(ahead: pccl::Ahead) -> Ahead {
    Ahead {
        has_revision: ahead.revision.is_some(),
        revision: ahead.revision.unwrap_or(0),
        rx_bytes: ahead.rx_bytes,
    }
}

/// `pcclConnectWithState`.
///
/// # Safety
/// As for all functions here; the callback is null or may be called with `user` until this returns.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclConnectWithState(
    comm: Handle,
    state: *mut SharedState,
    timeout_ms: u64,
    progress: Option<ProgressCallback>,
    user: *mut c_void,
    ahead_out: *mut Ahead,
) -> ResultCode {
    call(|| {
        let comm = enter(comm)?;
        // SAFETY: by the contract of this function.
        let given = unsafe { raw::read(state, "shared_state") }?;
        // SAFETY: by the contract of this function.
        let (mut shared, _) = unsafe { state_of(&given) }?;
        let timeout = match timeout_ms {
            NO_TIMEOUT => None,
            DEFAULT_TIMEOUT => comm.call_timeout(),
            some => Some(Duration::from_millis(some)),
        };
        // SAFETY: by the contract of this function.
        let ahead = comm.connect_with(&mut shared, timeout, unsafe { listener(progress, user) })?;
        // SAFETY: by the contract of this function.
        unsafe {
            raw::write(state, SharedState { revision: shared.revision(), ..given });
            raw::write(ahead_out, as_c(ahead));
        }
        Ok(())
    })
}

/// `pcclRecoverWithState`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclRecoverWithState(
    comm: Handle,
    remedy: c_int,
    peers: u32,
    state: *mut SharedState,
    ahead_out: *mut Ahead,
) -> ResultCode {
    if is_to_give_up(comm, remedy) {
        return code::INVALID_USAGE;
    }
    call(|| {
        let comm = enter(comm)?;
        let remedy = convert::remedy(remedy)?;
        // SAFETY: by the contract of this function.
        let given = unsafe { raw::read(state, "shared_state") }?;
        // SAFETY: by the contract of this function.
        let (mut shared, _) = unsafe { state_of(&given) }?;
        let ahead = match remedy {
            Some(remedy) => comm.recover_with(remedy, peers, &mut shared)?,
            None => pccl::Ahead::default(),
        };
        // SAFETY: by the contract of this function.
        unsafe {
            raw::write(state, SharedState { revision: shared.revision(), ..given });
            raw::write(ahead_out, as_c(ahead));
        }
        Ok(())
    })
}

/// The state that a caller describes, with its word that nothing of it has changed.
///
/// # Safety
/// The state is null or what the header says, for as long as `'a`.
unsafe fn to_be_lent<'a>(state: *const SharedState, unchanged: bool) -> Outcome<pccl::SharedState<'a>> {
    // SAFETY: by the contract of this function.
    let given = unsafe { raw::read(state, "shared_state") }?;
    // SAFETY: by the contract of this function.
    let (mut shared, names) = unsafe { state_of(&given) }?;
    if unchanged {
        for name in &names {
            let said = shared.unchanged_since(name, given.revision);
            said.map_err(|error| Failure::of(&error, code::INVALID_ARGUMENT))?;
        }
    }
    Ok(shared)
}

/// `pcclLendSharedState`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says; the tensors stay as they are until
/// the loan has ended.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclLendSharedState(
    comm: Handle,
    state: *const SharedState,
    unchanged: bool,
    loan_out: *mut u64,
) -> ResultCode {
    call(|| {
        let comm = enter(comm)?;
        // SAFETY: by the contract of this function: until the loan ends, which every way to end it waits for.
        let shared = unsafe { to_be_lent(state, unchanged) }?;
        let number = comm.lend(shared)?;
        // SAFETY: by the contract of this function.
        unsafe { raw::write(loan_out, number) };
        Ok(())
    })
}

/// `pcclReclaimSharedState`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pcclReclaimSharedState(comm: Handle, loan: u64) -> ResultCode {
    call(|| {
        enter(comm)?.end_loan(loan);
        Ok(())
    })
}

/// `pcclLendSharedStateSnapshot`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclLendSharedStateSnapshot(
    comm: Handle,
    state: *const SharedState,
    unchanged: bool,
) -> ResultCode {
    call(|| {
        let comm = enter(comm)?;
        // SAFETY: by the contract of this function; the state does not outlive this call.
        let shared = unsafe { to_be_lent(state, unchanged) }?;
        let lent = comm.connected()?.lend_snapshot(&shared);
        lent.map_err(|error| Failure::of(&error, code::INVALID_USAGE))
    })
}

/// `pcclEndSharedStateSnapshot`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pcclEndSharedStateSnapshot(comm: Handle) -> ResultCode {
    call(|| {
        enter(comm)?.inner().end_loan();
        Ok(())
    })
}
