//! Every algorithm on paper: each result is the fold of all contributions, each once, in the same order on every rank.

use super::{binomial::Binomial, *};
use crate::{Ownership, Plan, Program, Shape};
use pccl_protocol::{Algorithm, PartDescriptor, Site};
use pccl_quant::{
    DataType, ReduceOp,
    quantise::{Block, Quantisation, Scheme},
};
use proptest::prelude::*;
use std::{collections::BTreeSet, sync::Arc};

/// Up to this number of ranks everything is tried.
const RANKS: usize = 16;

fn parts(counts: &[usize], quantisation: Option<Quantisation>) -> Vec<PartDescriptor> {
    let part = |count: &usize| PartDescriptor {
        quantisation,
        ..PartDescriptor::new(*count as u64, DataType::Float32, ReduceOp::Sum)
    };
    counts.iter().map(part).collect()
}

fn plans(parts: &[PartDescriptor], shape: &Shape, frame_bytes: usize) -> Vec<Plan> {
    (0..shape.ranks()).map(|rank| Plan::new(parts, shape, rank, frame_bytes)).collect()
}

fn trees(plans: &[Plan], owned: impl Fn(&Plan) -> Ownership) -> Vec<Program> {
    plans.iter().map(|plan| Program::tree(plan.clone(), owned(plan))).collect()
}

/// The value that a rank is to have of a chunk, where these ranks are in these sites.
fn expected(plan: &Plan, chunk: usize, sites: &[u16]) -> Value {
    let (shape, ranks) = (plan.shape(), plan.ranks());
    if !shape.folds() {
        return Value::Of(shape.start_of(chunk));
    }
    let mut lists: Vec<(u16, Vec<Value>)> = Vec::new();
    for rank in (0..ranks).map(|step| (plan.start_of(chunk) + step) % ranks) {
        match lists.iter_mut().find(|(site, _)| *site == sites[rank]) {
            Some((_, list)) => list.push(Value::Of(rank)),
            None => lists.push((sites[rank], vec![Value::Of(rank)])),
        }
    }
    let sums = lists.into_iter().filter_map(|(_, list)| Value::fold(list));
    Value::fold(sums.collect()).expect("there are ranks")
}

/// The first thing that is wrong with these programs.
fn problem(plans: &[Plan], programs: &[Vec<Node>], sites: &[u16]) -> Option<String> {
    let results = match run(programs) {
        Ok(results) => results,
        Err(text) => return Some(text),
    };
    for (rank, plan) in plans.iter().enumerate() {
        for frame in plan.all_frames() {
            let unit = plan.unit_of(&frame);
            let has = results.get(&(rank, frame.part, unit.slots.start));
            let is_due = plan.shape().distributes() || plan.shape().owner(frame.chunk) == rank;
            let wanted = expected(plan, frame.chunk, sites);
            // Somebody else may own a unit of what is not distributed.
            if is_due && has.is_some_and(|has| *has != wanted) || has.is_none() && plan.shape().distributes()
            {
                return Some(format!("rank {rank} has {has:?} of chunk {} and not {wanted:?}", frame.chunk));
            }
            let here = |rank: &usize| results.contains_key(&(*rank, frame.part, unit.slots.start));
            let holders = (0..plans.len()).filter(here).count();
            if holders != if plan.shape().distributes() { plans.len() } else { 1 } {
                return Some(format!("{holders} ranks have a result of chunk {}", frame.chunk));
            }
        }
    }
    None
}

fn apart(ranks: usize) -> Vec<u16> {
    (0..ranks).map(|rank| rank as u16).collect()
}

fn all_nodes(programs: &[Program]) -> Vec<Vec<Node>> {
    programs.iter().map(nodes).collect()
}

/// The bytes that go from each rank to each other one.
fn moved(programs: &[Program]) -> BTreeMap<(usize, usize), usize> {
    let mut moved = BTreeMap::new();
    for (rank, program) in programs.iter().enumerate() {
        for (hop, frame) in program.sent() {
            *moved.entry((rank, hop.rank)).or_default() += frame.len;
        }
    }
    moved
}

fn assert_right(plans: &[Plan], programs: &[Program], sites: &[u16], what: &str) {
    let found = problem(plans, &all_nodes(programs), sites);
    assert_eq!(found, None, "{what} among {} ranks", plans.len());
}

/// Splits of tensors that leave ranks without elements, with one, and with several frames.
fn splits(ranks: usize) -> [Vec<usize>; 3] {
    [vec![1, 0], vec![ranks], vec![2 * ranks + 3, 2]]
}

#[test]
fn the_ring_is_right_for_every_shape_and_number_of_ranks() {
    for ranks in 1..=RANKS {
        for root in [0, 1, ranks / 2, ranks - 1].map(|root| root % ranks) {
            for counts in splits(ranks) {
                let sizes: BTreeSet<usize> = counts.iter().copied().collect();
                for (name, shape) in Shape::samples(ranks, root, *sizes.last().expect("a size")) {
                    let fitting: Vec<usize> =
                        counts.iter().copied().filter(|count| shape.fits(*count as u64)).collect();
                    let plans = plans(&parts(&fitting, None), &shape, 8);
                    let programs: Vec<_> = plans.iter().cloned().map(Program::ring).collect();
                    assert_right(&plans, &programs, &apart(ranks), name);
                    let of = |(from, to): &(usize, usize)| (from + 1) % ranks == *to;
                    assert!(moved(&programs).keys().all(of), "{name} goes to the next rank only");
                }
            }
        }
    }
}

#[test]
fn the_tree_is_right_for_every_shape_and_share() {
    for ranks in 1..=RANKS {
        let one_has = |all: usize| (0..ranks).map(|rank| u16::from(rank == all)).collect::<Vec<u16>>();
        let rising = (0..ranks).map(|rank| rank as u16 * 7).collect();
        let shares = [Vec::new(), rising, one_has(0), one_has(ranks - 1)];
        for (name, shape) in Shape::samples(ranks, ranks / 2, 2 * ranks + 3) {
            let plans = plans(&parts(&[2 * ranks + 3], None), &shape, 8);
            // Only the chunks of an all-reduce may be owned by anybody.
            let is_free = shape == Shape::all_reduce(ranks);
            for shares in if is_free { &shares[..] } else { &shares[..1] } {
                let programs = trees(&plans, |plan| Ownership::new(plan, shares));
                assert_right(&plans, &programs, &apart(ranks), &format!("{name} with shares {shares:?}"));
            }
        }
    }
}

/// All ways to put ranks into sites, numbered in the order of their first ranks.
fn layouts(ranks: usize) -> Vec<Vec<u16>> {
    let mut all = vec![Vec::new()];
    for _ in 0..ranks {
        let longer = |layout: Vec<u16>| {
            let fresh = layout.iter().max().map_or(0, |most| most + 1);
            (0..=fresh).map(move |site| [&layout[..], &[site]].concat())
        };
        all = all.into_iter().flat_map(longer).collect();
    }
    all
}

fn assert_sites_right(sites: &[u16], shares: &[u16], count: usize, quantisation: Option<Quantisation>) {
    let shape = Shape::all_reduce(sites.len());
    let plans = plans(&parts(&[count], quantisation), &shape, if quantisation.is_some() { 1024 } else { 8 });
    let place = |site: &u16| Site { number: *site, share: shares[usize::from(*site)] };
    let places: Vec<Site> = sites.iter().map(place).collect();
    let programs = trees(&plans, |plan| Ownership::over_sites(plan, &places));
    assert_right(&plans, &programs, sites, &format!("sites {sites:?} with shares {shares:?}"));
    // Each byte crosses between two sites once in each direction: n - 1 times to the owner's, and back.
    let crossing: usize =
        moved(&programs).iter().filter(|((a, b), _)| sites[*a] != sites[*b]).map(|(_, bytes)| bytes).sum();
    let site_count = usize::from(sites.iter().max().map_or(0, |most| most + 1));
    let bytes: usize = plans[0].all_frames().map(|frame| frame.len).sum();
    assert_eq!(crossing, 2 * (site_count - 1) * bytes, "{sites:?}");
}

#[test]
fn every_layout_of_sites_is_right() {
    for ranks in 1..=7 {
        for sites in layouts(ranks) {
            for shares in [vec![0; ranks], (1..=ranks as u16).collect()] {
                assert_sites_right(&sites, &shares, 2 * ranks + 1, None);
            }
        }
    }
}

#[test]
fn every_exchange_of_whole_contributions_is_right() {
    for ranks in 1..=RANKS {
        for counts in splits(ranks) {
            let plans = plans(&parts(&counts, None), &Shape::all_reduce(ranks), 1 << 20);
            let bytes = counts.iter().sum::<usize>() * 4;
            for algorithm in [Algorithm::AllGather, Algorithm::Direct, Algorithm::ReduceBroadcast] {
                let program = |plan: &Plan| Program::exchange(plan.clone(), algorithm);
                let programs: Vec<_> = plans.iter().map(program).collect();
                assert_right(&plans, &programs, &apart(ranks), algorithm.in_words());
                let each = if algorithm == Algorithm::ReduceBroadcast { 2 } else { ranks };
                assert_eq!(moved(&programs).values().sum::<usize>(), each * (ranks - 1) * bytes);
            }
        }
    }
}

/// An algorithm that is a file and nothing else.
#[test]
fn a_binomial_tree_is_right_for_every_number_of_ranks() {
    for ranks in 1..=RANKS {
        for root in 0..ranks {
            for (name, shape) in Shape::samples(ranks, root, 2 * ranks) {
                if shape.folds() || shape.only_moves() {
                    continue;
                }
                let plans = plans(&parts(&[2 * ranks], None), &shape, 8);
                let program = |plan: &Plan| Program::new(plan.clone(), Arc::new(Binomial));
                let programs: Vec<_> = plans.iter().map(program).collect();
                assert_right(&plans, &programs, &apart(ranks), name);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn sites_are_right_for_more_ranks_and_quantised_tensors(
        sites in prop::collection::vec(0u16..5, 2..24), shares in prop::collection::vec(0u16..9, 5),
        count in 0usize..4000, scheme in prop::sample::select(vec![
            None, Some(Scheme::BlockAffineU8(Block::B64)), Some(Scheme::MinMax(DataType::Uint8)),
            Some(Scheme::CastBf16),
        ]),
    ) {
        // Numbered in the order of their first ranks, without gaps.
        let mut seen: Vec<u16> = Vec::new();
        let mut renumbered = Vec::new();
        for site in &sites {
            let known = seen.iter().position(|other| other == site);
            renumbered.push(known.unwrap_or(seen.len()) as u16);
            seen.extend(known.is_none().then_some(*site));
        }
        let count = if scheme.is_some() { count } else { count % 100 };
        assert_sites_right(&renumbered, &shares, count, scheme.map(Quantisation::new));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]
    #[test]
    fn the_ring_is_right_for_many_ranks(ranks in 17usize..50, root: prop::sample::Index, count in 0usize..300) {
        for (name, shape) in Shape::samples(ranks, root.index(ranks), count) {
            let plans = plans(&parts(&[count], None), &shape, 64);
            let programs: Vec<_> = plans.iter().cloned().map(Program::ring).collect();
            prop_assert_eq!(problem(&plans, &all_nodes(&programs), &apart(ranks)), None, "{}", name);
        }
    }
}

/// A mistake that somebody could make in a program.
type Mistake = (&'static str, fn(&mut Vec<Vec<Node>>));

#[test]
fn planted_mistakes_are_found() {
    const MISTAKES: &[Mistake] = &[
        ("a send is missing", |all| all[1][0].step.sends.clear()),
        ("it goes to somebody else", |all| {
            all[1][0].step.sends.iter_mut().for_each(|hop| hop.rank = (hop.rank + 1) % 4)
        }),
        ("it goes to nobody that there is", |all| {
            all[1][0].step.sends.iter_mut().for_each(|hop| hop.rank = 4)
        }),
        ("it goes twice", |all| {
            let hop = all[1][0].step.sends[0];
            all[1][0].step.sends.push(hop);
        }),
        ("a stage is another one", |all| all[1][0].step.sends.iter_mut().for_each(|hop| hop.stage += 1)),
        ("a step is missing", |all| drop(all[2].remove(1))),
        ("a contribution counts twice", |all| of_fold(all, |inputs| inputs.push(Input::Own))),
        ("a contribution does not count", |all| of_fold(all, |inputs| inputs.truncate(1))),
        ("the order is another one", |all| of_fold(all, |inputs| inputs.reverse())),
        ("a result is missing", |all| all[3].iter_mut().for_each(|node| node.step.is_result = false)),
        ("there are two results", |all| all[3].iter_mut().for_each(|node| node.step.is_result = true)),
        ("two wait for each other", |all| {
            let hop = Hop { rank: 0, stage: 9, is_plain: false };
            all[1][0].step.inputs.push(Input::Received(hop));
        }),
    ];
    fn of_fold(all: &mut [Vec<Node>], change: fn(&mut Vec<Input>)) {
        let node = all[2].iter_mut().find(|node| node.step.inputs.len() > 1);
        let node = node.expect("a rank folds");
        node.step.cuts.clear();
        change(&mut node.step.inputs);
    }
    let plans = plans(&parts(&[4], None), &Shape::all_reduce(4), 8);
    let ring: Vec<_> = plans.iter().cloned().map(Program::ring).collect();
    let tree = trees(&plans, |plan| Ownership::new(plan, &[]));
    for programs in [ring, tree] {
        assert_right(&plans, &programs, &apart(4), "without a mistake");
        for (name, make) in MISTAKES {
            let mut all = all_nodes(&programs);
            make(&mut all);
            assert!(problem(&plans, &all, &apart(4)).is_some(), "not found: {name}");
        }
    }
}
