//! MTU black holes: which pairs of members have a path that drops large packets without a word, so that connections
//! between them are opened with short segments.

use crate::state::groups::edges::EdgeEnds;
use pccl_protocol::PeerId;
use std::collections::BTreeMap;

/// Advice to an operator about such a path.
pub(crate) const LET_LARGE_PACKETS_PASS: &str = "lower the MTU of the interface on both machines (`ip link set dev \
                                                 eth0 mtu 1280` as a try), or let ICMP \"fragmentation needed\" \
                                                 through on the way";

/// Standstills of that shape between the same two after which it is no chance. One may be a path that broke.
const STANDSTILLS: u32 = 2;

/// The standstills of pairs of members, the smaller one first.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct BlackHoles {
    standstills: BTreeMap<(PeerId, PeerId), u32>,
}

fn pair((from, to): EdgeEnds) -> (PeerId, PeerId) {
    (from.min(to), from.max(to))
}

impl BlackHoles {
    /// An edge stood still while long segments were sent again in vain. Whether that shows a black hole that was
    /// not known: it is the second time between the two, or one of them is behind another one already.
    pub(crate) fn note_standstill(&mut self, ends: EdgeEnds) -> bool {
        let is_near = |(known, count): (&(PeerId, PeerId), &u32)| {
            *count >= STANDSTILLS && [known.0, known.1].iter().any(|end| *end == ends.0 || *end == ends.1)
        };
        let least = if self.standstills.iter().any(is_near) { STANDSTILLS } else { 1 };
        let count = self.standstills.entry(pair(ends)).or_default();
        let was_known = *count >= STANDSTILLS;
        *count = (*count + 1).max(least);
        *count >= STANDSTILLS && !was_known
    }

    /// Whether connections between the two are opened with short segments.
    pub(crate) fn has(&self, ends: EdgeEnds) -> bool {
        self.standstills.get(&pair(ends)).is_some_and(|count| *count >= STANDSTILLS)
    }

    /// Forgets pairs of which one has gone.
    pub(crate) fn retain(&mut self, is_here: impl Fn(PeerId) -> bool) {
        self.standstills.retain(|(one, other), _| is_here(*one) && is_here(*other));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_standstill_of_a_pair_shows_a_black_hole_in_both_directions() {
        let [a, b, c, d] = [1, 2, 3, 4].map(PeerId);
        let mut holes = BlackHoles::default();
        assert!(!holes.note_standstill((b, c)) && !holes.has((b, c)), "it may have been a path that broke");
        assert!(!holes.note_standstill((a, b)), "of another pair");
        assert!(holes.note_standstill((c, b)));
        assert!(holes.has((b, c)) && holes.has((c, b)) && !holes.has((a, b)));
        assert!(!holes.note_standstill((b, c)), "that is known");
        assert!(holes.note_standstill((d, c)), "the same machine: once is enough");
        holes.retain(|id| id != c);
        assert!(!holes.has((b, c)) && !holes.note_standstill((b, d)));
        assert!(holes.note_standstill((a, b)), "what was seen of those who stay is kept");
    }
}
