//! The six phases of a global iteration and both fault scenarios, with members that are threads and a store in memory.

use pccl_iteration::{
    Cancel, Decision, GlobalIteration, IterationConfig, IterationError, MemoryStore, Policy, Store,
};
use std::{
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// Short times; long enough for a busy machine.
fn config(world_size: usize) -> IterationConfig {
    IterationConfig {
        world_size,
        heartbeat_interval: Duration::from_millis(50),
        inactive_after: Duration::from_millis(1500),
        no_progress: Duration::from_secs(60),
        poll_interval: Duration::from_millis(20),
        ..IterationConfig::default()
    }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn text(store: &MemoryStore, key: &str) -> Option<String> {
    store.get(key, soon()).unwrap().map(|value| String::from_utf8(value).unwrap())
}

fn join(store: &Arc<MemoryStore>, id: usize, config: IterationConfig) -> JoinHandle<GlobalIteration> {
    let store = Arc::clone(store);
    thread::spawn(move || GlobalIteration::join(store, &id.to_string(), b"join", config).unwrap())
}

/// A run that has begun.
fn begin(store: &Arc<MemoryStore>, world: usize, config: &IterationConfig) -> Vec<GlobalIteration> {
    let joining: Vec<_> = (0..world).map(|id| join(store, id, config.clone())).collect();
    joining.into_iter().map(|member| member.join().unwrap()).collect()
}

/// All of them advance at once.
fn advance(members: &[&GlobalIteration]) -> Vec<Result<Decision, IterationError>> {
    thread::scope(|scope| {
        let calls: Vec<_> = members
            .iter()
            .map(|member| scope.spawn(|| member.advance(member.member().id.as_bytes())))
            .collect();
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    })
}

/// All of them advance at once to the same decision.
fn advance_together(members: &[&GlobalIteration]) -> Decision {
    let decisions: Vec<Decision> = advance(members).into_iter().map(Result::unwrap).collect();
    assert!(decisions.iter().all(|decision| *decision == decisions[0]), "{decisions:?}");
    decisions[0].clone()
}

fn ids(decision: &Decision) -> Vec<&str> {
    decision.members().map(|member| member.id.as_str()).collect()
}

#[test]
fn phase_1_initialization() {
    let store = Arc::new(MemoryStore::new());
    let first = join(&store, 0, config(3));
    let second = join(&store, 1, config(3));
    // Two of three do not begin.
    assert!(
        !store.wait(&["it/default/wake/0".to_owned()], Instant::now() + Duration::from_millis(200)).unwrap()
    );
    let third = join(&store, 2, config(3));
    let members: Vec<_> = [first, second, third].into_iter().map(|member| member.join().unwrap()).collect();
    for member in &members {
        assert_eq!(member.decision(), members[0].decision());
        assert_eq!((member.decision().iteration, member.member().incarnation), (0, 1));
    }
    assert_eq!(ids(&members[0].decision()), ["0", "1", "2"]);
    assert_eq!(text(&store, "global_iteration_counter").as_deref(), Some("0"));
}

#[test]
fn phase_2_heartbeats_tell_who_is_active() {
    let store = Arc::new(MemoryStore::new());
    let mut members = begin(&store, 3, &config(3));
    let heart = |id: usize| text(&store, &format!("it/default/hb/{id}/1"));
    let before = heart(2);
    let deadline = soon();
    while heart(2) == before {
        assert!(Instant::now() < deadline, "no heartbeat");
        thread::sleep(Duration::from_millis(10));
    }
    assert!(text(&store, "heartbeat_2").unwrap().parse::<f64>().unwrap() > 1e9);
    // A member that lives is waited for, however long it computes; a dead one only until its silence is noticed.
    let late = members.pop().unwrap();
    let slow = thread::spawn(move || {
        thread::sleep(Duration::from_secs(3));
        (late.advance(b"late").unwrap(), late)
    });
    let decision = advance_together(&[&members[0], &members[1]]);
    let (same, late) = slow.join().unwrap();
    assert_eq!((same, ids(&decision)), (decision.clone(), vec!["0", "1", "2"]));
    drop(late);
    assert_eq!(ids(&advance_together(&[&members[0], &members[1]])), ["0", "1"]);
}

#[test]
fn phase_3_arrival_is_bound_to_one_iteration() {
    let store = Arc::new(MemoryStore::new());
    let members = begin(&store, 2, &config(2));
    // Arrivals of other iterations and other lives count for nothing.
    for key in
        ["it/default/arr/2/1/1", "it/default/arr/0/1/1", "it/default/arr/1/1/9", "it/default/arr/1/7/1"]
    {
        store.set(key, b"ghost", soon()).unwrap();
    }
    store.set("it/default/cnt/1", b"40", soon()).unwrap();
    thread::scope(|scope| {
        let first = scope.spawn(|| members[0].advance(b"a").unwrap());
        thread::sleep(Duration::from_millis(500));
        assert!(!first.is_finished(), "an arrival of another iteration was counted");
        let second = members[1].advance(b"b").unwrap();
        assert_eq!(second, first.join().unwrap());
        let payloads: Vec<&[u8]> = second.entries.iter().map(|entry| entry.payload.as_slice()).collect();
        assert_eq!(payloads, [b"a", b"b"]);
    });
}

#[test]
fn phase_4_consensus_competition_has_one_winner() {
    let store = Arc::new(MemoryStore::new());
    let members = begin(&store, 8, &config(8));
    let all: Vec<&GlobalIteration> = members.iter().collect();
    for iteration in 1..=50 {
        let decision = advance_together(&all);
        assert_eq!((decision.iteration, decision.entries.len()), (iteration, 8));
    }
    // Keys that are not needed any more are removed. The register, and a few keys of each member, are left.
    let keys = store.keys();
    assert!(keys.len() < 8 * 6 + 10, "{keys:?}");
}

#[test]
fn phase_5_the_iteration_advances_by_one_for_all() {
    let store = Arc::new(MemoryStore::new());
    let members = begin(&store, 3, &IterationConfig { first_iteration: 100, ..config(3) });
    let all: Vec<&GlobalIteration> = members.iter().collect();
    for iteration in 101..=110 {
        assert_eq!(advance_together(&all).iteration, iteration);
        assert_eq!(text(&store, "global_iteration_counter"), Some(iteration.to_string()));
        assert_eq!(text(&store, "rank_1_last_iteration"), Some(iteration.to_string()));
    }
    // Those keys are a mirror: whoever writes to them changes nothing.
    store.set("global_iteration_counter", b"7", soon()).unwrap();
    store.set("rank_0_last_iteration", b"7", soon()).unwrap();
    assert_eq!(advance_together(&all).iteration, 111);
    assert_eq!(members[0].current().unwrap().unwrap().iteration, 111);
}

#[test]
fn phase_6_catch_up_before_taking_part() {
    let store = Arc::new(MemoryStore::new());
    let members = begin(&store, 3, &config(3));
    let all: Vec<&GlobalIteration> = members.iter().collect();
    advance_together(&all);
    let newcomer = join(&store, 3, config(3));
    while text(&store, "it/default/join/4").is_none() {
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(ids(&advance_together(&all)), ["0", "1", "2", "3"]);
    let newcomer = newcomer.join().unwrap();
    assert_eq!((newcomer.decision().iteration, newcomer.decision().position("3")), (2, Some(3)));
    assert_eq!(advance_together(&[all, vec![&newcomer]].concat()).iteration, 3);
    // Nothing to catch up with: the last decision.
    assert_eq!(newcomer.catch_up(b"").unwrap().iteration, 3);
}

#[test]
fn scenario_a_crash_during_training() {
    let store = Arc::new(MemoryStore::new());
    let mut members = begin(&store, 3, &config(3));
    advance_together(&members.iter().collect::<Vec<_>>());
    // Rank 1 dies within iteration 1 and never arrives for 2. The others notice and go on.
    drop(members.remove(1));
    let survivors: Vec<&GlobalIteration> = members.iter().collect();
    let decision = advance_together(&survivors);
    assert_eq!((decision.iteration, ids(&decision)), (2, vec!["0", "2"]));
    assert_eq!(advance_together(&survivors).iteration, 3);
    // It is started again, learns that 4 begins, and takes part in 5.
    let restarted = join(&store, 1, config(3));
    while text(&store, "it/default/join/4").is_none() {
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(advance_together(&survivors).iteration, 4);
    let restarted = restarted.join().unwrap();
    assert_eq!((restarted.decision().iteration, restarted.member().incarnation), (4, 2));
    let decision = advance_together(&[survivors, vec![&restarted]].concat());
    assert_eq!((decision.iteration, ids(&decision)), (5, vec!["0", "1", "2"]));
}

#[test]
fn scenario_b_restart_before_the_iteration_advances() {
    let store = Arc::new(MemoryStore::new());
    // Nobody would notice a silence in the time of this test.
    let config = IterationConfig { inactive_after: Duration::from_secs(600), ..config(3) };
    let mut members = begin(&store, 3, &config);
    advance_together(&members.iter().collect::<Vec<_>>());
    // Rank 1 dies and is back while its last sign of life is fresh; the others wait for it.
    drop(members.remove(1));
    let restarted = join(&store, 1, config);
    while text(&store, "it/default/join/4").is_none() {
        thread::sleep(Duration::from_millis(5));
    }
    let decision = advance_together(&members.iter().collect::<Vec<_>>());
    let restarted = restarted.join().unwrap();
    assert_eq!((decision.iteration, ids(&decision)), (2, vec!["0", "1", "2"]));
    assert_eq!(restarted.decision(), decision, "it does not wait for an iteration that has happened");
    let all = [members.iter().collect(), vec![&restarted]].concat();
    assert_eq!(advance_together(&all).iteration, 3);
}

/// Four members, three die together.
fn three_of_four_die(
    policy: Policy,
) -> (Arc<MemoryStore>, GlobalIteration, Result<Decision, IterationError>) {
    let store = Arc::new(MemoryStore::new());
    let config = IterationConfig { policy, no_progress: Duration::from_secs(3), ..config(4) };
    let mut members = begin(&store, 4, &config);
    assert_eq!(advance_together(&members.iter().collect::<Vec<_>>()).iteration, 1);
    members.truncate(1);
    let last = members.pop().unwrap();
    let result = last.advance(b"alone");
    (store, last, result)
}

#[test]
fn three_of_four_die_and_any_subset_goes_on() {
    let (_, last, result) = three_of_four_die(Policy::AnySubset);
    let decision = result.unwrap();
    assert_eq!((decision.iteration, ids(&decision)), (2, vec!["0"]));
    assert_eq!(last.advance(b"").unwrap().iteration, 3);
}

#[test]
fn three_of_four_die_and_a_majority_is_missing() {
    let (store, last, result) = three_of_four_die(Policy::StrictMajority);
    let error = result.unwrap_err();
    let IterationError::NoQuorum { absent, .. } = &error else { panic!("{error}") };
    assert_eq!(absent.iter().map(|member| member.id.as_str()).collect::<Vec<_>>(), ["1", "2", "3"]);
    assert!(error.to_string().contains("2 (life 1)"), "{error}");
    assert_eq!(last.current().unwrap().unwrap().iteration, 1, "nothing was decided");
    // An operator who knows that they will not come back.
    last.force_members(["0"]);
    assert_eq!(ids(&last.advance(b"").unwrap()), ["0"]);
    // The force was for one decision. From now on one of one is a majority.
    let back = join(&store, 2, last.config().clone());
    while text(&store, "it/default/join/5").is_none() {
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(ids(&last.advance(b"").unwrap()), ["0", "2"]);
    back.join().unwrap();
}

#[test]
fn a_majority_may_come_back_as_new_lives() {
    let (store, last, result) = three_of_four_die(Policy::StrictMajority);
    assert!(matches!(result, Err(IterationError::NoQuorum { .. })));
    let back: Vec<_> = [1, 3].map(|id| join(&store, id, last.config().clone())).into();
    while text(&store, "it/default/join/6").is_none() {
        thread::sleep(Duration::from_millis(5));
    }
    let decision = last.advance(b"").unwrap();
    assert_eq!((decision.iteration, ids(&decision)), (2, vec!["0", "1", "3"]));
    back.into_iter().for_each(|member| drop(member.join().unwrap()));
}

#[test]
fn whoever_is_too_late_is_fenced_and_catches_up() {
    let store = Arc::new(MemoryStore::new());
    let config = IterationConfig { no_progress: Duration::from_millis(800), ..config(3) };
    let members = begin(&store, 3, &config);
    // Member 2 lives but does not come; after the deadline the others go on.
    assert_eq!(ids(&advance_together(&[&members[0], &members[1]])), ["0", "1"]);
    let error = members[2].advance(b"late").unwrap_err();
    assert!(
        matches!(&error, IterationError::Fenced { reason, .. } if reason.contains("iteration 1")),
        "{error}"
    );
    assert!(matches!(members[2].advance(b""), Err(IterationError::NotMember(_))));
    thread::scope(|scope| {
        let back = scope.spawn(|| members[2].catch_up(b"back").unwrap());
        while text(&store, "it/default/join/4").is_none() {
            thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(ids(&advance_together(&[&members[0], &members[1]])), ["0", "1", "2"]);
        assert_eq!(back.join().unwrap().iteration, 2);
    });
    assert_eq!(members[2].member().incarnation, 2);
    assert_eq!(advance_together(&members.iter().collect::<Vec<_>>()).iteration, 3);
}

#[test]
fn the_same_member_started_twice_fences_the_first() {
    let store = Arc::new(MemoryStore::new());
    let members = begin(&store, 2, &config(2));
    let twin = join(&store, 0, config(2));
    while text(&store, "it/default/join/3").is_none() {
        thread::sleep(Duration::from_millis(5));
    }
    let results = advance(&[&members[0], &members[1]]);
    assert!(matches!(results[0], Err(IterationError::Fenced { .. })), "{results:?}");
    let decision = results[1].as_ref().unwrap();
    assert_eq!(decision.entries[0].member.incarnation, 2);
    assert_eq!(twin.join().unwrap().decision(), *decision);
}

#[test]
fn calls_are_cancelled_from_another_thread() {
    let store = Arc::new(MemoryStore::new());
    let cancel = Cancel::default();
    let waits = {
        let (store, cancel) = (Arc::clone(&store), cancel.clone());
        thread::spawn(move || GlobalIteration::join_until(store, "7", b"", config(2), cancel).map(drop))
    };
    // It waits for a second member.
    while text(&store, "it/default/join/1").is_none() {
        thread::sleep(Duration::from_millis(5));
    }
    cancel.cancel();
    assert!(matches!(waits.join().unwrap(), Err(IterationError::Cancelled)));
    let store = Arc::new(MemoryStore::new());
    let members = begin(&store, 2, &config(2));
    thread::scope(|scope| {
        let waits = scope.spawn(|| members[0].advance(b""));
        while text(&store, "it/default/arr/1/0/1").is_none() {
            thread::sleep(Duration::from_millis(5));
        }
        members[0].cancel();
        assert!(matches!(waits.join().unwrap(), Err(IterationError::Cancelled)));
    });
    assert!(matches!(members[0].advance(b""), Err(IterationError::Cancelled)));
    members[0].leave().unwrap();
    assert_eq!(members[1].advance(b"").unwrap().iteration, 1);
}

#[test]
fn nobody_waits_for_a_member_that_has_left() {
    let store = Arc::new(MemoryStore::new());
    let members =
        begin(&store, 3, &IterationConfig { inactive_after: Duration::from_secs(600), ..config(3) });
    members[1].leave().unwrap();
    assert_eq!(ids(&advance_together(&[&members[0], &members[2]])), ["0", "2"]);
    assert!(matches!(members[1].advance(b""), Err(IterationError::NotMember(_))));
}

#[test]
fn a_run_whose_members_are_all_dead_is_taken_over() {
    let store = Arc::new(MemoryStore::new());
    let members = begin(&store, 2, &config(2));
    assert_eq!(advance_together(&members.iter().collect::<Vec<_>>()).iteration, 1);
    drop(members);
    // Both old lives are superseded by new ones, so nobody has to wait for their silence.
    let again = begin(&store, 2, &config(2));
    assert!(again.iter().all(|member| member.decision().iteration >= 2 && member.member().incarnation == 2));
    // One whose members have other names has to.
    drop(again);
    let other = join(&store, 7, config(2)).join().unwrap();
    assert_eq!(ids(&other.decision()), ["7"]);
}

#[test]
fn a_store_that_has_lost_its_data_ends_the_run() {
    let store = Arc::new(MemoryStore::new());
    let members = begin(&store, 2, &config(2));
    advance_together(&members.iter().collect::<Vec<_>>());
    let state = store.get("it/default/state", soon()).unwrap().unwrap();
    store.clear();
    let error = members[0].advance(b"").unwrap_err();
    assert!(matches!(&error, IterationError::Lost(text) if text.contains("iteration 1")), "{error}");
    // Somebody else's run under the same name.
    let others = begin(&store, 2, &config(2));
    advance_together(&others.iter().collect::<Vec<_>>());
    assert_ne!(store.get("it/default/state", soon()).unwrap().unwrap(), state);
    assert!(matches!(members[1].advance(b""), Err(IterationError::Lost(_))));
    store.set("it/default/state", b"17", soon()).unwrap();
    let error = others[1].advance(b"").unwrap_err();
    assert!(error.to_string().contains("cannot be read"), "{error}");
}

#[test]
fn settings_that_cannot_work_are_refused() {
    let store = Arc::new(MemoryStore::new());
    let bad = [
        IterationConfig { run: "a/b".into(), ..config(1) },
        IterationConfig { world_size: 0, ..config(1) },
        IterationConfig { world_size: 5000, ..config(1) },
        IterationConfig { poll_interval: Duration::ZERO, ..config(1) },
        IterationConfig { heartbeat_interval: Duration::from_secs(20), ..config(1) },
    ];
    for config in bad {
        let result = GlobalIteration::join(Arc::clone(&store) as Arc<dyn Store>, "0", b"", config);
        assert!(matches!(result, Err(IterationError::Setting(_))));
    }
    let join = |id: &str, payload: &[u8]| {
        GlobalIteration::join(Arc::clone(&store) as Arc<dyn Store>, id, payload, config(1)).map(drop)
    };
    assert!(matches!(join("rank 0", b""), Err(IterationError::Setting(_))));
    assert!(matches!(join("0", &[0; 4097]), Err(IterationError::Setting(_))));
    let timely = IterationConfig { join_timeout: Some(Duration::from_millis(300)), ..config(2) };
    let error = GlobalIteration::join(store, "0", b"", timely).unwrap_err();
    assert!(error.to_string().contains("too few have joined"), "{error}");
}
