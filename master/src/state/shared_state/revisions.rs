//! Which revision a group may commit: fresh peers never commit over a newer one that the run has known, or that a peer
//! offers which waits to be let in. Where only an operator can choose, everybody is told, and the operator is obeyed.

use crate::state::MasterState;
use crate::state::groups::all_groups::Groups;
use crate::state::groups::group::{Group, SyncVote};
use crate::state::groups::losses::Loss;
use crate::state::membership::client::Peer;
use crate::state::membership::members::Roll;
use crate::state::membership::sender::Phase;
use crate::state::types::Timestamp;
use pccl_protocol::{
    Cause, Culprit, GroupId, KickCode, KickReason, M2c, Operation, PeerId, Phase as Stage, ResumeOffer,
    Revision, SyncId, SyncInitiate, Text, Verdict, state_digest,
};
use std::collections::{BTreeMap, BTreeSet};

/// The knowledge of the revisions of the groups that let newcomers in. It outlives their members.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Revisions {
    /// For groups that have committed nothing: nothing below this is committed.
    floor: Option<Revision>,
    groups: BTreeMap<GroupId, History>,
    /// Syncs that failed because of a newer revision, until one succeeds.
    refused: BTreeMap<GroupId, Refusal>,
    /// Peers that came too late with what they offer, since when.
    late: BTreeMap<PeerId, Timestamp>,
}

/// The revision that a group has committed.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct History {
    /// The last revision, or the one that an operator chose since.
    newest: Revision,
    /// An operator chose it, and it is not committed yet.
    is_chosen: bool,
    /// The last of those who held it has left on purpose.
    has_ended: bool,
}

#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct Refusal {
    since: Timestamp,
    /// The revision that would have been committed, if nobody who waits offers more.
    lost: Option<Revision>,
    text: Text,
}

impl Revisions {
    /// Those of a master that commits nothing below `floor`.
    pub(crate) fn new(floor: Option<Revision>) -> Self {
        Self { floor, ..Self::default() }
    }

    fn newest(&self, group: GroupId) -> Option<Revision> {
        self.groups.get(&group).map(|history| history.newest).or(self.floor)
    }

    /// A sync was committed. `false`: an operator has chosen a newer revision meanwhile.
    #[must_use]
    pub(crate) fn committed(&mut self, group: GroupId, revision: Revision) -> bool {
        if self.groups.get(&group).is_some_and(|known| known.is_chosen && known.newest > revision) {
            return false;
        }
        self.refused.remove(&group);
        self.groups.insert(group, History { newest: revision, is_chosen: false, has_ended: false });
        true
    }

    /// The last of those who hold what a group has committed is gone.
    fn last_holder_gone(&mut self, group: GroupId, on_purpose: bool) {
        if let Some(history) = self.groups.get_mut(&group) {
            history.has_ended = on_purpose;
        }
    }

    /// Nobody is there. A training whose last peer has left on purpose is over; any other one may go on.
    pub(crate) fn forget_what_is_over(&mut self) {
        let before = self.groups.len();
        self.groups.retain(|_, history| !history.has_ended);
        if self.groups.len() < before {
            self.floor = None;
        }
        self.refused.clear();
        self.late.clear();
    }
}

/// The meaning of an operator's choice for a group.
enum Choice {
    /// Nobody there holds more; the group goes on from the chosen revision.
    Resume,
    /// The group stays at its own, and these peers are turned away.
    Keep(Vec<PeerId>),
}

impl Groups {
    /// The revision that the living members of a group have committed and hold.
    fn held_revision(&self, roll: &Roll, group: GroupId) -> Option<Revision> {
        let group = self.get(&group)?;
        let is_held = group.shared.holders.iter().any(|id| roll.peers.contains_key(id));
        group.shared.committed.filter(|_| is_held && group.formed.is_none())
    }

    /// A newcomer that offers what cannot follow from what its group holds, and so waits for the choice of an operator:
    /// the revision of the group, and the offered one.
    pub(crate) fn lateness(&self, roll: &Roll, peer: &Peer) -> Option<(Revision, Revision)> {
        let offered = peer.resume_offer().filter(|_| peer.phase() == Phase::Pending)?;
        let held = self.held_revision(roll, peer.info.group)?;
        (offered.0 > held.0.saturating_add(1)).then_some((held, offered))
    }
}

impl Peer {
    /// The revision that a newcomer offers to a group that lets newcomers in.
    fn resume_offer(&self) -> Option<Revision> {
        let waits = matches!(self.phase(), Phase::Pending | Phase::Connecting) && !self.info.formed;
        self.info.resume.filter(|_| waits).map(|offer| offer.revision)
    }
}

impl Roll {
    /// The peers whose tensors are the right ones: those who took part in the last committed sync; if none of them
    /// votes, those who offered the highest revision that is voted for.
    pub(crate) fn trusted_with_shapes(
        &self,
        group: &Group,
        votes: &BTreeMap<PeerId, SyncVote>,
    ) -> BTreeSet<PeerId> {
        if group.formed.is_some() || votes.keys().any(|id| group.shared.holders.contains(id)) {
            return group.shared.holders.clone();
        }
        let highest = votes.values().map(|vote| vote.revision).max();
        let offers = |id: &PeerId| self.peers.get(id).is_some_and(|peer| peer.info.resume.is_some());
        let of_highest = votes.iter().filter(|(id, vote)| Some(vote.revision) == highest && offers(id));
        of_highest.map(|(id, _)| *id).collect()
    }
}

impl MasterState {
    /// Why a newcomer that is late is not let in.
    pub(crate) fn blocked_by_history(&self, id: PeerId) -> Option<String> {
        let peer = self.roll.peers.get(&id)?;
        let (held, offered) = self.groups.lateness(&self.roll, peer)?;
        let group = peer.info.group;
        Some(format!(
            "{} offers revision {offered} of the shared state, but group {group} has gone on without it, at revision \
             {held}; an operator chooses: `pccl-master accept-revision {offered}` has the group take that state, \
             `pccl-master accept-revision {held}` turns this peer away",
            peer.name(id)
        ))
    }

    /// A vote of a peer that said exactly what it brings.
    pub(crate) fn admit_offered(&self, id: PeerId, vote: &SyncInitiate) -> Result<(), KickReason> {
        let Some(peer) = self.roll.peers.get(&id).filter(|peer| !peer.info.formed) else { return Ok(()) };
        let Some(ResumeOffer { revision, digest: Some(digest) }) = peer.info.resume else { return Ok(()) };
        // The vote has digests with a key, which is another one in each run; the offer has not.
        let found = match self.roll.options.state_key {
            Some(_) => vote.offered,
            None => Some(state_digest(&vote.entries).to_u128()),
        };
        if vote.revision == revision && found == Some(digest) {
            return Ok(());
        }
        let text = if vote.revision == revision {
            format!(
                "it offered revision {revision} with other tensors than those with which it came to the sync"
            )
        } else {
            format!("it offered revision {revision} and came to the sync with revision {}", vote.revision)
        };
        Err(KickReason::new(KickCode::FalseOffer, text))
    }

    /// An offer that was made without a digest is void if the peer comes with less.
    pub(crate) fn check_offer(&mut self, id: PeerId, vote: &SyncInitiate) {
        let Some(peer) = self.roll.peers.get_mut(&id) else { return };
        let void = peer.info.resume.take_if(|offer| offer.revision > vote.revision);
        if let Some(offer) = void.filter(|_| !peer.info.formed) {
            let text = format!(
                "{} held revision {} when it registered, and votes for revision {}: what it held is not there any more",
                self.roll.name_of(id),
                offer.revision,
                vote.revision
            );
            self.out.warn(text);
        }
    }

    /// Why an election has no effect: it would commit an older revision than the run knows, or can have.
    pub(crate) fn refuse_revision(
        &mut self,
        group_id: GroupId,
        votes: &BTreeMap<PeerId, SyncVote>,
        (sync, elected): (SyncId, Revision),
    ) -> Option<Verdict> {
        let group = self.groups.get(&group_id)?;
        if group.formed.is_some() || votes.keys().any(|id| group.shared.holders.contains(id)) {
            return None;
        }
        let waiting = self.roll.peers.iter().filter(|(_, peer)| peer.info.group == group_id);
        let offers = waiting.filter_map(|(id, peer)| Some((peer.resume_offer()?, *id)));
        let best = offers.max_by_key(|(revision, _)| *revision).filter(|(revision, _)| *revision > elected);
        let held = votes.values().map(|vote| vote.revision).max();
        let lost = self.revisions.newest(group_id).filter(|newest| elected < *newest && held < Some(*newest));
        let (cause, culprits, detail) = match (best, lost) {
            (Some((offered, id)), _) => {
                let text = format!(
                    "{} offers revision {offered} of the shared state and waits to be let in, the members have \
                     revision {elected}: let it in (update_topology), then sync again",
                    self.roll.name_of(id)
                );
                (Cause::ResumeWaits, vec![self.roll.culprit_of(id)], text)
            }
            (None, Some(newest)) => {
                let text = format!(
                    "group {group_id} has committed revision {newest} of the shared state, of those who are there \
                     nobody holds it, and they would go on from revision {elected}: wait for a peer that holds it, \
                     or start one from a file; an operator who gives it up says `pccl-master accept-revision {elected}`"
                );
                (Cause::StateLost, Vec::<Culprit>::new(), text)
            }
            (None, None) => return None,
        };
        let detail = Text::new(detail);
        let lost = (cause == Cause::StateLost).then_some(elected);
        let since = self.revisions.refused.get(&group_id).map_or(self.roll.now, |refusal| refusal.since);
        self.revisions.refused.insert(group_id, Refusal { since, lost, text: detail.clone() });
        let (operation, phase) = (Operation::Sync(sync), Stage::Voting);
        Some(Verdict { cause, culprits, operation, phase, bytes_done: 0, silent_ms: 0, detail })
    }

    /// A sync was committed by these voters.
    pub(crate) fn note_revision(&mut self, group_id: GroupId, revision: Revision, voters: &[PeerId]) {
        for id in voters {
            if let Some(peer) = self.roll.peers.get_mut(id) {
                peer.info.resume = None;
            }
        }
        let Some(group) = self.groups.get_mut(&group_id) else { return };
        if group.formed.is_some() || self.revisions.committed(group_id, revision) {
            return;
        }
        group.shared.void();
    }

    /// A peer is gone.
    pub(crate) fn note_lost_holder(&mut self, group_id: GroupId, id: PeerId, loss: &Loss) {
        self.revisions.late.remove(&id);
        let Some(group) = self.groups.get(&group_id) else { return };
        let is_left = |other: &PeerId| *other != id && self.roll.peers.contains_key(other);
        if group.shared.holders.contains(&id) && !group.shared.holders.iter().any(is_left) {
            self.revisions.last_holder_gone(group_id, loss.cause == Cause::PeerLeft);
        }
    }

    /// Rule: everybody concerned knows of a peer that comes too late with a newer state.
    pub(crate) fn tell_of_late_offers(&mut self) -> bool {
        let is_late = |id: &PeerId| {
            self.roll.peers.get(id).is_some_and(|peer| self.groups.lateness(&self.roll, peer).is_some())
        };
        let over: Vec<PeerId> = self.revisions.late.keys().filter(|id| !is_late(id)).copied().collect();
        let fresh = self.roll.peers.keys().filter(|id| is_late(id) && !self.revisions.late.contains_key(id));
        let fresh: Vec<(PeerId, String)> =
            fresh.filter_map(|id| Some((*id, self.blocked_by_history(*id)?))).collect();
        for (id, text) in &fresh {
            self.revisions.late.insert(*id, self.roll.now);
            let Some(group) = self.roll.peers.get(id).map(Peer::group) else { continue };
            let mut told = self.groups.members(group);
            told.insert(*id);
            let told: Vec<PeerId> = told.into_iter().collect();
            self.out.send_peers(&self.roll, &told, M2c::Warning(Text::new(text)));
            self.out.warn(text.clone());
        }
        self.revisions.late.retain(|id, _| !over.contains(id));
        !fresh.is_empty() || !over.is_empty()
    }

    /// The waits because of revisions.
    pub(crate) fn revision_waits(&self) -> Vec<(Timestamp, String)> {
        let late = self.revisions.late.iter();
        let late = late.filter_map(|(id, since)| Some((*since, self.blocked_by_history(*id)?)));
        let refused = self.revisions.refused.iter().filter(|(id, _)| self.groups.contains_key(id));
        late.chain(refused.map(|(_, refusal)| (refusal.since, refusal.text.as_str().to_owned()))).collect()
    }

    /// Groups that wait for the choice of an operator, with the revision that they would go on from as they are.
    pub fn undecided_revisions(&self) -> Vec<(GroupId, Revision)> {
        let lost = self.revisions.refused.iter().filter(|(id, _)| self.groups.contains_key(id));
        let lost = lost.filter_map(|(id, refusal)| Some((*id, refusal.lost?)));
        let late = self
            .roll
            .peers
            .values()
            .filter_map(|peer| Some((peer.info.group, self.groups.lateness(&self.roll, peer)?.0)));
        lost.chain(late).collect::<BTreeMap<_, _>>().into_iter().collect()
    }

    /// The groups that a choice of an operator is for.
    fn chosen_groups(&self, group: Option<GroupId>) -> Vec<GroupId> {
        let known = self.groups.iter().filter(|(_, group)| group.formed.is_none()).map(|(id, _)| *id);
        let all: BTreeSet<GroupId> = known.chain(self.revisions.groups.keys().copied()).collect();
        group.map_or_else(|| all.into_iter().collect(), |one| vec![one])
    }

    fn choice(&self, id: GroupId, revision: Revision) -> Result<Choice, String> {
        let held = self.groups.held_revision(&self.roll, id);
        let Some(held) = held.filter(|held| revision <= *held) else { return Ok(Choice::Resume) };
        let is_late = |peer: &Peer| peer.info.group == id && self.groups.lateness(&self.roll, peer).is_some();
        let late: Vec<PeerId> =
            self.roll.peers.iter().filter(|(_, peer)| is_late(peer)).map(|(id, _)| *id).collect();
        if late.is_empty() {
            let text =
                format!("group {id} is at revision {held}, and its peers hold it: nothing has to be chosen");
            return Err(text);
        }
        Ok(Choice::Keep(late))
    }

    /// The effect of accepting a revision ([`Input::AcceptRevision`](crate::state::Input::AcceptRevision)), in words.
    ///
    /// # Errors
    /// One sentence: why there is nothing to choose.
    pub fn describe_choice(&self, group: Option<GroupId>, revision: Revision) -> Result<String, String> {
        let groups = self.chosen_groups(group);
        if groups.is_empty() {
            return Ok(format!("nothing below revision {revision} is committed"));
        }
        let choices: Vec<_> = groups.iter().map(|id| (*id, self.choice(*id, revision))).collect();
        let texts: Vec<String> = choices
            .iter()
            .filter_map(|(id, choice)| match choice.as_ref().ok()? {
                Choice::Resume => Some(format!("group {id} goes on from revision {revision} or a newer one")),
                Choice::Keep(late) => {
                    let names: Vec<String> = late.iter().map(|id| self.roll.name_of(*id)).collect();
                    Some(format!("group {id} goes on as it is, turned away: {}", names.join(", ")))
                }
            })
            .collect();
        match choices.into_iter().find_map(|(_, choice)| choice.err()) {
            Some(error) if texts.is_empty() => Err(error),
            _ => Ok(texts.join("; ")),
        }
    }

    /// An operator chooses the revision from which groups go on.
    pub(crate) fn accept_revision(&mut self, group: Option<GroupId>, revision: Revision) {
        let groups = self.chosen_groups(group);
        if groups.is_empty() {
            self.revisions.floor = Some(revision);
        }
        for id in groups {
            match self.choice(id, revision) {
                Ok(Choice::Resume) => {
                    if let Some(group) = self.groups.get_mut(&id) {
                        group.shared.void();
                    }
                    self.revisions.refused.remove(&id);
                    let history = History { newest: revision, is_chosen: true, has_ended: false };
                    self.revisions.groups.insert(id, history);
                }
                Ok(Choice::Keep(late)) => {
                    for id in late {
                        let text = format!(
                            "an operator has its group go on from revision {revision}, without what this peer offers"
                        );
                        self.kick(id, KickReason::new(KickCode::Operator, text));
                    }
                }
                Err(_) => {}
            }
        }
    }
}
