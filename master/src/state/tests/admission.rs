//! Registration, rounds, sizes, the pending query, leaving.

use super::harness::{Rig, ip, register};
use crate::state::{ClientKey, Input, MasterState, Options, PeerPhase};
use pccl_protocol::*;
use std::collections::BTreeMap;

#[test]
fn the_first_peer_is_admitted_without_votes() {
    let mut rig = Rig::new();
    rig.register(1, 0);
    let mail = rig.take(1);
    let [M2c::Registered(registered), M2c::GroupPlan(plan), M2c::Admitted(sizes)] = mail.as_slice() else {
        panic!("{mail:?}")
    };
    assert_eq!((registered.run, registered.beat_interval_ms), (RunId(7), 1000));
    assert_eq!((plan.members.len(), plan.sizes.global, plan.epoch), (1, 0, GroupEpoch(1)));
    // There is no edge that it could wait for.
    assert_eq!(rig.phase(1), Some(PeerPhase::Accepted));
    assert_eq!((sizes.global, sizes.group, sizes.groups, sizes.largest_group), (1, 1, 1, 1));
}

#[test]
fn a_round_needs_the_vote_of_every_accepted_peer_of_every_group() {
    let mut rig = Rig::new();
    rig.join(&[1, 2], 0);
    rig.join(&[3], 5);
    rig.register(4, 5);
    rig.vote_topology(1, 1, 0);
    rig.vote_topology(2, 2, 0);
    assert_eq!(rig.phase(4), Some(PeerPhase::Pending));
    rig.nothing(1);
    rig.vote_topology(3, 3, 0);
    assert_eq!(rig.phase(4), Some(PeerPhase::Connecting));
    // The ring of group 0 stands as it is; only group 5 is planned anew.
    assert!(rig.take(1).is_empty());
    rig.confirm(3);
    rig.nothing(1);
    rig.confirm(4);
    for n in 1..=3 {
        let M2c::TopologyDone(done) = rig.answer(n) else { panic!() };
        assert_eq!(done.request, RequestId(n));
        assert_eq!((done.sizes.global, done.sizes.groups, done.sizes.largest_group), (4, 2, 2));
        assert_eq!(done.sizes.group, 2);
    }
    assert!(rig.answers(4).iter().any(|p| matches!(p, M2c::Admitted(s) if s.global == 4)));
}

#[test]
fn newcomers_join_behind_the_ring_in_the_order_of_registration() {
    let mut rig = Rig::world(2);
    rig.register(9, 0);
    rig.register(5, 0);
    rig.vote_topology(1, 1, 0);
    rig.vote_topology(2, 2, 0);
    assert_eq!(rig.ring(0), [1, 2, 9, 5]);
    // 1 -> 2 stood before and keeps its generation; the others are new.
    let group = rig.group(0);
    assert_eq!(group.generations[1..], [LinkGeneration(group.epoch.0); 3]);
    assert!(group.generations[0] < group.generations[1]);
}

#[test]
fn a_round_with_nothing_to_do_ends_at_once() {
    let mut rig = Rig::world(2);
    let epoch = rig.epoch(1);
    rig.vote_topology(1, 1, 0);
    rig.vote_topology(2, 2, 0);
    assert!(matches!(rig.answer(1), M2c::TopologyDone(_)));
    assert!(matches!(rig.answer(2), M2c::TopologyDone(_)));
    assert_eq!(rig.group(0).epoch, epoch);
}

#[test]
fn deaths_during_a_round_shrink_it_and_fail_nobody() {
    // The clients that die while 3 and 4 are being connected to 1 and 2.
    for victims in [&[1u64][..], &[2], &[3], &[3, 4], &[1, 2], &[1, 3], &[1, 2, 3]] {
        let mut rig = Rig::world(2);
        rig.register(3, 0);
        rig.register(4, 0);
        rig.vote_topology(1, 1, 0);
        rig.vote_topology(2, 2, 0);
        rig.confirm(4);
        for n in victims {
            rig.die(*n);
        }
        rig.confirm_all();
        let left: Vec<u64> = (1..=4).filter(|n| !victims.contains(n)).collect();
        assert_eq!(rig.accepted(), left, "victims {victims:?}");
        for n in left {
            let answers = rig.answers(n);
            let fine = |p: &M2c| {
                matches!(p, M2c::TopologyDone(_)) == (n <= 2) && matches!(p, M2c::Admitted(_)) == (n > 2)
            };
            assert!(answers.last().is_some_and(fine), "victims {victims:?}: {answers:?}");
        }
    }
}

#[test]
fn newcomers_are_promoted_when_all_accepted_peers_have_left() {
    let mut rig = Rig::world(2);
    rig.register(3, 0);
    rig.register(4, 7);
    rig.register(5, 0);
    rig.die(1);
    assert_eq!(rig.phase(3), Some(PeerPhase::Pending));
    rig.send(2, C2m::Leave(Nothing {}));
    assert_eq!(rig.phase(3), Some(PeerPhase::Connecting));
    rig.confirm_all();
    assert_eq!(rig.accepted(), [3, 4, 5]);
}

#[test]
fn waiting_for_a_world_reports_progress_until_it_is_there() {
    let mut rig = Rig::world(1);
    rig.vote_topology(1, 7, 3);
    let M2c::TopologyProgress(progress) = rig.answer(1) else { panic!() };
    assert_eq!((progress.have, progress.want), (1, 3));
    rig.register(2, 0);
    rig.confirm_all();
    assert_eq!(rig.accepted(), [1, 2]);
    let M2c::TopologyProgress(progress) = rig.answer(1) else { panic!() };
    assert_eq!(progress.have, 2);
    assert!(progress.missing.as_str().contains(&rig.peers[&2].to_string()), "{}", progress.missing);
    rig.register(3, 0);
    rig.nothing(1);
    rig.vote_topology(2, 8, 0);
    rig.confirm_all();
    for (n, request) in [(1, 7), (2, 8)] {
        let last = rig.answers(n).pop();
        let done = matches!(&last, Some(M2c::TopologyDone(d))
            if d.request == RequestId(request) && d.sizes.global == 3);
        assert!(done, "{last:?}");
    }
}

#[test]
fn a_satisfied_wait_needs_nobody_else() {
    let mut rig = Rig::world(2);
    rig.register(3, 0);
    rig.vote_topology(1, 1, 2);
    assert!(matches!(rig.answer(1), M2c::TopologyDone(done) if done.sizes.global == 2));
    assert_eq!(rig.phase(3), Some(PeerPhase::Pending));
}

#[test]
fn a_withdrawn_vote_is_gone_and_a_late_withdrawal_is_ignored() {
    let mut rig = Rig::world(2);
    rig.register(3, 0);
    rig.vote_topology(1, 1, 0);
    rig.send(1, C2m::WithdrawVote(RequestId(1)));
    let named = rig.name(2);
    let M2c::VoteWithdrawn(gone) = rig.answer(1) else { panic!("not taken back") };
    assert_eq!(gone.request, RequestId(1));
    assert!(gone.missing.as_str().contains(&named), "{}", gone.missing);
    rig.vote_topology(2, 2, 0);
    rig.nothing(2);
    rig.vote_topology(1, 3, 0);
    rig.send(1, C2m::WithdrawVote(RequestId(1)));
    assert_eq!(rig.phase(3), Some(PeerPhase::Connecting));
    rig.confirm_all();
    assert!(matches!(rig.answer(1), M2c::TopologyDone(done) if done.request == RequestId(3)));
}

#[test]
fn the_pending_query_sees_those_who_wait_and_needs_everybody() {
    for pending in [false, true] {
        let mut rig = Rig::world(3);
        if pending {
            rig.register(4, 9);
        }
        rig.send(1, C2m::VotePending(RequestId(1)));
        rig.send(2, C2m::VotePending(RequestId(2)));
        rig.nothing(1);
        rig.die(3);
        for n in 1..=2 {
            let expected = PendingAnswer { request: RequestId(n), pending };
            assert_eq!(rig.answer(n), M2c::PendingAnswer(expected));
        }
    }
}

#[test]
fn a_newer_pending_query_replaces_one_that_was_given_up() {
    let mut rig = Rig::world(2);
    rig.send(1, C2m::VotePending(RequestId(1)));
    rig.send(1, C2m::VotePending(RequestId(2)));
    rig.send(2, C2m::VotePending(RequestId(3)));
    assert!(matches!(rig.answer(1), M2c::PendingAnswer(a) if a.request == RequestId(2)));
}

#[test]
fn other_groups_learn_of_changed_sizes_and_keep_their_epoch() {
    let mut rig = Rig::new();
    rig.join(&[1, 2], 0);
    rig.join(&[3], 1);
    let epoch = rig.group(1).epoch;
    rig.die(2);
    let mail = rig.take(3);
    assert!(matches!(mail.as_slice(), [M2c::Sizes(s)] if s.global == 2), "{mail:?}");
    assert_eq!(rig.group(1).epoch, epoch);
    // Inside the group the new ring carries them.
    let mail = rig.take(1);
    assert!(matches!(mail.as_slice(), [M2c::GroupPlan(p)] if p.sizes.global == 2), "{mail:?}");
}

#[test]
fn leaving_is_answered_and_closed() {
    let mut rig = Rig::world(2);
    rig.send(2, C2m::Leave(Nothing {}));
    assert_eq!(rig.take(2), vec![M2c::Goodbye(Nothing {})]);
    assert!(rig.closed.contains(&2));
    assert_eq!(rig.ring(0), [1]);
}

#[test]
fn an_emptied_master_equals_a_fresh_one() {
    struct NoIds;
    impl crate::state::IdSource for NoIds {
        fn peer_id(&mut self, _nth: u64) -> PeerId {
            PeerId(0)
        }
    }
    let fresh = MasterState::new(Options::new(RunId(7)), Box::new(NoIds)).snapshot();
    let mut rig = Rig::world(3);
    rig.register(4, 2);
    let op = rig.op(1, 5, 0);
    rig.initiate(1, op);
    for n in [2, 4, 1, 3] {
        rig.die(n);
    }
    assert_eq!(rig.state.snapshot(), fresh);
    assert_eq!(rig.state.next_deadline(), None);
    assert!(rig.state.blocked_on().is_empty());
}

#[test]
fn hosts_are_those_that_the_viewer_can_reach() {
    let loopback = || "127.0.0.1".parse().expect("an address");
    let mut rig = Rig::new();
    // 1 lives on the master's machine, 2 elsewhere, 3 advertises a name.
    rig.input(Input::Connected { client: ClientKey(1), remote: loopback(), local: loopback() });
    rig.send(1, C2m::Register(register(0)));
    rig.confirm(1);
    rig.input(Input::Connected { client: ClientKey(2), remote: ip(2), local: ip(250) });
    rig.send(2, C2m::Register(register(0)));
    rig.input(Input::Connected { client: ClientKey(3), remote: ip(3), local: ip(251) });
    let advertised_host = Some(Host::new("gpu3.example"));
    rig.send(3, C2m::Register(Register { advertised_host, ..register(0) }));
    rig.vote_topology(1, 1, 0);
    let hosts = |n: u64| -> Vec<String> {
        rig.plans[&n].members.iter().map(|m| m.hosts.as_str().to_owned()).collect()
    };
    assert_eq!(hosts(1), ["127.0.0.1", "10.0.0.2", "gpu3.example"]);
    assert_eq!(hosts(2), ["10.0.0.250", "10.0.0.2", "gpu3.example"]);
    assert_eq!(hosts(3), ["10.0.0.251", "10.0.0.2", "gpu3.example"]);
}

#[test]
fn announced_addresses_are_tried_and_handed_on_where_the_network_of_the_run_is_not_left() {
    let mut rig = Rig::new();
    let address = |text: &str| Address::new(text.parse().expect("an address")).expect("may be told");
    let all = [address("10.0.0.9"), address("2a00::9")];
    let far = "8.8.8.8".parse().expect("an address");
    for (client, remote) in [(1, far), (2, ip(2))] {
        rig.input(Input::Connected { client: ClientKey(client), remote, local: ip(250) });
        rig.send(client, C2m::Register(Register { addresses: all.to_vec(), ..register(0) }));
        let tried = rig.tried.pop().expect("its ports are tried").hosts;
        let others: &[Address] = if client == 1 { &all[1..] } else { &[] };
        assert_eq!((tried.as_str(), &tried.others[..]), (&*remote.to_string(), others));
        if client == 1 {
            rig.confirm(1);
        }
    }
    rig.vote_topology(1, 1, 0);
    for viewer in [1, 2] {
        let others = |at: usize| rig.plans[&viewer].members[at].hosts.others.clone();
        assert_eq!((others(0), others(1)), (all[1..].to_vec(), vec![]));
    }
}

#[test]
fn connections_follow_the_dialing_member() {
    let mut rig = Rig::new();
    for (n, wish) in [(1, 0), (2, 8), (3, 60_000)] {
        rig.connect(n);
        rig.send(n, C2m::Register(Register { pool_connections: wish, ..register(0) }));
    }
    rig.confirm(1);
    rig.vote_topology(1, 1, 0);
    let edges = rig.plans[&1].edges.iter().filter(|edge| edge.purpose == Purpose::Ring);
    let connections: BTreeMap<u16, u16> = edges.map(|edge| (edge.from, edge.connections)).collect();
    assert_eq!(connections, BTreeMap::from([(0, 0), (1, 8), (2, limits::MAX_POOL_CONNECTIONS)]));
}

/// The round has counted on the voter, so the voter hears of its end, and not that the vote is gone.
#[test]
fn a_withdrawal_during_a_round_waits_for_its_end() {
    let mut rig = Rig::world(1);
    rig.register(2, 0);
    rig.vote_topology(1, 1, 2);
    assert_eq!(rig.phase(2), Some(PeerPhase::Connecting));
    rig.answers(1);
    rig.send(1, C2m::WithdrawVote(RequestId(1)));
    rig.nothing(1);
    rig.confirm_all();
    assert!(matches!(rig.answer(1), M2c::TopologyDone(done) if done.sizes.global == 2));

    // If the round does not bring what the vote waits for, the vote is gone at its end.
    rig.register(3, 0);
    rig.vote_topology(2, 5, 0);
    rig.vote_topology(1, 2, 4);
    assert_eq!(rig.phase(3), Some(PeerPhase::Connecting));
    rig.answers(1);
    rig.send(1, C2m::WithdrawVote(RequestId(2)));
    rig.nothing(1);
    rig.confirm_all();
    let is_gone = |packet: &M2c| matches!(packet, M2c::VoteWithdrawn(gone) if gone.request == RequestId(2));
    assert!(rig.answers(1).iter().any(is_gone));
}
