//! The doctor: whether this machine could take part in the run of a master, and if not, which rule to open where or
//! what to change. It needs no training, joins nothing, and no peer of a run that is up hears of it.
//!
//! It does what a peer does that registers, up to the registration: finds the master, proves the run key, listens on
//! the ports that a peer would have, and asks the master whether it reaches them ([`pccl_protocol::Examine`]). Then it
//! tries the ports of all peers that are there, as those do with each other, and measures the way to a few of them.
//!
//! Its modules in the order of what it does: `master`, `ports`, `path`, `peers`; `remedy` and `report` are for all.

mod master;
mod path;
mod peers;
mod ports;
mod remedy;
mod report;

pub use report::{Finding, Health, Report};

use pccl_protocol::limits;
use std::{net::IpAddr, time::Duration};
use tinysockets::key::RunKey;

/// What the doctor goes by: the settings of the peer that is to run here.
#[derive(Debug, Clone)]
pub struct Patient {
    /// Address of the master: `host:port`, or `pccl://host:port#key`.
    pub master: String,
    /// The run key. Without one that of the address counts, or that of the environment.
    pub run_key: Option<RunKey>,
    /// Host under which others are to reach this machine. Default: the address from which the master sees it come.
    pub advertised_host: Option<String>,
    /// Address that the listeners bind to. Default: all addresses of the machine.
    pub bind: Option<IpAddr>,
    /// First port that the data listener tries; it goes up from there.
    pub first_p2p_port: u16,
    /// First port that the shared-state listener tries; it goes up from there.
    pub first_state_port: u16,
    /// A port that is taken is a failure.
    pub strict_ports: bool,
    /// Time for each step that waits for somebody else.
    pub timeout: Duration,
    /// Whether rates are measured: to at most 16 peers, one after the other, over one connection, for less than a
    /// second and with at most 256 MiB each.
    pub rates: bool,
}

impl Patient {
    /// With the defaults of a peer.
    #[must_use]
    pub fn new(master: &str) -> Self {
        Self {
            master: master.to_owned(),
            run_key: None,
            advertised_host: None,
            bind: None,
            first_p2p_port: limits::FIRST_P2P_PORT,
            first_state_port: limits::FIRST_STATE_PORT,
            strict_ports: false,
            timeout: Duration::from_secs(10),
            rates: true,
        }
    }
}

/// Finds out whether this machine could take part. Takes a second or two where all is well, and a few time-outs where
/// packets are dropped.
#[must_use]
pub fn examine(patient: &Patient) -> Report {
    let mut report = Report::default();
    let Some(mut way) = master::reach(patient, &mut report) else { return report };
    let Some(listening) = ports::listen(patient, &way, &mut report) else { return report };
    let Some(answer) = ports::ask(patient, &mut way, &listening, &mut report) else { return report };
    path::look(&way, &answer, &mut report);
    ports::judge(patient, &way, &listening, &answer, &mut report);
    peers::look(patient, &way, &answer, &mut report);
    report
}
