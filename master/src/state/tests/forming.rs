//! Groups of given members: votes, what makes a forming fail, and what becomes of a group that loses somebody.

use super::harness::{Rig, aborted, is_done, register};
use crate::state::{Input, PeerPhase};
use pccl_protocol::*;

fn name_of(n: u64) -> Name {
    Name::new(format!("w{n}"))
}

/// Clients who form their groups of lists, called w1, w2, ...
fn rig(clients: &[u64]) -> Rig {
    let mut rig = Rig::new();
    for n in clients {
        enter(&mut rig, *n, name_of(*n));
    }
    rig.mail.clear();
    rig
}

fn enter(rig: &mut Rig, n: u64, name: Name) {
    rig.connect(n);
    rig.send(n, C2m::Register(Register { formed: true, name, ..register(0) }));
}

fn by_name(members: &[u64]) -> Vec<MemberRef> {
    members.iter().map(|n| MemberRef::Name(name_of(*n))).collect()
}

fn by_id(rig: &Rig, members: &[u64]) -> Vec<MemberRef> {
    members.iter().map(|n| MemberRef::Peer(rig.peers[n])).collect()
}

fn vote(rig: &mut Rig, n: u64, uuid: u128, members: Vec<MemberRef>) {
    let (request, uuid) = (RequestId(u64::try_from(uuid).expect("small") * 100 + n), GroupUuid(uuid));
    rig.send(n, C2m::FormGroup(FormGroup { request, uuid, members }));
}

/// All of them call, and the ring stands.
fn form(rig: &mut Rig, uuid: u128, members: &[u64]) {
    for n in members {
        vote(rig, *n, uuid, by_name(members));
    }
    for n in members {
        let alone = members.len() == 1;
        assert_eq!(rig.phase(*n), Some(if alone { PeerPhase::Accepted } else { PeerPhase::Connecting }));
        rig.confirm(*n);
    }
    for n in members {
        let M2c::GroupFormed(formed) = rig.answer(*n) else { panic!("client {n}") };
        assert_eq!(formed.request.0 % 100, *n);
        let ranks: Vec<PeerId> = members.iter().map(|n| rig.peers[n]).collect();
        assert_eq!(rig.plans[n].members.iter().map(|member| member.peer).collect::<Vec<_>>(), ranks);
    }
}

fn failed(rig: &mut Rig, n: u64) -> Verdict {
    match rig.answer(n) {
        M2c::FormFailed(failed) => failed.verdict,
        other => panic!("client {n}: {other:?}"),
    }
}

fn named(verdict: &Verdict) -> Vec<PeerId> {
    verdict.culprits.iter().map(|culprit| culprit.peer).collect()
}

#[test]
fn the_list_gives_the_ranks() {
    let mut rig = rig(&[1, 2, 3]);
    form(&mut rig, 7, &[3, 1, 2]);
    let op = rig.op(1, 5, 0);
    rig.commence(op);
    for n in 1..=3 {
        rig.complete(n, op, None);
    }
    for n in 1..=3 {
        assert!(is_done(&rig.answer(n)));
    }
}

#[test]
fn identities_and_names_may_be_mixed() {
    let mut rig = rig(&[1, 2]);
    let list = by_id(&rig, &[2, 1]);
    vote(&mut rig, 1, 1, list);
    vote(&mut rig, 2, 1, by_name(&[2, 1]));
    rig.confirm_all();
    assert!(matches!(rig.answer(1), M2c::GroupFormed(_)) && matches!(rig.answer(2), M2c::GroupFormed(_)));
}

#[test]
fn nobody_is_let_in_before_the_first_forming_or_without_one() {
    let mut rig = rig(&[1, 2]);
    assert_eq!((rig.phase(1), rig.phase(2)), (Some(PeerPhase::Pending), Some(PeerPhase::Pending)));
    form(&mut rig, 1, &[1]);
    rig.pass(60_000, &[1, 2]);
    assert_eq!(rig.phase(2), Some(PeerPhase::Pending));
    rig.nothing(2);
}

#[test]
fn lists_and_uuids_that_differ_fail_all_who_called() {
    let mut rig = rig(&[1, 2, 3]);
    vote(&mut rig, 1, 1, by_name(&[1, 2, 3]));
    vote(&mut rig, 2, 1, by_name(&[1, 3, 2]));
    for n in [1, 2] {
        let verdict = failed(&mut rig, n);
        assert_eq!(
            (verdict.cause, verdict.operation),
            (Cause::MismatchedCall, Operation::Forming(GroupUuid(1)))
        );
        assert_eq!(named(&verdict), [rig.peers[&1], rig.peers[&2]]);
        assert!(
            verdict.detail.as_str().contains("w2 as rank 1")
                && verdict.detail.as_str().contains("w3 as rank 1")
        );
    }
    // A client that calls late learns the same.
    vote(&mut rig, 3, 1, by_name(&[1, 2, 3]));
    assert_eq!(failed(&mut rig, 3).cause, Cause::MismatchedCall);
    // Client 1 has left what client 2 is about to join; client 2 goes on waiting, since 1 may still come.
    vote(&mut rig, 1, 2, by_name(&[1, 2]));
    vote(&mut rig, 2, 3, by_name(&[1, 2]));
    let verdict = failed(&mut rig, 1);
    assert_eq!(named(&verdict), [rig.peers[&1], rig.peers[&2]]);
    assert!(verdict.detail.as_str().ends_with("with uuid 3"), "{}", verdict.detail);
    rig.nothing(2);
    vote(&mut rig, 1, 3, by_name(&[1, 2]));
    rig.confirm_all();
    assert!(matches!(rig.answer(1), M2c::GroupFormed(_)) && matches!(rig.answer(2), M2c::GroupFormed(_)));
}

#[test]
fn a_uuid_is_used_once() {
    let mut rig = rig(&[1, 2]);
    form(&mut rig, 1, &[1, 2]);
    let before = rig.epoch(1);
    vote(&mut rig, 1, 1, by_name(&[1, 2]));
    let verdict = failed(&mut rig, 1);
    assert_eq!(verdict.cause, Cause::MismatchedCall);
    assert!(verdict.detail.as_str().contains("already used"));
    // The group is as it was, and another uuid forms it anew.
    rig.commence(rig.op(1, 0, 0));
    assert_eq!(rig.epoch(1), before);
    for n in [1, 2] {
        rig.complete(n, rig.op(n, 0, 0), None);
    }
    rig.mail.clear();
    form(&mut rig, 2, &[1, 2]);
    assert!(rig.epoch(1) > before);
}

#[test]
fn wrong_lists_are_errors_of_their_own() {
    for (list, says) in [(vec![1, 2, 1], "listed as ranks 0 and 2"), (vec![2, 3], "not in the list")] {
        let mut rig = rig(&[1, 2, 3]);
        vote(&mut rig, 1, 1, by_name(&list));
        let verdict = failed(&mut rig, 1);
        assert_eq!(verdict.cause, Cause::MismatchedCall);
        assert!(verdict.detail.as_str().contains(says), "{}", verdict.detail);
    }
    let mut rig = rig(&[1]);
    vote(&mut rig, 1, 1, vec![]);
    assert_eq!(failed(&mut rig, 1).cause, Cause::MismatchedCall);
    vote(&mut rig, 1, 2, vec![MemberRef::Name(name_of(1)), MemberRef::Peer(PeerId(99))]);
    let verdict = failed(&mut rig, 1);
    assert_eq!((verdict.cause, named(&verdict)), (Cause::GroupBroken, vec![PeerId(99)]));
}

#[test]
fn a_name_that_two_bear_is_an_error_that_names_both() {
    let mut rig = rig(&[1, 2]);
    enter(&mut rig, 3, name_of(2));
    rig.take(3);
    vote(&mut rig, 1, 1, by_name(&[1, 2]));
    let verdict = failed(&mut rig, 1);
    assert_eq!((verdict.cause, named(&verdict)), (Cause::MismatchedCall, vec![rig.peers[&2], rig.peers[&3]]));
    assert!(verdict.detail.as_str().contains("both called w2"));
    // By identity they can be told apart.
    let list = by_id(&rig, &[1, 3]);
    vote(&mut rig, 1, 2, list.clone());
    vote(&mut rig, 3, 2, list);
    rig.confirm_all();
    assert!(matches!(rig.answer(3), M2c::GroupFormed(_)));
    rig.nothing(2);
}

#[test]
fn who_has_not_called_when_a_limit_passes_is_named() {
    let mut rig = rig(&[1, 2, 3]);
    for n in [1, 2] {
        vote(&mut rig, n, 1, by_name(&[1, 2, 3, 4]));
    }
    let waits = rig.state.blocked_on().join("\n");
    assert!(
        waits.contains("form_group 1 waits for peer") && waits.contains("w4, which is not connected"),
        "{waits}"
    );
    rig.give_up(2, VoteRef::Forming(RequestId(102)), Some(2500));
    for n in [1, 2] {
        let verdict = failed(&mut rig, n);
        assert_eq!((verdict.cause, verdict.phase), (Cause::CallTimeout, Phase::Voting));
        assert_eq!(named(&verdict), [rig.peers[&3], PeerId(0)]);
        assert_eq!(verdict.culprits[1].name, name_of(4));
        let detail = verdict.detail.as_str();
        assert!(
            detail.contains("gave it up after 2.5 s") && detail.contains("w4, which is not connected"),
            "{detail}"
        );
    }
    // The one who was late.
    vote(&mut rig, 3, 1, by_name(&[1, 2, 3, 4]));
    assert_eq!(failed(&mut rig, 3).cause, Cause::CallTimeout);
}

#[test]
fn a_member_may_come_late_under_its_name() {
    let mut rig = rig(&[1]);
    vote(&mut rig, 1, 1, by_name(&[2, 1]));
    rig.pass(5_000, &[1]);
    enter(&mut rig, 2, name_of(2));
    // It dies before it has called, and comes back.
    rig.die(2);
    rig.nothing(1);
    enter(&mut rig, 3, name_of(2));
    rig.take(3);
    vote(&mut rig, 3, 1, by_name(&[2, 1]));
    rig.confirm_all();
    assert!(matches!(rig.answer(1), M2c::GroupFormed(_)) && matches!(rig.answer(3), M2c::GroupFormed(_)));
}

#[test]
fn a_death_while_members_are_awaited_fails_the_forming() {
    // The one who has called; the one who is listed by its identity and has not.
    for dead in [2, 3] {
        let mut rig = rig(&[1, 2, 3]);
        let list = by_id(&rig, &[1, 2, 3]);
        for n in [1, 2] {
            vote(&mut rig, n, 1, list.clone());
        }
        rig.die(dead);
        let verdict = failed(&mut rig, 1);
        assert_eq!((verdict.cause, named(&verdict)), (Cause::PeerDied, vec![rig.peers[&dead]]));
        assert_eq!(verdict.phase, Phase::Voting);
    }
}

#[test]
fn a_death_while_the_ring_is_connected_fails_the_forming() {
    let mut rig = rig(&[1, 2, 3]);
    for n in 1..=3 {
        vote(&mut rig, n, 1, by_name(&[1, 2, 3]));
    }
    rig.confirm(1);
    rig.die(3);
    for n in [1, 2] {
        let verdict = failed(&mut rig, n);
        assert_eq!((verdict.cause, verdict.phase), (Cause::PeerDied, Phase::Connecting));
        assert_eq!((named(&verdict), rig.phase(n)), (vec![rig.peers[&3]], Some(PeerPhase::Pending)));
    }
    rig.nothing(1);
    // A report on the ring that is no more is no mistake; nor is the next try.
    rig.up(2, Purpose::Ring);
    form(&mut rig, 2, &[2, 1]);
}

#[test]
fn a_limit_that_passes_while_the_ring_is_connected_names_who_is_not_ready() {
    let mut rig = rig(&[1, 2, 3]);
    for n in 1..=3 {
        vote(&mut rig, n, 1, by_name(&[1, 2, 3]));
    }
    rig.confirm(1);
    rig.confirm(2);
    rig.give_up(1, VoteRef::Forming(RequestId(101)), Some(900));
    for n in 1..=3 {
        let verdict = failed(&mut rig, n);
        assert_eq!((verdict.cause, named(&verdict)), (Cause::CallTimeout, vec![rig.peers[&3]]));
    }
    assert!(rig.state.snapshot().groups.is_empty());
    form(&mut rig, 2, &[1, 2, 3]);
}

#[test]
fn a_death_between_formings_breaks_the_group_until_it_is_formed_again() {
    let mut rig = rig(&[1, 2, 3]);
    form(&mut rig, 1, &[1, 2, 3]);
    let (runs, waits) = (rig.op(1, 0, 0), rig.op(1, 1, 0));
    rig.commence(runs);
    rig.initiate(1, waits);
    rig.die(3);
    let verdicts: Vec<Verdict> = rig.answers(1).into_iter().map(aborted).collect();
    assert_eq!(verdicts.len(), 2);
    for verdict in &verdicts {
        assert_eq!((verdict.cause, named(verdict)), (Cause::GroupBroken, vec![rig.peers[&3]]));
        assert!(
            verdict.detail.as_str().contains("peer died") && verdict.detail.as_str().contains("formed again")
        );
    }
    assert_eq!(verdicts.iter().map(|v| v.phase).collect::<Vec<_>>(), [Phase::Transfer, Phase::Voting]);
    assert_eq!(aborted(rig.answer(2)), verdicts[0]);
    assert!(rig.plans[&1].members.len() == 3, "the ring shrank");
    // Whatever is tried next fails at once, in the same way; what is late is no mistake.
    rig.complete(2, runs, None);
    rig.initiate(2, OpId { attempt: 1, ..runs });
    assert_eq!(aborted(rig.answer(2)).cause, Cause::GroupBroken);
    sync(&mut rig, 2, 0);
    let M2c::SyncOutcome(SyncOutcomeFor { outcome: SyncOutcome::Failed(verdict), .. }) = rig.answer(2) else {
        panic!()
    };
    assert_eq!((verdict.cause, named(&verdict)), (Cause::GroupBroken, vec![rig.peers[&3]]));
    form(&mut rig, 2, &[2, 1]);
    assert!(rig.epoch(1) > runs.epoch);
    rig.commence(rig.op(1, 0, 0));
}

#[test]
fn the_log_says_of_a_group_who_left_it_and_not_that_its_forming_failed() {
    let mut rig = rig(&[1, 2, 3]);
    form(&mut rig, 1, &[1, 2]);
    rig.send(2, C2m::Leave(Nothing {}));
    form(&mut rig, 2, &[1, 3]);
    rig.die(3);
    let ends: Vec<&String> = rig.logged.iter().filter(|line| line.starts_with("group 2147")).collect();
    let about = |text: &str| ends.iter().filter(|line| line.contains(text)).count();
    assert_eq!((about(" ends: peer left: "), about(" is broken up: peer died: ")), (1, 1), "{ends:?}");
    assert!(ends.iter().any(|line| line.contains("(w2, ")) && about("form_group") == 0, "{ends:?}");
}

fn sync(rig: &mut Rig, n: u64, revision: u64) {
    let (request, revision) = (RequestId(5), Revision(revision));
    let (epoch, strategy) = (rig.epoch(n), SyncStrategy::EnforcePopular);
    rig.send(
        n,
        C2m::SyncInitiate(SyncInitiate {
            request,
            epoch,
            revision,
            strategy,
            entries: vec![],
            offered: None,
        }),
    );
}

#[test]
fn the_others_have_all_they_need_from_one_who_dies_at_the_end() {
    let mut rig = rig(&[1, 2]);
    form(&mut rig, 1, &[1, 2]);
    let op = rig.op(1, 0, 0);
    rig.commence(op);
    rig.complete(1, op, None);
    let end = C2m::Complete(Complete { op, fault: None, moved_bytes: 1 });
    let client = crate::state::ClientKey(2);
    rig.inputs([
        Input::Packet { client, packet: end },
        Input::Disconnected { client, text: "connection reset".into() },
    ]);
    rig.closed.insert(2);
    assert!(is_done(&rig.answer(1)));
    rig.initiate(1, OpId { attempt: 1, ..op });
    assert_eq!(aborted(rig.answer(1)).cause, Cause::GroupBroken);
}

#[test]
fn a_revision_outlives_a_forming() {
    let mut rig = rig(&[1, 2, 3]);
    form(&mut rig, 1, &[1, 2]);
    for n in [1, 2] {
        sync(&mut rig, n, 4);
    }
    for n in [1, 2] {
        let sync = rig.take(n).into_iter().find_map(|packet| match packet {
            M2c::SyncPlan(plan) => Some(plan.plan.sync),
            _ => None,
        });
        let report = SyncReport::Ready(Nothing {});
        let sync = sync.expect("a plan");
        rig.send(n, C2m::SyncComplete(SyncComplete { sync, report, failures: vec![], gave: vec![] }));
    }
    rig.mail.clear();
    rig.die(2);
    form(&mut rig, 2, &[3, 1]);
    assert_eq!(rig.group(FIRST + 1).committed, Some(Revision(4)));
    // The next revision is 5, as if the group had gone on.
    sync(&mut rig, 1, 6);
    assert_eq!(rig.kick_of(1).code, KickCode::RevisionJump);
}

/// The number of the first group that is formed.
const FIRST: u32 = 1 << 31;

#[test]
fn a_group_splits_and_merges() {
    let mut rig = rig(&[1, 2, 3, 4]);
    form(&mut rig, 1, &[1, 2, 3, 4]);
    form(&mut rig, 2, &[1, 2]);
    assert_eq!((rig.phase(1), rig.phase(3)), (Some(PeerPhase::Accepted), Some(PeerPhase::Pending)));
    // Those who stayed behind are in no group, and learn it from whatever they do.
    rig.initiate(3, rig.op(3, 0, 0));
    let verdict = aborted(rig.answer(3));
    assert_eq!((verdict.cause, named(&verdict)), (Cause::GroupBroken, vec![rig.peers[&1]]));
    assert!(verdict.detail.as_str().contains("formed another group"));
    form(&mut rig, 3, &[4, 3]);
    for (n, op) in [(1, rig.op(1, 0, 0)), (3, rig.op(3, 0, 0))] {
        rig.initiate(n, op);
        rig.initiate(n + 1, op);
        assert!(matches!(rig.answer(n), M2c::Commence(_)));
        rig.take(n + 1);
        rig.complete(n, op, None);
        rig.complete(n + 1, op, None);
        rig.take(n + 1);
        assert!(is_done(&rig.answer(n)));
    }
    form(&mut rig, 4, &[4, 3, 2, 1]);
    for n in 1..=4 {
        form(&mut rig, 10 + u128::from(n), &[n]);
    }
    form(&mut rig, 20, &[1, 2, 3, 4]);
}

#[test]
fn a_group_of_one_is_a_group() {
    let mut rig = rig(&[1]);
    form(&mut rig, 1, &[1]);
    let op = rig.op(1, 0, 0);
    rig.commence_by(op, Algorithm::Ring);
    rig.complete(1, op, None);
    assert!(is_done(&rig.answer(1)));
}

#[test]
fn an_edge_that_cannot_be_built_fails_the_forming_and_nobody_goes() {
    let mut rig = rig(&[1, 2, 3]);
    rig.missing = Some(([(1, 2)].into(), vec![1, 2, 3]));
    for n in 1..=3 {
        vote(&mut rig, n, 1, by_name(&[1, 2, 3]));
    }
    rig.broken(1, rig.edge(1, 2));
    rig.confirm(2);
    rig.confirm(3);
    rig.pass(5_000, &[1, 2, 3]);
    for n in 1..=3 {
        let verdict = failed(&mut rig, n);
        assert_eq!((verdict.cause, verdict.phase), (Cause::EdgeBroken, Phase::Connecting));
        assert_eq!(named(&verdict), [rig.peers[&1], rig.peers[&2]]);
    }
    // The other way round there is a ring.
    form(&mut rig, 2, &[3, 2, 1]);
}

#[test]
fn an_edge_that_breaks_is_built_anew_with_the_same_ranks() {
    let mut rig = rig(&[1, 2, 3]);
    form(&mut rig, 1, &[2, 3, 1]);
    let before = rig.epoch(1);
    rig.broken(3, rig.edge(3, 1));
    rig.pass(2_000, &[1, 2, 3]);
    assert!(rig.epoch(1) > before);
    let ranks: Vec<PeerId> = [2, 3, 1].iter().map(|n| rig.peers[n]).collect();
    assert_eq!(rig.plans[&1].members.iter().map(|member| member.peer).collect::<Vec<_>>(), ranks);
    rig.confirm_all();
    rig.commence(rig.op(1, 0, 0));
}

#[test]
fn a_group_number_has_members_of_one_kind() {
    let mut rig = rig(&[1]);
    rig.connect(2);
    rig.send(2, C2m::Register(register(0)));
    let reason = rig.kick_of(2);
    assert_eq!(reason.code, KickCode::GroupKind);
    assert!(reason.detail.as_str().contains("w1"), "{reason}");
    let mut rig = Rig::world(1);
    rig.connect(2);
    rig.send(2, C2m::Register(Register { formed: true, ..register(0) }));
    assert_eq!(rig.kick_of(2).code, KickCode::GroupKind);
}

#[test]
fn other_groups_of_the_run_let_newcomers_in_as_ever() {
    let mut rig = rig(&[1, 2]);
    form(&mut rig, 1, &[1, 2]);
    rig.register(5, 3);
    rig.confirm(5);
    rig.register(6, 3);
    rig.vote_topology(5, 1, 0);
    rig.confirm_all();
    rig.mail.clear();
    assert_eq!(rig.ring(3), [5, 6]);
    rig.send(5, C2m::VotePending(RequestId(1)));
    rig.send(6, C2m::VotePending(RequestId(1)));
    assert!(matches!(rig.answer(5), M2c::PendingAnswer(PendingAnswer { pending: false, .. })));
    // The members of the formed group have no say there.
    rig.send(1, C2m::VoteTopology(VoteTopology { request: RequestId(9), wait_for_world: 0 }));
    assert_eq!(rig.kick_of(1).code, KickCode::Protocol);
}

#[test]
fn a_second_vote_beside_the_first_is_a_violation() {
    let mut rig = rig(&[1, 2]);
    vote(&mut rig, 1, 1, by_name(&[1, 2]));
    vote(&mut rig, 1, 2, by_name(&[1, 2]));
    assert_eq!(rig.kick_of(1).code, KickCode::Protocol);
    let mut rig = Rig::world(1);
    vote(&mut rig, 1, 1, by_name(&[1]));
    assert_eq!(rig.kick_of(1).code, KickCode::Protocol);
}

#[test]
fn one_who_wants_to_work_alone_may() {
    let mut rig = Rig::new();
    rig.connect(1);
    rig.send(1, C2m::Register(Register { alone: true, ..register(0) }));
    rig.confirm_all();
    rig.mail.clear();
    let op = rig.op(1, 0, 0);
    rig.commence_by(op, Algorithm::Ring);
    rig.complete(1, op, None);
    assert!(is_done(&rig.answer(1)));
    // Others join, and the run goes on with them.
    rig.join(&[2], 0);
    rig.commence(rig.op(1, 0, 0));
    rig.die(2);
    assert_eq!(aborted(rig.answers(1).remove(0)).cause, Cause::PeerDied);
    rig.confirm_all();
    rig.commence_by(rig.op(1, 0, 0), Algorithm::Ring);
}
