//! The lanes and the parts that they fetch: a pure schedule of the parts that are missing.
//!
//! Parts wait until a lane takes them. A lane that ends gives back what it has not delivered. When nothing waits any
//! more, a lane with nothing to do also asks for parts that another one has owed for some time, so that a slow or dead
//! source holds nobody up; the lane that delivers first counts.

use super::compare::Wanted;
use pccl_protocol::StatePart;
use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

/// After which time a part that is under way elsewhere is asked for once more.
pub(crate) const OVERDUE: Duration = Duration::from_millis(500);

/// A lane: one connection to one source.
pub(crate) type LaneId = u32;

/// A part of one of the tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Job {
    /// Number of the tensor in the plan.
    pub(crate) tensor: usize,
    pub(crate) wanted: Wanted,
}

impl Job {
    fn key(&self) -> (usize, StatePart) {
        (self.tensor, self.wanted.part)
    }
}

#[derive(Debug)]
struct Flight {
    job: Job,
    /// Those that have asked for it and not failed since.
    lanes: Vec<LaneId>,
    /// When the last of them asked.
    since: Duration,
    /// It is here and verified.
    arrived: bool,
}

/// See the module's documentation. Times count from any fixed moment.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    /// Lists come first: they show how much there is to do.
    lists: VecDeque<Job>,
    pieces: VecDeque<Job>,
    flights: BTreeMap<(usize, StatePart), Flight>,
}

impl Schedule {
    /// Adds a part that nobody has asked for.
    pub(crate) fn add(&mut self, job: Job) {
        match job.wanted.part {
            StatePart::Digests(_) => self.lists.push_back(job),
            StatePart::Mebibyte(_) => self.pieces.push_back(job),
        }
    }

    /// Parts that wait for a lane.
    pub(crate) fn waiting(&self) -> usize {
        self.lists.len() + self.pieces.len()
    }

    /// Whether everything is here.
    pub(crate) fn is_done(&self) -> bool {
        self.waiting() == 0 && self.flights.is_empty()
    }

    /// The next part for a lane.
    pub(crate) fn take(&mut self, lane: LaneId, now: Duration) -> Option<Job> {
        let job = self.lists.pop_front().or_else(|| self.pieces.pop_front())?;
        let flight = Flight { job, lanes: vec![lane], since: now, arrived: false };
        self.flights.insert(job.key(), flight);
        Some(job)
    }

    /// A part that others owe, for a lane with nothing else to do: the one that was asked for first.
    pub(crate) fn steal(&mut self, lane: LaneId, now: Duration) -> Option<Job> {
        let flight = self.stealable(lane).min_by_key(|flight| flight.since)?;
        let (key, due) = (flight.job.key(), flight.since + OVERDUE);
        let flight = self.flights.get_mut(&key).filter(|_| due <= now)?;
        flight.lanes.push(lane);
        flight.since = now;
        Some(flight.job)
    }

    /// When there may be something to steal; `None` if only news can change that.
    pub(crate) fn next_steal(&self, lane: LaneId) -> Option<Duration> {
        self.stealable(lane).map(|flight| flight.since + OVERDUE).min()
    }

    fn stealable(&self, lane: LaneId) -> impl Iterator<Item = &Flight> {
        self.flights.values().filter(move |flight| !flight.arrived && !flight.lanes.contains(&lane))
    }

    /// A part is here and verified. Whether it is the first of its kind: only then it is put into its place.
    pub(crate) fn arrive(&mut self, job: &Job) -> bool {
        let flight = self.flights.get_mut(&job.key()).filter(|flight| !flight.arrived);
        flight.map(|flight| flight.arrived = true).is_some()
    }

    /// The part that has arrived is in its place; `below` are parts that it has shown to be missing.
    pub(crate) fn finish(&mut self, job: &Job, below: impl IntoIterator<Item = Job>) {
        self.flights.remove(&job.key());
        below.into_iter().for_each(|job| self.add(job));
    }

    /// A lane has ended: the parts that only it owed wait again, before all others.
    pub(crate) fn lose(&mut self, lane: LaneId) {
        let mut orphans = Vec::new();
        for flight in self.flights.values_mut().filter(|flight| !flight.arrived) {
            flight.lanes.retain(|one| *one != lane);
            if flight.lanes.is_empty() {
                orphans.push(flight.job);
            }
        }
        for job in orphans.into_iter().rev() {
            self.flights.remove(&job.key());
            match job.wanted.part {
                StatePart::Digests(_) => self.lists.push_front(job),
                StatePart::Mebibyte(_) => self.pieces.push_front(job),
            }
        }
    }
}

#[cfg(test)]
#[path = "schedule_tests.rs"]
mod tests;
