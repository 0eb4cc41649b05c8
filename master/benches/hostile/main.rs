//! The cost of hostile clients for a master, with the run key and without: the memory that its process takes at most,
//! when a silent peer is dropped, how long honest peers wait for answers, and how many newcomers are served that are
//! 100 ms away.
//!
//! `cargo bench -p pccl-master --bench hostile -- calm packets questions beats joins slow networks block`
//! Without names it runs all. Names with `:key` or `:plain` run in one mode only. `block` needs a network namespace of
//! its own, which it makes with `unshare`.

mod attack;
mod honest;
#[path = "../crowd/master.rs"]
mod master;
mod newcomers;

use honest::Honest;
use master::Process;
use newcomers::Newcomers;
use std::{
    fs::{self, File},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};
use tinysockets::key::{KEY_VARIABLE, RunKey};

/// How long an attack goes on.
const ATTACK: Duration = Duration::from_secs(20);
/// The key of runs that have one, in digits.
const KEY: &str = "5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a";

fn main() {
    let named: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    if let [command, name, address] = named.as_slice()
        && command == "attack"
    {
        return attack::run(name, address.parse().expect("an address"), key().as_ref());
    }
    let all =
        ["calm", "packets", "questions", "beats", "joins", "slow", "networks", "block"].map(String::from);
    if std::env::var_os(IN_NAMESPACE).is_none() {
        println!(
            "attack      key   peak MB  CPU s  silent peer dropped s  answer ms mean/max  status ms max  newcomers at \
             once, late: served, ms max  log lines"
        );
    }
    for case in if named.is_empty() { &all[..] } else { &named } {
        let (name, mode) = case.split_once(':').unwrap_or((case, ""));
        if name == "block" && std::env::var_os(IN_NAMESPACE).is_none() {
            in_namespace(case);
            continue;
        }
        for keyed in [false, true] {
            if mode.is_empty() || (mode == "key") == keyed {
                measure(name, keyed);
            }
        }
    }
}

/// Set where all addresses of [`attack::BLOCK`] are those of this machine.
const IN_NAMESPACE: &str = "PCCL_HOSTILE_IN_NAMESPACE";

/// Runs a case again in a network of its own.
fn in_namespace(case: &str) {
    let prepare =
        format!("ip link set lo up && ip -6 route add local {} dev lo && exec \"$@\"", attack::BLOCK);
    let mut command = Command::new("unshare");
    command.args(["--net", "--map-root-user", "sh", "-c", &prepare, "sh"]);
    command.arg(std::env::current_exe().expect("this program")).arg(case).env(IN_NAMESPACE, "1");
    let status = command.status().expect("the program unshare");
    assert!(status.success(), "{case}: {status}");
}

/// The key in the environment.
fn key() -> Option<RunKey> {
    std::env::var(KEY_VARIABLE).ok().map(|text| text.parse().expect("a run key"))
}

/// One attack on one master.
fn measure(name: &str, keyed: bool) {
    let log = std::env::temp_dir().join(format!("pccl-hostile-{}.log", std::process::id()));
    let file = File::create(&log).expect("a file for the log");
    let with_key = |command: &mut Command| {
        command.env_remove(KEY_VARIABLE);
        if keyed {
            command.env(KEY_VARIABLE, KEY);
        }
    };
    let host = if name == "block" { IpAddr::from(Ipv6Addr::LOCALHOST) } else { Ipv4Addr::LOCALHOST.into() };
    let master = Process::launch(host, |command| {
        command.stderr(file);
        with_key(command);
    });
    let key = keyed.then(|| KEY.parse().expect("a run key"));
    let newcomers = Newcomers::start(master.address, key.as_ref());
    let honest = Honest::start(master.address, key);
    let before = master.usage();
    let mut attacker = (name != "calm").then(|| {
        // On a small machine the attackers are not to win by taking the processor from everybody.
        let mut command = Command::new("nice");
        command.args(["-n", "10"]).arg(std::env::current_exe().expect("this program"));
        command.args(["attack", name, &master.address.to_string()]).stdin(Stdio::null());
        with_key(&mut command);
        Attacker(command.spawn().expect("the program nice"))
    });
    let began = Instant::now();
    while began.elapsed() < ATTACK {
        std::thread::sleep(Duration::from_millis(100));
        if let Some(Attacker(child)) = &mut attacker {
            assert!(child.try_wait().expect("a child").is_none(), "the attackers have given up");
        }
    }
    let found = honest.end();
    let [at_once, late] = newcomers.end().map(|seen| seen.text());
    drop(attacker);
    let usage = master.usage();
    drop(master);
    let lines = fs::read_to_string(&log).unwrap_or_default().lines().count();
    let _ = fs::remove_file(&log);
    println!(
        "{name:<10} {:>4} {:>9.1} {:>6.1} {:>22} {:>12.1}/{:<6.1} {:>14.1} {at_once:>24} {late:>14} {lines:>10}{}",
        if keyed { "yes" } else { "no" },
        usage.most_mb,
        usage.cpu_s - before.cpu_s,
        found.silent_dropped.map_or("NOT".into(), |time| format!("{:.1}", time.as_secs_f64())),
        millis(found.answers.mean()),
        millis(found.answers.longest),
        millis(found.status.longest),
        found
            .failures
            .first()
            .map_or(String::new(), |text| format!("  {} FAILED: {text}", found.failures.len())),
    );
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The process of the attackers, ended with this.
struct Attacker(Child);

impl Drop for Attacker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
