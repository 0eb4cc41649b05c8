//! The hashes of the tensors of a shared state, on the host and on devices.

use super::{StateTensor, compare::Levels};
use crate::{Error, Reason, memory::digests_on_devices};
use pccl_hash::Tree;

/// The digests by `tree` of the contents of tensors, in their order. Those on a device are hashed there, all by one
/// launch, unless the tree has a key.
pub(crate) fn hashed(tree: &Tree, tensors: &[&StateTensor]) -> Result<Vec<Levels>, Error> {
    let refused = |error| Error::System(Reason::system("hashing the shared state", error));
    let memories: Vec<_> = tensors.iter().filter_map(|tensor| tensor.memory.on_device()).collect();
    let mut digests = digests_on_devices(tree, &memories).map_err(refused)?.into_iter();
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let levels = |tensor: &&StateTensor| {
        log::trace!("hashing {}", tensor.key);
        let bytes = tensor.memory.bytes() as u64;
        match tensor.memory.on_host() {
            Some(content) => Levels::of(tree, content, threads),
            None => Levels::above(tree.clone(), bytes, digests.next().unwrap_or_default()),
        }
    };
    Ok(tensors.iter().map(levels).collect())
}
