//! The leader goes in order: if others stand by, one of them goes on in its place, as if this one had died.
//!
//! From the moment at which it tells them it takes nothing in any more, and nothing leaves but what may leave already.
//! So it is not needed that they agree about the moment, and the one that takes over needs the promises of more than
//! half of the members as after a death.

use crate::event_loop::EventLoop;
use crate::event_loop::connections::conn::Conn;
use crate::event_loop::connections::frame::frame;
use crate::event_loop::replication::successor::who_took_over;
use crate::state::ClientKey;
use pccl_protocol::{CopyId, M2c, RunKnown, Standby, StandsBy, Text};
use std::{
    collections::BTreeSet,
    sync::atomic::Ordering,
    thread,
    time::{Duration, Instant},
};
use tinysockets::address::HostPort;

/// How long it is waited until more than half of the members know of a complete copy.
const PATIENCE: Duration = Duration::from_secs(3);
/// Time for the last words.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Shortest wait for what the system takes of them.
const STEP: Duration = Duration::from_millis(5);
/// How long it is waited for the one that takes over.
const SUCCESSION: Duration = Duration::from_secs(10);
/// Between two looks at those who may.
const LOOK: Duration = Duration::from_millis(100);

/// The departure of a master that is asked to go.
pub(crate) enum Departure {
    /// Nobody has asked, or it is waited for others.
    Stays,
    /// Those at these places may go on.
    HandsOver(BTreeSet<String>),
    /// Nobody can.
    EndsRun,
}

impl EventLoop {
    /// Whether this master goes now, and who goes on.
    pub(crate) fn departure(&mut self) -> Departure {
        let is_told = self.reactor.is_stopped();
        if self.stop_deadline.is_some() || !is_told && self.leaving.is_none() {
            return Departure::Stays;
        }
        let since = *self.leaving.get_or_insert_with(Instant::now);
        let Some(replication) = &self.replication else { return Departure::EndsRun };
        let (leader, ends_run) = (&replication.leader, self.ends_run.load(Ordering::Acquire));
        if ends_run && !leader.is_letting_go() {
            return Departure::EndsRun;
        }
        let successors = leader.successors();
        if !successors.is_empty() {
            return Departure::HandsOver(successors.iter().map(place_of).collect());
        }
        let is_empty = self.state.voters().is_empty();
        if is_empty && leader.has_standbys() && !leader.is_letting_go() {
            // There is nothing to go on with. But the masters that stay are to begin another run if there is a list.
            return Departure::HandsOver(BTreeSet::new());
        }
        let may_come = leader.has_standbys() && !is_empty;
        if (may_come || leader.is_letting_go()) && since.elapsed() < PATIENCE {
            return Departure::Stays;
        }
        if leader.is_letting_go() {
            // Another one may act. If this one said that the run has ended, that could be wrong.
            return Departure::HandsOver(replication.followers.inquiry.places().clone());
        }
        let why = match leader.has_standbys() {
            true => "no standby has a complete copy that more than half of the members know of",
            false => "no master stands by",
        };
        if !is_told {
            self.leaving = None;
            self.answer_operator(Err(format!("{why}, so nobody can go on; `end-run` ends the run")));
            return Departure::Stays;
        }
        log::info!("{why}: the run ends");
        Departure::EndsRun
    }

    /// Goes, and waits until another one acts.
    pub(crate) fn hand_over(mut self, successors: &BTreeSet<String>) {
        let mut places = successors.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        if places.is_empty() {
            places.push_str("nobody, and nobody is in the run");
        }
        log::warn!("this master steps down; who may go on: {places}");
        self.reactor.stop_listening();
        self.end_turn();
        self.say_last_words(&places);
        let keys: Vec<u64> = self.conns.keys().copied().collect();
        keys.into_iter().for_each(|key| drop(self.remove(key)));
        let (of, key) = ((self.run, self.term()), self.tickets.as_ref().map(|issuer| issuer.accepted().used));
        let deadline = Instant::now() + SUCCESSION;
        let successor = loop {
            match who_took_over(successors, of, key.as_ref()) {
                None if successors.is_empty() => {
                    break Some("nobody is in the run: nothing is handed over".into());
                }
                None if Instant::now() < deadline => thread::sleep(LOOK),
                found => break found,
            }
        };
        let done = match successor {
            Some(text) => {
                log::info!("{text}");
                if let Some(replication) = &mut self.replication {
                    // The run is elsewhere, and whoever is started here stands by.
                    replication.end();
                }
                Ok(text)
            }
            None => {
                let text = format!(
                    "nobody has taken over within {} s: more than half of the members have to reach one of {places}",
                    SUCCESSION.as_secs()
                );
                log::warn!("{text}");
                Err(text)
            }
        };
        self.answer_operator(done);
    }

    /// Tells everybody, and writes what may leave.
    fn say_last_words(&mut self, places: &str) {
        let text = Text::new(format!("the master steps down; who may go on: {places}"));
        let word = M2c::StandsBy(StandsBy {
            acting: None,
            keeps: false,
            gives_back: Vec::new(),
            process: CopyId::default(),
            knows: RunKnown::default(),
            acts_soon: false,
            text,
        });
        let keys: Vec<u64> = self.conns.keys().copied().collect();
        for key in keys {
            if self.is_standby(key) || self.state.is_peer(ClientKey(key)) {
                self.tell_ahead(key, frame(&word));
            }
        }
        let deadline = Instant::now() + LAST_WORDS;
        loop {
            self.flush_dirty();
            let is_over = Instant::now() >= deadline || self.conns.values().all(Conn::has_said_all);
            if is_over || self.reactor.wait(STEP).is_err() {
                return;
            }
        }
    }
}

fn place_of(standby: &Standby) -> String {
    HostPort::new(standby.hosts.as_str(), standby.port).to_string()
}
