//! The flight recorder of real peers and a real master: a process vanishes, and the files of the others name it.

use log::{LevelFilter, Log, Metadata, Record};
use pccl::{Cause, Communicator, Error, Master, MasterConfig, ReduceOp};
use pccl_flight::{
    DEFAULT_CAPACITY, Entry, Event, File, Options, Recorder, Role, Settings, Subject, What, explain,
};
use pccl_protocol::GroupId;
use pccl_testkit::barrier::Barrier;
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

const PATIENCE: Duration = Duration::from_secs(60);
/// Tells a copy of this program to be the peer that vanishes, and where its master is.
const VICTIM: &str = "PCCL_TEST_VICTIM_MASTER";
/// It vanishes right after the news that this operation begins.
const LAST_OPERATION: u32 = 5;

/// A directory of its own, gone with the test.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("pccl-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        Self(path)
    }

    /// Names and contents of the files that are there.
    fn files(&self) -> Vec<(String, String)> {
        let Ok(entries) = fs::read_dir(&self.0) else { return Vec::new() };
        let paths = entries.map(|entry| entry.expect("entry").path());
        let flights = paths.filter(|path| path.extension().is_some_and(|end| end == "flight"));
        flights.map(|path| (path.display().to_string(), fs::read_to_string(&path).expect("text"))).collect()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Ends the process without a word when the log tells of a certain operation.
struct Vanish {
    seen: AtomicU32,
}

impl Log for Vanish {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        if record.args().to_string() == "from master: Commence"
            && self.seen.fetch_add(1, Ordering::SeqCst) + 1 == LAST_OPERATION
        {
            std::process::abort();
        }
    }

    fn flush(&self) {}
}

/// Not a test on its own: the other process of the test below.
#[test]
fn victim() {
    let Ok(master) = std::env::var(VICTIM) else { return };
    // On the thread that reads from the master.
    pccl_log::be_synchronous();
    log::set_boxed_logger(Box::new(Vanish { seen: AtomicU32::new(0) })).expect("the only logger");
    log::set_max_level(LevelFilter::Trace);
    let comm = Communicator::builder(&master).first_ports(0, 0).build().expect("settings");
    comm.connect().expect("connect");
    comm.wait_for_world(3, Some(PATIENCE)).expect("world");
    let mut data = vec![1f32; 100_000];
    loop {
        comm.all_reduce(&mut data, ReduceOp::Max).expect("it vanishes before anybody else fails");
    }
}

fn survivor(master: &str, directory: &Path) -> (Error, String) {
    let comm =
        Communicator::builder(master).first_ports(0, 0).flight_dir(directory).build().expect("settings");
    comm.connect().expect("connect");
    comm.wait_for_world(3, Some(PATIENCE)).expect("world");
    let mut data = vec![1f32; 100_000];
    let error = loop {
        if let Err(error) = comm.all_reduce(&mut data, ReduceOp::Max) {
            break error;
        }
    };
    let path = comm.dump_flight(directory).expect("on request");
    let (file, problem) = File::parse(&fs::read_to_string(path).expect("text")).expect("head");
    assert_eq!((file.header.why.as_str(), problem), ("on request", None));
    (error, file.header.peer.expect("registered").to_string())
}

#[test]
fn files_of_survivors_and_master_name_the_peer_that_vanished() {
    if std::env::var_os(VICTIM).is_some() {
        return;
    }
    let directory = Directory::new("vanish");
    let config = MasterConfig {
        listen: "127.0.0.1:0".into(),
        flight_dir: Some(directory.0.clone()),
        ..MasterConfig::default()
    };
    let master = Master::launch(config).expect("master");
    let address = master.local_addr().to_string();
    let me = std::env::current_exe().expect("own path");
    let mut victim = Command::new(me);
    victim
        .args(["--exact", "flight::victim"])
        .env(VICTIM, &address)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let victim = Killed(victim.spawn().expect("second process"));
    let survivors: Vec<(Error, String)> = thread::scope(|scope| {
        let threads: Vec<_> = (0..2).map(|_| scope.spawn(|| survivor(&address, &directory.0))).collect();
        threads.into_iter().map(|thread| thread.join().expect("survivor")).collect()
    });
    drop((victim, master));
    let verdicts: Vec<_> = survivors.iter().map(|(error, _)| error.verdict().expect("verdict")).collect();
    assert_eq!(verdicts[0], verdicts[1]);
    assert_eq!(verdicts[0].cause, Cause::PeerDied);
    let vanished = verdicts[0].culprits[0].peer;
    assert!(survivors.iter().all(|(_, peer)| *peer != vanished.to_string()));

    let deadline = Instant::now() + PATIENCE;
    let after_failure = |files: &[(String, String)], role: Role| {
        let parsed = files.iter().map(|(_, text)| File::parse(text).expect("head").0);
        let of_role = parsed.filter(|file| file.header.role == role && file.header.why != "on request");
        of_role.filter(|file| file.to_text().contains(&format!("{vanished:#}"))).count()
    };
    let files = loop {
        let files = directory.files();
        if after_failure(&files, Role::Peer) >= 2 && after_failure(&files, Role::Master) >= 1 {
            break files;
        }
        assert!(Instant::now() < deadline, "{files:?}");
        thread::sleep(Duration::from_millis(10));
    };
    let explained = explain(files, &Options::default()).expect("files");
    println!("{}", explained.text);
    assert_eq!(explained.warnings, [""; 0]);
    let first = explained.text.lines().next().expect("a line");
    assert!(first.starts_with(&format!("First cause: peer died: peer {vanished} (")), "{}", explained.text);
    let suffered = explained.text.split("Only suffered:").nth(1).and_then(|rest| rest.split("\n\n").next());
    for (_, peer) in &survivors {
        assert!(suffered.is_some_and(|text| text.contains(peer.as_str())), "{}", explained.text);
    }
    assert!(suffered.is_some_and(|text| !text.contains(&vanished.to_string())), "{}", explained.text);
}

#[test]
fn without_a_directory_nothing_is_written_and_a_quiet_run_writes_only_the_end_of_the_master() {
    if std::env::var_os(VICTIM).is_some() {
        return;
    }
    let directory = Directory::new("quiet");
    let config = MasterConfig {
        listen: "127.0.0.1:0".into(),
        flight_dir: Some(directory.0.clone()),
        ..MasterConfig::default()
    };
    let master = Master::launch(config).expect("master");
    let comm = Communicator::builder(&master.local_addr().to_string())
        .first_ports(0, 0)
        .flight_dir(&directory.0)
        .build()
        .expect("settings");
    comm.connect().expect("connect");
    comm.close();
    drop(comm);
    assert!(directory.files().is_empty());
    drop(master);
    let files = directory.files();
    assert_eq!(files.len(), 1, "{files:?}");
    assert!(files[0].1.contains("the master ended: stopped"), "{files:?}");
    let text = explain(files, &Options::default()).expect("file").text;
    assert!(text.starts_with("No failure"), "{text}");
}

fn time_of_one_event_ns() -> u128 {
    const EVENTS: u64 = 100_000;
    let recorder =
        Recorder::new(Role::Peer, GroupId(0), Settings { directory: None, capacity: DEFAULT_CAPACITY });
    let began = Instant::now();
    for tag in 0..EVENTS {
        recorder.record(Event::new(What::OpLaunched).about(Subject::Tag(tag)).bytes(1024));
    }
    began.elapsed().as_nanos() / u128::from(EVENTS)
}

/// Prints what recording costs; asserts nothing about it, since the machine may be busy.
#[test]
fn cost_of_recording() {
    if std::env::var_os(VICTIM).is_some() {
        return;
    }
    const ROUNDS: usize = 10;
    const OPERATIONS: u32 = 100;
    let pair = |events: usize| {
        let config = MasterConfig { listen: "127.0.0.1:0".into(), ..MasterConfig::default() };
        let master = Master::launch(config).expect("master");
        let address = master.local_addr().to_string();
        let comms = [(); 2].map(|()| {
            Communicator::builder(&address).first_ports(0, 0).flight_events(events).build().expect("settings")
        });
        thread::scope(|scope| {
            for comm in &comms {
                scope.spawn(|| {
                    comm.connect().expect("connect");
                    comm.wait_for_world(2, Some(PATIENCE)).expect("world");
                });
            }
        });
        (comms, master)
    };
    let normal = pair(DEFAULT_CAPACITY);
    let off = pair(0);
    let round = |comms: &[Communicator; 2]| -> Duration {
        let start = Barrier::new(comms.len());
        let run = |comm: &Communicator| {
            let mut data = [1f32; 256];
            start.wait();
            let began = Instant::now();
            for _ in 0..OPERATIONS {
                comm.all_reduce(&mut data, ReduceOp::Max).expect("all-reduce");
            }
            began.elapsed()
        };
        thread::scope(|scope| {
            let threads: Vec<_> = comms.iter().map(|comm| scope.spawn(|| run(comm))).collect();
            threads.into_iter().map(|thread| thread.join().expect("peer")).max().expect("two")
        })
    };
    round(&normal.0);
    round(&off.0);
    // Taken in turns and the best of each, so that a busy machine disturbs both alike.
    let (mut best_normal, mut best_off) = (Duration::MAX, Duration::MAX);
    for _ in 0..ROUNDS {
        best_normal = best_normal.min(round(&normal.0));
        best_off = best_off.min(round(&off.0));
    }
    let rate = |best: Duration| f64::from(OPERATIONS) / best.as_secs_f64();
    println!("one event takes {} ns and {} bytes", time_of_one_event_ns(), size_of::<Entry>());
    println!(
        "1 KiB all-reduces of two peers per second: {:.0} recorded, {:.0} not recorded, ratio {:.3}",
        rate(best_normal),
        rate(best_off),
        rate(best_normal) / rate(best_off)
    );
}
