//! How syncs end: what is committed when, deaths before and after the election, and reports that are late.

use super::harness::Rig;
use super::sync::{cast, failed_at, judged, outcome, plan_of, ready, run, vote};
use pccl_protocol::SyncStrategy::EnforcePopular;
use pccl_protocol::*;

/// Reports a fetch that failed for no fault of a source.
fn failed(rig: &mut Rig, n: u64, sync: SyncId) {
    let report = SyncReport::Failed(Text::new("no source answers"));
    rig.send(n, C2m::SyncComplete(SyncComplete { sync, report, failures: vec![], gave: vec![] }));
}

#[test]
fn revisions_are_committed_when_the_sync_completes() {
    let p = EnforcePopular;
    let mut rig = Rig::world(2);
    let committed = |rig: &Rig| rig.group(0).committed;
    assert_eq!(committed(&rig), None);
    // A fresh master takes any revision.
    cast(&mut rig, &[(41, p, 1), (41, p, 1)]);
    assert_eq!(committed(&rig), None);
    let sync = plan_of(&mut rig, 1).sync;
    plan_of(&mut rig, 2);
    ready(&mut rig, 1, sync);
    failed(&mut rig, 2, sync);
    rig.pass(300, &[]);
    assert!(matches!(outcome(rig.answer(1)), SyncOutcome::Failed(_)));
    assert_eq!(committed(&rig), None);
    rig.take(2);
    run(&mut rig, &[(41, p, 1), (41, p, 1)]);
    assert_eq!(committed(&rig), Some(Revision(41)));
    // The same revision again, the next one, one that only one has, and an older one.
    run(&mut rig, &[(41, p, 1), (41, p, 1)]);
    run(&mut rig, &[(42, p, 1), (42, p, 2)]);
    assert_eq!(committed(&rig), Some(Revision(42)));
    assert_eq!(run(&mut rig, &[(43, p, 1), (42, p, 2)]), [(0, vec![]), (1, vec![1])]);
    assert_eq!(committed(&rig), Some(Revision(43)));
    run(&mut rig, &[(40, p, 1), (40, p, 1)]);
    assert_eq!(committed(&rig), Some(Revision(43)));
}

#[test]
fn a_death_before_the_election_makes_the_votes_stale() {
    let mut rig = Rig::world(3);
    cast(&mut rig, &[(0, EnforcePopular, 1), (0, EnforcePopular, 1)]);
    let old = rig.epoch(1);
    rig.die(3);
    let mail = rig.take(1);
    let [M2c::GroupPlan(plan), M2c::Stale(stale)] = mail.as_slice() else { panic!("{mail:?}") };
    assert_eq!((stale.vote, stale.epoch), (VoteRef::Sync(RequestId(5)), plan.epoch));
    rig.take(2);
    rig.send(2, C2m::SyncInitiate(vote(old, 0, EnforcePopular, vec![])));
    assert!(matches!(rig.answer(2), M2c::Stale(_)));
    run(&mut rig, &[(0, EnforcePopular, 1), (0, EnforcePopular, 1)]);
}

#[test]
fn deaths_after_the_election() {
    // The peers that die while 1 fetches from 2 or 3, and how it ends.
    #[derive(Debug)]
    enum End {
        Commits,
        DropsReporter,
        FailsForDead(u64),
    }
    use End::*;
    let table: &[(&[u64], bool, End)] = &[
        // (deaths, whether 1 can still fetch, end)
        (&[], true, Commits),
        (&[], false, DropsReporter),
        (&[2], true, Commits),
        (&[2], false, FailsForDead(2)),
        (&[2, 3], false, FailsForDead(2)),
        (&[4], true, Commits),
        (&[4], false, DropsReporter),
    ];
    for (deaths, fetches, end) in table {
        let mut rig = Rig::world(4);
        let p = EnforcePopular;
        cast(&mut rig, &[(0, p, 9), (1, p, 1), (1, p, 1), (0, p, 1)]);
        let sync = plan_of(&mut rig, 1).sync;
        for n in 2..=4 {
            rig.take(n);
        }
        if *fetches {
            ready(&mut rig, 1, sync)
        } else {
            failed_at(&mut rig, 1, sync, &[2, 3])
        }
        rig.nothing(1);
        for n in *deaths {
            rig.die(*n);
        }
        for n in (2..=4u64).filter(|n| !deaths.contains(n)) {
            ready(&mut rig, n, sync);
        }
        judged(&mut rig);
        if let DropsReporter = end {
            let reason = rig.kick_of(1);
            let text = "it could not fetch the shared state: 10.0.0.2:2000 did not answer; 10.0.0.3:2000 did not \
                        answer";
            assert_eq!((reason.code, reason.detail.as_str()), (KickCode::Unreachable, text));
            assert_eq!(outcome(rig.answer(2)), SyncOutcome::Committed(Revision(1)));
            continue;
        }
        match (outcome(rig.answer(1)), end) {
            (SyncOutcome::Committed(Revision(1)), Commits) => {
                assert_eq!(rig.group(0).committed, Some(Revision(1)));
            }
            (SyncOutcome::Failed(verdict), FailsForDead(n)) => {
                assert_eq!((verdict.cause, verdict.culprits[0].peer), (Cause::PeerDied, rig.peers[n]));
            }
            (outcome, end) => panic!("{deaths:?} {fetches} {end:?}: {outcome:?}"),
        }
    }
}

#[test]
fn the_death_of_the_last_fetcher_commits_for_the_others() {
    let mut rig = Rig::world(3);
    let p = EnforcePopular;
    cast(&mut rig, &[(0, p, 9), (1, p, 1), (1, p, 1)]);
    let sync = plan_of(&mut rig, 1).sync;
    rig.take(2);
    rig.take(3);
    ready(&mut rig, 2, sync);
    ready(&mut rig, 3, sync);
    rig.nothing(2);
    rig.die(1);
    assert_eq!(outcome(rig.answer(2)), SyncOutcome::Committed(Revision(1)));
}

#[test]
fn late_reports_are_ignored_and_double_ones_are_not() {
    let p = EnforcePopular;
    let mut rig = Rig::world(2);
    cast(&mut rig, &[(0, p, 1), (0, p, 1)]);
    let sync = plan_of(&mut rig, 1).sync;
    rig.take(2);
    ready(&mut rig, 1, sync);
    ready(&mut rig, 2, sync);
    rig.take(1);
    rig.take(2);
    ready(&mut rig, 2, sync);
    assert!(rig.closed.is_empty());
    cast(&mut rig, &[(0, p, 1), (0, p, 1)]);
    let sync = plan_of(&mut rig, 1).sync;
    ready(&mut rig, 1, sync);
    ready(&mut rig, 1, sync);
    assert_eq!(rig.kick_of(1).code, KickCode::Protocol);
}
