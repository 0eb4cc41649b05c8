//! A run key against everybody who does not have it: what they send neither gets in nor harms anybody.

use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    thread,
    time::{Duration, Instant},
};

use crate::link_support::{hear, knock_at};
use crossbeam_channel::{Receiver, unbounded};
use pccl_testkit::random::Rng;
use socket2::{Domain, Socket, Type};
use tinysockets::{
    acceptor::{AcceptLimits, Acceptor, Incoming},
    address::HostPort,
    conn::Conn,
    dial::{DialError, dial_with_preamble},
    handshake::{ANSWER_BYTES, Door, Heard, Knock, KnockError, Visit},
    key::RunKey,
    listener::Listener,
    mode::WireMode,
    preamble::{PREAMBLE_BYTES, Preamble, REPLY_BYTES, Refusal, Reply, Role},
    seal::PROOF_BYTES,
};

const PATIENCE: Duration = Duration::from_secs(60);
/// The length of the first message of a dialer.
const HELLO_BYTES: usize = PREAMBLE_BYTES + 49;

fn soon() -> Instant {
    Instant::now() + PATIENCE
}

fn key(number: u8) -> RunKey {
    RunKey::from_bytes([number; 32])
}

/// The preamble of a connection to peer `to`.
fn to(to: u128) -> Preamble {
    Preamble { from: 1, to, ..Preamble::new(Role::Data) }
}

/// Peer 7 of a run with this key, which hands on who is connected with it.
fn peer(key: Option<RunKey>) -> (Acceptor, HostPort, Receiver<Conn>) {
    let (sender, accepted) = unbounded();
    let listener = Listener::bind(Some([127, 0, 0, 1].into()), 0, 1).unwrap();
    let handler = move |incoming: Incoming| match incoming.preamble.to {
        7 => drop(incoming.accept().map(|conn| sender.send(conn))),
        _ => incoming.refuse(Refusal::WrongDestination),
    };
    let listeners = vec![(Role::Data, listener)];
    let acceptor =
        Acceptor::spawn(listeners, AcceptLimits::default(), key.map(Into::into), Box::new(handler)).unwrap();
    let target = HostPort::new("127.0.0.1", acceptor.local_port(0).unwrap());
    (acceptor, target, accepted)
}

fn raw(target: &HostPort) -> TcpStream {
    let stream = TcpStream::connect((target.host.as_str(), target.port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// A dialer that has the key is taken, and can talk.
fn assert_serves(target: &HostPort, accepted: &Receiver<Conn>, key: &RunKey) {
    let near = dial_with_preamble(target, &to(7), Some(key.secret()), soon()).unwrap();
    let far = accepted.recv_timeout(PATIENCE).unwrap();
    assert!(near.suite().is_some() && near.suite() == far.suite());
    for (from, into, said) in [(&near, &far, b"there"), (&far, &near, b"and b")] {
        from.send_all(said, Some(soon())).unwrap();
        let mut heard = [0; 5];
        into.recv_all(&mut heard, Some(soon())).unwrap();
        assert_eq!(&heard, said);
    }
    assert!(accepted.is_empty(), "nobody else was taken");
}

#[test]
fn the_same_key_on_both_sides_is_needed_and_errors_say_what_to_do() {
    for (theirs, mine, text) in [
        (Some(key(1)), Some(key(2)), "the run key, or the name of the run, is another one"),
        (Some(key(1)), None, "set PCCL_RUN_KEY"),
        (None, Some(key(1)), "has no run key"),
    ] {
        let (_acceptor, target, accepted) = peer(theirs.clone());
        let error =
            dial_with_preamble(&target, &to(7), mine.as_ref().map(RunKey::secret), soon()).unwrap_err();
        assert!(matches!(error, DialError::Refused { .. }), "{error}");
        assert!(
            error.to_string().contains(text) && error.to_string().contains(&target.to_string()),
            "{error}"
        );
        match theirs {
            Some(theirs) => assert_serves(&target, &accepted, &theirs),
            None => assert!(accepted.is_empty()),
        }
    }
}

#[test]
fn somebody_who_says_yes_without_the_key_is_not_believed() {
    for answer in [Reply::Accepted.encode().to_vec(), [&Reply::GoOn.encode()[..], &[7; 49]].concat()] {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let target = HostPort::from(listener.local_addr().unwrap());
        let impostor = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_exact(&mut [0; HELLO_BYTES]).unwrap();
            stream.write_all(&answer).unwrap();
            stream
        });
        let error = dial_with_preamble(&target, &to(7), Some(key(1).secret()), soon()).unwrap_err();
        assert!(matches!(error, DialError::Foreign { .. }), "{error}");
        impostor.join().unwrap();
    }
}

/// Passes on what two talk, until both have ended, and returns what each has said.
fn pass_on(near: TcpStream, far: TcpStream) -> (Vec<u8>, Vec<u8>) {
    let one_way = |mut from: TcpStream, mut into: TcpStream| {
        thread::spawn(move || {
            let mut said = Vec::new();
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = from.read(&mut buffer) {
                said.extend_from_slice(&buffer[..count]);
                if into.write_all(&buffer[..count]).is_err() {
                    break;
                }
            }
            let _ = into.shutdown(Shutdown::Write);
            said
        })
    };
    let back = one_way(far.try_clone().unwrap(), near.try_clone().unwrap());
    let forth = one_way(near, far).join().unwrap();
    (forth, back.join().unwrap())
}

/// A connection of peer 1 through somebody on the way to where `target` is; what each has said.
fn through(
    target: &HostPort,
    preamble: Preamble,
    talk: impl FnOnce(Result<Conn, DialError>) + Send + 'static,
) -> (Vec<u8>, Vec<u8>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let middle = HostPort::from(listener.local_addr().unwrap());
    let dialing =
        thread::spawn(move || talk(dial_with_preamble(&middle, &preamble, Some(key(1).secret()), soon())));
    let (near, _) = listener.accept().unwrap();
    let said = pass_on(near, raw(target));
    dialing.join().unwrap();
    said
}

#[test]
fn what_was_recorded_lets_nobody_in_and_tells_nothing() {
    let (_acceptor, target, accepted) = peer(Some(key(1)));
    let at_the_other_end = accepted.clone();
    let (forth, back) = through(&target, to(7), move |conn| {
        conn.unwrap().send_all(b"a secret of this run", Some(soon())).unwrap();
        let mut heard = [0; 20];
        at_the_other_end.recv_timeout(PATIENCE).unwrap().recv_all(&mut heard, Some(soon())).unwrap();
        assert_eq!(&heard, b"a secret of this run");
    });
    assert!(!forth.windows(6).any(|bytes| bytes == b"secret"));
    assert_eq!((forth.len(), back.len()), (HELLO_BYTES + PROOF_BYTES + 40, ANSWER_BYTES + REPLY_BYTES + 20));
    let mut replay = raw(&target);
    replay.write_all(&forth).unwrap();
    let mut answer = Vec::new();
    // It may be reset, since bytes of it were not read.
    let _ = replay.read_to_end(&mut answer);
    assert!(answer.len() <= ANSWER_BYTES, "the second message, and nothing else");
    assert_serves(&target, &accepted, &key(1));
}

/// The preamble of a connection to peer 7 that is to be protected so.
fn in_mode(mode: WireMode) -> Preamble {
    Preamble { security: mode.security(), ..to(7) }
}

#[test]
fn a_wire_mode_says_what_travels_readable_and_both_ends_mean_the_same() {
    let (_acceptor, target, accepted) = peer(Some(key(1)));
    for &mode in WireMode::ALL {
        let at_the_other_end = accepted.clone();
        let (forth, back) = through(&target, in_mode(mode), move |conn| {
            let (near, far) = (conn.unwrap(), at_the_other_end.recv_timeout(PATIENCE).unwrap());
            assert!(near.suite() == far.suite() && near.suite().is_some() == (mode != WireMode::Off));
            for (from, into) in [(&near, &far), (&far, &near)] {
                from.send_all(b"a part of a tensor", Some(soon())).unwrap();
                let mut heard = [0; 18];
                into.recv_all(&mut heard, Some(soon())).unwrap();
                assert_eq!(&heard, b"a part of a tensor");
            }
        });
        for (said, set_up) in [(forth, HELLO_BYTES + PROOF_BYTES), (back, ANSWER_BYTES + REPLY_BYTES + 20)] {
            let is_readable = said.windows(6).any(|bytes| bytes == b"tensor");
            assert_eq!(is_readable, mode != WireMode::Encrypt, "{mode}");
            assert_eq!(said.len() - set_up, if mode == WireMode::Off { 18 } else { 38 }, "{mode}");
        }
    }
    // An attacker on the way cannot make one of them another one: the check word of the preamble is public.
    for (meant, made) in [(WireMode::Encrypt, WireMode::Off), (WireMode::Integrity, WireMode::Off)] {
        let (_, hello) = Knock::new(&in_mode(meant), Some(key(1).secret())).unwrap();
        let lowered = [&in_mode(made).encode()[..], &hello[PREAMBLE_BYTES..]].concat();
        let visit = knock_at(&mut Door::new(Some(key(1).into())), &lowered);
        assert!(matches!(visit, Visit::Unwanted(Some(Refusal::WrongKey), _)), "{visit:?}");
    }
}

#[test]
fn control_connections_are_always_encrypted() {
    for mode in [WireMode::Integrity, WireMode::Off] {
        let preamble = Preamble { security: mode.security(), ..Preamble::new(Role::Control) };
        let (_, hello) = Knock::new(&preamble, Some(key(1).secret())).unwrap();
        let visit = knock_at(&mut Door::new(Some(key(1).into())), &hello[..PREAMBLE_BYTES]);
        assert!(matches!(visit, Visit::Unwanted(Some(Refusal::UnsupportedSecurity), _)), "{visit:?}");
    }
}

#[test]
fn a_connection_that_is_led_elsewhere_is_noticed() {
    let (_acceptor, target, accepted) = peer(Some(key(1)));
    through(&target, to(8), |conn| match conn {
        Err(DialError::Refused { reason, .. }) => assert_eq!(reason, Refusal::WrongDestination),
        other => panic!("{other:?}"),
    });
    assert_serves(&target, &accepted, &key(1));
}

#[test]
fn what_one_says_is_no_answer_to_it() {
    let (mut knock, hello) = Knock::new(&to(7), Some(key(1).secret())).unwrap();
    assert!(hear(&mut knock, &hello).is_err());
    // The answer of somebody else with the key, to another first message.
    let (_, other) = Knock::new(&to(7), Some(key(1).secret())).unwrap();
    let Visit::Answer(answer) = knock_at(&mut Door::new(Some(key(1).into())), &other) else {
        panic!("a good one")
    };
    let (mut knock, _) = Knock::new(&to(7), Some(key(1).secret())).unwrap();
    assert_eq!(hear(&mut knock, &answer).unwrap_err(), KnockError::Proof);
}

#[test]
fn the_proof_of_one_connection_is_none_in_another() {
    let session = || {
        let (mut knock, hello) = Knock::new(&to(7), Some(key(1).secret())).unwrap();
        let mut door = Door::new(Some(key(1).into()));
        let Visit::Answer(answer) = knock_at(&mut door, &hello) else { panic!("a good one") };
        let Ok(Heard::Proven(proof, _)) = hear(&mut knock, &answer) else { panic!("a good one") };
        (door, proof)
    };
    let ((mut one, proof_of_one), (mut other, proof_of_other)) = (session(), session());
    assert!(matches!(knock_at(&mut one, &proof_of_other), Visit::Unwanted(None, _)));
    assert!(matches!(knock_at(&mut other, &proof_of_one), Visit::Unwanted(None, _)));
    let (mut third, proof) = session();
    assert!(matches!(knock_at(&mut third, &proof), Visit::Known(_, Some(_))));
}

#[test]
fn every_changed_bit_of_a_handshake_ends_it() {
    let (_, hello) = Knock::new(&to(7), Some(key(1).secret())).unwrap();
    for bit in 0..8 * hello.len() {
        let mut changed = hello.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        let visit = knock_at(&mut Door::new(Some(key(1).into())), &changed);
        // The highest bit of a public key has no meaning, but for the handshake that binds it.
        assert!(matches!(visit, Visit::Unwanted(..)), "bit {bit}: {visit:?}");
    }
    for bit in 0..8 * ANSWER_BYTES {
        let (mut knock, hello) = Knock::new(&to(7), Some(key(1).secret())).unwrap();
        let Visit::Answer(mut answer) = knock_at(&mut Door::new(Some(key(1).into())), &hello) else {
            panic!()
        };
        answer[bit / 8] ^= 1 << (bit % 8);
        // The version in a reply has a meaning in refusals only; its check word is altered with it here or not at all.
        assert!(hear(&mut knock, &answer).is_err(), "bit {bit}");
    }
    for bit in 0..8 * PROOF_BYTES {
        let (mut knock, hello) = Knock::new(&to(7), Some(key(1).secret())).unwrap();
        let mut door = Door::new(Some(key(1).into()));
        let Visit::Answer(answer) = knock_at(&mut door, &hello) else { panic!() };
        let Ok(Heard::Proven(mut proof, _)) = hear(&mut knock, &answer) else { panic!() };
        proof[bit / 8] ^= 1 << (bit % 8);
        assert!(matches!(knock_at(&mut door, &proof), Visit::Unwanted(None, _)), "bit {bit}");
    }
}

#[test]
fn a_handshake_may_end_after_any_byte() {
    let (_acceptor, target, accepted) = peer(Some(key(1)));
    let (_, hello) = Knock::new(&to(7), Some(key(1).secret())).unwrap();
    for count in 0..hello.len() {
        raw(&target).write_all(&hello[..count]).unwrap();
    }
    assert_serves(&target, &accepted, &key(1));
    // And the other way round.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let server = HostPort::from(listener.local_addr().unwrap());
    for count in 0..ANSWER_BYTES {
        let dialing = thread::spawn({
            let server = server.clone();
            move || dial_with_preamble(&server, &to(7), Some(key(1).secret()), soon())
        });
        let (mut stream, _) = listener.accept().unwrap();
        let mut hello = [0; HELLO_BYTES];
        stream.read_exact(&mut hello).unwrap();
        let Visit::Answer(answer) = knock_at(&mut Door::new(Some(key(1).into())), &hello) else { panic!() };
        stream.write_all(&answer[..count]).unwrap();
        drop(stream);
        let error = dialing.join().unwrap().unwrap_err();
        assert!(matches!(error, DialError::NoAnswer { .. }), "after {count} bytes: {error}");
    }
}

#[test]
fn a_thousand_who_say_nothing_hold_up_nobody() {
    let (_acceptor, target, accepted) = peer(Some(key(1)));
    let (_, hello) = Knock::new(&to(7), Some(key(1).secret())).unwrap();
    let silent: Vec<TcpStream> = (0..1000)
        .map(|i| {
            let mut stream = raw(&target);
            // Some have begun: in the preamble, behind it, in the first message, before the proof.
            let _ = stream.write_all(&hello[..i % (hello.len() + 1)]);
            stream
        })
        .collect();
    for _ in 0..3 {
        assert_serves(&target, &accepted, &key(1));
    }
    drop(silent);
}

#[test]
fn a_network_that_takes_all_places_pushes_nobody_out_of_other_ones() {
    let (_acceptor, target, _accepted) = peer(Some(key(1)));
    let (mut knock, hello) = Knock::new(&to(7), Some(key(1).secret())).unwrap();
    let mut slow = raw(&target);
    slow.write_all(&hello[..10]).unwrap();
    let crowd: Vec<Socket> = (0..1000)
        .map(|_| {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            socket.bind(&SocketAddr::from(([127, 0, 9, 9], 0)).into()).unwrap();
            socket.connect(&SocketAddr::from(([127, 0, 0, 1], target.port)).into()).unwrap();
            let _ = socket.send(&hello[..20]);
            socket
        })
        .collect();
    // One of them is closed to make room, and not the older one from elsewhere.
    assert!(matches!((&crowd[0]).read(&mut [0]), Ok(0) | Err(_)));
    slow.write_all(&hello[10..]).unwrap();
    let mut answer = [0; ANSWER_BYTES];
    slow.read_exact(&mut answer).unwrap();
    assert!(matches!(hear(&mut knock, &answer), Ok(Heard::Proven(..))));
}

/// How often random input is tried: together with that of records ten million times with `PCCL_TEST_FULL=1`.
fn rounds() -> u64 {
    if std::env::var_os("PCCL_TEST_FULL").is_some() { 4_000_000 } else { 20_000 }
}

/// Changes some bytes, cuts off or adds some.
fn mutate(rng: &mut Rng, bytes: &mut Vec<u8>) {
    for _ in 0..1 + rng.index(3) {
        match rng.index(4) {
            0 if !bytes.is_empty() => {
                let at = rng.index(bytes.len());
                bytes[at] = rng.next() as u8;
            }
            1 => bytes.truncate(rng.index(bytes.len() + 1)),
            2 => {
                let count = rng.index(40);
                bytes.extend(rng.bytes(count));
            }
            _ => *bytes = rng.bytes(bytes.len()),
        }
    }
}

#[test]
fn random_bytes_in_every_state_lead_to_nothing() {
    let right = key(1);
    let (_, good_hello) = Knock::new(&to(7), Some(right.secret())).unwrap();
    for round in 0..rounds() {
        let mut rng = Rng::keyed(&[round]);
        // The listener, at its first byte, behind a good preamble, and behind a good first message.
        let mut door = Door::new(Some(right.clone().into()));
        let (good, mut bad) = match rng.index(2) {
            // A good first message costs an answer; most rounds do without.
            _ if round % 64 == 0 => (HELLO_BYTES, vec![0; PROOF_BYTES]),
            0 => (0, good_hello.clone()),
            _ => (PREAMBLE_BYTES, good_hello[PREAMBLE_BYTES..].to_vec()),
        };
        let stage = good_hello[..good].to_vec();
        let original = good_hello[good..].to_vec();
        mutate(&mut rng, &mut bad);
        let before = if stage.is_empty() { Visit::Nothing } else { knock_at(&mut door, &stage) };
        assert!(matches!(before, Visit::Nothing | Visit::Answer(_)));
        if good < HELLO_BYTES && bad.starts_with(&original) {
            continue;
        }
        if !bad.is_empty() {
            let visit = knock_at(&mut door, &bad);
            assert!(matches!(visit, Visit::Nothing | Visit::Unwanted(..)), "round {round}: {visit:?}");
        }
        // The dialer, at the reply.
        if round % 16 == 0 {
            let (mut knock, _) = Knock::new(&to(7), Some(right.secret())).unwrap();
            let mut answer = [&Reply::GoOn.encode()[..], &rng.bytes(49)].concat();
            mutate(&mut rng, &mut answer);
            let heard = if answer.is_empty() { Ok(Heard::Nothing) } else { hear(&mut knock, &answer) };
            assert!(matches!(heard, Ok(Heard::Nothing) | Err(_)), "round {round}: {heard:?}");
        }
    }
}
