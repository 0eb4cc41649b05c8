//! Peers that nobody can dial: who is let in, who dials, and what is said.

use super::harness::{Rig, descriptor, register};
use super::sync::{entry, vote};
use crate::state::{ClientKey, Input};
use pccl_protocol::*;
use std::collections::BTreeSet;

/// A peer that says whether others can dial it.
fn register_as(rig: &mut Rig, n: u64, outbound_only: Option<bool>) {
    rig.connect(n);
    rig.send(n, C2m::Register(Register { outbound_only, ..register(0) }));
}

/// Everybody who is in votes to let others in.
fn let_in(rig: &mut Rig) {
    for n in rig.accepted() {
        rig.vote_topology(n, 9000 + n, 0);
    }
    rig.confirm_all();
}

/// These clients, all let in; the first ones can be dialed, and as many more as `hidden` says cannot.
fn world(open: u64, hidden: u64) -> Rig {
    let mut rig = Rig::new();
    for n in 1..=open + hidden {
        register_as(&mut rig, n, Some(n > open));
    }
    rig.confirm_all();
    let_in(&mut rig);
    assert_eq!(rig.accepted().len() as u64, open + hidden, "{:?}", rig.state.blocked_on());
    rig.mail.clear();
    rig
}

/// For each edge of a client's plan its ends as clients, and whether the receiving one dials.
fn edges(rig: &Rig, n: u64, purpose: Purpose) -> Vec<(u64, u64, bool)> {
    let plan = &rig.plans[&n];
    let client = |rank: u16| {
        let peer = plan.members[usize::from(rank)].peer;
        *rig.peers.iter().find(|(_, id)| **id == peer).expect("a client").0
    };
    let of = plan.edges.iter().filter(|edge| edge.purpose == purpose);
    of.map(|edge| (client(edge.from), client(edge.to), edge.back)).collect()
}

fn warnings(rig: &mut Rig, n: u64) -> Vec<String> {
    let mail = rig.take(n).into_iter();
    mail.filter_map(|packet| if let M2c::Warning(text) = packet { Some(text.to_string()) } else { None })
        .collect()
}

#[test]
fn whoever_cannot_be_dialed_dials_both_of_its_edges() {
    let rig = world(2, 2);
    let ring = edges(&rig, 1, Purpose::Ring);
    assert_eq!(ring.len(), 4);
    for (from, to, back) in ring {
        assert_eq!(back, to > 2, "{from} -> {to}");
        assert!(from <= 2 || to <= 2, "{from} and {to} cannot meet");
    }
    // All pairs but that of the two, in both directions, and those of the ring.
    let mesh = edges(&rig, 1, Purpose::Mesh);
    assert_eq!(mesh.len(), 12 - 4 - 2);
    assert!(mesh.iter().all(|(from, to, back)| (*from <= 2 || *to <= 2) && *back == (*to > 2)), "{mesh:?}");
    let plan = &rig.plans[&1];
    assert!(plan.paths.partial);
    let shares: Vec<(PeerId, u16)> = plan.members.iter().map(|member| (member.peer, member.share)).collect();
    assert!(
        shares.iter().all(|(peer, share)| (*share > 0) == (*peer == rig.peers[&1] || *peer == rig.peers[&2]))
    );
    let rig = world(3, 1);
    assert!(!rig.plans[&1].paths.partial);
    assert!(edges(&rig, 1, Purpose::Mesh).iter().all(|(_, to, back)| *back == (*to == 4)));
}

#[test]
fn a_ring_takes_no_more_of_them_than_of_others_and_the_rest_waits_with_a_reason() {
    let mut rig = world(1, 1);
    register_as(&mut rig, 3, Some(true));
    let [warning] = &warnings(&mut rig, 3)[..] else { panic!("one warning") };
    assert!(
        warning.contains("outbound-only, as its program says: it dials all of its connections itself"),
        "{warning}"
    );
    assert!(warning.contains("TCP ports 1000 and 2000 of 10.0.0.3"), "{warning}");
    let_in(&mut rig);
    assert_eq!(rig.accepted(), [1, 2]);
    let sentence = "2 of 3 peers are outbound-only, and a ring takes no more of them than of others (1)";
    rig.beat(3, 0);
    let told = rig.take(3).into_iter().find_map(|packet| match packet {
        M2c::Echo(echo) => echo.blocked_on,
        _ => None,
    });
    let told = told.expect("it waits").to_string();
    for part in [sentence, "(TCP ports 1000 and 2000 of 10.0.0.2)", "add a peer that can be dialed"] {
        assert!(told.contains(part), "{told}");
    }
    assert!(
        rig.state.blocked_on().iter().any(|text| text.contains(sentence)),
        "{:?}",
        rig.state.blocked_on()
    );
    // A peer that votes for a larger world hears of it.
    rig.vote_topology(1, 1, 3);
    rig.vote_topology(2, 2, 3);
    assert!(
        rig.state
            .blocked_on()
            .iter()
            .any(|text| text.starts_with("wait_for_world(3)") && text.contains(sentence))
    );
    register_as(&mut rig, 4, Some(false));
    rig.confirm_all();
    assert_eq!(rig.accepted(), [1, 2, 3, 4], "{:?}", rig.state.blocked_on());
}

#[test]
fn one_alone_is_a_ring_and_another_one_does_not_come_to_it() {
    let mut rig = Rig::new();
    register_as(&mut rig, 1, Some(true));
    register_as(&mut rig, 2, Some(true));
    rig.confirm_all();
    let_in(&mut rig);
    assert_eq!(rig.accepted(), [1]);
    register_as(&mut rig, 3, Some(false));
    let_in(&mut rig);
    assert_eq!(rig.accepted(), [1, 3]);
}

#[test]
fn when_nobody_separates_them_any_more_the_last_one_goes_and_comes_back() {
    let mut rig = world(2, 2);
    rig.die(2);
    let [M2c::Kicked(reason)] = &rig.answers(4)[..] else { panic!("the last one is dropped") };
    assert_eq!(reason.code, KickCode::Unreachable);
    assert!(reason.detail.as_str().contains("2 of 3 peers are outbound-only"), "{}", reason.detail);
    rig.confirm_all();
    assert_eq!(edges(&rig, 1, Purpose::Ring).len(), 2, "the others go on");
    register_as(&mut rig, 5, Some(true));
    let_in(&mut rig);
    assert_eq!(rig.accepted(), [1, 3]);
    register_as(&mut rig, 6, Some(false));
    let_in(&mut rig);
    assert_eq!(rig.accepted(), [1, 3, 5, 6]);
}

#[test]
fn whose_ports_the_master_does_not_reach_is_one_of_them_and_nobody_is_let_in_before_that_is_known() {
    let mut rig = Rig::new();
    rig.answers_for_ports = false;
    rig.register(1, 0);
    assert_eq!(rig.accepted(), [], "its ports are being tried");
    let found = |rig: &mut Rig, n: u64, closed: &[bool]| {
        let closed = closed.iter().map(|is_state| (*is_state, "did not answer in time".to_owned())).collect();
        let peer = rig.peers[&n];
        rig.input(Input::Reached { peer, closed, unix_us: 0 });
    };
    found(&mut rig, 1, &[]);
    rig.register(2, 0);
    let_in(&mut rig);
    assert_eq!(rig.accepted(), [1]);
    found(&mut rig, 2, &[false]);
    let_in(&mut rig);
    assert_eq!(rig.accepted(), [1, 2]);
    assert_eq!(edges(&rig, 1, Purpose::Ring), [(1, 2, true), (2, 1, false)]);
    let warnings = warnings(&mut rig, 2);
    assert!(
        warnings.iter().any(|text| text.contains("since nobody reaches it at 10.0.0.2:1000")),
        "{warnings:?}"
    );
    // A peer that says that others reach it is believed, and one more warning says what was found.
    register_as(&mut rig, 3, Some(false));
    found(&mut rig, 3, &[false]);
    rig.missing = Some((BTreeSet::new(), vec![1, 2, 3]));
    let_in(&mut rig);
    assert_eq!(rig.accepted(), [1, 2, 3]);
    assert_eq!(edges(&rig, 1, Purpose::Ring).iter().filter(|(.., back)| *back).count(), 1);
}

#[test]
fn a_master_may_refuse_them() {
    let mut rig = Rig::with(|options| options.require_reachable = true);
    register_as(&mut rig, 1, Some(true));
    let M2c::Kicked(reason) = rig.answer(1) else { panic!("it is refused") };
    assert!(reason.code == KickCode::Unreachable && reason.detail.as_str().contains("--require-reachable"));
}

#[test]
fn two_of_them_have_no_edge_for_send_and_receive() {
    let mut rig = world(2, 2);
    let pair = Pair { from: rig.peers[&3], to: rig.peers[&4] };
    let tag = Tag { pair: Some(pair), ..1.into() };
    let op = OpId { epoch: rig.epoch(3), tag, attempt: 0 };
    let descriptor = Descriptor { collective: Collective::SendRecv(Nothing {}), ..descriptor(64) };
    rig.send(3, C2m::Initiate(Initiate { op, descriptor: descriptor.clone(), has_begun: false }));
    rig.send(4, C2m::Initiate(Initiate { op, descriptor, has_begun: false }));
    for n in [3, 4] {
        let M2c::Outcome(OpOutcome { outcome: Outcome::Aborted(verdict), .. }) = rig.answer(n) else {
            panic!("it fails")
        };
        assert_eq!(verdict.cause, Cause::EdgeBroken);
        assert!(
            verdict.detail.as_str().contains("both are outbound-only: let others reach one of"),
            "{verdict}"
        );
    }
    assert_eq!(edges(&rig, 1, Purpose::Pair), []);
}

#[test]
fn the_master_hands_on_who_wants_to_be_dialed() {
    let mut rig = world(2, 2);
    let wish = |peer, role| C2m::CallMe(CallMe { peer, role, index: 3, count: 4 });
    let hidden = rig.peers[&3];
    rig.send(1, wish(hidden, TicketRole::StateBack));
    rig.send(2, wish(hidden, TicketRole::ProbeBack));
    // Nobody can dial that one either, and who can be dialed need not be asked.
    rig.send(4, wish(hidden, TicketRole::StateBack));
    let open = rig.peers[&2];
    rig.send(1, wish(open, TicketRole::StateBack));
    let calls: Vec<(PeerId, u16, TicketRole)> = rig
        .answers(3)
        .into_iter()
        .map(|packet| match packet {
            M2c::Call(call) => (call.peer, call.port, call.role),
            other => panic!("{other:?}"),
        })
        .collect();
    let (one, two) = (rig.peers[&1], rig.peers[&2]);
    assert_eq!(calls, [(one, 2000, TicketRole::StateBack), (two, 1000, TicketRole::ProbeBack)]);
    rig.nothing(2);
    rig.send(1, wish(hidden, TicketRole::Data));
    assert!(matches!(rig.answer(1), M2c::Kicked(reason) if reason.code == KickCode::Protocol));
    assert!(rig.state.roll.clients.contains_key(&ClientKey(2)));
}

#[test]
fn who_can_fetch_from_nobody_comes_back_when_somebody_else_holds_the_state() {
    let mut rig = world(2, 2);
    let epoch = rig.epoch(1);
    // 3 alone holds what was committed last.
    let content = |n: u64| if n == 3 { (7, 1) } else { (0, 2) };
    for n in 1..=4 {
        let (revision, digest) = content(n);
        rig.send(
            n,
            C2m::SyncInitiate(vote(epoch, revision, SyncStrategy::EnforcePopular, vec![entry("a", digest)])),
        );
    }
    let [M2c::Kicked(reason)] = &rig.answers(4)[..] else { panic!("it cannot fetch") };
    assert!(reason.detail.as_str().contains("so are all who hold the shared state"), "{reason}");
    rig.confirm_all();
    rig.mail.clear();
    let epoch = rig.epoch(1);
    for n in 1..=3 {
        let (revision, digest) = content(n);
        rig.send(
            n,
            C2m::SyncInitiate(vote(epoch, revision, SyncStrategy::EnforcePopular, vec![entry("a", digest)])),
        );
    }
    for n in [1, 2] {
        let M2c::SyncPlan(plan) = rig.answer(n) else { panic!("it fetches") };
        let [source] = &plan.plan.sources[..] else { panic!("one source") };
        assert_eq!((source.peer, source.back), (rig.peers[&3], true));
    }
}

/// A world with a relay.
fn with_relay(open: u64, hidden: u64) -> Rig {
    let mut rig = Rig::with(|options| options.relay = Some(RelayOffer { port: 9, token: 8 }));
    for n in 1..=open + hidden {
        register_as(&mut rig, n, Some(n > open));
    }
    rig.confirm_all();
    let_in(&mut rig);
    assert_eq!(rig.accepted().len() as u64, open + hidden, "{:?}", rig.state.blocked_on());
    rig
}

/// How many edges of this purpose go through the relay; each has one connection and is dialed by its sender.
fn relayed(rig: &Rig, n: u64, purpose: Purpose) -> usize {
    let edges = rig.plans[&n].edges.iter().filter(|edge| edge.purpose == purpose && edge.relayed);
    edges.inspect(|edge| assert!(edge.connections == 1 && !edge.back, "{edge:?}")).count()
}

#[test]
fn with_a_relay_all_are_let_in_and_it_is_used_only_where_no_ring_goes_without() {
    for (open, hidden, of_ring) in
        [(0, 2, 2), (0, 4, 4), (1, 2, 1), (1, 4, 3), (2, 2, 0), (2, 1, 0), (3, 3, 0)]
    {
        let rig = with_relay(open, hidden);
        assert_eq!(relayed(&rig, 1, Purpose::Ring), of_ring, "{open} and {hidden}");
        assert_eq!(relayed(&rig, 1, Purpose::Mesh), 0);
        let has_mesh = !edges(&rig, 1, Purpose::Mesh).is_empty();
        assert_eq!(
            has_mesh,
            of_ring == 0 && open + hidden > 3 || (open, hidden) == (2, 1),
            "{open}, {hidden}"
        );
    }
}

#[test]
fn when_nobody_separates_them_any_more_they_meet_at_the_relay() {
    let mut rig = with_relay(2, 2);
    assert_eq!(relayed(&rig, 1, Purpose::Ring), 0);
    rig.die(2);
    rig.confirm_all();
    assert_eq!((rig.accepted(), relayed(&rig, 1, Purpose::Ring)), (vec![1, 3, 4], 1));
}

#[test]
fn state_is_relayed_to_who_reaches_no_other_source() {
    for (open, holder, is_relayed) in [(1, 3, true), (1, 1, false)] {
        let mut rig = with_relay(open, 2);
        let epoch = rig.epoch(1);
        // One that can be dialed, or one that cannot, holds what was committed last; 2 cannot be dialed and fetches.
        for n in 1..=3 {
            let (revision, digest) = if n == holder { (7, 1) } else { (0, 2) };
            rig.send(
                n,
                C2m::SyncInitiate(vote(
                    epoch,
                    revision,
                    SyncStrategy::EnforcePopular,
                    vec![entry("a", digest)],
                )),
            );
        }
        let plan = rig.answers(2).into_iter().find_map(|packet| match packet {
            M2c::SyncPlan(plan) => Some(plan.plan),
            _ => None,
        });
        let [source] = &plan.expect("it fetches").sources[..] else { panic!("one source") };
        assert_eq!((source.peer, source.relayed), (rig.peers[&holder], is_relayed));
        rig.mail.clear();
        let wish = CallMe { peer: rig.peers[&3], role: TicketRole::StateBack, index: 1, count: 2 };
        rig.send(2, C2m::CallMe(wish));
        assert!(
            matches!(&rig.answers(3)[..], [M2c::Call(call)] if call.relayed && call.peer == rig.peers[&2])
        );
        rig.send(2, C2m::CallMe(CallMe { role: TicketRole::ProbeBack, ..wish }));
        rig.nothing(3);
    }
}
