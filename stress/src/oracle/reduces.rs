//! Are the results right? Recomputes each all-reduce from the identities of its contributors.

use super::rings::{Rings, candidate_rings};
use crate::{
    event::Reduced,
    fold,
    workload::{Buffer, Workload, checksum},
};
use std::collections::{BTreeMap, VecDeque};

/// Expected results that are kept, so that each is computed once and not once per peer.
const KEPT: usize = 256;
type Key = (u64, u64, Vec<u128>);
/// Sizes of groups in which there is pairwise exchange.
const PAIRWISE: std::ops::RangeInclusive<usize> = 3..=8;

/// See the module's documentation.
pub(super) struct Reduces {
    workload: Workload,
    rings: Rings,
    expected: BTreeMap<(Key, bool), u64>,
    order: VecDeque<(Key, bool)>,
    /// With whether it went by pairwise exchange.
    completed: BTreeMap<Key, bool>,
    completed_order: VecDeque<Key>,
    /// Operations that succeeded, each counted once, and those of them that went by pairwise exchange.
    pub(super) operations: u64,
    pub(super) pairwise: u64,
}

impl Reduces {
    pub(super) fn new(workload: Workload) -> Self {
        Self {
            workload,
            rings: Rings::default(),
            expected: BTreeMap::new(),
            order: VecDeque::new(),
            completed: BTreeMap::new(),
            completed_order: VecDeque::new(),
            operations: 0,
            pairwise: 0,
        }
    }

    /// Checks what `me` reports; returns the contributors in ring order.
    pub(super) fn check(&mut self, me: u128, reduced: &Reduced) -> Result<Vec<u128>, String> {
        let Reduced { step, tag, world, rank, hash, pairwise, .. } = *reduced;
        if self.workload.job(step, tag).is_none() {
            return Err(format!("step {step} has no all-reduce with tag {tag}"));
        }
        if world < 2 || rank.is_some_and(|rank| rank >= world) {
            return Err(format!("step {step}, tag {tag}: rank {rank:?} of {world}"));
        }
        let Some(pairwise) = pairwise.filter(|pairwise| !pairwise || PAIRWISE.contains(&world)) else {
            return Err(format!("step {step}, tag {tag}: pairwise exchange {pairwise:?} of {world}"));
        };
        self.rings.note(reduced);
        let mut rings = candidate_rings(me, reduced);
        if rings.is_empty() {
            self.rings.add_reordered(me, reduced, &mut rings);
        }
        let mut computed = Vec::new();
        while let Some(ring) = rings.get(computed.len()) {
            let expected = self.expected(step, tag, ring, pairwise)?;
            if expected == hash {
                let ring = ring.clone();
                self.count((step, tag, ring.clone()), pairwise)?;
                return Ok(ring);
            }
            computed.push(expected);
            if computed.len() == rings.len() {
                self.rings.add_reordered(me, reduced, &mut rings);
            }
        }
        Err(format!(
            "step {step}, tag {tag}: the result has checksum {hash:016x}, but {}",
            match (rings.first(), computed.first()) {
                (Some(ring), Some(expected)) => format!(
                    "{expected:016x} is right for contributors {} ({} possible rings tried)",
                    short_ids(ring),
                    rings.len()
                ),
                _ => format!(
                    "no ring of {world} with this peer at rank {rank:?} lies between {} and {}",
                    short_ids(&reduced.before),
                    short_ids(&reduced.after)
                ),
            }
        ))
    }

    /// Checks what `me` holds after an all-reduce that was complete there when the master was lost: the right result
    /// for some of those that were in the ring.
    pub(super) fn check_unresolved(&mut self, me: u128, reduced: &Reduced) -> Result<(), String> {
        let Reduced { step, tag, hash, before, after, .. } = reduced;
        let mut tried = 0;
        for world in 2..=before.len().max(after.len()) {
            for ring in candidate_rings(me, &Reduced { world, rank: None, ..reduced.clone() }) {
                tried += 1;
                for pairwise in [false, true] {
                    if self.expected(*step, *tag, &ring, pairwise)? == *hash {
                        return Ok(());
                    }
                }
            }
        }
        Err(format!(
            "step {step}, tag {tag}: the outcome is unknown, but what is there, with checksum {hash:016x}, is the \
             result of \
             none of {tried} possible rings"
        ))
    }

    fn count(&mut self, key: Key, pairwise: bool) -> Result<(), String> {
        let known = self.completed.get(&key).copied();
        if known.is_some_and(|known| known != pairwise) {
            return Err(format!("step {}, tag {}: not all say that it went the same way", key.0, key.1));
        }
        if known.is_none() {
            self.operations += 1;
            self.pairwise += u64::from(pairwise);
            self.completed.insert(key.clone(), pairwise);
            self.completed_order.push_back(key);
            if self.completed_order.len() > KEPT * 4
                && let Some(old) = self.completed_order.pop_front()
            {
                self.completed.remove(&old);
            }
        }
        Ok(())
    }

    /// Checksum of the right result.
    fn expected(&mut self, step: u64, tag: u64, ring: &[u128], pairwise: bool) -> Result<u64, String> {
        let key = ((step, tag, ring.to_vec()), pairwise);
        if let Some(&known) = self.expected.get(&key) {
            return Ok(known);
        }
        let hash = expected_checksum(&self.workload, (step, tag), ring, pairwise)
            .ok_or_else(|| format!("step {step}, tag {tag}: no result can be computed"))?;
        self.expected.insert(key.clone(), hash);
        self.order.push_back(key);
        if self.order.len() > KEPT
            && let Some(old) = self.order.pop_front()
        {
            self.expected.remove(&old);
        }
        Ok(hash)
    }
}

/// The checksum that the result of the job of `(step, tag)` must have when these peers contribute, in this order.
pub(super) fn expected_checksum(
    workload: &Workload,
    (step, tag): (u64, u64),
    ring: &[u128],
    pairwise: bool,
) -> Option<u64> {
    let job = workload.job(step, tag)?;
    let inputs: Vec<Vec<Buffer>> = ring.iter().map(|&peer| workload.inputs(peer, step, &job)).collect();
    let results: Option<Vec<Buffer>> = job
        .parts
        .iter()
        .enumerate()
        .map(|(index, part)| {
            let of_part: Vec<&Buffer> = inputs.iter().map(|buffers| &buffers[index]).collect();
            fold::all_reduce(&of_part, part.op, part.coding, pairwise)
        })
        .collect();
    Some(checksum(&results?))
}

/// The first digits of each, as logs show them.
pub(super) fn short_ids(ids: &[u128]) -> String {
    ids.iter().map(|id| format!("{:08x}", id >> 96)).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKLOAD: Workload = Workload { seed: 1, elements: 500 };
    /// A step whose first tensor has some hundred elements, enough to tell every order of additions.
    const STEP: u64 = 6;

    fn reduced(world: usize, rank: usize, before: &[u128], after: &[u128], hash: u64) -> Reduced {
        let (before, after) = (before.to_vec(), after.to_vec());
        let pairwise = Some(false);
        Reduced { step: STEP, tag: 1, world, rank: Some(rank), pairwise, hash, before, after }
    }

    #[test]
    fn right_results_pass_and_operations_count_once() {
        let hash = expected_checksum(&WORKLOAD, (STEP, 1), &[7, 8, 9], false).expect("computable");
        let mut reduces = Reduces::new(WORKLOAD);
        let all = [7, 8, 9];
        for (rank, me) in all.iter().enumerate() {
            assert_eq!(reduces.check(*me, &reduced(3, rank, &all, &all, hash)), Ok(all.to_vec()));
        }
        assert_eq!(reduces.operations, 1);
    }

    #[test]
    fn the_step_of_these_tests_has_enough_elements() {
        assert!(WORKLOAD.job(STEP, 1).expect("job").parts[0].count > 200);
    }

    #[test]
    fn every_wrong_byte_is_found() {
        let mut reduces = Reduces::new(WORKLOAD);
        let ring = [7, 8, 9];
        // The result of fewer contributors, of another order, of another step, and one flipped bit.
        let right = expected_checksum(&WORKLOAD, (STEP, 1), &ring, false).expect("computable");
        let wrong = [
            expected_checksum(&WORKLOAD, (STEP, 1), &[7, 8], false),
            expected_checksum(&WORKLOAD, (STEP, 1), &[8, 7, 9], false),
            expected_checksum(&WORKLOAD, (STEP + 1, 1), &ring, false),
            Some(right ^ 1),
        ];
        for hash in wrong {
            let error = reduces.check(7, &reduced(3, 0, &ring, &ring, hash.expect("computable")));
            assert!(error.expect_err("wrong").contains("checksum"));
        }
        assert!(reduces.check(7, &reduced(3, 1, &ring, &ring, right)).is_err(), "another rank");
        assert!(reduces.check(7, &reduced(2, 0, &ring, &ring, right)).is_err(), "another world");
        assert!(reduces.check(7, &reduced(1, 0, &[7], &[7], right)).is_err(), "alone");
        assert_eq!(reduces.operations, 0);
    }

    #[test]
    fn quantised_results_are_those_of_the_way_that_is_told() {
        let job = |step: &u64| WORKLOAD.job(*step, 6).is_some_and(|job| job.parts[0].count > 200);
        let step = (0..9).find(job).expect("a step with some elements");
        let ring = [7, 8, 9];
        let report =
            |rank, pairwise, hash| Reduced { step, tag: 6, pairwise, ..reduced(3, rank, &ring, &ring, hash) };
        let by = |pairwise| expected_checksum(&WORKLOAD, (step, 6), &ring, pairwise).expect("computable");
        assert_ne!(by(true), by(false));
        let mut reduces = Reduces::new(WORKLOAD);
        assert_eq!(reduces.check(7, &report(0, Some(true), by(true))), Ok(ring.to_vec()));
        assert!(reduces.check(8, &report(1, Some(true), by(false))).is_err());
        assert!(reduces.check(8, &report(1, Some(false), by(false))).is_err(), "another way than the first");
        assert!(reduces.check(8, &report(1, None, by(true))).is_err());
        assert_eq!((reduces.operations, reduces.pairwise), (1, 1));
        for pairwise in [false, true] {
            assert_eq!(reduces.check_unresolved(9, &report(2, None, by(pairwise))), Ok(()));
        }
    }

    #[test]
    fn with_an_unknown_outcome_the_result_of_some_ring_is_there() {
        let mut reduces = Reduces::new(WORKLOAD);
        for ring in [&[7, 8, 9][..], &[7, 9], &[8, 9]] {
            let hash = expected_checksum(&WORKLOAD, (STEP, 1), ring, false).expect("computable");
            assert_eq!(reduces.check_unresolved(9, &reduced(3, 2, &[7, 8, 9], &[9], hash)), Ok(()));
            assert!(reduces.check_unresolved(9, &reduced(3, 2, &[7, 8, 9], &[9], hash ^ 1)).is_err());
        }
        let hash = expected_checksum(&WORKLOAD, (STEP, 1), &[7, 8], false).expect("computable");
        assert!(
            reduces.check_unresolved(9, &reduced(3, 2, &[7, 8, 9], &[9], hash)).is_err(),
            "not without it"
        );
    }

    #[test]
    fn members_lost_during_the_call_may_or_may_not_have_contributed() {
        let mut reduces = Reduces::new(WORKLOAD);
        let hash = expected_checksum(&WORKLOAD, (STEP, 1), &[7, 9, 10], false).expect("computable");
        // 8 was lost before the operation, 10 after it.
        let report = reduced(3, 1, &[7, 8, 9, 10], &[7, 9], hash);
        assert_eq!(reduces.check(9, &report), Ok(vec![7, 9, 10]));
        assert_eq!(reduces.check(9, &Reduced { rank: None, ..report }), Ok(vec![7, 9, 10]));
        // A survivor cannot be missing among the contributors.
        let hash = expected_checksum(&WORKLOAD, (STEP, 1), &[8, 9, 10], false).expect("computable");
        assert!(reduces.check(9, &reduced(3, 1, &[7, 8, 9, 10], &[7, 9], hash)).is_err());
    }
}
