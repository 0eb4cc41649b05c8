//! By which schedule large operations of a group go, as far as their callers leave it open: around the ring, or by pairwise
//! exchange over its mesh, where that is predicted to be faster by a tenth.
//!
//! This is decided when a ring is planned, from what is known of the edges then, and is a part of the ring plan.

use super::MasterState;
use super::client::Peer;
use super::group::{EdgeEnds, Group, Severity};
use crate::topology::{Interfaces, JobLink, Matrix, Schedules, pairwise_rate, to_link};
use core::net::IpAddr;
use pccl_protocol::{GroupId, PeerId};

impl MasterState {
    /// What is known of the edges between these peers, row by row, without edges that cannot be used or that break again and
    /// again.
    pub(super) fn known_links(&self, group: &Group, peers: &[PeerId]) -> Vec<Option<JobLink>> {
        let barred = |ends: EdgeEnds| {
            let mark = group.marks.get(&ends);
            mark.is_some_and(|mark| mark.until > self.now && mark.severity >= Severity::Avoided)
        };
        let link = |from: PeerId, to: PeerId| {
            let rate = self.measured.rate((from, to)).filter(|_| from != to && !barred((from, to)))?;
            Some(JobLink { kbit_s: rate.kbit_s, latency_us: rate.latency_us })
        };
        let pairs = peers.iter().flat_map(|from| peers.iter().map(move |to| (*from, *to)));
        pairs.map(|(from, to)| link(from, to)).collect()
    }

    /// Peers behind one address are in one place.
    pub(super) fn places(&self, peers: &[PeerId]) -> Vec<usize> {
        let mut hosts: Vec<IpAddr> = Vec::new();
        let mut place = |peer: &Peer| {
            let host = peer.remote.to_canonical();
            hosts.iter().position(|known| *known == host).unwrap_or_else(|| {
                hosts.push(host);
                hosts.len() - 1
            })
        };
        peers.iter().filter_map(|id| self.peers.get(id)).map(&mut place).collect()
    }

    /// How fast large operations are predicted to be by each schedule, in a group with a ring in this order.
    pub(super) fn schedules(&self, group: &Group, order: &[PeerId]) -> Option<Schedules> {
        let (links, places) = (self.known_links(group, order), self.places(order));
        if places.len() != order.len() {
            return None;
        }
        let links: Vec<_> = links.into_iter().map(|link| link.map(to_link)).collect();
        let matrix = Matrix::of_links(order.len(), &links).ok()?.with_places(&places);
        let ring: Vec<usize> = (0..order.len()).collect();
        let mut interfaces = Interfaces::of(&matrix);
        interfaces.learn(&matrix, |from, to| {
            let kbit_s = self.measured.crowded((order[from], order[to]));
            kbit_s.map_or(0.0, |kbit_s| kbit_s as f64 / 1000.0)
        });
        let found = Schedules::of(&matrix, &interfaces, &ring)?;
        // Owners have equal chunks.
        let pairwise = pairwise_rate(&matrix, &interfaces, &[]);
        Some(Schedules { pairwise, shares: Vec::new(), ..found })
    }

    /// Whether large operations of a group with a ring in this order are to go by pairwise exchange.
    pub(super) fn prefers_pairwise(&self, group: &Group, order: &[PeerId]) -> bool {
        // Only for the same members is there something to change from.
        let is_used = group.pairwise
            && order.len() == group.ring.len()
            && group.ring.iter().all(|place| order.contains(&place.peer));
        group.mesh.is_possible(order, self.now)
            && self.schedules(group, order).is_some_and(|found| found.prefers_pairwise(is_used))
    }

    /// Whether large operations of a group are to go by another schedule than its ring plan says.
    pub(super) fn schedule_is_outdated(&self, group_id: GroupId) -> bool {
        let Some(group) = self.groups.get(&group_id) else { return false };
        let order: Vec<PeerId> = group.ring.iter().map(|place| place.peer).collect();
        self.prefers_pairwise(group, &order) != group.pairwise
    }
}
