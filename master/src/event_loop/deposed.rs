//! Finds out whether another master acts: one that slept, and whom nobody answers any more, may have a successor.

use super::{EventLoop, LoopEnd};
use crate::operate::query_status;
use mio::Waker;
use parking_lot::Mutex;
use pccl_protocol::{RunId, Standby, Term};
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
pub(super) struct Inquiry {
    /// Where those who may have taken over are.
    places: BTreeSet<String>,
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
    pub(super) fn note_places(&mut self, standbys: &[Standby]) {
        let place = |standby: &Standby| HostPort::new(standby.hosts.as_str(), standby.port).to_string();
        self.places.extend(standbys.iter().map(place));
    }

    /// Those places.
    pub(super) fn places(&self) -> &BTreeSet<String> {
        &self.places
    }

    /// Whether nothing has left for so long that another master may act.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.since.is_some_and(|since| since.elapsed() >= PAUSE)
    }

    /// Asks all of them on a thread, unless that is under way or was done a moment ago.
    fn ask(&mut self, run: RunId, term: Term, key: Option<RunKey>, waker: Arc<Waker>) {
        let now = Instant::now();
        let is_due = *self.next.get_or_insert(now + PAUSE) <= now;
        if !is_due || self.places.is_empty() || self.desk.busy.swap(true, Ordering::AcqRel) {
            return;
        }
        self.next = Some(now + PAUSE);
        let (places, desk) = (self.places.clone(), Arc::clone(&self.desk));
        let ask = move || {
            let found = who_took_over(&places, (run, term), key.as_ref());
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

/// Says which of the masters at these places knows of one that has taken over the run in a newer term, be it itself or
/// not.
pub(super) fn who_took_over(
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
    pub(super) fn inquire(&mut self) {
        let Some(keeper) = &mut self.keeper else { return };
        let inquiry = &mut keeper.feeds.inquiry;
        if let Some(text) = inquiry.desk.found.lock().take() {
            self.ends_with = Some(LoopEnd::Deposed(text));
        } else if keeper.office.is_letting_go() {
            inquiry.since.get_or_insert_with(Instant::now);
            let key = self.tickets.as_ref().map(|office| office.accepted().used);
            inquiry.ask(self.run, keeper.office.term(), key, self.reactor.waker());
        } else {
            (inquiry.since, inquiry.next) = (None, None);
        }
    }
}
