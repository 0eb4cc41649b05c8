//! Tests of who is in, who is not, and what calls say about it.

use crate::{
    fleet::{Fleet, NEVER, config, sync_command},
    peer::{Answer, Peer},
};
use pccl::{DataType, MasterConfig, ReduceOp};
use pccl_tests::spec::{Spec, StateSpec, Way};
use std::time::Duration;

#[track_caller]
fn all_good(answers: &[Answer]) {
    assert!(answers.iter().all(|answer| answer.ok), "{answers:?}");
}

/// The usual loop of a training program, with somebody joining and somebody leaving on the way.
#[test]
fn newcomer_joins_while_the_others_train() {
    let mut fleet = Fleet::new(2);
    let newcomer = fleet.spawn(&[]);
    let mut members = 2;
    let mut step = 0;
    while step < 20 {
        if step == 5 {
            fleet[newcomer].send("connect");
        }
        let pending: Vec<_> = fleet.peers[..members].iter_mut().map(|peer| peer.send("pending")).collect();
        let pending: Vec<_> =
            pending.iter().zip(&mut fleet.peers).map(|(_, peer)| peer.answer().good()).collect();
        assert!(pending.iter().all(|answer| answer.field("pending") == pending[0].field("pending")));
        if pending[0].field("pending") == "true" {
            fleet.peers[..members].iter_mut().for_each(|peer| peer.send("topology"));
            for peer in &mut fleet.peers[..members] {
                assert_eq!(peer.answer().good().field("global"), "3");
            }
            let joined = fleet[newcomer].answer().good();
            assert_eq!(joined.field("global"), "3");
            members = 3;
            fleet.meet();
        }
        let spec = Spec::sum(5000, step);
        fleet.peers[..members].iter_mut().for_each(|peer| peer.send(format!("reduce {spec} 0 0")));
        let answers: Vec<_> = fleet.peers[..members].iter_mut().map(Peer::answer).collect();
        fleet.check(&[spec], &answers);
        assert_eq!(answers[0].number("participants"), members);
        // The newcomer may take its time to start; training goes on meanwhile.
        if step < 10 || members == 3 || !fleet[newcomer].log().contains("registered as peer") {
            step += 1;
        }
    }
    if members == 2 {
        fleet.peers[..2].iter_mut().for_each(|peer| peer.send("wait 3 0"));
        fleet.peers[..3].iter_mut().for_each(|peer| assert!(peer.answer().ok));
    }
}

/// Two groups of one run.
fn groups() -> Fleet {
    let mut fleet = Fleet::empty(config());
    for group in ["group=1", "group=1", "group=1", "group=2", "group=2"] {
        fleet.spawn(&[group]);
    }
    fleet.send("connect");
    fleet.send("wait 5 0");
    all_good(&fleet.answers());
    all_good(&fleet.answers());
    fleet.meet();
    fleet
}

#[test]
fn groups_are_counted_and_reduce_among_themselves() {
    let mut fleet = groups();
    for (place, answer) in fleet.all("world").into_iter().enumerate() {
        assert_eq!((answer.number("global"), answer.number("groups"), answer.number("largest")), (5, 2, 3));
        assert_eq!(answer.number("group"), if place < 3 { 3 } else { 2 });
        assert_eq!(answer.ring().len(), answer.number("group"));
    }
    let spec = Spec::sum(10_000, 1);
    let answers = fleet.all(format!("reduce {spec} 0 0"));
    fleet.check(&[spec], &answers[..3]);
    fleet.check(&[spec], &answers[3..]);
    assert_ne!(answers[0].field("digests"), answers[3].field("digests"));
}

/// A death in one group is the business of that group alone.
#[test]
fn a_death_does_not_touch_the_other_group() {
    let mut fleet = groups();
    let (small, large) = (Spec::sum(300_000, 1), Spec::sum(1_000_000, 2));
    fleet[1].ask("trap kill 2 frame complete, stage 1 of 4").good();
    for (place, peer) in fleet.iter_mut().enumerate() {
        if place < 3 {
            peer.send(format!("reduce {large} 0 20"));
        } else {
            (0..20).for_each(|_| peer.send(format!("reduce {small} 0 0")));
        }
    }
    fleet[1].await_death();
    fleet.remove(1);
    let first: Vec<_> = fleet.peers[..2].iter_mut().map(Peer::answer).collect();
    assert!(first.iter().all(|answer| answer.field("errors") == "Aborted:PeerDied"), "{first:?}");
    fleet.check(&[large], &first);
    for _ in 0..20 {
        let second: Vec<_> = fleet.peers[2..].iter_mut().map(Peer::answer).collect();
        fleet.check(&[small], &second);
    }
    // A call that agrees with the whole run tells the other group the new size.
    assert!(fleet.all("topology").iter().all(|answer| answer.field("global") == "4"));
}

#[test]
fn ten_concurrent_tags_of_different_types_and_sizes() {
    let mut fleet = Fleet::with(config(), 3, &["pool=2"]);
    let specs: Vec<Spec> = (0..10)
        .map(|i| Spec {
            data_type: DataType::ALL[i + 2],
            op: ReduceOp::ALL[i % 5],
            count: [0, 1, 7, 1000, 65_536, 100_001, 300_000, 2, 50_000, 131_073][i],
            seed: i as u64,
            in_place: i % 3 != 0,
            quantisation: None,
        })
        .collect();
    let words: Vec<_> = specs.iter().enumerate().map(|(i, spec)| format!("{spec}@{}", i * 1000)).collect();
    for _ in 0..3 {
        let answers = fleet.all(format!("scope {} 0 0", words.join(",")));
        fleet.check(&specs, &answers);
    }
    // The order in which a peer launches them does not matter.
    let mut reversed = words.clone();
    reversed.reverse();
    for (place, peer) in fleet.iter_mut().enumerate() {
        peer.send(format!("scope {} 0 0", if place == 1 { &reversed } else { &words }.join(",")));
    }
    let mut answers = fleet.answers();
    let mut digests = answers[1].list("digests");
    digests.reverse();
    answers[1].fields.insert("digests".into(), digests.join(","));
    fleet.check(&specs, &answers);
}

/// Nobody is left to vote for those who wait: they form the next world.
#[test]
fn all_members_go_while_newcomers_wait() {
    for by_death in [false, true] {
        let mut fleet = Fleet::new(2);
        for _ in 0..2 {
            let newcomer = fleet.spawn(&[]);
            fleet[newcomer].send("connect");
            fleet[newcomer].await_log("registered as peer");
        }
        for _ in 0..2 {
            if by_death {
                fleet[0].kill();
            } else {
                fleet[0].ask("close").good();
            }
            fleet.remove(0);
        }
        all_good(&fleet.answers());
        all_good(&fleet.all("wait 2 0"));
        fleet.meet();
        assert_eq!(fleet.reduce(Spec::sum(1000, 1))[0].number("participants"), 2);
    }
}

#[test]
fn leaving_and_coming_back_with_the_same_communicator() {
    let mut fleet = Fleet::new(3);
    for round in 0..3 {
        let place = round % 3;
        let old = fleet[place].id.clone();
        fleet[place].ask("close").good();
        assert_eq!(fleet[place].ask("connected").field("connected"), "false");
        fleet[place].ask("reduce f32:sum:10:1:in 0 0").bad("NotConnected");
        fleet[place].send("connect");
        for other in (0..3).filter(|&other| other != place) {
            fleet[other].send("wait 3 0");
        }
        all_good(&fleet.answers());
        fleet.meet();
        assert_ne!(fleet[place].id, old, "an identity is used once");
        assert_eq!(fleet.reduce(Spec::sum(1000, round as u64))[0].number("participants"), 3);
    }
    fleet[0].ask("connect").bad("InvalidUsage");
}

/// The others have voted already; a peer that leaves takes nobody along.
#[test]
fn leaving_while_the_others_reduce() {
    let mut fleet = Fleet::new(3);
    let spec = Spec::sum(1000, 5);
    fleet[0].send(format!("reduce {spec} 0 0"));
    fleet[1].send(format!("reduce {spec} 0 0"));
    fleet[2].ask("close").good();
    fleet.remove(2);
    let answers = fleet.answers();
    fleet.check(&[spec], &answers);
    assert_eq!(answers[0].number("participants"), 2);
}

#[test]
fn below_the_minimum_world_size() {
    let config = MasterConfig { min_world_size: 3, ..config() };
    let mut fleet = Fleet::with(config, 2, &[]);
    let state = sync_command(0, "popular", &[StateSpec::new("w", 10, 1)]);
    for answer in fleet.all("reduce f32:sum:1000:1:in 0 5") {
        assert_eq!((answer.field("remedy"), answer.field("restored")), ("WaitForPeers", "true"));
        assert!(answer.text.contains("2") && answer.text.contains("3"), "{}", answer.text);
        answer.bad("TooFewPeers");
    }
    for answer in fleet.all(&state) {
        assert_eq!(answer.field("restored"), "true");
        answer.bad("TooFewPeers");
    }
    // One that asks alone is answered as well: it waits for nobody.
    fleet[0].ask("reduce f32:sum:1000:1:in 0 5").bad("TooFewPeers");
    assert_eq!(fleet[0].ask("wait 3 100").bad("TimedOut").field("remedy"), "WaitForPeers");
    // They wait, say for how many, and go on when somebody comes.
    fleet.send("wait 3 0");
    for peer in &mut fleet.peers {
        let note = peer.note();
        assert!(note.contains("have=2 want=3"), "{note}");
    }
    let third = fleet.spawn(&[]);
    fleet[third].send("connect");
    all_good(&fleet.answers());
    fleet.meet();
    assert_eq!(fleet.reduce(Spec::sum(1000, 2))[0].number("participants"), 3);
    // The third one dies while the others wait for its vote.
    let spec = Spec::sum(1000, 3);
    fleet[0].send(format!("reduce {spec} 0 5"));
    fleet[1].send(format!("reduce {spec} 0 5"));
    fleet[third].kill();
    fleet.remove(third);
    for answer in fleet.answers() {
        assert_eq!((answer.field("restored"), answer.field("global")), ("true", "2"));
        answer.bad("TooFewPeers");
    }
}

/// A group of one has nobody to reduce with.
#[test]
fn alone() {
    let mut fleet = Fleet::with(MasterConfig { min_world_size: 1, ..config() }, 1, &[]);
    fleet[0].ask("reduce f32:sum:1000:1:in 0 0").bad("TooFewPeers");
    fleet[0].ask("topology").good();
    assert_eq!(fleet[0].ask("pending").good().field("pending"), "false");
    let answer = fleet[0].ask(sync_command(0, "popular", &[StateSpec::new("w", 10, 1)])).good();
    assert_eq!((answer.field("tx"), answer.field("rx"), answer.field("revision")), ("0", "0", "0"));
    fleet[0].ask("wait 2 100").bad("TimedOut");
    fleet.join(&[]);
    fleet.reduce(Spec::sum(1000, 2));
}

/// Both others die in the middle of an operation: the last one has its input back and is told to wait.
#[test]
fn the_last_one_is_told_to_wait_for_peers() {
    let mut fleet = Fleet::new(3);
    fleet[0].ask("trap kill 2 frame complete, stage 1 of 4").good();
    // The second one dies in the retry, which is an operation of two ranks.
    fleet[1].ask("trap kill 1 frame begins, stage 0 of 2").good();
    fleet.send("reduce f32:sum:1000000:1:in 0 20");
    fleet[0].await_death();
    fleet[1].await_death();
    let answer = fleet[2].answer().bad("TooFewPeers");
    assert_eq!((answer.field("restored"), answer.field("remedy")), ("true", "WaitForPeers"));
    assert_eq!(answer.number("global"), 1);
    fleet.remove(0);
    fleet.remove(0);
    fleet.join(&[]);
    fleet.reduce(Spec::sum(1000, 2));
}

/// Calls that do not match: one verdict for all, nobody is dropped, nothing is changed.
#[test]
fn mismatched_calls() {
    let mut fleet = Fleet::new(3);
    let good = "reduce f32:sum:1000:1:in 0 0";
    let bad = [
        "reduce f32:sum:1001:1:in 0 0",
        "reduce f64:sum:1000:1:in 0 0",
        "reduce f32:max:1000:1:in 0 0",
        "many f32:sum:1000:1:in,f32:sum:1:1:in 0 0",
        "reduce f32:sum:1000:1:in:3.256 0 0",
    ];
    for (case, bad) in bad.into_iter().enumerate() {
        for (place, peer) in fleet.iter_mut().enumerate() {
            peer.send(if place == case % 3 { bad } else { good });
        }
        let answers = fleet.answers();
        let odd = fleet[case % 3].id.clone().expect("connected");
        for answer in &answers {
            assert_eq!(answer.text, answers[0].text, "the verdict is not the same for all");
            assert!(answer.text.contains(&odd[..8]), "the odd one is not named: {}", answer.text);
            assert_eq!((answer.field("restored"), answer.field("remedy")), ("true", "GiveUp"));
            answer.clone().bad("Aborted:MismatchedCall");
        }
        let spec = Spec::sum(1000, 1);
        assert_eq!(fleet.reduce(spec)[0].number("participants"), 3);
    }
}

/// Calls that are refused while an operation is in flight, and calls that are not.
#[test]
fn calls_while_an_operation_is_in_flight() {
    let mut fleet = Fleet::new(2);
    let spec = Spec::sum(100_000, 4);
    let answers = fleet.all(format!("busy {spec} 3 0"));
    for answer in &answers {
        let refused = "PendingAsyncOps|PendingAsyncOps|PendingAsyncOps|InvalidUsage|pending:false";
        assert_eq!(answer.field("refused"), refused, "{answer:?}");
    }
    fleet.check(&[spec], &answers);
    all_good(&fleet.all("topology"));
}

#[test]
fn many_tensors_of_mixed_types_in_one_operation() {
    let mut fleet = Fleet::new(3);
    let specs: Vec<Spec> = (0..60)
        .map(|i| Spec {
            data_type: DataType::ALL[i % 12],
            op: ReduceOp::ALL[i % 5],
            count: [0, 1, 2, 1000, 77, 30_000][i % 6],
            seed: i as u64,
            in_place: i % 2 == 0,
            quantisation: None,
        })
        .collect();
    let words: Vec<_> = specs.iter().map(ToString::to_string).collect();
    let answers = fleet.all(format!("many {} 0 100", words.join(",")));
    fleet.check(&specs, &answers);
}

/// A revision that skips one costs its peer the run; it hears why, and may come back.
#[test]
fn dropped_for_a_revision_jump_and_back_again() {
    let mut fleet = Fleet::new(3);
    let state = [StateSpec::new("w", 1000, 1)];
    all_good(&fleet.all(sync_command(0, "popular", &state)));
    let next = sync_command(1, "popular", &state);
    let answers = fleet.sync(&[next.clone(), sync_command(2, "popular", &state), next.clone()]);
    let kicked = answers[1].clone().bad("Kicked");
    assert_eq!((kicked.field("code"), kicked.field("remedy")), ("RevisionJump", "Reconnect"));
    assert!(answers[0].ok && answers[2].ok, "{answers:?}");
    assert_eq!(answers[0].field("revision"), "1");
    fleet[1].ask("reduce f32:sum:10:1:in 0 0").bad("Kicked");
    fleet[1].send("connect");
    fleet[0].send("wait 3 0");
    fleet[2].send("wait 3 0");
    all_good(&fleet.answers());
    fleet.meet();
    assert!(
        fleet.all(sync_command(1, "popular", &state)).iter().all(|answer| answer.field("revision") == "1")
    );
    assert_eq!(fleet.reduce(Spec::sum(1000, 1))[0].number("participants"), 3);
}

/// A peer that stands still is found out by its silence; when it wakes up it hears that it was dropped.
#[test]
fn a_peer_that_stands_still() {
    let config = MasterConfig { peer_timeout: Duration::from_secs(4), ..config() };
    let mut fleet = Fleet::with(config, 3, &[]);
    for point in ["to master: Initiate", "frame complete, stage 1 of 4"] {
        fleet[1].ask(format!("trap stop 1 {point}")).good();
        let spec = Spec::sum(1_000_000, 1);
        fleet.send(format!("reduce {spec} 0 20"));
        fleet[1].await_stop();
        let id = fleet[1].id.clone().expect("connected");
        let answers = [fleet[0].answer().good(), fleet[2].answer().good()];
        for answer in &answers {
            assert_eq!(answer.number("participants"), 2);
            if point.starts_with("frame") {
                assert_eq!(answer.field("errors"), "Aborted:PeerSilent");
                assert!(answer.text.contains(&id[..8]) && answer.text.contains("silent"), "{}", answer.text);
            }
        }
        fleet.check(&[spec], &answers);
        fleet[1].resume();
        let woken = fleet[1].answer();
        assert_eq!((woken.kind(), woken.field("code")), ("Kicked", "Silent"), "{woken:?}");
        assert_eq!(woken.field("restored"), "true");
        fleet[1].send("connect");
        fleet[0].send("wait 3 0");
        fleet[2].send("wait 3 0");
        all_good(&fleet.answers());
        fleet.meet();
    }
    fleet.reduce(Spec::sum(1000, 2));
}

/// All lose their master, and meet again at a new one on the same port.
fn reconnect_to(fleet: &mut Fleet) {
    let n = fleet.len();
    fleet.send("connect");
    fleet.send(format!("wait {n} 0"));
    all_good(&fleet.answers());
    all_good(&fleet.answers());
    fleet.meet();
    assert_eq!(fleet.reduce(Spec::sum(1000, 9))[0].number("participants"), n);
}

#[test]
fn master_stops_and_comes_back() {
    let mut fleet = Fleet::new(3);
    fleet.reduce(Spec::sum(1000, 1));
    fleet.replace_master();
    for answer in fleet.all("reduce f32:sum:1000:1:in 0 5") {
        assert_eq!((answer.kind(), answer.field("code")), ("Kicked", "MasterStopping"), "{answer:?}");
        assert_eq!((answer.field("remedy"), answer.field("restored")), ("Reconnect", "true"));
    }
    reconnect_to(&mut fleet);
}

/// The master is killed while data moves: every peer has either its input or the whole result, and says which.
#[test]
fn master_dies_in_the_middle_of_an_operation() {
    let mut fleet = Fleet::with_master_process(config(), 3, &[]);
    for point in ["from master: Commence", "frame complete, stage 1 of 4", "to master: Complete"] {
        // One peer stands still there, so that the operation is under way for all when the master dies.
        fleet[0].ask(format!("trap stop 1 {point}")).good();
        let spec = Spec::sum(1_000_000, 1);
        fleet.send(format!("reduce {spec} 0 5"));
        fleet[0].await_stop();
        fleet.kill_master_process();
        fleet[0].resume();
        for answer in fleet.answers() {
            assert!(["MasterLost", "OutcomeUnknown"].contains(&answer.kind()), "{answer:?}");
            assert_eq!(answer.field("remedy"), "Reconnect");
            if answer.kind() == "MasterLost" {
                assert_eq!(answer.field("restored"), "true", "{answer:?}");
            } else {
                let whole =
                    pccl_tests::pattern::digest(&spec.result(&fleet.orders(&answer, 3)[0], Way::Ring));
                assert_eq!(answer.field("digests"), whole, "{answer:?}");
            }
        }
        fleet.start_master_process();
        reconnect_to(&mut fleet);
    }
}

/// A master that stands still counts as lost after the caller's time-out.
#[test]
fn master_stands_still() {
    let config = MasterConfig { peer_timeout: NEVER, ..config() };
    let mut fleet = Fleet::with_master_process(config, 2, &["master-timeout-ms=4000"]);
    fleet.stop_master_process();
    // Nobody has voted to complete a large one.
    for answer in fleet.all(format!("reduce {} 0 5", Spec::sum(1_000_000, 1))) {
        assert_eq!(answer.field("restored"), "true");
        answer.bad("MasterLost");
    }
    fleet.kill_master_process();
    fleet.start_master_process();
    reconnect_to(&mut fleet);
}

/// Its listeners are on another address than the one that it tells others: as a closed port, or a wrong address, looks.
#[test]
fn who_came_first_and_cannot_be_reached_goes_and_is_told_and_the_others_make_the_run() {
    // Otherwise it would take part, and dial the others.
    let mut fleet = Fleet::empty(MasterConfig { require_reachable: true, ..config() });
    let lost = fleet.spawn(&["bind=127.0.0.1", "host=127.0.0.9"]);
    fleet[lost].ask("connect").good();
    // It hears of it before anybody else has come.
    fleet[lost].await_log("nobody reaches you at 127.0.0.9:");
    let status =
        pccl_master::query_status(&fleet.address, None, NEVER).expect("the master answers").to_string();
    assert!(status.contains("open it or set advertised_host"), "{status}");
    let healthy = [fleet.spawn(&[]), fleet.spawn(&[])];
    fleet[lost].send("wait 3 0");
    for place in healthy {
        fleet[place].send("connect");
        fleet[place].send("wait 2 0");
    }
    let kicked = fleet[lost].answer().bad("Kicked");
    assert_eq!(kicked.field("code"), "Unreachable", "{kicked:?}");
    fleet[lost].await_log("unreachable: nobody reaches peer");
    for place in healthy {
        fleet[place].answer().good();
        assert_eq!(fleet[place].answer().good().number("global"), 2);
    }
    let spec = Spec::sum(5000, 1);
    healthy.into_iter().for_each(|place| fleet[place].send(format!("reduce {spec} 0 0")));
    for place in healthy {
        assert_eq!(fleet[place].answer().good().number("participants"), 2);
    }
}
