//! Masters that stand by for the one that acts, and what a peer has promised to whom.
//!
//! Each copy of what a master knows has an identity. The leader tells its peers which copies are complete, and a
//! peer helps only one of those to take over, by a promise. A master with the promises of more than half of the members
//! acts in the term that they were given for.

use crate::{CopyId, Hosts, RunId, Term, Text, limits};
use std::fmt;
use tinysockets::wire::{Decode, Encode, ListItem, Reader, WireError};

wire_struct! {
    /// First packet of a connection: this process stands by for the master, which is to tell it all that happens.
    pub struct StandBy {
        /// The run that it knows already; 0: none.
        pub run: RunId,
        /// The identity of the copy that it is about to make.
        pub copy: CopyId,
        /// Host under which others reach it; `None` means the source address that the master sees.
        pub advertised_host: Option<crate::Host>,
        /// The port on which it listens.
        pub port: u16,
        /// It is about to act without promises, and asks before whether another one acts. A standby that hears this
        /// asks for no promises until it hears that this process acts, or does not.
        pub acts_soon: bool,
    }
}

/// Bytes of a journal: of what a feed begins with, or of what happened since. At most [`limits::APPEND_BYTES`].
#[derive(Clone, PartialEq, Eq)]
pub struct Append(pub Vec<u8>);

impl fmt::Debug for Append {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Append({} bytes)", self.0.len())
    }
}

impl Encode for Append {
    fn encode(&self, out: &mut Vec<u8>) {
        (self.0.len() as u32).encode(out);
        out.extend_from_slice(&self.0);
    }
}

impl Decode for Append {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let bytes = reader.length(limits::APPEND_BYTES, "feed")?;
        Ok(Self(reader.take(bytes, "feed")?.to_vec()))
    }
}

wire_struct! {
    /// The part of its feed that a standby has.
    #[derive(Copy)]
    pub struct Appended {
        /// All turns of the master up to this one.
        pub turn: u64,
    }
}

wire_struct! {
    /// A master that stands by.
    pub struct Standby {
        /// The copy that it has.
        pub copy: CopyId,
        /// Where others reach it.
        pub hosts: Hosts,
        /// Its port.
        pub port: u16,
    }
}

impl ListItem for Standby {
    const LIST: &'static str = "standbys";
    const MAX_ITEMS: usize = limits::MAX_STANDBYS;
}

wire_struct! {
    /// Which copies are complete. Of two lists the one with the larger term is newer, then the one with the larger
    /// number.
    pub struct Copies {
        /// The term of the leader.
        pub term: Term,
        /// Counts the lists of a term.
        pub number: u64,
        /// Its own copy.
        pub acting: CopyId,
        /// The others.
        pub standbys: Vec<Standby>,
    }
}

wire_struct! {
    /// A peer knows this list, or a newer one.
    #[derive(Copy)]
    pub struct CopiesKnown {
        /// Its term.
        pub term: Term,
        /// Its number.
        pub number: u64,
    }
}

wire_struct! {
    /// The knowledge of a run that a standby has.
    #[derive(Copy, Default)]
    pub struct RunKnown {
        /// The run; 0: none.
        pub run: RunId,
        /// The term of the master that it was heard of.
        pub term: Term,
        /// The last turn of that master which it has.
        pub turn: u64,
    }
}

wire_struct! {
    /// Answer of a master that stands by. One that acts and steps down says it as its last word.
    pub struct StandsBy {
        /// Where the leader is, as far as it knows: host and port as text.
        pub acting: Option<Text>,
        /// The connection is kept: the master may take over. Otherwise it ends.
        pub keeps: bool,
        /// Promises to these copies up to these terms are given back: they have not taken over, and will not in one of
        /// them.
        pub gives_back: Vec<Claim>,
        /// Drawn by the process when it starts: a master that asks itself notices.
        pub process: CopyId,
        /// Its knowledge of the run.
        pub knows: RunKnown,
        /// It is about to act: it has asked for promises, or does without and looks for others first.
        pub acts_soon: bool,
        /// For whom it waits, in words.
        pub text: Text,
    }
}

wire_struct! {
    /// A standby asks for a promise.
    #[derive(Copy)]
    pub struct Claim {
        /// The term in which it would act.
        pub term: Term,
        /// Its copy.
        pub copy: CopyId,
    }
}

impl ListItem for Claim {
    const LIST: &'static str = "claims that are given back";
    const MAX_ITEMS: usize = limits::MAX_CLAIMS;
}

wire_struct! {
    /// Answer to a claim.
    pub struct Promise {
        /// The term of the claim.
        pub term: Term,
        /// Why not; `None`: from now on this peer obeys this master, and none of an older term.
        pub refused: Option<Text>,
    }
}

/// To whom a peer belongs, and whom it would help to take over. It decides alone by what it was told.
///
/// A promise says that it obeys nobody of an older term from then on. A master that got it does not act by promises
/// alone: the packets that follow from the promises leave only when half of the members know its first list
/// ([`told`](Allegiance::told)). So a peer that does not know the list may promise itself to another one in a newer
/// term, and then does not take the list of the one before: half of the members, and more than half of them, have one
/// in common. (The two rounds are those of Lamport, "The Part-Time Parliament", 1998.)
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Allegiance {
    term: Term,
    acting: CopyId,
    number: u64,
    standbys: Vec<Standby>,
    /// To whom it has promised itself, and it does not know that one of them acts. In the order of their terms.
    promises: Vec<Claim>,
}

impl Allegiance {
    /// The newest term that it knows.
    #[must_use]
    pub fn term(&self) -> Term {
        self.promises.last().map_or(self.term, |claim| claim.term)
    }

    /// The copy that it obeys in that term.
    fn obeyed(&self) -> CopyId {
        self.promises.last().map_or(self.acting, |claim| claim.copy)
    }

    /// Those who may take over.
    #[must_use]
    pub fn standbys(&self) -> &[Standby] {
        &self.standbys
    }

    /// Whether it has promised itself to somebody of whom it does not know that it acts.
    #[must_use]
    pub fn is_bound(&self) -> bool {
        !self.promises.is_empty()
    }

    /// The leader has told which copies are complete. `None`: the list is an old one.
    pub fn told(&mut self, copies: &Copies) -> Option<CopiesKnown> {
        if !self.may_obey(copies.term, copies.acting) {
            return None;
        }
        if copies.term > self.term || copies.number >= self.number {
            let Copies { term, number, acting, standbys } = copies.clone();
            *self = Self { term, acting, number, standbys, promises: Vec::new() };
        }
        Some(CopiesKnown { term: self.term, number: self.number })
    }

    /// Whether who acts in this term is not one of an older one.
    fn may_obey(&self, term: Term, acting: CopyId) -> bool {
        let (newest, obeyed) = (self.term(), self.obeyed());
        term > newest || term == newest && (acting == obeyed || obeyed == CopyId::default())
    }

    /// Somebody acts in this term: whether this peer obeys it. A master that acts has been helped by more than half of
    /// all, so nobody of an older term acts.
    pub fn obeys(&mut self, term: Term, acting: CopyId) -> bool {
        if !self.may_obey(term, acting) {
            return false;
        }
        if term > self.term {
            *self = Self { term, acting, ..Self::default() };
        }
        self.acting = acting;
        true
    }

    /// Somebody asks for a promise.
    ///
    /// # Errors
    /// Why it is not given.
    pub fn promise(&mut self, claim: Claim) -> Result<(), String> {
        if self.promises.last() == Some(&claim) {
            return Ok(());
        }
        if claim.term <= self.term() {
            return Err(format!("it belongs to the master of term {}", self.term()));
        }
        let is_complete = |copy| copy == self.acting || self.standbys.iter().any(|known| known.copy == copy);
        if !is_complete(claim.copy) {
            return Err("the newest list of complete copies that it knows does not have this one".into());
        }
        self.promises.retain(|before| before.copy != claim.copy);
        self.promises.push(claim);
        Ok(())
    }

    /// A standby gives back promises up to this term.
    pub fn given_back(&mut self, claim: Claim) {
        self.promises.retain(|promise| promise.copy != claim.copy || promise.term > claim.term);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Host;

    fn standby(copy: u64) -> Standby {
        Standby { copy: CopyId(copy), hosts: Host::new("h").into(), port: 1 }
    }

    fn copies(term: u64, number: u64, acting: u64, standbys: &[u64]) -> Copies {
        let standbys = standbys.iter().map(|copy| standby(*copy)).collect();
        Copies { term: Term(term), number, acting: CopyId(acting), standbys }
    }

    fn claim(term: u64, copy: u64) -> Claim {
        Claim { term: Term(term), copy: CopyId(copy) }
    }

    fn told(copies: &Copies) -> Allegiance {
        let mut peer = Allegiance::default();
        assert!(peer.told(copies).is_some());
        peer
    }

    #[test]
    fn only_who_is_on_the_newest_list_gets_a_promise() {
        let mut peer = told(&copies(1, 1, 7, &[8, 9]));
        assert!(peer.clone().promise(claim(2, 8)).is_ok());
        assert!(peer.clone().promise(claim(2, 7)).is_ok(), "who acts has a complete copy as well");
        assert!(peer.promise(claim(2, 5)).is_err());
        assert_eq!(peer.told(&copies(1, 2, 7, &[9])), Some(CopiesKnown { term: Term(1), number: 2 }));
        assert_eq!(
            peer.told(&copies(1, 1, 7, &[8, 9])),
            Some(CopiesKnown { term: Term(1), number: 2 }),
            "an old one"
        );
        assert!(peer.promise(claim(2, 8)).is_err());
        assert!(peer.promise(claim(1, 9)).is_err(), "its own term");
        assert!(Allegiance::default().promise(claim(1, 8)).is_err(), "it was told of nobody");
    }

    #[test]
    fn a_promise_binds_until_it_is_given_back_or_a_newer_term_acts() {
        let mut peer = told(&copies(1, 1, 7, &[8, 9]));
        peer.promise(claim(2, 8)).expect("free");
        assert!(!peer.obeys(Term(1), CopyId(7)) && peer.told(&copies(1, 5, 7, &[])).is_none());
        assert!(!peer.obeys(Term(2), CopyId(9)) && peer.promise(claim(2, 9)).is_err());
        assert!(
            peer.promise(claim(2, 8)).is_ok() && peer.promise(claim(3, 8)).is_ok(),
            "the same one asks again"
        );
        assert_eq!((peer.standbys().len(), peer.term()), (2, Term(3)));
        let bound = peer.clone();
        peer.given_back(claim(2, 8));
        assert_eq!(peer, bound, "an older promise");
        peer.given_back(claim(3, 8));
        assert_eq!(peer, told(&copies(1, 1, 7, &[8, 9])));
        let mut peer = bound;
        assert!(peer.clone().obeys(Term(3), CopyId(8)) && peer.obeys(Term(4), CopyId(9)));
        assert_eq!((peer.term(), peer.standbys(), peer.is_bound()), (Term(4), &[][..], false));
        peer.given_back(claim(4, 9));
        assert_eq!(peer.term(), Term(4), "who acts gives nothing back");
    }

    #[test]
    fn who_does_not_know_the_first_list_of_the_one_may_promise_itself_to_another_one() {
        let mut peer = told(&copies(1, 1, 7, &[8, 9]));
        peer.promise(claim(2, 8)).expect("free");
        let mut confirmed = peer.clone();
        assert_eq!(confirmed.told(&copies(2, 0, 8, &[])), Some(CopiesKnown { term: Term(2), number: 0 }));
        assert!(!confirmed.is_bound() && confirmed.promise(claim(3, 9)).is_err());
        peer.promise(claim(3, 9)).expect("nobody is known to act");
        assert!(peer.told(&copies(2, 0, 8, &[])).is_none() && !peer.obeys(Term(2), CopyId(8)));
        // A claim that the one gives back does not set it free from the other one.
        let mut first = peer.clone();
        first.given_back(claim(3, 9));
        assert_eq!(first.term(), Term(2));
        assert!(!first.obeys(Term(1), CopyId(7)) && first.obeys(Term(2), CopyId(8)));
        peer.given_back(claim(2, 8));
        assert_eq!(peer.term(), Term(3));
        peer.given_back(claim(9, 9));
        assert!(!peer.is_bound() && peer.obeys(Term(1), CopyId(7)));
    }
}
