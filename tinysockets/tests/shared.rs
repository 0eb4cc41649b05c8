//! Connections whose bytes go through memory that both ends share, and those that must do without.

use std::{
    fs::File,
    io::{self, Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    os::fd::AsRawFd,
    thread,
    time::Instant,
};

use crate::link_support::{PATIENCE, pattern, shared_pair};
use crossbeam_channel::{Receiver, unbounded};
use pccl_testkit::random::Rng;
use tinysockets::{
    acceptor::{AcceptLimits, Acceptor, Incoming},
    address::HostPort,
    conn::Conn,
    dial::dial_with_preamble,
    key::RunKey,
    listener::Listener,
    preamble::{Preamble, REPLY_BYTES, Reply, Role, SHARES_MEMORY},
    shm::Offer,
};

/// Several times what the memory holds.
const BYTES: usize = 9 << 20;

fn soon() -> Instant {
    Instant::now() + PATIENCE
}

/// The end that sends first: the one that has dialed, or the other one.
fn from_to(role: Role, key: Option<&RunKey>) -> (Conn, Conn) {
    let (near, far) = shared_pair(role, key);
    if role == Role::Data { (near, far) } else { (far, near) }
}

#[test]
fn all_bytes_come_in_order_whoever_dials_and_is_slower() {
    let key = RunKey::from_bytes([7; 32]);
    for (seed, role) in [Role::Data, Role::DataBack].into_iter().enumerate() {
        for key in [None, Some(&key)] {
            let (from, to) = from_to(role, key);
            let sent = pattern(BYTES, seed as u8);
            let mut got = vec![0; BYTES];
            thread::scope(|scope| {
                scope.spawn(|| {
                    let (mut rest, mut rng) = (sent.as_slice(), Rng::keyed(&[1, seed as u64]));
                    while !rest.is_empty() {
                        let (piece, behind) = rest.split_at((1 + rng.index(300_000)).min(rest.len()));
                        from.send_all(piece, Some(soon())).unwrap();
                        rest = behind;
                    }
                });
                let (mut rest, mut rng) = (got.as_mut_slice(), Rng::keyed(&[2, seed as u64]));
                while !rest.is_empty() {
                    let (piece, behind) = rest.split_at_mut((1 + rng.index(300_000)).min(rest.len()));
                    to.recv_all(piece, Some(soon())).unwrap();
                    rest = behind;
                }
            });
            assert!(got == sent, "{role:?}, with a key: {}", key.is_some());
        }
    }
}

#[test]
fn what_was_written_before_the_end_is_read() {
    let (from, to) = from_to(Role::Data, None);
    let sent = pattern(700_000, 3);
    from.send_all(&sent, Some(soon())).unwrap();
    drop(from);
    let mut got = vec![0; sent.len()];
    to.recv_all(&mut got, Some(soon())).unwrap();
    assert!(got == sent);
    assert_eq!(to.recv_some(&mut [0; 8], Some(soon())).unwrap(), 0, "and then it ends");
    assert_eq!(to.recv_some(&mut [0; 8], Some(soon())).unwrap(), 0, "for ever");
}

#[test]
fn a_writer_without_room_hears_that_the_reader_is_gone() {
    for key in [None, Some(&RunKey::from_bytes([7; 32]))] {
        let (from, to) = from_to(Role::Data, key);
        let (full, is_full) = unbounded();
        let writer = thread::spawn(move || {
            let bytes = vec![1; BYTES];
            let mut sent = from.try_send(&bytes).unwrap();
            while let Ok(count) = from.try_send(&bytes[sent..]) {
                sent += count;
            }
            full.send(sent).unwrap();
            from.send_all(&bytes[sent..], Some(soon())).unwrap_err()
        });
        let sent = is_full.recv_timeout(PATIENCE).unwrap();
        assert!(sent < BYTES, "memory has an end");
        drop(to);
        let error = writer.join().unwrap();
        assert!(error.kind() != io::ErrorKind::TimedOut, "{error}");
    }
}

/// Peer 7, which shares memory or does not want to.
fn peer(shares: bool) -> (Acceptor, HostPort, Receiver<Conn>) {
    let (sender, accepted) = unbounded();
    let listener = Listener::bind(Some(Ipv4Addr::LOCALHOST.into()), 0, 1).unwrap();
    let handler = move |incoming: Incoming| {
        let conn = if shares { incoming.accept_sharing() } else { incoming.accept() };
        drop(conn.map(|conn| sender.send(conn)));
    };
    let listeners = vec![(Role::Data, listener)];
    let acceptor = Acceptor::spawn(listeners, AcceptLimits::default(), None, Box::new(handler)).unwrap();
    let target = HostPort::new("127.0.0.1", acceptor.local_port(0).unwrap());
    (acceptor, target, accepted)
}

/// Dials, with this in its preamble, and says which ends share memory. Bytes pass in any case.
fn connects(target: &HostPort, accepted: &Receiver<Conn>, features: u32) -> [bool; 2] {
    let preamble = Preamble { features, ..Preamble::new(Role::Data) };
    let near = dial_with_preamble(target, &preamble, None, soon()).unwrap();
    let far = accepted.recv_timeout(PATIENCE).unwrap();
    near.send_all(b"there", Some(soon())).unwrap();
    let mut got = [0; 5];
    far.recv_all(&mut got, Some(soon())).unwrap();
    assert_eq!(&got, b"there");
    [near.is_shared(), far.is_shared()]
}

#[test]
fn both_have_to_want_it() {
    for (shares, features) in [(true, 0), (false, SHARES_MEMORY), (false, 0), (true, SHARES_MEMORY)] {
        let (_acceptor, target, accepted) = peer(shares);
        let wanted = shares && features == SHARES_MEMORY;
        assert_eq!(connects(&target, &accepted, features), [wanted; 2]);
    }
}

#[test]
fn what_somebody_passes_on_stays_on_the_connection() {
    let (_acceptor, target, accepted) = peer(true);
    let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
    let through = HostPort::from(proxy.local_addr().unwrap());
    thread::spawn(move || {
        let (mut near, _) = proxy.accept().unwrap();
        let mut far = TcpStream::connect((target.host.as_str(), target.port)).unwrap();
        let (mut near_copy, mut far_copy) = (near.try_clone().unwrap(), far.try_clone().unwrap());
        thread::spawn(move || io::copy(&mut far_copy, &mut near_copy));
        io::copy(&mut near, &mut far)
    });
    assert_eq!(connects(&through, &accepted, SHARES_MEMORY), [false; 2]);
}

#[test]
fn an_offer_of_something_else_is_not_taken() {
    let (_acceptor, target, accepted) = peer(true);
    let file = File::open("/dev/null").unwrap();
    let own = std::process::id();
    let offers = [(own, file.as_raw_fd() as u32), (own, 1_000_000), (own, u32::MAX), (u32::MAX, 3), (1, 0)];
    for (process, descriptor) in offers {
        let memory = Some(Offer { process, descriptor, nonce: 5 });
        for role in [Role::Data, Role::DataBack] {
            let preamble = Preamble { features: SHARES_MEMORY, memory, ..Preamble::new(role) };
            let mut dialer = TcpStream::connect((target.host.as_str(), target.port)).unwrap();
            dialer.set_read_timeout(Some(PATIENCE)).unwrap();
            dialer.write_all(&preamble.encode()).unwrap();
            let mut reply = [0; REPLY_BYTES];
            dialer.read_exact(&mut reply).unwrap();
            assert_eq!(Reply::decode(&reply), Ok(Reply::Accepted), "{memory:?}");
            assert!(!accepted.recv_timeout(PATIENCE).unwrap().is_shared());
        }
    }
}
