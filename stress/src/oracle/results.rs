//! Are the results right? Recomputes each collective from the identities of its contributors.

use super::rings::{Rings, candidate_rings};
use crate::{
    event::Completed,
    expected,
    workload::{Collective, Job, Place, Split, Workload},
};
use std::{
    collections::{BTreeMap, VecDeque},
    rc::Rc,
};

/// Expected results that are kept, so that each is computed once and not once per peer.
const KEPT: usize = 256;
type Key = (u64, u64, Vec<u128>);
/// Conditions that a result depends on besides: the root, and pairwise exchange.
type Way = (Option<u128>, bool);
/// Sizes of groups in which there is pairwise exchange.
const PAIRWISE: std::ops::RangeInclusive<usize> = 3..=8;

/// See the module's documentation.
pub(super) struct Results {
    workload: Workload,
    rings: Rings,
    expected: BTreeMap<(Key, Way), Rc<[u64]>>,
    order: VecDeque<(Key, Way)>,
    completed: BTreeMap<Key, Way>,
    completed_order: VecDeque<Key>,
    /// Operations that succeeded, each counted once, and those of them that went by pairwise exchange, and those that
    /// were no all-reduces.
    pub(super) operations: u64,
    pub(super) pairwise: u64,
    pub(super) others: u64,
}

impl Results {
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
            others: 0,
        }
    }

    /// Checks what `me` reports; returns the contributors in ring order.
    pub(super) fn check(&mut self, me: u128, completed: &Completed) -> Result<Vec<u128>, String> {
        let Completed { step, tag, world, rank, hash, pairwise, .. } = *completed;
        let Some(job) = self.workload.job(step, tag) else {
            return Err(format!("step {step} has no collective with tag {tag}"));
        };
        if job.collective.is_between_two() {
            // Counted by who receives.
            let is_new = u64::from(job.collective == Collective::Recv);
            self.operations += is_new;
            self.others += is_new;
            return self.check_pair(me, &job, completed);
        }
        if world < 2 || rank.is_some_and(|rank| rank >= world) {
            return Err(format!("step {step}, tag {tag}: rank {rank:?} of {world}"));
        }
        let Some(pairwise) = pairwise.filter(|pairwise| !pairwise || PAIRWISE.contains(&world)) else {
            return Err(format!("step {step}, tag {tag}: pairwise exchange {pairwise:?} of {world}"));
        };
        self.rings.note(completed);
        let way = (root(&job, completed), pairwise);
        let mut rings = candidate_rings(me, completed);
        if rings.is_empty() {
            self.rings.add_reordered(me, completed, &mut rings);
        }
        let (mut tried, mut first) = (0, None);
        while let Some(ring) = rings.get(tried).cloned() {
            tried += 1;
            if fits(&job, completed, &ring) {
                let expected = self.expected(&job, step, &ring, way)?;
                let expected = Place::of(me, &ring).and_then(|place| expected.get(place.rank).copied());
                if expected == Some(hash) {
                    self.count(&job, (step, tag, ring.clone()), way)?;
                    return Ok(ring);
                }
                first = first.or(expected.map(|expected| (expected, ring)));
            }
            if tried == rings.len() {
                self.rings.add_reordered(me, completed, &mut rings);
            }
        }
        Err(format!(
            "step {step}, tag {tag}: the result has checksum {hash:016x}, but {}",
            match first {
                Some((expected, ring)) => format!(
                    "{expected:016x} is right for contributors {} ({} possible rings tried)",
                    short_ids(&ring),
                    rings.len()
                ),
                None => format!(
                    "no ring of {world} with this peer at rank {rank:?} lies between {} and {}, for which it was \
                     called",
                    short_ids(&completed.before),
                    short_ids(&completed.after)
                ),
            }
        ))
    }

    /// Checks what `me` has sent to its neighbour in the ring that it knew, or received from it; returns the two. All
    /// members knew the same ring when the step began.
    fn check_pair(&mut self, me: u128, job: &Job, completed: &Completed) -> Result<Vec<u128>, String> {
        let Completed { step, tag, world, rank, hash, ref before, .. } = *completed;
        let is_send = job.collective == Collective::Send;
        if world != 2 || rank.is_some_and(|rank| rank != usize::from(!is_send)) {
            return Err(format!("step {step}, tag {tag}: rank {rank:?} of {world}, between two"));
        }
        let place = Place::of(me, before).filter(|place| place.ranks > 1);
        let place = place.ok_or_else(|| format!("step {step}, tag {tag}: there was no neighbour"))?;
        let expected = self.expected(job, step, before, (None, false))?[place.rank];
        if expected != hash {
            return Err(format!("step {step}, tag {tag}: checksum {hash:016x} instead of {expected:016x}"));
        }
        let pair = if is_send { [me, before[place.next()]] } else { [before[place.previous()], me] };
        Ok(pair.to_vec())
    }

    /// Checks what `me` holds after a collective that was complete there when the master was lost: the right result
    /// for some of those that were in the ring.
    pub(super) fn check_unresolved(&mut self, me: u128, completed: &Completed) -> Result<(), String> {
        let Completed { step, tag, hash, before, after, .. } = completed;
        let Some(job) = self.workload.job(*step, *tag) else {
            return Err(format!("step {step} has no collective with tag {tag}"));
        };
        if job.collective.is_between_two() {
            return self.check_pair(me, &job, &Completed { world: 2, ..completed.clone() }).map(drop);
        }
        let root = root(&job, completed);
        let mut tried = 0;
        for world in 2..=before.len().max(after.len()) {
            for ring in candidate_rings(me, &Completed { world, rank: None, ..completed.clone() }) {
                if !fits(&job, completed, &ring) {
                    continue;
                }
                tried += 1;
                let Some(Place { rank, .. }) = Place::of(me, &ring) else { continue };
                for pairwise in [false, true] {
                    if self.expected(&job, *step, &ring, (root, pairwise))?.get(rank) == Some(hash) {
                        return Ok(());
                    }
                }
            }
        }
        Err(format!(
            "step {step}, tag {tag}: the outcome is unknown, but what is there, with checksum {hash:016x}, is the \
             result of none of {tried} possible rings"
        ))
    }

    fn count(&mut self, job: &Job, key: Key, way: Way) -> Result<(), String> {
        let known = self.completed.get(&key).copied();
        if let Some((root, pairwise)) = known
            && (root, pairwise) != way
        {
            let what = if root == way.0 { "went the same way" } else { "had the same root" };
            return Err(format!("step {}, tag {}: not all say that it {what}", key.0, key.1));
        }
        if known.is_none() {
            self.operations += 1;
            self.pairwise += u64::from(way.1);
            self.others += u64::from(job.collective != Collective::AllReduce);
            self.completed.insert(key.clone(), way);
            self.completed_order.push_back(key);
            if self.completed_order.len() > KEPT * 4
                && let Some(old) = self.completed_order.pop_front()
            {
                self.completed.remove(&old);
            }
        }
        Ok(())
    }

    /// Checksums of the right results, by rank.
    fn expected(&mut self, job: &Job, step: u64, ring: &[u128], way: Way) -> Result<Rc<[u64]>, String> {
        let key = ((step, job.tag, ring.to_vec()), way);
        if let Some(known) = self.expected.get(&key) {
            return Ok(known.clone());
        }
        let (root, pairwise) = way;
        let sums = expected::checksums(&self.workload, (step, job.tag), ring, root, pairwise);
        let sums: Rc<[u64]> =
            sums.ok_or_else(|| format!("step {step}, tag {}: no result can be computed", job.tag))?.into();
        self.expected.insert(key.clone(), sums.clone());
        self.order.push_back(key);
        if self.order.len() > KEPT
            && let Some(old) = self.order.pop_front()
        {
            self.expected.remove(&old);
        }
        Ok(sums)
    }
}

/// The root that the caller named: a rank of the ring that it knew.
fn root(job: &Job, completed: &Completed) -> Option<u128> {
    let ring = &completed.before;
    ring.get(job.root(ring.len())).copied().filter(|_| job.collective.has_root())
}

/// Whether a collective that was called for the ring that the caller knew may succeed in another one.
fn fits(job: &Job, completed: &Completed, ring: &[u128]) -> bool {
    match job.collective.split() {
        Some(Split::Counts) => ring == completed.before,
        Some(Split::Equal) if ring.len() != completed.before.len() => false,
        Some(Split::Equal) | None => root(job, completed).is_none_or(|root| ring.contains(&root)),
    }
}

/// The first digits of each, as logs show them.
pub(super) fn short_ids(ids: &[u128]) -> String {
    ids.iter().map(|id| format!("{:08x}", id >> 96)).collect::<Vec<_>>().join(" ")
}

/// The checksum that every peer has to report for an all-reduce.
#[cfg(test)]
pub(super) fn expected_checksum(
    workload: &Workload,
    job: (u64, u64),
    ring: &[u128],
    pairwise: bool,
) -> Option<u64> {
    expected::checksums(workload, job, ring, None, pairwise)?.first().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKLOAD: Workload = Workload { seed: 1, elements: 500 };
    /// A step whose first tensor has some hundred elements, enough to tell every order of additions.
    const STEP: u64 = 6;

    fn completed(world: usize, rank: usize, before: &[u128], after: &[u128], hash: u64) -> Completed {
        let (before, after) = (before.to_vec(), after.to_vec());
        let pairwise = Some(false);
        Completed { step: STEP, tag: 1, world, rank: Some(rank), pairwise, hash, before, after }
    }

    #[test]
    fn right_results_pass_and_operations_count_once() {
        let hash = expected_checksum(&WORKLOAD, (STEP, 1), &[7, 8, 9], false).expect("computable");
        let mut reduces = Results::new(WORKLOAD);
        let all = [7, 8, 9];
        for (rank, me) in all.iter().enumerate() {
            assert_eq!(reduces.check(*me, &completed(3, rank, &all, &all, hash)), Ok(all.to_vec()));
        }
        assert_eq!(reduces.operations, 1);
    }

    #[test]
    fn the_step_of_these_tests_has_enough_elements() {
        assert!(WORKLOAD.job(STEP, 1).expect("job").parts[0].count > 200);
    }

    #[test]
    fn every_wrong_byte_is_found() {
        let mut reduces = Results::new(WORKLOAD);
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
            let error = reduces.check(7, &completed(3, 0, &ring, &ring, hash.expect("computable")));
            assert!(error.expect_err("wrong").contains("checksum"));
        }
        assert!(reduces.check(7, &completed(3, 1, &ring, &ring, right)).is_err(), "another rank");
        assert!(reduces.check(7, &completed(2, 0, &ring, &ring, right)).is_err(), "another world");
        assert!(reduces.check(7, &completed(1, 0, &[7], &[7], right)).is_err(), "alone");
        assert_eq!(reduces.operations, 0);
    }

    #[test]
    fn quantised_results_are_those_of_the_way_that_is_told() {
        let job = |step: &u64| WORKLOAD.job(*step, 6).is_some_and(|job| job.parts[0].count > 200);
        let step = (0..9).find(job).expect("a step with some elements");
        let ring = [7, 8, 9];
        let report = |rank, pairwise, hash| Completed {
            step,
            tag: 6,
            pairwise,
            ..completed(3, rank, &ring, &ring, hash)
        };
        let by = |pairwise| expected_checksum(&WORKLOAD, (step, 6), &ring, pairwise).expect("computable");
        assert_ne!(by(true), by(false));
        let mut reduces = Results::new(WORKLOAD);
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
        let mut reduces = Results::new(WORKLOAD);
        for ring in [&[7, 8, 9][..], &[7, 9], &[8, 9]] {
            let hash = expected_checksum(&WORKLOAD, (STEP, 1), ring, false).expect("computable");
            assert_eq!(reduces.check_unresolved(9, &completed(3, 2, &[7, 8, 9], &[9], hash)), Ok(()));
            assert!(reduces.check_unresolved(9, &completed(3, 2, &[7, 8, 9], &[9], hash ^ 1)).is_err());
        }
        let hash = expected_checksum(&WORKLOAD, (STEP, 1), &[7, 8], false).expect("computable");
        assert!(
            reduces.check_unresolved(9, &completed(3, 2, &[7, 8, 9], &[9], hash)).is_err(),
            "not without it"
        );
    }

    #[test]
    fn members_lost_during_the_call_may_or_may_not_have_contributed() {
        let mut reduces = Results::new(WORKLOAD);
        let hash = expected_checksum(&WORKLOAD, (STEP, 1), &[7, 9, 10], false).expect("computable");
        // 8 was lost before the operation, 10 after it.
        let report = completed(3, 1, &[7, 8, 9, 10], &[7, 9], hash);
        assert_eq!(reduces.check(9, &report), Ok(vec![7, 9, 10]));
        assert_eq!(reduces.check(9, &Completed { rank: None, ..report }), Ok(vec![7, 9, 10]));
        // A survivor cannot be missing among the contributors.
        let hash = expected_checksum(&WORKLOAD, (STEP, 1), &[8, 9, 10], false).expect("computable");
        assert!(reduces.check(9, &completed(3, 1, &[7, 8, 9, 10], &[7, 9], hash)).is_err());
    }

    #[test]
    fn each_rank_has_its_part_and_a_root_is_one_for_all() {
        let mut results = Results::new(WORKLOAD);
        let ring = [7, 8, 9];
        for step in 0..6 {
            for job in WORKLOAD.other_jobs(step) {
                let root = ring[job.root(3)];
                let sums = expected::checksums(&WORKLOAD, (step, job.tag), &ring, Some(root), false);
                let sums = sums.expect("computable");
                let report = |rank: usize, hash| {
                    let report = completed(3, rank, &ring, &ring, hash);
                    Completed { step, tag: job.tag, ..report }
                };
                for (rank, &me) in ring.iter().enumerate() {
                    assert_eq!(results.check(me, &report(rank, sums[rank])), Ok(ring.to_vec()), "{job:?}");
                    assert!(results.check(me, &report(rank, sums[rank] ^ 1)).is_err(), "{job:?}");
                }
                if job.collective.has_root() {
                    // This one has named another root, as its ring had another order.
                    let before = vec![8, 9, 7];
                    let other = Completed { before, ..report(0, sums[0]) };
                    assert!(results.check(7, &other).is_err(), "{job:?}");
                }
            }
        }
        assert_eq!((results.operations, results.others), (30, 30));
    }

    #[test]
    fn between_two_the_neighbour_of_the_ring_decides() {
        let mut results = Results::new(WORKLOAD);
        let ring = [7, 8, 9];
        for step in 0..5 {
            let [send, recv] = WORKLOAD.pair_jobs(step);
            let sent =
                expected::checksums(&WORKLOAD, (step, send.tag), &ring, None, false).expect("computable");
            let received =
                expected::checksums(&WORKLOAD, (step, recv.tag), &ring, None, false).expect("computable");
            assert_eq!(received, [sent[2], sent[0], sent[1]], "each has what the previous rank sent");
            let report = |job: &Job, rank, hash| Completed {
                step,
                tag: job.tag,
                ..completed(2, rank, &ring, &[7, 8], hash)
            };
            assert_eq!(results.check(9, &report(&send, 0, sent[2])), Ok(vec![9, 7]));
            assert_eq!(results.check(8, &report(&recv, 1, received[1])), Ok(vec![7, 8]));
            let unresolved = Completed { world: 3, rank: None, ..report(&recv, 1, received[1]) };
            assert_eq!(results.check_unresolved(8, &unresolved), Ok(()));
        }
        assert_eq!((results.operations, results.others), (5, 5), "counted by who receives");
        let [_, recv] = WORKLOAD.pair_jobs(0);
        let received = expected::checksums(&WORKLOAD, (0, recv.tag), &ring, None, false).expect("computable");
        let report =
            |rank, hash| Completed { step: 0, tag: recv.tag, ..completed(2, rank, &ring, &ring, hash) };
        assert!(results.check(8, &report(1, received[0])).is_err(), "what another one sent");
        assert!(results.check(8, &report(0, received[1])).is_err(), "who receives is rank 1");
    }

    #[test]
    fn what_was_called_for_others_cannot_succeed() {
        let mut results = Results::new(WORKLOAD);
        let (ring, before) = ([7, 8], [7, 8, 9]);
        for step in 0..4 {
            for job in WORKLOAD.other_jobs(step) {
                let root = before[job.root(3)];
                let gone = job.collective.has_root() && root == 9;
                let root = Some(root).filter(|_| !gone);
                let sums = expected::checksums(&WORKLOAD, (step, job.tag), &ring, root.or(Some(7)), false);
                let hash = sums.expect("computable")[0];
                let report = Completed { step, tag: job.tag, ..completed(2, 0, &before, &ring, hash) };
                let may = !gone && job.collective.split().is_none();
                assert_eq!(results.check(7, &report).is_ok(), may, "{job:?}");
            }
        }
    }
}
