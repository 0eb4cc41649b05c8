//! A master dies, sleeps or is cut off while others stand by for it: one of them takes over, and no call fails.

use crate::{
    fleet::{Fleet, config, sync_command},
    master_process::MasterProcess,
    peer::WATCHDOG,
};
use pccl::MasterConfig;
use pccl_tests::{
    pattern::mix,
    spec::{Spec, StateSpec},
};
use std::{
    thread,
    time::{Duration, Instant},
};

/// Peers, their master, and those who stand by for it.
struct Run {
    fleet: Fleet,
    standbys: Vec<MasterProcess>,
}

impl Run {
    fn new(peers: usize, standbys: usize) -> Self {
        let config = MasterConfig { accept_standbys: true, ..config() };
        let fleet = Fleet::with_master_process(config, peers, &[]);
        let mut run = Self { fleet, standbys: Vec::new() };
        (0..standbys).for_each(|_| run.stand_by());
        run
    }

    /// One more stands by for whoever acts, and has a complete copy when this returns.
    fn stand_by(&mut self) {
        let standby = MasterProcess::stand_by(&self.fleet.config, &[&self.fleet.address]);
        self.fleet.await_status(standby.address());
        self.standbys.push(standby);
    }

    /// SIGKILL of the acting master.
    fn kill_master(&mut self) {
        self.fleet.process = None;
    }

    /// Which of those who stand by acts now, and is asked for the status from now on.
    fn await_successor(&mut self) {
        let deadline = Instant::now() + WATCHDOG;
        let key = crate::run_key();
        loop {
            for at in 0..self.standbys.len() {
                let place = self.standbys[at].address().to_owned();
                let status = pccl_master::query_status(&place, key.as_ref(), WATCHDOG);
                if status.is_ok_and(|status| status.lead.acts) {
                    self.fleet.process = Some(self.standbys.remove(at));
                    self.fleet.address = place;
                    return;
                }
            }
            assert!(Instant::now() < deadline, "nobody takes over");
            thread::yield_now();
        }
    }

    /// The master dies while peer 0 stands at this point of a command of all. Everybody goes on without it for a while.
    fn die_at(&mut self, point: &str, commands: &[String]) {
        self.fleet[0].ask(format!("trap stop 1 {point}")).good();
        for (peer, command) in self.fleet.iter_mut().zip(commands) {
            peer.send(command);
        }
        self.fleet[0].await_stop();
        self.kill_master();
        self.fleet[0].resume();
    }
}

#[test]
fn a_standby_takes_over_at_each_point_of_an_all_reduce() {
    let mut run = Run::new(3, 1);
    let points = [
        "to master: Initiate",
        "from master: Commence",
        "frame complete, stage 1 of 4",
        "to master: Complete",
        "from master: Outcome",
    ];
    for (case, point) in points.into_iter().enumerate() {
        let spec = Spec::sum(1_000_000, case as u64);
        run.die_at(point, &vec![format!("reduce {spec} 0 0"); 3]);
        let answers = run.fleet.answers();
        run.fleet.check(&[spec], &answers);
        run.await_successor();
        run.fleet.reduce(Spec::sum(1000, case as u64));
        run.stand_by();
    }
}
