//! Four members, and somebody who kills and stops them.

use pccl_iteration::{Decision, GlobalIteration, IterationConfig, IterationError, TcpStoreClient};
use std::{
    collections::BTreeMap,
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

/// The task of a member process: address of the store, goal, identity and log, in this order.
pub(crate) const ORDER: &str = "PCCL_ROUNDS_MEMBER";
const MEMBERS: usize = 4;
const PATIENCE: Duration = Duration::from_secs(1200);

fn config() -> IterationConfig {
    IterationConfig {
        world_size: MEMBERS,
        heartbeat_interval: Duration::from_millis(50),
        inactive_after: Duration::from_millis(600),
        no_progress: Duration::from_millis(1500),
        poll_interval: Duration::from_millis(20),
        ..IterationConfig::default()
    }
}

/// Takes part until the goal is reached; writes every decision to its log before it goes on.
pub(crate) fn run_member(order: &str) {
    let parts: Vec<&str> = order.split('|').collect();
    let [store, goal, id, log] = parts[..] else { panic!("{order}") };
    let goal: u64 = goal.parse().unwrap();
    let mut log = fs::OpenOptions::new().append(true).create(true).open(log).unwrap();
    let mut tell = |what: &str, decision: &Decision| {
        let members: Vec<String> = decision.members().map(|member| format!("{member}")).collect();
        let line = format!(
            "{what} {} {:x} {}\n",
            decision.iteration,
            decision.nonce,
            members.join(",").replace(' ', "_")
        );
        log.write_all(line.as_bytes()).unwrap();
    };
    let client = TcpStoreClient::connect(store, Instant::now() + Duration::from_secs(60)).unwrap();
    let iteration = GlobalIteration::join(Arc::new(client), id, b"", config()).unwrap();
    tell("joined", &iteration.decision());
    let mut last = iteration.decision().iteration;
    let mut work = u64::from(std::process::id());
    while last < goal {
        // An iteration takes some time, and not the same for all.
        work = work.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        thread::sleep(Duration::from_millis(20 + (work >> 33) % 100));
        last = match iteration.advance(id.as_bytes()) {
            Ok(decision) => {
                assert_eq!(decision.iteration, last + 1);
                tell("advanced", &decision);
                decision.iteration
            }
            Err(IterationError::Fenced { .. }) => {
                let decision = iteration.catch_up(b"").unwrap();
                assert!(decision.iteration > last);
                tell("joined", &decision);
                decision.iteration
            }
            Err(error) => panic!("{error}"),
        };
    }
    iteration.leave().unwrap();
}

struct Members {
    store: String,
    goal: u64,
    directory: PathBuf,
    started: usize,
    running: Vec<Option<Child>>,
}

impl Members {
    fn start(&mut self, id: usize) {
        self.started += 1;
        let log = self.directory.join(format!("{:03}-{id}", self.started));
        let order = format!("{}|{}|{id}|{}", self.store, self.goal, log.display());
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "member", "--nocapture"])
            .env(ORDER, order)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        self.running[id] = Some(child);
    }

    /// Whether all are at the goal. Nobody ends otherwise unless it is killed.
    fn are_done(&mut self) -> bool {
        for slot in &mut self.running {
            if let Some(child) = slot
                && let Some(status) = child.try_wait().unwrap()
            {
                assert!(status.success(), "a member failed");
                *slot = None;
            }
        }
        self.running.iter().all(Option::is_none)
    }

    fn signal(&self, id: usize, signal: &str) {
        if let Some(child) = &self.running[id] {
            // It may have ended in the meantime.
            let _ =
                Command::new("kill").args([signal, &child.id().to_string()]).stderr(Stdio::null()).status();
        }
    }

    fn kill(&mut self, id: usize) {
        if let Some(child) = &mut self.running[id] {
            let _ = child.kill();
            let status = child.wait().unwrap();
            let was_done = status.success();
            self.running[id] = None;
            if !was_done {
                self.start(id);
            }
        }
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        for child in self.running.iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// A run of `goal` iterations under random kills and stops has exactly one decision for each of them.
pub(crate) fn survive(store: &str, goal: u64, seed: u64) {
    let directory = std::env::temp_dir().join(format!("pccl-rounds-{}-{seed}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    let running = (0..MEMBERS).map(|_| None).collect();
    let mut members = Members { store: store.into(), goal, directory, started: 0, running };
    (0..MEMBERS).for_each(|id| members.start(id));
    let mut random = seed;
    let mut draw = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    let (mut kills, mut stops) = (0, 0);
    let give_up = Instant::now() + PATIENCE;
    while !members.are_done() {
        assert!(Instant::now() < give_up, "no end: {}", story(&members.directory));
        thread::sleep(Duration::from_millis(100 + draw(400)));
        let victim = draw(MEMBERS as u64) as usize;
        if draw(2) == 0 {
            members.kill(victim);
            kills += 1;
        } else {
            members.signal(victim, "-STOP");
            // Shorter and longer than it takes to be given up.
            thread::sleep(Duration::from_millis(draw(1500)));
            members.signal(victim, "-CONT");
            stops += 1;
        }
    }
    let decisions = decisions(&members.directory);
    let numbers: Vec<u64> = decisions.keys().copied().collect();
    assert_eq!(numbers, (0..=*numbers.last().unwrap()).collect::<Vec<_>>(), "a number is missing");
    assert!(*numbers.last().unwrap() >= goal);
    println!("{} iterations, {kills} kills, {stops} stops, {} processes", numbers.len(), members.started);
    assert!(goal < 20 || kills + stops > 0);
}

/// The decision of every iteration, as far as members wrote it down.
fn decisions(directory: &Path) -> BTreeMap<u64, String> {
    let mut decisions = BTreeMap::new();
    for file in fs::read_dir(directory).unwrap() {
        let text = fs::read_to_string(file.unwrap().path()).unwrap();
        for line in text.lines() {
            let (_, rest) = line.split_once(' ').unwrap();
            let (number, what) = rest.split_once(' ').unwrap();
            let old = decisions.insert(number.parse().unwrap(), what.to_owned());
            assert!(
                old.is_none_or(|old| old == what),
                "iteration {number} is decided twice:\n{}",
                story(directory)
            );
        }
    }
    decisions
}

fn story(directory: &Path) -> String {
    let files = fs::read_dir(directory).unwrap().map(|file| file.unwrap().path());
    files.map(|path| format!("{}:\n{}", path.display(), fs::read_to_string(&path).unwrap())).collect()
}
