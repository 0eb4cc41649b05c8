//! Large all-reduces in two levels over sites between processes: results are those of an independent oracle, bit for
//! bit, and a death anywhere costs the others one attempt. The fate of a site that is cut off is in `tests/faults`.

use crate::{
    fleet::{Fleet, config},
    kill::{Seen, reduce_with_death_by},
    quantised::{FLOATS, SCHEMES, quantised},
};
use pccl::{Block, DataType, Quantisation, ReduceOp, Scheme};
use pccl_tests::{pattern::mix, spec::Spec};

/// Peers in these sites, once they reduce over sites.
fn fleet(sites: &[&str]) -> Fleet {
    let settings: Vec<String> = sites.iter().map(|site| format!("site={site}")).collect();
    let settings: Vec<[&str; 1]> = settings.iter().map(|setting| [setting.as_str()]).collect();
    let settings: Vec<&[&str]> = settings.iter().map(<[&str; 1]>::as_slice).collect();
    let mut fleet = Fleet::with_each(config(), &settings);
    fleet.await_schedule("sites");
    fleet
}

/// Asks for it, and requires that it takes place, and that send buffers are only read.
#[track_caller]
fn reduce(fleet: &mut Fleet, spec: Spec) {
    let ranks = fleet.len();
    // Where there is nothing to move no way is better than another.
    let way = if spec.count == 0 { "ring" } else { "sites" };
    for answer in fleet.reduce_by("sites", spec) {
        assert_eq!(answer.field("algorithm"), way, "{spec}: {answer:?}");
        assert_eq!(answer.field("sent"), "true", "{spec}: the send buffer was changed");
        assert_eq!(answer.number("participants"), ranks);
    }
}

/// Every type and operation: no elements, fewer than peers, chunks of unequal size. And large ones with several frames
/// in each chunk.
fn everything(sites: &[&str]) {
    let (mut fleet, peers) = (fleet(sites), sites.len());
    let counts = [0, 1, peers - 1, peers + 1, 1025];
    for (at, data_type) in DataType::ALL.into_iter().enumerate() {
        for (op_at, op) in ReduceOp::ALL.into_iter().enumerate() {
            let case = at + op_at;
            let (count, in_place) = (counts[case % counts.len()], case % 2 == 0);
            let seed = mix((at * 8 + op_at) as u64);
            reduce(&mut fleet, Spec { data_type, op, count, seed, in_place, quantisation: None });
        }
    }
    for (case, op) in ReduceOp::ALL.into_iter().enumerate() {
        let spec = Spec { op, in_place: case % 2 == 0, ..Spec::sum(peers * 40_000 + case, case as u64) };
        reduce(&mut fleet, spec);
    }
}

#[test]
fn every_type_and_operation_with_a_site_of_one() {
    everything(&["a", "a", "b"]);
}

#[test]
fn every_type_and_operation_over_uneven_sites() {
    everything(&["a", "b", "b", "a", "b", "c"]);
}

/// Neighbours in the ring are in other sites, and there are more peers than have a mesh whatever it is worth.
#[test]
fn every_type_and_operation_with_nine_peers_in_three_sites() {
    everything(&["a", "b", "c", "a", "b", "c", "a", "b", "c"]);
}

/// Points that each rank passes, with three frames in each chunk, and how the others see a death there. A rank that has
/// got results may have sent its own as well.
const POINTS: [(&str, usize, Seen); 10] = [
    ("to master: Initiate", 1, Seen::Nothing),
    ("from master: Commence", 1, Seen::Verdict),
    ("frame begins, a contribution", 1, Seen::Verdict),
    ("frame begins, a contribution", 5, Seen::Verdict),
    ("frame complete, a contribution", 1, Seen::Verdict),
    ("frame complete, a contribution", 4, Seen::Verdict),
    ("frame begins, a result", 1, Seen::Either),
    ("frame complete, a result", 6, Seen::Either),
    ("to master: Complete", 1, Seen::Either),
    ("from master: Outcome", 1, Seen::Success),
];

/// Sums and averages, stochastic rounding, in place and out of place: all hold the same bytes, and send buffers are
/// only read. How far results are off is measured by `pccl/tests/sites.rs`.
#[test]
fn every_scheme_and_type() {
    let mut fleet = fleet(&["a", "b", "b", "a", "b", "c"]);
    let mut case = 0;
    for (scheme, data_type) in SCHEMES.into_iter().flat_map(|scheme| FLOATS.map(|it| (scheme, it))) {
        case += 1;
        let op = if case % 2 == 0 { ReduceOp::Sum } else { ReduceOp::Avg };
        let how = Quantisation::new(scheme);
        let how = if case % 3 == 0 && scheme.has_stochastic() { how.stochastic(case) } else { how };
        let count = [0, 1, 5, 7, 1025, 40_003, 200_001][case as usize % 7];
        reduce(&mut fleet, Spec { in_place: case % 5 < 3, ..quantised(data_type, op, count, how) });
    }
}

/// One verdict for all, inputs bit-identical, and the retry succeeds, whichever way it goes. The dead peer is in turn
/// of a site of two, and the whole of a site of one: without it the others are sites all the same.
fn deaths(specs: [Spec; 2]) {
    let sites = ["a", "a", "b", "b", "c"];
    let mut fleet = fleet(&sites);
    // A new peer is the last one in the list, so the sites in it change places.
    let mut places = sites.to_vec();
    for (case, (point, nth, seen)) in POINTS.into_iter().enumerate() {
        let victim = case * 2 % sites.len();
        let spec = Spec { seed: case as u64, ..specs[case % 2] };
        reduce_with_death_by("sites", &mut fleet, victim, (point, nth, seen), spec);
        fleet.await_schedule("sites");
        let site = places.remove(victim);
        fleet.join(&[&format!("site={site}")]);
        places.push(site);
        fleet.await_schedule("sites");
    }
}

#[test]
fn a_death_at_each_point() {
    deaths([true, false].map(|in_place| Spec { in_place, ..Spec::sum(5 * 40_000, 0) }));
}

#[test]
fn a_death_at_each_point_of_a_quantised_all_reduce() {
    let schemes = [Scheme::BlockAffineU8(Block::B256), Scheme::MinMax(DataType::Uint8)];
    deaths(schemes.map(|scheme| quantised(DataType::Float32, ReduceOp::Avg, 5 * 70_000, scheme)));
}

/// All peers of a site die at once, in the middle of an operation: while they fold, and while they get results.
/// The peers that are left agree on who it was, have their inputs, and go on: over the sites that are left, or around
/// the ring if that is one.
#[test]
fn a_whole_site_dies() {
    for (case, point) in ["a contribution", "a result"].into_iter().enumerate() {
        let mut fleet = fleet(&["a", "b", "b", "c", "b", "a", "c"]);
        for (site, left, way) in [("b", 4, "sites"), ("a", 2, "ring")] {
            let dead: Vec<usize> = (0..fleet.len()).filter(|place| fleet.site_of(*place) == site).collect();
            let spec = Spec { in_place: case % 2 == 0, ..Spec::sum(7 * 40_000, case as u64) };
            fleet[dead[0]].ask(format!("trap stop 2 frame begins, {point}")).good();
            fleet.send(format!("reduce {spec} 7 20 sites"));
            // None of them takes part in the next try before it is killed.
            dead[1..].iter().for_each(|place| fleet[*place].stop());
            dead.iter().for_each(|place| fleet[*place].await_stop());
            dead.iter().for_each(|place| fleet[*place].kill());
            let ids: Vec<String> =
                dead.iter().map(|place| fleet[*place].id.clone().expect("connected")).collect();
            dead.iter().rev().for_each(|place| fleet.remove(*place));
            let answers = fleet.answers();
            fleet.check(&[spec], &answers);
            for answer in &answers {
                // The master may have heard of one of them before of the others.
                let errors = answer.field("errors").split('|').all(|error| error == "Aborted:PeerDied");
                assert!(errors && answer.number("failures") <= dead.len(), "{answer:?}");
                assert_eq!(answer.text, answers[0].text, "the verdict is not the same for all");
                assert!(ids.iter().any(|id| answer.text.contains(&id[..8])), "nobody is named: {answer:?}");
                assert_eq!(answer.number("participants"), left, "{answer:?}");
            }
            fleet.await_schedule(way);
        }
    }
}
