//! Threads, descriptors and processor time of a peer process.

use crate::{
    fleet::{Fleet, config},
    peer::{Peer, WATCHDOG, proc_stat},
};
use pccl_tests::spec::Spec;
use std::time::{Duration, Instant};

#[test]
fn several_connections_per_edge() {
    let mut fleet = Fleet::with(config(), 3, &["pool=4"]);
    for count in [0, 1, 1000, 1_500_000] {
        fleet.reduce(Spec::sum(count, count as u64));
    }
}

/// With 64 connections in each direction and 64 operations in flight: a thread per end of a connection, and six.
#[test]
fn threads_at_the_largest_pool() {
    let mut fleet = Fleet::with(config(), 2, &["pool=64"]);
    let specs: Vec<Spec> = (0..64).map(|i| Spec::sum(20_000 + i, i as u64)).collect();
    let words: Vec<_> = specs.iter().enumerate().map(|(tag, spec)| format!("{spec}@{tag}")).collect();
    let command = format!("scope {} 0 0", words.join(","));
    let mut most = 0;
    for _ in 0..3 {
        fleet.send(&command);
        let mut answers = Vec::new();
        for place in 0..2 {
            loop {
                most = most.max(fleet[0].proc_count("task")).max(fleet[1].proc_count("task"));
                if let Some(answer) = fleet[place].answer_within(Duration::from_millis(1)) {
                    answers.push(answer);
                    break;
                }
            }
        }
        fleet.check(&specs, &answers);
    }
    println!("threads of a peer with 64 connections out and 64 in: {most}");
    assert!((128..=2 * 64 + 6 + 1).contains(&most), "{most} threads");
}

/// Waits until the peer has no more threads and descriptors than that: threads that dial end a little later.
fn settles_at(peer: &Peer, threads: usize, files: usize) {
    let deadline = Instant::now() + WATCHDOG;
    while peer.proc_count("task") > threads || peer.proc_count("fd") > files {
        assert!(
            Instant::now() < deadline,
            "{} threads and {} descriptors, {threads} and {files} before",
            peer.proc_count("task"),
            peer.proc_count("fd")
        );
        pccl_testkit::barrier::look_again();
    }
}

#[test]
fn nothing_grows() {
    let mut fleet = Fleet::new(2);
    let spec = Spec::sum(10_000, 1);
    for _ in 0..20 {
        fleet.reduce(spec);
    }
    let before: Vec<_> = fleet.iter().map(|peer| (peer.proc_count("task"), peer.proc_count("fd"))).collect();
    for _ in 0..200 {
        fleet.reduce(spec);
    }
    for (peer, (threads, files)) in fleet.iter().zip(&before) {
        settles_at(peer, *threads, *files);
    }
    for round in 0..20 {
        let third = fleet.join(&[]);
        fleet.reduce(spec);
        if round % 2 == 0 {
            fleet[third].ask("close").good();
        } else {
            fleet[third].kill();
        }
        fleet.remove(third);
        fleet.reduce(spec);
    }
    for (peer, (threads, files)) in fleet.iter().zip(&before) {
        settles_at(peer, *threads, *files);
    }
}

/// The thread count of one that leaves and comes back over and over.
#[test]
fn nothing_grows_over_reconnects() {
    let mut fleet = Fleet::new(2);
    let mut before = None;
    for _ in 0..10 {
        fleet[1].ask("close").good();
        fleet[1].send("connect");
        fleet[0].send("wait 2 0");
        assert!(fleet.answers().iter().all(|answer| answer.ok));
        fleet.meet();
        fleet.reduce(Spec::sum(1000, 1));
        let now = (fleet[1].proc_count("task"), fleet[1].proc_count("fd"));
        let (threads, files) = *before.get_or_insert(now);
        settles_at(&fleet[1], threads, files);
    }
}

/// User and system time that a process has used, in clock ticks of 10 ms.
fn ticks(peer: &Peer) -> u64 {
    let stat = proc_stat(peer.pid());
    stat[11].parse::<u64>().expect("utime") + stat[12].parse::<u64>().expect("stime")
}

/// A thread that waits, for work or for others, sleeps.
#[test]
fn waiting_costs_no_processor_time() {
    let mut fleet = Fleet::with(config(), 3, &["pool=16"]);
    let spec = Spec::sum(1000, 1);
    fleet.reduce(spec);
    // Two wait in an operation, one does nothing.
    fleet[0].send(format!("reduce {spec} 0 0"));
    fleet[1].send(format!("reduce {spec} 0 0"));
    let before: Vec<_> = fleet.iter().map(ticks).collect();
    let begun = Instant::now();
    std::thread::sleep(Duration::from_secs(3));
    let used: Vec<_> = fleet.iter().zip(before).map(|(peer, before)| ticks(peer) - before).collect();
    println!("clock ticks of 10 ms used in {:?}: {used:?}", begun.elapsed());
    assert!(used.iter().all(|&ticks| ticks < 60), "waiting peers were busy: {used:?} ticks");
    fleet[2].send(format!("reduce {spec} 0 0"));
    let answers = fleet.answers();
    fleet.check(&[spec], &answers);
}
