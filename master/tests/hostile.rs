//! Attacks that the network may make on a master: each time another client must be served as if nothing had happened.

use crate::common::{Client, PATIENCE, answer_to, beat, launch, read_to_end, registration, stream_to};
use pccl_hash::Digest128;
use pccl_master::{Master, RunKey, query_status};
use pccl_protocol::{
    C2m, GroupEpoch, Host, Key, KickCode, M2c, Register, RequestId, Revision, StateEntry, SyncInitiate,
    SyncStrategy, is_hidden, limits::MAX_FIRST_PACKET_BYTES,
};
use pccl_quant::DataType;
use pccl_testkit::random::Rng;
use socket2::{Domain, Socket, Type};
use std::{
    fs,
    io::{ErrorKind, Read, Write},
    net::{Shutdown, TcpStream},
    path::Path,
    time::{Duration, Instant},
};
use tinysockets::{
    handshake::{ANSWER_BYTES, Knock},
    preamble::{PREAMBLE_BYTES, Preamble, REPLY_BYTES, Refusal, Reply, Role},
};

/// Proves that `master` serves a new client.
fn check_service(master: &Master) {
    let (mut client, _) = Client::register(master.local_addr(), 0);
    client.check_alive(1);
}

#[test]
fn garbage_in_place_of_a_preamble_is_closed_without_an_answer() {
    let master = launch(|_| {});
    let mut openings = vec![vec![0; 8], b"GET / HTTP/1.1\r\nHost: master\r\n\r\n".to_vec(), vec![0xff; 4096]];
    openings.extend((0..50).map(|seed| Rng(seed).bytes(1 + (seed as usize * 37) % 3000)));
    for bytes in openings {
        assert_eq!(answer_to(master.local_addr(), &bytes), b"", "{:?}", &bytes[..bytes.len().min(16)]);
    }
    check_service(&master);
}

#[test]
fn a_preamble_with_an_altered_byte_is_not_accepted() {
    let master = launch(|_| {});
    let good = Preamble::new(Role::Control).encode();
    for at in 0..PREAMBLE_BYTES {
        let mut bytes = good;
        bytes[at] ^= 0x10;
        let answer = answer_to(master.local_addr(), &bytes);
        if let Ok(reply) = <[u8; REPLY_BYTES]>::try_from(answer.as_slice()) {
            assert!(matches!(Reply::decode(&reply), Ok(Reply::Refused(_))), "byte {at}");
        } else {
            assert!(answer.is_empty(), "byte {at}: {answer:?}");
        }
    }
    check_service(&master);
}

/// The frame of a packet with other text in the place of one that it holds.
fn forged(packet: &C2m, placeholder: &str, text: &str) -> Vec<u8> {
    assert_eq!(placeholder.len(), text.len());
    let mut frame = packet.to_frame();
    let at =
        frame.windows(text.len()).position(|bytes| bytes == placeholder.as_bytes()).expect("it is there");
    frame[at..at + text.len()].copy_from_slice(text.as_bytes());
    frame
}

/// A registration with a host in which such text is to stand.
fn with_host(host: &str) -> C2m {
    let C2m::Register(register) = registration(0) else { panic!("another packet") };
    C2m::Register(Register { advertised_host: Some(Host::new(host)), ..register })
}

#[test]
fn a_text_that_would_forge_lines_ends_the_connection_and_is_shown_to_nobody() {
    let master = launch(|_| {});
    let (mut good, _) = Client::register(master.local_addr(), 0);
    for text in
        ["x)\n[2026", "\u{1b}[31mxyz", "ab\u{202e}cd\u{200f}", "\u{2028}\u{85}abc", "a b) (c)", "a\rpeer (b"]
    {
        let placeholder = "Z".repeat(text.len());
        let mut evil = Client::connect(master.local_addr());
        evil.stream.write_all(&forged(&with_host(&placeholder), &placeholder, text)).unwrap();
        let reason = evil.wait_for_kick();
        assert_eq!(reason.code, KickCode::Malformed, "{reason}");
        assert!(!reason.to_string().contains(is_hidden), "{reason}");
    }
    // A member that lists a key with a line end.
    let entry = StateEntry {
        key: Key::new("ZZZZ"),
        count: 1,
        data_type: DataType::Float32,
        allow_inequality: false,
        digest: Digest128::default(),
    };
    let sync = C2m::SyncInitiate(SyncInitiate {
        request: RequestId(1),
        epoch: GroupEpoch(1),
        revision: Revision(0),
        strategy: SyncStrategy::EnforcePopular,
        entries: vec![entry],
        offered: None,
    });
    let (mut evil, _) = Client::register(master.local_addr(), 0);
    evil.stream.write_all(&forged(&sync, "ZZZZ", "w\n\u{1b}[")).unwrap();
    assert_eq!(evil.wait_for_kick().code, KickCode::Malformed);
    let status = query_status(&master.local_addr().to_string(), None, PATIENCE).unwrap();
    assert_eq!(status.peers.len(), 1);
    good.check_alive(7);
}

#[test]
fn a_valid_preamble_for_somebody_else_is_refused_with_the_reason() {
    let master = launch(|_| {});
    let good = Preamble::new(Role::Control);
    let cases = [
        (Preamble::new(Role::Data), Refusal::WrongRole),
        (Preamble::new(Role::State), Refusal::WrongRole),
        (Preamble::new(Role::Probe), Refusal::WrongRole),
        (Preamble { to: 7, ..good }, Refusal::WrongDestination),
        (Preamble { run: master.run_id().0 ^ 1, ..good }, Refusal::WrongRun),
        (Preamble { version: 2, ..good }, Refusal::UnsupportedVersion),
        (Preamble { security: 1, ..good }, Refusal::NoKey),
        (Preamble { security: 2, ..good }, Refusal::UnsupportedSecurity),
    ];
    for (preamble, refusal) in cases {
        let answer = answer_to(master.local_addr(), &preamble.encode());
        let reply: [u8; REPLY_BYTES] = answer.as_slice().try_into().expect("one reply and the end");
        assert_eq!(Reply::decode(&reply), Ok(Reply::Refused(refusal)));
    }
    let mut stream = stream_to(master.local_addr());
    stream.write_all(&Preamble { run: master.run_id().0, ..good }.encode()).unwrap();
    Client::after_preamble(stream);
}

fn key() -> RunKey {
    RunKey::from_bytes([7; 32])
}

/// A client that has the key is answered.
fn check_keyed_service(master: &Master) {
    let address = master.local_addr().to_string();
    let status = query_status(&address, Some(&key()), PATIENCE).expect("an answer");
    assert!(status.peers.is_empty(), "nobody has become a peer");
}

#[test]
fn nobody_without_the_key_gets_further_than_the_handshake() {
    let master = launch(|config| config.run_key = Some(key()));
    let hello = || Knock::new(&Preamble::new(Role::Control), Some(key().secret())).unwrap().1;
    let good = hello();
    for count in 0..good.len() {
        stream_to(master.local_addr()).write_all(&good[..count]).unwrap();
    }
    for at in 0..good.len() {
        let mut bytes = hello();
        bytes[at] ^= 0x10;
        let answer = answer_to(master.local_addr(), &bytes);
        match <[u8; REPLY_BYTES]>::try_from(answer.as_slice()) {
            Ok(reply) => assert!(matches!(Reply::decode(&reply), Ok(Reply::Refused(_))), "byte {at}"),
            Err(_) => assert!(answer.is_empty(), "byte {at}: {answer:?}"),
        }
    }
    // One without the key, one with another key, and a good first message that is repeated with anything behind it.
    let without = Preamble::new(Role::Control).encode().to_vec();
    let other =
        Knock::new(&Preamble::new(Role::Control), Some(RunKey::from_bytes([8; 32]).secret())).unwrap().1;
    for (bytes, refusal) in [(without, Refusal::KeyWanted), (other, Refusal::WrongKey)] {
        let reply: [u8; REPLY_BYTES] = answer_to(master.local_addr(), &bytes).try_into().expect("one reply");
        assert_eq!(Reply::decode(&reply), Ok(Reply::Refused(refusal)));
    }
    for behind in
        [&[0; 20][..], &[0xff; 20], &[0, 0, 0, 16, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]]
    {
        let answer = answer_to(master.local_addr(), &[&good[..], behind].concat());
        assert!(answer.len() <= ANSWER_BYTES, "no reply behind the second message: {answer:?}");
    }
    check_keyed_service(&master);
}

#[test]
fn a_thousand_slow_connections_hold_up_no_master_with_a_key() {
    let master = launch(|config| config.run_key = Some(key()));
    let hello = Knock::new(&Preamble::new(Role::Control), Some(key().secret())).unwrap().1;
    let silent: Vec<TcpStream> = (0..1000)
        .map(|i| {
            let mut stream = stream_to(master.local_addr());
            let _ = stream.write_all(&hello[..i % (hello.len() + 1)]);
            stream
        })
        .collect();
    check_keyed_service(&master);
    drop(silent);
}

#[test]
fn half_a_preamble_holds_up_nobody_and_ends_by_itself() {
    let master = launch(|config| config.registration_timeout = Duration::from_millis(500));
    let mut silent = stream_to(master.local_addr());
    let mut half = stream_to(master.local_addr());
    half.write_all(&Preamble::new(Role::Control).encode()[..PREAMBLE_BYTES / 2]).unwrap();
    check_service(&master);
    assert_eq!(read_to_end(&mut half), b"");
    assert_eq!(read_to_end(&mut silent), b"");
    check_service(&master);
}

#[test]
fn more_silent_connections_than_the_master_holds() {
    let master = launch(|_| {});
    let mut silent: Vec<TcpStream> = (0..270).map(|_| stream_to(master.local_addr())).collect();
    check_service(&master);
    // The oldest made room.
    assert_eq!(read_to_end(&mut silent[0]), b"");
    // The youngest still has its chance; a busy machine may have given the others up meanwhile.
    let mut youngest = stream_to(master.local_addr());
    youngest.write_all(&Preamble::new(Role::Control).encode()).unwrap();
    Client::after_preamble(youngest);
}

#[test]
fn one_byte_at_a_time() {
    let master = launch(|_| {});
    let mut stream = stream_to(master.local_addr());
    let mut bytes = Preamble::new(Role::Control).encode().to_vec();
    bytes.extend(registration(0).to_frame());
    bytes.extend(beat(9).to_frame());
    for byte in bytes {
        stream.write_all(&[byte]).unwrap();
    }
    let mut client = Client::after_preamble(stream);
    client.wait_for("Echo", |packet| matches!(packet, M2c::Echo(_)).then_some(()));
}

#[test]
fn everything_in_one_segment() {
    let master = launch(|_| {});
    let mut stream = stream_to(master.local_addr());
    let mut bytes = Preamble::new(Role::Control).encode().to_vec();
    bytes.extend(registration(0).to_frame());
    // More than the first read takes.
    for sequence in 0..200 {
        bytes.extend(beat(sequence).to_frame());
    }
    stream.write_all(&bytes).unwrap();
    let mut client = Client::after_preamble(stream);
    client.wait_for("Echo", |packet| matches!(packet, M2c::Echo(echo) if echo.sequence == 199).then_some(()));
}

/// Sends `bytes` behind a good preamble (and registration) and returns why the master ended it.
fn kick_for(master: &Master, registered: bool, bytes: &[u8]) -> KickCode {
    let mut client = if registered {
        Client::register(master.local_addr(), 0).0
    } else {
        Client::connect(master.local_addr())
    };
    client.stream.write_all(bytes).unwrap();
    client.wait_for_kick().code
}

#[test]
fn bytes_that_are_no_packet_cost_their_sender_the_connection() {
    let master = launch(|_| {});
    let (mut witness, _) = Client::register(master.local_addr(), 1);
    let too_short = [0, 0, 0, 1, 0, 0];
    let too_long_at_first = u32::try_from(MAX_FIRST_PACKET_BYTES + 1).unwrap().to_be_bytes();
    let huge = u32::MAX.to_be_bytes();
    let unknown_kind = [0, 0, 0, 2, 0xff, 0xff];
    let mut altered_code = beat(1).to_frame();
    altered_code[6 + 8] = 0xee;
    let mut trailing = beat(1).to_frame();
    trailing[3] += 1;
    trailing.push(0);
    for registered in [false, true] {
        for bytes in [&too_short[..], &huge, &unknown_kind, &altered_code, &trailing, &[0; 64]] {
            assert_eq!(kick_for(&master, registered, bytes), KickCode::Malformed, "{registered} {bytes:?}");
        }
    }
    assert_eq!(kick_for(&master, false, &too_long_at_first), KickCode::Malformed);
    witness.check_alive(1);
    check_service(&master);
}

#[test]
fn the_reason_of_a_kick_arrives_behind_everything_else_however_much_the_client_still_sends() {
    let master = launch(|_| {});
    let mut stream = deaf_stream(&master);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut bytes = Preamble::new(Role::Control).encode().to_vec();
    bytes.extend(registration(0).to_frame());
    // More echoes than fit into the client's receive buffer, so that the kick waits in the master's kernel. Not many
    // more: into so small a window the kernel may send a few hundred bytes at a time, five times a second.
    for sequence in 0..500 {
        bytes.extend(beat(sequence).to_frame());
    }
    bytes.extend(vec![0; 8 << 20]);
    stream.write_all(&bytes).expect("the master reads on until the client has heard the reason");
    let mut client = Client::after_preamble(stream);
    assert_eq!(client.wait_for_kick().code, KickCode::Malformed);
}

#[test]
fn a_client_that_does_not_begin_with_its_registration_is_kicked() {
    let master = launch(|_| {});
    assert_eq!(kick_for(&master, false, &beat(1).to_frame()), KickCode::Protocol);
    let again = registration(0).to_frame();
    assert_eq!(kick_for(&master, true, &again), KickCode::Protocol);
    check_service(&master);
}

#[test]
fn random_packets_end_in_a_kick_or_a_closed_stream_and_never_in_silence() {
    let master = launch(|_| {});
    let (mut witness, _) = Client::register(master.local_addr(), 1);
    for seed in 0..60 {
        let (client, _) = Client::register(master.local_addr(), 0);
        let mut stream = client.stream;
        for round in 0..20 {
            let body = Rng(seed * 100 + round).bytes(((seed * 7 + round) % 80) as usize);
            let mut frame = u32::try_from(body.len() + 2).unwrap().to_be_bytes().to_vec();
            frame.extend([0, 1 + (seed as u8 + round as u8) % 12]);
            frame.extend(body);
            if stream.write_all(&frame).is_err() {
                break;
            }
        }
        // It may have been kicked already.
        let _ = stream.shutdown(Shutdown::Write);
        read_to_end(&mut stream);
    }
    witness.check_alive(1);
    check_service(&master);
}

#[test]
fn every_packet_of_the_corpus_at_every_stage() {
    let master = launch(|_| {});
    let (mut witness, _) = Client::register(master.local_addr(), 1);
    witness.confirm_ring_of(1);
    witness.wait_for_admission();
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../pccl/protocol/corpus/c2m");
    let mut files = 0;
    for entry in fs::read_dir(corpus).unwrap() {
        let kind_and_body = fs::read(entry.unwrap().path()).unwrap();
        let mut frame = u32::try_from(kind_and_body.len()).unwrap().to_be_bytes().to_vec();
        frame.extend(kind_and_body);
        let (mut admitted, _) = Client::register(master.local_addr(), 0);
        witness.vote_topology(files);
        admitted.confirm_ring_of(1);
        admitted.wait_for_admission();
        let unregistered = Client::connect(master.local_addr());
        let (pending, _) = Client::register(master.local_addr(), 0);
        let streams = [unregistered.stream, pending.stream, admitted.stream];
        for mut stream in streams {
            // Twice, since some packets are legal once.
            stream.write_all(&frame).unwrap();
            let _ = stream.write_all(&frame);
            let _ = stream.shutdown(Shutdown::Write);
            read_to_end(&mut stream);
        }
        witness.check_alive(files);
        files += 1;
    }
    assert!(files > 30, "{files} files");
    check_service(&master);
}

#[test]
fn truncated_packets_and_an_early_end() {
    let master = launch(|_| {});
    let register = registration(0).to_frame();
    for end in 0..register.len() {
        let client = Client::connect(master.local_addr());
        let mut stream = client.stream;
        stream.write_all(&register[..end]).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(read_to_end(&mut stream), b"", "{end} bytes");
    }
    check_service(&master);
}

#[test]
fn a_client_that_never_reads_is_dropped_and_delays_nobody() {
    let master = launch(|config| config.client_queue_bytes = 16 << 10);
    let (mut witness, _) = Client::register(master.local_addr(), 1);
    let mut deaf = deaf_stream(&master);
    deaf.write_all(&Preamble::new(Role::Control).encode()).unwrap();
    deaf.write_all(&registration(0).to_frame()).unwrap();
    let beats: Vec<u8> = (0..1000).flat_map(|sequence| beat(sequence).to_frame()).collect();
    let mut rounds = 0;
    let begin = Instant::now();
    let error = loop {
        // Every beat is echoed, none of the echoes is read: sooner or later the master must give up.
        match deaf.write_all(&beats) {
            Ok(()) => rounds += 1,
            Err(error) => break error,
        }
        assert!(begin.elapsed() < PATIENCE, "the master queues without end");
        witness.check_alive(rounds);
    };
    assert!(matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{error}");
    witness.check_alive(u64::MAX);
    check_service(&master);
}

/// A connection with the smallest receive buffer that the system gives.
fn deaf_stream(master: &Master) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(1).unwrap();
    socket.connect(&master.local_addr().into()).unwrap();
    socket.set_write_timeout(Some(PATIENCE)).unwrap();
    socket.into()
}

#[test]
fn a_client_that_sends_without_end_delays_nobody() {
    let master = launch(|_| {});
    let (mut witness, _) = Client::register(master.local_addr(), 1);
    let (busy, _) = Client::register(master.local_addr(), 0);
    let mut sender = busy.stream.try_clone().unwrap();
    let mut reader = busy.stream;
    let beats: Vec<u8> = (0..1000).flat_map(|sequence| beat(sequence).to_frame()).collect();
    let sending = std::thread::spawn(move || while sender.write_all(&beats).is_ok() {});
    let reading = std::thread::spawn({
        let mut reader = reader.try_clone().unwrap();
        move || {
            let mut buffer = vec![0; 1 << 16];
            while matches!(reader.read(&mut buffer), Ok(n) if n > 0) {}
        }
    });
    for sequence in 0..100 {
        witness.check_alive(sequence);
    }
    check_service(&master);
    // It has been dropped for that, unless it sent slowly.
    let _ = reader.shutdown(Shutdown::Both);
    sending.join().unwrap();
    reading.join().unwrap();
    assert_eq!(reader.read(&mut [0]).unwrap_or(0), 0);
}

#[test]
fn a_packet_may_arrive_in_pieces_between_those_of_others() {
    let master = launch(|_| {});
    let (mut slow, _) = Client::register(master.local_addr(), 0);
    let (mut other, _) = Client::register(master.local_addr(), 1);
    let frame = C2m::VotePending(pccl_protocol::RequestId(1)).to_frame();
    for (sequence, byte) in beat(77).to_frame().into_iter().enumerate() {
        slow.stream.write_all(&[byte]).unwrap();
        other.check_alive(sequence as u64);
    }
    slow.wait_for("Echo", |packet| matches!(packet, M2c::Echo(echo) if echo.sequence == 77).then_some(()));
    slow.stream.write_all(&frame[..frame.len() - 1]).unwrap();
    drop(slow);
    other.check_alive(1000);
}
