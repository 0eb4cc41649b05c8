//! The processes of a measurement: a master and peers, here or on the hosts of a laboratory.

use crate::Args;
use pccl_master::{KEY_VARIABLE, RunKey, WireMode, query_status};
use pccl_testkit::{lab::Lab, process::Partner, usage::clock_seconds};
use std::{
    error::Error,
    fs, io,
    path::{Path, PathBuf},
    process::{self, Command},
    sync::{
        atomic::{AtomicU32, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

/// Longest time until all who are to stand by do.
const PATIENCE: Duration = Duration::from_secs(30);

/// The cost of a command.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Measured {
    /// From the first to the last peer's end.
    pub(crate) seconds: f64,
    /// Of all peers and the masters.
    pub(crate) cpu_seconds: f64,
}

/// How the peers are set up.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setup<'a> {
    /// Hosts to run on; none: this one.
    pub(crate) lab: Option<&'a Lab>,
    pub(crate) peers: usize,
    pub(crate) checksums: bool,
    /// They share no memory.
    pub(crate) tcp: bool,
    /// Connections of each edge; 0: automatic.
    pub(crate) pool: u16,
    /// The run has a key, and its tensors travel so.
    pub(crate) keyed: Option<WireMode>,
    pub(crate) memory: Memory,
    /// Rates are measured before anything else.
    pub(crate) optimize: bool,
    /// The program of the peers; none: this program.
    pub(crate) program: Option<&'a Path>,
}

/// The memory that outlives the process of a master.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Memory {
    Nothing,
    /// It keeps a journal.
    Journal,
    /// This number of masters stand by for it.
    Standbys(usize),
}

impl<'a> Setup<'a> {
    /// Peers on this machine, without a key, and a master that nothing outlives.
    pub(crate) fn here(args: &'a Args, peers: usize) -> Self {
        let Args { checksums, tcp, pool, optimize, .. } = *args;
        let (memory, program) = (Memory::Nothing, args.peer.as_deref());
        Self { lab: None, peers, checksums, tcp, pool, keyed: None, memory, optimize, program }
    }
}

/// A peer and the host that it is on.
struct Member {
    host: usize,
    process: Partner,
}

/// See the module's documentation.
pub(crate) struct Fleet {
    peers: Vec<Member>,
    /// Those who wait to be let in.
    newcomers: Vec<Member>,
    /// The one that acts, and those that stand by.
    masters: Vec<Partner>,
    /// Of the one that acts.
    address: String,
    /// Where the master writes; goes after it.
    journal: Option<Journal>,
    /// The arguments that start it again.
    serve: Vec<String>,
    /// The recipe by which a peer is started.
    peer: Recipe,
}

/// How processes are started.
struct Recipe {
    program: PathBuf,
    key: Option<RunKey>,
    arguments: Vec<String>,
}

impl Recipe {
    /// Starts a process on a host of a laboratory, or here.
    fn start(&self, lab: Option<&Lab>, host: usize) -> io::Result<Partner> {
        let program = &self.program;
        let mut command = lab.map_or_else(|| Command::new(program), |lab| lab.command(host, program));
        command.args(&self.arguments).env_remove(KEY_VARIABLE);
        command.envs(self.key.as_ref().map(|key| (KEY_VARIABLE, key.to_text())));
        Partner::start(command)
    }
}

/// Address of a host.
fn address_of(lab: Option<&Lab>, host: usize) -> String {
    lab.map_or_else(|| "127.0.0.1".to_owned(), |_| Lab::address(host))
}

/// A directory for a journal, removed with this.
struct Journal(PathBuf);

impl Journal {
    fn create() -> io::Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("pccl-bench-journal-{}-{number}", process::id()));
        fs::create_dir_all(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("cannot remove {}: {error}", self.0.display());
        }
    }
}

impl Fleet {
    /// Starts the processes and connects them.
    pub(crate) fn start(setup: Setup<'_>) -> Result<Self, Box<dyn Error>> {
        let Setup { lab, peers, checksums, tcp, pool, keyed, memory, optimize, program } = setup;
        let own = std::env::current_exe()?;
        let journal = (memory == Memory::Journal).then(Journal::create).transpose()?;
        let key = keyed.map(|_| RunKey::generate()).transpose()?;
        let start = |host: usize, arguments: &[String]| {
            let (program, key) = (own.clone(), key.clone());
            Recipe { program, key, arguments: arguments.to_vec() }.start(lab, host)
        };
        // The hosts of the peers come first.
        let address = address_of(lab, peers);
        let wire = keyed.unwrap_or_default().to_string();
        let mut serve = vec!["--serve".to_owned(), format!("{address}:0"), "--wire".to_owned(), wire];
        serve.extend(
            journal.iter().flat_map(|Journal(path)| ["--journal".into(), path.display().to_string()]),
        );
        let standbys = if let Memory::Standbys(count) = memory { count } else { 0 };
        serve.extend((standbys > 0).then(|| "--accept-standbys".to_owned()));
        let mut masters = vec![start(peers, &serve)?];
        let listens = masters[0].listen()?;
        let stand_by = [&serve[..], &["--standby-of".to_owned(), listens.clone()]].concat();
        serve[1].clone_from(&listens);
        for _ in 0..standbys {
            let mut standby = start(peers, &stand_by)?;
            standby.listen()?;
            masters.push(standby);
        }
        wait_for_standbys(&listens, standbys)?;
        let mut arguments = vec!["--child".to_owned(), "--master".to_owned(), listens.clone()];
        arguments.extend(["--peers".to_owned(), peers.to_string(), "--pool".to_owned(), pool.to_string()]);
        arguments.extend(checksums.then(|| "--checksums".to_owned()));
        arguments.extend(tcp.then(|| "--tcp".to_owned()));
        let program = program.map_or_else(|| own.clone(), Path::to_owned);
        let peer = Recipe { program, key, arguments };
        let started = (0..peers).map(|host| Ok(Member { host, process: peer.start(lab, host)? }));
        let started = started.collect::<io::Result<Vec<_>>>()?;
        let newcomers = Vec::new();
        let mut fleet = Self { peers: started, newcomers, masters, address: listens, journal, serve, peer };
        let mut ports = Vec::new();
        for peer in &mut fleet.peers {
            ports.push(format!("{}:{}", address_of(lab, peer.host), peer.process.listen()?));
        }
        for (index, peer) in fleet.peers.iter_mut().enumerate() {
            peer.process.tell(&ports[(index + 1) % ports.len()])?;
        }
        fleet.peers.iter_mut().try_for_each(is_ready)?;
        if optimize {
            fleet.measure("optimize")?;
        }
        Ok(fleet)
    }

    /// Where the master listens.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Number of peers.
    pub(crate) fn peers(&self) -> usize {
        self.peers.len()
    }

    /// Lets all peers do the same and waits for all.
    pub(crate) fn measure(&mut self, command: &str) -> io::Result<Measured> {
        let before = self.masters_cpu_seconds()?;
        self.tell_all(command)?;
        let mut measured = Measured { seconds: 0.0, cpu_seconds: 0.0 };
        for (seconds, cpu) in self.answers()? {
            measured.seconds = measured.seconds.max(seconds);
            measured.cpu_seconds += cpu;
        }
        measured.cpu_seconds += self.masters_cpu_seconds()? - before;
        Ok(measured)
    }

    /// Gives all peers the same command.
    pub(crate) fn tell_all(&mut self, command: &str) -> io::Result<()> {
        self.peers.iter_mut().try_for_each(|peer| peer.process.tell(command))
    }

    /// The two numbers with which each peer answers a command.
    pub(crate) fn answers(&mut self) -> io::Result<Vec<(f64, f64)>> {
        self.peers.iter_mut().map(|peer| numbers(&peer.process.listen()?)).collect()
    }

    /// Kills the last peer; returns when, in seconds of the system's clock.
    pub(crate) fn kill_last(&mut self) -> io::Result<f64> {
        let mut last = self.peers.pop().ok_or_else(|| io::Error::other("no peer to kill"))?;
        let at = clock_seconds();
        last.process.kill();
        Ok(at)
    }

    /// Lets all peers do the same and waits for all. Whenever `due` comes meanwhile, a peer is killed, another one is
    /// started in its place, and `due` is `every` later. The first peer is spared.
    pub(crate) fn disturbed(
        &mut self,
        setup: Setup<'_>,
        command: &str,
        (due, every): (&mut Instant, Duration),
    ) -> Result<Vec<(f64, f64)>, Box<dyn Error>> {
        self.tell_all(command)?;
        let mut first = self.peers.remove(0);
        let (sender, answer) = mpsc::channel();
        let line = thread::scope(|scope| {
            let process = &mut first.process;
            scope.spawn(move || sender.send(process.listen()));
            loop {
                match answer.recv_timeout(due.saturating_duration_since(Instant::now())) {
                    Ok(line) => return Ok::<_, Box<dyn Error>>(line?),
                    Err(RecvTimeoutError::Timeout) => self.replace(setup)?,
                    Err(error) => return Err(error.into()),
                }
                *due += every;
            }
        })?;
        let mut answers = vec![numbers(&line)?];
        answers.extend(self.answers()?);
        self.peers.insert(0, first);
        Ok(answers)
    }

    /// Kills the peer that has been there longest and starts one on its host, which waits to be let in.
    fn replace(&mut self, setup: Setup<'_>) -> Result<(), Box<dyn Error>> {
        if self.peers.is_empty() {
            return Err("all peers but one have died in one operation".into());
        }
        let Member { host, mut process } = self.peers.remove(0);
        process.kill();
        let mut process = self.peer.start(setup.lab, host)?;
        // Nobody is beside it to exchange bytes with by plain TCP.
        let own = format!("{}:{}", address_of(setup.lab, host), process.listen()?);
        process.tell(&own)?;
        self.newcomers.push(Member { host, process });
        Ok(())
    }

    /// Lets those in who wait; returns when all are connected.
    pub(crate) fn gather(&mut self) -> Result<(), Box<dyn Error>> {
        let all = self.peers.len() + self.newcomers.len();
        self.measure(&format!("gather {all}"))?;
        self.newcomers.iter_mut().try_for_each(is_ready)?;
        self.peers.append(&mut self.newcomers);
        Ok(())
    }

    /// Kills the master that acts. If nobody stands by, it is started again; the seconds until it listens. Not in a
    /// laboratory.
    pub(crate) fn kill_master(&mut self) -> io::Result<f64> {
        let began = Instant::now();
        self.masters.remove(0).kill();
        if self.journal.is_none() {
            return Ok(0.0);
        }
        let mut command = Command::new(std::env::current_exe()?);
        command.args(&self.serve).env_remove(KEY_VARIABLE);
        let mut again = Partner::start(command)?;
        again.listen()?;
        self.masters.push(again);
        Ok(began.elapsed().as_secs_f64())
    }

    fn masters_cpu_seconds(&mut self) -> io::Result<f64> {
        let seconds = self.masters.iter_mut().map(|master| {
            master.tell("cpu")?;
            master.listen()?.parse::<f64>().map_err(io::Error::other)
        });
        seconds.sum()
    }

    /// Ends the processes, the masters last.
    pub(crate) fn end(self) -> io::Result<()> {
        let peers = self.peers.into_iter().chain(self.newcomers).map(|peer| peer.process);
        for process in peers.chain(self.masters) {
            process.finish()?;
        }
        Ok(())
    }
}

/// Returns when a peer says that it is connected with all.
fn is_ready(peer: &mut Member) -> Result<(), Box<dyn Error>> {
    let line = peer.process.listen()?;
    if line == "ready" { Ok(()) } else { Err(format!("a peer said {line:?}").into()) }
}

/// The two numbers of an answer.
fn numbers(line: &str) -> io::Result<(f64, f64)> {
    let numbers: Vec<f64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
    let &[first, second] = numbers.as_slice() else {
        return Err(io::Error::other(format!("a peer answered {line:?}")));
    };
    Ok((first, second))
}

/// Returns when `count` masters stand by for a master.
fn wait_for_standbys(master: &str, count: usize) -> Result<(), Box<dyn Error>> {
    let deadline = Instant::now() + PATIENCE;
    while count > 0 && query_status(master, None, PATIENCE)?.lead.standbys.len() < count {
        if Instant::now() > deadline {
            return Err(format!("fewer than {count} masters stand by").into());
        }
        thread::sleep(PATIENCE / 600);
    }
    Ok(())
}
