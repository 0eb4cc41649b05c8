//! Faults that must not cost anybody a place in the run: an overloaded machine, a master that stands still. And faults
//! that cost the place of the one who stands in the way only.

use crate::{
    arena::{Arena, Times, full},
    fleet::{Fleet, config},
    peer::WATCHDOG,
    quiet,
};
use pccl::MasterConfig;
use pccl_tests::spec::Spec;
use std::{
    process::{Child, Command},
    time::{Duration, Instant},
};

/// Processes that never sleep.
struct Load(Vec<Child>);

impl Load {
    fn new(processes: usize) -> Self {
        let spin = || Command::new("sh").args(["-c", "while :; do :; done"]).spawn().expect("a shell");
        Self((0..processes).map(|_| spin()).collect())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Five runnable processes per core beside the peers, with the default time-out of 10 s.
#[test]
fn an_overloaded_machine_loses_nobody() {
    let _alone = quiet::alone();
    let mut fleet = Fleet::new(4);
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let _load = Load::new(5 * cores);
    let end = Instant::now() + Duration::from_secs(if full() { 600 } else { 20 });
    let mut round = 0;
    while Instant::now() < end {
        round += 1;
        for answer in fleet.reduce(Spec::sum(20_000, round)) {
            assert_eq!((answer.field("errors"), answer.number("participants")), ("", 4), "{answer:?}");
        }
    }
    assert!(fleet.iter().all(|peer| !peer.log().contains("dropped by the master")));
}

/// The master stands still for longer than the peer time-out: when it goes on, it blames nobody for that time.
#[test]
fn a_master_that_stood_still_drops_nobody() {
    let _shared = quiet::shared();
    let (peer_timeout, pause) = if full() { (10_000, 20_000) } else { (1500, 4000) };
    let config = MasterConfig { peer_timeout: Duration::from_millis(peer_timeout), ..config() };
    let mut fleet = Fleet::with_master_process(config, 4, &[]);
    // Once while they wait for its word, once in the middle of the data, once in no call.
    for point in ["to master: Initiate", "frame begins, stage 1 of 6", ""] {
        if !point.is_empty() {
            fleet[1].ask(format!("trap stop 1 {point}")).good();
            fleet.send("reduce f32:sum:600000:1:in 7 0");
            fleet[1].await_stop();
        }
        fleet.stop_master_process();
        fleet[1].resume();
        // The duration of the stop is the fault itself.
        std::thread::sleep(Duration::from_millis(pause));
        fleet.resume_master_process();
        if !point.is_empty() {
            let answers = fleet.answers();
            fleet.check(&[Spec::sum(600_000, 1)], &answers);
            assert!(answers.iter().all(|answer| answer.field("errors").is_empty()), "{point}: {answers:?}");
        }
        for answer in fleet.reduce(Spec::sum(1000, 2)) {
            assert_eq!(
                (answer.field("errors"), answer.number("participants")),
                ("", 4),
                "{point}: {answer:?}"
            );
        }
    }
}

/// A firewall between them has forgotten their connections at rest, and answers with resets. The edges are built anew
/// before anybody calls: no attempt is lost, and nobody complains.
#[test]
fn edges_that_are_reset_at_rest_cost_nothing() {
    let _shared = quiet::shared();
    let mut arena = Arena::on_loopback(Times::new(), 3);
    arena.fleet.reduce(Spec::sum(1000, 1));
    // The rest is the case itself.
    std::thread::sleep(Duration::from_millis(2500));
    for (a, b) in [(0, 1), (1, 2), (2, 0)] {
        arena.network.reset(a, b);
    }
    const LOST: &str = "had been idle for 2 s before; does a firewall";
    let is_repaired = |log: &str| {
        let lost = log.rfind(LOST);
        lost.is_some() && lost < log.rfind("plan of epoch")
    };
    let deadline = Instant::now() + WATCHDOG;
    while !arena.fleet.iter().all(|peer| is_repaired(&peer.log())) {
        assert!(Instant::now() < deadline, "the edges are not built anew: {}", arena.fleet[0].log());
        pccl_testkit::barrier::look_again();
    }
    for answer in arena.fleet.reduce(Spec::sum(300_000, 2)) {
        assert_eq!((answer.field("errors"), answer.number("participants")), ("", 3), "{answer:?}");
    }
    for log in arena.fleet.iter().map(|peer| peer.log()) {
        let complaint = log.lines().find(|line| line.contains("WARN") && line.contains("edge "));
        assert_eq!(complaint, None);
    }
}

/// Nobody gets through to the newcomer: it is told which edges stand in the way, and the others go on without it.
#[test]
fn a_newcomer_that_nobody_reaches_is_told_so() {
    let _shared = quiet::shared();
    let mut arena = Arena::on_loopback(Times::new(), 3);
    let newcomer = arena.spawn();
    (0..3).for_each(|member| arena.network.block(member, newcomer));
    arena.fleet[newcomer].send("connect");
    // The master reaches it.
    arena.fleet[newcomer].await_log("admission waits for the topology vote");
    for member in 0..3 {
        arena.fleet[member].send("topology");
    }
    for member in 0..3 {
        let answer = arena.fleet[member].answer().good();
        assert_eq!(answer.number("global"), 3);
    }
    let answer = arena.fleet[newcomer].answer().bad("Kicked");
    assert_eq!(answer.field("code"), "Unreachable");
    let edges = arena.fleet.peers[..3]
        .iter()
        .filter(|peer| answer.text.contains(&peer.id.as_ref().expect("known")[..8]));
    assert!(edges.count() >= 1, "no edge is named: {answer:?}");
    // With the port open it gets in.
    arena.network.heal();
    arena.fleet[newcomer].send("connect");
    for member in 0..3 {
        arena.fleet[member].send("wait 4 0");
    }
    for answer in arena.fleet.answers() {
        answer.good();
    }
    arena.meet();
    assert_eq!(arena.fleet.reduce(Spec::sum(1000, 1))[0].number("participants"), 4);
}
