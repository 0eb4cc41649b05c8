//! Clients that take more than their share: the master bounds what they get, and serves the others.

mod common;

use common::{Client, half_way, launch};
use pccl_master::{Master, RunKey};
use pccl_protocol::{
    C2m, KickCode, M2c, RequestId,
    limits::{MAX_LARGE_PACKETS_BYTES, MAX_PACKET_BYTES, MAX_WAITING_PACKET_BYTES},
};
use std::{
    io::{self, ErrorKind, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream},
    thread::{self, JoinHandle},
};

/// The beginning of a packet of this length, of no kind that there is.
fn unknown_packet(bytes: usize) -> Vec<u8> {
    let mut frame = u32::try_from(bytes).unwrap().to_be_bytes().to_vec();
    frame.extend([0xff, 0xff]);
    frame
}

#[test]
fn who_waits_to_be_let_in_is_refused_at_the_length_of_a_large_packet() {
    let master = launch(|_| {});
    let (mut witness, _) = Client::register(master.local_addr(), 0);
    witness.confirm_ring_of(1);
    witness.wait_for_admission();
    let (mut waits, _) = Client::register(master.local_addr(), 0);
    // One that is as large as it may be is judged when it is there.
    let mut packet = unknown_packet(MAX_WAITING_PACKET_BYTES);
    packet.resize(4 + MAX_WAITING_PACKET_BYTES, 0);
    waits.stream.write_all(&packet).unwrap();
    assert!(!waits.wait_for_kick().detail.as_str().contains("packet has"));
    let (mut waits, _) = Client::register(master.local_addr(), 0);
    waits.stream.write_all(&unknown_packet(MAX_WAITING_PACKET_BYTES + 1)).unwrap();
    let reason = waits.wait_for_kick();
    assert_eq!(reason.code, KickCode::Malformed);
    let most = format!("{MAX_WAITING_PACKET_BYTES}");
    assert!(reason.detail.as_str().contains(&most), "{reason}");
    witness.check_alive(1);
}

/// Members of groups of one each.
fn members(master: &Master, count: u32) -> Vec<Client> {
    let mut members: Vec<Client> = Vec::new();
    for group in 0..count {
        let (mut new, _) = Client::register(master.local_addr(), group);
        members.iter_mut().for_each(|member| member.vote_topology(group.into()));
        new.confirm_ring_of(1);
        new.wait_for_admission();
        for member in &mut members {
            member.wait_for("TopologyDone", |packet| matches!(packet, M2c::TopologyDone(_)).then_some(()));
        }
        members.push(new);
    }
    members
}

#[test]
fn large_packets_of_members_take_turns_and_all_arrive() {
    let master = launch(|_| {});
    let count = MAX_LARGE_PACKETS_BYTES / MAX_PACKET_BYTES + 2;
    let mut members = members(&master, u32::try_from(count + 1).unwrap());
    let mut witness = members.pop().unwrap();
    let sending: Vec<_> = members
        .into_iter()
        .map(|mut member| {
            thread::spawn(move || {
                let mut packet = unknown_packet(MAX_PACKET_BYTES);
                packet.resize(4 + MAX_PACKET_BYTES, 0);
                member.stream.write_all(&packet).expect("its turn comes");
                // The fault of the packet is only known when all of it is there.
                member.wait_for_kick()
            })
        })
        .collect();
    witness.check_alive(1);
    for thread in sending {
        let reason = thread.join().unwrap();
        assert_eq!(reason.code, KickCode::Malformed);
        assert!(!reason.detail.as_str().contains("packet has"), "{reason}");
    }
    witness.check_alive(2);
}

/// A client that sends `packet` again and again, and reads nothing; ends with the error that ends its connection.
fn flood(master: &Master, packet: &C2m) -> (TcpStream, JoinHandle<io::Error>) {
    let mut stream = Client::register(master.local_addr(), 0).0.stream;
    stream.set_write_timeout(None).unwrap();
    let (other, many): (_, Vec<u8>) =
        (stream.try_clone().unwrap(), (0..1000).flat_map(|_| packet.to_frame()).collect());
    let thread = thread::spawn(move || {
        loop {
            if let Err(error) = stream.write_all(&many) {
                return error;
            }
        }
    });
    (other, thread)
}

#[test]
fn who_asks_without_end_is_dropped_and_delays_nobody() {
    let master = launch(|_| {});
    let (mut witness, _) = Client::register(master.local_addr(), 0);
    let question = C2m::StatusRequest(RequestId(1));
    let floods: Vec<_> = (0..8).map(|_| flood(&master, &question)).collect();
    for sequence in 0..50 {
        witness.check_alive(sequence);
    }
    for (_, thread) in floods {
        let error = thread.join().unwrap();
        assert!(matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{error}");
    }
    witness.check_alive(50);
}

#[test]
fn who_beats_without_end_is_held_back_and_delays_nobody() {
    let master = launch(|_| {});
    let (mut witness, _) = Client::register(master.local_addr(), 0);
    let floods: Vec<_> = (0..8).map(|_| flood(&master, &common::beat(1))).collect();
    for sequence in 0..50 {
        witness.check_alive(sequence);
    }
    for (stream, thread) in floods {
        assert!(!thread.is_finished(), "somebody was dropped, or could send all");
        stream.shutdown(Shutdown::Both).unwrap();
        thread.join().unwrap();
    }
    witness.check_alive(50);
}

#[test]
fn who_asks_now_and_then_gets_every_answer() {
    let master = launch(|_| {});
    let (mut client, _) = Client::register(master.local_addr(), 0);
    // More than are answered at once.
    (0..16).for_each(|n| client.send(&C2m::StatusRequest(RequestId(n))));
    for n in 0..16 {
        let status = client.wait_for("Status", |packet| match packet {
            M2c::Status(status) => Some(status),
            _ => None,
        });
        assert_eq!(status.request, RequestId(n));
    }
}

#[test]
fn a_dropped_client_that_never_stops_sending_is_cut_off() {
    let master = launch(|_| {});
    let (mut witness, _) = Client::register(master.local_addr(), 0);
    let (client, _) = Client::register(master.local_addr(), 0);
    let mut stream = client.stream;
    stream.write_all(&u32::MAX.to_be_bytes()).unwrap();
    let piece = vec![0; 1 << 20];
    let mut sent = 0;
    while stream.write_all(&piece).is_ok() {
        sent += 1;
        assert!(sent < 1 << 10, "a GiB was read of somebody who was dropped");
    }
    witness.check_alive(1);
}

/// As many as descriptors allow, up to 10,000, from many networks, beside one who means it well.
#[cfg(target_os = "linux")]
#[test]
fn ten_thousand_slow_connections_hold_up_nobody() {
    use socket2::{Domain, Socket, Type};
    use std::net::{Ipv4Addr, SocketAddr};

    let master = launch(|_| {});
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let descriptors: usize = line.split_whitespace().nth(3).unwrap().parse().unwrap_or(usize::MAX);
    let count = descriptors.saturating_sub(1500).min(10_000);
    println!("{count} connections");
    let (mut witness, _) = Client::register(master.local_addr(), 0);
    let mut open = Vec::new();
    for number in 0..count {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let from = Ipv4Addr::new(127, 1 + u8::try_from(number % 200).unwrap(), 0, 1);
        socket.bind(&SocketAddr::from((from, 0)).into()).unwrap();
        socket.connect(&master.local_addr().into()).unwrap();
        // As the first byte of one that means it well.
        let _ = (&socket).write(&[0xff]);
        open.push(socket);
        if number % 1000 == 0 {
            witness.check_alive(number as u64);
        }
    }
    witness.check_alive(u64::MAX);
    drop(Client::register(master.local_addr(), 0));
    drop(open);
}

/// A connection from an address of this machine.
fn stream_from(from: Ipv4Addr, master: SocketAddr) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::new(from.into(), 0).into()).unwrap();
    socket.connect(&master.into()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(common::PATIENCE)).unwrap();
    stream
}

#[test]
fn strangers_from_many_networks_drive_out_nobody_who_has_shown_the_key() {
    let key = RunKey::from_bytes([3; 32]);
    let master = launch(|config| {
        config.run_key = Some(key.clone());
        // On a busy machine the crowd takes longer than the time for a proof.
        config.registration_timeout = common::PATIENCE;
    });
    let address = master.local_addr();
    // Somebody far away: its first message was answered, and the answer is on its way.
    let honest = stream_from(Ipv4Addr::LOCALHOST, address);
    let (mut stream, proof, seal) = half_way(honest, &key);
    // Each from a network of its own, and more than there is room for.
    let crowd: Vec<TcpStream> =
        (0..3 * 384u32).map(|i| stream_from(Ipv4Addr::from_bits(0x7f01_0001 + (i << 8)), address)).collect();
    stream.write_all(&proof).unwrap();
    let mut conn = tinysockets::conn::Conn::from(stream);
    conn.protect(*seal);
    let mut reply = [0; tinysockets::preamble::REPLY_BYTES];
    let deadline = std::time::Instant::now() + common::PATIENCE;
    conn.recv_all(&mut reply, Some(deadline)).expect("it was not dropped");
    assert_eq!(tinysockets::preamble::Reply::decode(&reply), Ok(tinysockets::preamble::Reply::Accepted));
    drop(crowd);
}
