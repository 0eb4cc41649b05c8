//! Collectives, and send and receive, that cannot end well: calls that differ or fit nobody, limits, members that go.

use super::{PATIENCE, Peers, content, late, new_master, verdict_of};
use pccl::{
    Block, CallKind, Cause, CollectiveKind, CollectiveOptions, Communicator, Error, ReduceInfo, ReduceOp,
    ReduceOptions, Remedy, Scheme,
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

#[test]
fn different_calls_with_one_tag_fail_for_all_and_name_both() {
    let peers = Peers::new(2);
    let errors = peers.each(|comm| {
        let mut data = [1.0_f32; 4];
        let error = match comm.world().rank {
            0 => comm.broadcast(&mut data, 1, ()).expect_err("the other one reduces"),
            _ => comm.all_reduce(&mut data, ReduceOp::Sum).expect_err("the other one broadcasts"),
        };
        assert_eq!(data, [1.0; 4]);
        error
    });
    assert_eq!(errors[0], errors[1]);
    assert_eq!((verdict_of(&errors[0]).cause, errors[0].remedy()), (Cause::MismatchedCall, Remedy::GiveUp));
    let text = errors[0].to_string();
    assert!(text.contains("as broadcast from") && text.contains("as all-reduce"), "{text}");
    // Roots that differ are calls that differ.
    let errors =
        peers.each(|comm| comm.broadcast(&mut [1_u8], comm.world().rank, ()).expect_err("two roots"));
    assert!(errors[0].to_string().starts_with("broadcast tag 0"), "{}", errors[0]);
}

#[test]
fn calls_for_members_that_are_gone_fail_for_all_and_may_be_made_again() {
    let mut peers = Peers::new(3);
    let gone = peers.all.pop().expect("three");
    let root = gone.id().expect("connected");
    gone.close();
    let errors = peers.each(|comm| {
        let mut data = [2.5_f64; 3];
        let error = comm.broadcast(&mut data, root, ()).expect_err("the root has left");
        assert_eq!(data, [2.5; 3]);
        error
    });
    assert_eq!(errors[0], errors[1]);
    let verdict = verdict_of(&errors[0]);
    assert_eq!((verdict.cause, errors[0].remedy()), (Cause::WorldChanged, Remedy::Retry));
    assert_eq!(verdict.culprits.iter().map(|culprit| culprit.peer).collect::<Vec<_>>(), [root]);
    let errors = peers.each(|comm| comm.all_gather(&[1_u8], &mut [0; 3], ()).expect_err("for three"));
    assert_eq!(verdict_of(&errors[0]).cause, Cause::WorldChanged);
    assert!(errors[0].to_string().contains("called for 3 peers, and the group has 2"), "{}", errors[0]);
    // The verdict has brought the world with it.
    let results = peers.each(|comm| {
        let world = comm.world();
        let mut recv = vec![9; world.ring.len()];
        comm.all_gather(&[world.rank as u8], &mut recv, ()).map(|_| recv)
    });
    assert!(results.into_iter().all(|recv| recv == Ok(vec![0, 1])));
}

#[test]
fn a_rank_means_who_had_it_in_the_world_that_the_caller_saw() {
    let mut peers = Peers::new(4);
    let first = peers.all.remove(0);
    let meant = peers.all[0].id().expect("connected");
    drop(first);
    // Nobody has made a call since, so all of them mean the second one by rank 1.
    assert!(peers.all.iter().all(|comm| comm.world().ring[1] == meant));
    let errors = peers.each(|comm| {
        let mut data = [comm.world().rank as u8; 3];
        let error = comm.broadcast(&mut data, 1, ()).expect_err("ranks of a world that is over");
        assert_eq!(data, [data[0]; 3]);
        error
    });
    assert!(errors.iter().all(|error| verdict_of(error).cause == Cause::WorldChanged), "{errors:?}");
    assert_eq!(errors[0].remedy(), Remedy::Retry);
    assert!(peers.all.iter().all(|comm| comm.world().ring[0] == meant), "the verdict has brought the world");
    let roots = peers.each(|comm| {
        let mut data = [comm.world().rank as u8];
        comm.broadcast(&mut data, 1, ()).map(|_| data[0])
    });
    assert!(roots.into_iter().all(|root| root == Ok(1)));
    // A root that is named by its identity is the same peer in any world.
    drop(peers.all.remove(0));
    let root = peers.all[1].id().expect("connected");
    let results = peers.each(|comm| comm.broadcast(&mut [0_u8], root, ()).map(|info| info.world_size));
    assert_eq!(results, [Ok(2), Ok(2)]);
}

#[test]
fn a_success_shows_who_took_part_also_if_one_of_them_is_gone() {
    let holds = Arc::new(AtomicBool::new(false));
    let master = new_master();
    let through = late::proxy(master.local_addr(), holds.clone()).to_string();
    let direct = master.local_addr().to_string();
    let mut peers = Peers::at(&[through, direct.clone(), direct], master);
    let late = peers.all.iter().position(|comm| comm.name() == "peer0").expect("it is there");
    let late = peers.all.remove(late);
    let (before, gone) = (late.world(), peers.all.pop().expect("two others"));
    let rank = before.ring.iter().position(|peer| Some(*peer) == gone.id()).expect("a member");
    holds.store(true, Ordering::SeqCst);
    let other = peers.all.pop().expect("one is left");
    thread::scope(|scope| {
        // It hears of the success after it has heard that the third one is gone.
        let succeeds = scope.spawn(|| late.all_gather(&[7_u8], &mut [0; 3], ()).map(|info| info.world_size));
        scope.spawn(|| other.all_gather(&[8_u8], &mut [0; 3], ()).expect("all are there"));
        gone.all_gather(&[9_u8], &mut [0; 3], ()).expect("all are there");
        gone.close();
        assert_eq!(succeeds.join().expect("no panic"), Ok(3));
        holds.store(false, Ordering::SeqCst);
    });
    assert_eq!(late.world().ring, before.ring, "what it shows is what took part");
    // The root of that rank is gone, whoever has the rank now.
    thread::scope(|scope| {
        for comm in [&late, &other] {
            scope.spawn(move || {
                let mut data = [1_u8; 3];
                let error = comm.broadcast(&mut data, rank, ()).expect_err("that rank is of another world");
                assert_eq!((verdict_of(&error).cause, data), (Cause::WorldChanged, [1; 3]));
            });
        }
    });
}

#[test]
fn a_call_that_fits_no_world_is_wrong_for_good_the_second_time() {
    let peers = Peers::new(3);
    let gather = |comm: &Communicator, parts: usize| comm.all_gather(&[1_u8], &mut vec![0; parts], ());
    // A loop of steps ends with it, and does not try for ever.
    let errors = peers.each(|comm| {
        let mut steps = 0;
        let result = comm.run(
            &mut steps,
            3,
            |_| true,
            |comm, steps| {
                *steps += 1;
                gather(comm, 4).map(drop)
            },
        );
        (result.expect_err("there are three"), steps)
    });
    let ids: Vec<String> = peers.all.iter().map(|comm| comm.id().expect("connected").to_string()).collect();
    for (error, steps) in &errors {
        let text = error.to_string();
        assert!(matches!(error, Error::InvalidArgument(_)) && error.remedy() == Remedy::GiveUp, "{text}");
        assert!(
            text.contains("all-gather of 4 equal parts") && ids.iter().all(|id| text.contains(id)),
            "{text}"
        );
        assert_eq!((*steps, text), (2, errors[0].0.to_string()));
    }
    // A call that fits goes on, and another kind has a row of its own.
    assert!(peers.each(|comm| gather(comm, 3)).iter().all(Result::is_ok));
    let errors = peers.each(|comm| gather(comm, 4).expect_err("there are three"));
    assert!(errors.iter().all(|error| verdict_of(error).cause == Cause::WorldChanged));
}

#[test]
fn each_has_a_limit() {
    let peers = Peers::new(2);
    let (comm, short) = (&peers.all[0], Duration::from_millis(200));
    let options = || CollectiveOptions { timeout: Some(short), ..CollectiveOptions::default() };
    let mut data = [3.0_f32; 2];
    let call = |error: Error| match error {
        Error::TimedOut { call, verdict: Some(_), .. } => call,
        other => panic!("{other}"),
    };
    let kinds = [
        (comm.broadcast(&mut data, 1, options()), CollectiveKind::Broadcast),
        (comm.all_gather(&[1.0], &mut [0.0_f32; 2], options()), CollectiveKind::AllGather),
        (comm.reduce(&mut data, 0, ReduceOptions::new(ReduceOp::Max).timeout(short)), CollectiveKind::Reduce),
        (comm.weighted_average(&mut data, 1.0, options()), CollectiveKind::AllReduce),
        (comm.gather(&[1.0], &mut [0.0_f32; 2], 0, options()), CollectiveKind::Gather),
        (comm.scatter(&[1.0; 2], &mut [0.0_f32], 0, options()), CollectiveKind::Scatter),
        (comm.all_to_all(&[1.0; 2], &mut [0.0_f32; 2], options()), CollectiveKind::AllToAll),
    ];
    for (result, kind) in kinds {
        assert_eq!(call(result.expect_err("nobody else calls it")), CallKind::Collective(kind));
    }
    assert_eq!(data, [3.0; 2]);
}

#[test]
fn buffers_that_do_not_fit_are_refused_at_once() {
    let peers = Peers::new(2);
    let comm = &peers.all[0];
    let mut data = [0.0_f32; 5];
    let refused = [
        comm.broadcast(&mut data, 2, ()),
        comm.reduce(&mut data, 2, ReduceOp::Sum),
        comm.all_gather(&[1.0, 2.0], &mut data, ()),
        comm.all_gather_counts(&[1.0, 2.0], &mut data, &[2, 4], ()),
        comm.all_gather_counts(&[1.0], &mut data, &[1, 2, 2], ()),
    ];
    for result in refused {
        assert!(matches!(result, Err(Error::InvalidArgument(_))), "{result:?}");
    }
}

#[test]
fn two_who_do_not_agree_on_what_is_sent_both_learn_it() {
    let peers = Peers::new(3);
    let errors = peers.each(|comm| {
        let (mut data, before) = (vec![7.0_f32; 10], vec![7.0_f32; 10]);
        let result = match comm.world().rank {
            0 => comm.send(&data, 1, ()),
            1 => comm.recv(&mut data[..9], 0, ()),
            // Nobody waits for this one.
            _ => return None,
        };
        assert_eq!(data, before);
        Some(result.expect_err("lengths differ"))
    });
    for error in errors.iter().flatten() {
        let verdict = verdict_of(error);
        assert_eq!(verdict.cause, Cause::MismatchedCall);
        assert_eq!(verdict.culprits.len(), 2);
    }
    // The tag is usable again.
    let sums = peers.each(|comm| {
        let mut data = content(0, 100);
        match comm.world().rank {
            0 => comm.send(&data, 1, ()).map(drop),
            1 => {
                data.fill(0.0);
                comm.recv(&mut data, 0, ()).map(drop)
            }
            _ => Ok(()),
        }
        .expect("fits");
        data
    });
    assert!(sums.iter().all(|data| *data == content(0, 100)));
}

#[test]
fn what_cannot_be_sent_is_refused() {
    let peers = Peers::new(2);
    let comm = &peers.all[0];
    let refused = |result: Result<ReduceInfo, Error>, part: &str| {
        let error = result.expect_err("refused");
        assert!(matches!(&error, Error::InvalidArgument(text) if text.contains(part)), "{error}");
    };
    refused(comm.send(&[1.0_f32], 0, ()), "to itself");
    refused(comm.recv(&mut [1.0_f32], comm.id().expect("connected"), ()), "to itself");
    refused(comm.send(&[1.0_f32], 2, ()), "no rank 2 in a group of 2");
    let quantised =
        CollectiveOptions { quantisation: Some(Scheme::BlockAffineU8(Block::B64).into()), ..().into() };
    refused(comm.send(&[1.0_f32], 1, quantised), "not quantised");
    let gone = pccl::PeerId(77);
    let error = comm.send(&[1.0_f32], gone, ()).expect_err("no such member");
    let verdict = verdict_of(&error);
    assert_eq!((verdict.cause, verdict.culprits[0].peer), (Cause::WorldChanged, gone));
}

#[test]
fn who_receives_waits_as_long_as_it_wants_and_the_end_of_a_third_is_none_of_its_business() {
    let mut peers = Peers::new(4);
    let timeout = Some(Duration::from_millis(300));
    let options = CollectiveOptions { timeout, ..CollectiveOptions::default() };
    let error = peers.all[1].recv(&mut [0.0_f32; 4], 0, options).expect_err("nobody sends");
    assert!(matches!(&error, Error::TimedOut { .. }), "{error}");
    let verdict = verdict_of(&error);
    assert_eq!(verdict.culprits.len(), 1, "{verdict}");
    assert_eq!(Some(verdict.culprits[0].peer), peers.all[0].id(), "{verdict}");
    // The sender learns the outcome of the try that was given up.
    let late = peers.all[0].send(&[0.0_f32; 4], 1, ()).expect_err("was given up");
    assert_eq!(verdict_of(&late).cause, Cause::CallTimeout);
    let third = peers.all.pop().expect("four");
    thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let mut data = vec![0.0_f32; 100_000];
            peers.all[1].recv(&mut data, 0, 5).expect("it comes");
            data
        });
        let _ = third.close_within(PATIENCE);
        drop(third);
        let data = content(0, 100_000);
        peers.all[0].send(&data, 1, 5).expect("it is received");
        assert!(receiver.join().expect("no panic") == data);
    });
}
