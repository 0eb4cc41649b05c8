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
    epoch: GroupEpoch,
    out: Option<Arc<OutLink>>,
    out_name: Option<Name>,
    inbound: Option<Arc<InLink>>,
    in_name: Option<Name>,
    fault: Option<LinkFault>,
    mesh: MeshNow,
}

/// The mesh of one epoch.
#[derive(Default)]
struct MeshNow {
    epoch: GroupEpoch,
    /// By the rank at the other end.
    out: BTreeMap<usize, Arc<OutLink>>,
    inbound: Vec<Arc<InLink>>,
    fault: Option<LinkFault>,
}

impl Links {
    /// Both links of `epoch` stand; names are peer and generation.
    pub(crate) fn install(&self, epoch: GroupEpoch, out: (Arc<OutLink>, Name), inbound: (Arc<InLink>, Name)) {
        let mut now = self.now.lock();
        let (old_out, old_in) = (now.out_name, now.in_name);
        now.epoch = epoch;
        now.out = Some(out.0);
        now.out_name = Some(out.1);
        now.inbound = Some(inbound.0);
        now.in_name = Some(inbound.1);
        // A link that stays keeps its fault, if it has one that the conductor has not heard of yet.
        if old_out != now.out_name || old_in != now.in_name {
            now.fault = None;
        }
    }

    /// All links of this peer in the mesh of `epoch` stand: those to other ranks, by rank, and those from others.
    pub(crate) fn install_mesh(
        &self,
        epoch: GroupEpoch,
        out: BTreeMap<usize, Arc<OutLink>>,
        inbound: Vec<Arc<InLink>>,
    ) {
        let mesh = MeshNow { epoch, out, inbound, fault: None };
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
        let old = std::mem::replace(&mut *self.now.lock(), Now { epoch, ..Now::default() });
        drop(old);
    }

    /// The link to the next rank in `epoch`.
    pub(crate) fn out_for(&self, epoch: GroupEpoch) -> Option<Arc<OutLink>> {
        let now = self.now.lock();
        if now.epoch == epoch { now.out.clone() } else { None }
    }

    /// The link of the mesh of `epoch` to `rank`.
    pub(crate) fn mesh_out_for(&self, epoch: GroupEpoch, rank: usize) -> Option<Arc<OutLink>> {
        let now = self.now.lock();
        if now.mesh.epoch == epoch { now.mesh.out.get(&rank).cloned() } else { None }
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
        if now.epoch != epoch || now.out.is_none() {
            return Some(missing_link("to the next rank"));
        }
        if now.inbound.is_none() {
            return Some(missing_link("from the previous rank"));
        }
        if let Some(fault) = &now.fault {
            return Some(link_fault(fault));
        }
        let mut broken = now.out.as_ref().is_some_and(|link| link.is_broken())
            || now.inbound.as_ref().is_some_and(|link| link.is_broken());
        if users == Users::OverMesh {
            if now.mesh.epoch != epoch {
                return Some(missing_link("to all other ranks"));
            }
            if let Some(fault) = &now.mesh.fault {
                return Some(link_fault(fault));
            }
            broken |= now.mesh.out.values().any(|link| link.is_broken())
                || now.mesh.inbound.iter().any(|link| link.is_broken());
        }
        broken.then(|| missing_link("to a neighbour"))
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
