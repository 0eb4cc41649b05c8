//! Search for a ring (a Hamiltonian cycle) that avoids edges known to be impossible.

use pccl_protocol::PeerId;
use std::collections::BTreeSet;
use std::fmt;

/// Up to this many members the search is exact: every order is covered.
const EXACT_MEMBERS: usize = 16;
/// Steps that the bounded search for larger rings may take; each looks at every member once.
const BOUNDED_STEPS: usize = 20_000;

/// No ring avoids the forbidden edges (or, beyond 16 members, none was found).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoRing;

impl fmt::Display for NoRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no ring avoids the edges that cannot be built")
    }
}

impl std::error::Error for NoRing {}

/// An order of `preferred` in which no member is followed, cyclically, by one that it cannot reach.
///
/// `forbidden` holds directed edges (from, to). The order given is returned as it is if it is possible; otherwise the
/// ring begins with its first member and keeps to its order where it can. One member alone is always a ring.
///
/// Exact up to 16 members: a member set and its last element decide whether the rest can be completed, so dead ends are
/// remembered by that pair (Held and Karp, "A dynamic programming approach to sequencing problems", 1962).
pub fn ring_order(
    preferred: &[PeerId],
    forbidden: &BTreeSet<(PeerId, PeerId)>,
) -> Result<Vec<PeerId>, NoRing> {
    let n = preferred.len();
    if n < 2 || (0..n).all(|i| !forbidden.contains(&(preferred[i], preferred[(i + 1) % n]))) {
        return Ok(preferred.to_vec());
    }
    let allowed: Vec<Vec<bool>> = preferred
        .iter()
        .map(|from| preferred.iter().map(|to| from != to && !forbidden.contains(&(*from, *to))).collect())
        .collect();
    let isolated = |i: usize| !allowed[i].contains(&true) || !allowed.iter().any(|row| row[i]);
    if (0..n).any(isolated) {
        return Err(NoRing);
    }
    let mut search = Search {
        allowed: &allowed,
        path: vec![0],
        used: vec![false; n],
        dead_ends: BTreeSet::new(),
        steps_left: if n <= EXACT_MEMBERS { usize::MAX } else { BOUNDED_STEPS },
    };
    search.used[0] = true;
    if search.extend() { Ok(search.path.iter().map(|&i| preferred[i]).collect()) } else { Err(NoRing) }
}

struct Search<'a> {
    allowed: &'a [Vec<bool>],
    path: Vec<usize>,
    used: Vec<bool>,
    /// Sets of used members, as bits, with a last member from which no completion exists. Only for exact searches.
    dead_ends: BTreeSet<(u32, usize)>,
    steps_left: usize,
}

impl Search<'_> {
    fn extend(&mut self) -> bool {
        let n = self.allowed.len();
        let last = self.path[self.path.len() - 1];
        if self.path.len() == n {
            return self.allowed[last][0];
        }
        if self.steps_left == 0 {
            return false;
        }
        self.steps_left -= 1;
        let state = (n <= EXACT_MEMBERS).then(|| (self.used_bits(), last));
        if state.is_some_and(|state| self.dead_ends.contains(&state)) {
            return false;
        }
        for next in self.candidates(last) {
            self.used[next] = true;
            self.path.push(next);
            if self.extend() {
                return true;
            }
            self.path.pop();
            self.used[next] = false;
        }
        if let Some(state) = state {
            self.dead_ends.insert(state);
        }
        false
    }

    /// Members that may follow `last`, those behind it in the given order first.
    fn candidates(&self, last: usize) -> Vec<usize> {
        let n = self.allowed.len();
        let after_last = (1..n).map(|step| (last + step) % n);
        after_last.filter(|&i| !self.used[i] && self.allowed[last][i]).collect()
    }

    fn used_bits(&self) -> u32 {
        self.used.iter().enumerate().fold(0, |bits, (i, used)| bits | (u32::from(*used) << i))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peers(n: usize) -> Vec<PeerId> {
        (0..n as u128).map(PeerId).collect()
    }

    fn check(order: &[PeerId], members: &[PeerId], forbidden: &BTreeSet<(PeerId, PeerId)>) {
        let mut sorted = order.to_vec();
        sorted.sort();
        let mut expected = members.to_vec();
        expected.sort();
        assert_eq!(sorted, expected);
        for i in 0..order.len() {
            assert!(!forbidden.contains(&(order[i], order[(i + 1) % order.len()])));
        }
    }

    /// Whether any order at all works: tries every permutation.
    fn exists(
        rest: &mut Vec<PeerId>,
        path: &mut Vec<PeerId>,
        forbidden: &BTreeSet<(PeerId, PeerId)>,
    ) -> bool {
        if rest.is_empty() {
            return !forbidden.contains(&(path[path.len() - 1], path[0]));
        }
        for i in 0..rest.len() {
            let next = rest.remove(i);
            let ok = path.last().is_none_or(|last| !forbidden.contains(&(*last, next)));
            path.push(next);
            let found = ok && exists(rest, path, forbidden);
            path.pop();
            rest.insert(i, next);
            if found {
                return true;
            }
        }
        false
    }

    #[test]
    fn preferred_order_is_kept_when_possible() {
        let members = peers(5);
        assert_eq!(ring_order(&members, &BTreeSet::from([(PeerId(0), PeerId(2))])), Ok(members));
    }

    #[test]
    fn small_rings() {
        assert_eq!(ring_order(&[], &BTreeSet::new()), Ok(vec![]));
        assert_eq!(ring_order(&peers(1), &BTreeSet::from([(PeerId(0), PeerId(0))])), Ok(peers(1)));
        assert_eq!(ring_order(&peers(2), &BTreeSet::from([(PeerId(1), PeerId(0))])), Err(NoRing));
    }

    #[test]
    fn agrees_with_exhaustive_search_for_every_set_of_forbidden_edges_of_four() {
        let members = peers(4);
        let edges: Vec<_> = members
            .iter()
            .flat_map(|a| members.iter().map(move |b| (*a, *b)))
            .filter(|(a, b)| a != b)
            .collect();
        for bits in 0u32..1 << edges.len() {
            let forbidden: BTreeSet<_> =
                edges.iter().enumerate().filter(|(i, _)| bits >> i & 1 == 1).map(|(_, e)| *e).collect();
            let any = exists(&mut members[1..].to_vec(), &mut vec![members[0]], &forbidden);
            match ring_order(&members, &forbidden) {
                Ok(order) => check(&order, &members, &forbidden),
                Err(NoRing) => assert!(!any, "missed a ring for {forbidden:?}"),
            }
        }
    }

    #[test]
    fn sixteen_members_with_a_hopeless_one_end_quickly() {
        let members = peers(16);
        let forbidden: BTreeSet<_> = (0..15).map(|i| (PeerId(i), PeerId(15))).collect();
        assert_eq!(ring_order(&members, &forbidden), Err(NoRing));
    }

    #[test]
    fn large_rings_avoid_several_edges() {
        let members = peers(200);
        let forbidden: BTreeSet<_> = (0..200).map(|i| (PeerId(i), PeerId((i + 1) % 200))).collect();
        let order = ring_order(&members, &forbidden).expect("such a ring exists");
        check(&order, &members, &forbidden);
    }

    #[test]
    fn the_search_ends_for_large_rings_that_do_not_exist() {
        let members = peers(100);
        let forbidden: BTreeSet<_> = (0..99).map(|i| (PeerId(i), PeerId(99))).collect();
        assert_eq!(ring_order(&members, &forbidden), Err(NoRing));
    }
}
