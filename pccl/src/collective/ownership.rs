//! Which rank owns which frames in pairwise exchange, as plain data.
//!
//! With equal shares each rank owns the chunk that it completes on the ring. With the shares of a ring plan, ranks with
//! more than that take over frames of those with less: whole units, so that what is quantised stays as it is cut. A
//! tensor that is not cut into units stays with the owners on the ring. All ranks come to the same, from the same plan.

use super::plan::{FRAME_BYTES, Frame, Plan, Unit};
use pccl_protocol::Descriptor;
use std::ops::Range;

/// Frames for each rank, about, where shares are not equal: enough that owners can be given what they
/// should have.
const FRAMES_PER_RANK: usize = 32;
/// But none smaller than this, in bytes of what is not quantised: each has a header, and wakes somebody.
const SMALLEST_FRAME_BYTES: usize = 64 << 10;

/// Payload bytes of a full frame, as [`Plan::new`] wants them, of an operation among ranks with these shares.
pub(crate) fn frame_bytes(descriptor: &Descriptor, ranks: usize, shares: &[u16]) -> usize {
    if shares.is_empty() {
        return FRAME_BYTES;
    }
    let wanted = usize::try_from(descriptor.bytes()).unwrap_or(usize::MAX) / (ranks * FRAMES_PER_RANK);
    wanted.clamp(SMALLEST_FRAME_BYTES, FRAME_BYTES).next_multiple_of(8)
}

/// See the module's documentation.
#[derive(Debug, Clone)]
pub(crate) struct Ownership {
    rank: usize,
    /// Owner of each slot.
    owners: Vec<u8>,
    /// For each own slot: bytes of those before it in the same tensor, as they travel.
    offsets: Vec<usize>,
    /// The same for all own slots of each tensor.
    owned_bytes: Vec<usize>,
    frames: usize,
}

impl Ownership {
    /// As the ranks' `shares` say, in any unit; empty, or all 0: equal ones.
    pub(crate) fn new(plan: &Plan, shares: &[u16]) -> Self {
        let mut owners: Vec<u8> = vec![0; plan.slots()];
        for frame in plan.all_frames() {
            owners[frame.slot] = plan.shape().owner(frame.chunk) as u8;
        }
        if shares.len() == plan.ranks() && shares.iter().any(|share| *share > 0) {
            share_out(plan, shares, &mut owners);
        }
        let (rank, mut offsets) = (plan.rank(), vec![0; plan.slots()]);
        let mut owned_bytes = vec![0; plan.parts()];
        let mut frames = 0;
        for frame in plan.all_frames().filter(|frame| owners[frame.slot] as usize == rank) {
            offsets[frame.slot] = owned_bytes[frame.part];
            owned_bytes[frame.part] += frame.len;
            frames += 1;
        }
        Self { rank, owners, offsets, owned_bytes, frames }
    }

    /// The rank that folds a frame.
    pub(crate) fn owner(&self, frame: &Frame) -> usize {
        self.owners[frame.slot] as usize
    }

    /// Whether this rank does.
    pub(crate) fn is_own(&self, frame: &Frame) -> bool {
        self.owner(frame) == self.rank
    }

    /// Number of own frames.
    pub(crate) fn frames(&self) -> usize {
        self.frames
    }

    /// Bytes of all own frames of a tensor, as they travel.
    pub(crate) fn owned_bytes(&self, part: usize) -> usize {
        self.owned_bytes[part]
    }

    /// Where an own unit lies among all that is owned of its tensor.
    pub(crate) fn place_of(&self, unit: &Unit) -> Range<usize> {
        let start = self.offsets[unit.slots.start];
        start..start + unit.encoded.len()
    }
}

/// Gives units to ranks so that each has about its part of all bytes.
fn share_out(plan: &Plan, shares: &[u16], owners: &mut [u8]) {
    let units = || {
        let with_unit = plan.all_frames().map(|frame| (frame.part, frame.slot, plan.unit_of(&frame)));
        with_unit.filter(|(_, slot, unit)| unit.slots.start == *slot).map(|(part, _, unit)| (part, unit))
    };
    let all_bytes: usize = units().map(|(_, unit)| unit.encoded.len()).sum();
    let all_shares: u128 = shares.iter().map(|share| u128::from(*share)).sum();
    // What each may still get.
    let part_of = |share: &u16| (all_bytes as u128 * u128::from(*share) / all_shares) as i128;
    let mut room: Vec<i128> = shares.iter().map(part_of).collect();
    let uncut = |part: usize| plan.codec(part).is_some_and(|codec| codec.piece_elements().is_none());
    for (_, unit) in units().filter(|(part, _)| uncut(*part)) {
        room[plan.shape().owner(unit.chunk)] -= unit.encoded.len() as i128;
    }
    let mut left = Vec::new();
    for (_, unit) in units().filter(|(part, _)| !uncut(*part)) {
        let (owner, bytes) = (plan.shape().owner(unit.chunk), unit.encoded.len() as i128);
        if bytes <= room[owner] {
            room[owner] -= bytes;
        } else {
            left.push(unit);
        }
    }
    for unit in left {
        // The first of those with most room.
        let most = (0..room.len()).rev().max_by_key(|rank| room[*rank]).unwrap_or(0);
        room[most] -= unit.encoded.len() as i128;
        owners[unit.slots].fill(most as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::{super::shape::Shape, *};
    use pccl_protocol::{Algorithm, PartDescriptor};
    use pccl_quant::{
        DataType, ReduceOp,
        quantise::{Block, Quantisation, Scheme},
    };
    use proptest::prelude::*;

    fn parts(counts: &[u64], quantisation: Option<Quantisation>) -> Vec<PartDescriptor> {
        let part = |(index, count): (usize, &u64)| PartDescriptor {
            quantisation: quantisation.filter(|_| index % 2 == 0),
            ..PartDescriptor::new(*count, DataType::Float32, ReduceOp::Sum)
        };
        counts.iter().enumerate().map(part).collect()
    }

    fn of(counts: &[u64], quantisation: Option<Quantisation>, shares: &[u16]) -> Vec<(Plan, Ownership)> {
        let parts = parts(counts, quantisation);
        let plans =
            (0..shares.len()).map(|rank| Plan::new(&parts, &Shape::all_reduce(shares.len()), rank, 4096));
        plans.map(|plan| (plan.clone(), Ownership::new(&plan, shares))).collect()
    }

    fn quantisations() -> impl Strategy<Value = Option<Quantisation>> {
        let schemes =
            vec![Scheme::BlockAffineU8(Block::B64), Scheme::MinMax(DataType::Uint8), Scheme::CastBf16];
        prop::option::of(prop::sample::select(schemes).prop_map(Quantisation::new))
    }

    proptest! {
        #[test]
        fn every_frame_has_one_owner_whom_all_know(
            counts in prop::collection::vec(0u64..20_000, 1..4), quantisation in quantisations(),
            shares in prop::collection::vec(0u16..100, 3..9),
        ) {
            let all = of(&counts, quantisation, &shares);
            let (plan, first) = &all[0];
            let frames: usize = all.iter().map(|(_, ownership)| ownership.frames()).sum();
            prop_assert_eq!(frames, plan.slots());
            for (rank, (plan, own)) in all.iter().enumerate() {
                prop_assert_eq!(&own.owners, &first.owners);
                let mut ends = vec![0; plan.parts()];
                for frame in plan.all_frames() {
                    let unit = plan.unit_of(&frame);
                    let is_same = |other| own.owner(&other) == own.owner(&frame);
                    prop_assert!(plan.frames_of_unit(frame.part, &unit).all(is_same));
                    prop_assert_eq!(own.is_own(&frame), own.owner(&frame) == rank);
                    if own.is_own(&frame) && unit.slots.start == frame.slot {
                        let place = own.place_of(&unit);
                        prop_assert_eq!(place.start, ends[frame.part]);
                        ends[frame.part] = place.end;
                    }
                }
                for (part, end) in ends.into_iter().enumerate() {
                    prop_assert_eq!(end, own.owned_bytes(part));
                }
            }
        }

        #[test]
        fn each_gets_its_part_to_within_a_unit(
            count in 20_000u64..60_000,
            shares in prop::collection::vec(0u16..100, 3..9),
        ) {
            let all = of(&[count], None, &shares);
            let total: u64 = shares.iter().map(|share| u64::from(*share)).sum();
            prop_assume!(total > 0);
            for (rank, (_, own)) in all.iter().enumerate() {
                let wanted = (4 * count * u64::from(shares[rank]) / total) as i64;
                prop_assert!((own.owned_bytes(0) as i64 - wanted).abs() <= 4096, "{} of {wanted}", own.owned_bytes(0));
                prop_assert!(shares[rank] > 0 || own.owned_bytes(0) <= 4096);
            }
        }
    }

    #[test]
    fn equal_shares_leave_the_owners_of_the_ring() {
        for shares in [vec![], vec![0; 4]] {
            let parts = parts(&[10_001, 7], None);
            let plan = Plan::new(&parts, &Shape::all_reduce(4), 2, 4096);
            let own = Ownership::new(&plan, &shares);
            assert!(plan.all_frames().all(|frame| own.owner(&frame) == plan.shape().owner(frame.chunk)));
            assert_eq!(
                own.frames(),
                plan.frames_in_chunk(plan.shape().chunk_owned_by(2).expect("a chunk each"))
            );
        }
    }

    #[test]
    fn frames_are_small_enough_to_be_shared_out() {
        let bytes = |bytes: u64, shares: &[u16]| {
            let parts = parts(&[bytes / 4, 0], None);
            frame_bytes(&Descriptor::all_reduce(parts, Algorithm::Automatic), 5, shares)
        };
        let shares = [1, 0, 2, 1, 1];
        assert_eq!(bytes(64 << 20, &[]), FRAME_BYTES);
        assert_eq!(bytes(1 << 30, &shares), FRAME_BYTES);
        assert_eq!(bytes(1000, &shares), SMALLEST_FRAME_BYTES);
        let some = bytes(16 << 20, &shares);
        assert!(some.is_multiple_of(8) && (100 << 10..110 << 10).contains(&some), "{some}");
    }

    #[test]
    fn what_is_not_cut_stays_where_it_is() {
        let all = of(&[9_000], Some(Quantisation::new(Scheme::MinMax(DataType::Uint8))), &[1, 0, 0]);
        for (plan, own) in &all {
            assert!(plan.all_frames().all(|frame| own.owner(&frame) == plan.shape().owner(frame.chunk)));
        }
    }
}
