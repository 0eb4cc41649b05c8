//! Admission: topology rounds, promotion of the first peers, the pending query.

use super::client::{CommonVote, Membership, Peer, PendingVote, RunVote, TopologyVote};
use super::members::{AllSizes, Roll};
use super::probation::Probation;
use crate::state::groups::all_groups::Groups;
use crate::state::outbox::Outbox;
use crate::state::types::Timestamp;
use pccl_protocol::{
    M2c, PeerId, PendingAnswer, RequestId, Text, TopologyDone, TopologyProgress, VoteTopology, VoteWithdrawn,
    WorldSizes,
};

/// State of the admission of peers.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Admission {
    /// The round that waits for its rings.
    pub(crate) round: Option<Round>,
    /// Peers that were dropped because of ports that cannot be reached.
    pub(crate) probation: Probation,
}

/// A round of admission that waits for its rings.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Round {
    pub(crate) since: Timestamp,
}

impl Admission {
    /// A round or an optimisation that has begun counts on everybody who voted for it, so a withdrawal waits for its
    /// end: then the vote has been answered, or is gone. The peer hears one or the other, so that it knows whether
    /// it took part.
    pub(crate) fn record_withdrawal(
        &self,
        roll: &mut Roll,
        out: &mut Outbox,
        id: PeerId,
        request: RequestId,
        in_optimization: bool,
    ) {
        let Some(peer) = roll.peers.get_mut(&id) else { return };
        // An unknown request has been answered meanwhile.
        if let Some(vote) = peer.topology_mut().filter(|vote| vote.request == request) {
            vote.withdrawn = true;
            peer.took_back.insert(CommonVote::Topology);
            if self.round.is_none() {
                roll.drop_withdrawn_votes(out);
            }
        } else if peer.take_query(|query| query.request == request).is_some() {
            let missing = roll.missing_for_pending();
            roll.tell_withdrawn(out, id, request, &missing);
        } else if !in_optimization && peer.take_optimize(|vote| vote.request == request).is_some() {
            peer.took_back.insert(CommonVote::Optimize);
            let missing = roll.missing_for_optimization();
            roll.tell_withdrawn(out, id, request, &missing);
        }
    }

    /// Rule: a vote that waits for a world of a size that it already has needs nobody else.
    pub(crate) fn answer_satisfied_waits(&self, roll: &mut Roll, out: &mut Outbox) -> bool {
        let have = roll.accepted_count();
        let satisfied = |vote: &TopologyVote| vote.wait_for_world > 0 && vote.wait_for_world <= have;
        let mut votes = roll.peers.values().filter_map(|peer| peer.topology());
        if self.round.is_some() || !votes.any(satisfied) {
            return false;
        }
        roll.answer_topology_votes(out, satisfied);
        true
    }

    /// Rule: a round begins when all accepted peers want one and it has something to do; and without any vote when
    /// there is nobody to vote.
    pub(crate) fn begin_round(&mut self, roll: &mut Roll, groups: &Groups, out: &mut Outbox) -> bool {
        if self.round.is_some() {
            return false;
        }
        let newcomers = self.probation.admissible(roll, groups);
        let somebody_waits = !newcomers.is_empty();
        let have = roll.accepted_count();
        let votes = || roll.voters().map(|(_, peer)| peer.topology());
        let wanted = if votes().next().is_none() {
            somebody_waits
        } else {
            votes().all(|vote| vote.is_some())
                && (somebody_waits || votes().flatten().any(|vote| vote.wait_for_world <= have))
        };
        if !wanted {
            return false;
        }
        for id in newcomers {
            groups.note_let_in(roll, out, id);
            roll.connect_newcomer(id);
        }
        self.round = Some(Round { since: roll.now });
        true
    }

    /// Whether the next round would begin if all accepted peers voted for it.
    pub(crate) fn waits_for_votes(&self, roll: &Roll, groups: &Groups) -> bool {
        let have = roll.accepted_count();
        let votes = || roll.peers.values().filter_map(|peer| peer.topology());
        let somebody_waits = !self.probation.admissible(roll, groups).is_empty();
        self.round.is_none() && (somebody_waits || votes().any(|vote| vote.wait_for_world <= have))
    }

    /// Rule: a round ends when every ring stands. Newcomers are accepted and votes are answered.
    pub(crate) fn end_round(&mut self, groups: &Groups, roll: &mut Roll, out: &mut Outbox) -> bool {
        let mut others = groups.values().filter(|group| group.formed.is_none());
        let is_open = self.round.is_some();
        if !is_open || !others.all(|group| group.reach.check.is_none() && group.ring_confirmed(roll)) {
            return false;
        }
        self.round = None;
        let newcomers: Vec<PeerId> = roll.connecting().collect();
        if !newcomers.is_empty() {
            roll.begin_world_epoch();
        }
        for id in &newcomers {
            if let Some(peer) = roll.peers.get_mut(id) {
                peer.membership = Membership::accepted();
            }
        }
        let sizes = roll.all_sizes();
        for id in newcomers {
            out.info(format!("accepted {}, world epoch {}", roll.name_of(id), roll.world_epoch));
            roll.tell_sizes(out, &sizes, id, M2c::Admitted);
        }
        let have = roll.accepted_count();
        roll.answer_topology_votes(out, |vote| vote.wait_for_world <= have);
        roll.drop_withdrawn_votes(out);
        true
    }

    /// Rule: the pending query is answered when all accepted peers have asked.
    pub(crate) fn answer_pending_queries(&self, groups: &Groups, roll: &mut Roll, out: &mut Outbox) -> bool {
        let nobody = roll.voters().next().is_none();
        if nobody || !roll.voters().all(|(_, peer)| peer.query().is_some()) {
            return false;
        }
        let pending = !self.probation.admissible(roll, groups).is_empty();
        for peer in roll.peers.values_mut() {
            if let Some(vote) = peer.take_query(|_| true) {
                let answer = PendingAnswer { request: vote.request, pending };
                out.send(peer.client, M2c::PendingAnswer(answer));
            }
        }
        true
    }
}

impl Roll {
    pub(crate) fn record_topology_vote(&mut self, out: &mut Outbox, id: PeerId, vote: VoteTopology) {
        let since = self.now;
        let VoteTopology { request, wait_for_world } = vote;
        if let Some(peer) = self.peers.get_mut(&id) {
            let vote = TopologyVote { request, wait_for_world, since, withdrawn: false, told: None };
            peer.give(RunVote::Topology(vote));
        }
        // A peer that waits for a larger world learns of its size, and lets others in that would still fetch ahead.
        out.changed |= self.note_voted(id, CommonVote::Topology) || wait_for_world > 0;
    }

    pub(crate) fn record_pending_vote(&mut self, out: &mut Outbox, id: PeerId, request: RequestId) {
        let since = self.now;
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.ask(PendingVote { request, since });
        }
        out.changed |= self.note_voted(id, CommonVote::Pending);
    }

    fn drop_withdrawn_votes(&mut self, out: &mut Outbox) {
        let missing = self.missing_for_world();
        let mut gone = Vec::new();
        for (id, peer) in &mut self.peers {
            gone.extend(peer.take_topology(|vote| vote.withdrawn).map(|vote| (*id, vote.request)));
        }
        for (id, request) in gone {
            self.tell_withdrawn(out, id, request, &missing);
        }
    }

    fn tell_withdrawn(&self, out: &mut Outbox, id: PeerId, request: RequestId, missing: &str) {
        out.send_peer(
            self,
            id,
            M2c::VoteWithdrawn(VoteWithdrawn { request, missing: Text::new(missing), verdict: None }),
        );
    }

    fn answer_topology_votes(&mut self, out: &mut Outbox, which: impl Fn(&TopologyVote) -> bool) {
        let mut answers = Vec::new();
        for (id, peer) in &mut self.peers {
            if let Some(vote) = peer.take_topology(|vote| which(vote)) {
                answers.push((*id, vote.request));
            }
        }
        let all = self.all_sizes();
        for (id, request) in answers {
            self.tell_sizes(out, &all, id, |sizes| M2c::TopologyDone(TopologyDone { request, sizes }));
        }
    }

    /// Sends a packet that contains the present sizes of the world.
    pub(crate) fn tell_sizes(
        &mut self,
        out: &mut Outbox,
        all: &AllSizes,
        id: PeerId,
        packet: impl FnOnce(WorldSizes) -> M2c,
    ) {
        let Some(group) = self.peers.get(&id).map(Peer::group) else { return };
        let sizes = all.of(group);
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.sizes_told = Some(sizes);
        }
        out.send_peer(self, id, packet(sizes));
    }

    /// Rule: every accepted peer knows the sizes of the world.
    pub(crate) fn push_sizes(&mut self, out: &mut Outbox) -> bool {
        let all = self.all_sizes();
        let is_outdated =
            |(_, peer): &(&PeerId, &Peer)| peer.accepted() && peer.sizes_told != Some(all.of(peer.group()));
        let outdated: Vec<PeerId> = self.peers.iter().filter(is_outdated).map(|(id, _)| *id).collect();
        for id in &outdated {
            self.tell_sizes(out, &all, *id, M2c::Sizes);
        }
        !outdated.is_empty()
    }

    /// Rule: who waits for a larger world learns of every change of its size.
    pub(crate) fn report_progress(&mut self, out: &mut Outbox) -> bool {
        let have = self.accepted_count();
        let outdated = |vote: &TopologyVote| vote.wait_for_world > 0 && vote.told != Some(have);
        if !self.peers.values().any(|peer| peer.topology().is_some_and(outdated)) {
            return false;
        }
        let missing = Text::new(self.missing_for_world());
        for peer in self.peers.values_mut() {
            if let Some(vote) = peer.topology_mut().filter(|vote| outdated(vote)) {
                vote.told = Some(have);
                let (request, want) = (vote.request, vote.wait_for_world);
                let progress = TopologyProgress { request, have, want, missing: missing.clone() };
                out.send(peer.client, M2c::TopologyProgress(progress));
            }
        }
        true
    }
}
