//! Packets from the master to a peer.

use crate::{
    Algorithm, Append, Call, Claim, Copies, Examined, FormFailed, GroupEpoch, GroupFormed, GroupPlan, Keys,
    KickReason, Nothing, Numbering, OpId, OptimizeDone, Outcome, PeerId, ProbePlan, Rates, ReachPlan,
    Received, RequestId, Returned, RunId, StandsBy, Status, SyncOutcome, SyncPlan, Text, Tickets, Verdict,
    WireMode, WorldSizes,
};
use tinysockets::key::SecretKey;

packets! {
    /// Packets from the master to a peer.
    pub enum M2c: Numbering {
        /// Registration succeeded; the peer now waits for admission.
        Registered(Registered) = 1 => Numbering::NUMBERED,
        /// The connection ends; why.
        Kicked(KickReason) = 2 => Numbering::NUMBERED,
        /// A new plan for this peer's group: connect its edges and report.
        GroupPlan(GroupPlan) = 3 => Numbering::NUMBERED,
        /// The sizes of the world changed.
        Sizes(WorldSizes) = 4 => Numbering::NUMBERED,
        /// This peer is now a full member; `connect` returns.
        Admitted(WorldSizes) = 5 => Numbering::NUMBERED,
        /// Answer to a topology vote.
        TopologyDone(TopologyDone) = 6 => Numbering::NUMBERED,
        /// News for a topology vote that waits for a larger world.
        TopologyProgress(TopologyProgress) = 7 => Numbering::NUMBERED,
        /// Answer to the pending query.
        PendingAnswer(PendingAnswer) = 8 => Numbering::NUMBERED,
        /// A vote named an old epoch, or its epoch ended before the vote was complete: vote again.
        Stale(Stale) = 9 => Numbering::NUMBERED,
        /// There are not enough peers for a vote.
        TooFewPeers(TooFewPeers) = 10 => Numbering::NUMBERED,
        /// All have voted: the collective begins.
        Commence(Commence) = 11 => Numbering::NUMBERED,
        /// How an attempt of a collective ended.
        Outcome(OpOutcome) = 12 => Numbering::NUMBERED,
        /// The task of the peer in a sync.
        SyncPlan(SyncPlanFor) = 13 => Numbering::NUMBERED,
        /// How a sync ended.
        SyncOutcome(SyncOutcomeFor) = 14 => Numbering::NUMBERED,
        /// Echo of a beat.
        Echo(Echo) = 15 => Numbering::NUMBERED,
        /// Answer to a leave: the master has forgotten this peer.
        Goodbye(Nothing) = 16 => Numbering::NUMBERED,
        /// The state of the run.
        Status(Status) = 17 => Numbering::NUMBERED,
        /// A vote for the whole run was taken back before it was answered.
        VoteWithdrawn(VoteWithdrawn) = 18 => Numbering::NUMBERED,
        /// Measure the way to a peer.
        ProbePlan(ProbePlan) = 19 => Numbering::NUMBERED,
        /// Answer to a vote for an optimisation.
        OptimizeDone(OptimizeDone) = 20 => Numbering::NUMBERED,
        /// The measurements of the edges of a group.
        Rates(Rates) = 21 => Numbering::NUMBERED,
        /// Find out who can be reached.
        ReachPlan(ReachPlan) = 22 => Numbering::NUMBERED,
        /// A fault that the operator of this peer has to know and put right, in words.
        Warning(Text) = 23 => Numbering::NUMBERED,
        /// A group was formed.
        GroupFormed(GroupFormed) = 24 => Numbering::NUMBERED,
        /// A group was not formed.
        FormFailed(FormFailed) = 25 => Numbering::NUMBERED,
        /// The tensors that a newcomer can fetch ahead, and from which members: all tensors of what its group committed
        /// last. A newer one replaces it.
        StateAhead(SyncPlan) = 26 => Numbering::NUMBERED,
        /// The secrets for tickets in a run with a key.
        Keys(Keys) = 27 => Numbering::NUMBERED,
        /// The tickets that this peer needs to connect to others, in a run with a key.
        Tickets(Tickets) = 28 => Numbering::NUMBERED,
        /// Dial a peer that has asked for it.
        Call(Call) = 33 => Numbering::NUMBERED,
        /// How the master sees a machine that is about to take part.
        Examined(Examined) = 30 => Numbering::NUMBERED,
        /// This connection takes the place of the one that a peer had.
        Returned(Returned) = 40 => Numbering::UNNUMBERED,
        /// How many packets of the peer have come.
        Received(Received) = 41 => Numbering::UNNUMBERED,
        /// Bytes of the journal, for a standby.
        Append(Append) = 42 => Numbering::UNNUMBERED,
        /// Which copies of what the master knows are complete.
        Copies(Copies) = 43 => Numbering::UNNUMBERED,
        /// This master stands by, and does not act.
        StandsBy(StandsBy) = 44 => Numbering::UNNUMBERED,
        /// A standby asks for a promise.
        Claim(Claim) = 45 => Numbering::UNNUMBERED,
    }
}

wire_struct! {
    /// Registration succeeded.
    pub struct Registered {
        /// The run.
        pub run: RunId,
        /// The identity given to this peer.
        pub peer: PeerId,
        /// Send a beat this often, in milliseconds.
        pub beat_interval_ms: u64,
        /// A peer that is silent for this long is dropped, in milliseconds.
        pub peer_timeout_ms: u64,
        /// How bulk data travels, in a run with a key.
        pub wire: Option<WireMode>,
        /// Keys the tree of digests with which shared state is voted on, in a run with a key. It lasts as long as the
        /// run, so that another run key splits no vote.
        pub state_key: Option<SecretKey>,
        /// Where peers meet that cannot be dialed, if the master has a relay.
        pub relay: Option<RelayOffer>,
        /// The master goes on after its death, when it is started again: a peer that finds nobody at its port looks for
        /// it.
        pub comes_back: bool,
    }
}

wire_struct! {
    /// The relay of a run, on the machine of its master.
    #[derive(Copy)]
    pub struct RelayOffer {
        /// Its port.
        pub port: u16,
        /// The token that visitors have to tell it.
        pub token: u64,
    }
}

wire_struct! {
    /// Answer to a topology vote.
    pub struct TopologyDone {
        /// The vote.
        pub request: RequestId,
        /// The world after the round.
        pub sizes: WorldSizes,
    }
}

wire_struct! {
    /// News for a vote that waits for a larger world.
    pub struct TopologyProgress {
        /// The vote.
        pub request: RequestId,
        /// Accepted peers now.
        pub have: u32,
        /// Peers wanted.
        pub want: u32,
        /// The missing peers or things, in words.
        pub missing: Text,
    }
}

wire_struct! {
    /// A vote was taken back: by its caller, or because it can never be answered.
    pub struct VoteWithdrawn {
        /// The vote.
        pub request: RequestId,
        /// Whom it waited for, in words.
        pub missing: Text,
        /// Why it can never be answered.
        pub verdict: Option<Verdict>,
    }
}

wire_struct! {
    /// Answer to the pending query.
    #[derive(Copy)]
    pub struct PendingAnswer {
        /// The query.
        pub request: RequestId,
        /// Whether somebody waits for admission.
        pub pending: bool,
    }
}

wire_union! {
    /// The vote that an answer is for.
    #[derive(Copy)]
    pub enum VoteRef {
        /// A vote to begin a collective.
        Collective(OpId) = 1,
        /// A vote to begin a sync.
        Sync(RequestId) = 2,
        /// A vote to form a group.
        Forming(RequestId) = 3,
    }
}

wire_struct! {
    /// A vote named an old epoch.
    #[derive(Copy)]
    pub struct Stale {
        /// The vote.
        pub vote: VoteRef,
        /// The epoch of the group now; its plan was sent before this packet.
        pub epoch: GroupEpoch,
    }
}

wire_struct! {
    /// There are not enough peers.
    #[derive(Copy)]
    pub struct TooFewPeers {
        /// The vote.
        pub vote: VoteRef,
        /// Peers there are (of the group if `need_in_group`, of the world otherwise).
        pub have: u32,
        /// Peers needed.
        pub need: u32,
        /// Whether the group or the world is too small.
        pub need_in_group: bool,
    }
}

wire_struct! {
    /// All have voted.
    #[derive(Copy)]
    pub struct Commence {
        /// The attempt.
        pub op: OpId,
        /// How the data travels.
        pub algorithm: Algorithm,
    }
}

wire_struct! {
    /// How an attempt of a collective ended.
    pub struct OpOutcome {
        /// The attempt.
        pub op: OpId,
        /// How it ended.
        pub outcome: Outcome,
    }
}

wire_struct! {
    /// A sync plan with the vote that it answers.
    pub struct SyncPlanFor {
        /// The vote.
        pub request: RequestId,
        /// The plan.
        pub plan: SyncPlan,
    }
}

wire_struct! {
    /// A sync outcome with the vote that it answers.
    pub struct SyncOutcomeFor {
        /// The vote.
        pub request: RequestId,
        /// The outcome.
        pub outcome: SyncOutcome,
    }
}

wire_struct! {
    /// Echo of a beat.
    pub struct Echo {
        /// Sequence number of the beat.
        pub sequence: u64,
        /// If something that this peer voted for waits: for whom.
        pub blocked_on: Option<Text>,
    }
}
