//! Members that lend their shared state between syncs, and newcomers that fetch it before they are let in. They hold
//! it, fail, give up, or beat and do nothing else. All choices come from numbers of their own.

use crate::blame::Deed;
use crate::client::KEYS;
use crate::swarm::MS;
use crate::world::{Wake, World};
use pccl_hash::Digest128;
use pccl_protocol::*;
use std::collections::BTreeMap;

/// The loan of a model client: what a sync has committed, as it held that then.
#[derive(Debug, Clone)]
pub(crate) struct Lent {
    pub(crate) sync: SyncId,
    content: BTreeMap<String, u128>,
    stands: bool,
}

/// A newcomer that wants to fetch ahead.
#[derive(Debug, Clone, Default)]
pub(crate) struct Fetching {
    /// The newest plan, and its number.
    plan: Option<SyncPlan>,
    number: u32,
    /// Bytes come.
    moves: bool,
    /// It does nothing any more, but for its beats.
    stalls: bool,
    /// The bytes moved, as its beats say.
    pub(crate) moved_bytes: u64,
}

impl World {
    /// A sync was committed: some clients lend what they hold now.
    pub(crate) fn committed_here(&mut self, slot: usize, sync: SyncId) {
        if self.swarm.lend == 0 {
            return;
        }
        let content = self.clients[slot].content.clone();
        self.clients[slot].lent = Some(Lent { sync, content, stands: false });
        if self.ahead.percent(self.swarm.lend) {
            let longest = if self.ahead.percent(80) { 5 * MS } else { 1_000 * MS };
            let pause = self.ahead.below(longest);
            self.wake(slot, pause, Wake::Loan(sync));
        }
    }

    /// A loan begins or ends.
    pub(crate) fn loan(&mut self, slot: usize, sync: SyncId) {
        let again = self.ahead.percent(60);
        let time = self.ahead.range(MS, 2_500 * MS);
        let Some(lent) = self.clients[slot].lent.as_mut().filter(|lent| lent.sync == sync) else { return };
        lent.stands = !lent.stands;
        let stands = lent.stands;
        self.send(slot, C2m::Loan(Loan { sync, stands }));
        if stands || again {
            self.wake(slot, time, Wake::Loan(sync));
        }
    }

    /// A client has registered.
    pub(crate) fn want_ahead(&mut self, slot: usize) {
        if self.clients[slot].hostile || !self.ahead_is_on() || !self.ahead.percent(self.swarm.ahead) {
            return;
        }
        self.clients[slot].fetching = Some(Fetching::default());
        self.send(slot, C2m::Ahead(AheadStep::Wanted(Nothing {})));
    }

    fn ahead_is_on(&self) -> bool {
        self.swarm.ahead > 0
    }

    /// A beat of a newcomer counts what it fetches ahead.
    pub(crate) fn moved_bytes(&mut self, slot: usize) -> u64 {
        let client = &mut self.clients[slot];
        let beats = client.beats;
        match client.fetching.as_mut().filter(|_| !client.admitted) {
            Some(fetching) => {
                fetching.moved_bytes += u64::from(fetching.moves);
                fetching.moved_bytes
            }
            None => beats,
        }
    }

    pub(crate) fn state_ahead(&mut self, slot: usize, plan: SyncPlan) {
        self.told_ahead += 1;
        let fate = self.ahead.below(100);
        let longest = if self.ahead.percent(70) { 300 * MS } else { 4_000 * MS };
        let time = self.ahead.range(MS, longest);
        // The one that was named last goes on with what the newer plan says.
        let client = &mut self.clients[slot];
        let is_in = client.plan.is_some();
        let Some(fetching) = client.fetching.as_mut().filter(|_| !is_in) else {
            assert!(is_in, "seed {}: s{slot} is told of serving peers, and wanted none", self.seed);
            return;
        };
        fetching.number += 1;
        fetching.stalls |= fate < 3;
        if fetching.stalls {
            fetching.moves = false;
            return;
        }
        let number = fetching.number;
        (fetching.plan, fetching.moves) = (Some(plan), true);
        if (3..6).contains(&fate) {
            fetching.stalls = true;
            fetching.moves = false;
            return self.send(slot, C2m::Ahead(AheadStep::GivenUp(Text::new("its tensors are others"))));
        }
        self.wake(slot, time, Wake::FetchAhead(number));
    }

    /// The result of a plan.
    pub(crate) fn fetch_ahead(&mut self, slot: usize, number: u32) {
        let client = &mut self.clients[slot];
        if client.plan.is_some() || client.call == crate::client::Call::Leaving {
            return;
        }
        let filtered = client.state_filtered;
        let Some(fetching) = client.fetching.as_mut().filter(|fetching| fetching.number == number) else {
            return;
        };
        fetching.moves = false;
        let Some(plan) = fetching.plan.take() else { return };
        let sync = plan.sync;
        let mut failures = Vec::new();
        let mut gave = false;
        for StateSource { peer, back, relayed, .. } in &plan.sources {
            self.check_source(slot, *peer, (*back, *relayed));
            match self.lends_to(slot, sync, *peer, &plan.fetch).filter(|_| !filtered) {
                Some(true) => gave = true,
                Some(false) => failures.push((*peer, SourceFault::Refused)),
                None => failures.push((*peer, SourceFault::Unreached)),
            }
        }
        let bad_luck = self.ahead.percent(10);
        if !gave || bad_luck {
            // Something of it may have come, and the tensors are those of no revision.
            let noise = u128::from(self.ahead.next());
            if self.ahead.percent(50) {
                let client = &mut self.clients[slot];
                client.content.insert(KEYS[2].0.to_owned(), noise);
                client.revision = 0;
            }
            let failed = |(peer, fault)| SourceFailure { peer, fault, text: Text::default() };
            let failures = failures.into_iter().map(failed).collect();
            return self.send(slot, C2m::Ahead(AheadStep::Failed(AheadFailure { sync, failures })));
        }
        self.held_ahead += 1;
        // It is one now that brings something along.
        self.blame(slot, Deed::Returned, u64::MAX);
        let client = &mut self.clients[slot];
        client.revision = plan.revision.0;
        for item in plan.fetch {
            client.content.insert(item.key.as_str().to_owned(), item.digest.to_u128());
        }
        self.send(slot, C2m::Ahead(AheadStep::Holds(sync)));
    }

    /// Whether a serving peer gives this; nothing if it is not reached.
    fn lends_to(&self, slot: usize, sync: SyncId, peer: PeerId, wanted: &[FetchItem]) -> Option<bool> {
        assert_ne!(Some(peer), self.clients[slot].peer, "seed {}: told to fetch from itself", self.seed);
        let giver = &self.clients[self.alive(peer)?];
        if !giver.running() || giver.state_closed {
            return None;
        }
        let lent = giver.lent.as_ref().filter(|lent| lent.sync == sync && lent.stands);
        for item in wanted.iter().filter(|_| lent.is_some()) {
            let held = lent.map(|lent| Digest128::from_u128(lent.content[item.key.as_str()]));
            assert_eq!(held, Some(item.digest), "seed {}: a serving peer holds something else", self.seed);
        }
        Some(lent.is_some())
    }

    /// A packet of a hostile client about loans.
    pub(crate) fn ahead_mischief(&mut self) -> Option<C2m> {
        if self.swarm.lend == 0 || !self.ahead.percent(15) {
            return None;
        }
        let sync = SyncId(self.ahead.below(12));
        Some(match self.ahead.below(6) {
            0..=2 => C2m::Loan(Loan { sync, stands: self.ahead.percent(70) }),
            3 => C2m::Ahead(AheadStep::Wanted(Nothing {})),
            4 => C2m::Ahead(AheadStep::Holds(sync)),
            _ => C2m::Ahead(AheadStep::Failed(AheadFailure { sync, failures: vec![] })),
        })
    }
}
