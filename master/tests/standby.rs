//! Answers that leave only once a standby knows of them.

use crate::common::{Client, PATIENCE, launch};
use pccl_master::{Master, MasterConfig};
use pccl_protocol::{C2m, M2c, RequestId, Status};
use std::{
    io::{self, ErrorKind, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Forwards the connections of a standby to a leader; what the standby acknowledges waits while it is held back.
fn forwarder(leader: SocketAddr) -> (SocketAddr, Arc<AtomicBool>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let place = listener.local_addr().expect("bound");
    let is_held = Arc::new(AtomicBool::new(false));
    let held = Arc::clone(&is_held);
    thread::spawn(move || {
        for standby in listener.incoming().map_while(Result::ok) {
            let Ok(leader) = TcpStream::connect(leader) else { return };
            let (mut down, mut up) =
                (leader.try_clone().expect("a clone"), standby.try_clone().expect("a clone"));
            thread::spawn(move || io::copy(&mut down, &mut up));
            let held = Arc::clone(&held);
            thread::spawn(move || forward_unless_held(standby, leader, &held));
        }
    });
    (place, is_held)
}

fn forward_unless_held(mut from: TcpStream, mut to: TcpStream, held: &AtomicBool) {
    let mut piece = [0; 4096];
    while let Ok(n @ 1..) = from.read(&mut piece) {
        while held.load(Ordering::Acquire) {
            thread::yield_now();
        }
        if to.write_all(&piece[..n]).is_err() {
            return;
        }
    }
}

/// The answer to a question for the status, over the connection of a peer.
fn ask(peer: &mut Client, request: u64) -> Status {
    peer.send(&C2m::StatusRequest(RequestId(request)));
    answer(peer, request)
}

fn answer(peer: &mut Client, request: u64) -> Status {
    peer.wait_for("Status", |packet| match packet {
        M2c::Status(status) if status.request == RequestId(request) => Some(status),
        _ => None,
    })
}

/// Status answers count among the packets of a peer: a standby that did not know of one could not let the peer go on.
#[test]
fn the_status_that_a_peer_asks_for_waits_for_the_standby() {
    let leader = launch(|config| (config.accept_standbys, config.return_grace) = (true, Some(PATIENCE / 2)));
    let (place, is_held) = forwarder(leader.local_addr());
    let config = MasterConfig {
        listen: "127.0.0.1:0".into(),
        standby_of: vec![place.to_string()],
        advertised_host: Some("127.0.0.1".into()),
        ..MasterConfig::default()
    };
    let standby = Master::launch(config).expect("a standby on a free port");
    let (mut peer, _) = Client::register(leader.local_addr(), 0);
    let (mut request, deadline) = (1, Instant::now() + PATIENCE);
    while ask(&mut peer, request).lead.standbys.is_empty() {
        assert!(Instant::now() < deadline, "the standby has no complete copy");
        request += 1;
    }
    // Packets that were on their way are read.
    peer.check_alive(1);
    is_held.store(true, Ordering::Release);
    peer.send(&C2m::StatusRequest(RequestId(request + 1)));
    // A moment in which nothing must come: shorter than the silence after which a standby is given up.
    peer.stream.set_read_timeout(Some(Duration::from_millis(300))).expect("a time limit");
    let early = peer.stream.peek(&mut [0]);
    assert!(
        matches!(&early, Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)),
        "an answer that the standby may not know of: {early:?}"
    );
    is_held.store(false, Ordering::Release);
    peer.stream.set_read_timeout(Some(PATIENCE)).expect("a time limit");
    assert!(!answer(&mut peer, request + 1).lead.standbys.is_empty());
    // The run ends while its peer can still hear that.
    leader.end_run();
    drop(standby);
}
