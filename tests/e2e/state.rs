//! Shared state: who gets what from whom, and that a failed sync changes nothing.

use crate::{
    fleet::{Fleet, config, sync_command},
    kill::{finish_sync, sync_with_death},
    peer::Answer,
};
use pccl::{DataType, MasterConfig};
use pccl_tests::spec::StateSpec;

/// A tensor of 1024 bytes.
fn tensor(key: &str, seed: u64) -> StateSpec {
    StateSpec::new(key, 256, seed)
}

/// One sync: revision, strategy and state of each peer.
#[track_caller]
fn sync(fleet: &mut Fleet, calls: &[(u64, &str, &[StateSpec])]) -> Vec<Answer> {
    let commands: Vec<_> =
        calls.iter().map(|(revision, how, state)| sync_command(*revision, how, state)).collect();
    fleet.sync(&commands)
}

/// One sync that succeeds: received bytes of each peer are `rx`, all commit `revision` and hold `wanted`.
#[track_caller]
fn settles(
    fleet: &mut Fleet,
    calls: &[(u64, &str, &[StateSpec])],
    revision: u64,
    rx: &[usize],
    wanted: &[StateSpec],
) {
    let answers = sync(fleet, calls);
    settled(&answers, revision, rx, wanted);
}

#[track_caller]
fn settled(answers: &[Answer], revision: u64, rx: &[usize], wanted: &[StateSpec]) {
    let digests: Vec<_> = wanted.iter().map(StateSpec::digest).collect();
    for (answer, &rx) in answers.iter().zip(rx) {
        let answer = answer.clone().good();
        assert_eq!(answer.list("digests"), digests, "{answer:?}");
        assert_eq!(answer.number("revision") as u64, revision, "{answer:?}");
        assert_eq!(answer.number("state") as u64, revision, "{answer:?}");
        assert_eq!(answer.number("rx"), rx, "{answer:?}");
        assert_eq!(answer.field("kept"), "true", "memory in front of a tensor was written");
    }
    let sent: usize = answers.iter().map(|answer| answer.number("tx")).sum();
    // A piece that was overdue may have been sent twice.
    let needed = rx.iter().sum::<usize>();
    assert!(
        if needed < 1 << 20 { sent == needed } else { sent >= needed },
        "what is received was sent: {answers:?}"
    );
}

/// One sync that fails for all in the same way and changes nothing; the run goes on.
#[track_caller]
fn mismatches(fleet: &mut Fleet, calls: &[(u64, &str, &[StateSpec])]) {
    let answers = sync(fleet, calls);
    for answer in &answers {
        assert_eq!(answer.text, answers[0].text, "the verdict is not the same for all");
        assert_eq!(answer.field("restored"), "true", "{answer:?}");
        answer.clone().bad("Aborted:MismatchedCall");
    }
    assert!(fleet.all("topology").iter().all(|answer| answer.ok), "nobody is dropped");
}

const POPULAR: &str = "popular";
const SEND: &str = "send";
const RECEIVE: &str = "receive";

#[test]
fn what_differs_is_moved_and_nothing_else() {
    let mut fleet = Fleet::new(2);
    let (one, two) = ([tensor("a", 1)], [tensor("a", 2)]);
    // Two contents, each with one voter: the lower hash wins.
    let (winner, loser) = if one[0].digest() < two[0].digest() { (&one, &two) } else { (&two, &one) };
    settles(&mut fleet, &[(0, POPULAR, winner), (0, POPULAR, loser)], 0, &[0, 1024], winner);
    settles(&mut fleet, &[(1, POPULAR, loser), (1, POPULAR, winner)], 1, &[1024, 0], winner);
    // Equal contents move nothing.
    settles(&mut fleet, &[(2, POPULAR, loser), (2, POPULAR, loser)], 2, &[0, 0], loser);
    // Again at the same revision.
    settles(&mut fleet, &[(2, POPULAR, loser), (2, POPULAR, loser)], 2, &[0, 0], loser);
}

#[test]
fn of_two_tensors_only_the_differing_one_is_moved() {
    let mut fleet = Fleet::new(3);
    let good = [tensor("a", 1), tensor("b", 2)];
    let bad = [tensor("a", 1), tensor("b", 3)];
    settles(
        &mut fleet,
        &[(0, POPULAR, &good), (0, POPULAR, &bad), (0, POPULAR, &good)],
        0,
        &[0, 1024, 0],
        &good,
    );
    // The order in which tensors are added does not matter.
    let mut answers = sync(
        &mut fleet,
        &[
            (1, POPULAR, &[tensor("b", 2), tensor("a", 1)]),
            (1, POPULAR, &good),
            (1, POPULAR, &[tensor("b", 3), tensor("a", 1)]),
        ],
    );
    for answer in answers.iter_mut().step_by(2) {
        let mut digests = answer.list("digests");
        digests.reverse();
        answer.fields.insert("digests".into(), digests.join(","));
    }
    settled(&answers, 1, &[0, 0, 1024], &good);
}

/// The majority wins, whoever votes first, with one tensor and with many.
#[test]
fn the_majority_wins() {
    let mut fleet = Fleet::new(3);
    for (revision, n) in [(0, 1), (1, 20)] {
        let content =
            |seed: u64| -> Vec<_> { (0..n).map(|i| tensor(&format!("key{i:02}"), seed + i)).collect() };
        let (most, odd) = (content(100), content(200));
        fleet[0].send(sync_command(revision, POPULAR, &odd));
        fleet[0].await_log("command sync");
        fleet[1].send(sync_command(revision, POPULAR, &most));
        fleet[2].send(sync_command(revision, POPULAR, &most));
        let answers = fleet.answers();
        settled(&answers, revision, &[1024 * n as usize, 0, 0], &most);
    }
    // Contents are elected whole: two voters agree on all of it, though each tensor alone has another majority.
    let whole = [tensor("a", 1), tensor("b", 1), tensor("c", 1)];
    let other = |i: usize| {
        let mut state = whole.clone();
        state[i] = tensor(["a", "b", "c"][i], 9);
        state
    };
    fleet.join(&[]);
    fleet.join(&[]);
    let calls: [(u64, &str, &[StateSpec]); 5] = [
        (2, POPULAR, &other(0)),
        (2, POPULAR, &other(1)),
        (2, POPULAR, &other(2)),
        (2, POPULAR, &other(2)),
        (2, POPULAR, &other(0)),
    ];
    let wanted = if content_key(&other(0)) < content_key(&other(2)) { other(0) } else { other(2) };
    let rx: Vec<_> = calls
        .iter()
        .map(|call| 1024 * call.2.iter().zip(&wanted).filter(|(have, want)| have != want).count())
        .collect();
    settles(&mut fleet, &calls, 2, &rx, &wanted);
}

/// By what the election breaks a tie.
fn content_key(state: &[StateSpec]) -> Vec<String> {
    state.iter().map(StateSpec::digest).collect()
}

#[test]
fn groups_sync_apart() {
    let mut fleet = Fleet::empty(config());
    for group in ["group=1", "group=1", "group=2", "group=2"] {
        fleet.spawn(&[group]);
    }
    fleet.send("connect");
    fleet.send("wait 4 0");
    assert!(fleet.answers().iter().chain(&fleet.answers()).all(|answer| answer.ok));
    fleet.meet();
    // Different keys, overlapping keys, and different revisions.
    let first = [tensor("a", 1), tensor("shared", 2)];
    let second = [tensor("b", 3), tensor("shared", 4)];
    let stale = [tensor("b", 3), tensor("shared", 5)];
    let answers = sync(
        &mut fleet,
        &[(7, POPULAR, &first), (7, POPULAR, &first), (3, SEND, &second), (3, RECEIVE, &stale)],
    );
    settled(&answers[..2], 7, &[0, 0], &first);
    settled(&answers[2..], 3, &[0, 1024], &second);
    // One group after the other, and a mismatch in one is nothing to the other.
    for (revision, place) in [(8, 0), (4, 2)] {
        let state = if place == 0 { &first } else { &second };
        let command = sync_command(revision, POPULAR, state);
        fleet[place].send(&command);
        fleet[place + 1].send(&command);
        let answers = [fleet[place].answer(), fleet[place + 1].answer()];
        settled(&answers, revision, &[0, 0], state);
    }
    let answers = sync(
        &mut fleet,
        &[(9, POPULAR, &first), (9, SEND, &first), (5, POPULAR, &second), (5, POPULAR, &second)],
    );
    assert!(answers[..2].iter().all(|answer| answer.kind() == "Aborted:MismatchedCall"), "{answers:?}");
    settled(&answers[2..], 5, &[0, 0], &second);
}

#[test]
fn a_run_of_revisions() {
    let mut fleet = Fleet::new(2);
    for revision in 0..10 {
        let state = [tensor("a", revision)];
        settles(
            &mut fleet,
            &[(revision, POPULAR, &state), (revision, POPULAR, &state)],
            revision,
            &[0, 0],
            &state,
        );
    }
}

/// A peer whose revision stands still is dragged along; bytes move only if the content differs.
#[test]
fn a_peer_that_never_advances_is_dragged_along() {
    let mut fleet = Fleet::new(2);
    for revision in 0..6 {
        let fresh = [tensor("a", revision / 2)];
        let old = [tensor("a", revision.saturating_sub(1) / 2)];
        let rx = if fresh == old { 0 } else { 1024 };
        settles(&mut fleet, &[(revision, POPULAR, &fresh), (0, POPULAR, &old)], revision, &[0, rx], &fresh);
    }
}

/// The first revision of a group may be any; who comes with less adopts it, even if there are more of those.
#[test]
fn the_highest_first_revision_wins() {
    let mut fleet = Fleet::new(3);
    let (trained, fresh) = ([tensor("a", 1)], [tensor("a", 2)]);
    let calls: [(u64, &str, &[StateSpec]); 3] =
        [(0, POPULAR, &fresh), (13, POPULAR, &trained), (0, POPULAR, &fresh)];
    settles(&mut fleet, &calls, 13, &[1024, 0, 1024], &trained);
}

/// Skipping a revision costs the one who skips it the run, and nobody else anything.
#[test]
fn a_revision_jump_is_one_peers_problem() {
    let mut fleet = Fleet::new(3);
    let state = [tensor("a", 1)];
    settles(&mut fleet, &[(4, POPULAR, &state[..]); 3], 4, &[0; 3], &state);
    let answers = sync(&mut fleet, &[(5, POPULAR, &state), (6, POPULAR, &state), (5, POPULAR, &state)]);
    assert_eq!(answers[1].field("code"), "RevisionJump");
    assert_eq!(answers[1].field("restored"), "true");
    settled(&[answers[0].clone(), answers[2].clone()], 5, &[0, 0], &state);
}

/// A peer that was dropped because its tensors are not those of its group: the reason has the key and both values.
#[track_caller]
fn deviates(answer: &Answer, theirs: &str, own: &str) {
    let answer = answer.clone().bad("Kicked");
    let fields = [answer.field("code"), answer.field("remedy"), answer.field("restored")];
    assert_eq!(fields, ["StateMismatch", "GiveUp", "true"], "{answer:?}");
    assert!(answer.text.contains(theirs) && answer.text.contains(own), "{}", answer.text);
}

/// Different keys, types, counts, flags: whoever differs from those who hold the committed state is dropped, however
/// many of that kind there are, and the others commit in the same call.
#[test]
fn states_of_different_shape() {
    let mut fleet = Fleet::new(2);
    let state = [tensor("a", 1), tensor("b", 1)];
    let more = [tensor("a", 1), tensor("b", 1), tensor("c", 1)];
    let renamed = [tensor("a", 1), tensor("x", 1)];
    let longer = [tensor("a", 1), StateSpec::new("b", 257, 1)];
    let retyped = [tensor("a", 1), StateSpec { data_type: DataType::Int32, ..tensor("b", 1) }];
    let loose = [tensor("a", 1), StateSpec { loose: true, ..tensor("b", 1) }];
    let none: [StateSpec; 0] = [];
    settles(&mut fleet, &[(0, POPULAR, &state[..]); 2], 0, &[0; 2], &state);
    let full = "\"b\": 256 elements of f32 (2 of";
    let cases: [(&[StateSpec], &str, &str); 7] = [
        (&more, "no \"c\" (2 of", "\"c\": 256 elements of f32"),
        (&renamed, full, "it has no \"b\""),
        (&longer, full, "it has \"b\": 257 elements of f32"),
        (&retyped, full, "it has \"b\": 256 elements of i32"),
        (&loose, full, "it has \"b\": 256 elements of f32, content may differ"),
        (&none, "\"a\": 256 elements of f32 (2 of", "it has no \"a\""),
        (&state[..1], full, "it has no \"b\""),
    ];
    for (revision, (odd, theirs, own)) in (1..).zip(cases) {
        // The last of them three times, so that they are more than the members.
        let newcomers = if revision == 7 { 3 } else { 1 };
        let places: Vec<usize> = (0..newcomers).map(|_| fleet.join(&[])).collect();
        let mut calls: Vec<(u64, &str, &[StateSpec])> = vec![(revision, POPULAR, &state); 2];
        calls.extend(places.iter().map(|_| (0, POPULAR, odd)));
        let answers = sync(&mut fleet, &calls);
        settled(&answers[..2], revision, &[0; 2], &state);
        for (answer, place) in answers[2..].iter().zip(&places).rev() {
            deviates(answer, theirs, own);
            fleet.remove(*place);
        }
    }
    settles(&mut fleet, &[(8, POPULAR, &state[..]); 2], 8, &[0; 2], &state);
}

/// Before the first commit most peers decide which tensors there are, and on a tie the larger state.
#[test]
fn the_first_tensors_are_those_of_most_peers() {
    let (state, other) = ([tensor("a", 1), tensor("b", 1)], [tensor("a", 1), tensor("b", 1), tensor("c", 1)]);
    let mut fleet = Fleet::new(3);
    let answers = sync(&mut fleet, &[(0, POPULAR, &other), (0, POPULAR, &state), (0, POPULAR, &state)]);
    deviates(&answers[0], "no \"c\" (2 of 3 peers)", "it has \"c\": 256 elements of f32");
    settled(&answers[1..], 0, &[0; 2], &state);
    let mut fleet = Fleet::new(2);
    let answers = sync(&mut fleet, &[(0, POPULAR, &state), (0, POPULAR, &other)]);
    deviates(&answers[0], "\"c\": 256 elements of f32 (1 of 2 peers)", "it has no \"c\"");
    settled(&answers[1..], 0, &[0], &other);
    // All members together may have other tensors than before.
    settles(&mut fleet_of_one(fleet), &[(1, POPULAR, &state)], 1, &[0], &state);
}

fn fleet_of_one(mut fleet: Fleet) -> Fleet {
    fleet.remove(0);
    fleet
}

/// A peer that skips a revision is dropped; if all do, all are.
#[test]
fn all_skip_a_revision() {
    let mut fleet = Fleet::new(2);
    let state = [tensor("a", 1)];
    settles(&mut fleet, &[(4, POPULAR, &state[..]); 2], 4, &[0; 2], &state);
    for answer in sync(&mut fleet, &[(6, POPULAR, &state[..]); 2]) {
        assert_eq!(answer.field("code"), "RevisionJump");
        assert!(answer.text.contains("the next one is 5"), "{}", answer.text);
    }
}

#[test]
fn a_third_peer_joins_between_syncs() {
    let mut fleet = Fleet::new(2);
    let state = |revision: u64| [tensor("a", revision), tensor("b", 1)];
    settles(&mut fleet, &[(0, POPULAR, &state(0)[..]); 2], 0, &[0; 2], &state(0));
    settles(&mut fleet, &[(1, POPULAR, &state(1)[..]); 2], 1, &[0; 2], &state(1));
    fleet.join(&[]);
    let calls: [(u64, &str, &[StateSpec]); 3] =
        [(2, POPULAR, &state(2)), (2, POPULAR, &state(2)), (0, POPULAR, &[tensor("a", 77), tensor("b", 78)])];
    settles(&mut fleet, &calls, 2, &[0, 0, 2048], &state(2));
    settles(&mut fleet, &[(3, POPULAR, &state(3)[..]); 3], 3, &[0; 3], &state(3));
}

#[test]
fn givers_and_takers() {
    let mut fleet = Fleet::new(3);
    let (one, two) = ([tensor("a", 1)], [tensor("a", 2)]);
    // Whatever is more popular, a peer that only takes gives nothing.
    settles(
        &mut fleet,
        &[(0, RECEIVE, &two), (0, RECEIVE, &two), (0, SEND, &one)],
        0,
        &[1024, 1024, 0],
        &one,
    );
    settles(&mut fleet, &[(1, SEND, &one), (1, RECEIVE, &one), (1, SEND, &one)], 1, &[0; 3], &one);
    settles(&mut fleet, &[(2, SEND, &one), (2, RECEIVE, &two), (2, SEND, &one)], 2, &[0, 1024, 0], &one);
    // Two givers with different contents, no giver at all, mixtures.
    mismatches(&mut fleet, &[(3, SEND, &one), (3, SEND, &two), (3, RECEIVE, &one)]);
    mismatches(&mut fleet, &[(3, RECEIVE, &one), (3, RECEIVE, &one), (3, RECEIVE, &one)]);
    mismatches(&mut fleet, &[(3, RECEIVE, &one), (3, RECEIVE, &two), (3, RECEIVE, &one)]);
    mismatches(&mut fleet, &[(3, POPULAR, &one), (3, SEND, &one), (3, SEND, &one)]);
    mismatches(&mut fleet, &[(3, POPULAR, &one), (3, RECEIVE, &one), (3, POPULAR, &one)]);
    // A giver that is outdated.
    mismatches(&mut fleet, &[(3, SEND, &one), (1, SEND, &one), (3, RECEIVE, &one)]);
    settles(&mut fleet, &[(3, SEND, &one), (1, RECEIVE, &two), (3, RECEIVE, &one)], 3, &[0, 1024, 0], &one);
}

/// Every pair of strategies in a group of two, with equal and with different contents.
#[test]
fn every_pair_of_strategies() {
    let mut fleet = Fleet::new(2);
    let states = [[tensor("a", 1)], [tensor("a", 2)]];
    let lower = usize::from(states[1][0].digest() < states[0][0].digest());
    let mut revision = 0;
    for (first, second) in [
        (POPULAR, POPULAR),
        (POPULAR, SEND),
        (POPULAR, RECEIVE),
        (SEND, SEND),
        (SEND, RECEIVE),
        (RECEIVE, RECEIVE),
    ] {
        for other in [0, 1] {
            let calls: [(u64, &str, &[StateSpec]); 2] =
                [(revision, first, &states[0]), (revision, second, &states[other])];
            // The state whose content all have in the end.
            let winner = match (first, second) {
                (POPULAR, POPULAR) => Some(if other == 0 { 0 } else { lower }),
                (SEND, SEND) => (other == 0).then_some(0),
                (SEND, RECEIVE) => Some(0),
                _ => None,
            };
            match winner {
                Some(winner) => {
                    let rx = [0, other].map(|own| if own == winner { 0 } else { 1024 });
                    settles(&mut fleet, &calls, revision, &rx, &states[winner]);
                    revision += 1;
                }
                None => mismatches(&mut fleet, &calls),
            }
        }
    }
    // A sender that is behind, and a receiver that is ahead.
    mismatches(&mut fleet, &[(revision, SEND, &states[0]), (revision - 1, SEND, &states[0])]);
    let calls: [(u64, &str, &[StateSpec]); 2] =
        [(revision - 1, SEND, &states[0]), (revision, RECEIVE, &states[1])];
    settles(&mut fleet, &calls, revision - 1, &[0, 1024], &states[0]);
}

#[test]
fn each_strategy_alone() {
    let mut fleet = Fleet::new(1);
    let state = [tensor("a", 1)];
    settles(&mut fleet, &[(0, POPULAR, &state)], 0, &[0], &state);
    settles(&mut fleet, &[(1, SEND, &state)], 1, &[0], &state);
    mismatches(&mut fleet, &[(2, RECEIVE, &state)]);
}

/// Tensors that may differ are left alone, except on a peer that is outdated.
#[test]
fn tensors_that_may_differ() {
    let mut fleet = Fleet::new(2);
    let state = |seed: u64| [tensor("a", 1), StateSpec { loose: true, ..tensor("b", seed) }];
    let answers = sync(&mut fleet, &[(1, POPULAR, &state(1)), (1, POPULAR, &state(2))]);
    for (answer, seed) in answers.iter().zip([1, 2]) {
        assert_eq!(answer.clone().good().list("digests"), content_key(&state(seed)));
        assert_eq!(answer.number("rx"), 0);
    }
    let answers = sync(&mut fleet, &[(2, POPULAR, &state(1)), (1, POPULAR, &state(2))]);
    settled(&answers, 2, &[0, 1024], &state(1));
}

/// Every type, at addresses that are not aligned to anything, with empty tensors between them.
#[test]
fn every_type_unaligned_and_empty() {
    let mut fleet = Fleet::new(2);
    let state = |seed: u64| -> Vec<StateSpec> {
        let full = DataType::ALL.into_iter().enumerate().map(|(i, data_type)| StateSpec {
            key: format!("{data_type}"),
            data_type,
            count: 1000 + 37 * i,
            seed: seed + i as u64,
            skip: 1 + i % 5,
            loose: false,
        });
        let empty = DataType::ALL.map(|data_type| StateSpec {
            data_type,
            ..StateSpec::new(&format!("empty-{data_type}"), 0, seed)
        });
        full.chain(empty).collect()
    };
    let bytes = state(1).iter().map(|spec| spec.content().len()).sum();
    settles(&mut fleet, &[(1, SEND, &state(1)), (0, RECEIVE, &state(2))], 1, &[0, bytes], &state(1));
    settles(&mut fleet, &[(2, POPULAR, &[]), (2, POPULAR, &[])], 2, &[0, 0], &[]);
}

#[test]
fn a_large_tensor() {
    let mut fleet = Fleet::new(3);
    let state = |seed: u64| [StateSpec::new("large", 16 << 20, seed), tensor("small", 1)];
    let (good, bad) = (state(1), state(2));
    settles(
        &mut fleet,
        &[(0, POPULAR, &good), (0, POPULAR, &bad), (0, POPULAR, &good)],
        0,
        &[0, 64 << 20, 0],
        &good,
    );
}

/// A source dies in the middle of a transfer: another one takes over, and the sync succeeds.
#[test]
fn another_source_takes_over() {
    let mut fleet = Fleet::new(4);
    let good = [StateSpec::new("a", 4 << 20, 1), tensor("b", 1)];
    let bad = [StateSpec::new("a", 4 << 20, 2), tensor("b", 2)];
    let mut commands = [&good, &good, &bad, &bad]
        .map(|state| sync_command(u64::from(state == &good), POPULAR, state))
        .to_vec();
    let answers = sync_with_death(&mut fleet, 0, "state request for b", &commands);
    commands.remove(0);
    finish_sync(&mut fleet, answers, &commands, &good);
}

/// The only source dies: nobody has anything, nothing is changed, and the retry elects among those who are left.
#[test]
fn the_only_source_dies() {
    let mut fleet = Fleet::new(3);
    let (good, bad) = ([StateSpec::new("a", 1 << 20, 1)], [StateSpec::new("a", 1 << 20, 2)]);
    let commands = [&good, &bad, &bad].map(|state| sync_command(u64::from(state == &good), POPULAR, state));
    let id = fleet[0].id.clone().expect("connected");
    let answers = sync_with_death(&mut fleet, 0, "state request for a", &commands);
    for answer in &answers {
        assert_eq!((answer.field("remedy"), answer.field("restored")), ("Retry", "true"), "{answer:?}");
        assert_eq!(answer.text, answers[0].text);
        assert!(answer.kind().starts_with("Aborted:"), "{answer:?}");
        assert!(answer.text.contains(&id[..8]), "the dead one is not named: {}", answer.text);
    }
    settles(&mut fleet, &[(0, POPULAR, &bad[..]); 2], 0, &[0; 2], &bad);
}

#[test]
fn alone_and_below_the_minimum() {
    let mut fleet = Fleet::with(MasterConfig { min_world_size: 1, ..config() }, 1, &[]);
    let state = [tensor("a", 1)];
    settles(&mut fleet, &[(5, POPULAR, &state)], 5, &[0], &state);
    fleet.join(&[]);
    settles(&mut fleet, &[(6, POPULAR, &state), (0, POPULAR, &[tensor("a", 2)])], 6, &[0, 1024], &state);
}
