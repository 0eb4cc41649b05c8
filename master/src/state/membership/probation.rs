//! Peers that were dropped because of ports that cannot be reached, and come back: each time costs the others a ring
//! and the search for what is wrong with it. So after the first time such a peer is let in again only after a while,
//! each time a longer one.

use super::client::Peer;
use super::members::Roll;
use super::sender::Phase;
use crate::state::groups::all_groups::Groups;
use crate::state::outbox::Outbox;
use crate::state::types::Timestamp;
use pccl_protocol::{M2c, PeerId, Text};
use std::collections::BTreeMap;
use std::time::Duration;

/// How long it is kept waiting after the second time; twice as long after each one that follows.
const FIRST_WAIT: Duration = Duration::from_secs(10);
/// The longest wait.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// A peer that has not been dropped for this long begins anew.
const MEMORY: Duration = Duration::from_secs(600);
/// Addresses that are remembered; the one that was dropped longest ago goes for the next one.
const ADDRESSES_MAX: usize = 1024;
/// Identities that are remembered. If there are more, all begin anew by their addresses.
const IDENTITIES_MAX: usize = 4 * ADDRESSES_MAX;

/// Where a peer says, or is seen, to be: host and port for data. The same after a reconnect, unless the peer takes
/// any free port: then it is known by who it says it was, and keeps its first address here.
type Address = (String, u16);

#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct Record {
    times: u32,
    dropped_at: Timestamp,
    until: Timestamp,
}

/// Addresses whose peers were dropped because of ports.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Probation {
    records: BTreeMap<Address, Record>,
    /// By the identities of those who were dropped.
    identities: BTreeMap<PeerId, Address>,
}

impl Probation {
    /// A peer with this address was dropped.
    fn dropped(&mut self, id: PeerId, address: Address, now: Timestamp) {
        self.records.retain(|_, record| now.since(record.dropped_at) < MEMORY);
        self.identities.retain(|_, address| self.records.contains_key(address));
        if self.identities.len() >= IDENTITIES_MAX {
            self.identities.clear();
        }
        self.identities.insert(id, address.clone());
        if self.records.len() >= ADDRESSES_MAX && !self.records.contains_key(&address) {
            let oldest = self.records.iter().min_by_key(|(_, record)| record.dropped_at);
            if let Some(oldest) = oldest.map(|(address, _)| address.clone()) {
                self.records.remove(&oldest);
            }
        }
        let record = self.records.entry(address).or_insert(Record { times: 0, dropped_at: now, until: now });
        record.times = record.times.saturating_add(1);
        record.dropped_at = now;
        // A peer that was dropped once may have been unlucky.
        let wait = match record.times {
            1 => Duration::ZERO,
            times => FIRST_WAIT.saturating_mul(1 << (times - 2).min(8)).min(LONGEST_WAIT),
        };
        record.until = now + wait;
    }

    /// Until when it waits, or waited, if it has to at all.
    fn until(&self, address: &Address) -> Option<Timestamp> {
        let record = self.records.get(address)?;
        (record.until > record.dropped_at).then_some(record.until)
    }

    /// The address under which a peer is remembered, or would be.
    fn address_of(&self, peer: &Peer) -> Address {
        let before = peer.info.previous.as_ref().and_then(|before| self.identities.get(&before.peer));
        before.cloned().unwrap_or_else(|| address_of(peer))
    }
}

fn address_of(peer: &Peer) -> Address {
    let host = match &peer.info.advertised_host {
        Some(host) => host.to_string(),
        None => peer.remote.to_canonical().to_string(),
    };
    (host, peer.info.p2p_port)
}

impl Probation {
    /// A peer is about to be dropped because of ports that cannot be reached.
    pub(crate) fn put(&mut self, roll: &Roll, out: &mut Outbox, id: PeerId) {
        let Some(peer) = roll.peers.get(&id) else { return };
        let address = self.address_of(peer);
        self.dropped(id, address.clone(), roll.now);
        // It may have come back before it was found out.
        let is_back = |peer: &Peer| peer.phase() == Phase::Pending && self.address_of(peer) == address;
        let back: Vec<PeerId> =
            roll.peers.iter().filter(|(_, peer)| is_back(peer)).map(|(id, _)| *id).collect();
        back.into_iter().for_each(|id| self.warn(roll, out, id));
    }

    /// Until when a newcomer is not let in where it would disturb others. The wait ends with a tick, as whatever ends
    /// by itself: a packet that comes just behind its end changes nothing.
    fn until_of(&self, roll: &Roll, peer: &Peer) -> Option<Timestamp> {
        if peer.phase() != Phase::Pending || peer.info.formed || self.records.is_empty() {
            return None;
        }
        self.until(&self.address_of(peer)).filter(|until| *until > roll.tick)
    }

    /// The same, as things are: where nobody is in the run, nobody is disturbed.
    fn waits_until(&self, roll: &Roll, peer: &Peer) -> Option<Timestamp> {
        self.until_of(roll, peer).filter(|_| roll.voters().next().is_some())
    }

    /// Newcomers that may be let in.
    pub(crate) fn admissible(&self, roll: &Roll, groups: &Groups) -> Vec<PeerId> {
        let may = |peer: &Peer| {
            self.waits_until(roll, peer).is_none()
                && groups.lateness(roll, peer).is_none()
                && !groups.fetches_ahead(roll, peer)
        };
        roll.with_room(roll.newcomers().filter(|(_, peer)| may(peer)).map(|(id, _)| id).collect())
    }

    /// When the next newcomer may be let in that has to wait.
    pub(crate) fn deadline(&self, roll: &Roll) -> Option<Timestamp> {
        roll.newcomers().filter_map(|(_, peer)| self.waits_until(roll, peer)).min()
    }

    /// Why a newcomer is not let in.
    pub(crate) fn blocks(&self, roll: &Roll, peer: &Peer) -> Option<String> {
        self.waits_until(roll, peer).map(|until| why_it_waits(peer, until.since(roll.now)))
    }

    /// A newcomer hears why it has to wait.
    pub(crate) fn warn(&self, roll: &Roll, out: &mut Outbox, id: PeerId) {
        let Some(peer) = roll.peers.get(&id) else { return };
        if let Some(until) = self.until_of(roll, peer) {
            let text = why_it_waits(peer, until.since(roll.now));
            out.send(peer.client, M2c::Warning(Text::new(text)));
        }
    }
}

fn why_it_waits(peer: &Peer, left: Duration) -> String {
    let ((host, port), left) = (address_of(peer), left.as_secs() + 1);
    format!(
        "admission waits for {left} s, since the others could not connect with {host}:{port} the last times: open \
         it \
         or set advertised_host, and let it connect to the ports of the others"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Timestamp {
        Timestamp::from_millis(seconds * 1000)
    }

    #[test]
    fn the_first_time_costs_nothing_and_each_other_one_twice_as_much() {
        let (mut probation, address) = (Probation::default(), ("10.0.0.1".to_owned(), 48150));
        let mut waits = Vec::new();
        for turn in 0..6 {
            let now = seconds(100 * turn);
            probation.dropped(PeerId(u128::from(turn)), address.clone(), now);
            waits.push(probation.until(&address).map_or(0, |until| until.since(now).as_secs()));
        }
        assert_eq!(waits, [0, 10, 20, 40, 60, 60]);
        probation.dropped(PeerId(9), address.clone(), seconds(500 + 601));
        assert_eq!(probation.until(&address), None, "it began anew");
        assert_eq!(probation.until(&("10.0.0.1".to_owned(), 48152)), None);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut probation = Probation::default();
        for port in 0..2 * ADDRESSES_MAX as u16 {
            probation.dropped(PeerId(u128::from(port)), ("h".to_owned(), port), seconds(1));
        }
        assert_eq!(probation.records.len(), ADDRESSES_MAX);
        for number in 0..2 * IDENTITIES_MAX as u128 {
            probation.dropped(PeerId(number), ("h".to_owned(), 1), seconds(2));
        }
        assert!((1..=IDENTITIES_MAX).contains(&probation.identities.len()));
    }
}
