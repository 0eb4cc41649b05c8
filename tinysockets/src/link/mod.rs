//! The data link: one neighbour of a ring, reached by several connections in the direction of flow.
//!
//! **Purpose.** An operation is cut into *frames*: a [`FrameHeader`] with the operation's identity, and up to 1 MiB of
//! payload. At the sending end an [`OutLink`] holds one queue from which all its connections' TX threads pull, so one
//! operation uses every connection, and a slow connection simply takes fewer frames. At the receiving end an [`InLink`]
//! has one RX thread per connection, which looks up the operation of each frame in a [`Directory`] and moves the
//! payload where its [`Transfer`] says: into the caller's memory, or piece by piece through a fold. The transfer knows
//! what a frame means, who sends it on, and when an operation is complete; the link knows none of it.
//!
//! **Guarantees.**
//! - Frames are independent and arrive in any order. A frame is given to one connection, once: a link never sends
//!   anything again. When one connection of a link breaks, the whole link is broken, and every transfer with a frame on
//!   it or in its queue is told ([`Transfer::link_failed`]).
//! - Each frame pushed is released ([`Transfer::released`]) exactly once, whatever happens.
//! - The caller's memory is touched under a pass of its [`Gate`] only, and no thread waits for anything while it holds
//!   one (see [`memory`]). After the gate is closed, a frame already begun is completed with zeros on the sending end
//!   and read into scratch memory on the receiving end, so the other operations on the link go on.
//! - RX threads never wait for TX threads, a queue, or a lock that is held during input or output. Idle threads sleep
//!   in the kernel; nothing polls or spins.
//!
//! **Limits.** Nothing is acknowledged: a frame is released when the operating system has taken it, and whether it
//! arrived is known by the operation's own means. Nothing is judged by the clock either: a peer that neither reads nor
//! hangs up is waited for until somebody calls `fail` or `close`; [`OutLink::backlog`] and [`InLink::busy`] help to
//! decide. The queue has no bound of its own and is served in order; operations bound what they push.
//!
//! **Callbacks** run on the link's threads, or on the thread that calls into the link. They must not block. They may
//! call [`OutLink::push`] and `close` of any link; on a thread of a link `close` does not wait for threads. A panic in
//! a callback breaks the link with [`FaultKind::Internal`] and goes no further.

mod ceiling;
mod core;
mod early;
pub mod frame;
mod gate;
pub mod incoming;
#[allow(unsafe_code)]
pub mod memory;
pub mod outgoing;
mod places;
mod queue;
mod scratch;
pub mod tuning;
mod work;

use std::{fmt, sync::Arc};

pub use early::{EarlyFrame, MAX_EARLY_FRAME_BYTES};
pub use frame::{FLAG_CHECKSUM, FLAG_EARLY, FRAME_HEADER_BYTES, FrameHeader, MAX_FRAME_BYTES, OpKey};
pub use incoming::{InConfig, InLink};
pub use memory::{Gate, Lent, Origin, Pass, Place};
pub use outgoing::{Backlog, OutConfig, OutLink};
pub use tuning::{LONG_PATH, MAX_AUTOMATIC_CONNECTIONS, ROUND_TRIP_PER_CONNECTION, Tuned, tune_data_socket};
pub use work::gets_on;

/// Finds the transfer that a received frame belongs to. One object per [`InLink`].
pub trait Directory: Send + Sync {
    /// Looks up the operation of a frame. Called once per frame; must not block.
    fn find(&self, op: &OpKey) -> Lookup;

    /// Takes an early frame whose operation was [`Lookup::Unknown`] a moment ago: hands it over, keeps it until the
    /// operation is announced, or throws it away. Must not block.
    ///
    /// # Errors
    /// The peer has sent what it must not send: the link is broken.
    fn keep(&self, frame: EarlyFrame) -> Result<(), Violation>;
}

/// The state of an operation that a [`Directory`] knows.
pub enum Lookup {
    /// It is under way.
    Active(Arc<dyn Transfer>),
    /// It is over; its frames are read and thrown away.
    Retired,
    /// It was never announced. If the frame is not an early one, the peer is out of step: the link is broken.
    Unknown,
}

impl fmt::Debug for Lookup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Active(_) => "Active",
            Self::Retired => "Retired",
            Self::Unknown => "Unknown",
        })
    }
}

/// The treatment of the payload of an admitted frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Landing {
    /// Receive it piecewise into scratch memory and hand the pieces to [`Transfer::fold`].
    Fold,
    /// Receive it straight into [`Transfer::target`].
    Direct,
    /// Read it and throw it away.
    Discard,
}

/// Why a frame was not admitted: it is a duplicate, or not part of the plan. Breaks the link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The fault of the frame, for the log.
    pub text: String,
}

/// One operation, as the links see it: where payloads come from and go to.
///
/// All methods may be called from several threads at once, for different frames. None may block, nor hold a lock while
/// it calls into a link.
pub trait Transfer: Send + Sync {
    /// A frame begins to arrive. Books it, once per frame, and says where its payload goes.
    fn admit(&self, header: &FrameHeader) -> Result<Landing, Violation>;

    /// The next piece of a [`Landing::Fold`] frame: the payload from byte `done` on. Pieces are whole elements
    /// ([`granule_bytes`](Self::granule_bytes)), come in order, and begin at an address divisible by 64 unless they lie
    /// in a record or in shared memory. `false` says that the operation has stopped: the rest is thrown away, and
    /// neither `arrived` nor `corrupt` will follow.
    ///
    /// With a checksum, pieces are folded before it is known to be good.
    fn fold(&self, header: &FrameHeader, done: usize, payload: &[u8]) -> bool;

    /// Size of one element in bytes: at least 1, at most 4,096. A [`Landing::Fold`] frame whose length is not a
    /// multiple of it breaks the link.
    fn granule_bytes(&self, header: &FrameHeader) -> usize;

    /// Where the payload of a [`Landing::Direct`] frame goes, from byte `done` of it on: as far as that lies together,
    /// at least one byte, and not beyond the end of the payload.
    fn target(&self, header: &FrameHeader, done: usize) -> Place<'_>;

    /// Where the payload of a frame to be sent comes from, in the same way. Asked several times, with the same answer.
    fn source(&self, header: &FrameHeader, done: usize) -> Place<'_>;

    /// The payload of an admitted frame is where it belongs, and its checksum is good if it has one.
    fn arrived(&self, header: &FrameHeader);

    /// The payload of an admitted frame was damaged on its way from `peer`, over the link of this generation. The
    /// attempt is lost, the link is not.
    fn corrupt(&self, header: &FrameHeader, peer: u128, generation: u64);

    /// The sending link is done with a pushed frame: it was sent, filled up because the gate was closed, or dropped
    /// because the link ended. Exactly once per frame pushed.
    fn released(&self, header: &FrameHeader);

    /// The link ended while a frame of this transfer was being received, being sent, or queued, or before it was
    /// pushed. Such a frame did not arrive whole. May be called several times; comes before `released` of the frames
    /// concerned. With [`FaultKind::Closed`] this side has closed the link itself.
    fn link_failed(&self, fault: &LinkFault);
}

/// A frame to be sent. Its payload comes from [`Transfer::source`]; flag and checksum are filled in by the link.
pub struct Outgoing {
    /// The operation that the frame belongs to.
    pub transfer: Arc<dyn Transfer>,
    /// Which frame.
    pub header: FrameHeader,
}

impl fmt::Debug for Outgoing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outgoing").field("header", &self.header).finish_non_exhaustive()
    }
}

/// Hears of the end of a link.
pub trait LinkEvents: Send + Sync {
    /// The link is broken. Called once per link, with the first fault, and not at all if the link was closed by this
    /// side before. Must not block; may close the link.
    fn broken(&self, fault: &LinkFault);
}

/// Which end of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// The receiving end.
    In,
    /// The sending end.
    Out,
}

/// The kind of fault that broke a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FaultKind {
    /// The peer closed the connection.
    Eof,
    /// The operating system reported an error.
    Io,
    /// The peer sent what it must not send.
    Violation,
    /// No byte moved for too long. The link does not judge this itself, see [`OutLink::fail`].
    Stalled,
    /// It was lost while nothing was under way on it, as where a firewall has forgotten it.
    Forgotten,
    /// This side closed the link. Not reported to [`LinkEvents`].
    Closed,
    /// A defect on this side: a callback panicked, or named memory that is out of bounds.
    Internal,
}

/// Why a link is broken, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkFault {
    /// Which end of the link this is.
    pub direction: Direction,
    /// The peer at the other end.
    pub peer: u128,
    /// The generation of the link, as given at its start.
    pub generation: u64,
    /// Index of the connection where the fault occurred.
    pub connection: u16,
    /// The kind of fault that broke it.
    pub kind: FaultKind,
    /// The description of the fault, for the log and the verdict.
    pub text: String,
}

/// The remark about a connection that was lost after nothing had been said on it for so long.
#[must_use]
pub fn after_rest(rest: std::time::Duration) -> String {
    let s = rest.as_secs();
    format!("it had been idle for {s} s before; does a firewall on the way forget idle connections?")
}

impl fmt::Display for LinkFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = match self.direction {
            Direction::In => "link from",
            Direction::Out => "link to",
        };
        let Self { peer, generation, connection, text, .. } = self;
        write!(f, "{end} peer {peer:032x} (generation {generation}, connection {connection}): {text}")
    }
}

impl std::error::Error for LinkFault {}
