//! The caller's thread of a model client: the loop that every trainer runs.
//!
//! are_peers_pending -> update_topology (or wait_for_world) -> sync -> collectives -> next step. A newcomer begins at
//! the sync.

use crate::blame::{Act, Deed};
use crate::client::{Call, EdgeKey, KEYS, TagStage, TagWork, WrongCall};
use crate::rng::Rng;
use crate::swarm::MS;
use crate::world::{Wake, World};
use pccl_hash::Digest128;
use pccl_protocol::*;
use pccl_quant::DataType;

/// How long a caller waits that lacks the newest state.
const PAUSE: u64 = 500 * MS;
/// The limit that model clients say that they have.
const LIMIT_MS: u64 = 1_234;

impl World {
    pub(crate) fn woken(&mut self, slot: usize, wake: Wake) {
        match wake {
            Wake::Beat => self.beat(slot),
            Wake::Dialed(edge) => self.dialed(slot, edge),
            Wake::DialTimeout(edge) => self.dial_timeout(slot, edge),
            Wake::InboundDue(epoch) => self.inbound_due(slot, epoch),
            Wake::EdgeUp => {
                self.report_edges(slot);
            }
            Wake::EdgeLost(edge) => self.edge_lost(slot, edge),
            Wake::Progress(op) => self.progress(slot, op),
            Wake::Probed(round, to) => self.probed(slot, round, to),
            Wake::Found(plan, reached) => self.found(slot, &plan, &reached),
            Wake::Fetch(sync, tries) => self.fetch(slot, sync, tries),
            Wake::FetchAhead(number) => self.fetch_ahead(slot, number),
            Wake::Loan(sync) => self.loan(slot, sync),
            Wake::Continue => self.next_step(slot),
            Wake::Deadline(request) => self.deadline(slot, request),
            Wake::GiveUp(op) => self.give_up(slot, op),
            Wake::Mischief => self.mischief(slot),
            // A process that is down does it.
            Wake::Reconnect => {}
        }
    }

    fn beat(&mut self, slot: usize) {
        if self.clients[slot].conn.is_none() {
            return;
        }
        let stalled = self.look_at_outbound(slot);
        if self.watch_master(slot) {
            return;
        }
        let client = &mut self.clients[slot];
        client.beats += 1;
        let call = match client.call {
            Call::Connecting => CallKind::Connect,
            Call::Thinking | Call::Leaving => CallKind::None,
            Call::Pending(_) => CallKind::ArePeersPending,
            Call::Topology(_, 0) => CallKind::UpdateTopology,
            Call::Topology(..) => CallKind::WaitForWorld,
            Call::Optimizing(..) => CallKind::OptimizeTopology,
            Call::SyncVoting(_) | Call::Syncing { .. } => CallKind::Sync,
            Call::Reducing => CallKind::Collective(CollectiveKind::AllReduce),
        };
        let sequence = client.beats;
        let (mut sent, received) = self.edge_bytes(slot);
        let mut operation = None;
        if self.swarm.optimize_every > 0 {
            let runs = |work: &&TagWork| matches!(work.stage, TagStage::Running { .. });
            let op = self.clients[slot].work.values().find(runs).map(|work| work.op);
            operation = op.map(|op| CollectiveId { kind: CollectiveKind::AllReduce, op });
            // Bytes that move slowly wait; bytes that something on the way swallows are acknowledged.
            let (me, slow) = (self.clients[slot].peer, self.clients[slot].slow_until > self.now);
            sent.retain(|bytes| {
                !slow || me.is_some_and(|me| self.is_swallowed((me, bytes.peer, bytes.generation)))
            });
        }
        let moved_bytes = self.moved_bytes(slot);
        let beat =
            Beat { sequence, call, operation, moved_bytes, stalled, sent, received, ..Beat::default() };
        let client = &self.clients[slot];
        if client.peer.is_some() && client.call != Call::Leaving {
            self.send(slot, C2m::Beat(beat));
        }
        self.wake(slot, 1_000 * MS, Wake::Beat);
    }

    fn next_step(&mut self, slot: usize) {
        if self.clients[slot].call == Call::Thinking {
            self.ask_pending(slot);
        }
    }

    fn ask_pending(&mut self, slot: usize) {
        let request = self.clients[slot].request();
        self.clients[slot].call = Call::Pending(request);
        self.send(slot, C2m::VotePending(request));
        self.limit(slot, request);
    }

    /// The caller has a limit for this call, now and then. Whether it does comes from numbers of its own, so that
    /// the rest of a seed stays as it was.
    pub(crate) fn limit(&mut self, slot: usize, request: RequestId) {
        let life = u64::from(self.clients[slot].life);
        let mut rng = Rng::new(self.seed ^ (slot as u64) << 32 ^ request.0 << 40 ^ life << 20 ^ 0x5eed_000a);
        if !self.healing && rng.percent(self.swarm.limits) {
            let patience = rng.range(MS, 3_000 * MS);
            self.wake(slot, patience, Wake::Deadline(request));
        }
    }

    fn vote_topology(&mut self, slot: usize, wait_for_world: u32) {
        let request = self.clients[slot].request();
        self.clients[slot].call = Call::Topology(request, wait_for_world);
        self.send(slot, C2m::VoteTopology(VoteTopology { request, wait_for_world }));
        let longest = self.swarm.topology_deadline;
        if longest > 0 {
            let patience = self.rng.range(longest / 4, longest);
            self.wake(slot, patience, Wake::Deadline(request));
        }
    }

    pub(crate) fn after_query(&mut self, slot: usize, pending: bool) {
        if pending {
            self.vote_topology(slot, 0);
        } else {
            self.after_topology(slot);
        }
    }

    /// Every peer decides this from the sizes of one instant, so all of them decide it alike.
    fn after_topology(&mut self, slot: usize) {
        let wanted = self.swarm.wait_for_world;
        if self.clients[slot].sizes.global < wanted {
            self.vote_topology(slot, wanted);
        } else {
            self.begin_sync(slot);
        }
    }

    /// The caller gives up. Whether others had counted on the vote is for the master to say.
    fn deadline(&mut self, slot: usize, request: RequestId) {
        match self.clients[slot].call {
            Call::Topology(mine, _) | Call::Pending(mine) | Call::Optimizing(mine, _) if mine == request => {
                self.send(slot, C2m::WithdrawVote(request));
            }
            Call::SyncVoting(mine) | Call::Syncing { request: mine, .. } if mine == request => {
                if let Some(me) = self.clients[slot].peer {
                    self.ledger.gave_up_sync(me);
                }
                let vote = VoteRef::Sync(request);
                self.send(slot, C2m::GiveUp(GiveUp { vote, limit_ms: Some(LIMIT_MS) }));
            }
            _ => {}
        }
    }

    pub(crate) fn receive(&mut self, slot: usize, packet: M2c) {
        // A hostile client remembers none of its votes; one that leaves is through with them.
        let deaf = self.clients[slot].hostile || self.clients[slot].call == Call::Leaving;
        let ears = matches!(
            packet,
            M2c::Registered(_) | M2c::GroupPlan(_) | M2c::Admitted(_) | M2c::Kicked(_) | M2c::Goodbye(_)
        );
        let asks = matches!(packet, M2c::ReachPlan(_)) && !self.clients[slot].hostile;
        if deaf && !ears && !asks {
            return;
        }
        match packet {
            M2c::Registered(answer) => {
                self.clients[slot].peer = Some(answer.peer);
                self.want_ahead(slot);
            }
            M2c::Kicked(KickReason { code: KickCode::Operator, .. }) => {
                // It does not come back.
                self.clients[slot].told = true;
                self.clients[slot].call = Call::Leaving;
            }
            M2c::Kicked(_) | M2c::Goodbye(_) => self.clients[slot].told = true,
            M2c::Status(_) | M2c::Warning(_) => {}
            M2c::ReachPlan(plan) => self.try_to_reach(slot, plan),
            M2c::GroupPlan(plan) => self.take_plan(slot, plan),
            M2c::Sizes(sizes) => self.clients[slot].sizes = sizes,
            M2c::Admitted(sizes) => {
                let client = &mut self.clients[slot];
                assert!(!client.admitted, "seed {}: admitted twice", self.seed);
                client.admitted = true;
                client.sizes = sizes;
                if !client.hostile && client.call == Call::Connecting {
                    self.after_topology(slot);
                }
            }
            M2c::TopologyDone(done) => {
                if let Call::Topology(mine, _) = self.clients[slot].call {
                    assert_eq!(mine, done.request, "seed {}: an answer to no vote", self.seed);
                    self.clients[slot].sizes = done.sizes;
                    self.clients[slot].wrong_call = WrongCall::No;
                    self.after_topology(slot);
                }
            }
            M2c::VoteWithdrawn(answer) => {
                self.taken_back(slot, answer.request);
            }
            M2c::TopologyProgress(_) | M2c::Echo(_) => {}
            M2c::Rates(_) | M2c::Examined(_) | M2c::Returned(_) | M2c::Received(_) => {}
            M2c::Append(_) | M2c::Copies(_) | M2c::StandsBy(_) | M2c::Claim(_) => {}
            M2c::PendingAnswer(answer) => {
                if self.clients[slot].call == Call::Pending(answer.request) && !self.optimizes(slot, answer) {
                    self.after_query(slot, answer.pending);
                }
            }
            M2c::StateAhead(plan) => self.state_ahead(slot, plan),
            M2c::GroupFormed(_) | M2c::FormFailed(_) => panic!("seed {}: nobody forms groups", self.seed),
            M2c::Keys(_) | M2c::Tickets(_) => panic!("seed {}: the state knows no keys", self.seed),
            M2c::Call(_) => panic!("seed {}: nobody asks to be dialed", self.seed),
            M2c::ProbePlan(plan) => self.probe(slot, plan),
            M2c::OptimizeDone(done) => self.optimized(slot, &done),
            M2c::Stale(stale) => self.stale(slot, stale),
            M2c::TooFewPeers(few) => self.too_few(slot, few),
            M2c::Commence(commence) => self.commence(slot, &commence),
            M2c::Outcome(outcome) => self.outcome(slot, outcome),
            M2c::SyncPlan(plan) => self.sync_plan(slot, plan),
            M2c::SyncOutcome(outcome) => self.sync_outcome(slot, outcome),
        }
    }

    /// A vote is gone. The caller calls again: to go on with something else would leave the others waiting.
    fn taken_back(&mut self, slot: usize, request: RequestId) {
        self.withdrawals += 1;
        let client = &mut self.clients[slot];
        let call = client.call.clone();
        let is_mine = matches!(call, Call::Topology(mine, _) | Call::Optimizing(mine, _) if mine == request);
        let wrong = is_mine.then(|| std::mem::replace(&mut client.wrong_call, WrongCall::No));
        match (wrong, call) {
            (Some(WrongCall::InsteadOfSync), _) => self.begin_sync(slot),
            (Some(WrongCall::InsteadOfCollectives), _) => self.begin_collectives(slot),
            (Some(_), Call::Topology(_, wait_for_world)) => self.vote_topology(slot, wait_for_world),
            (Some(_), Call::Optimizing(_, pending)) => self.vote_optimize(slot, pending),
            (_, Call::Pending(mine)) if mine == request => self.ask_pending(slot),
            _ => {}
        }
    }

    fn stale(&mut self, slot: usize, stale: Stale) {
        let client = &self.clients[slot];
        assert!(client.epoch() >= stale.epoch, "seed {}: stale before its ring", self.seed);
        match stale.vote {
            VoteRef::Sync(request) if client.call == Call::SyncVoting(request) => self.begin_sync(slot),
            VoteRef::Collective(op) if client.work.get(&op.tag).is_some_and(|work| work.op == op) => {
                self.vote_collective(slot, op.tag);
            }
            VoteRef::Sync(_) | VoteRef::Collective(_) | VoteRef::Forming(_) => {}
        }
    }

    fn too_few(&mut self, slot: usize, few: TooFewPeers) {
        let client = &mut self.clients[slot];
        match few.vote {
            VoteRef::Sync(request) if client.call == Call::SyncVoting(request) => {
                client.synced = false;
                self.begin_collectives(slot);
            }
            VoteRef::Collective(op) => {
                if let Some(work) = client.work.get_mut(&op.tag).filter(|work| work.op == op) {
                    work.stage = TagStage::Finished(false);
                    self.finish_if_done(slot);
                }
            }
            VoteRef::Sync(_) | VoteRef::Forming(_) => {}
        }
    }

    pub(crate) fn begin_sync(&mut self, slot: usize) {
        if self.calls_something_else(slot, WrongCall::InsteadOfSync) {
            return;
        }
        let diverges = !self.healing && self.rng.percent(self.swarm.diverge) && self.rng.percent(30);
        let noise = u128::from(self.rng.next());
        let strategies = self.swarm.strategies;
        let mismatch = !self.healing && self.rng.percent(self.swarm.mismatch);
        let client = &mut self.clients[slot];
        let request = client.request();
        client.call = Call::SyncVoting(request);
        client.serving = None;
        client.lent = None;
        client.sync_plan = None;
        client.staged.clear();
        if diverges {
            client.content.insert("weight".to_owned(), noise);
        }
        let strategy = match (strategies && !client.popular_only, client.first_sync) {
            (false, _) => SyncStrategy::EnforcePopular,
            (true, true) => SyncStrategy::ReceiveOnly,
            (true, false) => SyncStrategy::SendOnly,
        };
        let entry = |(key, loose): &(&str, bool)| StateEntry {
            key: Key::new(*key),
            count: 8,
            data_type: DataType::Float32,
            allow_inequality: *loose,
            digest: Digest128::from_u128(client.content[*key]),
        };
        let entries = KEYS.iter().map(entry).collect();
        let (epoch, revision) = (client.epoch(), Revision(client.revision));
        let mut vote = SyncInitiate { request, epoch, revision, strategy, entries, offered: None };
        if mismatch {
            self.make_odd(&mut vote);
        }
        let strict = vote.entries.iter().filter(|entry| !entry.allow_inequality);
        self.clients[slot].strict = strict.map(|entry| entry.key.as_str().to_owned()).collect();
        self.send(slot, C2m::SyncInitiate(vote));
        self.limit(slot, request);
    }

    fn sync_plan(&mut self, slot: usize, plan: SyncPlanFor) {
        let client = &mut self.clients[slot];
        assert_eq!(client.call, Call::SyncVoting(plan.request), "seed {}: a plan for nothing", self.seed);
        let sync = plan.plan.sync;
        client.call = Call::Syncing { request: plan.request, sync, fetched: false };
        // A client that fetches gives nothing.
        client.serving = plan.plan.fetch.is_empty().then_some(sync);
        client.sync_plan = Some(plan.plan);
        client.fetch_failures.clear();
        let delay = self.delay();
        self.wake(slot, delay, Wake::Fetch(sync, 0));
    }

    fn sync_outcome(&mut self, slot: usize, answer: SyncOutcomeFor) {
        let client = &mut self.clients[slot];
        match client.call {
            Call::Syncing { request, .. } | Call::SyncVoting(request) if request == answer.request => {}
            _ => panic!("seed {}: an outcome for nothing: {answer:?}", self.seed),
        }
        let synced = client.sync_plan.as_ref().map(|plan| plan.sync);
        client.serving = None;
        match answer.outcome {
            SyncOutcome::Committed(revision) => {
                for item in std::mem::take(&mut client.staged) {
                    client.content.insert(item.key.as_str().to_owned(), item.digest.to_u128());
                }
                client.revision = revision.0;
                client.synced = true;
                client.popular_only = false;
                client.first_sync = false;
                let conn = client.conn.expect("answers come over a connection");
                let content = client.strict_content();
                self.checker.committed(conn, answer.request, revision, content);
                synced.into_iter().for_each(|sync| self.committed_here(slot, sync));
                self.begin_collectives(slot);
            }
            SyncOutcome::Failed(Verdict { cause: Cause::ResumeWaits | Cause::StateLost, .. }) => {
                // Lets in who waits, and tries again.
                client.synced = false;
                client.call = Call::Thinking;
                self.wake(slot, PAUSE, Wake::Continue);
            }
            SyncOutcome::Failed(verdict) => {
                let client = &mut self.clients[slot];
                client.popular_only |= verdict.cause == Cause::MismatchedCall;
                self.begin_sync(slot);
            }
        }
    }

    fn begin_collectives(&mut self, slot: usize) {
        if self.calls_something_else(slot, WrongCall::InsteadOfCollectives) {
            return;
        }
        self.clients[slot].call = Call::Reducing;
        self.clients[slot].work.clear();
        for tag in 0..self.swarm.tags {
            self.vote_collective(slot, tag.into());
        }
    }

    fn vote_collective(&mut self, slot: usize, tag: Tag) {
        let odd = !self.healing && self.rng.percent(self.swarm.mismatch);
        let gives_up = !self.healing && self.rng.percent(self.swarm.give_up);
        let client = &self.clients[slot];
        let attempt = client.attempts.get(&tag).copied().unwrap_or(0);
        let op = OpId { epoch: client.epoch(), tag, attempt };
        let (group, ring) = (client.group, client.plan.as_ref());
        let members: Vec<PeerId> = ring.iter().flat_map(|plan| plan.members.iter().map(|m| m.peer)).collect();
        let (ranks, paths) = ring.map_or((0, Paths::default()), |plan| (plan.members.len(), plan.paths));
        let descriptor =
            if odd { self.odd_descriptor(group, op, &members) } else { self.descriptor(group, op, &members) };
        let algorithm = descriptor.algorithm_for(ranks, paths);
        self.clients[slot].work.insert(tag, TagWork { op, algorithm, stage: TagStage::Voting });
        let has_begun = self.begins_early(slot, op, algorithm);
        if has_begun {
            self.begin(slot, op, algorithm);
        }
        self.send(slot, C2m::Initiate(Initiate { op, descriptor, has_begun }));
        if gives_up {
            let patience = self.rng.range(10 * MS, 2_000 * MS);
            self.wake(slot, patience, Wake::GiveUp(op));
        }
    }

    fn give_up(&mut self, slot: usize, op: OpId) {
        let stage = self.clients[slot].work.get(&op.tag).filter(|work| work.op == op).map(|work| &work.stage);
        if stage.is_some_and(|stage| !matches!(stage, TagStage::Finished(_))) {
            if let Some(me) = self.clients[slot].peer {
                self.ledger.acted(op, me, Act::GaveUp);
            }
            let limit_ms = (op.tag.number ^ u64::from(op.attempt)).is_multiple_of(2).then_some(LIMIT_MS);
            self.send(slot, C2m::GiveUp(GiveUp { vote: VoteRef::Collective(op), limit_ms }));
        }
    }

    /// Whether a process sends its small contribution before all have voted: only while all of its edges stand. Whether
    /// it does comes from numbers of its own, so that the rest of a seed stays as it was.
    fn begins_early(&self, slot: usize, op: OpId, algorithm: Algorithm) -> bool {
        let number =
            self.seed ^ (slot as u64) << 32 ^ op.epoch.0 << 16 ^ u64::from(op.attempt) ^ 0x0ea7_0000_0000;
        let is_small =
            matches!(algorithm, Algorithm::AllGather | Algorithm::Direct | Algorithm::ReduceBroadcast);
        let mut edges = self.all_edges(slot);
        if !algorithm.uses_mesh() {
            edges.truncate(2);
        }
        let stands = !edges.is_empty() && edges.iter().all(|edge| self.edges_up.contains(edge));
        is_small && stands && Rng::new(number).percent(self.swarm.early)
    }

    fn commence(&mut self, slot: usize, commence: &Commence) {
        let (op, algorithm) = (commence.op, commence.algorithm);
        let work = self.clients[slot].work.get(&op.tag).filter(|work| work.op == op);
        let is_waiting = work.is_some_and(|work| work.stage == TagStage::Voting);
        assert!(is_waiting, "seed {}: s{slot} was told to begin {op}, for which it does not wait", self.seed);
        self.begin(slot, op, algorithm);
    }

    /// The contribution of a process goes out.
    fn begin(&mut self, slot: usize, op: OpId, algorithm: Algorithm) {
        let mesh = if algorithm.uses_mesh() { self.mesh_edges(slot) } else { Vec::new() };
        assert!(
            !algorithm.uses_mesh() || !mesh.is_empty(),
            "seed {}: s{slot} is to use a mesh, but has none",
            self.seed
        );
        let client = &mut self.clients[slot];
        assert_eq!(client.epoch(), op.epoch, "seed {}: began outside its ring", self.seed);
        let (ring, me) = (client.edges(), client.peer);
        let members: Vec<PeerId> =
            client.plan.iter().flat_map(|plan| plan.members.iter().map(|m| m.peer)).collect();
        let work = client.work.get_mut(&op.tag).filter(|work| work.op == op);
        let (Some(work), Some((inbound, outbound)), Some(me)) = (work, ring, me) else {
            panic!("seed {}: s{slot} began {op} without a vote or a ring", self.seed);
        };
        assert_eq!(work.algorithm, algorithm, "seed {}: s{slot} knew better how {op} goes", self.seed);
        if work.stage == TagStage::Voting {
            let edges: Vec<EdgeKey> = [inbound, outbound].into_iter().chain(mesh).collect();
            work.stage = TagStage::Running { algorithm, edges: edges.clone(), members: members.clone() };
            self.started.insert((op, me));
            self.send_first(op, algorithm, me, &members, &edges);
            let more = if self.healing { 0 } else { self.strikes.below(self.swarm.transfer + 1) };
            let delay = self.rng.range(MS, 120 * MS) + more;
            self.wake(slot, delay, Wake::Progress(op));
        }
    }

    fn outcome(&mut self, slot: usize, packet: OpOutcome) {
        let op = packet.op;
        let client = &mut self.clients[slot];
        if op.epoch >= client.counted_since() {
            client.attempts.insert(op.tag, op.attempt + 1);
        }
        let Some(work) = client.work.get_mut(&op.tag).filter(|work| work.op == op) else {
            panic!("seed {}: s{slot} got an outcome of {op}, for which it did not vote", self.seed);
        };
        match packet.outcome {
            Outcome::Done(_) => {
                let clean = work.stage == TagStage::Completed(true);
                assert!(clean, "seed {}: {op} is done, but s{slot} is at {:?}", self.seed, work.stage);
                work.stage = TagStage::Finished(true);
                self.finish_if_done(slot);
            }
            Outcome::Aborted(_) => self.vote_collective(slot, op.tag),
        }
    }

    fn finish_if_done(&mut self, slot: usize) {
        let think = self.rng.below(self.swarm.think + 1);
        let noise = u128::from(self.rng.next());
        let client = &mut self.clients[slot];
        let done = |work: &TagWork| matches!(work.stage, TagStage::Finished(_));
        if client.call != Call::Reducing || !client.work.values().all(done) {
            return;
        }
        let results: Vec<bool> =
            client.work.values().map(|work| work.stage == TagStage::Finished(true)).collect();
        client.work.clear();
        if client.synced {
            client.revision += 1;
            // A deterministic step of training: equal before, equal after.
            let seen = results.iter().fold(1, |sum, done| sum * 2 + u128::from(*done));
            for (key, loose) in KEYS {
                let old = client.content[key];
                let new = if loose { noise } else { old.wrapping_mul(31).wrapping_add(seen) };
                client.content.insert(key.to_owned(), new);
            }
        }
        client.steps += 1;
        client.call = Call::Thinking;
        let think = if self.swarm.straggler == 0 && !self.healing && self.clients[slot].slow_until > self.now
        {
            // Nobody is dropped for computing.
            self.clients[slot].slow_until - self.now
        } else {
            think
        };
        let think = think + self.doze(slot);
        self.wake(slot, think, Wake::Continue);
    }

    /// Where stragglers are dropped, an application sometimes computes for longer than that allows. Whether it does
    /// comes from numbers of its own, so that the rest of a seed stays as it was.
    fn doze(&mut self, slot: usize) -> u64 {
        let client = &mut self.clients[slot];
        let mut rng = Rng::new(self.seed ^ (slot as u64) << 32 ^ client.steps << 40 ^ u64::from(client.life));
        if self.swarm.straggler == 0 || self.healing || !rng.percent(2) {
            return 0;
        }
        let time = self.swarm.straggler / 2 + rng.below(self.swarm.straggler);
        self.blame(slot, Deed::Dozed, time);
        time
    }
}
