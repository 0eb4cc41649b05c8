//! Trusted seeders: if the operator names some, nobody else gives shared state to others.

use super::election::Election;
use crate::state::MasterState;
use crate::state::groups::group::SyncVote;
use crate::state::membership::members::Roll;
use pccl_protocol::{
    Cause, Culprit, KickCode, KickReason, Name, Operation, PeerId, Phase, Register, SyncId, Text, Verdict,
};
use std::collections::BTreeMap;

impl Roll {
    /// Whether a peer may give shared state to others.
    pub(crate) fn may_give(&self, id: PeerId) -> bool {
        let listed = &self.options.trusted_seeders;
        listed.is_empty() || self.peers.get(&id).is_some_and(|peer| listed.contains(&peer.info.name))
    }

    /// A peer that has the name of a trusted seeder keeps it for as long as it is there. Only its own next life, which
    /// has proven who it was, may come with the same name before.
    pub(crate) fn admit_name(&self, info: &Register) -> Result<(), KickReason> {
        if !self.options.trusted_seeders.contains(&info.name) {
            return Ok(());
        }
        let Some((holder, peer)) = self.peers.iter().find(|(_, peer)| peer.info.name == info.name) else {
            return Ok(());
        };
        let run = self.options.run;
        if info.previous.as_ref().is_some_and(|before| before.run == run && before.peer == *holder) {
            return Ok(());
        }
        let text = format!(
            "{} is the name of a trusted seeder, and {} has it; another peer may have it when that one is gone",
            info.name,
            peer.name(*holder)
        );
        Err(KickReason::new(KickCode::NameTaken, text))
    }
}

impl MasterState {
    /// Why an election has no effect: somebody lacks what was elected, and no trusted seeder holds that.
    pub(crate) fn refuse_source(
        &self,
        votes: &BTreeMap<PeerId, SyncVote>,
        (sync, election): (SyncId, &Election),
    ) -> Option<Verdict> {
        let (lacks, part) = election.parts.iter().find(|(_, part)| part.is_unserved())?;
        let key = part.fetch.first().map_or("", |item| item.key.as_str());
        let (culprits, seeders) = self.seeders_of(votes, election);
        let detail = format!(
            "revision {} is elected, as {} holds it; {} lacks tensor \"{key}\" of it, and may have it from trusted \
             seeders only: {seeders}",
            election.revision,
            self.roll.name_of(election.winner),
            self.roll.name_of(*lacks),
        );
        let (cause, operation) = (Cause::SeederMissing, Operation::Sync(sync));
        let detail = Text::new(detail);
        Some(Verdict {
            cause,
            culprits,
            operation,
            phase: Phase::Voting,
            bytes_done: 0,
            silent_ms: 0,
            detail,
        })
    }

    /// The listed ones who are there and hold something else, and in words where each of the listed ones stands.
    fn seeders_of(&self, votes: &BTreeMap<PeerId, SyncVote>, election: &Election) -> (Vec<Culprit>, String) {
        let (mut culprits, mut words) = (Vec::new(), Vec::new());
        for name in &self.roll.options.trusted_seeders {
            let found = self.roll.peers.iter().filter(|(_, peer)| peer.info.name == *name);
            let voter = found.clone().find_map(|(id, _)| votes.get_key_value(id));
            words.push(match (voter, found.clone().next()) {
                (Some((id, vote)), _) => {
                    culprits.push(self.roll.culprit_of(*id));
                    seeder_that_votes(name, vote, election)
                }
                (None, Some(_)) => format!("{name} takes no part in this sync"),
                (None, None) => format!("{name} is not here"),
            });
        }
        (culprits, words.join(", "))
    }
}

/// A text about what a seeder that votes has instead.
fn seeder_that_votes(name: &Name, vote: &SyncVote, election: &Election) -> String {
    if vote.revision == election.revision {
        format!("{name} holds another content or gives nothing")
    } else {
        format!("{name} holds revision {}", vote.revision)
    }
}
