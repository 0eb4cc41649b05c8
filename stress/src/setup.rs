//! What is there before a run begins: its folder, the report that it adds to, its seed, and the arguments of its peers.

use crate::{
    args::{Args, Role},
    children::Notice,
    os::EndSignals,
    report::Report,
};
use std::{io, path::PathBuf, sync::mpsc::SyncSender, thread};

/// Where a run writes, and what it goes on with.
#[derive(Debug)]
pub(crate) struct Beginning {
    /// Folder for reports.
    pub(crate) folder: PathBuf,
    /// Folder for logs.
    pub(crate) logs: PathBuf,
    /// The report that this run adds to.
    pub(crate) earlier: Option<Report>,
    pub(crate) seed: u64,
}

impl Beginning {
    /// Finds or makes the folders. `chance` is the seed if nothing else says which.
    ///
    /// # Errors
    /// Says why an earlier run cannot be continued.
    pub(crate) fn find(args: &Args, chance: u64) -> io::Result<Self> {
        let Some(folder) = &args.resume else {
            let temporary = || std::env::temp_dir().join(format!("pccl-stress-{}", std::process::id()));
            let folder = args.out.clone().unwrap_or_else(temporary);
            std::fs::create_dir_all(&folder)?;
            return Ok(Self {
                logs: folder.clone(),
                folder,
                earlier: None,
                seed: args.seed.unwrap_or(chance),
            });
        };
        let earlier = Report::read(folder)?;
        if earlier.settings != args.settings() {
            let text = format!(
                "{} has a run with {}, this one is with {}",
                folder.display(),
                earlier.settings,
                args.settings()
            );
            return Err(io::Error::other(text));
        }
        let seed = args.seed.unwrap_or_else(|| earlier.next_seed());
        let logs = folder.join(format!("part-{}", earlier.parts.len() + 1));
        std::fs::create_dir_all(&logs)?;
        Ok(Self { folder: folder.clone(), logs, earlier: Some(earlier), seed })
    }
}

pub(crate) fn watch_signals(signals: EndSignals, sender: SyncSender<Notice>) -> io::Result<()> {
    thread::Builder::new().name("signals".into()).spawn(move || {
        while signals.wait().is_ok() {
            if sender.send(Notice::Interrupt).is_err() {
                return;
            }
        }
    })?;
    Ok(())
}

/// The arguments of every peer; its number is added.
pub(crate) fn peer_args(args: &Args, seed: u64, address: &str) -> Vec<String> {
    debug_assert_eq!(args.role, Role::Supervisor);
    [
        ("--role", "peer".to_owned()),
        ("--master", address.to_owned()),
        ("--seed", seed.to_string()),
        ("--elements", args.elements.to_string()),
        ("--step-ms", args.step_ms().to_string()),
        ("--peer-timeout-ms", args.peer_timeout_ms.to_string()),
        ("--profile", args.profile.to_string()),
        ("--optimize-every", args.optimize_every.to_string()),
        ("--groups", args.groups.to_string()),
        ("--peers", args.peers.to_string()),
        // Programs in other languages do not know what a profile has.
        ("--state-mib", (args.state_bytes() >> 20).to_string()),
    ]
    .into_iter()
    .chain(args.state_memory().map(|bytes| ("--state-memory-mib", (bytes >> 20).to_string())))
    .flat_map(|(name, value)| [name.to_owned(), value])
    .collect()
}
