//! Packets from a peer to the master.

use crate::{
    Address, AheadStep, Appended, CallKind, CallMe, CollectiveId, CopiesKnown, Counter, Descriptor,
    EdgeFault, EdgeName, Examine, FetchProgress, Figure, FormGroup, GroupEpoch, GroupId, GroupPlan, Host,
    LinkGeneration, Loan, Name, Nothing, OpFault, OpId, PacketRules, PeerId, ProbeReport, Promise, Purpose,
    ReachReport, Received, RequestId, ResumeOffer, Return, Revision, RunId, Senders, SourceFailure, StandBy,
    StateEntry, SyncId, SyncReport, SyncStrategy, VoteRef, limits, packet_rules::from,
};
use tinysockets::{key::SecretKey, wire::ListItem};

packets! {
    /// Packets from a peer to the master.
    pub enum C2m: PacketRules {
        /// First packet of a connection: ask to be let into the run.
        Register(Register) = 1 => from::STRANGER,
        /// Sign of life, with progress.
        Beat(Beat) = 2 => from::REGISTERED.counted(Counter::Beats).noting_changes(),
        /// Vote to admit those who wait.
        VoteTopology(VoteTopology) = 3 => from::ACCEPTED.listed(Senders::NOBODY).noting_changes(),
        /// Take a vote back that is for the whole run: of topology, of an optimisation, or of the pending query (the
        /// caller's limit passed).
        WithdrawVote(RequestId) = 4 => from::ACCEPTED.listed(Senders::NOBODY),
        /// Vote of the pending query.
        VotePending(RequestId) = 5 => from::ACCEPTED.listed(Senders::NOBODY).noting_changes(),
        /// Which edges of this peer have come to stand, could not be built, or broke.
        EdgeReport(EdgeReport) = 6
            => from::IN_RING.listed(Senders::REGISTERED).counted(Counter::Reports).noting_changes(),
        /// Vote to begin a collective.
        Initiate(Initiate) = 8 => from::ACCEPTED.listed(Senders::PENDING.or(Senders::ACCEPTED)).noting_changes(),
        /// Vote to complete a collective.
        Complete(Complete) = 9 => from::ACCEPTED.listed(Senders::REGISTERED).noting_changes(),
        /// Vote to begin a shared-state sync.
        SyncInitiate(SyncInitiate) = 10
            => from::ACCEPTED.listed(Senders::PENDING.or(Senders::ACCEPTED)).counted(Counter::Keys),
        /// End of this peer's part of a sync.
        SyncComplete(SyncComplete) = 11 => from::ACCEPTED.listed(Senders::REGISTERED),
        /// Leave the run on purpose.
        Leave(Nothing) = 12 => from::REGISTERED,
        /// Ask for the state of the run. A client may send it instead of registering.
        StatusRequest(RequestId) = 13 => from::ANYBODY.counted(Counter::Questions).noting_changes(),
        /// Vote to measure the edges and to plan the rings.
        VoteOptimize(RequestId) = 14 => from::ACCEPTED.listed(Senders::NOBODY).noting_changes(),
        /// The measurements of a round of probes.
        ProbeReport(ProbeReport) = 15 => from::ACCEPTED.counted(Counter::Probes).noting_changes(),
        /// The caller gives up what it waits for, for all.
        GiveUp(GiveUp) = 17 => from::ACCEPTED.listed(Senders::REGISTERED).counted(Counter::VotesGivenUp),
        /// Ask what was measured of the edges of a group. A client may send it instead of registering.
        RatesRequest(RatesRequest) = 18 => from::ANYBODY.counted(Counter::Rates),
        /// Whom this peer does not reach.
        ReachReport(ReachReport) = 19 => from::IN_RING.listed(Senders::REGISTERED).counted(Counter::Reports),
        /// Vote to form a group.
        FormGroup(FormGroup) = 20 => from::NOBODY.listed(Senders::REGISTERED),
        /// This peer gives its shared state to newcomers, or does not any more.
        Loan(Loan) = 21 => from::ACCEPTED.listed(Senders::REGISTERED).counted(Counter::Steps),
        /// A newcomer fetches the shared state ahead.
        Ahead(AheadStep) = 22 => from::REGISTERED.listed(Senders::NOBODY).counted(Counter::Steps),
        /// A peer that cannot be dialed is to dial this one.
        CallMe(CallMe) = 33 => from::REGISTERED.counted(Counter::Calls).noting_changes(),
        /// Ask how the master sees this machine, and whether it reaches its ports. A client may send it instead of
        /// registering.
        Examine(Examine) = 30 => from::STRANGER.noting_changes(),
        /// First packet of a connection: this peer is registered, and the connection that it had has ended.
        Return(Return) = 40 => from::CONNECTION,
        /// How many packets of the master have come.
        Received(Received) = 41 => from::CONNECTION,
        /// First packet of a connection: this process stands by for the master.
        StandBy(StandBy) = 42 => from::CONNECTION,
        /// The part of its feed that a standby has.
        Appended(Appended) = 43 => from::CONNECTION,
        /// Which list of complete copies this peer knows.
        CopiesKnown(CopiesKnown) = 44 => from::CONNECTION,
        /// Answer to a claim.
        Promise(Promise) = 45 => from::CONNECTION,
    }
}

wire_struct! {
    /// Registration.
    pub struct Register {
        /// The peer group to join.
        pub group: GroupId,
        /// Host under which others reach this peer; `None` means the source address that the master sees.
        pub advertised_host: Option<Host>,
        /// Further addresses of it; none of a peer that advertises a host.
        pub addresses: Vec<Address>,
        /// Port of the data listener.
        pub p2p_port: u16,
        /// Port of the shared-state listener.
        pub state_port: u16,
        /// Connections per ring edge that the caller asked for; 0 leaves it to the master.
        pub pool_connections: u16,
        /// Its name, for people.
        pub name: Name,
        /// The previous identity of this process, if it was in a run before.
        pub previous: Option<PreviousIdentity>,
        /// Its group is formed by [`C2m::FormGroup`]; nobody lets it in, and it lets nobody in.
        pub formed: bool,
        /// Its collectives are not refused while it is the only member of its group.
        pub alone: bool,
        /// The shared state that it brings along and from which the run could go on.
        pub resume: Option<ResumeOffer>,
        /// Whether nobody can dial it, as its program says; `None`: whether the master can decides.
        pub outbound_only: Option<bool>,
        /// The name of its site, if its program gives one; empty: sites are found by what is measured.
        pub site: Name,
    }
}

wire_struct! {
    /// The previous identity of a reconnecting process.
    pub struct PreviousIdentity {
        /// The run it was in.
        pub run: RunId,
        /// Its identity there.
        pub peer: PeerId,
        /// In a run with a key, what only that peer was told beside the master ([`Keys::service_key`](crate::Keys)).
        pub proof: Option<SecretKey>,
    }
}

wire_struct! {
    /// Sign of life of a peer's I/O thread. The default is that of a peer that is in no call and has no edges.
    #[derive(Default)]
    pub struct Beat {
        /// Counts beats; the echo carries it back.
        pub sequence: u64,
        /// The call that the caller's thread is in.
        pub call: CallKind,
        /// Since when, in milliseconds.
        pub call_ms: u64,
        /// A call that is under way has a limit.
        pub limited: bool,
        /// The oldest collective in flight, if any.
        pub operation: Option<CollectiveId>,
        /// Bytes sent and received by all operations since the connection began.
        pub moved_bytes: u64,
        /// Edges from this peer on which bytes wait that do not move.
        pub stalled: Vec<StalledEdge>,
        /// Bytes that have been sent on each edge from this peer on which everything has been acknowledged.
        pub sent: Vec<EdgeBytes>,
        /// Bytes that have been received on each edge to this peer.
        pub received: Vec<EdgeBytes>,
        /// Edges to this peer that have delivered what it has not taken: it is at work on what came before.
        pub busy: Vec<BusyEdge>,
        /// How far its fetch of shared state is, while there is one.
        pub fetch: Option<FetchProgress>,
        /// Numbers that its program has reported.
        pub figures: Vec<Figure>,
    }
}

impl ListItem for EdgeBytes {
    const LIST: &'static str = "bytes of edges";
    const MAX_ITEMS: usize = limits::MAX_EDGES_OF_PEER;
}

impl ListItem for StalledEdge {
    const LIST: &'static str = "stalled edges";
    const MAX_ITEMS: usize = limits::MAX_EDGES_OF_PEER;
}

impl ListItem for BusyEdge {
    const LIST: &'static str = "busy edges";
    const MAX_ITEMS: usize = limits::MAX_EDGES_OF_PEER;
}

wire_struct! {
    /// The bytes that one end of an edge has counted. Both ends count the same bytes, so missing bytes have been lost
    /// on the way, or still are on it.
    #[derive(Copy)]
    pub struct EdgeBytes {
        /// The other end.
        pub peer: PeerId,
        /// Generation of the edge.
        pub generation: LinkGeneration,
        /// Bytes of frames, headers included, since the edge was built.
        pub bytes: u64,
    }
}

wire_struct! {
    /// An edge whose sending end has bytes that are not acknowledged and do not become fewer.
    pub struct StalledEdge {
        /// The receiving end.
        pub to: PeerId,
        /// Generation of the edge.
        pub generation: LinkGeneration,
        /// For how long nothing has moved, in milliseconds.
        pub stalled_ms: u64,
        /// For how long it had been idle when the bytes came that do not move, in milliseconds; 0 if it was not.
        pub idle_ms: u64,
        /// Bytes of the segments that are sent again and again in vain, if they are long ones; 0 otherwise.
        pub segment_bytes: u32,
    }
}

wire_struct! {
    /// An edge whose receiving end has something that it has not taken, or that it is at work on, so that the other end
    /// may have to wait. It may wait itself, for a device or a processor.
    pub struct BusyEdge {
        /// The sending end.
        pub from: PeerId,
        /// Generation of the edge.
        pub generation: LinkGeneration,
        /// For how long it has not got on with that, in milliseconds.
        pub busy_ms: u64,
    }
}

wire_struct! {
    /// Vote to admit those who wait.
    pub struct VoteTopology {
        /// Names the answer.
        pub request: RequestId,
        /// 0: answer when this round ends. Otherwise keep the vote, round after round, until the world has this many
        /// peers.
        pub wait_for_world: u32,
    }
}

wire_struct! {
    /// News of the edges that touch this peer.
    pub struct EdgeReport {
        /// The epoch of the newest plan that this peer works on.
        pub epoch: GroupEpoch,
        /// Edges that have come to stand at this end. Each is told once.
        pub up: Vec<EdgeName>,
        /// Edges that could not be built, or that stood and broke.
        pub broken: Vec<EdgeFault>,
    }
}

impl EdgeReport {
    /// That all edges of a peer for these purposes stand.
    pub fn all_up(plan: &GroupPlan, peer: PeerId, purposes: &[Purpose]) -> Self {
        let edges = plan.edges_of(peer).filter(|(purpose, _)| purposes.contains(purpose));
        Self { epoch: plan.epoch, up: edges.map(|(_, name)| name).collect(), broken: Vec::new() }
    }
}

wire_struct! {
    /// Vote to begin a collective. The sender can already receive frames of this attempt.
    pub struct Initiate {
        /// Identity of the attempt.
        pub op: OpId,
        /// The collective that is to be done.
        pub descriptor: Descriptor,
        /// An early begin: the contributions of the sender are on their way. It waits for no
        /// [`Commence`](crate::Commence), and may complete before all have voted.
        pub has_begun: bool,
    }
}

wire_struct! {
    /// Vote to complete a collective.
    pub struct Complete {
        /// Identity of the attempt.
        pub op: OpId,
        /// `None`: this peer holds the whole result. Otherwise what stopped it.
        pub fault: Option<OpFault>,
        /// Bytes that this peer sent and received for the attempt.
        pub moved_bytes: u64,
    }
}

wire_struct! {
    /// The caller gives a collective or a sync up that it has voted for. Unless its outcome is decided, it fails for
    /// all.
    #[derive(Copy)]
    pub struct GiveUp {
        /// Its vote.
        pub vote: VoteRef,
        /// The caller's limit, if it is that which has passed, in milliseconds. `None`: the caller wants no result.
        pub limit_ms: Option<u64>,
    }
}

wire_struct! {
    /// Question for what was measured of the edges of a group.
    #[derive(Copy)]
    pub struct RatesRequest {
        /// Names the answer.
        pub request: RequestId,
        /// The group; `None`: the first one that there is.
        pub group: Option<GroupId>,
    }
}

wire_struct! {
    /// Vote to begin a shared-state sync.
    pub struct SyncInitiate {
        /// Names the answers.
        pub request: RequestId,
        /// Epoch of the group that the sender means.
        pub epoch: GroupEpoch,
        /// Revision of the sender's state.
        pub revision: Revision,
        /// Which part the sender takes.
        pub strategy: SyncStrategy,
        /// The sender's tensors, sorted by key, each key once.
        pub entries: Vec<StateEntry>,
        /// In a run with a key, of a sender that has offered a state with its digest: that of the state as it is now.
        /// Offers have digests without a key, as they outlive the run.
        pub offered: Option<u128>,
    }
}

wire_struct! {
    /// End of a peer's part of a sync.
    pub struct SyncComplete {
        /// The sync.
        pub sync: SyncId,
        /// How it ended here.
        pub report: SyncReport,
        /// Sources that were asked in vain, or failed later.
        pub failures: Vec<SourceFailure>,
        /// Sources that gave something and did not fail.
        pub gave: Vec<PeerId>,
    }
}
