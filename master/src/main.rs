//! The `pccl-master` program: runs one master until it is told to end by SIGINT or SIGTERM.

// `log::warn!` and the like put a record into a queue: nothing here waits for the logger of the program.
extern crate pccl_log as log;

mod admin_place;
mod ask;
mod checkup;
mod explain;
mod given;
mod logging;
mod plan;
#[allow(unsafe_code)]
mod process;
mod store;

use admin_place::Surroundings;
use clap::{Parser, Subcommand};
use given::Given;
use pccl_master::{AcceptedKeys, KeyError, Master, MasterConfig, MasterError, RunKey};
use pccl_protocol::limits;
use std::{
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};
use tinysockets::private_file::read_secret;

/// Leads a run of PCCL peers: decides who is in it and what happens next. It never sees a tensor.
///
/// With a command it does not lead a run but does what the command says, and ends.
///
/// Ends with status 0 on SIGINT or SIGTERM. If others stand by, one of them goes on in its place; otherwise the run
/// ends, and its peers are told. The log goes to stderr; its level is set by
/// PCCL_LOG_LEVEL (TRACE, DEBUG, INFO, WARN, ERR, FATAL or NONE) or, in more detail, by RUST_LOG.
#[derive(Debug, Parser)]
#[command(name = "pccl-master", version, args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,

    /// File with the run key: 64 hexadecimal digits. A peer without the same key is turned away, and everything that
    /// travels is encrypted. A second line has a key that is accepted as well, see `rotate-key`. Without this, the
    /// environment variable PCCL_RUN_KEY counts.
    #[arg(long, value_name = "PATH")]
    key_file: Option<PathBuf>,

    /// Print a new run key, and end.
    #[arg(long)]
    new_key: bool,

    #[command(flatten)]
    given: Given,

    #[command(flatten)]
    store: store::StoreArguments,
}

/// Another task than leading a run.
#[derive(Debug, Subcommand)]
enum Command {
    /// Print the state of the run of a master: who is in, who waits for whom, since when.
    Status(ask::Status),
    /// Find out whether this machine could take part in the run of a master: name, ports both ways, key, largest
    /// packet, clock, buffers, and the way to each peer. Says for each failure which rule to open where, and ends with
    /// status 0 if there is none. It joins nothing.
    Doctor(checkup::Doctor),
    /// Have a master on this machine drop a peer.
    Kick(ask::Kick),
    /// Have a master on this machine go on from a revision of the shared state: when nobody who is there holds the
    /// newest one, or when a peer with a newer one has come too late.
    AcceptRevision(ask::AcceptRevision),
    /// Have a master on this machine accept other run keys, without stopping the run: a new one, and for a while the
    /// one before.
    RotateKey(ask::RotateKey),
    /// Have a master on this machine step down, as SIGTERM does: one that stands by goes on in its place, and no call
    /// of a peer fails. Ends when that one leads the run.
    StepDown(ask::Lead),
    /// Have a master on this machine end its run, although others stand by for it.
    EndRun(ask::Lead),
    /// Have a master on this machine act that stands by, without the consent of the members: when half of them or more
    /// are lost together with the master that acted. It refuses while it reaches another one that acts, and says what
    /// may be lost. One that knows no run begins one.
    TakeOver(ask::TakeOver),
    /// Explain a failure from the files of flight recorders: the first cause, who only suffered, and a time line.
    Explain(explain::Explain),
    /// Plan the best ring for a matrix of measured rates: order, slowest edge, and whether any ring is better.
    Plan(plan::Arguments),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    logging::start();
    match run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            // Whatever the level of the log is, which may be NONE.
            pccl_log::print_error(format!("pccl-master: {text}\n"));
            ExitCode::FAILURE
        }
    }
}

fn run(mut arguments: Arguments) -> Result<(), String> {
    if arguments.new_key {
        let key = RunKey::generate().map_err(|error| error.to_string())?;
        return io::stdout()
            .write_all(format!("{}\n", key.to_text()).as_bytes())
            .map_err(|error| format!("cannot write to stdout: {error}"));
    }
    match arguments.command.take() {
        Some(Command::Status(arguments)) => ask::status(&arguments),
        Some(Command::Doctor(arguments)) => checkup::doctor(&arguments),
        Some(Command::Kick(arguments)) => ask::kick(&arguments),
        Some(Command::AcceptRevision(arguments)) => ask::accept_revision(&arguments),
        Some(Command::RotateKey(arguments)) => ask::rotate_key(&arguments),
        Some(Command::StepDown(arguments)) => ask::step_down(&arguments),
        Some(Command::EndRun(arguments)) => ask::end_run(&arguments),
        Some(Command::TakeOver(arguments)) => ask::take_over(&arguments),
        Some(Command::Explain(arguments)) => explain::run(arguments),
        Some(Command::Plan(arguments)) => plan::run(&arguments),
        None => lead(&arguments),
    }
}

/// The port of an address, unless it is one that is not known before it is bound.
fn port_of(address: &str) -> Option<u16> {
    address.rsplit(':').next()?.parse().ok().filter(|&port| port != 0)
}

/// The run keys of this file.
fn keys_of_file(path: &Path) -> Result<AcceptedKeys, String> {
    let failed = |error: String| format!("the run key of {}: {error}", path.display());
    let text = read_secret(path).map_err(|error| failed(error.to_string()))?;
    text.parse().map_err(|error: KeyError| failed(error.to_string()))
}

/// Where to listen if nobody says so.
fn default_listen(is_open: bool) -> String {
    let host = if is_open { "0.0.0.0" } else { "127.0.0.1" };
    format!("{host}:{}", limits::DEFAULT_MASTER_PORT)
}

/// The time-out for silent peers that the environment asks for.
fn peer_timeout_of(variable: Option<&str>) -> Result<Duration, String> {
    let Some(text) = variable else { return Ok(MasterConfig::default().peer_timeout) };
    match text.trim().parse() {
        Ok(millis @ 10..=86_400_000) => Ok(Duration::from_millis(millis)),
        _ => {
            Err(format!("PCCL_PEER_TIMEOUT_MS={text:?}: write a number of milliseconds from 10 to 86400000"))
        }
    }
}

/// Starts a master. One that cannot listen for an operator at a default place goes without.
fn launch(arguments: &Arguments) -> Result<Master, String> {
    let (run_key, second_run_key) = match arguments.key_file.as_deref().map(keys_of_file).transpose()? {
        Some(AcceptedKeys { used, second }) => (Some(used), second),
        None => (RunKey::from_environment()?, None),
    };
    let given = &arguments.given;
    let is_open = run_key.is_some() || given.is_set("insecure");
    let mut config =
        MasterConfig { listen: default_listen(is_open), run_key, second_run_key, ..MasterConfig::default() };
    if given.get("peer_timeout").is_none() {
        config.peer_timeout = peer_timeout_of(std::env::var("PCCL_PEER_TIMEOUT_MS").ok().as_deref())?;
    }
    given.change(&mut config).map_err(|error| error.to_string())?;
    let launch = |config| Master::launch(config).map_err(|error| error.to_string());
    if given.get("admin").is_some() {
        return launch(config);
    }
    let port = port_of(&config.listen);
    for place in port.map(|port| Surroundings::here().places_to_listen(port)).unwrap_or_default() {
        match Master::launch(MasterConfig { admin: Some(place.clone()), ..config.clone() }) {
            Err(error @ MasterError::Admin { .. }) => log::debug!("{error}"),
            launched => {
                let master = launched.map_err(|error| error.to_string())?;
                log::info!("listens for an operator at {}", place.display());
                return Ok(master);
            }
        }
    }
    if port.is_some() {
        log::warn!(
            "there is no place to listen for an operator, so that `kick` is not possible: use --admin PATH"
        );
    }
    launch(config)
}

fn lead(arguments: &Arguments) -> Result<(), String> {
    process::raise_descriptor_limit();
    // Before any thread exists, so that every thread inherits the mask and only the waiting one takes the signals.
    let signals = process::EndSignals::block().map_err(|error| format!("cannot block signals: {error}"))?;
    let store = store::launch(&arguments.store)?;
    // A stdout that is closed or that nobody reads is no reason not to run.
    if let Some(server) = &store {
        pccl_log::print(format!("pccl-master: the store listens on {}\n", server.local_addr()));
    }
    if arguments.store.is_alone() {
        return store.map_or(Ok(()), |server| store::serve(server, signals));
    }
    let master = launch(arguments)?;
    pccl_log::print(format!("pccl-master listening on {}\n", master.local_addr()));
    let stop_handle = master.stop_handle();
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || match signals.wait() {
            Ok(name) => {
                log::info!("{name}: stopping");
                stop_handle.stop();
            }
            Err(error) => log::error!("cannot wait for signals, only SIGKILL ends this process: {error}"),
        })
        .map_err(|error| format!("cannot start the thread that waits for signals: {error}"))?;
    master.wait().map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        use clap::CommandFactory;
        Arguments::command().debug_assert();
        let arguments = Arguments::parse_from(["pccl-master"]);
        let defaults = MasterConfig::default();
        assert_eq!(arguments.given.get("listen"), None);
        assert_eq!(default_listen(false), defaults.listen);
        assert_eq!(default_listen(true), "0.0.0.0:48148");
        assert_eq!(peer_timeout_of(None), Ok(defaults.peer_timeout));
        assert_eq!(peer_timeout_of(Some(" 1500 ")), Ok(Duration::from_millis(1500)));
        for bad in ["", "10s", "9", "86400001", "-1"] {
            assert!(peer_timeout_of(Some(bad)).unwrap_err().contains("PCCL_PEER_TIMEOUT_MS"), "{bad}");
        }
    }
}
