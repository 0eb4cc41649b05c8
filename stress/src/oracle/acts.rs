//! Acts on the run, told before they are done.

use super::{
    Check, Edge, Oracle,
    record::{Master, Record},
};
use std::collections::BTreeSet;

impl Oracle {
    /// The undisturbed rate is known, and faults begin: from now on recoveries are held against it.
    pub(crate) fn faults_begin(&mut self, operations_per_s: f64) {
        self.pace.undisturbed(operations_per_s);
    }

    /// A master says that it leads.
    pub(crate) fn leads(&mut self, place: usize, term: u64, now_us: u64) {
        if let Some(text) = self.leaders.claim(place, term, now_us) {
            self.violation(now_us, Check::Leader, text);
        }
    }

    /// A master that was stopped goes on: it has a while to find out who leads now.
    pub(crate) fn master_woken(&mut self, place: usize, now_us: u64) {
        self.leaders.woken(place, now_us);
    }

    pub(crate) fn spawned(&mut self, peer: usize, group: u32, now_us: u64) {
        let record = Record { group, heard_us: now_us, out_since_us: now_us, ..Record::default() };
        self.peers.insert(peer, record);
        self.living.insert(peer);
    }

    pub(crate) fn killed(&mut self, peer: usize, now_us: u64) {
        self.touch(peer, now_us);
        let Some(record) = self.peers.get_mut(&peer) else { return };
        record.killed = true;
        let victim = record.identity.filter(|_| record.joined);
        if victim.is_some() {
            let group = self.group(peer);
            let survivors = self.steady_besides(group, Some(peer));
            self.progress(group).disturbed("kill", victim, survivors, now_us);
        }
        let progress = self.progress_of(peer);
        progress.resumed(peer);
        progress.gone(peer);
        self.count_steady(now_us);
    }

    /// Something other than a kill is going to be done, to this peer if to one: from now on it is measured how long the
    /// others need to go on.
    pub(crate) fn disturbed(&mut self, kind: &'static str, peer: Option<usize>, now_us: u64) {
        let groups: Vec<u32> = match peer {
            Some(peer) => vec![self.group(peer)],
            None => self.progress.keys().copied().collect(),
        };
        for group in groups {
            let survivors = self.steady_besides(group, peer);
            self.progress(group).disturbed(kind, None, survivors, now_us);
        }
    }

    fn group(&self, peer: usize) -> u32 {
        self.peers.get(&peer).map_or(0, |record| record.group)
    }

    fn steady_besides(&self, group: u32, peer: Option<usize>) -> BTreeSet<usize> {
        let others = self
            .living()
            .filter(|(other, record)| record.group == group && Some(*other) != peer && record.is_steady());
        others.map(|(other, _)| other).collect()
    }

    /// Connections between these pairs of peers are broken, damaged or cut, or will be until then.
    pub(crate) fn edges_harmed(&mut self, edges: &[Edge], damages: bool, until_us: u64, now_us: u64) {
        self.last_fault_us = self.last_fault_us.max(until_us);
        self.edges.harm(edges, damages, until_us, now_us);
        if until_us <= now_us {
            return;
        }
        // A connection that stands still is waited for, as a silent peer is; and groups wait for each other where they
        // vote on who is let in.
        self.progress.values_mut().for_each(|progress| progress.excused(now_us));
    }

    /// Connections are slow or cut from now on until then.
    pub(crate) fn links_slowed(&mut self, until_us: u64) {
        self.progress.values_mut().for_each(|progress| progress.slowed(until_us));
    }

    /// The master is going to be killed.
    pub(crate) fn master_killed(&mut self, now_us: u64) {
        self.last_fault_us = now_us;
        self.hurt_before_joining = true;
        let reign = self.master.reign + 1;
        let killed_us = Some(now_us);
        self.master = Master { reign, down: true, down_us: now_us, killed_us, listens_us: 0, new: true };
        self.progress.values_mut().for_each(|progress| progress.suspended(now_us));
    }

    /// The master is going to be stopped: nothing goes on without it.
    pub(crate) fn master_stopped(&mut self, now_us: u64) {
        (self.master.down, self.master.down_us) = (true, now_us);
        self.progress.values_mut().for_each(|progress| progress.suspended(now_us));
    }

    /// The master goes on.
    pub(crate) fn master_resumed(&mut self, now_us: u64) {
        self.master.down = false;
        self.progress.values_mut().for_each(|progress| progress.excused(now_us));
        let (down_us, late_us) = (self.master.down_us, self.late_us());
        for record in self.peers.values_mut() {
            record.master_is_back(down_us, late_us, now_us);
            record.heard_us = record.heard_us.max(now_us);
            record.out_since_us = record.out_since_us.max(now_us);
        }
        self.count_steady(now_us);
    }

    /// The new master listens.
    pub(crate) fn master_listens(&mut self, now_us: u64) {
        (self.master.down, self.master.listens_us) = (false, now_us);
        self.last_fault_us = now_us;
        self.progress.values_mut().for_each(|progress| progress.excused(now_us));
        let (down_us, late_us) = (self.master.down_us, self.late_us());
        for record in self.peers.values_mut() {
            record.master_is_back(down_us, late_us, now_us);
            record.out_since_us = record.out_since_us.max(now_us);
        }
    }

    pub(crate) fn stopped(&mut self, peer: usize, now_us: u64) {
        self.touch(peer, now_us);
        if let Some(record) = self.peers.get_mut(&peer) {
            (record.stopped, record.dazed, record.stopped_us) = (true, true, now_us);
        }
        self.progress_of(peer).stopped(peer, now_us);
        self.progress.values_mut().for_each(|progress| progress.excused(now_us));
        self.count_steady(now_us);
    }

    pub(crate) fn resumed(&mut self, peer: usize, now_us: u64) {
        self.touch(peer, now_us);
        if let Some(record) = self.peers.get_mut(&peer) {
            record.stopped = false;
            record.heard_us = now_us;
            record.out_since_us = now_us;
        }
        self.progress_of(peer).resumed(peer);
    }

    /// A peer was asked to leave.
    pub(crate) fn leaving(&mut self, peer: usize, now_us: u64) {
        self.touch(peer, now_us);
        if let Some(record) = self.peers.get_mut(&peer) {
            record.leaving = true;
            record.heard_us = now_us;
        }
        self.progress_of(peer).gone(peer);
        self.count_steady(now_us);
    }

    /// A process is gone, and all that it reported has been taken in.
    pub(crate) fn exited(&mut self, peer: usize, success: bool, status: &str, now_us: u64) {
        let Some(record) = self.peers.get_mut(&peer) else { return };
        record.exited = true;
        self.living.remove(&peer);
        let dismissed = record.leaving && record.left && success;
        if !record.killed && !dismissed {
            let text = format!("peer {peer} ended by itself: {status}");
            self.violation(now_us, Check::Process, text);
        }
        self.progress_of(peer).gone(peer);
        self.count_steady(now_us);
    }

    fn touch(&mut self, peer: usize, now_us: u64) {
        self.last_fault_us = now_us;
        if let Some(record) = self.peers.get_mut(&peer) {
            record.touched_us = Some(now_us);
            self.hurt_before_joining |= !record.joined;
        }
    }
}
