//! The members of the run: joining, agreeing on the world, leaving.

use crate::{
    child,
    communicator::{COMMUNICATORS, Comm, check_initialized, enter},
    convert::{self, NO_TIMEOUT},
    failure::{self, Failure, Outcome, call},
    raw,
    types::{Handle, NOTE_BYTES, Optimized, ResultCode, World, code},
};
use std::{
    ffi::{c_char, c_int},
    time::Duration,
};

/// `pcclDestroyCommunicator`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pcclDestroyCommunicator(comm: Handle) -> ResultCode {
    call(|| {
        check_initialized()?;
        COMMUNICATORS.remove(comm)?.destroy()
    })
}

/// `pcclConnect`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pcclConnect(comm: Handle) -> ResultCode {
    call(|| enter(comm)?.connect())
}

/// `pcclIsConnected`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclIsConnected(comm: Handle, connected_out: *mut bool) -> ResultCode {
    call(|| {
        let comm = enter(comm)?;
        raw::check(connected_out, "connected_out")?;
        // SAFETY: by the contract of this function.
        unsafe { raw::write(connected_out, comm.inner().is_connected()) };
        Ok(())
    })
}

/// `pcclGetName`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclGetName(
    comm: Handle,
    buffer: *mut c_char,
    capacity: usize,
    length_out: *mut usize,
) -> ResultCode {
    call(|| {
        let communicator = enter(comm)?.inner();
        // SAFETY: by the contract of this function.
        unsafe { raw::write_text(communicator.name(), buffer, capacity, length_out) }
    })
}

/// `pcclGetPeerId`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclGetPeerId(comm: Handle, peer_out: *mut [u8; 16]) -> ResultCode {
    call(|| {
        let comm = enter(comm)?;
        raw::check(peer_out, "peer_out")?;
        let id =
            comm.connected()?.id().ok_or_else(|| Failure::usage("not connected: call pcclConnect first"))?;
        // SAFETY: by the contract of this function.
        unsafe { raw::write(peer_out, id.0.to_be_bytes()) };
        Ok(())
    })
}

/// `pcclGetWorld`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclGetWorld(comm: Handle, world_out: *mut World) -> ResultCode {
    call(|| {
        let comm = enter(comm)?;
        raw::check(world_out, "world_out")?;
        let world = comm.connected()?.world();
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let world = World {
            global_size: number(world.global_size),
            group_size: number(world.group_size),
            groups: number(world.groups),
            largest_group: number(world.largest_group),
            min_world_size: number(world.min_world_size),
            rank: number(world.rank),
        };
        // SAFETY: by the contract of this function.
        unsafe { raw::write(world_out, world) };
        Ok(())
    })
}

/// `pcclGetRing`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says; there is room for `capacity` peers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclGetRing(
    comm: Handle,
    ring: *mut [u8; 16],
    capacity: usize,
    count_out: *mut usize,
) -> ResultCode {
    call(|| {
        let comm = enter(comm)?;
        raw::check(count_out, "count_out")?;
        let world = comm.connected()?.world();
        let peers = world.ring.iter().map(|peer| peer.0.to_be_bytes());
        // SAFETY: by the contract of this function.
        unsafe { raw::write_peers(peers, ring, capacity, count_out) }
    })
}

/// `pcclGetAttribute`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclGetAttribute(
    comm: Handle,
    attribute: c_int,
    out: *mut c_int,
) -> ResultCode {
    call(|| {
        let comm = enter(comm)?;
        raw::check(out, "attribute_out")?;
        if !(1..=4).contains(&attribute) {
            return Err(Failure::argument(format!("{attribute} is no pcclAttribute_t")));
        }
        let world = comm.connected()?.world();
        let value = match attribute {
            1 => world.global_size,
            2 => world.group_size,
            3 => world.groups,
            _ => world.largest_group,
        };
        // SAFETY: by the contract of this function.
        unsafe { raw::write(out, c_int::try_from(value).unwrap_or(c_int::MAX)) };
        Ok(())
    })
}

/// `pcclUpdateTopology`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pcclUpdateTopology(comm: Handle) -> ResultCode {
    call(|| {
        let result = {
            let comm = enter(comm)?;
            comm.connected()?.update_topology_within(comm.call_timeout())
        };
        result.map_err(|error| Failure::of(&error, code::UPDATE_TOPOLOGY_FAILED))
    })
}

/// `pcclArePeersPending`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclArePeersPending(comm: Handle, pending_out: *mut bool) -> ResultCode {
    call(|| {
        let comm = enter(comm)?;
        raw::check(pending_out, "pending_out")?;
        let pending = comm.connected()?.are_peers_pending_within(comm.call_timeout());
        let pending = pending.map_err(|error| Failure::of(&error, code::INVALID_USAGE))?;
        // SAFETY: by the contract of this function.
        unsafe { raw::write(pending_out, pending) };
        Ok(())
    })
}

/// `pcclOptimizeTopology`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pcclOptimizeTopology(comm: Handle) -> ResultCode {
    call(|| {
        let comm = enter(comm)?;
        optimize(&comm).map(drop)
    })
}

/// `pcclOptimizeTopologyInfo`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclOptimizeTopologyInfo(
    comm: Handle,
    optimized_out: *mut Optimized,
) -> ResultCode {
    call(|| {
        let comm = enter(comm)?;
        let optimized = optimize(&comm)?;
        // SAFETY: by the contract of this function.
        unsafe { raw::write(optimized_out, as_c(&optimized)) };
        Ok(())
    })
}

/// Has the edges measured and the ring planned.
pub(crate) fn optimize(comm: &Comm) -> Outcome<pccl::Optimized> {
    let communicator = comm.connected()?;
    if communicator.world().global_size <= 1 {
        return Err(Failure::usage("there is no other peer"));
    }
    let optimised = communicator.optimize_topology_within(comm.call_timeout());
    optimised.map_err(|error| Failure::of(&error, code::TOPOLOGY_OPTIMIZATION_FAILED))
}

fn as_c(optimized: &pccl::Optimized) -> Optimized {
    let mut note = [0; NOTE_BYTES];
    let cut = optimized.note.len().min(NOTE_BYTES - 1);
    note[..cut].copy_from_slice(&optimized.note.as_bytes()[..cut]);
    let gain = optimized.pairwise_gain_pct;
    Optimized {
        group_size: u32::try_from(optimized.peers).unwrap_or(u32::MAX),
        schedule: convert::chosen_schedule_code(optimized.schedule),
        changed: optimized.changed,
        proven: optimized.proven,
        has_slowest: optimized.slowest.is_some(),
        has_pairwise_gain: gain.is_some(),
        pairwise_gain_pct: gain.and_then(|gain| i32::try_from(gain).ok()).unwrap_or(0),
        slowest_from: optimized.slowest.map_or([0; 16], |edge| edge.from.0.to_be_bytes()),
        slowest_to: optimized.slowest.map_or([0; 16], |edge| edge.to.0.to_be_bytes()),
        slowest_mbit_s: optimized.slowest.map_or(0.0, |edge| edge.mbit_s),
        bound_mbit_s: optimized.bound_mbit_s.unwrap_or(0.0),
        unmeasured_edges: optimized.unmeasured_edges as u64,
        note,
    }
}

/// `pcclWaitForWorld`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pcclWaitForWorld(comm: Handle, peers: u32, timeout_ms: u64) -> ResultCode {
    call(|| {
        let timeout = (timeout_ms != NO_TIMEOUT).then(|| Duration::from_millis(timeout_ms));
        let result = enter(comm)?.connected()?.wait_for_world(peers as usize, timeout);
        result.map(drop).map_err(|error| {
            let own = match error {
                pccl::Error::TimedOut { .. } => code::TOO_FEW_PEERS,
                _ => code::UPDATE_TOPOLOGY_FAILED,
            };
            Failure::of(&error, own)
        })
    })
}

/// `pcclRecover`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pcclRecover(comm: Handle, remedy: c_int, peers: u32) -> ResultCode {
    if is_to_give_up(comm, remedy) {
        return code::INVALID_USAGE;
    }
    call(|| {
        let comm = enter(comm)?;
        convert::remedy(remedy)?.map_or(Ok(()), |remedy| comm.recover(remedy, peers))
    })
}

/// The program has to give up for the failure before: its text stays.
pub(crate) fn is_to_give_up(comm: Handle, remedy: c_int) -> bool {
    remedy == failure::GIVE_UP && !child::is_child() && COMMUNICATORS.get(comm).is_ok()
}

/// `pcclClose`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pcclClose(comm: Handle) -> ResultCode {
    call(|| {
        enter(comm)?.close();
        Ok(())
    })
}

/// `pcclCloseWithin`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pcclCloseWithin(comm: Handle, timeout_ms: u64) -> ResultCode {
    call(|| {
        let comm = enter(comm)?;
        let closed = comm.inner().close_within(Duration::from_millis(timeout_ms));
        comm.end_loan(0);
        closed.map_err(|error| Failure::of(&error, code::INVALID_USAGE))
    })
}
