//! Knowledge about the edges between peers.

use std::fmt;

/// Most peers of a matrix.
pub const MAX_MATRIX_PEERS: usize = 1024;
/// Largest cost of an edge, so that sums with penalties fit into 64 bits.
pub const MAX_COST: u32 = 4_000_000_000;
/// The cost of an edge of 1 Mbit/s where rings are compared by the sum of 1 / rate.
const COST_OF_ONE_MBIT_S: f64 = 1e9;

/// A directed edge that can be used.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Link {
    /// Rate in Mbit/s.
    pub mbit_s: f64,
    /// One way, in microseconds, if measured.
    pub latency_us: Option<u32>,
}

/// A defect of the parts of a matrix.
#[derive(Debug, Clone, PartialEq)]
pub enum MatrixError {
    /// No peers, more than [`MAX_MATRIX_PEERS`], or not n x n entries.
    Size {
        /// Number of peers.
        peers: usize,
        /// Number of entries.
        entries: usize,
    },
    /// A rate that is no number above zero, or a cost above [`MAX_COST`].
    Entry {
        /// Where the edge begins.
        from: usize,
        /// Where it ends.
        to: usize,
    },
}

impl fmt::Display for MatrixError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size { peers, entries } => {
                write!(f, "{entries} entries for {peers} peers; 1 to {MAX_MATRIX_PEERS} peers are possible")
            }
            Self::Entry { from, to } => write!(f, "the edge from peer {from} to peer {to} is out of range"),
        }
    }
}

impl std::error::Error for MatrixError {}

/// Rates and latencies, or costs, of all directed edges between n peers, which are numbered from 0.
#[derive(Debug, Clone, PartialEq)]
pub struct Matrix {
    peers: usize,
    /// Row by row; more is better: Mbit/s, or the negative cost. An edge that is impossible is infinitely slow here,
    /// and every user of this has to look.
    rate: Vec<f64>,
    /// The cost that is summed up along a ring. Of no meaning where the edge is impossible.
    cost: Vec<u32>,
    latency_us: Option<Vec<u32>>,
    is_costs: bool,
    /// The group of co-located peers that each belongs to.
    group: Vec<usize>,
}

impl Matrix {
    /// A matrix of links, row by row: the link from peer i to peer k is entry i * n + k; `None` is an edge that cannot
    /// be used. The diagonal does not matter. Rings are compared by latency if every link has one, else by 1 / rate.
    pub fn of_links(peers: usize, links: &[Option<Link>]) -> Result<Self, MatrixError> {
        check_size(peers, links.len())?;
        let edges = || (0..peers * peers).filter(|at| at / peers != at % peers);
        let mut rate = vec![f64::NEG_INFINITY; peers * peers];
        let mut cost = vec![0; peers * peers];
        for at in edges() {
            let Some(link) = links[at] else { continue };
            if !(link.mbit_s > 0.0 && link.mbit_s.is_finite()) {
                return Err(MatrixError::Entry { from: at / peers, to: at % peers });
            }
            rate[at] = link.mbit_s;
            cost[at] = (COST_OF_ONE_MBIT_S / link.mbit_s).round().clamp(1.0, f64::from(MAX_COST)) as u32;
        }
        let timed = |at: usize| links[at].is_none_or(|link| link.latency_us.is_some());
        let latency_us = edges().all(timed).then(|| {
            links
                .iter()
                .map(|l| l.and_then(|l| l.latency_us).unwrap_or(0).min(MAX_COST))
                .collect::<Vec<u32>>()
        });
        if let Some(latency_us) = &latency_us {
            cost.clone_from(latency_us);
        }
        Ok(Self { peers, rate, cost, latency_us, is_costs: false, group: (0..peers).collect() })
    }

    /// A matrix of costs of at most [`MAX_COST`]; less is better. `None` is an edge that cannot be used.
    pub fn of_costs(peers: usize, costs: &[Option<u32>]) -> Result<Self, MatrixError> {
        check_size(peers, costs.len())?;
        let edge = |at: usize| costs[at].filter(|_| at / peers != at % peers);
        if let Some(at) = (0..costs.len()).find(|&at| edge(at).is_some_and(|cost| cost > MAX_COST)) {
            return Err(MatrixError::Entry { from: at / peers, to: at % peers });
        }
        let rate = (0..costs.len()).map(|at| edge(at).map_or(f64::NEG_INFINITY, |cost| -f64::from(cost)));
        Ok(Self {
            peers,
            rate: rate.collect(),
            cost: (0..costs.len()).map(|at| edge(at).unwrap_or(0)).collect(),
            latency_us: None,
            is_costs: true,
            group: (0..peers).collect(),
        })
    }

    /// Says which peers are in one place (behind one network interface): those with equal numbers. The planner keeps
    /// them next to each other, so that one flow enters the place and one leaves it.
    ///
    /// # Panics
    /// If there are not as many numbers as peers.
    #[must_use]
    pub fn with_places(mut self, places: &[usize]) -> Self {
        assert_eq!(places.len(), self.peers, "one place per peer");
        let first = |place: &usize| places.iter().position(|other| other == place);
        self.group = places.iter().map(|place| first(place).unwrap_or_default()).collect();
        self
    }

    /// Number of peers.
    pub fn peers(&self) -> usize {
        self.peers
    }

    /// Whether the entries are costs, not rates.
    pub fn is_costs(&self) -> bool {
        self.is_costs
    }

    /// The rate of an edge in Mbit/s, or its cost; none if it cannot be used.
    pub fn value(&self, from: usize, to: usize) -> Option<f64> {
        let rate = self.rate(from, to);
        rate.is_finite().then_some(if self.is_costs { -rate } else { rate })
    }

    /// The amount that an edge adds to the sum that rings are compared by: the latency in microseconds, 10^9 / rate, or
    /// the cost.
    pub fn cost(&self, from: usize, to: usize) -> Option<u32> {
        self.is_possible(from, to).then(|| self.cost[from * self.peers + to])
    }

    /// The latency of an edge, if all edges have one.
    pub fn latency_us(&self, from: usize, to: usize) -> Option<u32> {
        self.latency_us.as_ref().map(|all| all[from * self.peers + to])
    }

    /// More is better; minus infinity if the edge is impossible.
    pub(crate) fn rate(&self, from: usize, to: usize) -> f64 {
        self.rate[from * self.peers + to]
    }

    /// The rates of the edges from one peer.
    pub(crate) fn rates_from(&self, from: usize) -> &[f64] {
        &self.rate[from * self.peers..(from + 1) * self.peers]
    }

    /// The costs of the edges from one peer, of no meaning where an edge is impossible.
    pub(crate) fn costs_from(&self, from: usize) -> &[u32] {
        &self.cost[from * self.peers..(from + 1) * self.peers]
    }

    /// Whether no edge is impossible.
    pub(crate) fn is_complete(&self) -> bool {
        let possible = |row: &[f64]| row.iter().filter(|rate| **rate > f64::NEG_INFINITY).count();
        (0..self.peers).all(|from| {
            let own = usize::from(self.is_possible(from, from));
            possible(self.rates_from(from)) + 1 == self.peers + own
        })
    }

    pub(crate) fn is_possible(&self, from: usize, to: usize) -> bool {
        self.rate(from, to) > f64::NEG_INFINITY
    }

    /// The group of co-located peers, named after its first one.
    pub(crate) fn group(&self, peer: usize) -> usize {
        self.group[peer]
    }

    /// How often a ring has to go from one group to another if all co-located peers are next to each other.
    pub(crate) fn fewest_crossings(&self) -> usize {
        let groups = (0..self.peers).filter(|&peer| self.group[peer] == peer).count();
        if groups > 1 { groups } else { 0 }
    }

    /// Whether any peers are co-located.
    pub(crate) fn has_places(&self) -> bool {
        (0..self.peers).any(|peer| self.group[peer] != peer)
    }

    /// The members of each place of several peers, the largest place first.
    pub(crate) fn places(&self) -> Vec<Vec<usize>> {
        let members = |of: usize| (0..self.peers).filter(|&p| self.group[p] == of).collect::<Vec<_>>();
        let mut places: Vec<Vec<usize>> =
            (0..self.peers).map(members).filter(|place| place.len() > 1).collect();
        places.sort_by_key(|place| std::cmp::Reverse(place.len()));
        places
    }

    /// The same with these places only.
    pub(crate) fn with_only(&self, places: &[Vec<usize>]) -> Self {
        let mut matrix = self.clone();
        matrix.group = (0..self.peers).collect();
        for place in places {
            place.iter().for_each(|&peer| matrix.group[peer] = place[0]);
        }
        matrix
    }

    /// The edges of a ring.
    pub(crate) fn edges(order: &[usize]) -> impl Iterator<Item = (usize, usize)> {
        let next = order.iter().skip(1).chain(order.first());
        order.iter().copied().zip(next.copied()).filter(|(from, to)| from != to)
    }

    /// The slowest edge of a ring and its rate. None for one peer.
    pub(crate) fn slowest(&self, order: &[usize]) -> Option<(usize, usize)> {
        let edges = Self::edges(order);
        edges.min_by(|a, b| self.rate(a.0, a.1).total_cmp(&self.rate(b.0, b.1)))
    }

    /// The rate of the slowest edge of a ring.
    pub(crate) fn bottleneck(&self, order: &[usize]) -> f64 {
        self.slowest(order).map_or(f64::INFINITY, |(from, to)| self.rate(from, to))
    }

    /// The sum of the costs of a ring, none if an edge is impossible.
    pub fn total(&self, order: &[usize]) -> Option<u64> {
        Self::edges(order).map(|(from, to)| self.cost(from, to).map(u64::from)).sum()
    }

    pub(crate) fn crossings(&self, order: &[usize]) -> usize {
        Self::edges(order).filter(|&(from, to)| self.group[from] != self.group[to]).count()
    }
}

fn check_size(peers: usize, entries: usize) -> Result<(), MatrixError> {
    if peers == 0 || peers > MAX_MATRIX_PEERS || entries != peers * peers {
        return Err(MatrixError::Size { peers, entries });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(mbit_s: f64) -> Option<Link> {
        Some(Link { mbit_s, latency_us: None })
    }

    #[test]
    fn bad_parts_are_refused() {
        assert!(matches!(Matrix::of_links(0, &[]), Err(MatrixError::Size { .. })));
        assert!(matches!(Matrix::of_costs(2, &[None; 3]), Err(MatrixError::Size { .. })));
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let links = [None, link(bad), link(1.0), None];
            assert_eq!(Matrix::of_links(2, &links), Err(MatrixError::Entry { from: 0, to: 1 }));
        }
        let costs = [None, Some(1), Some(MAX_COST + 1), None];
        assert_eq!(Matrix::of_costs(2, &costs), Err(MatrixError::Entry { from: 1, to: 0 }));
    }

    #[test]
    fn latencies_count_only_if_all_edges_have_one() {
        let mut links = [None, link(100.0), Some(Link { mbit_s: 50.0, latency_us: Some(7) }), link(-1.0)];
        let matrix = Matrix::of_links(2, &links).unwrap();
        assert_eq!((matrix.cost(0, 1), matrix.cost(1, 0)), (Some(10_000_000), Some(20_000_000)));
        links[1] = Some(Link { mbit_s: 100.0, latency_us: Some(5) });
        let matrix = Matrix::of_links(2, &links).unwrap();
        assert_eq!(matrix.total(&[0, 1]), Some(12));
        assert_eq!(matrix.slowest(&[0, 1]), Some((1, 0)));
        assert_eq!(matrix.value(1, 1), None);
    }

    #[test]
    fn places_are_counted_once() {
        let matrix = Matrix::of_costs(4, &[Some(1); 16]).unwrap();
        assert_eq!(matrix.fewest_crossings(), 4);
        let matrix = matrix.with_places(&[7, 2, 7, 2]);
        assert_eq!((matrix.fewest_crossings(), matrix.crossings(&[0, 1, 2, 3])), (2, 4));
        assert_eq!(matrix.crossings(&[0, 2, 1, 3]), 2);
        assert_eq!(matrix.with_places(&[1; 4]).fewest_crossings(), 0);
    }
}
