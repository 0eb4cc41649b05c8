//! A master and the mailboxes of its clients. Client numbers are chosen by the test; time moves only when told to.

use crate::state::{Action, ClientKey, IdSource, Input, MasterState, Options, PlanKey, Timestamp};
use core::net::{IpAddr, Ipv4Addr};
use pccl_planner::Job;
use pccl_protocol::*;
use pccl_quant::{DataType, ReduceOp};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

struct Counter(u128);

impl IdSource for Counter {
    fn peer_id(&mut self, _nth: u64) -> PeerId {
        self.0 += 1;
        PeerId(self.0 << 96)
    }
}

pub(super) fn ip(last: u64) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, last as u8))
}

pub(super) fn register(group: u32) -> Register {
    Register {
        group: GroupId(group),
        advertised_host: None,
        addresses: Vec::new(),
        p2p_port: 1000,
        state_port: 2000,
        pool_connections: 2,
        name: Name::default(),
        previous: None,
        formed: false,
        alone: false,
        resume: None,
        outbound_only: None,
        site: Name::default(),
    }
}

pub(super) fn descriptor(count: u64) -> Descriptor {
    let part = PartDescriptor::new(count, DataType::Float32, ReduceOp::Sum);
    Descriptor::all_reduce(vec![part], Algorithm::Automatic)
}

/// Pairs that do not reach each other, and who says so.
type Missing = (BTreeSet<(u64, u64)>, Vec<u64>);

pub(super) struct Rig {
    pub(super) state: MasterState,
    pub(super) now: Timestamp,
    pub(super) mail: BTreeMap<u64, VecDeque<M2c>>,
    pub(super) closed: BTreeSet<u64>,
    pub(super) peers: BTreeMap<u64, PeerId>,
    pub(super) plans: BTreeMap<u64, GroupPlan>,
    /// Rings that are to be planned.
    pub(super) jobs: BTreeMap<PlanKey, (Job, bool)>,
    /// Peers whose listeners are to be tried.
    pub(super) tried: Vec<ReachTarget>,
    /// Edges that these clients find missing when they are asked whom they reach; others do not answer.
    pub(super) missing: Option<Missing>,
    /// All listeners that are tried are reached, at once.
    pub(super) answers_for_ports: bool,
    /// Lines for the log.
    pub(super) logged: Vec<String>,
    confirmed: BTreeMap<u64, GroupEpoch>,
    groups: BTreeMap<u64, u32>,
    /// Connections that members ask for.
    pub(super) pool: u16,
    /// Clients that are in calls with a limit.
    pub(super) limited: BTreeSet<u64>,
}

impl Rig {
    pub(super) fn new() -> Self {
        Self::with(|_| {})
    }

    pub(super) fn with(change: impl FnOnce(&mut Options)) -> Self {
        let mut options = Options::new(RunId(7));
        change(&mut options);
        Self {
            state: MasterState::new(options, Box::new(Counter(0))),
            now: Timestamp::from_millis(1_000_000),
            mail: BTreeMap::new(),
            closed: BTreeSet::new(),
            peers: BTreeMap::new(),
            plans: BTreeMap::new(),
            jobs: BTreeMap::new(),
            tried: Vec::new(),
            missing: None,
            answers_for_ports: true,
            logged: Vec::new(),
            confirmed: BTreeMap::new(),
            groups: BTreeMap::new(),
            pool: register(0).pool_connections,
            limited: BTreeSet::new(),
        }
    }

    /// As [`Rig::world`]; the master has not found out yet whether others can dial anybody.
    pub(super) fn untested(size: u64) -> Self {
        let mut rig = Self::with(|options| options.require_reachable = true);
        rig.answers_for_ports = false;
        rig.join(&(1..=size).collect::<Vec<_>>(), 0);
        rig
    }

    /// Clients 1.. of group 0, all accepted, mailboxes empty.
    pub(super) fn world(size: u64) -> Self {
        let mut rig = Self::new();
        rig.join(&(1..=size).collect::<Vec<_>>(), 0);
        rig
    }

    pub(super) fn input(&mut self, input: Input) {
        self.inputs([input]);
    }

    /// These come in one turn of a loop.
    pub(super) fn inputs(&mut self, inputs: impl IntoIterator<Item = Input>) {
        let mut out = Vec::new();
        let (mut asked, mut found) = (Vec::new(), Vec::new());
        inputs.into_iter().for_each(|input| self.state.take(self.now, input, &mut out));
        self.state.settle(&mut out);
        for action in out.into_iter().flat_map(Action::split) {
            match action {
                Action::Send { client: ClientKey(n), packet } => {
                    assert!(!self.closed.contains(&n), "sent {packet:?} to {n} after closing");
                    match &packet {
                        M2c::Registered(r) => drop(self.peers.insert(n, r.peer)),
                        M2c::GroupPlan(plan) => drop(self.plans.insert(n, plan.clone())),
                        M2c::ReachPlan(plan) => asked.push((n, plan.clone())),
                        _ => {}
                    }
                    self.mail.entry(n).or_default().push_back(packet);
                }
                Action::Close { client: ClientKey(n) } => assert!(self.closed.insert(n)),
                Action::Plan { plan, job, background } => {
                    assert!(self.jobs.insert(plan, (*job, background)).is_none(), "a number was used twice");
                }
                Action::Reach { target, .. } => {
                    found.push(target.peer);
                    self.tried.push(target);
                }
                Action::DropPlan { plan } => drop(self.jobs.remove(&plan)),
                Action::Log { text, .. } => self.logged.push(text),
                Action::SendAll { .. } => {}
            }
        }
        self.state.check_invariants();
        for (n, plan) in asked {
            self.say_whom_it_reaches(n, &plan);
        }
        found.retain(|peer| self.answers_for_ports && self.peers.values().any(|id| id == peer));
        for peer in found {
            self.input(Input::Reached { peer, closed: Vec::new(), unix_us: 0 });
        }
    }

    fn say_whom_it_reaches(&mut self, n: u64, plan: &ReachPlan) {
        let Some((missing, who)) = self.missing.clone() else { return };
        if !who.contains(&n) || self.closed.contains(&n) {
            return;
        }
        let fails = |peer: &PeerId| missing.iter().any(|(from, to)| *from == n && self.peers[to] == *peer);
        let failed = plan.targets.iter().filter(|target| fails(&target.peer));
        let text = Text::new("connection refused");
        let unreached = failed.map(|t| Unreached { peer: t.peer, is_state: false, text: text.clone() });
        let (check, unreached) = (plan.check, unreached.collect());
        let epoch = self.epoch(n);
        self.send(n, C2m::ReachReport(ReachReport { check, epoch, unreached }));
    }

    pub(super) fn connect(&mut self, n: u64) {
        self.input(Input::Connected { client: ClientKey(n), remote: ip(n), local: ip(250) });
    }

    pub(super) fn send(&mut self, n: u64, packet: C2m) {
        self.input(Input::Packet { client: ClientKey(n), packet });
    }

    pub(super) fn register(&mut self, n: u64, group: u32) {
        self.connect(n);
        self.groups.insert(n, group);
        self.send(n, C2m::Register(Register { pool_connections: self.pool, ..register(group) }));
    }

    pub(super) fn die(&mut self, n: u64) {
        self.input(Input::Disconnected { client: ClientKey(n), text: "connection reset".into() });
        self.closed.insert(n);
    }

    /// The connections of several end in one turn of a loop.
    pub(super) fn die_together(&mut self, clients: &[u64]) {
        let end = |n: &u64| Input::Disconnected { client: ClientKey(*n), text: "connection reset".into() };
        self.inputs(clients.iter().map(end).collect::<Vec<_>>());
        self.closed.extend(clients);
    }

    /// Every living client confirms its latest plan.
    pub(super) fn confirm_all(&mut self) {
        for n in self.plans.keys().copied().collect::<Vec<_>>() {
            self.confirm(n);
        }
    }

    pub(super) fn confirm(&mut self, n: u64) {
        let epoch = self.plans[&n].epoch;
        if !self.closed.contains(&n) && self.confirmed.get(&n) != Some(&epoch) {
            self.confirmed.insert(n, epoch);
            self.up(n, Purpose::Ring);
        }
    }

    /// A client says that its edges for one purpose stand.
    pub(super) fn up(&mut self, n: u64, purpose: Purpose) {
        let report = EdgeReport::all_up(&self.plans[&n], self.peers[&n], &[purpose]);
        self.send(n, C2m::EdgeReport(report));
    }

    /// A client says that this edge could not be built, or broke.
    pub(super) fn broken(&mut self, n: u64, fault: EdgeFault) {
        self.send(n, broken(self.epoch(n), fault));
    }

    pub(super) fn vote_topology(&mut self, n: u64, request: u64, wait_for_world: u32) {
        let request = RequestId(request);
        self.send(n, C2m::VoteTopology(VoteTopology { request, wait_for_world }));
    }

    pub(super) fn phase(&self, n: u64) -> Option<crate::state::PeerPhase> {
        let id = self.peers.get(&n)?;
        self.state.snapshot().peers.iter().find(|p| p.peer == *id).map(|p| p.phase)
    }

    pub(super) fn accepted(&self) -> Vec<u64> {
        let all = self.peers.keys().copied();
        all.filter(|n| self.phase(*n) == Some(crate::state::PeerPhase::Accepted)).collect()
    }

    /// Registers the clients in `group` and has everybody admit them.
    pub(super) fn join(&mut self, list: &[u64], group: u32) {
        for n in list {
            self.register(*n, group);
        }
        self.confirm_all();
        for n in self.accepted() {
            self.vote_topology(n, 9000 + n, 0);
        }
        self.confirm_all();
        assert!(list.iter().all(|n| self.accepted().contains(n)), "{:?}", self.state.blocked_on());
        self.mail.clear();
    }

    /// Takes what a client has received.
    pub(super) fn take(&mut self, n: u64) -> Vec<M2c> {
        self.mail.remove(&n).unwrap_or_default().into()
    }

    /// The packets that a client has received, without plans, sizes and echoes.
    pub(super) fn answers(&mut self, n: u64) -> Vec<M2c> {
        let noise =
            |p: &M2c| matches!(p, M2c::GroupPlan(_) | M2c::Sizes(_) | M2c::Echo(_) | M2c::ReachPlan(_));
        self.take(n).into_iter().filter(|p| !noise(p)).collect()
    }

    /// The only answer that a client has received.
    pub(super) fn answer(&mut self, n: u64) -> M2c {
        let mut all = self.answers(n);
        assert_eq!(all.len(), 1, "client {n}: {all:?}");
        all.remove(0)
    }

    pub(super) fn nothing(&mut self, n: u64) {
        assert_eq!(self.answers(n), vec![], "client {n}");
    }

    pub(super) fn tick(&mut self) {
        self.input(Input::Tick);
    }

    /// Lets time pass; clients in `beating` beat every second; ticks come when they are due.
    pub(super) fn pass(&mut self, millis: u64, beating: &[u64]) {
        let end = self.now + Duration::from_millis(millis);
        let mut next_beat = self.now + Duration::from_millis(500);
        loop {
            let due = self.state.next_deadline().map_or(end, |d| d.max(self.now)).min(next_beat).min(end);
            self.now = due;
            if due >= next_beat {
                next_beat = due + Duration::from_secs(1);
                for n in beating.iter().filter(|n| !self.closed.contains(n)).copied().collect::<Vec<_>>() {
                    self.beat(n, 0);
                }
            }
            if self.state.next_deadline().is_some_and(|d| d <= self.now) {
                self.tick();
                let again = self.state.next_deadline().is_some_and(|d| d <= self.now);
                assert!(!again, "a tick left a deadline behind that is already due");
            }
            if due >= end {
                return;
            }
        }
    }

    pub(super) fn beat(&mut self, n: u64, moved_bytes: u64) {
        let call = CallKind::Collective(CollectiveKind::AllReduce);
        let limited = self.limited.contains(&n);
        let beat = Beat { sequence: 1, call, call_ms: 100, limited, moved_bytes, ..Beat::default() };
        self.send(n, C2m::Beat(beat));
    }

    pub(super) fn epoch(&self, n: u64) -> GroupEpoch {
        self.plans[&n].epoch
    }

    pub(super) fn op(&self, n: u64, tag: u64, attempt: u32) -> OpId {
        OpId { epoch: self.epoch(n), tag: tag.into(), attempt }
    }

    pub(super) fn initiate(&mut self, n: u64, op: OpId) {
        self.send(n, C2m::Initiate(Initiate { op, descriptor: descriptor(64), has_begun: false }));
    }

    pub(super) fn complete(&mut self, n: u64, op: OpId, fault: Option<OpFault>) {
        self.send(n, C2m::Complete(Complete { op, fault, moved_bytes: 100 }));
    }

    /// All accepted peers begin the collective; mailboxes are emptied before and after.
    pub(super) fn commence(&mut self, op: OpId) {
        self.commence_by(op, Algorithm::AllGather);
    }

    /// As [`Rig::commence`], by this algorithm.
    pub(super) fn commence_by(&mut self, op: OpId, algorithm: Algorithm) {
        let all = self.accepted();
        self.mail.clear();
        for n in &all {
            self.initiate(*n, op);
        }
        for n in all {
            assert_eq!(self.answer(n), M2c::Commence(Commence { op, algorithm }));
        }
    }

    pub(super) fn group(&self, group: u32) -> crate::state::GroupStatus {
        self.state.snapshot().groups.into_iter().find(|g| g.group == GroupId(group)).expect("group is there")
    }

    /// Client numbers in ring order.
    pub(super) fn ring(&self, group: u32) -> Vec<u64> {
        let number = |peer: &PeerId| *self.peers.iter().find(|(_, id)| *id == peer).expect("known").0;
        self.group(group).ring.iter().map(number).collect()
    }

    /// A caller gives up; after its limit if there is one.
    pub(super) fn give_up(&mut self, n: u64, vote: VoteRef, limit_ms: Option<u64>) {
        self.send(n, C2m::GiveUp(GiveUp { vote, limit_ms }));
    }

    /// How sentences name a peer.
    pub(super) fn name(&self, n: u64) -> String {
        let id = self.peers[&n];
        Named(id, &Name::default(), &ip(n).to_string()).to_string()
    }

    pub(super) fn fault(&self, kind: OpFaultKind, peer: Option<u64>) -> OpFault {
        OpFault {
            kind,
            peer: peer.map(|n| self.peers[&n]),
            generation: LinkGeneration(0),
            text: Text::new("broken pipe"),
        }
    }

    /// The fault of the edge between two clients in the present ring of the first.
    pub(super) fn edge(&self, from: u64, to: u64) -> EdgeFault {
        let (plan, ends) = (&self.plans[&from], (self.peers[&from], self.peers[&to]));
        let name = plan.edges_for(Purpose::Ring).find(|name| (name.from, name.to) == ends).expect("an edge");
        fault_of(name, "connection refused")
    }

    pub(super) fn kick_of(&mut self, n: u64) -> KickReason {
        let last = self.take(n).pop();
        assert!(self.closed.contains(&n), "client {n} was not closed");
        match last {
            Some(M2c::Kicked(reason)) => reason,
            other => panic!("client {n} was not kicked: {other:?}"),
        }
    }
}

/// The report that an edge could not be built, or broke.
pub(super) fn broken(epoch: GroupEpoch, fault: EdgeFault) -> C2m {
    C2m::EdgeReport(EdgeReport { epoch, up: Vec::new(), broken: vec![fault] })
}

pub(super) fn fault_of(EdgeName { from, to, generation }: EdgeName, text: &str) -> EdgeFault {
    EdgeFault { from, to, generation, forgotten: false, text: Text::new(text) }
}

/// The verdict of an aborted attempt.
pub(super) fn aborted(packet: M2c) -> Verdict {
    match packet {
        M2c::Outcome(OpOutcome { outcome: Outcome::Aborted(verdict), .. }) => verdict,
        other => panic!("not aborted: {other:?}"),
    }
}

pub(super) fn is_done(packet: &M2c) -> bool {
    matches!(packet, M2c::Outcome(OpOutcome { outcome: Outcome::Done(_), .. }))
}
