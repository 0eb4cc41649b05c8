//! Acts of an operator: a master steps down, or one acts by the operator's word.

use super::{
    copy::Copy,
    nodes::{Node, Role, Wait},
    peers::Peer,
    world::{End, Fault, Message, World},
};
use pccl_master::leadership::Leader;
use pccl_protocol::Term;
use std::collections::BTreeSet;

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

    /// Each master that acts is lost with what it has written, and perhaps half of the members.
    pub(super) fn lose_acting(&mut self, with_half: bool) {
        for at in 0..self.nodes.len() {
            if self.nodes[at].term().is_some() && self.fault != Fault::ForcedBesideActing {
                self.die(End::Node(at));
            }
            if matches!(self.nodes[at].role, Role::Dead) {
                self.nodes[at].journal = None;
            }
        }
        if !with_half || self.fault == Fault::ForcedBesideActing {
            return;
        }
        let living: Vec<usize> = (0..self.peers.len()).filter(|at| self.peers[*at].lives).collect();
        living[living.len() / 2..].iter().for_each(|at| self.die(End::Peer(*at)));
    }

    /// An operator wants one that stands by to act, unless one is about to already. It asks all others first.
    pub(super) fn want_one_to_act(&mut self) {
        let is_wanted = |node: &Node| matches!(&node.role, Role::Standing(wait) if wait.intent.is_some());
        let standing = |at: &usize| match &self.nodes[*at].role {
            Role::Standing(wait) => {
                self.is_awake(End::Node(*at)) && wait.age() > (Term(0), 0) && !wait.is_heard
            }
            Role::Leader(_) | Role::Dead => false,
        };
        let candidates: Vec<usize> = (0..self.nodes.len()).filter(standing).collect();
        if candidates.is_empty() || self.nodes.iter().any(is_wanted) {
            return;
        }
        let at = candidates[self.rng.below(candidates.len() as u64) as usize];
        let others: BTreeSet<usize> = (0..self.nodes.len()).filter(|other| *other != at).collect();
        let Role::Standing(wait) = &mut self.nodes[at].role else { return };
        wait.intent = Some(others);
        if self.fault == Fault::ForcedBesideActing {
            self.act_by_word(at);
        }
    }

    /// One that stands by is asked by another one, which may be about to act by an operator's word.
    pub(super) fn answer_other(&mut self, at: usize, conn: u64, acts_soon: bool) {
        let (end, fault) = (End::Node(at), self.fault);
        let other = self.other_end(conn, end);
        let Role::Standing(wait) = &mut self.nodes[at].role else { return };
        if let Some(End::Node(other)) = other {
            if acts_soon && fault != Fault::ForcedUnheard {
                wait.yields_to.insert(other);
            } else {
                wait.yields_to.remove(&other);
            }
        }
        let is_candidate = wait.candidacy.as_ref().is_some_and(|candidacy| candidacy.claim().is_some());
        let objects = is_candidate || wait.intent.is_some() || wait.is_heard;
        let age = wait.age();
        self.send(conn, end, Message::StandsBy { objects, age });
    }

    /// The answer of another one that stands by.
    pub(super) fn hear_other(&mut self, at: usize, conn: u64, objects: bool, age: (Term, u64)) {
        let end = End::Node(at);
        let other = self.other_end(conn, end);
        self.close(conn, end);
        let Role::Standing(wait) = &mut self.nodes[at].role else { return };
        let Some(feed) = wait.feed.take_if(|feed| feed.0 == conn) else { return };
        debug_assert!(feed.2.is_none());
        if objects || age > wait.age() {
            wait.intent = None;
        }
        self.has_asked(at, other);
    }

    /// A master gets no answer from another one. If it is about to act, the operator sees to it that the other one is
    /// gone for good.
    pub(super) fn is_unreached(&mut self, at: usize, other: Option<End>) {
        let Role::Standing(wait) = &self.nodes[at].role else { return };
        let (Some(to_ask), Some(End::Node(node))) = (&wait.intent, other) else { return };
        if to_ask.contains(&node) {
            self.die(End::Node(node));
            self.nodes[node].journal = None;
            self.has_asked(at, other);
        }
    }

    fn has_asked(&mut self, at: usize, other: Option<End>) {
        let Role::Standing(wait) = &mut self.nodes[at].role else { return };
        let (Some(to_ask), Some(End::Node(node))) = (&mut wait.intent, other) else { return };
        to_ask.remove(&node);
        // It does not follow its own candidacy and another word at once.
        let is_candidate = wait.candidacy.as_ref().is_some_and(|candidacy| candidacy.claim().is_some());
        if to_ask.is_empty() && !is_candidate {
            self.act_by_word(at);
        }
    }

    /// It acts without promises.
    fn act_by_word(&mut self, at: usize) {
        let newest = self.peers.iter().map(Peer::term).max().unwrap_or_default();
        let Role::Standing(wait) = &mut self.nodes[at].role else { return };
        let copies = [wait.following.take(), wait.other.take()].into_iter().flatten();
        let copy = copies.max_by_key(|copy| (copy.past.copies.term, copy.past.turn));
        let Some(Copy { copy, log, members, past, .. }) = copy else { return };
        let barred = (0..self.peers.len()).map(|at| (Peer::id(at), (past.copies.term, log.len()))).collect();
        self.forget_the_dead();
        // The turns that only the lost ones knew are lost.
        if self.fault != Fault::ForcedBesideActing {
            self.told.clone_from(&log);
        }
        let term = Term(newest.max(past.copies.term).0 + 1000);
        self.is_forced = true;
        self.act(at, Leader::force(term, copy, past), (log, members), barred);
    }
}

impl Wait {
    /// A larger one knows more.
    fn age(&self) -> (Term, u64) {
        let copies = [&self.following, &self.other].into_iter().flatten();
        copies.map(|copy| (copy.past.copies.term, copy.past.turn)).max().unwrap_or_default()
    }
}
