//! Signs of life: a beat to the master every so often, and a watch over the master's echo.

use super::{End, Shared, stall::StallWatch};
use pccl_protocol::{
    Beat, C2m, CallKind, EdgeBytes, LinkGeneration, PeerId, StalledEdge,
    flight::{Event, What},
};
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};
use threadpark::Parker;

/// Runs until the session ends.
pub(crate) fn run(shared: &Shared, parker: &Parker, interval: Duration) {
    let mut sequence = 0;
    let mut last = Instant::now();
    let mut watches = BTreeMap::new();
    while shared.end().is_none() {
        // If this process itself stood still, the master's echo may be waiting in the socket: no judgement yet.
        let stood_still = last.elapsed().saturating_sub(interval);
        last = Instant::now();
        if stood_still > Duration::from_secs(1) {
            let count = u64::try_from(stood_still.as_millis()).unwrap_or(u64::MAX);
            shared.flight.record(Event::new(What::StoodStill).count(count));
            *shared.heard.lock() += stood_still;
        }
        let silent = shared.heard.lock().elapsed();
        if silent > shared.config.master_timeout {
            return shared.finish(End::MasterLost(format!("no sign of life for {} ms", silent.as_millis())));
        }
        sequence += 1;
        shared.send(&C2m::Beat(beat(shared, &mut watches, sequence, interval)));
        parker.park_until(Instant::now() + interval);
    }
}

fn edge_bytes((peer, generation): (u128, u64), bytes: u64) -> EdgeBytes {
    EdgeBytes { peer: PeerId(peer), generation: LinkGeneration(generation), bytes }
}

/// What is watched of each link to another peer, by its name.
type Watches = BTreeMap<(u128, u64), StallWatch>;

fn beat(shared: &Shared, watches: &mut Watches, sequence: u64, interval: Duration) -> Beat {
    let (links, now) = (shared.links.out_backlogs(), Instant::now());
    watches.retain(|name, _| links.iter().any(|(present, ..)| present == name));
    let mut stalled = Vec::new();
    for (name, sent_bytes, backlog) in &links {
        let standstill = watches.entry(*name).or_default().look(now, interval, *sent_bytes, *backlog);
        stalled.extend(standstill.map(|standstill| StalledEdge {
            to: PeerId(name.0),
            generation: LinkGeneration(name.1),
            stalled_ms: standstill.as_millis() as u64,
        }));
    }
    let acknowledged = links.iter().filter(|(_, _, backlog)| !backlog.is_waiting());
    let sent = acknowledged.map(|(name, bytes, _)| edge_bytes(*name, *bytes)).collect();
    let received = shared.links.received().into_iter().map(|(name, bytes)| edge_bytes(name, bytes)).collect();
    let moved_bytes = shared.moved_bytes();
    let activity = shared.activity.lock();
    let oldest = activity.ops.iter().min_by_key(|op| op.launched());
    let (call, since) = match (activity.exclusive, oldest) {
        (Some((call, since)), _) => (call, Some(since)),
        (None, Some(op)) => (CallKind::AllReduce, Some(op.launched())),
        (None, None) => (CallKind::None, None),
    };
    Beat {
        sequence,
        call,
        call_ms: since.map_or(0, |since| since.elapsed().as_millis() as u64),
        operation: oldest.and_then(|op| op.id()),
        moved_bytes,
        stalled,
        sent,
        received,
    }
}
