//! The edges beside the ring that touch this peer: dialed and collected when a plan has them, and reported once they
//! stand.
//!
//! Nothing waits for them. Until all members have them, and whenever one of them fails, data goes around the ring. The
//! master decides which edges are used.

use super::{
    Identity, Shared,
    conductor::{events, in_config},
    edges::{self, Dialed, Edge, Waiting},
};
use crate::collective::table::LinkDirectory;
use pccl_protocol::{C2m, EdgeFault, GroupEpoch, LinkGeneration, MeshReport, PeerId, RingPlan, Text};
use std::{collections::BTreeMap, sync::Arc};
use tinysockets::link::{Direction, InLink, LinkFault, OutConfig, OutLink};

/// Name of an edge at one of its ends: the peer at the other end, and the generation.
type Name = (u128, u64);

/// The ends of mesh edges at this peer.
#[derive(Default)]
pub(super) struct Mesh {
    plan: Option<Arc<RingPlan>>,
    /// The first of the epochs up to that of the plan that have the same mesh.
    since: GroupEpoch,
    out: BTreeMap<Name, Option<Arc<OutLink>>>,
    inbound: BTreeMap<Name, Option<Arc<InLink>>>,
    /// The master knows that all of them stand, or that one does not.
    reported: bool,
}

impl Mesh {
    /// Dials what is new in a plan, and closes what is not in it any more.
    pub(super) fn take_plan(&mut self, shared: &Arc<Shared>, me: Identity, plan: &Arc<RingPlan>) {
        shared.links.clear_mesh();
        self.plan = Some(plan.clone());
        self.since = plan.epoch;
        self.reported = false;
        let names = |mine: fn(&pccl_protocol::MeshEdge) -> (PeerId, PeerId)| {
            let ends = plan.mesh.iter().map(move |edge| (mine(edge), edge.generation));
            ends.filter(|((own, _), _)| *own == me.peer)
                .map(|((_, other), generation)| (other.0, generation.0))
        };
        let wanted_out: Vec<Name> = names(|edge| (edge.from, edge.to)).collect();
        let wanted_in: Vec<Name> = names(|edge| (edge.to, edge.from)).collect();
        self.close_unless(|name| wanted_out.contains(name), |name| wanted_in.contains(name));
        for name in wanted_out {
            let Some(target) = plan.ring.iter().find(|member| member.peer.0 == name.0) else { continue };
            self.out.entry(name).or_insert_with(|| {
                edges::dial(&shared.config, me, plan.epoch, edge_of(&name), target, &shared.conductor);
                None
            });
        }
        for name in wanted_in {
            self.inbound.entry(name).or_insert(None);
        }
    }

    /// The next epoch has the same mesh, and what runs on it goes on. Whether it stands is said again.
    pub(super) fn go_on(&mut self, plan: &Arc<RingPlan>) {
        self.plan = Some(plan.clone());
        self.reported = false;
    }

    /// Closes the edges that are not to stay, and those that are broken.
    fn close_unless(&mut self, stays_out: impl Fn(&Name) -> bool, stays_in: impl Fn(&Name) -> bool) {
        self.out.retain(|name, link| {
            let stays = stays_out(name) && !link.as_ref().is_some_and(|link| link.is_broken());
            link.iter().filter(|_| !stays).for_each(|link| link.close());
            stays
        });
        self.inbound.retain(|name, link| {
            let stays = stays_in(name) && !link.as_ref().is_some_and(|link| link.is_broken());
            link.iter().filter(|_| !stays).for_each(|link| link.close());
            stays
        });
    }

    /// Closes all edges.
    pub(super) fn close(&mut self) {
        self.plan = None;
        self.close_unless(|_| false, |_| false);
    }

    /// The edges on which connections are awaited, or stand.
    pub(super) fn inbound_edges(&self) -> impl Iterator<Item = Edge> + '_ {
        self.inbound.keys().map(edge_of)
    }

    /// Takes connections that have come.
    pub(super) fn connect_inbound(&mut self, shared: &Arc<Shared>, me: Identity, waiting: &mut Waiting) {
        let mut failed = Vec::new();
        for (name, link) in self.inbound.iter_mut().filter(|(_, link)| link.is_none()) {
            let edge = edge_of(name);
            let Some(conns) = waiting.take(&edge) else { continue };
            let directory = Arc::new(LinkDirectory::new(shared.table.clone()));
            match InLink::start(conns, in_config(shared, &edge), directory) {
                Ok(started) => *link = Some(started),
                Err(error) => failed.push((*name, format!("cannot start the link: {error}"))),
            }
        }
        for (name, text) in failed {
            self.report_fault(shared, (PeerId(name.0), me.peer), name.1, text);
        }
    }

    /// Takes the result of a dial. `false`: it is not of an edge of the mesh.
    pub(super) fn take_dialed(&mut self, shared: &Arc<Shared>, me: Identity, dialed: &mut Dialed) -> bool {
        let name = dialed.edge.name();
        let Some(slot) = self.out.get_mut(&name).filter(|slot| slot.is_none()) else { return false };
        let members = self.plan.as_ref().and_then(|plan| {
            let of = |id: u128| plan.ring.iter().find(|member| member.peer.0 == id);
            of(me.peer.0).zip(of(name.0))
        });
        let Some((own, target)) = members else { return true };
        let checksums = edges::wants_checksums(shared.config.checksums, own, target);
        let config = OutConfig {
            peer: name.0,
            generation: name.1,
            checksum: checksums.then_some(pccl_hash::crc32c_append as _),
            events: events(shared),
            name: "pccl-m".into(),
        };
        let conns = std::mem::replace(&mut dialed.result, Ok(Vec::new()));
        let started = conns.and_then(|conns| {
            OutLink::start(conns, config).map_err(|error| format!("cannot start the link: {error}"))
        });
        match started {
            Ok(link) => *slot = Some(link),
            Err(text) => {
                let text = format!("cannot connect to {}: {text}", target.host);
                self.report_fault(shared, (me.peer, PeerId(name.0)), name.1, text);
            }
        }
        true
    }

    /// A link broke. `false`: it is none of the mesh.
    pub(super) fn take_broken(&mut self, shared: &Shared, me: Identity, fault: &LinkFault) -> bool {
        let name = (fault.peer, fault.generation);
        let (present, ends) = match fault.direction {
            Direction::Out => (self.out.contains_key(&name), (me.peer, PeerId(fault.peer))),
            Direction::In => (self.inbound.contains_key(&name), (PeerId(fault.peer), me.peer)),
        };
        if present {
            self.report_fault(shared, ends, fault.generation, fault.text.clone());
        }
        present
    }

    fn report_fault(&mut self, shared: &Shared, (from, to): (PeerId, PeerId), generation: u64, text: String) {
        log::debug!("direct edge {from} -> {to}: {text}");
        let Some(plan) = self.plan.as_ref().filter(|_| shared.end().is_none()) else { return };
        self.reported = true;
        let fault = EdgeFault { from, to, generation: LinkGeneration(generation), text: Text::new(text) };
        shared.send(&C2m::MeshReport(MeshReport { epoch: plan.epoch, fault: Some(fault) }));
    }

    /// Tells the master once all edges of the present plan stand.
    pub(super) fn confirm(&mut self, shared: &Shared) {
        let Some(plan) = self.plan.as_ref().filter(|plan| !self.reported && !plan.mesh.is_empty()) else {
            return;
        };
        let out: Option<BTreeMap<usize, Arc<OutLink>>> = self
            .out
            .iter()
            .map(|(name, link)| Some((plan.rank_of(PeerId(name.0))?, link.clone()?)))
            .collect();
        let inbound: Option<Vec<Arc<InLink>>> = self.inbound.values().cloned().collect();
        let (Some(out), Some(inbound)) = (out, inbound) else { return };
        if out.values().any(|link| link.is_broken()) || inbound.iter().any(|link| link.is_broken()) {
            // The event that says so is on its way to this thread.
            return;
        }
        shared.links.install_mesh((self.since, plan.epoch), out, inbound);
        self.reported = true;
        log::debug!("mesh of epoch {} stands", plan.epoch);
        shared.send(&C2m::MeshReport(MeshReport { epoch: plan.epoch, fault: None }));
    }
}

/// One connection: what goes over it is small, or one of many at the same time.
fn edge_of(name: &Name) -> Edge {
    Edge { peer: name.0, generation: name.1, connections: 1 }
}
