//! Peers in processes of their own that get a real SIGTERM: they leave, and nobody else sees an abort.

use pccl::{Communicator, Error, Master, MasterConfig, Notice, ReduceInfo, ReduceOp, SIGTERM};
use pccl_testkit::process::{Process, Signal};
use std::{
    io::{BufRead, BufReader, Read},
    os::unix::process::ExitStatusExt,
    process::Command,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

/// Longer than anything takes on a busy machine. Nothing waits for it unless a test fails.
const PATIENCE: Duration = Duration::from_secs(60);
/// Makes `peer_process` a peer: address of the master, and what it does.
const PEER: &str = "PCCL_TEST_NOTICE_PEER";

fn master() -> Master {
    let _ = env_logger::builder().is_test(true).try_init();
    let config =
        MasterConfig { listen: "127.0.0.1:0".into(), peer_timeout: PATIENCE, ..MasterConfig::default() };
    Master::launch(config).expect("master starts")
}

fn join(address: &str, peers: usize) -> Communicator {
    let builder = Communicator::builder(address).first_ports(0, 0);
    let comm = builder.call_timeout(PATIENCE).build().expect("valid settings");
    comm.connect().expect("connects");
    comm.wait_for_world(peers, Some(PATIENCE)).expect("all are there");
    comm
}

/// A step of a training: more than one operation.
fn step(comm: &Communicator) -> Result<ReduceInfo, Error> {
    let (mut gradient, mut loss) = (vec![1.0_f32; 50_000], [1.0_f64]);
    comm.all_reduce(&mut gradient, ReduceOp::Avg)?;
    comm.all_reduce(&mut loss, ReduceOp::Sum)
}

/// Not a test: what the processes of the others do.
#[test]
fn peer_process() {
    let Ok(role) = std::env::var(PEER) else { return };
    let (address, what) = role.split_once(' ').expect("address and what to do");
    let notice = Notice::new().on_signals(&[SIGTERM]).expect("a handler");
    match what {
        "train" => {
            let comm = join(address, 3);
            println!("\nready");
            while !notice.is_given() {
                step(&comm).expect("nobody else fails");
            }
            comm.close_within(PATIENCE).expect("nothing is in flight");
            println!("\n{}", notice.given_by().expect("given"));
        }
        "blocked" => {
            let comm = Arc::new(join(address, 3));
            comm.close_on(&notice, Duration::from_millis(200)).expect("a thread");
            println!("\nready");
            // The others do not call it before this peer has gone.
            let error = comm.all_reduce(&mut [1.0_f32], ReduceOp::Sum).expect_err("cut off");
            assert_eq!(error, Error::NotConnected);
            println!("\ncut off");
        }
        "handed back" => {
            let again = Notice::new().on_signals(&[SIGTERM]).expect("another one");
            drop(notice);
            println!("\nready");
            // The second notice still has the signal.
            assert!(again.wait(Some(PATIENCE)));
            drop(again);
            println!("\nready");
            // Now it has its usual effect.
            thread::sleep(PATIENCE);
        }
        other => panic!("{other}"),
    }
}

/// A peer in a process of its own, which says something by lines.
struct Peer {
    process: Process,
    output: BufReader<Box<dyn Read>>,
}

impl Peer {
    fn start(master: &Master, what: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("own path"));
        command.args(["--exact", "peer_process", "--nocapture"]);
        command.env(PEER, format!("{} {what}", master.local_addr()));
        let mut process = Process::start(&mut command).expect("a process");
        let output: Box<dyn Read> = Box::new(process.output().expect("piped"));
        Self { process, output: BufReader::new(output) }
    }

    fn expect(&mut self, wanted: &str) {
        let mut line = String::new();
        while line.trim_end() != wanted {
            line.clear();
            let bytes = self.output.read_line(&mut line).expect("it can be read");
            assert!(bytes > 0, "it ended before it said {wanted:?}");
        }
    }

    fn terminate(&mut self) {
        self.process.signal(Signal::Terminate).expect("it lives");
    }
}

#[test]
fn a_peer_that_is_told_to_go_leaves_after_its_step_and_nobody_sees_an_abort() {
    let master = master();
    let mut leaver = Peer::start(&master, "train");
    let address = master.local_addr().to_string();
    let (joined, all) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..2 {
            let (joined, address) = (joined.clone(), &address);
            scope.spawn(move || {
                let comm = join(address, 3);
                joined.send(()).expect("somebody listens");
                let mut alone = 0;
                while alone < 20 {
                    let info = step(&comm).expect("no operation is aborted because a peer leaves");
                    alone += usize::from(info.world_size == 2);
                }
            });
        }
        leaver.expect("ready");
        // A peer that has yet to find out that all are there would wait for three when the leaver has left.
        (0..2).for_each(|_| all.recv_timeout(PATIENCE).expect("it joins"));
        leaver.terminate();
        leaver.expect("signal 15");
    });
    assert!(leaver.process.wait().expect("it ends").success());
}

#[test]
fn a_peer_that_is_blocked_is_closed_when_its_time_is_over() {
    let master = master();
    let mut blocked = Peer::start(&master, "blocked");
    let address = master.local_addr().to_string();
    let others: Vec<_> = thread::scope(|scope| {
        let joining: Vec<_> = (0..2).map(|_| scope.spawn(|| join(&address, 3))).collect();
        joining.into_iter().map(|one| one.join().expect("joined")).collect()
    });
    blocked.expect("ready");
    blocked.terminate();
    blocked.expect("cut off");
    thread::scope(|scope| {
        let steps: Vec<_> = others.iter().map(|comm| scope.spawn(|| step(comm))).collect();
        for one in steps {
            assert_eq!(one.join().expect("no panic").expect("two are left").world_size, 2);
        }
    });
    assert!(blocked.process.wait().expect("it ends").success());
}

#[test]
fn the_last_notice_that_goes_puts_the_handler_back_that_was_there() {
    let master = master();
    let mut peer = Peer::start(&master, "handed back");
    peer.expect("ready");
    peer.terminate();
    peer.expect("ready");
    peer.terminate();
    assert_eq!(peer.process.wait().expect("it ends").signal(), Some(SIGTERM));
}
