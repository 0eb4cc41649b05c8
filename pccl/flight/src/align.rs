//! One clock for the recorders of many machines.
//!
//! Each recorder has its own wall clock. Packets that both ends recorded bound how far two clocks can be apart: nothing
//! is received before it was sent. Clocks that keep to the bounds are believed; the others are moved to the middle of
//! what is possible, which is the usual estimate for equal ways there and back.

use crate::{
    Role, Subject, What,
    story::{Teller, micros_text},
};
use pccl_protocol::PeerId;
use std::{borrow::Cow, collections::BTreeMap};

/// From this on a correction is worth a line.
const MENTIONED_US: i64 = 1000;

/// Something that `from` did before `to` did something, by their own clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Order {
    from: usize,
    sent_us: i64,
    to: usize,
    received_us: i64,
}

/// Sets the offsets of all tellers; returns what the reader should know about it.
pub(super) fn align(tellers: &mut [Teller]) -> Vec<String> {
    let orders = if tellers.iter().any(|teller| teller.header.role == Role::Master) {
        packets(tellers)
    } else {
        votes(tellers)
    };
    let mut sequence: Vec<usize> = (0..tellers.len()).collect();
    sequence
        .sort_by_key(|&index| (tellers[index].header.role != Role::Master, tellers[index].header.started_us));
    let mut notes = Vec::new();
    let mut placed = Vec::new();
    for index in sequence {
        let (mut low, mut high) = (None, None);
        for order in &orders {
            if order.from == index && placed.contains(&order.to) {
                let bound = order.received_us + tellers[order.to].offset_us - order.sent_us;
                high = Some(high.map_or(bound, |high: i64| high.min(bound)));
            } else if order.to == index && placed.contains(&order.from) {
                let bound = order.sent_us + tellers[order.from].offset_us - order.received_us;
                low = Some(low.map_or(bound, |low: i64| low.max(bound)));
            }
        }
        let offset = offset(low, high);
        tellers[index].offset_us = offset;
        placed.push(index);
        let label = tellers[index].label();
        if offset.abs() >= MENTIONED_US {
            notes.push(format!("the clock of {label} is moved by {}", micros_text(offset)));
        }
        if let (Some(low), Some(high)) = (low, high)
            && low - high > MENTIONED_US
        {
            notes.push(format!(
                "the clock of {label} ran unevenly: its times are wrong by up to {}",
                micros_text(low - high)
            ));
        }
    }
    notes
}

/// The smallest believable correction between the bounds, the middle if the clock is wrong.
fn offset(low: Option<i64>, high: Option<i64>) -> i64 {
    match (low, high) {
        (low, high) if low.is_none_or(|low| low <= 0) && high.is_none_or(|high| high >= 0) => 0,
        (Some(low), Some(high)) => low + (high - low) / 2,
        (low, high) => low.or(high).unwrap_or(0),
    }
}

/// The packets that somebody sent or received; the time of each that happened once.
type Once<K> = BTreeMap<K, Option<i64>>;

fn note<K: Ord>(times: &mut Once<K>, key: K, time: i64) {
    times.entry(key).and_modify(|known| *known = None).or_insert(Some(time));
}

type PacketKey<'a> = (PeerId, &'a Cow<'static, str>, Option<Subject>);

/// Packets with their peer, as one teller saw them leave or arrive.
fn packets_of(teller: &Teller, what: What) -> Once<PacketKey<'_>> {
    let mut times = Once::new();
    for (index, entry) in teller.entries.iter().enumerate().filter(|(_, entry)| entry.event.what == what) {
        let peer = match teller.header.role {
            Role::Master => entry.event.peer,
            Role::Peer => teller.identity_at(index),
        };
        if let (Some(peer), Some(name)) = (peer, &entry.event.name) {
            note(&mut times, (peer, name, entry.event.subject), teller.own_time(entry));
        }
    }
    times
}

fn packets(tellers: &[Teller]) -> Vec<Order> {
    let of = |what: What| -> Vec<_> { tellers.iter().map(|teller| packets_of(teller, what)).collect() };
    let (sent, received) = (of(What::Sent), of(What::Received));
    let mut orders = Vec::new();
    for (from, sent) in sent.iter().enumerate() {
        for (to, received) in received.iter().enumerate() {
            if tellers[from].header.role == tellers[to].header.role {
                continue;
            }
            orders.extend(sent.iter().filter_map(|(key, sent)| {
                let (sent_us, received_us) = ((*sent)?, (*received.get(key)?)?);
                Some(Order { from, sent_us, to, received_us })
            }));
        }
    }
    orders
}

/// Without a master's file: everybody's vote to begin was sent before anybody heard that all had voted.
fn votes(tellers: &[Teller]) -> Vec<Order> {
    let of = |teller: &Teller, what: What, name: &str| {
        let mut times = Once::new();
        for entry in teller.entries.iter().filter(|entry| entry.event.what == what) {
            if let (true, Some(subject @ Subject::Op(_))) =
                (entry.event.name.as_deref() == Some(name), entry.event.subject)
            {
                note(&mut times, (teller.header.run, teller.header.group, subject), teller.own_time(entry));
            }
        }
        times
    };
    let votes: Vec<_> = tellers.iter().map(|teller| of(teller, What::Sent, "Initiate")).collect();
    // All have voted for what begins for all, and for what is done.
    let starts = |teller| [of(teller, What::Received, "Commence"), of(teller, What::OpDecided, "done")];
    let starts: Vec<_> =
        tellers.iter().map(|teller| starts(teller).into_iter().flatten().collect()).collect();
    let starts: Vec<Once<_>> = starts;
    let mut orders = Vec::new();
    for (from, votes) in votes.iter().enumerate() {
        for (to, starts) in starts.iter().enumerate().filter(|(to, _)| *to != from) {
            orders.extend(votes.iter().filter_map(|(key, vote)| {
                let (sent_us, received_us) = ((*vote)?, (*starts.get(key)?)?);
                Some(Order { from, sent_us, to, received_us })
            }));
        }
    }
    orders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_are_believed_within_the_bounds_and_put_into_the_middle_otherwise() {
        assert_eq!(offset(None, None), 0);
        assert_eq!(offset(Some(-5), Some(5)), 0);
        assert_eq!(offset(Some(10), Some(20)), 15);
        assert_eq!(offset(Some(-20), Some(-10)), -15);
        assert_eq!(offset(Some(10), None), 10);
        assert_eq!(offset(None, Some(-10)), -10);
        assert_eq!(offset(None, Some(10)), 0);
        assert_eq!(offset(Some(20), Some(10)), 15);
    }
}
