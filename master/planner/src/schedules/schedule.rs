//! How fast large all-reduces are by what was measured: around a ring, by pairwise exchange, in two levels over sites.
//!
//! A schedule is known by what it moves over each edge. An edge moves at most its rate. A place (peers behind one
//! network interface) sends to others at most what its fastest edge to another place was measured to carry, and
//! receives likewise, or more if that was measured ([`Interfaces::learn`]). A ring enters and leaves a place once and
//! does not profit from an interface that can do more, so that the other schedules are if anything faster than it says
//! here. A way that peers have in common beyond their interfaces is an [`Uplink`](super::Uplink).

use super::{
    interfaces::Interfaces,
    loads::{Loads, can_differ, may_exchange, pairwise_rate},
    shares::best_shares,
    site_search::{BySites, best_sites},
};
use crate::{MIN_GAIN, matrix::Matrix};
use pccl_protocol::Algorithm;

/// How much tensor each schedule reduces in a second, in Mbit; latencies do not count.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedules {
    /// Around the ring.
    pub ring: f64,
    /// By pairwise exchange with these `shares`, where that is possible and there is more than one place.
    pub pairwise: Option<f64>,
    /// The share that each peer should own in pairwise exchange, by its number, in parts of
    /// [`SHARE_PARTS`](super::SHARE_PARTS); empty: all the same.
    pub shares: Vec<u16>,
    /// In two levels, over the best sites, if there are any.
    pub sites: Option<BySites>,
}

impl Schedules {
    /// For a ring of all peers of a matrix of rates. None if the ring cannot be used.
    pub fn of(matrix: &Matrix, interfaces: &Interfaces, ring: &[usize]) -> Option<Self> {
        if matrix.is_costs() {
            return None;
        }
        let n = matrix.peers();
        let mut loads = Loads::none(n);
        loads.add_ring(ring, 1.0);
        let ring = loads.mbit_s(matrix, interfaces)?;
        let shares = best_shares(matrix, interfaces).unwrap_or_default();
        let pairwise = pairwise_rate(matrix, interfaces, &shares);
        Some(Self { ring, pairwise, shares, sites: None })
    }

    /// The same with sites: those that are `named`, by number of peer, and else the best that are found.
    #[must_use]
    pub fn with_sites(mut self, matrix: &Matrix, interfaces: &Interfaces, named: &[Option<u16>]) -> Self {
        self.sites = may_exchange(matrix).then(|| best_sites(matrix, interfaces, named)).flatten();
        self
    }

    /// For the ring in the order of the numbers, and an exchange in which only these own something, each the same.
    /// Edges between the others need not be there; all other ones must have a rate.
    pub fn among(matrix: &Matrix, interfaces: &Interfaces, owns: &[bool]) -> Option<Self> {
        let n = matrix.peers();
        let is_needed = |from: usize, to: usize| from != to && (owns[from] || owns[to]);
        let mut pairs = (0..n).flat_map(|from| (0..n).map(move |to| (from, to)));
        let is_known = pairs.all(|(from, to)| !is_needed(from, to) || matrix.is_possible(from, to));
        if owns.len() != n || matrix.is_costs() || !is_known || !can_differ(matrix) {
            return None;
        }
        let order: Vec<usize> = (0..n).collect();
        let mut loads = Loads::none(n);
        loads.add_ring(&order, 1.0);
        let ring = loads.mbit_s(matrix, interfaces)?;
        let shares: Vec<u16> = owns.iter().map(|owns| u16::from(*owns)).collect();
        let pairwise = Loads::pairwise(n, &shares).mbit_s(matrix, interfaces);
        Some(Self { ring, pairwise, shares, sites: None })
    }

    /// By what part pairwise exchange is faster than the ring; below 0 if it is slower.
    pub fn pairwise_gain(&self) -> Option<f64> {
        Some(self.pairwise? / self.ring - 1.0)
    }

    /// By what part the schedule in two levels is faster than the ring; below 0 if it is slower.
    pub fn sites_gain(&self) -> Option<f64> {
        Some(self.sites.as_ref()?.rate / self.ring - 1.0)
    }

    /// How much tensor a second a schedule reduces; none of one that is not possible.
    fn rate_of(&self, algorithm: Algorithm) -> Option<f64> {
        match algorithm {
            Algorithm::Ring => Some(self.ring),
            Algorithm::Pairwise => self.pairwise,
            Algorithm::Sites => self.sites.as_ref().map(|found| found.rate),
            _ => None,
        }
    }

    /// Which schedule is to be used, where `used` is used now. Of those within a tenth of the best: the used one, or
    /// else the ring before pairwise exchange, which has its bytes, and that before sites.
    pub fn preferred(&self, used: Algorithm) -> Algorithm {
        let all = [used, Algorithm::Ring, Algorithm::Pairwise, Algorithm::Sites];
        let rated = || all.into_iter().filter_map(|it| Some((it, self.rate_of(it)?)));
        let best = rated().map(|it| it.1).fold(0.0, f64::max);
        rated().find(|it| it.1 * (1.0 + MIN_GAIN) > best).map_or(Algorithm::Ring, |it| it.0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{loads::SCHEDULED_PEERS, sites::Sites};
    use super::*;
    use crate::{chance::Chance, matrix::Link, test_support::sparse};
    use std::collections::BTreeMap;

    fn matrix(n: usize, rate: impl Fn(usize, usize) -> f64) -> Matrix {
        let links: Vec<Option<Link>> =
            (0..n * n).map(|at| Some(Link { mbit_s: rate(at / n, at % n), latency_us: None })).collect();
        Matrix::of_links(n, &links).unwrap()
    }

    fn schedules(matrix: &Matrix) -> Schedules {
        let order: Vec<usize> = (0..matrix.peers()).collect();
        Schedules::of(matrix, &Interfaces::of(matrix), &order).unwrap()
    }

    fn assert_near(a: f64, b: f64) {
        assert!((a / b - 1.0).abs() < 1e-9, "{a} {b}");
    }

    #[test]
    fn among_some_owners_edges_between_the_others_need_not_be_there() {
        let rate = |from: usize, to: usize| 100.0 + (7 * from + to) as f64;
        let links = |missing: &dyn Fn(usize, usize) -> bool| {
            let link = |at: usize| {
                let (from, to) = (at / 4, at % 4);
                (!missing(from, to)).then(|| Link { mbit_s: rate(from, to), latency_us: None })
            };
            Matrix::of_links(4, &(0..16).map(link).collect::<Vec<_>>()).unwrap()
        };
        let owns = [true, false, true, false];
        let apart = links(&|from, to| !owns[from] && !owns[to]);
        let interfaces = Interfaces::of(&apart);
        let found = Schedules::among(&apart, &interfaces, &owns).expect("all that is needed is there");
        assert_eq!(found.shares, [1, 0, 1, 0]);
        assert_near(found.ring, counted(&apart, &messages(&[0, 1, 2, 3], None)).unwrap());
        let shares = [0.5, 0.0, 0.5, 0.0];
        let needed: Vec<_> =
            messages(&[0, 1, 2, 3], Some(&shares)).into_iter().filter(|it| it.2 > 0.0).collect();
        assert_near(found.pairwise.unwrap(), counted(&apart, &needed).unwrap());
        let one_more = links(&|from, to| (!owns[from] && !owns[to]) || (from, to) == (0, 3));
        assert_eq!(Schedules::among(&one_more, &interfaces, &owns), None);
    }

    /// Every message of a schedule, one by one: from, to, part of the tensor. With shares by pairwise exchange.
    fn messages(order: &[usize], shares: Option<&[f64]>) -> Vec<(usize, usize, f64)> {
        let n = order.len();
        let mut messages = Vec::new();
        for chunk in 0..n {
            let owner = order[(chunk + n - 1) % n];
            if let Some(shares) = shares {
                let others = || order.iter().copied().filter(move |peer| *peer != owner);
                messages.extend(others().map(|peer| (peer, owner, shares[owner])));
                messages.extend(others().map(|peer| (owner, peer, shares[owner])));
            } else {
                // It starts behind its owner, and comes back to it; then the result goes around.
                let hop =
                    |step: usize| (order[(chunk + step) % n], order[(chunk + step + 1) % n], 1.0 / n as f64);
                messages.extend((0..2 * (n - 1)).map(hop));
            }
        }
        messages
    }

    /// Mbit of tensor a second by counting what passes each edge and each interface.
    fn counted(matrix: &Matrix, messages: &[(usize, usize, f64)]) -> Option<f64> {
        let n = matrix.peers();
        let mut times = BTreeMap::new();
        for &(from, to, part) in messages {
            let rate = matrix.value(from, to)?;
            *times.entry(format!("edge {from} {to}")).or_insert(0.0) += part / rate;
            let (here, there) = (matrix.group(from), matrix.group(to));
            if here != there {
                let edges = || (0..n * n).map(|at| (at / n, at % n));
                let out = edges().filter(|(a, b)| matrix.group(*a) == here && matrix.group(*b) != here);
                let into = edges().filter(|(a, b)| matrix.group(*b) == there && matrix.group(*a) != there);
                let most = |edges: &mut dyn Iterator<Item = (usize, usize)>| {
                    edges.filter_map(|(a, b)| matrix.value(a, b)).fold(0.0, f64::max)
                };
                *times.entry(format!("from {here}")).or_insert(0.0) += part / most(&mut out.into_iter());
                *times.entry(format!("to {there}")).or_insert(0.0) += part / most(&mut into.into_iter());
            }
        }
        Some(1.0 / times.into_values().fold(0.0, f64::max))
    }

    #[test]
    fn rates_equal_those_of_counted_messages() {
        let mut chance = Chance::new(5);
        let (mut possible, mut impossible) = (0, 0);
        for seed in 0..2000 {
            let n = 3 + chance.below(6);
            let density = if seed % 2 == 0 { 1.1 } else { 0.97 };
            let places: Vec<usize> = (0..n).map(|_| chance.below(n)).collect();
            let matrix = sparse(n, seed, density).with_places(&places);
            let interfaces = Interfaces::of(&matrix);
            let mut order: Vec<usize> = (0..n).collect();
            (1..n).for_each(|at| order.swap(at, chance.below(at + 1)));
            let ring = counted(&matrix, &messages(&order, None));
            let found = Schedules::of(&matrix, &interfaces, &order);
            assert_eq!(found.is_some(), ring.is_some());
            if let (Some(found), Some(ring)) = (&found, ring) {
                assert_near(found.ring, ring);
                assert_eq!(found.pairwise, pairwise_rate(&matrix, &interfaces, &found.shares));
            }
            // Parts of each peer, most often none of some.
            let parts: Vec<u16> = (0..n).map(|_| [0, chance.below(500) as u16][chance.below(2)]).collect();
            for parts in [vec![], vec![1; n], parts] {
                let all = f64::from(parts.iter().sum::<u16>());
                let share = |peer| parts.get(peer).map_or(1.0 / n as f64, |part| f64::from(*part) / all);
                let shares: Vec<f64> = (0..n).map(share).collect();
                let pairwise = pairwise_rate(&matrix, &interfaces, &parts);
                let counted = counted(&matrix, &messages(&order, Some(&shares)));
                if matrix.fewest_crossings() == 0 || shares[0].is_nan() {
                    assert_eq!(pairwise, None);
                } else if let (Some(a), Some(b)) = (pairwise, counted) {
                    possible += 1;
                    assert_near(a, b);
                } else {
                    assert_eq!(pairwise, counted);
                    impossible += 1;
                }
            }
        }
        assert!(possible > 1500 && impossible > 300, "{possible} {impossible}");
    }

    #[test]
    fn where_all_edges_are_alike_both_are_equally_fast() {
        for n in 3..=8 {
            let found = schedules(&matrix(n, |_, _| 100.0));
            let n = n as f64;
            assert_near(found.ring, 100.0 * n / (2.0 * (n - 1.0)));
            assert_near(found.pairwise.unwrap(), found.ring);
            assert_near(1.0 + found.pairwise_gain().unwrap(), 1.0);
        }
    }

    #[test]
    fn edges_slower_than_interfaces_favour_pairwise_and_one_bad_edge_unequal_shares() {
        // Each peer has one fast edge in each direction, so that interfaces are known to carry 900; no ring is of fast
        // edges only.
        let fast = |from: usize, to: usize| if from / 2 == to / 2 { 900.0 } else { 300.0 };
        let found = schedules(&matrix(4, fast));
        assert_near(found.ring, 300.0 / 1.5);
        assert_near(found.pairwise.unwrap(), 900.0 / 1.5);
        // An edge that the ring does not use.
        let one_bad = matrix(4, |from, to| if (from, to) == (0, 2) { 10.0 } else { fast(from, to) });
        let found = schedules(&one_bad);
        assert_near(pairwise_rate(&one_bad, &Interfaces::of(&one_bad), &[]).unwrap(), 10.0 / 0.5);
        // Without shares of both its ends an edge between the others binds: they own half each. A little more is good
        // enough.
        assert!((300.0..310.0).contains(&found.pairwise.unwrap()), "{found:?}");
        assert_eq!(found.preferred(Algorithm::Ring), Algorithm::Pairwise);
        // To and from a slow host all has to pass once, and no more than that if it owns nothing.
        let found = schedules(&matrix(4, |from, to| if from == 0 || to == 0 { 10.0 } else { 300.0 }));
        assert!((9.7..=10.0).contains(&found.pairwise.unwrap()), "{found:?}");
        assert_near(found.ring, 10.0 / 1.5);
    }

    #[test]
    fn interfaces_that_carry_more_than_an_edge_favour_pairwise() {
        let edges = matrix(4, |_, _| 100.0);
        let order = [0, 1, 2, 3];
        let mut interfaces = Interfaces::of(&edges);
        // Edges are what is slow: all three of a peer carry 100 at once.
        let mut free = interfaces.clone();
        free.learn(&edges, |_, _| 100.0);
        let found = Schedules::of(&edges, &free, &order).unwrap();
        assert_near(found.pairwise.unwrap(), 3.0 * found.ring);
        // Interfaces are.
        interfaces.learn(&edges, |_, _| 33.0);
        let found = Schedules::of(&edges, &interfaces, &order).unwrap();
        assert_near(found.pairwise.unwrap(), found.ring);
    }

    #[test]
    fn peers_in_one_place_share_its_interface() {
        // Two hosts of two peers each: of four edges from one to the other each gets a quarter.
        let edges = matrix(4, |from, to| if from / 2 == to / 2 { 10_000.0 } else { 100.0 });
        let found = schedules(&edges.clone().with_places(&[0, 0, 1, 1]));
        assert_near(found.ring, 100.0 / 1.5);
        assert_near(found.pairwise.unwrap(), 100.0 / (4.0 * 0.5));
        assert_eq!(schedules(&edges.with_places(&[0; 4])).pairwise, None);
    }

    #[test]
    fn only_groups_with_direct_edges_have_a_choice() {
        assert_eq!(schedules(&matrix(2, |_, _| 1.0)).pairwise, None);
        assert_eq!(schedules(&matrix(SCHEDULED_PEERS.end() + 1, |_, _| 1.0)).pairwise, None);
        let costs = Matrix::of_costs(3, &[Some(1); 9]).unwrap();
        assert_eq!(Schedules::of(&costs, &Interfaces::of(&costs), &[0, 1, 2]), None);
    }

    #[test]
    fn a_change_has_to_gain_a_tenth() {
        use Algorithm::{Pairwise, Ring, Sites as BySitesOnly};
        let with = |pairwise, sites: Option<f64>| Schedules {
            ring: 100.0,
            pairwise,
            shares: Vec::new(),
            sites: sites.map(|rate| BySites { rate, sites: Sites::new(&[0, 0, 1]) }),
        };
        let both = |pairwise| {
            let found = with(Some(pairwise), None);
            (found.preferred(Ring), found.preferred(Pairwise))
        };
        assert_eq!(both(109.0), (Ring, Pairwise));
        assert_eq!(both(110.1), (Pairwise, Pairwise));
        assert_eq!(both(91.0), (Ring, Pairwise));
        assert_eq!(both(90.0), (Ring, Ring));
        assert_eq!(with(None, None).preferred(Pairwise), Ring);
        let three = with(Some(120.0), Some(125.0));
        let preferred = [Ring, Pairwise, BySitesOnly].map(|used| three.preferred(used));
        assert_eq!(preferred, [Pairwise, Pairwise, BySitesOnly]);
        assert_eq!(with(Some(120.0), Some(140.0)).preferred(Pairwise), BySitesOnly);
        // The sites have gone.
        assert_eq!(with(Some(105.0), None).preferred(BySitesOnly), Ring);
    }
}
