//! The behaviour that well-behaved clients see, also when others vanish.

use crate::common::{Client, PATIENCE, launch};
use pccl_master::{Master, MasterConfig, MasterError};
use pccl_protocol::{C2m, KickCode, M2c, Nothing, RequestId};
use socket2::SockRef;
use std::{
    io::Read,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream},
    thread,
    time::Duration,
};
use tinysockets::preamble::{REPLY_BYTES, Refusal, Reply};

/// Two accepted peers of group 0.
fn two_peers(master: &Master) -> (Client, Client) {
    let (mut first, _) = Client::register(master.local_addr(), 0);
    first.confirm_ring_of(1);
    first.wait_for_admission();
    let (mut second, _) = Client::register(master.local_addr(), 0);
    first.vote_topology(5);
    first.confirm_ring_of(2);
    second.confirm_ring_of(2);
    let sizes = first.wait_for("TopologyDone", |packet| match packet {
        M2c::TopologyDone(done) if done.request == RequestId(5) => Some(done.sizes),
        _ => None,
    });
    assert_eq!((sizes.global, sizes.group), (2, 2));
    assert_eq!(second.wait_for_admission(), sizes);
    (first, second)
}

#[test]
fn alone_in_a_run() {
    let master = launch(|_| {});
    let (mut client, registered) = Client::register(master.local_addr(), 3);
    assert_eq!(registered.run, master.run_id());
    assert_ne!(registered.peer.0, 0);
    let plan = client.confirm_ring_of(1);
    assert_eq!(plan.members[0].peer, registered.peer);
    let sizes = client.wait_for_admission();
    assert_eq!((sizes.global, sizes.group, sizes.groups), (1, 1, 1));
    client.check_alive(1);
}

#[test]
fn two_peers_are_admitted_and_their_plans_agree() {
    let master = launch(|_| {});
    let (mut first, _) = Client::register(master.local_addr(), 0);
    first.confirm_ring_of(1);
    first.wait_for_admission();
    let (mut second, _) = Client::register(master.local_addr(), 0);
    first.send(&C2m::VotePending(RequestId(4)));
    let answer = first.wait_for("PendingAnswer", |packet| match packet {
        M2c::PendingAnswer(answer) => Some(answer),
        _ => None,
    });
    assert_eq!((answer.request, answer.pending), (RequestId(4), true));
    first.vote_topology(5);
    let plan = first.confirm_ring_of(2);
    let other_plan = second.confirm_ring_of(2);
    assert_eq!(plan.epoch, other_plan.epoch);
    let members =
        |plan: &pccl_protocol::GroupPlan| plan.members.iter().map(|member| member.peer).collect::<Vec<_>>();
    assert_eq!(members(&plan), members(&other_plan));
    second.wait_for_admission();
}

#[test]
fn the_others_learn_of_a_client_whose_connection_is_reset() {
    let master = launch(|_| {});
    let (mut first, second) = two_peers(&master);
    SockRef::from(&second.stream).set_linger(Some(Duration::ZERO)).unwrap();
    drop(second);
    let plan = first.confirm_ring_of(1);
    assert_eq!((plan.sizes.global, plan.sizes.group), (1, 1));
    first.check_alive(1);
}

#[test]
fn the_others_learn_of_a_client_that_closes() {
    let master = launch(|_| {});
    let (mut first, second) = two_peers(&master);
    drop(second);
    assert_eq!(first.confirm_ring_of(1).sizes.global, 1);
}

#[test]
fn a_client_that_leaves_gets_a_goodbye_and_the_end_of_the_stream() {
    let master = launch(|_| {});
    let (mut first, mut second) = two_peers(&master);
    second.send(&C2m::Leave(Nothing {}));
    second.wait_for("Goodbye", |packet| matches!(packet, M2c::Goodbye(_)).then_some(()));
    assert_eq!(second.receive(), None);
    assert_eq!(first.confirm_ring_of(1).sizes.global, 1);
}

#[test]
fn a_last_packet_in_front_of_the_end_of_the_stream_is_not_lost() {
    let master = launch(|_| {});
    let (mut first, mut second) = two_peers(&master);
    // Echoes fill the way to the client that does not read them, its end comes right behind the leave.
    for sequence in 0..100 {
        second.send(&crate::common::beat(sequence));
    }
    second.send(&C2m::Leave(Nothing {}));
    drop(second);
    assert_eq!(first.confirm_ring_of(1).sizes.global, 1);
}

#[test]
fn many_clients_at_once() {
    let master = launch(|_| {});
    let address = master.local_addr();
    let clients: Vec<_> = (0..32)
        .map(|group| {
            thread::spawn(move || {
                let (mut client, registered) = Client::register(address, group % 3);
                client.check_alive(u64::from(group));
                registered.peer
            })
        })
        .collect();
    let mut peers: Vec<_> = clients.into_iter().map(|client| client.join().unwrap()).collect();
    peers.sort();
    peers.dedup();
    assert_eq!(peers.len(), 32, "an identity was given twice");
}

#[test]
fn a_silent_peer_is_told_that_it_was_silent() {
    let master = launch(|config| config.peer_timeout = Duration::from_millis(300));
    let (mut client, _) = Client::register(master.local_addr(), 0);
    assert_eq!(client.wait_for_kick().code, KickCode::Silent);
}

#[test]
fn a_client_that_does_not_register_is_told_so() {
    let master = launch(|config| config.registration_timeout = Duration::from_millis(300));
    let mut client = Client::connect(master.local_addr());
    assert_eq!(client.wait_for_kick().code, KickCode::RegistrationTimeout);
}

#[test]
fn stop_tells_everybody_why() {
    let master = launch(|_| {});
    let (mut first, mut second) = two_peers(&master);
    let mut unregistered = Client::connect(master.local_addr());
    let mut half_open = crate::common::stream_to(master.local_addr());
    // The master has seen the half-open connection once it has answered a later one.
    Client::connect(master.local_addr());
    master.stop();
    master.stop();
    for client in [&mut first, &mut second, &mut unregistered] {
        assert_eq!(client.wait_for_kick().code, KickCode::MasterStopping);
    }
    let mut reply = [0; REPLY_BYTES];
    half_open.read_exact(&mut reply).unwrap();
    assert_eq!(Reply::decode(&reply), Ok(Reply::Refused(Refusal::ShuttingDown)));
    drop((first, second, unregistered, half_open));
    master.wait().unwrap();
    assert!(master.has_ended());
    master.wait().unwrap();
}

#[test]
fn clients_that_do_not_listen_cannot_hold_up_the_stop() {
    let master = launch(|_| {});
    let (_first, _second) = two_peers(&master);
    let _half_open = crate::common::stream_to(master.local_addr());
    master.stop_handle().stop();
    master.wait().unwrap();
}

#[test]
fn dropping_a_master_frees_its_port() {
    let master = launch(|_| {});
    let address = master.local_addr();
    let (_client, _) = Client::register(address, 0);
    drop(master);
    let again = launch(|config| config.listen = address.to_string());
    assert_eq!(again.local_addr(), address);
    Client::register(address, 0);
}

#[test]
fn a_busy_port_is_an_error_with_a_sentence() {
    let busy = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let listen = busy.local_addr().unwrap().to_string();
    let error =
        Master::launch(MasterConfig { listen: listen.clone(), ..MasterConfig::default() }).unwrap_err();
    assert!(matches!(error, MasterError::Listen { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains(&listen) && text.contains("another process listens there"), "{text}");
}

#[test]
fn addresses_that_cannot_be_understood_are_errors() {
    for listen in ["", "127.0.0.1", "127.0.0.1:", "127.0.0.1:70000", "::1:48148", "[::1:5", ":48148", "a b:1"]
    {
        let error =
            Master::launch(MasterConfig { listen: listen.into(), ..MasterConfig::default() }).unwrap_err();
        assert!(matches!(error, MasterError::Address { .. }), "{listen}: {error:?}");
    }
    // A documentation address, which no machine has.
    let elsewhere = MasterConfig { listen: "192.0.2.1:0".into(), ..MasterConfig::default() };
    let error = Master::launch(elsewhere.clone()).unwrap_err();
    assert!(matches!(error, MasterError::NoKey { .. }), "{error}");
    let error = Master::launch(MasterConfig { insecure: true, ..elsewhere }).unwrap_err();
    assert!(error.to_string().contains("does not have that address"), "{error}");
}

#[test]
fn families_of_addresses() {
    let has_ipv6 = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok();
    let serves = |master: &Master, ip: std::net::IpAddr| {
        Client::register(SocketAddr::new(ip, master.local_addr().port()), 0);
    };
    let by_name = launch(|config| config.listen = "localhost:0".into());
    serves(&by_name, by_name.local_addr().ip());
    let open = |listen: &str| launch(|config| (config.listen, config.insecure) = (listen.into(), true));
    let ipv4 = open("0.0.0.0:0");
    serves(&ipv4, Ipv4Addr::LOCALHOST.into());
    let all = open("[::]:0");
    serves(&all, Ipv4Addr::LOCALHOST.into());
    if has_ipv6 {
        serves(&all, Ipv6Addr::LOCALHOST.into());
        let ipv6 = launch(|config| config.listen = "[::1]:0".into());
        serves(&ipv6, Ipv6Addr::LOCALHOST.into());
        let refused = TcpStream::connect_timeout(
            &SocketAddr::from((Ipv4Addr::LOCALHOST, ipv6.local_addr().port())),
            PATIENCE,
        );
        assert!(refused.is_err(), "an IPv6 address must not serve IPv4");
    }
}
