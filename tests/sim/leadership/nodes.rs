//! Masters: the event loop's part in leadership, with numbers in place of what happens in a run.

use super::{
    copy::{Barred, Copy, Knows},
    peers::Peer,
    world::{End, Fault, Log, Message, News, World},
};
use pccl_master::leadership::{Candidacy, Leader, Past, VoterSets};
use pccl_protocol::{Claim, Copies, CopiesKnown, CopyId, Host, PeerId, Standby, Term};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug)]
pub(super) struct Node {
    pub(super) role: Role,
    pub(super) sleeps: bool,
    /// The journal that a dead one has written when it acted.
    pub(super) journal: Option<Copy>,
}

#[derive(Debug)]
pub(super) enum Role {
    Leader(Box<Lead>),
    Standing(Box<Wait>),
    Dead,
}

#[derive(Debug)]
pub(super) struct Lead {
    leader: Leader,
    log: Log,
    members: BTreeSet<PeerId>,
    peers: BTreeMap<u64, PeerId>,
    pub(super) followers: BTreeMap<u64, CopyId>,
    /// The journal that it has written.
    journal: Copy,
    /// Messages that wait until a turn may be known: connection, turn, message.
    pub(super) held: Vec<(u64, u64, Message)>,
    /// As in [`Copy`].
    barred: Barred,
    news: Vec<News>,
    changed: bool,
}

#[derive(Debug, Default)]
pub(super) struct Wait {
    pub(super) following: Option<Copy>,
    /// One that may be on the list in its place.
    pub(super) other: Option<Copy>,
    /// The connection to the leader, and the copy that is being made or is complete.
    pub(super) feed: Option<(u64, CopyId, Option<Copy>)>,
    pub(super) is_heard: bool,
    pub(super) candidacy: Option<Candidacy>,
    /// An operator wants it to act: those that it has not asked yet.
    pub(super) intent: Option<BTreeSet<usize>>,
    /// Others that want to, as they have said.
    pub(super) yields_to: BTreeSet<usize>,
    promises: u32,
    pub(super) guests: BTreeMap<u64, (PeerId, Knows)>,
    given_back: BTreeMap<CopyId, Term>,
    pub(super) impatience: u32,
}

impl Node {
    pub(super) fn acting(copy: CopyId, members: BTreeSet<PeerId>) -> Self {
        let lead = Lead::new(Leader::new(copy), (Vec::new(), members), BTreeMap::new());
        Self { role: Role::Leader(Box::new(lead)), sleeps: false, journal: None }
    }

    pub(super) fn standing() -> Self {
        Self { role: Role::Standing(Box::default()), sleeps: false, journal: None }
    }

    pub(super) fn die(&mut self) {
        if let Role::Leader(lead) = std::mem::replace(&mut self.role, Role::Dead) {
            self.journal = Some(lead.journal);
        }
    }

    /// It is started again, and goes on from what it has written if it has acted.
    pub(super) fn restart(&mut self, fault: Fault) {
        if !matches!(self.role, Role::Dead) {
            return;
        }
        self.role = match self.journal.take() {
            Some(Copy { log, members, past, barred, .. })
                if past.is_alone || fault == Fault::ForgottenCopies =>
            {
                Role::Leader(Box::new(Lead::new(Leader::go_on(past), (log, members), barred)))
            }
            following => Role::Standing(Box::new(Wait { following, ..Wait::default() })),
        };
    }

    pub(super) fn has_peer(&mut self, conn: u64, peer: PeerId) {
        if let Role::Leader(lead) = &mut self.role {
            lead.peers.insert(conn, peer);
        }
    }

    /// The list of complete copies of one that acts.
    pub(super) fn list(&self) -> Copies {
        match &self.role {
            Role::Leader(lead) => lead.leader.copies(),
            Role::Standing(_) | Role::Dead => panic!("it does not act"),
        }
    }

    /// The claim of a standby, which it asks peers for.
    pub(super) fn claim(&self) -> Option<Claim> {
        match &self.role {
            Role::Standing(wait) => wait.candidacy.as_ref()?.claim(),
            Role::Leader(_) | Role::Dead => None,
        }
    }

    /// The term in which it acts, if it does.
    pub(super) fn term(&self) -> Option<Term> {
        match &self.role {
            Role::Leader(lead) => Some(lead.leader.term()),
            Role::Standing(_) | Role::Dead => None,
        }
    }
}

impl Wait {
    pub(super) fn give_back(&mut self) {
        self.impatience = 0;
        if let Some(claim) = self.candidacy.as_mut().and_then(Candidacy::give_back) {
            self.given_back.insert(claim.copy, claim.term);
        }
    }
}

impl Lead {
    fn new(leader: Leader, (log, members): (Log, BTreeSet<PeerId>), barred: Barred) -> Self {
        let journal = Copy::snapshot(&leader, &log, &members, &barred);
        Self {
            leader,
            journal,
            barred,
            log,
            members,
            peers: BTreeMap::new(),
            followers: BTreeMap::new(),
            held: Vec::new(),
            news: Vec::new(),
            changed: false,
        }
    }

    fn hold(&mut self, fault: Fault, conn: u64, message: Message) {
        let is_held = self.leader.has_copies() && fault != Fault::EarlyRelease;
        let until = if is_held { self.leader.turn() + 1 } else { 0 };
        self.held.push((conn, until, message));
    }

    /// The messages that are sent at the end of a turn.
    fn end_turn(&mut self) -> Vec<(u64, Message)> {
        let mut out = Vec::new();
        let copies = std::mem::take(&mut self.changed).then(|| self.leader.copies());
        self.news.extend(copies.clone().map(News::Copies));
        if !self.news.is_empty() {
            let (released, is_alone) = self.leader.how_far();
            self.news.push(News::Turn { released, is_alone });
            let peers = &self.peers;
            self.leader.end_turn(|| self.members.clone(), |peer| peers.values().any(|here| *here == peer));
            let news = std::mem::take(&mut self.news);
            for news in &news {
                self.journal.learn(news.clone());
            }
            out.extend(self.followers.keys().map(|conn| (*conn, Message::Append(news.clone()))));
        }
        if let Some(copies) = copies {
            out.extend(self.peers.keys().map(|conn| (*conn, Message::Copies(copies.clone()))));
        }
        let released = self.leader.released();
        // In its order, for each.
        let mut waiting = BTreeSet::new();
        let held = std::mem::take(&mut self.held);
        for (conn, until, message) in held {
            if until > released || waiting.contains(&conn) {
                waiting.insert(conn);
                self.held.push((conn, until, message));
            } else {
                out.push((conn, message));
            }
        }
        out
    }
}

impl World {
    pub(super) fn lead(&mut self, at: usize) -> Option<&mut Lead> {
        match &mut self.nodes[at].role {
            Role::Leader(lead) => Some(lead),
            Role::Standing(_) | Role::Dead => None,
        }
    }

    pub(super) fn end_turn(&mut self, at: usize) {
        let out = self.lead(at).map(Lead::end_turn).unwrap_or_default();
        out.into_iter().for_each(|(conn, message)| self.send(conn, End::Node(at), message));
    }

    /// Something happens in the run of a master that acts, and all of its members are told.
    pub(super) fn turn(&mut self) {
        let at = self.rng.below(self.nodes.len() as u64) as usize;
        let (event, fault, is_calm) = (self.number(), self.fault, self.is_calm());
        let (changes, pick) = (!is_calm && self.rng.percent(15), self.rng.next() as usize);
        if self.nodes[at].sleeps {
            return;
        }
        let Some(lead) = self.lead(at) else { return };
        if changes {
            let present: Vec<PeerId> = lead.peers.values().copied().collect();
            let other = present.get(pick % present.len().max(1)).copied();
            match other {
                Some(peer) if lead.members.contains(&peer) && lead.members.len() > 1 => {
                    lead.members.remove(&peer);
                }
                Some(peer) => drop(lead.members.insert(peer)),
                None => {
                    // Nobody is here: those who are not are dropped one after the other.
                    if lead.members.len() > 1 {
                        lead.members.pop_first();
                    }
                }
            }
        }
        lead.log.push(event);
        lead.news.push(News::Event(event, lead.members.clone()));
        let told: Vec<u64> = lead
            .peers
            .iter()
            .filter(|(_, peer)| lead.members.contains(peer))
            .map(|(conn, _)| *conn)
            .collect();
        for conn in told {
            let log = lead.log.clone();
            lead.hold(fault, conn, Message::Tell { log });
        }
        self.end_turn(at);
    }

    pub(super) fn node_receives(&mut self, at: usize, conn: u64, message: Message) {
        match &self.nodes[at].role {
            Role::Leader(_) => self.acting_receives(at, conn, message),
            Role::Standing(_) => self.standing_receives(at, conn, message),
            Role::Dead => {}
        }
    }

    fn acting_receives(&mut self, at: usize, conn: u64, message: Message) {
        let (end, fault) = (End::Node(at), self.fault);
        let Some(lead) = self.lead(at) else { return };
        match message {
            Message::StandBy { copy, .. } => {
                self.end_turn(at);
                let Some(lead) = self.lead(at) else { return };
                let standby = Standby { copy, hosts: Host::new("h").into(), port: 1 };
                if lead.leader.join(standby, lead.members.clone()).is_err() {
                    return self.close(conn, end);
                }
                lead.followers.insert(conn, copy);
                let (log, members, barred) = (lead.log.clone(), lead.members.clone(), lead.barred.clone());
                let opening = Copy { copy, log, members, barred, past: lead.leader.past() };
                return self.send(conn, end, Message::Opening(opening));
            }
            Message::Appended(turn) => {
                if let Some(copy) = lead.followers.get(&conn) {
                    lead.changed |= lead.leader.has(*copy, turn).expect("a turn that has been");
                }
            }
            Message::Known(known) => {
                if let Some(peer) = lead.peers.get(&conn) {
                    lead.leader.know(*peer, known);
                }
            }
            Message::Return { term, .. } if term > lead.leader.term() => {
                return self.die(end);
            }
            Message::Return { peer, term, received } => self.take_back(at, conn, (peer, (term, received))),
            Message::Promise { .. } => {}
            other => panic!("the leader {at} gets {other:?} ({fault:?})"),
        }
        self.end_turn(at);
    }

    fn take_back(&mut self, at: usize, conn: u64, (peer, knows): (PeerId, Knows)) {
        let (end, fault, event) = (End::Node(at), self.fault, self.number());
        let Some(lead) = self.lead(at) else { return };
        let bar = lead.barred.remove(&peer);
        let knows_more = bar
            .is_some_and(|most| knows.1 > most.1 || fault != Fault::ForcedTakesOtherTerm && knows.0 > most.0);
        if knows_more && fault != Fault::ForcedTakesAll {
            lead.barred.extend(bar.map(|most| (peer, most)));
            return self.die(End::Peer(Peer::index_of(peer)));
        }
        lead.news.extend(bar.map(|_| News::Back(peer)));
        lead.peers.retain(|_, other| *other != peer);
        lead.peers.insert(conn, peer);
        lead.log.push(event);
        lead.news.push(News::Event(event, lead.members.clone()));
        let (term, acting) = (lead.leader.term(), lead.leader.copy());
        let list = lead.leader.is_told().then(|| lead.leader.copies());
        lead.hold(fault, conn, Message::Returned { term, acting });
        if let Some(copies) = list {
            self.send(conn, end, Message::Copies(copies));
        }
    }

    fn standing_receives(&mut self, at: usize, conn: u64, message: Message) {
        let end = End::Node(at);
        let fault = self.fault;
        let Role::Standing(wait) = &mut self.nodes[at].role else { return };
        match message {
            Message::StandBy { acts_soon, .. } => self.answer_other(at, conn, acts_soon),
            Message::StandsBy { objects, age } => self.hear_other(at, conn, objects, age),
            Message::Return { peer, term, received } => self.guest_comes(at, conn, peer, (term, received)),
            Message::Promise { term, refused } => {
                if let (Some((peer, _)), Some(candidacy)) = (wait.guests.get(&conn), &mut wait.candidacy) {
                    wait.promises += u32::from(refused.is_none());
                    candidacy.answered(*peer, term, refused);
                }
                self.try_to_act(at);
            }
            Message::Opening(opening) => {
                let newest = wait.following.as_ref().map_or(Term(0), |copy| copy.past.copies.term);
                let Some((feed, copy, coming)) = wait.feed.as_mut().filter(|feed| feed.0 == conn) else {
                    return;
                };
                if opening.past.copies.term < newest {
                    let feed = *feed;
                    wait.feed = None;
                    return self.close(feed, end);
                }
                let turn = opening.past.turn;
                wait.intent = None;
                debug_assert_eq!(*copy, opening.copy);
                *coming = Some(opening);
                self.send(conn, end, Message::Appended(turn));
            }
            Message::Append(news) => self.learn(at, conn, news),
            Message::Known(_) => {}
            other => panic!("the standby {at} gets {other:?} ({fault:?})"),
        }
    }

    fn learn(&mut self, at: usize, conn: u64, news: Vec<News>) {
        let Role::Standing(wait) = &mut self.nodes[at].role else { return };
        let is_frozen = wait.candidacy.as_ref().is_some_and(|candidacy| candidacy.claim().is_some());
        if is_frozen {
            // It follows nobody while it asks for promises, and what is missing in a copy never comes.
            wait.feed = wait.feed.take().filter(|feed| feed.0 != conn);
            return self.close(conn, End::Node(at));
        }
        let Some((_, _, coming)) = wait.feed.as_mut().filter(|feed| feed.0 == conn) else { return };
        let mut becomes_heard = false;
        for news in news {
            let Some(copy) = coming.as_mut().or(wait.following.as_mut()) else { return };
            if copy.learn(news) && coming.is_some() {
                (wait.following, wait.other) = (coming.take(), None);
                becomes_heard = true;
            }
        }
        wait.is_heard |= becomes_heard;
        let copy = coming.as_ref().or(wait.following.as_ref());
        let turn = copy.map_or(0, |copy| copy.past.turn);
        let mut away = Vec::new();
        if becomes_heard {
            wait.give_back();
            wait.yields_to.clear();
            (wait.candidacy, wait.intent) = (None, None);
            away = std::mem::take(&mut wait.guests).into_keys().collect();
        }
        for guest in away {
            self.turn_away(at, guest);
        }
        self.send(conn, End::Node(at), Message::Appended(turn));
    }

    pub(super) fn tell_given_back(&mut self, at: usize, conn: u64) {
        let Role::Standing(wait) = &self.nodes[at].role else { return };
        for (copy, term) in wait.given_back.clone() {
            self.send(conn, End::Node(at), Message::GivesBack(Claim { term, copy }));
        }
    }

    fn turn_away(&mut self, at: usize, conn: u64) {
        self.tell_given_back(at, conn);
        self.send(conn, End::Node(at), Message::Away);
    }

    fn guest_comes(&mut self, at: usize, conn: u64, peer: PeerId, knows: Knows) {
        let (end, fault) = (End::Node(at), self.fault);
        let Role::Standing(wait) = &mut self.nodes[at].role else { return };
        let Some(copy) = wait.following.as_ref().filter(|_| !wait.is_heard) else {
            return self.turn_away(at, conn);
        };
        let mut past = copy.past.clone();
        if fault == Fault::LastMembers {
            past.released = past.turn;
            past.voter_sets = VoterSets::from(past.turn, copy.members.clone());
        }
        let candidacy = wait.candidacy.get_or_insert_with(|| {
            let mut candidacy = Candidacy::new(copy.copy, &past);
            wait.given_back.values().for_each(|term| candidacy.knows(*term));
            candidacy
        });
        wait.guests.insert(conn, (peer, knows));
        candidacy.comes(peer, knows.0);
        let asked = candidacy.claim();
        self.tell_given_back(at, conn);
        if let Some(claim) = asked {
            self.send(conn, end, Message::Claim(claim));
        }
        self.ask_for_promises(at);
    }

    pub(super) fn ask_for_promises(&mut self, at: usize) {
        let Role::Standing(wait) = &mut self.nodes[at].role else { return };
        let may_ask = !wait.is_heard && wait.yields_to.is_empty();
        let Some(claim) = wait.candidacy.as_mut().filter(|_| may_ask).and_then(Candidacy::ask) else {
            return;
        };
        wait.promises = 0;
        let guests: Vec<u64> = wait.guests.keys().copied().collect();
        guests.into_iter().for_each(|guest| self.send(guest, End::Node(at), Message::Claim(claim)));
    }

    /// Acts if enough have promised.
    fn try_to_act(&mut self, at: usize) {
        let fault = self.fault;
        let Role::Standing(wait) = &mut self.nodes[at].role else { return };
        let Some(candidacy) = &wait.candidacy else { return };
        let one = candidacy.claim().filter(|_| fault == Fault::NoMajority && wait.promises > 0);
        let Some(term) = candidacy.is_won().or(one.map(|claim| claim.term)) else { return };
        let Some(Copy { copy, log, members, past, barred }) = wait.following.take() else { return };
        let leader = match fault {
            Fault::Unconfirmed => {
                let copies = Copies { term, number: 0, acting: copy, standbys: Vec::new() };
                Leader::go_on(Past { copies, ..past })
            }
            _ => Leader::take_over(term, copy, past),
        };
        self.act(at, leader, (log, members), barred);
    }

    /// One that stood by acts.
    pub(super) fn act(&mut self, at: usize, leader: Leader, what: (Log, BTreeSet<PeerId>), barred: Barred) {
        let lead = Role::Leader(Box::new(Lead::new(leader, what, barred)));
        let Role::Standing(wait) = std::mem::replace(&mut self.nodes[at].role, lead) else { return };
        if let Some((conn, ..)) = wait.feed {
            self.close(conn, End::Node(at));
        }
        wait.guests.into_iter().for_each(|(conn, peer)| self.take_back(at, conn, peer));
        self.end_turn(at);
    }

    pub(super) fn node_loses(&mut self, at: usize, conn: u64) {
        let fault = self.fault;
        match &mut self.nodes[at].role {
            Role::Leader(lead) => {
                lead.peers.remove(&conn);
                lead.held.retain(|(held, ..)| *held != conn);
                if let Some(copy) = lead.followers.remove(&conn) {
                    lead.changed |= lead.leader.lose(copy);
                    if fault == Fault::ShortList {
                        let list = lead.leader.copies();
                        let known = CopiesKnown { term: list.term, number: list.number };
                        (0..9).for_each(|peer| lead.leader.know(Peer::id(peer), known));
                    }
                }
                self.end_turn(at);
            }
            Role::Standing(wait) => {
                let gone = wait.guests.remove(&conn).map(|(peer, _)| peer);
                let is_here = gone.is_some_and(|peer| wait.guests.values().any(|other| other.0 == peer));
                if let (Some(peer), Some(candidacy)) = (gone.filter(|_| !is_here), &mut wait.candidacy) {
                    candidacy.goes(peer);
                }
                if let Some((_, _, coming)) = wait.feed.take_if(|feed| feed.0 == conn) {
                    wait.is_heard = false;
                    let place = if wait.following.is_none() { &mut wait.following } else { &mut wait.other };
                    *place = coming.or(place.take());
                }
            }
            Role::Dead => {}
        }
    }
}
