//! What the trainers reduce: small and large tensors, with and without a choice of the schedule.

use crate::rng::Rng;
use crate::world::World;
use pccl_protocol::*;
use pccl_quant::{
    DataType, ReduceOp,
    quantise::{Quantisation, Scheme},
};

/// Elements of a small operation, and of one that is too large for an all-gather.
const SMALL: u64 = 100;
const LARGE: u64 = 100_000;

fn whole(count: u64, algorithm: Algorithm) -> Descriptor {
    Descriptor::all_reduce(vec![PartDescriptor::new(count, DataType::Float32, ReduceOp::Sum)], algorithm)
}

/// Whether who has prepared for one algorithm can run another one that the master names.
pub(crate) fn is_ready_for(prepared: Algorithm, named: Algorithm) -> bool {
    match prepared {
        Algorithm::AllGather => {
            matches!(named, Algorithm::AllGather | Algorithm::Direct | Algorithm::ReduceBroadcast)
        }
        Algorithm::Pairwise => matches!(named, Algorithm::Pairwise | Algorithm::Ring),
        other => named == other,
    }
}

impl World {
    /// What all members of a group call for this attempt: its numbers are all that they have in common.
    pub(crate) fn descriptor(&self, group: GroupId, op: OpId) -> Descriptor {
        let place = op.epoch.0 << 24 ^ op.tag << 16 ^ u64::from(op.attempt) << 4 ^ u64::from(group.0);
        let mut rng = Rng::new(self.seed ^ place ^ 0x5eed_000a << 32);
        if !rng.percent(self.swarm.large) {
            return whole(SMALL, Algorithm::Automatic);
        }
        match rng.below(8) {
            0 | 1 => whole(LARGE, Algorithm::Automatic),
            2 => whole(LARGE, Algorithm::Ring),
            3 => whole(SMALL, Algorithm::Pairwise),
            4 => {
                let mut quantised = whole(LARGE, Algorithm::Pairwise);
                quantised.parts[0].quantisation = Some(Quantisation::new(Scheme::CastBf16));
                quantised
            }
            _ => whole(LARGE, Algorithm::Pairwise),
        }
    }

    /// A descriptor that differs from what the others call, as a rule.
    pub(crate) fn odd_descriptor(&mut self, group: GroupId, op: OpId) -> Descriptor {
        let mut descriptor = self.descriptor(group, op);
        let part = &mut descriptor.parts[0];
        match if self.swarm.odd_calls { self.strikes.below(6) } else { 0 } {
            1 => part.data_type = DataType::Int64,
            2 => part.op = ReduceOp::Max,
            3 => descriptor.algorithm = Algorithm::Ring,
            4 => descriptor.parts.push(descriptor.parts[0]),
            5 => part.quantisation = Some(Quantisation::new(Scheme::CastBf16)),
            _ => part.count = 99,
        }
        descriptor
    }
}
