//! A copy of what a leader knows: that of a standby, or what the master itself has written.

use super::world::{Log, News};
use pccl_master::leadership::{Leader, Past, VoterSets};
use pccl_protocol::{CopyId, PeerId, Term};
use std::collections::{BTreeMap, BTreeSet};

/// A peer knows this term, and was told so much.
pub(super) type Knows = (Term, usize);

/// Peers that have not been back since one acted by an operator's word, and the most that each may know.
pub(super) type Barred = BTreeMap<PeerId, Knows>;

#[derive(Debug, Clone)]
pub(super) struct Copy {
    pub(super) copy: CopyId,
    pub(super) log: Log,
    pub(super) members: BTreeSet<PeerId>,
    pub(super) barred: Barred,
    pub(super) past: Past,
}

impl Copy {
    /// All that a master knows that acts.
    pub(super) fn snapshot(leader: &Leader, log: &Log, members: &BTreeSet<PeerId>, barred: &Barred) -> Self {
        let mut past = leader.past();
        if past.is_alone {
            past.voter_sets = VoterSets::from(past.turn, members.clone());
        }
        let (copy, log, members) = (leader.copy(), log.clone(), members.clone());
        Self { copy, log, members, barred: barred.clone(), past }
    }

    /// Lives through news. Whether its copy is complete now.
    pub(super) fn learn(&mut self, news: News) -> bool {
        match news {
            News::Event(event, members) => {
                self.log.push(event);
                self.members = members;
                false
            }
            News::Back(peer) => {
                self.barred.remove(&peer);
                false
            }
            News::Copies(copies) => {
                let is_listed = copies.standbys.iter().any(|standby| standby.copy == self.copy);
                self.past.copies = copies;
                is_listed
            }
            News::Turn { released, is_alone } => {
                self.past.end_turn((released, is_alone), self.members.clone());
                false
            }
        }
    }
}
