//! How clients fetch shared state: all sources at once, closed ports, and processes that can fetch from nobody.

use crate::blame::Deed;
use crate::client::Call;
use crate::rng::Rng;
use crate::swarm::MS;
use crate::world::{Wake, World};
use pccl_hash::Digest128;
use pccl_protocol::*;

/// How long a dial without an answer takes.
const DIAL: u64 = 3_000 * MS;

/// The answer of a source to a client that asks it.
enum Found {
    Given,
    /// Its plan may still be on the way.
    NotYet,
    Failed(SourceFault),
}

impl World {
    /// In some runs some processes begin with a closed port of shared state, or behind a filter. Whether they do comes
    /// from numbers of their own, so that the rest of a seed stays as it was.
    pub(crate) fn close_state_ports(&mut self, slot: usize) {
        if self.healing || self.swarm.state_faults == 0 {
            return;
        }
        let life = u64::from(self.clients[slot].life);
        let mut rng = Rng::new(self.seed ^ 0x5eed_000b ^ (slot as u64) << 32 ^ life << 40);
        let (closed, filtered) = (rng.percent(self.swarm.state_faults), rng.percent(self.swarm.state_faults));
        (self.clients[slot].state_closed, self.clients[slot].state_filtered) = (closed, filtered);
        for (is_so, deed) in [(closed, Deed::NoStatePort), (filtered, Deed::NoStateWay)] {
            if is_so {
                self.note(format_args!("! {deed:?} s{slot}"));
                self.blame(slot, deed, u64::MAX);
            }
        }
    }

    /// The end of that.
    pub(crate) fn open_state_ports(&mut self) {
        for client in &mut self.clients {
            (client.state_closed, client.state_filtered) = (false, false);
        }
    }

    /// Looks at all sources at once. `tries` counts looks, the first of which is number 0.
    pub(crate) fn fetch(&mut self, slot: usize, sync: SyncId, tries: u32) {
        let fails =
            !self.healing && tries == 0 && self.rng.percent(self.swarm.fetch_failure) && self.rng.percent(20);
        let client = &self.clients[slot];
        let Call::Syncing { request, sync: mine, fetched: false } = client.call else { return };
        let Some(plan) = client.sync_plan.clone().filter(|_| mine == sync) else { return };
        if fails && let Some(me) = client.peer {
            self.ledger.fetch_failed(me, request);
        }
        let mut gave = Vec::new();
        let report = if plan.fetch.is_empty() {
            SyncReport::Ready(Nothing {})
        } else if fails {
            let failed = |source: &StateSource| failure(source.peer, SourceFault::Unreached);
            self.clients[slot].fetch_failures = plan.sources.iter().map(failed).collect();
            SyncReport::Failed(Text::new("no source answers"))
        } else {
            match self.look_at_sources(slot, sync, &plan, &mut gave, tries) {
                Some(report) => report,
                None => return,
            }
        };
        if matches!(report, SyncReport::Ready(_)) {
            self.clients[slot].staged = plan.fetch;
        }
        let client = &mut self.clients[slot];
        client.call = Call::Syncing { request, sync, fetched: true };
        let failures = std::mem::take(&mut client.fetch_failures);
        self.send(slot, C2m::SyncComplete(SyncComplete { sync, report, failures, gave }));
    }

    /// The result of it, or nothing before the next look. A source that refuses is known at once; a dial without an
    /// answer takes its time, while the other sources give.
    fn look_at_sources(
        &mut self,
        slot: usize,
        sync: SyncId,
        plan: &SyncPlan,
        gave: &mut Vec<PeerId>,
        tries: u32,
    ) -> Option<SyncReport> {
        let mut waits = false;
        let mut pause = 20 * MS;
        let mut failures = Vec::new();
        for StateSource { peer, back, relayed, .. } in &plan.sources {
            self.check_source(slot, *peer, (*back, *relayed));
            assert_ne!(Some(*peer), self.clients[slot].peer, "seed {}: told to fetch from itself", self.seed);
            match self.look_at_source(slot, sync, *peer, &plan.fetch) {
                Found::Given => gave.push(*peer),
                Found::NotYet if tries < 60 => waits = true,
                Found::NotYet => failures.push(failure(*peer, SourceFault::Refused)),
                Found::Failed(fault) => {
                    let closed = self.alive(*peer).is_some_and(|giver| self.clients[giver].state_closed);
                    if closed || self.clients[slot].state_filtered {
                        pause = DIAL;
                    }
                    failures.push(failure(*peer, fault));
                }
            }
        }
        if !gave.is_empty() {
            self.clients[slot].fetch_failures = failures;
            return Some(SyncReport::Ready(Nothing {}));
        }
        if waits {
            self.wake(slot, 50 * MS, Wake::Fetch(sync, tries + 1));
            return None;
        }
        // All have failed: the slowest of them says so after its time.
        let client = &mut self.clients[slot];
        if client.fetch_failures.is_empty() && !failures.is_empty() {
            client.fetch_failures = failures;
            self.wake(slot, pause, Wake::Fetch(sync, tries + 1));
            return None;
        }
        Some(SyncReport::Failed(Text::new("no source answers")))
    }

    /// One of both can dial, or there is a relay, and the master knows which.
    pub(crate) fn check_source(&self, slot: usize, source: PeerId, (back, relayed): (bool, bool)) {
        let Some((giver, _)) = self.slots.get(&source) else { return };
        let (gives, fetches) = (self.hidden.contains(giver), self.hidden.contains(&slot));
        assert!(
            back == gives && (gives && fetches) == relayed && (!relayed || self.swarm.relay),
            "seed {}: nobody can dial for it",
            self.seed
        );
    }

    fn look_at_source(&self, slot: usize, sync: SyncId, peer: PeerId, wanted: &[FetchItem]) -> Found {
        let giver = self.alive(peer).map(|slot| &self.clients[slot]).filter(|giver| giver.running());
        let Some(giver) = giver else { return Found::Failed(SourceFault::Unreached) };
        if giver.state_closed || self.clients[slot].state_filtered {
            return Found::Failed(SourceFault::Unreached);
        }
        if giver.serving != Some(sync) {
            return Found::NotYet;
        }
        for item in wanted {
            let held = Digest128::from_u128(giver.content[item.key.as_str()]);
            assert_eq!(held, item.digest, "seed {}: a source holds something else", self.seed);
        }
        Found::Given
    }
}

fn failure(peer: PeerId, fault: SourceFault) -> SourceFailure {
    SourceFailure { peer, fault, text: Text::default() }
}
