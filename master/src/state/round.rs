//! Admission: topology rounds, promotion of the first peers, the pending query.

use super::client::{Peer, Phase, TopologyVote};
use super::group::Group;
use super::{MasterState, Timestamp};
use pccl_protocol::{
    M2c, PeerId, PendingAnswer, RequestId, Text, TopologyDone, TopologyProgress, VoteTopology, VoteWithdrawn,
    WorldEpoch, WorldSizes,
};

/// A round of admission that waits for its rings.
#[derive(Debug)]
pub(super) struct Round {
    pub(super) since: Timestamp,
}

impl MasterState {
    pub(super) fn record_topology_vote(&mut self, id: PeerId, vote: VoteTopology) {
        let since = self.now;
        if let Some(peer) = self.peers.get_mut(&id) {
            let VoteTopology { request, wait_for_world } = vote;
            peer.topology =
                Some(TopologyVote { request, wait_for_world, since, withdrawn: false, told: None });
        }
    }

    /// A round or an optimisation that has begun counts on everybody who voted for it, so a withdrawal waits for its
    /// end: then the vote has been answered, or is gone. The peer hears one or the other, so that it knows whether
    /// it took part.
    pub(super) fn record_withdrawal(&mut self, id: PeerId, request: RequestId) {
        let (in_round, in_optimization) = (self.round.is_some(), self.optimization.is_some());
        let Some(peer) = self.peers.get_mut(&id) else { return };
        // An unknown request has been answered meanwhile.
        if let Some(vote) = peer.topology.as_mut().filter(|vote| vote.request == request) {
            vote.withdrawn = true;
            if !in_round {
                self.drop_withdrawn_votes();
            }
        } else if peer.pending.take_if(|vote| vote.request == request).is_some() {
            let missing = self.missing_for_pending();
            self.tell_withdrawn(id, request, missing);
        } else if !in_optimization && peer.optimize.take_if(|vote| vote.request == request).is_some() {
            let missing = self.missing_for_optimization();
            self.tell_withdrawn(id, request, missing);
        }
    }

    fn tell_withdrawn(&mut self, id: PeerId, request: RequestId, missing: String) {
        self.send_peer(id, M2c::VoteWithdrawn(VoteWithdrawn { request, missing: Text::new(missing) }));
    }

    fn drop_withdrawn_votes(&mut self) {
        let missing = self.missing_for_world();
        let mut gone = Vec::new();
        for (id, peer) in &mut self.peers {
            gone.extend(peer.topology.take_if(|vote| vote.withdrawn).map(|vote| (*id, vote.request)));
        }
        for (id, request) in gone {
            self.tell_withdrawn(id, request, missing.clone());
        }
    }

    /// Newcomers whose rings are being connected.
    fn connecting(&self) -> impl Iterator<Item = PeerId> {
        let connects = |peer: &Peer| peer.phase == Phase::Connecting && !peer.info.formed;
        self.peers.iter().filter(move |(_, peer)| connects(peer)).map(|(id, _)| *id)
    }

    /// Rule: a vote that waits for a world of a size that it already has needs nobody else.
    pub(super) fn answer_satisfied_waits(&mut self) -> bool {
        let have = self.accepted_count();
        let satisfied = |vote: &TopologyVote| vote.wait_for_world > 0 && vote.wait_for_world <= have;
        if self.round.is_some() || !self.peers.values().any(|p| p.topology.as_ref().is_some_and(satisfied)) {
            return false;
        }
        self.answer_topology_votes(|vote| satisfied(vote));
        true
    }

    /// Rule: a round begins when all accepted peers want one and it has something to do; and without any vote when
    /// there is nobody to vote.
    pub(super) fn begin_round(&mut self) -> bool {
        if self.round.is_some() {
            return false;
        }
        let newcomers = self.admissible();
        let somebody_waits = !newcomers.is_empty();
        let have = self.accepted_count();
        let wanted = if !self.peers.values().any(Peer::has_a_say) {
            somebody_waits
        } else {
            let votes = || self.peers.values().filter(|p| p.has_a_say()).map(|p| p.topology.as_ref());
            votes().all(|vote| vote.is_some())
                && (somebody_waits || votes().flatten().any(|vote| vote.wait_for_world <= have))
        };
        if !wanted {
            return false;
        }
        for id in newcomers {
            if let Some(peer) = self.peers.get_mut(&id) {
                peer.phase = Phase::Connecting;
            }
        }
        self.round = Some(Round { since: self.now });
        true
    }

    /// Rule: a round ends when every ring stands. Newcomers are accepted and votes are answered.
    pub(super) fn end_round(&mut self) -> bool {
        let is_ready =
            |group: &Group| group.formed.is_some() || (group.check.is_none() && self.ring_confirmed(group));
        if self.round.is_none() || !self.groups.values().all(is_ready) {
            return false;
        }
        self.round = None;
        let newcomers: Vec<PeerId> = self.connecting().collect();
        if !newcomers.is_empty() {
            self.world_epoch = WorldEpoch(self.world_epoch.0 + 1);
        }
        for id in &newcomers {
            if let Some(peer) = self.peers.get_mut(id) {
                peer.phase = Phase::Accepted;
            }
        }
        for id in newcomers {
            let name = self.name_of(id);
            self.info(format!("accepted {name}, world epoch {}", self.world_epoch));
            self.tell_sizes(id, M2c::Admitted);
        }
        let have = self.accepted_count();
        self.answer_topology_votes(|vote| vote.wait_for_world <= have);
        self.drop_withdrawn_votes();
        true
    }

    fn answer_topology_votes(&mut self, which: impl Fn(&TopologyVote) -> bool) {
        let mut answers = Vec::new();
        for (id, peer) in &mut self.peers {
            if let Some(vote) = peer.topology.take_if(|vote| which(vote)) {
                answers.push((*id, vote.request));
            }
        }
        for (id, request) in answers {
            self.tell_sizes(id, |sizes| M2c::TopologyDone(TopologyDone { request, sizes }));
        }
    }

    /// Sends a packet that contains the present sizes of the world.
    pub(super) fn tell_sizes(&mut self, id: PeerId, packet: impl FnOnce(WorldSizes) -> M2c) {
        let Some(group) = self.peers.get(&id).map(super::client::Peer::group) else { return };
        let sizes = self.sizes(group);
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.sizes_told = Some(sizes);
        }
        self.send_peer(id, packet(sizes));
    }

    /// Rule: every accepted peer knows the sizes of the world.
    pub(super) fn push_sizes(&mut self) -> bool {
        let counts = self.group_counts();
        let stale: Vec<PeerId> = self
            .peers
            .iter()
            .filter(|(_, peer)| peer.accepted())
            .filter(|(_, peer)| peer.sizes_told != Some(self.sizes_from(&counts, peer.group())))
            .map(|(id, _)| *id)
            .collect();
        for id in &stale {
            self.tell_sizes(*id, M2c::Sizes);
        }
        !stale.is_empty()
    }

    /// Rule: the pending query is answered when all accepted peers have asked.
    pub(super) fn answer_pending_queries(&mut self) -> bool {
        let mut voters = self.peers.values().filter(|peer| peer.has_a_say()).peekable();
        if voters.peek().is_none() || !voters.all(|peer| peer.pending.is_some()) {
            return false;
        }
        let pending = !self.admissible().is_empty();
        let mut answers = Vec::new();
        for (id, peer) in &mut self.peers {
            answers.extend(peer.pending.take().map(|vote| (*id, vote.request)));
        }
        for (id, request) in answers {
            self.send_peer(id, M2c::PendingAnswer(PendingAnswer { request, pending }));
        }
        true
    }

    /// Rule: who waits for a larger world learns of every change of its size.
    pub(super) fn report_progress(&mut self) -> bool {
        let have = self.accepted_count();
        let outdated = |vote: &TopologyVote| vote.wait_for_world > 0 && vote.told != Some(have);
        if !self.peers.values().any(|peer| peer.topology.as_ref().is_some_and(outdated)) {
            return false;
        }
        let missing = pccl_protocol::Text::new(self.missing_for_world());
        let mut news = Vec::new();
        for (id, peer) in &mut self.peers {
            if let Some(vote) = peer.topology.as_mut().filter(|vote| outdated(vote)) {
                vote.told = Some(have);
                let (request, want) = (vote.request, vote.wait_for_world);
                news.push((*id, TopologyProgress { request, have, want, missing: missing.clone() }));
            }
        }
        for (id, progress) in news {
            self.send_peer(id, M2c::TopologyProgress(progress));
        }
        true
    }
}
