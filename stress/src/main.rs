//! Kill-and-respawn stress harness: runs a master and peers, kills, stops, replaces and dismisses peers, and checks all
//! that they report against its own calculation.
//!
//! The program is its own children: `--role master` and `--role peer` are what the supervisor starts.

mod args;
mod children;
mod event;
mod fleet;
mod fold;
mod journal;
mod json;
mod master;
mod oracle;
#[allow(unsafe_code)]
mod os;
mod peer;
mod procfs;
mod record;
mod report;
mod rng;
mod schedule;
mod supervisor;
mod tasks;
mod workload;

use args::{Args, Role};
use clap::Parser;
use std::process::ExitCode;

/// Exit status of a run that somebody ended early.
const INTERRUPTED: u8 = 130;
/// Exit status when the run could not be made.
const NO_RUN: u8 = 2;

fn main() -> ExitCode {
    let args = Args::parse();
    let level = if args.role == Role::Supervisor { "warn" } else { "info" };
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or(level)).init();
    if args.role != Role::Supervisor
        && let Err(error) = os::die_with_parent()
    {
        log::error!("cannot tie this process to its supervisor: {error}");
        return ExitCode::from(NO_RUN);
    }
    match args.role {
        Role::Master => master::run(args.peer_timeout_ms),
        Role::Peer => peer::run(peer::Settings {
            workload: workload::Workload { seed: args.seed.unwrap_or(0), elements: args.elements as usize },
            master: args.master,
            index: args.index,
            step_ms: args.step_ms,
            peer_timeout_ms: args.peer_timeout_ms,
        }),
        Role::Supervisor => match supervisor::run(&args) {
            Ok(report) => {
                print!("{}", report.summary());
                match (report.violations.is_empty(), report.interrupted) {
                    (true, false) => ExitCode::SUCCESS,
                    (true, true) => ExitCode::from(INTERRUPTED),
                    (false, _) => ExitCode::FAILURE,
                }
            }
            Err(error) => {
                eprintln!("pccl-stress: {error}");
                ExitCode::from(NO_RUN)
            }
        },
    }
}
