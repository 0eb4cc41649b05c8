//! Somebody with several addresses, some of which lead nowhere, or to somebody else.

use super::{DialError, dial, dial_place};
use crate::{
    address::HostPort,
    conn::Conn,
    handshake::KnockError,
    place::{Place, SHORT_SEGMENT_BYTES},
    preamble::{PREAMBLE_BYTES, Preamble, Refusal, Reply, Role},
};
use socket2::{Domain, Socket, Type};
use std::{
    io::{Read, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::mpsc::{Receiver, channel},
    thread,
    time::{Duration, Instant},
};

const PATIENCE: Duration = Duration::from_secs(20);

fn ip(host: u8) -> IpAddr {
    Ipv4Addr::new(127, 0, 0, host).into()
}

/// Listeners at these addresses of this machine, all with the same port.
fn listeners<const N: usize>(hosts: [u8; N]) -> [TcpListener; N] {
    loop {
        let first = TcpListener::bind((ip(hosts[0]), 0)).expect("loopback");
        let port = first.local_addr().expect("bound").port();
        let others = hosts[1..].iter().map(|host| TcpListener::bind((ip(*host), port)).ok());
        let all: Option<Vec<TcpListener>> = std::iter::once(Some(first)).chain(others).collect();
        if let Some(all) = all {
            return all.try_into().expect("as many as there are hosts");
        }
    }
}

/// The place of the listeners at these addresses, the first of them to begin with.
fn place(listeners: &[TcpListener]) -> Place {
    let addresses: Vec<SocketAddr> =
        listeners.iter().map(|listener| listener.local_addr().expect("bound")).collect();
    let others = addresses[1..].iter().map(SocketAddr::ip).collect();
    Place { others, first: Some(addresses[0].ip()), ..Place::from(HostPort::from(addresses[0])) }
}

/// Answers each connection with the next of `answers`, keeps it for as long as the test, and says that it came.
fn answering(listener: TcpListener, answers: Vec<Vec<u8>>) -> Receiver<TcpStream> {
    let (came, all) = channel();
    thread::spawn(move || {
        for answer in answers {
            let Ok((mut stream, _)) = listener.accept() else { return };
            if stream.read_exact(&mut [0; PREAMBLE_BYTES]).is_ok() {
                let _ = stream.write_all(&answer);
            }
            if came.send(stream).is_err() {
                return;
            }
        }
    });
    all
}

fn accepted() -> Vec<u8> {
    Reply::Accepted.encode().to_vec()
}

fn dial_any(place: &Place) -> Result<Conn, DialError> {
    dial_place(place, &|_| Preamble::new(Role::Data), None, Instant::now() + PATIENCE)
}

fn winner(conn: &Conn) -> IpAddr {
    conn.peer_addr().expect("connected").ip()
}

/// A listener that takes no connection any more: its queue is full.
fn black_hole(address: SocketAddr) -> (Socket, Vec<Socket>) {
    let hole = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    hole.bind(&address.into()).expect("a free port");
    hole.listen(0).expect("listens");
    let fill = |_| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        socket.set_nonblocking(true).expect("does not block");
        let _ = socket.connect(&address.into());
        socket
    };
    (hole, (0..4).map(fill).collect())
}

#[test]
fn an_address_that_does_not_answer_costs_a_quarter_of_a_second() {
    let [works] = listeners([1]);
    let port = works.local_addr().expect("bound").port();
    let _hole = black_hole((ip(2), port).into());
    let target = HostPort::new("127.0.0.2", port);
    let place = Place { others: vec![ip(1)], first: Some(ip(2)), ..target.into() };
    let began = Instant::now();
    let _kept = answering(works, vec![accepted()]);
    let conn = dial_any(&place).expect("the other address works");
    assert_eq!(winner(&conn), ip(1));
    let took = began.elapsed();
    assert!((super::race::PAUSE..PATIENCE / 2).contains(&took), "{took:?}");
}

#[test]
fn who_is_known_to_answer_is_asked_alone() {
    let [first, other] = listeners([1, 2]);
    let place = place(&[first.try_clone().expect("a copy"), other.try_clone().expect("a copy")]);
    let _kept = answering(first, vec![accepted()]);
    assert_eq!(winner(&dial_any(&place).expect("it works")), ip(1));
    other.set_nonblocking(true).expect("does not block");
    assert!(other.accept().is_err(), "nobody has tried it");
}

#[test]
fn another_machine_with_one_of_the_addresses_does_no_harm() {
    let refusal = |why| Reply::Refused(why).encode().to_vec();
    for wrong in [
        refusal(Refusal::WrongDestination),
        refusal(Refusal::WrongRun),
        refusal(Refusal::KeyWanted),
        b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
        // Says nothing.
        Vec::new(),
    ] {
        let all = listeners([1, 2]);
        let place = place(&all);
        let [stranger, works] = all;
        let (_stranger, _kept) = (answering(stranger, vec![wrong; 4]), answering(works, vec![accepted()]));
        let began = Instant::now();
        assert_eq!(winner(&dial_any(&place).expect("the other address works")), ip(2));
        assert!(began.elapsed() < PATIENCE / 2, "{:?}", began.elapsed());
    }
}

#[test]
fn a_preamble_goes_over_one_connection_at_a_time() {
    let all = listeners([1, 2]);
    let place = place(&all);
    let [slow, other] = all;
    let (heard, hears) = channel();
    thread::spawn(move || {
        let (mut stream, _) = slow.accept().expect("the first one");
        // The other address connects meanwhile, if it does, and hears nothing before this one had its time.
        stream.read_exact(&mut [0; PREAMBLE_BYTES]).expect("a preamble");
        heard.send(()).expect("the test waits");
        stream.write_all(&Reply::Accepted.encode()).expect("the reply");
        let _ = stream.read(&mut [0]);
    });
    let conn = dial_any(&place).expect("it works");
    assert_eq!(winner(&conn), ip(1));
    hears.iter().next().expect("it was heard");
    other.set_nonblocking(true).expect("does not block");
    if let Ok((mut stream, _)) = other.accept() {
        assert_eq!(stream.read(&mut [0; PREAMBLE_BYTES]).unwrap_or(0), 0, "closed without a word");
    }
}

#[test]
fn who_was_slow_has_another_turn() {
    let all = listeners([1, 2]);
    let place = place(&all);
    let [slow, stranger] = all;
    let refused = Reply::Refused(Refusal::WrongDestination).encode().to_vec();
    let kept = answering(slow, vec![Vec::new(), accepted()]);
    let _stranger = answering(stranger, vec![refused; 2]);
    assert_eq!(winner(&dial_any(&place).expect("at the second try")), ip(1));
    let mut first = kept.recv_timeout(PATIENCE).expect("the first try");
    assert_eq!(first.read(&mut [0]).unwrap_or(0), 0, "it was closed");
}

#[test]
fn an_error_names_every_address_and_its_principal_is_who_was_closest() {
    let all = listeners([1, 2, 3]);
    let place = place(&all);
    let [closed, stranger, foreign] = all;
    drop(closed);
    let _kept = (
        answering(stranger, vec![Reply::Refused(Refusal::WrongRun).encode().to_vec()]),
        answering(foreign, vec![b"SSH-2.0-OpenSSH_9.0\r\n\r\n\r\n".to_vec()]),
    );
    let error = dial_any(&place).expect_err("nobody is right");
    let port = place.target.port;
    for text in [
        format!("127.0.0.1:{port}: connection refused"),
        format!("127.0.0.2:{port} refused the connection: "),
        format!("127.0.0.3:{port} is not a port of this protocol"),
    ] {
        assert!(error.to_string().contains(&text), "{error}");
    }
    assert!(matches!(error.principal(), DialError::Refused { reason: Refusal::WrongRun, .. }), "{error:?}");
    let foreign =
        |error: &DialError| matches!(error, DialError::Foreign { source: KnockError::Reply(_), .. });
    assert!(matches!(&error, DialError::Several { tried, .. } if tried.iter().any(foreign)), "{error:?}");
}

#[test]
fn a_machine_where_nobody_listens_says_so_once() {
    let all = listeners([1, 2]);
    let place = place(&all);
    drop(all);
    let error = dial_any(&place).expect_err("nobody is there");
    assert!(
        matches!(&error, DialError::ConnectionRefused { target } if *target == place.target),
        "{error:?}"
    );
}

#[test]
fn without_a_preamble_who_connects_first_wins() {
    let [works] = listeners([1]);
    let conn = dial(&works.local_addr().expect("bound").into(), Instant::now() + PATIENCE);
    assert_eq!(winner(&conn.expect("it listens")), ip(1));
}

#[test]
fn short_segments_bound_what_either_end_sends() {
    for short_segments in [true, false] {
        let [listener] = listeners([1]);
        let place = Place { short_segments, ..place(&[listener.try_clone().expect("a copy")]) };
        let kept = answering(listener, vec![accepted()]);
        let conn = dial_any(&place).expect("it works");
        let far = Conn::from(kept.recv_timeout(PATIENCE).expect("it has come"));
        for end in [&conn, &far] {
            let segment_bytes = end.info().expect("connected").segment_bytes;
            assert_eq!(segment_bytes <= SHORT_SEGMENT_BYTES, short_segments, "{segment_bytes}");
        }
    }
}
