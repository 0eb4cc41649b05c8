//! The schedule, for every shape and number of ranks.

use super::{
    plan::{FRAME_BYTES, Plan, StageKind},
    shape::Shape,
};
use pccl_protocol::PartDescriptor;
use pccl_quant::{
    DataType, ReduceOp,
    quantise::{Block, Quantisation, Scheme},
};
use proptest::prelude::*;

/// Tensors that all have `count` elements, so that every shape fits.
fn parts(number: usize, count: usize) -> Vec<PartDescriptor> {
    let types = [DataType::Float32, DataType::Uint8, DataType::Float64];
    (0..number).map(|part| PartDescriptor::new(count as u64, types[part % 3], ReduceOp::Sum)).collect()
}

fn of_all_ranks(parts: &[PartDescriptor], shape: &Shape, frame_bytes: usize) -> Vec<Plan> {
    (0..shape.ranks()).map(|rank| Plan::new(parts, shape, rank, frame_bytes)).collect()
}

proptest! {
    #[test]
    fn frames_tile_every_tensor(
        number in 1usize..5, count in 0usize..200, ranks in 1usize..=9, root: prop::sample::Index, frame in 1usize..6,
    ) {
        let descriptors = parts(number, count);
        for (name, shape) in Shape::samples(ranks, root.index(ranks), count) {
            let plan = Plan::new(&descriptors, &shape, 0, frame * 8);
            let mut seen = vec![Vec::new(); number];
            let mut slots = Vec::new();
            for frame in plan.all_frames() {
                seen[frame.part].push(frame.range());
                slots.push(frame.slot);
                prop_assert_eq!(plan.frame_anywhere(frame.part, frame.offset as u64, frame.len as u32), Some(frame));
                let inside = plan.frame_anywhere(frame.part, frame.offset as u64 + 1, frame.len as u32);
                prop_assert!(inside.is_none() || descriptors[frame.part].data_type == DataType::Uint8);
            }
            slots.sort_unstable();
            prop_assert_eq!(slots, (0..plan.slots()).collect::<Vec<_>>());
            prop_assert_eq!(plan.frame_anywhere(0, (count * 4) as u64, 8), None);
            for (part, ranges) in seen.iter_mut().enumerate() {
                ranges.sort_by_key(|range| range.start);
                let mut end = 0;
                for range in ranges.iter() {
                    prop_assert_eq!(range.start, end);
                    prop_assert!(!range.is_empty());
                    end = range.end;
                }
                prop_assert_eq!(end, count * descriptors[part].data_type.size_bytes(), "{}", name);
            }
        }
    }

    /// Elements that travel as they are lie side by side as well, and only what is such a frame is taken for one.
    #[test]
    fn plain_frames_tile_every_quantised_tensor(
        counts in prop::collection::vec(0u64..700, 1..3), ranks in 1usize..=6, frame in 1usize..20,
        scheme in prop::sample::select(&[
            Scheme::BlockAffineU8(Block::B64), Scheme::BlockAffineU4(Block::B64), Scheme::MinMax(DataType::Uint8),
            Scheme::MinMax(DataType::Int64), Scheme::CastF16,
        ][..]),
        data_type in prop::sample::select(&[DataType::Float32, DataType::Float64, DataType::BFloat16][..]),
    ) {
        let part = |count: &u64| PartDescriptor {
            quantisation: Some(Quantisation::new(scheme)),
            ..PartDescriptor::new(*count, data_type, ReduceOp::Sum)
        };
        let plan = Plan::new(&counts.iter().map(part).collect::<Vec<_>>(), &Shape::all_reduce(ranks), 0, frame * 8);
        let mut ends = vec![0; counts.len()];
        for frame in plan.all_frames() {
            let Some(plain) = plan.plain_frame(&frame) else { continue };
            prop_assert!((plain.part, plain.chunk, plain.slot) == (frame.part, frame.chunk, frame.slot));
            prop_assert!(plain.len > 0);
            prop_assert_eq!(plain.offset, ends[frame.part]);
            ends[frame.part] += plain.len;
            let size = data_type.size_bytes();
            let elements = plain.offset / size..(plain.offset + plain.len) / size;
            let unit = plan.unit_of(&frame).elements;
            prop_assert!(unit.start <= elements.start && elements.end <= unit.end, "{unit:?} {elements:?}");
            let (offset, len) = (plain.offset as u64, plain.len as u32);
            prop_assert_eq!(plan.frame_of_plain(plain.part, offset, len), Some(frame));
            for (offset, len) in [(offset + 1, len), (offset, len + 1), (offset, len - 1), (u64::MAX, len)] {
                prop_assert_eq!(plan.frame_of_plain(plain.part, offset, len), None);
            }
            prop_assert_eq!(plan.frame_of_plain(counts.len(), offset, len), None);
        }
        for (part, count) in counts.iter().enumerate() {
            prop_assert_eq!(ends[part], *count as usize * data_type.size_bytes());
            prop_assert_eq!(plan.frame_of_plain(part, ends[part] as u64, 0), None);
        }
    }

    /// Every frame that is sent is received by the next rank at the same stage, and nothing else is.
    #[test]
    fn sends_mirror_receives(
        number in 1usize..4, count in 0usize..200, ranks in 1usize..=9, root: prop::sample::Index, frame in 1usize..6,
    ) {
        let descriptors = parts(number, count);
        for (name, shape) in Shape::samples(ranks, root.index(ranks), count) {
            let plans = of_all_ranks(&descriptors, &shape, frame * 8);
            for (rank, plan) in plans.iter().enumerate() {
                let next = &plans[(rank + 1) % ranks];
                prop_assert_eq!(plan.frames_sent(), next.frames_received(), "{}", name);
                for stage in 0..plan.stages() {
                    prop_assert_eq!(plan.sent_chunk(stage), next.received_chunk(stage));
                    for frame in plan.all_frames() {
                        let (part, stage) = (frame.part as u32, stage as u32);
                        let got = next.received_frame(part, stage, frame.offset as u64, frame.len as u32);
                        let is_sent = plan.sent_chunk(stage as usize) == Some(frame.chunk);
                        prop_assert_eq!(got, is_sent.then_some(frame), "{}", name);
                    }
                }
                prop_assert_eq!(plan.sent_chunk(plan.stages()), None);
                prop_assert_eq!(next.received_chunk(plan.stages()), None);
            }
        }
    }

    /// Follows each chunk from rank to rank.
    #[test]
    fn every_chunk_is_folded_by_all_and_reaches_all(ranks in 1usize..=9, root: prop::sample::Index) {
        for (name, shape) in Shape::samples(ranks, root.index(ranks), 100) {
            let plans = of_all_ranks(&parts(1, 100), &shape, FRAME_BYTES);
            for chunk in 0..shape.chunks() {
                let owner = shape.owner(chunk);
                let mut at = plans[0].start_of(chunk);
                let (mut contributed, mut has_result) = (vec![at], vec![]);
                if !shape.folds() || ranks == 1 {
                    prop_assert_eq!(at, owner);
                    has_result.push(at);
                }
                for stage in 0..plans[0].stages() {
                    prop_assert_eq!(plans[at].sent_chunk(stage), Some(chunk), "{} at stage {}", name, stage);
                    let others = (0..ranks).filter(|rank| plans[*rank].sent_chunk(stage) == Some(chunk));
                    prop_assert_eq!(others.count(), 1);
                    at = (at + 1) % ranks;
                    match plans[at].stage_kind(stage) {
                        StageKind::Gather => {
                            let folds = shape.folds() && at != plans[0].start_of(chunk);
                            prop_assert_eq!(plans[at].folds_before_gather(chunk), folds);
                            has_result.push(at);
                        }
                        StageKind::Reduce => contributed.push(at),
                        StageKind::LastReduce => {
                            prop_assert_eq!(at, owner);
                            contributed.push(at);
                            has_result.push(at);
                        }
                    }
                }
                for (list, all) in [(&mut contributed, shape.folds()), (&mut has_result, shape.distributes())] {
                    list.sort_unstable();
                    let wanted = if all { (0..ranks).collect() } else { vec![owner] };
                    prop_assert_eq!(list, &wanted, "{}", name);
                }
            }
        }
    }
}

/// The schedule that the ring of an all-reduce has always had, so that ranks of one version agree with those of
/// another.
#[test]
fn an_all_reduce_has_the_schedule_of_the_textbook() {
    for ranks in 2..=9 {
        for plan in of_all_ranks(&parts(1, 100), &Shape::all_reduce(ranks), FRAME_BYTES) {
            assert_eq!(plan.stages(), 2 * (ranks - 1));
            for stage in 0..plan.stages() {
                assert_eq!(plan.sent_chunk(stage), Some((plan.rank() + 2 * ranks - stage) % ranks));
                assert_eq!(plan.received_chunk(stage), Some((plan.rank() + 2 * ranks - stage - 1) % ranks));
                let kind = match stage + 2 {
                    next if next < ranks => StageKind::Reduce,
                    next if next == ranks => StageKind::LastReduce,
                    _ => StageKind::Gather,
                };
                assert_eq!(plan.stage_kind(stage), kind);
            }
        }
    }
}

#[test]
fn headers_off_the_grid_are_not_in_the_plan() {
    let plan = Plan::new(&parts(1, 64), &Shape::all_reduce(2), 0, 32);
    // Rank 0 of 2 receives chunk 1 (bytes 128..256) at stage 0.
    assert!(plan.received_frame(0, 0, 128, 32).is_some());
    for (part, stage, offset, len) in [
        (1, 0, 128, 32),
        (0, 2, 128, 32),
        (0, u32::MAX, 128, 32),
        (0, 0, 0, 32),
        (0, 0, 132, 32),
        (0, 0, 128, 16),
        (0, 0, 256, 32),
        (0, 0, u64::MAX, 32),
    ] {
        assert_eq!(plan.received_frame(part, stage, offset, len), None);
    }
}

/// Rank 2 of 4 is the root: rank 1 is the last to receive, and passes nothing on.
#[test]
fn a_broadcast_is_a_chain_from_the_root() {
    let plans = of_all_ranks(&parts(1, 64), &Shape::broadcast(4, 2), 32);
    let receives = plans.iter().map(|plan| (0..3).filter(|stage| plan.received_chunk(*stage).is_some()));
    let receives: Vec<Vec<usize>> = receives.map(Iterator::collect).collect();
    assert_eq!(receives, [vec![1], vec![2], vec![], vec![0]]);
    assert_eq!(plans.iter().map(Plan::frames_sent).collect::<Vec<_>>(), [8, 0, 8, 8]);
}
