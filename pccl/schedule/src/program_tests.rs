//! The headers of a program: what one rank sends is what another one waits for.

use super::{Ownership, Plan, Program, Shape};
use pccl_protocol::{Algorithm, PartDescriptor, Site};
use pccl_quant::{
    DataType, ReduceOp,
    quantise::{Block, Quantisation, Scheme},
};
use proptest::prelude::*;
use std::collections::BTreeSet;

/// The programs of all ranks, by every algorithm that has that shape.
fn programs(parts: &[PartDescriptor], shape: &Shape, sites: &[u16]) -> Vec<Vec<Program>> {
    let plan = |rank| Plan::new(parts, shape, rank, 512);
    let all =
        |program: &dyn Fn(Plan) -> Program| (0..shape.ranks()).map(|rank| program(plan(rank))).collect();
    let mut programs =
        vec![all(&Program::ring), all(&|plan| Program::tree(plan.clone(), Ownership::new(&plan, &[])))];
    if *shape == Shape::all_reduce(shape.ranks()) {
        let places: Vec<Site> = sites.iter().map(|number| Site { number: *number, share: 0 }).collect();
        programs.push(all(&|plan| Program::tree(plan.clone(), Ownership::over_sites(&plan, &places))));
        for algorithm in [Algorithm::AllGather, Algorithm::Direct, Algorithm::ReduceBroadcast] {
            programs.push(all(&|plan| Program::exchange(plan, algorithm)));
        }
    }
    programs
}

fn assert_mirrored(programs: &[Program]) {
    let (mut received, mut due) = (vec![0; programs.len()], vec![BTreeSet::new(); programs.len()]);
    for (from, program) in programs.iter().enumerate() {
        let mut sent = 0;
        for (hop, frame) in program.sent().into_iter().filter(|(_, frame)| frame.len > 0) {
            sent += 1;
            received[hop.rank] += 1;
            let (offset, len) = (frame.offset as u64, frame.len as u32);
            let arrival =
                programs[hop.rank].arrival(frame.part, hop.stage, offset, len).expect("it is due there");
            assert_eq!((arrival.hop.rank, arrival.hop.stage), (from, hop.stage));
            let slot = (arrival.frame.slot, arrival.before + arrival.number);
            assert!(slot.1 < program.values_max(), "{slot:?}");
            assert!(due[hop.rank].insert(slot), "it has a state of its own");
            let (steps, step) = program.departure(frame.part, hop.stage, offset, len).expect("it is sent");
            assert!(steps[step].sends.contains(&hop));
            // A broadcast is not due at its root, nor anything at its sender.
            assert!(
                program
                    .arrival(frame.part, hop.stage, offset, len)
                    .is_none_or(|other| other.hop.rank != from)
            );
            let others = [(offset + 1, len), (offset, len + 1), (offset, len - 1), (u64::MAX, len)];
            for (offset, len) in others {
                assert!(programs[hop.rank].arrival(frame.part, hop.stage, offset, len).is_none());
            }
            for stage in [3 * programs.len(), usize::MAX] {
                assert!(programs[hop.rank].arrival(frame.part, stage, offset, len).is_none());
            }
            assert!(programs[hop.rank].arrival(usize::MAX, hop.stage, offset, len).is_none());
        }
        assert_eq!(program.traffic().1, sent);
    }
    for (program, received) in programs.iter().zip(received) {
        assert_eq!(program.traffic().0, received);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn every_frame_that_is_sent_is_due(
        sites in prop::collection::vec(0u16..4, 1..9), root: prop::sample::Index, count in 1usize..900,
        scheme in prop::sample::select(vec![
            None, Some(Scheme::BlockAffineU8(Block::B64)), Some(Scheme::MinMax(DataType::Uint8)),
        ]),
    ) {
        let quantisation = scheme.map(Quantisation::new);
        let part = PartDescriptor {
            quantisation,
            ..PartDescriptor::new(count as u64, DataType::Float32, ReduceOp::Sum)
        };
        for (_, shape) in Shape::samples(sites.len(), root.index(sites.len()), count) {
            let all = programs(&[part], &shape, &sites);
            // Quantised tensors do not travel whole.
            all.iter().filter(|all| scheme.is_none() || !all[0].is_whole()).for_each(|all| assert_mirrored(all));
        }
    }
}
