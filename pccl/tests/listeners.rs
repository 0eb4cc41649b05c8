//! Answers that the listeners of a peer give to an attacker who has the address, or the key.

use pccl::{Communicator, Master, MasterConfig, SharedState, SyncStrategy};
use pccl_protocol::{GroupId, Key, P2p, StateAnswer, StatePart, StateRequest, SyncId, limits};
use std::{
    io::ErrorKind,
    time::{Duration, Instant},
};
use tinysockets::{
    address::HostPort,
    conn::Conn,
    dial::dial_with_preamble,
    preamble::{Preamble, Role},
    stream::PacketStream,
};

/// Longer than anything takes on a busy machine. Nothing waits for it unless a test fails.
const PATIENCE: Duration = Duration::from_secs(60);
/// Connections that one address may have open for shared state.
const OF_ADDRESS: usize = limits::MAX_PEERS / 2;

fn soon() -> Instant {
    Instant::now() + PATIENCE
}

/// A peer that has synced once.
fn peer() -> (Master, Communicator) {
    let config =
        MasterConfig { listen: "127.0.0.1:0".into(), peer_timeout: PATIENCE, ..MasterConfig::default() };
    let master = Master::launch(config).expect("master starts");
    let address = master.local_addr().to_string();
    let comm = Communicator::builder(&address).first_ports(0, 0).build().expect("valid settings");
    comm.connect().expect("connect");
    let mut tensor = [1f32; 4];
    let mut state = SharedState::new(1);
    state.tensor("w", &mut tensor).expect("a key");
    comm.sync_shared_state(&mut state, SyncStrategy::EnforcePopular).expect("synced");
    drop(state);
    (master, comm)
}

/// Where a peer gives shared state, and what whoever fetches it says.
fn place(comm: &Communicator) -> (HostPort, Preamble) {
    let status = comm.status().expect("the master is there");
    let peer = status.peers.iter().find(|peer| Some(peer.peer) == comm.id()).expect("it is there");
    let preamble = Preamble {
        run: status.run.0,
        from: 1,
        to: peer.peer.0,
        group: GroupId(0).0,
        connection_count: 1,
        ..Preamble::new(Role::State)
    };
    (HostPort::new("127.0.0.1", peer.state_port), preamble)
}

fn connect((target, preamble): &(HostPort, Preamble)) -> Conn {
    dial_with_preamble(target, preamble, None, soon()).expect("it accepts")
}

/// Whether somebody is served: asks for a sync that is over.
fn is_served(conn: Conn) -> bool {
    let mut stream = PacketStream::new(conn, limits::MAX_STATE_PACKET_BYTES);
    let request = StateRequest { sync: SyncId(0), key: Key::new("w"), part: StatePart::Mebibyte(0) };
    let sent = stream.send_bytes(&P2p::StateRequest(request).to_frame(), soon());
    let answer = sent.and_then(|()| stream.recv_packet(soon()));
    answer.is_ok_and(|(kind, body)| {
        matches!(P2p::from_frame(kind, &body), Ok(P2p::StateAnswer(StateAnswer::NotServing(_))))
    })
}

#[test]
fn a_large_request_for_state_is_refused_at_its_length() {
    let (_master, comm) = peer();
    let place = place(&comm);
    let conn = connect(&place);
    let length = u32::try_from(limits::MAX_STATE_PACKET_BYTES + 1).expect("fits");
    conn.send_all(&length.to_be_bytes(), Some(soon())).expect("sent");
    conn.send_all(&[0; 2], Some(soon())).expect("sent");
    let end = conn.recv_some(&mut [0], Some(soon())).map_err(|error| error.kind());
    assert!(matches!(end, Ok(0) | Err(ErrorKind::ConnectionReset)), "{end:?}");
    assert!(is_served(connect(&place)));
}

#[test]
fn one_address_does_not_take_all_connections_for_state() {
    let (_master, comm) = peer();
    let place = place(&comm);
    let mut open: Vec<Conn> = (0..OF_ADDRESS).map(|_| connect(&place)).collect();
    assert!(!is_served(connect(&place)));
    // Those that are there are served, and with the end of one there is room.
    assert!(is_served(open.remove(0)));
    let deadline = soon();
    while !is_served(connect(&place)) {
        assert!(Instant::now() < deadline, "there is no room");
    }
}
