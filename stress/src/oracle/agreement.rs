//! Do all contributors of a segment say the same of who has contributed to it? The bytes alone show only that each of
//! them is right about its own.

use super::results::short_ids;
use crate::event::Completed;
use std::collections::BTreeMap;

/// Segments, and members, that are remembered.
const KEPT: usize = 1_000;
/// A member, and the contributors that it has named.
type Word = (u128, Vec<u128>);

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Agreement {
    /// Words of peers about a segment, by step and tag.
    words: BTreeMap<(u64, u64), Vec<Word>>,
    /// The newest step of a member, the contributors of the first of its segments, and whether others had other ones.
    calls: BTreeMap<u128, (u64, Vec<u128>, bool)>,
    /// Segments, each counted once for the same contributors.
    pub(super) segments: u64,
    /// Calls, of all peers together, of which not all segments had the same contributors.
    pub(super) uneven_calls: u64,
}

impl Agreement {
    /// A member has reported a segment with right bytes for these contributors; returns what is wrong with that. A
    /// member that makes a step again after the loss of all others has other contributors then, but none of those that
    /// it had.
    pub(super) fn heard(&mut self, me: u128, completed: &Completed, ring: &[u128]) -> Option<String> {
        let Completed { step, tag, .. } = *completed;
        self.note_call(me, step, ring);
        let words = self.words.entry((step, tag)).or_default();
        self.segments += u64::from(words.iter().all(|(_, other)| other != ring));
        let differs = |(peer, other): &&Word| {
            *peer != me && other != ring && ring.contains(peer) && other.contains(&me)
        };
        let wrong = words.iter().find(differs).map(|(peer, other)| {
            format!(
                "step {step}, tag {tag}: contributors {} by its own word, and {} by that of {}, which is one of them",
                short_ids(ring),
                short_ids(other),
                short_ids(&[*peer])
            )
        });
        words.push((me, ring.to_vec()));
        if self.words.len() > KEPT {
            self.words.pop_first();
        }
        wrong
    }

    fn note_call(&mut self, me: u128, step: u64, ring: &[u128]) {
        let call = self.calls.entry(me).or_insert_with(|| (step, ring.to_vec(), false));
        if call.0 != step {
            *call = (step, ring.to_vec(), false);
        }
        if !call.2 && call.1 != ring {
            call.2 = true;
            self.uneven_calls += 1;
        }
        if self.calls.len() > KEPT {
            self.calls.retain(|_, (known, ..)| *known + 1 >= step);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(step: u64, tag: u64) -> Completed {
        let (before, after) = (Vec::new(), Vec::new());
        Completed { step, tag, world: 2, rank: None, pairwise: None, hash: 0, before, after }
    }

    #[test]
    fn those_who_have_a_segment_in_common_name_the_same() {
        let mut agreement = Agreement::default();
        assert_eq!(agreement.heard(1, &segment(5, 300), &[1, 2, 3]), None);
        assert_eq!(agreement.heard(2, &segment(5, 300), &[1, 2, 3]), None);
        // The second segment without one that has died.
        assert_eq!(agreement.heard(1, &segment(5, 301), &[1, 2]), None);
        assert!(agreement.heard(2, &segment(5, 301), &[1, 2, 3]).is_some_and(|text| text.contains("301")));
        // All others are lost, and the step is made again with one that has come.
        assert_eq!(agreement.heard(1, &segment(5, 300), &[1, 4]), None);
        assert_eq!(agreement.heard(4, &segment(5, 300), &[1, 4]), None);
        assert_eq!((agreement.segments, agreement.uneven_calls), (4, 1));
        assert_eq!(agreement.heard(1, &segment(6, 300), &[1, 4]), None);
        assert_eq!((agreement.segments, agreement.uneven_calls), (5, 1));
    }

    #[test]
    fn few_are_remembered() {
        let mut agreement = Agreement::default();
        for step in 0..3_000 {
            assert_eq!(agreement.heard(u128::from(step), &segment(step, 300), &[u128::from(step)]), None);
        }
        assert!(agreement.words.len() <= KEPT && agreement.calls.len() <= KEPT);
    }
}
