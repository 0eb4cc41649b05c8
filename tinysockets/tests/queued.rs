//! Queued sockets over loopback.

use pccl_testkit::barrier::Barrier;
use std::{
    io::{ErrorKind, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, unbounded};
use parking_lot::Mutex;
use tinysockets::{
    queued::{CloseReason, QueuedConfig, QueuedSocket, RecvError, Tap, TapFn},
    wire::{Encode, frame},
};

const PATIENCE: Duration = Duration::from_secs(30);

struct Raw<'a>(&'a [u8]);

impl Encode for Raw<'_> {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.0);
    }
}

fn packet(kind: u16, body: &[u8]) -> Vec<u8> {
    frame(kind, &Raw(body))
}

fn soon() -> Instant {
    Instant::now() + PATIENCE
}

fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (one, listener.accept().unwrap().0)
}

fn config() -> QueuedConfig {
    QueuedConfig { name: "queued".to_owned(), max_frame_bytes: 32 << 20, inbox_limit: 4096, on_close: None }
}

/// A packet in the inbox: kind and body.
type Packet = (u16, Vec<u8>);

fn kept(kind: u16, body: &[u8]) -> Tap<Packet> {
    Tap::Keep((kind, body.to_vec()))
}

fn keep() -> TapFn<Packet> {
    Box::new(kept)
}

/// A queued socket that keeps everything, and the other end of its connection.
fn start(tap: TapFn<Packet>) -> (QueuedSocket<Packet>, TcpStream) {
    let (one, other) = sockets();
    (QueuedSocket::start(one.into(), config(), tap).unwrap(), other)
}

fn of_kind(wanted: u16) -> impl FnMut(Packet) -> Result<Vec<u8>, Packet> {
    move |(kind, body)| if kind == wanted { Ok(body) } else { Err((kind, body)) }
}

/// A queued socket that reports its end.
fn reporting(
    config: QueuedConfig,
    tap: TapFn<Packet>,
) -> (QueuedSocket<Packet>, TcpStream, Receiver<CloseReason>) {
    let (one, other) = sockets();
    let (sender, ends) = unbounded();
    let on_close = Some(Box::new(move |reason: &CloseReason| sender.send(reason.clone()).unwrap()) as _);
    (QueuedSocket::start(one.into(), QueuedConfig { on_close, ..config }, tap).unwrap(), other, ends)
}

#[test]
fn packets_match_out_of_order() {
    let (socket, mut other) = start(keep());
    for kind in [1, 2, 3] {
        other.write_all(&packet(kind, &[kind as u8; 3])).unwrap();
    }
    for kind in [3, 1, 2] {
        assert_eq!(socket.recv_match(soon(), of_kind(kind)).unwrap(), [kind as u8; 3]);
    }
    assert_eq!(socket.waiting_packets(), 0);
}

#[test]
fn equal_matches_come_in_the_order_of_arrival() {
    let (socket, mut other) = start(keep());
    for i in 0..100u8 {
        other.write_all(&packet(u16::from(i % 2), &[i])).unwrap();
    }
    for i in 0..50 {
        assert_eq!(socket.recv_match(soon(), of_kind(1)).unwrap(), [2 * i + 1]);
        assert_eq!(socket.recv_match(soon(), of_kind(0)).unwrap(), [2 * i]);
    }
}

#[test]
fn many_waiters_each_get_their_own_packet() {
    const WAITERS: u16 = 8;
    const ROUNDS: u32 = 200;
    let (socket, mut other) = start(keep());
    thread::scope(|scope| {
        for waiter in 0..WAITERS {
            let socket = &socket;
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let body = socket.recv_match(soon(), of_kind(waiter)).unwrap();
                    assert_eq!(body, round.to_be_bytes(), "waiter {waiter}");
                }
            });
        }
        // In each round the packets come in another order.
        for round in 0..ROUNDS {
            for i in 0..WAITERS {
                let kind = (i * 3 + round as u16) % WAITERS;
                other.write_all(&packet(kind, &round.to_be_bytes())).unwrap();
            }
        }
    });
    assert_eq!(socket.waiting_packets(), 0);
}

#[test]
fn no_packet_is_taken_twice_by_equal_waiters() {
    let (socket, mut other) = start(keep());
    let taken = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..250 {
                    let body = socket.recv_match(soon(), of_kind(5)).unwrap();
                    taken.lock().push(u32::from_be_bytes(body.try_into().unwrap()));
                }
            });
        }
        for i in 0..1000u32 {
            other.write_all(&packet(5, &i.to_be_bytes())).unwrap();
        }
    });
    let mut taken = taken.into_inner();
    taken.sort_unstable();
    assert_eq!(taken, (0..1000).collect::<Vec<_>>());
}

#[test]
fn a_predicate_sees_each_packet_once() {
    let (socket, mut other) = start(keep());
    let mut seen = Vec::new();
    thread::scope(|scope| {
        scope.spawn(|| {
            for kind in 0..50 {
                other.write_all(&packet(kind, b"")).unwrap();
            }
        });
        socket
            .recv_match(soon(), |packet| {
                seen.push(packet.0);
                if packet.0 == 49 { Ok(()) } else { Err(packet) }
            })
            .unwrap();
    });
    assert_eq!(seen, (0..50).collect::<Vec<_>>());
    assert_eq!(socket.waiting_packets(), 49);
}

#[test]
fn the_tap_sees_all_and_what_it_consumes_nobody_else_does() {
    let seen = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&seen);
    let (socket, mut other) = start(Box::new(move |kind, body| {
        count.fetch_add(1, Ordering::SeqCst);
        if kind % 2 == 0 { Tap::Consumed } else { kept(kind, body) }
    }));
    for kind in 0..10 {
        other.write_all(&packet(kind, b"x")).unwrap();
    }
    socket.recv_match(soon(), of_kind(9)).unwrap();
    assert_eq!((seen.load(Ordering::SeqCst), socket.waiting_packets()), (10, 4));
}

#[test]
fn large_empty_and_chopped_packets_arrive_whole() {
    let (socket, mut other) = start(keep());
    let large: Vec<u8> = (0..8 << 20).map(|i: u32| (i * 31 + i / 255) as u8).collect();
    let bytes = packet(2, &large);
    thread::scope(|scope| {
        scope.spawn(move || {
            other.set_nodelay(true).unwrap();
            for byte in packet(1, b"") {
                other.write_all(&[byte]).unwrap();
            }
            for piece in bytes.chunks(70_001) {
                other.write_all(piece).unwrap();
            }
        });
        assert!(socket.recv_match(soon(), of_kind(2)).unwrap() == large);
        assert!(socket.recv_match(soon(), of_kind(1)).unwrap().is_empty());
    });
}

#[test]
fn packets_of_several_senders_do_not_mix() {
    // Large enough that the socket buffer is full again and again in the middle of a packet.
    const SENDS: usize = 20;
    let (socket, other) = start(keep());
    let receiver = QueuedSocket::start(other.into(), config(), keep()).unwrap();
    thread::scope(|scope| {
        for sender in 0..4u8 {
            let socket = &socket;
            scope.spawn(move || {
                for i in 0..SENDS {
                    let body = vec![sender; 50_000 * i];
                    socket.send(&packet(u16::from(sender), &body), soon()).unwrap();
                }
            });
        }
        for sender in 0..4u8 {
            for i in 0..SENDS {
                let body = receiver.recv_match(soon(), of_kind(sender.into())).unwrap();
                assert_eq!(body, vec![sender; 50_000 * i]);
            }
        }
    });
}

#[test]
fn a_wait_ends_with_its_deadline_and_leaves_the_packets() {
    let (socket, mut other) = start(keep());
    other.write_all(&packet(1, b"one")).unwrap();
    let deadline = Instant::now() + Duration::from_millis(50);
    assert_eq!(socket.recv_match(deadline, of_kind(2)), Err(RecvError::TimedOut));
    assert!(Instant::now() >= deadline);
    assert_eq!(socket.recv_match(soon(), of_kind(1)).unwrap(), b"one");
    // A deadline in the past still looks.
    other.write_all(&packet(3, b"three")).unwrap();
    other.write_all(&packet(4, b"four")).unwrap();
    socket.recv_match(soon(), of_kind(4)).unwrap();
    assert_eq!(socket.recv_match(Instant::now() - Duration::from_secs(1), of_kind(3)).unwrap(), b"three");
}

#[test]
fn closing_twice_from_several_threads_wakes_every_waiter() {
    let (socket, _other) = start(keep());
    let all_here = Barrier::new(5);
    thread::scope(|scope| {
        for kind in 0..4 {
            let (socket, all_here) = (&socket, &all_here);
            scope.spawn(move || {
                all_here.wait();
                let error = socket.recv_match(None, of_kind(kind)).unwrap_err();
                assert_eq!(error, RecvError::Closed(CloseReason::Local("enough".to_owned())));
            });
        }
        all_here.wait();
        scope.spawn(|| socket.close("enough"));
        socket.close("enough");
    });
    socket.close("again");
    assert_eq!(socket.close_reason(), Some(CloseReason::Local("enough".to_owned())));
    let error = socket.send(&packet(1, b""), soon()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotConnected);
    assert!(error.to_string().contains("enough"), "{error}");
}

#[test]
fn what_came_before_the_end_can_still_be_taken() {
    let (socket, mut other, ends) = reporting(config(), keep());
    other.write_all(&packet(1, b"last words")).unwrap();
    drop(other);
    assert_eq!(ends.recv_timeout(PATIENCE).unwrap(), CloseReason::Eof);
    assert_eq!(socket.recv_match(None, of_kind(1)).unwrap(), b"last words");
    assert_eq!(socket.recv_match(None, of_kind(1)), Err(RecvError::Closed(CloseReason::Eof)));
    socket.close("now from this side");
    assert_eq!(socket.close_reason(), Some(CloseReason::Eof), "the first cause is kept");
    assert!(ends.recv_timeout(PATIENCE).is_err(), "the end is told once");
}

#[test]
fn what_came_before_the_end_is_read_though_sending_found_the_end() {
    // The reading thread is busy with the first packet until the end has been found.
    let (at_first, first) = unbounded();
    let (go_on, gate) = unbounded::<()>();
    let tap: TapFn<Packet> = Box::new(move |kind, body| {
        if kind == 1 {
            at_first.send(()).unwrap();
            gate.recv().unwrap();
        }
        kept(kind, body)
    });
    let (socket, mut other, ends) = reporting(config(), tap);
    other.write_all(&packet(1, b"")).unwrap();
    first.recv_timeout(PATIENCE).unwrap();
    other.write_all(&packet(2, b"last words")).unwrap();
    drop(other);
    let deadline = soon();
    let error = loop {
        assert!(Instant::now() < deadline, "sending goes on");
        if let Err(error) = socket.send(&packet(3, &[0; 1000]), deadline) {
            break error;
        }
    };
    assert!(error.to_string().contains("sending failed"), "{error}");
    go_on.send(()).unwrap();
    assert_eq!(socket.recv_match(soon(), of_kind(2)).unwrap(), b"last words");
    ends.recv_timeout(PATIENCE).unwrap();
}

#[test]
fn malformed_bytes_end_the_connection_with_a_reason() {
    for bytes in [&[0, 0, 0, 1, 9][..], &[0; 4], &[0xff; 6], b"GET / HTTP/1.1\r\n\r\n"] {
        let (socket, mut other, ends) = reporting(config(), keep());
        other.write_all(bytes).unwrap();
        let reason = ends.recv_timeout(PATIENCE).unwrap();
        assert!(matches!(reason, CloseReason::Malformed(_)), "{bytes:?}: {reason}");
        assert_eq!(socket.recv_match(soon(), of_kind(0)), Err(RecvError::Closed(reason)));
    }
    let (_socket, mut other, ends) = reporting(config(), keep());
    other.write_all(&packet(1, b"cut short")[..8]).unwrap();
    other.shutdown(Shutdown::Write).unwrap();
    assert_eq!(ends.recv_timeout(PATIENCE).unwrap(), CloseReason::Cut(8));
}

#[test]
fn an_inbox_that_overflows_closes_the_connection() {
    let (socket, mut other, ends) = reporting(QueuedConfig { inbox_limit: 3, ..config() }, keep());
    for _ in 0..4 {
        other.write_all(&packet(1, b"unasked")).unwrap();
    }
    assert_eq!(ends.recv_timeout(PATIENCE).unwrap(), CloseReason::InboxOverflow(3));
    assert_eq!(socket.waiting_packets(), 3);
}

#[test]
fn the_tap_can_refuse_a_packet_and_its_panic_hangs_nobody() {
    let (socket, mut other, ends) =
        reporting(config(), Box::new(|kind, _| Tap::Close(format!("kind {kind}"))));
    other.write_all(&packet(6, b"")).unwrap();
    let reason = CloseReason::Rejected("kind 6".to_owned());
    assert_eq!(ends.recv_timeout(PATIENCE).unwrap(), reason);
    assert_eq!(socket.recv_match(None, of_kind(6)), Err(RecvError::Closed(reason)));

    let (socket, mut other, ends) =
        reporting(config(), Box::new(|_, _| panic!("this panic belongs to the test")));
    other.write_all(&packet(6, b"")).unwrap();
    assert!(matches!(socket.recv_match(soon(), of_kind(6)), Err(RecvError::Closed(CloseReason::Io(_)))));
    assert!(ends.recv_timeout(PATIENCE).is_ok());
}

#[test]
fn closing_on_the_reading_thread_does_not_wait_for_itself() {
    let (one, mut other) = sockets();
    let socket = Arc::new(OnceLock::<QueuedSocket<Packet>>::new());
    let ready = Arc::new(Barrier::new(2));
    let (sender, ends) = unbounded();
    let (returned_sender, returned) = unbounded();
    let tap = {
        let (socket, ready) = (Arc::clone(&socket), Arc::clone(&ready));
        Box::new(move |kind, body: &[u8]| {
            ready.wait();
            socket.get().unwrap().close("from the tap");
            returned_sender.send(()).unwrap();
            kept(kind, body)
        })
    };
    let again = Arc::clone(&socket);
    let on_close = Some(Box::new(move |reason: &CloseReason| {
        again.get().unwrap().close("from on_close");
        sender.send(reason.clone()).unwrap();
    }) as _);
    assert!(
        socket
            .set(QueuedSocket::start(one.into(), QueuedConfig { on_close, ..config() }, tap).unwrap())
            .is_ok()
    );
    other.write_all(&packet(1, b"")).unwrap();
    ready.wait();
    assert_eq!(ends.recv_timeout(PATIENCE).unwrap(), CloseReason::Local("from the tap".to_owned()));
    returned.try_recv().expect("the call on the tap's own thread came back");
}

#[test]
fn a_receiver_that_does_not_read_times_the_sender_out_and_closes_it() {
    let (socket, other) = start(keep());
    let bytes = packet(1, &vec![0; 16 << 20]);
    let error = socket.send(&bytes, Instant::now() + Duration::from_millis(100)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert_eq!(socket.send(&bytes, soon()).unwrap_err().kind(), ErrorKind::NotConnected);
    drop(other);
}

#[test]
fn closing_ends_a_send_that_waits_for_room() {
    let (socket, other) = start(keep());
    thread::scope(|scope| {
        let sending = scope.spawn(|| socket.send(&packet(1, &vec![0; 16 << 20]), None));
        // Some bytes at the other end prove that the send is under way.
        other.peek(&mut [0]).unwrap();
        socket.close("enough");
        let error = sending.join().unwrap().unwrap_err();
        assert!(error.to_string().contains("enough"), "{error}");
    });
}

#[test]
fn dropping_it_closes_the_connection() {
    let (socket, other) = start(keep());
    drop(socket);
    assert_eq!(other.peek(&mut [0]).unwrap(), 0);
}

#[test]
fn a_send_that_never_has_its_turn_times_out_and_leaves_the_connection() {
    let (socket, other) = start(keep());
    let large = packet(1, &vec![7; 16 << 20]);
    thread::scope(|scope| {
        let sending = scope.spawn(|| socket.send(&large, None));
        other.peek(&mut [0]).unwrap();
        let deadline = Instant::now() + Duration::from_millis(50);
        let error = socket.send(&packet(2, b"impatient"), deadline).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert_eq!(socket.close_reason(), None);
        let receiver = QueuedSocket::start(other.into(), config(), keep()).unwrap();
        sending.join().unwrap().unwrap();
        socket.send(&packet(3, b"patient"), soon()).unwrap();
        assert!(receiver.recv_match(soon(), of_kind(1)).unwrap().len() == 16 << 20);
        assert_eq!(receiver.recv_match(soon(), of_kind(3)).unwrap(), b"patient");
        assert_eq!(receiver.waiting_packets(), 0);
    });
}

/// A tap that consumes everything and tells on which thread.
fn telling() -> (TapFn<Packet>, Receiver<(u16, thread::ThreadId)>) {
    let (tell, told) = unbounded();
    let tap: TapFn<Packet> = Box::new(move |kind, _| {
        let _ = tell.send((kind, thread::current().id()));
        Tap::Consumed
    });
    (tap, told)
}

#[test]
fn a_visitor_reads_what_it_waits_for_itself_and_the_own_thread_what_comes_later() {
    let (tap, told) = telling();
    let (socket, mut other) = start(tap);
    let me = thread::current().id();
    let mut by_visitor = 0;
    for round in 0..200u16 {
        other.write_all(&packet(round, b"x")).unwrap();
        let mut seen = None;
        // Packets may have come before the visit began.
        socket.read_until(soon(), || {
            seen = seen.or_else(|| told.try_recv().ok());
            seen.is_some()
        });
        let (kind, reader) = seen.expect("in time");
        assert_eq!(kind, round);
        by_visitor += usize::from(reader == me);
    }
    assert!(by_visitor > 100, "{by_visitor} of 200");
    other.write_all(&packet(1000, b"x")).unwrap();
    let (kind, reader) = told.recv_timeout(PATIENCE).unwrap();
    assert_eq!(kind, 1000);
    assert_ne!(reader, me);
}

#[test]
fn a_long_visit_lets_the_own_thread_sleep_and_gives_the_turn_back() {
    let (tap, told) = telling();
    let (socket, mut other) = start(tap);
    thread::scope(|scope| {
        let visit = scope.spawn(|| {
            let mut asked = 0;
            socket.read_until(None, || {
                asked += 1;
                asked > 2
            });
        });
        // Longer than the time in which the next visit is awaited, several times over.
        thread::sleep(Duration::from_millis(20));
        for _ in 0..2 {
            other.write_all(&packet(1, b"x")).unwrap();
            told.recv_timeout(PATIENCE).unwrap();
        }
        visit.join().unwrap();
    });
    other.write_all(&packet(2, b"x")).unwrap();
    assert_eq!(told.recv_timeout(PATIENCE).unwrap().0, 2);
}

#[test]
fn a_visitor_ends_with_its_deadline_an_interruption_or_the_connection() {
    let (socket, other) = start(keep());
    let begun = Instant::now();
    socket.read_until(begun + Duration::from_millis(20), || false);
    assert!(begun.elapsed() >= Duration::from_millis(20));
    let done = std::sync::atomic::AtomicBool::new(false);
    thread::scope(|scope| {
        let visit = scope.spawn(|| socket.read_until(None, || done.load(Ordering::SeqCst)));
        done.store(true, Ordering::SeqCst);
        while !visit.is_finished() {
            socket.interrupt();
            pccl_testkit::barrier::look_again();
        }
    });
    thread::scope(|scope| {
        let visit = scope.spawn(|| socket.read_until(None, || false));
        drop(other);
        visit.join().unwrap();
    });
    assert_eq!(socket.close_reason(), Some(CloseReason::Eof));
    // There is nothing to read any more.
    socket.read_until(None, || false);
}

#[test]
fn a_second_visitor_is_turned_away_and_other_waiters_get_their_packets() {
    let (socket, mut other) = start(keep());
    let done = std::sync::atomic::AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| socket.read_until(None, || done.load(Ordering::SeqCst)));
        let waiter = scope.spawn(|| socket.recv_match(soon(), of_kind(5)));
        other.write_all(&packet(5, b"y")).unwrap();
        assert_eq!(waiter.join().unwrap(), Ok(b"y".to_vec()));
        // One of the two visitors is turned away, so with the deadline of this one both come to an end.
        socket.read_until(Instant::now() + Duration::from_millis(10), || false);
        done.store(true, Ordering::SeqCst);
        other.write_all(&packet(6, b"z")).unwrap();
    });
    assert_eq!(socket.recv_match(soon(), of_kind(6)), Ok(b"z".to_vec()));
}

#[test]
fn closing_waits_for_a_visitor_and_the_visitor_may_close_in_its_tap() {
    let (socket, _other) = start(keep());
    let inside = AtomicUsize::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            socket.read_until(None, || {
                inside.store(1, Ordering::SeqCst);
                false
            });
            inside.store(2, Ordering::SeqCst);
        });
        while inside.load(Ordering::SeqCst) == 0 {
            pccl_testkit::barrier::look_again();
        }
        socket.close("enough");
    });
    assert_eq!(inside.load(Ordering::SeqCst), 2);

    let cell: Arc<OnceLock<QueuedSocket<Packet>>> = Arc::default();
    let for_tap = Arc::downgrade(&cell);
    let (one, mut other) = sockets();
    let tap: TapFn<Packet> = Box::new(move |_, _| {
        if let Some(cell) = for_tap.upgrade() {
            cell.get().unwrap().close("by the tap");
        }
        Tap::Consumed
    });
    let (on_close, ends) = unbounded();
    let on_close: tinysockets::queued::OnClose = Box::new(move |reason| drop(on_close.send(reason.clone())));
    let config = QueuedConfig { on_close: Some(on_close), ..config() };
    assert!(cell.set(QueuedSocket::start(one.into(), config, tap).unwrap()).is_ok());
    thread::scope(|scope| {
        scope.spawn(|| cell.get().unwrap().read_until(None, || false));
        other.write_all(&packet(1, b"")).unwrap();
    });
    assert_eq!(ends.recv_timeout(PATIENCE), Ok(CloseReason::Local("by the tap".to_owned())));
}
