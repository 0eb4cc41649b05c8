//! The state machine of the master: facts in, actions out.
//!
//! Nothing here touches a socket, a thread, a clock or a random source, and every collection is ordered, so equal
//! inputs give equal outputs.
//!
//! The machine is level-triggered. [`MasterState::handle`] first checks in one table whether the sender may send
//! the packet now (`membership::packet_guard`), then records the fact (who is here, who voted for what, who was
//! heard when), and then runs a fixed list of rules until none of them has anything left to do (`settle`). Nothing
//! is decided where a fact is recorded: the loss of a peer is fewer facts, not another path through the code.

mod groups;
mod membership;
mod memory;
mod observe;
mod operations;
mod optimise;
mod outbox;
mod shared_state;
mod timers;
mod types;

#[cfg(test)]
mod tests;

pub(crate) use membership::black_holes::LET_LARGE_PACKETS_PASS;
pub use observe::snapshot::{GroupStatus, PeerPhase, PeerStatus, Snapshot};
pub use operations::verdicts::{NEW_PLAN, NO_STATE};
pub use types::{Action, ClientKey, IdSource, Input, Options, PlanKey, Timestamp};

use groups::all_groups::Groups;
use membership::client::{Client, Membership, Peer};
use membership::members::Roll;
use membership::sender::{Phase, Sender};
use optimise::optimize::Means;
use optimise::plans::Purpose;
use outbox::Outbox;
use pccl_planner::Answer;
use pccl_protocol::{
    Beat, C2m, CollectiveId, Echo, EdgeBytes, GroupId, KickCode, KickReason, M2c, PeerId, Register,
    Registered, SyncId,
};
use std::collections::BTreeSet;

/// Everything that the master knows and decides. A rule may read or change only the parts of this that it is given.
pub struct MasterState {
    ids: Box<dyn IdSource + Send>,
    /// Identities that were drawn of it.
    drawn: u64,
    out: Outbox,
    roll: Roll,
    groups: Groups,
    admission: membership::admission::Admission,
    /// Groups that are being formed of given members.
    formings: groups::group_creation::Formings,
    optimizer: optimise::optimize::Optimizer,
    /// The measurements of edges.
    measured: optimise::measured::Measured,
    /// Rings that are being planned.
    plans: optimise::plans::Plans,
    checks: membership::reachability::Checks,
    last_sync: SyncId,
    stragglers: operations::straggler::Stragglers,
    asked: observe::status::StatusRequests,
    joins: membership::rate_limits::Joins,
    revisions: shared_state::revisions::Revisions,
}

/// A rule and its name, see [`MasterState::run_rules`]. Whether it had something to do.
type Rule = (&'static str, fn(&mut MasterState) -> bool);

/// Rules about single operations.
const ABOUT_OPERATIONS: &[Rule] = &[
    ("roll_history", |it| it.groups.roll_history(&mut it.roll, &mut it.out)),
    ("settle_collectives", |it| it.groups.settle_collectives(&it.roll, &mut it.out)),
];

/// All rules, in their order.
const RULES: &[Rule] = &[
    ("lose_the_away", MasterState::lose_the_away),
    ("judge_faults", |it| it.groups.judge_faults(&it.roll, &mut it.out)),
    ("judge_checks", MasterState::judge_checks),
    ("begin_checks", |it| it.checks.begin(&mut it.groups, &mut it.roll, &mut it.out)),
    ("roll_history", |it| it.groups.roll_history(&mut it.roll, &mut it.out)),
    ("renew_meshes", |it| !it.is_reordering() && it.groups.renew_meshes(&it.roll, &mut it.out)),
    ("answer_satisfied_waits", |it| it.admission.answer_satisfied_waits(&mut it.roll, &mut it.out)),
    ("settle_formings", MasterState::settle_formings),
    ("advance_optimization", |it| {
        let (optimizer, in_round, means) = it.for_optimizer();
        optimizer.advance(in_round, means)
    }),
    ("begin_round", |it| it.admission.begin_round(&mut it.roll, &it.groups, &mut it.out)),
    ("adopt_better_rings", |it| {
        !it.optimizer.is_running() && it.groups.adopt_better_rings(it.admission.round.is_some())
    }),
    ("plan_rings", MasterState::plan_rings),
    ("end_round", |it| it.admission.end_round(&it.groups, &mut it.roll, &mut it.out)),
    ("end_formings", |it| it.groups.end_formings(&mut it.roll, &mut it.out)),
    ("end_optimization", |it| {
        let (optimizer, _, means) = it.for_optimizer();
        optimizer.end(means)
    }),
    ("push_sizes", |it| it.roll.push_sizes(&mut it.out)),
    ("note_standing_rings", |it| it.groups.note_standing_rings(&mut it.roll)),
    ("announce_meshes", |it| it.groups.announce_meshes(&mut it.roll, &mut it.out)),
    ("plan_pairs", |it| it.groups.plan_pairs(&mut it.roll, &mut it.out)),
    ("settle_collectives", |it| it.groups.settle_collectives(&it.roll, &mut it.out)),
    ("settle_syncs", MasterState::settle_syncs),
    ("break_up_groups", MasterState::break_up_groups),
    ("tell_of_late_offers", MasterState::tell_of_late_offers),
    ("tell_what_is_lent", MasterState::tell_what_is_lent),
    ("answer_pending_queries", |it| {
        it.admission.answer_pending_queries(&it.groups, &mut it.roll, &mut it.out)
    }),
    ("report_progress", |it| it.roll.report_progress(&mut it.out)),
    ("retire_spent_identities", |it| it.groups.retire_spent_identities(&mut it.roll, &mut it.out)),
    ("forget_the_world", MasterState::forget_the_world),
];

impl MasterState {
    /// A master without clients.
    pub fn new(options: Options, ids: Box<dyn IdSource + Send>) -> Self {
        let revisions = shared_state::revisions::Revisions::new(options.accept_revision);
        Self {
            ids,
            drawn: 0,
            out: Outbox::default(),
            roll: Roll::new(options),
            groups: Groups::default(),
            admission: membership::admission::Admission::default(),
            formings: groups::group_creation::Formings::default(),
            optimizer: optimise::optimize::Optimizer::default(),
            measured: optimise::measured::Measured::default(),
            plans: optimise::plans::Plans::default(),
            checks: membership::reachability::Checks::default(),
            last_sync: SyncId(0),
            stragglers: operations::straggler::Stragglers::default(),
            asked: observe::status::StatusRequests::default(),
            joins: membership::rate_limits::Joins::default(),
            revisions,
        }
    }

    /// Takes one fact in at time `now` and appends what is to be done to `out`, in order.
    pub fn handle(&mut self, now: Timestamp, input: Input, out: &mut Vec<Action>) {
        self.take(now, input, out);
        self.settle(out);
    }

    /// Takes one fact in at time `now`. Its consequences are left to [`MasterState::settle`], so that facts that come
    /// together, the loss of many peers for instance, have one consequence. Between the two nothing must reach a
    /// client: it could answer to a state that is not settled.
    pub fn take(&mut self, now: Timestamp, input: Input, out: &mut Vec<Action>) {
        self.roll.now = self.roll.now.max(now);
        let is_packet = matches!(input, Input::Packet { .. });
        self.out.changed |= !is_packet;
        self.forget_what_has_changed();
        match input {
            Input::Connected { client, remote, local } => {
                let fresh = Client::new((remote, local), self.roll.now);
                self.roll.connect(client, fresh);
            }
            Input::Packet { client, packet } => self.take_packet(client, packet),
            Input::Malformed { client, error } => {
                self.refuse(client, KickReason::new(KickCode::Malformed, error));
            }
            Input::SlowReader { client } => {
                let text = "did not read what the master sent";
                self.refuse(client, KickReason::new(KickCode::SlowReader, text));
            }
            Input::Unread { client } => {
                if let Some(Sender::Peer(id, group, _)) = self.roll.sender_of(client) {
                    self.hear(id, group);
                }
            }
            Input::Disconnected { client, text } => self.lose_client(client, &text),
            Input::Away { client, text, with_master } => self.note_away(client, text, with_master),
            Input::Returned { client } => {
                self.forget_crossings();
                self.note_returned(client);
            }
            Input::Refused { client, reason } => self.refuse(client, reason),
            Input::Tick => {
                self.roll.tick = self.roll.now;
                self.groups.values_mut().for_each(|group| group.work.ops.change_timed());
                self.judge_deadlines();
            }
            Input::LoopGap(gap) => {
                self.forget_crossings();
                self.extend_deadlines(gap);
            }
            Input::Kick { peer, reason } => self.kick(peer, KickReason::new(KickCode::Operator, reason)),
            Input::AcceptRevision { group, revision } => self.accept_revision(group, revision),
            Input::Planned { plan, result } => self.record_plan((plan, result)),
            Input::Reached { peer, closed, unix_us } if self.roll.examines(peer) => {
                self.answer_examination(peer, closed, unix_us);
            }
            Input::Reached { peer, closed, .. } if self.roll.is_dead_away(peer, &closed) => {
                self.roll.note_sign_of_death(peer);
            }
            Input::Reached { peer, closed, .. } => {
                self.roll.record_reached(&self.groups, &mut self.out, peer, closed);
            }
            Input::Stop => self.stop(),
        }
        self.out.drain_into(out);
    }

    /// Draws the consequences of the facts that were taken in, and appends what is to be done to `out`, in order.
    pub fn settle(&mut self, out: &mut Vec<Action>) {
        self.run_rules();
        self.roll.look_at_silence();
        self.stragglers.watch(&self.roll, &self.groups, &self.admission);
        self.answer_status_requests();
        self.out.drain_into(out);
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
        // Each firing uses up a vote, an operation, a report, a change of membership or a round, so this many cannot
        // happen without a rule that undoes what another one did.
        let operations_of =
            |group: &groups::group::Group| group.work.ops.len() + group.net.edges.count_held();
        let operations: usize = self.groups.values().map(operations_of).sum();
        let bound = 64 + 8 * (self.roll.peers.len() + operations);
        for _ in 0..bound {
            self.forget_what_has_changed();
            let rules = if self.out.changed { RULES } else { ABOUT_OPERATIONS };
            if rules.iter().any(|(_, rule)| rule(self)) {
                continue;
            }
            // Not looked at by the rules about operations: they may have found a fact for the others.
            if self.out.changed && rules.len() == ABOUT_OPERATIONS.len() {
                continue;
            }
            #[cfg(debug_assertions)]
            if !self.out.changed {
                let missed = RULES.iter().find(|(_, rule)| rule(self)).map(|(name, _)| name);
                assert_eq!(missed, None, "a fact changed without a mark: this rule would have fired");
            }
            self.out.changed = false;
            debug_assert!(self.groups.collectives_rest(&self.roll), "an operation changed without a mark");
            return;
        }
        debug_assert!(false, "the rules did not come to rest within {bound} steps");
        self.out.error(format!("internal error: the rules did not come to rest within {bound} steps"));
    }

    fn forget_what_has_changed(&mut self) {
        if self.out.changed {
            self.roll.forget_missing();
        }
    }

    fn take_packet(&mut self, client: ClientKey, packet: C2m) {
        let Some(who) = self.roll.sender_of(client) else { return };
        self.out.changed |= !packet.rules().notes_changes;
        self.forget_what_has_changed();
        if let Sender::Peer(id, group, _) = who {
            self.hear(id, group);
        }
        match self.count(client, &packet).and_then(|()| self.admit(who, &packet)) {
            Ok(()) => self.record(client, who, packet),
            Err(reason) => {
                self.out.changed = true;
                self.refuse(client, reason);
            }
        }
    }

    /// A peer gives a sign of life: faults, answers and failed fetches that wait for one can be judged.
    fn hear(&mut self, id: PeerId, group_id: GroupId) {
        let was_suspect = self.roll.suspect(id);
        let Some(peer) = self.roll.peers.get_mut(&id) else { return };
        let silent = self.roll.now.since(std::mem::replace(&mut peer.heard_at, self.roll.now));
        if was_suspect {
            peer.lively_since = self.roll.now;
        }
        let Some(group) = self.groups.get_mut(&group_id) else { return };
        group.note_silence(&self.roll, id, silent);
        let waits = group.net.edges.any_held() || group.reach.check.is_some();
        self.out.changed |= waits || group.shared.has_failed_fetches();
        if was_suspect {
            group.work.ops.change_timed();
        }
    }

    /// Records the fact that an admitted packet states.
    fn record(&mut self, client: ClientKey, who: Sender, packet: C2m) {
        match (who, packet) {
            (who, C2m::StatusRequest(request)) => self.record_question(client, who, request),
            (who, C2m::RatesRequest(asked)) => self.record_rates_request(client, who, asked),
            (Sender::Stranger(_), C2m::Examine(asked)) => self.record_examination(client, who, asked),
            (Sender::Stranger(_), C2m::Register(register)) => self.register(client, register),
            // The table admits nothing else from a stranger.
            (Sender::Stranger(_), _) => {}
            (Sender::Peer(id, group, _), packet) => self.record_of_peer(id, group, packet),
        }
    }

    fn record_of_peer(&mut self, id: PeerId, group_id: GroupId, packet: C2m) {
        let is_apart =
            self.roll.peers.get(&id).is_some_and(|peer| peer.info.formed && peer.phase() == Phase::Pending);
        let Self { out, roll, groups, .. } = self;
        match packet {
            C2m::FormGroup(vote) => self.formings.record(roll, out, id, vote),
            // In a group that was broken up.
            C2m::Initiate(initiate) if is_apart => {
                let kind = initiate.descriptor.kind();
                roll.refuse_op(out, id, CollectiveId { kind, op: initiate.op });
            }
            C2m::SyncInitiate(vote) if is_apart => self.refuse_sync(id, vote.request),
            // Recorded before.
            C2m::Register(_) | C2m::StatusRequest(_) | C2m::RatesRequest(_) | C2m::Examine(_) => {}
            // About connections, and not admitted here.
            C2m::Return(_) | C2m::Received(_) => {}
            C2m::StandBy(_) | C2m::Appended(_) | C2m::CopiesKnown(_) | C2m::Promise(_) => {}
            C2m::Loan(loan) => self.record_loan(id, group_id, loan),
            C2m::Ahead(step) => self.record_ahead(id, step),
            C2m::Beat(beat) => self.record_beat(id, group_id, beat),
            C2m::VoteTopology(vote) => roll.record_topology_vote(out, id, vote),
            C2m::WithdrawVote(request) => {
                self.admission.record_withdrawal(roll, out, id, request, self.optimizer.is_running());
            }
            C2m::VotePending(request) => roll.record_pending_vote(out, id, request),
            C2m::GiveUp(given_up) => groups.record_give_up(&mut self.formings, id, group_id, given_up),
            C2m::SyncInitiate(vote) => self.record_sync_initiate(id, group_id, vote),
            C2m::SyncComplete(complete) => self.record_sync_complete(id, group_id, complete),
            C2m::VoteOptimize(request) => roll.record_optimize_vote(out, id, request),
            C2m::ProbeReport(report) => {
                self.optimizer.record_probe(roll, &mut self.measured, out, id, report);
            }
            C2m::CallMe(wish) => roll.hand_on_call(out, id, wish),
            C2m::Leave(_) => self.leave(id),
            C2m::EdgeReport(_) | C2m::ReachReport(_) | C2m::Initiate(_) | C2m::Complete(_) => {
                if let C2m::EdgeReport(report) = &packet {
                    roll.note_broken_edges(groups.get(&group_id), id, report);
                }
                if let Some(group) = groups.get_mut(&group_id) {
                    group.record(roll, out, id, packet);
                }
            }
        }
    }

    fn register(&mut self, client: ClientKey, mut info: Register) {
        let id = self.ids.peer_id(self.drawn);
        self.drawn += 1;
        let is_encrypted = self.roll.options.is_encrypted();
        let Some(known) = self.roll.clients.get_mut(&client) else { return };
        info.addresses = membership::client::candidates(&info.addresses, known.remote, is_encrypted);
        known.peer = Some(id);
        self.roll.registrations += 1;
        let peer = Peer {
            client,
            remote: known.remote,
            local: known.local,
            membership: Membership::Pending(None),
            order: self.roll.registrations,
            heard_at: self.roll.now,
            lively_since: self.roll.now,
            away: None,
            edge_broke: None,
            beat: None,
            took_back: BTreeSet::new(),
            crossed: None,
            closed: Vec::new(),
            tried: false,
            outbound_only: false,
            registered_at: self.roll.now,
            sizes_told: None,
            formed: None,
            past: groups::formed::Past::default(),
            info,
        };
        let before = match &peer.info.previous {
            Some(previous) => format!(", was {} of run {}", previous.peer, previous.run),
            None => String::new(),
        };
        self.out.info(format!("{} registered for group {}{before}", peer.name(id), peer.group()));
        let before = peer.info.previous.as_ref().filter(|before| before.run == self.roll.options.run);
        if let Some(before) = before.map(|before| before.peer) {
            self.roll.note_sign_of_death(before);
        }
        self.roll.add(id, peer);
        let millis = |duration: std::time::Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let answer = Registered {
            run: self.roll.options.run,
            peer: id,
            beat_interval_ms: millis(self.roll.options.beat_interval),
            peer_timeout_ms: millis(self.roll.options.peer_timeout),
            wire: self.roll.options.wire,
            state_key: self.roll.options.state_key.clone(),
            relay: self.roll.options.relay,
            comes_back: self.roll.options.comes_back,
        };
        self.out.send(client, M2c::Registered(answer));
        self.roll.begin_to_dial(&mut self.out, id);
        if !self.roll.peers.get(&id).is_some_and(|peer| peer.info.formed) {
            self.admission.probation.warn(&self.roll, &mut self.out, id);
        }
    }

    fn record_beat(&mut self, id: PeerId, group_id: GroupId, beat: Beat) {
        let (sequence, stalled, received) = (beat.sequence, beat.stalled.clone(), beat.received.clone());
        let busy = beat.busy.clone();
        let Some(peer) = self.roll.peers.get_mut(&id) else { return };
        if beat.moved_bytes > peer.moved_bytes() {
            peer.note_progress(self.roll.now);
        }
        let before = peer.beat.replace((beat, self.roll.now)).map(|(_, at)| at);
        self.find_crossed(id, group_id);
        let blocked_on = self.blocked_for_beat(id);
        self.out.send_peer(&self.roll, id, M2c::Echo(Echo { sequence, blocked_on }));
        self.out.changed |= !stalled.is_empty();
        let Some(group) = self.groups.get_mut(&group_id) else { return };
        group.record_busy(&self.roll, id, &busy);
        let missing = group.look_at_flows(&self.roll, id, before);
        self.out.changed |= !missing.is_empty();
        group.record_stalls(&self.roll, id, &stalled, &missing);
        for edge in received {
            self.look_at_pace(group_id, (edge, id));
        }
    }

    /// Where an edge has become slow, a ring around it is planned.
    fn look_at_pace(&mut self, group_id: GroupId, received: (EdgeBytes, PeerId)) {
        let Self { groups, roll, measured, out, .. } = self;
        let Some(group) = groups.get_mut(&group_id) else { return };
        if group.look_at_pace(roll, measured, out, received) && !self.optimizer.is_running() {
            self.plans.start(groups, roll, measured, out, (group_id, Purpose::Repair));
        }
    }

    /// The planner has answered.
    fn record_plan(&mut self, answer: (PlanKey, Result<Answer, String>)) {
        let Self { plans, groups, roll, measured, out, .. } = self;
        if let Some((group, planned)) = plans.record(groups, roll, measured, out, answer) {
            self.optimizer.take_plan(out, group, planned);
        }
    }

    /// The means that an optimisation may use, beside itself and whether a round of admission runs.
    fn for_optimizer(&mut self) -> (&mut optimise::optimize::Optimizer, bool, Means<'_>) {
        let Self { optimizer, admission, groups, roll, measured, plans, out, .. } = self;
        (optimizer, admission.round.is_some(), Means { groups, roll, measured, plans, out })
    }

    /// Whether a round or an optimisation runs, which may bring about other rings.
    const fn is_reordering(&self) -> bool {
        self.admission.round.is_some() || self.optimizer.is_running()
    }

    fn stop(&mut self) {
        let everybody: Vec<ClientKey> = self.roll.clients.keys().copied().collect();
        for client in everybody {
            self.refuse(client, KickReason::new(KickCode::MasterStopping, ""));
        }
    }

    /// Rule: a master without peers is as if it had just started, but for revisions that somebody may come back with.
    fn forget_the_world(&mut self) -> bool {
        if !self.roll.peers.is_empty() || self.roll.registrations == 0 {
            return false;
        }
        self.admission = membership::admission::Admission::default();
        self.formings = groups::group_creation::Formings::default();
        self.optimizer.running = None;
        self.measured.forget_all();
        self.plans.drop_all(&mut self.out);
        self.roll.forget();
        self.last_sync = SyncId(0);
        self.checks = membership::reachability::Checks::default();
        self.revisions.forget_what_is_over();
        true
    }
}
