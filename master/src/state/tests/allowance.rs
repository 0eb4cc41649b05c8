//! How often a client may do what, and how large its packets may be.

use super::harness::{Rig, ip};
use crate::state::{ClientKey, Input};
use pccl_protocol::*;
use std::time::Duration;

fn beat() -> C2m {
    C2m::Beat(Beat { sequence: 1, ..Beat::default() })
}

#[test]
fn who_is_fast_is_read_more_slowly_and_never_dropped() {
    let mut rig = Rig::world(3);
    let gone = C2m::GiveUp(GiveUp { vote: VoteRef::Sync(RequestId(1)), limit_ms: None });
    let loan = C2m::Loan(Loan { sync: SyncId(0), stands: false });
    for (n, packet, burst, per_second) in [(1, beat(), 1024, 16), (2, gone, 4096, 1024), (3, loan, 4096, 256)]
    {
        let began = rig.now;
        let mut taken = 0;
        while taken < burst + 4 * per_second {
            // As the loop does that reads it.
            if let Some(after) = rig.state.read_after(ClientKey(n)) {
                assert!(taken >= burst, "{taken}");
                rig.now = after;
            }
            rig.send(n, packet.clone());
            taken += 1;
        }
        let millis = rig.now.since(began).as_millis();
        assert!((3900..=4100).contains(&millis), "{millis} ms for {taken} of {}", packet.name());
    }
    assert!(rig.closed.is_empty());
}

#[test]
fn a_peer_that_beats_as_it_is_told_to_is_never_dropped_for_it() {
    let mut rig = Rig::with(|options| options.beat_interval = Duration::from_millis(2));
    rig.join(&[1], 0);
    for _ in 0..20_000 {
        rig.now = rig.now + Duration::from_millis(1);
        rig.send(1, beat());
    }
    assert!(!rig.closed.contains(&1));
}

#[test]
fn who_asks_often_is_answered_later_and_who_does_not_wait_is_dropped() {
    let mut rig = Rig::world(1);
    rig.mail.clear();
    let ask = |rig: &mut Rig, n| rig.send(1, C2m::StatusRequest(RequestId(n)));
    (0..128).for_each(|n| ask(&mut rig, n));
    let requests = |rig: &mut Rig| -> Vec<u64> {
        let answers = rig.answers(1).into_iter();
        answers
            .map(|packet| match packet {
                M2c::Status(status) => status.request.0,
                other => panic!("{other:?}"),
            })
            .collect()
    };
    assert_eq!(requests(&mut rig), (0..64).collect::<Vec<_>>());
    rig.pass(1000, &[1]);
    assert_eq!(requests(&mut rig), (64..95).collect::<Vec<_>>());
    rig.pass(2000, &[1]);
    assert_eq!(requests(&mut rig), (95..128).collect::<Vec<_>>());
    for n in 128..328 {
        if !rig.closed.contains(&1) {
            ask(&mut rig, n);
        }
    }
    assert!(rig.kick_of(1).detail.as_str().contains("64 questions were open"));
}

#[test]
fn joins_are_counted_by_networks() {
    let mut rig = Rig::with(|options| options.max_pending = 4);
    let mut join = |n: u64, last: u64| {
        let (client, address) = (ClientKey(n), ip(last));
        rig.input(Input::Connected { client, remote: address, local: address });
        rig.send(n, C2m::Register(super::harness::register(0)));
        if !rig.closed.contains(&n) {
            rig.input(Input::Disconnected { client, text: "gone".into() });
            return None;
        }
        Some(rig.kick_of(n))
    };
    let refused = (0..5000).find_map(|n| join(1 + n, n % 250).map(|reason| (n, reason)));
    let (count, reason) = refused.expect("there is a limit");
    assert_eq!((count, reason.code), (2048, KickCode::Full));
    assert!(reason.detail.as_str().contains("too many joins from the network"), "{reason}");
}

#[test]
fn who_waits_sends_small_packets() {
    let mut rig = Rig::world(1);
    let most = |rig: &Rig, n| rig.state.largest_packet_bytes(ClientKey(n));
    rig.connect(2);
    assert_eq!(most(&rig, 2), limits::MAX_FIRST_PACKET_BYTES);
    rig.register(3, 0);
    assert_eq!(most(&rig, 3), limits::MAX_WAITING_PACKET_BYTES);
    assert_eq!((most(&rig, 1), most(&rig, 99)), (limits::MAX_PACKET_BYTES, limits::MAX_FIRST_PACKET_BYTES));
    assert!(rig.state.is_outside(ClientKey(2)) && rig.state.is_outside(ClientKey(3)));
    assert!(!rig.state.is_outside(ClientKey(1)) && !rig.state.is_outside(ClientKey(99)));
    let C2m::Register(list) = C2m::Register(Register { formed: true, ..super::harness::register(7) }) else {
        return;
    };
    rig.connect(4);
    rig.send(4, C2m::Register(list));
    assert_eq!(most(&rig, 4), limits::MAX_FORMING_PACKET_BYTES);
}

#[test]
fn who_is_not_read_is_not_silent() {
    let mut rig = Rig::world(2);
    for _ in 0..4 {
        rig.pass(9_000, &[2]);
        rig.input(Input::Unread { client: ClientKey(1) });
    }
    assert!(rig.closed.is_empty());
    rig.pass(11_000, &[2]);
    assert_eq!(rig.kick_of(1).code, KickCode::Silent);
}
