//! Requests that one client may send to the master, and how often. They are counted for each client; joins for each
//! network from which they come. A client that is faster is read more slowly, and never dropped: a program may be as
//! fast as it likes, and its packets wait in its own buffers.

use super::sender::{Phase, Sender};
use crate::state::MasterState;
use crate::state::types::{ClientKey, Options, Timestamp};
use core::net::IpAddr;
use pccl_protocol::{C2m, Counter, KickCode, KickReason, limits};
use std::collections::BTreeMap;
use tinysockets::bucket::{Bucket, Rate};
use tinysockets::throttle::Network;

/// Joins from one network.
const JOINS: Rate = Rate { burst: 2048.0, per_second: 32.0 };
/// Networks whose joins are counted each for itself; those that have not used any are forgotten.
const MAX_NETWORKS: usize = 4096;
/// Answers to a client in a ring that asks for the status. A client that asks more often is answered later.
const ANSWERS: Rate = Rate { burst: 64.0, per_second: 32.0 };
/// The same for everybody else.
const ANSWERS_TO_OTHERS: Rate = Rate { burst: 8.0, per_second: 4.0 };
/// Questions for the status, somewhat more than are answered.
const QUESTIONS: Rate = Rate { burst: 96.0, per_second: 32.0 };
/// Beats, of peers that are to beat once a second or less often.
const BEATS: Rate = Rate { burst: 1024.0, per_second: 16.0 };
/// The same in the time between two beats of a peer that is to beat more often.
const BEATS_PER_INTERVAL: f64 = 8.0;
/// Votes that are given up.
const ABORTS: Rate = Rate { burst: 4096.0, per_second: 1024.0 };
/// Results of probes: in an optimisation one for each edge of a peer.
const PROBES: Rate = Rate { burst: 4096.0, per_second: 64.0 };
/// Reports about edges and about whom a peer reaches.
const REPORTS: Rate = Rate { burst: 4096.0, per_second: 512.0 };
/// Connections that others are to make.
const CALLS: Rate = Rate { burst: 4096.0, per_second: 256.0 };
/// Steps of a loan, and of a fetch ahead.
const STEPS: Rate = Rate { burst: 4096.0, per_second: 256.0 };
/// Keys of shared state that are announced.
const KEYS: Rate = Rate {
    burst: 16.0 * limits::MAX_STATE_ENTRIES as f64,
    per_second: 16.0 * limits::MAX_STATE_ENTRIES as f64,
};
/// Questions for the rates of edges, whose answers are large.
const RATES: Rate = Rate { burst: 8.0, per_second: 1.0 };

/// The rate at which one client may send what is counted by this.
fn rate_of(counter: Counter, options: &Options) -> Rate {
    match counter {
        Counter::Beats => {
            let interval_s = options.beat_interval.as_secs_f64().max(1e-6);
            Rate { per_second: BEATS.per_second.max(BEATS_PER_INTERVAL / interval_s), ..BEATS }
        }
        Counter::VotesGivenUp => ABORTS,
        Counter::Probes => PROBES,
        Counter::Reports => REPORTS,
        Counter::Calls => CALLS,
        Counter::Steps => STEPS,
        Counter::Keys => KEYS,
        Counter::Rates => RATES,
        Counter::Questions => QUESTIONS,
    }
}

/// As how many a packet counts.
fn count_of(packet: &C2m) -> f64 {
    if let C2m::SyncInitiate(vote) = packet { vote.entries.len() as f64 } else { 1.0 }
}

/// The part of its allowance that a client has used.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Allowance {
    used: BTreeMap<Counter, Bucket<Timestamp>>,
    answers: Option<Bucket<Timestamp>>,
    /// Before this nothing more of the client should be read.
    read_after: Timestamp,
}

impl Allowance {
    fn spend(&mut self, packet: &C2m, options: &Options, now: Timestamp) {
        let Some(counter) = packet.rules().counter else { return };
        let rate = rate_of(counter, options);
        let bucket = self.used.entry(counter).or_insert_with(|| Bucket::full(&rate, now));
        let wait = bucket.spend(&rate, now, count_of(packet));
        self.read_after = self.read_after.max(now + wait);
    }

    /// Whether a question may be answered now; otherwise how long it takes until then.
    pub(crate) fn may_answer(
        &mut self,
        phase: Option<Phase>,
        now: Timestamp,
    ) -> Result<(), std::time::Duration> {
        let rate =
            if phase.is_some_and(|phase| phase != Phase::Pending) { ANSWERS } else { ANSWERS_TO_OTHERS };
        let bucket = self.answers.get_or_insert_with(|| Bucket::full(&rate, now));
        if bucket.take(&rate, now, 1.0) { Ok(()) } else { Err(bucket.wait(&rate, now)) }
    }
}

/// Joins of each network.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Joins(BTreeMap<Network, Bucket<Timestamp>>);

impl Joins {
    fn take(&mut self, from: IpAddr, now: Timestamp) -> Result<(), KickReason> {
        let network = Network::of(from);
        if self.0.len() >= MAX_NETWORKS && !self.0.contains_key(&network) {
            self.0.retain(|_, bucket| bucket.left(&JOINS, now) < JOINS.burst);
        }
        let has_room = self.0.len() < MAX_NETWORKS || self.0.contains_key(&network);
        let full = Bucket::full(&JOINS, now);
        if has_room && self.0.entry(network).or_insert(full).take(&JOINS, now, 1.0) {
            return Ok(());
        }
        let Rate { burst, per_second } = JOINS;
        let text = format!(
            "too many joins from the network of {from}: the limit is {burst} at once and then \
                            {per_second} per second; try again later"
        );
        Err(KickReason::new(KickCode::Full, text))
    }
}

impl MasterState {
    /// Counts a packet, and refuses a join if there are too many from its network.
    pub(crate) fn count(&mut self, client: ClientKey, packet: &C2m) -> Result<(), KickReason> {
        let now = self.roll.now;
        let Some(known) = self.roll.clients.get_mut(&client) else { return Ok(()) };
        if let C2m::Register(_) = packet {
            return self.joins.take(known.remote, now);
        }
        known.allowance.spend(packet, &self.roll.options, now);
        Ok(())
    }

    /// Until when nothing more of a client should be read, if it has sent more than it may.
    pub fn read_after(&self, client: ClientKey) -> Option<Timestamp> {
        let read_after = self.roll.clients.get(&client)?.allowance.read_after;
        (read_after > self.roll.now).then_some(read_after)
    }

    /// The largest packet that a client may send now, in bytes.
    pub fn largest_packet_bytes(&self, client: ClientKey) -> usize {
        match self.roll.sender_of(client) {
            None | Some(Sender::Stranger(_)) => limits::MAX_FIRST_PACKET_BYTES,
            Some(Sender::Peer(id, _, Phase::Pending)) => match self.roll.peers.get(&id) {
                // Packets that it sent in its last group may still be on their way.
                Some(peer) if peer.info.formed && peer.past.has_group() => limits::MAX_PACKET_BYTES,
                Some(peer) if peer.info.formed => limits::MAX_FORMING_PACKET_BYTES,
                _ => limits::MAX_WAITING_PACKET_BYTES,
            },
            Some(Sender::Peer(_, _, Phase::Connecting | Phase::Accepted)) => limits::MAX_PACKET_BYTES,
        }
    }

    /// Whether a client is here, and neither in a ring nor on its way into one.
    pub fn is_outside(&self, client: ClientKey) -> bool {
        let standing = self.roll.sender_of(client);
        standing.is_some_and(|it| matches!(it, Sender::Stranger(_) | Sender::Peer(_, _, Phase::Pending)))
    }
}
