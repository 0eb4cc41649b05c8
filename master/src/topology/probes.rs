//! In which order edges are measured: several at a time, but no peer sends or receives two at once.

/// Rounds of probes between `peers` peers: all edges that are `wanted`, each once. In a round every peer is at most
/// once at either end, so all edges of n peers take n - 1 rounds, the fewest possible.
pub fn probe_rounds(peers: usize, wanted: impl Fn(usize, usize) -> bool) -> Vec<Vec<(usize, usize)>> {
    // In round d everybody measures the peer d places further on.
    let round = |distance: usize| {
        let edges = (0..peers).map(|from| (from, (from + distance) % peers));
        edges.filter(|(from, to)| wanted(*from, *to)).collect::<Vec<_>>()
    };
    (1..peers).map(round).filter(|edges| !edges.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_edge_is_measured_once_and_nobody_is_at_two_ends_of_a_kind() {
        for peers in 0..20 {
            let rounds = probe_rounds(peers, |_, _| true);
            assert_eq!(rounds.len(), peers.saturating_sub(1));
            let mut all = BTreeSet::new();
            for round in &rounds {
                let senders: BTreeSet<usize> = round.iter().map(|(from, _)| *from).collect();
                let receivers: BTreeSet<usize> = round.iter().map(|(_, to)| *to).collect();
                assert_eq!((senders.len(), receivers.len()), (peers, peers));
                assert!(round.iter().all(|(from, to)| from != to && all.insert((*from, *to))));
            }
            assert_eq!(all.len(), peers * peers.saturating_sub(1));
        }
    }

    #[test]
    fn a_newcomer_costs_only_its_own_edges() {
        let rounds = probe_rounds(6, |from, to| from == 5 || to == 5);
        assert_eq!(rounds.len(), 5);
        assert_eq!(rounds.concat().len(), 10);
        assert!(probe_rounds(6, |_, _| false).is_empty());
    }
}
