//! In which order a peer that has lost the master looks at the places where one may act, and where it waits for others.
//!
//! A standby takes over when more than half of the members are with it at the same time. Peers that each wait for a
//! while with one standby and then with the next could miss each other for ever. So all go by the order of the list of
//! complete copies, which they have in common, and those who lost the master at about the same time wait with the same
//! standby at the same time. A peer that lost it at another time meets them by the clock of its machine, and, if that
//! is wrong, by chance.

use pccl_protocol::PeerId;
use std::{
    collections::VecDeque,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use tinysockets::address::HostPort;

/// How long it is the turn of one standby.
const TURN: Duration = Duration::from_secs(6);
/// How long a peer stays at once. Less than the time for which one that acts keeps its place.
const STAY: Duration = Duration::from_secs(4);
/// One round of this number goes by chance.
const BY_CHANCE: u64 = 4;

/// The turn of one standby to be waited with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Turn {
    /// Counts on; the number of the standby is the rest by how many there are.
    pub(super) number: usize,
    /// When the waiting peer looks elsewhere.
    pub(super) ends: Instant,
}

impl Turn {
    /// That of a peer which lost the master at `lost`.
    pub(super) fn now(lost: Instant, me: PeerId) -> Self {
        let now = Instant::now();
        let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // No two peers have the same one, and none twice in a row.
        let dice = mix((me.0 >> 64) as u64 ^ me.0 as u64 ^ clock.as_nanos() as u64);
        let (number, left) = turn_of(now.saturating_duration_since(lost), clock, dice);
        Self { number, ends: now + left.min(STAY) }
    }
}

/// The number of a turn, and what is left of it: of one that has looked for a time, by its clock and a random number.
fn turn_of(looked: Duration, clock: Duration, dice: u64) -> (usize, Duration) {
    if looked < TURN {
        return (0, TURN - looked);
    }
    let into = clock.as_micros() % TURN.as_micros();
    let left = TURN - Duration::from_micros(into as u64);
    let number = (clock.as_micros() / TURN.as_micros()) as usize;
    if dice.is_multiple_of(BY_CHANCE) { ((dice / BY_CHANCE) as usize, left) } else { (number, left) }
}

/// Spreads the bits of a number (the finalizer of SplitMix64: Steele, Lea, Flood, 2014).
const fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// The places at which a master may act: where one did last, where those are that may take over, beginning with the one
/// whose turn it is, and then all others that are known.
pub(super) struct Round {
    /// Each with whether it is worth to wait there: it is more than a hint.
    places: VecDeque<(HostPort, bool)>,
    waited: bool,
    heard_of: Vec<HostPort>,
}

impl Round {
    /// Of `all` places that are known, the first is where a master acted last.
    pub(super) fn new(all: Vec<HostPort>, mut standbys: Vec<HostPort>, turn: usize) -> Self {
        if !standbys.is_empty() {
            let first = turn % standbys.len();
            standbys.rotate_left(first);
        }
        let mut all = all.into_iter();
        let last = all.next().filter(|last| standbys.first() != Some(last));
        let hints: Vec<HostPort> = all.filter(|place| !standbys.contains(place)).collect();
        // The former leader may stand by now: then it is waited with in its turn.
        let is_alone = standbys.is_empty();
        let places = last.into_iter().map(|place| (place, is_alone));
        let places = places.chain(standbys.into_iter().map(|place| (place, true)));
        let places = places.chain(hints.into_iter().map(|place| (place, false))).collect();
        Self { places, waited: false, heard_of: Vec::new() }
    }

    /// Whether there is more than one place.
    pub(super) fn has_several(&self) -> bool {
        self.places.len() > 1
    }

    /// The next place, and whether it is waited there: with the first that waits for others itself.
    pub(super) fn next(&mut self) -> Option<(HostPort, bool)> {
        let (place, waits) = self.places.pop_front()?;
        Some((place, waits && !self.waited))
    }

    /// It was waited at the last place.
    pub(super) fn has_waited(&mut self) {
        self.waited = true;
    }

    /// One that stands by says that the master acts at this place, which is tried next, though it may have been tried
    /// before.
    pub(super) fn hear_of(&mut self, acting: HostPort) {
        if !self.heard_of.contains(&acting) {
            self.heard_of.push(acting.clone());
            self.places.push_front((acting, false));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(port: u16) -> HostPort {
        HostPort::new("host", port)
    }

    fn all_of(mut round: Round) -> Vec<(u16, bool)> {
        std::iter::from_fn(|| round.next()).map(|(place, waits)| (place.port, waits)).collect()
    }

    #[test]
    fn all_begin_with_the_one_whose_turn_it_is() {
        let round = |turn| Round::new(vec![place(1), place(3), place(9)], vec![place(2), place(3)], turn);
        assert_eq!(all_of(round(0)), [(1, false), (2, true), (3, true), (9, false)]);
        assert_eq!(all_of(round(1)), [(1, false), (3, true), (2, true), (9, false)]);
        assert_eq!(all_of(round(2)), all_of(round(0)));
        let stands_by_now = |turn| Round::new(vec![place(3)], vec![place(2), place(3)], turn);
        assert_eq!(all_of(stands_by_now(0)), [(3, false), (2, true), (3, true)]);
        assert_eq!(all_of(stands_by_now(1)), [(3, true), (2, true)]);
        assert_eq!(all_of(Round::new(vec![place(1), place(9)], Vec::new(), 5)), [(1, true), (9, false)]);
    }

    #[test]
    fn it_is_waited_once_and_whoever_acts_is_next() {
        let mut round = Round::new(vec![place(1)], vec![place(2), place(3)], 0);
        assert_eq!(round.next(), Some((place(1), false)));
        assert_eq!(round.next(), Some((place(2), true)));
        round.has_waited();
        round.hear_of(place(7));
        round.hear_of(place(7));
        assert_eq!(all_of(round), [(7, false), (3, false)]);
    }

    #[test]
    fn more_than_half_meet_whenever_they_have_lost_the_master() {
        const STEP: Duration = Duration::from_millis(50);
        let mut bits: u64 = 1;
        let mut dice = move || {
            bits = bits.wrapping_add(0x9e37_79b9_7f4a_7c15);
            mix(bits)
        };
        for (peers, standbys) in [(3, 2), (4, 2), (5, 3), (100, 3)] {
            // Each began to look at another time, half of them with another clock.
            let began: Vec<_> = (0..peers).map(|_| Duration::from_millis(dice() % 20_000)).collect();
            let clocks: Vec<_> =
                (0..peers).map(|peer| Duration::from_millis((peer % 2) * (dice() % 60_000))).collect();
            let mut stays = vec![(0, Duration::ZERO); peers as usize];
            let mut now = Duration::from_secs(20);
            let met = loop {
                let mut with = vec![0; standbys];
                for (peer, stay) in stays.iter_mut().enumerate() {
                    if stay.1 <= now {
                        let (number, left) = turn_of(now - began[peer], now + clocks[peer], dice());
                        *stay = (number % standbys, now + left.min(STAY));
                    }
                    with[stay.0] += 1;
                }
                now += STEP;
                if with.iter().any(|number| number * 2 > peers) {
                    break now;
                }
            };
            assert!(met < Duration::from_secs(60), "{peers} peers met after {met:?}");
        }
    }

    #[test]
    fn those_who_lose_it_together_wait_with_the_first_of_the_list() {
        let clock = Duration::from_secs(1_000_001);
        for ms in [0, 200, 5_900] {
            let looked = Duration::from_millis(ms);
            assert_eq!(turn_of(looked, clock, 8), (0, TURN - looked));
        }
        let (number, left) = turn_of(TURN, clock, 1);
        assert_eq!((number, left), (166_666, TURN - Duration::from_secs(5)));
        assert_eq!(turn_of(TURN, clock, 4 * 7), (7, left));
    }
}
