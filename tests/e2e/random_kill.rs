//! `kill -9` of any one of four peers at any moment of an all-reduce: of 64 MiB around the ring and by pairwise
//! exchange, and of 4 KB that go over the mesh. `PCCL_KILLS` says how often.

use crate::{
    fleet::Fleet,
    peer::{Answer, Peer},
};
use pccl_tests::{
    pattern::{self, mix},
    spec::Spec,
};
use std::{
    collections::HashMap,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

const LARGE: usize = 16 << 20;
const SMALL: usize = 1000;

fn now_us() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_micros()
}

/// Checks the result as [`Fleet::check`] does, but makes each of the large inputs only once.
fn check(inputs: &mut HashMap<usize, Vec<u8>>, fleet: &mut Fleet, spec: &Spec, answers: &[Answer]) {
    let digest = answers[0].field("digests");
    assert!(
        answers.iter().all(|answer| answer.field("restored") == "true" && answer.field("digests") == digest)
    );
    let orders = fleet.orders(&answers[0], answers[0].number("participants"));
    let right = orders.iter().any(|order| {
        for &index in order {
            inputs.entry(index).or_insert_with(|| spec.input(index));
        }
        let ordered: Vec<&[u8]> = order.iter().map(|index| inputs[index].as_slice()).collect();
        pattern::digest(&pattern::expected(spec.data_type, spec.op, &ordered)) == digest
    });
    assert!(right, "wrong result");
}

#[test]
fn any_peer_at_any_moment() {
    kill_at_any_moment("ring", LARGE, 8);
}

#[test]
fn any_peer_at_any_moment_of_a_pairwise_exchange() {
    kill_at_any_moment("pairwise", LARGE, 8);
}

#[test]
fn any_peer_at_any_moment_of_an_operation_over_the_mesh() {
    kill_at_any_moment("automatic", SMALL, 8);
}

/// Waits until operations go the way that is to be tested.
fn await_way(fleet: &mut Fleet, schedule: &str) {
    match schedule {
        "pairwise" => fleet.await_pairwise(),
        "automatic" => fleet.await_mesh(),
        _ => {}
    }
}

fn kill_at_any_moment(schedule: &str, elements: usize, usual: u64) {
    let kills: u64 = std::env::var("PCCL_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(usual);
    let seed =
        std::env::var("PCCL_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or_else(|| now_us() as u64);
    println!("PCCL_SEED={seed}");
    let mut fleet = Fleet::new(4);
    let spec = Spec::sum(elements, 1);
    // How long it takes when nobody dies: the moments of death are spread over that.
    await_way(&mut fleet, schedule);
    fleet.reduce_by(schedule, spec);
    let healthy =
        (0..3).map(|_| fleet.all(format!("reduce {spec} 0 0 {schedule}"))[0].number("longest_ms")).min();
    let healthy = healthy.unwrap_or(0).max(1) as u64;
    let mut inputs = HashMap::new();
    let mut recoveries: Vec<(u128, bool)> = Vec::new();
    for round in 0..kills {
        let random = mix(seed ^ round);
        let victim = (random % 4) as usize;
        await_way(&mut fleet, schedule);
        fleet.send(format!("reduce-announced {spec} 0 20 {schedule}"));
        let begun = Instant::now();
        fleet.iter_mut().for_each(|peer| drop(peer.note()));
        assert!(begun.elapsed() < crate::peer::WATCHDOG);
        // Not a wait for anything: the moment of death is to be any.
        std::thread::sleep(Duration::from_micros((random >> 8) % (healthy * 1000 + 1)));
        fleet[victim].kill();
        let killed = now_us();
        let id = fleet[victim].id.clone().expect("connected");
        fleet.remove(victim);
        let answers: Vec<_> = fleet.iter_mut().map(Peer::answer).collect();
        for answer in &answers {
            assert!(answer.ok, "{answer:?}");
            assert_eq!(answer.text, answers[0].text, "the verdict is not the same for all");
            let errors = answer.field("errors");
            assert!(errors.is_empty() || errors == "Aborted:PeerDied", "{answer:?}");
            assert!(errors.is_empty() || answer.text.contains(&id[..8]), "{answer:?}");
        }
        check(&mut inputs, &mut fleet, &spec, &answers);
        let over = answers.iter().map(|answer| answer.number("over_us") as u128).max().unwrap_or(0);
        recoveries.push((over.saturating_sub(killed) / 1000, answers[0].number("failures") > 0));
        // When this is over the master knows of the death, also if the operation before had ended first.
        fleet.reduce(Spec::sum(10, round));
        fleet.join(&[]);
    }
    recoveries.sort_unstable();
    let aborted = recoveries.iter().filter(|(_, aborted)| *aborted).count();
    let at = |part: usize| recoveries[(recoveries.len() - 1) * part / 100].0;
    println!(
        "{kills} kills, {aborted} with an abort; healthy {healthy} ms; from the kill to the end of the retry: median \
         {} ms, 90 % {} ms, longest {} ms",
        at(50),
        at(90),
        at(100)
    );
    assert!(at(100) < 30_000, "{recoveries:?}");
}
