//! The master process: the library's own master, with its address on standard output.

use pccl::{Master, MasterConfig};
use std::{io::Read, path::PathBuf, process::ExitCode, time::Duration};

/// Stands before the address on standard output.
pub(crate) const LISTENING: &str = "listening on ";

/// Serves on `address` until standard input ends.
pub(crate) fn run(address: &str, peer_timeout_ms: u64, journal: Option<PathBuf>) -> ExitCode {
    let config = MasterConfig {
        listen: address.into(),
        peer_timeout: Duration::from_millis(peer_timeout_ms),
        // The limit for an operation to complete has no room for long ones.
        journal,
        probe_time: Duration::from_millis(200),
        ..MasterConfig::default()
    };
    let master = match Master::launch(config) {
        Ok(master) => master,
        Err(error) => {
            log::error!("{error}");
            return ExitCode::FAILURE;
        }
    };
    println!("{LISTENING}{}", master.local_addr());
    // Nothing is ever sent: the stream ends with the supervisor, or when it wants this process to end.
    let mut byte = [0];
    while matches!(std::io::stdin().read(&mut byte), Ok(1)) {}
    drop(master);
    ExitCode::SUCCESS
}
