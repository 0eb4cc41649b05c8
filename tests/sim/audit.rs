//! Whether the master notices in time: bounds of virtual time for everything that must not last.

use crate::blame::{BEAT, Deed, Fetch, PEER_TIMEOUT, RING_TIMEOUT, Scene};
use crate::checker::is_crossing;
use crate::client::{EdgeKey, Power, TagStage};
use crate::swarm::MS;
use crate::world::World;
use pccl_master::state::{GroupStatus, PeerPhase};
use pccl_protocol::*;
use std::collections::{BTreeMap, BTreeSet};

/// Time between two looks.
const LOOK: u64 = 500 * MS;
/// Three beats that did not come.
const SUSPICION: u64 = 3 * BEAT;
/// A standstill of 4 s, two beats to tell it, a sign of life of the other end, the grace; and slow packets on top.
const STUCK: u64 = 8_000 * MS;
/// A caller that asks for pairwise exchange waits for a mesh that is being connected.
const MESH_PATIENCE: u64 = 2_000 * MS;

/// Sentences of the master only to those whom nobody can dial: nobody whom they could dial holds the state, or there
/// are too few who separate them in a ring.
const ONLY_FOR_HIDDEN: [&str; 2] =
    ["so are all who hold the shared state", "a ring takes no more of them than of others"];

/// Something that must not last. With the life of the group: one that was empty counts its epochs from the beginning.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Trouble {
    /// An attempt has yet to send something along an edge on which nothing passes.
    Stuck(GroupId, u64, OpId, EdgeKey),
    /// A ring is not connected.
    Unconnected(GroupId, u64, GroupEpoch),
    /// All have voted on a ring that stands, and it has not begun.
    Unbegun(GroupId, u64, OpId),
    /// A vote waits for somebody, and no sentence of the master names it.
    Unnamed(OpId, PeerId),
}

/// The state of the watch.
#[derive(Debug, Default)]
pub(crate) struct Audit {
    next: u64,
    /// When a packet of each registered client last reached the master.
    heard: BTreeMap<u64, u64>,
    since: BTreeMap<Trouble, u64>,
}

impl Audit {
    /// The master stood still: nobody is blamed for that time, and nothing is expected of it.
    pub(crate) fn gap(&mut self, now: u64, gap: u64) {
        self.next = now + LOOK;
        self.heard.values_mut().for_each(|at| *at += gap);
        self.since.clear();
    }

    pub(crate) fn heard(&mut self, client: u64, now: u64) {
        self.heard.insert(client, now);
    }

    pub(crate) fn forget(&mut self, client: u64) {
        self.heard.remove(&client);
    }
}

impl World {
    /// Before a packet of a registered client is taken in: whether the failure of its fetch counts depends on when its
    /// sources were last heard.
    pub(crate) fn audit_packet(&mut self, client: u64, packet: &C2m) {
        if let (C2m::SyncComplete(complete), Some(peer)) = (packet, self.checker.peer_of(client)) {
            let at = |source| self.audit.heard.get(&self.checker.connection_of(source)?);
            let late = |source| at(source).is_some_and(|at| self.now.saturating_sub(*at) > 2 * BEAT);
            if complete.failures.iter().any(|one| late(one.peer)) {
                let (request, _) = self.checker.fetch_of(peer);
                self.ledger.source_was_late(peer, request);
            }
        }
        self.audit.heard(client, self.now);
    }

    /// After every input.
    pub(crate) fn audit_input(&mut self) {
        self.checker.nothing_owed();
    }

    /// Whenever time has passed.
    pub(crate) fn audit_time(&mut self) {
        if self.now < self.audit.next || self.master_busy_until > 0 || self.unsettled {
            return;
        }
        self.audit.next = self.now + LOOK;
        for (client, at) in &self.audit.heard {
            let silent = self.now.saturating_sub(*at);
            let more = if self.has_more_time(*client) { limits::TAKE_OVER_GRACE_MS * MS } else { 0 };
            assert!(
                silent <= PEER_TIMEOUT + more + LOOK,
                "c{client} is silent for {silent} us and was not dropped"
            );
        }
        self.operate();
        let mut present = BTreeSet::new();
        self.find_stuck(&mut present);
        self.find_unnamed(&mut present);
        self.audit.since.retain(|trouble, _| present.contains(trouble));
        let slow = 4 * self.ledger.slowest;
        for trouble in present {
            let bound = slow
                + match trouble {
                    Trouble::Stuck(..) => STUCK,
                    Trouble::Unconnected(..) => RING_TIMEOUT,
                    Trouble::Unbegun(..) => MESH_PATIENCE + LOOK,
                    Trouble::Unnamed(..) => 0,
                };
            let since = *self.audit.since.entry(trouble.clone()).or_insert(self.now);
            let lasts = self.now.saturating_sub(since);
            assert!(lasts <= bound, "seed {}: {trouble:?} for {lasts} us", self.seed);
        }
    }

    /// Whether this process can do its part and be heard, and could in the last seconds.
    fn able(&self, peer: PeerId) -> bool {
        let Some(who) = self.slots.get(&peer) else { return false };
        let client = &self.clients[who.0];
        let hindered = [Deed::Paused, Deed::Unheard, Deed::Deaf, Deed::Hostile];
        let since = self.now.saturating_sub(1_000 * MS);
        client.life == who.1
            && client.power == Power::Up
            && client.conn.is_some()
            && !self.ledger.had(*who, &hindered, since, self.now)
    }

    fn find_stuck(&self, present: &mut BTreeSet<Trouble>) {
        for group in self.master.snapshot().groups {
            if !group.ring.iter().all(|peer| self.able(*peer)) {
                continue;
            }
            let life = self.checker.life(group.group);
            if !group.confirmed {
                present.insert(Trouble::Unconnected(group.group, life, group.epoch));
            }
            for op in group.running {
                for peer in &group.ring {
                    let work = self.clients[self.slots[peer].0].work.get(&op.tag).filter(|w| w.op == op);
                    let Some(TagStage::Running { algorithm, edges, .. }) = work.map(|work| &work.stage)
                    else {
                        continue;
                    };
                    let sends = |edge| !algorithm.uses_mesh() || self.has_arrived(op, edge).is_some();
                    let waits = |edge| self.stands_still(edge) && sends(edge) && !self.is_through(op, edge);
                    let dead = |edge: &EdgeKey| !self.edges_up.contains(edge) || waits(*edge);
                    let dead = edges.iter().copied().filter(dead);
                    present.extend(dead.map(|edge| Trouble::Stuck(group.group, life, op, edge)));
                }
            }
        }
    }

    /// The master names every peer that it waits for in a vote.
    fn find_unnamed(&self, present: &mut BTreeSet<Trouble>) {
        let sentences = self.master.blocked_on();
        let snapshot = self.master.snapshot();
        let accepted = |peer: &PeerId| {
            snapshot.peers.iter().any(|one| one.peer == *peer && one.phase == PeerPhase::Accepted)
        };
        for (group, op, missing) in self.checker.missing_votes(&self.master) {
            let ready = |one: &GroupStatus| one.confirmed && one.ring.iter().all(accepted);
            if missing.is_empty() && snapshot.groups.iter().any(|one| one.group == group && ready(one)) {
                present.insert(Trouble::Unbegun(group, self.checker.life(group), op));
            }
            let named = |peer: &PeerId| {
                let (op, peer) = (op.to_string(), peer.to_string());
                sentences.iter().any(|sentence| sentence.contains(&op) && sentence.contains(&peer))
            };
            // More than four are counted, not named.
            if missing.len() <= 4 {
                present.extend(missing.iter().filter(|p| !named(p)).map(|p| Trouble::Unnamed(op, *p)));
            }
        }
    }
}

/// Judging what the master says, when it says it.
impl World {
    /// Calls wait for each other only where somebody called something else than the others. A verdict may arrive much
    /// later than it is given.
    fn note_crossing(&mut self, packet: &M2c) {
        let verdict = match packet {
            M2c::Outcome(OpOutcome { outcome: Outcome::Aborted(verdict), .. })
            | M2c::SyncOutcome(SyncOutcomeFor { outcome: SyncOutcome::Failed(verdict), .. }) => Some(verdict),
            M2c::VoteWithdrawn(answer) => answer.verdict.as_ref(),
            _ => None,
        };
        if let Some(verdict) = verdict.filter(|verdict| is_crossing(verdict)) {
            assert!(self.now <= self.wrong_until, "seed {}: all made the same calls: {verdict}", self.seed);
            self.crossings += 1;
        }
    }

    pub(crate) fn judge(&mut self, client: u64, packet: &M2c) {
        self.note_crossing(packet);
        let judged = match packet {
            M2c::Outcome(OpOutcome { op, outcome: Outcome::Aborted(verdict) }) => {
                let Some(begun) = self.checker.undecided(client, *op) else { return };
                self.judge_verdict(verdict, begun.unwrap_or(self.now))
            }
            M2c::SyncOutcome(SyncOutcomeFor { outcome: SyncOutcome::Failed(verdict), .. }) => {
                if !self.checker.first_of_sync(verdict) {
                    return;
                }
                if matches!(verdict.cause, Cause::ResumeWaits | Cause::StateLost) {
                    self.ledger.count_verdict(verdict);
                    self.checker.judge_revision(client, verdict)
                } else {
                    self.judge_verdict(verdict, self.now)
                }
            }
            M2c::SyncOutcome(SyncOutcomeFor { outcome: SyncOutcome::Committed(_), .. }) => {
                self.checker.peer_of(client).into_iter().for_each(|peer| self.ledger.synced(peer));
                return;
            }
            M2c::Kicked(reason) if reason.code == KickCode::StateMismatch => {
                let peer = self.checker.peer_of(client).expect("only a voter deviates");
                self.ledger
                    .judge_kick(Some(peer), self.slots[&peer], &[], reason, self.now)
                    .and_then(|()| self.checker.judge_shape(client, peer))
            }
            M2c::Kicked(reason)
                if ONLY_FOR_HIDDEN.iter().any(|words| reason.detail.as_str().contains(words)) =>
            {
                self.ledger.note_kick(self.checker.peer_of(client), reason);
                self.judge_hidden(client)
            }
            M2c::Kicked(reason) if reason.detail.as_str().contains("the shared state") => {
                let peer = self.checker.peer_of(client).expect("only a voter fetches");
                self.ledger.judge_end_of_fetch(&self.fetch_of(peer), reason, self.now)
            }
            M2c::Kicked(reason) => {
                let conn = &self.conns[&client];
                let who = (conn.slot, conn.life);
                let plan = self.clients[conn.slot]
                    .plan
                    .as_ref()
                    .filter(|_| self.clients[conn.slot].life == conn.life);
                let peers = plan.into_iter().flat_map(|plan| &plan.members).map(|member| member.peer);
                let peers = peers.chain(self.checker.ring_of(client));
                let ring: Vec<_> = peers
                    .filter_map(|peer| self.slots.get(&peer).copied())
                    .filter(|other| *other != who)
                    .collect();
                let peer = self.checker.peer_of(client);
                self.ledger.judge_kick(peer, who, &ring, reason, self.now)
            }
            _ => return,
        };
        if let Err(text) = judged {
            panic!("seed {}: c{client} is told {packet:?}\nbut {text}", self.seed);
        }
    }

    /// Nobody can dial it, nor somebody else of its group, and there is no relay. Somebody else may be a process before
    /// it on its host, which has ended without the knowledge of the master.
    fn judge_hidden(&self, client: u64) -> Result<(), String> {
        let slot = self.conns[&client].slot;
        let group = self.clients[slot].group;
        let is_like = |other: usize| self.hidden.contains(&other) && self.clients[other].group == group;
        let others = (0..self.clients.len()).any(|other| other != slot && is_like(other));
        let ghosts = self
            .conns
            .iter()
            .any(|(key, conn)| *key != client && !conn.closed_at_master && is_like(conn.slot));
        match !self.swarm.relay && self.hidden.contains(&slot) && (others || ghosts) {
            true => Ok(()),
            false => Err("it can be dialed, or all others of its group, or there is a relay".into()),
        }
    }

    fn judge_verdict(&mut self, verdict: &Verdict, begun: u64) -> Result<(), String> {
        self.checker.judge_votes(verdict)?;
        if verdict.cause == Cause::NoSource {
            let fetch = self.fetch_of(verdict.culprits[0].peer);
            self.ledger.judge_fetch(&fetch, self.now)?;
        }
        let silent = |peer| self.audit.heard.get(&self.checker.connection_of(peer)?);
        let suspect = |peer| silent(peer).is_some_and(|at| self.now.saturating_sub(*at) > SUSPICION);
        let scene = Scene { now: self.now, begun, slots: &self.slots, suspect: &suspect };
        self.ledger.judge(verdict, &scene)
    }

    fn fetch_of(&self, peer: PeerId) -> Fetch {
        let (mine, mut requests) = self.checker.fetch_of(peer);
        requests.push((peer, mine));
        let near = self.checker.sources_of(peer).into_iter().chain(requests.iter().map(|one| one.0));
        let others = near.filter(|other| *other != peer).filter_map(|other| self.slots.get(&other).copied());
        Fetch { peer, who: self.slots[&peer], others: others.collect(), requests: requests.clone() }
    }
}
