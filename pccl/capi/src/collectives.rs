//! Collectives beside all-reduce, but for those that only move. Each kind has a function that makes the call of the
//! library, and two that carry it out: one waits for the end, one returns a handle. The values that they write, and the
//! waits for them, are as in [`crate::reduce`].

use crate::{
    communicator::{Comm, enter},
    convert, device,
    failure::{Failure, Outcome, call},
    raw,
    reduce::reduce_info,
    types::{AsyncReduceOp, Handle, ReduceDescriptor, ReduceInfo, ResultCode, code},
};
use pccl::{Call, DataType, Quantisation, Source, Target};
use std::ffi::c_void;

/// A checked descriptor.
pub(crate) struct Checked {
    pub(crate) count: usize,
    data_type: DataType,
    tag: u64,
    quantisation: Option<Quantisation>,
    /// A `pcclRedOp_t`, which counts for collectives that reduce only.
    op: std::ffi::c_int,
}

/// # Safety
/// The descriptor is null or points to one.
pub(crate) unsafe fn checked(descriptor: *const ReduceDescriptor) -> Outcome<Checked> {
    // SAFETY: by the contract of this function.
    let given = unsafe { raw::read(descriptor, "descriptor") }?;
    let data_type = convert::data_type(given.source.data_type)?;
    convert::distribution_hint(given.source.distribution_hint)?;
    let quantisation = convert::quantisation(&given.quantization, data_type)?;
    Ok(Checked { count: given.count, data_type, tag: given.tag, quantisation, op: given.op })
}

impl Checked {
    /// Bytes of `count` elements of the caller.
    fn bytes(&self, count: usize, name: &str) -> Outcome<usize> {
        let size = self.data_type.size_bytes();
        if count > isize::MAX as usize / size {
            return Err(Failure::argument(format!("{name} has {count} elements")));
        }
        Ok(count * size)
    }

    /// # Safety
    /// The buffer is null or has `count` elements, on the host or on a device as the thread has said, which the caller
    /// leaves alone until the collective was waited for.
    pub(crate) unsafe fn source(&self, pointer: *const c_void, count: usize) -> Outcome<Source<'static>> {
        let bytes = self.bytes(count, "sendbuf")?;
        // SAFETY: by the contract of this function.
        if let Some(memory) = unsafe { device::place().device_memory(pointer, bytes) } {
            let source = Source::on_device(memory, self.data_type);
            return source.map_err(|error| Failure::of(&error, code::INVALID_USAGE));
        }
        let start = raw::buffer(pointer, count, "sendbuf")?;
        // SAFETY: not null, of this length, and the caller's own until waited for, by the contract of this function.
        Ok(unsafe { Source::from_raw(start, count, self.data_type) })
    }

    /// # Safety
    /// As [`Checked::source`].
    pub(crate) unsafe fn target(
        &self,
        pointer: *mut c_void,
        count: usize,
        name: &str,
    ) -> Outcome<Target<'static>> {
        let bytes = self.bytes(count, name)?;
        // SAFETY: by the contract of this function.
        if let Some(memory) = unsafe { device::place().device_memory(pointer, bytes) } {
            let target = Target::on_device(memory, self.data_type);
            return target.map_err(|error| Failure::of(&error, code::INVALID_USAGE));
        }
        let start = raw::buffer(pointer, count, name)?;
        // SAFETY: as in `source`, and the caller lends the buffer for writing.
        Ok(unsafe { Target::from_raw(start, count, self.data_type) })
    }

    pub(crate) fn ready(&self, call: Call<'static>) -> Ready {
        Ready { call: call.quantised(self.quantisation), tag: self.tag, is_pair: false }
    }
}

/// A collective that is ready to begin.
pub(crate) struct Ready {
    call: Call<'static>,
    tag: u64,
    /// Only two peers take part.
    is_pair: bool,
}

impl Ready {
    /// Begins it. Returns the number that stands for it in handles.
    fn launch(self, comm: &Comm) -> Outcome<u64> {
        if self.is_pair {
            return comm.launch_pair(self.call, self.tag);
        }
        comm.launch(self.call, self.tag).map(|()| self.tag)
    }
}

/// Carries a collective out.
///
/// # Safety
/// The result is null or points to one.
pub(crate) unsafe fn run(
    comm: Handle,
    make: impl FnOnce() -> Outcome<Ready>,
    info_out: *mut ReduceInfo,
) -> ResultCode {
    call(|| {
        let comm = enter(comm)?;
        let key = make()?.launch(&comm)?;
        let info = comm.wait(key, comm.call_timeout())?.map_err(|error| Failure::of_reduce(&error))?;
        // SAFETY: by the contract of this function.
        unsafe { raw::write(info_out, reduce_info(&info)) };
        Ok(())
    })
}

/// Begins a collective.
///
/// # Safety
/// The handle is null or points to one.
pub(crate) unsafe fn begin(
    comm: Handle,
    make: impl FnOnce() -> Outcome<Ready>,
    handle_out: *mut AsyncReduceOp,
) -> ResultCode {
    call(|| {
        let entered = enter(comm)?;
        raw::check(handle_out, "reduce_handle_out")?;
        let key = make()?.launch(&entered)?;
        entered.reduce(key)?.goes_on_alone();
        // SAFETY: by the contract of this function.
        unsafe { raw::write(handle_out, AsyncReduceOp { comm, tag: key }) };
        Ok(())
    })
}

/// The two functions of a collective, of which `$make` makes the call.
macro_rules! collective {
    ($make:ident($($name:ident: $ty:ty),*), $run:ident, $run_name:literal, $begin:ident, $begin_name:literal) => {
        #[doc = concat!("`", $run_name, "`.")]
        ///
        /// # Safety
        /// As for all functions here: pointers are null or point to what the header says.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $run($($name: $ty,)* comm: Handle, info_out: *mut ReduceInfo) -> ResultCode {
            // SAFETY: by the contract of this function; the caller gets control back only after it was waited for.
            unsafe { run(comm, || $make($($name),*), info_out) }
        }

        #[doc = concat!("`", $begin_name, "`.")]
        ///
        /// # Safety
        /// As for all functions here; the buffers stay as they are until the collective was awaited.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $begin(
            $($name: $ty,)*
            comm: Handle,
            handle_out: *mut AsyncReduceOp,
        ) -> ResultCode {
            // SAFETY: by the contract of this function.
            unsafe { begin(comm, || $make($($name),*), handle_out) }
        }
    };
}
pub(crate) use collective;

/// # Safety
/// The pointers are null or point to what the header says, until the collective was waited for.
unsafe fn broadcast(buffer: *mut c_void, root: u32, descriptor: *const ReduceDescriptor) -> Outcome<Ready> {
    // SAFETY: by the contract of this function.
    let (it, data) = unsafe {
        let it = checked(descriptor)?;
        let data = it.target(buffer, it.count, "buffer")?;
        (it, data)
    };
    Ok(it.ready(Call::broadcast(data, root as usize)))
}

/// # Safety
/// As [`broadcast`].
unsafe fn reduce(buffer: *mut c_void, root: u32, descriptor: *const ReduceDescriptor) -> Outcome<Ready> {
    // SAFETY: by the contract of this function.
    let (it, data) = unsafe {
        let it = checked(descriptor)?;
        let data = it.target(buffer, it.count, "buffer")?;
        (it, data)
    };
    Ok(it.ready(Call::reduce(data, root as usize, convert::reduce_op(it.op)?)))
}

/// # Safety
/// As [`broadcast`].
unsafe fn weighted_average(
    buffer: *mut c_void,
    weight: f64,
    descriptor: *const ReduceDescriptor,
) -> Outcome<Ready> {
    // SAFETY: by the contract of this function.
    let (it, data) = unsafe {
        let it = checked(descriptor)?;
        let data = it.target(buffer, it.count, "buffer")?;
        (it, data)
    };
    Ok(it.ready(Call::weighted_average(data, weight)))
}

/// # Safety
/// As [`broadcast`].
unsafe fn all_gather(
    send: *const c_void,
    recv: *mut c_void,
    recv_count: usize,
    descriptor: *const ReduceDescriptor,
) -> Outcome<Ready> {
    // SAFETY: by the contract of this function.
    let (it, send, recv) = unsafe { both(send, recv, recv_count, descriptor) }?;
    Ok(it.ready(Call::all_gather(send, recv)))
}

/// # Safety
/// As [`broadcast`].
unsafe fn all_gather_v(
    send: *const c_void,
    recv: *mut c_void,
    recv_count: usize,
    counts: *const usize,
    ranks: usize,
    descriptor: *const ReduceDescriptor,
) -> Outcome<Ready> {
    // SAFETY: by the contract of this function.
    let (it, send, recv) = unsafe { both(send, recv, recv_count, descriptor) }?;
    // SAFETY: the same.
    let counts = unsafe { counts_of(counts, ranks) }?;
    Ok(it.ready(Call::all_gather_counts(send, recv, &counts)))
}

/// # Safety
/// As [`broadcast`].
unsafe fn reduce_scatter(
    send: *const c_void,
    recv: *mut c_void,
    recv_count: usize,
    descriptor: *const ReduceDescriptor,
) -> Outcome<Ready> {
    // SAFETY: by the contract of this function.
    let (it, send, recv) = unsafe { both(send, recv, recv_count, descriptor) }?;
    Ok(it.ready(Call::reduce_scatter(send, recv, convert::reduce_op(it.op)?)))
}

/// # Safety
/// As [`broadcast`].
unsafe fn reduce_scatter_v(
    send: *const c_void,
    recv: *mut c_void,
    recv_count: usize,
    counts: *const usize,
    ranks: usize,
    descriptor: *const ReduceDescriptor,
) -> Outcome<Ready> {
    // SAFETY: by the contract of this function.
    let (it, send, recv) = unsafe { both(send, recv, recv_count, descriptor) }?;
    // SAFETY: the same.
    let counts = unsafe { counts_of(counts, ranks) }?;
    Ok(it.ready(Call::reduce_scatter_counts(send, recv, &counts, convert::reduce_op(it.op)?)))
}

#[expect(clippy::unnecessary_wraps, reason = "as all that make a call")]
unsafe fn barrier(tag: u64) -> Outcome<Ready> {
    Ok(Ready { call: Call::barrier(), tag, is_pair: false })
}

/// # Safety
/// As [`broadcast`].
unsafe fn send(buffer: *const c_void, to: u32, descriptor: *const ReduceDescriptor) -> Outcome<Ready> {
    // SAFETY: by the contract of this function.
    let (it, data) = unsafe {
        let it = checked(descriptor)?;
        let data = it.source(buffer, it.count)?;
        (it, data)
    };
    Ok(Ready { is_pair: true, ..it.ready(Call::send(data, to as usize)) })
}

/// # Safety
/// As [`broadcast`].
unsafe fn recv(buffer: *mut c_void, from: u32, descriptor: *const ReduceDescriptor) -> Outcome<Ready> {
    // SAFETY: by the contract of this function.
    let (it, data) = unsafe {
        let it = checked(descriptor)?;
        let data = it.target(buffer, it.count, "buffer")?;
        (it, data)
    };
    Ok(Ready { is_pair: true, ..it.ready(Call::recv(data, from as usize)) })
}

/// The buffers of a collective that has two: as many elements to send as the descriptor says.
///
/// # Safety
/// As [`broadcast`].
pub(crate) unsafe fn both(
    send: *const c_void,
    recv: *mut c_void,
    recv_count: usize,
    descriptor: *const ReduceDescriptor,
) -> Outcome<(Checked, Source<'static>, Target<'static>)> {
    // SAFETY: by the contract of this function.
    unsafe {
        let it = checked(descriptor)?;
        let send = it.source(send, it.count)?;
        let recv = it.target(recv, recv_count, "recvbuf")?;
        Ok((it, send, recv))
    }
}

/// # Safety
/// If `counts` is not null, it points to `ranks` of them.
pub(crate) unsafe fn counts_of(counts: *const usize, ranks: usize) -> Outcome<Vec<u64>> {
    // SAFETY: by the contract of this function.
    let counts = unsafe { raw::items(counts, ranks, "counts") }?;
    Ok(counts.into_iter().map(|count| count as u64).collect())
}

type Descriptor = *const ReduceDescriptor;

collective!(
    broadcast(buffer: *mut c_void, root: u32, descriptor: Descriptor),
    pcclBroadcast, "pcclBroadcast", pcclBroadcastAsync, "pcclBroadcastAsync"
);
collective!(
    reduce(buffer: *mut c_void, root: u32, descriptor: Descriptor),
    pcclReduce, "pcclReduce", pcclReduceAsync, "pcclReduceAsync"
);
collective!(
    weighted_average(buffer: *mut c_void, weight: f64, descriptor: Descriptor),
    pcclWeightedAverage, "pcclWeightedAverage", pcclWeightedAverageAsync, "pcclWeightedAverageAsync"
);
collective!(
    all_gather(send: *const c_void, recv: *mut c_void, recv_count: usize, descriptor: Descriptor),
    pcclAllGather, "pcclAllGather", pcclAllGatherAsync, "pcclAllGatherAsync"
);
collective!(
    all_gather_v(
        send: *const c_void, recv: *mut c_void, recv_count: usize, counts: *const usize, ranks: usize,
        descriptor: Descriptor
    ),
    pcclAllGatherV, "pcclAllGatherV", pcclAllGatherVAsync, "pcclAllGatherVAsync"
);
collective!(
    reduce_scatter(send: *const c_void, recv: *mut c_void, recv_count: usize, descriptor: Descriptor),
    pcclReduceScatter, "pcclReduceScatter", pcclReduceScatterAsync, "pcclReduceScatterAsync"
);
collective!(
    reduce_scatter_v(
        send: *const c_void, recv: *mut c_void, recv_count: usize, counts: *const usize, ranks: usize,
        descriptor: Descriptor
    ),
    pcclReduceScatterV, "pcclReduceScatterV", pcclReduceScatterVAsync, "pcclReduceScatterVAsync"
);
collective!(barrier(tag: u64), pcclBarrier, "pcclBarrier", pcclBarrierAsync, "pcclBarrierAsync");
collective!(
    send(buffer: *const c_void, to: u32, descriptor: Descriptor),
    pcclSend, "pcclSend", pcclSendAsync, "pcclSendAsync"
);
collective!(
    recv(buffer: *mut c_void, from: u32, descriptor: Descriptor),
    pcclRecv, "pcclRecv", pcclRecvAsync, "pcclRecvAsync"
);
