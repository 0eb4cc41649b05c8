//! The largest ring that the edges which work allow, when not all members can be in one.

use super::search::ring_order;
use pccl_protocol::PeerId;
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Up to this many members that reach each other in both directions, however far around, the answer is exact.
const EXACT_MEMBERS: usize = 16;
/// Members that are given up one by one; after that several at a time, so that the search ends.
const SINGLE_REMOVALS: usize = 48;

/// A member of a ring that may have to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// The member.
    pub peer: PeerId,
    /// It has been in a ring with others: it never goes for those who have not.
    pub established: bool,
    /// It holds the last committed state.
    pub holds_state: bool,
    /// Edges that cannot be built for which it is the likelier cause.
    pub blame: u32,
    /// Order of registration.
    pub order: u64,
}

/// How good a set of members is; the greater, the better. Of sets that are equal in all of this, the one with the
/// members that came first is taken.
type Worth = (usize, usize, Reverse<u64>, usize);

/// A ring of as many members as possible in which no member is followed by one that it cannot reach.
///
/// Established members come first: as many of them as possible stay. Then the size counts, then who is to blame for the
/// fewest edges, then who holds state, then who came earlier. Exact where at most 16 members are left when those are
/// set aside that cannot reach the others or be reached by them; beyond that, one whose edges fail most is given up
/// after the other. Never empty, unless there are no members.
pub fn largest_ring(members: &[Candidate], forbidden: &BTreeSet<(PeerId, PeerId)>) -> Vec<PeerId> {
    let mut members = members.to_vec();
    members.sort_by_key(|member| (member.order, member.peer));
    let graph = Graph::new(&members, forbidden);
    let all: Vec<usize> = (0..members.len()).collect();
    graph.best_of(&all, forbidden).into_iter().map(|at| members[at].peer).collect()
}

struct Graph<'a> {
    members: &'a [Candidate],
    allowed: Vec<Vec<bool>>,
}

impl<'a> Graph<'a> {
    fn new(members: &'a [Candidate], forbidden: &BTreeSet<(PeerId, PeerId)>) -> Self {
        let allowed = members
            .iter()
            .map(|from| {
                let works =
                    |to: &Candidate| from.peer != to.peer && !forbidden.contains(&(from.peer, to.peer));
                members.iter().map(works).collect()
            })
            .collect();
        Self { members, allowed }
    }

    fn worth(&self, set: &[usize]) -> Worth {
        let count =
            |wanted: fn(&Candidate) -> bool| set.iter().filter(|at| wanted(&self.members[**at])).count();
        let blame = set.iter().map(|at| u64::from(self.members[*at].blame)).sum();
        (count(|m| m.established), set.len(), Reverse(blame), count(|m| m.holds_state))
    }

    /// The best ring within `set`: every ring lies within members that all reach each other.
    fn best_of(&self, set: &[usize], forbidden: &BTreeSet<(PeerId, PeerId)>) -> Vec<usize> {
        let mut parts = self.parts(set);
        parts.sort_by_key(|part| (Reverse(self.worth(part)), part.first().copied()));
        let mut best: Vec<usize> = Vec::new();
        for part in parts {
            let ((best_kept, best_size, ..), (kept, size, ..)) = (self.worth(&best), self.worth(&part));
            if (kept, size) < (best_kept, best_size) {
                continue;
            }
            let ring = self.ring_within(&part, forbidden);
            let sorted = |ring: &[usize]| {
                let mut sorted = ring.to_vec();
                sorted.sort_unstable();
                Reverse(sorted)
            };
            if best.is_empty() || (self.worth(&ring), sorted(&ring)) > (self.worth(&best), sorted(&best)) {
                best = ring;
            }
        }
        best
    }

    /// `set` in parts whose members all reach each other, directly or by way of others of the part.
    fn parts(&self, set: &[usize]) -> Vec<Vec<usize>> {
        let mut left: Vec<usize> = set.to_vec();
        let mut parts = Vec::new();
        while let Some(start) = left.first().copied() {
            let forward = self.reached(start, &left, |from, to| self.allowed[from][to]);
            let backward = self.reached(start, &left, |from, to| self.allowed[to][from]);
            let part: Vec<usize> = left.iter().copied().filter(|at| forward[*at] && backward[*at]).collect();
            left.retain(|at| !(forward[*at] && backward[*at]));
            parts.push(part);
        }
        parts
    }

    fn reached(&self, start: usize, within: &[usize], edge: impl Fn(usize, usize) -> bool) -> Vec<bool> {
        let mut seen = vec![false; self.members.len()];
        seen[start] = true;
        let mut unseen: Vec<usize> = within.iter().copied().filter(|at| *at != start).collect();
        let mut queue = vec![start];
        while let Some(at) = queue.pop() {
            unseen.retain(|next| {
                let found = edge(at, *next);
                if found {
                    seen[*next] = true;
                    queue.push(*next);
                }
                !found
            });
        }
        seen
    }

    fn ring_within(&self, part: &[usize], forbidden: &BTreeSet<(PeerId, PeerId)>) -> Vec<usize> {
        if part.len() <= EXACT_MEMBERS {
            return self.exact(part);
        }
        let mut kept = part.to_vec();
        let mut gone = Vec::new();
        loop {
            if kept.len() <= EXACT_MEMBERS {
                return self.with_as_many_more(self.exact(&kept), &gone);
            }
            if let Some(ring) = self.ring_of_all(&kept, forbidden) {
                return self.with_as_many_more(ring, &gone);
            }
            let count = if gone.len() < SINGLE_REMOVALS { 1 } else { kept.len().div_ceil(16) };
            for _ in 0..count {
                if let Some(worst) = self.worst_of(&kept) {
                    kept.retain(|at| *at != worst);
                    gone.push(worst);
                }
            }
            // A set that falls apart without them goes on with its best part.
            let parts = self.parts(&kept);
            let best = parts.into_iter().max_by_key(|part| self.worth(part)).unwrap_or_default();
            gone.extend(kept.iter().copied().filter(|at| !best.contains(at)));
            kept = best;
        }
    }

    /// The member with the fewest ways in or out, the one that is wanted least if several have.
    fn worst_of(&self, kept: &[usize]) -> Option<usize> {
        let ways = |at: usize| {
            let out = kept.iter().filter(|to| self.allowed[at][**to]).count();
            let into = kept.iter().filter(|from| self.allowed[**from][at]).count();
            (out.min(into), out + into)
        };
        let value = |at: usize| {
            let member = &self.members[at];
            (member.established, ways(at), Reverse(member.blame), member.holds_state, Reverse(at))
        };
        kept.iter().copied().min_by_key(|at| value(*at))
    }

    fn ring_of_all(&self, kept: &[usize], forbidden: &BTreeSet<(PeerId, PeerId)>) -> Option<Vec<usize>> {
        let peers: Vec<PeerId> = kept.iter().map(|at| self.members[*at].peer).collect();
        if let Ok(order) = ring_order(&peers, forbidden) {
            let index = |peer: PeerId| kept.iter().copied().find(|at| self.members[*at].peer == peer);
            return order.into_iter().map(index).collect();
        }
        // Another way to build one: whoever fits between two neighbours goes there.
        let (first, rest) = kept.split_first()?;
        let second = rest.iter().find(|at| self.allowed[*first][**at] && self.allowed[**at][*first])?;
        let others: Vec<usize> = rest.iter().copied().filter(|at| at != second).collect();
        let ring = self.with_as_many_more(vec![*first, *second], &others);
        (ring.len() == kept.len()).then_some(ring)
    }

    /// Puts those of `others` between neighbours of the ring who fit there.
    fn with_as_many_more(&self, mut ring: Vec<usize>, others: &[usize]) -> Vec<usize> {
        let mut others = others.to_vec();
        loop {
            let before = others.len();
            others.retain(|&at| {
                let fits = |place: &usize| {
                    let next = ring[(place + 1) % ring.len()];
                    self.allowed[ring[*place]][at] && self.allowed[at][next]
                };
                match (0..ring.len()).find(fits) {
                    Some(place) => ring.insert(place + 1, at),
                    None => return true,
                }
                false
            });
            if others.is_empty() || others.len() == before {
                return ring;
            }
        }
    }

    /// Of all sets of these members, at most 16, the best that has a ring.
    ///
    /// For every set, as bits: where can a path end that begins at its first member and visits all of it (Held and
    /// Karp, 1962)?
    fn exact(&self, part: &[usize]) -> Vec<usize> {
        let n = part.len();
        let into: Vec<u32> = (0..n)
            .map(|to| {
                (0..n).filter(|from| self.allowed[part[*from]][part[to]]).fold(0, |bits, i| bits | 1 << i)
            })
            .collect();
        let mut ends = vec![0_u32; 1 << n];
        let mut best: Option<(Worth, u32)> = None;
        for set in 1_u32..1 << n {
            let first = set.trailing_zeros() as usize;
            let mut found = 0;
            for last in bits(set) {
                let before = set & !(1 << last);
                let reached =
                    if before == 0 { true } else { last != first && ends[before as usize] & into[last] != 0 };
                found |= u32::from(reached) << last;
            }
            ends[set as usize] = found;
            if set.count_ones() > 1 && found & into[first] == 0 {
                continue;
            }
            let worth = self.worth(&bits(set).map(|at| part[at]).collect::<Vec<_>>());
            // Of equal ones that with the lowest number that only one of them has.
            let is_earlier = |known: u32| set >> (set ^ known).trailing_zeros() & 1 == 1;
            if best.is_none_or(|(known, other)| worth > known || (worth == known && is_earlier(other))) {
                best = Some((worth, set));
            }
        }
        let Some((_, mut set)) = best else { return Vec::new() };
        let first = set.trailing_zeros() as usize;
        let mut possible = if set.count_ones() > 1 { ends[set as usize] & into[first] } else { set };
        let mut ring = Vec::with_capacity(n);
        while set != 0 && possible != 0 {
            let last = possible.trailing_zeros() as usize;
            ring.push(part[last]);
            set &= !(1 << last);
            possible = ends[set as usize] & into[last];
        }
        ring.reverse();
        ring
    }
}

fn bits(set: u32) -> impl Iterator<Item = usize> {
    (0..32).filter(move |at| set >> at & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    fn members(established: u128, newcomers: u128) -> Vec<Candidate> {
        let member = |i: u128| Candidate {
            peer: PeerId(i),
            established: i < established,
            holds_state: false,
            blame: 0,
            order: i as u64,
        };
        (0..established + newcomers).map(member).collect()
    }

    fn edges(list: impl IntoIterator<Item = (u128, u128)>) -> BTreeSet<(PeerId, PeerId)> {
        list.into_iter().map(|(a, b)| (PeerId(a), PeerId(b))).collect()
    }

    fn check(ring: &[PeerId], forbidden: &BTreeSet<(PeerId, PeerId)>) {
        let distinct: BTreeSet<_> = ring.iter().collect();
        assert_eq!(distinct.len(), ring.len());
        let fails = |i: usize| forbidden.contains(&(ring[i], ring[(i + 1) % ring.len()]));
        assert!(ring.len() == 1 || !(0..ring.len()).any(fails), "{ring:?}");
    }

    fn kept(members: &[Candidate], forbidden: &BTreeSet<(PeerId, PeerId)>) -> Vec<u128> {
        let ring = largest_ring(members, forbidden);
        check(&ring, forbidden);
        let mut kept: Vec<u128> = ring.into_iter().map(|peer| peer.0).collect();
        kept.sort_unstable();
        kept
    }

    #[test]
    fn who_stays() {
        // (established, newcomers, forbidden edges, who stays)
        type Case<'a> = (u128, u128, &'a [(u128, u128)], &'a [u128]);
        let table: &[Case<'_>] = &[
            (3, 0, &[(0, 1)], &[0, 1, 2]),
            (2, 0, &[(0, 1)], &[0]),
            (2, 1, &[(0, 2), (1, 2)], &[0, 1]),
            // Alone, and nobody reaches it: those who reach each other stay.
            (0, 3, &[(1, 0), (2, 0)], &[1, 2]),
            // Two that have been in a ring stay, however many the others are.
            (2, 3, &[(2, 0), (3, 0), (4, 0), (2, 1), (3, 1), (4, 1)], &[0, 1]),
            (4, 0, &[(0, 1), (0, 2), (0, 3)], &[1, 2, 3]),
            // Two halves: the one that came first.
            (4, 0, &[(0, 2), (0, 3), (1, 2), (1, 3), (2, 0), (3, 0), (2, 1), (3, 1)], &[0, 1]),
        ];
        for (established, newcomers, forbidden, expected) in table {
            let forbidden = edges(forbidden.iter().copied());
            assert_eq!(&kept(&members(*established, *newcomers), &forbidden), expected, "{forbidden:?}");
        }
        let mut two = members(2, 0);
        two[0].blame = 1;
        assert_eq!(kept(&two, &edges([(1, 0)])), [1], "who is to blame goes");
        let mut halves = members(0, 4);
        (halves[2].holds_state, halves[3].holds_state) = (true, true);
        let split = [(0, 2), (0, 3), (1, 2), (1, 3), (2, 0), (3, 0), (2, 1), (3, 1)];
        assert_eq!(kept(&halves, &edges(split)), [2, 3], "who holds the state stays");
    }

    /// The size of the largest ring, by trying every order of every set.
    fn by_force(n: u128, forbidden: &BTreeSet<(PeerId, PeerId)>) -> usize {
        fn longest(path: &mut Vec<u128>, n: u128, forbidden: &BTreeSet<(PeerId, PeerId)>) -> usize {
            let works = |a: u128, b: u128| !forbidden.contains(&(PeerId(a), PeerId(b)));
            let last = path[path.len() - 1];
            let mut best = if path.len() == 1 || works(last, path[0]) { path.len() } else { 0 };
            for next in 0..n {
                if !path.contains(&next) && works(last, next) {
                    path.push(next);
                    best = best.max(longest(path, n, forbidden));
                    path.pop();
                }
            }
            best
        }
        (0..n).map(|start| longest(&mut vec![start], n, forbidden)).max().unwrap_or(0)
    }

    #[test]
    fn agrees_with_trying_everything() {
        let pairs: Vec<(u128, u128)> =
            (0..4).flat_map(|a| (0..4).map(move |b| (a, b))).filter(|(a, b)| a != b).collect();
        for set in 0u32..1 << pairs.len() {
            let forbidden = edges(bits(set).map(|at| pairs[at]));
            assert_eq!(kept(&members(0, 4), &forbidden).len(), by_force(4, &forbidden), "{forbidden:?}");
        }
        let mut state = 1_u64;
        for n in 5..8 {
            for percent in [20, 50, 70, 85] {
                for _ in 0..20 {
                    let mut fails = || {
                        state = state
                            .wrapping_mul(6_364_136_223_846_793_005)
                            .wrapping_add(1_442_695_040_888_963_407);
                        (state >> 33) % 100 < percent
                    };
                    let all = (0..n).flat_map(|a| (0..n).map(move |b| (a, b))).filter(|(a, b)| a != b);
                    let forbidden = edges(all.filter(|_| fails()));
                    assert_eq!(
                        kept(&members(0, n), &forbidden).len(),
                        by_force(n, &forbidden),
                        "{forbidden:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn large_groups_with_dead_ends_and_splits() {
        for n in [17_u128, 33, 128, 1024] {
            let bad = n / 3;
            let all = || (0..n).flat_map(move |a| (0..n).map(move |b| (a, b))).filter(|(a, b)| a != b);
            let began = Instant::now();
            // The first third cannot be reached, of the others half as many cannot reach anybody.
            let deaf = |peer: u128| peer < bad;
            let mute = |peer: u128| peer >= n - bad / 2;
            let dead = edges(all().filter(|(a, b)| deaf(*b) || mute(*a)));
            let expected: Vec<u128> = (bad..n - bad / 2).collect();
            assert_eq!(kept(&members(n, 0), &dead), expected);
            // Two halves.
            let split = edges(all().filter(|(a, b)| (a < &(n / 2)) != (b < &(n / 2))));
            let larger: Vec<u128> =
                if n.is_multiple_of(2) { (0..n / 2).collect() } else { (n / 2..n).collect() };
            assert_eq!(kept(&members(n, 0), &split), larger);
            assert!(began.elapsed() < Duration::from_secs(60), "{n}: {:?}", began.elapsed());
        }
    }

    #[test]
    fn large_groups_in_which_some_share_their_only_way() {
        // Five members can only be followed by member 0, so four of them go, and nobody else.
        let n = 40;
        let only = |from: u128, to: u128| (10..15).contains(&from) && to != 0;
        let forbidden = edges((0..n).flat_map(|a| (0..n).map(move |b| (a, b))).filter(|(a, b)| only(*a, *b)));
        let kept = kept(&members(n, 0), &forbidden);
        assert_eq!(kept.len(), 36, "{kept:?}");
    }
}
