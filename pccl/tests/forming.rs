//! Groups of given members, and a world of one. Peers are threads of this process.

use crate::formed::{PATIENCE, all, form, master, names, peer};
use pccl::{
    Cause, Communicator, Error, Master, Member, Phase, Quantisation, ReduceOp, ReduceOptions, Remedy, Scheme,
    SharedState, SyncStrategy, Verdict,
};
use std::{thread, time::Duration};

/// The limit of whoever gives up.
const SHORT: Duration = Duration::from_millis(300);

fn peers<const N: usize>(master: &Master, names: [&str; N]) -> [Communicator; N] {
    names.map(|name| peer(master, name))
}

fn sum(comm: &Communicator) -> Result<(f32, usize), Error> {
    let mut data = [1.0_f32 + comm.world().rank as f32; 3];
    let before = data;
    let info = comm.all_reduce(&mut data, ReduceOp::Sum).inspect_err(|_| assert_eq!(data, before))?;
    Ok((data[0], info.world_size))
}

#[track_caller]
fn broken(error: &Error) -> Verdict {
    assert_eq!(error.remedy(), Remedy::FormGroup, "{error}");
    error.verdict().expect("a verdict").clone()
}

fn culprits(verdict: &Verdict) -> Vec<&str> {
    verdict.culprits.iter().map(|culprit| culprit.name.as_str()).collect()
}

#[test]
fn the_list_gives_the_ranks_and_a_loss_breaks_the_group_until_the_next_forming() {
    let master = master();
    let [a, b, c] = peers(&master, ["a", "b", "c"]);
    let worlds = form(&[&a, &b, &c], 1, &["c", "a", "b"]);
    assert_eq!(worlds.iter().map(|world| world.rank).collect::<Vec<_>>(), [1, 2, 0]);
    assert_eq!(worlds[0].ring, [&c, &a, &b].map(|comm| comm.id().expect("registered")));
    assert_eq!(worlds[0].group_size, 3);
    for result in all(&[&a, &b, &c], sum) {
        assert_eq!(result, Ok((6.0, 3)));
    }
    c.close();
    for error in all(&[&a, &b], |comm| sum(comm).expect_err("a member is missing")) {
        let verdict = broken(&error);
        assert_eq!((verdict.cause, culprits(&verdict)), (Cause::GroupBroken, vec!["c"]));
        assert!(verdict.detail.as_str().contains("formed again"), "{verdict}");
    }
    let mut weights = [1.0_f32; 4];
    let mut state = SharedState::new(0);
    state.tensor("weights", &mut weights).expect("a new key");
    let error =
        a.sync_shared_state(&mut state, SyncStrategy::EnforcePopular).expect_err("a member is missing");
    assert_eq!(culprits(&broken(&error)), ["c"]);
    let worlds = form(&[&a, &b], 2, &["b", "a"]);
    assert_eq!(worlds.iter().map(|world| world.rank).collect::<Vec<_>>(), [1, 0]);
    for result in all(&[&a, &b], sum) {
        assert_eq!(result, Ok((3.0, 2)));
    }
}

#[test]
fn groups_split_merge_and_shrink_to_one() {
    let master = master();
    let [a, b, c, d] = peers(&master, ["a", "b", "c", "d"]);
    form(&[&a, &b, &c, &d], 1, &["a", "b", "c", "d"]);
    let halves = all(&[&a, &b, &c, &d], |comm| {
        let first = ["a", "b"].contains(&comm.name());
        let (uuid, list) = if first { (2, ["b", "a"]) } else { (3, ["c", "d"]) };
        comm.form_group_within(uuid, &names(&list), PATIENCE).expect("formed");
        sum(comm)
    });
    assert!(halves.iter().all(|result| *result == Ok((3.0, 2))), "{halves:?}");
    let alone = all(&[&a, &b, &c, &d], |comm| {
        let uuid = 10 + u128::from(comm.name().as_bytes()[0]);
        comm.form_group_within(uuid, &names(&[comm.name()]), PATIENCE).expect("formed");
        sum(comm)
    });
    assert!(alone.iter().all(|result| *result == Ok((1.0, 1))), "{alone:?}");
    form(&[&a, &b, &c, &d], 20, &["d", "c", "b", "a"]);
    let merged = all(&[&a, &b, &c, &d], sum);
    assert!(merged.iter().all(|result| *result == Ok((10.0, 4))), "{merged:?}");
}

#[test]
fn who_is_late_or_wrong_is_named_to_all() {
    let master = master();
    let [a, b, c] = peers(&master, ["a", "b", "c"]);
    let list = names(&["a", "b", "c", "d"]);
    let limits = [("a", SHORT), ("b", PATIENCE)];
    let errors = all(&[&a, &b], |comm| {
        let limit = limits.iter().find(|(name, _)| *name == comm.name()).expect("listed").1;
        comm.form_group_within(1, &list, limit).expect_err("two are missing")
    });
    assert!(
        matches!(errors[0], Error::TimedOut { .. }) && matches!(errors[1], Error::Aborted(_)),
        "{errors:?}"
    );
    for error in &errors {
        let verdict = broken(error);
        assert_eq!((verdict.cause, culprits(&verdict)), (Cause::CallTimeout, vec!["c", "d"]));
        assert!(verdict.to_string().contains("d (not connected)"), "{verdict}");
    }
    // The late one learns what became of it; and the uuid is used.
    let late = c.form_group_within(1, &list, PATIENCE).expect_err("it was decided");
    assert_eq!(broken(&late), broken(&errors[1]));
    let differ = all(&[&a, &b], |comm| {
        let order = if comm.name() == "a" { ["a", "b"] } else { ["b", "a"] };
        broken(&comm.form_group_within(2, &names(&order), PATIENCE).expect_err("the lists differ"))
    });
    assert_eq!(differ[0], differ[1]);
    assert_eq!((differ[0].cause, differ[0].phase), (Cause::MismatchedCall, Phase::Voting));
    form(&[&a, &b], 3, &["a", "b"]);
    let again = broken(&a.form_group_within(3, &names(&["a", "b"]), PATIENCE).expect_err("used"));
    assert!(again.detail.as_str().contains("already used"), "{again}");
    for result in all(&[&a, &b], sum) {
        assert_eq!(result, Ok((3.0, 2)), "a try with a used uuid changed the group");
    }
}

#[test]
fn calls_that_do_not_go_with_the_kind_of_group_are_refused_at_once() {
    let master = master();
    let a = peer(&master, "a");
    for result in [
        a.update_topology(),
        a.are_peers_pending().map(drop),
        a.wait_for_world(1, Some(SHORT)).map(drop),
        a.optimize_topology().map(drop),
        sum(&a).map(drop),
    ] {
        assert!(matches!(result, Err(Error::InvalidUsage(_))), "{result:?}");
    }
    let bad: [&[Member]; 3] = [&[], &[Member::from("two words")], &[Member::from("")]];
    for list in bad {
        assert!(matches!(a.form_group(1, list), Err(Error::InvalidArgument(_))));
    }
    // In the group of the others newcomers are let in.
    let address = master.local_addr().to_string();
    let builder = || Communicator::builder(&address).first_ports(0, 0);
    let open = builder().build().expect("valid");
    let refused = open.connect().expect_err("the group is of another kind");
    let text = refused.to_string();
    assert!(matches!(refused, Error::Refused(_)) && text.contains("group of another kind"), "{text}");
    assert_eq!(refused.remedy(), Remedy::GiveUp);
    let elsewhere = builder().peer_group(1).build().expect("valid");
    elsewhere.connect().expect("a group of its own");
    assert!(matches!(elsewhere.form_group(1, &names(&["a"])), Err(Error::InvalidUsage(_))));
}

#[test]
fn alone_a_collective_is_the_identity_and_the_run_goes_on_when_others_join() {
    let master = master();
    let address = master.local_addr().to_string();
    let builder = || Communicator::builder(&address).first_ports(0, 0);
    let usual = builder().build().expect("valid");
    usual.connect().expect("connect");
    let error = sum(&usual).expect_err("alone");
    assert!(matches!(error, Error::TooFewPeers { have: 1, need: 2, in_group: true }), "{error}");
    usual.close();

    let first = builder().world_of_one(true).build().expect("valid");
    first.connect().expect("connect");
    let odd = [f32::NAN, -0.0, f32::MIN_POSITIVE / 2.0, 1e-30];
    let bits = |data: &[f32]| data.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    for op in [ReduceOp::Sum, ReduceOp::Avg, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min] {
        let (mut data, mut recv) = (odd, [7.0; 4]);
        let info = first.all_reduce(&mut data, op).expect("alone");
        assert_eq!((info.world_size, info.rank, info.tx_bytes), (1, 0, 0));
        first.all_reduce_into(&odd, &mut recv, op).expect("alone");
        assert_eq!((bits(&data), bits(&recv)), (bits(&odd), bits(&odd)), "{op}");
    }
    let scheme = Scheme::MinMax(pccl::DataType::Uint8);
    let quantised = ReduceOptions { quantisation: Some(Quantisation::new(scheme)), ..ReduceOp::Avg.into() };
    let exact: Vec<f32> = (0..100_000).map(|i| (i as f32).sin()).collect();
    let (mut data, mut recv) = (exact.clone(), vec![0.0; exact.len()]);
    first.all_reduce(&mut data, quantised).expect("alone");
    first.all_reduce_into(&exact, &mut recv, quantised).expect("alone");
    assert!(data == exact && recv == exact, "what does not travel is not quantised");
    let mut weights = [1.0_f32; 4];
    let mut state = SharedState::new(0);
    state.tensor("weights", &mut weights).expect("a new key");
    first.sync_shared_state(&mut state, SyncStrategy::EnforcePopular).expect("alone");

    let second = builder().world_of_one(true).build().expect("valid");
    let sums = thread::scope(|scope| {
        let joins = scope.spawn(|| {
            second.connect().expect("connect");
            sum(&second)
        });
        first.wait_for_world(2, Some(PATIENCE)).expect("the second joins");
        [sum(&first), joins.join().expect("no panic")]
    });
    assert_eq!(sums, [Ok((3.0, 2)), Ok((3.0, 2))]);
    second.close();
    assert_eq!(sum(&first), Ok((1.0, 1)));
}
