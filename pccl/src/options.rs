//! Options of all-reduces.

use crate::SyncStrategy;
use pccl_protocol::Algorithm;
use pccl_quant::{ReduceOp, quantise::Quantisation};
use std::time::Duration;

/// How a large collective travels. All peers have to choose the same, or the vote fails with `MismatchedCall`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Schedule {
    /// The master chooses, by the rates that [`optimize_topology`](crate::Communicator::optimize_topology) has
    /// measured, and takes another one for what is small.
    #[default]
    Automatic,
    /// Around the ring, whatever the size.
    Ring,
    /// Pairwise exchange in groups of 3 to 8 peers, and in those of up to 32 whose members are all connected with each
    /// other because measured rates or named sites make it worth while, whatever the size: each rank sends every chunk
    /// to the rank that owns it, which folds what all have sent and sends the result to all. Over all pairs at once,
    /// and as many bytes per peer as around the ring, unless measured rates let peers with fast connections own more
    /// than others. A quantised tensor is quantised once for each contribution and once for the result, which is more
    /// accurate than the ring; but then the result depends a little on who owns what, and so on the rates. The
    /// operation waits for the connections of all pairs, but not longer than 2 s after the ring stands: then it goes
    /// around the ring. Other groups choose as if it were automatic. [`ReduceInfo::algorithm`] says what was taken.
    ///
    /// [`ReduceInfo::algorithm`]: crate::ReduceInfo::algorithm
    Pairwise,
    /// All-reduces in two levels over sites, in groups of 3 to 32 peers: sums of each site cross to the other sites,
    /// and each byte crosses between two sites once each way. Sites are named
    /// ([`Builder::site`](crate::Builder::site)), or found by measured rates and latencies. The order in
    /// which contributions are folded is fixed and the same on all peers, but not that of the ring. The operation waits
    /// for the connections of all pairs as pairwise exchange does. A quantised tensor is quantised between sites only,
    /// once for each crossing. Other collectives, and groups without sites, choose as if it were automatic.
    Sites,
}

impl Schedule {
    /// The algorithm that it asks for.
    pub fn algorithm(self) -> Algorithm {
        match self {
            Self::Automatic => Algorithm::Automatic,
            Self::Ring => Algorithm::Ring,
            Self::Pairwise => Algorithm::Pairwise,
            Self::Sites => Algorithm::Sites,
        }
    }
}

/// How to reduce one tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReduceOptions {
    /// The reduction.
    pub op: ReduceOp,
    /// Names the operation among those in flight: all peers use the same tag for the same operation. Default 0.
    pub tag: u64,
    /// How elements are quantised while they travel. Default: not at all.
    pub quantisation: Option<Quantisation>,
    /// How it travels. Default: automatic.
    pub schedule: Schedule,
    /// How long the call may block, or, of an asynchronous all-reduce, the wait for it. Then it is given up for all
    /// peers ([`Error::TimedOut`](crate::Error::TimedOut)). Default: the call time-out of the communicator.
    pub timeout: Option<Duration>,
}

impl ReduceOptions {
    /// A reduction with tag 0, of elements that travel as they are.
    pub fn new(op: ReduceOp) -> Self {
        Self { op, tag: 0, quantisation: None, schedule: Schedule::Automatic, timeout: None }
    }

    /// Sets the tag.
    pub fn tag(mut self, tag: u64) -> Self {
        self.tag = tag;
        self
    }

    /// Quantises elements while they travel: sums and averages of floats, the same way on all peers. Every peer gets
    /// the same bytes; how far they are off says `docs/quantisation.md`.
    pub fn quantisation(mut self, quantisation: impl Into<Quantisation>) -> Self {
        self.quantisation = Some(quantisation.into());
        self
    }

    /// Chooses how it travels.
    pub fn schedule(mut self, schedule: Schedule) -> Self {
        self.schedule = schedule;
        self
    }

    /// Sets how long it may be waited for.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }
}

impl From<ReduceOp> for ReduceOptions {
    fn from(op: ReduceOp) -> Self {
        Self::new(op)
    }
}

/// How to carry out a collective that has no reduction. `()` is the default, a tag is enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CollectiveOptions {
    /// Names the operation among those in flight: all peers use the same tag for the same operation. Default 0.
    pub tag: u64,
    /// How elements are quantised while they travel. Default: not at all.
    pub quantisation: Option<Quantisation>,
    /// How it travels. Default: automatic.
    pub schedule: Schedule,
    /// How long the call may block. Then it is given up for all peers ([`Error::TimedOut`](crate::Error::TimedOut)).
    /// Default: the call time-out of the communicator.
    pub timeout: Option<Duration>,
}

impl From<()> for CollectiveOptions {
    fn from((): ()) -> Self {
        Self::default()
    }
}

impl From<u64> for CollectiveOptions {
    fn from(tag: u64) -> Self {
        Self { tag, ..Self::default() }
    }
}

/// How to reduce many tensors in one operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ManyOptions {
    /// Names the operation among those in flight. Default 0.
    pub tag: u64,
    /// How often to try again after an abort, as long as there are at least two peers. Default: without limit.
    pub retries: u32,
    /// How the tensors travel. Default: automatic.
    pub schedule: Schedule,
    /// How long the call may block, all retries together. Then it is given up for all peers
    /// ([`Error::TimedOut`](crate::Error::TimedOut)). Default: the call time-out of the communicator.
    pub timeout: Option<Duration>,
}

impl Default for ManyOptions {
    fn default() -> Self {
        Self { tag: 0, retries: u32::MAX, schedule: Schedule::Automatic, timeout: None }
    }
}

/// How to launch one operation, which is not tried again by itself. `()` is the default, a tag is enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LaunchOptions {
    /// Names the operation among those in flight. Default 0.
    pub tag: u64,
    /// How the tensors travel. Default: automatic.
    pub schedule: Schedule,
    /// How long the wait for it may block. Then it is given up for all peers
    /// ([`Error::TimedOut`](crate::Error::TimedOut)). Default: the call time-out of the communicator.
    pub timeout: Option<Duration>,
}

impl From<()> for LaunchOptions {
    fn from((): ()) -> Self {
        Self::default()
    }
}

impl From<u64> for LaunchOptions {
    fn from(tag: u64) -> Self {
        Self { tag, ..Self::default() }
    }
}

impl From<CollectiveOptions> for LaunchOptions {
    fn from(options: CollectiveOptions) -> Self {
        Self { tag: options.tag, schedule: options.schedule, timeout: options.timeout }
    }
}

impl From<ReduceOptions> for LaunchOptions {
    fn from(options: ReduceOptions) -> Self {
        Self { tag: options.tag, schedule: options.schedule, timeout: options.timeout }
    }
}

impl From<ManyOptions> for LaunchOptions {
    fn from(options: ManyOptions) -> Self {
        Self { tag: options.tag, schedule: options.schedule, timeout: options.timeout }
    }
}

/// How to synchronise the shared state. A strategy is enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SyncOptions {
    /// Which part this peer takes.
    pub strategy: SyncStrategy,
    /// How long the call may block. Then it is given up for all peers ([`Error::TimedOut`](crate::Error::TimedOut)).
    /// Default: the call time-out of the communicator.
    pub timeout: Option<Duration>,
}

impl SyncOptions {
    /// Sets how long the call may block.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }
}

impl From<SyncStrategy> for SyncOptions {
    fn from(strategy: SyncStrategy) -> Self {
        Self { strategy, timeout: None }
    }
}
