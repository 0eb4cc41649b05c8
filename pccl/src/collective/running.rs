//! The ways in which an attempt can run, as the operation sees them.

use super::{attempt::Attempt, calls::Place, exchange::Exchange, large::Large, progress::Progress};
use crate::{memory::Backup, session::backups::BackupPool};
use pccl_protocol::{Algorithm, OpId};
use std::sync::Arc;
use tinysockets::link::Transfer;

/// One attempt of one collective.
#[derive(Debug, Clone)]
pub(crate) enum Running {
    /// On the pipelined ring, in the caller's memory.
    Ring(Arc<Attempt>),
    /// By exchange of all contributions, around the ring or directly, in memory of our own.
    AllGather(Arc<Exchange>),
    /// On the pipelined ring or by pairwise exchange.
    Large(Arc<Large>),
}

/// Calls the method of either.
macro_rules! either {
    ($running:expr, $attempt:ident => $call:expr) => {
        match $running {
            Running::Ring($attempt) => $call,
            Running::AllGather($attempt) => $call,
            Running::Large($attempt) => $call,
        }
    };
}

impl Running {
    /// Notes the algorithm that the master named. `false`: that is not what has been prepared, or what others do.
    pub(crate) fn take_way(&self, algorithm: Algorithm) -> bool {
        match self {
            Self::Ring(_) => algorithm == Algorithm::Ring,
            Self::AllGather(exchange) => exchange.take_way(algorithm),
            Self::Large(large) => {
                matches!(algorithm, Algorithm::Ring | Algorithm::Pairwise) && large.take_way(algorithm)
            }
        }
    }

    /// The algorithm by which it goes; [`Algorithm::Automatic`] as long as that is open.
    pub(crate) fn way(&self) -> Algorithm {
        match self {
            Self::Ring(_) => Algorithm::Ring,
            Self::AllGather(exchange) => exchange.way(),
            Self::Large(large) => large.way(),
        }
    }

    /// As the links see it.
    pub(crate) fn transfer(&self) -> Arc<dyn Transfer> {
        either!(self, attempt => attempt.clone())
    }

    fn progress(&self) -> &Progress {
        either!(self, attempt => attempt.progress())
    }

    /// Identity of the attempt.
    pub(crate) fn id(&self) -> OpId {
        self.progress().id()
    }

    /// Own rank and number of ranks.
    pub(crate) fn place(&self) -> Place {
        either!(self, attempt => Place { rank: attempt.rank(), ranks: attempt.ranks() })
    }

    /// Whether this rank holds everything that the result takes.
    pub(crate) fn has_received_all(&self) -> bool {
        match self {
            // Another rank may fold on its behalf.
            Self::AllGather(exchange) => exchange.has_received_all(),
            Self::Ring(_) | Self::Large(_) => self.progress().has_received_all(),
        }
    }

    /// Whether the links have let go of everything that this rank sends.
    pub(crate) fn has_released_all(&self) -> bool {
        self.progress().has_released_all()
    }

    /// Payload bytes sent and received so far.
    pub(crate) fn traffic(&self) -> (u64, u64) {
        self.progress().traffic()
    }

    /// Does what can be done before the others have voted. Once, before the own vote.
    pub(crate) fn prepare(&self) {
        match self {
            Self::Ring(attempt) => attempt.prepare(),
            Self::AllGather(_) => {}
            Self::Large(large) => large.prepare(),
        }
    }

    /// Sends what this rank begins with. After [`Running::take_way`].
    pub(crate) fn start(&self) {
        either!(self, attempt => attempt.start());
    }

    /// Takes the caller's memory away from all threads; returns when none of them touches it any more.
    pub(crate) fn retract(&self) {
        match self {
            Self::Ring(_) | Self::AllGather(_) => self.progress().retract(),
            Self::Large(large) => large.retract(),
        }
    }

    /// Ends an attempt on the caller's thread: in the caller's memory is the result if `keep`, and what was there
    /// before if not. Memory of our own goes back to `pool`. The error is a defect of this library.
    pub(crate) fn conclude(&self, keep: bool, pool: Option<&BackupPool>) -> Result<(), String> {
        match self {
            Self::Ring(attempt) => {
                let delivered = if keep { attempt.deliver() } else { Ok(()) };
                attempt.progress().retract();
                if let Some(pool) = pool {
                    pool.give(attempt.staging().clone());
                }
                if !keep {
                    attempt.restore();
                }
                delivered
            }
            Self::AllGather(exchange) => {
                let delivered = if keep { exchange.deliver() } else { Ok(()) };
                exchange.progress().retract();
                let memory: Arc<Backup> = exchange.memory();
                if let Some(pool) = pool {
                    pool.give(memory);
                }
                delivered
            }
            Self::Large(large) => large.conclude(keep, pool),
        }
    }
}
