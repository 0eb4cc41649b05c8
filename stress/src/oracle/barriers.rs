//! Does nobody leave a barrier before all have come? A peer reports the sync of its step before it calls the barrier,
//! so the time of that report is a time at which it had not called.

use crate::event::Completed;
use std::collections::BTreeMap;

/// Members whose report is still on its way that are remembered.
const AWAITED_MAX: usize = 1_000;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Barriers {
    /// The newest step of each member, and when it was first reported.
    begun: BTreeMap<u128, (u64, u64)>,
    /// Members that took part in a barrier of a step which they have not reported yet, and when somebody left it.
    awaited: BTreeMap<(u128, u64), u64>,
}

impl Barriers {
    /// A member has reported that it begins a step; returns what is wrong with that.
    pub(super) fn begun(&mut self, member: u128, step: u64, at_us: u64) -> Option<String> {
        if self.begun.get(&member).is_some_and(|(known, _)| *known >= step) {
            return None;
        }
        self.begun.insert(member, (step, at_us));
        let left_us = self.awaited.remove(&(member, step))?;
        early(member, step, at_us, left_us)
    }

    /// A peer has left a barrier; returns what is wrong with that. A member that was there before and after took part.
    pub(super) fn left(&mut self, completed: &Completed, at_us: u64) -> Option<String> {
        let Completed { step, before, after, .. } = completed;
        let mut wrong = None;
        for &member in before.iter().filter(|member| after.contains(member)) {
            match self.begun.get(&member) {
                Some((known, begun_us)) if known == step => {
                    wrong = wrong.or(early(member, *step, *begun_us, at_us));
                }
                Some((known, _)) if known > step => {}
                _ => {
                    let left_us = self.awaited.entry((member, *step)).or_insert(at_us);
                    *left_us = at_us.min(*left_us);
                }
            }
        }
        while self.awaited.len() > AWAITED_MAX {
            self.awaited.pop_first();
        }
        wrong
    }
}

fn early(member: u128, step: u64, begun_us: u64, left_us: u64) -> Option<String> {
    (left_us < begun_us).then(|| {
        let early_us = begun_us - left_us;
        format!("left the barrier of step {step} {early_us} us before {member:032x} began that step")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(step: u64, before: &[u128], after: &[u128]) -> Completed {
        let (before, after) = (before.to_vec(), after.to_vec());
        let (world, hash, pairwise) = (before.len(), 0, Some(false));
        Completed { step, tag: 18, world, rank: None, pairwise, hash, before, after }
    }

    #[test]
    fn who_leaves_after_all_have_come_is_right_whatever_is_heard_first() {
        let mut barriers = Barriers::default();
        assert_eq!(barriers.begun(1, 5, 10), None);
        assert_eq!(barriers.left(&left(5, &[1, 2], &[1, 2]), 30), None);
        assert_eq!(barriers.begun(2, 5, 20), None);
        // The step is begun again, with another one; and the next one.
        assert_eq!(barriers.begun(1, 5, 40), None);
        assert_eq!(barriers.begun(1, 6, 50), None);
        assert_eq!(barriers.left(&left(5, &[1, 2], &[1, 2]), 31), None);
    }

    #[test]
    fn who_leaves_before_another_has_come_is_found_whatever_is_heard_first() {
        let mut barriers = Barriers::default();
        barriers.begun(2, 5, 20);
        assert!(
            barriers.left(&left(5, &[1, 2], &[1, 2]), 19).is_some_and(|text| text.contains("1 us before"))
        );
        assert_eq!(barriers.begun(1, 5, 10), None);
        assert_eq!(barriers.left(&left(6, &[1, 2], &[1, 2]), 60), None);
        assert!(barriers.begun(1, 6, 61).is_some());
        // A member that was lost may not have taken part.
        assert_eq!(barriers.left(&left(7, &[1, 2], &[2]), 70), None);
        assert_eq!(barriers.begun(1, 7, 71), None);
    }

    #[test]
    fn few_are_remembered() {
        let mut barriers = Barriers::default();
        (0..5_000).for_each(|step| drop(barriers.left(&left(step, &[1], &[1]), 1)));
        assert_eq!(barriers.awaited.len(), AWAITED_MAX);
    }
}
