//! Builds a communicator: settings with their defaults, checked in the end.

use crate::masters::Masters;
use crate::{
    Communicator, Error, FrameChecksums,
    config::{Config, ResumeSettings},
};
use pccl_iteration::IterationConfig;
use pccl_protocol::{GroupId, Host, Name, limits};
use std::{net::IpAddr, path::PathBuf, time::Duration};
use tinysockets::{
    address::HostPort,
    key::{KeyError, RunAddress, RunAddressError, RunKey, RunKeys, RunName, RunNameError},
    place::why_unusable,
};

/// Environment variable with the number of connections that a probe uses.
const PROBE_CONNECTIONS: &str = "PCCL_NUM_BENCHMARK_CONNECTIONS";
/// Environment variable that says whether nobody can dial this peer.
const OUTBOUND_ONLY: &str = "PCCL_OUTBOUND_ONLY";

/// Whether nobody can dial this peer, as the environment says.
fn outbound_only_of(variable: Option<&str>) -> Result<Option<bool>, Error> {
    match variable.map(str::trim) {
        None | Some("") => Ok(None),
        Some("1" | "true") => Ok(Some(true)),
        Some("0" | "false") => Ok(Some(false)),
        Some(text) => Err(Error::InvalidArgument(format!("{OUTBOUND_ONLY}={text:?}: write 1 or 0"))),
    }
}

/// The number of connections that the environment asks for.
fn probe_connections_of(text: Option<&str>) -> Result<Option<u16>, Error> {
    let Some(text) = text.map(str::trim).filter(|text| !text.is_empty()) else { return Ok(None) };
    match text.parse() {
        Ok(number) if (1..=limits::MAX_POOL_CONNECTIONS).contains(&number) => Ok(Some(number)),
        _ => Err(Error::InvalidArgument(format!(
            "{PROBE_CONNECTIONS}={text}: 1 to {} connections",
            limits::MAX_POOL_CONNECTIONS
        ))),
    }
}

/// The name of a peer that was given none.
fn default_name() -> String {
    let pid = format!(":{}", std::process::id());
    let host = pccl_flight::host_name();
    let end = (0..=host.len().min(limits::MAX_NAME_BYTES - pid.len()))
        .rev()
        .find(|end| host.is_char_boundary(*end));
    Name::new(format!("{}{pid}", &host[..end.unwrap_or(0)])).as_str().to_owned()
}

/// Builds a [`Communicator`].
#[derive(Debug, Clone)]
pub struct Builder {
    /// Parsed at once, so that no text with a key is kept.
    master: Result<RunAddress, String>,
    run_key: Option<Result<RunKey, KeyError>>,
    run_name: Option<Result<RunName, RunNameError>>,
    group: u32,
    formed: bool,
    alone: bool,
    site: Option<String>,
    pool_connections: u16,
    advertised_host: Option<String>,
    bind: Option<IpAddr>,
    first_p2p_port: u16,
    first_state_port: u16,
    strict_ports: bool,
    outbound_only: Option<bool>,
    name: Option<String>,
    connect_timeout: Duration,
    call_timeout: Option<Duration>,
    master_timeout: Duration,
    master_grace: Option<Duration>,
    dial_timeout: Duration,
    checksums: FrameChecksums,
    flight_dir: Option<PathBuf>,
    flight_events: usize,
    state_memory: usize,
    state_spill_dir: Option<PathBuf>,
    upload_share_pct: u8,
    refuses_non_finite: bool,
    resume: Option<ResumeSettings>,
}

impl Builder {
    pub(crate) fn new(master: &str) -> Self {
        Self {
            master: master.parse().map_err(|error: RunAddressError| error.to_string()),
            run_key: None,
            run_name: None,
            group: 0,
            formed: false,
            alone: false,
            site: None,
            pool_connections: 0,
            advertised_host: None,
            bind: None,
            first_p2p_port: limits::FIRST_P2P_PORT,
            first_state_port: limits::FIRST_STATE_PORT,
            strict_ports: false,
            outbound_only: None,
            name: None,
            connect_timeout: Duration::from_secs(60),
            call_timeout: None,
            master_timeout: Duration::from_millis(limits::DEFAULT_MASTER_TIMEOUT_MS),
            master_grace: None,
            dial_timeout: Duration::from_millis(limits::DEFAULT_DIAL_TIMEOUT_MS),
            checksums: FrameChecksums::Automatic,
            flight_dir: None,
            flight_events: pccl_flight::DEFAULT_CAPACITY,
            state_memory: 256 << 20,
            state_spill_dir: None,
            upload_share_pct: 50,
            refuses_non_finite: false,
            resume: None,
        }
    }

    /// The key of the run, 64 hexadecimal digits as `pccl-master --new-key` prints them: only who has it takes part,
    /// and everything that travels is encrypted. Default: that of the master's address
    /// (`pccl://host:port#key`), or of the environment variable `PCCL_RUN_KEY`; if there is none, the run has no key.
    pub fn run_key(mut self, key: &str) -> Self {
        self.run_key = Some(key.parse());
        self
    }

    /// The name of the run, as its master has it (`pccl-master --run`): runs with the same key are told apart by it, so
    /// that nobody on the way leads this peer into another one. Without a key `connect` refuses it. Default: that of
    /// the master's address (`pccl://host:port/name`), or of the environment variable `PCCL_RUN_NAME`; if there is
    /// none, the run has no name.
    pub fn run_name(mut self, name: &str) -> Self {
        self.run_name = Some(name.parse());
        self
    }

    /// The peer group to join; collectives and syncs run inside a group. Default 0.
    pub fn peer_group(mut self, group: u32) -> Self {
        self.group = group;
        self
    }

    /// The members of the group are given by [`Communicator::form_group`], instead of being let in one after the
    /// other: `connect` returns as soon as the master knows this peer, and there is no group until one is formed. All
    /// peers with this number of a group choose the same way; a peer that comes with the other one is refused
    /// ([`Error::Refused`], "group of another kind"). Default false.
    pub fn formed_groups(mut self, formed: bool) -> Self {
        self.formed = formed;
        self
    }

    /// All-reduces succeed while this peer is the only member of its group, instead of failing with `TooFewPeers`: the
    /// result is its own contribution, not quantised. Others may join meanwhile, and the run goes on with them. The
    /// master's minimum world size has to be 1, its default. Default false.
    pub fn world_of_one(mut self, alone: bool) -> Self {
        self.alone = alone;
        self
    }

    /// The name of the site of this peer: hosts that are near each other, and far from those of other sites. Peers with
    /// the same name are in one site, others in sites that are found by what is measured. Large all-reduces may then go
    /// in two levels ([`Schedule::Sites`](crate::Schedule::Sites)). Made of what a name is made of. Default: no name.
    pub fn site(mut self, site: &str) -> Self {
        self.site = Some(site.to_owned());
        self
    }

    /// TCP connections to the next rank. 0 (the default) goes by the round trip to it: one up to 60 ms, then one for
    /// each 50 ms, at most 8. Where the kernel has no bbr, or no room for a send buffer of 4 MiB
    /// (`net.core.wmem_max`), it is one for each 20 ms.
    pub fn pool_size(mut self, connections: u16) -> Self {
        self.pool_connections = connections;
        self
    }

    /// Host name or address under which other peers reach this one. Default: the address from which the master sees the
    /// connection come.
    pub fn advertised_host(mut self, host: &str) -> Self {
        self.advertised_host = Some(host.to_owned());
        self
    }

    /// Address that the listeners bind to. Default: all addresses of the machine.
    pub fn bind(mut self, address: IpAddr) -> Self {
        self.bind = Some(address);
        self
    }

    /// First ports that the data listener and the shared-state listener try; each goes up from there until one is free.
    /// 0 takes any free port. Defaults 48150 and 48149.
    pub fn first_ports(mut self, p2p: u16, state: u16) -> Self {
        self.first_p2p_port = p2p;
        self.first_state_port = state;
        self
    }

    /// A listener whose first port is taken is an error of `connect`, instead of a warning and another port: for
    /// firewalls with a rule for each port. Default false.
    pub fn strict_ports(mut self, strict: bool) -> Self {
        self.strict_ports = strict;
        self
    }

    /// Whether nobody can dial this peer, because it is behind NAT or a firewall. Then it dials all of its connections
    /// itself, and only the master and enough other peers have to be reachable: two such peers are never neighbours, so
    /// a group takes no more of them than of others, and operations between two of them fail. `false`: others can dial
    /// it, whatever the master finds. Default: the environment variable `PCCL_OUTBOUND_ONLY` (`1` or `0`); if that is
    /// not set either, the master tries the ports of this peer, for up to 3 s if nothing answers.
    pub fn outbound_only(mut self, outbound_only: bool) -> Self {
        self.outbound_only = Some(outbound_only);
        self
    }

    /// The name of this peer in the status, in logs, verdicts and flight records, beside its identity, which is a new
    /// one after each connect: 1 to 64 bytes of letters and digits of any script (UTF-8) and `-_.:@/+=~`. Default:
    /// `hostname:pid`.
    pub fn name(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }

    /// How long a call may wait for other peers, unless it names a limit of its own. Then it gives up: for all peers
    /// where that is possible, see [`Error::TimedOut`]. It has to be longer than the longest step of the slowest
    /// peer, as a peer that computes keeps the others waiting. Default: no limit. [`Communicator::set_call_timeout`]
    /// changes it later.
    pub fn call_timeout(mut self, timeout: Duration) -> Self {
        self.call_timeout = Some(timeout);
        self
    }

    /// For how long [`Communicator::connect`] tries to reach the master and to register with it. Default 60 s: as long
    /// as a master that is started again may take, or one that is started after its peers. Waiting to be admitted is
    /// not bounded by it.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// After how long a silence the master counts as lost. Default 30 s: long enough for a master that is stopped and
    /// resumed.
    pub fn master_timeout(mut self, timeout: Duration) -> Self {
        self.master_timeout = timeout;
        self
    }

    /// How long this peer looks for its master again when the connection to it has ended, while the calls under way go
    /// on and wait. Default 10 s, or 60 s if the master keeps a journal; 0: the master is lost with the connection. It
    /// is lost earlier if nobody listens at its address any more and it keeps no journal, or if it has dropped this
    /// peer meanwhile, which it does after half of its peer time-out unless it is told otherwise.
    pub fn master_grace(mut self, grace: Duration) -> Self {
        self.master_grace = Some(grace);
        self
    }

    /// How long connecting to a neighbour of the ring may take. Default 3 s.
    pub fn dial_timeout(mut self, timeout: Duration) -> Self {
        self.dial_timeout = timeout;
        self
    }

    /// When data frames carry a checksum. Default: unless both ends are on one host, or the run has a
    /// key and its wire mode is not off.
    pub fn frame_checksums(mut self, checksums: FrameChecksums) -> Self {
        self.checksums = checksums;
        self
    }

    /// Directory to which the flight recorder writes its file when something fails. Default: the environment variable
    /// `PCCL_FLIGHT_DIR`; if that is not set either, nothing is written.
    pub fn flight_dir(mut self, directory: impl Into<PathBuf>) -> Self {
        self.flight_dir = Some(directory.into());
        self
    }

    /// How many events of operations the flight recorder keeps; 0 switches it off. Default 2048, which takes less than
    /// a megabyte.
    pub fn flight_events(mut self, events: usize) -> Self {
        self.flight_events = events;
        self
    }

    /// How many bytes of memory a sync may take beside the tensors while it fetches what differs. Until the sync is
    /// committed it keeps what it replaces, so that a failed one leaves every tensor as it was; what is more than this
    /// goes to a file that has no name, see [`Builder::state_spill_dir`]. After a sync that failed it keeps what it had
    /// fetched, in the same room, until the next sync. A few MiB for connections are always taken. Default 256 MiB.
    pub fn state_memory(mut self, bytes: usize) -> Self {
        self.state_memory = bytes;
        self
    }

    /// Directory of that file. It needs as much room as the tensors that differ have. Default: the directory for
    /// temporary files, `TMPDIR` or `/tmp`.
    pub fn state_spill_dir(mut self, directory: impl Into<PathBuf>) -> Self {
        self.state_spill_dir = Some(directory.into());
        self
    }

    /// How many percent of its uplink this peer gives to newcomers that fetch the state that it
    /// [lends](Communicator::lend_state), all of them together: 1 to 100. The uplink is the best rate at which it has
    /// sent to others lately. While a collective moves data, almost nothing goes to newcomers. Default 50.
    pub fn upload_share_pct(mut self, percent: u8) -> Self {
        self.upload_share_pct = percent;
        self
    }

    /// All reductions of this peer fail for all if a contribution holds NaN or an infinity, see
    /// [`Call::refusing_non_finite`](crate::Call::refusing_non_finite). All peers of a group have to choose alike, or
    /// they get `MismatchedCall`. Default: contributions may hold anything.
    pub fn refuse_non_finite(mut self, refuse: bool) -> Self {
        self.refuses_non_finite = refuse;
        self
    }

    /// A store through which peers agree on where to resume when no master can be had, see
    /// [`Communicator::agree_on_resume`]: `host:port` of `pccl-master --store-only` or of a TCPStore of PyTorch.
    /// `member` is an identity that survives restarts, such as a rank; all peers have to give the same `config`, whose
    /// `world_size` is the number of peers that the first decision waits for. `Policy::StrictMajority` keeps a peer
    /// that is cut off from agreeing with itself alone.
    pub fn resume_over(mut self, store: &str, member: &str, config: IterationConfig) -> Self {
        self.resume = Some(ResumeSettings { store: store.to_owned(), member: member.to_owned(), config });
        self
    }

    /// Checks the settings. No connection is made yet.
    ///
    /// # Errors
    /// `InvalidArgument` names the setting that has no meaning.
    pub fn build(self) -> Result<Communicator, Error> {
        let invalid = Error::InvalidArgument;
        let master = self.master.map_err(|error| invalid(format!("master address: {error}")))?;
        if let Some(why) = master.masters().find_map(|master| why_unusable(&master.host)) {
            return Err(invalid(format!("master address: {why}")));
        }
        let given = self.run_key.transpose().map_err(|error| invalid(format!("run key: {error}")))?;
        let name = self.run_name.transpose().map_err(|error| invalid(format!("run name: {error}")))?;
        let (run_key, run_name) = master.key_and_name(given, name).map_err(invalid)?;
        if self.pool_connections > limits::MAX_POOL_CONNECTIONS {
            return Err(invalid(format!(
                "pool size {}: at most {} connections",
                self.pool_connections,
                limits::MAX_POOL_CONNECTIONS
            )));
        }
        if !(1..=100).contains(&self.upload_share_pct) {
            return Err(invalid(format!("an upload share of {} %: 1 to 100", self.upload_share_pct)));
        }
        let advertised_host = match self.advertised_host {
            Some(host) if host.is_empty() || Host::new(&*host).as_str() != host => {
                return Err(invalid(format!(
                    "advertised host {host:?}: 1 to {} bytes of letters, digits and -_.:%",
                    limits::MAX_HOST_BYTES
                )));
            }
            Some(host) => match why_unusable(host.trim_matches(['[', ']'])) {
                Some(why) => return Err(invalid(format!("advertised host: {why}"))),
                None if host.parse::<HostPort>().is_ok() || host.starts_with('[') => {
                    return Err(invalid(format!(
                        "advertised host {host:?}: a name or an address, without brackets and without a port"
                    )));
                }
                None => Some(Host::new(host)),
            },
            None => None,
        };
        // All addresses may be listened on, and none of several machines.
        let bind = self.bind.filter(|ip| !ip.is_unspecified()).map(|ip| ip.to_string());
        if let Some(why) = bind.as_deref().and_then(why_unusable) {
            return Err(invalid(format!("address to bind to: {why}")));
        }
        let name = self.name.unwrap_or_else(default_name);
        for (what, name) in [("name", Some(&name)), ("site", self.site.as_ref())] {
            let Some(name) =
                name.filter(|name| name.is_empty() || Name::new(name.as_str()).as_str() != **name)
            else {
                continue;
            };
            return Err(invalid(format!(
                "{what} {name:?}: 1 to {} bytes of letters, digits and -_.:@/+=~",
                limits::MAX_NAME_BYTES
            )));
        }
        let timeouts =
            [("connect", self.connect_timeout), ("master", self.master_timeout), ("dial", self.dial_timeout)];
        for (name, timeout) in timeouts.into_iter().chain(self.call_timeout.map(|timeout| ("call", timeout)))
        {
            if timeout.is_zero() || timeout > Duration::from_secs(86_400) {
                return Err(invalid(format!("{name} time-out {timeout:?}: more than 0, at most a day")));
            }
        }
        if let Some(resume) = &self.resume {
            resume.check()?;
        }
        Ok(Communicator::new(Config {
            masters: Masters::new(master.masters().cloned().collect()),
            master: master.master,
            run_keys: run_key.map(|key| RunKeys::new(key.of_run(&run_name).into())),
            run_name,
            group: GroupId(self.group),
            formed: self.formed,
            alone: self.alone,
            site: Name::new(self.site.as_deref().unwrap_or_default()),
            pool_connections: self.pool_connections,
            advertised_host,
            bind: self.bind,
            first_p2p_port: self.first_p2p_port,
            first_state_port: self.first_state_port,
            strict_ports: self.strict_ports,
            outbound_only: match self.outbound_only {
                None => outbound_only_of(std::env::var(OUTBOUND_ONLY).ok().as_deref())?,
                said => said,
            },
            name: Name::new(&name),
            connect_timeout: self.connect_timeout,
            call_timeout: self.call_timeout,
            master_timeout: self.master_timeout,
            master_grace: self.master_grace,
            dial_timeout: self.dial_timeout,
            checksums: self.checksums,
            probe_connections: probe_connections_of(std::env::var(PROBE_CONNECTIONS).ok().as_deref())?,
            flight: pccl_flight::Settings {
                directory: self.flight_dir.or_else(pccl_flight::directory_from_environment),
                capacity: self.flight_events,
            },
            state_memory: self.state_memory,
            state_spill_dir: self.state_spill_dir.unwrap_or_else(std::env::temp_dir),
            upload_share_pct: self.upload_share_pct,
            refuses_non_finite: self.refuses_non_finite,
            resume: self.resume,
            offer: None,
            ahead: false,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_and_there_is_always_one() {
        let built =
            |name: &str| Builder::new("127.0.0.1:1").name(name).build().map(|comm| comm.name().to_owned());
        let longest = "n".repeat(limits::MAX_NAME_BYTES);
        for good in ["gpu-7", "rack1/node:2", "größe", &longest] {
            assert_eq!(built(good).as_deref(), Ok(good));
        }
        for bad in ["", "two words", "line\nbreak", "\u{1b}[2J", "a,b", "\u{202e}", &format!("{longest}n")] {
            assert!(matches!(built(bad), Err(Error::InvalidArgument(_))), "{bad:?}");
        }
        let own = Builder::new("127.0.0.1:1").build().expect("no setting is wrong");
        assert!(own.name().ends_with(&format!(":{}", std::process::id())), "{}", own.name());
        let site = |name: &str| {
            Builder::new("127.0.0.1:1").site(name).build().map(|comm| comm.config.site.as_str().to_owned())
        };
        assert_eq!(site("eu-west/1"), Ok("eu-west/1".to_owned()));
        for bad in ["", "two words"] {
            assert!(matches!(site(bad), Err(Error::InvalidArgument(text)) if text.starts_with("site ")));
        }
    }

    #[test]
    fn a_run_key_is_checked_and_never_shown() {
        let (good, other) = ("ab".repeat(32), "cd".repeat(32));
        let key =
            |builder: Builder| builder.build().map(|comm| comm.config.run_keys.as_ref().map(RunKeys::used));
        let address = format!("pccl://127.0.0.1:1#{good}");
        assert_eq!(key(Builder::new("127.0.0.1:1").run_key(&good)), Ok(good.parse().ok()));
        assert_eq!(key(Builder::new(&address)), Ok(good.parse().ok()));
        assert_eq!(key(Builder::new(&address).run_key(&other)), Ok(other.parse().ok()));
        assert!(!format!("{:?}", Builder::new(&address).run_key(&good)).contains("abab"));
        for bad in
            [Builder::new("127.0.0.1:1").run_key(&good[1..]), Builder::new(&address[..address.len() - 1])]
        {
            let error = bad.build().expect_err("63 digits");
            assert!(
                matches!(&error, Error::InvalidArgument(text) if text.contains("63 characters")),
                "{error}"
            );
            assert!(!error.to_string().contains("abab"), "{error}");
        }
    }

    #[test]
    fn the_environment_says_whether_a_peer_can_be_dialed() {
        let of = |text| outbound_only_of(text).ok();
        assert_eq!([of(None), of(Some(" "))], [Some(None); 2]);
        assert_eq!(
            [of(Some("1")), of(Some("true ")), of(Some("0"))],
            [true, true, false].map(|it| Some(Some(it)))
        );
        assert!(["2", "yes"].into_iter().all(|bad| of(Some(bad)).is_none()));
    }

    #[test]
    fn the_environment_sets_the_connections_of_a_probe() {
        let of = |text| probe_connections_of(text).ok();
        assert_eq!(
            [of(None), of(Some("")), of(Some(" 8 ")), of(Some("64"))],
            [Some(None), Some(None), Some(Some(8)), Some(Some(64))]
        );
        assert!(["0", "65", "-1", "many"].into_iter().all(|bad| of(Some(bad)).is_none()));
    }

    #[test]
    fn addresses_that_cannot_work_are_refused_with_what_to_give_instead() {
        let refused = |builder: Builder| match builder.build() {
            Err(Error::InvalidArgument(text)) => text,
            other => panic!("{other:?}"),
        };
        let good = || Builder::new("127.0.0.1:1");
        for master in ["0.0.0.0:1", "[::]:1", "[fe80::1%eth0]:1", "224.0.0.1:1", "10.0.0.1:1,[fe80::1]:1"] {
            let text = refused(Builder::new(master));
            assert!(text.starts_with("master address: ") && text.contains("give"), "{text}");
        }
        for host in
            ["0.0.0.0", "::", "fe80::1%2", "255.255.255.255", "10.0.0.1:48150", "[fd00::1]", "[::1]:1"]
        {
            let text = refused(good().advertised_host(host));
            assert!(text.starts_with("advertised host"), "{text}");
        }
        for ip in ["fe80::1", "224.0.0.1"] {
            let text = refused(good().bind(ip.parse().expect("an address")));
            assert!(text.starts_with("address to bind to: "), "{text}");
        }
        for builder in [good().bind("::".parse().expect("an address")), good().advertised_host("fd00::1")] {
            assert!(builder.build().is_ok());
        }
    }
}
