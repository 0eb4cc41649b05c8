//! Acts of the processes and of the service of their program: who wants a group, who is told which list, and what they
//! answer to the master.

use super::{Call, Event, MS, Process, STEPS, World, name_of};
use crate::rng::Rng;
use pccl_protocol::*;
use pccl_quant::{DataType, ReduceOp};

impl World {
    pub(super) fn ask(&mut self, slot: usize) {
        self.all[slot].call = Call::Asking;
        if !std::mem::replace(&mut self.gathering, true) {
            let patience = self.rng.range(20 * MS, 400 * MS);
            self.at(patience, Event::Gather);
        }
    }

    /// The service makes a quorum of some of those who want one.
    pub(super) fn gather(&mut self) {
        self.gathering = false;
        let asks = |process: &Process| {
            process.conn.is_some() && process.call == Call::Asking && process.peer != PeerId(0)
        };
        let mut members: Vec<usize> = (0..self.all.len()).filter(|slot| asks(&self.all[*slot])).collect();
        while members.len() > 1 && !self.healing && self.rng.percent(25) {
            members.remove(self.rng.below(members.len() as u64) as usize);
        }
        for at in (1..members.len()).rev() {
            members.swap(at, self.rng.below(at as u64 + 1) as usize);
        }
        self.uuids += 1;
        let uuid = self.uuids;
        let by_name = self.rng.percent(50);
        let list: Vec<MemberRef> = members
            .iter()
            .map(|slot| {
                if by_name { MemberRef::Name(name_of(*slot)) } else { MemberRef::Peer(self.all[*slot].peer) }
            })
            .collect();
        for slot in &members {
            let (mut uuid, mut list) = (uuid, list.clone());
            if !self.healing && self.rng.percent(4) {
                // The answer of an old or of another quorum.
                match self.rng.below(3) {
                    0 => uuid = 1 + u128::from(self.rng.below(self.uuids as u64)),
                    1 => list.reverse(),
                    _ => list.push(MemberRef::Name(name_of(self.rng.below(8) as usize))),
                }
            }
            let (life, delay) = (self.all[*slot].life, self.delay());
            self.at(delay, Event::Quorum(*slot, life, uuid, list));
        }
        // A process that was left out, or asks meanwhile, comes next.
        let again = self.rng.range(100 * MS, 600 * MS);
        self.gathering = true;
        self.at(again, Event::Gather);
    }

    pub(super) fn form(&mut self, slot: usize, uuid: u128, members: Vec<MemberRef>) {
        let process = &mut self.all[slot];
        let Some(key) = process.conn.filter(|_| process.call == Call::Asking && process.peer != PeerId(0))
        else {
            return;
        };
        process.requests += 1;
        let request = RequestId(process.requests);
        process.call = Call::Forming(request, uuid);
        let (uuid, life) = (GroupUuid(uuid), process.life);
        self.send(key, true, Event::ToMaster(key, C2m::FormGroup(FormGroup { request, uuid, members })));
        let patience = self.rng.range(if self.healing { 20_000 * MS } else { 50 * MS }, 30_000 * MS);
        self.at(patience, Event::GiveUp(slot, life, request));
    }

    /// The next collective of its group; some are between two members, and the last one of an odd number has none.
    pub(super) fn reduce(&mut self, slot: usize) {
        loop {
            let process = &self.all[slot];
            let Some(plan) = &process.plan else { return };
            if process.steps >= STEPS {
                return self.ask(slot);
            }
            match self.part_of(plan, process) {
                Some(tag) => return self.vote(slot, tag),
                None => self.all[slot].steps += 1,
            }
        }
    }

    /// The part of a process in this step; all members of its group decide that alike.
    fn part_of(&self, plan: &GroupPlan, process: &Process) -> Option<Tag> {
        let ranks = plan.members.len();
        let mut rng = Rng::new(self.seed ^ u64::from(plan.group.0) << 8 ^ process.steps);
        if ranks < 2 || rng.percent(50) {
            return Some(Tag::from(process.steps));
        }
        let (half, rank) = (ranks / 2, plan.rank_of(process.peer)?);
        let member = |rank: usize| plan.members[rank].peer;
        let pair = match rank {
            first if first < half => Pair { from: process.peer, to: member(first + half) },
            second if second < 2 * half => Pair { from: member(second - half), to: process.peer },
            _ => return None,
        };
        Some(Tag { pair: Some(pair), ..process.steps.into() })
    }

    fn vote(&mut self, slot: usize, tag: Tag) {
        let process = &mut self.all[slot];
        let (Some(key), Some(plan)) = (process.conn, &process.plan) else { return };
        let attempt = process.attempts.get(&tag).copied().unwrap_or(0);
        let op = OpId { epoch: plan.epoch, tag, attempt };
        process.call = Call::Reducing(op);
        let collective = match tag.pair {
            None => Collective::AllReduce(Nothing {}),
            Some(_) => Collective::SendRecv(Nothing {}),
        };
        let parts = vec![PartDescriptor::new(64, DataType::Float32, ReduceOp::Sum)];
        let descriptor = Descriptor { collective, ..Descriptor::all_reduce(parts, Algorithm::Automatic) };
        self.send(
            key,
            true,
            Event::ToMaster(key, C2m::Initiate(Initiate { op, descriptor, has_begun: false })),
        );
    }

    /// Now and then the edge between the two breaks, and one of them sees it.
    pub(super) fn some_fault(&mut self, slot: usize, key: u64, op: OpId) -> Option<OpFault> {
        let Pair { from, to } = op.tag.pair?;
        if self.healing || !self.rng.percent(10) {
            return None;
        }
        let (plan, me) = (self.all[slot].plan.as_ref()?, self.all[slot].peer);
        let epoch = plan.epoch;
        let mut edges = plan.edges_of(me).map(|(_, name)| name);
        let generation = edges.find(|name| (name.from, name.to) == (from, to))?.generation;
        drop(edges);
        let text = Text::new("connection reset");
        let broken = vec![EdgeFault { from, to, generation, forgotten: false, text: text.clone() }];
        let report = C2m::EdgeReport(EdgeReport { epoch, up: Vec::new(), broken });
        self.were_blocked.insert((self.slots[&from], self.slots[&to]));
        self.send(key, true, Event::ToMaster(key, report));
        let (kind, peer) =
            if me == from { (OpFaultKind::OutboundLost, to) } else { (OpFaultKind::InboundLost, from) };
        Some(OpFault { kind, peer: Some(peer), generation, text })
    }

    pub(super) fn receive(&mut self, key: u64, packet: M2c) {
        let Some(slot) = self.process_of(key) else { return };
        match packet {
            M2c::Registered(answer) => {
                self.all[slot].peer = answer.peer;
                self.ask(slot);
            }
            M2c::GroupPlan(plan) => self.take_plan(slot, key, plan),
            M2c::GroupFormed(formed) => {
                let Call::Forming(request, _) = self.all[slot].call else { panic!("formed without a call") };
                assert_eq!(request, formed.request);
                self.all[slot].steps = 0;
                self.reduce(slot);
            }
            M2c::FormFailed(failed) => {
                let Call::Forming(request, _) = self.all[slot].call else { panic!("failed without a call") };
                assert_eq!(request, failed.request);
                self.ask(slot);
            }
            M2c::Stale(stale) => {
                assert!(self.all[slot].plan.as_ref().is_some_and(|plan| plan.epoch >= stale.epoch));
                self.reduce(slot);
            }
            M2c::Commence(commence) => {
                let time = self.rng.range(MS, 100 * MS);
                self.at(time, Event::Complete(key, commence.op));
            }
            M2c::Outcome(OpOutcome { op, outcome }) => self.outcome(slot, op, &outcome),
            M2c::ReachPlan(plan) => self.reach(slot, key, &plan),
            _ => {}
        }
    }

    pub(super) fn outcome(&mut self, slot: usize, op: OpId, outcome: &Outcome) {
        let process = &mut self.all[slot];
        assert_eq!(process.call, Call::Reducing(op), "an outcome for nothing");
        if process.plan.as_ref().is_some_and(|plan| plan.counted_since <= op.epoch) {
            process.attempts.insert(op.tag, op.attempt + 1);
        }
        match outcome {
            Outcome::Done(_) => {
                process.done += 1;
                process.steps += 1;
                self.sums.done += 1;
                self.sums.pairs += u64::from(op.tag.pair.is_some());
                self.reduce(slot);
            }
            Outcome::Aborted(verdict) if verdict.cause == Cause::GroupBroken && self.rng.percent(80) => {
                self.ask(slot)
            }
            Outcome::Aborted(verdict) => {
                self.sums.lost_edges += u64::from(verdict.cause == Cause::EdgeBroken);
                self.reduce(slot);
            }
        }
    }

    pub(super) fn take_plan(&mut self, slot: usize, key: u64, plan: GroupPlan) {
        let process = &mut self.all[slot];
        let before = process.plan.as_ref().map_or(GroupEpoch(0), |plan| plan.epoch);
        assert!(before < plan.epoch, "seed {}: epoch {} after {before}", self.seed, plan.epoch);
        let me = process.peer;
        let all = [Purpose::Ring, Purpose::Mesh, Purpose::Pair];
        let mut report = EdgeReport::all_up(&plan, me, &all);
        assert!(!report.up.is_empty() || plan.members.len() == 1, "a plan with this peer");
        report.up.retain(|name| process.said.insert(*name));
        let is_blocked = |name: &EdgeName| {
            let (from, to) = (self.slots[&name.from], self.slots[&name.to]);
            // One that the other end has built before stands.
            self.blocked.contains(&(from, to)) && (from == slot || !self.all[from].dialed.contains(name))
        };
        let blocked: Vec<EdgeName> = report.up.extract_if(.., |name| is_blocked(name)).collect();
        let text = Text::new("refused");
        let fault = |EdgeName { from, to, generation }| EdgeFault {
            from,
            to,
            generation,
            forgotten: false,
            text: text.clone(),
        };
        report.broken = blocked.iter().filter(|name| name.from == me).copied().map(fault).collect();
        let built: Vec<EdgeName> = report.up.iter().filter(|name| name.from == me).copied().collect();
        let report = C2m::EdgeReport(report);
        let process = &mut self.all[slot];
        process.awaited.extend(blocked.into_iter().filter(|name| name.to == me));
        process.dialed.extend(built.iter().copied());
        if process.plan.as_ref().is_none_or(|before| before.counted_since != plan.counted_since) {
            process.attempts.clear();
        }
        process.plan = Some(plan);
        let time = self.delay();
        self.at(time, Event::Report(key, report));
        for name in built {
            self.arrive(name);
        }
    }

    /// An edge has been built to a member that took its plan while it could not be reached.
    fn arrive(&mut self, name: EdgeName) {
        let slot = self.slots[&name.to];
        let process = &mut self.all[slot];
        if !process.awaited.remove(&name) {
            return;
        }
        if let (Some(key), Some(plan)) = (process.conn, &process.plan) {
            let report = EdgeReport { epoch: plan.epoch, up: vec![name], broken: Vec::new() };
            let time = self.delay();
            self.at(time, Event::Report(key, C2m::EdgeReport(report)));
        }
    }

    pub(super) fn reach(&mut self, slot: usize, key: u64, plan: &ReachPlan) {
        let fails = |target: &&ReachTarget| self.blocked.contains(&(slot, self.slots[&target.peer]));
        let text = Text::new("connection refused");
        let unreached = plan.targets.iter().filter(fails);
        let unreached =
            unreached.map(|t| Unreached { peer: t.peer, is_state: false, text: text.clone() }).collect();
        let epoch = self.all[slot].plan.as_ref().map_or(GroupEpoch(0), |plan| plan.epoch);
        let report = C2m::ReachReport(ReachReport { check: plan.check, epoch, unreached });
        let time = self.delay();
        self.at(time, Event::Report(key, report));
    }

    pub(super) fn beat(&mut self, slot: usize, life: u32) {
        let process = &mut self.all[slot];
        let Some(key) = process.conn.filter(|_| process.life == life) else { return };
        process.beats += 1;
        let beat = Beat { sequence: process.beats, ..Beat::default() };
        if process.peer != PeerId(0) {
            self.send(key, true, Event::ToMaster(key, C2m::Beat(beat)));
        }
        self.at(1000 * MS, Event::Beat(slot, life));
    }
}
