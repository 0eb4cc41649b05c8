//! What an operator does: a master steps down, or one acts by the operator's word.

use super::{
    copy::Copy,
    nodes::Role,
    peers::Peer,
    world::{End, Fault, World},
};
use pccl_master::office::{Acting, Bid};
use pccl_protocol::Term;

impl World {
    /// One that acts goes in order: what may leave does, and then it is as dead as any.
    pub(super) fn step_down(&mut self, at: usize) {
        let fault = self.fault;
        if self.nodes[at].sleeps || self.lead(at).is_none() {
            return;
        }
        self.end_turn(at);
        let held = self.lead(at).map(|lead| std::mem::take(&mut lead.held)).unwrap_or_default();
        if fault == Fault::ReleasedAtEnd {
            held.into_iter().for_each(|(conn, _, message)| self.send(conn, End::Node(at), message));
        }
        self.die(End::Node(at));
        if self.rng.percent(50) {
            // Another one has taken over by then.
            self.nodes[at].journal = None;
        }
    }

    /// Half of the members are lost, and each master that acts with what it has written. Not so with the defect.
    pub(super) fn lose_half(&mut self) {
        for at in 0..self.nodes.len() {
            if self.nodes[at].term().is_some() && self.fault != Fault::ForcedBesideActing {
                self.die(End::Node(at));
            }
            if matches!(self.nodes[at].role, Role::Dead) {
                self.nodes[at].journal = None;
            }
        }
        if self.fault == Fault::ForcedBesideActing {
            return;
        }
        let living: Vec<usize> = (0..self.peers.len()).filter(|at| self.peers[*at].lives).collect();
        living[living.len() / 2..].iter().for_each(|at| self.die(End::Peer(*at)));
    }

    /// One that stands by acts by an operator's word. `false`: there is none that may, as far as it sees, and as far as
    /// the operator has to know: that nobody else acts, or could with the promises of those who live.
    pub(super) fn force(&mut self) -> bool {
        let is_careless = self.fault == Fault::ForcedBesideActing;
        let living: Vec<_> = (0..self.peers.len()).filter(|at| self.peers[*at].lives).map(Peer::id).collect();
        let could_win = |copy: &Copy| {
            let mut bid = Bid::new(copy.copy, &copy.past);
            living.iter().for_each(|peer| bid.comes(*peer, Term(0)));
            bid.has_support()
        };
        let is_clear = self.nodes.iter().all(|node| match &node.role {
            Role::Acting(_) => false,
            Role::Standing(wait) => {
                node.claim().is_none() && ![&wait.following, &wait.other].into_iter().flatten().any(could_win)
            }
            Role::Dead => node.journal.is_none(),
        });
        // Of those that are reached, the one that knows most.
        let age = |at: &usize| match &self.nodes[*at].role {
            Role::Standing(wait) => [&wait.following, &wait.other]
                .into_iter()
                .flatten()
                .map(|copy| (copy.past.copies.term, copy.past.turn))
                .max(),
            Role::Acting(_) | Role::Dead => None,
        };
        let awake = (0..self.nodes.len()).filter(|at| self.is_awake(End::Node(*at)));
        let Some(at) = awake.filter(|at| age(at).is_some()).max_by_key(age) else { return false };
        if !is_clear && !is_careless {
            return false;
        }
        let newest = self.peers.iter().map(Peer::term).max().unwrap_or_default();
        let Role::Standing(wait) = &mut self.nodes[at].role else { return false };
        let copies = [wait.following.take(), wait.other.take()].into_iter().flatten();
        let copy = copies.max_by_key(|copy| (copy.past.copies.term, copy.past.turn));
        let Some(Copy { copy, log, members, past, .. }) = copy else { return false };
        let barred = (0..self.peers.len()).map(|at| (Peer::id(at), log.len())).collect();
        self.forget_the_dead();
        // What the lost ones knew more is lost.
        if !is_careless {
            self.told.clone_from(&log);
        }
        let term = Term(newest.max(past.copies.term).0 + 1000);
        self.act(at, Acting::force(term, copy, past), (log, members), barred);
        true
    }
}
