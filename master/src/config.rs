//! Settings of a master, and which of them no run could work with.

use crate::{error::MasterError, event_loop::Search, relay::RelayConfig, state::Options};
use pccl_protocol::{Host, Name, Revision, RunId, limits};
use std::{
    net::{IpAddr, SocketAddr, UdpSocket},
    path::PathBuf,
    time::{Duration, Instant},
};
use tinysockets::{
    address::HostPort,
    key::{AcceptedKeys, RunAddress, RunKey, RunKeys, RunName},
    mode::WireMode,
    place::why_unusable,
};

/// Smallest limit for what waits for one client; a client that reads must never meet it between two small packets.
const SMALLEST_QUEUE_BYTES: usize = 4096;

/// Time for the names in a list of masters.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);

pccl_settings::settings! {
    /// Settings of a [`Master`](crate::Master). Each is declared here alone: [`MasterConfig::SETTINGS`] is the table of
    /// which the command line, `pcclMasterSetOption` and the documents are made.
    pub struct MasterConfig, fields (pub) {
        /// `host:port` to listen on. Port 0 takes a free one. `[::]` means every address of the machine, of both
        /// families; `0.0.0.0` every IPv4 address; a name every address that it stands for. Without a `run_key` it has
        /// to be an address that only this machine reaches, unless the master is `insecure`. Default: port 48148 of
        /// this machine alone; of `pccl-master` with a key or `insecure`, of all IPv4 addresses.
        [form = "HOST:PORT", alias = Some("listen-address")]
        listen: String = format!("127.0.0.1:{}", limits::DEFAULT_MASTER_PORT);
        /// The key of the run: who does not prove that it has the same one is turned away, and everything that travels
        /// is encrypted. Default: that of the environment variable `PCCL_RUN_KEY`; if that is not set either, none.
        [variable = Some("PCCL_RUN_KEY")]
        run_key: Option<RunKey> = None;
        /// A second key that is accepted beside `run_key`, as long as not everybody has that; `rotate_key` changes both
        /// in a running master. Default: none.
        []
        second_run_key: Option<RunKey> = None;
        /// The name of the run, which tells runs with the same key apart: who proves the key for a run of another name
        /// is turned away. Only with a key. Default: that of the environment variable `PCCL_RUN_NAME`; if that is not
        /// set either, the run has no name.
        [argument = Some("run"), variable = Some("PCCL_RUN_NAME")]
        run_name: Option<RunName> = None;
        /// With a key: how tensors and shared state travel between peers, and what measures their way. Everything else
        /// is always encrypted. Default: encrypted.
        []
        wire: WireMode = WireMode::Encrypt;
        /// With a key: only peers with these names (`Builder::name` of a peer) give shared state to others, in syncs
        /// and before newcomers are let in. A peer that has such a name keeps it for as long as it is there. Default:
        /// none, and all may.
        [form = "NAME,...", argument = Some("trusted_seeder")]
        trusted_seeders: Vec<String> = Vec::new();
        /// Without a key, lets other machines reach this master: whoever does so takes part, and whoever is on the way
        /// reads and changes what travels. Default false.
        []
        insecure: bool = false;
        /// A peer that is silent for this long is dropped. The variable, in milliseconds, is that of `pccl-master`.
        [variable = Some("PCCL_PEER_TIMEOUT_MS")]
        peer_timeout: Duration = defaults().peer_timeout;
        /// How long a peer whose connection ends is waited for, while nothing else says that it is dead: it may come
        /// back over another connection, and nobody notices. Shorter than the peer time-out; 0: it is lost at once.
        /// Default: half of the peer time-out.
        []
        return_grace: Option<Duration> = None;
        /// Peers are told to send a sign of life this often. The default is a tenth of the peer time-out, a second at
        /// most.
        []
        beat_interval: Option<Duration> = None;
        /// Time within which a peer must have connected to its neighbours in a new ring.
        []
        ring_timeout: Duration = defaults().ring_timeout;
        /// How long a report of a broken connection is held back until its cause is judged: the death of one end, which
        /// would explain it, may be noticed a little later.
        []
        edge_grace: Duration = defaults().edge_grace;
        /// A connection between two living peers on which bytes wait, or have been lost, and none moves is built anew
        /// after this.
        []
        edge_timeout: Duration = defaults().edge_timeout;
        /// Longest time in which `optimize_topology` measures one edge.
        []
        probe_time: Duration = defaults().probe_time;
        /// A peer whose caller alone holds up a vote for this long is dropped: it makes no call while all others wait
        /// for it. Never for a transfer, however slow. Off by default.
        []
        straggler_timeout: Option<Duration> = defaults().straggler_timeout;
        /// Collectives and syncs fail with "too few peers" while the run has fewer peers.
        []
        min_world_size: u32 = defaults().min_world_size;
        /// The run goes on from this revision: as long as a group has committed nothing, it commits nothing below, so
        /// that fresh peers wait for one that holds it. Default: a group may begin with any.
        []
        accept_revision: Option<u64> = None;
        /// Takes only peers that others can dial: who says that it is outbound-only is refused, and who fails the test
        /// of its ports is warned, and dropped if the others do not reach it either. Default false: such peers take
        /// part, and dial all of their connections themselves.
        []
        require_reachable: bool = defaults().require_reachable;
        /// Offers a relay to peers that nobody can dial, for where there is no other way between two of them: the last
        /// resort. All of their bytes pass this machine twice, and all together are bounded to this rate. Its port,
        /// 48147 if none is given, is at the same addresses as the master. Default: none, and such peers are never
        /// neighbours.
        []
        relay: Option<RelayConfig> = None;
        /// Time that a new connection has for its preamble, and again for its registration.
        []
        registration_timeout: Duration = defaults().registration_timeout;
        /// Where to listen for an operator (`kick`, `accept-revision`, `rotate-key`): a Unix socket that only the owner
        /// of this process can open. Default: nowhere; of `pccl-master`: pccl-master-PORT.sock in the first of
        /// RUNTIME_DIRECTORY, XDG_RUNTIME_DIR, /run/pccl (as root) and /tmp/pccl-UID where it can be made, and nowhere
        /// if the port is 0.
        []
        admin: Option<PathBuf> = None;
        /// Directory of a journal, which is made if it is missing. A master that is started there after another one has
        /// died goes on in its place: the same run, and no call of a peer notices more than a pause, if it comes within
        /// `Builder::master_grace` of the peers. It outlives the process, not a new start of the machine. A master that
        /// is stopped in order ends its run. Default: none.
        [form = "DIR"]
        journal: Option<PathBuf> = None;
        /// Lets other masters stand by for this one (`standby_of`): they know all that it knows, and one of them goes
        /// on in its place when it is lost, with the consent of more than half of the members; no call of a peer
        /// notices more than a pause. Everything that peers hear waits for one round trip to each of them. In a run
        /// with a key, whoever has that may stand by, and so be told all secrets of the run. Default false; a master
        /// that stands by lets others do so, too.
        []
        accept_standbys: bool = false;
        /// Stands by for the master at one of these places (`host:port`), whose settings it takes over with the run: of
        /// these only the addresses, the keys and the bounds of clients count. Peers and newcomers find this one by
        /// themselves, or by the address `HOST:PORT,HOST:PORT`. Default: nowhere, this master begins a run.
        [form = "HOST:PORT,..."]
        standby_of: Vec<String> = Vec::new();
        /// All masters of the run (`host:port`; without a port the usual one), this one among them, the same for each
        /// of them. One that is started stands by for the one that acts, wherever that is. If there is no run yet, the
        /// first of the list begins one, once the others have said that they know none, or could not be reached for 10
        /// s. Default: no list.
        [form = "HOST[:PORT],..."]
        masters: Vec<String> = Vec::new();
        /// Which entry of `masters` is this one. Default: it finds out by connecting to them.
        [form = "HOST[:PORT]"]
        me: Option<String> = None;
        /// Host under which peers and other masters reach this one, if it stands by. Default: the address from which
        /// the leader sees it come.
        [form = "HOST", argument = Some("advertise")]
        advertised_host: Option<String> = None;
        /// Bytes that may wait for a client that does not read; then it is dropped.
        []
        client_queue_bytes: usize = limits::MAX_CLIENT_QUEUE_BYTES;
        /// Outcomes of operations that the master keeps for each group, by their tags. When there are more, a new epoch
        /// of the group begins on the same ring, and what runs goes on.
        []
        tag_history: usize = defaults().max_tag_history;
        /// Directory to which the flight recorder writes its file when a peer is lost or dropped, when an operation
        /// fails, and at the end. Default: the environment variable `PCCL_FLIGHT_DIR`; if that is not set either,
        /// nothing is written.
        [form = "DIR", variable = Some("PCCL_FLIGHT_DIR")]
        flight_dir: Option<PathBuf> = None;
    }
}

/// The times of the state machine, where nobody says otherwise.
fn defaults() -> Options {
    Options::new(RunId(0))
}

impl MasterConfig {
    /// Sets one setting by its name, from a text: times as `10s`, `500ms`, `2m` or plain seconds; `true` or `false`;
    /// lists with commas; `none` for what is off. Whether it fits the other settings shows when the master starts.
    ///
    /// # Errors
    /// `Setting` if there is no such setting, or if the text is none of its form. The value of a key is not repeated.
    pub fn set(&mut self, name: &str, text: &str) -> Result<(), MasterError> {
        pccl_settings::set(Self::SETTINGS, self, name, text).map_err(MasterError::Setting)
    }

    /// The settings that the state machine goes by.
    pub(crate) fn options(&self, run: RunId) -> Options {
        let defaults = Options::new(run);
        Options {
            peer_timeout: self.peer_timeout,
            beat_interval: self
                .beat_interval
                .unwrap_or_else(|| (self.peer_timeout / 10).min(defaults.beat_interval)),
            return_grace: self.return_grace.unwrap_or(self.peer_timeout / 2),
            registration_timeout: self.registration_timeout,
            ring_timeout: self.ring_timeout,
            edge_grace: self.edge_grace,
            edge_timeout: self.edge_timeout,
            probe_time: self.probe_time,
            straggler_timeout: self.straggler_timeout,
            min_world_size: self.min_world_size,
            accept_revision: self.accept_revision.map(Revision),
            require_reachable: self.require_reachable,
            max_tag_history: self.tag_history,
            wire: self.run_key.is_some().then_some(self.wire),
            comes_back: self.journal.is_some() || self.accepts_standbys(),
            trusted_seeders: self.trusted_seeders.iter().map(Name::new).collect(),
            ..defaults
        }
    }

    /// Whether others may stand by for this one.
    pub(crate) fn accepts_standbys(&self) -> bool {
        self.accept_standbys || self.looks_for_others()
    }

    /// Whether it looks for a master that acts before it begins a run, if it ever does.
    pub(crate) fn looks_for_others(&self) -> bool {
        !self.standby_of.is_empty() || !self.masters.is_empty()
    }

    /// Where masters are that this one may stand by for, and how others reach it.
    pub(crate) fn search(
        &self,
        keys: Option<RunKeys>,
        local_addr: SocketAddr,
    ) -> Result<Search, MasterError> {
        let master = |text: &String| {
            let error = |error| MasterError::Setting(format!("a master to stand by for: {error}"));
            let port = limits::DEFAULT_MASTER_PORT;
            let text = if text.contains(':') { text.clone() } else { format!("{text}:{port}") };
            text.parse::<RunAddress>().map(|address| address.master).map_err(error)
        };
        let is_list = !self.masters.is_empty();
        let listed = if is_list { &self.masters } else { &self.standby_of };
        let masters = listed.iter().map(master).collect::<Result<Vec<_>, _>>()?;
        let me = self.me.as_ref().map(master).transpose()?;
        if me.as_ref().is_some_and(|me| !masters.contains(me)) {
            return Err(MasterError::Setting("the list of all masters does not have this one".into()));
        }
        let me = me.or_else(|| if is_list { entry_of(&masters, local_addr) } else { None });
        let advertised_host = self.advertised_host.as_deref().or(me.as_ref().map(|me| me.host.as_str()));
        let advertised_host = advertised_host.map(Host::new);
        Ok(Search { masters, is_list, me, keys, advertised_host, port: local_addr.port() })
    }

    /// The keys of which clients have to prove that they have one.
    pub(crate) fn accepted_keys(&self) -> Result<Option<AcceptedKeys>, MasterError> {
        let name = self.run_name.clone().unwrap_or_default();
        match (self.run_key.clone(), self.second_run_key.clone()) {
            (Some(used), second) => Ok(Some(AcceptedKeys { used, second }.of_run(&name))),
            (None, None) => Ok(None),
            (None, Some(_)) => Err(MasterError::Setting("a second run key needs a first one".into())),
        }
    }

    /// Refuses addresses that nobody could connect to, each in a sentence.
    fn check_addresses(&self) -> Result<(), MasterError> {
        let host_of = |place: &str| {
            place.rsplit_once(':').map_or(place, |(host, _)| host).trim_matches(['[', ']']).to_owned()
        };
        // All addresses may be listened on.
        let is_one = |host: &String| !host.parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified());
        let listen = Some(host_of(&self.listen)).filter(is_one).map(|host| ("listen", host));
        let standbys = self.standby_of.iter().map(|place| ("standby of", host_of(place)));
        let masters = self.masters.iter().map(|place| ("masters", host_of(place)));
        let shown = self.advertised_host.iter().map(|host| ("advertised host", host.clone()));
        for (what, host) in listen.into_iter().chain(standbys).chain(masters).chain(shown) {
            if let Some(why) = why_unusable(&host) {
                return Err(MasterError::Setting(format!("{what}: {why}")));
            }
        }
        Ok(())
    }

    /// Refuses settings with which no run could work.
    pub(crate) fn check(&self) -> Result<(), MasterError> {
        let shortest = Duration::from_millis(10);
        let times = [
            ("peer time-out", self.peer_timeout),
            ("ring time-out", self.ring_timeout),
            ("edge time-out", self.edge_timeout),
            ("registration time-out", self.registration_timeout),
            ("probe time", self.probe_time),
        ];
        if let Some((name, time)) = times.into_iter().find(|(_, time)| *time < shortest) {
            return Err(MasterError::Setting(format!(
                "the {name} of {time:?} is too short, use at least {shortest:?}"
            )));
        }
        if !(1..=limits::MAX_PEERS as u32).contains(&self.min_world_size) {
            let text =
                format!("a smallest world of {}: 1 to {} peers", self.min_world_size, limits::MAX_PEERS);
            return Err(MasterError::Setting(text));
        }
        if let Some(time) = self.straggler_timeout.filter(|time| *time < shortest) {
            return Err(MasterError::Setting(format!(
                "the straggler time-out of {time:?} is too short, use at least {shortest:?}"
            )));
        }
        self.check_addresses()?;
        if let Some(grace) = self.return_grace.filter(|grace| *grace >= self.peer_timeout) {
            return Err(MasterError::Setting(format!(
                "a return grace of {grace:?} is no shorter than the peer time-out of {:?}",
                self.peer_timeout
            )));
        }
        if (self.journal.is_some() || self.accepts_standbys()) && self.return_grace == Some(Duration::ZERO) {
            let text = "with a journal or with standbys peers have to come back, which a return grace of nothing does \
                        not let them";
            return Err(MasterError::Setting(text.into()));
        }
        if !self.masters.is_empty() && !self.standby_of.is_empty() {
            let text = "a list of all masters says for whom this one stands by: use either of the two";
            return Err(MasterError::Setting(text.into()));
        }
        if self.me.is_some() && self.masters.is_empty() {
            return Err(MasterError::Setting("which of the masters this one is needs a list of them".into()));
        }
        if self.relay.is_some_and(|relay| relay.mbit_per_s == 0) {
            return Err(MasterError::Setting("a relay needs a rate of at least 1 Mbit/s".into()));
        }
        if self.client_queue_bytes < SMALLEST_QUEUE_BYTES {
            return Err(MasterError::Setting(format!(
                "a queue of {} bytes per client is too small, use at least {SMALLEST_QUEUE_BYTES}",
                self.client_queue_bytes
            )));
        }
        let is_name = |name: &&String| !name.is_empty() && Name::new(name.as_str()).as_str() == name.as_str();
        if let Some(name) = self.trusted_seeders.iter().find(|name| !is_name(name)) {
            return Err(MasterError::Setting(format!(
                "{name:?} is not the name of a peer, so it cannot be that of a trusted seeder"
            )));
        }
        if self.trusted_seeders.len() > limits::MAX_TRUSTED_SEEDERS {
            return Err(MasterError::Setting(format!(
                "{} trusted seeders are more than {}",
                self.trusted_seeders.len(),
                limits::MAX_TRUSTED_SEEDERS
            )));
        }
        match self.beat_interval {
            Some(beat) if beat.is_zero() || beat > self.peer_timeout / 2 => {
                Err(MasterError::Setting(format!(
                    "a beat interval of {beat:?} does not fit a peer time-out of {:?}: use more than nothing and at \
                     most half of it",
                    self.peer_timeout
                )))
            }
            _ => Ok(()),
        }
    }
}

/// The entry of a list of masters that is the one which listens here, if there is exactly one whose address this
/// machine has. One behind a translated address finds out by asking.
fn entry_of(masters: &[HostPort], local_addr: SocketAddr) -> Option<HostPort> {
    let deadline = Instant::now() + RESOLVE_TIMEOUT;
    let is_here = |ip: IpAddr| match local_addr.ip().to_canonical() {
        local if local.is_unspecified() => UdpSocket::bind((ip, 0)).is_ok(),
        local => local == ip.to_canonical(),
    };
    let is_me = |place: &&HostPort| {
        let addresses = place.resolve(deadline).unwrap_or_default();
        place.port == local_addr.port() && addresses.iter().any(|address| is_here(address.ip()))
    };
    let mut found = masters.iter().filter(is_me);
    found.next().filter(|_| found.next().is_none()).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_default_is_read_as_itself_and_names_are_unique() {
        let default = MasterConfig::default();
        for setting in MasterConfig::SETTINGS {
            let mut config = default.clone();
            // Of a name that may be any text none is the same as no text.
            if !(setting.default)().is_empty() {
                config.set(setting.name, &(setting.default)()).expect(setting.name);
            }
            assert_eq!(config, default, "{}", setting.name);
            let same = MasterConfig::SETTINGS.iter().filter(|other| other.name == setting.name);
            assert_eq!(same.count(), 1, "{}", setting.name);
        }
    }

    #[test]
    fn settings_are_set_by_their_names() {
        let mut config = MasterConfig::default();
        for (name, text) in [
            ("peer_timeout", "2500ms"),
            ("straggler_timeout", "10m"),
            ("insecure", "true"),
            ("trusted_seeders", "vault, attic"),
            ("accept_revision", "7"),
            ("relay", "100:0"),
            ("journal", "/var/lib/pccl"),
        ] {
            config.set(name, text).expect(name);
        }
        let (timeout, straggler) = (Duration::from_millis(2500), Some(Duration::from_secs(600)));
        assert_eq!((config.peer_timeout, config.straggler_timeout), (timeout, straggler));
        assert_eq!((config.insecure, config.accept_revision), (true, Some(7)));
        assert_eq!(config.trusted_seeders, ["vault", "attic"]);
        assert_eq!(config.relay.map(|relay| (relay.mbit_per_s, relay.port)), Some((100, 0)));
        config.set("straggler_timeout", "none").expect("it can be off");
        assert_eq!(config.straggler_timeout, None);
    }

    #[test]
    fn what_is_no_setting_or_no_value_is_refused_with_its_name() {
        let mut config = MasterConfig::default();
        let mut refused = |name: &str, text: &str| config.set(name, text).expect_err(name).to_string();
        assert!(refused("peer_time", "1s").contains("peer_timeout, return_grace"));
        for (name, text) in
            [("peer_timeout", "soon"), ("insecure", "yes"), ("min_world_size", "-1"), ("wire", "plain")]
        {
            let error = refused(name, text);
            assert!(error.starts_with(&format!("{name}: ")), "{error}");
        }
        let key = refused("run_key", &"ab".repeat(31));
        assert!(key.contains("62 characters") && !key.contains("abab"), "{key}");
        assert_eq!(config, MasterConfig::default());
    }

    #[test]
    fn settings_that_cannot_work_are_refused() {
        let config = MasterConfig { peer_timeout: Duration::ZERO, ..MasterConfig::default() };
        assert!(matches!(config.check(), Err(MasterError::Setting(_))));
        let config = MasterConfig { beat_interval: Some(Duration::from_secs(9)), ..MasterConfig::default() };
        assert!(matches!(config.check(), Err(MasterError::Setting(_))));
        let config =
            MasterConfig { second_run_key: Some(RunKey::from_bytes([1; 32])), ..MasterConfig::default() };
        assert!(matches!(config.accepted_keys(), Err(MasterError::Setting(_))));
        let config = MasterConfig { client_queue_bytes: 10, ..MasterConfig::default() };
        assert!(matches!(config.check(), Err(MasterError::Setting(_))));
        for listen in ["0.0.0.0:0", "[::]:48148", "[fd00::1]:1", "localhost:1"] {
            MasterConfig { listen: listen.into(), ..MasterConfig::default() }.check().unwrap();
        }
        let unusable = [
            MasterConfig { listen: "[fe80::1%eth0]:48148".into(), ..MasterConfig::default() },
            MasterConfig { listen: "224.0.0.1:48148".into(), ..MasterConfig::default() },
            MasterConfig { standby_of: vec!["0.0.0.0:48148".into()], ..MasterConfig::default() },
            MasterConfig { advertised_host: Some("fe80::1%2".into()), ..MasterConfig::default() },
        ];
        for config in unusable {
            let error = config.check().unwrap_err().to_string();
            assert!(error.contains("give"), "{error}");
        }
        let config = MasterConfig { peer_timeout: Duration::from_secs(2), ..MasterConfig::default() };
        config.check().unwrap();
        assert_eq!(config.options(RunId(1)).beat_interval, Duration::from_millis(200));
    }
}
