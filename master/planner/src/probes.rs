//! Which edges are measured, and in which order: several at a time, but no peer sends or receives two at once.
//!
//! Of few peers every edge is measured. Of many only a sample is: edges from all over the group first, then those that
//! lead to near peers as far as latencies can tell. Rings of near peers are fast and short, and a peer that is slow to
//! nearly all others has to have the edge to the one that is next to it.

use std::collections::BTreeSet;

/// Rounds of a sample that lead all over the group.
pub const SAMPLE_ROUNDS: usize = 30;
/// Then there is this number of rounds to near peers, and once more: what was measured first says better who is near.
pub const NEAR_ROUNDS: usize = 5;
/// How often that is done.
pub const NEAR_STEPS: usize = 2;

/// Near peers of which each peer chooses.
const CANDIDATES: usize = 64;

/// An edge that was measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Probed {
    /// Sending end.
    pub from: usize,
    /// Receiving end.
    pub to: usize,
    /// Its rate.
    pub kbit_s: u64,
    /// One way.
    pub latency_us: u32,
}

/// At most `rounds` rounds of probes between `peers` peers, of the edges that are `wanted`; where it says so, an edge
/// is measured. In a round every peer is at most once at either end, so all edges of n peers take n - 1 rounds, the
/// fewest possible. In fewer rounds everybody measures peers all around the ring, its next one first.
pub fn probe_rounds(
    peers: usize,
    rounds: usize,
    mut wanted: impl FnMut(usize, usize) -> bool,
) -> Vec<Vec<(usize, usize)>> {
    let distances = peers.saturating_sub(1);
    let rounds = rounds.min(distances);
    // In each round everybody measures the peer that is so much further on.
    let mut round = |nth: usize| {
        let distance = 1 + nth * distances / rounds;
        let edges = (0..peers).map(|from| (from, (from + distance) % peers));
        edges.filter(|(from, to)| wanted(*from, *to)).collect::<Vec<_>>()
    };
    (0..rounds).map(&mut round).filter(|edges| !edges.is_empty()).collect()
}

/// At most `rounds` rounds of probes between near peers, after those that gave these figures. Peers with slow edges
/// choose first.
pub fn near_rounds(
    peers: usize,
    probed: &[Probed],
    rounds: usize,
    mut wanted: impl FnMut(usize, usize) -> bool,
) -> Vec<Vec<(usize, usize)>> {
    let near = near_peers(peers, probed);
    let (senders, receivers) =
        (slowest_first(peers, probed, |it| it.from), slowest_first(peers, probed, |it| it.to));
    let mut planned = BTreeSet::new();
    let mut round = |nth: usize| {
        // Ends take turns in choosing.
        let sends = nth.is_multiple_of(2);
        let mut taken = vec![false; peers];
        let mut edges = Vec::new();
        for &chooser in if sends { &senders } else { &receivers } {
            let edge = |other: usize| if sends { (chooser, other) } else { (other, chooser) };
            let is_free = |other: &usize| {
                let (from, to) = edge(*other);
                !taken[*other] && !planned.contains(&(from, to)) && wanted(from, to)
            };
            if let Some(other) = near[chooser].iter().copied().find(is_free) {
                taken[other] = true;
                planned.insert(edge(other));
                edges.push(edge(other));
            }
        }
        edges
    };
    (0..rounds).map(&mut round).filter(|edges| !edges.is_empty()).collect()
}

/// For each peer others, the nearest first: those between whom and it not both directions are measured.
///
/// The latency between two is at most the sum of theirs to a third peer, and at least the difference. The more third
/// peers there are, the closer to the mean difference it is supposed to be: ways of different networks to the same
/// place may differ much for a single one.
fn near_peers(peers: usize, probed: &[Probed]) -> Vec<Vec<usize>> {
    let mut known: Vec<Vec<(usize, u32, bool)>> = vec![Vec::new(); peers];
    for it in probed {
        known[it.from].push((it.to, it.latency_us, true));
        known[it.to].push((it.from, it.latency_us, false));
    }
    known.iter_mut().for_each(|row| row.sort_unstable());
    let of = |peer: usize| {
        let mut bounds: Vec<(u64, u32, u64)> = vec![(0, u32::MAX, 0); peers];
        for (third, there, _) in &known[peer] {
            for (other, back, _) in &known[*third] {
                let (differences, high, count) = &mut bounds[*other];
                *differences += u64::from(there.abs_diff(*back));
                *high = (*high).min(there.saturating_add(*back));
                *count += 1;
            }
        }
        let mut others: Vec<(u64, usize)> = (0..peers)
            .filter(|other| *other != peer && bounds[*other].2 > 0)
            .map(|other| {
                let (differences, high, count) = bounds[other];
                let (mean, high) = (differences / count, u64::from(high));
                (mean.min(high) + high.saturating_sub(mean) / (count + 1), other)
            })
            .collect();
        for pair in known[peer].chunk_by(|a, b| a.0 == b.0) {
            let other = pair[0].0;
            others.retain(|(_, it)| *it != other);
            // Only one direction is known, which says what the other one has.
            if pair.iter().any(|it| it.2) != pair.iter().any(|it| !it.2) {
                others.push((pair[0].1.into(), other));
            }
        }
        others.sort_unstable();
        others.truncate(CANDIDATES);
        others.into_iter().map(|(_, other)| other).collect()
    };
    (0..peers).map(of).collect()
}

/// Peers by the second fastest of their edges on one side, the slowest first.
fn slowest_first(peers: usize, probed: &[Probed], end: impl Fn(&Probed) -> usize) -> Vec<usize> {
    let mut fastest = vec![(0, 0); peers];
    for it in probed {
        let (first, second) = &mut fastest[end(it)];
        *second = (*second).max((*first).min(it.kbit_s));
        *first = (*first).max(it.kbit_s);
    }
    let mut order: Vec<usize> = (0..peers).collect();
    order.sort_by_key(|peer| (fastest[*peer].1, *peer));
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Link, Matrix, Objective, Options, chance::Chance, rings::plan, test_support::looks};

    #[test]
    fn every_edge_is_measured_once_and_nobody_is_at_two_ends_of_a_kind() {
        for peers in 0..20 {
            let rounds = probe_rounds(peers, peers, |_, _| true);
            assert_eq!(rounds.len(), peers.saturating_sub(1));
            let mut all = BTreeSet::new();
            for round in &rounds {
                let senders: BTreeSet<usize> = round.iter().map(|(from, _)| *from).collect();
                let receivers: BTreeSet<usize> = round.iter().map(|(_, to)| *to).collect();
                assert_eq!((senders.len(), receivers.len()), (peers, peers));
                assert!(round.iter().all(|(from, to)| from != to && all.insert((*from, *to))));
            }
            assert_eq!(all.len(), peers * peers.saturating_sub(1));
        }
    }

    #[test]
    fn a_newcomer_costs_only_its_own_edges() {
        let rounds = probe_rounds(6, 5, |from, to| from == 5 || to == 5);
        assert_eq!(rounds.len(), 5);
        assert_eq!(rounds.concat().len(), 10);
        assert!(probe_rounds(6, 5, |_, _| false).is_empty());
    }

    /// Peers in a plane, in clusters and alone, whose providers bound what they send.
    fn plane(peers: usize, seed: u64) -> Vec<Option<Link>> {
        let mut chance = Chance::new(seed);
        let centres: Vec<(f64, f64)> =
            (0..12).map(|_| (chance.unit() * 200.0, chance.unit() * 100.0)).collect();
        let places: Vec<(f64, f64, f64)> = (0..peers)
            .map(|_| {
                let (x, y) = centres[chance.below(12)];
                let cap = [4800.0, 7000.0, 15_000.0][chance.below(3)];
                (x + chance.unit() * 8.0, y + chance.unit() * 8.0, cap)
            })
            .collect();
        let mut link = |from: usize, to: usize| {
            let (a, b) = (places[from], places[to]);
            let latency_ms = 0.5 + (a.0 - b.0).hypot(a.1 - b.1);
            let mbit_s =
                (a.2 * (0.9 + 0.1 * chance.unit())).min(2.5e5 / latency_ms * (0.7 + 0.6 * chance.unit()));
            (from != to).then_some(Link { mbit_s, latency_us: Some((latency_ms * 1e3) as u32) })
        };
        (0..peers * peers).map(|at| link(at / peers, at % peers)).collect()
    }

    /// The same with a sample only.
    fn sampled(peers: usize, links: &[Option<Link>]) -> Vec<Option<Link>> {
        let mut known = vec![None; peers * peers];
        let mut probed = Vec::new();
        let mut measure = |rounds: Vec<Vec<(usize, usize)>>, probed: &mut Vec<Probed>| {
            for (from, to) in rounds.concat() {
                let link = links[from * peers + to].unwrap();
                let (kbit_s, latency_us) = ((link.mbit_s * 1e3) as u64, link.latency_us.unwrap());
                assert!(known[from * peers + to].replace(link).is_none(), "measured twice");
                probed.push(Probed { from, to, kbit_s, latency_us });
            }
        };
        measure(probe_rounds(peers, SAMPLE_ROUNDS, |_, _| true), &mut probed);
        for _ in 0..NEAR_STEPS {
            let done: BTreeSet<(usize, usize)> = probed.iter().map(|it| (it.from, it.to)).collect();
            let rounds = near_rounds(peers, &probed, NEAR_ROUNDS, |from, to| !done.contains(&(from, to)));
            for round in &rounds {
                let ends: BTreeSet<usize> = round.iter().map(|(from, _)| *from).collect();
                let others: BTreeSet<usize> = round.iter().map(|(_, to)| *to).collect();
                assert_eq!((ends.len(), others.len()), (round.len(), round.len()));
            }
            measure(rounds, &mut probed);
        }
        assert!(probed.len() <= 40 * peers);
        known
    }

    #[test]
    fn a_sample_finds_rings_that_are_nearly_as_good_as_those_of_all_edges() {
        for (peers, seed) in [(71, 1), (71, 2), (120, 3)] {
            let links = plane(peers, seed);
            let find = |links: &[Option<Link>], objective| {
                let matrix = Matrix::of_links(peers, links).unwrap();
                plan(&matrix, &Options { objective, ..Options::default() }, &mut looks(400)).unwrap()
            };
            let sample = sampled(peers, &links);
            let slowest =
                |links: &[Option<Link>]| find(links, Objective::Bottleneck).bottleneck.unwrap().value;
            let (all, some) = (slowest(&links), slowest(&sample));
            assert!(some >= 0.95 * all, "{peers} {seed}: the slowest edge has {some} instead of {all}");
            let sum = |links: &[Option<Link>]| find(links, Objective::Sum).total.unwrap().value;
            let (all, some) = (sum(&links), sum(&sample));
            assert!(some <= 1.05 * all, "{peers} {seed}: the sum is {some} instead of {all}");
        }
    }
}
