//! Planted defects: each of them has to be found, and a faultless run must not be blamed.

use super::*;
use crate::event::{Call, Completed};
use crate::workload::Place;
use results::expected_checksum;

const WORKLOAD: Workload = Workload { seed: 11, elements: 64 };
const S: u64 = 1_000_000;
const IDS: [u128; 3] = [0xa << 96, 0xb << 96, 0xc << 96];

/// A run of three peers that is reported to the oracle as it should be.
struct Run {
    oracle: Oracle,
    now: u64,
    revision: u64,
}

impl Run {
    fn new() -> Self {
        let mut run = Self { oracle: Oracle::new(WORKLOAD, 3 * S), now: S, revision: 0 };
        for (peer, id) in IDS.into_iter().enumerate() {
            run.oracle.spawned(peer, 0, run.now);
            run.event(peer, Event::Joined { peer: id });
        }
        run
    }

    fn event(&mut self, peer: usize, event: Event) {
        self.now += 10;
        self.oracle.line(peer, Line { at_us: self.now, event });
    }

    fn sync(&mut self, peer: usize, revision: u64, hash: u64) {
        self.event(peer, Event::Synced { revision, hash, rx_bytes: 0 });
    }

    fn reduce(&mut self, peers: &[usize]) {
        let ring: Vec<u128> = peers.iter().map(|&peer| IDS[peer]).collect();
        let hash = expected_checksum(&WORKLOAD, (self.revision, 2), &ring, false).expect("computable");
        for (rank, &peer) in peers.iter().enumerate() {
            let step = self.revision;
            let (before, after) = (ring.clone(), ring.clone());
            self.event(
                peer,
                Event::Completed(Completed {
                    step,
                    tag: 2,
                    world: ring.len(),
                    rank: Some(rank),
                    pairwise: Some(false),
                    hash,
                    before,
                    after,
                }),
            );
        }
    }

    /// A peer reports a segment of these contributors, with the bytes of those.
    fn segment(&mut self, peer: usize, segment: u64, contributors: &[usize], bytes_of: &[usize]) {
        let ids = |peers: &[usize]| peers.iter().map(|&peer| IDS[peer]).collect::<Vec<u128>>();
        let (step, tag, before) = (self.revision, SEGMENT_TAGS.start + segment, ids(contributors));
        let hash = expected_checksum(&WORKLOAD, (step, tag), &ids(bytes_of), false).expect("computable");
        let (world, rank, after) = (before.len(), Place::of(IDS[peer], &before), before.clone());
        let (rank, pairwise) = (rank.map(|place| place.rank), Some(false));
        self.event(
            peer,
            Event::Completed(Completed { step, tag, world, rank, pairwise, hash, before, after }),
        );
    }

    fn step(&mut self, peers: &[usize]) {
        for &peer in peers {
            self.sync(peer, self.revision, self.revision * 3);
        }
        self.reduce(peers);
        self.revision += 1;
        self.now += S / 10;
        self.oracle.tick(self.now);
    }

    fn steps(&mut self, count: usize, peers: &[usize]) {
        (0..count).for_each(|_| self.step(peers));
    }

    /// The checks that failed.
    fn end(mut self) -> Vec<Check> {
        self.oracle.finish(self.now);
        let mut checks: Vec<Check> =
            self.oracle.violations().iter().map(|violation| violation.check).collect();
        checks.dedup();
        checks
    }
}

fn aborted(cause: &str, culprit: u128) -> Event {
    Event::Failed {
        call: Call::Collective(2),
        step: 0,
        intact: true,
        cause: cause.into(),
        culprits: vec![culprit],
        text: "all-reduce tag 2 failed while x".into(),
    }
}

fn lost() -> Event {
    Event::Lost { kind: "Silent".into(), text: "no beat".into() }
}

#[test]
fn a_faultless_run_with_faults_passes() {
    let mut run = Run::new();
    run.steps(5, &[0, 1, 2]);
    run.oracle.stopped(2, run.now);
    run.now += 4 * S;
    run.event(0, aborted("PeerSilent", IDS[2]));
    run.event(1, aborted("PeerSilent", IDS[2]));
    run.steps(2, &[0, 1]);
    run.oracle.resumed(2, run.now);
    run.event(2, lost());
    run.event(2, Event::Joined { peer: 77 });
    run.oracle.leaving(2, run.now);
    run.event(2, Event::Left);
    run.oracle.exited(2, true, "exit 0", run.now);
    run.steps(50, &[0, 1]);
    run.oracle.killed(1, run.now);
    run.oracle.exited(1, false, "signal 9", run.now);
    let counts = run.oracle.counts();
    assert_eq!((counts.operations, counts.joins, counts.drops, counts.aborted_operations), (57, 4, 1, 1));
    assert_eq!(counts.newest_revision, 56);
    assert_eq!(run.end(), []);
}

#[test]
fn wrong_bytes_are_found() {
    let mut run = Run::new();
    run.steps(3, &[0, 1, 2]);
    let (step, before) = (run.revision, IDS.to_vec());
    let hash = expected_checksum(&WORKLOAD, (step, 2), &IDS, false).expect("computable") ^ 0x10;
    let after = before.clone();
    run.event(
        1,
        Event::Completed(Completed {
            step,
            tag: 2,
            world: 3,
            rank: Some(1),
            pairwise: Some(false),
            hash,
            before,
            after,
        }),
    );
    assert_eq!(run.end(), [Check::Result]);
}

#[test]
fn segments_with_contributors_of_their_own_pass() {
    let mut run = Run::new();
    run.steps(3, &[0, 1, 2]);
    run.oracle.killed(2, run.now);
    for peer in 0..2 {
        run.segment(peer, 0, &[0, 1, 2], &[0, 1, 2]);
        run.segment(peer, 1, &[0, 1], &[0, 1]);
    }
    let counts = run.oracle.counts();
    assert_eq!((counts.segments, counts.uneven_calls), (2, 2));
    assert_eq!(run.end(), []);
}

#[test]
fn a_segment_that_names_another_contributor_is_found() {
    let mut run = Run::new();
    run.steps(3, &[0, 1, 2]);
    run.segment(0, 1, &[0, 1, 2], &[0, 1]);
    assert_eq!(run.end(), [Check::Result]);
}

#[test]
fn a_segment_of_which_survivors_name_other_contributors_is_found() {
    let mut run = Run::new();
    run.steps(3, &[0, 1, 2]);
    run.segment(0, 1, &[0, 1, 2], &[0, 1, 2]);
    run.segment(1, 1, &[0, 1], &[0, 1]);
    assert_eq!(run.end(), [Check::Result]);
}

#[test]
fn a_contributor_that_nobody_was_is_found() {
    let mut run = Run::new();
    let ring = vec![IDS[0], 999];
    let hash = expected_checksum(&WORKLOAD, (0, 2), &ring, false).expect("computable");
    let (before, after) = (ring.clone(), ring);
    run.event(
        0,
        Event::Completed(Completed {
            step: 0,
            tag: 2,
            world: 2,
            rank: Some(0),
            pairwise: Some(false),
            hash,
            before,
            after,
        }),
    );
    assert_eq!(run.end(), [Check::Result]);
}

#[test]
fn changed_buffers_after_a_failure_are_found() {
    let mut run = Run::new();
    run.oracle.killed(2, run.now);
    let Event::Failed { call, step, cause, culprits, text, .. } = aborted("PeerDied", IDS[2]) else {
        unreachable!()
    };
    run.event(0, Event::Failed { call, step, intact: false, cause, culprits, text });
    assert_eq!(run.end(), [Check::Intact]);
}

#[test]
fn a_skipped_revision_is_found() {
    let mut run = Run::new();
    run.steps(3, &[0, 1, 2]);
    run.sync(0, run.revision + 1, 1);
    assert_eq!(run.end(), [Check::Revision]);
}

#[test]
fn states_that_differ_are_found() {
    let mut run = Run::new();
    run.steps(3, &[0, 1, 2]);
    run.sync(0, run.revision, 1);
    run.sync(1, run.revision, 2);
    assert_eq!(run.end(), [Check::Revision]);
}

#[test]
fn a_dropped_innocent_is_found() {
    let mut run = Run::new();
    run.steps(3, &[0, 1, 2]);
    run.oracle.stopped(0, run.now);
    run.event(1, lost());
    assert_eq!(run.end(), [Check::Innocent]);
}

#[test]
fn a_peer_that_came_back_is_innocent_again() {
    let mut run = Run::new();
    run.oracle.stopped(0, run.now);
    run.oracle.resumed(0, run.now);
    run.event(0, lost());
    run.now += 10 * S;
    run.event(0, Event::Joined { peer: 88 });
    run.event(0, lost());
    assert_eq!(run.end(), [Check::Innocent]);
}

#[test]
fn a_verdict_about_an_innocent_is_found() {
    let mut run = Run::new();
    run.oracle.killed(2, run.now);
    run.event(0, aborted("PeerDied", IDS[1]));
    assert_eq!(run.end(), [Check::Verdict]);
}

#[test]
fn a_stall_is_found() {
    let mut run = Run::new();
    run.steps(3, &[0, 1, 2]);
    run.oracle.killed(2, run.now);
    run.oracle.tick(run.now + 7 * S);
    assert_eq!(run.oracle.violations(), []);
    run.oracle.tick(run.now + 9 * S);
    assert_eq!(run.end(), [Check::Progress]);
}

#[test]
fn one_silent_peer_is_found_while_others_go_on() {
    let mut run = Run::new();
    // The third one is not even let in.
    run.oracle.spawned(3, 0, run.now);
    run.steps(200, &[0, 1, 2]);
    assert_eq!(run.end(), [Check::Progress]);
}

#[test]
fn a_verdict_about_a_peer_that_was_touched_long_ago_is_found() {
    let verdict = |later_us: u64| {
        let mut run = Run::new();
        run.steps(3, &[0, 1, 2]);
        run.oracle.stopped(2, run.now);
        run.now += S;
        run.oracle.resumed(2, run.now);
        run.steps((later_us / (S / 10)) as usize, &[0, 1, 2]);
        run.event(0, aborted("PeerSilent", IDS[2]));
        run.end()
    };
    assert_eq!(verdict(5 * S), []);
    assert_eq!(verdict(60 * S), [Check::Verdict]);
}

#[test]
fn a_peer_that_is_dropped_long_after_it_was_touched_is_found() {
    let mut run = Run::new();
    run.steps(3, &[0, 1, 2]);
    run.oracle.stopped(2, run.now);
    run.oracle.resumed(2, run.now + S);
    run.steps(600, &[0, 1, 2]);
    run.event(2, lost());
    assert_eq!(run.end(), [Check::Innocent]);
}

#[test]
fn what_was_done_before_the_master_died_shows_after_it() {
    let mut run = Run::new();
    run.steps(3, &[0, 1, 2]);
    run.oracle.stopped(2, run.now);
    run.oracle.resumed(2, run.now + S);
    run.now += 2 * S;
    run.oracle.master_stopped(run.now);
    run.now += 40 * S;
    run.oracle.master_resumed(run.now);
    run.event(0, aborted("PeerSilent", IDS[2]));
    assert_eq!(run.end(), []);
}

#[test]
fn two_masters_that_lead_are_found() {
    let mut run = Run::new();
    run.steps(3, &[0, 1, 2]);
    run.oracle.leads(0, 4, run.now);
    run.oracle.leads(1, 4, run.now);
    assert_eq!(run.end(), [Check::Leader]);
}

#[test]
fn recoveries_that_hang_are_found() {
    let mut run = Run::new();
    run.oracle.faults_begin(100.0);
    let recover = |run: &mut Run, after_us: u64| {
        run.steps(1, &[0, 1, 2]);
        run.oracle.disturbed("reset", None, run.now);
        run.now += after_us;
        run.reduce(&[0, 1, 2]);
        run.oracle.take_recoveries(run.now).len()
    };
    (0..30).for_each(|_| assert_eq!(recover(&mut run, S / 50), 1));
    assert!(run.oracle.violations().is_empty());
    recover(&mut run, 6 * S);
    assert_eq!(run.end(), [Check::Recovery]);
}

#[test]
fn processes_that_end_by_themselves_are_found() {
    let mut run = Run::new();
    run.oracle.exited(0, false, "exit 101", run.now);
    assert_eq!(run.end(), [Check::Process]);
    let mut run = Run::new();
    run.event(0, Event::Left);
    assert_eq!(run.end(), [Check::Process]);
    let mut run = Run::new();
    run.oracle.bad_line(0, "hello", "no report", 0);
    assert_eq!(run.end(), [Check::Process]);
}

#[test]
fn a_kill_is_recovered_when_all_survivors_have_gone_on_without_the_victim() {
    let mut run = Run::new();
    run.steps(3, &[0, 1, 2]);
    run.oracle.killed(2, run.now);
    run.reduce(&[0, 1, 2]);
    assert_eq!(run.oracle.take_recoveries(0), []);
    run.steps(1, &[0, 1]);
    assert_eq!(run.oracle.take_recoveries(0).len(), 1);
}

#[test]
fn the_death_of_the_master_excuses_those_who_knew_it_and_nobody_else() {
    let mut run = Run::new();
    run.steps(3, &[0, 1, 2]);
    run.oracle.master_killed(run.now);
    assert!(run.oracle.is_leaderless());
    run.now += 3 * S;
    for peer in 0..3 {
        run.event(peer, Event::Lost { kind: "MasterLost".into(), text: "gone".into() });
        run.event(peer, Event::Lost { kind: "ConnectFailed".into(), text: "refused".into() });
    }
    // Nothing is completed for as long as there is none.
    run.oracle.tick(run.now + 10 * S);
    run.oracle.master_listens(run.now);
    for (peer, id) in IDS.into_iter().enumerate() {
        run.event(peer, Event::Joined { peer: id + 1 });
        let revision = run.revision - 1;
        run.sync(peer, revision, revision * 3);
    }
    run.oracle.tick(run.now);
    assert!(!run.oracle.is_leaderless());
    assert_eq!(run.oracle.violations(), []);
    assert_eq!(run.oracle.counts().drops, 0);
    // The new master lives.
    run.event(1, Event::Lost { kind: "MasterLost".into(), text: "gone".into() });
    assert_eq!(run.end(), [Check::Innocent]);
}

#[test]
fn a_revision_that_a_new_master_loses_is_found() {
    let mut run = Run::new();
    run.steps(3, &[0, 1, 2]);
    run.oracle.master_killed(run.now);
    run.oracle.master_listens(run.now + S);
    run.now += 2 * S;
    run.event(0, Event::Joined { peer: 99 });
    run.sync(0, 0, 0);
    assert_eq!(run.end(), [Check::Revision]);
}

#[test]
fn a_cut_connection_explains_a_verdict_and_drops_nobody() {
    let mut run = Run::new();
    run.steps(3, &[0, 1, 2]);
    let broken = |a: u128, b: u128| Event::Failed {
        call: Call::Collective(2),
        step: 0,
        intact: true,
        cause: "EdgeBroken".into(),
        culprits: vec![a, b],
        text: format!("all-reduce tag 2 (attempt {b}) failed while x"),
    };
    run.oracle.edges_harmed(&[Edge::between(IDS[0], IDS[1])], false, run.now + 9 * S, run.now);
    run.event(2, broken(IDS[1], IDS[0]));
    // It is waited for as long as for a silent peer.
    run.oracle.tick(run.now + 7 * S);
    assert_eq!(run.oracle.violations(), []);
    run.event(2, broken(IDS[1], IDS[2]));
    run.event(1, Event::Lost { kind: "Unreachable".into(), text: "no ring".into() });
    assert_eq!(run.end(), [Check::Verdict, Check::Innocent]);
}

#[test]
fn groups_are_judged_apart() {
    let mut run = Run::new();
    for peer in 3..5 {
        run.oracle.spawned(peer, 1, run.now);
        run.event(peer, Event::Joined { peer: peer as u128 });
        // Another state than that of the first group.
        run.sync(peer, 0, 77);
    }
    run.steps(70, &[0, 1, 2]);
    run.sync(3, 0, 77);
    run.sync(4, 0, 77);
    // Of the second group nobody has completed anything for longer than is allowed.
    run.steps(20, &[0, 1, 2]);
    assert_eq!(run.end(), [Check::Progress]);
}

#[test]
fn a_group_that_is_ahead_waits_for_the_others() {
    let mut run = Run::new();
    for peer in 3..5 {
        run.oracle.spawned(peer, 1, run.now);
        run.event(peer, Event::Joined { peer: peer as u128 });
    }
    let sync = |run: &mut Run, revision| {
        run.sync(3, revision, 77 + revision);
        run.sync(4, revision, 77 + revision);
    };
    (0..3).for_each(|revision| sync(&mut run, revision));
    run.steps(2, &[0, 1, 2]);
    // For longer than is allowed the first group tries its third step again and again: the second one has done it.
    for _ in 0..200 {
        run.reduce(&[0, 1, 2]);
        run.now += S / 10;
        run.oracle.tick(run.now);
    }
    assert_eq!(run.oracle.violations(), []);
    // When the first one stands still, so do both.
    run.oracle.tick(run.now + 9 * S);
    assert_eq!(run.oracle.violations().len(), 2);
    assert_eq!(run.end(), [Check::Progress]);
}

#[test]
fn a_peer_that_is_not_let_in_is_found_however_much_it_says() {
    let mut run = Run::new();
    run.oracle.spawned(3, 0, run.now);
    run.oracle.stopped(3, run.now);
    run.oracle.resumed(3, run.now);
    for _ in 0..165 {
        run.event(3, lost());
        run.step(&[0, 1, 2]);
    }
    assert_eq!(run.end(), [Check::Progress]);
}

#[test]
fn a_master_that_stands_still_excuses_a_pause_and_nothing_else() {
    let mut run = Run::new();
    run.steps(3, &[0, 1, 2]);
    run.oracle.master_stopped(run.now);
    assert!(run.oracle.is_leaderless());
    run.now += 20 * S;
    run.oracle.tick(run.now);
    run.oracle.master_resumed(run.now);
    assert!(!run.oracle.is_leaderless());
    run.oracle.tick(run.now + 7 * S);
    assert_eq!(run.oracle.violations(), []);
    run.event(1, Event::Lost { kind: "Silent".into(), text: "no beat".into() });
    assert_eq!(run.end(), [Check::Innocent]);
}
