//! A standby's loop: it listens to the leader on a thread of its own ([`super::follower_side`]), answers whoever comes,
//! and becomes leader when that one is lost and more than half of the members have voted for it
//! ([`crate::leadership::Candidacy`]).

use crate::event_loop::EventLoop;
use crate::event_loop::connections::conn::{Conn, Phase};
use crate::event_loop::connections::frame::frame;
use crate::event_loop::replication::follower_side::{FollowerThread, Following, Search};
use crate::event_loop::replication::journal_writer::Replication;
use crate::event_loop::replication::replay::Recalled;
use crate::{
    journal::Journal,
    leadership::{Candidacy, Leader, Past},
    origin::Origin,
    state::{ClientKey, Input, MasterState},
};
use mio::Waker;
use pccl_protocol::{
    C2m, Claim, CopyId, M2c, PeerId, Promise, Return, RunId, StandsBy, Status, StatusLead, Term, Text,
    limits::MAX_CLAIMS,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::Arc,
    time::{Duration, Instant},
};
use tinysockets::key::{AcceptedKeys, RunKeys};

/// How often a peer that waits hears for whom.
const NEWS: Duration = Duration::from_millis(500);
/// How long promises are asked for while not enough would come any more.
const PATIENCE: Duration = Duration::from_secs(5);

/// Somebody who has come to a master that stands by.
#[derive(Debug)]
struct Guest {
    /// Of a peer that wants to come back to whoever acts.
    asked: Option<Return>,
    /// When it has to have said something, or is told something next.
    due: Instant,
}

/// See the module's documentation.
pub(crate) struct Standing {
    pub(crate) follower: FollowerThread,
    pub(crate) search: Search,
    /// Masters that are about to act without promises, as they have said: before one of them acts, or says that it
    /// does not, this one asks for none.
    pub(crate) yields_to: BTreeSet<String>,
    /// When it is said next that nobody acts.
    pub(crate) next_advice: Option<Instant>,
    guests: BTreeMap<u64, Guest>,
    /// While the leader is not heard.
    candidacy: Option<Candidacy>,
    /// Since when not enough would come of those that are asked for promises.
    forsaken: Option<Instant>,
    /// The newest term of promises that were given back, for each copy that this standby has had.
    given_back: BTreeMap<CopyId, Term>,
    /// For the time when this one acts.
    pub(crate) own: Own,
}

/// Things that a master has of its own before it acts.
pub(crate) struct Own {
    /// With what it would begin a run.
    pub(crate) fresh: Option<Fresh>,
    pub(crate) journal: Option<Journal>,
    pub(crate) keys: Option<RunKeys>,
}

/// A run that has not begun.
pub(crate) struct Fresh {
    pub(crate) state: Box<MasterState>,
    pub(crate) origin: Origin,
}

impl Standing {
    /// Begins to look for the master that acts; with a copy, if there is one already.
    pub(crate) fn start(
        search: Search,
        known: Option<Following>,
        own: Own,
        waker: Arc<Waker>,
    ) -> io::Result<Self> {
        Ok(Self {
            follower: FollowerThread::start(search.clone(), known, waker)?,
            search,
            yields_to: BTreeSet::new(),
            next_advice: None,
            guests: BTreeMap::new(),
            candidacy: None,
            forsaken: None,
            given_back: BTreeMap::new(),
            own,
        })
    }

    /// The newest term that it has heard of.
    pub(crate) fn newest_term(&self) -> Term {
        let of_peers = self.guests.values().filter_map(|guest| Some(guest.asked.as_ref()?.term));
        let own = self.given_back.values().copied();
        of_peers.chain(own).chain(self.candidacy.as_ref().map(Candidacy::newest)).max().unwrap_or(Term(0))
    }

    /// It has asked members for their promises, and may act soon.
    pub(crate) fn is_candidate(&self) -> bool {
        self.candidacy.as_ref().is_some_and(|candidacy| candidacy.claim().is_some())
    }

    /// Those who would come are not enough, as far as it knows; nothing if it is not counting them.
    pub(crate) fn missing(&self) -> Option<BTreeSet<PeerId>> {
        self.candidacy.as_ref().map(Candidacy::missing)
    }

    /// Whether a peer waits.
    fn is_here(&self, peer: PeerId) -> bool {
        self.guests.values().any(|guest| guest.asked.as_ref().is_some_and(|asked| asked.peer == peer))
    }

    /// Nothing comes of what was asked for.
    fn give_back(&mut self) {
        self.forsaken = None;
        if let Some(claim) = self.candidacy.as_mut().and_then(Candidacy::give_back) {
            self.given_back.insert(claim.copy, claim.term);
            while self.given_back.len() > MAX_CLAIMS {
                self.given_back.pop_first();
            }
        }
    }

    /// For whom a candidacy waits, in words.
    fn text(&self, why: &str) -> String {
        if let Some(place) = self.yields_to.first() {
            return format!(
                "{why}; waits for the master at {place}, which was about to act without promises"
            );
        }
        let Some(candidacy) = &self.candidacy else { return why.to_owned() };
        let missing: Vec<String> = candidacy.missing().iter().map(ToString::to_string).collect();
        match (candidacy.refusal(), missing.is_empty()) {
            (Some(refusal), _) => format!("{why}; a peer does not promise itself to this standby: {refusal}"),
            (None, true) => format!("{why}; this standby is about to take over"),
            (None, false) => format!(
                "{why}; this standby takes over when more than half of the members are here, missing: {}",
                missing.join(", ")
            ),
        }
    }
}

impl EventLoop {
    /// A connection is one of a client, while this master stands by.
    pub(crate) fn greet(&mut self, key: u64) {
        let due = Instant::now() + self.preamble_timeout;
        if let Some(standing) = &mut self.standing {
            standing.guests.insert(key, Guest { asked: None, due });
        }
    }

    /// A connection has ended. Whether it was one of those who came to a master that stands by.
    pub(crate) fn guest_has_gone(&mut self, key: u64) -> bool {
        let Some(standing) = &mut self.standing else { return false };
        let asked = standing.guests.remove(&key).and_then(|guest| guest.asked);
        let gone = asked.map(|asked| asked.peer).filter(|peer| !standing.is_here(*peer));
        if let (Some(peer), Some(candidacy)) = (gone, &mut standing.candidacy) {
            candidacy.goes(peer);
        }
        true
    }

    /// Answers a packet while this master stands by.
    pub(crate) fn answer_guest(&mut self, key: u64, packet: C2m) {
        match packet {
            C2m::StatusRequest(request) => {
                let status = self.status_of_standing(request);
                self.tell_guest(key, &M2c::Status(status));
            }
            C2m::Return(asked) => self.take_guest(key, asked),
            C2m::StandBy(asked) => {
                self.note_intent_of_other(key, &asked);
                self.send_away(key, "this master stands by");
            }
            C2m::Promise(Promise { term, refused }) => self.take_promise(key, term, refused),
            _ => self.send_away(key, "this master stands by"),
        }
    }

    fn tell_guest(&mut self, key: u64, packet: &M2c) {
        if let Some(conn) = self.conns.get_mut(&key) {
            conn.queue.push(frame(packet));
            self.reactor.mark_dirty(key);
        }
    }

    fn stands_by(&self, keeps: bool, text: &str) -> M2c {
        let Some(standing) = &self.standing else { return M2c::Warning(Text::new(text)) };
        let heard = standing.follower.heard();
        let acting = heard.master.as_ref().map(|place| Text::new(place.to_string()));
        let (knows, is_about_to) = (heard.knows(), heard.intent.is_some());
        drop(heard);
        let given_back = self.standing.iter().flat_map(|standing| &standing.given_back);
        let gives_back = given_back.map(|(copy, term)| Claim { term: *term, copy: *copy }).collect();
        M2c::StandsBy(StandsBy {
            acting,
            keeps,
            gives_back,
            process: standing.follower.process(),
            knows,
            acts_soon: is_about_to || standing.is_candidate(),
            text: Text::new(text),
        })
    }

    /// Where an operator has to ask, in words.
    pub(crate) fn who_acts(&self) -> String {
        let heard = self.standing.as_ref().map(|standing| standing.follower.heard());
        match heard.as_ref().and_then(|heard| heard.master.as_ref()) {
            Some(place) => format!("this master stands by; the master at {place} acts: ask that one"),
            None => "this master stands by, and the acting one is not heard".to_owned(),
        }
    }

    /// Says who acts, and closes the connection.
    fn send_away(&mut self, key: u64, text: &str) {
        let heard = self.standing.as_ref().map(|standing| standing.follower.heard());
        let text = match heard.as_ref().map(|heard| (&heard.master, &heard.following)) {
            Some((Some(place), _)) => format!("{text}; the master at {place} acts"),
            Some((None, None)) => format!("{text} and knows no run"),
            _ => format!("{text}; the leader is not heard"),
        };
        drop(heard);
        let answer = self.stands_by(false, &text);
        self.tell_guest(key, &answer);
        self.guest_has_gone(key);
        self.close(key);
    }

    /// A peer wants to come back.
    fn take_guest(&mut self, key: u64, asked: Return) {
        let Some(standing) = &mut self.standing else { return };
        let heard = standing.follower.heard();
        let objection = match &heard.following {
            _ if heard.master.is_some() => Some("this master stands by".to_owned()),
            None => Some("this master stands by".to_owned()),
            Some(following) => following.recalled.objection(&asked),
        };
        drop(heard);
        if let Some(text) = objection {
            return self.send_away(key, &text);
        }
        let (peer, term) = (asked.peer, asked.term);
        let due = Instant::now();
        standing.guests.insert(key, Guest { asked: Some(asked), due });
        self.begin_bid();
        let candidacy = self.standing.as_mut().and_then(|standing| standing.candidacy.as_mut());
        let claim = candidacy.and_then(|candidacy| {
            candidacy.comes(peer, term);
            candidacy.claim()
        });
        if let Some(claim) = claim {
            self.tell_guest(key, &M2c::Claim(claim));
        }
    }

    fn take_promise(&mut self, key: u64, term: Term, refused: Option<Text>) {
        let Some(standing) = &mut self.standing else { return };
        let peer = standing.guests.get(&key).and_then(|guest| Some(guest.asked.as_ref()?.peer));
        if let (Some(peer), Some(candidacy)) = (peer, &mut standing.candidacy) {
            candidacy.answered(peer, term, refused.map(|text| text.as_str().to_owned()));
        }
    }

    /// The leader is not heard: those who come are counted.
    fn begin_bid(&mut self) {
        let Some(standing) = &mut self.standing else { return };
        let heard = standing.follower.heard();
        if let (None, None, Some(following)) = (&standing.candidacy, &heard.master, &heard.following) {
            let mut candidacy = Candidacy::new(following.copy, &following.recalled.past);
            standing.given_back.values().for_each(|term| candidacy.knows(*term));
            standing.candidacy = Some(candidacy);
        }
    }

    /// To be called in each turn while this master stands by.
    pub(crate) fn stand_turn(&mut self) {
        let Some(standing) = &mut self.standing else { return };
        let heard = standing.follower.heard();
        let is_heard = heard.master.is_some();
        self.run = heard.following.as_ref().map_or(RunId(0), |following| following.recalled.run());
        drop(heard);
        if is_heard {
            standing.yields_to.clear();
        }
        if is_heard && standing.candidacy.is_some() {
            self.end_bid("this master stands by");
        }
        self.ask_for_promises();
        let won = self
            .standing
            .as_ref()
            .and_then(|standing| standing.candidacy.as_ref())
            .and_then(Candidacy::is_won);
        if let Some(term) = won {
            let copy = self.standing.as_ref().and_then(|standing| standing.follower.heard().following.take());
            self.become_leader(copy, |copy, past| Leader::take_over(term, copy, past));
            return self
                .answer_operator(Ok(format!("more than half of the members want it: acts in term {term}")));
        }
        if self.act_without_promises() {
            return;
        }
        self.say_that_nobody_acts();
        self.forsake();
        self.tell_guests();
    }

    /// Asks all who are here, as soon as they are enough.
    fn ask_for_promises(&mut self) {
        let Some(standing) = self.standing.as_mut().filter(|standing| standing.yields_to.is_empty()) else {
            return;
        };
        let Some(candidacy) = standing
            .candidacy
            .as_mut()
            .filter(|candidacy| candidacy.claim().is_none() && candidacy.has_support())
        else {
            return;
        };
        let mut heard = standing.follower.heard();
        if heard.master.is_some() {
            return;
        }
        heard.is_frozen = true;
        drop(heard);
        let Some(claim) = candidacy.ask() else { return };
        log::warn!("more than half of the members are here: they are asked for term {}", claim.term);
        let guests = standing.guests.iter().filter(|(_, guest)| guest.asked.is_some());
        let guests: Vec<u64> = guests.map(|(key, _)| *key).collect();
        for key in guests {
            self.tell_guest(key, &M2c::Claim(claim));
        }
    }

    /// Promises are given back if those who have not promised do not stay.
    fn forsake(&mut self) {
        let Some(standing) = &mut self.standing else { return };
        let Some(candidacy) = standing.candidacy.as_mut().filter(|candidacy| candidacy.claim().is_some())
        else {
            return;
        };
        if candidacy.has_support() && candidacy.refusal().is_none() {
            standing.forsaken = None;
            return;
        }
        let since = *standing.forsaken.get_or_insert_with(Instant::now);
        if since.elapsed() < PATIENCE {
            return;
        }
        log::warn!("not enough members promise themselves to this standby: their promises are given back");
        standing.give_back();
        let mut heard = standing.follower.heard();
        heard.is_frozen = false;
        // They may know another copy as a complete one.
        if heard.other.is_some() {
            let heard = &mut *heard;
            std::mem::swap(&mut heard.following, &mut heard.other);
            if let (Some(candidacy), Some(following)) = (&mut standing.candidacy, &heard.following) {
                candidacy.change_copy(following.copy, &following.recalled.past);
            }
        }
        drop(heard);
        standing.guests.values_mut().for_each(|guest| guest.due = Instant::now());
    }

    /// The leader is there: everybody is sent to it.
    fn end_bid(&mut self, text: &str) {
        let Some(standing) = &mut self.standing else { return };
        standing.give_back();
        standing.candidacy = None;
        let keys: Vec<u64> = standing.guests.keys().copied().collect();
        for key in keys {
            self.send_away(key, text);
        }
    }

    /// Those who wait hear for whom, and those who have said nothing go.
    fn tell_guests(&mut self) {
        let Some(standing) = &mut self.standing else { return };
        let now = Instant::now();
        let why = standing.follower.heard().why.clone();
        let text = standing.text(&why);
        let mut due = Vec::new();
        for (key, guest) in standing.guests.iter_mut().filter(|(_, guest)| guest.due <= now) {
            guest.due = now + NEWS;
            due.push((*key, guest.asked.is_some()));
        }
        for (key, waits) in due {
            if waits {
                let answer = self.stands_by(true, &text);
                self.tell_guest(key, &answer);
            } else {
                self.send_away(key, "this master stands by");
            }
        }
    }

    /// Other run keys are accepted, if this master stands by in a run with a key. Returns the text about it.
    pub(crate) fn change_keys_of_standing(&self, keys: &AcceptedKeys) -> Option<String> {
        let known = self.standing.as_ref()?.own.keys.as_ref()?;
        known.replace(keys.clone());
        Some("this standby has the new run key".into())
    }

    /// How many run keys are accepted.
    pub(crate) fn count_keys(&self) -> u8 {
        let of_standing = self.standing.as_ref().and_then(|standing| standing.own.keys.as_ref());
        let keys = of_standing.map(RunKeys::accepted);
        let keys = keys.or_else(|| self.tickets.as_ref().map(|issuer| issuer.accepted()));
        keys.map_or(0, |keys| 1 + u8::from(keys.second.is_some()))
    }

    /// Why an operator's request has to go to another master, while this one stands by.
    pub(crate) fn elsewhere(&self) -> Option<String> {
        let standing = self.standing.as_ref()?;
        let heard = standing.follower.heard();
        Some(match &heard.master {
            Some(place) => format!(
                "this master stands by, the one at {place} acts: ask that one, on its machine with --port {}",
                place.port
            ),
            None => format!("this master stands by, and none acts: {}", standing.text(&heard.why)),
        })
    }

    /// When something is due while this master stands by.
    pub(crate) fn standing_deadline(&self) -> Option<Instant> {
        let standing = self.standing.as_ref()?;
        standing.guests.values().map(|guest| guest.due).min()
    }

    /// The status of the run as it was heard last.
    fn status_of_standing(&self, request: pccl_protocol::RequestId) -> Status {
        // Of somebody who knows no run.
        let empty = Status { run: RunId(0), ..self.state.status(request, None) };
        let Some(standing) = &self.standing else { return empty };
        let heard = standing.follower.heard();
        let (mut status, term) = match &heard.following {
            Some(following) => {
                let recalled = &following.recalled;
                (recalled.state.status(request, None), recalled.past.copies.term)
            }
            None => (empty, Term(0)),
        };
        let text = match &heard.master {
            Some(place) => format!("the master at {place} acts"),
            None => {
                let advice = standing.advice(&heard).map_or_else(String::new, |advice| format!("; {advice}"));
                standing.text(&heard.why) + &advice
            }
        };
        drop(heard);
        status.run_keys = self.count_keys();
        let journal = standing.own.journal.as_ref().map(Journal::status);
        let text = Some(Text::new(text));
        status.lead = StatusLead { term, acts: false, standbys: Vec::new(), text, journal };
        status
    }

    /// This master acts from now on, with this copy.
    pub(crate) fn become_leader(
        &mut self,
        following: Option<Following>,
        leader: impl FnOnce(CopyId, Past) -> Leader,
    ) {
        let Some(Following { copy, mut recalled }) = following else { return };
        let Some(standing) = self.standing.take() else { return };
        recalled.end();
        let guests = self.dismiss_others(&standing.guests);
        let copies = recalled.past.copies.clone();
        let leader = leader(copy, recalled.past.clone());
        log::warn!("this master takes over in term {}", leader.term());
        let Own { journal, keys, fresh: _ } = standing.own;
        self.go_on_as(*recalled, leader, journal, keys);
        if let Some(replication) = &mut self.replication {
            // Until enough know the first list of this term, one of these may take over in a newer one.
            replication.followers.note_places(&copies);
            replication.followers.inquiry.note_listed(self.run, &standing.search);
        }
        self.go_on();
        for (key, conn, asked) in guests {
            self.let_guest_in(key, conn, asked);
        }
    }

    /// The connections of those who wait; all others are closed, and come again.
    fn dismiss_others(&mut self, guests: &BTreeMap<u64, Guest>) -> Vec<(u64, Conn, Return)> {
        let asked = |key: &u64| guests.get(key).and_then(|guest| guest.asked.clone());
        let keys: BTreeSet<u64> = self.conns.keys().copied().collect();
        let mut waiting = Vec::new();
        for key in keys {
            match asked(&key) {
                Some(asked) => waiting.extend(self.conns.remove(&key).map(|conn| (key, conn, asked))),
                None => drop(self.remove(key)),
            }
        }
        waiting
    }

    /// The loop is that of a master that knows this.
    pub(crate) fn go_on_as(
        &mut self,
        recalled: Recalled,
        leader: Leader,
        journal: Option<Journal>,
        keys: Option<RunKeys>,
    ) {
        let Recalled { at, next_client, state, tickets, places, open, origin, past: _ } = recalled;
        self.reactor.begin_keys_at(next_client);
        self.lead_run(origin.run);
        (self.state, self.tickets) = (state, tickets);
        self.observer.recall(self.state.registered());
        (self.started, self.began_at, self.at) = (Instant::now(), at, at);
        debug_assert_eq!(keys.is_some(), self.tickets.is_some());
        self.replication = Some(Replication::new(journal, origin, open, leader));
        for (client, place) in places {
            match Conn::recalled(place) {
                Ok(conn) => drop(self.conns.insert(client.0, conn)),
                Err(error) => log::error!("{client} cannot come back: {error}"),
            }
        }
    }

    /// A guest that has waited takes its place.
    fn let_guest_in(&mut self, key: u64, mut conn: Conn, asked: Return) {
        let new = self.reactor.next_key();
        self.reactor.begin_keys_at(new + 1);
        if let Err(error) = self.reactor.rekey(key, new, &mut conn.stream) {
            return log::warn!("{}: cannot be let in: {error}", conn.remote);
        }
        let remote = conn.remote.ip();
        let local = conn.stream.local_addr().map_or(remote, |local| local.ip().to_canonical());
        debug_assert!(matches!(conn.phase, Phase::Client(_)));
        self.conns.insert(new, conn);
        self.take(Input::Connected { client: ClientKey(new), remote, local });
        self.take_over(new, asked);
    }
}

impl Recalled {
    /// Why somebody who comes back is none of the run.
    fn objection(&self, asked: &Return) -> Option<String> {
        let is_proved =
            self.tickets.as_ref().is_none_or(|issuer| issuer.is_proof(asked.peer, asked.proof.as_ref()));
        if asked.run != self.run() || !is_proved {
            return Some("this master stands by for another run, or you do not prove who you are;".into());
        }
        None
    }
}
