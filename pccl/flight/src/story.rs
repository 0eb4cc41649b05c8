//! The story of one run from the files of many, put together: who told what, and when.

use crate::{Entry, Header, Role, What};
use pccl_protocol::{Named, PeerId, RunId};
use std::collections::{BTreeMap, BTreeSet};

/// One recorder with all that its files hold.
#[derive(Debug)]
pub(super) struct Teller {
    /// The head of its newest file.
    pub(super) header: Header,
    pub(super) entries: Vec<Entry>,
    /// To be added to its clock.
    pub(super) offset_us: i64,
}

impl Teller {
    /// The time of an entry by its own clock, in microseconds since 1970.
    pub(super) fn own_time(&self, entry: &Entry) -> i64 {
        // Far beyond any real time, and sums of a few of them still fit.
        let bounded = |value: u64| value.min(1 << 60) as i64;
        bounded(self.header.started_us) + bounded(entry.at_us)
    }

    /// The time of an entry by the common clock.
    pub(super) fn time(&self, entry: &Entry) -> i64 {
        self.own_time(entry).saturating_add(self.offset_us)
    }

    /// The peer that it was when it recorded this entry.
    pub(super) fn identity_at(&self, index: usize) -> Option<PeerId> {
        let mut identities = self.entries[..=index].iter().rev().filter_map(registered);
        match identities.next() {
            Some(peer) => Some(peer),
            None if self.entries.iter().any(|entry| registered(entry).is_some()) => None,
            None => self.header.peer,
        }
    }

    /// Every peer that it has been.
    pub(super) fn identities(&self) -> BTreeSet<PeerId> {
        self.entries.iter().filter_map(registered).chain(self.header.peer).collect()
    }

    /// Its name, in words.
    pub(super) fn label(&self) -> String {
        match (self.header.role, self.header.peer) {
            (Role::Master, _) => format!("master ({})", self.header.host),
            (Role::Peer, Some(peer)) => {
                format!("peer {}", Named(peer, &self.header.name, &self.header.host))
            }
            (Role::Peer, None) => {
                format!("unregistered peer ({}, pid {})", self.header.host, self.header.pid)
            }
        }
    }

    /// The runs that it heard of.
    pub(super) fn runs(&self) -> BTreeSet<RunId> {
        let of_entries = self.entries.iter().filter(|entry| entry.event.what == What::Registered);
        let runs = of_entries.filter_map(|entry| u128::from_str_radix(entry.event.text.as_deref()?, 16).ok());
        runs.map(RunId).chain(self.header.run).collect()
    }

    /// When it recorded something last, by its own clock.
    pub(super) fn last_time(&self) -> i64 {
        self.entries.last().map_or(0, |entry| self.own_time(entry))
    }
}

fn registered(entry: &Entry) -> Option<PeerId> {
    if entry.event.what == What::Registered { entry.event.peer } else { None }
}

/// Everything that is told about one run, by one clock.
#[derive(Debug)]
pub(super) struct Story {
    pub(super) tellers: Vec<Teller>,
    /// All entries in order: time, teller, index of the entry.
    pub(super) order: Vec<(i64, usize, usize)>,
    /// Hosts of the peers as far as they are known.
    pub(super) hosts: BTreeMap<PeerId, String>,
    /// Notes on clocks and files for the reader.
    pub(super) notes: Vec<String>,
}

impl Story {
    /// Of tellers whose clocks agree.
    pub(super) fn new(tellers: Vec<Teller>, mut notes: Vec<String>) -> Self {
        let mut order: Vec<(i64, usize, usize)> = Vec::new();
        let mut hosts = BTreeMap::new();
        for (index, teller) in tellers.iter().enumerate() {
            order.extend(teller.entries.iter().enumerate().map(|(i, entry)| (teller.time(entry), index, i)));
            for peer in teller.identities() {
                hosts.entry(peer).or_insert_with(|| teller.header.host.clone());
            }
            let told = teller.entries.iter().filter(|entry| entry.event.what == What::PeerRegistered);
            for entry in told {
                if let (Some(peer), Some(host)) = (entry.event.peer, &entry.event.text) {
                    hosts.insert(peer, host.to_string());
                }
            }
            if teller.header.dropped > 0 {
                notes.push(format!(
                    "{}: {} older events had been overwritten",
                    teller.label(),
                    teller.header.dropped
                ));
            }
        }
        order.sort_unstable();
        Self { tellers, order, hosts, notes }
    }

    pub(super) fn entry(&self, index: usize) -> &Entry {
        let (_, teller, entry) = self.order[index];
        &self.tellers[teller].entries[entry]
    }

    pub(super) fn teller(&self, index: usize) -> &Teller {
        &self.tellers[self.order[index].1]
    }

    /// A peer, in words.
    pub(super) fn peer(&self, peer: PeerId) -> String {
        match self.hosts.get(&peer) {
            Some(host) => format!("peer {peer} ({host})"),
            None => format!("peer {peer}"),
        }
    }
}

/// A span of time with its sign, in words.
pub(super) fn micros_text(us: i64) -> String {
    let (sign, us) = (if us < 0 { '-' } else { '+' }, us.unsigned_abs());
    format!("{sign}{}.{:06} s", us / 1_000_000, us % 1_000_000)
}
