//! Votes and elections of shared-state syncs. How syncs end is in `sync_end`.

use super::harness::Rig;
use pccl_hash::Digest128;
use pccl_protocol::SyncStrategy::{EnforcePopular, ReceiveOnly, SendOnly};
use pccl_protocol::*;
use pccl_quant::DataType;

pub(super) fn entry(key: &str, digest: u128) -> StateEntry {
    StateEntry {
        key: Key::new(key),
        count: 8,
        data_type: DataType::Float32,
        allow_inequality: false,
        digest: Digest128::from_u128(digest),
    }
}

fn loose(key: &str, digest: u128) -> StateEntry {
    StateEntry { allow_inequality: true, ..entry(key, digest) }
}

pub(super) fn vote(
    epoch: GroupEpoch,
    revision: u64,
    strategy: SyncStrategy,
    entries: Vec<StateEntry>,
) -> SyncInitiate {
    SyncInitiate {
        request: RequestId(5),
        epoch,
        revision: Revision(revision),
        strategy,
        entries,
        offered: None,
    }
}

/// Revision, strategy and digest of the tensor "w" of each voter.
pub(super) type Ballot = (u64, SyncStrategy, u128);

/// Votes of clients 1, 2, ... .
pub(super) fn cast(rig: &mut Rig, ballots: &[Ballot]) {
    for (n, (revision, strategy, digest)) in (1..).zip(ballots) {
        let epoch = rig.epoch(n);
        rig.send(n, C2m::SyncInitiate(vote(epoch, *revision, *strategy, vec![entry("w", *digest)])));
    }
}

pub(super) fn plan_of(rig: &mut Rig, n: u64) -> SyncPlan {
    match rig.answer(n) {
        M2c::SyncPlan(plan) => {
            assert_eq!(plan.request, RequestId(5));
            plan.plan
        }
        other => panic!("client {n}: no plan: {other:?}"),
    }
}

pub(super) fn ready(rig: &mut Rig, n: u64, sync: SyncId) {
    let report = SyncReport::Ready(Nothing {});
    rig.send(n, C2m::SyncComplete(SyncComplete { sync, report, failures: vec![], gave: vec![] }));
}

/// The report of a client about a source that it asked in vain.
pub(super) fn failure(rig: &Rig, source: u64, fault: SourceFault) -> SourceFailure {
    let text = Text::new(format!("10.0.0.{source}:2000 did not answer"));
    SourceFailure { peer: rig.peers[&source], fault, text }
}

/// Reports a failed fetch; these sources were not reached.
pub(super) fn failed_at(rig: &mut Rig, n: u64, sync: SyncId, sources: &[u64]) {
    failed_by(rig, n, sync, sources, SourceFault::Unreached);
}

pub(super) fn failed_by(rig: &mut Rig, n: u64, sync: SyncId, sources: &[u64], fault: SourceFault) {
    let failures: Vec<SourceFailure> = sources.iter().map(|s| failure(rig, *s, fault)).collect();
    let texts: Vec<&str> = failures.iter().map(|one| one.text.as_str()).collect();
    let report = SyncReport::Failed(Text::new(texts.join("; ")));
    rig.send(n, C2m::SyncComplete(SyncComplete { sync, report, failures, gave: vec![] }));
}

/// Everybody gives signs of life until failed fetches can be judged.
pub(super) fn judged(rig: &mut Rig) {
    let all: Vec<u64> = rig.peers.keys().copied().collect();
    rig.pass(1_500, &all);
}

pub(super) fn outcome(packet: M2c) -> SyncOutcome {
    match packet {
        M2c::SyncOutcome(outcome) => outcome.outcome,
        other => panic!("no outcome: {other:?}"),
    }
}

/// Runs a whole sync; returns what each voter had to fetch and from whom, by client number.
pub(super) fn run(rig: &mut Rig, ballots: &[Ballot]) -> Vec<(usize, Vec<u64>)> {
    cast(rig, ballots);
    let plans: Vec<SyncPlan> = (1..=ballots.len() as u64).map(|n| plan_of(rig, n)).collect();
    let number = |id: PeerId| *rig.peers.iter().find(|(_, peer)| **peer == id).expect("known").0;
    let sources = |p: &SyncPlan| p.sources.iter().map(|s| number(s.peer)).collect();
    let result = plans.iter().map(|p| (p.fetch.len(), sources(p))).collect();
    for (n, plan) in (1..).zip(&plans) {
        ready(rig, n, plan.sync);
    }
    for n in 1..=ballots.len() as u64 {
        assert_eq!(outcome(rig.answer(n)), SyncOutcome::Committed(plans[0].revision));
    }
    result
}

#[test]
fn who_fetches_from_whom() {
    let p = EnforcePopular;
    // (ballots, fetched tensors and sources of each voter)
    type Case<'a> = (&'a [Ballot], &'a [(usize, &'a [u64])]);
    let table: &[Case<'_>] = &[
        // Alone.
        (&[(4, p, 1)], &[(0, &[])]),
        // All equal.
        (&[(0, p, 1), (0, p, 1)], &[(0, &[]), (0, &[])]),
        // Popularity.
        (&[(0, p, 1), (0, p, 2), (0, p, 2)], &[(1, &[2, 3]), (0, &[]), (0, &[])]),
        // A tie: the lowest digest.
        (&[(0, p, 9), (0, p, 3)], &[(1, &[2]), (0, &[])]),
        (&[(0, p, 3), (0, p, 9)], &[(0, &[]), (1, &[1])]),
        // The revision comes before popularity: two newcomers do not outvote a trained survivor.
        (&[(0, p, 1), (0, p, 1), (8, p, 2)], &[(1, &[3]), (1, &[3]), (0, &[])]),
        // Outdated, but the same content.
        (&[(0, p, 2), (8, p, 2)], &[(0, &[]), (0, &[])]),
        // Receivers are no source and do not count.
        (&[(0, ReceiveOnly, 1), (0, ReceiveOnly, 1), (0, SendOnly, 2)], &[(1, &[3]), (1, &[3]), (0, &[])]),
        (&[(9, ReceiveOnly, 1), (0, SendOnly, 2)], &[(1, &[2]), (0, &[])]),
        // Several sources: each receiver begins with another one.
        (&[(0, p, 7), (0, p, 8), (0, p, 1), (0, p, 1)], &[(1, &[3, 4]), (1, &[4, 3]), (0, &[]), (0, &[])]),
    ];
    for (ballots, expected) in table {
        let mut rig = Rig::world(ballots.len() as u64);
        let expected: Vec<(usize, Vec<u64>)> =
            expected.iter().map(|(fetch, sources)| (*fetch, sources.to_vec())).collect();
        assert_eq!(run(&mut rig, ballots), expected, "{ballots:?}");
    }
}

#[test]
fn conflicts_fail_the_sync_for_all_and_nobody_is_kicked() {
    let p = EnforcePopular;
    let table: &[(&[Ballot], &str)] = &[
        (&[(0, p, 1), (0, SendOnly, 1)], "enforce-popular"),
        (&[(0, p, 1), (0, ReceiveOnly, 1)], "enforce-popular"),
        (&[(0, SendOnly, 1), (0, SendOnly, 2), (0, ReceiveOnly, 1)], "send-only with"),
        (&[(1, SendOnly, 1), (0, SendOnly, 1)], "send-only at revision 0"),
        (&[(0, ReceiveOnly, 1), (0, ReceiveOnly, 1)], "nobody gives"),
        (&[(0, ReceiveOnly, 1)], "nobody gives"),
    ];
    for (ballots, expected) in table {
        let mut rig = Rig::world(ballots.len() as u64);
        cast(&mut rig, ballots);
        let outcomes: Vec<SyncOutcome> = (1..=ballots.len() as u64).map(|n| outcome(rig.answer(n))).collect();
        assert!(outcomes.iter().all(|o| *o == outcomes[0]));
        let SyncOutcome::Failed(verdict) = &outcomes[0] else { panic!("{ballots:?}") };
        assert_eq!((verdict.cause, verdict.phase), (Cause::MismatchedCall, Phase::Voting));
        assert!(verdict.detail.as_str().contains(expected), "{verdict}");
        assert_eq!(verdict.culprits.len(), ballots.len().min(2));
        assert!(rig.closed.is_empty());
        // It may be tried again.
        let good: Vec<Ballot> = ballots.iter().map(|_| (0, p, 1)).collect();
        run(&mut rig, &good);
    }
}

/// Votes of clients 1, 2, ... with these tensors, at revision 0.
fn cast_states(rig: &mut Rig, states: &[Vec<StateEntry>]) {
    for (n, entries) in (1..).zip(states) {
        let epoch = rig.epoch(n);
        rig.send(n, C2m::SyncInitiate(vote(epoch, 0, EnforcePopular, entries.clone())));
    }
}

/// These clients are told to vote again, do so with `state`, and commit.
fn goes_on(rig: &mut Rig, clients: &[u64], state: &[StateEntry]) {
    for n in clients {
        let stale = Stale { vote: VoteRef::Sync(RequestId(5)), epoch: rig.epoch(*n) };
        assert_eq!(rig.answer(*n), M2c::Stale(stale), "client {n}");
    }
    for n in clients {
        let epoch = rig.epoch(*n);
        rig.send(*n, C2m::SyncInitiate(vote(epoch, 0, EnforcePopular, state.to_vec())));
    }
    let plans: Vec<SyncPlan> = clients.iter().map(|n| plan_of(rig, *n)).collect();
    for (n, plan) in clients.iter().zip(&plans) {
        assert!(plan.fetch.is_empty());
        ready(rig, *n, plan.sync);
    }
    for n in clients {
        assert_eq!(outcome(rig.answer(*n)), SyncOutcome::Committed(Revision(0)));
    }
}

#[test]
fn who_has_other_tensors_than_most_is_dropped_and_the_others_go_on() {
    let base = || vec![entry("a", 1), entry("b", 2)];
    let changed = |change: &dyn Fn(&mut Vec<StateEntry>)| {
        let mut entries = base();
        change(&mut entries);
        entries
    };
    // (state of the one, what the group has, what it has)
    let full = "\"b\": 8 elements of f32";
    let cases: Vec<(Vec<StateEntry>, &str, &str)> = vec![
        (changed(&|e| e[1].count = 9), full, "\"b\": 9 elements of f32"),
        (
            changed(&|e| e[0].data_type = DataType::Int8),
            "\"a\": 8 elements of f32",
            "\"a\": 8 elements of i8",
        ),
        (changed(&|e| e[1].allow_inequality = true), full, "\"b\": 8 elements of f32, content may differ"),
        (changed(&|e| e[1].key = Key::new("c")), full, "no \"b\""),
        (changed(&|e| drop(e.remove(0))), "\"a\": 8 elements of f32", "no \"a\""),
        (changed(&|e| drop(e.pop())), full, "no \"b\""),
        (changed(&|e| e.push(entry("z", 1))), "no \"z\"", "\"z\": 8 elements of f32"),
        (vec![], "\"a\": 8 elements of f32", "no \"a\""),
    ];
    for (odd, theirs, own) in cases {
        for place in 0..3 {
            let mut rig = Rig::world(3);
            let mut states = vec![base(), base()];
            states.insert(place, odd.clone());
            cast_states(&mut rig, &states);
            let odd_one = place as u64 + 1;
            let reason = rig.kick_of(odd_one);
            let text = format!("the shared state of its group has {theirs} (2 of 3 peers); it has {own}");
            assert_eq!((reason.code, reason.detail.as_str()), (KickCode::StateMismatch, text.as_str()));
            let others: Vec<u64> = (1..=3).filter(|n| *n != odd_one).collect();
            goes_on(&mut rig, &others, &base());
        }
    }
}

#[test]
fn whose_tensors_are_the_right_ones() {
    use SyncStrategy::{ReceiveOnly as R, SendOnly as S};
    let (p, x, y) = (EnforcePopular, "x", "y");
    // (clients that hold the committed state; strategy and key of each client; who is dropped)
    type Case<'a> = (&'a [u64], &'a [(SyncStrategy, &'a str)], &'a [u64]);
    let table: &[Case<'_>] = &[
        // Before the first commit most of those who give decide, and on a tie the lowest.
        (&[], &[(p, x), (p, y), (p, y)], &[1]),
        (&[], &[(p, y), (p, x)], &[1]),
        (&[], &[(p, x), (p, y)], &[2]),
        // "" stands for no tensor at all.
        (&[], &[(p, ""), (p, x)], &[1]),
        (&[], &[(R, x), (R, x), (S, y)], &[1, 2]),
        (&[], &[(R, x), (R, y), (R, y)], &[1]),
        (&[], &[(p, y), (p, x), (p, "w"), (p, y)], &[2, 3]),
        // After that those who hold it do, however many newcomers agree with each other.
        (&[1], &[(p, y), (p, x), (p, x)], &[2, 3]),
        (&[1, 2], &[(p, y), (p, y), (p, x)], &[3]),
        (&[1], &[(R, y), (S, x), (R, x)], &[2, 3]),
        // All of them may change it together; most of them decide.
        (&[1, 2, 3], &[(p, y), (p, x), (p, x), (p, y), (p, y)], &[1, 4, 5]),
    ];
    for (holders, ballots, dropped) in table {
        let mut rig = Rig::new();
        if !holders.is_empty() {
            rig.join(holders, 0);
            run(&mut rig, &holders.iter().map(|_| (0, p, 1)).collect::<Vec<_>>());
        }
        let rest: Vec<u64> = (holders.len() as u64 + 1..=ballots.len() as u64).collect();
        rig.join(&rest, 0);
        for (n, (strategy, key)) in (1..).zip(*ballots) {
            let epoch = rig.epoch(n);
            let entries = Some(*key).filter(|key| !key.is_empty()).map(|key| entry(key, 1));
            let entries = entries.into_iter().collect();
            rig.send(n, C2m::SyncInitiate(vote(epoch, 0, *strategy, entries)));
        }
        for n in 1..=ballots.len() as u64 {
            if dropped.contains(&n) {
                assert_eq!(rig.kick_of(n).code, KickCode::StateMismatch, "{holders:?} {ballots:?}");
            } else {
                assert!(matches!(rig.answer(n), M2c::Stale(_)), "{holders:?} {ballots:?}");
            }
        }
    }
}

#[test]
fn an_empty_state_commits() {
    let mut rig = Rig::world(2);
    for n in 1..=2 {
        let epoch = rig.epoch(n);
        rig.send(n, C2m::SyncInitiate(vote(epoch, 3, EnforcePopular, vec![])));
    }
    let plan = plan_of(&mut rig, 1);
    assert!(plan.fetch.is_empty() && plan.sources.is_empty());
}

#[test]
fn entries_that_may_differ_move_only_to_outdated_peers() {
    let mut rig = Rig::world(4);
    let epoch = rig.epoch(1);
    // 1 and 2 hold the elected content with different loose parts, 3 is outdated, 4 is up to date with its own loose
    // part.
    let states = [(5, 1, 10), (5, 1, 20), (0, 7, 30), (5, 1, 40)];
    for (n, (revision, strict, free)) in (1..).zip(states) {
        let entries = vec![loose("rng", free), entry("w", strict)];
        rig.send(n, C2m::SyncInitiate(vote(epoch, revision, EnforcePopular, entries)));
    }
    let plans: Vec<SyncPlan> = (1..=4).map(|n| plan_of(&mut rig, n)).collect();
    assert!([0, 1, 3].iter().all(|i| plans[*i].fetch.is_empty()));
    // The first receiver begins with the first source, and only that one holds its loose part.
    assert_eq!(plans[2].sources.len(), 1);
    let source = plans[2].sources[0].peer;
    let held = states.iter().zip(1..).find(|(_, n)| rig.peers[n] == source).map(|(s, _)| s.2);
    let item = |key: &str, digest| FetchItem { key: Key::new(key), digest: Digest128::from_u128(digest) };
    assert_eq!(plans[2].fetch, [item("rng", held.expect("a voter")), item("w", 1)]);
}

#[test]
fn sources_are_named_as_the_receiver_reaches_them() {
    let mut rig = Rig::world(2);
    cast(&mut rig, &[(0, EnforcePopular, 2), (1, EnforcePopular, 1)]);
    let plan = plan_of(&mut rig, 1);
    assert_eq!((plan.sources[0].hosts.as_str(), plan.sources[0].port), ("10.0.0.2", 2000));
    assert!(plan_of(&mut rig, 2).sources.is_empty());
}

#[test]
fn a_revision_jump_costs_the_jumper_its_place_and_the_others_go_on() {
    let p = EnforcePopular;
    let mut rig = Rig::world(3);
    run(&mut rig, &[(7, p, 1), (7, p, 1), (7, p, 1)]);
    cast(&mut rig, &[(8, p, 1), (8, p, 1)]);
    let epoch = rig.epoch(3);
    rig.send(3, C2m::SyncInitiate(vote(epoch, 9, p, vec![entry("w", 1)])));
    assert_eq!(rig.kick_of(3).code, KickCode::RevisionJump);
    let stale = Stale { vote: VoteRef::Sync(RequestId(5)), epoch: rig.epoch(1) };
    assert_eq!(rig.answer(1), M2c::Stale(stale));
    assert_eq!(rig.answer(2), M2c::Stale(stale));
    run(&mut rig, &[(8, p, 1), (8, p, 1)]);
}

#[test]
fn the_dead_elect_nobody() {
    // 1 and 2 hold the popular content, but 1 dies before the vote is complete.
    let mut rig = Rig::world(3);
    cast(&mut rig, &[(0, EnforcePopular, 9), (0, EnforcePopular, 9)]);
    rig.die(1);
    rig.take(2);
    rig.take(3);
    let epoch = rig.epoch(2);
    rig.send(2, C2m::SyncInitiate(vote(epoch, 0, EnforcePopular, vec![entry("w", 9)])));
    rig.send(3, C2m::SyncInitiate(vote(epoch, 0, EnforcePopular, vec![entry("w", 4)])));
    assert_eq!(plan_of(&mut rig, 2).fetch.len(), 1);
    assert_eq!(plan_of(&mut rig, 3).fetch.len(), 0);
}

#[test]
fn a_group_of_one_syncs_alone_and_the_world_must_be_large_enough() {
    let mut rig = Rig::with(|options| options.min_world_size = 2);
    rig.join(&[1], 0);
    rig.join(&[2], 1);
    run(&mut rig, &[(3, EnforcePopular, 1)]);
    rig.register(3, 0);
    cast(&mut rig, &[]);
    rig.die(2);
    rig.take(1);
    cast(&mut rig, &[(4, EnforcePopular, 1)]);
    let vote = VoteRef::Sync(RequestId(5));
    let few = TooFewPeers { vote, have: 1, need: 2, need_in_group: false };
    assert_eq!(rig.answer(1), M2c::TooFewPeers(few));
}

#[test]
fn waiting_votes_learn_that_the_world_has_become_too_small() {
    let mut rig = Rig::with(|options| options.min_world_size = 3);
    rig.join(&[1, 2], 0);
    rig.join(&[3], 1);
    cast(&mut rig, &[(0, EnforcePopular, 1)]);
    rig.die(3);
    assert!(matches!(rig.answer(1), M2c::TooFewPeers(few) if (few.have, few.need) == (2, 3)));
}

/// Commits what client 1 holds, alone, then lets 2 and 3 join.
pub(super) fn trained_survivor(revision: u64) -> Rig {
    let mut rig = Rig::world(1);
    cast(&mut rig, &[(revision, EnforcePopular, 10)]);
    let plan = plan_of(&mut rig, 1);
    ready(&mut rig, 1, plan.sync);
    rig.join(&[2, 3], 0);
    rig
}

#[test]
fn newcomers_never_outvote_who_holds_the_committed_state() {
    // The newcomers claim the committed revision, the one after it, or an old one, and agree with each other.
    for claimed in [5, 6, 0] {
        for own in [5, 6] {
            let mut rig = trained_survivor(5);
            cast(
                &mut rig,
                &[(own, EnforcePopular, 10), (claimed, EnforcePopular, 77), (claimed, EnforcePopular, 77)],
            );
            assert!(plan_of(&mut rig, 1).fetch.is_empty());
            for n in [2, 3] {
                let plan = plan_of(&mut rig, n);
                assert_eq!(plan.revision, Revision(own), "claimed {claimed}");
                assert_eq!(plan.fetch.len(), 1);
                assert_eq!(plan.sources.len(), 1);
                assert_eq!(plan.sources[0].peer, rig.peers[&1]);
            }
        }
    }
}

#[test]
fn without_a_living_holder_the_highest_revision_counts_again() {
    let mut rig = trained_survivor(5);
    rig.die(1);
    rig.confirm_all();
    rig.mail.clear();
    for (n, revision, digest) in [(2, 6, 20), (3, 4, 30)] {
        let epoch = rig.epoch(n);
        rig.send(n, C2m::SyncInitiate(vote(epoch, revision, EnforcePopular, vec![entry("w", digest)])));
    }
    assert!(plan_of(&mut rig, 2).fetch.is_empty());
    let plan = plan_of(&mut rig, 3);
    assert_eq!((plan.revision, plan.fetch.len()), (Revision(6), 1));
}
