//! The supervisor's decisions, with made-up peers and time.

use super::{
    report::{Event, FinalReport, Report, StepReport, Traffic},
    run::{Action, KillPlan, Run, size},
};
use std::time::Duration;

const fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn step(step: u64, world: usize) -> Report {
    Report::Step(StepReport { step, world, loss: 0.5, revision: step, traffic: Traffic::default() })
}

fn joined(step: u64) -> Report {
    Report::Event { event: Event::Joined, step, detail: String::new() }
}

const GOOD: FinalReport = FinalReport {
    step: 20,
    revision: 21,
    accuracy: 0.97,
    hash: 7,
    aborts: 0,
    retries: 0,
    joins: 0,
    drifts: 0,
    traffic: Traffic { tx_bytes: 0, rx_bytes: 0 },
};

fn midway() -> Run {
    Run::new(KillPlan::Midway, 3, 20, 0.95, at(100))
}

/// All founders have done `steps` steps; nothing to be done about it.
fn train_to(run: &mut Run, steps: u64) {
    for peer in 0..3 {
        run.report(at(1), peer, step(steps, 3));
    }
}

/// Up to the point where peer 1 is dead and peer 3 has joined.
fn kill_and_replace() -> Run {
    let mut run = midway();
    train_to(&mut run, 9);
    assert_eq!(run.tick(at(1)), []);
    run.report(at(2), 0, step(10, 3));
    assert_eq!(run.tick(at(2)), [Action::Kill(1)]);
    // A report under way when it died says nothing any more.
    run.report(at(2), 1, step(11, 3));
    run.report(at(2), 1, Report::Final(GOOD));
    run.exited(1, false, "signal 9");
    run.report(at(2), 0, step(11, 2));
    assert_eq!(run.tick(at(2)), []);
    run.report(at(2), 0, step(12, 2));
    assert_eq!(run.tick(at(2)), [Action::Spawn(3)]);
    run.report(at(3), 3, joined(13));
    run.report(at(3), 3, step(14, 3));
    assert_eq!(run.tick(at(3)), []);
    run
}

fn finish(run: &mut Run, finals: [(u32, FinalReport); 3]) {
    for (peer, report) in finals {
        assert_eq!(run.tick(at(4)), []);
        run.report(at(4), peer, Report::Final(report));
    }
    for (peer, _) in finals {
        assert_eq!(run.tick(at(4)), []);
        run.exited(peer, true, "exit status 0");
    }
    assert_eq!(run.tick(at(4)), [Action::Finish]);
}

#[test]
fn a_run_goes_well() {
    let mut run = kill_and_replace();
    finish(&mut run, [(0, GOOD), (2, GOOD), (3, FinalReport { joins: 1, ..GOOD })]);
    let summary = run.verdict().unwrap();
    assert_eq!((summary.kills, summary.joins, summary.late, summary.finals.len()), (1, 1, 0, 3));
    assert_eq!(run.marks().len(), 2);
    let status = run.status();
    assert!(status.starts_with("step  14/20"), "{status}");
    assert!(!status.contains("| 0 peers") && !status.contains("loss -"), "{status}");
}

#[test]
fn every_event_is_told_once_and_with_a_step_of_the_run() {
    let mut run = midway();
    train_to(&mut run, 3);
    let connected = |step| Report::Event { event: Event::Connected, step, detail: "world 3".to_owned() };
    run.report(at(1), 1, connected(0));
    run.report(at(1), 2, Report::Event { event: Event::Aborted, step: 2, detail: "lost".to_owned() });
    let events = run.take_events();
    assert_eq!(events, ["peer 1 connected at step 3: world 3", "peer 2 aborted at step 2: lost"]);
    assert_eq!(run.take_events(), [""; 0]);
    assert!(!run.status().contains("aborted"), "{}", run.status());
}

#[test]
fn every_blemish_has_its_reason() {
    let joiner = FinalReport { joins: 1, ..GOOD };
    for (bad, expected) in [
        (FinalReport { accuracy: 0.949, ..joiner }, "peer 3 reached 94.9 % test accuracy, expected 95 %"),
        (FinalReport { accuracy: 0.0, ..joiner }, "peer 3 reached 0.0 % test accuracy, expected 95 %"),
        (FinalReport { drifts: 2, ..joiner }, "the state of peer 3 drifted 2 times"),
        (FinalReport { step: 19, ..joiner }, "peer 3 ended at step 19, expected 20"),
        (FinalReport { hash: 8, ..joiner }, "peers 0 and 3 end with different states"),
        (FinalReport { revision: 22, ..joiner }, "peers 0 and 3 end with different states"),
        (GOOD, "the replacement did not join"),
    ] {
        let mut run = kill_and_replace();
        finish(&mut run, [(0, GOOD), (2, GOOD), (3, bad)]);
        let problems = run.verdict().unwrap_err();
        assert!(problems.len() == 1 && problems[0].contains(expected), "{problems:?}");
    }
}

#[test]
fn a_peer_that_fails_by_itself_ends_the_run() {
    let mut run = midway();
    train_to(&mut run, 3);
    run.exited(2, false, "signal 11");
    assert_eq!(run.tick(at(1)), [Action::Finish]);
    assert!(run.verdict().unwrap_err()[0].contains("peer 2 failed: ended with signal 11"));

    let mut run = midway();
    run.report(at(1), 0, Report::Failed { reason: "no master".to_owned() });
    run.exited(0, false, "exit status 1");
    assert_eq!(run.tick(at(1)), [Action::Finish]);
    assert!(run.verdict().unwrap_err()[0].contains("peer 0 failed: no master"));

    let mut run = midway();
    run.bad_report(1, "the field 'step' is missing");
    assert_eq!(run.tick(at(1)), [Action::Finish]);
    assert!(run.verdict().unwrap_err()[0].contains("peer 1 sent an unreadable report"));
}

#[test]
fn the_deadline_names_who_was_not_through() {
    let mut run = midway();
    train_to(&mut run, 3);
    assert_eq!(run.tick(at(100)), [Action::Finish]);
    let problems = run.verdict().unwrap_err();
    assert!(
        problems[0].contains("not over after 100 s, at step 3; still running: peers 0, 1, 2"),
        "{problems:?}"
    );
}

#[test]
fn a_lone_survivor_gets_its_replacement_by_time() {
    let mut run = Run::new(KillPlan::Midway, 2, 20, 0.95, at(100));
    run.report(at(1), 0, step(10, 2));
    run.report(at(1), 1, step(10, 2));
    assert_eq!(run.tick(at(1)), [Action::Kill(1)]);
    assert_eq!(run.tick(at(2)), []);
    assert_eq!(run.tick(at(3)), [Action::Spawn(2)]);
}

#[test]
fn repeated_kills_take_the_oldest_but_never_the_last_one_with_the_state() {
    let mut run = Run::new(KillPlan::Every(at(10)), 3, 1000, 0.95, at(1000));
    train_to(&mut run, 1);
    assert_eq!(run.tick(at(9)), []);
    assert_eq!(run.tick(at(10)), [Action::Kill(0)]);
    assert_eq!(run.tick(at(12)), [Action::Spawn(3)]);
    assert_eq!(run.tick(at(20)), [Action::Kill(1)]);
    assert_eq!(run.tick(at(22)), [Action::Spawn(4)]);
    // Peers 3 and 4 have not done a step: peer 2 alone holds the state.
    assert_eq!(run.tick(at(40)), []);
    run.report(at(41), 4, step(2, 2));
    assert_eq!(run.tick(at(41)), [Action::Kill(2)]);
    // Too near the end for a replacement.
    run.report(at(60), 3, step(950, 3));
    run.report(at(60), 4, step(950, 3));
    assert_eq!(run.tick(at(60)), [Action::Spawn(5)]);
    assert_eq!(run.tick(at(90)), []);
}

#[test]
fn where_nobody_is_killed_no_call_may_fail() {
    let mut run = Run::new(KillPlan::Nobody, 3, 20, 0.95, at(100));
    train_to(&mut run, 19);
    assert_eq!(run.tick(at(1)), []);
    for (peer, retries) in [(0, 0), (1, 2), (2, 0)] {
        run.report(at(2), peer, Report::Final(FinalReport { retries, ..GOOD }));
        run.exited(peer, true, "exit status 0");
    }
    assert_eq!(run.tick(at(2)), [Action::Finish]);
    let problems = run.verdict().unwrap_err();
    assert_eq!(problems, ["peer 1 had to try 2 calls again, although no peer was killed"]);
}

#[test]
fn who_comes_when_all_are_through_is_sent_away() {
    let mut run = Run::new(KillPlan::Every(at(1)), 3, 20, 0.95, at(100));
    train_to(&mut run, 1);
    assert_eq!(run.tick(at(1)), [Action::Kill(0)]);
    assert_eq!(run.tick(at(3)), [Action::Kill(1), Action::Spawn(3)]);
    run.report(at(4), 2, Report::Final(GOOD));
    run.exited(2, true, "exit status 0");
    // Its grace is not over, and one more replacement is due.
    assert_eq!(run.tick(at(5)), [Action::Spawn(4)]);
    assert_eq!(run.tick(at(6)), []);
    assert_eq!(run.tick(at(7)), [Action::Kill(3), Action::Kill(4), Action::Finish]);
    let problems = run.verdict().unwrap_err();
    assert_eq!(problems, ["1 peers reached the end, expected at least 2"]);
}

#[test]
fn a_peer_that_does_not_exit_is_named() {
    let mut run = kill_and_replace();
    for peer in [0, 2, 3] {
        run.report(at(4), peer, Report::Final(FinalReport { joins: 1, ..GOOD }));
    }
    run.exited(0, true, "exit status 0");
    run.exited(2, false, "exit status 3");
    assert_eq!(run.tick(at(4)), [Action::Finish]);
    let problems = run.verdict().unwrap_err();
    assert_eq!(
        problems,
        ["peer 2 finished, but then ended with exit status 3", "peer 3 did not exit after its final report"]
    );
}

#[test]
fn sizes_for_people() {
    assert_eq!([0, 1023, 1024, 1_572_864].map(size), ["0 B", "1023 B", "1.0 KiB", "1.5 MiB"]);
}
