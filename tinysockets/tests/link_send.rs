//! The sending end: every frame is released exactly once and the stream stays framed, whatever the peer and the caller
//! do.

use std::{
    collections::HashMap,
    io::{self, Read},
    net::{Shutdown, TcpStream},
    sync::Arc,
    thread,
    time::Duration,
};

use crate::link_support::*;
use proptest::prelude::*;
use socket2::SockRef;
use tinysockets::link::{FRAME_HEADER_BYTES, FaultKind, FrameHeader, Landing, Outgoing};

const FRAME: usize = 64 << 10;

fn recorder(frames: usize, seed: u8) -> Arc<Recorder> {
    Recorder::new(pattern(frames * FRAME, seed), Landing::Direct, 4)
}

fn frames(transfer: &Arc<Recorder>, tag: u64, count: usize) -> Vec<Outgoing> {
    frames_of(FRAME, transfer, tag, count)
}

fn frames_of(len: usize, transfer: &Arc<Recorder>, tag: u64, count: usize) -> Vec<Outgoing> {
    (0..count).map(|at| transfer.outgoing(frame(tag, at * FRAME, len))).collect()
}

/// Reads one frame; `None` at the end of the stream between two.
fn read_frame(stream: &mut TcpStream) -> io::Result<Option<(FrameHeader, Vec<u8>)>> {
    let mut header = [0; FRAME_HEADER_BYTES];
    if stream.read(&mut header[..1])? == 0 {
        return Ok(None);
    }
    stream.read_exact(&mut header[1..])?;
    let header = FrameHeader::decode(&header).map_err(io::Error::other)?;
    let mut payload = vec![0; header.len as usize];
    stream.read_exact(&mut payload)?;
    Ok(Some((header, payload)))
}

fn assert_released_once(transfer: &Recorder, count: usize) {
    transfer.record.look(|record| {
        assert_eq!(record.released.len(), count);
        assert!(record.released.values().all(|&times| times == 1), "{:?}", record.released);
    });
}

#[test]
fn every_frame_arrives_once_over_some_connection() {
    for (connections, with_checksum, piece) in
        [(1, false, usize::MAX), (4, true, usize::MAX), (1, false, 9_000), (3, true, 1_000), (2, false, 13)]
    {
        let (own, peers) = socket_pairs(connections);
        let (link, events) = start_out(own, with_checksum);
        let readers: Vec<_> = peers
            .into_iter()
            .map(|mut peer| {
                thread::spawn(move || {
                    let mut got = Vec::new();
                    while let Some(frame) = read_frame(&mut peer).expect("whole frames") {
                        got.push(frame);
                    }
                    got
                })
            })
            .collect();
        let transfer = recorder(50, 1).cut_into(piece);
        link.push_all(frames(&transfer, 1, 50));
        transfer.wait_for_releases(50);
        assert_eq!(link.sent_bytes(), (50 * (FRAME + FRAME_HEADER_BYTES)) as u64);
        assert_eq!(link.queued_frames(), 0);
        link.close();
        let mut got: Vec<_> = readers.into_iter().flat_map(|reader| reader.join().expect("reader")).collect();
        got.sort_by_key(|(header, _)| header.offset);
        assert_eq!(got.len(), 50);
        for (at, (header, payload)) in got.iter().enumerate() {
            assert_eq!(header.offset, (at * FRAME) as u64);
            assert_eq!(header.has_checksum(), with_checksum);
            assert!(!with_checksum || header.checksum == checksum(payload));
            assert_eq!(payload, &transfer.bytes()[at * FRAME..][..FRAME]);
        }
        assert_released_once(&transfer, 50);
        assert_eq!(events.faults.look(Vec::len), 0);
    }
}

/// One frame at a time through the wake of a sleeping thread: a lost wake would stop it.
#[test]
fn no_wake_is_lost() {
    let (own, peers) = socket_pairs(3);
    let (link, _events) = start_out(own, false);
    let readers: Vec<_> = peers
        .into_iter()
        .map(|mut peer| thread::spawn(move || io::copy(&mut peer, &mut io::sink()).expect("read")))
        .collect();
    // Too large to be sent by the pushing thread.
    let transfer = Recorder::new(pattern(20_000, 1), Landing::Direct, 4);
    for round in 1..=5000 {
        let mut header = frame(1, 0, 20_000);
        header.stage = round;
        link.push(transfer.outgoing(header));
        transfer.record.wait_until("it was released", |record| {
            (record.released.get(&0) == Some(&(round as usize))).then_some(())
        });
    }
    link.close();
    let total: u64 = readers.into_iter().map(|reader| reader.join().expect("reader")).sum();
    assert_eq!(total, 5000 * (20_000 + FRAME_HEADER_BYTES as u64));
}

#[test]
fn a_frame_begun_when_the_gate_closes_is_filled_up() {
    let (own, mut peers) = socket_pairs(1);
    let (link, events) = start_out(own, false);
    let stopped = recorder(300, 1);
    let other = recorder(1, 2);
    link.push_all(frames(&stopped, 1, 300));
    link.push_all(frames(&other, 2, 1));
    // The peer does not read, so before long a frame is stuck half way: the kernel's buffers hold far less than 300.
    let mut first = [0; 1];
    assert_eq!(peers[0].peek(&mut first).expect("peek"), 1);
    // Closing the gate does not depend on the peer.
    let before = stopped.bytes().to_vec();

    let mut got = HashMap::<u64, usize>::new();
    loop {
        let (header, payload) = read_frame(&mut peers[0]).expect("framing survives").expect("more to come");
        *got.entry(header.op.tag).or_default() += 1;
        let at = header.offset as usize;
        if header.op.tag == 2 {
            assert_eq!(payload, other.bytes());
            break;
        }
        let intact = payload.iter().zip(&before[at..]).take_while(|(got, sent)| got == sent).count();
        assert!(payload[intact..].iter().all(|&byte| byte == 0), "filler is zeros, and comes last");
    }
    assert!(got[&1] < 300, "frames not begun are dropped");
    stopped.wait_for_releases(300);
    other.wait_for_releases(1);
    assert_released_once(&stopped, 300);
    assert_released_once(&other, 1);
    assert!(!link.is_broken() && events.faults.look(Vec::is_empty));
}

#[test]
fn closing_wakes_threads_whose_peer_never_reads() {
    let (own, peers) = socket_pairs(2);
    let (link, events) = start_out(own, false);
    let transfer = recorder(400, 1);
    link.push_all(frames(&transfer, 1, 400));
    peers[0].peek(&mut [0]).expect("peek");
    link.close();
    assert_released_once(&transfer, 400);
    transfer.record.look(|record| {
        assert!(!record.failures.is_empty() && record.failures.iter().all(|f| f.kind == FaultKind::Closed));
    });
    assert_eq!(events.faults.look(Vec::len), 0, "closing is no fault");
    link.push(transfer.outgoing(frame(1, 400 * FRAME, FRAME)));
    link.push_all([transfer.outgoing(frame(1, 401 * FRAME, FRAME))]);
    assert_released_once(&transfer, 402);
    drop(peers);
}

#[test]
fn an_idle_link_notices_that_the_peer_is_gone() {
    let (own, mut peers) = socket_pairs(3);
    let (link, events) = start_out(own, false);
    drop(peers.remove(1));
    let fault = events.wait_for_fault();
    assert_eq!((fault.kind, fault.connection, fault.peer), (FaultKind::Eof, 1, PEER));
    let transfer = recorder(1, 1);
    link.push(transfer.outgoing(frame(1, 0, FRAME)));
    assert_released_once(&transfer, 1);
    transfer.record.look(|record| assert_eq!(record.failures, std::slice::from_ref(&fault)));
    link.close();
    assert_eq!(events.faults.look(Vec::len), 1);
    assert_eq!(link.fault(), Some(fault));
}

#[test]
fn bytes_from_the_wrong_side_break_the_link() {
    let (own, mut peers) = socket_pairs(1);
    let (_link, events) = start_out(own, false);
    io::Write::write_all(&mut peers[0], b"hello").expect("send");
    assert_eq!(events.wait_for_fault().kind, FaultKind::Violation);
}

#[test]
fn a_reset_while_sending_fails_what_is_queued() {
    let (own, mut peers) = socket_pairs(2);
    let (link, events) = start_out(own, false);
    let transfer = recorder(400, 1);
    link.push_all(frames(&transfer, 1, 400));
    let victim = peers.remove(0);
    victim.peek(&mut [0]).expect("peek");
    SockRef::from(&victim).set_linger(Some(Duration::ZERO)).expect("option");
    drop(victim);
    let fault = events.wait_for_fault();
    assert_eq!((fault.kind, fault.connection), (FaultKind::Io, 0), "{fault}");
    transfer.wait_for_releases(400);
    link.close();
    assert_released_once(&transfer, 400);
    transfer.record.look(|record| {
        assert!(!record.failures.is_empty() && record.failures.iter().all(|failure| *failure == fault));
    });
    assert_eq!(events.faults.look(Vec::len), 1);
}

/// Small frames are sent by the thread that pushes them, until the connection is full in the middle of one.
#[test]
fn small_frames_go_on_where_the_pushing_thread_had_to_stop() {
    const SMALL: usize = 16 << 10;
    const COUNT: usize = 2000;
    let (own, peers) = socket_pairs(2);
    let (link, events) = start_out(own, true);
    let transfer = Recorder::new(pattern(COUNT * SMALL, 1), Landing::Direct, 4);
    // Far more than the buffers hold, and nobody reads yet.
    for at in 0..COUNT {
        link.push(transfer.outgoing(frame(1, at * SMALL, SMALL)));
    }
    let readers: Vec<_> = peers
        .into_iter()
        .map(|mut peer| {
            thread::spawn(move || {
                let mut got = Vec::new();
                while let Some((header, payload)) = read_frame(&mut peer).expect("whole frames") {
                    assert_eq!(header.checksum, checksum(&payload));
                    got.push(header.offset);
                }
                got
            })
        })
        .collect();
    transfer.wait_for_releases(COUNT);
    link.close();
    let mut got: Vec<_> = readers.into_iter().flat_map(|reader| reader.join().expect("reader")).collect();
    got.sort_unstable();
    assert!(got.into_iter().eq((0..COUNT as u64).map(|at| at * SMALL as u64)));
    assert_released_once(&transfer, COUNT);
    assert_eq!(events.faults.look(Vec::len), 0);
}

/// Each release pushes the next frame; were each sent within the push, the stack would end long before the chain.
#[test]
fn a_chain_of_pushes_from_callbacks_does_not_nest() {
    const CHAIN: usize = 20_000;
    let (own, mut peers) = socket_pairs(1);
    let (link, _events) = start_out(own, false);
    let reader = thread::spawn(move || io::copy(&mut peers[0], &mut io::sink()).expect("read"));
    let transfer = Recorder::new(pattern(16, 1), Landing::Direct, 4);
    let (weak, own) = (Arc::downgrade(&link), Arc::downgrade(&transfer));
    transfer.on_event(move |transfer, header| {
        let so_far = transfer.record.look(|record| record.released[&0]);
        if let (Some(link), Some(transfer), true) = (weak.upgrade(), own.upgrade(), so_far < CHAIN) {
            link.push(transfer.outgoing(*header));
        }
    });
    link.push(transfer.outgoing(frame(1, 0, 16)));
    let end_of_chain = |record: &Record| (record.released.get(&0) == Some(&CHAIN)).then_some(());
    transfer.record.wait_until("the chain ended", end_of_chain);
    link.close();
    assert_eq!(reader.join().expect("reader"), (CHAIN * (16 + FRAME_HEADER_BYTES)) as u64);
}

#[test]
fn frames_can_be_pushed_and_the_link_closed_from_callbacks() {
    let (own, mut peers) = socket_pairs(1);
    let (link, _events) = start_out(own, false);
    let transfer = recorder(3, 1);
    let (weak, own) = (Arc::downgrade(&link), Arc::downgrade(&transfer));
    transfer.on_event(move |_, header| {
        let (Some(link), Some(transfer)) = (weak.upgrade(), own.upgrade()) else { return };
        match header.offset as usize {
            0 => link.push(transfer.outgoing(frame(1, FRAME, FRAME))),
            // On the link's own thread; must not wait for itself.
            _ => link.close(),
        }
    });
    link.push(transfer.outgoing(frame(1, 0, FRAME)));
    assert_eq!(read_frame(&mut peers[0]).expect("frame").expect("frame").0.offset, 0);
    assert_eq!(read_frame(&mut peers[0]).expect("frame").expect("frame").0.offset, FRAME as u64);
    assert!(read_frame(&mut peers[0]).expect("clean end").is_none());
    link.close();
    assert_released_once(&transfer, 2);
}

#[test]
fn the_last_handle_may_be_dropped_by_the_link_itself() {
    for len in [16, FRAME] {
        let (own, mut peers) = socket_pairs(2);
        let (link, events) = start_out(own, false);
        let transfer = recorder(1, 1);
        let weak = Arc::downgrade(&link);
        let handle = Watched::new(Some(link));
        transfer.on_event(move |_, _| drop(handle.change(Option::take)));
        weak.upgrade().expect("the hook holds it").push(transfer.outgoing(frame(1, 0, len)));
        transfer.wait_for_releases(1);
        let readers = peers.iter_mut().map(|peer| io::copy(peer, &mut io::sink()).expect("clean end"));
        assert_eq!(readers.sum::<u64>(), (len + FRAME_HEADER_BYTES) as u64);
        assert!(weak.upgrade().is_none());
        assert_eq!(events.faults.look(Vec::len), 0);
    }
}

#[test]
fn a_panic_in_a_callback_breaks_no_promise() {
    let (own, peers) = socket_pairs(1);
    let (link, events) = start_out(own, false);
    let transfer = recorder(2, 1);
    let sane = recorder(2, 2);
    transfer.on_event(|_, _| panic!("the transfer has a bug"));
    link.push_all(frames(&transfer, 1, 1));
    link.push_all(frames(&sane, 2, 2));
    sane.wait_for_releases(2);
    // A frame that lies outside the lent memory is a bug as well, but one that the link cannot pass over.
    link.push(transfer.outgoing(frame(1, 2 * FRAME - 1, FRAME)));
    assert_eq!(events.wait_for_fault().kind, FaultKind::Internal);
    link.close();
    assert_released_once(&transfer, 2);
    drop(peers);
}

#[test]
fn a_link_needs_connections() {
    let events = Arc::new(Events::default());
    let error =
        tinysockets::link::OutLink::start(Vec::new(), out_config(&events, false)).err().expect("refused");
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
}

/// Voluntary and involuntary switches, and state, of the threads whose names begin with `name`.
fn threads_named(name: &str) -> Vec<(String, String)> {
    let tasks = std::fs::read_dir("/proc/self/task").expect("proc").flatten();
    let mut found: Vec<_> = tasks
        .filter_map(|task| std::fs::read_to_string(task.path().join("status")).ok())
        .filter(|status| status.starts_with(&format!("Name:\t{name}")))
        .map(|status| {
            let field = |key: &str| {
                let line = status.lines().find(|line| line.starts_with(key));
                line.map(str::to_owned).unwrap_or_default()
            };
            (field("State"), field("voluntary") + &field("nonvoluntary"))
        })
        .collect();
    found.sort();
    found
}

/// Idle threads, and threads whose peer does not read, sleep: they are not scheduled at all.
#[test]
fn waiting_threads_do_not_run() {
    let events = Arc::new(Events::default());
    let mut config = out_config(&events, false);
    config.name = "quiet".to_owned();
    let (own, peers) = socket_pairs(4);
    let link = tinysockets::link::OutLink::start(conns(own), config).expect("start");
    let transfer = recorder(400, 1);
    // Twelve frames of 64 KiB may fit into the buffers of four connections; these do not.
    link.push_all(frames(&transfer, 1, 400));
    let mut config = in_config(&events);
    config.name = "quiet".to_owned();
    let (silent, ends) = socket_pairs(2);
    let sink =
        tinysockets::link::InLink::start(conns(ends), config, Arc::new(Book::default())).expect("start");

    let deadline = std::time::Instant::now() + PATIENCE;
    let (mut before, mut calm) = (threads_named("quiet"), 0);
    while calm < 3 {
        assert!(std::time::Instant::now() < deadline, "threads never rest: {before:?}");
        // The pause is what is measured: nothing happens in it.
        thread::sleep(Duration::from_millis(50));
        let now = threads_named("quiet");
        calm = if now == before && now.iter().all(|(state, _)| state.contains('S')) { calm + 1 } else { 0 };
        before = now;
    }
    assert_eq!(before.len(), 6);
    link.close();
    sink.close();
    assert_released_once(&transfer, 400);
    drop((peers, silent));
}

/// The behaviour of the peer on one connection, after it has read the given number of bytes.
#[derive(Debug, Clone, Copy)]
enum Peer {
    Drains,
    Closes(usize),
    Resets(usize),
    Sleeps(usize),
}

fn peers() -> impl Strategy<Value = Peer> {
    let some = 0usize..3_000_000;
    prop_oneof![
        3 => Just(Peer::Drains),
        1 => some.clone().prop_map(Peer::Closes),
        1 => some.clone().prop_map(Peer::Resets),
        1 => some.prop_map(Peer::Sleeps),
    ]
}

/// Plays `peer`; a connection that sleeps is handed back so that it stays open.
fn play(peer: Peer, mut stream: TcpStream) -> Option<TcpStream> {
    let amount = match peer {
        Peer::Drains => u64::MAX,
        Peer::Closes(n) | Peer::Resets(n) | Peer::Sleeps(n) => n as u64,
    };
    let _ = io::copy(&mut (&mut stream).take(amount), &mut io::sink());
    match peer {
        Peer::Sleeps(_) => return Some(stream),
        Peer::Resets(_) => {
            SockRef::from(&stream).set_linger(Some(Duration::ZERO)).expect("option");
        }
        Peer::Drains | Peer::Closes(_) => {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
    None
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Several threads push, a gate closes, connections break, and somebody closes the link, all at once.
    #[test]
    fn released_exactly_once_whatever_happens(
        peers in prop::collection::vec(peers(), 1..5),
        batches in prop::collection::vec((1usize..40, any::<bool>()), 1..8),
        gate_closes_after in 0usize..120,
        close_while_pushing: bool,
        with_checksum: bool,
        len in prop::sample::select(vec![1000, 16 << 10, FRAME]),
    ) {
        let (own, theirs) = socket_pairs(peers.len());
        let (link, events) = start_out(own, with_checksum);
        let count: usize = batches.iter().map(|(frames, _)| frames).sum();
        let (stopped, steady) = (recorder(count, 1), recorder(count, 2));
        let kept_open = Watched::new(Vec::new());
        thread::scope(|scope| {
            for (peer, stream) in peers.into_iter().zip(theirs) {
                // A peer that stops reading stops the frames too, until somebody closes the link.
                let peer = match peer {
                    Peer::Sleeps(_) if !close_while_pushing => Peer::Drains,
                    peer => peer,
                };
                let kept_open = &kept_open;
                scope.spawn(move || {
                    let open = play(peer, stream);
                    kept_open.change(|kept| kept.extend(open));
                });
            }
            let pushers: Vec<_> = [(&stopped, 1), (&steady, 2)]
                .into_iter()
                .map(|(transfer, tag)| {
                    let (link, batches) = (&link, &batches);
                    scope.spawn(move || {
                        let mut all = frames_of(len, transfer, tag, count).into_iter();
                        for &(size, together) in batches {
                            if together {
                                link.push_all(all.by_ref().take(size));
                            } else {
                                all.by_ref().take(size).for_each(|frame| link.push(frame));
                            }
                        }
                    })
                })
                .collect();
            let gate = scope.spawn(|| {
                stopped.record.wait_until("enough was released", |record| {
                    (record.released.len() >= gate_closes_after.min(count)).then_some(())
                });
                stopped.bytes().len()
            });
            if close_while_pushing {
                link.close();
            }
            for pusher in pushers {
                pusher.join().expect("pusher");
            }
            if !close_while_pushing {
                stopped.wait_for_releases(count);
                steady.wait_for_releases(count);
            }
            link.close();
            assert_released_once(&stopped, count);
            assert_released_once(&steady, count);
            assert_eq!(gate.join().expect("gate"), count * FRAME);
        });
        prop_assert!(events.faults.look(Vec::len) <= 1);
        prop_assert_eq!(stopped.bytes(), pattern(count * FRAME, 1));
    }
}
