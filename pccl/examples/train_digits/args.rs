//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};

/// What this process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Role {
    /// Runs the master and the peers, kills and replaces some of them, shows progress, judges the result.
    Supervisor,
    /// One peer of a run; needs `--master`.
    Peer,
}

/// Trains a digit classifier on several peers that die and are replaced (DiLoCo over PCCL).
///
/// Without options: starts a master and three peers on this machine, kills one midway, starts a replacement, and
/// checks that all end with the same state and at least 95 % test accuracy.
///
/// Across machines: run `pccl-master` on one, then on each `train_digits --role peer --master ADDR --shard N`.
#[derive(Debug, Clone, Parser)]
#[command(name = "train_digits")]
pub(crate) struct Args {
    /// What this process is.
    #[arg(long, value_enum, default_value_t = Role::Supervisor)]
    pub(crate) role: Role,

    /// Address of a running master, HOST:PORT. The supervisor runs its own if this is not given.
    #[arg(long, value_name = "ADDR", required_if_eq("role", "peer"))]
    pub(crate) master: Option<String>,

    /// Peers to start with.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(2..=64))]
    pub(crate) peers: u32,

    /// Outer steps of the run.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) steps: u64,

    /// Kill the oldest peer every so many seconds, and replace it each time [default: kill one peer midway].
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub(crate) kill_every: Option<Duration>,

    /// Shortest time of one outer step, milliseconds: stands in for the long local training of a real model.
    #[arg(long, value_name = "MS", default_value_t = 100, value_parser = clap::value_parser!(u64).range(0..=60_000))]
    pub(crate) pace_ms: u64,

    /// Give up after this many seconds [default: twice what the steps should take, and a minute].
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub(crate) deadline: Option<Duration>,

    /// Seed of the starting parameters; the same on every peer.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,

    /// Where to write the plot [default: train_digits.svg beside the program].
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,

    /// Number of this peer, different on each: decides which part of the data it trains on first.
    #[arg(long, default_value_t = 0)]
    pub(crate) shard: u64,

    /// Name or address under which other peers reach this one [default: where the master sees it come from].
    #[arg(long, value_name = "HOST")]
    pub(crate) advertised_host: Option<String>,

    /// Exit when stdin closes: the supervisor holds the other end, and its death must not leave peers behind.
    #[arg(long, hide = true)]
    pub(crate) supervised: bool,
}

impl Args {
    /// Shortest time of one outer step.
    pub(crate) const fn pace(&self) -> Duration {
        Duration::from_millis(self.pace_ms)
    }

    /// When the supervisor gives up, counted from its start.
    pub(crate) fn deadline(&self) -> Duration {
        // 50 ms: what a step itself may take on a slow machine.
        let step = self.pace() + Duration::from_millis(50);
        let steps = u32::try_from(self.steps).unwrap_or(u32::MAX);
        self.deadline
            .unwrap_or_else(|| step.saturating_mul(steps).saturating_mul(2) + Duration::from_secs(60))
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

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(line: &str) -> Result<Args, clap::Error> {
        Args::try_parse_from(line.split(' '))
    }

    #[test]
    fn definition_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn defaults_are_a_supervised_run_of_three() {
        let args = parse("t").unwrap();
        assert_eq!((args.role, args.peers, args.kill_every), (Role::Supervisor, 3, None));
        assert!(args.deadline() > Duration::from_secs(60));
    }

    #[test]
    fn a_peer_needs_a_master() {
        assert!(parse("t --role peer").is_err());
        let args = parse("t --role peer --master 10.0.0.1:48148 --shard 2").unwrap();
        assert_eq!((args.master.as_deref(), args.shard), (Some("10.0.0.1:48148"), 2));
    }

    #[test]
    fn nonsense_is_refused() {
        for bad in ["--peers 1", "--steps 0", "--kill-every nan", "--kill-every -3", "--deadline 1e99"] {
            assert!(parse(&format!("t {bad}")).is_err(), "{bad}");
        }
    }

    #[test]
    fn huge_runs_have_a_finite_deadline() {
        let args = parse("t --steps 1000000 --pace-ms 60000").unwrap();
        assert!(args.deadline() > Duration::from_secs(60_000_000));
    }
}
