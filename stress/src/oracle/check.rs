//! Promises that are judged, and events that are counted.

use serde::{Deserialize, Serialize};

/// A broken promise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Violation {
    pub(crate) at_us: u64,
    pub(crate) check: Check,
    pub(crate) text: String,
}

/// Which promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Check {
    /// The result of a collective has the right bytes.
    Result,
    /// A failed call leaves buffers as they were.
    Intact,
    /// Equal state at each revision; revisions neither go back nor skip.
    Revision,
    /// Nobody who was never touched is dropped.
    Innocent,
    /// A verdict names what was done.
    Verdict,
    /// The run goes on.
    Progress,
    /// After a fault the run goes on about as fast as usual.
    Recovery,
    /// One master leads at a time.
    Leader,
    /// Processes end when and how they should, and say what they should.
    Process,
    /// Survivors do not grow.
    Growth,
    /// The run was disturbed at all.
    Faults,
}

impl Check {
    pub(crate) const ALL: [Self; 11] = [
        Self::Result,
        Self::Intact,
        Self::Revision,
        Self::Innocent,
        Self::Verdict,
        Self::Progress,
        Self::Recovery,
        Self::Leader,
        Self::Process,
        Self::Growth,
        Self::Faults,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Result => "result",
            Self::Intact => "intact",
            Self::Revision => "revision",
            Self::Innocent => "innocent",
            Self::Verdict => "verdict",
            Self::Progress => "progress",
            Self::Recovery => "recovery",
            Self::Leader => "leader",
            Self::Process => "process",
            Self::Growth => "growth",
            Self::Faults => "faults",
        }
    }
}

/// Work of the run, as counted from the reports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Counts {
    pub(crate) operations: u64,
    /// Those of them that went by pairwise exchange.
    pub(crate) pairwise_operations: u64,
    /// Those of them that were no all-reduces.
    pub(crate) other_operations: u64,
    /// Those of them that were segments, and the calls, of all peers together, of which not all segments had the same
    /// contributors.
    pub(crate) segments: u64,
    pub(crate) uneven_calls: u64,
    /// Successful calls of all peers together.
    pub(crate) completed_calls: u64,
    pub(crate) aborted_operations: u64,
    /// Failed calls of all peers together, each of which was tried again.
    pub(crate) failed_calls: u64,
    pub(crate) syncs: u64,
    /// Calls that optimised the ring, of all peers together.
    pub(crate) optimizations: u64,
    pub(crate) joins: u64,
    /// Those that held a whole state when they were let in, verified, and those of them whose first sync moved nothing.
    pub(crate) joins_ahead: u64,
    pub(crate) joins_unmoved: u64,
    /// Stopped peers that were dropped, and came back.
    pub(crate) drops: u64,
    /// Bytes of state that moved before peers were let in, and in syncs.
    pub(crate) ahead_bytes: u64,
    pub(crate) fetched_bytes: u64,
    pub(crate) newest_revision: u64,
}

impl Counts {
    /// Adds those of another run.
    pub(crate) fn add(&mut self, other: &Self) {
        self.operations += other.operations;
        self.pairwise_operations += other.pairwise_operations;
        self.other_operations += other.other_operations;
        self.segments += other.segments;
        self.uneven_calls += other.uneven_calls;
        self.completed_calls += other.completed_calls;
        self.aborted_operations += other.aborted_operations;
        self.failed_calls += other.failed_calls;
        self.syncs += other.syncs;
        self.optimizations += other.optimizations;
        self.joins += other.joins;
        self.joins_ahead += other.joins_ahead;
        self.joins_unmoved += other.joins_unmoved;
        self.drops += other.drops;
        self.ahead_bytes += other.ahead_bytes;
        self.fetched_bytes += other.fetched_bytes;
        self.newest_revision += other.newest_revision;
    }
}
