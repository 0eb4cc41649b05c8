//! The visitors that wait for each other at a relay: pure.

use std::{collections::BTreeMap, time::Instant};

use crate::preamble::Preamble;

/// The common name of two visitors that are to meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name {
    /// The one that begins, and the other one.
    ends: (u128, u128),
    role: u16,
    generation: u64,
    index: u16,
}

/// One of two visitors: the name of their meeting, and whether this is the one that begins.
pub(super) type Place = (Name, bool);

/// Where the visitor belongs that has sent this preamble.
pub(super) fn place_of(preamble: &Preamble) -> Place {
    let begins = preamble.features & 1 == 1;
    let (me, other) = (preamble.from, preamble.to);
    let name = Name {
        ends: if begins { (me, other) } else { (other, me) },
        role: preamble.connection_count,
        generation: preamble.link_generation,
        index: preamble.connection_index,
    };
    (name, begins)
}

/// Visitors that wait for another one, each until its deadline.
#[derive(Debug)]
pub(super) struct Pairing<T> {
    waiting: BTreeMap<Place, (T, Instant)>,
}

impl<T> Default for Pairing<T> {
    fn default() -> Self {
        Self { waiting: BTreeMap::new() }
    }
}

impl<T> Pairing<T> {
    /// A visitor has come. It and the one that it wants to meet, if that is here; otherwise it waits. One that comes
    /// again takes its own place, and the one before is closed.
    pub(super) fn meet(&mut self, (name, begins): Place, visitor: T, until: Instant) -> Option<(T, T)> {
        match self.waiting.remove(&(name, !begins)) {
            Some((other, _)) => Some((visitor, other)),
            None => {
                self.waiting.insert((name, begins), (visitor, until));
                None
            }
        }
    }

    /// Takes those away that have waited for too long, and those that `stays` says no to.
    pub(super) fn retain(&mut self, now: Instant, mut stays: impl FnMut(&T) -> bool) {
        self.waiting.retain(|_, (visitor, until)| *until > now && stays(visitor));
    }

    /// Those who wait.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &T> {
        self.waiting.values().map(|(visitor, _)| visitor)
    }

    /// When the next one has waited for too long.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.waiting.values().map(|(_, until)| *until).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{preamble::Role, relay::Visit};
    use std::time::Duration;

    fn visit(from: u128, to: u128, begins: bool) -> Visit {
        Visit { run: 1, token: 2, from, to, begins, role: Role::Data, generation: 3, index: 0 }
    }

    #[test]
    fn two_meet_that_want_the_same_connection_from_both_ends() {
        let now = Instant::now();
        let until = now + Duration::from_secs(1);
        let mut pairing = Pairing::default();
        let mut meet = |visit: Visit, who: u32| pairing.meet(place_of(&visit.preamble()), who, until);
        assert_eq!(meet(visit(7, 8, true), 1), None);
        for (who, other) in [
            (2, visit(8, 7, true)),
            (3, Visit { generation: 4, ..visit(8, 7, false) }),
            (4, Visit { role: Role::StateBack, ..visit(8, 7, false) }),
            (5, Visit { index: 1, ..visit(8, 7, false) }),
            (6, visit(9, 7, false)),
        ] {
            assert_eq!(meet(other, who), None, "{other:?}");
        }
        assert_eq!(meet(visit(8, 7, false), 9), Some((9, 1)));
        assert_eq!(meet(visit(7, 8, false), 10), Some((10, 2)), "the connection in the other direction");
        assert_eq!(pairing.waiting().count(), 4);
        assert_eq!(pairing.deadline(), Some(until));
    }

    #[test]
    fn who_comes_again_takes_its_own_place_and_nobody_waits_for_ever() {
        let now = Instant::now();
        let mut pairing = Pairing::default();
        let place = place_of(&visit(7, 8, true).preamble());
        assert_eq!(pairing.meet(place, 1, now + Duration::from_secs(1)), None);
        assert_eq!(pairing.meet(place, 2, now + Duration::from_secs(2)), None);
        assert_eq!(pairing.waiting().copied().collect::<Vec<_>>(), [2]);
        pairing.retain(now + Duration::from_secs(1), |_| true);
        assert_eq!(pairing.waiting().count(), 1);
        pairing.retain(now + Duration::from_secs(2), |_| true);
        assert_eq!((pairing.waiting().count(), pairing.deadline()), (0, None));
        assert_eq!(pairing.meet(place, 3, now + Duration::from_secs(9)), None);
        pairing.retain(now, |who| *who != 3);
        assert_eq!(pairing.waiting().count(), 0);
    }
}
