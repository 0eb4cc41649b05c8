//! `pccl-master doctor`: whether this machine could take part in a run.

use clap::Args;
use pccl_master::{
    RunName,
    doctor::{Patient, examine},
};
use pccl_protocol::limits::{FIRST_P2P_PORT, FIRST_STATE_PORT};
use std::{net::IpAddr, path::PathBuf};

/// Arguments of `doctor`.
#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Address of the master; `pccl://HOST:PORT#KEY` as well, in a run with a key. Of several masters
    /// `HOST:PORT,HOST:PORT`: all of them are looked at, and what the one says that acts counts.
    #[arg(value_name = "HOST:PORT")]
    master: String,

    /// File with the run key. Without this, that of the address or of the environment variable PCCL_RUN_KEY counts.
    #[arg(long, value_name = "PATH")]
    key_file: Option<PathBuf>,

    /// The name of the run. Without this, that of the address (`pccl://HOST:PORT/NAME`) or of the environment variable
    /// PCCL_RUN_NAME counts.
    #[arg(long, value_name = "NAME")]
    run: Option<RunName>,

    /// Host under which others are to reach this machine, as peers here advertise it.
    #[arg(long, value_name = "HOST")]
    advertised_host: Option<String>,

    /// Address to listen on, as peers here bind it. Default: all.
    #[arg(long, value_name = "ADDRESS")]
    bind: Option<IpAddr>,

    /// First port for tensors, as peers here have it.
    #[arg(long, value_name = "PORT", default_value_t = FIRST_P2P_PORT)]
    p2p_port: u16,

    /// First port for shared state, as peers here have it.
    #[arg(long, value_name = "PORT", default_value_t = FIRST_STATE_PORT)]
    state_port: u16,

    /// Count it as a failure that one of these ports is taken.
    #[arg(long)]
    strict_ports: bool,

    /// Do not measure rates: nothing but a few packets goes to the peers then.
    #[arg(long)]
    no_rates: bool,

    /// Print one line of JSON.
    #[arg(long)]
    json: bool,
}

/// Prints what was found; an error if something failed.
pub(crate) fn doctor(arguments: &Doctor) -> Result<(), String> {
    let run_key = arguments.key_file.as_deref().map(crate::keys_of_file).transpose()?.map(|keys| keys.used);
    let patient = Patient {
        run_key,
        run_name: arguments.run.clone(),
        advertised_host: arguments.advertised_host.clone(),
        bind: arguments.bind,
        first_p2p_port: arguments.p2p_port,
        first_state_port: arguments.state_port,
        strict_ports: arguments.strict_ports,
        rates: !arguments.no_rates,
        ..Patient::new(&arguments.master)
    };
    let report = examine(&patient);
    crate::ask::print(&if arguments.json { report.to_json() + "\n" } else { report.to_string() })?;
    report.verdict().map_or(Ok(()), |verdict| Err(verdict.to_owned()))
}
