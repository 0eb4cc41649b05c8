//! One recorded event: a kind and a few optional facts, all of fixed size but for a rare text.

use pccl_protocol::{
    Cause, GroupEpoch, LinkGeneration, OpId, Operation, PartDescriptor, PeerId, RequestId, SyncId, Verdict,
    WorldEpoch,
};
use std::{borrow::Cow, fmt};

/// A fieldless enum whose variants have names in files.
macro_rules! named {
    ($(#[$meta:meta])* pub enum $name:ident {
        $($(#[$variant_meta:meta])* $variant:ident = $text:literal),* $(,)?
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$variant_meta])* $variant),* }

        impl $name {
            /// Every variant.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// Name in files.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text),* }
            }

            /// The variant with this name.
            pub fn from_name(name: &str) -> Option<Self> {
                match name { $($text => Some(Self::$variant),)* _ => None }
            }
        }
    };
}
pub(super) use named;

named! {
    /// The kind of an event. `name`, `peer` and so on are the fields of [`Event`].
    pub enum What {
        /// A packet `name` was sent: to the master, or by the master to `peer`.
        Sent = "sent",
        /// A packet `name` arrived: from the master, or at the master from `peer`.
        Received = "received",
        /// A peer begins to connect; the text is the master's address.
        SessionBegan = "session-began",
        /// The master gave this peer the identity `peer`; the text is the run.
        Registered = "registered",
        /// The session is over: `name` is `closed`, `kicked` or `master-lost`.
        SessionEnded = "session-ended",
        /// The caller entered the call `name`.
        CallBegan = "call-began",
        /// The call `name` returned.
        CallEnded = "call-ended",
        /// A collective `name` was launched: `count` tensors of `bytes` together, the first of them is `part`.
        OpLaunched = "op-launched",
        /// This peer votes to begin.
        OpVoted = "op-voted",
        /// This peer sends what it contributes, before all have voted; `name` is the algorithm.
        OpBeganEarly = "op-began-early",
        /// All have voted, data moves; `name` is the algorithm.
        OpCommenced = "op-commenced",
        /// Everything of the result is here; `bytes` were moved.
        OpReceivedAll = "op-received-all",
        /// This peer cannot complete; `name` says how.
        OpFault = "op-fault",
        /// The outcome for all is known: `name` is `done` or `aborted`.
        OpDecided = "op-decided",
        /// In-place buffers are as before the operation.
        OpRestored = "op-restored",
        /// The call has its result `name`; `bytes` were moved.
        OpResult = "op-result",
        /// A new ring of `count` members.
        RingPlanned = "ring-planned",
        /// Both edges of this peer stand.
        RingConfirmed = "ring-confirmed",
        /// The edge from `peer` to `other` could not be built or broke.
        EdgeFault = "edge-fault",
        /// The link to (`name` is `out`) or from (`in`) `peer` broke.
        LinkBroken = "link-broken",
        /// This peer votes to begin a sync of `count` tensors; `name` is its strategy.
        SyncVoted = "sync-voted",
        /// The election is over: `count` tensors are to be fetched.
        SyncPlanned = "sync-planned",
        /// `bytes` were fetched.
        SyncFetched = "sync-fetched",
        /// The sync has its result `name`; `bytes` were fetched.
        SyncResult = "sync-result",
        /// A verdict: `cause`, culprits `peer` and `other`, operation, `bytes` moved; the text is the whole line.
        Verdict = "verdict",
        /// At the master: `peer` registered; the text is its host, `count` its group.
        PeerRegistered = "peer-registered",
        /// At the master: `peer` is a full member.
        PeerAccepted = "peer-accepted",
        /// At the master: the connection of `peer` ended.
        PeerLost = "peer-lost",
        /// At the master: `peer` is dropped; `name` is the kind of the reason.
        PeerKicked = "peer-kicked",
        /// At the master: `peer` left on purpose.
        PeerLeft = "peer-left",
        /// A master began; the text is the address that it listens on.
        MasterBegan = "master-began",
        /// A master ended.
        MasterEnded = "master-ended",
        /// The process itself stood still; `count` is for how many milliseconds.
        StoodStill = "stood-still",
        /// Anything else worth a line.
        Note = "note",
    }
}

/// The attempt, request or other thing that an event belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// An attempt of a collective.
    Op(OpId),
    /// A collective that has not voted yet, by its tag.
    Tag(u64),
    /// A ring, by the epoch of its group.
    Epoch(GroupEpoch),
    /// A state of the world.
    World(WorldEpoch),
    /// A request of one peer.
    Request(RequestId),
    /// A sync.
    Sync(SyncId),
    /// A beat, by its sequence number.
    Beat(u64),
    /// The connections of an edge.
    Edge(LinkGeneration),
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Op(id) => write!(f, "{id}"),
            Self::Tag(tag) => write!(f, "tag {tag}"),
            Self::Epoch(epoch) => write!(f, "epoch {epoch}"),
            Self::World(epoch) => write!(f, "world epoch {epoch}"),
            Self::Request(id) => write!(f, "request {id}"),
            Self::Sync(id) => write!(f, "sync {id}"),
            Self::Beat(sequence) => write!(f, "beat {sequence}"),
            Self::Edge(generation) => write!(f, "generation {generation}"),
        }
    }
}

/// Where an event is kept: frequent ones never push rare ones out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lane {
    /// Operations and the packets that belong to them.
    Busy,
    /// Signs of life.
    Beats,
    /// Everything else.
    Rare,
}

/// One event. Which fields are set depends on [`What`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The kind of the event.
    pub what: What,
    /// Name of a packet, a call, or a result.
    pub name: Option<Cow<'static, str>>,
    /// The peer that it is about.
    pub peer: Option<PeerId>,
    /// A second peer.
    pub other: Option<PeerId>,
    /// The subject that it belongs to.
    pub subject: Option<Subject>,
    /// First cause, of a verdict.
    pub cause: Option<Cause>,
    /// A number of things; see [`What`].
    pub count: Option<u64>,
    /// A number of bytes.
    pub bytes: Option<u64>,
    /// First tensor of an operation.
    pub part: Option<PartDescriptor>,
    /// Details in words; only for rare events.
    pub text: Option<Box<str>>,
}

impl Event {
    /// An event without any facts.
    pub const fn new(what: What) -> Self {
        Self {
            what,
            name: None,
            peer: None,
            other: None,
            subject: None,
            cause: None,
            count: None,
            bytes: None,
            part: None,
            text: None,
        }
    }

    /// The event of a verdict.
    pub fn verdict(verdict: &Verdict) -> Self {
        let culprit = |index: usize| verdict.culprits.get(index).map(|culprit| culprit.peer);
        let subject = match verdict.operation {
            Operation::Collective(id) => Some(Subject::Op(id.op)),
            Operation::Sync(id) => Some(Subject::Sync(id)),
            // The text names whatever else there may be.
            _ => None,
        };
        Self {
            subject,
            peer: culprit(0),
            other: culprit(1),
            cause: Some(verdict.cause),
            bytes: Some(verdict.bytes_done),
            ..Self::new(What::Verdict).text(verdict.to_string())
        }
    }

    /// With a name.
    pub fn named(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// About a peer.
    pub const fn peer(mut self, peer: PeerId) -> Self {
        self.peer = Some(peer);
        self
    }

    /// With a second peer.
    pub const fn other(mut self, other: PeerId) -> Self {
        self.other = Some(other);
        self
    }

    /// About an operation, a ring, and so on.
    pub const fn about(mut self, subject: Subject) -> Self {
        self.subject = Some(subject);
        self
    }

    /// With a number of things.
    pub const fn count(mut self, count: u64) -> Self {
        self.count = Some(count);
        self
    }

    /// With a number of bytes.
    pub const fn bytes(mut self, bytes: u64) -> Self {
        self.bytes = Some(bytes);
        self
    }

    /// With words. Allocates: for rare events only.
    pub fn text(mut self, text: impl Into<Box<str>>) -> Self {
        self.text = Some(text.into());
        self
    }

    pub(super) fn lane(&self) -> Lane {
        match (self.what, self.subject) {
            (What::Sent | What::Received, Some(Subject::Beat(_))) => Lane::Beats,
            (What::Sent | What::Received, Some(Subject::Op(_) | Subject::Request(_) | Subject::Sync(_))) => {
                Lane::Busy
            }
            (
                What::OpLaunched
                | What::OpVoted
                | What::OpBeganEarly
                | What::OpCommenced
                | What::OpReceivedAll
                | What::OpDecided
                | What::OpResult
                | What::CallBegan
                | What::CallEnded
                | What::SyncVoted
                | What::SyncPlanned
                | What::SyncFetched
                | What::SyncResult,
                _,
            ) => Lane::Busy,
            _ => Lane::Rare,
        }
    }

    /// A sign of life or its echo.
    pub fn is_beat(&self) -> bool {
        self.lane() == Lane::Beats
    }
}

/// An event in its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Counts the events of one recorder.
    pub sequence: u64,
    /// Microseconds since the recorder began, by a clock that never goes back.
    pub at_us: u64,
    /// The event.
    pub event: Event,
}
