//! Chooses the schedule of large operations of a group whose callers did not: around the ring, or by
//! pairwise exchange over its mesh, where that is predicted to be faster by a tenth. And how much of a tensor each
//! member owns in an exchange: the same shares as before, unless others are faster by a tenth.
//!
//! This is decided when a ring is planned, from what is known of the edges then, and is a part of the ring plan.

use super::edges::{EdgeEnds, Mark, Severity};
use super::group::Group;
use super::measured::Measured;
use super::roll::Roll;
use crate::topology::{Interfaces, JobLink, MIN_GAIN, Matrix, Schedules, pairwise_rate, to_link};
use pccl_protocol::{Algorithm, PeerId};
use std::collections::BTreeMap;

impl Group {
    /// What is known of the edges between these peers, row by row, without edges that cannot be used or that break
    /// again and again.
    pub(super) fn known_links(
        &self,
        roll: &Roll,
        measured: &Measured,
        peers: &[PeerId],
    ) -> Vec<Option<JobLink>> {
        let barred = |ends: EdgeEnds| {
            let mark = self.net.edges.marks.get(&ends);
            let is_marked = |mark: &Mark| mark.until > roll.now && mark.severity >= Severity::Avoided;
            !roll.may_meet(ends) || mark.is_some_and(is_marked)
        };
        let link = |from: PeerId, to: PeerId| {
            let rate = measured.rate((from, to)).filter(|_| from != to && !barred((from, to)))?;
            Some(JobLink { kbit_s: rate.kbit_s, latency_us: rate.latency_us })
        };
        let pairs = peers.iter().flat_map(|from| peers.iter().map(move |to| (*from, *to)));
        pairs.map(|(from, to)| link(from, to)).collect()
    }

    /// The edges between these peers, and their network interfaces.
    fn network(&self, roll: &Roll, measured: &Measured, order: &[PeerId]) -> Option<(Matrix, Interfaces)> {
        let (links, places) = (self.known_links(roll, measured, order), roll.places(order));
        if places.len() != order.len() {
            return None;
        }
        let links: Vec<_> = links.into_iter().map(|link| link.map(to_link)).collect();
        let matrix = Matrix::of_links(order.len(), &links).ok()?.with_places(&places);
        let mut interfaces = Interfaces::of(&matrix);
        interfaces.learn(&matrix, |from, to| {
            let kbit_s = measured.crowded((order[from], order[to]));
            kbit_s.map_or(0.0, |kbit_s| kbit_s as f64 / 1000.0)
        });
        Some((matrix, interfaces))
    }

    /// How fast large operations are predicted to be by each schedule, in a group with a ring in this order. With the
    /// shares that its members have, unless others are better by a tenth.
    pub(super) fn schedules(&self, roll: &Roll, measured: &Measured, order: &[PeerId]) -> Option<Schedules> {
        let (matrix, interfaces) = self.network(roll, measured, order)?;
        let ring: Vec<usize> = (0..order.len()).collect();
        let mut found = Schedules::of(&matrix, &interfaces, &ring)?;
        if self.has_members(order) {
            let used = self.net.shares_of(order);
            let rate = pairwise_rate(&matrix, &interfaces, &used);
            if rate > found.pairwise.map(|best| best / (1.0 + MIN_GAIN)) {
                (found.pairwise, found.shares) = (rate, used);
            }
        }
        Some(found)
    }

    /// What pairwise exchange is predicted to carry over an edge of the ring or the mesh, with the shares that its
    /// group has, in Mbit/s.
    pub(super) fn exchange_mbit_s(&self, roll: &Roll, measured: &Measured, ends: EdgeEnds) -> Option<f64> {
        let (matrix, interfaces) = self.network(roll, measured, &self.ring)?;
        let shares = self.net.shares_of(&self.ring);
        let tensor_mbit_s = pairwise_rate(&matrix, &interfaces, &shares)?;
        let all: f64 = shares.iter().map(|share| f64::from(*share)).sum();
        let part = |peer: PeerId| match self.net.shares.get(&peer) {
            Some(share) => f64::from(*share) / all,
            None => 1.0 / self.ring.len() as f64,
        };
        // What one end contributes to the part of the other, and the result of its own.
        Some(tensor_mbit_s * (part(ends.0) + part(ends.1)))
    }

    /// Whether large operations of a group with a ring in this order are to go by pairwise exchange, and the shares of
    /// its members.
    pub(super) fn schedule_for(
        &self,
        roll: &Roll,
        measured: &Measured,
        order: &[PeerId],
    ) -> (bool, BTreeMap<PeerId, u16>) {
        if !self.net.mesh.is_possible(order, roll.now) || roll.dials(order).need_relay(order) {
            return (false, BTreeMap::new());
        }
        if !roll.dials(order).barred(order).is_empty() {
            return self.partial_schedule(roll, measured, order);
        }
        let Some(found) = self.schedules(roll, measured, order) else { return (false, BTreeMap::new()) };
        let prefers = found.preferred(self.used_with(order)) == Algorithm::Pairwise;
        (prefers, order.iter().copied().zip(found.shares).collect())
    }

    /// The same, where some edges of the mesh are missing because nobody can dial their ends. Those own nothing, and
    /// the others the same.
    fn partial_schedule(
        &self,
        roll: &Roll,
        measured: &Measured,
        order: &[PeerId],
    ) -> (bool, BTreeMap<PeerId, u16>) {
        let owns: Vec<bool> = order.iter().map(|id| !roll.is_outbound_only(*id)).collect();
        let shares = order.iter().copied().zip(owns.iter().map(|owns| u16::from(*owns))).collect();
        let found = self.network(roll, measured, order);
        let found = found.and_then(|(matrix, interfaces)| Schedules::among(&matrix, &interfaces, &owns));
        let used = self.used_with(order);
        (found.is_some_and(|found| found.preferred(used) == Algorithm::Pairwise), shares)
    }

    /// By what large operations go now. Only for the same members is there something to change from.
    fn used_with(&self, order: &[PeerId]) -> Algorithm {
        if self.net.paths.pairwise && self.has_members(order) { Algorithm::Pairwise } else { Algorithm::Ring }
    }

    /// Whether large operations of a group are to go by another schedule, or with other shares, than its ring plan
    /// says.
    pub(super) fn schedule_is_outdated(&self, roll: &Roll, measured: &Measured) -> bool {
        let (pairwise, shares) = self.schedule_for(roll, measured, &self.ring);
        pairwise != self.net.paths.pairwise || (pairwise && shares != self.net.shares)
    }
}
