//! The answers to who reaches whom, when the master asks; and the master's own look at those who register.

use crate::client::Power;
use crate::swarm::MS;
use crate::world::{Event, Wake, World};
use pccl_protocol::*;
use std::collections::BTreeSet;

impl World {
    /// The master tries the listeners of a peer.
    pub(crate) fn try_listeners(&mut self, peer: PeerId) {
        let time = self.reach.range(MS, 200 * MS);
        self.at(time, Event::Tried(peer));
    }

    fn is_reached(&self, slot: usize, peer: PeerId) -> bool {
        let up = |to: &usize| self.clients[*to].power == Power::Up && !self.is_blocked(slot, *to);
        self.alive(peer).filter(up).is_some()
    }

    /// A process tries all ports at the same time.
    pub(crate) fn try_to_reach(&mut self, slot: usize, plan: ReachPlan) {
        let is_hidden =
            |peer: &PeerId| self.slots.get(peer).is_some_and(|(slot, _)| self.hidden.contains(slot));
        assert!(!plan.targets.iter().any(|target| is_hidden(&target.peer)), "seed {}: nobody can", self.seed);
        let reached: BTreeSet<PeerId> = plan
            .targets
            .iter()
            .map(|target| target.peer)
            .filter(|peer| self.is_reached(slot, *peer))
            .collect();
        let all = plan.targets.iter().all(|target| reached.contains(&target.peer));
        let time = if all { self.reach.range(MS, 100 * MS) } else { u64::from(plan.limit_ms) * MS };
        self.wake(slot, time, Wake::Found(plan, reached));
    }

    /// A port is reached if it was there at the beginning or came in time.
    pub(crate) fn found(&mut self, slot: usize, plan: &ReachPlan, reached: &BTreeSet<PeerId>) {
        let missing =
            |target: &&ReachTarget| !reached.contains(&target.peer) && !self.is_reached(slot, target.peer);
        let ports = plan.targets.iter().filter(missing).flat_map(|target| {
            [false, true].map(|is_state| Unreached {
                peer: target.peer,
                is_state,
                text: Text::new("no answer"),
            })
        });
        let (check, unreached) = (plan.check, ports.collect());
        let epoch = self.clients[slot].epoch();
        self.send(slot, C2m::ReachReport(ReachReport { check, epoch, unreached }));
    }
}
