//! Things that are there before a run begins: its folder, the report that it adds to, its seed, and the arguments of
//! its peers.

use crate::{
    args::{Args, Role},
    children::Notice,
    os::EndSignals,
    report::Report,
};
use pccl_hash::tree_hash;
use std::{
    io,
    path::{Path, PathBuf},
    sync::mpsc::SyncSender,
    thread,
};

/// Where a run writes, and what it goes on with.
#[derive(Debug)]
pub(crate) struct Beginning {
    /// The arguments of this part, with the settings of the earlier ones.
    pub(crate) args: Args,
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
        let Some(folder) = &args.earlier else {
            let temporary = || std::env::temp_dir().join(format!("pccl-stress-{}", std::process::id()));
            let folder = args.out.clone().unwrap_or_else(temporary);
            std::fs::create_dir_all(&folder)?;
            return Ok(Self {
                args: args.clone(),
                logs: folder.clone(),
                folder,
                earlier: None,
                seed: args.seed.unwrap_or(chance),
            });
        };
        let named = |text: String| io::Error::other(format!("{} {text}", folder.display()));
        let earlier = Report::read(folder)?;
        let mut args = args.with_settings_of(&earlier.settings).map_err(named)?;
        if !args.has_length() {
            args.seconds = earlier.missing_seconds();
            if args.seconds == 0 {
                let text =
                    format!("has a run that is complete ({}): give it another length", earlier.length());
                return Err(named(text));
            }
        }
        let seed = args.seed.unwrap_or_else(|| earlier.next_seed());
        let logs = folder.join(format!("part-{}", earlier.parts.len() + 1));
        std::fs::create_dir_all(&logs)?;
        Ok(Self { args, folder: folder.clone(), logs, earlier: Some(earlier), seed })
    }

    /// The build that is run: checksums of this program and of the library that peers in other languages load.
    ///
    /// # Errors
    /// The earlier parts were run by another build: what they have shown says nothing about this one.
    pub(crate) fn build(&self, library: Option<&Path>) -> io::Result<String> {
        let program = std::env::current_exe()?;
        let checksum =
            |path: &Path| -> io::Result<String> { Ok(tree_hash(&std::fs::read(path)?).to_string()) };
        let mut build = checksum(&program)?;
        if let Some(library) = library {
            build = format!("{build} with libpccl.so {}", checksum(library)?);
        }
        match self.earlier.as_ref().filter(|earlier| earlier.build != build) {
            None => Ok(build),
            Some(earlier) => Err(io::Error::other(format!(
                "{} has a run of another build ({}), this is {build}",
                self.folder.display(),
                earlier.build
            ))),
        }
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
