//! The leader's side: which copies are complete, and how far the consequences of its turns may be known.

use super::quorum::{Quorum, VoterSets};
use pccl_protocol::limits::{MAX_PEERS, MAX_PENDING_PEERS, MAX_STANDBYS};
use pccl_protocol::{Copies, CopiesKnown, CopyId, PeerId, Standby, Term};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The knowledge of leadership in a copy, for a master that goes on from it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Past {
    /// The last turn that it has.
    pub turn: u64,
    /// All turns up to this one may have been seen by peers.
    pub released: u64,
    /// The members since then.
    pub voter_sets: VoterSets,
    /// The newest list of complete copies that it has heard of.
    pub copies: Copies,
    /// Nobody else can have taken over: no other copy was complete, and enough members knew that.
    pub is_alone: bool,
}

impl Past {
    /// A turn has ended; how far what was done was known then, whether nobody else could take over, and who the members
    /// are.
    pub fn end_turn(&mut self, (released, is_alone): (u64, bool), members: BTreeSet<PeerId>) {
        self.turn += 1;
        self.released = self.released.max(released);
        self.is_alone = is_alone;
        self.voter_sets.note(self.turn, members);
        self.voter_sets.forget_before(self.released);
    }
}

/// Somebody who makes a copy.
#[derive(Debug, Clone)]
struct Seat {
    standby: Standby,
    /// The turn with which its copy begins.
    begins: u64,
    /// The last turn that it is known to have.
    has: u64,
    /// Once it has its beginning it is waited for. It may lack what had left before this turn until it has this turn;
    /// then it is complete.
    awaited_since: Option<u64>,
    /// The first list that has it, once its copy is complete.
    listed: Option<u64>,
}

/// A complete copy that is not on the list any more, as long as not enough members know that.
#[derive(Debug, Clone)]
struct Leaving {
    copy: CopyId,
    /// The first list without it.
    number: u64,
    /// The last turn that it is known to have.
    has: u64,
    /// The last turn that it may have.
    may_have: u64,
}

/// See the module's documentation.
#[derive(Debug, Clone)]
pub struct Leader {
    term: Term,
    copy: CopyId,
    number: u64,
    turn: u64,
    voter_sets: VoterSets,
    seats: BTreeMap<CopyId, Seat>,
    leaving: Vec<Leaving>,
    /// The newest list of this term that each peer is known to know.
    known: BTreeMap<PeerId, u64>,
}

impl Leader {
    /// A run begins, in which nobody stands by. The leader has this copy.
    #[must_use]
    pub fn new(copy: CopyId) -> Self {
        Self {
            term: Term(0),
            copy,
            number: 0,
            turn: 0,
            voter_sets: VoterSets::default(),
            seats: BTreeMap::new(),
            leaving: Vec::new(),
            known: BTreeMap::new(),
        }
    }

    /// A leader that has acted goes on from what it has written. Only if nobody else can have taken over.
    #[must_use]
    pub fn go_on(past: Past) -> Self {
        let Past { turn, voter_sets, copies, .. } = past;
        Self { term: copies.term, number: copies.number, turn, voter_sets, ..Self::new(copies.acting) }
    }

    /// A standby that has the promises of more than half for this term takes over, with this copy. Its packets leave
    /// when half of the members know its first list: from then on they help nobody who is not on one of its lists.
    #[must_use]
    pub fn take_over(term: Term, copy: CopyId, past: Past) -> Self {
        let Past { turn, released, voter_sets, copies, .. } = past;
        let leaving = vec![Leaving { copy: copies.acting, number: 0, has: released, may_have: turn }];
        Self { term, turn, voter_sets, leaving, ..Self::new(copy) }
    }

    /// An operator says that nobody else acts, nor will: this copy goes on without promises, and waits for nobody.
    /// Everything that was done and is not in it is lost.
    #[must_use]
    pub fn force(term: Term, copy: CopyId, past: Past) -> Self {
        let Past { turn, voter_sets, .. } = past;
        Self { term, turn, voter_sets, ..Self::new(copy) }
    }

    /// The term.
    #[must_use]
    pub fn term(&self) -> Term {
        self.term
    }

    /// The copy of the leader itself.
    #[must_use]
    pub fn copy(&self) -> CopyId {
        self.copy
    }

    /// The last turn that has ended.
    #[must_use]
    pub fn turn(&self) -> u64 {
        self.turn
    }

    /// Whether there is anybody who makes a copy or has a complete one.
    #[must_use]
    pub fn has_copies(&self) -> bool {
        !self.seats.is_empty() || !self.leaving.is_empty()
    }

    /// Whether peers have to know of terms and lists.
    #[must_use]
    pub fn is_told(&self) -> bool {
        self.term > Term(0) || self.number > 0
    }

    /// A turn has ended. The members are asked for if they matter, and so is whether a peer is still registered.
    pub fn end_turn(
        &mut self,
        members: impl FnOnce() -> BTreeSet<PeerId>,
        is_registered: impl Fn(PeerId) -> bool,
    ) {
        self.turn += 1;
        if self.has_copies() {
            self.voter_sets.note(self.turn, members());
            self.voter_sets.forget_before(self.released().min(self.turn));
        }
        if self.known.len() > MAX_PEERS + MAX_PENDING_PEERS {
            // A peer says what it knows once, soon after it has registered and before it is a member.
            self.known.retain(|peer, _| self.voter_sets.counts(*peer) || is_registered(*peer));
        }
    }

    /// Everything up to this turn may leave; without anybody who stands by, everything.
    #[must_use]
    pub fn released(&self) -> u64 {
        let awaited = self.seats.values().filter(|seat| seat.awaited_since.is_some()).map(|seat| seat.has);
        awaited.chain(self.leaving.iter().map(|leaving| leaving.has)).min().unwrap_or(u64::MAX)
    }

    /// Somebody begins to make a copy, which begins with the last turn that has ended, after which these are the
    /// members.
    ///
    /// # Errors
    /// Why it must not.
    pub fn join(&mut self, standby: Standby, members: BTreeSet<PeerId>) -> Result<(), String> {
        let copy = standby.copy;
        let is_taken = copy == self.copy
            || copy == CopyId::default()
            || self.seats.contains_key(&copy)
            || self.leaving.iter().any(|leaving| leaving.copy == copy);
        if is_taken {
            return Err(format!("the identity {copy} of its copy is taken"));
        }
        if self.seats.len() >= MAX_STANDBYS {
            return Err(format!("{MAX_STANDBYS} masters stand by already"));
        }
        if !self.has_copies() {
            // Nothing is held, so nobody has to think of who they were before.
            self.voter_sets = VoterSets::from(self.turn, members);
        }
        self.seats
            .insert(copy, Seat { standby, begins: self.turn, has: 0, awaited_since: None, listed: None });
        Ok(())
    }

    /// A copy has all turns up to this one. Whether the list has changed: it is complete now.
    ///
    /// # Errors
    /// It cannot have that turn.
    pub fn has(&mut self, copy: CopyId, turn: u64) -> Result<bool, String> {
        if turn > self.turn {
            return Err(format!("says that it has turn {turn}, and the last one is {}", self.turn));
        }
        let Some(seat) = self.seats.get_mut(&copy) else { return Ok(false) };
        seat.has = seat.has.max(turn);
        if seat.has >= seat.begins {
            seat.awaited_since.get_or_insert(self.turn);
        }
        let becomes_complete =
            seat.listed.is_none() && seat.awaited_since.is_some_and(|since| seat.has >= since);
        if becomes_complete {
            self.number += 1;
            seat.listed = Some(self.number);
        }
        Ok(becomes_complete)
    }

    /// Somebody does not make its copy any more. Whether the list has changed.
    pub fn lose(&mut self, copy: CopyId) -> bool {
        let Some(seat) = self.seats.remove(&copy).filter(|seat| seat.listed.is_some()) else { return false };
        self.number += 1;
        self.leaving.push(Leaving { copy, number: self.number, has: seat.has, may_have: self.turn });
        true
    }

    /// A peer knows this list.
    pub fn know(&mut self, peer: PeerId, known: CopiesKnown) {
        if known.term == self.term && known.number <= self.number {
            let newest = self.known.entry(peer).or_default();
            *newest = known.number.max(*newest);
            self.let_go();
        }
    }

    /// Copies are not waited for any more of which enough members know that they are not on the list.
    fn let_go(&mut self) {
        let (known, voter_sets) = (&self.known, &self.voter_sets);
        self.leaving.retain(|leaving| {
            let knows = |peer| known.get(&peer).is_some_and(|number| *number >= leaving.number);
            !voter_sets.has(Quorum::Half, &(leaving.has..=leaving.may_have), knows)
        });
    }

    /// The list for the peers.
    #[must_use]
    pub fn copies(&self) -> Copies {
        let complete = self.seats.values().filter(|seat| seat.listed.is_some());
        Copies {
            term: self.term,
            number: self.number,
            acting: self.copy,
            standbys: complete.map(|seat| seat.standby.clone()).collect(),
        }
    }

    /// The past that a copy has to know that begins now.
    #[must_use]
    pub fn past(&self) -> Past {
        let (released, is_alone) = self.how_far();
        let (voter_sets, copies) = (self.voter_sets.clone(), self.copies());
        Past { turn: self.turn, released, voter_sets, copies, is_alone }
    }

    /// Up to which turn everything may have left, and whether nobody else can take over.
    #[must_use]
    pub fn how_far(&self) -> (u64, bool) {
        let is_alone = self.leaving.is_empty() && !self.seats.values().any(|seat| seat.listed.is_some());
        (self.released().min(self.turn), is_alone)
    }

    /// Whether anybody makes a copy, or keeps a complete one up to date.
    #[must_use]
    pub fn has_standbys(&self) -> bool {
        !self.seats.is_empty()
    }

    /// Those who may take over at once if this master goes: more than half of the members know that they have a
    /// complete copy.
    #[must_use]
    pub fn successors(&self) -> Vec<Standby> {
        let turns = self.released().min(self.turn)..=self.turn;
        let is_known = |list: u64| {
            let knows = |peer| self.known.get(&peer).is_some_and(|number| *number >= list);
            self.voter_sets.has(Quorum::MoreThanHalf, &turns, knows)
        };
        let ready = self.seats.values().filter(|seat| seat.listed.is_some_and(is_known));
        ready.map(|seat| seat.standby.clone()).collect()
    }

    /// The peers whose word is missing before a copy that is gone is not waited for any more; nobody if there is none.
    #[must_use]
    pub fn missing(&self) -> BTreeSet<PeerId> {
        let missing = self.leaving.iter().flat_map(|leaving| {
            let knows = |peer| self.known.get(&peer).is_some_and(|number| *number >= leaving.number);
            self.voter_sets.missing(Quorum::Half, &(leaving.has..=leaving.may_have), knows)
        });
        missing.collect()
    }

    /// Whether it is waited until enough members know that a copy is gone.
    #[must_use]
    pub fn is_letting_go(&self) -> bool {
        !self.leaving.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pccl_protocol::Host;

    fn members(ids: &[u128]) -> BTreeSet<PeerId> {
        ids.iter().map(|id| PeerId(*id)).collect()
    }

    fn acting(ids: &[u128]) -> Leader {
        let copies = Copies { term: Term(4), number: 0, acting: CopyId(1), standbys: Vec::new() };
        let voter_sets = VoterSets::from(10, members(ids));
        Leader::go_on(Past { turn: 10, released: 10, voter_sets, copies, is_alone: true })
    }

    fn standby(copy: u64) -> Standby {
        Standby { copy: CopyId(copy), hosts: Host::new("h").into(), port: 1 }
    }

    fn know(acting: &mut Leader, peer: u128, number: u64) {
        acting.know(PeerId(peer), CopiesKnown { term: Term(4), number });
    }

    #[test]
    fn what_leaves_waits_for_all_complete_copies() {
        let mut acting = acting(&[1, 2, 3]);
        assert_eq!((acting.released(), acting.has_copies()), (u64::MAX, false));
        acting.join(standby(8), members(&[1, 2, 3])).unwrap();
        assert!(
            acting.join(standby(8), members(&[1, 2, 3])).is_err()
                && acting.join(standby(1), members(&[1, 2, 3])).is_err()
        );
        acting.end_turn(|| members(&[1, 2, 3]), |_| false);
        assert_eq!((acting.released(), acting.copies().standbys.len()), (u64::MAX, 0), "not complete yet");
        assert!(acting.has(CopyId(8), 12).is_err());
        assert_eq!(acting.has(CopyId(8), 10), Ok(false), "what has left may be missing in it");
        assert_eq!((acting.released(), acting.copies().number), (10, 0));
        assert_eq!(acting.has(CopyId(8), 11), Ok(true));
        assert_eq!((acting.released(), acting.copies().number), (11, 1));
        assert_eq!(acting.has(CopyId(8), 11), Ok(false));
        acting.join(standby(9), members(&[1, 2, 3])).unwrap();
        assert_eq!(acting.has(CopyId(9), 11), Ok(true));
        acting.end_turn(|| members(&[1, 2]), |_| false);
        assert_eq!((acting.has(CopyId(9), 12), acting.released()), (Ok(false), 11));
        let past = acting.past();
        let has_both = |ids: &[u128]| {
            past.voter_sets.has(Quorum::MoreThanHalf, &(11..=12), |peer| members(ids).contains(&peer))
        };
        assert!(has_both(&[1, 2]) && !has_both(&[1, 3]));
    }

    #[test]
    fn a_copy_that_is_gone_is_waited_for_until_half_of_them_know_that() {
        let mut acting = acting(&[1, 2, 3]);
        acting.join(standby(8), members(&[1, 2, 3])).unwrap();
        acting.has(CopyId(8), 10).unwrap();
        // The members change in a turn that the copy may have or not.
        acting.end_turn(|| members(&[1]), |_| false);
        assert!(acting.lose(CopyId(8)) && !acting.lose(CopyId(8)));
        acting.end_turn(|| members(&[1, 4]), |_| false);
        assert_eq!((acting.released(), acting.copies().number), (10, 2));
        know(&mut acting, 1, 1);
        assert_eq!(acting.missing(), members(&[1, 2, 3]));
        know(&mut acting, 1, 2);
        assert_eq!((acting.released(), acting.missing()), (10, members(&[2, 3])));
        know(&mut acting, 4, 2);
        assert!(acting.is_letting_go(), "a member of later does not count");
        know(&mut acting, 3, 3);
        assert!(acting.is_letting_go(), "that list is not there yet");
        know(&mut acting, 3, 2);
        assert_eq!((acting.released(), acting.has_copies()), (u64::MAX, false));
    }

    #[test]
    fn who_takes_over_is_confirmed_by_half() {
        let mut first = acting(&[1, 2, 3]);
        first.join(standby(8), members(&[1, 2, 3])).unwrap();
        assert!(first.past().is_alone, "its copy is not complete");
        first.has(CopyId(8), 10).unwrap();
        first.end_turn(|| members(&[1, 2, 3]), |_| false);
        assert!(!first.past().is_alone);
        let mut next = Leader::take_over(Term(5), CopyId(8), first.past());
        next.end_turn(|| members(&[1, 2, 3, 4]), |_| false);
        let know = |next: &mut Leader, peer, term| {
            next.know(PeerId(peer), CopiesKnown { term: Term(term), number: 0 })
        };
        know(&mut next, 1, 5);
        know(&mut next, 2, 4);
        know(&mut next, 4, 5);
        assert_eq!((next.released(), next.missing(), next.past().is_alone), (10, members(&[2, 3]), false));
        know(&mut next, 3, 5);
        assert_eq!((next.released(), next.past().is_alone), (u64::MAX, true));
    }

    #[test]
    fn who_goes_on_goes_on_with_its_lists() {
        let mut acting = acting(&[1]);
        acting.join(standby(8), members(&[1])).unwrap();
        acting.has(CopyId(8), 10).unwrap();
        acting.lose(CopyId(8));
        assert!(!acting.past().is_alone, "the one that is gone may take over");
        know(&mut acting, 1, 2);
        let mut again = Leader::go_on(acting.past());
        again.join(standby(9), members(&[1])).unwrap();
        again.has(CopyId(9), 10).unwrap();
        assert_eq!(again.copies().number, 3);
    }

    #[test]
    fn the_word_of_a_peer_that_is_not_a_member_yet_counts_once_it_is_one() {
        let mut acting = acting(&[1]);
        acting.join(standby(8), members(&[1])).unwrap();
        acting.has(CopyId(8), 10).unwrap();
        (1..=3).for_each(|peer| know(&mut acting, peer, 1));
        acting.end_turn(|| members(&[1, 2, 3]), |_| true);
        acting.has(CopyId(8), 11).unwrap();
        assert_eq!(acting.successors(), [standby(8)]);
    }

    #[test]
    fn words_of_peers_that_are_gone_do_not_gather() {
        let most = MAX_PEERS + MAX_PENDING_PEERS;
        let mut acting = acting(&[1]);
        acting.join(standby(8), members(&[1])).unwrap();
        acting.has(CopyId(8), 10).unwrap();
        (1..=most as u128).for_each(|peer| know(&mut acting, peer, 1));
        acting.end_turn(|| members(&[1]), |_| false);
        assert_eq!(acting.known.len(), most);
        know(&mut acting, 1 + most as u128, 1);
        acting.end_turn(|| members(&[1]), |peer| peer == PeerId(2));
        assert_eq!(acting.known.keys().copied().collect::<BTreeSet<_>>(), members(&[1, 2]));
    }

    #[test]
    fn one_goes_on_at_once_whom_more_than_half_know() {
        let mut acting = acting(&[1, 2, 3]);
        acting.join(standby(8), members(&[1, 2, 3])).unwrap();
        acting.join(standby(9), members(&[1, 2, 3])).unwrap();
        assert!(acting.has_standbys() && acting.successors().is_empty());
        acting.has(CopyId(8), 10).unwrap();
        know(&mut acting, 1, 1);
        assert_eq!(acting.successors(), [], "one of three knows it");
        know(&mut acting, 3, 1);
        assert_eq!(acting.successors(), [standby(8)]);
        acting.has(CopyId(9), 10).unwrap();
        know(&mut acting, 1, 2);
        assert_eq!(acting.successors(), [standby(8)], "more than half know the first one only");
        acting.end_turn(|| members(&[1, 2, 4, 5]), |_| false);
        assert_eq!(acting.successors(), [], "not more than half of those that are members now");
        acting.lose(CopyId(8));
        acting.lose(CopyId(9));
        assert!(!acting.has_standbys() && acting.successors().is_empty());
    }

    #[test]
    fn a_copy_that_never_was_complete_is_not_missed() {
        let mut acting = acting(&[1, 2, 3]);
        acting.join(standby(8), members(&[1, 2, 3])).unwrap();
        assert!(!acting.lose(CopyId(8)) && acting.copies().number == 0);
        assert_eq!(acting.released(), u64::MAX);
    }
}
