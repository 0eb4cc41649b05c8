//! The command line.

use clap::{Parser, ValueEnum};
use std::{fmt, net::IpAddr, path::PathBuf, str::FromStr, time::Duration};

/// Runs a master and peers on this machine, kills, stops, replaces and dismisses peers, and checks everything that they
/// report against its own calculation.
#[derive(Debug, Clone, Parser)]
#[command(name = "pccl-stress", version)]
pub(crate) struct Args {
    /// How long, in minutes; added to --seconds and --hours. Default of all together: one minute.
    #[arg(long, default_value_t = 0)]
    pub(crate) minutes: u64,
    /// How long, in seconds.
    #[arg(long, default_value_t = 0)]
    pub(crate) seconds: u64,
    /// How long, in hours.
    #[arg(long, default_value_t = 0)]
    pub(crate) hours: u64,
    /// Fewest and most peers, as MIN..MAX (both included), from 2..2 to 64. Two in each group are always left alone, so
    /// most faults need more.
    #[arg(long, default_value = "3..6")]
    pub(crate) peers: PeerRange,
    /// Which faults, how often.
    #[arg(long, value_enum, default_value_t = Profile::Default)]
    pub(crate) profile: Profile,
    /// Determines the schedule of faults and all data. Default: from the clock, printed at the start.
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Elements of the largest tensor.
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub(crate) elements: u64,
    /// Silence after which the master drops a peer, in milliseconds.
    #[arg(long, default_value_t = 3_000, value_parser = clap::value_parser!(u64).range(500..=600_000))]
    pub(crate) peer_timeout_ms: u64,
    /// Longest pause of a peer in a step, in milliseconds: the time that training computes, while the state is lent to
    /// newcomers. Default: 20, or 400 with --profile state.
    #[arg(long, value_parser = clap::value_parser!(u64).range(0..=60_000))]
    pub(crate) step_ms: Option<u64>,
    /// MiB of shared state beside what the collectives train, of which each step changes a part. Default: 0, or 64
    /// with --profile state.
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(0..=4096))]
    pub(crate) state_mib: Option<u64>,
    /// Memory that a fetch of shared state may take beside it, in MiB; what is more goes to a file. Default: 8 with
    /// --profile state, otherwise that of the library.
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(0..=4096))]
    pub(crate) state_memory_mib: Option<u64>,
    /// Steps between two optimisations of the ring, with probes of new edges; 0: none, as for measurements of
    /// throughput.
    #[arg(long, default_value_t = 40, value_name = "STEPS")]
    pub(crate) optimize_every: u64,
    /// Peer groups over which the peers are spread.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub(crate) groups: u32,
    /// Kill the master as well, or stop it, every 15 to 30 seconds, with a journal or standbys every 5 to 20; after a
    /// kill another one is started on the same port.
    #[arg(long)]
    pub(crate) master_kill: bool,
    /// The master has a journal, and goes on from it when it is started again: then its death must cost nobody a call.
    #[arg(long, requires = "master_kill")]
    pub(crate) master_journal: bool,
    /// Number of masters that stand by. One of them takes over when the acting one is killed or stopped: that must cost
    /// nobody a call. A killed master stands by again.
    #[arg(long, default_value_t = 0, value_name = "N", requires = "master_kill", conflicts_with = "master_journal",
          value_parser = clap::value_parser!(u32).range(0..=8))]
    pub(crate) standbys: u32,
    /// No run key: nothing is encrypted. Otherwise each run has a fresh one, and so has each part of it.
    #[arg(long)]
    pub(crate) insecure: bool,
    /// Peers connect to each other directly, and nothing is done to their connections: for measurements of throughput.
    #[arg(long)]
    pub(crate) no_proxy: bool,
    /// One fault in this many seconds on average, instead of what the profile has.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) fault_every: Option<u64>,
    /// How many of the peers at a time are programs in C, which the run compiles with the system's compiler.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(crate) c_peers: usize,
    /// How many are programs in Python, which need numpy.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(crate) python_peers: usize,
    /// The interpreter for them.
    #[arg(long, default_value = "python3", value_name = "PROGRAM")]
    pub(crate) python: PathBuf,
    /// Folder of an earlier run: goes on with its books, by the same build and with its settings, and adds another part
    /// to its report. Without a length of its own the part lasts for what the run still lacks. The seed is that of the
    /// first part plus the number of parts, unless --seed is given.
    #[arg(long = "continue", alias = "resume", value_name = "DIR", conflicts_with = "out")]
    pub(crate) earlier: Option<PathBuf>,
    /// Folder for reports and logs; made if missing. Default: a new one in the system's folder for temporary files.
    #[arg(long)]
    pub(crate) out: Option<PathBuf>,
    /// The role of this process; set by the supervisor for the processes that it starts.
    #[arg(long, value_enum, default_value_t = Role::Supervisor, hide = true)]
    pub(crate) role: Role,
    /// Address of the master; of a peer process. Of a master: where it listens.
    #[arg(long, hide = true, default_value = "")]
    pub(crate) master: String,
    /// Of a master: the directory of its journal.
    #[arg(long, hide = true)]
    pub(crate) memory: Option<std::path::PathBuf>,
    /// Of a master: where those are that it stands by for.
    #[arg(long, hide = true, value_delimiter = ',')]
    pub(crate) standby_of: Vec<String>,
    /// Of a master: whether others may stand by for it.
    #[arg(long, hide = true)]
    pub(crate) accept_standbys: bool,
    /// Number of a peer process.
    #[arg(long, hide = true, default_value_t = 0)]
    pub(crate) index: u64,
    /// Group of a peer process.
    #[arg(long, hide = true, default_value_t = 0)]
    pub(crate) group: u32,
    /// Address that a peer process listens on.
    #[arg(long, hide = true, default_value = "127.0.0.1")]
    pub(crate) bind: IpAddr,
    /// Address under which others reach a peer process, if that is another one.
    #[arg(long, hide = true)]
    pub(crate) shown: Option<IpAddr>,
    /// Ports that a peer process listens on, for data and for shared state.
    #[arg(long, hide = true, default_value_t = 0)]
    pub(crate) data_port: u16,
    #[arg(long, hide = true, default_value_t = 0)]
    pub(crate) state_port: u16,
}

/// The role of a process of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Role {
    Supervisor,
    Master,
    Peer,
}

/// How rough a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Profile {
    /// A fault every 1 to 2 s, mostly peers that come and go.
    Calm,
    /// A fault every 0.5 to 2 s, mostly kills and replacements.
    Default,
    /// The faults of the default; each all-reduce of gradients is awaited while the next one is in flight.
    Async,
    /// Kills, also of peers that fetch, and newcomers, mostly several at once, every 1 to 3 s, in a run with a large
    /// shared state.
    State,
    /// The faults of the default; each step ends with an all-reduce in segments.
    Segments,
    /// Faults every 0.5 to 1 s, often two at the same time, many stopped peers.
    Storm,
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Calm => "calm",
            Self::Default => "default",
            Self::Async => "async",
            Self::State => "state",
            Self::Segments => "segments",
            Self::Storm => "storm",
        })
    }
}

/// Fewest and most peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PeerRange {
    pub(crate) min: usize,
    pub(crate) max: usize,
}

impl FromStr for PeerRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (min, max) = text.split_once("..").ok_or("give a range, for instance 3..6")?;
        let number = |word: &str| {
            word.trim_start_matches('=')
                .parse::<usize>()
                .map_err(|_| format!("{word:?} is not a number of peers"))
        };
        let (min, max) = (number(min)?, number(max)?);
        if min < 2 || max < min || max > 64 {
            return Err(format!("{min}..{max}: at least 2, at most 64, the smaller number first"));
        }
        Ok(Self { min, max })
    }
}

impl fmt::Display for PeerRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.min, self.max)
    }
}

impl Args {
    /// The settings of an earlier run, with the length, the seed and the places that are given now.
    ///
    /// # Errors
    /// The settings that are given now are others, or the earlier ones are none of this program.
    pub(crate) fn with_settings_of(&self, earlier: &str) -> Result<Self, String> {
        let words = std::iter::once("pccl-stress").chain(earlier.split_whitespace());
        let known = Self::try_parse_from(words).map_err(|error| format!("{earlier:?}: {error}"))?;
        let none = Self::parse_from(["pccl-stress"]).settings();
        if self.settings() != none && self.settings() != known.settings() {
            return Err(format!("has a run with {}, this one is with {}", known.settings(), self.settings()));
        }
        let Self { hours, minutes, seconds, seed, python, earlier, .. } = self.clone();
        Ok(Self { hours, minutes, seconds, seed, python, earlier, ..known })
    }

    /// Whether any length is given.
    pub(crate) fn has_length(&self) -> bool {
        self.hours + self.minutes + self.seconds > 0
    }

    /// How long faults are made.
    pub(crate) fn duration(&self) -> Duration {
        let seconds = (self.hours.saturating_mul(60).saturating_add(self.minutes))
            .saturating_mul(60)
            .saturating_add(self.seconds);
        Duration::from_secs(if seconds == 0 { 60 } else { seconds.min(366 * 86_400) })
    }

    /// The longest pause of a peer in a step.
    pub(crate) fn step_ms(&self) -> u64 {
        let usual = if self.profile == Profile::State { 400 } else { 20 };
        self.step_ms.unwrap_or(usual)
    }

    /// Bytes of shared state that no collective has to do with.
    pub(crate) fn state_bytes(&self) -> usize {
        let usual = if self.profile == Profile::State { 64 } else { 0 };
        (self.state_mib.unwrap_or(usual) as usize) << 20
    }

    /// Bytes that a fetch of shared state may take beside it, if that is not left to the library.
    pub(crate) fn state_memory(&self) -> Option<usize> {
        let usual = (self.profile == Profile::State).then_some(8);
        self.state_memory_mib.or(usual).map(|mib| (mib as usize) << 20)
    }

    /// Whether there is to be a fault: not in a measurement that asks for the first one after its end.
    pub(crate) fn wants_faults(&self) -> bool {
        self.fault_every.is_none_or(|seconds| seconds < self.duration().as_secs())
    }

    /// Whether a run goes on when its master is killed.
    pub(crate) fn survives_master(&self) -> bool {
        self.master_journal || self.standbys > 0
    }

    /// The conflict of the arguments with each other, if there is one.
    pub(crate) fn conflict(&self) -> Option<String> {
        let only_rust = matches!(self.profile, Profile::Async | Profile::Segments);
        if only_rust && self.c_peers + self.python_peers > 0 {
            return Some(format!(
                "--profile {}: the programs in C and Python do not have its operations",
                self.profile
            ));
        }
        let needed = 2 * self.groups as usize;
        (self.peers.min < needed)
            .then(|| format!("--peers {}: {} groups need at least {needed} peers", self.peers, self.groups))
    }

    /// The command that makes the same run again.
    pub(crate) fn replay_command(&self, seed: u64) -> String {
        format!("pccl-stress --seconds {} --seed {seed} {}", self.duration().as_secs(), self.settings())
    }

    /// All arguments but time, seed and folder: what several parts of a run have in common.
    pub(crate) fn settings(&self) -> String {
        let mut settings = format!(
            "--peers {} --profile {} --elements {} --peer-timeout-ms {} --step-ms {}",
            self.peers,
            self.profile,
            self.elements,
            self.peer_timeout_ms,
            self.step_ms()
        );
        if self.groups > 1 {
            settings.push_str(&format!(" --groups {}", self.groups));
        }
        for (given, flag) in [(self.state_mib, "state-mib"), (self.state_memory_mib, "state-memory-mib")] {
            if let Some(mib) = given {
                settings.push_str(&format!(" --{flag} {mib}"));
            }
        }
        if self.optimize_every != 40 {
            settings.push_str(&format!(" --optimize-every {}", self.optimize_every));
        }
        for (peers, flag) in [(self.c_peers, "c"), (self.python_peers, "python")] {
            if peers > 0 {
                settings.push_str(&format!(" --{flag}-peers {peers}"));
            }
        }
        if self.standbys > 0 {
            settings.push_str(&format!(" --standbys {}", self.standbys));
        }
        if let Some(seconds) = self.fault_every {
            settings.push_str(&format!(" --fault-every {seconds}"));
        }
        let given = [
            (self.master_kill, " --master-kill"),
            (self.master_journal, " --master-journal"),
            (self.insecure, " --insecure"),
            (self.no_proxy, " --no-proxy"),
        ];
        for (given, flag) in given {
            if given {
                settings.push_str(flag);
            }
        }
        settings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_goes_on_with_its_own_settings_or_not_at_all() {
        let args = |text: &str| Args::try_parse_from(text.split(' ')).expect("valid");
        let first =
            args("pccl-stress --hours 8 --profile state --peers 4..5 --master-kill --standbys 2 --seed 3");
        for given in [
            "pccl-stress --continue x --minutes 7",
            "pccl-stress --continue x --minutes 7 --profile state --peers 4..5 --master-kill --standbys 2",
        ] {
            let next = args(given).with_settings_of(&first.settings()).expect("the same settings");
            assert_eq!(next.settings(), first.settings());
            assert_eq!((next.duration().as_secs(), next.seed, next.has_length()), (420, None, true));
            assert_eq!(next.earlier, Some("x".into()));
        }
        let other = args("pccl-stress --continue x --peers 4..5").with_settings_of(&first.settings());
        assert!(other.expect_err("other settings").contains("--profile state"));
        assert!(args("pccl-stress").with_settings_of("--no-such-flag").is_err());
        assert!(!args("pccl-stress --resume x").has_length(), "the former name of the flag");
    }

    #[test]
    fn durations_add_up_and_default_to_a_minute() {
        let seconds = |args: &[&str]| {
            Args::try_parse_from([&["pccl-stress"], args].concat()).expect("valid").duration().as_secs()
        };
        assert_eq!(seconds(&[]), 60);
        assert_eq!(seconds(&["--hours", "1", "--minutes", "2", "--seconds", "3"]), 3723);
        assert_eq!(seconds(&["--hours", "18446744073709551615"]), 366 * 86_400);
    }

    #[test]
    fn a_run_has_faults_unless_the_first_is_due_after_its_end() {
        let wants = |text: &str| Args::try_parse_from(text.split(' ')).expect("valid").wants_faults();
        assert!(wants("pccl-stress --minutes 1") && wants("pccl-stress --minutes 1 --fault-every 20"));
        assert!(!wants("pccl-stress --minutes 1 --fault-every 60"));
    }

    #[test]
    fn ranges_of_peers_are_checked() {
        assert_eq!("3..6".parse(), Ok(PeerRange { min: 3, max: 6 }));
        assert_eq!("3..=6".parse(), Ok(PeerRange { min: 3, max: 6 }));
        for text in ["", "3", "1..4", "6..3", "3..65", "a..b", "3..", "-3..4"] {
            assert!(text.parse::<PeerRange>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn the_replay_command_means_the_same_run() {
        let given = "pccl-stress --minutes 2 --peers 4..9 --profile storm --elements 7 --groups 2 --master-kill \
                     --master-journal --c-peers 1 --python-peers 2 --fault-every 10 --state-mib 0 --state-memory-mib 3";
        let args = Args::try_parse_from(given.split(' ').filter(|word| !word.is_empty())).expect("valid");
        assert_eq!(args.conflict(), None);
        let again = args.replay_command(5);
        let again = Args::try_parse_from(again.split(' ')).expect("valid");
        assert_eq!(again.seed, Some(5));
        assert_eq!(again.replay_command(5), args.replay_command(5));
        assert!(again.master_kill && again.master_journal && !again.no_proxy && again.groups == 2);
    }

    #[test]
    fn each_group_needs_two_peers() {
        let conflict = |text: &str| Args::try_parse_from(text.split(' ')).expect("valid").conflict();
        assert_eq!(conflict("pccl-stress --peers 2..6"), None);
        assert!(conflict("pccl-stress --peers 3..6 --groups 2").is_some());
        for profile in ["async", "segments"] {
            let text = conflict(&format!("pccl-stress --profile {profile} --c-peers 1"));
            assert!(text.is_some_and(|text| text.contains(profile)));
        }
        assert_eq!(conflict("pccl-stress --profile state --c-peers 1"), None);
        let standbys = "pccl-stress --standbys 2 --master-kill";
        let args = Args::try_parse_from(standbys.split(' ')).expect("valid");
        assert!(args.survives_master() && args.settings().contains("--standbys 2"));
        assert!(Args::try_parse_from(["pccl-stress", "--standbys", "2"]).is_err());
    }

    #[test]
    fn the_profile_says_how_large_the_state_is_unless_it_is_given() {
        let sizes = |text: &str| {
            let args = Args::try_parse_from(text.split(' ')).expect("valid");
            (args.state_bytes() >> 20, args.state_memory().map(|bytes| bytes >> 20))
        };
        assert_eq!(sizes("pccl-stress"), (0, None));
        assert_eq!(sizes("pccl-stress --profile state"), (64, Some(8)));
        assert_eq!(sizes("pccl-stress --profile state --state-mib 3 --state-memory-mib 1"), (3, Some(1)));
        assert_eq!(sizes("pccl-stress --state-mib 3"), (3, None));
        let step_ms = |text: &str| Args::try_parse_from(text.split(' ')).expect("valid").step_ms();
        assert_eq!(step_ms("pccl-stress"), 20);
        assert_eq!(step_ms("pccl-stress --profile state"), 400);
        assert_eq!(step_ms("pccl-stress --profile state --step-ms 7"), 7);
    }
}
