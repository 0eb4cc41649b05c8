//! Only trusted seeders give shared state to others, if the operator names some.

use super::harness::{Rig, register};
use super::sync::{entry, outcome, plan_of, ready, vote};
use pccl_protocol::SyncStrategy::EnforcePopular;
use pccl_protocol::*;

/// A run in which only these give. Clients 1, 2, ... register with these names.
fn world(seeders: &[&str], names: &[&str]) -> Rig {
    let listed: Vec<Name> = seeders.iter().map(|name| Name::new(*name)).collect();
    let mut rig = Rig::with(|options| options.trusted_seeders = listed);
    for (n, name) in (1..).zip(names) {
        come(&mut rig, n, name, None);
        let_in(&mut rig);
    }
    rig
}

fn come(rig: &mut Rig, n: u64, name: &str, previous: Option<PreviousIdentity>) {
    rig.connect(n);
    rig.send(n, C2m::Register(Register { name: Name::new(name), previous, ..register(0) }));
    rig.confirm_all();
}

fn let_in(rig: &mut Rig) {
    for n in rig.accepted() {
        rig.vote_topology(n, 7000 + n, 0);
    }
    rig.confirm_all();
    rig.mail.clear();
}

/// The clients vote; their votes are (revision, digest of "w").
fn votes(rig: &mut Rig, ballots: &[(u64, u64, u128)]) {
    for (n, revision, digest) in ballots {
        let epoch = rig.epoch(*n);
        rig.send(*n, C2m::SyncInitiate(vote(epoch, *revision, EnforcePopular, vec![entry("w", *digest)])));
    }
}

/// The peers that are named as sources to the last voter, which lacks what the others have.
fn sources_of_last(rig: &mut Rig, ballots: &[(u64, u64, u128)]) -> Vec<PeerId> {
    votes(rig, ballots);
    let plans: Vec<SyncPlan> = ballots.iter().map(|(n, ..)| plan_of(rig, *n)).collect();
    for ((n, ..), plan) in ballots.iter().zip(&plans) {
        ready(rig, *n, plan.sync);
    }
    for (n, ..) in ballots {
        assert!(matches!(outcome(rig.answer(*n)), SyncOutcome::Committed(_)), "client {n}");
    }
    plans.last().expect("a voter").sources.iter().map(|source| source.peer).collect()
}

#[test]
fn only_those_who_are_listed_are_named_as_sources() {
    let mut rig = world(&["vault", "backup"], &["a", "vault", "b", "backup", "c"]);
    let sources = sources_of_last(&mut rig, &[(1, 4, 7), (2, 4, 7), (3, 4, 7), (4, 4, 7), (5, 3, 6)]);
    let mut expected = vec![rig.peers[&2], rig.peers[&4]];
    let mut found = sources;
    expected.sort_unstable();
    found.sort_unstable();
    assert_eq!(found, expected);
    // Without a list all of them are.
    let mut rig = world(&[], &["a", "vault", "b"]);
    assert_eq!(sources_of_last(&mut rig, &[(1, 4, 7), (2, 4, 7), (3, 3, 6)]).len(), 2);
}

#[test]
fn where_nothing_has_to_be_moved_nobody_has_to_be_listed() {
    let mut rig = world(&["vault"], &["a", "b"]);
    assert_eq!(sources_of_last(&mut rig, &[(1, 4, 7), (2, 4, 7)]), []);
}

#[test]
fn if_no_seeder_holds_it_all_are_told_who_is_listed_and_what_is_missing() {
    let mut rig = world(&["vault", "backup", "attic"], &["a", "vault", "b", "backup"]);
    votes(&mut rig, &[(1, 4, 7), (3, 4, 7), (2, 3, 6), (4, 4, 9)]);
    let told: Vec<SyncOutcome> = (1..=4).map(|n| outcome(rig.answer(n))).collect();
    assert!(told.iter().all(|one| *one == told[0]), "{told:?}");
    let SyncOutcome::Failed(verdict) = &told[0] else { panic!("{told:?}") };
    assert_eq!(verdict.cause, Cause::SeederMissing);
    let culprits: Vec<PeerId> = verdict.culprits.iter().map(|culprit| culprit.peer).collect();
    assert_eq!(culprits, [rig.peers[&2], rig.peers[&4]]);
    let text = verdict.detail.as_str();
    for part in [
        "revision 4 is elected",
        "lacks tensor \"w\"",
        "vault holds revision 3",
        "backup holds another content",
        "attic is not here",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    // It is no end: as soon as a seeder holds it, the sync succeeds.
    let sources = sources_of_last(&mut rig, &[(1, 4, 7), (2, 4, 7), (3, 4, 7), (4, 3, 6)]);
    assert_eq!(sources, [rig.peers[&2]]);
}

#[test]
fn who_has_the_name_of_a_seeder_keeps_it_as_long_as_it_is_there() {
    let mut rig = world(&["vault"], &["vault", "b"]);
    come(&mut rig, 3, "vault", None);
    let reason = rig.kick_of(3);
    assert_eq!(reason.code, KickCode::NameTaken);
    assert!(reason.detail.as_str().contains("trusted seeder"), "{reason:?}");
    // Names that are not listed are free.
    come(&mut rig, 4, "b", None);
    assert!(!rig.closed.contains(&4));
    // The next life of the seeder is let in beside the one that is not known to be dead; not that of another peer.
    let before = |rig: &Rig, n: u64| PreviousIdentity { run: RunId(7), peer: rig.peers[&n], proof: None };
    let (own, other) = (before(&rig, 1), before(&rig, 2));
    come(&mut rig, 5, "vault", Some(other));
    assert_eq!(rig.kick_of(5).code, KickCode::NameTaken);
    come(&mut rig, 6, "vault", Some(own));
    assert!(!rig.closed.contains(&6));
    for n in [1, 6] {
        rig.send(n, C2m::Leave(Nothing {}));
    }
    come(&mut rig, 7, "vault", None);
    assert!(!rig.closed.contains(&7));
}
