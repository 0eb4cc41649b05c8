//! The state machine of the master: facts in, actions out.
//!
//! Nothing here touches a socket, a thread, a clock or a random source, and every collection is ordered, so equal
//! inputs give equal outputs.
//!
//! The machine is level-triggered. [`MasterState::handle`] first checks in one table whether the sender may send the
//! packet now (`admit`), then records the fact (who is here, who voted for what, who was heard when), and then runs a
//! fixed list of rules until none of them has anything left to do (`settle`). Nothing is decided where a fact is
//! recorded: the loss of a peer is fewer facts, not another path through the code.

mod admit;
mod blocked;
mod client;
mod collective;
mod edges;
mod election;
mod fetches;
mod flow;
mod formed;
mod forming;
mod giving_up;
mod group;
mod history;
mod liveness;
mod measured;
mod mesh;
mod ops;
mod optimize;
mod pairs;
mod plans;
mod probation;
mod rates;
mod reach;
mod revisions;
mod ring;
mod round;
mod schedule;
mod snapshot;
mod status;
mod straggler;
mod sync;
mod sync_end;
mod timers;
mod types;
mod verdicts;

#[cfg(test)]
mod tests;

pub use snapshot::{GroupStatus, PeerPhase, PeerStatus, Snapshot};
pub use types::{Action, ClientKey, IdSource, Input, Options, PlanKey, Timestamp};

use admit::Standing;
use client::{Client, Peer, Phase};
use group::Group;
use pccl_protocol::{
    Beat, C2m, CollectiveId, Echo, GroupId, KickCode, KickReason, M2c, PeerId, Register, Registered,
    RequestId, SyncId, WorldEpoch,
};
use round::Round;
use std::collections::BTreeMap;

/// Everything that the master knows and decides.
pub struct MasterState {
    options: Options,
    ids: Box<dyn IdSource + Send>,
    /// Time of the present input.
    now: Timestamp,
    /// Time of the last tick: deadlines that end a grace are judged against it.
    tick: Timestamp,
    out: Vec<Action>,
    /// Facts have changed on which more depends than single operations.
    changed: bool,
    /// Who wants to know how the run is, and as a member of which group.
    asked: Vec<(ClientKey, RequestId, Option<GroupId>)>,
    clients: BTreeMap<ClientKey, Client>,
    peers: BTreeMap<PeerId, Peer>,
    groups: BTreeMap<GroupId, Group>,
    round: Option<Round>,
    /// Groups that are being formed of given members.
    formings: forming::Formings,
    optimization: Option<optimize::Optimization>,
    /// Optimisations so far.
    optimizations: u64,
    /// What was measured of edges.
    measured: measured::Measured,
    /// Rings that are being planned.
    plans: plans::Plans,
    world_epoch: WorldEpoch,
    last_sync: SyncId,
    revisions: revisions::Revisions,
    registrations: u64,
    /// Questions to groups so far.
    checks: u64,
    /// Who was dropped because of ports that cannot be reached.
    probation: probation::Probation,
    /// Who alone holds up which vote.
    stragglers: BTreeMap<straggler::Vote, straggler::Straggler>,
}

impl MasterState {
    /// A master without clients.
    pub fn new(options: Options, ids: Box<dyn IdSource + Send>) -> Self {
        let revisions = revisions::Revisions::new(options.accept_revision);
        Self {
            options,
            ids,
            now: Timestamp::default(),
            tick: Timestamp::default(),
            out: Vec::new(),
            changed: false,
            asked: Vec::new(),
            clients: BTreeMap::new(),
            peers: BTreeMap::new(),
            groups: BTreeMap::new(),
            round: None,
            formings: forming::Formings::default(),
            optimization: None,
            optimizations: 0,
            measured: measured::Measured::default(),
            plans: plans::Plans::default(),
            world_epoch: WorldEpoch(0),
            last_sync: SyncId(0),
            revisions,
            registrations: 0,
            checks: 0,
            probation: probation::Probation::default(),
            stragglers: BTreeMap::new(),
        }
    }

    /// Takes one fact in at time `now` and appends what is to be done to `out`, in order.
    pub fn handle(&mut self, now: Timestamp, input: Input, out: &mut Vec<Action>) {
        self.take(now, input, out);
        self.settle(out);
    }

    /// Takes one fact in at time `now`. What follows from it is left to [`MasterState::settle`], so that facts that
    /// come together, the loss of many peers for instance, have one consequence. Between the two nothing must reach a
    /// client: it could answer to a state that is not settled.
    pub fn take(&mut self, now: Timestamp, input: Input, out: &mut Vec<Action>) {
        self.now = self.now.max(now);
        let is_packet = matches!(input, Input::Packet { .. });
        self.changed |= !is_packet;
        match input {
            Input::Connected { client, remote, local } => {
                let fresh = Client { remote, local, connected_at: self.now, peer: None, requests: 0 };
                self.clients.entry(client).or_insert(fresh);
            }
            Input::Packet { client, packet } => self.take_packet(client, packet),
            Input::Malformed { client, error } => {
                self.refuse(client, KickReason::new(KickCode::Malformed, error));
            }
            Input::SlowReader { client } => {
                let text = "did not read what the master sent";
                self.refuse(client, KickReason::new(KickCode::SlowReader, text));
            }
            Input::Disconnected { client, text } => self.lose_client(client, &text),
            Input::Tick => {
                self.tick = self.now;
                self.groups.values_mut().for_each(|group| group.ops.change_timed());
                self.judge_deadlines();
            }
            Input::LoopGap(gap) => self.extend_deadlines(gap),
            Input::Kick { peer, reason } => self.kick(peer, KickReason::new(KickCode::Operator, reason)),
            Input::AcceptRevision { group, revision } => self.accept_revision(group, revision),
            Input::Planned { plan, result } => self.record_plan(plan, result),
            Input::Reached { peer, closed } => self.record_reached(peer, closed),
            Input::Stop => self.stop(),
        }
        out.append(&mut self.out);
    }

    /// Draws the consequences of the facts that were taken in, and appends what is to be done to `out`, in order.
    pub fn settle(&mut self, out: &mut Vec<Action>) {
        self.run_rules();
        self.watch_stragglers();
        self.answer_status_requests();
        out.append(&mut self.out);
    }

    /// When an [`Input::Tick`] is due next; may lie in the past.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        self.earliest_deadline()
    }

    /// Runs the rules until none of them has anything left to do. Rings come before whatever depends on them, so that
    /// an answer about an operation never overtakes the ring and the sizes that explain it.
    ///
    /// Most inputs touch one operation only, and there can be a thousand in flight: as long as nothing else has
    /// changed, only the rules about operations are looked at, and only those operations. Tests look at everything, and
    /// find nothing more.
    fn run_rules(&mut self) {
        const ABOUT_OPERATIONS: &[fn(&mut MasterState) -> bool] =
            &[MasterState::roll_history, MasterState::settle_collectives];
        const RULES: &[fn(&mut MasterState) -> bool] = &[
            MasterState::judge_faults,
            MasterState::judge_checks,
            MasterState::begin_checks,
            MasterState::roll_history,
            MasterState::renew_meshes,
            MasterState::answer_satisfied_waits,
            MasterState::settle_formings,
            MasterState::advance_optimization,
            MasterState::begin_round,
            MasterState::adopt_better_rings,
            MasterState::plan_rings,
            MasterState::end_round,
            MasterState::end_formings,
            MasterState::end_optimization,
            MasterState::push_sizes,
            MasterState::note_standing_rings,
            MasterState::announce_meshes,
            MasterState::plan_pairs,
            MasterState::settle_collectives,
            MasterState::settle_syncs,
            MasterState::break_up_groups,
            MasterState::answer_pending_queries,
            MasterState::report_progress,
            MasterState::tell_of_late_offers,
            MasterState::forget_the_world,
        ];
        // Each firing uses up a vote, an operation, a report, a change of membership or a round, so this many cannot
        // happen without a rule that undoes what another one did.
        let operations: usize =
            self.groups.values().map(|group| group.ops.len() + group.edges.held().count()).sum();
        let bound = 64 + 8 * (self.peers.len() + operations);
        for _ in 0..bound {
            let rules = if self.changed { RULES } else { ABOUT_OPERATIONS };
            if rules.iter().any(|rule| rule(self)) {
                continue;
            }
            // Not looked at by the rules about operations: they may have found a fact for the others.
            if self.changed && rules.len() == ABOUT_OPERATIONS.len() {
                continue;
            }
            #[cfg(debug_assertions)]
            if !self.changed {
                let missed = RULES.iter().position(|rule| rule(self));
                assert_eq!(missed, None, "a fact changed without a mark: this rule would have fired");
            }
            self.changed = false;
            debug_assert!(self.collectives_rest(), "an operation changed without a mark");
            return;
        }
        debug_assert!(false, "the rules did not come to rest within {bound} steps");
        self.out.push(Action::Log {
            level: log::Level::Error,
            text: format!("internal error: the rules did not come to rest within {bound} steps"),
        });
    }

    fn take_packet(&mut self, client: ClientKey, packet: C2m) {
        let Some(who) = self.standing(client) else { return };
        // What these change is noted where it is recorded.
        let is_small =
            matches!(packet, C2m::Initiate(_) | C2m::Complete(_) | C2m::Beat(_) | C2m::StatusRequest(_));
        self.changed |= !is_small;
        if let Standing::Peer(id, group, _) = who {
            self.hear(id, group);
        }
        match self.admit(who, &packet) {
            Ok(()) => self.record(client, who, packet),
            Err(reason) => {
                self.changed = true;
                self.refuse(client, reason);
            }
        }
    }

    /// A peer gives a sign of life: faults, answers and failed fetches that wait for one can be judged.
    fn hear(&mut self, id: PeerId, group_id: GroupId) {
        let was_suspect = self.suspect(id);
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let silent = self.now.since(std::mem::replace(&mut peer.heard_at, self.now));
        self.note_silence(id, group_id, silent);
        if let Some(group) = self.groups.get_mut(&group_id) {
            self.changed |= group.edges.any_held() || group.check.is_some() || group.has_failed_fetches();
            if was_suspect {
                group.ops.change_timed();
            }
        }
    }

    /// Records the fact that an admitted packet states.
    fn record(&mut self, client: ClientKey, who: Standing, packet: C2m) {
        match (who, packet) {
            (who, C2m::StatusRequest(request)) => self.record_status_request(client, who, request),
            (who, C2m::RatesRequest(asked)) => self.record_rates_request(client, who, asked),
            (Standing::Stranger(_), C2m::Register(register)) => self.register(client, register),
            // The table admits nothing else from a stranger.
            (Standing::Stranger(_), _) => {}
            (Standing::Peer(id, group, _), packet) => self.record_of_peer(id, group, packet),
        }
    }

    fn record_of_peer(&mut self, id: PeerId, group: GroupId, packet: C2m) {
        let is_apart =
            self.peers.get(&id).is_some_and(|peer| peer.info.formed && peer.phase == Phase::Pending);
        match packet {
            C2m::FormGroup(vote) => self.record_form(id, vote),
            // In a group that was broken up.
            C2m::Initiate(initiate) if is_apart => {
                let kind = initiate.descriptor.kind();
                self.refuse_op(id, CollectiveId { kind, op: initiate.op });
            }
            C2m::SyncInitiate(vote) if is_apart => self.refuse_sync(id, vote.request),
            // Recorded before.
            C2m::Register(_) | C2m::StatusRequest(_) | C2m::RatesRequest(_) => {}
            C2m::Beat(beat) => {
                let stalled = beat.stalled.clone();
                let before = self.peers.get(&id).and_then(|peer| peer.beat.as_ref()).map(|(_, at)| *at);
                self.record_beat(id, beat);
                let missing = self.look_at_flows(id, group, before);
                self.changed |= !stalled.is_empty() || !missing.is_empty();
                self.record_stalls(id, group, &stalled, &missing);
                self.look_at_paces(id, group);
            }
            C2m::VoteTopology(vote) => self.record_topology_vote(id, vote),
            C2m::WithdrawVote(request) => self.record_withdrawal(id, request),
            C2m::VotePending(request) => {
                let since = self.now;
                if let Some(peer) = self.peers.get_mut(&id) {
                    peer.pending = Some(client::PendingVote { request, since });
                }
            }
            C2m::EdgeReport(report) => self.record_edge_report(id, group, report),
            C2m::ReachReport(report) => self.record_reach_report(id, group, report),
            C2m::Initiate(initiate) => self.record_initiate(id, group, initiate),
            C2m::Complete(complete) => self.record_complete(id, group, complete),
            C2m::GiveUp(given_up) => self.record_give_up(id, group, given_up),
            C2m::SyncInitiate(vote) => self.record_sync_initiate(id, group, vote),
            C2m::SyncComplete(complete) => self.record_sync_complete(id, group, complete),
            C2m::VoteOptimize(request) => self.record_optimize_vote(id, request),
            C2m::ProbeReport(report) => self.record_probe(id, report),
            C2m::Leave(_) => self.leave(id),
        }
    }

    fn register(&mut self, client: ClientKey, info: Register) {
        let id = self.ids.peer_id();
        let Some(known) = self.clients.get_mut(&client) else { return };
        known.peer = Some(id);
        self.registrations += 1;
        let peer = Peer {
            client,
            remote: known.remote,
            local: known.local,
            phase: Phase::Pending,
            order: self.registrations,
            heard_at: self.now,
            beat: None,
            topology: None,
            pending: None,
            optimize: None,
            closed: Vec::new(),
            tried: false,
            sizes_told: None,
            formed: None,
            past: formed::Past::default(),
            info,
        };
        let before = match &peer.info.previous {
            Some(previous) => format!(", was {} of run {}", previous.peer, previous.run),
            None => String::new(),
        };
        self.info(format!("{} registered for group {}{before}", peer.name(id), peer.group()));
        self.peers.insert(id, peer);
        let millis = |duration: std::time::Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let answer = Registered {
            run: self.options.run,
            peer: id,
            beat_interval_ms: millis(self.options.beat_interval),
            peer_timeout_ms: millis(self.options.peer_timeout),
        };
        self.send(client, M2c::Registered(answer));
        self.try_listeners(id);
        if !self.peers.get(&id).is_some_and(|peer| peer.info.formed) {
            self.warn_of_probation(id);
        }
    }

    fn record_beat(&mut self, id: PeerId, beat: Beat) {
        let sequence = beat.sequence;
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.beat = Some((beat, self.now));
        }
        let blocked_on = self.blocked_for(id);
        self.send_peer(id, M2c::Echo(Echo { sequence, blocked_on }));
    }

    fn stop(&mut self) {
        let everybody: Vec<ClientKey> = self.clients.keys().copied().collect();
        for client in everybody {
            self.refuse(client, KickReason::new(KickCode::MasterStopping, ""));
        }
    }

    /// Rule: a master without peers is as if it had just started, but for revisions that somebody may come back with.
    fn forget_the_world(&mut self) -> bool {
        if !self.peers.is_empty() || self.registrations == 0 {
            return false;
        }
        self.round = None;
        self.formings = forming::Formings::default();
        self.optimization = None;
        self.measured.forget_all();
        self.drop_all_plans();
        self.world_epoch = WorldEpoch(0);
        self.last_sync = SyncId(0);
        self.registrations = 0;
        self.checks = 0;
        self.probation = probation::Probation::default();
        self.revisions.forget_what_is_over();
        true
    }

    fn send(&mut self, client: ClientKey, packet: M2c) {
        self.out.push(Action::Send { client, packet });
    }

    fn send_all(&mut self, clients: Vec<ClientKey>, packet: M2c) {
        self.out.push(Action::SendAll { clients, packet });
    }

    fn send_peers(&mut self, ids: &[PeerId], packet: M2c) {
        let clients = ids.iter().filter_map(|id| self.peers.get(id)).map(|peer| peer.client).collect();
        self.send_all(clients, packet);
    }

    fn send_peer(&mut self, id: PeerId, packet: M2c) {
        if let Some(peer) = self.peers.get(&id) {
            self.out.push(Action::Send { client: peer.client, packet });
        }
    }

    /// For what happens in each step of a training.
    fn debug(&mut self, text: String) {
        self.out.push(Action::Log { level: log::Level::Debug, text });
    }

    /// For what an operator wants to know: who comes and goes, rings, plans.
    fn info(&mut self, text: String) {
        self.out.push(Action::Log { level: log::Level::Info, text });
    }

    fn warn(&mut self, text: String) {
        self.out.push(Action::Log { level: log::Level::Warn, text });
    }
}
