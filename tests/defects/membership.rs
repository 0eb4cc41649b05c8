//! Counting of members, blame, and waits for others.

use crate::{
    fleet::{Fleet, config},
    peer::{Answer, Peer},
    raw::{self, Client},
    support::{Meeting, PATIENCE, count, join, master, run, run_plain, settings, wait_until},
};
use pccl::{Error, KickCode, PeerStage, ReduceOp, Remedy, SharedState, SyncStrategy};
use pccl_protocol::{C2m, GroupEpoch, M2c, ReachPlan, ReachReport};
use pccl_tests::spec::Spec;
use std::{io::Write as _, net::Shutdown, thread, time::Duration};

/// The original blames whoever reports that a peer cannot be reached: both neighbours of a newcomer whose port is dead
/// are kicked, and the third peer hangs. Here the newcomer goes and nobody notices.
#[test]
fn bug_03_a_newcomer_that_cannot_be_reached_is_the_only_one_to_go() {
    let master = master();
    // Its registration names ports on which nobody listens.
    let (registered, over) = (Meeting::new(4), Meeting::new(4));
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let comm = join(settings(&master), 3);
                assert_eq!(count(&comm), 3);
                registered.wait();
                registered.wait();
                comm.update_topology().expect("nobody is blamed for the dead port of another");
                assert_eq!((comm.world().global_size, comm.world().ring.len()), (3, 3));
                assert_eq!(count(&comm), 3);
                over.wait();
            });
        }
        registered.wait();
        let (mut unreachable, me) = Client::register(master.local_addr(), 0);
        let mut stream = unreachable.stream.try_clone().expect("a descriptor");
        scope.spawn(move || {
            // Until the master closes: a newcomer that does not beat would go for its silence instead.
            let mut beats = (0..).map(|sequence| raw::beat(sequence).to_frame());
            while beats.next().is_some_and(|beat| stream.write_all(&beat).is_ok()) {
                thread::sleep(Duration::from_millis(50));
            }
        });
        registered.wait();
        // It says that it reaches everybody.
        let mut epoch = GroupEpoch(0);
        let reason = loop {
            match unreachable.receive().expect("the reason comes before the end") {
                M2c::GroupPlan(plan) => epoch = plan.epoch,
                M2c::ReachPlan(ReachPlan { check, .. }) => {
                    unreachable.send(&C2m::ReachReport(ReachReport { check, epoch, unreached: Vec::new() }));
                }
                M2c::Kicked(reason) => break reason,
                _ => {}
            }
        };
        unreachable.stream.shutdown(Shutdown::Both).expect("the beats end");
        assert_eq!(reason.code, KickCode::Unreachable);
        assert!(reason.to_string().contains(&me.peer.to_string()), "the edge is not named: {reason}");
        over.wait();
    });
}

/// Two groups of one run: three peers and two.
fn groups() -> Fleet {
    let mut fleet = Fleet::empty(config());
    for group in ["group=1", "group=1", "group=1", "group=2", "group=2"] {
        fleet.spawn(&[group]);
    }
    fleet.send("connect");
    fleet.send("wait 5 0");
    for _ in 0..2 {
        fleet.answers().into_iter().map(Answer::good).for_each(drop);
    }
    fleet.meet();
    fleet
}

/// After a failed reduce the original votes on new connections with the whole run, and a vote to let peers in never
/// completes that one: both groups hang. Here a ring is repaired inside its group.
#[test]
fn bug_05_a_group_recovers_while_the_other_group_waits_in_update_topology() {
    let mut fleet = groups();
    fleet.peers[3..].iter_mut().for_each(|peer| peer.send("topology"));
    fleet[3].await_log("command topology");
    let spec = Spec::sum(1_000_000, 1);
    fleet[1].ask("trap kill 1 frame complete, stage 1 of 4").good();
    fleet.peers[..3].iter_mut().for_each(|peer| peer.send(format!("reduce {spec} 0 5")));
    fleet[1].await_death();
    fleet.remove(1);
    let answers: Vec<_> = fleet.peers[..2].iter_mut().map(Peer::answer).collect();
    fleet.check(&[spec], &answers);
    assert!(answers.iter().all(|answer| answer.field("errors") == "Aborted:PeerDied"), "{answers:?}");
    // The vote of the other group still stands, and is answered once this group votes as well.
    fleet.peers[..2].iter_mut().for_each(|peer| peer.send("topology"));
    for answer in fleet.answers() {
        assert_eq!(answer.good().field("global"), "4");
    }
}

/// In the original a lone survivor counts a newcomer that nobody has let in, so that "reduce while there are two" goes
/// round for ever. Here sizes count members, and the remedy of the error lets the newcomer in.
#[test]
fn bug_06_a_lone_survivor_does_not_count_who_waits_outside() {
    let master = master();
    let (both, leave) = (Meeting::new(2), Meeting::new(2));
    thread::scope(|scope| {
        scope.spawn(|| {
            let comm = join(settings(&master), 2);
            both.wait();
            leave.wait();
            comm.close();
        });
        let survivor = join(settings(&master), 2);
        both.wait();
        let newcomer = scope.spawn(|| count(&join(settings(&master), 2)));
        let stages = |stage| {
            let peers = survivor.status().expect("status").peers;
            peers.iter().filter(|peer| peer.stage == stage).count()
        };
        wait_until("somebody waits outside", || stages(PeerStage::Pending) == 1);
        leave.wait();
        wait_until("one is left", || stages(PeerStage::Accepted) == 1);
        let error = survivor.all_reduce(&mut [1f32; 10], ReduceOp::Sum).unwrap_err();
        assert_eq!(error, Error::TooFewPeers { have: 1, need: 2, in_group: true });
        assert_eq!((survivor.world().global_size, survivor.world().group_size), (1, 1));
        assert_eq!(error.remedy(), Remedy::WaitForPeers);
        survivor.wait_for_world(2, Some(PATIENCE)).expect("the newcomer is let in");
        assert_eq!(count(&survivor), 2);
        assert_eq!(newcomer.join().expect("no panic"), 2);
    });
}

/// A loop over `update_topology` until it succeeds never ends in the original once the master is gone or has kicked the
/// caller: the code is the same as for what passes. Here the error says that the connection is over.
#[test]
fn bug_06_a_call_after_the_end_says_to_reconnect() {
    let gone = master();
    let comm = join(settings(&gone), 1);
    drop(gone);
    for _ in 0..3 {
        let error = comm.update_topology().unwrap_err();
        assert!(matches!(error, Error::Kicked(_) | Error::MasterLost(_)), "{error}");
        assert_eq!(error.remedy(), Remedy::Reconnect);
    }
}

/// The original acknowledges a connection before it has stored it: a reduce right after a join may not find it. Here no
/// vote counts before every end of every connection has been confirmed.
#[test]
fn bug_22_the_first_reduce_after_each_join_succeeds() {
    const ROUNDS: usize = 30;
    let master = master();
    let step = Meeting::new(3);
    let pooled = || settings(&master).pool_size(4);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let comm = join(pooled(), 2);
                for _ in 0..ROUNDS {
                    step.wait();
                    comm.wait_for_world(3, Some(PATIENCE)).expect("somebody comes");
                    assert_eq!(count(&comm), 3);
                    step.wait();
                }
            });
        }
        for _ in 0..ROUNDS {
            step.wait();
            let comm = join(pooled(), 3);
            assert_eq!(count(&comm), 3);
            comm.close_within(PATIENCE).expect("nothing is in flight");
            step.wait();
        }
    });
}

/// In the original every agreement is one of the whole run, so that a slow peer of one group holds up all others. Here
/// a peer that makes no call at all holds up nothing but the admission of newcomers.
#[test]
fn gap_07_a_group_works_while_another_one_makes_no_call() {
    let master = master();
    run(
        &master,
        4,
        |index, settings| settings.peer_group(if index < 2 { 1 } else { 2 }),
        |index, comm| {
            if index >= 2 {
                return;
            }
            for revision in 0..3 {
                assert_eq!(count(comm), 2);
                let mut weights = [revision as f32 + index as f32; 100];
                let mut state = SharedState::new(revision);
                state.tensor("w", &mut weights).expect("key");
                comm.sync_shared_state(&mut state, SyncStrategy::EnforcePopular).expect("sync");
            }
            if index == 0 {
                comm.close();
            } else {
                wait_until("the other one has left", || comm.status().expect("status").sizes.global == 3);
                let error = comm.all_reduce(&mut [1u8], ReduceOp::Sum).unwrap_err();
                assert!(matches!(error, Error::TooFewPeers { have: 1, .. }), "{error}");
            }
        },
    );
}

/// The original has no ranks in its interface, and sorts its rings by random identities. Here the ring is the order of
/// admission, the same on all, with the own rank.
#[test]
fn gap_15_ranks_are_known_and_follow_the_order_of_joining() {
    run_plain(4, |_, comm| {
        let world = comm.world();
        assert_eq!(world.ring.len(), 4);
        let status = comm.status().expect("status");
        assert_eq!(status.groups[0].ring, world.ring);
        let mut ranks = [0u32; 4];
        ranks[world.rank] = 1;
        comm.all_reduce(&mut ranks, ReduceOp::Sum).expect("no abort");
        assert_eq!(ranks, [1; 4], "each rank is that of one peer");
    });
    let master = master();
    let first = join(settings(&master), 1);
    let own = first.world().ring[0];
    thread::scope(|scope| {
        let waiting = scope.spawn(|| first.wait_for_world(2, Some(PATIENCE)));
        let second = join(settings(&master), 2);
        let world = waiting.join().expect("no panic").expect("complete");
        assert_eq!((world.rank, world.ring[0]), (0, own));
        assert_eq!((second.world().rank, second.world().ring), (1, world.ring));
    });
}
