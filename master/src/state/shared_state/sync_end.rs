//! The end of a sync: what voters report, whose fault a failed fetch is, and the outcome.

use super::fetches::{Failures, judge};
use super::serving::Agreed;
use crate::state::MasterState;
use crate::state::Timestamp;
use crate::state::groups::group::{Group, Sync, SyncVoter, VoterReport};
use crate::state::groups::losses::Loss;
use crate::state::membership::members::Roll;
use crate::state::operations::verdicts::NO_STATE;
use pccl_protocol::{
    Cause, GroupId, KickCode, KickReason, M2c, Operation, PeerId, Phase, SourceFault, SyncComplete, SyncId,
    SyncOutcome, SyncOutcomeFor, SyncReport, Text, Verdict,
};
use std::collections::{BTreeMap, BTreeSet};

impl Roll {
    /// Sources that failed a voter, are still there, and have not been heard since that can be judged.
    pub(crate) fn unheard_sources(&self, report: &VoterReport) -> impl Iterator<Item = PeerId> {
        let due = match report {
            VoterReport::Failed { at, .. } => *at + self.options.edge_grace,
            VoterReport::Awaited | VoterReport::Ready => Timestamp::default(),
        };
        let unheard = move |source: &PeerId| self.peers.get(source).is_some_and(|peer| peer.heard_at < due);
        report.failed_sources().filter(unheard)
    }
}

impl MasterState {
    pub(crate) fn admit_sync_complete(
        &self,
        id: PeerId,
        group: GroupId,
        complete: &SyncComplete,
    ) -> Result<(), KickReason> {
        let refuse = |how: String| {
            Err(KickReason::new(KickCode::Protocol, format!("completed sync {} {how}", complete.sync)))
        };
        match self.groups.get(&group).and_then(|group| group.shared.sync.as_ref()) {
            Some(Sync::Running { sync, voters, .. }) if *sync == complete.sync => {
                let Some(voter) = voters.get(&id) else { return Ok(()) };
                let named = complete.failures.iter().map(|one| one.peer).chain(complete.gave.iter().copied());
                let foreign = named.into_iter().find(|one| !voter.sources.contains(one));
                match foreign {
                    _ if voter.report != VoterReport::Awaited => refuse("twice".into()),
                    Some(one) => refuse(format!("with {one}, which is none of its sources")),
                    None => Ok(()),
                }
            }
            _ if complete.sync > self.last_sync => refuse("before it began".into()),
            _ => Ok(()),
        }
    }

    pub(crate) fn record_sync_complete(&mut self, id: PeerId, group_id: GroupId, complete: SyncComplete) {
        let SyncComplete { sync: completed, report, failures, gave } = complete;
        let at = self.roll.now;
        // A source that is not heard may have stopped, which shows nothing about the way to it.
        let patience = self.roll.options.beat_interval * 2;
        let is_heard = |source: PeerId| {
            self.roll.peers.get(&source).is_none_or(|peer| at.since(peer.heard_at) <= patience)
        };
        let (heard, silent): (Vec<_>, Vec<_>) = failures.iter().partition(|one| is_heard(one.peer));
        let heard: Vec<(PeerId, SourceFault)> = heard.into_iter().map(|one| (one.peer, one.fault)).collect();
        let silent = silent.into_iter().map(|one| one.peer).collect();
        let Some(group) = self.groups.get_mut(&group_id) else { return };
        let Some(Sync::Running { sync, voters, .. }) = &mut group.shared.sync else { return };
        let Some(voter) = voters.get_mut(&id).filter(|_| *sync == completed) else { return };
        for (source, _) in &heard {
            group.shared.fetches.failed(*source);
        }
        voter.report = match report {
            SyncReport::Ready(_) => {
                for source in &gave {
                    group.shared.fetches.succeeded(*source);
                }
                voter.gave = gave;
                VoterReport::Ready
            }
            SyncReport::Failed(text) => VoterReport::Failed { text, at, failures: heard, silent },
        };
    }

    /// Whether all have reported and failed fetches can be judged. They are held back for the same time as a broken
    /// edge: the death of a source may explain them. So a sign of life of each source is waited for, too: nobody could
    /// sync before a silent one is heard again or dropped.
    pub(crate) fn failures_due(&self, voters: &BTreeMap<PeerId, SyncVoter>) -> bool {
        voters.values().all(|voter| match &voter.report {
            VoterReport::Awaited => false,
            VoterReport::Ready => true,
            VoterReport::Failed { at, .. } => {
                let due = *at + self.roll.options.edge_grace;
                due <= self.roll.tick && self.roll.unheard_sources(&voter.report).next().is_none()
            }
        })
    }

    /// When a sync has to be looked at again; `None` while only news from a peer can change something.
    pub(crate) fn sync_deadline(&self, sync: &Sync) -> Option<Timestamp> {
        let Sync::Running { voters, .. } = sync else { return None };
        let mut latest = None;
        let mut judged = true;
        for voter in voters.values() {
            match &voter.report {
                VoterReport::Awaited => return None,
                VoterReport::Ready => {}
                VoterReport::Failed { at, .. } => {
                    latest = latest.max(Some(*at + self.roll.options.edge_grace));
                    judged &= self.roll.unheard_sources(&voter.report).next().is_none();
                }
            }
        }
        latest.filter(|due| judged || *due > self.roll.now)
    }

    /// The peers that have to go so that the others can sync, and why. Nobody, if the end of a source explains a
    /// failure.
    pub(crate) fn culprits_of_fetches(
        &self,
        group: &Group,
        voters: &BTreeMap<PeerId, SyncVoter>,
        lost: &[Loss],
    ) -> Vec<(PeerId, KickReason)> {
        let is_lost = |voter: &SyncVoter| lost.iter().any(|one| voter.sources.contains(&one.culprit.peer));
        let mut texts: BTreeMap<PeerId, &Text> = BTreeMap::new();
        let mut all = Failures::new();
        for (id, voter) in voters {
            if let VoterReport::Failed { text, failures, silent, .. } = &voter.report
                && !is_lost(voter)
                && (silent.is_empty() || !failures.is_empty())
            {
                texts.insert(*id, text);
                all.insert(*id, failures.clone());
            }
        }
        let gave: BTreeSet<PeerId> = voters.values().flat_map(|voter| voter.gave.iter().copied()).collect();
        // The state is lost with the last of those who hold it.
        let holders: BTreeSet<PeerId> =
            group.shared.holders.iter().filter(|id| voters.contains_key(id)).copied().collect();
        let may_go = |sources: &BTreeSet<PeerId>| holders.is_empty() || !holders.is_subset(sources);
        let culprits = judge(&all, &gave, |id| group.shared.fetches.is_doubtful(id), may_go);
        let mut reasons = Vec::new();
        for id in &culprits.receivers {
            let text = texts.get(id).map_or("", |text| text.as_str());
            let only = culprits.spared.iter().filter(|source| all[id].iter().any(|one| one.0 == **source));
            let only: Vec<String> = only.map(|source| self.state_address(*id, *source)).collect();
            let text = match only.is_empty() {
                true => format!("it {NO_STATE}: {text}"),
                false => format!(
                    "nobody could fetch the shared state, of which {} holds the only copy; open that port there: \
                     {text}",
                    only.join(" or ")
                ),
            };
            reasons.push((*id, KickReason::new(KickCode::Unreachable, text)));
        }
        for id in &culprits.sources {
            let of = |tried: &[(PeerId, SourceFault)]| tried.iter().any(|one| one.0 == *id);
            let victims: Vec<PeerId> =
                all.iter().filter(|(_, tried)| of(tried)).map(|(victim, _)| *victim).collect();
            let Some(first) = victims.first() else { continue };
            let text = format!(
                "nobody could fetch the shared state from it: {} peers failed at {}; {}: {}",
                victims.len(),
                self.state_address(*first, *id),
                self.roll.name_of(*first),
                texts[first]
            );
            reasons.push((*id, KickReason::new(KickCode::Unreachable, text)));
        }
        reasons
    }

    /// Host and port where `viewer` fetches from `source`, with its name.
    fn state_address(&self, viewer: PeerId, source: PeerId) -> String {
        let address = self.roll.state_source(viewer, source);
        let address = address.map_or(String::new(), |it| format!(", {}", it.hosts.listed(it.port)));
        format!("{}{address}", self.roll.name_of(source))
    }

    pub(crate) fn no_source(&self, sync: SyncId, id: PeerId, voter: &SyncVoter, lost: &[Loss]) -> Verdict {
        let reporter = self.roll.name_of(id);
        let detail = match &voter.report {
            VoterReport::Failed { text, .. } => format!("{reporter} {NO_STATE}: {text}"),
            VoterReport::Awaited | VoterReport::Ready => String::new(),
        };
        let source = lost.iter().find(|loss| voter.sources.contains(&loss.culprit.peer));
        let (cause, culprit, silent_ms) = match source {
            Some(loss) => (loss.cause, loss.culprit.clone(), loss.silent_ms),
            None => (Cause::NoSource, self.roll.culprit_of(id), 0),
        };
        // Why the source went comes first; that somebody missed it is what follows.
        let why = source.map(|loss| loss.detail.as_str()).filter(|why| !why.is_empty());
        let detail = why.map_or_else(|| detail.clone(), |why| format!("{why}; {detail}"));
        Verdict {
            cause,
            culprits: vec![culprit],
            operation: Operation::Sync(sync),
            phase: Phase::Transfer,
            bytes_done: 0,
            silent_ms,
            detail: Text::new(detail),
        }
    }

    pub(crate) fn end_sync(&mut self, group_id: GroupId, outcome: SyncOutcome) {
        let Some(group) = self.groups.get_mut(&group_id) else { return };
        let Some(Sync::Running { sync, content, voters, .. }) = group.shared.sync.take() else { return };
        match &outcome {
            SyncOutcome::Committed(revision) => {
                group.shared.committed = group.shared.committed.max(Some(*revision));
                group.shared.fetches.settled();
                group.shared.holders = voters.keys().copied().collect();
                group.shared.together_in = Some(group.epoch);
                group.work.history.note_sync();
                let before = group.shared.agreed.take().filter(|_| group.formed.is_none());
                let agreed = Agreed::next(before.as_ref(), sync, *revision, content);
                group.shared.agreed = Some(agreed).filter(|_| group.formed.is_none());
                let (revision, voters): (_, Vec<PeerId>) = (*revision, voters.keys().copied().collect());
                self.note_revision(group_id, revision, &voters);
                self.out.debug(format!("group {group_id}: sync {sync} committed revision {revision}"));
            }
            SyncOutcome::Failed(verdict) => {
                for (id, voter) in &voters {
                    if let VoterReport::Failed { silent, .. } = &voter.report
                        && silent.is_empty()
                        && verdict.cause == Cause::NoSource
                    {
                        group.shared.fetches.doubt(*id);
                    }
                }
                let text = format!("group {group_id}: {verdict}");
                self.out.warn(text);
            }
        }
        for (id, voter) in voters {
            let outcome = outcome.clone();
            self.out.send_peer(
                &self.roll,
                id,
                M2c::SyncOutcome(SyncOutcomeFor { request: voter.request, outcome }),
            );
        }
    }
}
