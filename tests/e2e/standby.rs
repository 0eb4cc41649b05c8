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
pub(crate) struct Run {
    pub(crate) fleet: Fleet,
    pub(crate) standbys: Vec<MasterProcess>,
}

impl Run {
    pub(crate) fn new(peers: usize, standbys: usize) -> Self {
        Self::with(MasterConfig { accept_standbys: true, ..config() }, peers, standbys)
    }

    /// The same, with these settings of the first master.
    pub(crate) fn with(config: MasterConfig, peers: usize, standbys: usize) -> Self {
        let fleet = Fleet::with_master_process(config, peers, &[]);
        let mut run = Self { fleet, standbys: Vec::new() };
        (0..standbys).for_each(|_| run.stand_by());
        run
    }

    /// One more stands by for whoever acts, and has a complete copy when this returns.
    pub(crate) fn stand_by(&mut self) {
        let standby = MasterProcess::stand_by(&self.fleet.config, &[&self.fleet.address]);
        self.fleet.await_status(standby.address());
        self.standbys.push(standby);
    }

    /// All masters that there are, as a list for a newcomer.
    pub(crate) fn masters(&self) -> String {
        let standbys = self.standbys.iter().map(MasterProcess::address);
        std::iter::once(self.fleet.address.as_str()).chain(standbys).collect::<Vec<_>>().join(",")
    }

    /// Waits until there is a master again after the death of one, and another one stands by if one did. Without
    /// standbys it is started again.
    pub(crate) fn recover_master(&mut self) {
        if self.standbys.is_empty() {
            return self.fleet.start_master_process();
        }
        self.await_successor();
        self.stand_by();
    }

    /// SIGKILL of the leader.
    pub(crate) fn kill_master(&mut self) {
        self.fleet.process = None;
    }

    /// Which of those who stand by acts now, and is asked for the status from now on.
    pub(crate) fn await_successor(&mut self) {
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
            pccl_testkit::barrier::look_again();
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

#[test]
fn a_standby_takes_over_at_each_point_of_the_calls_beside_it() {
    let mut run = Run::new(3, 1);
    let points = [
        ("topology", "to master: VoteTopology"),
        ("topology", "from master: TopologyDone"),
        ("pending", "to master: VotePending"),
        ("optimize", "from master: ProbePlan"),
    ];
    for (call, point) in points {
        run.die_at(point, &vec![call.to_owned(); 3]);
        for answer in run.fleet.answers() {
            assert!(answer.ok, "{point}: {answer:?}");
        }
        run.await_successor();
        run.fleet.reduce(Spec::sum(1000, 1));
        run.stand_by();
    }
    let tensor = |seed| vec![StateSpec::new("a", 3 << 20, seed)];
    for (revision, point) in
        [(1, "to master: SyncInitiate"), (2, "from master: SyncPlan"), (3, "to master: SyncComplete")]
    {
        let seed = |peer| if peer == 0 { revision + 10 } else { revision };
        let commands: Vec<_> =
            (0..3).map(|peer| sync_command(revision, "popular", &tensor(seed(peer)))).collect();
        run.die_at(point, &commands);
        for answer in run.fleet.answers() {
            assert_eq!(answer.good().number("revision") as u64, revision, "{point}");
        }
        run.await_successor();
        run.stand_by();
    }
}

/// The leader sleeps in the middle of an operation. Another one takes over; when the first one wakes up, it
/// finds that out, says so and ends.
#[test]
fn a_master_that_wakes_up_after_another_one_has_taken_over_acts_no_more() {
    let mut run = Run::new(3, 1);
    let spec = Spec::sum(1_000_000, 1);
    run.fleet[0].ask("trap stop 1 to master: Complete").good();
    run.fleet.send(format!("reduce {spec} 0 0"));
    run.fleet[0].await_stop();
    run.fleet.stop_master_process();
    run.fleet[0].resume();
    let answers = run.fleet.answers();
    run.fleet.check(&[spec], &answers);
    let mut ghost = run.fleet.process.take().expect("it sleeps");
    run.await_successor();
    ghost.resume();
    run.fleet.reduce(Spec::sum(1000, 2));
    let words = ghost.last_words();
    assert!(words.contains("acts no more") && words.contains("term 1"), "{words:?}");
    run.fleet.reduce(Spec::sum(1000, 3));
}

/// Packets that wait for a standby that dies or sleeps leave when more than half of the members know that it is gone.
#[test]
fn a_standby_that_dies_or_sleeps_holds_nobody_up() {
    let mut run = Run::new(3, 2);
    run.standbys.remove(0);
    run.fleet.reduce(Spec::sum(1000, 1));
    run.standbys[0].stop();
    run.fleet.reduce(Spec::sum(1000, 2));
    run.stand_by();
    run.kill_master();
    // The one that slept is not on the list any more.
    run.standbys[0].resume();
    run.fleet.send(format!("reduce {} 0 0", Spec::sum(1000, 3)));
    let answers = run.fleet.answers();
    run.fleet.check(&[Spec::sum(1000, 3)], &answers);
    let lasting = run.standbys[1].address().to_owned();
    run.await_successor();
    assert_eq!(run.fleet.address, lasting);
}

/// Of two one takes over, the other one stands by for it, and takes over when that one dies, too.
#[test]
fn masters_die_one_after_the_other() {
    let mut run = Run::new(4, 2);
    for round in 0..2 {
        run.kill_master();
        let spec = Spec::sum(100_000, round);
        run.fleet.send(format!("reduce {spec} 0 0"));
        let answers = run.fleet.answers();
        run.fleet.check(&[spec], &answers);
        run.await_successor();
        if let Some(next) = run.standbys.first() {
            let place = next.address().to_owned();
            run.fleet.await_status(&place);
        }
    }
    // A newcomer that has a list of masters finds the one that acts.
    let acting = run.fleet.address.clone();
    run.stand_by();
    let standby = run.standbys[0].address().to_owned();
    run.fleet.address = format!("127.0.0.1:9,{standby},{acting}");
    let place = run.fleet.spawn(&[]);
    run.fleet.address = acting;
    run.fleet[place].send("connect");
    (0..place).for_each(|peer| run.fleet[peer].send(format!("wait {} 0", place + 1)));
    for answer in run.fleet.answers() {
        answer.good();
    }
}

/// A peer that dies with the master is missed, and a newcomer is let in by the one that took over.
#[test]
fn a_peer_that_dies_with_the_master_is_missed_and_a_newcomer_is_let_in() {
    let mut run = Run::new(3, 1);
    run.kill_master();
    run.fleet[2].kill();
    run.fleet.remove(2);
    let spec = Spec::sum(1000, 2);
    run.fleet.send(format!("reduce {spec} 0 5"));
    let answers = run.fleet.answers();
    run.fleet.check(&[spec], &answers);
    assert!(answers.iter().all(|answer| answer.number("participants") == 2), "{answers:?}");
    run.await_successor();
    run.fleet.join(&[]);
    assert!(run.fleet.reduce(Spec::sum(1000, 3)).iter().all(|answer| answer.number("participants") == 3));
}

/// Without more than half of the members nobody takes over, and who waits is told for whom.
#[test]
fn a_minority_waits_and_says_for_whom() {
    let mut run = Run::new(3, 1);
    run.fleet[1].stop();
    run.fleet[2].stop();
    run.kill_master();
    let standby = run.standbys[0].address().to_owned();
    let key = crate::run_key();
    let deadline = Instant::now() + WATCHDOG;
    loop {
        let status = pccl_master::query_status(&standby, key.as_ref(), WATCHDOG).expect("a status");
        assert!(!status.lead.acts);
        let text = status.lead.text.as_ref().map(ToString::to_string).unwrap_or_default();
        if text.contains("takes over when more than half of the members are here, missing: ") {
            break;
        }
        assert!(Instant::now() < deadline, "{status}");
        pccl_testkit::barrier::look_again();
    }
    run.fleet[1].resume();
    run.fleet[2].resume();
    run.fleet.reduce(Spec::sum(1000, 1));
    run.await_successor();
}

/// A master with a journal that is started again while others stand by acts only with the promises of more than half;
/// if another one has taken over, it stands by for that one.
#[test]
fn a_master_that_is_started_again_stands_by_for_the_one_that_took_over() {
    let place = crate::journal::Place::new("standby");
    let config = MasterConfig { accept_standbys: true, journal: Some(place.path()), ..config() };
    let fleet = Fleet::with_master_process(config, 3, &[]);
    let first = fleet.address.clone();
    let mut run = Run { fleet, standbys: Vec::new() };
    // With nobody else, it goes on by itself.
    run.kill_master();
    run.fleet.start_master_process();
    run.fleet.reduce(Spec::sum(1000, 1));
    run.stand_by();
    run.kill_master();
    run.fleet.reduce(Spec::sum(1000, 2));
    run.await_successor();
    let successor = run.fleet.process.take();
    run.fleet.start_master_process();
    let mut first_again = run.fleet.process.take().expect("started");
    run.fleet.await_status(&first);
    drop(successor);
    run.fleet.reduce(Spec::sum(1000, 3));
    run.standbys.push(first_again);
    run.await_successor();
    first_again = run.fleet.process.take().expect("it acts");
    // Now alone, with the promises of all.
    drop(first_again);
}

/// `PCCL_KILLS` says how often.
#[test]
fn a_master_dies_at_any_moment() {
    let kills = std::env::var("PCCL_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(8);
    let mut run = Run::new(4, 1);
    for round in 0..kills {
        let count = [100, 70_000, 4_000_000][mix(round) as usize % 3];
        let spec = Spec::sum(count, round);
        run.fleet.send(format!("reduce {spec} 0 0"));
        // Not a wait for anything: the moment of death is to be any.
        thread::sleep(Duration::from_micros(mix(round ^ 77) % 60_000));
        run.kill_master();
        let answers = run.fleet.answers();
        run.fleet.check(&[spec], &answers);
        run.await_successor();
        run.stand_by();
        // A peer that is not back yet does not know the new standby, and could not find it.
        run.fleet.reduce(Spec::sum(10, round));
    }
}
