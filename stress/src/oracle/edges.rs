//! Connections that something was done to, by the identities of their ends.

use std::{collections::BTreeMap, ops::RangeInclusive};

/// How long an entry is kept when the harm is over.
const KEPT_US: u64 = 120_000_000;
/// A bit that is to be flipped is flipped when the bytes before it have passed.
const FLIP_US: u64 = 60_000_000;

/// Two peers between which there are connections, whatever their direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Edge(u128, u128);

impl Edge {
    pub(crate) fn between(a: u128, b: u128) -> Self {
        Self(a.min(b), a.max(b))
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Harmed {
    since_us: u64,
    until_us: u64,
    /// Until when bytes may be found damaged.
    damaged_until_us: u64,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Edges {
    harmed: BTreeMap<Edge, Harmed>,
}

impl Edges {
    /// Connections between these peers are broken, damaged or cut from now on.
    pub(super) fn harm(&mut self, edges: &[Edge], damages: bool, until_us: u64, now_us: u64) {
        let over = |harmed: &Harmed| harmed.until_us.max(harmed.damaged_until_us) + KEPT_US < now_us;
        self.harmed.retain(|_, harmed| !over(harmed));
        for edge in edges {
            let harmed = self.harmed.entry(*edge).or_insert(Harmed { since_us: now_us, ..Harmed::default() });
            harmed.until_us = harmed.until_us.max(until_us);
            if damages {
                // A damaged header ends the connection; and so may the repair of what a damaged byte has broken.
                harmed.until_us = harmed.until_us.max(now_us + FLIP_US);
                harmed.damaged_until_us = now_us + FLIP_US;
            }
        }
    }

    /// Whether what was done to connections explains that one between these peers is said, at some time in `at_us`, to
    /// have broken, or, if `damaged`, to have carried wrong bytes. `late_us` after its end it does not any more.
    pub(super) fn explain(
        &self,
        culprits: &[u128],
        damaged: bool,
        at_us: RangeInclusive<u64>,
        late_us: u64,
    ) -> bool {
        let &[a, b] = culprits else { return false };
        let Some(harmed) = self.harmed.get(&Edge::between(a, b)) else { return false };
        let until_us = if damaged { harmed.damaged_until_us } else { harmed.until_us };
        harmed.since_us <= *at_us.end() && until_us.saturating_add(late_us) >= *at_us.start()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000;

    #[test]
    fn only_the_harmed_edge_is_explained_and_only_for_a_while() {
        let mut edges = Edges::default();
        edges.harm(&[Edge::between(7, 5)], false, 10 * S, 8 * S);
        let explain = |culprits: &[u128], at_us| edges.explain(culprits, false, at_us..=at_us, 5 * S);
        assert!(explain(&[5, 7], 9 * S) && explain(&[7, 5], 15 * S));
        assert!(!explain(&[5, 7], 16 * S) && !explain(&[5, 7], 7 * S));
        assert!(!explain(&[5, 6], 9 * S) && !explain(&[5], 9 * S) && !explain(&[], 9 * S));
        assert!(edges.explain(&[5, 7], false, 14 * S..=90 * S, 5 * S), "heard of late");
        assert!(!edges.explain(&[5, 7], true, 9 * S..=9 * S, 5 * S), "nothing was damaged");
    }

    #[test]
    fn damage_explains_both() {
        let mut edges = Edges::default();
        edges.harm(&[Edge::between(1, 2)], true, S, S);
        let explain = |damaged, at_us: u64| edges.explain(&[2, 1], damaged, at_us..=at_us, S);
        assert!(explain(true, 2 * S) && explain(false, 2 * S));
        assert!(!explain(true, S + FLIP_US + 2 * S));
    }

    #[test]
    fn old_entries_go() {
        let mut edges = Edges::default();
        edges.harm(&[Edge::between(1, 2)], false, S, S);
        edges.harm(&[Edge::between(3, 4)], false, 200 * S, 200 * S);
        assert_eq!(edges.harmed.len(), 1);
    }
}
