//! Where the states of peers differ.

use crate::{
    calls::state_of,
    communicator::enter,
    failure::{Failure, call},
    raw,
    types::{Handle, ResultCode, SharedState, TensorDiff, code},
};
use std::ffi::c_char;

/// `pcclDiffSharedState`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclDiffSharedState(
    comm: Handle,
    state: *const SharedState,
    diffs: *mut TensorDiff,
    capacity: usize,
    count_out: *mut usize,
) -> ResultCode {
    call(|| {
        let comm = enter(comm)?;
        raw::check(count_out, "count_out")?;
        if capacity > 0 {
            raw::check(diffs, "diffs")?;
        }
        // SAFETY: by the contract of this function.
        let given = unsafe { raw::read(state, "shared_state") }?;
        // SAFETY: by the contract of this function; the state does not outlive this call.
        let (shared, names) = unsafe { state_of(&given) }?;
        let connected = comm.connected()?;
        let diff = match comm.call_timeout() {
            Some(timeout) => connected.diff_shared_state_within(&shared, timeout),
            None => connected.diff_shared_state(&shared),
        };
        let diff = diff.map_err(|error| Failure::of(&error, code::INVALID_USAGE))?;
        let world = connected.world();
        let me = world.ring.get(world.rank).copied();
        // SAFETY: by the contract of this function.
        unsafe { raw::write(count_out, diff.tensors.len()) };
        for (index, tensor) in diff.tensors.iter().enumerate().take(capacity) {
            let entry = TensorDiff {
                tensor: names.iter().position(|name| *name == tensor.key).unwrap_or(0),
                first_element: tensor.first.as_ref().map_or(0, |first| first.element),
                begin: tensor.ranges.first().map_or(0, |range| range.start),
                end: tensor.ranges.last().map_or(tensor.count, |range| range.end),
                contents: u32::try_from(tensor.camps.len()).unwrap_or(u32::MAX),
                peers_apart: u32::try_from(tensor.apart().count()).unwrap_or(u32::MAX),
                is_located: tensor.first.is_some(),
                is_apart: tensor.apart().any(|peer| Some(peer) == me),
            };
            // SAFETY: there is room for `capacity` of them, by the contract of this function.
            unsafe { raw::write(diffs.add(index), entry) };
        }
        comm.set_last_diff(diff);
        Ok(())
    })
}

/// `pcclGetStateDiffText`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclGetStateDiffText(
    comm: Handle,
    buffer: *mut c_char,
    capacity: usize,
    length_out: *mut usize,
) -> ResultCode {
    call(|| {
        let text = enter(comm)?.last_diff().map_or_else(String::new, |diff| diff.to_string());
        // SAFETY: by the contract of this function.
        unsafe { raw::write_text(&text, buffer, capacity, length_out) }
    })
}

/// `pcclGetStateDiffPeers`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclGetStateDiffPeers(
    comm: Handle,
    index: usize,
    peers: *mut [u8; 16],
    capacity: usize,
    count_out: *mut usize,
) -> ResultCode {
    call(|| {
        let diff = enter(comm)?.last_diff().unwrap_or_default();
        let count = diff.tensors.len();
        let tensor = diff.tensors.get(index);
        let tensor = tensor.ok_or_else(|| Failure::argument(format!("difference {index} of {count}")))?;
        let apart: Vec<[u8; 16]> = tensor.apart().map(|peer| peer.0.to_be_bytes()).collect();
        // SAFETY: by the contract of this function.
        unsafe { raw::write_peers(apart.into_iter(), peers, capacity, count_out) }
    })
}
