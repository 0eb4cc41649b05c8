//! The choice of who dials whom, where some peers cannot be dialed: pure.
//!
//! The sending end of an edge dials, unless nobody can dial the receiving end: then that one dials back. Two peers that
//! nobody can dial (outbound-only) never meet, so no edge joins them, neither in a ring nor beside it. A ring separates
//! them by others, so it has at most as many of them as others. Where there is a relay, a ring of more of them has
//! edges through that, as few as possible.

use pccl_protocol::PeerId;
use std::collections::BTreeSet;

/// The end that makes the connections of an edge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialer {
    /// The end that data flows from.
    Sender,
    /// The end that data flows to: it dials back.
    Receiver,
}

/// Knowledge of which peers can be dialed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dials {
    outbound_only: BTreeSet<PeerId>,
    has_relay: bool,
}

impl FromIterator<PeerId> for Dials {
    /// Of those that cannot be dialed.
    fn from_iter<T: IntoIterator<Item = PeerId>>(outbound_only: T) -> Self {
        Self { outbound_only: outbound_only.into_iter().collect(), has_relay: false }
    }
}

impl Dials {
    /// Whether nobody can dial this peer.
    pub fn is_outbound_only(&self, peer: PeerId) -> bool {
        self.outbound_only.contains(&peer)
    }

    /// The same, where two peers that nobody can dial may meet at a relay, or not.
    #[must_use]
    pub fn with_relay(self, has_relay: bool) -> Self {
        Self { has_relay, ..self }
    }

    /// Whether two peers meet at the relay, if they do.
    pub fn is_relayed(&self, one: PeerId, other: PeerId) -> bool {
        self.has_relay && self.is_outbound_only(one) && self.is_outbound_only(other)
    }

    /// The end that dials for an edge from one peer to another; `None`: neither can. Where both meet at the relay, the
    /// sender is the one that begins.
    pub fn dialer(&self, from: PeerId, to: PeerId) -> Option<Dialer> {
        match (self.is_outbound_only(from), self.is_outbound_only(to)) {
            (_, false) => Some(Dialer::Sender),
            (false, true) => Some(Dialer::Receiver),
            (true, true) => self.has_relay.then_some(Dialer::Sender),
        }
    }

    /// The pairs of these peers of which neither can dial the other one, in both directions. Without a relay there can
    /// be no edge between them.
    pub fn barred(&self, peers: &[PeerId]) -> BTreeSet<(PeerId, PeerId)> {
        let hidden = || peers.iter().copied().filter(|peer| self.is_outbound_only(*peer));
        let pairs = hidden().flat_map(|from| hidden().map(move |to| (from, to)));
        pairs.filter(|(from, to)| from != to).collect()
    }

    /// How many of these peers cannot be dialed.
    pub fn count(&self, peers: &[PeerId]) -> usize {
        peers.iter().filter(|peer| self.is_outbound_only(**peer)).count()
    }

    /// Whether there is a ring of these peers. One alone always is one.
    pub fn have_ring(&self, peers: &[PeerId]) -> bool {
        self.has_relay || Self::without_relay(peers.len(), self.count(peers))
    }

    /// Whether every ring of these peers has an edge through the relay.
    pub fn need_relay(&self, peers: &[PeerId]) -> bool {
        self.has_relay && !Self::without_relay(peers.len(), self.count(peers))
    }

    fn without_relay(all: usize, hidden: usize) -> bool {
        all < 2 || 2 * hidden <= all
    }

    /// Which of those who wait can come into a ring with those who are in it, in their order: everybody who can be
    /// dialed, and as many others as these separate. Into an empty ring at least the first one comes.
    pub fn admit(&self, present: &[PeerId], waiting: &[PeerId]) -> Vec<PeerId> {
        if self.has_relay {
            return waiting.to_vec();
        }
        let others = present.iter().chain(waiting).filter(|peer| !self.is_outbound_only(**peer)).count();
        let mut room = match (present.len(), others) {
            // One that is alone is in a ring, and another one like it does not come to it.
            (0, 0) => 1,
            _ => others.saturating_sub(self.count(present)),
        };
        let mut comes = |peer: &PeerId| {
            let is_free = !self.is_outbound_only(*peer);
            let fits = is_free || room > 0;
            room -= usize::from(fits && !is_free);
            fits
        };
        waiting.iter().copied().filter(|peer| comes(peer)).collect()
    }

    /// A ring of these peers in which no two meet that cannot, or as few as possible at the relay: in this order as far
    /// as that goes. `None` if there is none.
    pub fn separated(&self, order: &[PeerId]) -> Option<Vec<PeerId>> {
        let n = order.len();
        let is_hidden = |at: usize| self.is_outbound_only(order[at % n]);
        let meet = |at: usize| is_hidden(at) && is_hidden(at + 1);
        let fewest = if self.has_relay { (2 * self.count(order)).saturating_sub(n) } else { 0 };
        if n < 2 || (0..n).filter(|at| meet(*at)).count() <= fewest {
            return Some(order.to_vec());
        }
        if !self.have_ring(order) {
            return None;
        }
        // Behind each one that can be dialed there is room for one that cannot: first for the one that stands there,
        // then for those that are left, in their order.
        let Some(first) = order.iter().position(|peer| !self.is_outbound_only(*peer)) else {
            return Some(order.to_vec());
        };
        let mut slots: Vec<(PeerId, Option<PeerId>)> = Vec::new();
        let mut left = Vec::new();
        for at in 0..n {
            let peer = order[(first + at) % n];
            match slots.last_mut() {
                _ if !self.is_outbound_only(peer) => slots.push((peer, None)),
                Some((_, behind @ None)) => *behind = Some(peer),
                _ => left.push(peer),
            }
        }
        let mut left = left.into_iter();
        for (_, behind) in slots.iter_mut().filter(|(_, behind)| behind.is_none()) {
            *behind = left.next();
        }
        let mut ring: Vec<PeerId> =
            slots.into_iter().flat_map(|(peer, behind)| std::iter::once(peer).chain(behind)).collect();
        // For these there is the relay.
        ring.extend(left);
        // The first one stays the first.
        if let Some(at) = ring.iter().position(|peer| *peer == order[0]) {
            ring.rotate_left(at);
        }
        Some(ring)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peers(n: u128) -> Vec<PeerId> {
        (1..=n).map(PeerId).collect()
    }

    /// Every choice of outbound-only peers among up to nine.
    fn all() -> impl Iterator<Item = (Vec<PeerId>, Dials)> {
        (1..=9u128).flat_map(|n| {
            (0..1u32 << n).map(move |bits| {
                let order = peers(n);
                let dials = order.iter().copied().filter(|peer| bits >> (peer.0 - 1) & 1 == 1).collect();
                (order, dials)
            })
        })
    }

    #[test]
    fn the_sender_dials_unless_only_the_receiver_can() {
        let dials: Dials = [PeerId(1), PeerId(2)].into_iter().collect();
        let dialer = |from, to| dials.dialer(PeerId(from), PeerId(to));
        assert_eq!([dialer(3, 4), dialer(1, 3)], [Some(Dialer::Sender); 2]);
        assert_eq!([dialer(3, 1), dialer(1, 2), dialer(2, 1)], [Some(Dialer::Receiver), None, None]);
        let (one, two) = (PeerId(1), PeerId(2));
        assert_eq!(dials.barred(&peers(4)), BTreeSet::from([(one, two), (two, one)]));
    }

    #[test]
    fn there_is_a_ring_exactly_if_others_separate_them_and_it_is_found() {
        for (order, dials) in all() {
            let barred = dials.barred(&order);
            // A search over all orders where that is quick.
            if order.len() <= 7 {
                let exists = crate::ring_order(&order, &barred).is_ok();
                assert_eq!(dials.have_ring(&order), exists, "{order:?} {dials:?}");
            }
            let found = dials.separated(&order);
            assert_eq!(found.is_some(), dials.have_ring(&order), "{order:?} {dials:?}");
            let Some(ring) = found else { continue };
            let n = ring.len();
            assert!(
                n < 2 || (0..n).all(|at| dials.dialer(ring[at], ring[(at + 1) % n]).is_some()),
                "{ring:?}"
            );
            let mut sorted = ring.clone();
            sorted.sort_unstable();
            assert_eq!((sorted, ring[0]), (order.clone(), order[0]));
            assert_eq!(dials.separated(&ring), Some(ring), "what goes stays");
        }
    }

    #[test]
    fn with_a_relay_all_are_let_in_and_as_few_as_possible_meet_there() {
        for (order, dials) in all() {
            let dials = dials.with_relay(true);
            assert_eq!(dials.admit(&[], &order), order);
            let ring = dials.separated(&order).expect("there is one");
            let (n, hidden) = (ring.len(), dials.count(&order));
            let relayed =
                (0..n).filter(|at| n > 1 && dials.is_relayed(ring[*at], ring[(at + 1) % n])).count();
            let fewest = if n < 2 { 0 } else { (2 * hidden).saturating_sub(n) };
            assert_eq!((relayed, ring[0]), (fewest, order[0]), "{order:?} {dials:?}");
            assert_eq!(dials.need_relay(&order), relayed > 0);
            let mut sorted = ring.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, order);
            assert_eq!(dials.separated(&ring), Some(ring), "what goes stays");
        }
    }

    #[test]
    fn as_many_are_let_in_as_there_is_room_for() {
        for (order, dials) in all() {
            for split in 0..=order.len() {
                let (present, waiting) = order.split_at(split);
                if !dials.have_ring(present) {
                    continue;
                }
                let comes = dials.admit(present, waiting);
                let ring = [present, &comes].concat();
                assert!(dials.have_ring(&ring), "{present:?} {waiting:?} {dials:?}");
                let stays = waiting.iter().filter(|peer| !comes.contains(peer));
                for peer in stays {
                    assert!(!dials.have_ring(&[&ring[..], &[*peer]].concat()), "{peer} had room: {ring:?}");
                }
            }
        }
    }
}
