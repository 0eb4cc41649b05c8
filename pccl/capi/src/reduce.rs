//! All-reduces.

use crate::{
    communicator::{Comm, check_initialized, enter},
    convert::{self, DEFAULT_TIMEOUT, NO_TIMEOUT},
    device::{self, Place},
    failure::{Failure, Outcome, call},
    raw,
    types::{
        AsyncReduceOp, Handle, ReduceDescriptor, ReduceInfo, ReduceOpDescriptor, ResultCode, Segment, code,
    },
};
use pccl::{DataType, Quantisation, ReduceOp, Tensor};
use std::{
    collections::BTreeSet,
    ffi::{c_int, c_void},
    time::Duration,
};

/// The description of a tensor in its descriptor, wherever the tensor is.
struct Described {
    data_type: DataType,
    op: ReduceOp,
    quantisation: Option<Quantisation>,
    count: usize,
}

impl Described {
    fn of(descriptor: &ReduceDescriptor) -> Outcome<Self> {
        let data_type = convert::data_type(descriptor.source.data_type)?;
        convert::distribution_hint(descriptor.source.distribution_hint)?;
        let op = convert::reduce_op(descriptor.op)?;
        let quantisation = convert::quantisation(&descriptor.quantization, data_type)?;
        let count = descriptor.count;
        if count > isize::MAX as usize / data_type.size_bytes() {
            return Err(Failure::argument(format!("{count} elements")));
        }
        Ok(Self { data_type, op, quantisation, count })
    }

    fn apply(&self, tensor: Tensor<'static>) -> Tensor<'static> {
        match self.quantisation {
            Some(quantisation) => tensor.quantised(quantisation),
            None => tensor,
        }
    }
}

/// The tensor of a descriptor.
///
/// # Safety
/// The buffers are null or as long as the descriptor says, of the host or of a device as `place` says, and the caller
/// leaves them alone until the all-reduce was waited for.
unsafe fn tensor(
    send: *const c_void,
    recv: *mut c_void,
    descriptor: &ReduceDescriptor,
    place: Place,
) -> Outcome<Tensor<'static>> {
    let described = Described::of(descriptor)?;
    let Described { data_type, op, count, .. } = described;
    let bytes = count * data_type.size_bytes();
    // SAFETY: by the contract of this function.
    let (from, to) = unsafe { (place.device_memory(send, bytes), place.device_memory(recv, bytes)) };
    let tensor = match (from, to) {
        (None, None) => {
            let send = raw::buffer(send, count, "sendbuf")?;
            let recv = raw::buffer(recv, count, "recvbuf")?;
            // SAFETY: not null, of this length, and the caller's own until waited for, by the contract of this
            // function; every path waits for it before it tells the caller so, see `Comm::wait` and `Comm::destroy`.
            Ok(unsafe { Tensor::from_raw(send, recv, count, data_type, op) })
        }
        (Some(memory), Some(_)) if send == recv.cast_const() => Tensor::on_device(memory, data_type, op),
        (Some(from), Some(to)) => Tensor::between_devices(from, to, data_type, op),
        _ => {
            return Err(Failure::argument(
                "of sendbuf and recvbuf one is on a device, and the other one is not",
            ));
        }
    };
    tensor.map(|tensor| described.apply(tensor)).map_err(|error| Failure::of(&error, code::INVALID_USAGE))
}

/// The information for C on a collective that succeeded.
pub(crate) fn reduce_info(info: &pccl::ReduceInfo) -> ReduceInfo {
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
/// As for all functions here: pointers are null or point to what the header says.
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
        let tensor = unsafe { tensor(send, recv, &descriptor, device::place()) }?;
        let info = reduced(&comm, tensor, descriptor.tag)?;
        // SAFETY: by the contract of this function.
        unsafe { raw::write(info_out, info) };
        Ok(())
    })
}

/// Reduces a tensor, and waits for it.
fn reduced(comm: &Comm, tensor: Tensor<'static>, tag: u64) -> Outcome<ReduceInfo> {
    comm.launch(vec![tensor], tag)?;
    let info = comm.wait(tag, comm.call_timeout())?.map_err(|error| Failure::of_reduce(&error))?;
    Ok(reduce_info(&info))
}

/// `pcclAllReduceOnDevice`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclAllReduceOnDevice(
    send: *const c_void,
    recv: *mut c_void,
    stream: *mut c_void,
    descriptor: *const ReduceDescriptor,
    comm: Handle,
    info_out: *mut ReduceInfo,
) -> ResultCode {
    call(|| {
        let comm = enter(comm)?;
        // SAFETY: by the contract of this function.
        let descriptor = unsafe { raw::read(descriptor, "descriptor") }?;
        // SAFETY: the same; the caller gets control back only after it was waited for.
        let tensor = unsafe { tensor(send, recv, &descriptor, Place::Device(stream)) }?;
        let info = reduced(&comm, tensor, descriptor.tag)?;
        // SAFETY: by the contract of this function.
        unsafe { raw::write(info_out, info) };
        Ok(())
    })
}

/// `pcclAllReduceOnDeviceAsync`.
///
/// # Safety
/// As of [`pcclAllReduceAsync`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclAllReduceOnDeviceAsync(
    send: *const c_void,
    recv: *mut c_void,
    stream: *mut c_void,
    descriptor: *const ReduceDescriptor,
    comm: Handle,
    handle_out: *mut AsyncReduceOp,
) -> ResultCode {
    // SAFETY: by the contract of this function.
    let tensor =
        |descriptor: &ReduceDescriptor| unsafe { tensor(send, recv, descriptor, Place::Device(stream)) };
    // SAFETY: by the contract of this function.
    call(|| unsafe { begin(tensor, descriptor, comm, handle_out) })
}

/// Begins an all-reduce of the tensor of a descriptor.
///
/// # Safety
/// As of [`pcclAllReduceAsync`].
unsafe fn begin(
    tensor: impl FnOnce(&ReduceDescriptor) -> Outcome<Tensor<'static>>,
    descriptor: *const ReduceDescriptor,
    comm: Handle,
    handle_out: *mut AsyncReduceOp,
) -> Outcome {
    let entered = enter(comm)?;
    raw::check(handle_out, "reduce_handle_out")?;
    // SAFETY: by the contract of this function.
    let descriptor = unsafe { raw::read(descriptor, "descriptor") }?;
    entered.launch(vec![tensor(&descriptor)?], descriptor.tag)?;
    entered.reduce(descriptor.tag)?.goes_on_alone();
    // SAFETY: by the contract of this function.
    unsafe { raw::write(handle_out, AsyncReduceOp { comm, tag: descriptor.tag }) };
    Ok(())
}

/// The information for C on a segment.
fn segment_info(segment: &pccl::Segment) -> Segment {
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    Segment {
        first: segment.elements.start as u64,
        count: segment.elements.len() as u64,
        contributors: number(segment.contributors.len()),
        rank: number(segment.rank),
    }
}

/// `pcclAllReduceInSegments`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclAllReduceInSegments(
    send: *const c_void,
    recv: *mut c_void,
    descriptor: *const ReduceDescriptor,
    comm: Handle,
    segment_bytes: usize,
    info_out: *mut ReduceInfo,
    segments: *mut Segment,
    capacity: usize,
    done_out: *mut usize,
) -> ResultCode {
    call(|| {
        // SAFETY: by the contract of this function.
        unsafe { raw::write(done_out, 0) };
        let comm = enter(comm)?;
        if capacity > 0 {
            raw::check(segments, "segments")?;
        }
        // SAFETY: by the contract of this function.
        let descriptor = unsafe { raw::read(descriptor, "descriptor") }?;
        // SAFETY: the same; the caller gets control back only after it is over.
        let tensor = unsafe { tensor(send, recv, &descriptor, device::place()) }?;
        let result = comm.reduce_in_segments(tensor, segment_bytes, descriptor.tag)?;
        let done = result.as_ref().map_or_else(|failed| &failed.done, |info| &info.segments);
        for (index, segment) in done.iter().enumerate().take(capacity) {
            // SAFETY: by the contract of this function; `index` is below the capacity.
            unsafe { raw::write(segments.add(index), segment_info(segment)) };
        }
        // SAFETY: by the contract of this function.
        unsafe { raw::write(done_out, done.len()) };
        let info = result.map_err(|failed| Failure::of_reduce(&failed.error))?;
        let fewest = info.segments.iter().map(|segment| segment.contributors.len()).min().unwrap_or(0);
        let schedule = info.segments.last().map_or(0, |segment| convert::schedule_code(segment.algorithm));
        let local_world_size = u32::try_from(fewest).unwrap_or(u32::MAX);
        let (tx_bytes, rx_bytes) = (info.tx_bytes, info.rx_bytes);
        // SAFETY: by the contract of this function.
        unsafe { raw::write(info_out, ReduceInfo { local_world_size, schedule, tx_bytes, rx_bytes }) };
        Ok(())
    })
}

/// `pcclAllReduceAsync`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says; the buffers stay as they are until
/// the all-reduce was awaited.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclAllReduceAsync(
    send: *const c_void,
    recv: *mut c_void,
    descriptor: *const ReduceDescriptor,
    comm: Handle,
    handle_out: *mut AsyncReduceOp,
) -> ResultCode {
    // SAFETY: by the contract of this function.
    let tensor = |descriptor: &ReduceDescriptor| unsafe { tensor(send, recv, descriptor, device::place()) };
    // SAFETY: by the contract of this function.
    call(|| unsafe { begin(tensor, descriptor, comm, handle_out) })
}

/// `pcclAwaitAsyncReduce`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says.
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

/// `pcclAwaitAsyncReduceFor`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says.
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
                    some => Some(Duration::from_millis(some)),
                },
                info_out,
            )
        }
    })
}

/// Waits for an asynchronous all-reduce.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says.
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

/// `pcclTestAsyncReduce`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says.
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
/// As for all functions here: pointers are null or point to what the header says.
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
        let done = comm.reduce(handle.tag)?.wait_until_done(Duration::from_millis(timeout_ms));
        // SAFETY: by the contract of this function.
        unsafe { raw::write(done_out, done) };
        Ok(())
    })
}

/// `pcclAbortAsyncReduce`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclAbortAsyncReduce(handle: *const AsyncReduceOp) -> ResultCode {
    call(|| {
        // SAFETY: by the contract of this function.
        let handle = unsafe { raw::read(handle, "reduce_handle") }?;
        enter(handle.comm)?.reduce(handle.tag)?.abort();
        Ok(())
    })
}

/// `pcclAllReduceMultipleWithRetry`: one operation, so that there is one outcome. `max_in_flight` bounds nothing.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says.
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
        let tensors = descriptors.iter().map(|it| {
            // SAFETY: as in `pcclAllReduce`.
            unsafe { tensor(it.send, it.recv, &it.descriptor, device::place()) }
        });
        let mut tensors = tensors.collect::<Outcome<Vec<_>>>()?;
        let info = comm.reduce_many(&mut tensors, descriptors[0].descriptor.tag)?;
        // SAFETY: by the contract of this function.
        unsafe { raw::write(info_out, reduce_info(&info)) };
        Ok(())
    })
}

/// `pcclAllReduceManyAsync`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says; the buffers stay as they are until
/// the all-reduce was awaited.
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
            unsafe { tensor(it.send, it.recv, &it.descriptor, device::place()) }
        });
        entered.launch(tensors.collect::<Outcome<Vec<_>>>()?, tag)?;
        entered.reduce(tag)?.goes_on_alone();
        // SAFETY: by the contract of this function.
        unsafe { raw::write(handle_out, AsyncReduceOp { comm, tag }) };
        Ok(())
    })
}
