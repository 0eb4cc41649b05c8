//! The acceptor against good and hostile clients, over loopback.

use std::{
    io::{Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, TcpStream},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, unbounded};
use proptest::{prelude::*, test_runner::TestRunner};
use tinysockets::{
    acceptor::{AcceptLimits, Acceptor, Incoming},
    address::HostPort,
    conn::Conn,
    dial::{DialError, dial_with_preamble},
    listener::Listener,
    preamble::{PREAMBLE_BYTES, Preamble, REPLY_BYTES, Refusal, Reply, Role},
};

const PATIENCE: Duration = Duration::from_secs(30);

fn soon() -> Instant {
    Instant::now() + PATIENCE
}

/// No connection is closed for being slow.
fn limits(half_open_max: usize) -> AcceptLimits {
    AcceptLimits { half_open_max, preamble_timeout: 10 * PATIENCE, ..AcceptLimits::default() }
}

/// An acceptor for data connections that accepts all of them and hands them to the test.
fn accepting(limits: AcceptLimits) -> (Acceptor, HostPort, Receiver<(Preamble, Conn)>) {
    let (sender, accepted) = unbounded();
    let listener = Listener::bind(None, 0, 1).unwrap();
    let handler = move |incoming: Incoming| {
        let preamble = incoming.preamble;
        if let Ok(conn) = incoming.accept() {
            let _ = sender.send((preamble, conn));
        }
    };
    let acceptor = Acceptor::spawn(vec![(Role::Data, listener)], limits, None, Box::new(handler)).unwrap();
    let target = HostPort::new("127.0.0.1", acceptor.local_port(0).unwrap());
    (acceptor, target, accepted)
}

fn raw(target: &HostPort) -> TcpStream {
    let stream = TcpStream::connect((target.host.as_str(), target.port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Waits for the other side to close, and returns what it sent before that.
fn until_closed(mut stream: &TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    match stream.read_to_end(&mut all) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}"),
    }
    all
}

fn assert_still_serving(target: &HostPort, accepted: &Receiver<(Preamble, Conn)>) {
    let mine = Preamble { from: 77, ..Preamble::new(Role::Data) };
    let conn = dial_with_preamble(target, &mine, None, soon()).unwrap();
    assert!(conn.round_trip() < PATIENCE);
    let (seen, other) = accepted.recv_timeout(PATIENCE).unwrap();
    assert_eq!(seen, mine);
    conn.send_all(b"ping", Some(soon())).unwrap();
    let mut got = [0; 4];
    other.recv_all(&mut got, Some(soon())).unwrap();
    assert_eq!(&got, b"ping");
}

#[test]
fn a_preamble_arrives_as_it_was_sent_and_the_stream_works() {
    let (_acceptor, target, accepted) = accepting(AcceptLimits::default());
    let mine = Preamble {
        run: 1 << 100,
        from: 2,
        to: 3,
        group: 4,
        epoch: 5,
        connection_index: 6,
        connection_count: 7,
        link_generation: 8,
        features: 9,
        ..Preamble::new(Role::Data)
    };
    let _conn = dial_with_preamble(&target, &mine, None, soon()).unwrap();
    let (seen, _other) = accepted.recv_timeout(PATIENCE).unwrap();
    assert_eq!(seen, mine);
    assert_still_serving(&target, &accepted);
}

#[test]
fn localhost_and_ipv6_reach_a_wildcard_listener() {
    let (acceptor, target, accepted) = accepting(AcceptLimits::default());
    assert_still_serving(&HostPort::new("localhost", target.port), &accepted);
    if TcpStream::connect((Ipv6Addr::LOCALHOST, target.port)).is_ok() {
        assert_still_serving(&format!("[::1]:{}", target.port).parse().unwrap(), &accepted);
    }
    acceptor.shutdown();
}

#[test]
fn the_addresses_shown_are_those_of_the_connection() {
    let (sender, seen) = unbounded();
    let listener = Listener::bind(None, 0, 1).unwrap();
    let port = listener.local_port();
    let handler = move |incoming: Incoming| sender.send((incoming.remote_addr, incoming.local_addr)).unwrap();
    let _acceptor =
        Acceptor::spawn(vec![(Role::State, listener)], limits(8), None, Box::new(handler)).unwrap();
    let mut stream = raw(&HostPort::new("127.0.0.1", port));
    stream.write_all(&Preamble::new(Role::State).encode()).unwrap();
    let (remote, local) = seen.recv_timeout(PATIENCE).unwrap();
    assert_eq!(remote, stream.local_addr().unwrap());
    assert_eq!((local.ip(), local.port()), (IpAddr::V4(Ipv4Addr::LOCALHOST), port));
}

#[test]
fn one_acceptor_serves_several_roles_and_refuses_the_wrong_one() {
    let (sender, seen) = unbounded();
    let roles = [Role::State, Role::Data, Role::Probe];
    let listeners = roles.map(|role| (role, Listener::bind(None, 0, 1).unwrap())).into();
    let handler = move |incoming: Incoming| {
        sender.send(incoming.preamble.role).unwrap();
        let _ = incoming.accept();
    };
    let acceptor = Acceptor::spawn(listeners, limits(8), None, Box::new(handler)).unwrap();
    for (i, role) in roles.into_iter().enumerate() {
        let target = HostPort::new("127.0.0.1", acceptor.local_port(i).unwrap());
        dial_with_preamble(&target, &Preamble::new(role), None, soon()).unwrap();
        assert_eq!(seen.recv_timeout(PATIENCE).unwrap(), role);
        let error = dial_with_preamble(&target, &Preamble::new(Role::Control), None, soon()).unwrap_err();
        assert!(matches!(error, DialError::Refused { reason: Refusal::WrongRole, .. }), "{error}");
    }
    assert_eq!(acceptor.local_port(3), None);
    assert!(seen.is_empty());
}

#[test]
fn the_reason_of_a_refusal_reaches_the_other_side() {
    for reason in Refusal::ALL {
        let listener = Listener::bind(None, 0, 1).unwrap();
        let handler = move |incoming: Incoming| incoming.refuse(reason);
        let acceptor =
            Acceptor::spawn(vec![(Role::Data, listener)], limits(8), None, Box::new(handler)).unwrap();
        let target = HostPort::new("127.0.0.1", acceptor.local_port(0).unwrap());
        match dial_with_preamble(&target, &Preamble::new(Role::Data), None, soon()) {
            Err(DialError::Refused { reason: told, .. }) => assert_eq!(told, reason),
            Err(DialError::Version { .. }) => assert_eq!(reason, Refusal::UnsupportedVersion),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_refusal_also_reaches_those_who_do_not_wait_for_an_answer() {
    let listener = Listener::bind(None, 0, 1).unwrap();
    let handler = |incoming: Incoming| incoming.refuse(Refusal::NotExpected);
    let acceptor = Acceptor::spawn(vec![(Role::Data, listener)], limits(8), None, Box::new(handler)).unwrap();
    let mut stream = raw(&HostPort::new("127.0.0.1", acceptor.local_port(0).unwrap()));
    let mut bytes = Preamble::new(Role::Data).encode().to_vec();
    bytes.extend([7; 500]);
    stream.write_all(&bytes).unwrap();
    let mut answer = [0; REPLY_BYTES];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(Reply::decode(&answer), Ok(Reply::Refused(Refusal::NotExpected)));
    assert_eq!(stream.read(&mut answer).unwrap(), 0, "it ends and is not reset");
}

#[test]
fn other_versions_and_security_modes_are_refused_with_their_reason() {
    let (_acceptor, target, accepted) = accepting(AcceptLimits::default());
    let good = Preamble::new(Role::Data);
    match dial_with_preamble(&target, &Preamble { version: 2, ..good }, None, soon()) {
        Err(error @ DialError::Version { .. }) => assert!(error.to_string().contains("version"), "{error}"),
        other => panic!("{other:?}"),
    }
    let mut stream = raw(&target);
    stream.write_all(&Preamble { security: 4, ..good }.encode()).unwrap();
    let mut answer = [0; REPLY_BYTES];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(Reply::decode(&answer), Ok(Reply::Refused(Refusal::UnsupportedSecurity)));
    assert_still_serving(&target, &accepted);
}

#[test]
fn wrong_magic_is_closed_at_once_without_an_answer() {
    let (_acceptor, target, accepted) = accepting(limits(8));
    for bytes in [&b"G"[..], b"GET / HTTP/1.1\r\n\r\n", &[0; 4096], b"\xffPCCX"] {
        let mut stream = raw(&target);
        stream.write_all(bytes).unwrap();
        assert!(until_closed(&stream).is_empty(), "{bytes:?}");
    }
    assert_still_serving(&target, &accepted);
}

#[test]
fn a_preamble_with_a_flipped_byte_is_never_accepted() {
    let (_acceptor, target, accepted) = accepting(limits(8));
    for at in 0..PREAMBLE_BYTES {
        let mut bytes = Preamble::new(Role::Data).encode();
        bytes[at] ^= 0x40;
        let mut stream = raw(&target);
        stream.write_all(&bytes).unwrap();
        let answer = until_closed(&stream);
        assert_ne!(answer, Reply::Accepted.encode());
        // Only the version is read before the check word.
        assert!(answer.is_empty() || [8, 9].contains(&at), "byte {at}");
    }
    assert!(accepted.is_empty());
    assert_still_serving(&target, &accepted);
}

#[test]
fn random_bytes_do_no_harm() {
    let (_acceptor, target, accepted) = accepting(limits(8));
    let mut runner = TestRunner::new(ProptestConfig::with_cases(50));
    let bytes = prop::collection::vec(any::<u8>(), 1..300);
    let run = runner.run(&(bytes, any::<bool>()), |(mut bytes, with_magic)| {
        if with_magic {
            let good = Preamble::new(Role::Data).encode();
            let n = bytes.len().min(8);
            bytes[..n].copy_from_slice(&good[..n]);
        }
        let mut stream = raw(&target);
        // The other side may have closed before all is written.
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(Shutdown::Write);
        prop_assert_ne!(until_closed(&stream), Reply::Accepted.encode());
        Ok(())
    });
    run.unwrap();
    assert!(accepted.is_empty());
    assert_still_serving(&target, &accepted);
}

#[test]
fn half_a_preamble_held_open_blocks_nobody_and_ends() {
    let short = AcceptLimits { preamble_timeout: Duration::from_millis(200), ..limits(8) };
    let (_acceptor, target, accepted) = accepting(short);
    let mut held = raw(&target);
    held.write_all(&Preamble::new(Role::Data).encode()[..50]).unwrap();
    assert_still_serving(&target, &accepted);
    assert!(until_closed(&held).is_empty());
    assert!(accepted.is_empty());
}

#[test]
fn a_preamble_in_single_bytes_is_accepted() {
    let (_acceptor, target, accepted) = accepting(limits(8));
    let mut stream = raw(&target);
    stream.set_nodelay(true).unwrap();
    for byte in Preamble::new(Role::Data).encode() {
        stream.write_all(&[byte]).unwrap();
    }
    let mut answer = [0; REPLY_BYTES];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(Reply::decode(&answer), Ok(Reply::Accepted));
    assert!(accepted.recv_timeout(PATIENCE).is_ok());
}

#[test]
fn two_hundred_silent_connections_do_not_keep_a_good_one_out() {
    let (acceptor, target, accepted) = accepting(limits(50));
    let silent: Vec<TcpStream> = (0..200).map(|_| raw(&target)).collect();
    assert_still_serving(&target, &accepted);
    let (sender, closed) = unbounded();
    thread::scope(|scope| {
        for stream in &silent {
            let sender = sender.clone();
            scope.spawn(move || sender.send(until_closed(stream)).unwrap());
        }
        // All but 50 had to make room, long before their time was up.
        for _ in 0..150 {
            assert!(closed.recv_timeout(PATIENCE).unwrap().is_empty());
        }
        assert_still_serving(&target, &accepted);
        acceptor.shutdown();
    });
}

#[test]
fn many_clients_at_once_are_all_accepted() {
    let (_acceptor, target, accepted) = accepting(AcceptLimits::default());
    let target = Arc::new(target);
    let clients: Vec<_> = (0..8u128)
        .map(|client| {
            let target = Arc::clone(&target);
            thread::spawn(move || {
                for i in 0..10 {
                    let mine = Preamble { from: client * 10 + i, ..Preamble::new(Role::Data) };
                    dial_with_preamble(&target, &mine, None, soon()).unwrap();
                }
            })
        })
        .collect();
    let mut seen: Vec<u128> = (0..80).map(|_| accepted.recv_timeout(PATIENCE).unwrap().0.from).collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
    seen.sort_unstable();
    assert_eq!(seen, (0..80).collect::<Vec<_>>());
}

#[test]
fn after_shutdown_the_port_is_free_and_half_open_connections_are_closed() {
    let (acceptor, target, accepted) = accepting(limits(8));
    let silent = raw(&target);
    assert_still_serving(&target, &accepted);
    acceptor.shutdown();
    acceptor.shutdown();
    assert!(until_closed(&silent).is_empty());
    let again = Listener::bind(None, target.port, 1).unwrap();
    assert_eq!(again.local_port(), target.port);
}

#[test]
fn shutdown_from_within_the_handler_does_not_wait_for_itself() {
    let (sender, acceptor) = unbounded::<Acceptor>();
    let (done_sender, done) = unbounded();
    let listener = Listener::bind(None, 0, 1).unwrap();
    let target = HostPort::new("127.0.0.1", listener.local_port());
    let handler = move |incoming: Incoming| {
        // Dropping it here is the hardest case: the thread drops its own handle.
        drop(acceptor.recv().unwrap());
        incoming.refuse(Refusal::ShuttingDown);
        done_sender.send(()).unwrap();
    };
    sender
        .send(Acceptor::spawn(vec![(Role::Data, listener)], limits(8), None, Box::new(handler)).unwrap())
        .unwrap();
    let error = dial_with_preamble(&target, &Preamble::new(Role::Data), None, soon()).unwrap_err();
    assert!(matches!(error, DialError::Refused { reason: Refusal::ShuttingDown, .. }), "{error}");
    done.recv_timeout(PATIENCE).unwrap();
}

#[test]
fn a_handler_that_panics_over_one_connection_still_gets_the_next() {
    let listener = Listener::bind(None, 0, 1).unwrap();
    let handler = |incoming: Incoming| match incoming.preamble.from {
        1 => panic!("this panic belongs to the test"),
        _ => incoming.refuse(Refusal::Full),
    };
    let acceptor = Acceptor::spawn(vec![(Role::Data, listener)], limits(8), None, Box::new(handler)).unwrap();
    let target = HostPort::new("127.0.0.1", acceptor.local_port(0).unwrap());
    let first = Preamble { from: 1, ..Preamble::new(Role::Data) };
    let error = dial_with_preamble(&target, &first, None, soon()).unwrap_err();
    assert!(matches!(error, DialError::NoAnswer { .. }), "{error}");
    let error = dial_with_preamble(&target, &Preamble::new(Role::Data), None, soon()).unwrap_err();
    assert!(matches!(error, DialError::Refused { reason: Refusal::Full, .. }), "{error}");
}
