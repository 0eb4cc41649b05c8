//! Which rank owns which frames in pairwise exchange and over sites, and who sends to whom, as plain data.
//!
//! Contributions to a frame go up a tree, and its result goes down: from each rank to the [local owner](Sites) of its
//! site, from there to the owner. In pairwise exchange every rank is a site of its own, and sends to the owner.
//!
//! With equal shares each rank owns the chunk that it completes on the ring. With the shares of a ring plan, ranks with
//! more than that take over frames of those with less: whole units, so that what is quantised stays as it is cut. A
//! tensor that is not cut into units stays with the owners on the ring. All ranks come to the same, from the same plan.
//!
//! Quantised tensors are quantised between sites. Within a site elements go up as they are; results go down as they
//! came.
//!
//! Over sites the ranks of a site own the same. Which rank of another site is the local owner of a unit goes around,
//! for each owner separately: so all pairs of ranks of two sites carry the same.

use super::{
    plan::{FRAME_BYTES, Frame, Plan},
    sites::Sites,
};
use pccl_protocol::{Algorithm, Descriptor, Site};

/// Frames for each rank, about, where shares are not equal: enough that owners can be given what they
/// should have.
const FRAMES_PER_RANK: usize = 32;
/// But none smaller than this, in bytes of what is not quantised: each has a header, and wakes somebody.
const SMALLEST_FRAME_BYTES: usize = 64 << 10;

/// Payload bytes of a full frame, as [`Plan::new`] wants them, of an operation among ranks by that algorithm: of which
/// each is given what it should have, or owns its chunk of the ring.
pub fn frame_bytes(descriptor: &Descriptor, ranks: usize, algorithm: Algorithm, shares: &[u16]) -> usize {
    let is_over_sites = algorithm == Algorithm::Sites;
    if !is_over_sites && shares.is_empty() {
        return FRAME_BYTES;
    }
    // A frame may stand for elements that travel as they are, of up to eight times its bytes.
    let codecs =
        descriptor.parts.iter().filter_map(|part| part.quantisation?.codec(part.data_type, part.op).ok());
    if is_over_sites && codecs.into_iter().any(|codec| codec.piece_elements().is_none()) {
        return SMALLEST_FRAME_BYTES;
    }
    let wanted = usize::try_from(descriptor.bytes()).unwrap_or(usize::MAX) / (ranks * FRAMES_PER_RANK);
    wanted.clamp(SMALLEST_FRAME_BYTES, FRAME_BYTES).next_multiple_of(8)
}

/// The number of parts into which the share of a site is cut for its ranks: rounding does not matter.
const PARTS_OF_SITE: u64 = 1 << 20;

/// See the module's documentation.
#[derive(Debug, Clone)]
pub struct Ownership {
    rank: usize,
    sites: Sites,
    /// Owner of each slot.
    owners: Vec<u8>,
    /// Local owners of each slot, slot by slot, by site; none if each rank is a site.
    local: Vec<u8>,
}

impl Ownership {
    /// As the ranks' `shares` say, in any unit; empty, or all 0: equal ones.
    pub fn new(plan: &Plan, shares: &[u16]) -> Self {
        let mut owners: Vec<u8> = vec![0; plan.slots()];
        for frame in plan.all_frames() {
            owners[frame.slot] = plan.shape().owner(frame.chunk) as u8;
        }
        if shares.len() == plan.ranks() && shares.iter().any(|share| *share > 0) {
            let shares: Vec<u64> = shares.iter().copied().map(u64::from).collect();
            share_out(plan, &shares, &mut owners);
        }
        Self { rank: plan.rank(), sites: Sites::of_one(plan.ranks()), owners, local: Vec::new() }
    }

    /// Over sites, as the plan of the group names them by rank.
    pub fn over_sites(plan: &Plan, places: &[Site]) -> Self {
        let sites = Sites::of_plan(places);
        let has_shares = places.iter().any(|place| place.share > 0);
        let share = |rank: usize| match has_shares {
            true => u64::from(places[rank].share) * PARTS_OF_SITE / sites.size_of(rank) as u64,
            false => 1,
        };
        let shares: Vec<u64> = (0..plan.ranks()).map(share).collect();
        let mut owners: Vec<u8> = vec![0; plan.slots()];
        for frame in plan.all_frames() {
            owners[frame.slot] = plan.shape().owner(frame.chunk) as u8;
        }
        share_out(plan, &shares, &mut owners);
        let mut local = vec![0; plan.slots() * sites.count()];
        // Units of each owner so far; not all begin with the same partner.
        let mut units: Vec<usize> = (0..plan.ranks()).map(|rank| sites.turn_in_site(rank, 0)).collect();
        for frame in plan.all_frames() {
            let (owner, unit) = (usize::from(owners[frame.slot]), plan.unit_of(&frame));
            for site in 0..sites.count() {
                let members = sites.members(site);
                let turn = units[owner] % members.len();
                let next =
                    if site == sites.of(owner) { owner } else { sites.members(site).nth(turn).unwrap_or(0) };
                local[frame.slot * sites.count() + site] = next as u8;
            }
            units[owner] += usize::from(unit.slots.end == frame.slot + 1);
        }
        Self { rank: plan.rank(), sites, owners, local }
    }

    /// Whether contributions go up two levels.
    pub fn has_sites(&self) -> bool {
        !self.local.is_empty()
    }

    /// The rank that folds the contributions of a site to a frame.
    fn local_owner(&self, slot: usize, site: usize) -> usize {
        if self.has_sites() { self.local[slot * self.sites.count() + site] as usize } else { site }
    }

    /// To whom a rank sends what it contributes to a frame, and from whom it gets the result; none for the owner.
    pub fn parent(&self, rank: usize, frame: &Frame) -> Option<usize> {
        let owner = self.owner(frame);
        match self.local_owner(frame.slot, self.sites.of(rank)) {
            _ if rank == owner => None,
            local if rank == local => Some(owner),
            local => Some(local),
        }
    }

    /// How many other ranks of the site, and other sites, contribute to a frame here.
    pub fn contributors(&self, frame: &Frame) -> (usize, usize) {
        let is_local = self.local_owner(frame.slot, self.sites.of(self.rank)) == self.rank;
        let site = if is_local { self.sites.size_of(self.rank) - 1 } else { 0 };
        (site, if self.is_own(frame) { self.sites.count() - 1 } else { 0 })
    }

    /// Whether a run is quantised between sites, and goes up within them as it is.
    pub fn is_plain_within(&self, plan: &Plan, part: usize) -> bool {
        self.has_sites() && plan.codec(part).is_some()
    }

    /// Whether two ranks are in one site.
    pub fn are_near(&self, a: usize, b: usize) -> bool {
        self.sites.of(a) == self.sites.of(b)
    }

    /// How many ranks contribute to a frame here, and get the result from here.
    pub fn children(&self, frame: &Frame) -> usize {
        let (site, over) = self.contributors(frame);
        site + over
    }

    /// The place of this rank among those of its site, and of its site among all, in the order in which contributions
    /// to a chunk that starts at rank `start` are folded.
    pub fn own_turns(&self, start: usize) -> (usize, usize) {
        (self.sites.turn_in_site(self.rank, start), self.sites.turn_of(self.sites.of(self.rank), start))
    }

    /// The place of what a rank contributes to a frame among all contributions of others here, those of the site first.
    pub fn place_among(&self, from: usize, frame: &Frame, start: usize) -> usize {
        let (of_site, over_sites) = self.own_turns(start);
        // The own contribution has no place among those of the others.
        let without = |turn: usize, own: usize| turn - usize::from(turn > own);
        if self.sites.of(from) == self.sites.of(self.rank) {
            return without(self.sites.turn_in_site(from, start), of_site);
        }
        let turn = self.sites.turn_of(self.sites.of(from), start);
        self.contributors(frame).0 + without(turn, over_sites)
    }

    /// The rank that folds a frame.
    pub fn owner(&self, frame: &Frame) -> usize {
        self.owners[frame.slot] as usize
    }

    /// Whether this rank does.
    pub fn is_own(&self, frame: &Frame) -> bool {
        self.owner(frame) == self.rank
    }
}

/// Gives units to ranks so that each has about its part of all bytes.
fn share_out(plan: &Plan, shares: &[u64], owners: &mut [u8]) {
    let units = || {
        let with_unit = plan.all_frames().map(|frame| (frame.part, frame.slot, plan.unit_of(&frame)));
        with_unit.filter(|(_, slot, unit)| unit.slots.start == *slot).map(|(part, _, unit)| (part, unit))
    };
    let all_bytes: usize = units().map(|(_, unit)| unit.encoded.len()).sum();
    let all_shares: u128 = shares.iter().map(|share| u128::from(*share)).sum();
    // The bytes that each may still get.
    let part_of = |share: &u64| (all_bytes as u128 * u128::from(*share) / all_shares) as i128;
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
    use pccl_protocol::PartDescriptor;
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
            let own_frames = |(plan, own): &(Plan, Ownership)| plan.all_frames().filter(|it| own.is_own(it)).count();
            prop_assert_eq!(all.iter().map(own_frames).sum::<usize>(), plan.slots());
            for (rank, (plan, own)) in all.iter().enumerate() {
                prop_assert_eq!(&own.owners, &first.owners);
                for frame in plan.all_frames() {
                    let unit = plan.unit_of(&frame);
                    let is_same = |other| own.owner(&other) == own.owner(&frame);
                    prop_assert!(plan.frames_of_unit(frame.part, &unit).all(is_same));
                    prop_assert_eq!(own.is_own(&frame), own.owner(&frame) == rank);
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
            for (rank, (plan, own)) in all.iter().enumerate() {
                let wanted = (4 * count * u64::from(shares[rank]) / total) as i64;
                let of_own = plan.all_frames().filter(|frame| own.is_own(frame));
                let owned: usize = of_own.map(|frame| frame.len).sum();
                prop_assert!((owned as i64 - wanted).abs() <= 4096, "{owned} of {wanted}");
                prop_assert!(shares[rank] > 0 || owned <= 4096);
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
        }
    }

    /// The bytes that go from each rank to each other one.
    fn moved(all: &[(Plan, Ownership)]) -> Vec<Vec<usize>> {
        let (plan, own) = &all[0];
        let mut moved = vec![vec![0; all.len()]; all.len()];
        for frame in plan.all_frames() {
            let edge = |rank: usize| Some((rank, own.parent(rank, &frame)?));
            for (rank, parent) in (0..all.len()).filter_map(edge) {
                moved[rank][parent] += frame.len;
                moved[parent][rank] += frame.len;
            }
        }
        moved
    }

    #[test]
    fn over_sites_each_byte_crosses_once_and_all_pairs_carry_the_same() {
        let sites = [0, 0, 0, 7, 7, 7];
        let places: Vec<Site> = sites.iter().map(|number| Site { number: *number, share: 0 }).collect();
        let plans: Vec<Plan> = (0..6)
            .map(|rank| Plan::new(&parts(&[600_000], None), &Shape::all_reduce(6), rank, 4096))
            .collect();
        let all: Vec<_> =
            plans.iter().map(|plan| (plan.clone(), Ownership::over_sites(plan, &places))).collect();
        let moved = moved(&all);
        let crossing: usize = (0..3).map(|from| moved[from][3..].iter().sum::<usize>()).sum();
        assert_eq!(crossing, 4 * 600_000);
        for from in 0..6 {
            for to in (0..6).filter(|to| *to != from) {
                let part = if sites[from] == sites[to] { 2.0 / 3.0 } else { 1.0 / 9.0 };
                let wanted = part * 4.0 * 600_000.0;
                assert!((moved[from][to] as f64 / wanted - 1.0).abs() < 0.1, "{from} -> {to}: {moved:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn over_sites_all_know_the_same_tree(
            count in 0u64..20_000, sites in prop::collection::vec((0u16..4, 0u16..50), 3..9),
        ) {
            let share = |number: u16| sites[usize::from(number) % sites.len()].1;
            let site = |(number, _): &(u16, u16)| Site { number: *number, share: share(*number) };
            let places: Vec<Site> = sites.iter().map(site).collect();
            let plans = (0..sites.len())
                .map(|rank| Plan::new(&parts(&[count], None), &Shape::all_reduce(sites.len()), rank, 4096));
            let all: Vec<_> = plans.map(|plan| (plan.clone(), Ownership::over_sites(&plan, &places))).collect();
            for frame in all[0].0.all_frames() {
                let mut children = vec![0; all.len()];
                for rank in 0..all.len() {
                    let parents: Vec<_> = all.iter().map(|(_, own)| own.parent(rank, &frame)).collect();
                    prop_assert!(parents.iter().all(|parent| *parent == parents[0]));
                    let Some(parent) = parents[0] else { continue };
                    children[parent] += 1;
                    // Two levels: the parent of a parent is the owner.
                    let above = all[0].1.parent(parent, &frame);
                    prop_assert!(above.is_none_or(|above| all[0].1.owner(&frame) == above));
                    prop_assert!(above.is_none() || places[parent].number == places[rank].number);
                }
                for (rank, (_, own)) in all.iter().enumerate() {
                    prop_assert_eq!(own.children(&frame), children[rank]);
                    let start = all[0].0.start_of(frame.chunk);
                    let mut turns: Vec<usize> = (0..all.len())
                        .filter(|from| own.parent(*from, &frame) == Some(rank))
                        .map(|from| own.place_among(from, &frame, start))
                        .collect();
                    turns.sort_unstable();
                    prop_assert_eq!(turns, (0..children[rank]).collect::<Vec<_>>());
                }
            }
        }
    }

    #[test]
    fn frames_are_small_enough_to_be_shared_out() {
        let bytes = |bytes: u64, shares: &[u16]| {
            let parts = parts(&[bytes / 4, 0], None);
            frame_bytes(&Descriptor::all_reduce(parts, Algorithm::Automatic), 5, Algorithm::Pairwise, shares)
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
