//! Every kind of collective between processes, and what the others see when one of them dies in it.

use crate::{
    fleet::{Fleet, full},
    peer::Answer,
};
use pccl_tests::{
    collectives::{KINDS, bytes, expected},
    pattern,
    spec::Spec,
};

/// Several frames in each chunk of three ranks.
const LARGE: usize = 600_000;

/// Checks what each peer has afterwards.
#[track_caller]
fn check(fleet: &mut Fleet, kind: &str, count: usize, answers: &[Answer]) {
    for answer in answers {
        let answer = answer.clone().good();
        assert_eq!(
            answer.field("restored"),
            "true",
            "{kind}: a failed call has changed its input: {answer:?}"
        );
        let (participants, own) = (answer.number("participants"), answer.number("own"));
        let orders = fleet.orders(&answer, participants);
        let digest = |order: &Vec<usize>| pattern::digest(&bytes(&expected(kind, order, own, count)));
        assert!(
            orders.iter().any(|order| digest(order) == answer.field("digests")),
            "{kind}: rank {own} has what no order {orders:?} yields: {answer:?}"
        );
    }
}

#[test]
fn each_kind_yields_what_it_should() {
    for peers in [2, 3, 4] {
        let mut fleet = Fleet::new(peers);
        for (kind, count) in KINDS.into_iter().flat_map(|kind| [(kind, 1000), (kind, LARGE)]) {
            let answers = fleet.all(format!("collective {kind} {count} 3 20"));
            check(&mut fleet, kind, count, &answers);
        }
    }
}

/// Places in the life of a collective of three ranks at which one dies: before it has voted, in the transfer, and
/// when it has all it needs. Which ranks receive anything depends on the kind, so it is those that all kinds with
/// data share.
const POINTS: [(&str, usize); 5] = [
    ("to master: Initiate", 1),
    ("from master: Commence", 1),
    ("frame begins, stage 0 of 2", 1),
    ("frame complete, stage 0 of 2", 2),
    ("to master: Complete", 1),
];

#[test]
fn a_death_at_each_point_leaves_inputs_as_they_were_and_the_others_go_on() {
    let mut fleet = Fleet::new(3);
    for (case, (kind, (point, nth))) in
        KINDS.into_iter().flat_map(|kind| POINTS.map(|point| (kind, point))).enumerate()
    {
        let has_frames = kind != "barrier" || !point.starts_with("frame");
        if !has_frames || !(full() || case % 2 == 0) {
            continue;
        }
        // The rank in the middle of the chain that leads from rank 0 (broadcast) or to it (reduce, gather).
        let world = fleet.all("world").swap_remove(0);
        fleet.orders(&world, 3);
        let middle = &world.ring()[if ["reduce", "gather"].contains(&kind) { 2 } else { 1 }];
        let victim = (0..3).find(|place| fleet[*place].id.as_ref() == Some(middle)).expect("a member");
        let what = format!("{kind}, death at {nth}. {point:?}");
        fleet[victim].ask(format!("trap kill {nth} {point}")).good();
        fleet.send(format!("collective {kind} {LARGE} 7 20"));
        fleet[victim].await_death();
        let id = fleet[victim].id.clone().expect("connected");
        fleet.remove(victim);
        let answers = fleet.answers();
        for answer in &answers {
            let (answer, causes) = (answer.clone().good(), answer.list("errors").join("|"));
            // A peer that still calls for three, or for a root that is another rank now, hears of it and looks again.
            let known = ["Aborted:PeerDied", "Aborted:WorldChanged"];
            assert!(
                causes.split('|').all(|cause| cause.is_empty() || known.contains(&cause)),
                "{what}: {answer:?}"
            );
            if causes.starts_with("Aborted:PeerDied") {
                assert!(answer.text.contains(&id[..8]), "{what}: the dead one is not named: {answer:?}");
            }
            assert_eq!(answer.text, answers[0].text, "{what}: the verdict is not the same for all");
        }
        check(&mut fleet, kind, LARGE, &answers);
        fleet.reduce(Spec::sum(10, 1));
        fleet.join(&[]);
        fleet.reduce(Spec::sum(1000, case as u64));
    }
}
