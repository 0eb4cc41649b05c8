//! Groups of given members, and a world of one.

use crate::{
    communicator::enter,
    failure::{Failure, call},
    raw,
    types::{Handle, Member, ResultCode, code},
};
use pccl::PeerId;

/// `pcclFormGroup`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says; there are `count` members.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclFormGroup(
    comm: Handle,
    uuid_high: u64,
    uuid_low: u64,
    members: *const Member,
    count: usize,
) -> ResultCode {
    call(|| {
        let comm = enter(comm)?;
        // SAFETY: by the contract of this function.
        let items = unsafe { raw::items(members, count, "members") }?;
        let mut members = Vec::with_capacity(items.len());
        for item in items {
            members.push(if item.name.is_null() {
                pccl::Member::Peer(PeerId(u128::from_be_bytes(item.peer)))
            } else {
                // SAFETY: by the contract of this function.
                pccl::Member::Name(unsafe { raw::text(item.name, "the name of a member") }?)
            });
        }
        let uuid = u128::from(uuid_high) << 64 | u128::from(uuid_low);
        let communicator = comm.connected()?;
        let formed = match comm.call_timeout() {
            Some(timeout) => communicator.form_group_within(uuid, &members, timeout),
            None => communicator.form_group(uuid, &members),
        };
        formed.map(drop).map_err(|error| Failure::of(&error, code::UPDATE_TOPOLOGY_FAILED))
    })
}
