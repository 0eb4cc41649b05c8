//! Signs of life: a beat to the master every so often, and a watch over the master's echo.

use super::{
    Shared,
    calls::{Calls, Underway},
    event,
    stall::{StallWatch, WorkWatch},
    waiting::SilenceLog,
};
use crate::{LossCause, Reason, collective::links::Inbound, state::progress::Underway as Fetching};
use parking_lot::Mutex;
use pccl_flight::{Event, What};
use pccl_protocol::{Algorithm, Beat, BusyEdge, EdgeBytes, LinkGeneration, PeerId, StalledEdge, limits};
use std::{
    collections::BTreeMap,
    sync::{OnceLock, atomic::Ordering},
    time::{Duration, Instant},
};
use threadpark::{Parker, Unparker};
use tinysockets::link::Backlog;

/// How long after the beginning of an operation there are beats beside the regular ones, so that an operation that is
/// shorter than the time between two of these shows how fast the edges are.
const EARLY_MS: [u64; 4] = [100, 200, 400, 800];

/// A master that is silent for so long may be dead, where another one may take over: it is looked for.
const SILENCE: Duration = Duration::from_millis(limits::STANDBY_SILENCE_MS);

/// When the next beat is due, if the last one was sent at `last` and an operation began at `began`.
fn next_beat(last: Instant, interval: Duration, began: Option<Instant>) -> Instant {
    let regular = last + interval;
    let early = began.and_then(|began| {
        EARLY_MS.into_iter().map(|ms| began + Duration::from_millis(ms)).find(|at| *at > last)
    });
    early.map_or(regular, |early| early.min(regular))
}

/// Wakes the thread that sends beats.
#[derive(Debug, Default)]
pub(super) struct Bell {
    thread: OnceLock<Unparker>,
    /// When the last operation of some size began.
    operation_began: Mutex<Option<Instant>>,
}

impl Bell {
    /// There is such a thread.
    pub(super) fn wakes(&self, thread: Unparker) {
        let _ = self.thread.set(thread);
    }

    pub(super) fn ring(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// An operation has begun: the beats that go with it follow. Small ones show nothing of rates, and are in a hurry.
    pub(super) fn operation_begins(&self, algorithm: Algorithm) {
        if algorithm.is_for_large() {
            *self.operation_began.lock() = Some(Instant::now());
            self.ring();
        }
    }
}

/// Runs until the session ends.
pub(crate) fn run(shared: &Shared, parker: &Parker, interval: Duration) {
    let mut sequence = 0;
    let mut last = Instant::now();
    let (mut watches, mut silence) = (Watches::default(), SilenceLog::default());
    let control = &shared.control;
    while control.end().is_none() {
        // If this process itself stood still, the master's echo may be waiting in the socket: no judgement yet.
        let stood_still = last.elapsed().saturating_sub(interval);
        last = Instant::now();
        let stood_still = Some(stood_still).filter(|time| *time > Duration::from_secs(1));
        if let Some(stood_still) = stood_still {
            let count = u64::try_from(stood_still.as_millis()).unwrap_or(u64::MAX);
            shared.flight.record(Event::new(What::StoodStill).count(count));
        }
        let silent = control.silence(stood_still.unwrap_or_default());
        // A peer without a connection looks for another one, which has a limit of its own.
        if silent > shared.config.settings.master_timeout && control.is_connected() {
            let text = format!("no sign of life for {} ms", silent.as_millis());
            return control.lose(Reason::new(LossCause::Silent, text));
        }
        let others = !shared.told.allegiance.lock().standbys().is_empty();
        if others && silent > SILENCE.max(3 * interval) && control.is_connected() {
            control.break_off(&format!("nothing was heard of the master for {} ms", silent.as_millis()));
        }
        if silence.is_due(silent) {
            let limit = shared.config.settings.master_timeout;
            log::warn!(
                "nothing was heard of the master for {} s; it counts as lost after {limit:?}",
                silent.as_secs()
            );
        }
        sequence += 1;
        let Shared { operations, calls, syncs, .. } = shared;
        let links = operations.links.out_backlogs();
        syncs.upload.note_links(&links);
        let edges = (links, operations.links.inbound());
        let mut beat = beat((edges, calls, &syncs.underway), &mut watches, sequence, interval);
        beat.moved_bytes += syncs.fetched_ahead.load(Ordering::Relaxed);
        beat.figures = shared.figures.all();
        control.send_beat(beat);
        if !operations.links.deaf().is_empty() {
            let _ = shared.conductor.send(event::Event::Listen);
        }
        let sent_at = Instant::now();
        while control.end().is_none() {
            let due = next_beat(sent_at, interval, *shared.bell.operation_began.lock());
            if due <= Instant::now() {
                break;
            }
            parker.park_until(due);
        }
    }
}

fn edge_bytes((peer, generation): (u128, u64), bytes: u64) -> EdgeBytes {
    EdgeBytes { peer: PeerId(peer), generation: LinkGeneration(generation), bytes }
}

/// The watches of each link to and from another peer, by its name.
#[derive(Debug, Default)]
struct Watches {
    out: BTreeMap<(u128, u64), StallWatch>,
    inbound: BTreeMap<(u128, u64), WorkWatch>,
}

/// The links from other peers, by name.
type Received = Vec<((u128, u64), Inbound)>;

/// A link to another peer: its name, bytes handed to the system, and what it has yet to deliver.
type Out = ((u128, u64), u64, Backlog);

fn beat(
    ((links, received), calls, fetching): ((Vec<Out>, Received), &Calls, &Fetching),
    watches: &mut Watches,
    sequence: u64,
    interval: Duration,
) -> Beat {
    let now = Instant::now();
    watches.out.retain(|name, _| links.iter().any(|(present, ..)| present == name));
    watches.inbound.retain(|name, _| received.iter().any(|(present, _)| present == name));
    let mut stalled = Vec::new();
    for (name, sent_bytes, backlog) in &links {
        let standstill = watches.out.entry(*name).or_default().look(now, interval, *sent_bytes, *backlog);
        stalled.extend(standstill.map(|standstill| StalledEdge {
            to: PeerId(name.0),
            generation: LinkGeneration(name.1),
            stalled_ms: standstill.lasts.as_millis() as u64,
            idle_ms: standstill.rest.as_millis() as u64,
            segment_bytes: backlog.vain_segment_bytes,
        }));
    }
    let acknowledged = links.iter().filter(|(_, _, backlog)| !backlog.is_waiting());
    let sent = acknowledged.map(|(name, bytes, _)| edge_bytes(*name, *bytes)).collect();
    let busy = received.iter().filter_map(|(name, link)| {
        let busy = watches.inbound.entry(*name).or_default().look(now, *link)?;
        let (from, generation) = (PeerId(name.0), LinkGeneration(name.1));
        Some(BusyEdge { from, generation, busy_ms: busy.as_millis() as u64 })
    });
    let busy = busy.collect();
    let received = received.into_iter().map(|(name, link)| edge_bytes(name, link.received_bytes)).collect();
    let moved_bytes = calls.moved_bytes();
    let Underway { call, since, limited, operation } = calls.underway();
    Beat {
        sequence,
        call,
        call_ms: since.map_or(0, |since| since.elapsed().as_millis() as u64),
        limited,
        operation,
        moved_bytes,
        stalled,
        sent,
        received,
        busy,
        fetch: fetching.look(now).map(|seen| seen.told()),
        figures: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_has_beats_of_its_own_that_do_not_put_off_the_regular_ones() {
        let start = Instant::now();
        let ms = |ms| start + Duration::from_millis(ms);
        let second = Duration::from_secs(1);
        assert_eq!(next_beat(start, second, None), ms(1000));
        for (last, began, due) in [
            (0, 50, 150),
            (150, 50, 250),
            (250, 50, 450),
            (450, 50, 850),
            (850, 50, 1850),
            (0, 950, 1000),
            (1000, 950, 1050),
        ] {
            assert_eq!(next_beat(ms(last), second, Some(ms(began))), ms(due), "{last} {began}");
        }
        // Shorter intervals than that stay as they are.
        assert_eq!(next_beat(start, Duration::from_millis(10), Some(start)), ms(10));
    }
}
