//! The functions of the original that a client calls.

use crate::{
    communicator::{COMMUNICATORS, Comm, INITIALIZED, check_initialized, enter},
    convert,
    failure::{Failure, Outcome, call},
    fork, logging, raw,
    registry::new_key,
    types::{
        AsyncReduceOp, BuildInfo, CommCreateParams, Handle, ReduceDescriptor, ReduceInfo, ReduceOpDescriptor,
        ResultCode, SharedState, SyncInfo, TensorInfo, code,
    },
};
use pccl::{Communicator, Error, StateMemory, SyncOptions, Tensor};
use std::{
    collections::BTreeSet,
    ffi::{c_int, c_void},
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
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

/// `pcclCreateCommunicator`.
///
/// # Safety
/// As [`pcclGetBuildInfo`].
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

/// Makes a communicator and its handle.
pub(crate) fn new_communicator(master: &str, group: u32, pool_connections: u32) -> Outcome<Handle> {
    let pool = u16::try_from(pool_connections)
        .map_err(|_| Failure::argument(format!("pool of {pool_connections} connections")))?;
    let comm = Comm::new(Communicator::builder(master).peer_group(group).pool_size(pool))?;
    Ok(COMMUNICATORS.insert(new_key(), Arc::new(comm)))
}

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

/// `pcclGetAttribute`.
///
/// # Safety
/// As [`pcclGetBuildInfo`].
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
/// As [`pcclGetBuildInfo`].
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

/// Has the edges measured and the ring planned.
pub(crate) fn optimize(comm: &Comm) -> Outcome<pccl::Optimized> {
    let communicator = comm.connected()?;
    if communicator.world().global_size <= 1 {
        return Err(Failure::usage("there is no other peer"));
    }
    let optimised = communicator.optimize_topology_within(comm.call_timeout());
    optimised.map_err(|error| Failure::of(&error, code::TOPOLOGY_OPTIMIZATION_FAILED))
}

/// The tensor of a descriptor.
///
/// # Safety
/// The buffers are null or as long as the descriptor says, and the caller leaves them alone until the all-reduce was
/// waited for.
unsafe fn tensor(
    send: *const c_void,
    recv: *mut c_void,
    descriptor: &ReduceDescriptor,
) -> Outcome<Tensor<'static>> {
    let data_type = convert::data_type(descriptor.source.data_type)?;
    convert::distribution_hint(descriptor.source.distribution_hint)?;
    let op = convert::reduce_op(descriptor.op)?;
    let quantisation = convert::quantisation(&descriptor.quantization, data_type)?;
    let count = descriptor.count;
    if count > isize::MAX as usize / data_type.size_bytes() {
        return Err(Failure::argument(format!("{count} elements")));
    }
    let send = raw::buffer(send, count, "sendbuf")?;
    let recv = raw::buffer(recv, count, "recvbuf")?;
    // SAFETY: not null, of this length, and the caller's own until waited for, by the contract of this function; every
    // path waits for it before it tells the caller so, see `Comm::wait` and `Comm::destroy`.
    let tensor = unsafe { Tensor::from_raw(send, recv, count, data_type, op) };
    Ok(match quantisation {
        Some(quantisation) => tensor.quantised(quantisation),
        None => tensor,
    })
}

fn reduce_info(info: &pccl::ReduceInfo) -> ReduceInfo {
    ReduceInfo {
        local_world_size: u32::try_from(info.world_size).unwrap_or(u32::MAX),
        schedule: convert::schedule_code(info.algorithm),
        tx_bytes: info.tx_bytes,
        rx_bytes: info.rx_bytes,
    }
}

/// `pcclAllReduce`.
///
/// # Safety
/// As [`pcclGetBuildInfo`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclAllReduce(
    send: *const c_void,
    recv: *mut c_void,
    descriptor: *const ReduceDescriptor,
    comm: Handle,
    info_out: *mut ReduceInfo,
) -> ResultCode {
    call(|| {
        let comm = enter(comm)?;
        // SAFETY: by the contract of this function.
        let descriptor = unsafe { raw::read(descriptor, "descriptor") }?;
        // SAFETY: the same; the caller gets control back only after it was waited for.
        let tensor = unsafe { tensor(send, recv, &descriptor) }?;
        comm.launch(vec![tensor], descriptor.tag)?;
        let info =
            comm.wait(descriptor.tag, comm.call_timeout())?.map_err(|error| Failure::of_reduce(&error))?;
        // SAFETY: by the contract of this function.
        unsafe { raw::write(info_out, reduce_info(&info)) };
        Ok(())
    })
}

/// `pcclAllReduceAsync`.
///
/// # Safety
/// As [`pcclGetBuildInfo`]; the buffers stay as they are until the all-reduce was awaited.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclAllReduceAsync(
    send: *const c_void,
    recv: *mut c_void,
    descriptor: *const ReduceDescriptor,
    comm: Handle,
    handle_out: *mut AsyncReduceOp,
) -> ResultCode {
    call(|| {
        let entered = enter(comm)?;
        raw::check(handle_out, "reduce_handle_out")?;
        // SAFETY: by the contract of this function.
        let descriptor = unsafe { raw::read(descriptor, "descriptor") }?;
        // SAFETY: by the contract of this function.
        let tensor = unsafe { tensor(send, recv, &descriptor) }?;
        entered.launch(vec![tensor], descriptor.tag)?;
        entered.reduce(descriptor.tag)?.goes_on_alone();
        // SAFETY: by the contract of this function.
        unsafe { raw::write(handle_out, AsyncReduceOp { comm, tag: descriptor.tag }) };
        Ok(())
    })
}

/// `pcclAwaitAsyncReduce`.
///
/// # Safety
/// As [`pcclGetBuildInfo`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclAwaitAsyncReduce(
    handle: *const AsyncReduceOp,
    info_out: *mut ReduceInfo,
) -> ResultCode {
    call(|| {
        // SAFETY: by the contract of this function.
        unsafe { await_reduce(handle, Comm::call_timeout, info_out) }
    })
}

/// Waits for an asynchronous all-reduce.
///
/// # Safety
/// As [`pcclGetBuildInfo`].
pub(crate) unsafe fn await_reduce(
    handle: *const AsyncReduceOp,
    timeout: impl FnOnce(&Comm) -> Option<Duration>,
    info_out: *mut ReduceInfo,
) -> Outcome {
    check_initialized()?;
    // SAFETY: by the contract of this function.
    let handle = unsafe { raw::read(handle, "reduce_handle") }?;
    let comm = enter(handle.comm)?;
    comm.connected()?;
    let result = comm.wait(handle.tag, timeout(&comm))?;
    // A group that is too small is told by the next launch; programs of the original know one code here.
    let info = result.map_err(|error| Failure::of(&error, code::RANK_CONNECTION_LOST))?;
    // SAFETY: by the contract of this function.
    unsafe { raw::write(info_out, reduce_info(&info)) };
    Ok(())
}

/// `pcclAllReduceMultipleWithRetry`: one operation, so that there is one outcome. `max_in_flight` bounds nothing.
///
/// # Safety
/// As [`pcclGetBuildInfo`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclAllReduceMultipleWithRetry(
    descriptors: *const ReduceOpDescriptor,
    count: usize,
    comm: Handle,
    info_out: *mut ReduceInfo,
    max_in_flight: c_int,
) -> ResultCode {
    call(|| {
        let comm = enter(comm)?;
        if count == 0 || max_in_flight <= 0 {
            return Err(Failure::argument("count and max_in_flight must be positive"));
        }
        // SAFETY: by the contract of this function.
        let descriptors = unsafe { raw::items(descriptors, count, "descriptors") }?;
        let tags: BTreeSet<u64> = descriptors.iter().map(|it| it.descriptor.tag).collect();
        if tags.len() < descriptors.len() {
            return Err(Failure::argument("two descriptors have the same tag"));
        }
        let tag = descriptors[0].descriptor.tag;
        let began = Instant::now();
        let timeout = comm.call_timeout();
        loop {
            let tensors = descriptors.iter().map(|it| {
                // SAFETY: as in `pcclAllReduce`.
                unsafe { tensor(it.send, it.recv, &it.descriptor) }
            });
            comm.launch(tensors.collect::<Outcome<_>>()?, tag)?;
            match comm.wait(tag, timeout.map(|timeout| timeout.saturating_sub(began.elapsed())))? {
                Ok(info) => {
                    // SAFETY: by the contract of this function.
                    unsafe { raw::write(info_out, reduce_info(&info)) };
                    return Ok(());
                }
                Err(error) if error.is_retryable() && !was_given_up(&error) => log::info!("again: {error}"),
                Err(error) => return Err(Failure::of_reduce(&error)),
            }
        }
    })
}

/// `pcclAllReduceManyAsync`.
///
/// # Safety
/// As [`pcclGetBuildInfo`]; the buffers stay as they are until the all-reduce was awaited.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclAllReduceManyAsync(
    descriptors: *const ReduceOpDescriptor,
    count: usize,
    comm: Handle,
    handle_out: *mut AsyncReduceOp,
) -> ResultCode {
    call(|| {
        let entered = enter(comm)?;
        raw::check(handle_out, "reduce_handle_out")?;
        if count == 0 {
            return Err(Failure::argument("count must be positive"));
        }
        // SAFETY: by the contract of this function.
        let descriptors = unsafe { raw::items(descriptors, count, "descriptors") }?;
        let tag = descriptors[0].descriptor.tag;
        let tensors = descriptors.iter().map(|it| {
            // SAFETY: by the contract of this function.
            unsafe { tensor(it.send, it.recv, &it.descriptor) }
        });
        entered.launch(tensors.collect::<Outcome<_>>()?, tag)?;
        entered.reduce(tag)?.goes_on_alone();
        // SAFETY: by the contract of this function.
        unsafe { raw::write(handle_out, AsyncReduceOp { comm, tag }) };
        Ok(())
    })
}

/// Whether a caller wanted the operation to end.
fn was_given_up(error: &Error) -> bool {
    error
        .verdict()
        .is_some_and(|verdict| matches!(verdict.cause, pccl::Cause::CallerAbort | pccl::Cause::CallTimeout))
}

/// `pcclSynchronizeSharedState`.
///
/// # Safety
/// As [`pcclGetBuildInfo`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclSynchronizeSharedState(
    comm: Handle,
    state: *mut SharedState,
    strategy: c_int,
    info_out: *mut SyncInfo,
) -> ResultCode {
    call(|| {
        let comm = enter(comm)?;
        let strategy = convert::strategy(strategy)?;
        // SAFETY: by the contract of this function.
        let given = unsafe { raw::read(state, "shared_state") }?;
        // SAFETY: by the contract of this function.
        let infos = unsafe { raw::items(given.infos, given.count, "infos") }?;
        let mut shared = pccl::SharedState::new(given.revision);
        for info in &infos {
            // SAFETY: by the contract of this function; `shared` does not outlive this call.
            unsafe { add_tensor(&mut shared, info) }?;
        }
        let result = comm
            .connected()?
            .sync_shared_state(&mut shared, SyncOptions { strategy, timeout: comm.call_timeout() });
        let info = result.map_err(|error| Failure::of(&error, code::INVALID_USAGE))?;
        // SAFETY: by the contract of this function.
        unsafe {
            raw::write(state, SharedState { revision: shared.revision(), ..given });
            raw::write(info_out, SyncInfo { tx_bytes: info.tx_bytes, rx_bytes: info.rx_bytes });
        }
        Ok(())
    })
}

/// # Safety
/// Name and data are null or what the header says, for as long as `'a`.
unsafe fn add_tensor<'a>(shared: &mut pccl::SharedState<'a>, info: &TensorInfo) -> Outcome {
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
    added.map(drop).map_err(|error| Failure::of(&error, code::INVALID_ARGUMENT))
}
