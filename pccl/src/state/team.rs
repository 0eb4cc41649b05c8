//! The state that the lanes of one fetch share: the schedule, what became of each source, and which lanes are to be
//! started.

use super::schedule::{Job, LaneId, Schedule};
use pccl_protocol::{SourceFault, StatePart};
use std::{io, time::Duration};
use tinysockets::dial::DialError;

/// Waiting parts for which one more source is asked.
const PARTS_PER_SOURCE: usize = 8;
/// Waiting parts for which one more connection to a source pays.
const PARTS_PER_SPARE: usize = 8;
/// When nothing has moved for this long, one more source is asked.
pub(super) const HEDGE: Duration = Duration::from_millis(500);

/// How a source failed.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) kind: SourceFault,
    pub(super) text: String,
    /// The connection stood and broke, which is worth another one.
    pub(super) broke: bool,
}

impl Fault {
    pub(super) fn lost(error: io::Error) -> Self {
        let broke = error.kind() != io::ErrorKind::TimedOut;
        Self { kind: SourceFault::Unreached, text: error.to_string(), broke }
    }

    pub(super) fn refused(text: impl ToString) -> Self {
        Self { kind: SourceFault::Refused, text: text.to_string(), broke: false }
    }

    pub(super) fn unreached(text: impl ToString) -> Self {
        Self { kind: SourceFault::Unreached, text: text.to_string(), broke: false }
    }

    /// A connection that ends before it is proven has stood and broken, as it would have a moment later.
    pub(super) fn undialed(error: &DialError) -> Self {
        let broke = matches!(error.principal(), DialError::NoAnswer { .. });
        Self { broke, ..Self::unreached(error) }
    }
}

/// Why no lane goes on.
#[derive(Debug)]
pub(super) enum Over {
    /// Everything is here.
    Done,
    /// A newcomer's tensor has another length than at a source.
    Misfit(String),
    /// Something is missing; with the error of this machine, if that is why.
    Failed(String, Option<io::Error>),
}

/// One source.
#[derive(Debug, Default)]
pub(super) struct Source {
    /// Lanes to it.
    pub(super) running: usize,
    /// When it was first asked.
    pub(super) since: Option<Duration>,
    /// Connections that its path is worth, once one stands.
    pub(super) worth: usize,
    /// Connections that broke since it last gave something.
    breaks: u32,
    pub(super) gave_bytes: u64,
    pub(super) fault: Option<Fault>,
}

/// A lane that is to be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Start {
    pub(super) lane: LaneId,
    pub(super) source: usize,
    /// Number of the connection; those but the first only make the transfer faster.
    pub(super) index: u16,
}

/// See the module's documentation. Times count from the beginning of the fetch.
#[derive(Debug, Default)]
pub(super) struct Board {
    pub(super) schedule: Schedule,
    pub(super) sources: Vec<Source>,
    pub(super) over: Option<Over>,
    pub(super) done_bytes: u64,
    pub(super) total_bytes: u64,
    /// The pieces that are in their places: tensor and number.
    pub(super) placed: Vec<(usize, u64)>,
    /// When something last arrived.
    moved_at: Duration,
    last_lane: LaneId,
}

impl Board {
    /// A fetch from this number of sources.
    pub(super) fn new(sources: usize) -> Self {
        let mut board = Self::default();
        board.sources.resize_with(sources, Source::default);
        board
    }

    /// Lanes that run.
    pub(super) fn running(&self) -> usize {
        self.sources.iter().map(|source| source.running).sum()
    }

    /// Sources that have lanes.
    pub(super) fn giving(&self) -> usize {
        self.sources.iter().filter(|source| source.running > 0).count()
    }

    /// The lanes that are to be started now, at most as many as make `most` with those that run: as many sources as
    /// there is work for, in the order of the plan, one more for each while in which nothing has moved, and further
    /// connections to those that have one.
    pub(super) fn start(&mut self, now: Duration, most: usize) -> Vec<Start> {
        let work = self.schedule.waiting();
        let idle = now.saturating_sub(self.moved_at).as_millis() / HEDGE.as_millis();
        let in_use = 1 + work / PARTS_PER_SOURCE + usize::try_from(idle).unwrap_or(usize::MAX - work);
        let mut room = most.saturating_sub(self.running());
        let mut starts = Vec::new();
        let mut used = 0;
        let mut running = self.running();
        for (number, source) in self.sources.iter_mut().enumerate().filter(|(_, one)| one.fault.is_none()) {
            if used >= in_use && source.since.is_none() {
                continue;
            }
            used += 1;
            while room > 0 {
                let spare = source.running < source.worth && work > running * PARTS_PER_SPARE;
                if source.running > 0 && !spare {
                    break;
                }
                self.last_lane += 1;
                let index = u16::try_from(source.running).unwrap_or(u16::MAX);
                starts.push(Start { lane: self.last_lane, source: number, index });
                source.since.get_or_insert(now);
                source.running += 1;
                running += 1;
                room -= 1;
            }
        }
        starts
    }

    /// A part has arrived, is verified and in its place.
    pub(super) fn finish(
        &mut self,
        source: usize,
        job: &Job,
        below: Vec<(Job, usize)>,
        bytes: usize,
        now: Duration,
    ) {
        self.moved_at = now;
        self.sources[source].breaks = 0;
        self.sources[source].gave_bytes += bytes as u64;
        if let StatePart::Mebibyte(number) = job.wanted.part {
            self.done_bytes += bytes as u64;
            self.placed.push((job.tensor, number));
        }
        for (job, bytes) in &below {
            self.expect(job, *bytes);
        }
        self.schedule.finish(job, below.into_iter().map(|(job, _)| job));
        if self.schedule.is_done() && self.over.is_none() {
            self.over = Some(Over::Done);
        }
    }

    /// A part of this number of bytes is going to be fetched.
    pub(super) fn expect(&mut self, job: &Job, bytes: usize) {
        if matches!(job.wanted.part, StatePart::Mebibyte(_)) {
            self.total_bytes += bytes as u64;
        }
    }

    /// A lane has ended, which has or has not got a part that was right. Whether its source is left out from now on.
    pub(super) fn lane_ended(&mut self, start: Start, got: bool, result: Result<(), Fault>) -> bool {
        self.schedule.lose(start.lane);
        let source = &mut self.sources[start.source];
        source.running -= 1;
        let Err(fault) = result else { return false };
        if self.over.is_some() || source.fault.is_some() {
            return false;
        }
        // A source that serves many refuses connections that only make a transfer faster.
        if start.index > 0 && !got && fault.kind == SourceFault::Unreached {
            source.worth = source.running;
            return false;
        }
        // Two lanes may get something, and break together: each has shown that the source gives.
        if fault.broke && (got || source.breaks == 0) {
            source.breaks = 1;
            return false;
        }
        source.fault = Some(fault);
        true
    }

    /// Whether nobody is left who could give what is missing.
    pub(super) fn is_lost(&self) -> bool {
        self.sources.iter().all(|source| source.fault.is_some())
    }
}

#[cfg(test)]
#[path = "team_tests.rs"]
mod tests;
