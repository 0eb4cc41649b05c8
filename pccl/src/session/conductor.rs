//! Keeps the ring connected: takes ring plans, dials the next rank, collects the connections of the previous one,
//! confirms to the master, reports what breaks, and votes again for operations whose epoch ended.
//!
//! The thread only waits for events; dials run on threads of their own. So a death in the ring is repaired whatever the
//! callers do, and a plan that is overtaken by a newer one is dropped at once.

use super::{
    Identity, Shared,
    edges::{self, Dialed, Edge, Waiting},
    links::Users,
    mesh::Mesh,
    reach,
};
use crate::{
    collective::{op::Op, progress::link_fault, table::LinkDirectory},
    flight,
};
use crossbeam_channel::{Receiver, Sender};
use log::Level;
use pccl_flight::{Event as Record, Subject, What};
use pccl_protocol::{
    C2m, EdgeFault, GroupEpoch, LinkGeneration, PeerId, ReachPlan, RingPlan, RingReport, Text,
};
use std::sync::{Arc, Weak};
use tinysockets::{
    conn::Conn,
    link::{Direction, FaultKind, InConfig, InLink, LinkEvents, LinkFault, OutConfig, OutLink},
    preamble::Preamble,
};

/// Scratch memory of an RX thread: small enough to stay in the L2 cache with the memory that it is folded into.
const SCRATCH_BYTES: usize = 128 << 10;

/// What the conductor reacts to.
#[derive(Debug)]
pub(crate) enum Event {
    /// A new ring for the group.
    Plan(Arc<RingPlan>),
    /// The master asks whom this peer reaches.
    Reach(ReachPlan),
    /// A connection to the data listener.
    Inbound(Preamble, Conn),
    /// A dial has ended.
    Dialed(Dialed),
    /// A link broke.
    Broken(LinkFault),
    /// An operation has to vote in the new epoch.
    Revote(Arc<Op>),
    /// A packet to the master that a thread could not write without waiting.
    Send(C2m),
    /// The session is over.
    Stop,
}

/// Runs until the session ends.
pub(crate) fn run(shared: &Weak<Shared>, me: Identity, events: &Receiver<Event>) {
    let mut conductor = Conductor {
        me,
        plan: None,
        out: None,
        inbound: None,
        mesh: Mesh::default(),
        waiting: Waiting::default(),
    };
    // The session keeps a sender, and sends `Stop` before it lets go of it.
    while let Ok(event) = events.recv() {
        let Some(shared) = shared.upgrade() else { break };
        if matches!(event, Event::Stop) {
            break;
        }
        conductor.handle(&shared, event);
    }
    conductor.drop_links();
}

struct Conductor {
    me: Identity,
    plan: Option<Installed>,
    out: Option<Out>,
    inbound: Option<In>,
    mesh: Mesh,
    waiting: Waiting,
}

struct Installed {
    plan: Arc<RingPlan>,
    /// The first of the epochs up to this one that have the same ring and mesh over the same connections.
    since: GroupEpoch,
    rank: usize,
    /// What has been told to the master about this plan.
    reported: Reported,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Reported {
    Nothing,
    Confirmed,
    Fault,
}

struct Out {
    edge: Edge,
    link: Option<Arc<OutLink>>,
}

struct In {
    edge: Edge,
    link: Option<Arc<InLink>>,
}

impl Conductor {
    fn handle(&mut self, shared: &Arc<Shared>, event: Event) {
        match event {
            Event::Plan(plan) => self.take_plan(shared, plan),
            Event::Reach(plan) => {
                let epoch = self.plan.as_ref().map_or_else(GroupEpoch::default, |known| known.plan.epoch);
                reach::answer(shared, self.me, epoch, plan);
            }
            Event::Inbound(preamble, conn) => {
                log::trace!("connection {} from peer {}", preamble.connection_index, PeerId(preamble.from));
                self.waiting.add(preamble, conn);
                self.connect_inbound(shared);
                self.mesh.connect_inbound(shared, self.me, &mut self.waiting);
            }
            Event::Dialed(mut dialed) => {
                if !self.mesh.take_dialed(shared, self.me, &mut dialed) {
                    self.take_dialed(shared, dialed);
                }
            }
            Event::Broken(fault) => self.take_broken(shared, &fault),
            Event::Revote(op) => op.vote(),
            Event::Send(packet) => shared.send(&packet),
            Event::Stop => {}
        }
        self.confirm(shared);
        self.mesh.confirm(shared);
    }

    fn take_plan(&mut self, shared: &Arc<Shared>, plan: Arc<RingPlan>) {
        let Some(rank) = plan.rank_of(self.me.peer) else { return };
        if self.plan.as_ref().is_some_and(|installed| plan.epoch <= installed.plan.epoch) {
            return;
        }
        log::debug!("ring of epoch {}: rank {rank} of {}", plan.epoch, plan.ring.len());
        let epoch = plan.epoch;
        let before = self.plan.take();
        let continued = before.as_ref().filter(|before| plan.continues(&before.plan)).map(|it| it.since);
        let since = continued.unwrap_or(epoch);
        self.plan = Some(Installed { plan: plan.clone(), since, rank, reported: Reported::Nothing });
        if plan.ring.len() == 1 {
            self.drop_links();
            shared.links.clear(epoch);
            return;
        }
        let next = &plan.ring[plan.next_of(rank)];
        let own = &plan.ring[rank];
        let edge = Edge { peer: next.peer.0, generation: own.generation.0, connections: own.connections };
        if !self
            .out
            .as_ref()
            .is_some_and(|out| out.edge == edge && out.link.as_ref().is_none_or(|l| !l.is_broken()))
        {
            self.close_out();
            edges::dial(&shared.config, self.me, epoch, edge, next, &shared.conductor);
            self.out = Some(Out { edge, link: None });
        }
        let previous = &plan.ring[plan.previous_of(rank)];
        let edge = Edge {
            peer: previous.peer.0,
            generation: previous.generation.0,
            connections: previous.connections,
        };
        if !self
            .inbound
            .as_ref()
            .is_some_and(|i| i.edge == edge && i.link.as_ref().is_none_or(|l| !l.is_broken()))
        {
            self.close_inbound();
            self.inbound = Some(In { edge, link: None });
        }
        self.connect_inbound(shared);
        if continued.is_some() {
            self.mesh.go_on(&plan);
        } else {
            self.mesh.take_plan(shared, self.me, &plan);
        }
        self.mesh.connect_inbound(shared, self.me, &mut self.waiting);
        let awaited: Vec<Edge> = std::iter::once(edge).chain(self.mesh.inbound_edges()).collect();
        self.waiting.forget_before(epoch, &awaited);
    }

    fn take_dialed(&mut self, shared: &Arc<Shared>, dialed: Dialed) {
        let Some((own, next)) = self.plan.as_ref().map(|installed| {
            let ring = &installed.plan;
            (ring.ring[installed.rank].clone(), ring.ring[ring.next_of(installed.rank)].clone())
        }) else {
            return;
        };
        let Some(out) = self.out.as_mut().filter(|out| out.edge == dialed.edge && out.link.is_none()) else {
            return;
        };
        let checksums = edges::wants_checksums(shared.config.checksums, &own, &next);
        let config = OutConfig {
            peer: dialed.edge.peer,
            generation: dialed.edge.generation,
            checksum: checksums.then_some(pccl_hash::crc32c_append as _),
            events: events(shared),
            name: "pccl".into(),
        };
        let started = dialed.result.and_then(|conns| {
            OutLink::start(conns, config).map_err(|error| format!("cannot start the link: {error}"))
        });
        match started {
            Ok(link) => out.link = Some(link),
            Err(text) => {
                let host = &next.host;
                self.report_fault(
                    shared,
                    Level::Warn,
                    self.me.peer,
                    PeerId(dialed.edge.peer),
                    dialed.edge.generation,
                    format!("cannot connect to {host}: {text}"),
                );
            }
        }
    }

    fn connect_inbound(&mut self, shared: &Arc<Shared>) {
        let Some(inbound) = self.inbound.as_mut().filter(|inbound| inbound.link.is_none()) else { return };
        let Some(conns) = self.waiting.take(&inbound.edge) else { return };
        let directory = Arc::new(LinkDirectory::new(shared.table.clone()));
        match InLink::start(conns, in_config(shared, &inbound.edge), directory) {
            Ok(link) => inbound.link = Some(link),
            Err(error) => {
                let (peer, generation) = inbound.edge.name();
                self.report_fault(
                    shared,
                    Level::Warn,
                    PeerId(peer),
                    self.me.peer,
                    generation,
                    format!("cannot start the link: {error}"),
                );
            }
        }
    }

    fn take_broken(&mut self, shared: &Arc<Shared>, fault: &LinkFault) {
        fail_running(shared, fault);
        if self.mesh.take_broken(shared, self.me, fault) {
            return;
        }
        let name = (fault.peer, fault.generation);
        let (present, from, to) = match fault.direction {
            Direction::Out => (
                self.out.as_ref().is_some_and(|out| out.edge.name() == name),
                self.me.peer,
                PeerId(fault.peer),
            ),
            Direction::In => (
                self.inbound.as_ref().is_some_and(|i| i.edge.name() == name),
                PeerId(fault.peer),
                self.me.peer,
            ),
        };
        if present {
            // A peer that leaves on purpose ends its connections like this, too. If an operation suffers from it, the
            // verdict is logged as a warning.
            let level = if fault.kind == FaultKind::Eof { Level::Info } else { Level::Warn };
            self.report_fault(shared, level, from, to, fault.generation, fault.text.clone());
        }
    }

    /// Tells the master about a broken edge: as the answer to the plan if there has been none, on its own otherwise.
    fn report_fault(
        &mut self,
        shared: &Shared,
        level: Level,
        from: PeerId,
        to: PeerId,
        generation: u64,
        text: String,
    ) {
        let Some(installed) = self.plan.as_mut() else { return };
        log::log!(level, "edge {from} -> {to}: {text}");
        let fault = EdgeFault { from, to, generation: LinkGeneration(generation), text: Text::new(text) };
        // An end of our own breaks our edges, which is no failure of them.
        if shared.end().is_none() {
            flight::edge_fault(&shared.flight, &fault);
        }
        match installed.reported {
            Reported::Nothing => {
                installed.reported = Reported::Fault;
                shared
                    .send(&C2m::RingReport(RingReport { epoch: installed.plan.epoch, faults: vec![fault] }));
            }
            Reported::Confirmed => shared.send(&C2m::EdgeBroken(fault)),
            Reported::Fault => {}
        }
    }

    /// Tells the master once all edges of the present plan stand.
    fn confirm(&mut self, shared: &Shared) {
        let Some(installed) = self.plan.as_mut().filter(|installed| installed.reported == Reported::Nothing)
        else {
            return;
        };
        let epoch: GroupEpoch = installed.plan.epoch;
        if installed.plan.ring.len() > 1 {
            let (Some(out), Some(inbound)) = (&self.out, &self.inbound) else { return };
            let (Some(out_link), Some(in_link)) = (&out.link, &inbound.link) else { return };
            if out_link.is_broken() || in_link.is_broken() {
                // The event that says so is on its way to this thread.
                return;
            }
            shared.links.install(
                (installed.since, epoch),
                (out_link.clone(), out.edge.name()),
                (in_link.clone(), inbound.edge.name()),
            );
        }
        installed.reported = Reported::Confirmed;
        shared.flight.record(Record::new(What::RingConfirmed).about(Subject::Epoch(epoch)));
        shared.send(&C2m::RingReport(RingReport { epoch, faults: Vec::new() }));
    }

    fn close_out(&mut self) {
        if let Some(link) = self.out.take().and_then(|out| out.link) {
            link.close();
        }
    }

    fn close_inbound(&mut self) {
        if let Some(link) = self.inbound.take().and_then(|inbound| inbound.link) {
            link.close();
        }
    }

    fn drop_links(&mut self) {
        self.close_out();
        self.close_inbound();
        self.mesh.close();
    }
}

/// How the receiving end of an edge is set up.
pub(super) fn in_config(shared: &Arc<Shared>, edge: &Edge) -> InConfig {
    InConfig {
        peer: edge.peer,
        generation: edge.generation,
        checksum: pccl_hash::crc32c_append,
        scratch_bytes: SCRATCH_BYTES,
        events: events(shared),
        name: "pccl".into(),
    }
}

/// Hears of broken links on their own threads.
struct Events {
    shared: Weak<Shared>,
    conductor: Sender<Event>,
}

pub(super) fn events(shared: &Arc<Shared>) -> Arc<dyn LinkEvents> {
    Arc::new(Events { shared: Arc::downgrade(shared), conductor: shared.conductor.clone() })
}

impl LinkEvents for Events {
    fn broken(&self, fault: &LinkFault) {
        if let Some(shared) = self.shared.upgrade() {
            if fault.kind != FaultKind::Closed && shared.end().is_none() {
                flight::link_broken(&shared.flight, fault);
            }
            fail_running(&shared, fault);
        }
        let _ = self.conductor.send(Event::Broken(fault.clone()));
    }
}

/// Makes the running operations vote that they cannot complete, if the link is one of those that they run on.
fn fail_running(shared: &Shared, fault: &LinkFault) {
    let Some(users) = shared.links.broken(fault) else { return };
    for op in shared.table.all().iter().filter(|op| users == Users::All || op.uses_mesh()) {
        op.link_broken(&link_fault(fault));
    }
}
