//! The links of this peer: one for each end of an edge that stands here, and what the plans of its group say they are
//! for.
//!
//! A link is found by the name of its edge. An attempt belongs to the plan of its epoch, so it finds its links as long
//! as these edges stand, whatever plans came after. All changes here happen under one lock.

use super::progress::{link_fault, local_fault};
use parking_lot::Mutex;
use pccl_protocol::{GroupEpoch, GroupPlan, OpFault, PeerId, Purpose};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tinysockets::link::{Backlog, Direction, FaultKind, InLink, LinkFault, OutLink};

/// Links of one direction, each with its name.
type Named<L> = Vec<(Name, Arc<L>)>;

/// The name of an edge at one of its ends: the peer at the other end, and the generation.
pub(crate) type Name = (u128, u64);

/// How far a link from another peer is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Inbound {
    /// Bytes received.
    pub(crate) received_bytes: u64,
    /// For how long it has been at work on them, see [`InLink::busy`].
    pub(crate) busy: Option<Duration>,
    /// Something has come that is not taken yet.
    pub(crate) has_unread: bool,
}

/// Which links an operation runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Users {
    /// Those of the ring.
    All,
    /// Those of the ring and of the mesh.
    OverMesh,
    /// The one to this peer.
    To(PeerId),
    /// The one from this peer.
    From(PeerId),
}

/// The edges of one plan that touch this peer.
#[derive(Debug, Default)]
struct View {
    /// To other ranks, by rank.
    out: BTreeMap<usize, (Name, Purpose)>,
    inbound: Vec<(Name, Purpose)>,
}

impl View {
    fn of(plan: &GroupPlan, rank: usize) -> Self {
        let mut view = Self::default();
        for edge in &plan.edges {
            let (from, to) = (usize::from(edge.from), usize::from(edge.to));
            let name = |other: usize| Some((plan.members.get(other)?.peer.0, edge.generation.0));
            if let Some(name) = name(to).filter(|_| from == rank) {
                view.out.insert(to, (name, edge.purpose));
            }
            if let Some(name) = name(from).filter(|_| to == rank) {
                view.inbound.push((name, edge.purpose));
            }
        }
        view
    }

    /// The edges from this peer that operations with these users run on.
    fn out_for(&self, users: Users) -> impl Iterator<Item = Name> {
        let used = move |(name, purpose): &&(Name, Purpose)| users.use_edge(Direction::Out, *name, *purpose);
        self.out.values().filter(used).map(|(name, _)| *name)
    }

    /// The same, of the edges to this peer.
    fn in_for(&self, users: Users) -> impl Iterator<Item = Name> {
        let used = move |(name, purpose): &&(Name, Purpose)| users.use_edge(Direction::In, *name, *purpose);
        self.inbound.iter().filter(used).map(|(name, _)| *name)
    }

    /// Whether operations with these users run on the edge with this fault.
    fn uses(&self, users: Users, fault: &LinkFault) -> bool {
        let is_it = |name: Name| name == (fault.peer, fault.generation);
        match fault.direction {
            Direction::Out => self.out_for(users).any(is_it),
            Direction::In => self.in_for(users).any(is_it),
        }
    }
}

impl Users {
    fn use_edge(self, direction: Direction, name: Name, purpose: Purpose) -> bool {
        match self {
            Self::All => purpose == Purpose::Ring,
            Self::OverMesh => purpose != Purpose::Pair,
            Self::To(peer) => direction == Direction::Out && name.0 == peer.0,
            Self::From(peer) => direction == Direction::In && name.0 == peer.0,
        }
    }
}

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct Links {
    now: Mutex<Now>,
    /// One of them may be deaf.
    is_doubtful: AtomicBool,
}

impl std::fmt::Debug for Links {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let now = self.now.lock();
        f.debug_struct("Links")
            .field("views", &now.views)
            .field("faults", &now.faults)
            .finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Now {
    /// Of the newest plan, and of those before it to which attempts belong that run.
    views: BTreeMap<GroupEpoch, View>,
    out: BTreeMap<Name, Arc<OutLink>>,
    inbound: BTreeMap<Name, Arc<InLink>>,
    /// Faults of these links, as far as they have been noted.
    faults: Vec<LinkFault>,
}

/// Fault of an attempt whose links are not there.
fn missing_link(direction: &str) -> OpFault {
    local_fault(format!("the link {direction} is not connected"))
}

impl Links {
    /// The master has made a new plan, in which this peer has this rank. Of the plans before it those of the epochs
    /// `running` are kept.
    pub(crate) fn planned(&self, plan: &GroupPlan, rank: usize, running: &BTreeSet<GroupEpoch>) {
        let mut now = self.now.lock();
        now.views.retain(|epoch, _| running.contains(epoch));
        now.views.insert(plan.epoch, View::of(plan, rank));
    }

    /// An edge from this peer stands.
    pub(crate) fn add_out(&self, name: Name, link: Arc<OutLink>) {
        self.now.lock().out.insert(name, link);
    }

    /// An edge to this peer stands.
    pub(crate) fn add_in(&self, name: Name, link: Arc<InLink>) {
        self.now.lock().inbound.insert(name, link);
    }

    /// Closes an edge that the newest plan does not have.
    pub(crate) fn close(&self, direction: Direction, name: Name) {
        let (out, inbound) = {
            let mut now = self.now.lock();
            now.faults.retain(|fault| {
                (fault.direction, fault.peer, fault.generation) != (direction, name.0, name.1)
            });
            match direction {
                Direction::Out => (now.out.remove(&name), None),
                Direction::In => (None, now.inbound.remove(&name)),
            }
        };
        // Without the lock: the end of a link calls back, and waits.
        out.iter().for_each(|link| link.close());
        inbound.iter().for_each(|link| link.close());
    }

    /// The link to a peer in `epoch`.
    pub(crate) fn out_to(&self, epoch: GroupEpoch, peer: PeerId) -> Option<Arc<OutLink>> {
        let now = self.now.lock();
        let name = now.views.get(&epoch)?.out.values().map(|(name, _)| name).find(|name| name.0 == peer.0)?;
        now.out.get(name).cloned()
    }

    /// The link to `rank` in `epoch`.
    pub(crate) fn out_at(&self, epoch: GroupEpoch, rank: usize) -> Option<Arc<OutLink>> {
        let now = self.now.lock();
        now.out.get(&now.views.get(&epoch)?.out.get(&rank)?.0).cloned()
    }

    /// The links to others: the name of each (peer, generation), bytes sent, and what it has yet to deliver.
    pub(crate) fn out_backlogs(&self) -> Vec<(Name, u64, Backlog)> {
        self.present().0.into_iter().map(|(name, link)| (name, link.sent_bytes(), link.backlog())).collect()
    }

    /// The links from others, by the name of each (peer, generation).
    pub(crate) fn inbound(&self) -> Vec<(Name, Inbound)> {
        let look = |link: &InLink| Inbound {
            received_bytes: link.received_bytes(),
            busy: link.busy(),
            has_unread: link.has_unread(),
        };
        self.now.lock().inbound.iter().map(|(name, link)| (*name, look(link))).collect()
    }

    /// Those on which nothing passes although nothing is under way: whether it is a sending end, and the name.
    pub(crate) fn deaf(&self) -> Vec<(bool, Name)> {
        let (out, inbound) = self.present();
        let out = out.into_iter().filter(|(_, link)| link.is_deaf()).map(|(name, _)| (true, name));
        let inbound = inbound.into_iter().filter(|(_, link)| link.is_deaf()).map(|(name, _)| (false, name));
        let deaf: Vec<(bool, Name)> = out.chain(inbound).collect();
        self.is_doubtful.store(!deaf.is_empty(), Ordering::Relaxed);
        deaf
    }

    /// Whether one was deaf when somebody last looked, which is cheaper than to look.
    pub(crate) fn may_be_deaf(&self) -> bool {
        self.is_doubtful.load(Ordering::Relaxed)
    }

    /// Breaks a link that is deaf although its other end is there.
    pub(crate) fn forget(&self, (is_out, name): (bool, Name)) {
        let (out, inbound) = {
            let now = self.now.lock();
            (now.out.get(&name).cloned(), now.inbound.get(&name).cloned())
        };
        // Without the lock: the end of a link calls back.
        out.filter(|_| is_out).iter().for_each(|link| link.forget());
        inbound.filter(|_| !is_out).iter().for_each(|link| link.forget());
    }

    /// All that are there, with their names.
    fn present(&self) -> (Named<OutLink>, Named<InLink>) {
        let now = self.now.lock();
        let out = now.out.iter().map(|(name, link)| (*name, link.clone())).collect();
        (out, now.inbound.iter().map(|(name, link)| (*name, link.clone())).collect())
    }

    /// Why an operation of `epoch` cannot run, if it cannot.
    pub(crate) fn fault_for(&self, epoch: GroupEpoch, users: Users) -> Option<OpFault> {
        let now = self.now.lock();
        let view = now.views.get(&epoch);
        let out = || view.into_iter().flat_map(|view| view.out_for(users));
        let inbound = || view.into_iter().flat_map(|view| view.in_for(users));
        let (needs_out, needs_inbound) = match users {
            Users::All | Users::OverMesh => (true, true),
            Users::To(_) => (true, false),
            Users::From(_) => (false, true),
        };
        if (needs_out && out().next().is_none()) || !out().all(|name| now.out.contains_key(&name)) {
            return Some(missing_link("to another rank"));
        }
        if (needs_inbound && inbound().next().is_none())
            || !inbound().all(|name| now.inbound.contains_key(&name))
        {
            return Some(missing_link("from another rank"));
        }
        let is_used = |fault: &&LinkFault| view.is_some_and(|view| view.uses(users, fault));
        let noted = now.faults.iter().find(is_used).cloned();
        // One that has only just broken, which nobody has noted yet. That is a fault of the edge, not of this peer.
        let fresh = || {
            let out = out().filter_map(|name| now.out.get(&name)?.fault());
            let inbound = inbound().filter_map(|name| now.inbound.get(&name)?.fault());
            out.chain(inbound).next()
        };
        noted.or_else(fresh).as_ref().map(link_fault)
    }

    /// Breaks all links, so that whatever is half sent never arrives whole.
    pub(crate) fn break_off(&self, why: &str) {
        let (out, inbound) = self.present();
        for (_, link) in out {
            link.fail(0, FaultKind::Closed, why);
        }
        for (_, link) in inbound {
            link.fail(0, FaultKind::Closed, why);
        }
    }

    /// Notes a broken link. `false`: it is none of the present links, or this side has closed it.
    pub(crate) fn broken(&self, fault: &LinkFault) -> bool {
        let mut now = self.now.lock();
        let name = (fault.peer, fault.generation);
        let is_present = match fault.direction {
            Direction::In => now.inbound.contains_key(&name),
            Direction::Out => now.out.contains_key(&name),
        };
        let is_news = is_present && fault.kind != FaultKind::Closed;
        let is_same = |known: &LinkFault| {
            (known.direction, known.peer, known.generation) == (fault.direction, fault.peer, fault.generation)
        };
        if is_news && !now.faults.iter().any(is_same) {
            now.faults.push(fault.clone());
        }
        is_news
    }

    /// Whether operations of `epoch` with these users run on the link that broke.
    pub(crate) fn carries(&self, epoch: GroupEpoch, users: Users, fault: &LinkFault) -> bool {
        let now = self.now.lock();
        now.views.get(&epoch).is_some_and(|view| view.uses(users, fault))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::table::{LinkDirectory, OpTable};
    use pccl_protocol::{
        GroupId, Host, LinkGeneration, Member, OpFaultKind, Pair, Paths, PlanEdge, WorldSizes,
    };
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
        let config = OutConfig {
            peer,
            generation: 5,
            has_checksums: false,
            events: Arc::new(Nobody),
            name: "test".into(),
        };
        (OutLink::start(vec![own], config).expect("starts"), other)
    }

    fn inbound(peer: u128) -> (Arc<InLink>, TcpStream) {
        let (own, other) = conns();
        let config = InConfig {
            peer,
            generation: 6,
            scratch_bytes: 4096,
            events: Arc::new(Nobody),
            name: "test".into(),
        };
        let directory = Arc::new(LinkDirectory::new(
            Arc::new(OpTable::default()),
            Pair { from: PeerId(peer), to: PeerId(9) },
        ));
        (InLink::start(vec![own], config, directory).expect("starts"), other)
    }

    fn plan(epoch: GroupEpoch, peers: &[u128], edges: Vec<PlanEdge>) -> GroupPlan {
        let member = |peer: &u128| Member {
            peer: PeerId(*peer),
            hosts: Host::new("localhost").into(),
            p2p_port: 1,
            state_port: 1,
            share: 0,
            site: pccl_protocol::Site::default(),
        };
        GroupPlan {
            group: GroupId(0),
            epoch,
            counted_since: epoch,
            sizes: WorldSizes::default(),
            members: peers.iter().map(member).collect(),
            edges,
            paths: Paths::default(),
        }
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
            let edge = |from, to, generation, purpose| PlanEdge {
                from,
                to,
                generation: LinkGeneration(generation),
                connections: 1,
                purpose,
                back: false,
                relayed: false,
                short_segments: false,
            };
            let edges = vec![
                edge(0, 1, 5, Purpose::Ring),
                edge(2, 0, 6, Purpose::Ring),
                edge(0, 3, 5, Purpose::Mesh),
                edge(4, 0, 6, Purpose::Mesh),
            ];
            links.planned(&plan(epoch, &[9, 1, 2, 7, 8], edges), 0, &BTreeSet::new());
            assert!(links.fault_for(epoch, Users::All).is_some(), "nothing stands");
            links.add_out((1, 5), next.clone());
            links.add_in((2, 6), previous.clone());
            assert_eq!(links.fault_for(epoch, Users::All), None);
            assert!(links.fault_for(epoch, Users::OverMesh).is_some(), "only the ring stands");
            links.add_out((7, 5), to_other.clone());
            links.add_in((8, 6), from_other.clone());
            // Attempts of an epoch find their links whatever plans come after it.
            let running = BTreeSet::from([epoch]);
            links.planned(&plan(GroupEpoch(4), &[9], Vec::new()), 0, &running);
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
