//! All-reduces in segments: what is done stays done when a peer dies.
//!
//! A segment is an operation like any other, with a vote, an outcome and attempts of its own. Those of one call share
//! the caller's tag; as many may be in flight as a tag has tracks, one on each.
//!
//! **Why all survivors do the same again.** What this thread launches, where and in which order, follows from the
//! outcomes of the segments in the order in which it waits for them, and that order follows from what it has launched.
//! The master decides each outcome once, so all who are in the call go through the same sequence, however late each of
//! them is. The tensor is cut in one way only if all have said so, which an operation without elements finds out before
//! them; it is one of the same call, and costs two round trips to the master.

use crate::{
    Call, Communicator, Error, LaunchOptions, ReduceInfo, Tensor,
    limit::Limit,
    scope::{AsyncReduce, Scope},
    session::{Shared, calls::Claim},
};
use pccl_protocol::{Algorithm, Cut, PeerId, limits::TRACKS};
use std::{collections::VecDeque, fmt, ops::Range, sync::Arc};

/// Most segments of one call.
const MAX_SEGMENTS: usize = 65_536;

/// A part of a tensor that was reduced as one: all of its elements have the same contributors, and every one of these
/// holds the same bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Segment {
    /// Where it lies in the tensor.
    pub elements: Range<usize>,
    /// The peers that have contributed, by rank. An average is divided by their number.
    pub contributors: Vec<PeerId>,
    /// Own rank among them.
    pub rank: usize,
    /// How its data travelled.
    pub algorithm: Algorithm,
}

/// The report of an all-reduce in segments.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct SegmentedInfo {
    /// All segments, in the order of their elements.
    pub segments: Vec<Segment>,
    /// Payload bytes sent, without those of attempts that failed.
    pub tx_bytes: u64,
    /// Payload bytes received, without those of attempts that failed.
    pub rx_bytes: u64,
    /// How often a segment was done again.
    pub retries: u32,
}

/// Why an all-reduce in segments failed, and what is done all the same. In place, the other elements are bit-identical
/// to before; out of place they are undefined. The error alone, as `?` makes it in a function that returns [`Error`],
/// does not know what is done.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SegmentedError {
    /// The error of a segment that is not done.
    pub error: Error,
    /// The segments that are done, in the order of their elements: the same for all who are still there. They hold
    /// their results.
    pub done: Vec<Segment>,
    /// The elements of segments that this peer holds the whole result of, without knowing whether the others do: only
    /// with [`Error::OutcomeUnknown`].
    pub unknown: Vec<Range<usize>>,
}

impl fmt::Display for SegmentedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; ", self.error)?;
        if self.done.is_empty() {
            return write!(f, "no segment is done");
        }
        let mut joined: Vec<Range<usize>> = Vec::new();
        for Segment { elements, .. } in &self.done {
            match joined.last_mut() {
                Some(last) if last.end == elements.start => last.end = elements.end,
                _ => joined.push(elements.clone()),
            }
        }
        let ranges: Vec<String> = joined.iter().map(|it| format!("{} to {}", it.start, it.end)).collect();
        write!(f, "done are the elements from {}", ranges.join(", "))
    }
}

impl std::error::Error for SegmentedError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl From<SegmentedError> for Error {
    fn from(failed: SegmentedError) -> Self {
        failed.error
    }
}

impl From<Error> for SegmentedError {
    fn from(error: Error) -> Self {
        Self { error, done: Vec::new(), unknown: Vec::new() }
    }
}

impl Communicator {
    /// Reduces `tensor` over all peers of the group, segment by segment. A segment that is done stays done: after a
    /// death only those are done again that were open, among those who are left, without a further call. So each
    /// segment has contributors of its own, by whose number an average is divided; the answer says who they are.
    /// Within a segment all are the same, and all survivors hold the same bytes. Up to two segments are in flight. The
    /// limit of `options` is that of the whole call.
    ///
    /// A segment has `segment_bytes` of the tensor, rounded down to whole elements, and the last one what is left; a
    /// tensor that is not larger is one segment. All peers give the same number: two to four seconds of transfer are a
    /// good size, as much as a death may cost. Nobody is let in during the call.
    ///
    /// ```no_run
    /// # let comm = pccl::Communicator::builder("127.0.0.1:48148").build()?;
    /// # use pccl::{ReduceOp, Tensor};
    /// let mut gradient = vec![0.5_f32; 1 << 28];
    /// let tensor = Tensor::in_place(&mut gradient, ReduceOp::Avg);
    /// let done = comm.all_reduce_in_segments(tensor, 128 << 20, ())?;
    /// for segment in done.segments {
    ///     println!("{:?} from {} peers", segment.elements, segment.contributors.len());
    /// }
    /// # Ok::<(), pccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`SegmentedError`], with the error of a segment that is not done, as of [`Communicator::all_reduce`]. It is
    /// tried again here as long as that may help, so what comes back asks for something else: too few peers, a call
    /// that somebody gave up, peers that call with other arguments, such as without segments or with other ones, which
    /// is a mismatch that names both. Segments that are done keep their results: after that the same call on the same
    /// memory would reduce them twice. `InvalidArgument` for segments of no bytes, or more than 65,536 of them.
    pub fn all_reduce_in_segments(
        &self,
        tensor: Tensor<'_>,
        segment_bytes: usize,
        options: impl Into<LaunchOptions>,
    ) -> Result<SegmentedInfo, SegmentedError> {
        let options = options.into();
        let count = tensor.raw.bytes() / tensor.descriptor.data_type.size_bytes();
        if segment_bytes == 0 {
            return Err(Error::InvalidArgument("segments of no bytes".into()).into());
        }
        let step = (segment_bytes / tensor.descriptor.data_type.size_bytes()).max(1);
        if count.div_ceil(step) > MAX_SEGMENTS {
            let text = format!("segments of {segment_bytes} bytes are more than {MAX_SEGMENTS}");
            return Err(Error::InvalidArgument(text).into());
        }
        let limit = Limit::of(options.timeout.or(self.call_timeout()));
        let (shared, claim) = self.claim(options.tag, &tensor.raw)?;
        let claimed = Claimed { shared, claim };
        let pieces = Pieces { tensor: &tensor, count, step, segment_bytes };
        self.scope(|scope| Course { scope, pieces, options, limit, shared: &claimed.shared }.run())
    }
}

/// The tag and memory of a call, until it is over, however it ends.
struct Claimed {
    shared: Arc<Shared>,
    claim: Arc<Claim>,
}

impl Drop for Claimed {
    fn drop(&mut self) {
        self.shared.calls.end_claim(&self.claim);
    }
}

/// A tensor, cut into segments.
#[derive(Clone, Copy)]
struct Pieces<'a, 'env> {
    tensor: &'a Tensor<'env>,
    count: usize,
    /// Elements of a segment; the last one may have fewer.
    step: usize,
    segment_bytes: usize,
}

impl<'env> Pieces<'_, 'env> {
    /// Number of segments. No elements are one.
    fn number(&self) -> usize {
        self.count.div_ceil(self.step).max(1)
    }

    fn elements(&self, segment: usize) -> Range<usize> {
        let start = segment * self.step;
        start..self.count.min(start.saturating_add(self.step))
    }

    /// The operation that finds out whether all cut alike, if they do cut.
    fn agreement(&self) -> Call<'env> {
        let part = self.tensor.part(0..0);
        Call::all_reduce(vec![part]).segment(self.cut(0))
    }

    /// The operation that a segment is.
    fn call(&self, segment: usize) -> Call<'env> {
        let mut part = self.tensor.part(self.elements(segment));
        // Random numbers are those of tag, tensor and chunk, which segments have in common.
        let stochastic = part.descriptor.quantisation.and_then(|it| Some((it, it.seed()?)));
        if let Some((quantisation, seed)) = stochastic {
            part.descriptor.quantisation = Some(quantisation.stochastic(seed.wrapping_add(segment as u64)));
        }
        Call::all_reduce(vec![part]).segment(self.cut(segment + 1))
    }

    fn cut(&self, number: usize) -> Cut {
        Cut {
            segment: u32::try_from(number).unwrap_or(u32::MAX),
            segment_bytes: self.segment_bytes as u64,
            count: self.count as u64,
        }
    }
}

/// A segment in flight.
struct Flying<'scope, 'env> {
    segment: usize,
    track: u8,
    call: Call<'env>,
    reduce: AsyncReduce<'scope>,
}

/// One call on its way.
struct Course<'a, 'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    pieces: Pieces<'a, 'env>,
    options: LaunchOptions,
    limit: Limit,
    shared: &'a Arc<Shared>,
}

impl<'scope, 'env> Course<'_, 'scope, 'env> {
    fn run(&self) -> Result<SegmentedInfo, SegmentedError> {
        let (mut info, mut failure, mut unknown) = (SegmentedInfo::default(), None, Vec::new());
        let mut flying: VecDeque<Flying<'scope, 'env>> = VecDeque::new();
        if self.pieces.number() > 1 {
            self.agree()?;
        }
        let (mut left, mut free) = (0..self.pieces.number(), Vec::from_iter((0..TRACKS).rev()));
        loop {
            while failure.is_none()
                && let Some(track) = free.pop()
                && let Some(segment) = left.next()
            {
                let launched = self.launch(segment, track, self.pieces.call(segment));
                launched.map_or_else(|error| failure = Some(error), |one| flying.push_back(one));
            }
            if failure.is_some() {
                // Nobody is left alone with them: a peer that has not failed as well hears of it.
                flying.iter().for_each(|other| other.reduce.abort());
            }
            let Some(one) = flying.pop_front() else { break };
            match one.reduce.finish(self.limit) {
                Ok(done) => {
                    free.push(one.track);
                    self.book(&mut info, &one, &done);
                }
                Err(error) if failure.is_none() && error.may_pass() => {
                    log::info!("doing segment {} of {} again: {error}", one.segment, self.pieces.number());
                    info.retries += 1;
                    let launched = self.launch(one.segment, one.track, one.call);
                    launched.map_or_else(|error| failure = Some(error), |one| flying.push_back(one));
                }
                Err(error) => {
                    let is_unknown = matches!(error, Error::OutcomeUnknown(_));
                    unknown.extend(is_unknown.then(|| self.pieces.elements(one.segment)));
                    // It says most: what it is about is not as before.
                    failure = failure.filter(|_| !is_unknown).or(Some(error));
                }
            }
        }
        info.segments.sort_by_key(|segment| segment.elements.start);
        unknown.sort_by_key(|elements| elements.start);
        match failure {
            None => Ok(info),
            Some(error) => Err(SegmentedError { error, done: info.segments, unknown }),
        }
    }

    /// Until all cut the tensor alike. A failure is that of a segment.
    fn agree(&self) -> Result<(), Error> {
        let call = self.pieces.agreement();
        loop {
            match self.scope.launch_segment(self.shared, &call, self.options, 0)?.finish(self.limit) {
                Err(error) if error.may_pass() => log::info!("finding out again how all cut: {error}"),
                result => return result.map(drop),
            }
        }
    }

    fn launch(&self, segment: usize, track: u8, call: Call<'env>) -> Result<Flying<'scope, 'env>, Error> {
        let reduce = self.scope.launch_segment(self.shared, &call, self.options, track)?;
        Ok(Flying { segment, track, call, reduce })
    }

    fn book(&self, info: &mut SegmentedInfo, one: &Flying<'_, '_>, done: &ReduceInfo) {
        log::debug!("segment {} of {} is done", one.segment, self.pieces.number());
        info.tx_bytes += done.tx_bytes;
        info.rx_bytes += done.rx_bytes;
        info.segments.push(Segment {
            elements: self.pieces.elements(one.segment),
            contributors: one.reduce.contributors(),
            rank: done.rank,
            algorithm: done.algorithm,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pccl_quant::ReduceOp;

    #[test]
    fn every_element_is_in_one_segment() {
        for (count, segment_bytes, sizes) in [
            (10, 16, &[4, 4, 2][..]),
            (8, 16, &[4, 4]),
            (3, 16, &[3]),
            (0, 16, &[0]),
            (3, 1, &[1, 1, 1]),
            (5, 11, &[2, 2, 1]),
        ] {
            let mut data = vec![0.0_f32; count];
            let tensor = Tensor::in_place(&mut data, ReduceOp::Sum);
            let pieces = Pieces { tensor: &tensor, count, step: (segment_bytes / 4).max(1), segment_bytes };
            let all: Vec<Range<usize>> = (0..pieces.number()).map(|it| pieces.elements(it)).collect();
            assert_eq!(all.iter().map(Range::len).collect::<Vec<_>>(), sizes);
            assert!(all.windows(2).all(|two| two[0].end == two[1].start));
        }
    }

    #[test]
    fn the_error_says_what_is_done() {
        let segment =
            |elements| Segment { elements, contributors: vec![], rank: 0, algorithm: Algorithm::Ring };
        let mut failed = SegmentedError::from(Error::NotConnected);
        assert!(failed.to_string().ends_with("no segment is done"));
        failed.done = vec![segment(0..5), segment(5..10), segment(20..25)];
        assert!(failed.to_string().ends_with("; done are the elements from 0 to 10, 20 to 25"), "{failed}");
        assert_eq!(Error::from(failed), Error::NotConnected);
    }
}
