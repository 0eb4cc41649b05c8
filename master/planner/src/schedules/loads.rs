//! Loads: the parts of a tensor that each edge carries in a schedule, and how fast that makes it.

use super::{interfaces::Interfaces, sites::Sites};
use crate::matrix::Matrix;
use core::ops::RangeInclusive;
use pccl_protocol::limits::MAX_MESH_RANKS;

/// Groups of these sizes may have direct edges between all peers, and use another schedule than a ring.
pub const SCHEDULED_PEERS: RangeInclusive<usize> = 3..=MAX_MESH_RANKS;

/// Parts of a tensor that each edge carries, row by row.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Loads {
    peers: usize,
    parts: Vec<f64>,
}

impl Loads {
    pub(crate) fn none(peers: usize) -> Self {
        Self { peers, parts: vec![0.0; peers * peers] }
    }

    /// `share` of the tensor goes around this ring: all of it but one chunk passes each edge twice.
    pub(crate) fn add_ring(&mut self, order: &[usize], share: f64) {
        let n = order.len() as f64;
        for (from, to) in Matrix::edges(order) {
            self.parts[from * self.peers + to] += share * 2.0 * (n - 1.0) / n;
        }
    }

    /// Each peer sends to each other its contribution to what that one owns, and the result of what it owns itself.
    /// Shares are in proportion to these numbers, one for each peer, or equal if there are none.
    pub(crate) fn pairwise(peers: usize, shares: &[u16]) -> Self {
        let all: f64 = shares.iter().copied().map(f64::from).sum();
        let share = |peer: usize| shares.get(peer).map_or(1.0 / peers as f64, |part| f64::from(*part) / all);
        let part = |from: usize, to: usize| if from == to { 0.0 } else { share(from) + share(to) };
        Self { peers, parts: (0..peers * peers).map(|at| part(at / peers, at % peers)).collect() }
    }

    /// In two levels: within a site each peer owns the same, and sends to each other peer its contribution to what that
    /// one owns there, and the result of its own. All peers of one site deal with all of another one, and alike: sums
    /// of a site go to what the other site owns, and results of what it owns itself. Shares of sites are in proportion
    /// to these numbers, or to their sizes if there are none.
    pub(crate) fn by_sites(sites: &Sites, shares: &[u16]) -> Self {
        let (peers, sizes) = (sites.of.len(), sites.sizes());
        let weight = |site: usize| shares.get(site).map_or(sizes[site], |part| f64::from(*part));
        let all: f64 = (0..sizes.len()).map(weight).sum();
        let part = |from: usize, to: usize| {
            let (here, there) = (usize::from(sites.of[from]), usize::from(sites.of[to]));
            match from == to {
                true => 0.0,
                false if here == there => 2.0 / sizes[here],
                false => (weight(here) + weight(there)) / all / (sizes[here] * sizes[there]),
            }
        };
        Self { peers, parts: (0..peers * peers).map(|at| part(at / peers, at % peers)).collect() }
    }

    /// The part that an edge carries.
    pub(crate) fn part(&self, from: usize, to: usize) -> f64 {
        self.parts[from * self.peers + to]
    }

    /// The sum of the parts that pass from peers that are `inside` to those that are not.
    pub(crate) fn across(&self, inside: impl Fn(usize) -> bool) -> f64 {
        let n = self.peers;
        let crosses = |at: &usize| inside(at / n) && !inside(at % n);
        (0..n * n).filter(crosses).map(|at| self.parts[at]).sum()
    }

    /// Mbit of tensor a second. None if an edge that is needed cannot be used.
    pub(crate) fn mbit_s(&self, matrix: &Matrix, interfaces: &Interfaces) -> Option<f64> {
        let n = self.peers;
        let (mut sent, mut received) = (vec![0.0; n], vec![0.0; n]);
        let mut slowest = f64::INFINITY;
        for (at, part) in self.parts.iter().enumerate().filter(|(_, part)| **part > 0.0) {
            let (from, to) = (at / n, at % n);
            if !matrix.is_possible(from, to) {
                return None;
            }
            slowest = slowest.min(matrix.rate(from, to) / part);
            if matrix.group(from) != matrix.group(to) {
                sent[matrix.group(from)] += part;
                received[matrix.group(to)] += part;
            }
        }
        for (parts, most) in [(&sent, &interfaces.sends), (&received, &interfaces.receives)] {
            let loaded = parts.iter().zip(most).filter(|(part, _)| **part > 0.0);
            slowest = loaded.fold(slowest, |slowest, (part, most)| slowest.min(most / part));
        }
        for uplink in &interfaces.uplinks {
            let (out, into) =
                (self.across(|peer| uplink.behind[peer]), self.across(|peer| !uplink.behind[peer]));
            for (part, most) in [(out, uplink.sends), (into, uplink.receives)] {
                slowest = if part > 0.0 { slowest.min(most / part) } else { slowest };
            }
        }
        Some(slowest).filter(|rate| rate.is_finite())
    }
}

/// How much tensor pairwise exchange reduces in a second if each peer owns its share of it, in Mbit; equal shares if
/// there are none. None if there is no exchange: an edge cannot be used, all peers are in one place, or these are not
/// their shares.
pub fn pairwise_rate(matrix: &Matrix, interfaces: &Interfaces, shares: &[u16]) -> Option<f64> {
    let n = matrix.peers();
    let fits = shares.is_empty() || (shares.len() == n && shares.iter().any(|part| *part > 0));
    (fits && may_exchange(matrix)).then(|| Loads::pairwise(n, shares).mbit_s(matrix, interfaces)).flatten()
}

/// The same in two levels over these sites. None if these are not sites of these peers.
pub fn sites_rate(matrix: &Matrix, interfaces: &Interfaces, sites: &Sites) -> Option<f64> {
    let fits = sites.of.len() == matrix.peers() && sites.have_two_levels();
    let loads = || Loads::by_sites(sites, &sites.shares);
    (fits && may_exchange(matrix)).then(|| loads().mbit_s(matrix, interfaces)).flatten()
}

/// The part of a tensor that an edge carries, by pairwise exchange with these shares, or over these sites.
pub fn part_of_edge(peers: usize, shares: &[u16], sites: Option<&Sites>, (from, to): (usize, usize)) -> f64 {
    let loads =
        sites.map_or_else(|| Loads::pairwise(peers, shares), |sites| Loads::by_sites(sites, &sites.shares));
    loads.part(from, to)
}

/// Whether pairwise exchange is possible. A peer that owns nothing needs its edges as well: a mesh stands with all of
/// them or not at all.
pub(crate) fn may_exchange(matrix: &Matrix) -> bool {
    !matrix.is_costs() && matrix.is_complete() && can_differ(matrix)
}

/// Whether there may be another schedule than a ring. The medium that peers in one place have in common is no network.
pub(crate) fn can_differ(matrix: &Matrix) -> bool {
    SCHEDULED_PEERS.contains(&matrix.peers()) && matrix.fewest_crossings() > 0
}

#[cfg(test)]
#[path = "loads_tests.rs"]
mod tests;
