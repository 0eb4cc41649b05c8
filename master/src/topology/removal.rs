//! Who has to go when no ring avoids the edges that cannot be built.

use super::ring_order;
use pccl_protocol::PeerId;
use std::collections::BTreeSet;

/// Most members that are tried in all combinations of two.
const PAIRS_MAX: usize = 16;

/// A member of a ring that may have to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// The member.
    pub peer: PeerId,
    /// It is only now being admitted.
    pub newcomer: bool,
    /// Order of registration.
    pub order: u64,
}

/// The members to remove so that a ring of the others avoids the forbidden edges.
///
/// An accepted member never goes for the sake of a newcomer: newcomers go as long as that is enough. Of equally many,
/// those with the most forbidden edges go, and of these the latest. Empty if there is a ring; never all members.
pub fn fewest_removals(members: &[Candidate], forbidden: &BTreeSet<(PeerId, PeerId)>) -> Vec<PeerId> {
    let works = |gone: &[PeerId]| {
        let rest: Vec<PeerId> = members.iter().map(|m| m.peer).filter(|peer| !gone.contains(peer)).collect();
        ring_order(&rest, forbidden).is_ok()
    };
    if works(&[]) {
        return Vec::new();
    }
    let faults = |peer: PeerId| forbidden.iter().filter(|(from, to)| *from == peer || *to == peer).count();
    let ranked = |newcomer: bool| {
        let mut list: Vec<&Candidate> = members.iter().filter(|m| m.newcomer == newcomer).collect();
        list.sort_by_key(|m| std::cmp::Reverse((faults(m.peer), m.order)));
        list.into_iter().map(|m| m.peer).collect::<Vec<PeerId>>()
    };
    let newcomers = ranked(true);
    let spare_one = |mut list: Vec<PeerId>| {
        list.truncate(members.len() - 1);
        list
    };
    if works(&newcomers) {
        return spare_one(fewest_of(&newcomers, &works));
    }
    let accepted = ranked(false);
    // The accepted ones have no ring even without any newcomer.
    let alone = |gone: &[PeerId]| works(&[gone, newcomers.as_slice()].concat());
    spare_one(fewest_of(&accepted, &alone))
}

/// The shortest list that works: single members, then pairs, then ever more from the front.
fn fewest_of(ranked: &[PeerId], works: &impl Fn(&[PeerId]) -> bool) -> Vec<PeerId> {
    if let Some(one) = ranked.iter().find(|peer| works(&[**peer])) {
        return vec![*one];
    }
    if ranked.len() <= PAIRS_MAX {
        for (i, a) in ranked.iter().enumerate() {
            if let Some(b) = ranked[i + 1..].iter().find(|b| works(&[*a, **b])) {
                return vec![*a, *b];
            }
        }
    }
    let enough = (3..ranked.len()).find(|&count| works(&ranked[..count]));
    ranked[..enough.unwrap_or(ranked.len())].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(accepted: u128, newcomers: u128) -> Vec<Candidate> {
        (0..accepted + newcomers)
            .map(|i| Candidate { peer: PeerId(i), newcomer: i >= accepted, order: i as u64 })
            .collect()
    }

    fn edges(list: &[(u128, u128)]) -> BTreeSet<(PeerId, PeerId)> {
        list.iter().map(|(a, b)| (PeerId(*a), PeerId(*b))).collect()
    }

    fn removed(accepted: u128, newcomers: u128, forbidden: &[(u128, u128)]) -> Vec<u128> {
        let forbidden = edges(forbidden);
        let list = fewest_removals(&members(accepted, newcomers), &forbidden);
        list.into_iter().map(|peer| peer.0).collect()
    }

    #[test]
    fn who_goes() {
        // (accepted, newcomers, forbidden edges, who goes)
        type Case<'a> = (u128, u128, &'a [(u128, u128)], &'a [u128]);
        let table: &[Case<'_>] = &[
            (3, 0, &[(0, 1)], &[]),
            (1, 1, &[(0, 1)], &[1]),
            (2, 0, &[(0, 1)], &[1]),
            (2, 1, &[(0, 2), (1, 2)], &[2]),
            // One accepted member cannot reach either newcomer: both newcomers go, although it alone would be fewer.
            (1, 2, &[(0, 1), (0, 2)], &[2, 1]),
            (1, 2, &[(0, 1), (1, 0), (0, 2), (2, 0)], &[2, 1]),
            // Among accepted ones the one with the most forbidden edges.
            (4, 0, &[(0, 1), (0, 2), (0, 3)], &[0]),
            // Accepted members have no ring, so the newcomer's bad edge is not the reason.
            (2, 1, &[(0, 1), (1, 0), (2, 0), (2, 1)], &[1]),
        ];
        for (accepted, newcomers, forbidden, expected) in table {
            assert_eq!(&removed(*accepted, *newcomers, forbidden), expected, "{forbidden:?}");
        }
    }

    #[test]
    fn what_is_left_has_a_ring() {
        // Every set of forbidden edges among four members, two of them newcomers.
        let all = members(2, 2);
        let pairs: Vec<(PeerId, PeerId)> =
            all.iter().flat_map(|a| all.iter().map(|b| (a.peer, b.peer))).filter(|(a, b)| a != b).collect();
        for bits in 0u32..1 << pairs.len() {
            let forbidden: BTreeSet<_> =
                pairs.iter().enumerate().filter(|(i, _)| bits >> i & 1 == 1).map(|(_, e)| *e).collect();
            let gone = fewest_removals(&all, &forbidden);
            assert!(gone.len() < all.len());
            let rest: Vec<PeerId> = all.iter().map(|m| m.peer).filter(|p| !gone.contains(p)).collect();
            let accepted_gone = gone.iter().any(|p| p.0 < 2);
            let accepted_ring = ring_order(&[PeerId(0), PeerId(1)], &forbidden).is_ok();
            assert!(
                !accepted_gone || !accepted_ring,
                "an accepted member went for a newcomer: {forbidden:?}"
            );
            // When accepted members go, the newcomers are judged again in the next plan.
            assert!(accepted_gone || ring_order(&rest, &forbidden).is_ok());
        }
    }
}
