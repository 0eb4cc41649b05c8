//! Settings of a communicator, checked.

use crate::{
    masters::Masters,
    settings::{PeerSettings, ResumeSettings},
};
use pccl_protocol::{GroupId, Host, Name, ResumeOffer};
use std::path::PathBuf;
use tinysockets::{
    address::HostPort,
    key::{RunKeys, RunName},
};

/// Settings of a communicator, checked.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    /// As they were given; checked.
    pub(crate) settings: PeerSettings,
    /// The master; of several, the one that is tried.
    pub(crate) master: HostPort,
    /// Where it may be.
    pub(crate) masters: Masters,
    /// The keys of the run, if it has any. The master changes them.
    pub(crate) run_keys: Option<RunKeys>,
    /// The name that these keys are of; without any it is wrong, which shows when the run is joined.
    pub(crate) run_name: RunName,
    pub(crate) group: GroupId,
    /// The name of its site; empty if nobody gave one.
    pub(crate) site: Name,
    pub(crate) advertised_host: Option<Host>,
    /// Whether nobody can dial this peer; `None`: the master finds out.
    pub(crate) outbound_only: Option<bool>,
    pub(crate) name: Name,
    /// Connections of a probe, if not as many as an edge has.
    pub(crate) probe_connections: Option<u16>,
    pub(crate) flight: pccl_flight::Settings,
    /// Where it puts what needs more.
    pub(crate) state_spill_dir: PathBuf,
    /// The shared state that this peer brings along.
    pub(crate) offer: Option<ResumeOffer>,
    /// The master is to name those who lend the shared state while this peer waits to be let in.
    pub(crate) ahead: bool,
    /// How to agree on where to resume, if that is wanted.
    pub(crate) resume: Option<ResumeSettings>,
}
