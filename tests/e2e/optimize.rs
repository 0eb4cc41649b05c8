//! `optimize_topology` among processes: its time, and `kill -9` of one peer in each phase of it. `PCCL_OPTIMIZE_KILLS`
//! says how often.

use crate::{
    fleet::{Fleet, config},
    peer::Answer,
};
use pccl::MasterConfig;
use pccl_tests::{pattern::mix, spec::Spec};
use std::time::{Duration, Instant};

/// Points that every peer passes in an optimisation, and how often before it dies.
const POINTS: [(&str, usize); 7] = [
    ("to master: VoteOptimize", 1),
    ("from master: ProbePlan", 1),
    ("from master: ProbePlan", 2),
    ("to master: ProbeReport", 1),
    ("to master: ProbeReport", 3),
    ("from master: OptimizeDone", 1),
    // At any moment.
    ("", 0),
];

fn quick(probe_ms: u64) -> MasterConfig {
    MasterConfig { probe_time: Duration::from_millis(probe_ms), ..config() }
}

#[test]
fn eight_peers_measure_every_edge_and_none_again() {
    let probe = Duration::from_secs(1);
    let mut fleet = Fleet::with(MasterConfig { probe_time: probe, ..config() }, 8, &[]);
    let began = Instant::now();
    let mut answers = fleet.all("optimize");
    println!(
        "first optimisation of 8 peers: {:.2} s of 7 rounds of {probe:?}",
        began.elapsed().as_secs_f64()
    );
    // Eight probes at once, on a busy machine: the next optimisation measures what this one could not.
    let is_measured = |answers: &[Answer]| answers[0].clone().good().number("unmeasured") == 0;
    for _ in 0..10 {
        if is_measured(&answers) {
            break;
        }
        answers = fleet.all("optimize");
    }
    assert!(is_measured(&answers), "{answers:?}");
    for answer in &answers {
        assert_eq!(answer.clone().good().number("unmeasured"), 0, "{answer:?}");
        assert_eq!(answer.ring(), answers[0].ring());
        assert_eq!(answer.field("slowest"), answers[0].field("slowest"));
    }
    // Rates that are known are not measured again.
    let began = Instant::now();
    fleet.all("optimize").into_iter().for_each(|answer| drop(answer.good()));
    println!("again: {:.3} s", began.elapsed().as_secs_f64());
    fleet.meet();
    fleet.reduce(Spec::sum(100_000, 1));
}

/// The view of an operator: the table for `plan`, the slowest edge and the schedule.
#[test]
fn what_was_measured_is_shown() {
    let ask = Duration::from_secs(20);
    let mut fleet = Fleet::with_each(quick(300), &[&["name=a"], &["name=b"], &["name=c"]]);
    let answer = fleet.all("optimize").remove(0).good();
    let rates = pccl_master::query_rates(&fleet.address, None, None, ask).expect("an answer");
    let csv = pccl_master::rates_to_csv(&rates).expect("measured");
    let input = pccl_planner::offline::read(&csv, pccl_planner::offline::Kind::Rates, None)
        .expect("as plan reads it");
    assert_eq!((input.names.len(), rates.edges.len(), rates.left_out), (3, 6, 0), "{csv}");
    assert!(csv.starts_with("from,") && csv.lines().any(|line| line.starts_with("a,")), "{csv}");
    let status = pccl_master::query_status(&fleet.address, None, ask).expect("an answer");
    let slowest = status.groups[0].slowest.expect("all edges of the ring have a rate");
    assert_eq!(answer.field("slowest"), (slowest.kbit_s as f64 / 1000.0).to_string());
    let name = |peer| &status.peers.iter().find(|known| known.peer == peer).expect("a member").name;
    let wanted = format!("({}) with {}, large operations go ", name(slowest.to), slowest.rate());
    assert!(status.to_string().contains(&wanted), "{status}");
    let json = pccl_master::status_to_json(&status);
    assert!(json.contains("\"slowest_edge\":{\"from\":") && json.contains("\"schedule\":\""), "{json}");
    fleet[0].await_log("optimised: ");
}

#[test]
fn alone_and_in_pairs_there_is_nothing_to_optimise() {
    let mut fleet = Fleet::new(1);
    let answer = fleet.all("optimize").remove(0).good();
    assert_eq!((answer.field("changed"), answer.number("group")), ("false", 1));
    fleet.join(&[]);
    fleet.all("optimize").into_iter().for_each(|answer| drop(answer.good()));
    fleet.reduce(Spec::sum(1000, 1));
}

#[test]
fn a_death_in_each_phase() {
    let kills = std::env::var("PCCL_OPTIMIZE_KILLS").ok().and_then(|text| text.parse().ok());
    let kills: usize = kills.unwrap_or(POINTS.len());
    let mut fleet = Fleet::with(quick(300), 4, &[]);
    let mut longest = Duration::ZERO;
    for case in 0..kills {
        let (point, nth) = POINTS[case % POINTS.len()];
        let victim = (mix(case as u64) % 4) as usize;
        if point.is_empty() {
            fleet.send("optimize");
            // Not a wait for anything: the moment of death is to be any.
            std::thread::sleep(Duration::from_millis(mix(case as u64 ^ 1) % 1_200));
            fleet[victim].kill();
        } else {
            fleet[victim].ask(format!("trap kill {nth} {point}")).good();
            fleet.send("optimize");
            fleet[victim].await_death();
        }
        let died = Instant::now();
        fleet.remove(victim);
        for answer in fleet.answers() {
            assert!(answer.ok, "case {case}, {point:?}: {answer:?}");
        }
        longest = longest.max(died.elapsed());
        // The next call succeeds, whichever it is.
        let after = fleet.all("optimize");
        for answer in &after {
            assert_eq!(answer.clone().good().number("group"), 3, "case {case}, {point:?}");
            assert_eq!(answer.ring(), after[0].ring());
        }
        fleet.meet();
        fleet.reduce(Spec::sum(1000, case as u64));
        // A world in which nothing is known yet, so that each victim passes each point.
        fleet = Fleet::with(quick(300), 4, &[]);
    }
    println!("{kills} kills; from the death to the end of the call at most {:.2} s", longest.as_secs_f64());
}
