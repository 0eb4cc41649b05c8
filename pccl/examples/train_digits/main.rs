//! Trains a digit classifier on several peers that die and are replaced.

mod args;
mod comm;
mod dataset;
mod diloco;
mod launch;
mod model;
mod peer;
mod plot;
mod progress;
mod report;
mod rng;
mod run;
mod supervisor;

#[cfg(test)]
mod peer_tests;
#[cfg(test)]
mod run_tests;
#[cfg(test)]
mod sim;

use std::io::{self, IsTerminal};
use std::process::ExitCode;

use args::{Args, Role};
use clap::Parser;
use launch::Failure;
use progress::Progress;

fn main() -> ExitCode {
    let args = Args::parse();
    let result = match args.role {
        Role::Peer => peer(&args),
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

fn peer(args: &Args) -> Result<bool, Failure> {
    logger("warn").init();
    let master = args.master.as_deref().ok_or("a peer needs --master")?;
    launch::peer(args, &mut comm::Peer::new(master, args.advertised_host.as_deref())?)
}

fn supervise(args: &Args) -> Result<bool, Failure> {
    let out = io::stdout();
    let terminal = out.is_terminal();
    let progress = Progress::new(out, terminal);
    // What the master warns of, this program does itself, and tells.
    let lines = progress.clone().log(io::stderr());
    logger("error").target(env_logger::Target::Pipe(Box::new(lines))).init();
    if let Some(master) = &args.master {
        return launch::supervise(args, master, &progress);
    }
    let config = pccl::MasterConfig { listen: "127.0.0.1:0".into(), ..pccl::MasterConfig::default() };
    let master = pccl::Master::launch(config)?;
    launch::supervise(args, &master.local_addr().to_string(), &progress)
}

/// A log of this level and above, or as `RUST_LOG` says.
fn logger(level: &str) -> env_logger::Builder {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or(level))
}
