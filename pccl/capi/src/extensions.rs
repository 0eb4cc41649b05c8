//! The functions that the original does not have.

use crate::{
    calls::{await_reduce, new_communicator, optimize},
    communicator::{COMMUNICATORS, THREAD_TIMEOUT, check_initialized, enter},
    convert,
    failure::{self, Failure, call},
    fork, logging,
    master::prepare,
    masters::{self, MASTERS},
    raw,
    types::{
        AsyncReduceOp, Handle, NOTE_BYTES, Optimized, RESULT_NAMES, ReduceInfo, ResultCode, World, code,
    },
};
use pccl::FrameChecksums;
use std::{
    ffi::{CStr, c_char, c_int, c_void},
    net::IpAddr,
    time::Duration,
};

/// What the header calls `PCCL_NO_TIMEOUT`.
const NO_TIMEOUT: u64 = u64::MAX;
/// What the header calls `PCCL_DEFAULT_TIMEOUT`.
const DEFAULT_TIMEOUT: u64 = u64::MAX - 1;
const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => c"unknown",
};

/// `pcclGetVersion`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pcclGetVersion() -> *const c_char {
    VERSION.as_ptr()
}

/// `pcclGetResultName`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pcclGetResultName(result: ResultCode) -> *const c_char {
    let name = usize::try_from(result).ok().and_then(|index| RESULT_NAMES.get(index));
    name.unwrap_or(&c"unknown").as_ptr()
}

/// `pcclGetLastError`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pcclGetLastError() -> *const c_char {
    failure::last_text()
}

/// `pcclGetLastRemedy`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pcclGetLastRemedy() -> c_int {
    failure::last_remedy()
}

/// `pcclSetLogCallback`.
///
/// # Safety
/// The callback is null or may be called with `user` from any thread until it has been replaced.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclSetLogCallback(
    level: c_int,
    callback: Option<logging::Callback>,
    user: *mut c_void,
) -> ResultCode {
    call(|| logging::set_callback(level, callback, user))
}

/// `pcclGetLastCause`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pcclGetLastCause() -> *const c_char {
    failure::last_cause()
}

/// `pcclGetLastCulprits`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says; there is room for `capacity` peers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclGetLastCulprits(
    culprits: *mut [u8; 16],
    capacity: usize,
    count_out: *mut usize,
) -> ResultCode {
    call(|| {
        // SAFETY: by the contract of this function.
        unsafe { write_peers(failure::last_culprits().into_iter(), culprits, capacity, count_out) }
    })
}

/// Writes as many peers as there is room for, and how many there are.
///
/// # Safety
/// As [`pcclGetLastCulprits`].
unsafe fn write_peers(
    all: impl ExactSizeIterator<Item = [u8; 16]>,
    peers: *mut [u8; 16],
    capacity: usize,
    count_out: *mut usize,
) -> failure::Outcome {
    raw::check(count_out, "count_out")?;
    if capacity > 0 {
        raw::check(peers, "the array of peers")?;
    }
    // SAFETY: by the contract of this function.
    unsafe { raw::write(count_out, all.len()) };
    for (index, peer) in all.enumerate().take(capacity) {
        // SAFETY: the same; `index` is below the capacity.
        unsafe { raw::write(peers.add(index), peer) };
    }
    Ok(())
}

/// `pcclGetLastVerdict`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclGetLastVerdict(
    comm: Handle,
    buffer: *mut c_char,
    capacity: usize,
    length_out: *mut usize,
) -> ResultCode {
    call(|| {
        let verdict = enter(comm)?.inner().last_verdict();
        let text = verdict.map_or_else(String::new, |verdict| verdict.to_string());
        // SAFETY: by the contract of this function.
        unsafe { raw::write_text(&text, buffer, capacity, length_out) }
    })
}

/// `pcclCreateCommunicatorByName`.
///
/// # Safety
/// As [`pcclGetLastVerdict`].
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

/// `pcclSetTimeout`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pcclSetTimeout(comm: Handle, timeout: c_int, milliseconds: u64) -> ResultCode {
    call(|| {
        let comm = enter(comm)?;
        let time = Duration::from_millis(milliseconds);
        match timeout {
            0 => comm.set(|builder| builder.connect_timeout(time)),
            1 => comm.set(|builder| builder.master_timeout(time)),
            2 => comm.set(|builder| builder.dial_timeout(time)),
            _ => Err(Failure::argument(format!("{timeout} is no pcclTimeout_t"))),
        }
    })
}

/// `pcclSetAdvertisedHost`.
///
/// # Safety
/// As [`pcclGetLastVerdict`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclSetAdvertisedHost(comm: Handle, host: *const c_char) -> ResultCode {
    call(|| {
        let comm = enter(comm)?;
        // SAFETY: by the contract of this function.
        let host = unsafe { raw::text(host, "host") }?;
        comm.set(|builder| builder.advertised_host(&host))
    })
}

/// `pcclSetBindAddress`.
///
/// # Safety
/// As [`pcclGetLastVerdict`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclSetBindAddress(comm: Handle, address: *const c_char) -> ResultCode {
    call(|| {
        let comm = enter(comm)?;
        // SAFETY: by the contract of this function.
        let text = unsafe { raw::text(address, "address") }?;
        let address: IpAddr =
            text.parse().map_err(|_| Failure::argument(format!("{text:?} is no address in digits")))?;
        comm.set(|builder| builder.bind(address))
    })
}

/// `pcclSetFirstPorts`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pcclSetFirstPorts(
    comm: Handle,
    p2p_port: u16,
    shared_state_port: u16,
) -> ResultCode {
    call(|| enter(comm)?.set(|builder| builder.first_ports(p2p_port, shared_state_port)))
}

/// `pcclSetStrictPorts`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pcclSetStrictPorts(comm: Handle, strict: bool) -> ResultCode {
    call(|| enter(comm)?.set(|builder| builder.strict_ports(strict)))
}

/// `pcclSetName`.
///
/// # Safety
/// As [`pcclGetLastVerdict`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclSetName(comm: Handle, name: *const c_char) -> ResultCode {
    call(|| {
        let comm = enter(comm)?;
        // SAFETY: by the contract of this function.
        let name = unsafe { raw::text(name, "name") }?;
        comm.set(|builder| builder.name(&name))
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
fn limit(milliseconds: u64) -> failure::Outcome<Option<Duration>> {
    match milliseconds {
        0 => Err(Failure::argument("a limit of 0 ms")),
        NO_TIMEOUT => Ok(None),
        some => Ok(Some(bounded(some))),
    }
}

/// `pcclGetName`.
///
/// # Safety
/// As [`pcclGetLastVerdict`].
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
/// As [`pcclGetLastVerdict`].
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

/// `pcclAwaitAsyncReduceFor`.
///
/// # Safety
/// As [`pcclGetLastVerdict`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclAwaitAsyncReduceFor(
    handle: *const AsyncReduceOp,
    timeout_ms: u64,
    info_out: *mut ReduceInfo,
) -> ResultCode {
    call(|| {
        // SAFETY: by the contract of this function.
        unsafe {
            await_reduce(
                handle,
                |comm| match timeout_ms {
                    NO_TIMEOUT => None,
                    DEFAULT_TIMEOUT => comm.call_timeout(),
                    some => Some(bounded(some)),
                },
                info_out,
            )
        }
    })
}

/// `pcclOptimizeTopologyInfo`.
///
/// # Safety
/// As [`pcclGetLastVerdict`].
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

/// `pcclSetFrameChecksums`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pcclSetFrameChecksums(comm: Handle, checksums: c_int) -> ResultCode {
    call(|| {
        let comm = enter(comm)?;
        let checksums = match checksums {
            0 => FrameChecksums::Automatic,
            1 => FrameChecksums::Always,
            2 => FrameChecksums::Never,
            _ => return Err(Failure::argument(format!("{checksums} is no pcclFrameChecksums_t"))),
        };
        comm.set(|builder| builder.frame_checksums(checksums))
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

/// `pcclIsConnected`.
///
/// # Safety
/// As [`pcclGetLastVerdict`].
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

/// `pcclGetWorld`.
///
/// # Safety
/// As [`pcclGetLastVerdict`].
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
/// As [`pcclGetLastVerdict`]; there is room for `capacity` peers.
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
        unsafe { write_peers(peers, ring, capacity, count_out) }
    })
}

/// `pcclWaitForWorld`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pcclWaitForWorld(comm: Handle, peers: u32, timeout_ms: u64) -> ResultCode {
    call(|| {
        let timeout = (timeout_ms != NO_TIMEOUT).then(|| bounded(timeout_ms));
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

/// A time that can be added to the present one.
fn bounded(timeout_ms: u64) -> Duration {
    const YEAR_MS: u64 = 366 * 86_400_000;
    Duration::from_millis(timeout_ms.min(YEAR_MS))
}

/// `pcclRecover`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pcclRecover(comm: Handle, remedy: c_int, peers: u32) -> ResultCode {
    // What the program has to give up for is the failure before: its text stays.
    if remedy == failure::GIVE_UP && !fork::is_child() && COMMUNICATORS.get(comm).is_ok() {
        return code::INVALID_USAGE;
    }
    call(|| {
        let comm = enter(comm)?;
        convert::remedy(remedy)?.map_or(Ok(()), |remedy| comm.recover(remedy, peers))
    })
}

/// `pcclGetStatus`.
///
/// # Safety
/// As [`pcclGetLastVerdict`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclGetStatus(
    comm: Handle,
    as_json: bool,
    buffer: *mut c_char,
    capacity: usize,
    length_out: *mut usize,
) -> ResultCode {
    call(|| {
        let status = enter(comm)?.connected()?.status();
        let status = status.map_err(|error| Failure::of(&error, code::INVALID_USAGE))?;
        let text = if as_json { pccl_master::status_to_json(&status) } else { status.to_string() };
        // SAFETY: by the contract of this function.
        unsafe { raw::write_text(&text, buffer, capacity, length_out) }
    })
}

/// `pcclDumpFlight`.
///
/// # Safety
/// As [`pcclGetLastVerdict`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclDumpFlight(
    comm: Handle,
    directory: *const c_char,
    buffer: *mut c_char,
    capacity: usize,
    length_out: *mut usize,
) -> ResultCode {
    call(|| {
        let comm = enter(comm)?;
        // SAFETY: by the contract of this function.
        let directory = unsafe { raw::text(directory, "directory") }?;
        let path = comm.inner().dump_flight(directory);
        let path = path.map_err(|error| Failure::of(&error, code::INTERNAL_ERROR))?;
        // SAFETY: by the contract of this function.
        unsafe { raw::write_text(&path.to_string_lossy(), buffer, capacity, length_out) }
    })
}

/// `pcclTestAsyncReduce`.
///
/// # Safety
/// As [`pcclGetLastVerdict`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclTestAsyncReduce(
    handle: *const AsyncReduceOp,
    done_out: *mut bool,
) -> ResultCode {
    // SAFETY: by the contract of this function.
    unsafe { pcclWaitAsyncReduce(handle, 0, done_out) }
}

/// `pcclWaitAsyncReduce`.
///
/// # Safety
/// As [`pcclGetLastVerdict`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclWaitAsyncReduce(
    handle: *const AsyncReduceOp,
    timeout_ms: u64,
    done_out: *mut bool,
) -> ResultCode {
    call(|| {
        raw::check(done_out, "done_out")?;
        // SAFETY: by the contract of this function.
        let handle = unsafe { raw::read(handle, "reduce_handle") }?;
        let comm = enter(handle.comm)?;
        let done = comm.reduce(handle.tag)?.wait_until_done(bounded(timeout_ms));
        // SAFETY: by the contract of this function.
        unsafe { raw::write(done_out, done) };
        Ok(())
    })
}

/// `pcclAbortAsyncReduce`.
///
/// # Safety
/// As [`pcclGetLastVerdict`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclAbortAsyncReduce(handle: *const AsyncReduceOp) -> ResultCode {
    call(|| {
        // SAFETY: by the contract of this function.
        let handle = unsafe { raw::read(handle, "reduce_handle") }?;
        enter(handle.comm)?.reduce(handle.tag)?.abort();
        Ok(())
    })
}

/// `pcclClose`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pcclClose(comm: Handle) -> ResultCode {
    call(|| {
        enter(comm)?.inner().close();
        Ok(())
    })
}

/// `pcclCloseWithin`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pcclCloseWithin(comm: Handle, timeout_ms: u64) -> ResultCode {
    call(|| {
        let closed = enter(comm)?.inner().close_within(bounded(timeout_ms));
        closed.map_err(|error| Failure::of(&error, code::INVALID_USAGE))
    })
}

/// `pcclCreateMasterByName`.
///
/// # Safety
/// As [`pcclGetLastVerdict`].
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

/// `pcclMasterGetPort`.
///
/// # Safety
/// As [`pcclGetLastVerdict`].
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
/// As [`pcclGetLastVerdict`].
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
