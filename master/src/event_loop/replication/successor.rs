//! Finds out whether another master acts: one that slept, and whom nobody answers any more, may have a successor. One
//! that has taken over also looks at the places that it was started with: a master there may have begun another run.

use crate::event_loop::EventLoop;
use crate::event_loop::LoopEnd;
use crate::event_loop::replication::follower_side::Search;
use crate::operate::{query_status, tell_known_run};
use mio::Waker;
use parking_lot::Mutex;
use pccl_protocol::{CopyId, RunId, StandBy, Standby, Status, Term};
use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};
use tinysockets::{address::HostPort, key::RunKey};

/// How long nothing leaves before others are asked, and then between two times.
const PAUSE: Duration = Duration::from_secs(1);
/// Time for one answer.
const TIMEOUT: Duration = Duration::from_secs(2);

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Inquiry {
    /// Where those who may have taken over are.
    places: BTreeSet<String>,
    /// Places that this master was started with, and what it says there.
    listed: Vec<(String, StandBy)>,
    /// Since when nothing leaves.
    since: Option<Instant>,
    /// When they are asked next.
    next: Option<Instant>,
    desk: Arc<Desk>,
}

#[derive(Debug, Default)]
struct Desk {
    busy: AtomicBool,
    found: Mutex<Option<String>>,
}

impl Inquiry {
    pub(crate) fn note_places(&mut self, standbys: &[Standby]) {
        let place = |standby: &Standby| HostPort::new(standby.hosts.as_str(), standby.port).to_string();
        self.places.extend(standbys.iter().map(place));
    }

    /// This one stood by for the masters at these places, and leads their run now.
    pub(crate) fn note_listed(&mut self, run: RunId, search: &Search) {
        let (copy, port, acts_soon) = (CopyId::default(), search.port, false);
        let word = StandBy { run, copy, advertised_host: search.advertised_host.clone(), port, acts_soon };
        self.listed = search.masters.iter().map(|place| (place.to_string(), word.clone())).collect();
    }

    /// Those places.
    pub(crate) fn places(&self) -> &BTreeSet<String> {
        &self.places
    }

    /// Whether nothing has left for so long that another master may act.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.since.is_some_and(|since| since.elapsed() >= PAUSE)
    }

    /// Asks all of them on a thread, unless that is under way or was done a moment ago.
    fn ask(&mut self, is_in_doubt: bool, of: (RunId, Term), key: Option<RunKey>, waker: Arc<Waker>) {
        let now = Instant::now();
        let is_due = *self.next.get_or_insert(now + PAUSE) <= now;
        if !is_due
            || self.places.is_empty() && self.listed.is_empty()
            || self.desk.busy.swap(true, Ordering::AcqRel)
        {
            return;
        }
        self.next = Some(now + PAUSE);
        let places = if is_in_doubt { self.places.clone() } else { BTreeSet::new() };
        let (desk, listed) = (Arc::clone(&self.desk), self.listed.clone());
        let ask = move || {
            let found = who_took_over(&places, of, key.as_ref());
            listed.iter().for_each(|(place, word)| tell_of_run(place, word, key.as_ref()));
            desk.busy.store(false, Ordering::Release);
            if found.is_some() {
                *desk.found.lock() = found;
                // Without it the loop looks a little later.
                let _ = waker.wake();
            }
        };
        if let Err(error) = thread::Builder::new().name("pccl-inquiry".into()).spawn(ask) {
            self.desk.busy.store(false, Ordering::Release);
            log::error!("cannot start a thread that asks other masters: {error}");
        }
    }
}

/// Tells a master at this place of the run, if it leads another one that nobody is in.
fn tell_of_run(place: &str, word: &StandBy, key: Option<&RunKey>) {
    let is_other = |status: Status| status.run.0 != 0 && status.run != word.run && status.peers.is_empty();
    if query_status(place, key, TIMEOUT).is_ok_and(is_other) {
        tell_known_run(place, key, word.clone(), TIMEOUT);
    }
}

/// Says which of the masters at these places knows of one that has taken over the run in a newer term, be it itself or
/// not.
pub(crate) fn who_took_over(
    places: &BTreeSet<String>,
    (run, term): (RunId, Term),
    key: Option<&RunKey>,
) -> Option<String> {
    places.iter().find_map(|place| {
        let status = query_status(place, key, TIMEOUT).ok()?;
        let newer = Some(status.lead.term).filter(|newer| status.run == run && *newer > term)?;
        Some(format!(
            "a master has taken over in term {newer}, as the one at {place} says; this one was that of term {term}"
        ))
    })
}

impl EventLoop {
    /// Looks whether this master still is one, while what it does does not leave.
    pub(crate) fn inquire(&mut self) {
        let Some(replication) = &mut self.replication else { return };
        let inquiry = &mut replication.followers.inquiry;
        if let Some(text) = inquiry.desk.found.lock().take() {
            self.ends_with = Some(LoopEnd::Superseded(text));
            return;
        }
        let is_in_doubt = replication.leader.is_letting_go();
        inquiry.since = is_in_doubt.then(|| inquiry.since.unwrap_or_else(Instant::now));
        if is_in_doubt || !inquiry.listed.is_empty() {
            let key = self.tickets.as_ref().map(|issuer| issuer.accepted().used);
            inquiry.ask(is_in_doubt, (self.run, replication.leader.term()), key, self.reactor.waker());
        } else {
            inquiry.next = None;
        }
    }
}
