//! Whole attempts of every shape without a network: their results, and what is left after an abort anywhere.

#[path = "../../schedule/src/paper/binomial.rs"]
mod binomial;

use super::attempt_tests::{Memory, Ring, bytes_of, inputs};
use binomial::Binomial;
use pccl_quant::{
    DataType, ReduceOp,
    quantise::{Block, Quantisation, Scheme},
};
use pccl_quant_reference::{divide_scalar, fold_scalar};
use pccl_schedule::{Program, Shape};
use proptest::prelude::*;
use std::sync::Arc;

const F32: DataType = DataType::Float32;

/// Shapes with their names, for tensors that travel like this.
fn samples(
    ranks: usize,
    root: usize,
    count: usize,
    quantisation: Option<Quantisation>,
) -> impl Iterator<Item = (&'static str, Shape)> {
    let can_be = move |(_, shape): &(_, Shape)| quantisation.is_none() || !shape.only_moves();
    Shape::samples(ranks, root, count).into_iter().filter(can_be)
}

/// The bytes that the owner of a chunk ends with, and those that the others get of it, given the inputs of all ranks to
/// it.
fn chunk_result(
    shape: &Shape,
    chunk: usize,
    op: ReduceOp,
    quantisation: Option<Quantisation>,
    inputs: &[&[u8]],
) -> Vec<u8> {
    let (ranks, owner) = (shape.ranks(), shape.owner(chunk));
    let coded = |rank: usize, data: &[u8]| {
        let Some(quantisation) = quantisation else { return data.to_vec() };
        let codec = quantisation.codec(F32, op).expect("possible");
        // The tag of the attempts, and their only tensor.
        let operation = 9u64.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ chunk as u64;
        let mut encoded = vec![0; codec.encoded_len(data.len() / 4).expect("small")];
        let rounding = quantisation.rounding(operation, rank as u32);
        codec.encode(data, &mut encoded, rounding, 0).expect("same lengths");
        let mut decoded = vec![0; data.len()];
        codec.decode_set(&encoded, &mut decoded).expect("same lengths");
        decoded
    };
    if inputs[0].is_empty() || ranks == 1 {
        return inputs[owner].to_vec();
    }
    let mut result = inputs[if shape.folds() { owner } else { shape.start_of(chunk) }].to_vec();
    if shape.folds() {
        let first = (owner + 1) % ranks;
        let mut partial = inputs[first].to_vec();
        for step in 1..ranks {
            let (from, to) = ((first + step - 1) % ranks, (first + step) % ranks);
            partial = fold_scalar(F32, op, inputs[to], &coded(from, &partial));
        }
        result = if op == ReduceOp::Avg { divide_scalar(F32, &partial, ranks as u32) } else { partial };
    }
    if shape.distributes() { coded(owner, &result) } else { result }
}

/// The content of the result of a rank afterwards: `None` where that means nothing.
pub(super) fn expected(
    shape: &Shape,
    rank: usize,
    op: ReduceOp,
    quantisation: Option<Quantisation>,
    inputs: &[Vec<f32>],
    in_place: bool,
) -> Vec<Option<Vec<u8>>> {
    let inputs: Vec<Vec<u8>> = inputs.iter().map(|input| bytes_of(input)).collect();
    let mut start = 0;
    let counts = shape.chunk_counts(inputs[0].len() / 4).enumerate();
    let chunks = counts.map(|(chunk, count)| {
        let bytes = start..start + count * 4;
        start = bytes.end;
        let of_chunk: Vec<&[u8]> = inputs.iter().map(|input| &input[bytes.clone()]).collect();
        if shape.distributes() || shape.owner(chunk) == rank {
            Some(chunk_result(shape, chunk, op, quantisation, &of_chunk))
        } else {
            in_place.then(|| of_chunk[rank].to_vec())
        }
    });
    chunks.collect()
}

/// Checks a finished ring.
fn check(
    ring: &Ring,
    name: &str,
    shape: &Shape,
    (op, quantisation): (ReduceOp, Option<Quantisation>),
    inputs: &[Vec<f32>],
    in_place: bool,
) {
    ring.assert_as_programmed();
    for (rank, result) in ring.results().iter().enumerate() {
        let mut at = 0;
        for (chunk, count) in shape.chunk_counts(inputs[0].len()).enumerate() {
            let got = &result[at..at + count * 4];
            at += count * 4;
            let wanted = expected(shape, rank, op, quantisation, inputs, in_place).swap_remove(chunk);
            assert!(wanted.is_none_or(|wanted| wanted == got), "{name}, rank {rank}, chunk {chunk}");
        }
        let progress = ring.attempt(rank).progress();
        assert!(progress.has_received_all() && progress.has_released_all(), "{name}, rank {rank}");
        assert!(ring.ranks[rank].owner.faults.lock().is_empty(), "{name}, rank {rank}");
    }
}

fn deliver_all(ring: &Ring) {
    (0..ring.ranks.len()).for_each(|rank| ring.attempt(rank).deliver().expect("everything has come"));
}

fn quantisations() -> impl Strategy<Value = Option<Quantisation>> {
    let schemes = vec![
        Scheme::BlockAffineU8(Block::B64),
        Scheme::MinMax(DataType::Uint8),
        Scheme::CastBf16,
        Scheme::CastF16,
    ];
    let stochastic = |(scheme, seed): (Scheme, Option<u64>)| match seed {
        Some(seed) if scheme.has_stochastic() => Quantisation::new(scheme).stochastic(seed),
        _ => Quantisation::new(scheme),
    };
    prop::option::of((prop::sample::select(schemes), any::<Option<u64>>()).prop_map(stochastic))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]
    #[test]
    fn any_order_of_delivery_gives_what_the_shape_says(
        ranks in 1usize..=9, root: prop::sample::Index, count in 0usize..300, in_place: bool, frame in 1usize..8,
        op in prop::sample::select(&[ReduceOp::Sum, ReduceOp::Avg][..]), quantisation in quantisations(),
        order in prop::collection::vec(any::<prop::sample::Index>(), 100),
    ) {
        let inputs = inputs(ranks, count);
        for (name, shape) in samples(ranks, root.index(ranks), count, quantisation) {
            let ring = Ring::shaped(&shape, &inputs, in_place.into(), op, (frame * 64, quantisation));
            ring.start();
            let mut order = order.iter().cycle();
            while ring.under_way() > 0 {
                let index = order.next().expect("endless").index(ring.under_way());
                prop_assert!(ring.deliver(index, 24, usize::MAX));
            }
            for (rank, input) in ring.ranks.iter().zip(&inputs) {
                let only_read = !in_place || quantisation.is_some();
                prop_assert!(!only_read || bytes_of(&rank.send) == bytes_of(input), "{}", name);
            }
            deliver_all(&ring);
            check(&ring, name, &shape, (op, quantisation), &inputs, in_place);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]
    /// A new algorithm is carried out, and taken back, by what carries out the others.
    #[test]
    fn a_binomial_tree_gives_what_the_shape_says_or_leaves_everything_as_it_was(
        ranks in 1usize..=9, root: prop::sample::Index, count in 0usize..300, in_place: bool, frame in 1usize..8,
        quantisation in quantisations(), cut in prop::option::of(0usize..60),
        order in prop::collection::vec(any::<prop::sample::Index>(), 100),
    ) {
        let (inputs, op) = (inputs(ranks, count), ReduceOp::Sum);
        let program = |plan| Program::new(plan, Arc::new(Binomial));
        let shapes = samples(ranks, root.index(ranks), count, quantisation);
        for (name, shape) in shapes.filter(|(_, it)| !it.folds() && it.distributes()) {
            let all = Ring::programmed(program, &shape, &inputs, in_place.into(), op, (frame * 64, quantisation));
            all.start();
            let mut order = order.iter().cycle().take(cut.unwrap_or(usize::MAX));
            while all.under_way() > 0 && let Some(index) = order.next() {
                prop_assert!(all.deliver(index.index(all.under_way()), 24, usize::MAX));
            }
            if all.under_way() == 0 {
                deliver_all(&all);
                check(&all, name, &shape, (op, quantisation), &inputs, in_place);
                continue;
            }
            all.retract_all();
            for (rank, input) in inputs.iter().enumerate() {
                all.attempt(rank).restore();
                prop_assert!(bytes_of(&all.ranks[rank].send) == bytes_of(input), "{}, rank {}", name, rank);
            }
        }
    }
}

/// Stops after every number of whole frames, and then within the next one: what the caller had comes back bit for bit.
#[test]
fn an_abort_at_every_stage_and_frame_restores_every_byte() {
    let block = Quantisation::new(Scheme::BlockAffineU8(Block::B64));
    let whole = Quantisation::new(Scheme::MinMax(DataType::Uint8));
    // Several frames per chunk, the last one shorter.
    for (ranks, count, frame, quantisation) in [
        (2, 26, 16, None),
        (3, 26, 16, None),
        (4, 26, 16, None),
        (3, 600, 64, Some(block)),
        (3, 600, 64, Some(whole)),
    ] {
        let inputs = inputs(ranks, count);
        for (name, shape) in samples(ranks, 1, count, quantisation) {
            for in_place in [true, false] {
                let how = (frame, quantisation);
                for delivered in 0.. {
                    let mut finished = false;
                    for pieces in 0..=4 {
                        let ring = Ring::shaped(&shape, &inputs, in_place.into(), ReduceOp::Avg, how);
                        ring.start();
                        // The newest frame first, so that single frames run far ahead of the others.
                        let mut cut = true;
                        for _ in 0..delivered {
                            cut = ring.under_way() > 0
                                && ring.deliver(ring.under_way() - 1, 1 << 20, usize::MAX);
                        }
                        finished = !cut;
                        if ring.under_way() > 0 {
                            ring.deliver(ring.under_way() / 2, 4, pieces);
                        }
                        ring.retract_all();
                        for (rank, input) in inputs.iter().enumerate() {
                            ring.attempt(rank).restore();
                            assert_eq!(
                                bytes_of(&ring.ranks[rank].send),
                                bytes_of(input),
                                "{name}, ranks {ranks}, in place {in_place}, {delivered} frames, {pieces} pieces, \
                                 rank {rank}"
                            );
                        }
                    }
                    if finished {
                        break;
                    }
                }
            }
        }
    }
}

/// Ranks that are not the owner keep what they had, although they have folded: that is in the backup.
#[test]
fn a_reduce_in_place_changes_the_root_alone() {
    let (inputs, shape) = (inputs(4, 40), Shape::reduce(4, 2));
    let ring = Ring::shaped(&shape, &inputs, Memory::InPlace, ReduceOp::Sum, (16, None));
    ring.start();
    while ring.under_way() > 0 {
        assert!(ring.deliver(0, 8, usize::MAX));
    }
    for (rank, input) in inputs.iter().enumerate() {
        assert_eq!(bytes_of(&ring.ranks[rank].send) == bytes_of(input), rank != 2, "rank {rank}");
    }
}

#[test]
fn a_gather_without_a_backup_gives_the_same() {
    let (inputs, shape) = (inputs(3, 50), Shape::all_gather(3, &[20, 0, 30]));
    let ring = Ring::shaped(&shape, &inputs, Memory::Unsaved, ReduceOp::Sum, (16, None));
    ring.start();
    while ring.under_way() > 0 {
        assert!(ring.deliver(0, 8, usize::MAX));
    }
    check(&ring, "all-gather", &shape, (ReduceOp::Sum, None), &inputs, true);
}

/// Frames span tensors, in place and out of place, in any order of delivery, and can be cut off anywhere.
#[test]
fn a_run_of_tensors_gives_what_one_tensor_gives() {
    for (count, frame) in [(0, 16), (1, 16), (26, 16), (300, 64)] {
        let inputs = inputs(3, count);
        let shapes = Shape::samples(3, 1, count).into_iter().filter(|(_, shape)| shape.spans_tensors());
        for (name, shape) in shapes {
            for op in [ReduceOp::Avg, ReduceOp::Max] {
                for delivered in 0.. {
                    let ring = Ring::shaped(&shape, &inputs, Memory::Several, op, (frame, None));
                    ring.start();
                    let mut left = delivered;
                    while left > 0 && ring.under_way() > 0 {
                        // Pieces that end within tensors and at their borders.
                        assert!(ring.deliver(delivered * 7 % ring.under_way(), 12, usize::MAX));
                        left -= 1;
                    }
                    if ring.under_way() == 0 {
                        deliver_all(&ring);
                        check(&ring, name, &shape, (op, None), &inputs, false);
                        break;
                    }
                    ring.deliver(ring.under_way() / 2, 12, delivered % 2);
                    ring.retract_all();
                    for (rank, input) in inputs.iter().enumerate() {
                        ring.attempt(rank).restore();
                        assert_eq!(bytes_of(&ring.ranks[rank].send), bytes_of(input), "{name}, rank {rank}");
                    }
                }
            }
        }
    }
}
