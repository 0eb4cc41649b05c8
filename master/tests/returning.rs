//! Clients whose connection ends and that go on over another one, or only say so.

use crate::common::{Client, PATIENCE, launch, read_to_end};
use pccl_master::Master;
use pccl_protocol::{
    C2m, Copies, CopiesKnown, KickCode, M2c, PeerId, Received, Register, Registered, RequestId, Return,
    RunId, Term,
};
use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener},
    time::Instant,
};
use tinysockets::preamble::{Preamble, Reply, Role};

fn comes_back(registered: &Registered, received: u64) -> C2m {
    C2m::Return(Return { run: registered.run, peer: registered.peer, proof: None, received, term: Term(0) })
}

/// A master that waits for those who are away.
fn waiting() -> Master {
    launch(|config| config.return_grace = Some(PATIENCE / 2))
}

/// A client that waits to be let in, and the number of packets that it has got.
fn alone(master: &Master, group: u32) -> (Client, Registered, u64) {
    // A peer that is away is alive as long as somebody listens there, and nobody has to answer for some seconds.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    // For as long as the test.
    std::mem::forget(listener);
    registered_with(master, group, port)
}

fn registered_with(master: &Master, group: u32, p2p_port: u16) -> (Client, Registered, u64) {
    let mut client = Client::connect(master.local_addr());
    let C2m::Register(register) = crate::common::registration(group) else { panic!("a registration") };
    let register = Register { p2p_port, ..register };
    client.send(&C2m::Register(register));
    let mut received = 0;
    let registered = client.wait_for("Registered", |packet| {
        received += 1;
        match packet {
            M2c::Registered(registered) => Some(registered),
            _ => None,
        }
    });
    (client, registered, received)
}

#[test]
fn what_was_not_received_comes_again_and_in_its_order() {
    let master = waiting();
    let (mut client, registered, before) = alone(&master, 0);
    // These answers are lost with the connection, or some of them.
    for request in 1..=5 {
        client.send(&C2m::StatusRequest(RequestId(request)));
    }
    client.wait_for("the first", |packet| matches!(packet, M2c::Status(_)).then_some(()));
    client.stream.shutdown(Shutdown::Both).expect("open");
    let mut again = Client::connect(master.local_addr());
    again.send(&comes_back(&registered, before));
    let Some(M2c::Returned(returned)) = again.receive() else { panic!("no answer to the return") };
    assert!((2..=6).contains(&returned.received), "{returned:?}");
    // The registration was the first packet: those behind it that have come are not sent again.
    for request in returned.received..=5 {
        again.send(&C2m::StatusRequest(RequestId(request)));
    }
    let mut answers = Vec::new();
    while answers.len() < 5 {
        match again.receive() {
            Some(M2c::Status(status)) => answers.push(status.request.0),
            Some(M2c::Kicked(reason)) => panic!("{reason}"),
            Some(_) => {}
            None => panic!("the end of the stream after {answers:?}"),
        }
    }
    assert_eq!(answers, [1, 2, 3, 4, 5]);
    again.check_alive(1);
}

#[test]
fn a_connection_of_which_only_one_end_knows_that_it_is_over_is_replaced() {
    let master = waiting();
    let (mut old, registered, before) = alone(&master, 0);
    let mut new = Client::connect(master.local_addr());
    new.send(&comes_back(&registered, before));
    assert!(matches!(new.receive(), Some(M2c::Returned(returned)) if returned.received == 1));
    new.check_alive(1);
    assert!(std::iter::from_fn(|| old.receive()).all(|packet| !matches!(packet, M2c::Kicked(_))));
}

#[test]
fn nobody_takes_a_place_that_is_not_its_own() {
    let master = waiting();
    let (mut client, registered, before) = alone(&master, 0);
    let refused = |asked: &C2m| {
        let mut other = Client::connect(master.local_addr());
        other.send(asked);
        other.wait_for_kick()
    };
    let Registered { run, peer, .. } = registered;
    let unknown = Return { run, peer: PeerId(peer.0 ^ 1), proof: None, received: 0, term: Term(0) };
    assert_eq!(refused(&C2m::Return(unknown)).code, KickCode::Silent);
    let other_run = Return { run: RunId(run.0 ^ 1), peer, proof: None, received: before, term: Term(0) };
    assert_eq!(refused(&C2m::Return(other_run)).code, KickCode::Protocol);
    assert_eq!(
        refused(&comes_back(&registered, before + 1000)).code,
        KickCode::Silent,
        "this many were not sent"
    );
    // None of this has touched the one whose place it is.
    client.check_alive(1);
}

#[test]
fn what_was_acknowledged_is_not_kept() {
    let master = waiting();
    let (mut client, registered, before) = alone(&master, 0);
    client.send(&C2m::Received(Received { count: before }));
    client
        .wait_for("the answer", |packet| matches!(packet, M2c::Received(it) if it.count == 1).then_some(()));
    let mut new = Client::connect(master.local_addr());
    new.send(&comes_back(&registered, before - 1));
    assert_eq!(new.wait_for_kick().code, KickCode::Silent);
    client.send(&C2m::Received(Received { count: before + 1000 }));
    assert_eq!(client.wait_for_kick().code, KickCode::Malformed);
}

#[test]
fn a_registered_peer_does_not_come_back_over_its_own_connection() {
    let master = waiting();
    let (mut client, registered, before) = alone(&master, 0);
    client.send(&comes_back(&registered, before));
    assert_eq!(client.wait_for_kick().code, KickCode::Protocol);
}

#[test]
fn a_peer_whose_port_is_closed_is_lost_with_its_connection() {
    let master = waiting();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let (mut client, ..) = registered_with(&master, 0, port);
    // The master tries it.
    let (mut check, _) = listener.accept().expect("a connection");
    check.read_exact(&mut Preamble::new(Role::Check).encode()).expect("a preamble");
    check.write_all(&Reply::Accepted.encode()).expect("an answer");
    assert_eq!(read_to_end(&mut check), [0; 0]);
    // It warns of the other port, so it knows what it has found.
    client.wait_for("Warning", |packet| matches!(packet, M2c::Warning(_)).then_some(()));
    let (mut other, ..) = alone(&master, 1);
    let began = Instant::now();
    drop(listener);
    drop(client);
    for request in 1.. {
        other.send(&C2m::StatusRequest(RequestId(request)));
        let peers = other.wait_for("Status", |packet| match packet {
            M2c::Status(status) => Some(status.peers.len()),
            _ => None,
        });
        if peers == 1 {
            break;
        }
        assert!(began.elapsed() < PATIENCE / 4, "it is waited for");
    }
}

#[test]
fn whoever_is_refused_is_asked_for_its_word_first() {
    let master = launch(|config| {
        config.accept_standbys = true;
        config.return_grace = Some(PATIENCE / 2);
    });
    let (mut client, registered, before) = alone(&master, 0);
    let standby = launch(|config| {
        config.standby_of = vec![master.local_addr().to_string()];
        config.return_grace = None;
    });
    let list_of = |client: &mut Client, standbys: usize| {
        client.wait_for("a list of copies", |packet| match packet {
            M2c::Copies(copies) if copies.standbys.len() == standbys => Some(copies),
            _ => None,
        })
    };
    list_of(&mut client, 1);
    drop(standby);
    list_of(&mut client, 0);
    // From now on nothing leaves but the list, until this peer says that it knows it.
    let mut other = Client::connect(master.local_addr());
    other.send(&comes_back(&registered, before + 1000));
    let Copies { term, number, .. } = list_of(&mut other, 0);
    other.send(&C2m::CopiesKnown(CopiesKnown { term, number }));
    assert_eq!(other.wait_for_kick().code, KickCode::Silent, "this many were not sent");
    client.check_alive(1);
}
