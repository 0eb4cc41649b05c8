//! Kill-and-respawn stress harness: runs a master and peers, kills, stops, replaces and dismisses peers, and checks all
//! that they report against its own calculation.
//!
//! The program is its own children: `--role master` and `--role peer` are what the supervisor starts.
//!
//! Modules from top to bottom, each of which uses only those below it: `supervisor`, `fleet`, `authority`, `seat`,
//! `links`, `setup`, `baseline`, `record`, `report`, `oracle`, `peer`, `expected`, `clients`, `fold`, `jobs`,
//! `schedule`, `tasks`, `journal`, `proxy`, `workload`, `master`, `args`, `children`, `coding`, `event`, `fault`, `os`,
//! `procfs`.

// `log::warn!` and the like put a record into a queue: nothing here waits for the logger of the program.
extern crate pccl_log as log;

mod args;
mod authority;
mod baseline;
mod children;
mod clients;
mod coding;

mod event;
mod expected;
mod fault;
mod fleet;
mod fold;
mod jobs;
mod journal;
mod links;
mod master;
mod oracle;
#[allow(unsafe_code)]
mod os;
mod peer;
mod procfs;
mod proxy;
mod record;
mod report;
mod schedule;
mod seat;
mod setup;
mod supervisor;
mod tasks;
mod workload;

use args::{Args, Profile, Role};
use clap::Parser;
use peer::Place;
use report::Status;
use std::process::ExitCode;

/// Exit status of a run that somebody ended early.
const INTERRUPTED: u8 = 130;
/// Exit status when the run could not be made.
const NO_RUN: u8 = 2;

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(conflict) = args.conflict() {
        eprintln!("pccl-stress: {conflict}");
        return ExitCode::from(NO_RUN);
    }
    let level = if args.role == Role::Supervisor { "warn" } else { "info" };
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or(level)).init();
    if args.role != Role::Supervisor
        && let Err(error) = os::die_with_parent()
    {
        log::error!("cannot tie this process to its supervisor: {error}");
        return ExitCode::from(NO_RUN);
    }
    match args.role {
        Role::Master => master::run(&args),
        Role::Peer => peer::run(peer::Settings {
            state: (args.state_bytes(), args.state_memory()),
            step_ms: args.step_ms(),
            workload: workload::Workload { seed: args.seed.unwrap_or(0), elements: args.elements as usize },
            master: args.master,
            index: args.index,
            group: args.group,
            groups: args.groups,
            optimize_every: args.optimize_every,
            place: Place { bind: args.bind, shown: args.shown, ports: (args.data_port, args.state_port) },
            gradients: match args.profile {
                Profile::Async => peer::Gradients::Pipelined,
                Profile::Segments => peer::Gradients::InSegments,
                Profile::Calm | Profile::Default | Profile::State | Profile::Storm => peer::Gradients::AtOnce,
            },
            peer_timeout_ms: args.peer_timeout_ms,
        }),
        Role::Supervisor => match supervisor::run(&args) {
            Ok(status) => match status {
                Status::Passed => ExitCode::SUCCESS,
                Status::Interrupted => ExitCode::from(INTERRUPTED),
                Status::Failed | Status::Unfinished => ExitCode::FAILURE,
            },
            Err(error) => {
                eprintln!("pccl-stress: {error}");
                ExitCode::from(NO_RUN)
            }
        },
    }
}
