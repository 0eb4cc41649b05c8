//! The command that reduces in segments.

use crate::{Reply, failed_with, reduce::Job, usage, world};
use pccl::{Communicator, Error, LaunchOptions, Schedule, Segment};
use pccl_tests::pattern;
use std::ops::Range;

/// `segments TENSOR TAG BYTES [SCHEDULE]`: answers with each segment that is done, as
/// `START:END:ALGORITHM:DIGEST:ID+ID`, and whether everything else is as it was.
pub(crate) fn run(comm: &Communicator, index: usize, words: &[&str]) -> Reply {
    let (&[tensor, tag, bytes] | &[tensor, tag, bytes, _]) = words else {
        return Err(usage("segments TENSOR TAG BYTES [SCHEDULE]"));
    };
    let schedule = if words.get(3) == Some(&"pairwise") { Schedule::Pairwise } else { Schedule::Automatic };
    let (tag, bytes) = tag.parse().ok().zip(bytes.parse().ok()).ok_or_else(|| usage("segments"))?;
    let mut job = Job::parse(tensor, index)?;
    let options = LaunchOptions { tag, schedule, timeout: None };
    let result = match job.tensor() {
        Ok(tensor) => comm.all_reduce_in_segments(tensor, bytes, options),
        Err(error) => Err(error.into()),
    };
    let (done, unknown, retries) = match &result {
        Ok(info) => (&info.segments[..], &[][..], info.retries),
        Err(failed) => (&failed.done[..], &failed.unknown[..], 0),
    };
    let size = job.spec.data_type.size_bytes();
    let bytes_of = |elements: &Range<usize>| elements.start * size..elements.end * size;
    let told = |segment: &Segment| {
        let ids: Vec<String> = segment.contributors.iter().map(|peer| format!("{:032x}", peer.0)).collect();
        let Range { start, end } = segment.elements;
        let digest = pattern::digest(&job.result()[bytes_of(&segment.elements)]);
        format!("{start}:{end}:{}:{digest}:{}", segment.algorithm, ids.join("+"))
    };
    let segments: Vec<String> = done.iter().map(told).collect();
    let mut left = job.sent().to_vec();
    let changed = done.iter().map(|segment| &segment.elements).chain(unknown);
    for bytes in changed.map(bytes_of).filter(|_| job.spec.in_place) {
        left[bytes.clone()].copy_from_slice(&job.input()[bytes]);
    }
    let fields = format!(
        "segments={} unknown={} retries={retries} restored={} {}",
        segments.join(","),
        unknown.len(),
        left == job.input(),
        world(&comm.world())
    );
    result.map(|_| fields.clone()).map_err(|failed| failed_with(&Error::from(failed), &fields))
}
