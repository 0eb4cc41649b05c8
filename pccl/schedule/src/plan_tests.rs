//! Frames tile every tensor, for every shape and number of ranks.

use super::{plan::Plan, shape::Shape};
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

}
