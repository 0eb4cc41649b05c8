//! The receiving end against a peer that is a plain socket: landing, framing, and every way in which it can go wrong.

use std::{
    io::Write,
    net::TcpStream,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use crate::link_support::*;
use pccl_testkit::random::Rng;
use proptest::prelude::*;
use socket2::SockRef;
use tinysockets::link::{
    FLAG_CHECKSUM, FLAG_EARLY, FaultKind, FrameHeader, InLink, Landing, LinkFault, MAX_EARLY_FRAME_BYTES,
};

struct Receiving {
    peer: TcpStream,
    link: Arc<InLink>,
    events: Arc<Events>,
    book: Arc<Book>,
    transfer: Arc<Recorder>,
}

const SIZE: usize = 1 << 20;

fn receiving(landing: Landing) -> Receiving {
    receiving_pieces(landing, usize::MAX)
}

fn receiving_pieces(landing: Landing, piece_bytes: usize) -> Receiving {
    let (mut peer, own) = socket_pairs(1);
    let book = Arc::new(Book::default());
    let transfer = Recorder::new(vec![0; SIZE], landing, 4).cut_into(piece_bytes);
    book.announce(op(1), Arc::<Recorder>::clone(&transfer));
    let (link, events) = start_in(own, &book);
    Receiving { peer: peer.remove(0), link, events, book, transfer }
}

impl Receiving {
    fn send(&mut self, header: FrameHeader, payload: &[u8]) {
        assert_eq!(header.len as usize, payload.len());
        self.peer.write_all(&header.encode()).expect("send");
        self.peer.write_all(payload).expect("send");
    }

    /// The link is broken for this reason, says who did it, and said so once.
    #[track_caller]
    fn expect_fault(&self, kind: FaultKind, text: &str) -> LinkFault {
        let fault = self.events.wait_for_fault();
        assert_eq!(fault.kind, kind, "{fault}");
        assert!(fault.text.contains(text), "{fault}");
        assert_eq!((fault.peer, fault.generation, fault.connection), (PEER, 3, 0));
        assert!(fault.to_string().contains("feed000000000000000000000000beef"), "{fault}");
        assert!(self.link.is_broken());
        self.link.close();
        assert_eq!(self.events.faults.look(Vec::len), 1);
        fault
    }

    #[track_caller]
    fn expect_transfer_told(&self, fault: &LinkFault) {
        self.transfer.record.look(|record| assert_eq!(record.failures, std::slice::from_ref(fault)));
    }
}

#[test]
fn direct_frames_land_in_place_in_any_order() {
    // In one piece; in pieces as large as tensors; in more of them than a call takes; in tiny ones.
    for piece in [usize::MAX, 70_000, 5_000, 900, 7] {
        let mut r = receiving_pieces(Landing::Direct, piece);
        let bytes = pattern(SIZE, 1);
        for (offset, len) in [(500_000, 524_288), (0, 1), (1, 0), (17, 300_000), (400_000, 100_000)] {
            r.send(frame(1, offset, len), &bytes[offset..offset + len]);
        }
        let sum = FrameHeader {
            flags: FLAG_CHECKSUM,
            checksum: checksum(&bytes[310_000..380_000]),
            ..frame(1, 310_000, 70_000)
        };
        r.send(sum, &bytes[310_000..380_000]);
        r.transfer.wait_for_arrivals(6);
        r.link.close();
        let got = r.transfer.bytes();
        assert_eq!(got[500_000..500_000 + 524_288], bytes[500_000..500_000 + 524_288]);
        assert_eq!(got[17..300_017], bytes[17..300_017]);
        assert_eq!(got[310_000..380_000], bytes[310_000..380_000]);
        assert_eq!(got[400_000..500_000], bytes[400_000..500_000]);
        assert!(got[0] == bytes[0] && got[1..17].iter().all(|&byte| byte == 0), "nothing else is touched");
        assert!(got[300_017..310_000].iter().all(|&byte| byte == 0), "nothing else is touched");
        assert!(got[380_000..400_000].iter().all(|&byte| byte == 0), "nothing else is touched");
        assert_eq!(r.link.received_bytes(), (524_288 + 1 + 300_000 + 100_000 + 70_000 + 6 * 52) as u64);
    }
}

#[test]
fn folded_frames_come_in_whole_elements() {
    let mut r = receiving(Landing::Fold);
    let bytes = pattern(SIZE, 2);
    r.send(frame(1, 0, 999_996), &bytes[..999_996]);
    r.send(frame(1, 8, 4), &bytes[8..12]);
    r.transfer.wait_for_arrivals(2);
    r.transfer.record.look(|record| {
        assert_eq!(record.folded[&0], bytes[..999_996]);
        assert_eq!(record.folded[&8], bytes[8..12]);
        assert_eq!(record.misaligned, 0);
    });
}

#[test]
fn elements_are_folded_where_they_lie_wherever_records_and_rings_end() {
    let ways = [Way::Sealed, Way::Shared, Way::SharedWithKey];
    for (granule, way) in [1, 4, 8, 4096].into_iter().flat_map(|granule| ways.map(|way| (granule, way))) {
        let (mut near, far) = conn_pairs(1, way);
        let (near, book) = (near.remove(0), Arc::new(Book::default()));
        let transfer = Recorder::new(vec![0; SIZE], Landing::Fold, granule);
        book.announce(op(1), Arc::<Recorder>::clone(&transfer));
        let (link, _events) = start_in(far, &book);
        let lens = [512 << 10, 4096, 256 << 10, 64 << 10];
        let (bytes, mut rng, mut offset) = (pattern(SIZE, 6), Rng::keyed(&[granule as u64]), 0);
        let mut stream = Vec::new();
        for len in lens {
            stream.extend_from_slice(&frame(1, offset, len).encode());
            stream.extend_from_slice(&bytes[offset..offset + len]);
            offset += len;
        }
        // Records within headers and elements, and longer than frames.
        let mut rest = stream.as_slice();
        while !rest.is_empty() {
            let most = [3, 60, 9000, 300_000][rng.index(4)];
            let (record, behind) = rest.split_at(rng.index(most).min(rest.len()));
            near.send_all(record, Some(Instant::now() + PATIENCE)).expect("send");
            rest = behind;
        }
        transfer.wait_for_arrivals(lens.len());
        transfer.record.look(|record| {
            let mut offset = 0;
            for len in lens {
                assert!(record.folded[&(offset as u64)] == bytes[offset..offset + len], "{granule} {offset}");
                offset += len;
            }
        });
        assert_eq!(link.received_bytes(), stream.len() as u64);
    }
}

#[test]
fn a_damaged_payload_costs_the_attempt_and_not_the_link() {
    for landing in [Landing::Direct, Landing::Fold] {
        let mut r = receiving(landing);
        let bytes = pattern(40_000, 3);
        let good = |offset| FrameHeader {
            flags: FLAG_CHECKSUM,
            checksum: checksum(&bytes),
            ..frame(1, offset, bytes.len())
        };
        let mut damaged = bytes.clone();
        damaged[33_333] ^= 4;
        r.send(good(0), &bytes);
        r.send(good(100_000), &damaged);
        r.send(good(200_000), &bytes);
        r.transfer.wait_for_arrivals(2);
        r.transfer.record.look(|record| {
            assert_eq!(record.arrived, [0, 200_000]);
            assert_eq!(record.corrupt, [(100_000, PEER, 3)]);
        });
        assert!(!r.link.is_broken());
    }
}

#[test]
fn retired_and_discarded_frames_are_read_and_thrown_away() {
    let mut r = receiving(Landing::Direct);
    let discards = Recorder::new(vec![0; 4], Landing::Discard, 4);
    r.book.announce(op(2), Arc::<Recorder>::clone(&discards));
    r.book.retire(op(3));
    let bytes = pattern(SIZE, 4);
    r.send(frame(3, 0, SIZE), &bytes);
    r.send(frame(2, 0, SIZE), &bytes);
    r.send(frame(1, 0, SIZE), &bytes);
    r.transfer.wait_for_arrivals(1);
    discards.record.look(|record| assert_eq!((record.admitted.len(), record.arrived.len()), (1, 0)));
    assert_eq!(r.transfer.bytes(), bytes);
}

#[test]
fn after_the_gate_is_drained_memory_is_never_touched_and_the_link_goes_on() {
    for (landing, first_part) in [(Landing::Direct, 100_000), (Landing::Direct, 10), (Landing::Fold, 100_000)]
    {
        let mut r = receiving(landing);
        let bytes = pattern(SIZE, 5);
        let header = frame(1, 0, SIZE);
        r.peer.write_all(&header.encode()).expect("send");
        r.peer.write_all(&bytes[..first_part]).expect("send");
        r.transfer.record.wait_until("it was admitted", |record| record.admitted.first().copied());
        // From here on the memory is ours; what is there now must stay.
        let before = r.transfer.bytes().to_vec();
        r.book.retire(op(1));
        r.peer.write_all(&bytes[first_part..]).expect("send");

        let next = Recorder::new(vec![0; SIZE], Landing::Direct, 4);
        r.book.announce(op(2), Arc::<Recorder>::clone(&next));
        r.send(frame(2, 0, SIZE), &bytes);
        next.wait_for_arrivals(1);
        assert_eq!(r.transfer.bytes(), before);
        assert_eq!(next.bytes(), bytes);
        r.transfer.record.look(|record| assert_eq!(record.arrived.len(), 0));
    }
}

#[test]
fn a_frame_of_an_unknown_operation_breaks_the_link() {
    let mut r = receiving(Landing::Direct);
    r.send(frame(77, 0, 4), b"data");
    r.expect_fault(FaultKind::Violation, "never announced: epoch 1 tag 77 attempt 0");
}

#[test]
fn early_frames_wait_for_their_operation_and_hold_up_no_other() {
    let mut r = receiving(Landing::Direct);
    let early = |tag, offset, len| FrameHeader { flags: FLAG_EARLY, ..frame(tag, offset, len) };
    let damaged =
        FrameHeader { flags: FLAG_EARLY | FLAG_CHECKSUM, checksum: checksum(b"fine") ^ 1, ..frame(77, 8, 4) };
    r.send(early(77, 0, 4), b"data");
    r.send(damaged, b"fine");
    r.send(early(77, 4, 0), b"");
    // One of an operation that is known lands as any other.
    r.send(early(1, 0, 4), b"here");
    r.transfer.wait_for_arrivals(1);
    assert_eq!(r.book.kept(), 3);
    let late = Recorder::new(vec![0; SIZE], Landing::Direct, 4);
    r.book.announce(op(77), Arc::<Recorder>::clone(&late));
    late.record.look(|record| {
        assert_eq!(record.arrived, [0, 4]);
        assert_eq!(record.corrupt, [(8, PEER, 3)]);
    });
    assert_eq!(r.book.kept(), 0);
    // A later one needs nobody to keep it.
    r.send(early(77, 12, 4), b"more");
    late.wait_for_arrivals(3);
    let bytes = late.bytes();
    assert_eq!((&bytes[..4], &bytes[12..16]), (&b"data"[..], &b"more"[..]));
    assert!(!r.link.is_broken());
}

#[test]
fn an_early_frame_that_is_too_long_or_not_kept_breaks_the_link() {
    let long = MAX_EARLY_FRAME_BYTES + 1;
    let mut r = receiving(Landing::Direct);
    r.send(FrameHeader { flags: FLAG_EARLY, ..frame(77, 0, long) }, &vec![0; long]);
    r.expect_fault(FaultKind::Violation, "an early frame of 262145 bytes");
    let mut r = receiving(Landing::Direct);
    r.book.refuse_early();
    r.send(FrameHeader { flags: FLAG_EARLY, ..frame(77, 0, 4) }, b"data");
    r.expect_fault(FaultKind::Violation, "no room");
}

#[test]
fn a_duplicate_frame_breaks_the_link() {
    let mut r = receiving(Landing::Direct);
    r.send(frame(1, 0, 4), b"data");
    r.send(frame(1, 0, 4), b"data");
    let fault = r.expect_fault(FaultKind::Violation, "duplicate");
    r.expect_transfer_told(&fault);
    r.transfer.record.look(|record| assert_eq!(record.arrived, [0]));
}

#[test]
fn half_an_element_breaks_the_link() {
    let mut r = receiving(Landing::Fold);
    r.send(frame(1, 0, 6), b"sixsix");
    let fault = r.expect_fault(FaultKind::Violation, "no multiple of 4");
    r.expect_transfer_told(&fault);
}

#[test]
fn bad_headers_break_the_link() {
    let mut damaged = frame(1, 0, 4).encode();
    damaged[30] ^= 1;
    let too_long = frame(1, 0, (1 << 20) + 1).encode();
    let cases: [(&[u8], &str); 4] = [
        (b"GET / HTTP/1.1\r\nHost: example.org\r\nAccept: */*\r\n\r\n  ", "no frame begins here"),
        (&[0; 52], "no frame begins here"),
        (&damaged, "damaged frame header"),
        (&too_long, "frame of 1048577 bytes"),
    ];
    for (bytes, text) in cases {
        let mut r = receiving(Landing::Direct);
        r.peer.write_all(bytes).expect("send");
        r.expect_fault(FaultKind::Violation, text);
    }
}

#[test]
fn a_frame_outside_the_lent_memory_breaks_the_link() {
    // The transfer here lets the peer choose the offset; the link checks the bounds nevertheless.
    for offset in [SIZE - 3, SIZE + 1, usize::MAX - 2] {
        let mut r = receiving(Landing::Direct);
        r.send(frame(1, offset, 4), b"data");
        let fault = r.expect_fault(FaultKind::Internal, "bytes lent");
        r.expect_transfer_told(&fault);
    }
}

#[test]
fn the_end_of_the_stream_is_told_apart_by_its_place() {
    let r = receiving(Landing::Direct);
    drop(r.peer.try_clone().expect("clone").shutdown(std::net::Shutdown::Both));
    r.expect_fault(FaultKind::Eof, "between two frames");

    let mut r = receiving(Landing::Direct);
    r.peer.write_all(&frame(1, 0, 4).encode()[..20]).expect("send");
    drop(r.peer.shutdown(std::net::Shutdown::Both));
    r.expect_fault(FaultKind::Eof, "inside a frame header");

    for landing in [Landing::Direct, Landing::Fold, Landing::Discard] {
        let mut r = receiving(landing);
        r.peer.write_all(&frame(1, 0, 100_000).encode()).expect("send");
        r.peer.write_all(&[1; 50_000]).expect("send");
        drop(r.peer.shutdown(std::net::Shutdown::Both));
        let fault = r.expect_fault(FaultKind::Eof, "inside a frame, epoch 1 tag 1");
        r.expect_transfer_told(&fault);
    }
}

#[test]
fn a_reset_in_the_middle_of_a_frame_is_reported() {
    let mut r = receiving(Landing::Direct);
    r.peer.write_all(&frame(1, 0, 100_000).encode()).expect("send");
    r.peer.write_all(&[1; 50_000]).expect("send");
    r.transfer.record.wait_until("it was admitted", |record| record.admitted.first().copied());
    SockRef::from(&r.peer).set_linger(Some(Duration::ZERO)).expect("option");
    r.peer = socket_pairs(1).0.remove(0);
    let fault = r.expect_fault(FaultKind::Io, "receiving failed");
    r.expect_transfer_told(&fault);
}

#[test]
fn one_lost_connection_ends_the_frames_on_all_others() {
    let (mut peers, own) = socket_pairs(3);
    let book = Arc::new(Book::default());
    let transfer = Recorder::new(vec![0; SIZE], Landing::Direct, 4);
    book.announce(op(1), Arc::<Recorder>::clone(&transfer));
    let (link, events) = start_in(own, &book);
    for (at, peer) in peers.iter_mut().enumerate() {
        peer.write_all(&frame(1, at * 1000, 1000).encode()).expect("send");
        peer.write_all(&[1; 10]).expect("send");
    }
    let all_admitted = |record: &Record| (record.admitted.len() == 3).then_some(());
    transfer.record.wait_until("all were admitted", all_admitted);
    drop(peers.remove(1));
    let fault = events.wait_for_fault();
    assert_eq!((fault.kind, fault.connection), (FaultKind::Eof, 1));
    link.close();
    // Each connection had a frame under way, and each tells the link's first fault.
    transfer.record.look(|record| assert_eq!(record.failures, [fault.clone(), fault.clone(), fault.clone()]));
    assert_eq!(events.faults.look(Vec::len), 1);
}

#[test]
fn closing_is_no_fault_but_ends_the_frame_under_way() {
    let mut r = receiving(Landing::Direct);
    r.peer.write_all(&frame(1, 0, 100_000).encode()).expect("send");
    r.transfer.record.wait_until("it was admitted", |record| record.admitted.first().copied());
    r.link.close();
    r.link.close();
    assert_eq!(r.link.fault().map(|fault| fault.kind), Some(FaultKind::Closed));
    r.transfer.record.look(|record| assert_eq!(kinds(&record.failures), [FaultKind::Closed]));
    assert_eq!(r.events.faults.look(Vec::len), 0);
}

#[test]
fn a_link_can_be_closed_and_dropped_from_its_own_callback() {
    let mut r = receiving(Landing::Direct);
    let own = Arc::downgrade(&r.link);
    r.transfer.on_event(move |_, _| {
        // The second handle is dropped here, on the link's thread, perhaps as the last one.
        let link = own.upgrade().expect("the test holds the link until this ran");
        link.close();
    });
    r.send(frame(1, 0, 4), b"data");
    r.transfer.wait_for_arrivals(1);
    let own = Arc::downgrade(&r.link);
    r.link.close();
    drop(r.link);
    assert!(Weak::upgrade(&own).is_none());
    assert_eq!(r.events.faults.look(Vec::len), 0);
}

#[test]
fn a_panic_in_a_callback_breaks_the_link_and_nothing_else() {
    let mut r = receiving(Landing::Direct);
    r.transfer.on_event(|_, _| panic!("the transfer has a bug"));
    r.send(frame(1, 0, 4), b"data");
    let fault = r.expect_fault(FaultKind::Internal, "the transfer has a bug");
    r.expect_transfer_told(&fault);
}

#[test]
fn a_caller_can_fail_the_link() {
    let r = receiving(Landing::Direct);
    r.link.fail(0, FaultKind::Stalled, "no byte for 4 s");
    r.link.fail(0, FaultKind::Violation, "too late to matter");
    r.expect_fault(FaultKind::Stalled, "no byte for 4 s");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// However the stream is cut into pieces on its way, the same frames come out.
    #[test]
    fn frames_survive_any_segmentation(
        lens in prop::collection::vec(0usize..6000, 1..20),
        cuts in prop::collection::vec(1usize..4000, 1..40),
        fold: bool,
        with_checksum: bool,
    ) {
        let mut r = receiving(if fold { Landing::Fold } else { Landing::Direct });
        let bytes = pattern(SIZE, 6);
        let mut stream = Vec::new();
        let mut offset = 0;
        for &len in &lens {
            let len = len / 4 * 4;
            let payload = &bytes[offset..offset + len];
            let mut header = frame(1, offset, len);
            if with_checksum {
                header = FrameHeader { flags: FLAG_CHECKSUM, checksum: checksum(payload), ..header };
            }
            stream.extend_from_slice(&header.encode());
            stream.extend_from_slice(payload);
            // Frames are told apart by their offsets, so even empty ones need their own.
            offset += len + 1;
        }
        r.peer.set_nodelay(true).expect("option");
        let mut rest = &stream[..];
        for cut in cuts.iter().cycle() {
            let (now, later) = rest.split_at((*cut).min(rest.len()));
            r.peer.write_all(now).expect("send");
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
        r.transfer.wait_for_arrivals(lens.len());
        r.link.close();
        r.transfer.record.look(|record| assert!(record.corrupt.is_empty() && record.failures.is_empty()));
        let landed = r.transfer.bytes();
        let mut offset = 0;
        for &len in &lens {
            let len = len / 4 * 4;
            let got = r.transfer.record.look(|record| match record.folded.get(&(offset as u64)) {
                Some(folded) => folded.clone(),
                None => landed[offset..offset + len].to_vec(),
            });
            prop_assert_eq!(&got, &bytes[offset..offset + len]);
            offset += len + 1;
        }
    }
}
