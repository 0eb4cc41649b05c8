//! A candidacy: a standby with a copy asks the peers to come to it as their leader, and counts their votes.

use super::{
    leader::Past,
    quorum::{Quorum, VoterSets},
};
use pccl_protocol::{Claim, CopyId, PeerId, Term};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
};

/// See the module's documentation.
#[derive(Debug, Clone)]
pub struct Candidacy {
    copy: CopyId,
    voter_sets: VoterSets,
    turns: RangeInclusive<u64>,
    /// The newest term that anybody knows.
    newest: Term,
    /// Those who are here and would come.
    here: BTreeSet<PeerId>,
    /// The term for which promises are asked, and who has given one.
    asked: Option<Term>,
    promised: BTreeSet<PeerId>,
    refused: BTreeMap<PeerId, String>,
}

impl Candidacy {
    /// Of one who has this copy.
    #[must_use]
    pub fn new(copy: CopyId, past: &Past) -> Self {
        Self {
            copy,
            voter_sets: past.voter_sets.clone(),
            turns: past.released..=past.turn,
            newest: past.copies.term,
            here: BTreeSet::new(),
            asked: None,
            promised: BTreeSet::new(),
            refused: BTreeMap::new(),
        }
    }

    /// A peer has come that knows this term.
    pub fn comes(&mut self, peer: PeerId, knows: Term) {
        self.knows(knows);
        self.here.insert(peer);
        self.refused.remove(&peer);
    }

    /// Somebody knows this term: nobody is asked for an older one.
    pub fn knows(&mut self, term: Term) {
        self.newest = self.newest.max(term);
    }

    /// The newest term that anybody knows.
    #[must_use]
    pub fn newest(&self) -> Term {
        self.newest
    }

    /// A peer has gone. It keeps what it has promised.
    pub fn goes(&mut self, peer: PeerId) {
        self.here.remove(&peer);
    }

    /// Whether enough would come.
    #[must_use]
    pub fn has_support(&self) -> bool {
        self.voter_sets.has(Quorum::MoreThanHalf, &self.turns, |peer| self.here.contains(&peer))
    }

    /// If enough would come: what to ask all who are here for, in a new term. To be asked for once.
    pub fn ask(&mut self) -> Option<Claim> {
        if self.asked.is_some() || !self.has_support() {
            return None;
        }
        let term = Term(self.newest.0 + 1);
        self.asked = Some(term);
        self.newest = term;
        self.claim()
    }

    /// The claim that is asked for, if any.
    #[must_use]
    pub fn claim(&self) -> Option<Claim> {
        self.asked.map(|term| Claim { term, copy: self.copy })
    }

    /// A peer has answered.
    pub fn answered(&mut self, peer: PeerId, term: Term, refused: Option<String>) {
        if Some(term) != self.asked {
            return;
        }
        match refused {
            None => drop(self.promised.insert(peer)),
            Some(text) => drop(self.refused.insert(peer, text)),
        }
    }

    /// The term in which to act, once enough have promised.
    #[must_use]
    pub fn is_won(&self) -> Option<Term> {
        let promised = |peer| self.promised.contains(&peer);
        self.asked.filter(|_| self.voter_sets.has(Quorum::MoreThanHalf, &self.turns, promised))
    }

    /// Nothing comes of it: promises are given back, those up to this one, and the next time it is another term.
    pub fn give_back(&mut self) -> Option<Claim> {
        let claim = self.claim();
        self.asked = None;
        self.promised.clear();
        self.refused.clear();
        claim
    }

    /// Goes on with another copy. Only while nothing is asked for.
    pub fn change_copy(&mut self, copy: CopyId, past: &Past) {
        let here = std::mem::take(&mut self.here);
        *self = Self { here, newest: self.newest.max(past.copies.term), ..Self::new(copy, past) };
    }

    /// The peers that are missing among those who would come.
    #[must_use]
    pub fn missing(&self) -> BTreeSet<PeerId> {
        self.voter_sets.missing(Quorum::MoreThanHalf, &self.turns, |peer| self.here.contains(&peer))
    }

    /// Why one who is here does not promise.
    #[must_use]
    pub fn refusal(&self) -> Option<&str> {
        self.refused.values().next().map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pccl_protocol::Copies;

    fn candidacy(released: u64) -> Candidacy {
        let members = |ids: &[u128]| ids.iter().map(|id| PeerId(*id)).collect::<BTreeSet<_>>();
        let mut voter_sets = VoterSets::from(0, members(&[1, 2, 3]));
        voter_sets.note(5, members(&[3, 4, 5]));
        let copies = Copies { term: Term(2), number: 1, acting: CopyId(1), standbys: Vec::new() };
        Candidacy::new(CopyId(9), &Past { turn: 7, released, voter_sets, copies, is_alone: false })
    }

    #[test]
    fn it_asks_when_enough_are_here_and_wins_when_enough_have_promised() {
        let mut candidacy = candidacy(5);
        candidacy.comes(PeerId(3), Term(2));
        candidacy.comes(PeerId(1), Term(2));
        assert_eq!(
            (candidacy.ask(), candidacy.missing().len()),
            (None, 2),
            "one of those is no member any more"
        );
        candidacy.comes(PeerId(4), Term(6));
        let claim = Claim { term: Term(7), copy: CopyId(9) };
        assert_eq!((candidacy.ask(), candidacy.ask()), (Some(claim), None));
        candidacy.answered(PeerId(3), Term(7), None);
        candidacy.answered(PeerId(4), Term(6), None);
        assert_eq!(candidacy.is_won(), None);
        candidacy.goes(PeerId(3));
        candidacy.answered(PeerId(4), Term(7), None);
        assert_eq!(candidacy.is_won(), Some(Term(7)), "a promise is kept by who has gone");
    }

    #[test]
    fn all_who_may_have_been_the_members_count() {
        let mut candidacy = candidacy(4);
        [3, 4].into_iter().for_each(|peer| candidacy.comes(PeerId(peer), Term(2)));
        assert_eq!(candidacy.ask(), None);
        candidacy.comes(PeerId(1), Term(2));
        assert!(candidacy.ask().is_some());
        [4, 1].into_iter().for_each(|peer| candidacy.answered(PeerId(peer), Term(3), None));
        assert_eq!(candidacy.is_won(), None);
        candidacy.answered(PeerId(3), Term(3), Some("no".into()));
        assert_eq!((candidacy.is_won(), candidacy.refusal()), (None, Some("no")));
        candidacy.answered(PeerId(3), Term(3), None);
        assert_eq!(candidacy.is_won(), Some(Term(3)));
    }

    #[test]
    fn what_is_given_back_does_not_count_any_more() {
        let mut candidacy = candidacy(5);
        [3, 4].into_iter().for_each(|peer| candidacy.comes(PeerId(peer), Term(2)));
        candidacy.ask().unwrap();
        candidacy.answered(PeerId(3), Term(3), None);
        assert_eq!(candidacy.give_back(), Some(Claim { term: Term(3), copy: CopyId(9) }));
        assert_eq!(candidacy.give_back(), None);
        assert_eq!(candidacy.ask().map(|claim| claim.term), Some(Term(4)));
        candidacy.answered(PeerId(3), Term(3), None);
        candidacy.answered(PeerId(4), Term(4), None);
        assert_eq!(candidacy.is_won(), None);
    }
}
