//! The edges beside the ring: dialing them, what a process reports about them, and attempts that go over it.

use crate::client::EdgeKey;
use crate::world::{Wake, World};
use pccl_protocol::*;

impl World {
    /// The edges beside the ring that touch a process, as far as it connects them.
    pub(crate) fn mesh_edges(&self, slot: usize) -> Vec<EdgeKey> {
        let client = &self.clients[slot];
        let (Some(plan), Some(me)) = (client.plan.as_ref(), client.peer) else { return Vec::new() };
        let mine = plan.edges_of(me).filter(|(purpose, _)| *purpose == Purpose::Mesh);
        let mine = mine.map(|(_, edge)| (edge.from, edge.to, edge.generation));
        // A process that connects none still has those that were of the ring before.
        let had = |edge: &EdgeKey| self.edges_up.contains(edge) || client.said.contains_key(edge);
        mine.filter(|edge| self.swarm.mesh || had(edge)).collect()
    }

    /// All edges of the present plan that touch a process: of the ring, inbound and outbound, and beside it.
    pub(crate) fn all_edges(&self, slot: usize) -> Vec<EdgeKey> {
        let ring = self.clients[slot].edges().map(|(inbound, outbound)| [inbound, outbound]);
        ring.into_iter().flatten().chain(self.mesh_edges(slot)).collect()
    }

    fn mesh_delay(&mut self) -> u64 {
        let (low, high) = self.swarm.delay;
        let mut delay = self.mesh.range(low, high);
        if !self.healing && self.mesh.percent(self.swarm.spike_percent) {
            delay += self.mesh.below(self.swarm.spike);
        }
        delay
    }

    /// Dials what is new in a plan.
    pub(crate) fn dial_mesh(&mut self, slot: usize) {
        for edge in self.mesh_edges(slot) {
            if self.dials(slot, edge) && !self.edges_up.contains(&edge) {
                let delay = self.mesh_delay();
                self.wake(slot, delay, Wake::Dialed(edge));
            }
        }
    }

    /// Sends the first bytes of a process at the beginning of an attempt among `members`, in the order of their ranks.
    pub(crate) fn send_first(
        &mut self,
        op: OpId,
        algorithm: Algorithm,
        me: PeerId,
        members: &[PeerId],
        edges: &[EdgeKey],
    ) {
        let root = members.first().copied();
        for edge in edges.iter().filter(|edge| edge.0 == me) {
            match algorithm {
                // The result of its fold goes back later.
                Algorithm::ReduceBroadcast if root != Some(edge.1) => {}
                Algorithm::Direct | Algorithm::ReduceBroadcast | Algorithm::Pairwise | Algorithm::Sites => {
                    self.send_whole(op, *edge);
                }
                _ => self.flows.entry(*edge).or_default().0 += 100,
            }
        }
    }

    /// Sends along an edge what has to arrive before the attempt can end.
    fn send_whole(&mut self, op: OpId, edge: EdgeKey) {
        let flow = self.flows.entry(edge).or_default();
        flow.0 += 100;
        self.due.entry((op, edge)).or_default().push(flow.0);
        self.owed.insert(edge, flow.0);
    }

    /// Whether what an attempt over the mesh sent along an edge has arrived; `None` if it has sent nothing.
    pub(crate) fn has_arrived(&self, op: OpId, edge: EdgeKey) -> Option<bool> {
        let due = *self.due.get(&(op, edge))?.last()?;
        Some(self.flows.get(&edge).is_some_and(|(_, received)| *received >= due))
    }

    /// Whether the first, or the second, of what an attempt over the mesh sends along an edge has arrived.
    fn part_has_arrived(&self, op: OpId, edge: EdgeKey, part: usize) -> bool {
        let due = self.due.get(&(op, edge)).and_then(|due| due.get(part));
        due.is_some_and(|due| self.flows.get(&edge).is_some_and(|(_, received)| received >= due))
    }

    /// Whether something of such an attempt has yet to arrive on an edge.
    pub(crate) fn owes(&self, edge: EdgeKey) -> bool {
        let owed = self.owed.get(&edge).copied().unwrap_or(0);
        self.flows.get(&edge).is_some_and(|(_, received)| *received < owed)
    }

    /// Whether an attempt over the mesh has everything at `me` now. Its own bytes may be under way: nobody waits for
    /// that.
    pub(crate) fn all_arrive(
        &mut self,
        op: OpId,
        algorithm: Algorithm,
        me: PeerId,
        members: &[PeerId],
        edges: &[EdgeKey],
    ) -> bool {
        let is_slow = |slot: usize| self.clients[slot].slow_until > self.now;
        if members.iter().any(|peer| self.alive(*peer).is_some_and(is_slow)) {
            return false;
        }
        let broadcasts = algorithm == Algorithm::ReduceBroadcast;
        let root = members.first().copied().filter(|_| broadcasts);
        let awaited =
            |edge: &&EdgeKey| edge.1 == me && (root.is_none_or(|root| me == root || edge.0 == root));
        let inbound: Vec<EdgeKey> = edges.iter().filter(awaited).copied().collect();
        for edge in inbound.iter().copied() {
            if !self.stands_still(edge)
                && let Some(flow) = self.flows.get_mut(&edge)
            {
                flow.1 = flow.0;
            }
        }
        let all = |world: &Self, part| inbound.iter().all(|edge| world.part_has_arrived(op, *edge, part));
        // All contributions are there: what is folded of them goes to those who wait for it, once.
        // Over sites something is folded on the way, too, and goes on.
        let is_exchange = matches!(algorithm, Algorithm::Pairwise | Algorithm::Sites);
        let folds = is_exchange || root == Some(me);
        if folds && all(self, 0) {
            for edge in edges.iter().filter(|edge| edge.0 == me) {
                if self.due.get(&(op, *edge)).is_none_or(|due| due.len() <= usize::from(!broadcasts)) {
                    self.send_whole(op, *edge);
                }
            }
        }
        all(self, usize::from(is_exchange))
    }

    /// One of the inbound edges of an attempt: that of the ring, unless it goes over the mesh.
    pub(crate) fn some_inbound(&mut self, me: PeerId, edges: &[EdgeKey]) -> EdgeKey {
        let inbound: Vec<EdgeKey> = edges.iter().filter(|edge| edge.1 == me).copied().collect();
        match inbound.len() {
            1 => inbound[0],
            n => inbound[self.mesh.below(n as u64) as usize],
        }
    }

    /// Now and then a process at the other end of a mesh edge.
    pub(crate) fn some_mesh_neighbour(&mut self, slot: usize) -> Option<usize> {
        let me = self.clients[slot].peer?;
        let ends: Vec<PeerId> =
            self.mesh_edges(slot).iter().filter(|edge| edge.0 == me).map(|edge| edge.1).collect();
        if ends.is_empty() || !self.mesh.percent(40) {
            return None;
        }
        let end = ends[self.mesh.below(ends.len() as u64) as usize];
        self.alive(end)
    }

    /// A report about the mesh by a client that sends anything, instead of something else.
    pub(crate) fn mesh_mischief(&mut self, slot: usize, epoch: GroupEpoch) -> Option<C2m> {
        if !self.swarm.mesh || !self.mesh.percent(15) {
            return None;
        }
        let edges = self.mesh_edges(slot);
        let me = self.clients[slot].peer.unwrap_or_default();
        let own = (!edges.is_empty()).then(|| edges[self.mesh.below(edges.len() as u64) as usize]);
        let some = (me, PeerId(7), LinkGeneration(self.mesh.below(4)));
        let (from, to, generation) = own.filter(|_| self.mesh.percent(80)).unwrap_or(some);
        let fault = EdgeFault { from, to, generation, forgotten: false, text: Text::new("mischief") };
        let up = edges.into_iter().map(|(from, to, generation)| EdgeName { from, to, generation }).collect();
        let (up, broken) = if self.mesh.percent(40) { (vec![], vec![fault]) } else { (up, vec![]) };
        Some(C2m::EdgeReport(EdgeReport { epoch, up, broken }))
    }
}
