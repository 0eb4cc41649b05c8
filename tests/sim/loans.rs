//! Loans, and newcomers that may be let in: an account of them from the packets alone.

use crate::checker::{Checker, SyncKey};
use crate::swarm::MS;
use pccl_protocol::*;
use std::collections::{BTreeMap, BTreeSet};

/// A newcomer that does not get on for this long may be let in.
const PATIENCE: u64 = 60_000 * MS;

/// A newcomer that wants to fetch ahead.
#[derive(Debug, Default)]
struct Wants {
    gave_up: bool,
    /// Whether it was told of serving peers since it registered, and what was committed then.
    told: Option<usize>,
    plans: BTreeMap<SyncKey, BTreeSet<PeerId>>,
    holds: Option<SyncKey>,
    failures: u32,
    /// When it last got on for sure, and what its beats say.
    got_on: u64,
    moved: u64,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Loans {
    /// Standing loans.
    stand: BTreeMap<u64, SyncKey>,
    /// Syncs of which there was a loan.
    lent: BTreeSet<SyncKey>,
    /// The syncs that each group has committed in its present life, in order.
    commits: BTreeMap<(GroupId, u64), Vec<SyncKey>>,
    wants: BTreeMap<u64, Wants>,
    /// Callers that wait for a larger world.
    waits: BTreeSet<u64>,
    /// How often newcomers were let in that held the state of their group, and that did not.
    pub(crate) with: u64,
    pub(crate) without: u64,
}

impl Loans {
    pub(crate) fn closed(&mut self, client: u64) {
        self.stand.remove(&client);
        self.wants.remove(&client);
        self.waits.remove(&client);
    }

    /// An operator has chosen something else: what was committed before does not count.
    pub(crate) fn void(&mut self, place: (GroupId, u64)) {
        self.commits.remove(&place);
    }

    pub(crate) fn committed(&mut self, place: (GroupId, u64), sync: SyncKey) {
        self.commits.entry(place).or_default().push(sync);
    }

    pub(crate) fn answered_topology(&mut self, client: u64) {
        self.waits.remove(&client);
    }

    pub(crate) fn wants(&self, client: u64) -> bool {
        self.wants.contains_key(&client)
    }

    pub(crate) fn packet(&mut self, client: u64, now: u64, world: u64, packet: &C2m) {
        match packet {
            C2m::Loan(loan) => {
                let sync = (world, loan.sync);
                if loan.stands {
                    self.stand.insert(client, sync);
                    self.lent.insert(sync);
                } else if self.stand.get(&client) == Some(&sync) {
                    self.stand.remove(&client);
                }
            }
            C2m::SyncInitiate(_) => drop(self.stand.remove(&client)),
            C2m::VoteTopology(vote) if vote.wait_for_world > 0 => drop(self.waits.insert(client)),
            C2m::Ahead(AheadStep::Wanted(_)) => {
                self.wants.insert(client, Wants { got_on: now, ..Wants::default() });
            }
            C2m::Ahead(step) => {
                let Some(wants) = self.wants.get_mut(&client) else { return };
                match step {
                    AheadStep::Holds(sync) => {
                        (wants.got_on, wants.holds) = (now, wants.holds.max(Some((world, *sync))));
                    }
                    AheadStep::Failed(_) => wants.failures += 1,
                    AheadStep::GivenUp(_) => wants.gave_up = true,
                    AheadStep::Wanted(_) => {}
                }
            }
            C2m::Beat(beat) => {
                if let Some(wants) =
                    self.wants.get_mut(&client).filter(|wants| beat.moved_bytes > wants.moved)
                {
                    (wants.got_on, wants.moved) = (now, beat.moved_bytes);
                }
            }
            _ => {}
        }
    }
}

impl Checker {
    /// A loan of somebody who does not hold what was committed last is none.
    pub(crate) fn may_say(&self, client: u64, packet: &C2m) -> bool {
        let C2m::Loan(loan) = packet else { return true };
        let Some(seen) = self.place_of(client) else { return false };
        let holders = self.holders_of(seen);
        holders.is_some_and(|(sync, held)| *sync == (self.worlds, loan.sync) && held.contains(&client))
    }

    /// A newcomer is told of serving peers.
    pub(crate) fn told_ahead(&mut self, client: u64, plan: &SyncPlan) {
        let (place, newcomer) = self.newcomer(client);
        assert!(newcomer, "c{client} is told of serving peers and is no newcomer");
        let sync = (self.worlds, plan.sync);
        let commits = self.loans.commits.get(&place).map_or(&[][..], |all| all);
        assert_eq!(commits.last(), Some(&sync), "c{client} is told of what was not committed last");
        assert!(!plan.sources.is_empty() && plan.sources.len() <= limits::MAX_SYNC_SOURCES);
        let named: BTreeSet<PeerId> = plan.sources.iter().map(|source| source.peer).collect();
        assert_eq!(named.len(), plan.sources.len(), "a serving peer is named twice");
        for peer in &named {
            let server = self.connection_of(*peer).expect("a serving peer that is there");
            assert_eq!(self.loans.stand.get(&server), Some(&sync), "c{server} does not lend {}", plan.sync);
            assert!(!self.newcomer(server).1, "a newcomer is named as a serving peer");
        }
        // The peer that lends has put it in place before.
        let (revision, content) = self.content_of(sync).expect("a serving peer has told of its commit");
        assert_eq!(plan.revision, revision);
        for (key, digest) in content {
            let item = plan.fetch.iter().find(|item| item.key.as_str() == key);
            assert_eq!(
                item.map(|item| item.digest.to_u128()),
                Some(*digest),
                "{key} is not what was committed"
            );
        }
        let count = commits.len();
        let wants = self.loans.wants.get_mut(&client).expect("one that wants to be told");
        assert!(!wants.gave_up, "c{client} has given up");
        let told = wants.told.get_or_insert(count);
        *told = count.min(*told);
        wants.plans.entry(sync).or_default().extend(named);
    }

    /// Why a newcomer may be let in, if it may. A reason here may be wider than that of the master, never narrower.
    pub(crate) fn may_be_let_in(&self, client: u64) -> Option<&'static str> {
        let Some(wants) = self.loans.wants.get(&client) else { return Some("did not want") };
        let (place, _) = self.newcomer(client);
        let commits = self.loans.commits.get(&place).map_or(&[][..], |all| all);
        let lent = commits.iter().rev().take(2).any(|sync| self.loans.lent.contains(sync));
        let content = |sync: &SyncKey| self.content_of(*sync).map(|(_, content)| content);
        let last = commits.last();
        let holds = wants.holds.as_ref();
        let newer = wants.told.map_or(0, |told| commits.len().saturating_sub(told));
        let reasons = [
            (
                holds.is_some() && last.zip(holds).is_some_and(|(a, b)| a == b || content(a) == content(b)),
                "holds",
            ),
            (wants.gave_up, "gave up"),
            (!self.any_accepted(place.0), "nobody"),
            (!self.any_holder(place), "no holder"),
            (!lent, "no loan"),
            (!self.loans.waits.is_empty() || self.is_too_small(), "others wait"),
            (wants.told.is_none() && self.offers_as_new(client, place), "offers"),
            (newer >= 3, "chased"),
            (wants.failures >= 8, "failed"),
            (self.now() >= wants.got_on + PATIENCE, "stalled"),
        ];
        reasons.into_iter().find(|(is_so, _)| *is_so).map(|(_, text)| text)
    }

    /// Whether a newcomer that wants to fetch ahead counts for sure.
    pub(crate) fn surely_counts(&self, client: u64) -> bool {
        let Some(wants) = self.loans.wants.get(&client) else { return true };
        let (place, _) = self.newcomer(client);
        let last = self.loans.commits.get(&place).and_then(|all| all.last());
        wants.gave_up || last.is_some() && wants.holds.as_ref() == last || !self.any_accepted(place.0)
    }

    /// A newcomer is put into a ring.
    pub(crate) fn let_in(&mut self, client: u64) {
        if !self.loans.wants(client) {
            return;
        }
        match self.may_be_let_in(client) {
            Some("holds") => self.loans.with += 1,
            Some(_) => self.loans.without += 1,
            None => panic!("c{client} fetches ahead and was let in: {:?}", self.loans.wants.get(&client)),
        }
    }
}
