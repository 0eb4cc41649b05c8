//! The connected ring and mesh, as operations use them.

use crate::collective::{op::missing_link, progress::link_fault};
use parking_lot::Mutex;
use pccl_protocol::{GroupEpoch, OpFault};
use std::{collections::BTreeMap, sync::Arc};
use tinysockets::link::{Backlog, Direction, FaultKind, InLink, LinkFault, OutLink};

/// What names an edge at one of its ends: the peer at the other end, and the generation.
type Name = (u128, u64);

/// Which operations a link carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Users {
    /// All of them: it is a link of the ring.
    All,
    /// Those that go over the mesh.
    OverMesh,
}

/// The links of the newest ring that this peer has confirmed, and of the mesh beside it.
#[derive(Default)]
pub(crate) struct Links {
    now: Mutex<Now>,
}

impl std::fmt::Debug for Links {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let now = self.now.lock();
        f.debug_struct("Links").field("epoch", &now.epoch).field("fault", &now.fault).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Now {
    /// The epoch in which these links came, and the present one.
    since: GroupEpoch,
    epoch: GroupEpoch,
    out: Option<Arc<OutLink>>,
    out_name: Option<Name>,
    inbound: Option<Arc<InLink>>,
    in_name: Option<Name>,
    fault: Option<LinkFault>,
    mesh: MeshNow,
}

impl Now {
    /// Whether attempts of `epoch` run on these links.
    fn carries(&self, epoch: GroupEpoch) -> bool {
        (self.since..=self.epoch).contains(&epoch)
    }
}

/// The mesh of one epoch, or of several in a row.
#[derive(Default)]
struct MeshNow {
    since: GroupEpoch,
    epoch: GroupEpoch,
    /// By the rank at the other end.
    out: BTreeMap<usize, Arc<OutLink>>,
    inbound: Vec<Arc<InLink>>,
    fault: Option<LinkFault>,
}

impl MeshNow {
    fn carries(&self, epoch: GroupEpoch) -> bool {
        (self.since..=self.epoch).contains(&epoch)
    }
}

impl Links {
    /// Both links of `epoch` stand; names are peer and generation. They also carry what began in the epochs before it,
    /// back to `since`, which had the same ring.
    pub(crate) fn install(
        &self,
        (since, epoch): (GroupEpoch, GroupEpoch),
        out: (Arc<OutLink>, Name),
        inbound: (Arc<InLink>, Name),
    ) {
        let mut now = self.now.lock();
        let (old_out, old_in) = (now.out_name, now.in_name);
        (now.since, now.epoch) = (since, epoch);
        now.out = Some(out.0);
        now.out_name = Some(out.1);
        now.inbound = Some(inbound.0);
        now.in_name = Some(inbound.1);
        // A link that stays keeps its fault, if it has one that the conductor has not heard of yet.
        if old_out != now.out_name || old_in != now.in_name {
            now.fault = None;
        }
    }

    /// All links of this peer in the mesh of `epoch` stand: those to other ranks, by rank, and those from others. They
    /// also carry what began in the epochs before it, back to `since`.
    pub(crate) fn install_mesh(
        &self,
        (since, epoch): (GroupEpoch, GroupEpoch),
        out: BTreeMap<usize, Arc<OutLink>>,
        inbound: Vec<Arc<InLink>>,
    ) {
        let mesh = MeshNow { since, epoch, out, inbound, fault: None };
        let old = std::mem::replace(&mut self.now.lock().mesh, mesh);
        // Without the lock: the end of a link calls back, and waits.
        drop(old);
    }

    /// The mesh is about to change; nothing goes over it until another is installed.
    pub(crate) fn clear_mesh(&self) {
        let old = std::mem::take(&mut self.now.lock().mesh);
        drop(old);
    }

    /// There is no ring (this peer is alone).
    pub(crate) fn clear(&self, epoch: GroupEpoch) {
        let old = std::mem::replace(&mut *self.now.lock(), Now { since: epoch, epoch, ..Now::default() });
        drop(old);
    }

    /// The link to the next rank in `epoch`.
    pub(crate) fn out_for(&self, epoch: GroupEpoch) -> Option<Arc<OutLink>> {
        let now = self.now.lock();
        if now.carries(epoch) { now.out.clone() } else { None }
    }

    /// The link of the mesh of `epoch` to `rank`.
    pub(crate) fn mesh_out_for(&self, epoch: GroupEpoch, rank: usize) -> Option<Arc<OutLink>> {
        let now = self.now.lock();
        if now.mesh.carries(epoch) { now.mesh.out.get(&rank).cloned() } else { None }
    }

    /// The links to others: the name of each (peer, generation), bytes sent, and what it has yet to deliver.
    pub(crate) fn out_backlogs(&self) -> Vec<(Name, u64, Backlog)> {
        let links: Vec<(Name, Arc<OutLink>)> = {
            let now = self.now.lock();
            let ring = now.out_name.zip(now.out.clone());
            let mesh = now.mesh.out.values().map(|link| (link.name(), link.clone()));
            ring.into_iter().chain(mesh).collect()
        };
        links.into_iter().map(|(name, link)| (name, link.sent_bytes(), link.backlog())).collect()
    }

    /// The links from others: the name of each (peer, generation), and bytes received.
    pub(crate) fn received(&self) -> Vec<(Name, u64)> {
        let now = self.now.lock();
        let ring = now.in_name.zip(now.inbound.as_ref().map(|link| link.received_bytes()));
        let mesh = now.mesh.inbound.iter().map(|link| (link.name(), link.received_bytes()));
        ring.into_iter().chain(mesh).collect()
    }

    /// Why an operation of `epoch` cannot run, if it cannot.
    pub(crate) fn fault_for(&self, epoch: GroupEpoch, users: Users) -> Option<OpFault> {
        let now = self.now.lock();
        if !now.carries(epoch) || now.out.is_none() {
            return Some(missing_link("to the next rank"));
        }
        if now.inbound.is_none() {
            return Some(missing_link("from the previous rank"));
        }
        let over_mesh = users == Users::OverMesh;
        if over_mesh && !now.mesh.carries(epoch) {
            return Some(missing_link("to all other ranks"));
        }
        let noted = now.fault.as_ref().or(now.mesh.fault.as_ref().filter(|_| over_mesh));
        if let Some(fault) = noted {
            return Some(link_fault(fault));
        }
        // One that has only just broken, which nobody has noted yet. That is a fault of the edge, not of this peer.
        let mesh = Some(&now.mesh).filter(|_| over_mesh);
        let out = now.out.iter().chain(mesh.iter().flat_map(|mesh| mesh.out.values()));
        let inbound = now.inbound.iter().chain(mesh.iter().flat_map(|mesh| &mesh.inbound));
        let fault = out.filter_map(|link| link.fault()).chain(inbound.filter_map(|link| link.fault())).next();
        fault.as_ref().map(link_fault)
    }

    /// Breaks all links, so that whatever is half sent never arrives whole.
    pub(crate) fn break_off(&self, why: &str) {
        let (out, inbound): (Vec<_>, Vec<_>) = {
            let now = self.now.lock();
            let out = now.out.iter().chain(now.mesh.out.values()).cloned().collect();
            (out, now.inbound.iter().chain(&now.mesh.inbound).cloned().collect())
        };
        for link in out {
            link.fail(0, FaultKind::Closed, why);
        }
        for link in inbound {
            link.fail(0, FaultKind::Closed, why);
        }
    }

    /// Notes a broken link, and returns which operations it carried, if it is one of the present links.
    pub(crate) fn broken(&self, fault: &LinkFault) -> Option<Users> {
        let mut now = self.now.lock();
        let name = (fault.peer, fault.generation);
        let (ring, in_mesh) = match fault.direction {
            Direction::In => (now.in_name, now.mesh.inbound.iter().any(|link| link.name() == name)),
            Direction::Out => (now.out_name, now.mesh.out.values().any(|link| link.name() == name)),
        };
        let users = match (ring == Some(name), in_mesh) {
            _ if fault.kind == FaultKind::Closed => return None,
            (true, _) => Users::All,
            (false, true) => Users::OverMesh,
            (false, false) => return None,
        };
        let slot = if users == Users::All { &mut now.fault } else { &mut now.mesh.fault };
        slot.get_or_insert_with(|| fault.clone());
        Some(users)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::table::{LinkDirectory, OpTable};
    use pccl_protocol::{LinkGeneration, OpFaultKind, PeerId};
    use std::net::{TcpListener, TcpStream};
    use tinysockets::conn::Conn;
    use tinysockets::link::{InConfig, LinkEvents, OutConfig};

    /// Notes nothing, as if the thread that is told had not come to it yet.
    struct Nobody;

    impl LinkEvents for Nobody {
        fn broken(&self, _: &LinkFault) {}
    }

    fn conns() -> (Conn, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let dialed = TcpStream::connect(listener.local_addr().expect("bound")).expect("connect");
        (dialed.into(), listener.accept().expect("a connection").0)
    }

    fn out(peer: u128) -> (Arc<OutLink>, TcpStream) {
        let (own, other) = conns();
        let config =
            OutConfig { peer, generation: 5, checksum: None, events: Arc::new(Nobody), name: "test".into() };
        (OutLink::start(vec![own], config).expect("starts"), other)
    }

    fn inbound(peer: u128) -> (Arc<InLink>, TcpStream) {
        let (own, other) = conns();
        let config = InConfig {
            peer,
            generation: 6,
            checksum: pccl_hash::crc32c_append,
            scratch_bytes: 4096,
            events: Arc::new(Nobody),
            name: "test".into(),
        };
        let directory = Arc::new(LinkDirectory::new(Arc::new(OpTable::default())));
        (InLink::start(vec![own], config, directory).expect("starts"), other)
    }

    /// Between the end of a link and the news of it an operation may begin: it has to name the edge, since a peer that
    /// reports a fault of its own is taken for the culprit.
    #[test]
    fn a_link_that_has_just_broken_is_a_fault_of_its_edge() {
        let epoch = GroupEpoch(3);
        let found = |breaks: usize, users: Users| {
            let ((next, a), (previous, b)) = (out(1), inbound(2));
            let ((to_other, c), (from_other, d)) = (out(7), inbound(8));
            let links = Links::default();
            links.install((epoch, epoch), (next.clone(), (1, 5)), (previous.clone(), (2, 6)));
            let to_others = BTreeMap::from([(2, to_other.clone())]);
            links.install_mesh((epoch, epoch), to_others, vec![from_other.clone()]);
            assert_eq!(links.fault_for(epoch, users), None);
            match breaks {
                0 => next.fail(0, FaultKind::Stalled, "a test"),
                1 => previous.fail(0, FaultKind::Stalled, "a test"),
                2 => to_other.fail(0, FaultKind::Stalled, "a test"),
                _ => from_other.fail(0, FaultKind::Stalled, "a test"),
            }
            let fault = links.fault_for(epoch, users);
            drop((a, b, c, d));
            fault.map(|fault| (fault.kind, fault.peer, fault.generation))
        };
        let lost = |kind, peer, generation| Some((kind, Some(PeerId(peer)), LinkGeneration(generation)));
        assert_eq!(found(0, Users::All), lost(OpFaultKind::OutboundLost, 1, 5));
        assert_eq!(found(1, Users::All), lost(OpFaultKind::InboundLost, 2, 6));
        assert_eq!(found(2, Users::OverMesh), lost(OpFaultKind::OutboundLost, 7, 5));
        assert_eq!(found(3, Users::OverMesh), lost(OpFaultKind::InboundLost, 8, 6));
    }
}
