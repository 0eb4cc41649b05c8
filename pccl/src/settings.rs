//! Settings of a peer: each declared once, with the method of the [`Builder`] that sets it.

use crate::Error;
use pccl_iteration::{IterationConfig, TcpStoreClient, protocol::check_id};
use pccl_protocol::limits;
use pccl_settings::Text;
use std::{net::IpAddr, path::PathBuf, time::Duration};
use tinysockets::key::{RunAddress, RunKey, RunName};

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

impl Text for FrameChecksums {
    const FORM: &'static str = "automatic, always or never";

    fn from_text(text: &str) -> Result<Self, String> {
        match text.trim() {
            "automatic" => Ok(Self::Automatic),
            "always" => Ok(Self::Always),
            "never" => Ok(Self::Never),
            _ => Err(format!("{text:?}: write automatic, always or never")),
        }
    }

    fn to_text(&self) -> String {
        let text = match self {
            Self::Automatic => "automatic",
            Self::Always => "always",
            Self::Never => "never",
        };
        text.to_owned()
    }
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

/// Builds a [`Communicator`](crate::Communicator).
#[derive(Debug, Clone)]
pub struct Builder {
    /// Parsed at once, so that no text with a key is kept.
    pub(crate) master: Result<RunAddress, String>,
    pub(crate) settings: PeerSettings,
    /// The first setting that was given a text that is none of its form.
    pub(crate) bad: Option<String>,
    pub(crate) resume: Option<ResumeSettings>,
}

pccl_settings::settings! {
    /// Settings of a peer, as they are given: [`Builder::build`] checks them.
    pub struct PeerSettings, fields (pub(crate)), methods of Builder {
        /// The key of the run, 64 hexadecimal digits as `pccl-master --new-key` prints them: only who has it takes
        /// part, and everything that travels is encrypted. Default: that of the master's address
        /// (`pccl://host:port#key`), or of the environment variable `PCCL_RUN_KEY`; if there is none, the run has no
        /// key.
        [variable = Some("PCCL_RUN_KEY")]
        run_key: Option<RunKey> = None, by (text key);
        /// The name of the run, as its master has it (`pccl-master --run`): runs with the same key are told apart by
        /// it, so that nobody on the way leads this peer into another one. Without a key `connect` refuses it. Default:
        /// that of the master's address (`pccl://host:port/name`), or of the environment variable `PCCL_RUN_NAME`; if
        /// there is none, the run has no name.
        [variable = Some("PCCL_RUN_NAME")]
        run_name: Option<RunName> = None, by (text name);
        /// The peer group to join; collectives and syncs run inside a group. Default 0.
        []
        peer_group: u32 = 0, by (group: u32 => group);
        /// The members of the group are given by [`Communicator::form_group`](crate::Communicator::form_group), instead
        /// of being let in one after the other: `connect` returns as soon as the master knows this peer, and there is
        /// no group until one is formed. All peers with this number of a group choose the same way; a peer that comes
        /// with the other one is refused ([`Error::Refused`], "group of another kind"). Default false.
        []
        formed_groups: bool = false, by (formed: bool => formed);
        /// All-reduces succeed while this peer is the only member of its group, instead of failing with `TooFewPeers`:
        /// the result is its own contribution, not quantised. Others may join meanwhile, and the run goes on with them.
        /// The master's minimum world size has to be 1, its default. Default false.
        []
        world_of_one: bool = false, by (alone: bool => alone);
        /// The name of the site of this peer: hosts that are near each other, and far from those of other sites. Peers
        /// with the same name are in one site, others in sites that are found by what is measured. Large all-reduces
        /// may then go in two levels ([`Schedule::Sites`](crate::Schedule::Sites)). Made of what a name is made of.
        /// Default: no name.
        []
        site: Option<String> = None, by (site: &str => Some(site.to_owned()));
        /// TCP connections to the next rank. 0 (the default) goes by the round trip to it: one up to 60 ms, then one
        /// for each 50 ms, at most 8. Where the kernel has no bbr, or no room for a send buffer of 4 MiB
        /// (`net.core.wmem_max`), it is one for each 20 ms.
        []
        pool_size: u16 = 0, by (connections: u16 => connections);
        /// Host name or address under which other peers reach this one. Default: the address from which the master sees
        /// the connection come.
        [form = "HOST"]
        advertised_host: Option<String> = None, by (host: &str => Some(host.to_owned()));
        /// Address that the listeners bind to. Default: all addresses of the machine.
        []
        bind: Option<IpAddr> = None, by (address: IpAddr => Some(address));
        /// First port that the data listener tries; it goes up from there until one is free. 0 takes any free port.
        []
        first_p2p_port: u16 = limits::FIRST_P2P_PORT;
        /// First port that the shared-state listener tries, likewise.
        []
        first_state_port: u16 = limits::FIRST_STATE_PORT;
        /// A listener whose first port is taken is an error of `connect`, instead of a warning and another port: for
        /// firewalls with a rule for each port. Default false.
        []
        strict_ports: bool = false, by (strict: bool => strict);
        /// Whether nobody can dial this peer, because it is behind NAT or a firewall. Then it dials all of its
        /// connections itself, and only the master and enough other peers have to be reachable: two such peers are
        /// never neighbours, so a group takes no more of them than of others, and operations between two of them fail.
        /// `false`: others can dial it, whatever the master finds. Default: the environment variable
        /// `PCCL_OUTBOUND_ONLY` (`1` or `0`); if that is not set either, the master tries the ports of this peer, for
        /// up to 3 s if nothing answers.
        [variable = Some("PCCL_OUTBOUND_ONLY")]
        outbound_only: Option<bool> = None, by (outbound_only: bool => Some(outbound_only));
        /// The name of this peer in the status, in logs, verdicts and flight records, beside its identity, which is a
        /// new one after each connect: 1 to 64 bytes of letters and digits of any script (UTF-8) and `-_.:@/+=~`.
        /// Default: `hostname:pid`.
        []
        name: Option<String> = None, by (name: &str => Some(name.to_owned()));
        /// For how long [`Communicator::connect`](crate::Communicator::connect) tries to reach the master and to
        /// register with it. Default 60 s: as long as a master that is started again may take, or one that is started
        /// after its peers. Waiting to be admitted is not bounded by it.
        []
        connect_timeout: Duration = Duration::from_secs(60), by (timeout: Duration => timeout);
        /// How long a call may wait for other peers, unless it names a limit of its own. Then it gives up: for all
        /// peers where that is possible, see [`Error::TimedOut`]. It has to be longer than the longest step of the
        /// slowest peer, as a peer that computes keeps the others waiting. Default: no limit.
        /// [`Communicator::set_call_timeout`](crate::Communicator::set_call_timeout) changes it later.
        []
        call_timeout: Option<Duration> = None, by (timeout: Duration => Some(timeout));
        /// After how long a silence the master counts as lost. Default 30 s: long enough for a master that is stopped
        /// and resumed.
        []
        master_timeout: Duration = Duration::from_millis(limits::DEFAULT_MASTER_TIMEOUT_MS),
            by (timeout: Duration => timeout);
        /// How long this peer looks for its master again when the connection to it has ended, while the calls under way
        /// go on and wait. Default 10 s, or 60 s if the master keeps a journal; 0: the master is lost with the
        /// connection. It is lost earlier if nobody listens at its address any more and it keeps no journal, or if it
        /// has dropped this peer meanwhile, which it does after half of its peer time-out unless it is told otherwise.
        []
        master_grace: Option<Duration> = None, by (grace: Duration => Some(grace));
        /// How long connecting to a neighbour of the ring may take. Default 3 s.
        []
        dial_timeout: Duration = Duration::from_millis(limits::DEFAULT_DIAL_TIMEOUT_MS),
            by (timeout: Duration => timeout);
        /// When data frames carry a checksum. Default: unless both ends are on one host, or the run has a key and its
        /// wire mode is not off.
        []
        frame_checksums: FrameChecksums = FrameChecksums::Automatic,
            by (checksums: FrameChecksums => checksums);
        /// Tensors go to another process of this machine, and of this user, through memory that both share, instead of
        /// through TCP: 2 MiB for each connection. Both have to want it, and to see each other's processes (`/proc`);
        /// otherwise they do without. Also in a run with a key: what does not leave the machine is not encrypted then.
        /// Default true.
        []
        shared_memory: bool = true, by (share: bool => share);
        /// Directory to which the flight recorder writes its file when something fails. Default: the environment
        /// variable `PCCL_FLIGHT_DIR`; if that is not set either, nothing is written.
        [form = "DIR", variable = Some("PCCL_FLIGHT_DIR")]
        flight_dir: Option<PathBuf> = None, by (directory: impl Into<PathBuf> => Some(directory.into()));
        /// How many events of operations the flight recorder keeps; 0 switches it off. Default 2048, which takes less
        /// than a megabyte.
        []
        flight_events: usize = pccl_flight::DEFAULT_CAPACITY, by (events: usize => events);
        /// How many bytes of memory a sync may take beside the tensors while it fetches what differs. Until the sync is
        /// committed it keeps what it replaces, so that a failed one leaves every tensor as it was; what is more than
        /// this goes to a file that has no name, see [`Builder::state_spill_dir`]. After a sync that failed it keeps
        /// what it had fetched, in the same room, until the next sync. A few MiB for connections are always taken.
        /// Default 256 MiB.
        []
        state_memory: usize = 256 << 20, by (bytes: usize => bytes);
        /// Directory of the file for what a sync keeps beyond `state_memory`. It needs as much room as the tensors that
        /// differ have. Default: the directory for temporary files, `TMPDIR` or `/tmp`.
        [form = "DIR"]
        state_spill_dir: Option<PathBuf> = None, by (directory: impl Into<PathBuf> => Some(directory.into()));
        /// How many percent of its uplink this peer gives to newcomers that fetch the state that it
        /// [lends](Communicator::lend_state), all of them together: 1 to 100. The uplink is the best rate at which it
        /// has sent to others lately. While a collective moves data, almost nothing goes to newcomers. Default 50.
        []
        upload_share_pct: u8 = 50, by (percent: u8 => percent);
        /// All reductions of this peer fail for all if a contribution holds NaN or an infinity, see
        /// [`Call::refusing_non_finite`](crate::Call::refusing_non_finite). All peers of a group have to choose alike,
        /// or they get `MismatchedCall`. Default: contributions may hold anything.
        []
        refuse_non_finite: bool = false, by (refuse: bool => refuse);
    }
}
