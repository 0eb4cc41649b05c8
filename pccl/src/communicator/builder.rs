//! Builds a communicator: settings with their defaults, checked in the end.

use crate::masters::Masters;
use crate::{
    Communicator, Error,
    config::Config,
    settings::{Builder, PeerSettings, ResumeSettings},
};
use pccl_iteration::IterationConfig;
use pccl_protocol::{GroupId, Host, Name, limits};
use std::time::Duration;
use tinysockets::{
    address::HostPort,
    key::{RunAddressError, RunKeys},
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

impl Builder {
    pub(crate) fn new(master: &str) -> Self {
        Self {
            master: master.parse().map_err(|error: RunAddressError| error.to_string()),
            settings: PeerSettings::default(),
            bad: None,
            resume: None,
        }
    }

    /// Sets one setting by its name, from a text: times as `10s`, `500ms`, `2m` or plain seconds; `true` or `false`;
    /// `none` for what is off or not given. The names are those of the methods, but for the two of
    /// [`Builder::first_ports`]: [`PeerSettings::SETTINGS`] lists them.
    ///
    /// # Errors
    /// `InvalidArgument` if there is no such setting, or if the text is none of its form. The value of a key is not
    /// repeated. Whether a value makes sense, [`Builder::build`] says.
    pub fn set(mut self, name: &str, text: &str) -> Result<Self, Error> {
        pccl_settings::set(PeerSettings::SETTINGS, &mut self.settings, name, text)
            .map_err(Error::InvalidArgument)?;
        Ok(self)
    }

    /// Sets a setting from a text whose fault [`Builder::build`] tells.
    pub(crate) fn set_later(mut self, name: &str, text: &str) -> Self {
        if let Err(bad) = pccl_settings::set(PeerSettings::SETTINGS, &mut self.settings, name, text) {
            self.bad.get_or_insert(bad);
        }
        self
    }

    /// First ports that the data listener and the shared-state listener try; each goes up from there until one is free.
    /// 0 takes any free port. Defaults 48150 and 48149.
    pub fn first_ports(mut self, p2p: u16, state: u16) -> Self {
        (self.settings.first_p2p_port, self.settings.first_state_port) = (p2p, state);
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
        if let Some(bad) = self.bad {
            return Err(invalid(bad));
        }
        let mut settings = self.settings;
        // The keys of a run change, and no old one stays behind.
        let (given, name) = (settings.run_key.take(), settings.run_name.take());
        let (run_key, run_name) = master.key_and_name(given, name).map_err(invalid)?;
        if settings.pool_size > limits::MAX_POOL_CONNECTIONS {
            return Err(invalid(format!(
                "pool size {}: at most {} connections",
                settings.pool_size,
                limits::MAX_POOL_CONNECTIONS
            )));
        }
        if !(1..=100).contains(&settings.upload_share_pct) {
            return Err(invalid(format!("an upload share of {} %: 1 to 100", settings.upload_share_pct)));
        }
        let advertised_host = match settings.advertised_host.take() {
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
        let bind = settings.bind.filter(|ip| !ip.is_unspecified()).map(|ip| ip.to_string());
        if let Some(why) = bind.as_deref().and_then(why_unusable) {
            return Err(invalid(format!("address to bind to: {why}")));
        }
        let name = settings.name.take().unwrap_or_else(default_name);
        for (what, name) in [("name", Some(&name)), ("site", settings.site.as_ref())] {
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
        let timeouts = [
            ("connect", settings.connect_timeout),
            ("master", settings.master_timeout),
            ("dial", settings.dial_timeout),
        ];
        for (name, timeout) in
            timeouts.into_iter().chain(settings.call_timeout.map(|timeout| ("call", timeout)))
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
            group: GroupId(settings.peer_group),
            site: Name::new(settings.site.as_deref().unwrap_or_default()),
            advertised_host,
            outbound_only: match settings.outbound_only {
                None => outbound_only_of(std::env::var(OUTBOUND_ONLY).ok().as_deref())?,
                said => said,
            },
            name: Name::new(&name),
            probe_connections: probe_connections_of(std::env::var(PROBE_CONNECTIONS).ok().as_deref())?,
            flight: pccl_flight::Settings {
                directory: settings.flight_dir.take().or_else(pccl_flight::directory_from_environment),
                capacity: settings.flight_events,
            },
            state_spill_dir: settings.state_spill_dir.take().unwrap_or_else(std::env::temp_dir),
            resume: self.resume,
            offer: None,
            ahead: false,
            settings,
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
