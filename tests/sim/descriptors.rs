//! The tensors that the trainers reduce: small and large ones, with and without a choice of the schedule.

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

/// A collective of another kind, now and then for members that the ring does not have.
fn kind_of(rng: &mut Rng, ring: &[PeerId], mut descriptor: Descriptor) -> Descriptor {
    let some = ring[rng.below(ring.len() as u64) as usize];
    let ranks = ring.len() as u32;
    let counts = |part: &PartDescriptor| {
        let (base, rest) = (part.count / u64::from(ranks), part.count % u64::from(ranks));
        let counts = (0u64..).map(|rank| base + u64::from(rank < rest));
        ring.iter().zip(counts).map(|(peer, count)| MemberCount { peer: *peer, count }).collect()
    };
    let members = Split::Members(counts(&descriptor.parts[0]));
    let misfit = rng.below(8) == 0;
    let (gone, other) = (PeerId(1), Split::Equal(ranks + 1));
    let split = if misfit { other.clone() } else { Split::Equal(ranks) };
    let rooted = |split| Rooted { root: if misfit { gone } else { some }, split };
    descriptor.collective = match rng.below(11) {
        0 => Collective::Broadcast(if misfit { gone } else { some }),
        1 => Collective::Reduce(if misfit { gone } else { some }),
        2 => Collective::AllGather(if misfit { other } else { Split::Equal(ranks) }),
        3 => Collective::AllGather(members),
        4 => Collective::ReduceScatter(if misfit { other } else { Split::Equal(ranks) }),
        5 => Collective::ReduceScatter(members),
        6 => Collective::Gather(rooted(split)),
        7 => Collective::Gather(rooted(members)),
        8 => Collective::Scatter(rooted(split)),
        9 => Collective::AllToAll(Blocks { split, digest: 0 }),
        _ => Collective::Barrier(Nothing {}),
    };
    if let Some(Split::Equal(ranks)) = descriptor.collective.split() {
        let ranks = u64::from(*ranks);
        let equal = if descriptor.kind() == CollectiveKind::AllToAll { ranks * ranks } else { ranks };
        let odd = descriptor.parts[0].count % equal;
        descriptor.parts[0].count -= odd;
    }
    if descriptor.kind() == CollectiveKind::Barrier {
        descriptor.parts.clear();
    }
    if descriptor.kind().only_moves() {
        descriptor.parts[0].quantisation = None;
    }
    descriptor
}

impl World {
    /// The call of all members of a group for this attempt: its numbers are all that they have in common.
    pub(crate) fn descriptor(&self, group: GroupId, op: OpId, ring: &[PeerId]) -> Descriptor {
        let of_data = self.all_reduce(group, op);
        let place = op.epoch.0 << 24 ^ op.tag.number << 16 ^ u64::from(op.attempt) << 4 ^ u64::from(group.0);
        let mut rng = Rng::new(self.seed ^ place ^ 0x5eed_000f << 32);
        if ring.is_empty() || !rng.percent(self.swarm.kinds) {
            return of_data;
        }
        kind_of(&mut rng, ring, of_data)
    }

    fn all_reduce(&self, group: GroupId, op: OpId) -> Descriptor {
        let place = op.epoch.0 << 24 ^ op.tag.number << 16 ^ u64::from(op.attempt) << 4 ^ u64::from(group.0);
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
            5 => whole(LARGE, Algorithm::Sites),
            _ => whole(LARGE, Algorithm::Pairwise),
        }
    }

    /// A descriptor that differs from what the others call, as a rule.
    pub(crate) fn odd_descriptor(&mut self, group: GroupId, op: OpId, ring: &[PeerId]) -> Descriptor {
        let mut descriptor = self.descriptor(group, op, ring);
        if descriptor.kind() != CollectiveKind::AllReduce {
            return self.all_reduce(group, op);
        }
        let part = &mut descriptor.parts[0];
        match if self.swarm.odd_calls { self.strikes.below(6) } else { 0 } {
            1 => part.data_type = DataType::Int64,
            2 => part.op = ReduceOp::Max,
            3 => descriptor.algorithm = Algorithm::Ring,
            4 => descriptor.parts.push(descriptor.parts[0]),
            5 => part.quantisation = Some(Quantisation::new(Scheme::CastBf16)),
            _ => part.count = 99,
        }
        let mut rng = Rng::new(self.seed ^ op.epoch.0 << 24 ^ op.tag.number << 16 ^ 0x5eed_0013 << 32);
        descriptor.knew_ring = !(self.swarm.odd_calls && rng.percent(25));
        if self.swarm.odd_calls && rng.percent(20) {
            // The same call as that of the others, by a rank of another ring.
            return Descriptor { knew_ring: false, by_rank: true, ..self.descriptor(group, op, ring) };
        }
        descriptor
    }
}
