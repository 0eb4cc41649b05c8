//! `pccl-master status`, `kick`, `accept-revision`, `rotate-key`, `step-down`, `end-run` and `take-over`: what an
//! operator asks of a running master.

use crate::admin_place::Surroundings;
use clap::Args;
use pccl_master::{RunKey, status_to_json};
use pccl_protocol::{GroupId, limits::DEFAULT_MASTER_PORT};
use std::{
    io::{self, Write},
    path::PathBuf,
    time::Duration,
};

/// Time for a running master to answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The same, where others have to do something first.
const LATE: Duration = Duration::from_secs(60);

/// Arguments of `status`.
#[derive(Debug, Args)]
pub(crate) struct Status {
    /// Address of the master; `pccl://HOST:PORT#KEY` as well, in a run with a key, and `pccl://HOST:PORT/NAME` in a run
    /// with a name, for which otherwise the environment variable PCCL_RUN_NAME counts.
    #[arg(value_name = "HOST:PORT", default_value_t = format!("127.0.0.1:{DEFAULT_MASTER_PORT}"))]
    pub(crate) master: String,

    /// File with the run key. Without this, that of the address or of the environment variable PCCL_RUN_KEY counts.
    #[arg(long, value_name = "PATH")]
    pub(crate) key_file: Option<PathBuf>,

    /// Print one line of JSON.
    #[arg(long)]
    pub(crate) json: bool,

    /// Also print the global iteration of the run in this store: who is in it, and who is silent.
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "json")]
    pub(crate) store: Option<String>,

    /// With --store: name of the run in the store.
    #[arg(long, value_name = "NAME", requires = "store", default_value = crate::store::DEFAULT_RUN)]
    pub(crate) run: String,

    /// Print what was measured between the members of a group instead, in Mbit/s, as the table that the command `plan`
    /// reads. With --json: as JSON, with latencies.
    #[arg(long)]
    pub(crate) rates: bool,

    /// With --rates: the group; the first one if none is named.
    #[arg(long, requires = "rates")]
    pub(crate) group: Option<u32>,
}

/// Arguments of `kick`.
#[derive(Debug, Args)]
pub(crate) struct Kick {
    /// The first hexadecimal digits of the peer's identity, as `status` prints it.
    pub(crate) peer: String,

    /// Why; the caller of the peer sees it.
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,

    /// Port of the master, by which its operator's socket is found.
    #[arg(long, default_value_t = DEFAULT_MASTER_PORT)]
    pub(crate) port: u16,

    /// The operator's socket of the master, where it was started with --admin PATH.
    #[arg(long, value_name = "PATH", conflicts_with = "port")]
    pub(crate) admin: Option<PathBuf>,
}

/// Arguments of `accept-revision`.
#[derive(Debug, Args)]
pub(crate) struct AcceptRevision {
    /// The revision of the shared state to go on from. 0 begins anew.
    pub(crate) revision: u64,

    /// Of which group; of all if none is named.
    #[arg(long)]
    pub(crate) group: Option<u32>,

    /// Port of the master, by which its operator's socket is found.
    #[arg(long, default_value_t = DEFAULT_MASTER_PORT)]
    pub(crate) port: u16,

    /// The operator's socket of the master, where it was started with --admin PATH.
    #[arg(long, value_name = "PATH", conflicts_with = "port")]
    pub(crate) admin: Option<PathBuf>,
}

/// Arguments of `rotate-key`.
#[derive(Debug, Args)]
pub(crate) struct RotateKey {
    /// File with the run keys: in the first line the one that is used from now on, in the second one, if there is one,
    /// the one that is still accepted.
    #[arg(long, value_name = "PATH")]
    pub(crate) key_file: PathBuf,

    /// Drop this peer before, so that it does not hear of the new key; several times for several. Named as in `kick`.
    #[arg(long, value_name = "PEER")]
    pub(crate) drop: Vec<String>,

    /// Port of the master, by which its operator's socket is found.
    #[arg(long, default_value_t = DEFAULT_MASTER_PORT)]
    pub(crate) port: u16,

    /// The operator's socket of the master, where it was started with --admin PATH.
    #[arg(long, value_name = "PATH", conflicts_with = "port")]
    pub(crate) admin: Option<PathBuf>,
}

/// Arguments of `step-down` and `end-run`.
#[derive(Debug, Args)]
pub(crate) struct Lead {
    /// Port of the master, by which its operator's socket is found.
    #[arg(long, default_value_t = DEFAULT_MASTER_PORT)]
    pub(crate) port: u16,

    /// The operator's socket of the master, where it was started with --admin PATH.
    #[arg(long, value_name = "PATH", conflicts_with = "port")]
    pub(crate) admin: Option<PathBuf>,
}

/// Arguments of `take-over`.
#[derive(Debug, Args)]
pub(crate) struct TakeOver {
    /// You promise that the master that acted is gone, and is not started again with what it knew.
    #[arg(long)]
    pub(crate) force: bool,

    /// Port of the master, by which its operator's socket is found.
    #[arg(long, default_value_t = DEFAULT_MASTER_PORT)]
    pub(crate) port: u16,

    /// The operator's socket of the master, where it was started with --admin PATH.
    #[arg(long, value_name = "PATH", conflicts_with = "port")]
    pub(crate) admin: Option<PathBuf>,
}

/// Prints the state of a run.
pub(crate) fn status(arguments: &Status) -> Result<(), String> {
    if arguments.rates {
        return print(&rates(arguments)?);
    }
    let key = key_of(arguments)?;
    let status = pccl_master::query_status(&arguments.master, key.as_ref(), TIMEOUT);
    if let Some(store) = &arguments.store {
        // The store outlives masters: when none answers, the iteration is still worth telling.
        let master = status.map_or_else(|error| error + "\n", |status| status.to_string());
        return print(&(master + &crate::store::describe(store, &arguments.run, TIMEOUT)?));
    }
    let status = status?;
    print(&if arguments.json { status_to_json(&status) + "\n" } else { status.to_string() })
}

/// The key of the file, if there is one.
fn key_of(arguments: &Status) -> Result<Option<RunKey>, String> {
    let of_file = arguments.key_file.as_deref().map(crate::keys_of_file).transpose()?;
    Ok(of_file.map(|keys| keys.used))
}

/// The rates that were measured in a group, as a text.
fn rates(arguments: &Status) -> Result<String, String> {
    let (key, group) = (key_of(arguments)?, arguments.group.map(GroupId));
    let rates = pccl_master::query_rates(&arguments.master, key.as_ref(), group, TIMEOUT)?;
    if rates.left_out > 0 {
        // Not by the log, whose level may be NONE.
        let _ = writeln!(io::stderr(), "pccl-master: {} more edges have a rate", rates.left_out);
    }
    if arguments.json {
        Ok(pccl_master::rates_to_json(&rates) + "\n")
    } else {
        pccl_master::rates_to_csv(&rates)
    }
}

/// Has a peer removed and prints what was done.
pub(crate) fn kick(arguments: &Kick) -> Result<(), String> {
    let admin = admin_of(arguments.admin.as_ref(), arguments.port)?;
    print(&(pccl_master::remove_peer(&admin, &arguments.peer, &arguments.reason, TIMEOUT)? + "\n"))
}

/// Chooses the revision to go on from and prints what was done.
pub(crate) fn accept_revision(arguments: &AcceptRevision) -> Result<(), String> {
    let admin = admin_of(arguments.admin.as_ref(), arguments.port)?;
    let group = arguments.group.map(GroupId);
    print(&(pccl_master::accept_revision(&admin, group, arguments.revision, TIMEOUT)? + "\n"))
}

/// Has other run keys accepted and prints what was done.
pub(crate) fn rotate_key(arguments: &RotateKey) -> Result<(), String> {
    let admin = admin_of(arguments.admin.as_ref(), arguments.port)?;
    let keys = crate::keys_of_file(&arguments.key_file)?;
    let done = match (&arguments.drop[..], &keys.second) {
        ([], _) => pccl_master::rotate_key(&admin, &keys, TIMEOUT)?,
        (peers, None) => pccl_master::lock_out(&admin, peers, &keys.used, TIMEOUT)?,
        (_, Some(_)) => {
            return Err(format!(
                "with --drop {} has to have one line, the new key: a peer that is dropped may have the second one",
                arguments.key_file.display()
            ));
        }
    };
    print(&(done + "\n"))
}

/// Has a master step down and prints who goes on.
pub(crate) fn step_down(arguments: &Lead) -> Result<(), String> {
    let admin = admin_of(arguments.admin.as_ref(), arguments.port)?;
    print(&(pccl_master::step_down(&admin, LATE)? + "\n"))
}

/// Has a master end its run and prints what was done.
pub(crate) fn end_run(arguments: &Lead) -> Result<(), String> {
    let admin = admin_of(arguments.admin.as_ref(), arguments.port)?;
    print(&(pccl_master::end_run(&admin, TIMEOUT)? + "\n"))
}

/// Has a master act that stands by and prints what was done.
pub(crate) fn take_over(arguments: &TakeOver) -> Result<(), String> {
    if !arguments.force {
        return Err("a standby takes over by itself when more than half of the members reach it. If they are lost for \
                    good, and so is the master that acted, use --force: it goes on without them"
            .into());
    }
    let admin = admin_of(arguments.admin.as_ref(), arguments.port)?;
    print(&(pccl_master::force_take_over(&admin, LATE)? + "\n"))
}

/// The operator's socket of the master on this machine that leads on `port`, unless it is named.
fn admin_of(named: Option<&PathBuf>, port: u16) -> Result<PathBuf, String> {
    named.map_or_else(|| Surroundings::here().find(port), |path| Ok(path.clone()))
}

pub(crate) fn print(text: &str) -> Result<(), String> {
    let written = io::stdout().write_all(text.as_bytes());
    written.map_err(|error| format!("cannot write to stdout: {error}"))
}
