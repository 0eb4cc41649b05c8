//! Keeps the edges of this peer connected: takes plans, dials the edges that begin here and those that end here and are
//! dialed back, collects the connections of the others, tells the master which of them stand and which do not, and
//! votes again for operations whose epoch ended.
//!
//! Every edge goes the same way, whatever it is for. The thread only waits for events; dials run on threads of their
//! own. So a death in the group is repaired whatever the callers do, and a plan that is overtaken by a newer one is
//! dropped at once.

use super::{
    Shared,
    edge::{Dialed, Edge, Side},
    edges::{self, Waiting},
    event::Event,
    reach,
};
use crate::{
    collective::{links::Name, op::Op, operations::Operations, progress::link_fault, table::LinkDirectory},
    flight, relay,
    world::Identity,
};
use crossbeam_channel::{Receiver, Sender};
use log::Level;
use pccl_flight::{Event as Record, Subject, What};
use pccl_protocol::{
    C2m, EdgeFault, EdgeName, EdgeReport, GroupEpoch, GroupPlan, LinkGeneration, Member, Pair, PeerId,
    PlanEdge, Purpose, Text,
};
use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Weak},
    time::Duration,
};
use tinysockets::{
    conn::Conn,
    key::RunKeys,
    link::{
        Direction, FaultKind, InConfig, InLink, LinkEvents, LinkFault, OutConfig, OutLink, tune_data_socket,
    },
    preamble::Role,
};

/// Scratch memory of an RX thread: small enough to stay in the L2 cache with the memory that it is folded into.
const SCRATCH_BYTES: usize = 128 << 10;

/// A peer that is there answers within this time.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(3);

/// Runs until the session ends.
pub(crate) fn run(shared: &Weak<Shared>, me: Identity, events: &Receiver<Event>) {
    let mut conductor = Conductor {
        me,
        plan: None,
        ends: Ends::new(),
        waiting: Waiting::default(),
        news: EdgeReport { epoch: GroupEpoch(0), up: Vec::new(), broken: Vec::new() },
        ring_stands: false,
        listens: false,
        held: Vec::new(),
    };
    // The session keeps a sender, and sends `Stop` before it lets go of it.
    while let Ok(event) = events.recv() {
        let Some(shared) = shared.upgrade() else { break };
        if matches!(event, Event::Stop) {
            conductor.close_ends(&shared, |_, _| false);
            break;
        }
        conductor.handle(&shared, event);
        // Events that have come at the same time are told in one packet.
        if events.is_empty() {
            conductor.report(&shared);
        }
    }
}

struct Conductor {
    me: Identity,
    plan: Option<Arc<GroupPlan>>,
    ends: Ends,
    waiting: Waiting,
    /// News of the edges that the master has yet to hear.
    news: EdgeReport,
    /// All edges of the ring that touch this peer stand.
    ring_stands: bool,
    /// The other ends of silent edges are being tried.
    listens: bool,
    /// Operations that vote when that is over.
    held: Vec<Arc<Op>>,
}

/// The ends of edges at this peer; whether this is the sending end, and the name of the edge.
type Ends = BTreeMap<(bool, Name), End>;

struct End {
    state: State,
    connections: u16,
    purpose: Purpose,
    /// This end makes the connections.
    dials: bool,
    /// They go through the relay.
    relayed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Being dialed, or awaited.
    Building,
    /// There is a link.
    Up,
    /// It could not be built, or broke. Another generation takes its place, if the master wants one.
    Broken,
}

impl Conductor {
    fn handle(&mut self, shared: &Arc<Shared>, event: Event) {
        match event {
            Event::Plan(plan) => self.take_plan(shared, plan),
            Event::Reach(plan) => {
                let epoch = self.plan.as_ref().map_or_else(GroupEpoch::default, |known| known.epoch);
                let me = (self.me, shared.config.group);
                let key = shared.config.run_keys.as_ref().map(RunKeys::oldest);
                reach::answer(&shared.control, me, key, epoch, plan);
            }
            Event::Inbound(preamble, conn) => {
                log::trace!("connection {} from peer {}", preamble.connection_index, PeerId(preamble.from));
                self.waiting.add(preamble, conn);
                self.collect(shared);
            }
            Event::Dialed(dialed) => self.take_dialed(shared, dialed),
            Event::Broken(fault) => self.take_broken(shared, &fault),
            Event::Listen => self.listen(shared),
            Event::Heard(reached) => self.take_heard(shared, &reached),
            Event::Begin(op) => {
                self.listen(shared);
                self.held.push(op);
                self.let_vote(shared);
            }
            Event::Revote(op) => {
                // It may have waited for just what there is to be told.
                self.report(shared);
                op.vote();
            }
            Event::Send(packet) => shared.control.send(&packet),
            Event::Stop => {}
        }
    }

    /// Dials what is new in a plan, and closes what is not in it any more.
    fn take_plan(&mut self, shared: &Arc<Shared>, plan: Arc<GroupPlan>) {
        let Some(rank) = plan.rank_of(self.me.peer) else { return };
        if self.plan.as_ref().is_some_and(|known| plan.epoch <= known.epoch) {
            return;
        }
        log::debug!("plan of epoch {}: rank {rank} of {}", plan.epoch, plan.members.len());
        let wanted = ends_of(&plan, rank);
        self.close_ends(shared, |is_out, name| wanted.contains_key(&(is_out, name)));
        for ((is_out, name), (edge, other)) in wanted {
            let known = self.ends.entry((is_out, name)).and_modify(|end| end.purpose = edge.purpose);
            known.or_insert_with(|| {
                let end = End {
                    state: State::Building,
                    connections: edge.connections,
                    purpose: edge.purpose,
                    dials: is_out != edge.back,
                    relayed: edge.relayed,
                };
                if edge.short_segments {
                    shared.told.ways.needs_short_segments(PeerId(name.0));
                }
                if edge.relayed {
                    warn_of_relay(self.me.peer, is_out, name);
                }
                if end.dials {
                    let (side, target) = ((end.side(is_out, name), edge.relayed), &plan.members[other]);
                    let from = (&*shared.config, &*shared.told);
                    edges::dial(from, self.me, plan.epoch, side, target, &shared.conductor);
                } else if let Some(relay) = shared.told.relay.get().filter(|_| edge.relayed) {
                    let what = relay::Purpose { role: Role::Data, generation: name.1, index: 0 };
                    relay.expect(PeerId(name.0), what);
                }
                end
            });
        }
        let epoch = plan.epoch;
        self.plan = Some(plan);
        self.collect(shared);
        let awaited: Vec<Side> = self.awaited().map(|((is_out, name), end)| end.side(is_out, name)).collect();
        self.waiting.forget_before(epoch, &awaited);
    }

    /// The ends whose connections the others dial.
    fn awaited(&self) -> impl Iterator<Item = ((bool, Name), &End)> {
        self.ends.iter().filter(|(_, end)| !end.dials).map(|(name, end)| (*name, end))
    }

    /// Makes links of the connections that have come.
    fn collect(&mut self, shared: &Arc<Shared>) {
        let awaited = self.awaited().filter(|(_, end)| end.state == State::Building);
        let awaited: Vec<Side> = awaited.map(|((is_out, name), end)| end.side(is_out, name)).collect();
        for side in awaited {
            let Some(conns) = self.waiting.take(&side) else { continue };
            if side.is_out {
                // As who dials has done with its end.
                for conn in &conns {
                    tune_data_socket(conn, conn.round_trip());
                }
            }
            self.start_link(shared, side, conns);
        }
    }

    fn take_dialed(&mut self, shared: &Arc<Shared>, Dialed { side, result }: Dialed) {
        let end = (side.is_out, side.edge.name());
        if self.ends.get(&end).is_none_or(|end| end.state != State::Building) {
            return;
        }
        match result {
            Ok(conns) => self.start_link(shared, side, conns),
            Err(text) => {
                let host = self.member(side.edge.peer).map_or("it", |member| member.hosts.as_str());
                let text = format!("cannot connect to {host}: {text}");
                self.fails(shared, end, (Level::Warn, false), text);
            }
        }
    }

    /// A member of the newest plan.
    fn member(&self, peer: u128) -> Option<&Member> {
        let plan = self.plan.as_ref()?;
        plan.members.get(plan.rank_of(PeerId(peer))?)
    }

    /// All connections of an end are here.
    fn start_link(&mut self, shared: &Arc<Shared>, side: Side, conns: Vec<Conn>) {
        let name = side.edge.name();
        let links = &shared.operations.links;
        let in_memory = conns.iter().filter(|conn| conn.is_shared()).count();
        if in_memory > 0 {
            let EdgeName { from, to, .. } = self.edge_name(side.is_out, name);
            log::debug!("edge {from} -> {to}: {in_memory} of {} connections through memory", conns.len());
        }
        let started = match side.is_out {
            true => self.start_out(shared, side, conns).map(|link| links.add_out(name, link)),
            false => self.start_in(shared, side, conns).map(|link| links.add_in(name, link)),
        };
        match started {
            Ok(()) => self.stands(side.is_out, name),
            Err(error) => {
                let text = format!("cannot start the link: {error}");
                self.fails(shared, (side.is_out, name), (Level::Warn, false), text);
            }
        }
    }

    fn start_in(&self, shared: &Arc<Shared>, side: Side, conns: Vec<Conn>) -> io::Result<Arc<InLink>> {
        let pair = Pair { from: PeerId(side.edge.peer), to: self.me.peer };
        let directory = Arc::new(LinkDirectory::new(shared.operations.table.clone(), pair));
        let config = InConfig {
            peer: side.edge.peer,
            generation: side.edge.generation,
            scratch_bytes: SCRATCH_BYTES,
            events: events(shared),
            name: "pccl".into(),
        };
        InLink::start(conns, config, directory)
    }

    fn start_out(&self, shared: &Arc<Shared>, side: Side, conns: Vec<Conn>) -> io::Result<Arc<OutLink>> {
        let purpose = self.ends.get(&(true, side.edge.name())).map(|end| end.purpose);
        let members = self.member(self.me.peer.0).zip(self.member(side.edge.peer));
        // Of an edge that is in no plan any more nothing is sent.
        let has_checksums =
            members.is_none_or(|(own, other)| edges::wants_checksums(&shared.config, self.me, own, other));
        let config = OutConfig {
            peer: side.edge.peer,
            generation: side.edge.generation,
            has_checksums,
            events: events(shared),
            name: if purpose == Some(Purpose::Ring) { "pccl".into() } else { "pccl-m".into() },
        };
        OutLink::start(conns, config)
    }

    fn take_broken(&mut self, shared: &Arc<Shared>, fault: &LinkFault) {
        fail_running(&shared.operations, fault);
        let end = (fault.direction == Direction::Out, (fault.peer, fault.generation));
        if self.ends.get(&end).is_some_and(|end| end.state == State::Up) {
            // A peer that leaves on purpose ends its connections like this, too, and an idle one is built anew. If an
            // operation suffers from it, the verdict is logged as a warning.
            let forgotten = fault.kind == FaultKind::Forgotten;
            let level = if fault.kind == FaultKind::Eof || forgotten { Level::Info } else { Level::Warn };
            self.fails(shared, end, (level, forgotten), fault.text.clone());
        }
    }

    /// Tries the other ends of edges on which nothing passes while nothing is under way. An outage passes; a
    /// connection that somebody on the way has forgotten does not come back. A new connection tells which it is, and
    /// the end that dials can make one.
    fn listen(&mut self, shared: &Arc<Shared>) {
        let Some(epoch) = self.plan.as_ref().map(|plan| plan.epoch).filter(|_| !self.listens) else { return };
        let is_tried = |end: &End| end.state == State::Up && end.dials && !end.relayed;
        let silent = shared.operations.links.deaf().into_iter();
        let silent = silent.filter(|end| self.ends.get(end).is_some_and(is_tried)).filter_map(|end| {
            let other = self.member(end.1.0)?;
            Some((end, shared.told.ways.to(other.peer, &other.hosts, other.p2p_port)))
        });
        let silent: Vec<_> = silent.collect();
        if silent.is_empty() {
            return;
        }
        let key = shared.config.run_keys.as_ref().map(RunKeys::oldest);
        let limit = shared.config.settings.dial_timeout.min(LISTEN_TIMEOUT);
        let me = (self.me, shared.config.group);
        self.listens = reach::listen(&shared.conductor, me, key, epoch, (silent, limit));
    }

    /// Breaks the silent edges whose other ends are there, all of them before anybody votes.
    fn take_heard(&mut self, shared: &Shared, reached: &[(bool, Name)]) {
        self.listens = false;
        reached.iter().for_each(|end| shared.operations.links.forget(*end));
        self.let_vote(shared);
    }

    /// Operations that were held vote, behind the news of edges that have just broken.
    fn let_vote(&mut self, shared: &Shared) {
        if !self.listens {
            for op in self.held.drain(..) {
                let _ = shared.conductor.send(Event::Revote(op));
            }
        }
    }

    /// An edge stands at this end.
    fn stands(&mut self, is_out: bool, name: Name) {
        if let Some(end) = self.ends.get_mut(&(is_out, name)) {
            end.state = State::Up;
            self.news.up.push(self.edge_name(is_out, name));
        }
    }

    /// An edge could not be built, or broke.
    fn fails(
        &mut self,
        shared: &Shared,
        (is_out, name): (bool, Name),
        (level, forgotten): (Level, bool),
        text: String,
    ) {
        let Some(end) = self.ends.get_mut(&(is_out, name)) else { return };
        end.state = State::Broken;
        // Without the others data goes around the ring.
        let level = if end.purpose == Purpose::Ring { level } else { Level::Debug };
        let EdgeName { from, to, generation } = self.edge_name(is_out, name);
        log::log!(level, "edge {from} -> {to}: {text}");
        let fault = EdgeFault { from, to, generation, forgotten, text: Text::new(text) };
        // An end of our own breaks our edges, which is no failure of them.
        if !forgotten && shared.control.end().is_none() {
            flight::edge_fault(&shared.flight, &fault);
        }
        self.news.broken.push(fault);
    }

    fn edge_name(&self, is_out: bool, (peer, generation): Name) -> EdgeName {
        let (me, other) = (self.me.peer, PeerId(peer));
        let (from, to) = if is_out { (me, other) } else { (other, me) };
        EdgeName { from, to, generation: LinkGeneration(generation) }
    }

    /// Tells the master what is new.
    fn report(&mut self, shared: &Shared) {
        let Some(plan) = &self.plan else { return };
        let mut ring = self.ends.values().filter(|end| end.purpose == Purpose::Ring);
        let stands = ring.all(|end| end.state == State::Up);
        if stands && !std::mem::replace(&mut self.ring_stands, stands) {
            shared.flight.record(Record::new(What::RingConfirmed).about(Subject::Epoch(plan.epoch)));
        }
        self.ring_stands = stands;
        let news = EdgeReport { epoch: plan.epoch, up: Vec::new(), broken: Vec::new() };
        let news = std::mem::replace(&mut self.news, news);
        if shared.control.end().is_none() && !(news.up.is_empty() && news.broken.is_empty()) {
            shared.control.send(&C2m::EdgeReport(EdgeReport { epoch: plan.epoch, ..news }));
        }
    }

    /// Closes the ends that are not to stay.
    fn close_ends(&mut self, shared: &Shared, stays: impl Fn(bool, Name) -> bool) {
        let gone: Vec<(bool, Name)> =
            self.ends.keys().filter(|(is_out, name)| !stays(*is_out, *name)).copied().collect();
        for (is_out, name) in gone {
            self.ends.remove(&(is_out, name));
            let edge = self.edge_name(is_out, name);
            self.news.up.retain(|known| *known != edge);
            self.news
                .broken
                .retain(|it| (it.from, it.to, it.generation) != (edge.from, edge.to, edge.generation));
            shared.operations.links.close(if is_out { Direction::Out } else { Direction::In }, name);
        }
    }
}

impl End {
    fn side(&self, is_out: bool, name: Name) -> Side {
        Side { edge: Edge { peer: name.0, generation: name.1, connections: self.connections }, is_out }
    }
}

fn warn_of_relay(me: PeerId, is_out: bool, (peer, _): Name) {
    let other = PeerId(peer);
    let (from, to) = if is_out { (me, other) } else { (other, me) };
    log::warn!(
        "edge {from} -> {to} goes through the relay of the master, since nobody can dial either end: that is slow; \
         let others reach one of them"
    );
}

/// The ends of a plan's edges at `rank`, with the rank at the other end.
fn ends_of(plan: &GroupPlan, rank: usize) -> BTreeMap<(bool, Name), (PlanEdge, usize)> {
    let ends = plan.edges.iter().flat_map(|edge| {
        let (from, to) = (usize::from(edge.from), usize::from(edge.to));
        let end = move |is_out: bool, other: usize| {
            let member = plan.members.get(other)?;
            Some(((is_out, (member.peer.0, edge.generation.0)), (*edge, other)))
        };
        let out = (from == rank).then(|| end(true, to)).flatten();
        out.into_iter().chain((to == rank).then(|| end(false, from)).flatten())
    });
    ends.collect()
}

/// Hears of broken links on their own threads.
struct Events {
    operations: Weak<Operations>,
    conductor: Sender<Event>,
}

fn events(shared: &Shared) -> Arc<dyn LinkEvents> {
    let operations = Arc::downgrade(&shared.operations);
    Arc::new(Events { operations, conductor: shared.conductor.clone() })
}

impl LinkEvents for Events {
    fn broken(&self, fault: &LinkFault) {
        if let Some(operations) = self.operations.upgrade() {
            if fault.kind != FaultKind::Closed && operations.control.end().is_none() {
                flight::link_broken(&operations.flight, fault);
            }
            fail_running(&operations, fault);
        }
        let _ = self.conductor.send(Event::Broken(fault.clone()));
    }
}

/// Makes the operations that run on a link vote that they cannot complete.
fn fail_running(operations: &Operations, fault: &LinkFault) {
    if !operations.links.broken(fault) {
        return;
    }
    for op in operations.table.all() {
        if op.runs_on().is_some_and(|(epoch, users)| operations.links.carries(epoch, users, fault)) {
            op.link_broken(&link_fault(fault));
        }
    }
}
