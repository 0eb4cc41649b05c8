//! Which rings an operation can have run on: a peer knows the one before its call and the one after it, and there may
//! have been others in between.

use crate::event::Completed;
use std::collections::VecDeque;

/// Rings between the one before a call and the one after it that are tried. Ten peers of which five are lost in one
/// call are 252.
const CANDIDATES_MAX: usize = 2_000;

/// Rings that are tried when those in another order are among them.
const REORDERED_MAX: usize = 300;
/// Rings of other reports that are remembered.
const RECENT_MAX: usize = 64;

/// Rings that peers have reported lately.
#[derive(Debug, Default)]
pub(super) struct Rings {
    recent: VecDeque<Vec<u128>>,
}

impl Rings {
    pub(super) fn note(&mut self, completed: &Completed) {
        for ring in [&completed.before, &completed.after] {
            if !self.recent.contains(ring) {
                self.recent.push_back(ring.clone());
            }
        }
        while self.recent.len() > RECENT_MAX {
            self.recent.pop_front();
        }
    }

    /// Adds rings in another order to those that were tried in vain: the order changes when an edge is avoided, and may
    /// have changed again before the call returned. First those that others have seen, then exchanges of two places.
    pub(super) fn add_reordered(&self, me: u128, completed: &Completed, rings: &mut Vec<Vec<u128>>) {
        let Completed { world, rank, before, after, .. } = completed;
        if before == after {
            return;
        }
        let mut add = |ring: Vec<u128>| {
            if is_at(&ring, me, *rank) && !rings.contains(&ring) && rings.len() < REORDERED_MAX {
                rings.push(ring);
            }
        };
        let is_between = |ring: &&Vec<u128>| {
            let stayed = before.iter().filter(|id| after.contains(id));
            ring.len() == *world
                && ring.iter().all(|id| before.contains(id))
                && stayed.clone().all(|id| ring.contains(id))
        };
        self.recent.iter().filter(is_between).for_each(|ring| add(ring.clone()));
        for ring in subsets(completed) {
            for (i, j) in (0..ring.len()).flat_map(|i| (0..i).map(move |j| (i, j))) {
                let mut exchanged = ring.clone();
                exchanged.swap(i, j);
                add(exchanged);
            }
        }
    }
}

/// The rings that the operation can have had. Between the two that the peer has seen members were only lost, so it is
/// the earlier one without some of those that are missing in the later one (or, if its order was changed, the later
/// one).
pub(super) fn candidate_rings(me: u128, completed: &Completed) -> Vec<Vec<u128>> {
    let Completed { world, rank, before, after, .. } = completed;
    let mut rings: Vec<Vec<u128>> = Vec::new();
    let mut add = |ring: Vec<u128>| {
        if ring.len() == *world && is_at(&ring, me, *rank) && !rings.contains(&ring) {
            rings.push(ring);
        }
        rings.len() < CANDIDATES_MAX
    };
    if add(after.clone()) && add(before.clone()) {
        // The first that is one too many ends it.
        let _ = subsets(completed).all(add);
    }
    rings
}

/// Whether a peer has this rank, or any.
fn is_at(ring: &[u128], me: u128, rank: Option<usize>) -> bool {
    rank.map_or_else(|| ring.contains(&me), |rank| ring.get(rank) == Some(&me))
}

/// The earlier ring without some of those that are missing in the later one: every choice with the right size.
fn subsets(completed: &Completed) -> impl Iterator<Item = Vec<u128>> {
    let Completed { world, before, after, .. } = completed;
    let lost: Vec<u128> = before.iter().copied().filter(|id| !after.contains(id)).collect();
    let choices = 1u64.checked_shl(lost.len() as u32).unwrap_or(u64::MAX);
    let ring = move |choice: u64| -> Vec<u128> {
        let was_there = |id: &u128| match lost.iter().position(|other| other == id) {
            Some(index) => choice >> index & 1 == 1,
            None => true,
        };
        before.iter().copied().filter(was_there).collect()
    };
    (0..choices).map(ring).filter(|ring| ring.len() == *world)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completed(world: usize, rank: usize, before: &[u128], after: &[u128]) -> Completed {
        let (before, after) = (before.to_vec(), after.to_vec());
        Completed { step: 0, tag: 1, world, rank: Some(rank), pairwise: Some(false), hash: 0, before, after }
    }

    #[test]
    fn an_order_in_between_is_found_by_what_others_saw_or_by_an_exchange() {
        let report = completed(4, 0, &[1, 2, 3, 4], &[1, 4, 2]);
        let mut rings = candidate_rings(1, &report);
        assert_eq!(rings, [vec![1, 2, 3, 4]]);
        Rings::default().add_reordered(1, &report, &mut rings);
        assert!(rings.contains(&vec![1, 2, 4, 3]) && rings.contains(&vec![1, 4, 3, 2]));
        assert!(!rings.contains(&vec![1, 3, 4, 2]), "two exchanges");
        assert!(rings.iter().all(|ring| ring[0] == 1), "the own rank is known");
        let mut known = Rings::default();
        known.note(&completed(4, 1, &[1, 3, 4, 2], &[1, 3, 4, 2]));
        known.note(&completed(4, 0, &[1, 3, 4, 9], &[1, 3, 4]));
        known.add_reordered(1, &report, &mut rings);
        assert!(rings.contains(&vec![1, 3, 4, 2]));
        assert!(!rings.iter().any(|ring| ring.contains(&9)), "nobody can be added in between");
        let unchanged = completed(4, 0, &[1, 2, 3, 4], &[1, 2, 3, 4]);
        let mut rings = candidate_rings(1, &unchanged);
        known.add_reordered(1, &unchanged, &mut rings);
        assert_eq!(rings.len(), 1, "there was no other ring");
    }

    #[test]
    fn without_a_rank_any_will_do() {
        let report = Completed { rank: None, ..completed(3, 0, &[1, 2, 3, 4], &[1, 3]) };
        let rings = candidate_rings(3, &report);
        assert_eq!(rings, [vec![1, 2, 3], vec![1, 3, 4]]);
        assert!(candidate_rings(9, &report).is_empty(), "not without the peer itself");
    }

    #[test]
    fn few_rings_are_remembered() {
        let mut rings = Rings::default();
        (0..1000).for_each(|id| rings.note(&completed(2, 0, &[id, id + 1], &[id, id + 1])));
        assert_eq!(rings.recent.len(), RECENT_MAX);
    }
}
