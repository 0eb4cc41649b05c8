//! Sets of voters: the members, and those that they may have been before.

use pccl_protocol::PeerId;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, ops::RangeInclusive};

/// How many of the members are wanted. One of each kind have a member in common, and so have two of the larger kind;
/// two of the smaller kind need not (Howard, Malkhi, Spiegelman, "Flexible Paxos", 2016).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quorum {
    /// For promises: more than half of them.
    MoreThanHalf,
    /// For what keeps others from getting these: half of them.
    Half,
}

/// The members after each turn that may matter.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VoterSets {
    /// From which turn on they were the members; the oldest first.
    since: Vec<(u64, BTreeSet<PeerId>)>,
}

impl VoterSets {
    /// These have been the members since this turn.
    #[must_use]
    pub fn from(turn: u64, members: BTreeSet<PeerId>) -> Self {
        Self { since: vec![(turn, members)] }
    }

    /// The members after this turn, which is the last one so far.
    pub fn note(&mut self, turn: u64, members: BTreeSet<PeerId>) {
        if self.since.last().is_none_or(|(_, last)| *last != members) {
            self.since.push((turn, members));
        }
    }

    /// The members before this turn do not matter any more.
    pub fn forget_before(&mut self, turn: u64) {
        let count = self.since.iter().take_while(|(since, _)| *since <= turn).count();
        self.since.drain(..count.saturating_sub(1));
    }

    /// Those that were the members at some time in these turns.
    fn within(&self, turns: &RangeInclusive<u64>) -> impl Iterator<Item = &BTreeSet<PeerId>> {
        let before = self.since.iter().take_while(|(since, _)| since <= turns.start()).count();
        let end = *turns.end();
        let from = before.saturating_sub(1);
        self.since[from..].iter().take_while(move |(since, _)| *since <= end).map(|(_, members)| members)
    }

    /// Whether that many of the members are such, whoever they were in these turns.
    pub fn has(&self, quorum: Quorum, turns: &RangeInclusive<u64>, is_such: impl Fn(PeerId) -> bool) -> bool {
        let mut all = self.within(turns).peekable();
        all.peek().is_some() && all.all(|members| quorum.is_reached(members, &is_such))
    }

    /// The members who are not such, where more of them are wanted.
    pub fn missing(
        &self,
        quorum: Quorum,
        turns: &RangeInclusive<u64>,
        is_such: impl Fn(PeerId) -> bool,
    ) -> BTreeSet<PeerId> {
        let short = self.within(turns).filter(|members| !quorum.is_reached(members, &is_such));
        short.flatten().copied().filter(|peer| !is_such(*peer)).collect()
    }

    /// Whether the word of this peer counts at all.
    #[must_use]
    pub fn counts(&self, peer: PeerId) -> bool {
        self.since.iter().any(|(_, members)| members.contains(&peer))
    }
}

impl Quorum {
    fn is_reached(self, members: &BTreeSet<PeerId>, is_such: &impl Fn(PeerId) -> bool) -> bool {
        let twice = 2 * members.iter().filter(|peer| is_such(**peer)).count();
        match self {
            Self::MoreThanHalf => twice > members.len(),
            Self::Half => twice >= members.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peers(ids: &[u128]) -> BTreeSet<PeerId> {
        ids.iter().map(|id| PeerId(*id)).collect()
    }

    fn voter_sets() -> VoterSets {
        let mut all = VoterSets::from(3, peers(&[1, 2, 3]));
        all.note(4, peers(&[1, 2, 3]));
        all.note(6, peers(&[1, 4, 5]));
        all.note(9, peers(&[]));
        all
    }

    #[test]
    fn more_than_half_is_wanted_of_each() {
        let all = voter_sets();
        let has =
            |turns, ids: &[u128]| all.has(Quorum::MoreThanHalf, &turns, |peer| peers(ids).contains(&peer));
        assert!(has(3..=5, &[1, 2]) && !has(3..=5, &[1]) && !has(4..=6, &[1, 2]));
        assert!(
            has(5..=6, &[1, 2, 4]) && has(6..=8, &[1, 4]) && !has(7..=9, &[1, 4, 5]),
            "nobody is no majority"
        );
        assert_eq!(
            all.missing(Quorum::MoreThanHalf, &(5..=6), |peer| peer == PeerId(1)),
            peers(&[2, 3, 4, 5])
        );
        assert_eq!(
            all.missing(Quorum::MoreThanHalf, &(5..=6), |peer| peers(&[1, 4]).contains(&peer)),
            peers(&[2, 3])
        );
        assert!(!VoterSets::default().has(Quorum::MoreThanHalf, &(0..=9), |_| true));
        let two = VoterSets::from(0, peers(&[1, 2]));
        let has_one = |quorum| two.has(quorum, &(0..=0), |peer| peer == PeerId(1));
        assert!(!has_one(Quorum::MoreThanHalf) && has_one(Quorum::Half));
        assert!(two.missing(Quorum::Half, &(0..=0), |peer| peer == PeerId(1)).is_empty());
    }

    #[test]
    fn what_is_forgotten_still_says_who_the_members_were_then() {
        for turn in 0..12 {
            let mut all = voter_sets();
            all.forget_before(turn);
            for from in turn..12 {
                for to in from..12 {
                    let within = |all: &VoterSets| all.within(&(from..=to)).cloned().collect::<Vec<_>>();
                    assert_eq!(within(&all), within(&voter_sets()), "{turn} {from} {to}");
                }
            }
        }
    }
}
