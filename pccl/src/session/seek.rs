//! Looks for the master again when the connection to it has ended that something on the way may have closed. Everything
//! else goes on meanwhile: a caller that waits for an answer waits on, and packets leave over the next connection.

use super::{
    Shared, dial_master,
    gather::{Round, Turn},
    open_control,
};
use crate::{ConnectCause, LossCause, Reason, error::End, threads::spawn, world::Identity};
use pccl_flight::{Event, What};
use pccl_protocol::{
    C2m, Copies, CopiesKnown, KickReason, M2c, Promise, Return, Returned, StandsBy, Text, limits,
};
use std::{
    sync::{Arc, Weak},
    time::{Duration, Instant},
};
use tinysockets::{
    address::HostPort,
    conn::Conn,
    queued::CloseReason,
    wire::{FRAME_HEADER_BYTES, FrameParser},
};

/// Shortest and longest time for one attempt. A host that sleeps, or is cut off, may be the first of several places,
/// so the time is short at first.
const ATTEMPT: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(3));
/// Shortest and longest pause between two attempts.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// Why an attempt came to nothing.
enum Failure {
    /// Another one may succeed.
    ForNow(String),
    /// The standby there waited for others, and this peer with it.
    InVain(String),
    /// The master acts at this place.
    Elsewhere(String, HostPort),
    /// None will at this place.
    ForGood(String),
    /// The master has dropped this peer.
    Kicked(KickReason),
}

/// The connection to the master has ended. On the thread that read from it.
pub(super) fn connection_ended(shared: &Arc<Shared>, reason: &CloseReason) {
    let control = &shared.control;
    if control.end().is_some() {
        return;
    }
    let why: Reason<LossCause> = reason.into();
    let me = shared.told.identity();
    let grace = grace_of(shared, me);
    let Some(me) = me.filter(|_| reason.may_be_the_way() && !grace.is_zero()) else {
        return shared.finish(End::MasterLost(why));
    };
    let (weak, because) = (Arc::downgrade(shared), why.clone());
    if let Err(error) = spawn("pccl-seek", move || run(&weak, me, grace, because)) {
        shared.finish(End::MasterLost(why.say(|why| format!("{why}; {error}"))));
    }
}

/// How long another connection is looked for.
fn grace_of(shared: &Shared, me: Option<Identity>) -> Duration {
    shared.config.settings.master_grace.unwrap_or_else(|| {
        let comes_back = me.is_some_and(|me| me.comes_back);
        let usual =
            if comes_back { limits::JOURNAL_MASTER_GRACE_MS } else { limits::DEFAULT_MASTER_GRACE_MS };
        Duration::from_millis(usual)
    })
}

/// How long a master may still be looked for that takes the place of one that was lost. `None`: none comes.
pub(super) fn grace_left(shared: &Shared) -> Option<Duration> {
    let me = shared.told.identity().filter(|me| me.comes_back)?;
    Some(grace_of(shared, Some(me)).saturating_sub(shared.control.silence(Duration::ZERO)))
}

/// The master has told which copies of what it knows are complete. Returns the answer for it.
pub(super) fn learn(shared: &Shared, copies: &Copies) -> Option<CopiesKnown> {
    let known = shared.told.allegiance.lock().told(copies)?;
    for standby in &copies.standbys {
        shared.config.masters.note(HostPort::new(standby.hosts.as_str(), standby.port));
    }
    Some(known)
}

fn run(shared: &Weak<Shared>, me: Identity, grace: Duration, why: Reason<LossCause>) {
    let began = Instant::now();
    let (mut pause, mut patience) = (PAUSE.0, ATTEMPT.0);
    log::info!("the connection to the master ended ({why}); looking for it again");
    loop {
        let Some(shared) = shared.upgrade() else { return };
        let control = &shared.control;
        let lose = |text: &str| {
            shared.finish(End::MasterLost(why.clone().say(|why| format!("{why}; {text}"))));
        };
        let turn = Turn::now(began, me.peer);
        let mut round = round_of(&shared, turn.number);
        let (mut texts, mut may_succeed) = (Vec::new(), round.has_several());
        while let Some((place, waits)) = round.next() {
            if control.end().is_some() {
                return;
            }
            let stays_until = waits.then_some(turn.ends);
            match attempt(&shared, me, (&place, stays_until), (patience, began + grace)) {
                Ok(()) => {
                    let millis = began.elapsed().as_millis();
                    log::info!("connected to the master at {place} after {millis} ms");
                    shared.flight.record_with(|| {
                        let text = format!("another connection to the master after {millis} ms");
                        Event::new(What::Note).text(text)
                    });
                    return;
                }
                Err(Failure::Kicked(reason)) => return shared.finish(End::Kicked(reason)),
                Err(Failure::ForGood(text)) => texts.push(text),
                Err(Failure::ForNow(text)) => {
                    may_succeed = true;
                    texts.push(text);
                }
                Err(Failure::InVain(text)) => {
                    may_succeed = true;
                    texts.push(text);
                    round.has_waited();
                }
                Err(Failure::Elsewhere(text, acting)) => {
                    may_succeed = true;
                    texts.push(text);
                    round.hear_of(acting);
                }
            }
        }
        let text = texts.join("; ");
        if !may_succeed || began.elapsed() + pause >= grace {
            return lose(&text);
        }
        log::debug!("looking for the master: {text}");
        note_wait(&shared, began, None);
        control.pause(pause);
        pause = (pause * 2).min(PAUSE.1);
        patience = (patience * 2).min(ATTEMPT.1);
    }
}

fn round_of(shared: &Shared, turn: usize) -> Round {
    let allegiance = shared.told.allegiance.lock();
    let standbys = allegiance.standbys().iter();
    let standbys = standbys.map(|standby| HostPort::new(standby.hosts.as_str(), standby.port)).collect();
    Round::new(shared.config.masters.all(), standbys, turn)
}

/// Callers that ask for whom they wait hear it.
fn note_wait(shared: &Shared, began: Instant, text: Option<&str>) {
    let seconds = began.elapsed().as_secs();
    let more = text.map_or(String::new(), |text| format!(": {text}"));
    let line = format!("the master, to which there is no connection for {seconds} s{more}");
    shared.calls.note_wait(Some(line));
}

/// Connects to a place, and takes the place of the connection that has ended if the master acts there, or as soon as it
/// does.
fn attempt(
    shared: &Arc<Shared>,
    me: Identity,
    (place, stays_until): (&HostPort, Option<Instant>),
    (patience, until): (Duration, Instant),
) -> Result<(), Failure> {
    let deadline = until.min(Instant::now() + patience);
    let conn =
        dial_master(&shared.config, place, Some(me.run), deadline).map_err(|reason| match reason.kind() {
            // The process that listened there has ended. One that goes on from its journal comes back.
            ConnectCause::ConnectionRefused if !me.comes_back => Failure::ForGood(reason.to_string()),
            kind if kind.is_permanent() => Failure::ForGood(reason.to_string()),
            _ => Failure::ForNow(reason.to_string()),
        })?;
    shared.config.masters.note_address(place, conn.peer_addr().ok());
    let Some(received) = shared.control.can_go_on() else {
        return Err(Failure::ForGood("more was sent than is kept for another connection".into()));
    };
    let proof = shared.told.wallet.service_key().map(|service_key| service_key.secret().clone());
    let term = shared.told.allegiance.lock().term();
    let asked = C2m::Return(Return { run: me.run, peer: me.peer, proof, received, term });
    let mut visit =
        Visit { shared, place, conn, began: Instant::now(), until, deadline, stays_until, promised: false };
    visit.send(&asked)?;
    loop {
        match visit.receive()? {
            M2c::Returned(Returned { received, term, acting }) => {
                if !shared.told.allegiance.lock().obeys(term, acting) {
                    let text = format!("the master at {place} is that of term {term}, which is over");
                    return Err(Failure::ForNow(text));
                }
                shared.config.masters.note_acting(place);
                return open_control(shared, visit.conn, received)
                    .map_err(|error| Failure::ForGood(error.to_string()));
            }
            M2c::Kicked(reason) => return Err(Failure::Kicked(reason)),
            packet => visit.take(packet)?,
        }
    }
}

/// A connection to a master that may act, or may come to act.
struct Visit<'a> {
    shared: &'a Arc<Shared>,
    place: &'a HostPort,
    conn: Conn,
    began: Instant,
    /// When there is no time left.
    until: Instant,
    /// When something has to have come.
    deadline: Instant,
    /// Until when this peer waits there with it for others, if it does.
    stays_until: Option<Instant>,
    /// This peer has promised itself to it.
    promised: bool,
}

impl Visit<'_> {
    fn send(&self, packet: &C2m) -> Result<(), Failure> {
        let sent = self.conn.send_all(&packet.to_frame(), Some(self.deadline));
        sent.map_err(|error| self.no_answer(&error))
    }

    fn no_answer(&self, error: &std::io::Error) -> Failure {
        Failure::ForNow(format!("the master at {} does not answer: {error}", self.place))
    }

    fn receive(&mut self) -> Result<M2c, Failure> {
        if let Some(end) = self.shared.control.end() {
            return Err(Failure::ForGood(end.to_string()));
        }
        receive_one(&self.conn, self.deadline).map_err(|error| self.no_answer(&error))
    }

    /// Deals with what a master says before it takes a peer back.
    fn take(&mut self, packet: M2c) -> Result<(), Failure> {
        let shared = self.shared;
        match packet {
            M2c::Copies(copies) => match learn(shared, &copies) {
                Some(known) => {
                    // Its next packet may wait for others who know them.
                    self.stay();
                    self.send(&C2m::CopiesKnown(known))
                }
                None => Err(Failure::ForNow(format!("the master at {} is one of an older term", self.place))),
            },
            M2c::Claim(claim) => {
                let answer = shared.told.allegiance.lock().promise(claim);
                log::info!("the standby at {} asks for term {}: {answer:?}", self.place, claim.term);
                self.promised |= answer.is_ok();
                self.stay();
                let refused = answer.err();
                let told = refused.clone().map(Text::new);
                self.send(&C2m::Promise(Promise { term: claim.term, refused: told }))?;
                // Another standby may be the right one.
                refused.map_or(Ok(()), |text| Err(Failure::ForNow(format!("{}: {text}", self.place))))
            }
            M2c::StandsBy(answer) => self.stands_by(answer),
            other => Err(Failure::ForGood(format!("{} answered a return with {}", self.place, other.name()))),
        }
    }

    /// Something has come: it is waited for the next word.
    fn stay(&mut self) {
        self.deadline = self.until.min(Instant::now() + ATTEMPT.1);
    }

    fn stands_by(&mut self, answer: StandsBy) -> Result<(), Failure> {
        let StandsBy { acting, keeps, gives_back, text, .. } = answer;
        for claim in gives_back {
            self.shared.told.allegiance.lock().given_back(claim);
        }
        self.promised = self.shared.told.allegiance.lock().is_bound();
        let acting: Option<HostPort> = acting.and_then(|acting| acting.as_str().parse().ok());
        if let Some(acting) = &acting {
            self.shared.config.masters.note(acting.clone());
        }
        note_wait(self.shared, self.began, Some(text.as_str()));
        let now = Instant::now();
        let has_time = self.promised || self.stays_until.is_some_and(|until| now < until);
        if !keeps || !has_time || now >= self.until {
            let text = format!("{}: {text}", self.place);
            return Err(match acting {
                Some(acting) => Failure::Elsewhere(text, acting),
                None if keeps && self.stays_until.is_some() => Failure::InVain(text),
                None => Failure::ForNow(text),
            });
        }
        self.stay();
        Ok(())
    }
}

/// The next packet of a connection that nobody else reads, and not a byte more.
fn receive_one(conn: &Conn, deadline: Instant) -> std::io::Result<M2c> {
    let malformed = |error: &dyn std::fmt::Display| {
        std::io::Error::new(std::io::ErrorKind::InvalidData, error.to_string())
    };
    let mut parser = FrameParser::new(limits::MAX_FIRST_PACKET_BYTES);
    let mut bytes = [0; FRAME_HEADER_BYTES];
    conn.recv_all(&mut bytes, Some(deadline))?;
    parser.feed(&bytes);
    loop {
        match parser.next_frame() {
            Ok(Some((kind, body))) => return M2c::from_frame(kind, body).map_err(|error| malformed(&error)),
            Ok(None) => {}
            Err(error) => return Err(malformed(&error)),
        }
        let mut byte = [0];
        conn.recv_all(&mut byte, Some(deadline))?;
        parser.feed(&byte);
    }
}
