//! The master process: the library's own master, with its address on standard output, and what it is to the run.

use crate::args::Args;
use pccl::{Master, MasterConfig, RunKey};
use pccl_master::query_status;
use std::{
    io::Read,
    process::ExitCode,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};
use tinysockets::key::KEY_VARIABLE;

/// Stands before the address on standard output.
pub(crate) const LISTENING: &str = "listening on ";
/// Stands before its term and the number of those who stand by for it and know all, while it acts.
const ACTS: &str = "acts in term ";

/// How often it looks at itself, and how long that may take.
const LOOK: Duration = Duration::from_millis(50);
const LOOK_TIMEOUT: Duration = Duration::from_secs(5);
/// How often it says the same again.
const SAY_EVERY: Duration = Duration::from_secs(1);

/// Serves until standard input ends, or until another master has taken over.
pub(crate) fn run(args: &Args) -> ExitCode {
    let config = MasterConfig {
        listen: args.master.clone(),
        peer_timeout: Duration::from_millis(args.peer_timeout_ms),
        // The limit for an operation to complete has no room for long ones.
        probe_time: Duration::from_millis(200),
        journal: args.memory.clone(),
        accept_standbys: args.accept_standbys,
        standby_of: args.standby_of.clone(),
        ..MasterConfig::default()
    };
    let master = match Master::launch(config) {
        Ok(master) => Arc::new(master),
        Err(error) => {
            log::error!("{error}");
            return ExitCode::FAILURE;
        }
    };
    println!("{LISTENING}{}", master.local_addr());
    if args.accept_standbys || !args.standby_of.is_empty() {
        let watched = master.clone();
        thread::spawn(move || watch(&watched));
    }
    // Nothing is ever sent: the stream ends with the supervisor, or when it wants this process to end.
    let mut byte = [0];
    while matches!(std::io::stdin().read(&mut byte), Ok(1)) {}
    // All masters of the run end now.
    master.end_run();
    drop(master.wait());
    ExitCode::SUCCESS
}

/// Says what this master is to the run, and ends the process when it is nothing any more.
fn watch(master: &Master) {
    let place = master.local_addr().to_string();
    let key = std::env::var(KEY_VARIABLE).ok().and_then(|text| text.parse::<RunKey>().ok());
    let (mut said, mut said_at) = (None, Instant::now());
    loop {
        if master.has_ended() {
            let why = master.wait().err().map_or_else(|| "in order".to_owned(), |error| error.to_string());
            println!("ends: {why}");
            std::process::exit(0);
        }
        let status = query_status(&place, key.as_ref(), LOOK_TIMEOUT);
        if let Some(lead) = status.ok().map(|status| status.lead).filter(|lead| lead.acts) {
            let news = Some((lead.term, lead.standbys.len()));
            if said != news || said_at.elapsed() > SAY_EVERY {
                (said, said_at) = (news, Instant::now());
                println!("{ACTS}{} {}", lead.term, lead.standbys.len());
            }
        }
        thread::sleep(LOOK);
    }
}

/// Term and number of standbys, of a line that begins with [`ACTS`].
pub(crate) fn acts(line: &str) -> Option<(u64, usize)> {
    let (term, standbys) = line.strip_prefix(ACTS)?.split_once(' ')?;
    Some((term.parse().ok()?, standbys.parse().ok()?))
}
