//! Contributions that are bounded before they are averaged.

use crate::{
    collectives::checked,
    communicator::enter,
    failure::{Failure, Outcome, call},
    raw,
    types::{Clip, Handle, PeerNorm, ReduceOpDescriptor, ResultCode},
};
use pccl::{Call, ClipReport, Target};

/// The contribution of a tensor: its send buffer.
///
/// # Safety
/// The buffer is null or as long as the descriptor says, and the caller leaves it alone until the clip is over.
unsafe fn contribution(it: &ReduceOpDescriptor) -> Outcome<Target<'static>> {
    // SAFETY: by the contract of this function; it is a reference.
    unsafe {
        let given = checked(&raw const it.descriptor)?;
        given.target(it.send, it.descriptor.count, "sendbuf")
    }
}

/// `pcclClipToMedian`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclClipToMedian(
    tensors: *const ReduceOpDescriptor,
    count: usize,
    factor: f64,
    comm: Handle,
    clip_out: *mut Clip,
    norms: *mut PeerNorm,
    capacity: usize,
) -> ResultCode {
    call(|| {
        let comm = enter(comm)?;
        if count == 0 {
            return Err(Failure::argument("count must be positive"));
        }
        if capacity > 0 {
            raw::check(norms, "norms")?;
        }
        // SAFETY: by the contract of this function.
        let tensors = unsafe { raw::items(tensors, count, "tensors") }?;
        // SAFETY: the same; the caller gets control back only after it was waited for.
        let targets = tensors.iter().map(|it| unsafe { contribution(it) });
        let (targets, tag) = (targets.collect::<Outcome<Vec<_>>>()?, tensors[0].descriptor.tag);
        let report = ClipReport::default();
        comm.launch(Call::clip_to_median(targets, factor, &report), tag)?;
        comm.wait(tag, comm.call_timeout())?.map_err(|error| Failure::of_reduce(&error))?;
        let found = report.take().ok_or_else(|| Failure::internal("a clip has found nothing"))?;
        let peers = u32::try_from(found.peers.len()).unwrap_or(u32::MAX);
        let clip = Clip { norm: found.norm, scale: found.scale, median: found.median, peers };
        // SAFETY: by the contract of this function.
        unsafe { raw::write(clip_out, clip) };
        for (index, it) in found.peers.iter().enumerate().take(capacity) {
            let one = PeerNorm { peer: it.peer.0.to_be_bytes(), norm: it.norm, scale: it.scale };
            // SAFETY: by the contract of this function; `index` is below the capacity.
            unsafe { raw::write(norms.add(index), one) };
        }
        Ok(())
    })
}
