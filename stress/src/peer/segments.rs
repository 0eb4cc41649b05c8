//! The all-reduce in segments of a step. Each segment is reported as an operation by itself, with a tag of its own, and
//! for the ring of those who have contributed to it by the library's word, so that nothing else can be right.

use super::{Halt, Peer, StepEnd, failure, report};
use crate::{
    event::{Call, Completed, Event},
    jobs::SEGMENT_TAGS,
    tasks::Task,
    workload::{Buffer, checksum},
};
use pccl::{Algorithm, Communicator, LaunchOptions, Remedy, Segment, SegmentedError, Tensor};
use std::ops::Range;

/// One tensor, cut into segments.
struct Whole {
    /// The segments with what this peer puts into them.
    tasks: Vec<Task>,
    /// Elements of a segment; the last one may have fewer.
    step: usize,
    /// The values that are lent to the library; in place they get the result as well.
    data: Vec<f32>,
    /// Where the result goes, if not in place.
    result: Option<Vec<f32>>,
}

fn elements(task: &Task) -> &[f32] {
    match task.input() {
        [Buffer::F32(values)] => values,
        _ => &[],
    }
}

impl Whole {
    fn new(tasks: Vec<Task>, in_place: bool) -> Self {
        let data: Vec<f32> = tasks.iter().flat_map(|task| elements(task).iter().copied()).collect();
        let step = tasks.first().map_or(0, |task| elements(task).len());
        let result = (!in_place).then(|| data.clone());
        Self { tasks, step, data, result }
    }

    fn reduce(&mut self, comm: &Communicator) -> Result<Vec<Segment>, SegmentedError> {
        let Some(task) = self.tasks.first() else { return Ok(Vec::new()) };
        let (op, way) = task.reduction();
        let tensor = match &mut self.result {
            Some(result) => Tensor::out_of_place(&self.data, result, op)?,
            None => Tensor::in_place(&mut self.data, op),
        };
        let tensor = way.into_iter().fold(tensor, Tensor::quantised);
        let options = LaunchOptions { schedule: task.schedule(), ..SEGMENT_TAGS.start.into() };
        let segment_bytes = self.step * size_of::<f32>();
        Ok(comm.all_reduce_in_segments(tensor, segment_bytes, options)?.segments)
    }

    /// The number of the segment of these elements, which have to be those of one.
    fn number(&self, range: &Range<usize>) -> Result<usize, Halt> {
        let number = range.start / self.step.max(1);
        let end = self.data.len().min((number + 1) * self.step);
        (*range == (number * self.step..end)).then_some(number).ok_or_else(|| {
            Halt::Fatal(format!("no segment has the elements {range:?} of {}", self.data.len()))
        })
    }

    /// Gives a segment its result; the number of the segment and the checksum.
    fn land(&mut self, range: Range<usize>) -> Result<(usize, u64), Halt> {
        let number = self.number(&range)?;
        let values = self.result.as_ref().unwrap_or(&self.data)[range].to_vec();
        let task = &mut self.tasks[number];
        task.take_result(Buffer::F32(values));
        Ok((number, task.complete()))
    }

    /// Whether everything that is sent is as before; in place, of the segments that have no result.
    fn is_intact(&self) -> bool {
        let in_place = self.result.is_none();
        self.tasks.iter().zip(self.data.chunks(self.step.max(1))).all(|(task, values)| {
            (in_place && task.is_done())
                || checksum(&[Buffer::F32(values.to_vec())]) == checksum(task.input())
        })
    }
}

impl Peer {
    /// Every other step in place. After an error it is made again with all others, from the contributions.
    pub(super) fn reduce_in_segments(&self, tasks: &mut Vec<Task>) -> Result<StepEnd, Halt> {
        let (workload, step) = (self.settings.workload, self.revision);
        let segments = workload.segment_jobs(step);
        let segments = segments.into_iter().map(|job| Task::new(workload, self.me, step, job, &[]));
        let mut whole = Whole::new(segments.collect(), step.is_multiple_of(2));
        let before = self.ring();
        let (done, failed) = match whole.reduce(&self.comm) {
            Ok(done) => (done, None),
            Err(SegmentedError { error, done, unknown, .. }) => (done, Some((error, unknown))),
        };
        for segment in done {
            self.report_segment(&mut whole, &segment)?;
        }
        let Some((error, unknown)) = failed else {
            if !whole.is_intact() {
                return Err(Halt::Fatal("a success in segments changed the send buffer".into()));
            }
            if let Some(left) = whole.tasks.iter().find(|task| !task.is_done()) {
                return Err(Halt::Fatal(format!("a success without the segment of tag {}", left.tag())));
            }
            tasks.append(&mut whole.tasks);
            return Ok(StepEnd::Complete);
        };
        for range in unknown {
            let (number, hash) = whole.land(range)?;
            let (before, after) = (before.clone(), self.ring());
            let tag = whole.tasks[number].tag();
            let world = before.len();
            let (rank, pairwise) = (None, None);
            report(Event::Unresolved(Completed { step, tag, world, rank, pairwise, hash, before, after }));
        }
        report(failure(Call::Collective(SEGMENT_TAGS.start), step, whole.is_intact(), &error));
        match error.remedy() {
            Remedy::Retry => Err(Halt::Fatal(format!("it is for the library to try again: {error}"))),
            Remedy::WaitForPeers => Ok(StepEnd::Alone),
            _ => Err(self.lost(&error)),
        }
    }

    fn report_segment(&self, whole: &mut Whole, segment: &Segment) -> Result<(), Halt> {
        let (number, hash) = whole.land(segment.elements.clone())?;
        let ring: Vec<u128> = segment.contributors.iter().map(|peer| peer.0).collect();
        report(Event::Completed(Completed {
            step: self.revision,
            tag: whole.tasks[number].tag(),
            world: ring.len(),
            rank: Some(segment.rank),
            pairwise: Some(segment.algorithm == Algorithm::Pairwise),
            hash,
            before: ring.clone(),
            after: ring,
        }));
        Ok(())
    }
}
