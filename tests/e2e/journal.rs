//! A master with a journal is killed and started again, at each point of what peers do: no call fails, and everything
//! is as if it had lived.

use crate::fleet::{Fleet, config, sync_command};
use pccl::MasterConfig;
use pccl_tests::{
    pattern::mix,
    spec::{Spec, StateSpec},
};
use std::{path::PathBuf, thread, time::Duration};

/// A directory that goes with its test.
pub(crate) struct Place(PathBuf);

impl Place {
    pub(crate) fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("pccl-e2e-journal-{}-{name}", std::process::id())))
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.0.clone()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn fleet_of(place: &Place, n: usize) -> Fleet {
    let config = MasterConfig { journal: Some(place.0.clone()), ..config() };
    Fleet::with_master_process(config, n, &[])
}

/// The master dies while peer 0 stands at this point of a command of all. Everybody goes on without it for a while.
fn die_at(fleet: &mut Fleet, point: &str, commands: &[String]) {
    fleet[0].ask(format!("trap stop 1 {point}")).good();
    for (peer, command) in fleet.iter_mut().zip(commands) {
        peer.send(command);
    }
    fleet[0].await_stop();
    fleet.kill_master_process();
    fleet[0].resume();
    fleet.start_master_process();
}

#[test]
fn a_master_dies_at_each_point_of_an_all_reduce() {
    let place = Place::new("reduce");
    let mut fleet = fleet_of(&place, 3);
    let points = [
        "to master: Initiate",
        "from master: Commence",
        "frame complete, stage 1 of 4",
        "to master: Complete",
        "from master: Outcome",
    ];
    for (case, point) in points.into_iter().enumerate() {
        let spec = Spec::sum(1_000_000, case as u64);
        let commands = vec![format!("reduce {spec} 0 0"); 3];
        die_at(&mut fleet, point, &commands);
        let answers = fleet.answers();
        fleet.check(&[spec], &answers);
        fleet.reduce(Spec::sum(1000, case as u64));
    }
}

#[test]
fn a_master_dies_at_each_point_of_the_calls_beside_it() {
    let place = Place::new("calls");
    let mut fleet = fleet_of(&place, 3);
    let points = [
        ("topology", "to master: VoteTopology"),
        ("topology", "from master: TopologyDone"),
        ("pending", "to master: VotePending"),
        ("pending", "from master: PendingAnswer"),
        ("optimize", "from master: ProbePlan"),
        ("optimize", "to master: VoteOptimize"),
    ];
    for (call, point) in points {
        die_at(&mut fleet, point, &vec![call.to_owned(); 3]);
        for answer in fleet.answers() {
            assert!(answer.ok, "{point}: {answer:?}");
        }
        fleet.reduce(Spec::sum(1000, 1));
    }
    let tensor = |seed| vec![StateSpec::new("a", 3 << 20, seed)];
    for (revision, point) in
        [(1, "to master: SyncInitiate"), (2, "from master: SyncPlan"), (3, "to master: SyncComplete")]
    {
        let commands: Vec<_> = (0..3)
            .map(|peer| {
                sync_command(revision, "popular", &tensor(if peer == 0 { revision + 10 } else { revision }))
            })
            .collect();
        die_at(&mut fleet, point, &commands);
        for answer in fleet.answers() {
            assert_eq!(answer.good().number("revision") as u64, revision, "{point}");
        }
    }
}

/// Newcomers and deaths while the master is away or has just come back.
#[test]
fn a_peer_that_dies_with_the_master_is_missed_and_a_newcomer_is_let_in() {
    let place = Place::new("deaths");
    let mut fleet = fleet_of(&place, 3);
    fleet.kill_master_process();
    fleet[2].kill();
    fleet.remove(2);
    let spec = Spec::sum(1000, 2);
    fleet.send(format!("reduce {spec} 0 5"));
    fleet.start_master_process();
    let answers = fleet.answers();
    fleet.check(&[spec], &answers);
    assert!(answers.iter().all(|answer| answer.number("participants") == 2), "{answers:?}");
    fleet.join(&[]);
    fleet.kill_master_process();
    fleet.start_master_process();
    assert!(fleet.reduce(Spec::sum(1000, 3)).iter().all(|answer| answer.number("participants") == 3));
}

/// `PCCL_KILLS` says how often.
#[test]
fn a_master_dies_at_any_moment() {
    let kills = std::env::var("PCCL_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(12);
    let place = Place::new("any");
    let mut fleet = fleet_of(&place, 4);
    for round in 0..kills {
        let count = [100, 70_000, 4_000_000][mix(round) as usize % 3];
        let spec = Spec::sum(count, round);
        fleet.send(format!("reduce {spec} 0 0"));
        // Not a wait for anything: the moment of death is to be any.
        thread::sleep(Duration::from_micros(mix(round ^ 77) % 60_000));
        fleet.kill_master_process();
        thread::sleep(Duration::from_millis(mix(round ^ 78) % 300));
        fleet.start_master_process();
        let answers = fleet.answers();
        fleet.check(&[spec], &answers);
    }
}

/// Without a journal of its run a master at the same place is another one, and whoever looks for the one before is told
/// so at once.
#[test]
fn a_master_that_has_lost_its_journal_is_another_one() {
    let place = Place::new("lost");
    let mut fleet = fleet_of(&place, 2);
    fleet.kill_master_process();
    std::fs::remove_file(place.0.join("journal")).expect("there is one");
    fleet.send(format!("reduce {} 0 0", Spec::sum(1000, 1)));
    fleet.start_master_process();
    for answer in fleet.answers() {
        assert!(["MasterLost", "OutcomeUnknown"].contains(&answer.kind()), "{answer:?}");
    }
}
