//! Packet streams over loopback.

use std::{
    io::{ErrorKind, Write},
    net::{TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use tinysockets::{stream::PacketStream, wire::Encode};

const PATIENCE: Duration = Duration::from_secs(30);
const MAX_FRAME_BYTES: usize = 32 << 20;

struct Raw<'a>(&'a [u8]);

impl Encode for Raw<'_> {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.0);
    }
}

fn soon() -> Instant {
    Instant::now() + PATIENCE
}

fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (one, listener.accept().unwrap().0)
}

fn pair() -> (PacketStream, PacketStream) {
    let (one, other) = sockets();
    (PacketStream::new(one.into(), MAX_FRAME_BYTES), PacketStream::new(other.into(), MAX_FRAME_BYTES))
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

#[test]
fn packets_of_all_sizes_arrive_as_they_were_sent() {
    let (mut one, mut other) = pair();
    let sizes = [0, 1, 5, 4096, 65_536, 300_000, 9 << 20];
    let sender = thread::spawn(move || {
        for (kind, size) in sizes.into_iter().enumerate() {
            one.send_packet(kind as u16, &Raw(&pattern(size)), soon()).unwrap();
        }
        one
    });
    for (kind, size) in sizes.into_iter().enumerate() {
        let (got_kind, body) = other.recv_packet(soon()).unwrap();
        assert_eq!(usize::from(got_kind), kind);
        assert!(body == pattern(size), "{size} bytes");
    }
    sender.join().unwrap();
}

#[test]
fn a_request_and_raw_bytes_as_its_answer() {
    let (mut one, mut other) = pair();
    let content = pattern(3 << 20);
    let expected = content.clone();
    let server = thread::spawn(move || {
        let (kind, body) = other.recv_packet(None).unwrap();
        assert_eq!((kind, body.as_slice()), (9, &b"give"[..]));
        let sent =
            other.send_from_progress(content.len(), PATIENCE, |done, send| Some(send(&content[done..])));
        assert!(sent.unwrap());
        other.send_bytes(b"end", soon()).unwrap();
    });
    one.send_packet(9, &Raw(b"give"), soon()).unwrap();
    let mut got = vec![0; expected.len()];
    one.recv_exact_progress(&mut got, PATIENCE, None).unwrap();
    assert!(got == expected);
    let mut tail = [0; 3];
    one.recv_exact(&mut tail, soon()).unwrap();
    assert_eq!(&tail, b"end");
    server.join().unwrap();
    assert_eq!(one.recv_packet(soon()).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    assert_eq!(one.recv_packet(soon()).unwrap_err().kind(), ErrorKind::NotConnected);
}

#[test]
fn a_timeout_before_the_first_byte_can_be_repeated() {
    let (mut one, mut other) = pair();
    for _ in 0..3 {
        assert_eq!(one.recv_packet(Instant::now()).unwrap_err().kind(), ErrorKind::TimedOut);
    }
    other.send_packet(1, &Raw(b"late"), soon()).unwrap();
    assert_eq!(one.recv_packet(soon()).unwrap(), (1, b"late".to_vec()));
}

#[test]
fn a_timeout_inside_a_packet_gives_the_stream_up() {
    let (one, mut raw) = sockets();
    let mut one = PacketStream::new(one.into(), 100);
    raw.write_all(&[0, 0, 0, 12, 0, 1, 7, 7]).unwrap();
    let error = one.recv_packet(Instant::now() + Duration::from_millis(50)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    raw.write_all(&[7; 8]).unwrap();
    assert_eq!(one.recv_packet(soon()).unwrap_err().kind(), ErrorKind::NotConnected);
}

#[test]
fn lengths_out_of_bounds_are_refused() {
    for len in [0u32, 1, 101, u32::MAX] {
        let (one, mut raw) = sockets();
        let mut one = PacketStream::new(one.into(), 100);
        raw.write_all(&len.to_be_bytes()).unwrap();
        raw.write_all(&[0; 4]).unwrap();
        assert_eq!(one.recv_packet(soon()).unwrap_err().kind(), ErrorKind::InvalidData);
        assert_eq!(one.recv_packet(soon()).unwrap_err().kind(), ErrorKind::NotConnected);
    }
}

#[test]
fn an_idle_timeout_counts_from_the_last_byte_and_a_deadline_does_not() {
    // 40 bytes, one each 25 ms: a second in all, far longer than a deadline of 100 ms; the idle timeout is generous
    // because a busy machine may let the sender wait.
    let trickle = |mut raw: TcpStream| {
        thread::spawn(move || {
            for _ in 0..40 {
                thread::sleep(Duration::from_millis(25));
                if raw.write_all(&[5]).is_err() {
                    return;
                }
            }
        })
    };
    let (one, raw) = sockets();
    let slow = trickle(raw);
    let start = Instant::now();
    let idle_timeout = Duration::from_millis(900);
    PacketStream::new(one.into(), 100).recv_exact_progress(&mut [0; 40], idle_timeout, None).unwrap();
    assert!(start.elapsed() > idle_timeout, "the transfer was meant to take longer than the timeout");
    slow.join().unwrap();

    let (one, raw) = sockets();
    let slow = trickle(raw);
    let mut one = PacketStream::new(one.into(), 100);
    let error = one.recv_exact(&mut [0; 40], Instant::now() + Duration::from_millis(100)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    drop(one);
    slow.join().unwrap();
}

#[test]
fn a_receiver_that_does_not_read_times_the_sender_out() {
    let (mut one, _other) = pair();
    let content = vec![0; 64 << 20];
    let pause = Duration::from_millis(100);
    let sent = one.send_from_progress(content.len(), pause, |done, send| Some(send(&content[done..])));
    let error = sent.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert_eq!(one.send_bytes(b"more", soon()).unwrap_err().kind(), ErrorKind::NotConnected);
}

#[test]
fn a_breaker_ends_a_call_under_way_and_may_be_used_twice() {
    let (mut one, other) = pair();
    let breaker = one.breaker();
    let waiting = thread::spawn(move || one.recv_packet(None).unwrap_err().kind());
    breaker.break_off();
    breaker.clone().break_off();
    assert_eq!(waiting.join().unwrap(), ErrorKind::UnexpectedEof);
    breaker.break_off();
    drop(other);
}

#[test]
fn memory_that_is_taken_back_ends_the_transfer() {
    let (mut one, mut other) = pair();
    let sent = one.send_from_progress(100, PATIENCE, |done, send| (done == 0).then(|| send(&[7; 40])));
    assert!(!sent.unwrap());
    other.recv_exact(&mut [0; 40], soon()).unwrap();
    assert_eq!(one.send_bytes(b"more", soon()).unwrap_err().kind(), ErrorKind::NotConnected);
}

#[test]
fn a_stream_that_is_dropped_ends_for_the_other_side_though_there_is_a_breaker() {
    let (one, mut other) = pair();
    let breaker = one.breaker();
    drop(one);
    assert_eq!(other.recv_packet(soon()).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    breaker.break_off();
}
