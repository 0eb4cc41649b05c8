//! Connections with records, and somebody on the way who changes, moves, repeats or cuts off what travels.

use std::{
    io::{Read, Write},
    net::TcpStream,
    thread,
    time::Instant,
};

use crate::link_support::{PATIENCE, Way, conn_pairs, seals, socket_pairs};
use pccl_testkit::random::Rng;
use tinysockets::{conn::Conn, seal::Seal};

fn soon() -> Instant {
    Instant::now() + PATIENCE
}

/// A connection of which all that it sends is at the other end as it travels.
fn overheard(seal: Seal) -> (Conn, TcpStream) {
    let (one, other) = socket_pairs(1);
    let mut conn = Conn::from(one.into_iter().next().unwrap());
    conn.protect(seal);
    (conn, other.into_iter().next().unwrap())
}

/// The bytes of two records of 100 bytes each.
fn two_records(seal: Seal) -> [u8; 240] {
    let (conn, mut wire) = overheard(seal);
    conn.send_all(&[1; 100], Some(soon())).unwrap();
    conn.send_all(&[2; 100], Some(soon())).unwrap();
    let mut records = [0; 240];
    wire.read_exact(&mut records).unwrap();
    records
}

#[test]
fn bytes_that_were_changed_on_their_way_never_come_out() {
    let (dialing, listening) = seals();
    let mut records = two_records(dialing);
    records[200] ^= 1;
    let (far, mut wire) = overheard(listening);
    wire.write_all(&records).unwrap();
    let mut heard = [0; 200];
    assert_eq!(far.recv(&mut heard).unwrap(), 100);
    assert_eq!(heard[..100], [1; 100]);
    for _ in 0..2 {
        assert_eq!(far.recv(&mut heard).unwrap_err().kind(), std::io::ErrorKind::InvalidData);
    }
}

#[test]
fn what_is_said_in_one_session_opens_in_no_other_of_the_same_two_nor_where_it_was_said() {
    let refuses = |conn: &Conn| {
        let error = conn.recv(&mut [0; 100]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidData, "{error}");
    };
    // Two connections of the same two, with the same key and preamble, joined crosswise from their first record on.
    let ((dialing, _), (_, listening)) = (seals(), seals());
    let (far, mut wire) = overheard(listening);
    wire.write_all(&two_records(dialing)).unwrap();
    refuses(&far);
    // The same, from the second record on: whoever cuts one off cannot go on with the other.
    let ((one, listening), (other, _)) = (seals(), seals());
    let (far, mut wire) = overheard(listening);
    wire.write_all(&two_records(one)[..120]).unwrap();
    wire.write_all(&two_records(other)[120..]).unwrap();
    assert_eq!(far.recv(&mut [0; 100]).unwrap(), 100);
    refuses(&far);
    // Back to whoever said it.
    let (dialing, _listening) = seals();
    let (near, mut wire) = overheard(dialing);
    near.send_all(&[1; 100], Some(soon())).unwrap();
    let mut record = [0; 120];
    wire.read_exact(&mut record).unwrap();
    wire.write_all(&record).unwrap();
    refuses(&near);
}

#[test]
fn a_stream_that_ends_within_a_record_ends_in_front_of_it() {
    for cut in [121, 123, 124, 200, 239] {
        let (dialing, listening) = seals();
        let (far, mut wire) = overheard(listening);
        wire.write_all(&two_records(dialing)[..cut]).unwrap();
        drop(wire);
        let mut heard = [0; 200];
        assert_eq!(far.recv(&mut heard).unwrap(), 100);
        assert_eq!(far.recv(&mut heard).unwrap(), 0, "cut off after {cut} bytes");
    }
}

#[test]
fn a_stream_of_records_is_a_stream_of_bytes() {
    let (mut near, mut far) = conn_pairs(1, Way::Sealed);
    let (near, far) = (near.remove(0), far.remove(0));
    let bytes = Rng::keyed(&[1]).bytes(3_000_000);
    let expected = bytes.clone();
    let sending = thread::spawn(move || {
        let (mut rest, mut rng) = (bytes.as_slice(), Rng::keyed(&[2]));
        while !rest.is_empty() {
            let count = rest.len().min(1 + rng.index(200_000));
            near.send_all(&rest[..count], Some(soon())).unwrap();
            rest = &rest[count..];
        }
        near
    });
    let (mut heard, mut rng) = (Vec::new(), Rng::keyed(&[3]));
    let mut buffer = vec![0; 100_000];
    while heard.len() < expected.len() {
        let count = far.recv_some(&mut buffer[..1 + rng.index(100_000)], Some(soon())).unwrap();
        assert_ne!(count, 0);
        heard.extend_from_slice(&buffer[..count]);
    }
    assert!(heard == expected);
    drop(sending.join().unwrap());
    assert_eq!(far.recv(&mut buffer).unwrap(), 0);
}
