//! Masters that look around: one notices silence, and one that stands by looks for the one that acts.

use super::{
    nodes::Role,
    world::{End, Message, World},
};
use pccl_protocol::CopyId;

impl World {
    /// A master notices silence, or looks for the one that acts.
    pub(super) fn node_looks_around(&mut self) {
        let at = self.rng.below(self.nodes.len() as u64) as usize;
        let (other, copy) = (self.rng.below(self.nodes.len() as u64) as usize, self.number());
        let end = End::Node(at);
        if self.nodes[at].sleeps {
            return;
        }
        let feed = match &self.nodes[at].role {
            Role::Leader(lead) => lead.followers.keys().next().copied(),
            Role::Standing(wait) => wait.feed.as_ref().map(|feed| feed.0),
            Role::Dead => None,
        };
        if let Some(conn) = feed.filter(|conn| self.is_tired_of(*conn, end)) {
            let other = self.other_end(conn, end);
            self.close(conn, end);
            self.node_loses(at, conn);
            return self.is_unreached(at, other);
        }
        match &mut self.nodes[at].role {
            Role::Standing(wait) => {
                let is_frozen = wait.candidacy.as_ref().is_some_and(|candidacy| candidacy.claim().is_some());
                match &wait.feed {
                    None if !is_frozen && other != at => {
                        let acts_soon = wait.intent.is_some();
                        let conn = self.connect(end, End::Node(other));
                        self.send(conn, end, Message::StandBy { copy: CopyId(copy), acts_soon });
                        if let Role::Standing(wait) = &mut self.nodes[at].role {
                            wait.feed = Some((conn, CopyId(copy), None));
                        }
                    }
                    _ => {
                        self.forsake(at);
                        self.ask_for_promises(at);
                    }
                }
            }
            Role::Leader(_) | Role::Dead => {}
        }
    }

    /// Promises are given back if not enough stay.
    fn forsake(&mut self, at: usize) {
        let Role::Standing(wait) = &mut self.nodes[at].role else { return };
        let Some(candidacy) = wait.candidacy.as_mut().filter(|candidacy| candidacy.claim().is_some()) else {
            return;
        };
        if candidacy.has_support() && candidacy.refusal().is_none() {
            wait.impatience = 0;
            return;
        }
        wait.impatience += 1;
        if wait.impatience < 10 {
            return;
        }
        wait.give_back();
        if wait.other.is_some() {
            std::mem::swap(&mut wait.following, &mut wait.other);
            if let (Some(candidacy), Some(copy)) = (&mut wait.candidacy, &wait.following) {
                candidacy.change_copy(copy.copy, &copy.past);
            }
        }
        let guests: Vec<u64> = wait.guests.keys().copied().collect();
        guests.into_iter().for_each(|guest| self.tell_given_back(at, guest));
    }
}
