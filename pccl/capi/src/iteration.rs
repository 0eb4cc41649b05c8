//! The functions for a global iteration over a store. They need no `pcclInit`.

use crate::{
    failure::{Failure, Outcome, call},
    master::prepare,
    members::{ITERATIONS, Instance, STORES},
    raw,
    registry::new_key,
    types::{Handle, IterationInfo, IterationMember, MEMBER_BYTES, ResultCode},
};
use pccl_iteration::{Decision, Policy, ServerConfig, StoreServer, protocol::Entry};
use std::{
    ffi::{c_char, c_int, c_void},
    sync::Arc,
    time::Duration,
};

/// `pcclIterationServeStore`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclIterationServeStore(
    listen: *const c_char,
    file: *const c_char,
    store_out: *mut Handle,
) -> ResultCode {
    call(|| {
        raw::check(store_out, "store_out")?;
        // SAFETY: by the contract of this function.
        let listen = unsafe { raw::text(listen, "listen_address") }?;
        // SAFETY: the same.
        let file = if file.is_null() { None } else { Some(unsafe { raw::text(file, "file") }?.into()) };
        prepare();
        let config = ServerConfig { listen, file, ..ServerConfig::default() };
        let server = StoreServer::launch(config).map_err(|error| Failure::usage(error.to_string()))?;
        let handle = STORES.insert(new_key(), Arc::new(server));
        // SAFETY: by the contract of this function.
        unsafe { raw::write(store_out, handle) };
        Ok(())
    })
}

/// `pcclIterationGetStorePort`.
///
/// # Safety
/// As [`pcclIterationServeStore`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclIterationGetStorePort(store: Handle, port_out: *mut u16) -> ResultCode {
    call(|| {
        let server = STORES.get(store)?;
        raw::check(port_out, "port_out")?;
        // SAFETY: by the contract of this function.
        unsafe { raw::write(port_out, server.local_addr().port()) };
        Ok(())
    })
}

/// `pcclIterationStopStore`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pcclIterationStopStore(store: Handle) -> ResultCode {
    call(|| STORES.remove(store).map(drop))
}

/// `pcclIterationCreate`.
///
/// # Safety
/// As [`pcclIterationServeStore`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclIterationCreate(
    store: *const c_char,
    run: *const c_char,
    member: *const c_char,
    world_size: u32,
    iteration_out: *mut Handle,
) -> ResultCode {
    call(|| {
        raw::check(iteration_out, "iteration_out")?;
        // SAFETY: by the contract of this function.
        let store = unsafe { raw::text(store, "store_address") }?;
        // SAFETY: the same.
        let run = unsafe { raw::text(run, "run") }?;
        // SAFETY: the same.
        let member = unsafe { raw::text(member, "member") }?;
        prepare();
        let instance = Instance::new(&store, run, &member, world_size)?;
        let handle = ITERATIONS.insert(new_key(), Arc::new(instance));
        // SAFETY: by the contract of this function.
        unsafe { raw::write(iteration_out, handle) };
        Ok(())
    })
}

/// `pcclIterationDestroy`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pcclIterationDestroy(iteration: Handle) -> ResultCode {
    call(|| {
        ITERATIONS.remove(iteration)?.cancel();
        Ok(())
    })
}

/// `pcclIterationSetPolicy`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pcclIterationSetPolicy(iteration: Handle, policy: c_int) -> ResultCode {
    call(|| {
        let policy = match policy {
            0 => Policy::AnySubset,
            1 => Policy::StrictMajority,
            _ => return Err(Failure::argument(format!("{policy} is no pcclIterationPolicy_t"))),
        };
        ITERATIONS.get(iteration)?.set(|config| config.policy = policy)
    })
}

/// `pcclIterationSetFirst`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pcclIterationSetFirst(iteration: Handle, first: u64) -> ResultCode {
    call(|| ITERATIONS.get(iteration)?.set(|config| config.first_iteration = first))
}

/// `pcclIterationSetMirror`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pcclIterationSetMirror(iteration: Handle, mirror: bool) -> ResultCode {
    call(|| ITERATIONS.get(iteration)?.set(|config| config.mirror = mirror))
}

/// `pcclIterationSetTime`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pcclIterationSetTime(
    iteration: Handle,
    which: c_int,
    milliseconds: u64,
) -> ResultCode {
    /// About a hundred years: clocks cannot add much more.
    const LONGEST_MS: u64 = 100 * 365 * 86_400_000;
    call(|| {
        let instance = ITERATIONS.get(iteration)?;
        let time = Duration::from_millis(milliseconds.min(LONGEST_MS));
        if time.is_zero() {
            return Err(Failure::argument("a time of 0 ms"));
        }
        instance.set(|config| match which {
            0 => config.heartbeat_interval = time,
            1 => config.inactive_after = time,
            2 => config.no_progress = time,
            3 => config.poll_interval = time,
            4 => config.store_timeout = time,
            _ => config.join_timeout = (milliseconds != u64::MAX).then_some(time),
        })?;
        match which {
            0..=5 => Ok(()),
            _ => Err(Failure::argument(format!("{which} is no pcclIterationTime_t"))),
        }
    })
}

/// `pcclIterationJoin`.
///
/// # Safety
/// As [`pcclIterationServeStore`]; there are `bytes` bytes at `payload`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclIterationJoin(
    iteration: Handle,
    payload: *const c_void,
    bytes: usize,
    info_out: *mut IterationInfo,
) -> ResultCode {
    call(|| {
        let instance = ITERATIONS.get(iteration)?;
        // SAFETY: by the contract of this function.
        let payload = unsafe { raw::items(payload.cast::<u8>(), bytes, "payload") }?;
        let decision = instance.join(&payload)?;
        // SAFETY: by the contract of this function.
        unsafe { raw::write(info_out, info(&decision, instance.id())) };
        Ok(())
    })
}

/// `pcclIterationAdvance`.
///
/// # Safety
/// As [`pcclIterationJoin`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclIterationAdvance(
    iteration: Handle,
    payload: *const c_void,
    bytes: usize,
    info_out: *mut IterationInfo,
) -> ResultCode {
    call(|| {
        let instance = ITERATIONS.get(iteration)?;
        // SAFETY: by the contract of this function.
        let payload = unsafe { raw::items(payload.cast::<u8>(), bytes, "payload") }?;
        let decision = instance.take_part(|member| member.advance(&payload))?;
        // SAFETY: by the contract of this function.
        unsafe { raw::write(info_out, info(&decision, instance.id())) };
        Ok(())
    })
}

/// `pcclIterationCatchUp`.
///
/// # Safety
/// As [`pcclIterationJoin`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclIterationCatchUp(
    iteration: Handle,
    payload: *const c_void,
    bytes: usize,
    info_out: *mut IterationInfo,
) -> ResultCode {
    call(|| {
        let instance = ITERATIONS.get(iteration)?;
        // SAFETY: by the contract of this function.
        let payload = unsafe { raw::items(payload.cast::<u8>(), bytes, "payload") }?;
        let decision = instance.take_part(|member| member.catch_up(&payload))?;
        // SAFETY: by the contract of this function.
        unsafe { raw::write(info_out, info(&decision, instance.id())) };
        Ok(())
    })
}

/// `pcclIterationLeave`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pcclIterationLeave(iteration: Handle) -> ResultCode {
    call(|| ITERATIONS.get(iteration)?.take_part(pccl_iteration::GlobalIteration::leave))
}

/// `pcclIterationCancel`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pcclIterationCancel(iteration: Handle) -> ResultCode {
    call(|| {
        ITERATIONS.get(iteration)?.cancel();
        Ok(())
    })
}

/// `pcclIterationForceMembers`.
///
/// # Safety
/// As [`pcclIterationServeStore`]; there are `count` texts at `members`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclIterationForceMembers(
    iteration: Handle,
    members: *const *const c_char,
    count: usize,
) -> ResultCode {
    call(|| {
        let instance = ITERATIONS.get(iteration)?;
        // SAFETY: by the contract of this function.
        let members = unsafe { raw::items(members, count, "members") }?;
        // SAFETY: the same.
        let ids = members.into_iter().map(|member| unsafe { raw::text(member, "a member") });
        let ids = ids.collect::<Outcome<Vec<String>>>()?;
        instance.member()?.force_members(ids);
        Ok(())
    })
}

/// `pcclIterationGetCurrent`.
///
/// # Safety
/// As [`pcclIterationServeStore`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclIterationGetCurrent(
    iteration: Handle,
    begun_out: *mut bool,
    info_out: *mut IterationInfo,
) -> ResultCode {
    call(|| {
        let instance = ITERATIONS.get(iteration)?;
        raw::check(begun_out, "begun_out")?;
        let found = instance.current()?;
        // SAFETY: by the contract of this function.
        unsafe { raw::write(begun_out, found.is_some()) };
        if let Some(decision) = found {
            // SAFETY: by the contract of this function.
            unsafe { raw::write(info_out, info(&decision, instance.id())) };
        }
        Ok(())
    })
}

/// `pcclIterationGetDecision`.
///
/// # Safety
/// As [`pcclIterationServeStore`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclIterationGetDecision(
    iteration: Handle,
    info_out: *mut IterationInfo,
) -> ResultCode {
    call(|| {
        let instance = ITERATIONS.get(iteration)?;
        raw::check(info_out, "info_out")?;
        let decision = instance.member()?.decision();
        // SAFETY: by the contract of this function.
        unsafe { raw::write(info_out, info(&decision, instance.id())) };
        Ok(())
    })
}

/// `pcclIterationGetMember`.
///
/// # Safety
/// As [`pcclIterationServeStore`]; there is room for `capacity` bytes at `payload`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclIterationGetMember(
    iteration: Handle,
    position: u32,
    member_out: *mut IterationMember,
    payload: *mut c_void,
    capacity: usize,
) -> ResultCode {
    call(|| {
        let decision = ITERATIONS.get(iteration)?.member()?.decision();
        raw::check(member_out, "member_out")?;
        if capacity > 0 {
            raw::check(payload, "payload")?;
        }
        let Some(entry) = decision.entries.get(position as usize) else {
            let members = decision.entries.len();
            return Err(Failure::argument(format!("there is no member {position} among {members}")));
        };
        // SAFETY: by the contract of this function.
        unsafe { raw::write(member_out, described(entry)) };
        for (at, byte) in entry.payload.iter().take(capacity).enumerate() {
            // SAFETY: the same; `at` is below the capacity.
            unsafe { raw::write(payload.cast::<u8>().add(at), *byte) };
        }
        Ok(())
    })
}

/// A decision as the header has it, for one of its members.
fn info(decision: &Decision, id: &str) -> IterationInfo {
    let position = decision.position(id);
    let own = position.and_then(|position| decision.entries.get(position));
    IterationInfo {
        iteration: decision.iteration,
        members: decision.entries.len() as u32,
        position: position.map_or(u32::MAX, |position| position as u32),
        life: own.map_or(0, |own| own.member.incarnation),
    }
}

fn described(entry: &Entry) -> IterationMember {
    let mut id = [0; MEMBER_BYTES];
    id.iter_mut().zip(entry.member.id.bytes()).for_each(|(to, from)| *to = from);
    IterationMember {
        life: entry.member.incarnation,
        payload_bytes: entry.payload.len() as u32,
        joined: entry.joined,
        id,
    }
}
