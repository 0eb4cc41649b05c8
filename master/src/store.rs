//! `pccl-master --store` and `--store-only`: a store server beside the master or instead of it, and what a store holds.

use crate::process::EndSignals;
use clap::Args;
use pccl_iteration::{
    Member, ServerConfig, Store, StoreServer, TcpStoreClient, protocol::keys::Keys, read_current,
};
use std::{
    fmt::Write,
    path::PathBuf,
    time::{Duration, Instant},
};

/// Name of a run unless the program says otherwise.
pub(crate) const DEFAULT_RUN: &str = "default";
/// Time in which a living member changes its key at least once, with the usual settings.
const BEAT: Duration = Duration::from_secs(6);

/// Where a store is served.
#[derive(Debug, Args)]
pub(crate) struct StoreArguments {
    /// Also serve a store that clients of PyTorch's TCPStore can use, on this address. It ends with the master.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) store: Option<String>,

    /// Serve a store on this address and lead no run: it outlives all masters.
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "store")]
    store_only: Option<String>,

    /// Keep what is in the store in this file, so that it survives a restart.
    #[arg(long, value_name = "PATH")]
    store_file: Option<PathBuf>,
}

impl StoreArguments {
    /// Whether there is to be no master.
    pub(crate) fn is_alone(&self) -> bool {
        self.store_only.is_some()
    }
}

/// Starts a store, if one is wanted.
pub(crate) fn launch(arguments: &StoreArguments) -> Result<Option<StoreServer>, String> {
    let Some(listen) = arguments.store_only.clone().or_else(|| arguments.store.clone()) else {
        return match &arguments.store_file {
            Some(_) => Err("--store-file needs --store or --store-only".into()),
            None => Ok(None),
        };
    };
    let config = ServerConfig {
        listen,
        file: arguments.store_file.clone(),
        beside_master: !arguments.is_alone(),
        ..ServerConfig::default()
    };
    StoreServer::launch(config).map(Some).map_err(|error| error.to_string())
}

/// Serves a store until a signal ends the program.
pub(crate) fn serve(server: StoreServer, signals: EndSignals) -> Result<(), String> {
    let stop = server.stop_handle();
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || match signals.wait() {
            Ok(name) => {
                log::info!("{name}: stopping");
                stop.stop();
            }
            Err(error) => log::error!("cannot wait for signals, only SIGKILL ends this process: {error}"),
        })
        .map_err(|error| format!("cannot start the thread that waits for signals: {error}"))?;
    server.wait().map_err(|error| error.to_string())
}

/// The global iteration of a run, in words. Looks twice, to see who lives.
pub(crate) fn describe(address: &str, run: &str, timeout: Duration) -> Result<String, String> {
    let deadline = Instant::now() + timeout + BEAT;
    let store = TcpStoreClient::connect(address, deadline).map_err(|error| error.to_string())?;
    let found = read_current(&store, run, deadline).map_err(|error| error.to_string())?;
    let Some(decision) = found else {
        return Ok(format!("run {run:?} in the store at {address}: not begun\n"));
    };
    let keys = Keys::new(run);
    let hearts: Vec<String> = decision.members().map(|member| keys.heartbeat(member)).collect();
    let read = || store.get_all(&hearts, deadline).map_err(|error| error.to_string());
    let before = read()?;
    let mut after = read()?;
    let until = Instant::now() + BEAT;
    while before.iter().zip(&after).any(|(before, after)| before == after) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(200));
        after = read()?;
    }
    let mut text = format!(
        "run {run:?} in the store at {address}: iteration {}, {} members, proposed by {}\n",
        decision.iteration,
        decision.entries.len(),
        decision.proposer,
    );
    for (i, member) in decision.members().enumerate() {
        let arrived = arrived(&store, &keys, decision.iteration + 1, member, deadline);
        let heart = if before[i] == after[i] { ", gives no sign of life" } else { "" };
        let _ = writeln!(
            text,
            "  member {member}{}{heart}",
            if arrived { ", has arrived for the next" } else { "" }
        );
    }
    Ok(text)
}

fn arrived(store: &impl Store, keys: &Keys, iteration: u64, member: &Member, deadline: Instant) -> bool {
    store.check(&[keys.arrival(iteration, member)], deadline).unwrap_or(false)
}
