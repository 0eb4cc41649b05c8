//! A master and the peers of one test, and what nearly every test does with them.

use crate::{
    master_process::MasterProcess,
    peer::{Answer, Peer, WATCHDOG},
};
use pccl::{Master, MasterConfig, MasterError, RunKey};
use pccl_tests::spec::{Spec, StateSpec, Way};
use std::{
    collections::HashMap,
    ops::{Deref, DerefMut},
    path::PathBuf,
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

/// Whether everything is to be run, however long it takes.
pub(crate) fn full() -> bool {
    std::env::var_os("PCCL_TEST_FULL").is_some_and(|value| value != "0")
}

/// Settings of a master for a test. Its peers have the key that it has.
pub(crate) fn config() -> MasterConfig {
    MasterConfig { listen: "127.0.0.1:0".into(), run_key: crate::run_key(), ..MasterConfig::default() }
}

/// A directory of its own for each test; it stays if the test fails, for its logs.
#[derive(Debug)]
struct Dir(PathBuf);

impl Dir {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("pccl-e2e-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a directory for the logs");
        Self(path)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("logs of the peers: {}", self.0.display());
        } else {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}

/// Master and peers. Derefs to the list of living peers.
#[derive(Debug)]
pub(crate) struct Fleet {
    pub(crate) peers: Vec<Peer>,
    pub(crate) master: Option<Master>,
    pub(crate) process: Option<MasterProcess>,
    pub(crate) config: MasterConfig,
    pub(crate) address: String,
    next_index: usize,
    /// Number of each peer that ever was, by identity.
    indices: HashMap<String, usize>,
    /// The sites of the peers that name one, by number of the peer.
    sites: HashMap<usize, String>,
    /// Rings that were seen, newest last.
    rings: Vec<Vec<String>>,
    /// Peers that were taken out of the list, and of which it is not known that the master has noticed.
    departed: Vec<String>,
    dir: Dir,
}

impl Deref for Fleet {
    type Target = Vec<Peer>;
    fn deref(&self) -> &Vec<Peer> {
        &self.peers
    }
}

impl DerefMut for Fleet {
    fn deref_mut(&mut self) -> &mut Vec<Peer> {
        &mut self.peers
    }
}

impl Fleet {
    /// A master without peers.
    pub(crate) fn empty(config: MasterConfig) -> Self {
        let master = Master::launch(config.clone()).expect("the master starts");
        let address = master.local_addr().to_string();
        let config = MasterConfig { listen: address.clone(), ..config };
        Self { master: Some(master), config, ..Self::at(&address) }
    }

    /// Nobody yet, and a master that somebody else looks after.
    pub(crate) fn at(address: &str) -> Self {
        Self {
            peers: Vec::new(),
            master: None,
            process: None,
            config: config(),
            address: address.to_owned(),
            next_index: 0,
            indices: HashMap::new(),
            sites: HashMap::new(),
            rings: Vec::new(),
            departed: Vec::new(),
            dir: Dir::new(),
        }
    }

    /// A master and a world of `n` peers.
    pub(crate) fn new(n: usize) -> Self {
        Self::with(config(), n, &[])
    }

    /// A world of `n` peers with these settings.
    pub(crate) fn with(config: MasterConfig, n: usize, settings: &[&str]) -> Self {
        Self::with_each(config, &vec![settings; n])
    }

    /// A world of peers of which each has settings of its own.
    pub(crate) fn with_each(config: MasterConfig, settings: &[&[&str]]) -> Self {
        let mut fleet = Self::empty(config);
        let n = settings.len();
        for settings in settings {
            fleet.spawn(settings);
        }
        for peer in &mut fleet.peers {
            peer.send("connect");
            peer.send(format!("wait {n} 0"));
        }
        for peer in &mut fleet.peers {
            peer.answer().good();
            peer.answer().good();
        }
        fleet.meet();
        fleet
    }

    /// Starts a process that does not connect yet. Returns its place in the list.
    pub(crate) fn spawn(&mut self, settings: &[&str]) -> usize {
        let key = self.config.run_key.clone();
        self.spawn_with(key.as_ref(), settings)
    }

    /// The same, with this key, whatever the master has.
    pub(crate) fn spawn_with(&mut self, key: Option<&RunKey>, settings: &[&str]) -> usize {
        self.note_site(settings);
        let peer = Peer::spawn(&self.dir.0, self.next_index, &self.address, key, settings);
        self.next_index += 1;
        self.peers.push(peer);
        self.peers.len() - 1
    }

    /// The same, by a command that leads to the peer program.
    pub(crate) fn spawn_by(&mut self, command: Command, settings: &[&str]) -> usize {
        self.note_site(settings);
        let peer = Peer::start(command, &self.dir.0, self.next_index, &self.address, settings);
        self.next_index += 1;
        self.peers.push(peer);
        self.peers.len() - 1
    }

    fn note_site(&mut self, settings: &[&str]) {
        let site = settings.iter().find_map(|setting| setting.strip_prefix("site="));
        self.sites.extend(site.map(|site| (self.next_index, site.to_owned())));
    }

    /// The site that a peer of the list has named, or nothing.
    pub(crate) fn site_of(&self, place: usize) -> &str {
        self.sites.get(&self.peers[place].index).map_or("", String::as_str)
    }

    /// The number of the site of each of these peers. A peer that names none is a site by itself, as nothing is
    /// measured.
    fn sites_of(&self, order: &[usize]) -> Vec<u16> {
        let is_same = |a: &usize, b: &usize| {
            a == b || self.sites.get(a).is_some_and(|site| self.sites.get(b) == Some(site))
        };
        let first = |index: &usize| order.iter().position(|other| is_same(other, index)).unwrap_or(0);
        order.iter().map(|index| first(index) as u16).collect()
    }

    /// A file of its own for this peer.
    pub(crate) fn file_of(&self, place: usize) -> PathBuf {
        self.dir.0.join(format!("peer-{}.safetensors", self.peers[place].index))
    }

    /// Learns who is who and in which rings.
    #[track_caller]
    pub(crate) fn meet(&mut self) {
        let answers = self.all("world");
        for (peer, answer) in self.peers.iter_mut().zip(answers) {
            let (ring, rank) = (answer.ring(), answer.number("rank"));
            if let Some(id) = ring.get(rank) {
                peer.id = Some(id.clone());
                self.indices.insert(id.clone(), peer.index);
            }
            if self.rings.last() != Some(&ring) {
                self.rings.push(ring);
            }
        }
    }

    /// One more peer is started, let in, and everybody knows it. Returns its place in the list.
    #[track_caller]
    pub(crate) fn join(&mut self, settings: &[&str]) -> usize {
        self.await_departures();
        let place = self.spawn(settings);
        self.peers[place].send("connect");
        let wait = format!("wait {} 0", self.peers.len());
        for peer in &mut self.peers[..place] {
            peer.send(&wait);
        }
        for peer in &mut self.peers {
            peer.answer().good();
        }
        self.meet();
        place
    }

    /// Waits until the master knows of all departures. A peer that has died just now would count for a wait for the
    /// world, and the answer to that would come at once.
    #[track_caller]
    fn await_departures(&mut self) {
        let deadline = Instant::now() + WATCHDOG;
        let key = &self.config.run_key;
        while !self.departed.is_empty() {
            let status = pccl_master::query_status(&self.address, key.as_ref(), WATCHDOG).expect("a status");
            let is_there =
                |id: &String| status.peers.iter().any(|peer| format!("{:032x}", peer.peer.0) == *id);
            self.departed.retain(is_there);
            assert!(Instant::now() < deadline, "a peer that is gone still counts");
        }
    }

    /// The same command to all, at once.
    pub(crate) fn send(&mut self, command: impl AsRef<str>) {
        self.peers.iter_mut().for_each(|peer| peer.send(command.as_ref()));
    }

    /// The answers of all.
    #[track_caller]
    pub(crate) fn answers(&mut self) -> Vec<Answer> {
        self.peers.iter_mut().map(Peer::answer).collect()
    }

    /// The same command to all, and their answers.
    #[track_caller]
    pub(crate) fn all(&mut self, command: impl AsRef<str>) -> Vec<Answer> {
        self.send(command);
        self.answers()
    }

    /// Takes a peer out of the list; it dies if it lives.
    pub(crate) fn remove(&mut self, place: usize) {
        self.departed.extend(self.peers.remove(place).id.take());
    }

    /// The number of a peer that has been here.
    #[track_caller]
    pub(crate) fn index_of(&self, id: &str) -> usize {
        self.indices.get(id).copied().unwrap_or_else(|| panic!("nobody here was {id}"))
    }

    /// Orders of peer numbers in which an operation with `participants` may have run.
    pub(crate) fn orders(&mut self, answer: &Answer, participants: usize) -> Vec<Vec<usize>> {
        let ring = answer.ring();
        if self.rings.last() != Some(&ring) {
            self.rings.push(ring);
        }
        let known = |ring: &Vec<String>| -> Option<Vec<usize>> {
            ring.iter().map(|id| self.indices.get(id).copied()).collect()
        };
        self.rings.iter().rev().filter(|ring| ring.len() == participants).filter_map(known).collect()
    }

    /// Checks results of one operation with these tensors: alike on all, and byte for byte what the ring order yields.
    #[track_caller]
    pub(crate) fn check(&mut self, specs: &[Spec], answers: &[Answer]) {
        let first = answers.first().expect("somebody has answered").clone().good();
        for answer in answers {
            assert!(answer.ok, "{answer:?}");
            assert_eq!(answer.field("restored"), "true", "a failed call has changed its input: {answer:?}");
            assert_eq!(answer.field("algorithm"), first.field("algorithm"), "peers do not agree on the way");
            assert_eq!(answer.field("digests"), first.field("digests"), "peers hold different results");
        }
        let algorithm = first.field("algorithm");
        let digests = first.list("digests");
        let participants = first.number("participants");
        let mut orders = self.orders(&first, participants);
        orders.dedup();
        let matches = |order: &Vec<usize>| {
            let sites = self.sites_of(order);
            let results = pccl_tests::spec::results(specs, order, Way::of(algorithm, &sites));
            let digest = |result: &Vec<u8>| pccl_tests::pattern::digest(result);
            results
                .iter()
                .zip(&digests)
                .all(|(result, seen)| result.as_ref().is_none_or(|it| digest(it) == *seen))
        };
        assert_eq!(digests.len(), specs.len());
        assert!(
            orders.iter().any(matches),
            "the result is in no order {orders:?} what {} {:?} yields: {first:?}",
            specs.len(),
            specs.iter().map(ToString::to_string).collect::<Vec<_>>()
        );
    }

    /// As [`Fleet::check`], for operations some of which may have run before a change of the ring and some after it.
    #[track_caller]
    pub(crate) fn check_each(&mut self, specs: &[Spec], answer: &Answer) {
        let mut orders: Vec<Vec<usize>> = Vec::new();
        for participants in 1..10 {
            orders.extend(self.orders(answer, participants));
        }
        for (spec, digest) in specs.iter().zip(answer.list("digests")) {
            let by = |order: &[usize], way: Way<'_>| {
                pccl_tests::pattern::digest(&spec.result(order, way)) == digest
            };
            let matches = |order: &Vec<usize>| {
                by(order, Way::Ring) || spec.quantisation.is_some() && by(order, Way::Pairwise)
            };
            assert!(orders.iter().any(matches), "the result of {spec} is that of no order {orders:?}");
        }
    }

    /// Reduces a tensor, retrying, and checks the result.
    #[track_caller]
    pub(crate) fn reduce(&mut self, spec: Spec) -> Vec<Answer> {
        let answers = self.all(format!("reduce {spec} 0 20"));
        self.check(&[spec], &answers);
        answers
    }

    /// The same by a schedule that the callers choose.
    #[track_caller]
    pub(crate) fn reduce_by(&mut self, schedule: &str, spec: Spec) -> Vec<Answer> {
        let answers = self.all(format!("reduce {spec} 0 20 {schedule}"));
        self.check(&[spec], &answers);
        answers
    }

    /// The algorithms by which the last operations of this peer began, the newest last: from its flight recorder.
    #[track_caller]
    pub(crate) fn algorithms(&mut self, place: usize) -> Vec<String> {
        let answer = self.peers[place].ask(format!("dump {}", self.dir.0.display())).good();
        let file = answer.field("file");
        let events = std::fs::read_to_string(file).expect("the file of the flight recorder");
        let _ = std::fs::remove_file(file);
        let begins = [" op-commenced ", " op-began-early "];
        let begun = events.lines().filter(|line| begins.iter().any(|event| line.contains(event)));
        let name = |line: &str| line.split_once("name=")?.1.split(' ').next().map(str::to_owned);
        begun.map(|line| name(line).expect("an algorithm")).collect()
    }

    /// Waits until the status of the run has these words, and the master has tried the ports of all newcomers: it lets
    /// in nobody before.
    #[track_caller]
    pub(crate) fn await_status(&self, words: &str) -> String {
        let deadline = Instant::now() + WATCHDOG;
        let key = &self.config.run_key;
        loop {
            let status = pccl_master::query_status(&self.address, key.as_ref(), WATCHDOG);
            // One that is asked again and again may refuse a connection.
            let status = status.map_or_else(|error| error.to_string(), |status| status.to_string());
            if status.contains(words) && !status.contains("has tried to reach the ports") {
                return status;
            }
            assert!(Instant::now() < deadline, "{words:?} is not in\n{status}");
            pccl_testkit::barrier::look_again();
        }
    }

    /// Waits until small operations go over the mesh: reduces until one did.
    #[track_caller]
    pub(crate) fn await_mesh(&mut self) {
        let deadline = Instant::now() + WATCHDOG;
        loop {
            self.reduce(Spec::sum(10, 1));
            let last = self.algorithms(0).pop().expect("one has begun");
            if last == "direct" || last == "reduce-broadcast" {
                return;
            }
            assert_eq!(last, "all-gather");
            assert!(Instant::now() < deadline, "small operations do not go over the mesh");
        }
    }

    /// Waits until pairwise exchange takes place when it is asked for: reduces until one did.
    #[track_caller]
    pub(crate) fn await_pairwise(&mut self) {
        self.await_schedule("pairwise");
    }

    /// Waits until this schedule is gone by when it is asked for: reduces until it was.
    #[track_caller]
    pub(crate) fn await_schedule(&mut self, schedule: &str) {
        let deadline = Instant::now() + WATCHDOG;
        while self.reduce_by(schedule, Spec::sum(10, 1))[0].field("algorithm") != schedule {
            assert!(Instant::now() < deadline, "the mesh does not stand");
        }
    }

    /// Syncs the same state from all.
    #[track_caller]
    pub(crate) fn sync(&mut self, commands: &[String]) -> Vec<Answer> {
        assert_eq!(commands.len(), self.peers.len());
        for (peer, command) in self.peers.iter_mut().zip(commands) {
            peer.send(command);
        }
        self.answers()
    }

    /// Stops the master and starts another one on the same port.
    pub(crate) fn replace_master(&mut self) {
        drop(self.master.take());
        let deadline = Instant::now() + Duration::from_secs(60);
        self.master = loop {
            match Master::launch(self.config.clone()) {
                Ok(master) => break Some(master),
                // For a moment the port may be that of some other test's connection, which the system chose.
                Err(MasterError::Listen { .. }) if Instant::now() < deadline => {
                    thread::park_timeout(Duration::from_millis(50));
                }
                Err(error) => panic!("the new master does not start: {error}"),
            }
        };
    }
}

/// The command of one sync.
pub(crate) fn sync_command(revision: u64, strategy: &str, tensors: &[StateSpec]) -> String {
    let tensors: Vec<_> = tensors.iter().map(ToString::to_string).collect();
    let tensors = if tensors.is_empty() { "none".into() } else { tensors.join(",") };
    format!("sync {revision} {strategy} {tensors}")
}

/// A time-out for what must not happen by itself within a test.
pub(crate) const NEVER: Duration = Duration::from_secs(600);
