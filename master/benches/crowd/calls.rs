//! The cost of peers that make no operations, and of the calls that all peers of a run make together.

use super::{PATIENCE, crowd::Crowd, launch, master::Process};
use pccl_protocol::{C2m, M2c, ProbePlan, ProbeRate, ProbeReport, ProbeResult};
use std::{
    cell::Cell,
    time::{Duration, Instant},
};

/// Turns that are looked at.
const TURNS: usize = 10_000;
/// Calls of `update_topology` in a row.
const UPDATES: u32 = 5;
/// For so long the master is watched while nobody does anything.
const IDLE: Duration = Duration::from_secs(20);

fn settled(peers: usize) -> (Process, Crowd) {
    let master = launch();
    let mut crowd = Crowd::new(master.address);
    crowd.admit(peers);
    crowd.run(Duration::from_secs(2), |_| false);
    crowd.forget_measures();
    (master, crowd)
}

/// Nothing but beats.
pub(crate) fn idle(peers: usize) {
    let (master, mut crowd) = settled(peers);
    let before = master.usage();
    crowd.run(IDLE, |_| false);
    let used_s = master.usage().cpu_s - before.cpu_s;
    println!(
        "idle {peers}: {:.2} % of a core, {:.1} us of the master's CPU for each beat, slowest echo {:.3} s",
        used_s * 100.0 / IDLE.as_secs_f64(),
        used_s * 1e6 / (peers as f64 * IDLE.as_secs_f64()),
        crowd.slowest_echo().as_secs_f64()
    );
}

/// One beat after the other, each in a turn of the master's loop by itself: what a turn costs when little happens.
pub(crate) fn turns(peers: usize) {
    let (master, mut crowd) = settled(peers);
    crowd.next_look_at_beats = None;
    crowd.run(Duration::from_secs(1), |_| false);
    let before = master.usage();
    let keys: Vec<usize> = crowd.peers.keys().copied().collect();
    for nth in 0..TURNS {
        let key = keys[nth % keys.len()];
        crowd.peers.get_mut(&key).expect("a peer that stays").beat(Instant::now());
        assert!(crowd.run(PATIENCE, |crowd| crowd.peers[&key].open.is_empty()), "no echo");
    }
    let used_s = master.usage().cpu_s - before.cpu_s;
    println!("turns {peers}: {:.1} us of the master's CPU for each", used_s * 1e6 / TURNS as f64);
}

/// `update_topology` with nobody to let in.
pub(crate) fn update(peers: usize) {
    let (master, mut crowd) = settled(peers);
    let (before, began) = (master.usage(), Instant::now());
    for _ in 0..UPDATES {
        let done = Cell::new(0);
        crowd.vote_topology();
        let ends = crowd.run_with(
            PATIENCE,
            |_| done.get() == peers,
            |_, packet| done.set(done.get() + usize::from(matches!(packet, M2c::TopologyDone(_)))),
        );
        assert!(ends, "update_topology does not end");
    }
    println!(
        "update {peers}: {:.1} ms, {:.1} ms of the master's CPU, slowest echo {:.3} s",
        began.elapsed().as_secs_f64() * 1e3 / f64::from(UPDATES),
        (master.usage().cpu_s - before.cpu_s) * 1e3 / f64::from(UPDATES),
        crowd.slowest_echo().as_secs_f64()
    );
}

/// `optimize_topology`; every probe is over at once.
pub(crate) fn optimize(peers: usize) {
    let (master, mut crowd) = settled(peers);
    let (before, began) = (master.usage(), Instant::now());
    let request = crowd.request();
    crowd.send_accepted(&C2m::VoteOptimize(request));
    let (done, probes, rounds) = (Cell::new(0), Cell::new(0_u64), Cell::new(0));
    let ends = crowd.run_with(
        PATIENCE,
        |_| done.get() == peers,
        |peer, packet| match packet {
            M2c::ProbePlan(plan) => {
                probes.set(probes.get() + 1);
                rounds.set(rounds.get().max(plan.round.round));
                let me = peer.me.expect("registered").0;
                peer.post(&C2m::ProbeReport(report(me, &plan)));
            }
            M2c::OptimizeDone(_) => done.set(done.get() + 1),
            _ => {}
        },
    );
    println!(
        "optimize {peers}: {} {:.2} s, {} probes in {} rounds, {:.2} s of the master's CPU, slowest echo {:.2} s",
        if ends { "in" } else { "NOT FINISHED after" },
        began.elapsed().as_secs_f64(),
        probes.get(),
        rounds.get(),
        master.usage().cpu_s - before.cpu_s,
        crowd.slowest_echo().as_secs_f64()
    );
}

/// A rate that follows from who is at the ends.
fn report(from: u128, plan: &ProbePlan) -> ProbeReport {
    let mixed = (from ^ plan.to.0.rotate_left(17)).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    let kbit_s = 50_000 + (mixed >> 64) as u64 % 950_000;
    let latency_us = 1_000 + (mixed >> 32) as u32 % 100_000;
    let rate = ProbeRate { kbit_s, latency_us, connections: 1 };
    ProbeReport { round: plan.round, to: plan.to, result: ProbeResult::Measured(rate) }
}

/// This number of peers come at once to one that is there already, wait together, and are let in together.
pub(crate) fn wait(newcomers: usize) {
    let master = launch();
    let mut crowd = Crowd::new(master.address);
    crowd.admit(1);
    crowd.forget_measures();
    let (before, began) = (master.usage(), Instant::now());
    crowd.come(newcomers);
    let came = began.elapsed();
    crowd.vote_topology();
    let size = newcomers + 1;
    let in_time = crowd.run(PATIENCE, |crowd| crowd.all_in_ring_of(size));
    println!(
        "wait {newcomers}: registered after {:.2} s, {} {:.2} s; plans {:.1} MB; \
         {:.2} s of the master's CPU, slowest echo {:.2} s",
        came.as_secs_f64(),
        if in_time { "in a ring after" } else { "NOT FINISHED after" },
        began.elapsed().as_secs_f64(),
        crowd.plan_bytes as f64 / 1e6,
        master.usage().cpu_s - before.cpu_s,
        crowd.slowest_echo().as_secs_f64()
    );
}
