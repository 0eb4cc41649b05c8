//! Whether the verdicts about different calls are right: judged from the votes.

use super::Checker;
use pccl_protocol::*;

impl Checker {
    /// A peer that is dropped for its tensors has other tensors than somebody in its group. Where members hold the
    /// committed state, it has other tensors than one of those.
    pub(crate) fn judge_shape(&self, client: u64, peer: PeerId) -> Result<(), String> {
        let shape = |peer: PeerId| {
            let entries = &self.sync_votes.get(&peer)?.entries;
            let of = |e: &StateEntry| (e.key.clone(), e.count, e.data_type, e.allow_inequality);
            Some(entries.iter().map(of).collect::<Vec<_>>())
        };
        let group = self.clients[&client].group;
        let holders = self.holders.get(&(group, self.life(group)));
        let holds = |client: &u64| holders.is_some_and(|(_, holders)| holders.contains(client));
        let any = self.members(group).any(|(number, _)| holds(number));
        let other = self.members(group).any(|(number, seen)| {
            (!any || holds(number)) && seen.peer.is_some_and(|other| shape(other) != shape(peer))
        });
        if other { Ok(()) } else { Err("its tensors are those of the others".into()) }
    }

    /// Of the members that voted for an attempt of a collective, whom their calls name that is no member: nothing for a
    /// call that fits. Groups count their attempts alike; only those are looked at of which all of `who` are members.
    fn misfits(&self, op: OpId, who: &[PeerId]) -> Vec<Option<Vec<PeerId>>> {
        let attempts = self.votes.iter().filter(|((.., id), _)| *id == op);
        let of_attempt = attempts.flat_map(|((group, life, _), votes)| {
            let ring = self.rings.get(&(*group, *life, op.epoch)).into_iter().flatten();
            let ring: Vec<PeerId> = ring.map(|member| member.0).collect();
            // A group that has been empty counts anew: votes of those who were there before are of no account.
            let is_member = |client: &u64| {
                self.clients.get(client).and_then(|seen| seen.peer).is_some_and(|peer| ring.contains(&peer))
            };
            let is_theirs = who.iter().all(|peer| ring.contains(peer));
            let votes = votes.iter().filter(|(client, _)| is_theirs && is_member(client));
            let misfits = votes.map(|(_, vote)| vote.collective.misfit(&ring).map(|misfit| misfit.missing));
            misfits.collect::<Vec<_>>()
        });
        of_attempt.collect()
    }

    /// A call for other members must have been made: by one of the members, in that ring.
    fn judge_members(&self, verdict: &Verdict, named: &[PeerId]) -> Result<(), String> {
        let Operation::Collective(CollectiveId { op, .. }) = verdict.operation else {
            return Err("of no collective".into());
        };
        let misfit = self.misfits(op, &[]).iter().flatten().any(|missing| missing == named);
        if misfit || named.is_empty() && self.has_uninformed(op) {
            Ok(())
        } else {
            Err("it was called for the members that there are".into())
        }
    }

    /// Whether somebody voted for an attempt without knowing its ring.
    fn has_uninformed(&self, op: OpId) -> bool {
        let attempts = self.votes.iter().filter(|((.., id), _)| *id == op);
        attempts.flat_map(|(_, votes)| votes.values()).any(|vote| !vote.knew_ring)
    }

    /// The two whose calls wait for each other, in the order of the text.
    fn crossed(&self, verdict: &Verdict) -> Vec<PeerId> {
        let words = verdict.detail.as_str().split(" waits in it for ");
        let named = words.filter_map(|words| {
            self.clients
                .values()
                .filter_map(|seen| seen.peer)
                .find(|peer| words.starts_with(&peer.to_string()))
        });
        named.collect()
    }

    /// A mismatch must be one: the two that are named voted differently, and all for the members that there are.
    pub(crate) fn judge_votes(&self, verdict: &Verdict) -> Result<(), String> {
        let is_crossed = is_crossing(verdict);
        let mut named: Vec<PeerId> = verdict.culprits.iter().map(|culprit| culprit.peer).collect();
        match verdict.cause {
            Cause::MismatchedCall => {}
            // Nobody is blamed then, and the text names both.
            Cause::WorldChanged if is_crossed && named.is_empty() => named = self.crossed(verdict),
            Cause::WorldChanged => return self.judge_members(verdict, &named),
            _ => return Ok(()),
        }
        let differ = match (verdict.operation, &named[..]) {
            // The first waits in it, and the second does not come.
            (Operation::Collective(CollectiveId { op, .. }), [a, b]) if is_crossed => {
                let has_voted = |peer: PeerId| {
                    let (client, seen) = self.client_of(peer)?;
                    let votes = self.votes.get(&(seen.group, self.life(seen.group), op))?;
                    votes.contains_key(&client).then_some(())
                };
                has_voted(*a).is_some() && has_voted(*b).is_none()
            }
            (Operation::Sync(_), [a, _]) if is_crossed => self.sync_votes.contains_key(a),
            (Operation::Collective(CollectiveId { op, .. }), [a, b]) => {
                if op.tag.pair.is_none() && self.misfits(op, &named).iter().any(Option::is_some) {
                    return Err("one was called for other members: no caller made a mistake".into());
                }
                let vote = |peer: PeerId| {
                    let (client, seen) = self.client_of(peer)?;
                    self.votes.get(&(seen.group, self.life(seen.group), op))?.get(&client)
                };
                vote(*a)
                    .zip(vote(*b))
                    .is_some_and(|(x, y)| x.difference(y).is_some() && x.knew_ring && y.knew_ring)
            }
            (Operation::Sync(_), [a, b]) => {
                let votes = self.sync_votes.get(a).zip(self.sync_votes.get(b));
                let receives = |vote: &SyncInitiate| vote.strategy == SyncStrategy::ReceiveOnly;
                votes.is_some_and(|(x, y)| {
                    let same = (&x.entries, x.strategy, x.revision) == (&y.entries, y.strategy, y.revision);
                    !same || receives(x)
                })
            }
            (Operation::Sync(_), [a]) => {
                self.sync_votes.get(a).is_some_and(|vote| vote.strategy == SyncStrategy::ReceiveOnly)
            }
            _ => false,
        };
        if differ { Ok(()) } else { Err("the two did not call it differently".into()) }
    }
}

/// Whether a verdict says that calls waited for each other.
pub(crate) fn is_crossing(verdict: &Verdict) -> bool {
    verdict.detail.as_str().contains(" and waits there for ")
}
