//! Collectives that only move: gather, scatter, all-to-all.

use crate::{
    collectives::{Checked, Ready, begin, both, checked, collective, counts_of, run},
    communicator::enter,
    failure::{Failure, Outcome, call},
    raw,
    types::{AsyncReduceOp, Handle, ReduceDescriptor, ReduceInfo, ResultCode},
};
use pccl::{Call, Report, Source, Target};
use std::ffi::c_void;

/// The elements of a buffer that only the root needs: none, if there is no buffer.
fn if_there(buffer: *const c_void, count: usize) -> usize {
    if buffer.is_null() { 0 } else { count }
}

/// # Safety
/// The pointers are null or point to what the header says, until the collective was waited for.
unsafe fn gather(
    send: *const c_void,
    recv: *mut c_void,
    recv_count: usize,
    root: u32,
    descriptor: *const ReduceDescriptor,
) -> Outcome<Ready> {
    // SAFETY: by the contract of this function.
    let (it, send, recv) = unsafe { both(send, recv, if_there(recv, recv_count), descriptor) }?;
    Ok(it.ready(Call::gather(send, recv, root as usize)))
}

/// # Safety
/// As [`gather`].
unsafe fn gather_v(
    send: *const c_void,
    recv: *mut c_void,
    recv_count: usize,
    root: u32,
    counts: *const usize,
    ranks: usize,
    descriptor: *const ReduceDescriptor,
) -> Outcome<Ready> {
    // SAFETY: by the contract of this function.
    let (it, send, recv) = unsafe { both(send, recv, if_there(recv, recv_count), descriptor) }?;
    // SAFETY: the same.
    let counts = unsafe { counts_of(counts, ranks) }?;
    Ok(it.ready(Call::gather_counts(send, recv, &counts, root as usize)))
}

/// # Safety
/// As [`gather`].
unsafe fn scatter(
    send: *const c_void,
    send_count: usize,
    recv: *mut c_void,
    root: u32,
    descriptor: *const ReduceDescriptor,
) -> Outcome<Ready> {
    // SAFETY: by the contract of this function.
    let (it, send, recv) = unsafe { from_root(send, send_count, recv, descriptor) }?;
    Ok(it.ready(Call::scatter(send, recv, root as usize)))
}

/// # Safety
/// As [`gather`].
unsafe fn scatter_v(
    send: *const c_void,
    send_count: usize,
    recv: *mut c_void,
    root: u32,
    counts: *const usize,
    ranks: usize,
    descriptor: *const ReduceDescriptor,
) -> Outcome<Ready> {
    // SAFETY: by the contract of this function.
    let (it, send, recv) = unsafe { from_root(send, send_count, recv, descriptor) }?;
    // SAFETY: the same.
    let counts = unsafe { counts_of(counts, ranks) }?;
    Ok(it.ready(Call::scatter_counts(send, recv, &counts, root as usize)))
}

/// # Safety
/// As [`gather`].
unsafe fn all_to_all(
    send: *const c_void,
    recv: *mut c_void,
    descriptor: *const ReduceDescriptor,
) -> Outcome<Ready> {
    // SAFETY: by the contract of this function.
    unsafe {
        let it = checked(descriptor)?;
        let (send, recv) = (it.source(send, it.count)?, it.target(recv, it.count, "recvbuf")?);
        Ok(it.ready(Call::all_to_all(send, recv)))
    }
}

/// # Safety
/// As [`gather`].
unsafe fn all_to_all_v(
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
    let counts = unsafe { counts_of(counts, pairs(ranks)?) }?;
    Ok(it.ready(Call::all_to_all_counts(send, recv, &counts)))
}

/// The buffers of a scatter: as many elements to receive as the descriptor says.
///
/// # Safety
/// As [`gather`].
unsafe fn from_root(
    send: *const c_void,
    send_count: usize,
    recv: *mut c_void,
    descriptor: *const ReduceDescriptor,
) -> Outcome<(Checked, Source<'static>, Target<'static>)> {
    // SAFETY: by the contract of this function.
    unsafe {
        let it = checked(descriptor)?;
        let send = it.source(send, if_there(send, send_count))?;
        let recv = it.target(recv, it.count, "recvbuf")?;
        Ok((it, send, recv))
    }
}

/// How many pairs of ranks there are.
fn pairs(ranks: usize) -> Outcome<usize> {
    ranks.checked_mul(ranks).ok_or_else(|| Failure::argument(format!("{ranks} ranks")))
}

/// `pcclExchangeCounts`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclExchangeCounts(
    send_counts: *const usize,
    recv_counts: *const usize,
    ranks: usize,
    counts_out: *mut usize,
    tag: u64,
    comm: Handle,
) -> ResultCode {
    call(|| {
        let comm = enter(comm)?;
        let room = pairs(ranks)?;
        if room > 0 {
            raw::check(counts_out, "counts_out")?;
        }
        // SAFETY: by the contract of this function.
        let (given, taken) = unsafe { (counts_of(send_counts, ranks)?, counts_of(recv_counts, ranks)?) };
        let report = Report::default();
        comm.launch(Call::exchange_counts(&given, &taken, &report), tag)?;
        comm.wait(tag, comm.call_timeout())?.map_err(|error| Failure::of_reduce(&error))?;
        let found =
            report.take().ok_or_else(|| Failure::internal("counts were exchanged and are not there"))?;
        for (index, count) in found.into_iter().enumerate().take(room) {
            // SAFETY: by the contract of this function; there is room for each pair of ranks.
            unsafe { raw::write(counts_out.add(index), count as usize) };
        }
        Ok(())
    })
}

type Descriptor = *const ReduceDescriptor;

collective!(
    gather(send: *const c_void, recv: *mut c_void, recv_count: usize, root: u32, descriptor: Descriptor),
    pcclGather, "pcclGather", pcclGatherAsync, "pcclGatherAsync"
);
collective!(
    gather_v(
        send: *const c_void, recv: *mut c_void, recv_count: usize, root: u32, counts: *const usize, ranks: usize,
        descriptor: Descriptor
    ),
    pcclGatherV, "pcclGatherV", pcclGatherVAsync, "pcclGatherVAsync"
);
collective!(
    scatter(send: *const c_void, send_count: usize, recv: *mut c_void, root: u32, descriptor: Descriptor),
    pcclScatter, "pcclScatter", pcclScatterAsync, "pcclScatterAsync"
);
collective!(
    scatter_v(
        send: *const c_void, send_count: usize, recv: *mut c_void, root: u32, counts: *const usize, ranks: usize,
        descriptor: Descriptor
    ),
    pcclScatterV, "pcclScatterV", pcclScatterVAsync, "pcclScatterVAsync"
);
collective!(
    all_to_all(send: *const c_void, recv: *mut c_void, descriptor: Descriptor),
    pcclAllToAll, "pcclAllToAll", pcclAllToAllAsync, "pcclAllToAllAsync"
);
collective!(
    all_to_all_v(
        send: *const c_void, recv: *mut c_void, recv_count: usize, counts: *const usize, ranks: usize,
        descriptor: Descriptor
    ),
    pcclAllToAllV, "pcclAllToAllV", pcclAllToAllVAsync, "pcclAllToAllVAsync"
);
