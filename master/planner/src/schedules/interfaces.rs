//! Shared parts of the network of peers: network interfaces, and ways beyond them.

use super::sites::Sites;
use crate::matrix::Matrix;

/// Rates of the network interface of each place, by the number of its first peer, in Mbit/s.
#[derive(Debug, Clone, PartialEq)]
pub struct Interfaces {
    /// To other places.
    pub sends: Vec<f64>,
    /// From other places.
    pub receives: Vec<f64>,
    /// Uplinks that peers of several places have in common.
    pub uplinks: Vec<Uplink>,
}

/// The way from some peers to all others, which they share.
#[derive(Debug, Clone, PartialEq)]
pub struct Uplink {
    /// Whether each peer is behind it, by number.
    pub behind: Vec<bool>,
    /// To the others, in Mbit/s.
    pub sends: f64,
    /// From the others, in Mbit/s.
    pub receives: f64,
}

impl Interfaces {
    /// As much as the fastest edge.
    pub fn of(matrix: &Matrix) -> Self {
        let n = matrix.peers();
        let mut interfaces = Self { sends: vec![0.0; n], receives: vec![0.0; n], uplinks: Vec::new() };
        for (from, to) in crossing_edges(matrix) {
            let rate = matrix.rate(from, to);
            let (sends, receives) =
                (&mut interfaces.sends[matrix.group(from)], &mut interfaces.receives[matrix.group(to)]);
            *sends = sends.max(rate);
            *receives = receives.max(rate);
        }
        interfaces
    }

    /// Takes in what edges carried while all peers sent to all, in Mbit/s, or 0: an interface carries all of that at
    /// once.
    pub fn learn(&mut self, matrix: &Matrix, carried: impl Fn(usize, usize) -> f64) {
        let n = matrix.peers();
        let (mut sent, mut received) = (vec![0.0; n], vec![0.0; n]);
        for (from, to) in crossing_edges(matrix) {
            let rate = carried(from, to);
            sent[matrix.group(from)] += rate;
            received[matrix.group(to)] += rate;
        }
        let all = self.sends.iter_mut().zip(&sent).chain(self.receives.iter_mut().zip(&received));
        all.for_each(|(known, carried)| *known = known.max(*carried));
    }

    /// Takes in, likewise, what the peers of each site have in common. Where edges to other sites fell much further
    /// short, while all sent to all, of what they carry by themselves than edges within the site did, the hosts were
    /// not what was slow: then their uplink carries what these edges carried together, and at least what the fastest of
    /// them does. Where an edge was not measured so, nothing is known.
    #[must_use]
    pub fn with_uplinks(
        mut self,
        matrix: &Matrix,
        sites: &Sites,
        carried: impl Fn(usize, usize) -> f64,
    ) -> Self {
        let n = matrix.peers();
        for site in 0..sites.count() {
            let behind: Vec<bool> = sites.of.iter().map(|of| usize::from(*of) == site).collect();
            let mut all = [Crowd::default(); 3];
            for (from, to) in (0..n * n).map(|at| (at / n, at % n)).filter(|(from, to)| from != to) {
                let way = match (behind[from], behind[to]) {
                    (true, true) => &mut all[0],
                    (true, false) => &mut all[1],
                    (false, true) => &mut all[2],
                    (false, false) => continue,
                };
                way.add(matrix.rate(from, to), carried(from, to));
            }
            let [inside, sent, received] = all;
            let limit = |way: &Crowd| {
                let is_short = way.part() < MUCH_SHORTER * inside.part();
                if is_short { way.carried.max(way.fastest) } else { f64::INFINITY }
            };
            let (sends, receives) = (limit(&sent), limit(&received));
            if all.iter().all(|way| way.is_known) && sends.min(receives).is_finite() {
                self.uplinks.push(Uplink { behind, sends, receives });
            }
        }
        self
    }
}

/// Edges that carry less than this part of what others do, each in relation to its rate, have another limit.
const MUCH_SHORTER: f64 = 0.5;

/// The traffic that some edges carried while all sent to all, in Mbit/s.
#[derive(Debug, Clone, Copy)]
struct Crowd {
    carried: f64,
    /// Their rates.
    alone: f64,
    fastest: f64,
    is_known: bool,
}

impl Default for Crowd {
    fn default() -> Self {
        Self { carried: 0.0, alone: 0.0, fastest: 0.0, is_known: true }
    }
}

impl Crowd {
    fn add(&mut self, rate: f64, carried: f64) {
        self.is_known &= rate > 0.0 && carried > 0.0;
        self.carried += carried;
        self.alone += rate;
        self.fastest = self.fastest.max(rate);
    }

    /// As a part of their rates; not a number if there are none.
    fn part(&self) -> f64 {
        self.carried / self.alone
    }
}

/// Pairs of peers in different places, in both directions.
fn crossing_edges(matrix: &Matrix) -> impl Iterator<Item = (usize, usize)> {
    let n = matrix.peers();
    let pairs = (0..n).flat_map(move |from| (0..n).map(move |to| (from, to)));
    pairs.filter(|&(from, to)| matrix.group(from) != matrix.group(to))
}
