//! One attempt of a collective for which the master may name the ring or pairwise exchange. Both are prepared, so that
//! whichever it is can take frames that come before the news. Stages tell them apart.

use super::{
    attempt::Attempt,
    pairwise::{Pairwise, first_stage},
    progress::Progress,
};
use crate::session::backups::BackupPool;
use pccl_protocol::Algorithm;
use std::sync::{
    Arc,
    atomic::{AtomicU8, Ordering},
};
use tinysockets::link::{FrameHeader, Landing, Lent, LinkFault, Transfer, Violation};

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Large {
    ring: Arc<Attempt>,
    pairwise: Arc<Pairwise>,
    /// Code of the algorithm that the master has named, or that somebody's first frame shows.
    way: AtomicU8,
}

/// Calls the method of the attempt that a frame belongs to.
macro_rules! of_stage {
    ($large:expr, $header:expr, $attempt:ident => $call:expr) => {
        match $large.way_of($header) {
            Algorithm::Pairwise => {
                let $attempt = &$large.pairwise;
                $call
            }
            _ => {
                let $attempt = &$large.ring;
                $call
            }
        }
    };
}

impl Large {
    /// Of two attempts of the same operation.
    pub(crate) fn new(ring: Arc<Attempt>, pairwise: Arc<Pairwise>) -> Arc<Self> {
        Arc::new(Self { ring, pairwise, way: AtomicU8::new(Algorithm::Automatic.code()) })
    }

    /// Ranks that take part.
    pub(crate) fn ranks(&self) -> usize {
        self.ring.ranks()
    }

    /// Own rank.
    pub(crate) fn rank(&self) -> usize {
        self.ring.rank()
    }

    /// The way that it goes; [`Algorithm::Automatic`] as long as that is open.
    pub(crate) fn way(&self) -> Algorithm {
        Algorithm::from_code(self.way.load(Ordering::SeqCst)).unwrap_or(Algorithm::Automatic)
    }

    /// Notes the way. `false`: it goes another one.
    pub(crate) fn take_way(&self, way: Algorithm) -> bool {
        let open = Algorithm::Automatic.code();
        let taken = self.way.compare_exchange(open, way.code(), Ordering::SeqCst, Ordering::SeqCst);
        taken.is_ok() || taken == Err(way.code())
    }

    /// How far it is, by the way that it goes.
    pub(crate) fn progress(&self) -> &Progress {
        match self.way() {
            Algorithm::Pairwise => self.pairwise.progress(),
            _ => self.ring.progress(),
        }
    }

    /// As [`Attempt::prepare`].
    pub(crate) fn prepare(&self) {
        self.ring.prepare();
        self.pairwise.prepare();
    }

    /// Sends what this rank begins with.
    pub(crate) fn start(&self) {
        match self.way() {
            Algorithm::Pairwise => self.pairwise.start(),
            _ => self.ring.start(),
        }
    }

    /// Takes the caller's memory away from all threads.
    pub(crate) fn retract(&self) {
        self.ring.progress().retract();
        self.pairwise.progress().retract();
    }

    /// Ends the attempt on the caller's thread, as [`super::running::Running::conclude`].
    pub(crate) fn conclude(&self, keep: bool, pool: Option<&BackupPool>) -> Result<(), String> {
        let delivered = match self.way() {
            _ if !keep => Ok(()),
            Algorithm::Pairwise => self.pairwise.deliver(),
            _ => self.ring.deliver(),
        };
        self.retract();
        if let Some(pool) = pool {
            pool.give(self.ring.staging().clone());
            pool.give(self.pairwise.memory().clone());
        }
        if !keep {
            self.ring.restore();
        }
        delivered
    }

    fn way_of(&self, header: &FrameHeader) -> Algorithm {
        let is_ring = (header.stage as usize) < first_stage(self.ranks());
        if is_ring { Algorithm::Ring } else { Algorithm::Pairwise }
    }
}

impl Transfer for Large {
    fn admit(&self, header: &FrameHeader) -> Result<Landing, Violation> {
        let way = self.way_of(header);
        if !self.take_way(way) {
            let text = format!("{}: a frame by {way} of an attempt by {}", self.progress().id(), self.way());
            return Err(Violation { text });
        }
        of_stage!(self, header, attempt => attempt.admit(header))
    }

    fn fold(&self, header: &FrameHeader, done: usize, payload: &[u8]) -> bool {
        of_stage!(self, header, attempt => attempt.fold(header, done, payload))
    }

    fn granule_bytes(&self, header: &FrameHeader) -> usize {
        of_stage!(self, header, attempt => attempt.granule_bytes(header))
    }

    fn target(&self, header: &FrameHeader) -> (&Lent, usize) {
        of_stage!(self, header, attempt => attempt.target(header))
    }

    fn source(&self, header: &FrameHeader) -> (&Lent, usize) {
        of_stage!(self, header, attempt => attempt.source(header))
    }

    fn arrived(&self, header: &FrameHeader) {
        of_stage!(self, header, attempt => attempt.arrived(header));
    }

    fn corrupt(&self, header: &FrameHeader, peer: u128, generation: u64) {
        of_stage!(self, header, attempt => attempt.corrupt(header, peer, generation));
    }

    fn released(&self, header: &FrameHeader) {
        of_stage!(self, header, attempt => attempt.released(header));
    }

    fn link_failed(&self, fault: &LinkFault) {
        // Both report it to the operation, in the same words.
        self.ring.link_failed(fault);
    }
}
