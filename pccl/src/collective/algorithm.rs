//! The algorithm by which an attempt goes, and the engine for it, as the operation sees them.

use super::{
    attempt::Attempt,
    calls::Place,
    exchange::{Exchange, exchange_bytes},
    pairwise::{Pairwise, pairwise_bytes},
    progress::{AttemptOwner, Progress},
    table::Slot,
};
use crate::{
    backups::BackupPool,
    memory::{Backup, RawTensor},
};
use pccl_protocol::{Algorithm, CollectiveKind, Descriptor, OpId};
use pccl_schedule::{FRAME_BYTES, Ownership, Plan, Shape, frame_bytes};
use std::sync::{Arc, Weak};
use tinysockets::link::Transfer;

/// One attempt of one collective.
#[derive(Debug, Clone)]
pub(crate) enum Running {
    /// On the pipelined ring.
    Ring(Arc<Attempt>),
    /// By exchange of all contributions, around the ring or directly, in memory of our own.
    Small(Arc<Exchange>),
    /// Over the mesh, each chunk by way of its owner, over sites by way of their owners.
    Pairwise(Arc<Pairwise>),
}

/// Calls the method of either.
macro_rules! either {
    ($running:expr, $attempt:ident => $call:expr) => {
        match $running {
            Running::Ring($attempt) => $call,
            Running::Small($attempt) => $call,
            Running::Pairwise($attempt) => $call,
        }
    };
}

impl Running {
    /// An attempt of this rank in the present ring, with the backup of its operation and further memory of the pool.
    /// Without a shape its members cannot carry it out, and it only gets its verdict.
    pub(crate) fn new(
        slot: &Slot,
        shape: Option<&Shape>,
        (descriptor, raws): (&Descriptor, &[RawTensor]),
        (pool, backup): (&BackupPool, &Arc<Backup>),
        owner: Weak<dyn AttemptOwner>,
    ) -> Self {
        let Some(shape) = shape else {
            let plan = Plan::new(&[], &Shape::all_reduce(slot.ring.len()), slot.rank, FRAME_BYTES);
            let idle = Attempt::new(slot.id, plan, descriptor, &[], backup.clone(), pool.take(0), owner);
            return Self::Ring(idle);
        };
        match descriptor.algorithm_for(slot.ring.len(), slot.paths) {
            algorithm @ (Algorithm::AllGather | Algorithm::Direct | Algorithm::ReduceBroadcast) => {
                let memory = pool.take(exchange_bytes(descriptor, slot.ring.len()));
                let place = (slot.ring.len(), slot.rank, algorithm);
                Self::Small(Exchange::new(slot.id, place, descriptor, raws, (memory, backup), owner))
            }
            algorithm @ (Algorithm::Pairwise | Algorithm::Sites) => {
                // Only what can be cut anywhere can be owned by anybody.
                let is_all_reduce = descriptor.kind() == CollectiveKind::AllReduce;
                let shares: &[u16] = if is_all_reduce { &slot.shares } else { &[] };
                let frame_bytes = frame_bytes(descriptor, slot.ring.len(), algorithm, shares);
                let plan = Plan::new(&descriptor.parts, shape, slot.rank, frame_bytes);
                let ownership = match algorithm {
                    Algorithm::Sites => Ownership::over_sites(&plan, &slot.sites),
                    _ => Ownership::new(&plan, shares),
                };
                let room = (pool.take(pairwise_bytes(&plan, &ownership, raws)), backup.clone());
                Self::Pairwise(Pairwise::new(slot.id, (plan, ownership), descriptor, raws, room, owner))
            }
            _ => {
                let plan = Plan::new(&descriptor.parts, shape, slot.rank, FRAME_BYTES);
                let staging = pool.take(plan.all_encoded_bytes());
                Self::Ring(Attempt::new(slot.id, plan, descriptor, raws, backup.clone(), staging, owner))
            }
        }
    }

    /// The algorithm by which it goes.
    pub(crate) fn algorithm(&self) -> Algorithm {
        match self {
            Self::Ring(_) => Algorithm::Ring,
            Self::Small(exchange) => exchange.algorithm(),
            Self::Pairwise(attempt) => attempt.algorithm(),
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
            // Others may do its part.
            Self::Small(exchange) => exchange.has_received_all(),
            Self::Ring(_) | Self::Pairwise(_) => self.progress().has_received_all(),
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
            Self::Small(_) => {}
            Self::Pairwise(attempt) => attempt.prepare(),
        }
    }

    /// Sends what this rank begins with. After [`Running::prepare`].
    pub(crate) fn start(&self) {
        either!(self, attempt => attempt.start());
    }

    /// Takes the caller's memory away from all threads; returns when none of them touches it any more.
    pub(crate) fn retract(&self) {
        self.progress().retract();
    }

    /// Ends an attempt on the caller's thread: in the caller's memory is the result if `keep`, and what was there
    /// before if not. Memory of our own goes back to `pool`. The error is a defect of this library.
    pub(crate) fn conclude(&self, keep: bool, pool: &BackupPool) -> Result<(), String> {
        let delivered = if keep { either!(self, attempt => attempt.deliver()) } else { Ok(()) };
        self.retract();
        let memory: Arc<Backup> = match self {
            Self::Ring(attempt) => attempt.staging().clone(),
            Self::Small(attempt) => attempt.memory(),
            Self::Pairwise(attempt) => attempt.memory().clone(),
        };
        pool.give(memory);
        // The others have only read it until now.
        if let (Self::Ring(attempt), false) = (self, keep) {
            attempt.restore();
        }
        delivered
    }
}
