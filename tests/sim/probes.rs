//! Optimisations: who calls for them, how probes end, and how long the planner takes.

use crate::client::{Call, Power, WrongCall};
use crate::rng::Rng;
use crate::swarm::MS;
use crate::world::{Event, Wake, World};
use pccl_master::state::PlanKey;
use pccl_planner::Job;
use pccl_protocol::*;
use std::time::Duration;

impl World {
    /// Whether the caller goes on with an optimisation. The query is answered to all at one instant, and by then all
    /// have been told the same sizes: so all decide alike.
    pub(crate) fn optimizes(&mut self, slot: usize, answer: PendingAnswer) -> bool {
        let every = self.swarm.optimize_every;
        let client = &self.clients[slot];
        if every == 0 || !client.sizes.world_epoch.0.is_multiple_of(every) {
            return false;
        }
        self.vote_optimize(slot, answer.pending);
        true
    }

    pub(crate) fn vote_optimize(&mut self, slot: usize, pending: bool) {
        let client = &mut self.clients[slot];
        let request = client.request();
        client.call = Call::Optimizing(request, pending);
        self.send(slot, C2m::VoteOptimize(request));
        self.limit(slot, request);
    }

    pub(crate) fn optimized(&mut self, slot: usize, done: &OptimizeDone) {
        let Call::Optimizing(mine, pending) = self.clients[slot].call else { return };
        assert_eq!(mine, done.request, "seed {}: an answer to no vote", self.seed);
        self.clients[slot].sizes = done.sizes;
        self.clients[slot].wrong_call = WrongCall::No;
        self.optimizations += 1;
        self.rings_changed += u64::from(done.changed);
        self.after_query(slot, pending);
    }

    /// The rate of an edge: a few are slow, whoever lives at its ends.
    fn rate(&self, from: usize, to: usize) -> u64 {
        let mut rng = Rng::new(self.seed ^ (from as u64) << 8 ^ (to as u64) << 16 ^ 0x5eed_0007);
        if rng.percent(20) { rng.range(10_000, 30_000) } else { rng.range(180_000, 220_000) }
    }

    /// A client measures; probes of another round that it has not ended yet are given up.
    pub(crate) fn probe(&mut self, slot: usize, plan: ProbePlan) {
        let time = self.probes.range(20 * MS, u64::from(plan.limit_ms) * MS);
        self.wake(slot, time, Wake::Probed(plan.round, plan.to));
        self.clients[slot].probes.retain(|other| other.round == plan.round);
        self.clients[slot].probes.push(plan);
    }

    pub(crate) fn probed(&mut self, slot: usize, round: ProbeRound, to: PeerId) {
        let probes = &mut self.clients[slot].probes;
        let Some(at) = probes.iter().position(|plan| plan.round == round && plan.to == to) else { return };
        let plan = probes.swap_remove(at);
        let target = self
            .alive(plan.to)
            .filter(|to| self.clients[*to].power == Power::Up && !self.is_blocked(slot, *to));
        let fails = !self.healing && self.probes.percent(3);
        let result = match target.filter(|_| !fails) {
            None => ProbeResult::Failed(Text::new("no bytes arrived in time")),
            Some(to) => ProbeResult::Measured(ProbeRate {
                // All at once: some hosts carry it, others do not.
                kbit_s: (self.rate(slot, to) + self.probes.below(5_000))
                    / if plan.crowded { 1 + self.seed % 6 } else { 1 },
                latency_us: 10_000,
                connections: 1,
            }),
        };
        self.send(slot, C2m::ProbeReport(ProbeReport { round, to: plan.to, result }));
    }

    /// Plans at once and answers later, now and then too late.
    pub(crate) fn plan(&mut self, plan: PlanKey, job: &Job) {
        let result = job.run(&mut || Duration::from_secs(1));
        let late = !self.healing && self.probes.percent(10);
        let time =
            if late { self.probes.range(1_000 * MS, 8_000 * MS) } else { self.probes.range(MS, 900 * MS) };
        self.note(format_args!("> {plan:?} for {} peers", job.peers()));
        self.at(time, Event::Planned(plan, result));
    }
}
