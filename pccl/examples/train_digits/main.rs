//! Trains a digit classifier on several peers that die and are replaced.
//!
//! `peer.rs` is the part to read: the training loop of one peer. `model.rs` and `data.rs` are what it trains, and on
//! what. `master.rs` has the master. This file starts it and the peers; the development crate `pccl-testkit` watches,
//! kills and judges them.

mod data;
mod master;
mod model;
mod peer;

use clap::{Parser, ValueEnum};
use master::{Authority, Killed};
use pccl_testkit::training::{KillPlan, Progress, Supervision, exit_with_supervisor};
use std::{
    io,
    path::PathBuf,
    process::{Command, ExitCode},
    time::Duration,
};

/// A failure outside of training itself.
type Failure = Box<dyn std::error::Error>;

/// Test accuracy that every peer has to reach.
const ACCURACY_MIN: f64 = 0.95;

/// The role of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Role {
    /// Runs the master and the peers, kills and replaces some of them, shows progress, judges the result.
    Supervisor,
    /// One peer of a run; needs `--master`.
    Peer,
    /// The master that `--master-kill-every` kills: listens at `--master`.
    #[value(hide = true)]
    Master,
}

/// Trains a digit classifier on several peers that die and are replaced (DiLoCo over PCCL).
///
/// Without options: starts a master and three peers on this machine, kills one midway, starts a replacement, and
/// checks that all end with the same state and at least 95 % test accuracy.
///
/// Across machines: run `pccl-master` on one, then on each `train_digits --role peer --master ADDR --shard N`.
#[derive(Debug, Clone, Parser)]
#[command(name = "train_digits")]
struct Args {
    /// The role of this process.
    #[arg(long, value_enum, default_value_t = Role::Supervisor)]
    role: Role,

    /// Address of a running master, HOST:PORT. The supervisor runs its own if this is not given.
    #[arg(long, value_name = "ADDR", required_if_eq("role", "peer"))]
    master: Option<String>,

    /// Peers to start with.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(2..=64))]
    peers: u32,

    /// Outer steps of the run.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    steps: u64,

    /// Kill the oldest peer every this many seconds, and replace it each time [default: kill one peer midway].
    #[arg(long, value_name = "S", value_parser = seconds)]
    kill_every: Option<Duration>,

    /// Kill the master every this many seconds and start it again; no peer is killed unless `--kill-every` is given,
    /// and then no call of any peer may fail.
    #[arg(long, value_name = "S", value_parser = seconds, conflicts_with = "master")]
    master_kill_every: Option<Duration>,

    /// This number of masters stand by, and one of them takes over each time. Without any, the master goes on from its
    /// journal.
    #[arg(long, value_name = "N", default_value_t = 0, requires = "master_kill_every")]
    #[arg(value_parser = clap::value_parser!(u32).range(..=8))]
    standbys: u32,

    /// A master takes others that stand by for it.
    #[arg(long, hide = true)]
    accept_standbys: bool,

    /// The masters that this one stands by for.
    #[arg(long, hide = true, value_delimiter = ',')]
    standby_of: Vec<String>,

    /// Where a master writes what it knows.
    #[arg(long, hide = true)]
    journal: Option<PathBuf>,

    /// Shortest time of one outer step, milliseconds: stands in for the long local training of a real model.
    #[arg(long, value_name = "MS", default_value_t = 100, value_parser = clap::value_parser!(u64).range(0..=60_000))]
    pace_ms: u64,

    /// Give up after this many seconds [default: twice what the steps should take, and a minute].
    #[arg(long, value_name = "S", value_parser = seconds)]
    deadline: Option<Duration>,

    /// Seed of the starting parameters; the same on every peer.
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Where to write the plot [default: train_digits.svg beside the program].
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,

    /// Number of this peer, different on each: decides which part of the data it trains on first.
    #[arg(long, default_value_t = 0)]
    shard: u64,

    /// Name or address under which other peers reach this one [default: where the master sees it come from].
    #[arg(long, value_name = "HOST")]
    advertised_host: Option<String>,

    /// Exit when stdin closes: the supervisor holds the other end, and its death must not leave peers behind.
    #[arg(long, hide = true)]
    supervised: bool,
}

impl Args {
    /// Shortest time of one outer step.
    const fn pace(&self) -> Duration {
        Duration::from_millis(self.pace_ms)
    }

    /// Which peers are killed.
    fn kill_plan(&self) -> KillPlan {
        match (self.kill_every, self.master_kill_every) {
            (Some(interval), _) => KillPlan::Every(interval),
            (None, Some(_)) => KillPlan::Nobody,
            (None, None) => KillPlan::Midway,
        }
    }

    /// When the supervisor gives up, counted from its start.
    fn deadline(&self) -> Duration {
        // 50 ms: what a step itself may take on a slow machine.
        let step = self.pace() + Duration::from_millis(50);
        let steps = u32::try_from(self.steps).unwrap_or(u32::MAX);
        let usual = step.saturating_mul(steps).saturating_mul(2) + Duration::from_secs(60);
        self.deadline.unwrap_or(usual)
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let value: f64 = text.parse().map_err(|_| format!("'{text}' is not a number of seconds"))?;
    if (0.1..=1e6).contains(&value) {
        Ok(Duration::from_secs_f64(value))
    } else {
        Err("must be between 0.1 and 1000000 seconds".to_owned())
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let result = match args.role {
        Role::Peer => run_peer(&args),
        Role::Master => run_master(&args),
        Role::Supervisor => supervise(&args),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("train_digits: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run_peer(args: &Args) -> Result<bool, Failure> {
    logger("warn").init();
    if args.supervised {
        exit_with_supervisor()?;
    }
    peer::run(args)
}

fn run_master(args: &Args) -> Result<bool, Failure> {
    // Peers that come back are nothing to warn of here; the supervisor tells of each kill.
    logger("error").init();
    master::run(args)
}

/// Runs a whole training with peers that are processes of this program.
fn supervise(args: &Args) -> Result<bool, Failure> {
    let progress = Progress::stdout();
    // This program itself does the things that the master warns of, and tells them.
    let lines = progress.clone().log(io::stderr());
    logger("error").target(env_logger::Target::Pipe(Box::new(lines))).init();
    let program = std::env::current_exe()?;
    let authority = match (&args.master, args.master_kill_every) {
        (Some(address), _) => Authority::Given(address.clone()),
        (None, None) => Authority::own()?,
        (None, Some(interval)) => {
            let masters = (interval, args.standbys as usize);
            Authority::Killed(Killed::start(program.clone(), masters, progress.clone())?)
        }
    };
    let master = authority.address();

    let command = |peer: u32| {
        let mut command = Command::new(&program);
        command.args(["--role", "peer", "--supervised", "--master", &master]);
        command.args(["--shard", &peer.to_string(), "--steps", &args.steps.to_string()]);
        command.args(["--seed", &args.seed.to_string(), "--pace-ms", &args.pace_ms.to_string()]);
        command
    };
    let supervision = Supervision {
        title: "Digits, trained by peers that die and are replaced".to_owned(),
        peers: args.peers,
        steps: args.steps,
        kills: args.kill_plan(),
        accuracy_min: ACCURACY_MIN,
        deadline: args.deadline(),
        plot: args.plot.clone().unwrap_or_else(|| program.with_file_name("train_digits.svg")),
    };
    let went_well = supervision.run(&command, &progress)?;
    if let Authority::Killed(killed) = authority {
        let kills = killed.end()?;
        progress.line(&format!("master:   killed {kills} times"))?;
        return Ok(went_well && kills > 0);
    }
    Ok(went_well)
}

/// A log of this level and above, or as `RUST_LOG` says.
fn logger(level: &str) -> env_logger::Builder {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or(level))
}

#[test]
fn the_command_line_is_consistent() {
    use clap::CommandFactory;
    Args::command().debug_assert();
    let parse = |line: &str| Args::try_parse_from(line.split(' '));
    assert_eq!(parse("t").expect("defaults").role, Role::Supervisor);
    assert!(parse("t --role peer").is_err());
    let of_plan = |line| parse(line).expect("a plan").kill_plan();
    assert_eq!(of_plan("t"), KillPlan::Midway);
    assert_eq!(of_plan("t --master-kill-every 2"), KillPlan::Nobody);
    assert_eq!(of_plan("t --master-kill-every 2 --kill-every 3"), KillPlan::Every(Duration::from_secs(3)));
    assert!(parse("t --master-kill-every 2 --master 10.0.0.1:48148").is_err());
    assert_eq!(parse("t --master-kill-every 2 --standbys 2").expect("three masters").standbys, 2);
    assert!(parse("t --standbys 1").is_err() && parse("t --master-kill-every 2 --standbys 9").is_err());
    assert!(parse("t --role peer --master 10.0.0.1:48148 --shard 2").is_ok());
    for bad in ["--peers 1", "--steps 0", "--kill-every nan", "--kill-every -3", "--deadline 1e99"] {
        assert!(parse(&format!("t {bad}")).is_err(), "{bad}");
    }
}
