//! Collectives of all kinds: what a verdict calls them, and which of them the members cannot carry out.

use super::harness::*;
use pccl_protocol::*;

/// All of `list` vote for `op`, each for what `collective` says.
fn vote(rig: &mut Rig, list: &[u64], op: OpId, collective: impl Fn(&Rig, u64) -> Collective) {
    for n in list {
        let what = Descriptor { collective: collective(rig, *n), ..descriptor(12) };
        rig.send(*n, C2m::Initiate(Initiate { op, descriptor: what, has_begun: false }));
    }
}

#[test]
fn different_collectives_with_one_tag_fail_with_both_in_the_verdict() {
    let mut rig = Rig::world(2);
    let op = rig.op(1, 7, 0);
    vote(&mut rig, &[1, 2], op, |rig, n| match n {
        1 => Collective::Broadcast(rig.peers[&2]),
        _ => Collective::AllReduce(Nothing {}),
    });
    let verdict = aborted(rig.answer(1));
    assert_eq!(verdict, aborted(rig.answer(2)));
    assert_eq!(verdict.cause, Cause::MismatchedCall);
    assert!(verdict.to_string().contains("tag 7"), "{verdict}");
    let detail = verdict.detail.as_str();
    for part in [format!("as broadcast from {}", rig.peers[&2]), " as all-reduce".to_owned()] {
        assert!(detail.contains(&part), "{part:?} is not in {detail:?}");
    }
    let roots = rig.op(1, 8, 0);
    vote(&mut rig, &[1, 2], roots, |rig, n| Collective::Reduce(rig.peers[&n]));
    let verdict = aborted(rig.answer(1));
    assert!(verdict.to_string().starts_with("reduce tag 8"), "{verdict}");
    assert_eq!(verdict.culprits.len(), 2);
}

#[test]
fn what_the_members_cannot_carry_out_fails_when_it_would_begin() {
    let mut rig = Rig::world(3);
    let gone = rig.peers[&3];
    rig.die(3);
    rig.confirm_all();
    rig.take(1);
    rig.take(2);
    let counts = |rig: &Rig, peers: &[u64]| {
        let member = |n: &u64| MemberCount { peer: rig.peers.get(n).copied().unwrap_or(gone), count: 6 };
        Collective::AllGather(Split::Members(peers.iter().map(member).collect()))
    };
    type Case<'a> = (&'a dyn Fn(&Rig) -> Collective, Option<PeerId>, &'a str);
    let table: &[Case<'_>] = &[
        (&|_| Collective::Broadcast(gone), Some(gone), "the root of the broadcast"),
        (&|_| Collective::Reduce(gone), Some(gone), "the root of the reduce"),
        (&|_| Collective::AllGather(Split::Equal(3)), None, "called for 3 peers, and the group has 2"),
        (&|rig| counts(rig, &[1, 3]), Some(gone), "has a count for"),
        (&|rig| counts(rig, &[1]), None, "has no count for"),
    ];
    for (tag, (collective, culprit, text)) in (1..).zip(table) {
        let op = rig.op(1, tag, 0);
        vote(&mut rig, &[1], op, |rig, _| collective(rig));
        rig.nothing(1);
        vote(&mut rig, &[2], op, |rig, _| collective(rig));
        let verdict = aborted(rig.answer(1));
        assert_eq!(verdict, aborted(rig.answer(2)));
        assert_eq!((verdict.cause, verdict.phase), (Cause::WorldChanged, Phase::Voting));
        let named: Vec<PeerId> = verdict.culprits.iter().map(|culprit| culprit.peer).collect();
        assert_eq!(named, culprit.iter().copied().collect::<Vec<_>>(), "{verdict}");
        // A peer that has gone is still named with its host.
        let hosts: Vec<&str> = verdict.culprits.iter().map(|culprit| culprit.host.as_str()).collect();
        assert_eq!(hosts, culprit.iter().map(|_| "10.0.0.3").collect::<Vec<_>>(), "{verdict}");
        assert!(verdict.detail.as_str().contains(text), "{verdict}");
    }
    // The next one has another attempt number, and goes.
    let op = rig.op(1, 1, 1);
    vote(&mut rig, &[1, 2], op, |_, _| Collective::AllGather(Split::Equal(2)));
    let begins = |packet: M2c| matches!(packet, M2c::Commence(commence) if commence.op == op);
    assert!(begins(rig.answer(1)) && begins(rig.answer(2)));
}

#[test]
fn votes_for_the_members_before_and_after_a_death_are_no_mistake_of_the_callers() {
    let mut rig = Rig::world(3);
    let gone = rig.peers[&3];
    rig.die(3);
    rig.confirm_all();
    rig.take(1);
    rig.take(2);
    type Calls = fn(u64, PeerId, PeerId) -> Collective;
    // The second peer has heard of the death, the first has not.
    let table: [(Calls, Option<PeerId>); 3] = [
        (|n, gone, here| Collective::Broadcast(if n == 1 { gone } else { here }), Some(gone)),
        (|n, _, _| Collective::AllGather(Split::Equal(if n == 1 { 3 } else { 2 })), None),
        (
            |n, gone, _| if n == 1 { Collective::Reduce(gone) } else { Collective::AllReduce(Nothing {}) },
            Some(gone),
        ),
    ];
    for (tag, (call, culprit)) in (1..).zip(table) {
        let (op, here) = (rig.op(1, tag, 0), rig.peers[&2]);
        vote(&mut rig, &[2, 1], op, |_, n| call(n, gone, here));
        let verdict = aborted(rig.answer(1));
        assert_eq!(verdict, aborted(rig.answer(2)));
        assert_eq!(verdict.cause, Cause::WorldChanged, "{verdict}");
        let named: Vec<PeerId> = verdict.culprits.iter().map(|culprit| culprit.peer).collect();
        assert_eq!(named, culprit.iter().copied().collect::<Vec<_>>(), "{verdict}");
    }
    // Roots that are both here, of a world that one of them did not know any more.
    let op = rig.op(1, 8, 0);
    for n in [1, 2] {
        let collective = Collective::Broadcast(rig.peers[&n]);
        let vote = Descriptor { collective, knew_ring: n != 1, ..descriptor(12) };
        rig.send(n, C2m::Initiate(Initiate { op, descriptor: vote, has_begun: false }));
    }
    let verdict = aborted(rig.answer(2));
    assert_eq!(verdict, aborted(rig.answer(1)));
    assert_eq!((verdict.cause, verdict.culprits.len()), (Cause::WorldChanged, 0));
    assert!(verdict.detail.as_str().contains("knew the present members"), "{verdict}");
    // The same member, named by a rank of the world before.
    let (op, here) = (rig.op(1, 10, 0), rig.peers[&2]);
    for n in [2, 1] {
        let collective = Collective::Broadcast(here);
        let vote = Descriptor { collective, knew_ring: n != 1, by_rank: true, ..descriptor(12) };
        rig.send(n, C2m::Initiate(Initiate { op, descriptor: vote, has_begun: false }));
    }
    let verdict = aborted(rig.answer(1));
    assert_eq!(verdict, aborted(rig.answer(2)));
    assert_eq!(verdict.cause, Cause::WorldChanged);
    assert!(verdict.detail.as_str().contains("by a rank before it knew"), "{verdict}");
    // Named by its identity it is who it is.
    let op = rig.op(1, 11, 0);
    for n in [1, 2] {
        let vote =
            Descriptor { collective: Collective::Broadcast(here), knew_ring: n != 1, ..descriptor(12) };
        rig.send(n, C2m::Initiate(Initiate { op, descriptor: vote, has_begun: false }));
    }
    assert!([1, 2].iter().all(|n| matches!(rig.answer(*n), M2c::Commence(_))));
    // Calls for the present members that differ are one.
    let op = rig.op(1, 9, 0);
    vote(&mut rig, &[1, 2], op, |rig, n| Collective::Broadcast(rig.peers[&n]));
    assert_eq!(aborted(rig.answer(1)).cause, Cause::MismatchedCall);
    rig.take(2);
}

#[test]
fn who_sends_by_a_rank_of_another_world_does_not_wait_for_who_may_never_come() {
    let mut rig = Rig::world(3);
    let (from, to) = (rig.peers[&1], rig.peers[&2]);
    let tag = Tag { pair: Some(Pair { from, to }), ..Tag::from(5) };
    let op = OpId { tag, ..rig.op(1, 5, 0) };
    let vote = |knew_ring, by_rank| {
        let collective = Collective::SendRecv(Nothing {});
        C2m::Initiate(Initiate {
            op,
            descriptor: Descriptor { collective, knew_ring, by_rank, ..descriptor(12) },
            has_begun: false,
        })
    };
    rig.send(1, vote(false, true));
    let verdict = aborted(rig.answer(1));
    assert_eq!(verdict.cause, Cause::WorldChanged, "{verdict}");
    // The other end of just that call learns the same.
    rig.send(2, vote(true, true));
    assert_eq!(aborted(rig.answer(2)), verdict);
}

#[test]
fn a_transfer_after_a_sync_learns_nothing_of_one_before_it() {
    let mut rig = Rig::world(3);
    let pair = Some(Pair { from: rig.peers[&1], to: rig.peers[&2] });
    let op = |rig: &Rig, n| OpId { tag: Tag { pair, ..Tag::from(5) }, ..rig.op(n, 5, 0) };
    let vote = |rig: &mut Rig, n, knew_ring| {
        let op = op(rig, n);
        let collective = Collective::SendRecv(Nothing {});
        let descriptor = Descriptor { collective, knew_ring, by_rank: true, ..descriptor(12) };
        rig.send(n, C2m::Initiate(Initiate { op, descriptor, has_begun: false }));
    };
    vote(&mut rig, 1, false);
    assert_eq!(aborted(rig.answer(1)).cause, Cause::WorldChanged);
    let counted_since = rig.plans[&2].counted_since;
    // The second one never made that call: something else failed before.
    super::sync::run(&mut rig, &[(1, SyncStrategy::EnforcePopular, 7); 3]);
    assert!(rig.plans[&2].counted_since > counted_since && rig.plans[&2].counted_since == rig.epoch(1));
    rig.mail.clear();
    [1, 2].into_iter().for_each(|n| vote(&mut rig, n, true));
    assert!([1, 2].iter().all(|n| matches!(rig.answer(*n), M2c::Commence(_))));
    for n in [1, 2] {
        let op = op(&rig, n);
        rig.complete(n, op, None);
    }
    assert!([1, 2].iter().all(|n| is_done(&rig.answer(*n))));
    // Without anything that somebody has yet to learn, a sync changes no plan.
    let epoch = rig.epoch(3);
    super::sync::run(&mut rig, &[(2, SyncStrategy::EnforcePopular, 7); 3]);
    assert_eq!(rig.epoch(3), epoch);
}

#[test]
fn who_gives_what_is_not_finite_is_named_and_nothing_begins() {
    let vote = |rig: &mut Rig, op: OpId, finite: [Finite; 3]| {
        for (n, finite) in (1..).zip(finite) {
            rig.send(
                n,
                C2m::Initiate(Initiate {
                    op,
                    descriptor: Descriptor { finite, ..descriptor(12) },
                    has_begun: false,
                }),
            );
        }
    };
    let (free, fine) = (Finite::NotAsked(Nothing {}), Finite::All(Nothing {}));
    let bad = |element| Finite::Not(NotFinite { tensor: 4, element });
    let mut rig = Rig::world(3);
    let op = rig.op(1, 7, 0);
    vote(&mut rig, op, [bad(5), fine, bad(6)]);
    let verdict = aborted(rig.answer(1));
    assert!((2..=3).all(|n| aborted(rig.answer(n)) == verdict));
    assert_eq!((verdict.cause, verdict.phase), (Cause::NotFinite, Phase::Voting));
    let mut named: Vec<PeerId> = verdict.culprits.iter().map(|culprit| culprit.peer).collect();
    named.sort_unstable();
    let mut expected = vec![rig.peers[&1], rig.peers[&3]];
    expected.sort_unstable();
    assert_eq!(named, expected);
    for text in ["first in tensor 4 at element 5", "first in tensor 4 at element 6"] {
        assert!(verdict.detail.as_str().contains(text), "{verdict}");
    }
    // All have to ask, or none.
    vote(&mut rig, op.next_attempt(), [fine, free, fine]);
    let verdict = aborted(rig.answer(1));
    assert_eq!(verdict.cause, Cause::MismatchedCall);
    assert!(verdict.to_string().contains("with any contributions"), "{verdict}");
    for finite in [fine, free] {
        let op = rig.op(1, 8 + u64::from(finite == free), 0);
        vote(&mut rig, op, [finite; 3]);
        assert!(matches!(rig.answer(1), M2c::Commence(_)), "{finite:?}");
    }
}

#[test]
fn what_is_kept_of_the_votes_of_one_peer_is_bounded() {
    let many = |count: usize| Descriptor { parts: vec![descriptor(1).parts[0]; count], ..descriptor(1) };
    let vote = |rig: &mut Rig, n, tag, count| {
        let op = rig.op(1, tag, 0);
        rig.send(n, C2m::Initiate(Initiate { op, descriptor: many(count), has_begun: false }));
    };
    let mut rig = Rig::world(3);
    let most = (limits::MAX_VOTED_PARTS / limits::MAX_PARTS) as u64;
    (0..most).for_each(|tag| vote(&mut rig, 1, tag, limits::MAX_PARTS));
    // Small ones are bounded by their number.
    vote(&mut rig, 1, most, limits::FEW_PARTS);
    assert!(!rig.closed.contains(&1));
    // An operation that has begun counts no more.
    vote(&mut rig, 2, 0, limits::MAX_PARTS);
    vote(&mut rig, 3, 0, limits::MAX_PARTS);
    assert!(matches!(rig.answer(1), M2c::Commence(_)));
    vote(&mut rig, 1, most + 1, limits::MAX_PARTS);
    assert!(!rig.closed.contains(&1));
    vote(&mut rig, 1, most + 2, limits::FEW_PARTS + 1);
    let reason = rig.kick_of(1);
    assert_eq!(reason.code, KickCode::Protocol);
    assert!(reason.detail.as_str().contains("tensors that wait"), "{reason:?}");
    // The others have their own.
    vote(&mut rig, 2, most + 3, limits::MAX_PARTS);
    assert!(!rig.closed.contains(&2));
}
