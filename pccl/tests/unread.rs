//! A peer whose log is read by nobody: neither it nor the others notice.

use pccl::{Communicator, Master, MasterConfig, ReduceOp};
use std::{
    io::{BufRead, BufReader, Read, Write},
    os::{fd::OwnedFd, unix::net::UnixStream},
    process::{Command, Stdio},
    time::Duration,
};

const PATIENCE: Duration = Duration::from_secs(60);
/// Tells a copy of this program to be the peer, and where its master is.
const PEER: &str = "PCCL_TEST_UNREAD_MASTER";
/// Each of them leaves some lines at level TRACE: together more than the queue has room for.
const OPERATIONS: usize = 2000;

fn reduce_often(comm: &Communicator) {
    comm.connect().expect("connect");
    comm.wait_for_world(2, Some(PATIENCE)).expect("world");
    for _ in 0..OPERATIONS {
        let mut data = [1f32; 10];
        comm.all_reduce(&mut data, ReduceOp::Sum).expect("nobody waits for a log");
        assert_eq!(data, [2f32; 10]);
    }
}

/// Not a test on its own: the other process of the test below.
#[test]
fn peer() {
    let Ok(master) = std::env::var(PEER) else { return };
    env_logger::builder().filter_level(log::LevelFilter::Trace).init();
    let comm = Communicator::builder(&master).first_ports(0, 0).build().expect("settings");
    reduce_often(&comm);
    // Until the other one has looked at the log.
    std::io::stdin().read_to_end(&mut Vec::new()).expect("the end of it");
}

#[test]
fn a_peer_whose_log_nobody_reads_goes_on() {
    let config = MasterConfig { listen: "127.0.0.1:0".into(), ..MasterConfig::default() };
    let master = Master::launch(config).expect("master");
    let address = master.local_addr().to_string();
    let (mut stderr, unread) = UnixStream::pair().expect("sockets");
    // There is no room left for a single line.
    stderr.set_nonblocking(true).expect("a flag");
    while stderr.write(b"\n").is_ok() {}
    stderr.set_nonblocking(false).expect("a flag");
    let mut other = Command::new(std::env::current_exe().expect("own path"))
        .args(["--exact", "peer", "--nocapture"])
        .env(PEER, &address)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(OwnedFd::from(stderr))
        .spawn()
        .expect("second process");
    let comm = Communicator::builder(&address).first_ports(0, 0).build().expect("settings");
    reduce_often(&comm);
    let mut lines = BufReader::new(unread).lines().map(|line| line.expect("text"));
    assert!(lines.any(|line| line.contains("lines of the log were dropped here")), "the gap is not told");
    // Nobody reads any more.
    drop(other.stdin.take());
    assert!(other.wait().expect("its end").success());
}
