//! Whether a collective may begin beside those that are in flight.

use crate::{Error, collective::op::Op, session::calls::Activity};
use pccl_protocol::{CallKind, Tag, limits};
use std::{ops::Range, sync::Arc};

/// A call that is about to begin: an operation, or a call in segments.
#[derive(Debug)]
pub(super) struct Beginning {
    /// Name of the call.
    pub(super) kind: &'static str,
    pub(super) tag: Tag,
    /// Tensors that are voted for at once.
    pub(super) parts: usize,
    /// Address ranges of the caller's memory, and whether they are written.
    pub(super) ranges: Vec<(Range<usize>, bool)>,
}

impl Beginning {
    /// An operation.
    pub(super) fn of(op: &Op) -> Self {
        let descriptor = op.descriptor();
        let (kind, parts) = (descriptor.kind().call(), descriptor.parts.len());
        Self { kind, tag: op.tag(), parts, ranges: op.ranges() }
    }

    /// Refuses what may not begin now.
    pub(super) fn check(&self, activity: &Activity) -> Result<(), Error> {
        let refuse = |text: String| Err(Error::InvalidUsage(text));
        activity.check_not_draining()?;
        if let Some((call, ..)) = activity.exclusive
            && call != CallKind::ArePeersPending
        {
            return refuse(format!("{} while another thread is in {call}", self.kind));
        }
        let is_claimed = activity.claims.iter().any(|claim| self.tag == claim.tag.into());
        if is_claimed || activity.ops.iter().any(|other| other.tag() == self.tag) {
            return refuse(format!("{} is in flight already", self.tag));
        }
        // Each call in segments may have one on every track.
        let tracks = activity.claims.len() * usize::from(limits::TRACKS);
        if tracks + others(activity).count() >= limits::MAX_TAGS_IN_FLIGHT {
            return refuse(format!("more than {} collectives in flight", limits::MAX_TAGS_IN_FLIGHT));
        }
        self.check_parts(activity)?;
        self.check_overlaps(activity)
    }

    /// The master keeps what is voted for until all have voted, and so much of each peer.
    fn check_parts(&self, activity: &Activity) -> Result<(), Error> {
        if self.parts <= limits::FEW_PARTS {
            return Ok(());
        }
        let voted = others(activity).map(|op| op.descriptor().parts.len());
        let all = self.parts + voted.filter(|parts| *parts > limits::FEW_PARTS).sum::<usize>();
        if all > limits::MAX_VOTED_PARTS {
            return Err(Error::InvalidUsage(format!(
                "{all} tensors in operations in flight, at most {} may be",
                limits::MAX_VOTED_PARTS
            )));
        }
        Ok(())
    }

    /// No memory that an operation writes may be used by another one in flight, or twice by the same.
    fn check_overlaps(&self, activity: &Activity) -> Result<(), Error> {
        let mut ranges = self.ranges.clone();
        ranges.extend(others(activity).flat_map(|op| op.ranges()));
        ranges.extend(activity.claims.iter().flat_map(|claim| claim.ranges.clone()));
        ranges.retain(|(range, _)| !range.is_empty());
        ranges.sort_unstable_by_key(|(range, _)| range.start);
        let (mut written_end, mut any_end) = (0, 0);
        for (range, written) in ranges {
            if range.start < written_end || (written && range.start < any_end) {
                return Err(Error::InvalidArgument(
                    "buffers overlap, with each other or with an operation in flight".into(),
                ));
            }
            any_end = any_end.max(range.end);
            if written {
                written_end = written_end.max(range.end);
            }
        }
        Ok(())
    }
}

/// Operations in flight that are no segments: those are in what their call has claimed.
fn others(activity: &Activity) -> impl Iterator<Item = &Arc<Op>> {
    activity.ops.iter().filter(|op| !op.is_segment())
}
