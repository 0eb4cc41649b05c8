//! Settings of a communicator.

use crate::{Error, masters::Masters};
use pccl_iteration::{IterationConfig, TcpStoreClient, protocol::check_id};
use pccl_protocol::{GroupId, Host, Name, ResumeOffer};
use std::{net::IpAddr, path::PathBuf, time::Duration};
use tinysockets::{
    address::HostPort,
    key::{RunKeys, RunName},
};

/// When the payload of data frames carries a checksum: 32 bits of its XXH3-64.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum FrameChecksums {
    /// Unless both ends are on one host, or records protect the connection: those cannot be damaged unnoticed.
    #[default]
    Automatic,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// Settings of a communicator, checked.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    /// The master; of several, the one that is tried.
    pub(crate) master: HostPort,
    /// Where it may be.
    pub(crate) masters: Masters,
    /// The keys of the run, if it has any. The master changes them.
    pub(crate) run_keys: Option<RunKeys>,
    /// The name that these keys are of; without any it is wrong, which shows when the run is joined.
    pub(crate) run_name: RunName,
    pub(crate) group: GroupId,
    /// The group is formed of given members.
    pub(crate) formed: bool,
    /// Collectives go on without other members.
    pub(crate) alone: bool,
    /// The name of its site; empty if nobody gave one.
    pub(crate) site: Name,
    pub(crate) pool_connections: u16,
    pub(crate) advertised_host: Option<Host>,
    pub(crate) bind: Option<IpAddr>,
    pub(crate) first_p2p_port: u16,
    pub(crate) first_state_port: u16,
    pub(crate) strict_ports: bool,
    /// Whether nobody can dial this peer; `None`: the master finds out.
    pub(crate) outbound_only: Option<bool>,
    pub(crate) name: Name,
    pub(crate) connect_timeout: Duration,
    /// Of calls that name none of their own.
    pub(crate) call_timeout: Option<Duration>,
    pub(crate) master_timeout: Duration,
    /// How long another connection is looked for when the one to the master has ended, if it was set.
    pub(crate) master_grace: Option<Duration>,
    pub(crate) dial_timeout: Duration,
    pub(crate) checksums: FrameChecksums,
    /// Connections of a probe, if not as many as an edge has.
    pub(crate) probe_connections: Option<u16>,
    pub(crate) flight: pccl_flight::Settings,
    /// Memory that a sync may take beside the tensors, in bytes.
    pub(crate) state_memory: usize,
    /// Where it puts what needs more.
    pub(crate) state_spill_dir: PathBuf,
    /// Percent of the uplink that go to newcomers.
    pub(crate) upload_share_pct: u8,
    /// Reductions fail if a contribution is not finite.
    pub(crate) refuses_non_finite: bool,
    /// The shared state that this peer brings along.
    pub(crate) offer: Option<ResumeOffer>,
    /// The master is to name those who lend the shared state while this peer waits to be let in.
    pub(crate) ahead: bool,
    /// How to agree on where to resume, if that is wanted.
    pub(crate) resume: Option<ResumeSettings>,
}

/// How to agree on where to resume.
#[derive(Debug, Clone)]
pub(crate) struct ResumeSettings {
    pub(crate) store: String,
    pub(crate) member: String,
    pub(crate) config: IterationConfig,
}

impl ResumeSettings {
    /// Refuses what cannot work.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let invalid = |error: String| Error::InvalidArgument(error);
        check_id("member", &self.member).map_err(invalid)?;
        TcpStoreClient::check_address(&self.store).map_err(|error| invalid(error.to_string()))?;
        self.config.check().map_err(|error| invalid(error.to_string()))
    }
}
