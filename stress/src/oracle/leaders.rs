//! Does one master lead at a time? Each says in which term it leads. A term belongs to one master for ever, and once a
//! newer term has begun, the leader of an older one has to find out.

use std::collections::BTreeMap;

/// Time in which a master that was stopped, or that another one has followed, has to step down.
const STEP_DOWN_US: u64 = 10_000_000;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Leaders {
    /// The master that has led in each term, and since when that is known.
    terms: BTreeMap<u64, (usize, u64)>,
    /// When masters that were stopped went on.
    woken_us: BTreeMap<usize, u64>,
}

impl Leaders {
    /// A master that was stopped goes on.
    pub(super) fn woken(&mut self, place: usize, now_us: u64) {
        self.woken_us.insert(place, now_us);
    }

    /// A master says that it leads in this term; returns what is wrong with that.
    pub(super) fn claim(&mut self, place: usize, term: u64, now_us: u64) -> Option<String> {
        let (leader, _) = *self.terms.entry(term).or_insert((place, now_us));
        if leader != place {
            return Some(format!("master {place} and master {leader} both led in term {term}"));
        }
        let (&newest, &(follower, since_us)) = self.terms.last_key_value()?;
        let woken_us = self.woken_us.get(&place).copied().unwrap_or(0);
        let late = now_us.saturating_sub(since_us.max(woken_us)) > STEP_DOWN_US;
        (newest > term && late).then(|| {
            format!(
                "master {place} still leads in term {term}, although master {follower} has led in term {newest} for \
                 {} ms",
                now_us.saturating_sub(since_us) / 1000
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000;

    #[test]
    fn leaders_that_follow_each_other_are_fine() {
        let mut leaders = Leaders::default();
        for (place, term) in [(0, 0), (0, 0), (1, 1), (2, 2), (0, 5), (0, 5)] {
            assert_eq!(leaders.claim(place, term, term * 60 * S), None);
        }
    }

    #[test]
    fn two_leaders_of_one_term_are_found_at_once() {
        let mut leaders = Leaders::default();
        assert_eq!(leaders.claim(0, 3, S), None);
        assert!(leaders.claim(1, 3, 2 * S).expect("two").contains("both led in term 3"));
    }

    #[test]
    fn a_leader_that_was_followed_has_a_while_to_find_out() {
        let mut leaders = Leaders::default();
        assert_eq!(leaders.claim(0, 0, 0), None);
        assert_eq!(leaders.claim(1, 1, 100 * S), None);
        assert_eq!(leaders.claim(0, 0, 109 * S), None);
        leaders.woken(0, 120 * S);
        assert_eq!(leaders.claim(0, 0, 129 * S), None);
        assert!(leaders.claim(0, 0, 131 * S).expect("late").contains("still leads in term 0"));
        assert_eq!(leaders.claim(1, 1, 131 * S), None);
    }
}
