//! Votes, commencement and outcomes of collectives.

use super::harness::{Rig, aborted, descriptor, is_done};
use pccl_protocol::*;
use pccl_quant::quantise::{Block, Quantisation, Scheme};

#[test]
fn a_collective_begins_when_all_have_voted_and_ends_when_all_have_completed() {
    let mut rig = Rig::world(3);
    let op = rig.op(1, 42, 0);
    rig.initiate(1, op);
    rig.initiate(2, op);
    rig.nothing(1);
    rig.initiate(3, op);
    for n in 1..=3 {
        assert_eq!(rig.answer(n), M2c::Commence(Commence { op, algorithm: Algorithm::AllGather }));
    }
    rig.complete(3, op, None);
    rig.complete(1, op, None);
    rig.nothing(1);
    rig.complete(2, op, None);
    for n in 1..=3 {
        assert_eq!(rig.answer(n), M2c::Outcome(OpOutcome { op, outcome: Outcome::Done(Nothing {}) }));
    }
    // The next attempt of the tag counts on.
    rig.commence(op.next_attempt());
}

#[test]
fn a_vote_waits_for_the_confirmation_of_the_ring() {
    let mut rig = Rig::world(3);
    rig.die(3);
    let op = rig.op(1, 1, 0);
    rig.initiate(1, op);
    rig.initiate(2, op);
    rig.confirm(1);
    rig.nothing(1);
    assert!(rig.state.blocked_on().iter().any(|s| s.contains("ring")), "{:?}", rig.state.blocked_on());
    rig.confirm(2);
    assert!(matches!(rig.answer(1), M2c::Commence(_)));
}

#[test]
fn mismatched_calls_fail_with_one_verdict_that_names_both() {
    let other_type = |d: &mut Descriptor| d.parts[0].data_type = pccl_quant::DataType::Float64;
    let other_op = |d: &mut Descriptor| d.parts[0].op = pccl_quant::ReduceOp::Max;
    let other_count = |d: &mut Descriptor| d.parts[0].count = 65;
    let more_parts = |d: &mut Descriptor| d.parts.push(d.parts[0]);
    let other_algorithm = |d: &mut Descriptor| d.algorithm = Algorithm::Ring;
    let quantised = |d: &mut Descriptor| d.parts[0].quantisation = Some(Scheme::CastBf16.into());
    let changes: [&dyn Fn(&mut Descriptor); 6] =
        [&other_type, &other_op, &other_count, &more_parts, &other_algorithm, &quantised];
    for change in changes {
        let mut rig = Rig::world(3);
        let op = rig.op(1, 1, 0);
        for n in 1..=3 {
            let mut descriptor = descriptor(64);
            if n == 3 {
                change(&mut descriptor);
            }
            rig.send(n, C2m::Initiate(Initiate { op, descriptor, has_begun: false }));
        }
        let verdicts: Vec<Verdict> = (1..=3).map(|n| aborted(rig.answer(n))).collect();
        assert!(verdicts.iter().all(|v| *v == verdicts[0]));
        assert_eq!((verdicts[0].cause, verdicts[0].phase), (Cause::MismatchedCall, Phase::Voting));
        let named: Vec<PeerId> = verdicts[0].culprits.iter().map(|c| c.peer).collect();
        assert_eq!(named, [rig.peers[&1], rig.peers[&3]]);
        assert!(!verdicts[0].detail.as_str().is_empty());
        rig.commence(op.next_attempt());
    }
}

#[test]
fn a_verdict_names_both_quantisations() {
    let mut rig = Rig::world(2);
    let op = rig.op(1, 1, 0);
    for (n, seed) in [(1, 7), (2, 8)] {
        let mut descriptor = descriptor(64);
        let affine = Quantisation::new(Scheme::BlockAffineU8(Block::B256));
        descriptor.parts[0].quantisation = Some(affine.stochastic(seed));
        rig.send(n, C2m::Initiate(Initiate { op, descriptor, has_begun: false }));
    }
    let detail = aborted(rig.answer(1)).detail;
    for seed in ["seed 7", "seed 8"] {
        let wanted = format!("sum x 64 elements of f32 as affine u8, block 256, stochastic with {seed}");
        assert!(detail.as_str().contains(&wanted), "{detail}");
    }
}

#[test]
fn a_death_before_the_beginning_makes_the_votes_stale() {
    let mut rig = Rig::world(4);
    let op = rig.op(1, 1, 0);
    rig.initiate(1, op);
    rig.initiate(4, op);
    rig.die(4);
    let mail = rig.take(1);
    let [M2c::GroupPlan(plan), M2c::Stale(stale)] = mail.as_slice() else { panic!("{mail:?}") };
    assert_eq!((stale.vote, stale.epoch), (VoteRef::Collective(op), plan.epoch));
    // 2 votes without having read the new plan.
    rig.initiate(2, op);
    let stale = M2c::Stale(Stale { vote: VoteRef::Collective(op), epoch: plan.epoch });
    assert_eq!(rig.answer(2), stale);
    rig.confirm_all();
    rig.commence(rig.op(1, 1, 0));
}

#[test]
fn too_few_peers() {
    // (world, least size, who dies, expected answer to the vote of 1)
    type Case = (u64, u32, Option<u64>, (u32, u32, bool));
    let table: &[Case] = &[
        (1, 1, None, (1, 2, true)),
        (2, 3, None, (2, 3, false)),
        (2, 1, Some(2), (1, 2, true)),
        (3, 3, Some(2), (2, 3, false)),
    ];
    for (world, least, victim, (have, need, need_in_group)) in table {
        let mut rig = Rig::with(|options| options.min_world_size = *least);
        rig.join(&(1..=*world).collect::<Vec<_>>(), 0);
        let op = rig.op(1, 1, 0);
        rig.initiate(1, op);
        if let Some(victim) = victim {
            rig.nothing(1);
            rig.die(*victim);
        }
        let mail = rig.take(1);
        let vote = VoteRef::Collective(op);
        let few = TooFewPeers { vote, have: *have, need: *need, need_in_group: *need_in_group };
        assert_eq!(mail.last(), Some(&M2c::TooFewPeers(few)));
        assert!(victim.is_none() || matches!(mail[0], M2c::GroupPlan(_)));
    }
}

#[test]
fn too_few_in_the_world_because_of_another_group() {
    let mut rig = Rig::with(|options| options.min_world_size = 3);
    rig.join(&[1, 2], 0);
    rig.join(&[3], 1);
    let op = rig.op(1, 1, 0);
    rig.initiate(1, op);
    rig.die(3);
    let answer = rig.take(1);
    assert!(matches!(answer.as_slice(), [M2c::Sizes(_), M2c::TooFewPeers(few)] if !few.need_in_group));
    // The same attempt can be voted for again when the world has grown.
    rig.join(&[4], 1);
    assert_eq!(rig.group(0).epoch, op.epoch);
    rig.commence_in(0, &[1, 2], 1);
}

#[test]
fn a_loss_between_beginning_and_end_aborts_unless_all_survivors_are_through() {
    // Which of the three have completed when 3 is lost, and by which way it goes.
    for completed in 0u8..8 {
        for way in [Cause::PeerDied, Cause::PeerLeft, Cause::PeerDropped] {
            let mut rig = Rig::world(3);
            let op = rig.op(1, 1, 0);
            rig.commence(op);
            for n in (1..=3u64).filter(|n| completed >> (n - 1) & 1 == 1) {
                rig.complete(n, op, None);
            }
            if completed == 7 {
                assert!(is_done(&rig.answer(1)));
                continue;
            }
            match way {
                Cause::PeerLeft => rig.send(3, C2m::Leave(Nothing {})),
                Cause::PeerDropped => rig.send(3, C2m::Register(super::harness::register(0))),
                _ => rig.die(3),
            }
            let (one, two) = (rig.take(1), rig.take(2));
            assert!(matches!(one[0], M2c::GroupPlan(_)), "sizes come before the outcome");
            assert_eq!(one.len(), 2);
            assert_eq!(one[1], two[1], "one outcome for all");
            if completed & 3 == 3 {
                assert!(is_done(&one[1]));
            } else {
                let verdict = aborted(one[1].clone());
                assert_eq!(verdict.cause, way);
                assert_eq!(verdict.culprits[0].peer, rig.peers[&3]);
                assert_eq!(verdict.culprits[0].host.as_str(), "10.0.0.3");
            }
            // Late completions of the decided attempt are ignored.
            rig.complete(1, op, None);
            rig.nothing(1);
            rig.confirm_all();
            rig.commence(rig.op(1, 1, 0));
        }
    }
}

#[test]
fn faults_of_one_peer_abort_at_once() {
    let table = [
        (OpFaultKind::Corrupt, Cause::Corruption),
        (OpFaultKind::Violation, Cause::Corruption),
        (OpFaultKind::Local, Cause::LocalFault),
    ];
    for (kind, cause) in table {
        let mut rig = Rig::world(3);
        let op = rig.op(1, 1, 0);
        rig.commence(op);
        let fault = rig.fault(kind, Some(1));
        rig.complete(2, op, Some(fault));
        let verdict = aborted(rig.answer(1));
        assert_eq!(verdict.cause, cause);
        assert!(verdict.culprits.iter().any(|c| c.peer == rig.peers[&2]));
        assert_eq!(verdict.bytes_done, 100);
        rig.commence(op.next_attempt());
    }
}

#[test]
fn a_broken_edge_is_held_for_a_death_that_explains_it() {
    for dies in [false, true] {
        let mut rig = Rig::world(3);
        let op = rig.op(1, 1, 0);
        rig.commence(op);
        let fault = rig.fault(OpFaultKind::InboundLost, Some(1));
        rig.complete(2, op, Some(fault));
        rig.pass(200, &[]);
        rig.nothing(3);
        if dies {
            rig.die(1);
        } else {
            rig.pass(100, &[]);
        }
        let verdict = aborted(rig.answer(3));
        let named: Vec<PeerId> = verdict.culprits.iter().map(|c| c.peer).collect();
        if dies {
            assert_eq!((verdict.cause, named), (Cause::PeerDied, vec![rig.peers[&1]]));
        } else {
            assert_eq!((verdict.cause, named), (Cause::EdgeBroken, vec![rig.peers[&1], rig.peers[&2]]));
        }
    }
}

#[test]
fn a_broken_edge_to_a_silent_peer_waits_until_that_peer_is_judged() {
    let mut rig = Rig::world(3);
    let op = rig.op(1, 1, 0);
    rig.commence(op);
    rig.pass(4_000, &[2, 3]);
    let fault = rig.fault(OpFaultKind::OutboundLost, Some(1));
    rig.complete(3, op, Some(fault));
    rig.pass(2_000, &[2, 3]);
    rig.nothing(2);
    rig.pass(10_000, &[2, 3]);
    let verdict = aborted(rig.answers(2).remove(0));
    assert_eq!((verdict.cause, verdict.silent_ms), (Cause::PeerSilent, 10_000));
}

#[test]
fn the_first_fault_is_the_verdict() {
    let mut rig = Rig::world(3);
    let op = rig.op(1, 1, 0);
    rig.commence(op);
    let inbound = rig.fault(OpFaultKind::InboundLost, Some(2));
    rig.complete(3, op, Some(inbound));
    rig.pass(100, &[]);
    let outbound = rig.fault(OpFaultKind::OutboundLost, Some(2));
    rig.complete(1, op, Some(outbound));
    rig.pass(1000, &[1, 2, 3]);
    let named: Vec<PeerId> = aborted(rig.answer(2)).culprits.iter().map(|c| c.peer).collect();
    assert_eq!(named, [rig.peers[&2], rig.peers[&3]]);
}

#[test]
fn giving_up_before_the_beginning_ends_the_attempt_for_all() {
    let mut rig = Rig::world(3);
    let op = rig.op(1, 1, 0);
    rig.initiate(1, op);
    rig.initiate(2, op);
    rig.give_up(1, VoteRef::Collective(op), None);
    let first = rig.answer(1);
    assert_eq!(aborted(first.clone()).cause, Cause::CallerAbort);
    assert_eq!(rig.answer(2), first);
    // The one that comes late gets the same outcome, and the retry goes.
    rig.initiate(3, op);
    assert_eq!(rig.answer(3), first);
    rig.commence(op.next_attempt());
}

#[test]
fn who_comes_late_walks_through_all_attempts_that_ended_without_it() {
    let mut rig = Rig::world(2);
    let first = rig.op(1, 1, 0);
    let mut op = first;
    for _ in 0..5 {
        rig.initiate(1, op);
        rig.give_up(1, VoteRef::Collective(op), None);
        rig.take(1);
        op = op.next_attempt();
    }
    let mut late = first;
    while late != op {
        rig.initiate(2, late);
        assert_eq!(
            aborted(rig.answer(2)).operation,
            Operation::Collective(CollectiveId { kind: CollectiveKind::AllReduce, op: late })
        );
        late = late.next_attempt();
    }
    rig.commence(op);
    rig.complete(1, op, None);
    rig.complete(2, op, None);
    // Now everybody knows, and only the last one is kept.
    assert_eq!(rig.group(0).history, 1);
    rig.initiate(2, first);
    assert_eq!(rig.kick_of(2).code, KickCode::Protocol);
}

#[test]
fn several_tags_run_at_once_and_end_in_any_order() {
    let mut rig = Rig::world(2);
    let ops: Vec<OpId> = (0..4).map(|tag| rig.op(1, tag, 0)).collect();
    for op in &ops {
        rig.initiate(1, *op);
    }
    for op in ops.iter().rev() {
        rig.initiate(2, *op);
    }
    let order: Vec<M2c> = rig.answers(1);
    assert_eq!(order.len(), 4);
    assert_eq!(rig.answers(2), order);
    for op in [ops[2], ops[0], ops[3], ops[1]] {
        rig.complete(1, op, None);
        rig.nothing(2);
        rig.complete(2, op, None);
        assert!(is_done(&rig.answer(1)) && is_done(&rig.answer(2)));
    }
    // A query may be voted for while collectives run.
    rig.commence(rig.op(1, 9, 0));
    rig.send(1, C2m::VotePending(RequestId(1)));
    rig.send(2, C2m::VotePending(RequestId(1)));
    assert!(matches!(rig.answer(1), M2c::PendingAnswer(_)));
}

#[test]
fn a_running_collective_outlives_a_new_ring_of_the_same_members() {
    let mut rig = Rig::world(3);
    let op = rig.op(1, 1, 0);
    rig.commence(op);
    let edge = rig.edge(1, 2);
    rig.broken(1, edge);
    rig.pass(300, &[]);
    assert!(rig.epoch(1) > op.epoch);
    for n in 1..=3 {
        rig.complete(n, op, None);
    }
    assert!(is_done(&rig.answer(1)));
    rig.confirm_all();
    rig.commence(rig.op(1, 1, 0));
}

#[test]
fn a_long_history_ends_the_epoch_at_a_quiet_moment() {
    let mut rig = Rig::with(|options| options.max_tag_history = 3);
    rig.join(&[1, 2], 0);
    let (epoch, generations) = (rig.epoch(1), rig.group(0).generations);
    let quiet = rig.op(1, 100, 0);
    rig.initiate(1, quiet);
    for tag in 0..4 {
        let op = rig.op(1, tag, 0);
        rig.commence(op);
        rig.complete(1, op, None);
        rig.complete(2, op, None);
        assert!(is_done(&rig.answer(2)));
        rig.take(1);
    }
    assert_eq!((rig.epoch(1), rig.group(0).history), (epoch, 4), "a vote is in flight");
    rig.initiate(2, quiet);
    rig.complete(1, quiet, None);
    rig.complete(2, quiet, None);
    assert!(rig.epoch(1) > epoch);
    assert_eq!((rig.group(0).history, rig.group(0).generations), (0, generations));
    let mail = rig.take(1);
    assert!(matches!(mail.as_slice(), [M2c::Commence(_), M2c::Outcome(_), M2c::GroupPlan(_)]), "{mail:?}");
    rig.take(2);
    // A vote with the old count crosses the plan; it is told so.
    rig.initiate(1, OpId { attempt: 1, ..quiet });
    assert!(matches!(rig.answer(1), M2c::Stale(_)));
    rig.confirm_all();
    rig.commence(rig.op(1, 100, 0));
}

#[test]
fn a_history_of_twice_the_limit_does_not_wait_for_a_quiet_moment() {
    let mut rig = Rig::with(|options| options.max_tag_history = 2);
    rig.join(&[1, 2], 0);
    let long = rig.op(1, 100, 0);
    rig.commence(long);
    for tag in 0..5 {
        let op = rig.op(1, tag, 0);
        rig.commence(op);
        rig.complete(1, op, None);
        rig.complete(2, op, None);
        rig.take(1);
        rig.take(2);
    }
    assert!(rig.epoch(1) > long.epoch);
    rig.complete(1, long, None);
    rig.complete(2, long, None);
    assert!(is_done(&rig.answer(1)));
}

#[test]
fn bytes_of_a_verdict_come_from_reports_and_beats() {
    let mut rig = Rig::world(3);
    for n in 1..=3 {
        rig.beat(n, 1000);
    }
    let op = rig.op(1, 1, 0);
    for n in 1..=3 {
        rig.initiate(n, op);
        rig.take(n);
    }
    rig.beat(2, 1500);
    rig.beat(3, 1030);
    rig.complete(1, op, None);
    rig.die(3);
    let last = rig.take(1).pop().expect("an outcome");
    assert_eq!(aborted(last).bytes_done, 100 + 500 + 30);
}

#[test]
fn a_group_that_dies_in_a_collective_leaves_nothing_behind() {
    let mut rig = Rig::new();
    rig.join(&[1, 2], 0);
    rig.join(&[3], 1);
    rig.commence_in(0, &[1, 2], 1);
    rig.die(1);
    rig.die(2);
    rig.join(&[4, 5], 0);
    rig.commence_in(0, &[4, 5], 1);
}

impl Rig {
    fn commence_in(&mut self, group: u32, members: &[u64], tag: u64) {
        let op = OpId { epoch: self.group(group).epoch, tag: tag.into(), attempt: 0 };
        for n in members {
            self.initiate(*n, op);
        }
        for n in members {
            assert!(matches!(self.answer(*n), M2c::Commence(_)));
        }
    }
}

#[test]
fn a_group_that_is_never_quiet_keeps_a_bounded_history_and_what_runs_goes_on() {
    const LIMIT: usize = 50;
    let mut rig = Rig::with(|options| options.max_tag_history = LIMIT);
    rig.join(&[1, 2], 0);
    let long = rig.op(1, 1_000_000, 0);
    rig.commence(long);
    let waiting = 2_000_000;
    rig.initiate(2, rig.op(2, waiting, 0));
    for tag in 0..20 * LIMIT as u64 {
        let op = rig.op(1, tag, 0);
        rig.commence(op);
        rig.complete(1, op, None);
        rig.complete(2, op, None);
        assert!(rig.group(0).history <= 2 * LIMIT + 1);
        let mail = rig.take(2);
        if mail.iter().any(|packet| matches!(packet, M2c::GroupPlan(_))) {
            assert!(mail.iter().any(|packet| matches!(packet, M2c::Stale(_))), "{mail:?}");
            rig.confirm_all();
            rig.initiate(2, rig.op(2, waiting, 0));
        }
    }
    assert!(rig.epoch(1).0 > long.epoch.0 + 5, "hardly any epoch has ended");
    rig.take(1);
    rig.complete(1, long, None);
    rig.complete(2, long, None);
    assert!(is_done(&rig.answer(1)) && is_done(&rig.answer(2)));
}
