//! Those who mean it ill, in a process of their own that goes on until it is ended.

use crate::honest::{beat, introduced, registration};
use pccl_protocol::{C2m, RequestId, limits::MAX_PACKET_BYTES};
use socket2::{Domain, Socket, Type};
use std::{
    collections::VecDeque,
    io::Write,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream},
    thread,
    time::{Duration, Instant},
};
use tinysockets::{
    conn::Conn,
    handshake::Knock,
    key::RunKey,
    preamble::{Preamble, Role},
};

/// Clients that wait for admission.
const WAITING: usize = 250;
/// Clients that flood.
const FLOODING: usize = 20;
/// Questions of one client.
const QUESTIONS: u64 = 1500;
/// Networks from which they come.
const NETWORKS: usize = 16;
/// Connections that are being begun slowly.
const SLOW: usize = 10_000;
/// Connections of a crowd that a second sees, and how many of them it holds.
const CROWD_PER_SECOND: f64 = 5000.0;
const CROWD_HELD: usize = 1500;
/// Networks of a crowd that has a block of IPv6.
pub(crate) const BLOCK: &str = "2001:db8:5::/48";
/// A connection that does not block is being made.
const IN_PROGRESS: i32 = libc::EINPROGRESS;
/// How long one who was turned away takes to come again.
const PAUSE: Duration = Duration::from_millis(100);
/// An attacker waits for nothing longer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Attacks for ever.
pub(crate) fn run(name: &str, address: SocketAddr, key: Option<&RunKey>) {
    let (count, one): (usize, fn(&Conn) -> std::io::Result<()>) = match name {
        "packets" => (WAITING, most_of_a_packet),
        "questions" => (WAITING, questions),
        "beats" => (FLOODING, beats),
        "joins" => (FLOODING, |_| Ok(())),
        "slow" => return slow(address, key),
        "networks" => return crowd(address, of_networks),
        "block" => return crowd(address, of_block),
        _ => panic!("{name}: calm, packets, questions, beats, joins, slow, networks or block"),
    };
    thread::scope(|scope| {
        for number in 0..count {
            // Not from the network of the honest ones, which has a share of its own of what strangers may take.
            let from = Ipv4Addr::new(127, 66, u8::try_from(number % NETWORKS).expect("fits"), 1);
            let again = move || loop {
                if let Ok(conn) = connect(from, address, key) {
                    let deadline = Some(Instant::now() + PATIENCE);
                    let _ = conn.send_all(&registration().to_frame(), deadline).and_then(|()| one(&conn));
                }
                // An attacker that only joins does so as often as it can.
                if name != "joins" {
                    thread::sleep(PAUSE);
                }
            };
            let small = thread::Builder::new().stack_size(256 << 10);
            small.spawn_scoped(scope, again).expect("a thread");
        }
    });
}

/// All of the largest packet but its last byte, and then nothing but beats, which do not get through.
fn most_of_a_packet(conn: &Conn) -> std::io::Result<()> {
    let deadline = Some(Instant::now() + PATIENCE);
    let length = u32::try_from(MAX_PACKET_BYTES).expect("fits").to_be_bytes();
    conn.send_all(&length, deadline)?;
    // The kind of a beat.
    conn.send_all(&[0, 2], deadline)?;
    let piece = vec![0; 64 << 10];
    let mut left = MAX_PACKET_BYTES - 3;
    while left > 0 {
        let count = left.min(piece.len());
        conn.send_all(&piece[..count], deadline)?;
        left -= count;
    }
    until_the_end(conn)
}

/// Asks and does not read.
fn questions(conn: &Conn) -> std::io::Result<()> {
    let asked: Vec<u8> = (0..QUESTIONS).flat_map(|n| C2m::StatusRequest(RequestId(n)).to_frame()).collect();
    conn.send_all(&asked, Some(Instant::now() + PATIENCE))?;
    loop {
        // A beat now and then, as somebody sends who is alive.
        conn.send_all(&beat(1).to_frame(), Some(Instant::now() + PATIENCE))?;
        thread::sleep(Duration::from_secs(1));
    }
}

/// Beats without end; the echoes are read.
fn beats(conn: &Conn) -> std::io::Result<()> {
    let beats: Vec<u8> = (0..1000).flat_map(|sequence| beat(sequence).to_frame()).collect();
    let mut piece = vec![0; 256 << 10];
    let (mut sent, mut stuck) = (0, Instant::now());
    loop {
        let moved = match conn.try_flush().and_then(|()| conn.try_send(&beats[sent..])) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => 0,
            other => other?,
        };
        sent = (sent + moved) % beats.len();
        let read = match conn.try_recv(&mut piece) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => 0,
            other => other?,
        };
        if moved + read > 0 {
            stuck = Instant::now();
        } else if stuck.elapsed() > PATIENCE {
            return Ok(());
        } else {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Reads until the master ends it.
fn until_the_end(conn: &Conn) -> std::io::Result<()> {
    let mut piece = [0; 4096];
    while conn.recv_some(&mut piece, Some(Instant::now() + PATIENCE))? > 0 {}
    Ok(())
}

/// Many connections from many networks, none of which gets further than a part of its first message.
fn slow(address: SocketAddr, key: Option<&RunKey>) {
    let hello = Knock::new(&Preamble::new(Role::Control), key.map(tinysockets::key::RunKey::secret))
        .expect("a first message")
        .1;
    let mut open: VecDeque<TcpStream> = VecDeque::new();
    let mut from = 0_u32;
    loop {
        from += 1;
        let network = u8::try_from(1 + from % 200).expect("fits");
        match begin(Ipv4Addr::new(127, network, 0, 1), address) {
            Ok(mut stream) => {
                let part = from as usize % hello.len();
                let _ = stream.write_all(&hello[..part]);
                open.push_back(stream);
            }
            Err(_) => thread::sleep(Duration::from_millis(1)),
        }
        if open.len() > SLOW {
            open.pop_front();
            // All are there: from here on they come more slowly.
            thread::sleep(Duration::from_micros(500));
        }
    }
}

/// Connections that never say anything, [`CROWD_PER_SECOND`] of them each second. The newest of them are held.
fn crowd(address: SocketAddr, from: fn(u32) -> IpAddr) {
    let mut open: VecDeque<TcpStream> = VecDeque::new();
    let (mut begun, start) = (0, Instant::now());
    loop {
        if f64::from(begun) > start.elapsed().as_secs_f64() * CROWD_PER_SECOND {
            thread::sleep(Duration::from_micros(500));
            continue;
        }
        // One that finds no place in the master's queue is one less.
        open.extend(begin_soon(from(begun), address));
        begun += 1;
        if open.len() > CROWD_HELD {
            open.pop_front();
        }
    }
}

/// Of 400 networks of IPv4.
fn of_networks(number: u32) -> IpAddr {
    let byte = |value: u32| u8::try_from(value).expect("fits");
    let (network, host) = (number % 400, 1 + number / 400 % 250);
    Ipv4Addr::new(127, byte(1 + network / 200), byte(network % 200), byte(host)).into()
}

/// Of 1,000 networks of [`BLOCK`].
fn of_block(number: u32) -> IpAddr {
    let number_of = |value: u32| u16::try_from(value).expect("fits");
    let (network, host) = (number_of(number % 1000), 1 + number_of(number / 1000 % 60_000));
    Ipv6Addr::from([0x2001, 0xdb8, 5, network, 0, 0, 0, host]).into()
}

/// Begins a connection that goes away without a trace when it is dropped, and does not wait for it.
fn begin_soon(from: IpAddr, to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
    if from.is_ipv6() {
        socket.set_freebind_v6(true)?;
    }
    socket.set_linger(Some(Duration::ZERO))?;
    socket.set_nonblocking(true)?;
    socket.bind(&SocketAddr::from((from, 0)).into())?;
    match socket.connect(&to.into()) {
        Err(error) if error.raw_os_error() != Some(IN_PROGRESS) => Err(error),
        _ => Ok(socket.into()),
    }
}

/// A control connection from this address, accepted by the master.
fn connect(from: Ipv4Addr, to: SocketAddr, key: Option<&RunKey>) -> Result<Conn, String> {
    let socket = begin(from, to).map_err(|error| error.to_string())?;
    socket.set_nonblocking(false).map_err(|error| error.to_string())?;
    introduced(socket.into(), to, key)
}

fn begin(from: Ipv4Addr, to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SocketAddr::from((from, 0)).into())?;
    socket.connect_timeout(&to.into(), Duration::from_secs(1))?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}
