//! The cost of many peers, and of many operations, for the master: light peers that speak the control protocol and move
//! no data, and the state machine by itself.
//!
//! `cargo bench -p pccl-master --bench crowd -- leave:1000 die:100/1000 operations:1000/1 idle:1000 turns:1000
//! update:1000 optimize:256 wait:1000 tags:20 storm:60 inflight`
//! Without names it runs small cases.

mod calls;
mod crowd;
mod inflight;
mod master;
mod operations;
mod peer;

use crowd::Crowd;
use master::Process;
use operations::Load;
use std::{
    net::Ipv4Addr,
    os::unix::process::CommandExt,
    process::Command,
    time::{Duration, Instant},
};

/// Nothing here takes longer, unless a master does not come to an end.
const PATIENCE: Duration = Duration::from_secs(300);

/// Every peer is a descriptor here.
const RAISE: &str = r#"ulimit -S -n "$(ulimit -H -n)"; exec "$0" "$@""#;
const RAISED: &str = "PCCL_CROWD_RAISED";

fn main() {
    if std::env::var_os(RAISED).is_none() {
        let this = std::env::current_exe().expect("a path of this program");
        let mut again = Command::new("sh");
        let error =
            again.args(["-c", RAISE]).arg(this).args(std::env::args_os().skip(1)).env(RAISED, "1").exec();
        panic!("no shell that raises the number of open files: {error}");
    }
    let named: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let usual = [
        "leave:100",
        "die:10/100",
        "operations:100/1",
        "idle:100",
        "turns:100",
        "update:100",
        "optimize:50",
        "wait:100",
        "tags:5",
        "storm:10",
        "inflight",
    ];
    let cases = if named.is_empty() { usual.map(String::from).to_vec() } else { named };
    for case in cases {
        let (name, of) = case.split_once(':').unwrap_or((case.as_str(), ""));
        let number = |text: &str| text.parse::<usize>().unwrap_or_else(|_| panic!("{case}: not a number"));
        match (name, of.split_once('/')) {
            ("leave", None) => gone(number(of), number(of), true),
            ("leave", Some((some, all))) => gone(number(some), number(all), true),
            ("die", Some((some, all))) => gone(number(some), number(all), false),
            ("operations", Some((peers, flying))) => {
                let (peers, flying) = (number(peers), number(flying) as u64);
                let length = Duration::from_secs(10);
                operations::run(&case, &Load { peers, flying, endless: false, length, looks: 1 });
            }
            ("idle", None) => calls::idle(number(of)),
            ("turns", None) => calls::turns(number(of)),
            ("update", None) => calls::update(number(of)),
            ("optimize", None) => calls::optimize(number(of)),
            ("wait", None) => calls::wait(number(of)),
            ("tags", None) => {
                let length = Duration::from_secs(number(of) as u64);
                operations::run(&case, &Load { peers: 2, flying: 16, endless: true, length, looks: 10 });
            }
            ("storm", _) => storm(number(of)),
            ("inflight", _) => inflight::run(),
            _ => panic!(
                "{case}: leave:N, leave:K/N, die:K/N, operations:PEERS/FLYING, idle:N, turns:N, update:N, \
                 optimize:N, wait:N, tags:SECONDS, storm:SECONDS or inflight"
            ),
        }
    }
}

/// A master that takes no busy machine for silence.
fn launch() -> Process {
    Process::launch(Ipv4Addr::LOCALHOST.into(), |command| {
        command.args(["--peer-timeout", "600"]);
    })
}

/// `some` of `all` peers of one group leave or die at once.
fn gone(some: usize, all: usize, politely: bool) {
    let master = launch();
    let mut crowd = Crowd::new(master.address);
    let began = Instant::now();
    crowd.admit(all);
    let joined = began.elapsed();
    crowd.run(Duration::from_secs(2), |_| false);
    let before = master.usage();
    crowd.forget_measures();
    let began = Instant::now();
    if politely {
        crowd.leave(some)
    } else {
        crowd.die(some)
    }
    let rest = all - some;
    let at_last = crowd.run(PATIENCE, |crowd| crowd.gone() && crowd.all_in_ring_of(rest));
    let took = began.elapsed();
    let plan_bytes = crowd.plan_bytes;
    crowd.run(Duration::from_secs(2), |_| false);
    let peak = master.usage();
    crowd.run(Duration::from_secs(12), |_| false);
    let after = master.usage();
    println!(
        "{} {some} of {all}: {} after {:.2} s (joined in {:.1} s); plans {:.1} MB; slowest echo {:.2} s; \
         master: CPU {:.2} s, memory {:.0} MB before, {:.0} MB at most, {:.0} MB after 14 s",
        if politely { "leave" } else { "die" },
        if at_last { "all have their ring" } else { "NOT FINISHED" },
        took.as_secs_f64(),
        joined.as_secs_f64(),
        plan_bytes as f64 / 1e6,
        crowd.slowest_echo().as_secs_f64(),
        peak.cpu_s - before.cpu_s,
        before.resident_mb,
        peak.most_mb,
        after.resident_mb,
    );
}

/// Peers come and go one after another, beside sixteen that stay, and each departure ends an operation.
fn storm(seconds: usize) {
    let master = launch();
    let mut crowd = Crowd::new(master.address);
    crowd.admit(16);
    let mut next = Instant::now();
    let (began, length) = (Instant::now(), Duration::from_secs(seconds as u64));
    let (mut joins, mut noted) = (0, 0);
    while began.elapsed() < length {
        crowd.admit(17 + joins % 3);
        operations::begin(&mut crowd, joins as u64);
        crowd.die(1 + joins % 3);
        let size = 16;
        assert!(crowd.run(PATIENCE, |crowd| crowd.all_in_ring_of(size)), "no ring");
        joins += 1;
        if Instant::now() >= next {
            next += length / 10;
            let now = master.usage().resident_mb;
            println!("storm: {:>6} joins, {:>5} s: {now:.1} MB", joins, began.elapsed().as_secs());
            noted += 1;
        }
    }
    println!(
        "storm: {joins} joins in {seconds} s, {noted} looks, {:.1} MB at the end",
        master.usage().resident_mb
    );
}
