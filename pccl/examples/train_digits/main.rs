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

use std::process::ExitCode;

use args::{Args, Role};
use clap::Parser;
use launch::Failure;

fn main() -> ExitCode {
    let args = Args::parse();
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("warn")).init();
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
    let master = args.master.as_deref().ok_or("a peer needs --master")?;
    launch::peer(args, &mut comm::Peer::new(master)?)
}

fn supervise(args: &Args) -> Result<bool, Failure> {
    if let Some(master) = &args.master {
        return launch::supervise(args, master);
    }
    let config = pccl::MasterConfig { listen: "127.0.0.1:0".into(), ..pccl::MasterConfig::default() };
    let master = pccl::Master::launch(config)?;
    launch::supervise(args, &master.local_addr().to_string())
}
