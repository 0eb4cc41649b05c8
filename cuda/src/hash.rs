//! The state hashes of device memory, computed where it lies.
//!
//! The device makes the digests of level 1, one per MiB; what is above them is made on the host, from 16 bytes per MiB.

use crate::{
    CudaError,
    device::Device,
    lane::{Argument, Lane, SCRATCH_BYTES, with_lane},
};
use pccl_hash::{Digest128, tree};
use std::sync::Arc;

/// Bytes of device memory, by their address.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stretch {
    /// The address of the first.
    pub(crate) start: u64,
    /// How many there are.
    pub(crate) bytes: u64,
}

/// MiBs whose digests one launch computes.
const MEBIBYTES_PER_LAUNCH: u64 = 16_384;
/// Bytes that the kernel has for a stretch: address, length, number of the first MiB.
const ENTRY_BYTES: usize = 24;
const TREE_THREADS: u32 = 1024;

const _: () = assert!(MEBIBYTES_PER_LAUNCH as usize * (ENTRY_BYTES + Digest128::BYTES) <= SCRATCH_BYTES);

/// The digests of level 1 of all stretches, one behind the other, from the MiB `from` on, counted over all of them. One
/// launch for each 16 GiB, or 16,384 stretches.
pub(crate) fn level1_digests(
    device: &Arc<Device>,
    stream: Option<u64>,
    stretches: &[Stretch],
    from: u64,
) -> Result<Vec<Digest128>, CudaError> {
    let mut first = 0;
    let mut entries = Vec::with_capacity(stretches.len());
    for stretch in stretches {
        entries.push((first, *stretch));
        first += tree::level1_count(stretch.bytes);
    }
    with_lane(device, stream, |lane| {
        let mut digests = Vec::new();
        let mut done = from.min(first);
        while done < first {
            let count = MEBIBYTES_PER_LAUNCH.min(first - done);
            let begin = entries.partition_point(|(first, _)| *first <= done) - 1;
            let end = entries.partition_point(|(first, _)| *first < done + count);
            launch_tree(lane, &entries[begin..end], done, count, &mut digests)?;
            done += count;
        }
        Ok(digests)
    })
}

fn launch_tree(
    lane: &mut Lane,
    entries: &[(u64, Stretch)],
    from: u64,
    count: u64,
    digests: &mut Vec<Digest128>,
) -> Result<(), CudaError> {
    let device = lane.device();
    let kernel = device.kernels()?.tree_level1;
    let table: Vec<u8> = entries
        .iter()
        .flat_map(|(first, stretch)| [stretch.start, stretch.bytes, *first])
        .flat_map(u64::to_le_bytes)
        .collect();
    let scratch = lane.scratch()?;
    let results = scratch + table.len() as u64;
    let arguments = [
        Argument::U64(scratch),
        Argument::U32(entries.len() as u32),
        Argument::U64(from),
        Argument::U64(results),
    ];
    let mut bytes = vec![0; count as usize * Digest128::BYTES];
    // SAFETY: table and results fit the scratch memory (above), which is the lane's own. The kernel reads the
    // stretches, which are memory of this device until the lane is synchronised (`DeviceMemory::from_raw`).
    unsafe {
        lane.write(scratch, &table)?;
        lane.launch(kernel, count as u32, TREE_THREADS, &arguments)?;
        lane.read(results, &mut bytes)?;
    }
    digests.extend(bytes.as_chunks().0.iter().map(|digest: &[u8; 16]| Digest128(*digest)));
    Ok(())
}

const VECTOR_BYTES: u64 = 16;
const LANES: u64 = 256;
const MAX_BLOCKS: u64 = 960;

/// simplehash of a stretch.
pub(crate) fn simplehash(
    device: &Arc<Device>,
    stream: Option<u64>,
    stretch: Stretch,
) -> Result<u32, CudaError> {
    let vectors = stretch.bytes / VECTOR_BYTES;
    let blocks = vectors.div_ceil(LANES).min(MAX_BLOCKS);
    let per_block = vectors.checked_div(blocks).map_or(0, |_| vectors.div_ceil(blocks));
    let tail = stretch.start + vectors * VECTOR_BYTES;
    with_lane(device, stream, |lane| {
        let kernels = lane.device().kernels()?;
        let scratch = lane.scratch()?;
        let result = scratch + MAX_BLOCKS * 4;
        let mut bytes = [0; 4];
        // SAFETY: hashes and result fit the scratch memory, which is the lane's own; the kernels read the stretch, as
        // in `launch_tree`.
        unsafe {
            if blocks > 0 {
                let arguments = [
                    Argument::U64(stretch.start),
                    Argument::U64(vectors),
                    Argument::U64(per_block),
                    Argument::U64(0),
                    Argument::U64(scratch),
                ];
                lane.launch(kernels.simplehash_blocks, blocks as u32, LANES as u32, &arguments)?;
            }
            let arguments = [
                Argument::U64(scratch),
                Argument::U32(blocks as u32),
                Argument::U64(tail),
                Argument::U32((stretch.bytes % VECTOR_BYTES) as u32),
                Argument::U64(result),
            ];
            lane.launch(kernels.simplehash_end, 1, LANES as u32, &arguments)?;
            lane.read(result, &mut bytes)?;
        }
        Ok(u32::from_le_bytes(bytes))
    })
}
