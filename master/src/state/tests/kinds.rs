//! Collectives of all kinds: what a verdict calls them, and which of them the members cannot carry out.

use super::harness::*;
use pccl_protocol::*;

/// All of `list` vote for `op`, each for what `collective` says.
fn vote(rig: &mut Rig, list: &[u64], op: OpId, collective: impl Fn(&Rig, u64) -> Collective) {
    for n in list {
        let what = Descriptor { collective: collective(rig, *n), ..descriptor(12) };
        rig.send(*n, C2m::Initiate(Initiate { op, descriptor: what }));
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
        // Who has gone is still named with its host.
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
