//! The values that go into and come out of the state machine.

use core::net::IpAddr;
use pccl_planner::{Answer, Job};
use pccl_protocol::{
    C2m, GroupId, KickReason, M2c, Name, PeerId, ReachTarget, RelayOffer, Revision, RunId, WireMode, limits,
};
use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;
use tinysockets::key::SecretKey;

/// A point in time, in microseconds since the caller of the state machine started. The state machine has no clock.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, serde::Serialize, serde::Deserialize,
)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// The instant `millis` milliseconds after the origin.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1000))
    }

    /// Milliseconds since the origin.
    pub const fn millis(self) -> u64 {
        self.0 / 1000
    }

    /// Microseconds since the origin.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Time from `earlier` to `self`; zero if `earlier` is later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Timestamp {
    type Output = Self;

    fn add(self, rhs: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(rhs.as_micros()).unwrap_or(u64::MAX)))
    }
}

impl Sub for Timestamp {
    type Output = Duration;

    fn sub(self, rhs: Self) -> Duration {
        self.since(rhs)
    }
}

/// One control connection. The event loop gives the numbers and never uses one twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct ClientKey(pub u64);

impl fmt::Display for ClientKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client {}", self.0)
    }
}

/// Names a plan. Never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct PlanKey(pub u64);

/// Where the state machine takes its random identities from.
pub trait IdSource {
    /// A peer identity that was never given before: the `nth` that is asked for, counted from 0.
    fn peer_id(&mut self, nth: u64) -> PeerId;
}

/// Settings of a run. Where they are kept, what follows from its secret, and from the machine of its master, is not.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Options {
    /// Identity of the run.
    pub run: RunId,
    /// A registered client that is silent for this long is dropped.
    pub peer_timeout: Duration,
    /// Peers are told to send a beat this often.
    pub beat_interval: Duration,
    /// Time for a connection to register.
    pub registration_timeout: Duration,
    /// Time for a peer to reach another one.
    pub dial_timeout: Duration,
    /// Time for a member to confirm a ring plan.
    pub ring_timeout: Duration,
    /// How long a report about a connection between two peers is held back: the death of one of them, which explains
    /// the report, may still be on its way.
    pub edge_grace: Duration,
    /// From when on an edge counts as broken on which bytes wait that do not move, although both ends give signs of
    /// life.
    pub edge_timeout: Duration,
    /// How long a peer whose connection has ended may take to come back over another one; 0: it is lost at once.
    pub return_grace: Duration,
    /// How long an edge that could not be built is kept out of new rings.
    pub forbidden_expiry: Duration,
    /// Longest time for the probe of one edge.
    pub probe_time: Duration,
    /// Time for a ring that callers wait for.
    pub plan_budget: Duration,
    /// Time for a better one, for which nobody waits.
    pub background_budget: Duration,
    /// The rate of an edge is measured again when it is older than this.
    pub rate_expiry: Duration,
    /// A peer whose caller alone holds up a vote for this long is dropped; `None`: never.
    pub straggler_timeout: Option<Duration>,
    /// Peers that a collective or a sync needs in the world.
    pub min_world_size: u32,
    /// How bulk data travels, in a run with a key.
    #[serde(with = "pccl_protocol::kept")]
    pub wire: Option<WireMode>,
    /// Keys the digests of shared state, in a run with a key.
    #[serde(skip)]
    pub state_key: Option<SecretKey>,
    /// Only peers with these names give shared state to others, if there are any names.
    pub trusted_seeders: Vec<Name>,
    /// Groups that have committed nothing commit nothing below this revision.
    pub accept_revision: Option<Revision>,
    /// Only peers that others can dial take part.
    pub require_reachable: bool,
    /// Where peers meet that nobody can dial, if they may.
    #[serde(skip)]
    pub relay: Option<RelayOffer>,
    /// A master takes the place of this one when it dies, and knows what it knew.
    pub comes_back: bool,
    /// Most registered peers.
    pub max_peers: usize,
    /// Most clients that wait for admission.
    pub max_pending: usize,
    /// Most collectives of one group in flight.
    pub max_tags_in_flight: usize,
    /// Outcomes kept in one epoch of a group (at least one per tag), after which a new epoch begins.
    pub max_tag_history: usize,
}

impl Options {
    /// Whether nobody on the way reads or changes anything.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.wire == Some(WireMode::Encrypt)
    }

    /// The defaults of [`limits`] for `run`.
    pub const fn new(run: RunId) -> Self {
        Self {
            run,
            peer_timeout: Duration::from_millis(limits::DEFAULT_PEER_TIMEOUT_MS),
            beat_interval: Duration::from_millis(limits::DEFAULT_BEAT_INTERVAL_MS),
            registration_timeout: Duration::from_millis(limits::REGISTRATION_TIMEOUT_MS),
            dial_timeout: Duration::from_millis(limits::DEFAULT_DIAL_TIMEOUT_MS),
            ring_timeout: Duration::from_millis(limits::DEFAULT_RING_TIMEOUT_MS),
            edge_grace: Duration::from_millis(250),
            edge_timeout: Duration::from_millis(limits::DEFAULT_EDGE_TIMEOUT_MS),
            return_grace: Duration::from_millis(limits::DEFAULT_PEER_TIMEOUT_MS / 2),
            forbidden_expiry: Duration::from_secs(60),
            probe_time: Duration::from_millis(limits::DEFAULT_PROBE_MS),
            plan_budget: Duration::from_secs(1),
            background_budget: Duration::from_secs(30),
            rate_expiry: Duration::from_secs(600),
            straggler_timeout: None,
            min_world_size: 1,
            wire: None,
            state_key: None,
            trusted_seeders: Vec::new(),
            accept_revision: None,
            require_reachable: false,
            relay: None,
            comes_back: false,
            max_peers: limits::MAX_PEERS,
            max_pending: limits::MAX_PENDING_PEERS,
            max_tags_in_flight: limits::MAX_TAGS_IN_FLIGHT,
            max_tag_history: limits::MAX_TAG_HISTORY,
        }
    }

    /// A peer that has not been heard for this long may be dead; nobody else is blamed while it is not known.
    pub(crate) fn suspicion(&self) -> Duration {
        (self.beat_interval * 3).min(self.peer_timeout / 2)
    }
}

/// A fact for the state machine.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[expect(clippy::large_enum_variant, reason = "most inputs are packets, and none is kept")]
pub enum Input {
    /// A connection with a valid preamble of the control role.
    Connected {
        /// The connection.
        client: ClientKey,
        /// Source address of the connection.
        remote: IpAddr,
        /// Address of the master that the client reached.
        local: IpAddr,
    },
    /// A packet that could be decoded.
    Packet {
        /// The connection.
        client: ClientKey,
        /// The packet.
        packet: C2m,
    },
    /// Bytes that are no packet.
    Malformed {
        /// The connection.
        client: ClientKey,
        /// The defect in them.
        error: String,
    },
    /// A client that does not read what is sent to it.
    SlowReader {
        /// The connection.
        client: ClientKey,
    },
    /// The caller does not read from this client for now, since others have the memory for what it sends: that it is
    /// not heard says nothing about it.
    Unread {
        /// The connection.
        client: ClientKey,
    },
    /// The connection has ended.
    Disconnected {
        /// The connection.
        client: ClientKey,
        /// How it ended, for instance "connection reset".
        text: String,
    },
    /// The connection of a registered peer has ended, and its place is kept: it may come back over another one. To be
    /// given only where [`MasterState::may_return`](super::MasterState::may_return) says so. Packets to it wait
    /// meanwhile.
    Away {
        /// The connection.
        client: ClientKey,
        /// How it ended.
        text: String,
        /// It was one to the master that this one takes the place of, or this one stood still. A peer that looks for
        /// another master comes later.
        with_master: bool,
    },
    /// A peer that was away has another connection, on which everything goes on.
    Returned {
        /// The connection, as it was called before.
        client: ClientKey,
    },
    /// A client is refused for what the caller has found out about it.
    Refused {
        /// The connection.
        client: ClientKey,
        /// Why.
        reason: KickReason,
    },
    /// A deadline has passed. Only this input makes the machine judge deadlines, so a caller that has read everything
    /// that its sockets held before it sends a tick never has somebody dropped whose beat had arrived.
    Tick,
    /// The caller itself stood still for this long: every deadline moves by it.
    LoopGap(Duration),
    /// An operator removes a peer, for this reason; see [`MasterState::find_peer`](super::MasterState::find_peer).
    Kick {
        /// The peer. If it has gone meanwhile, nothing happens.
        peer: PeerId,
        /// The operator's words.
        reason: String,
    },
    /// An operator chooses the revision from which a group goes on; see
    /// [`MasterState::describe_choice`](super::MasterState::describe_choice).
    AcceptRevision {
        /// The group; `None` for all.
        group: Option<GroupId>,
        /// Nothing below it is committed.
        revision: Revision,
    },
    /// A ring that was to be planned ([`Action::Plan`]).
    Planned {
        /// Which.
        plan: PlanKey,
        /// The ring, or why there is none.
        result: Result<Answer, String>,
    },
    /// The listeners of a peer, or of a machine that is examined, were tried ([`Action::Reach`]).
    Reached {
        /// The peer.
        peer: PeerId,
        /// Ports that were not reached: whether it is that for shared state, and why.
        closed: Vec<(bool, String)>,
        /// The time of day when that was known, in microseconds since 1970.
        unix_us: u64,
    },
    /// The master stops: everybody is told.
    Stop,
}

/// Something for the caller of the state machine to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Queue a packet.
    Send {
        /// To whom.
        client: ClientKey,
        /// The packet.
        packet: M2c,
    },
    /// Queue the same packet for several clients.
    SendAll {
        /// To whom.
        clients: Vec<ClientKey>,
        /// The packet.
        packet: M2c,
    },
    /// Close the connection after everything that was queued has been written. The machine has forgotten the client:
    /// nothing more is sent to it, and later inputs for it are ignored.
    Close {
        /// The connection.
        client: ClientKey,
    },
    /// Plan a ring, not on this thread, and answer with [`Input::Planned`].
    Plan {
        /// Names the plan.
        plan: PlanKey,
        /// The ring to plan.
        job: Box<Job>,
        /// Nobody waits for it.
        background: bool,
    },
    /// Try the listeners of a peer or of a machine that is examined, not on this thread, and answer with
    /// [`Input::Reached`].
    Reach {
        /// The peer, and where it listens.
        target: ReachTarget,
        /// Its group.
        group: GroupId,
        /// Time for it.
        limit: Duration,
    },
    /// Nobody wants this plan any more. An answer that is on its way is ignored.
    DropPlan {
        /// The plan.
        plan: PlanKey,
    },
    /// A line for the log.
    Log {
        /// Its level.
        level: log::Level,
        /// The line.
        text: String,
    },
}

impl Action {
    /// The same as actions of which none is for several clients.
    pub fn split(self) -> Vec<Self> {
        match self {
            Self::SendAll { clients, packet } => {
                clients.into_iter().map(|client| Self::Send { client, packet: packet.clone() }).collect()
            }
            one => vec![one],
        }
    }
}
