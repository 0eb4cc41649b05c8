//! Whole pairwise exchanges without a network: frames are delivered one by one, in any order, and cut off anywhere.
//! Each rank has the kernels of another processor.

use super::{
    attempt::Attempt,
    attempt_tests::{ID, Owner, Sent, assert_sent_as_programmed, bytes_of, inputs, land, payload_of, sent},
    progress::{AttemptOwner, op_key},
    runs::backup_bytes,
    shape_tests::expected,
};
use crate::memory::{Backup, Tensor};
use parking_lot::Mutex;
use pccl_protocol::{Algorithm, Descriptor, OpFault, PartDescriptor, Site};
use pccl_quant::{
    DataType, Level, ReduceOp,
    quantise::{Block, Quantisation, Scheme},
};
use pccl_quant_reference::{
    Owners, quantised_pairwise_oracle, quantised_sites_oracle, ring_all_reduce_oracle,
    sites_all_reduce_oracle,
};
use pccl_schedule::{Frame, Ownership, Plan, Program, Shape};
use proptest::prelude::*;
use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};
use tinysockets::link::{FrameHeader, Landing, Outgoing, Transfer};

/// Two tensors of one rank: one that may be in place and quantised, and one of half floats in place that is not
/// quantised.
struct Rank {
    floats: Vec<f32>,
    recv: Vec<f32>,
    halves: Vec<u16>,
    owner: Arc<Owner>,
    attempt: Option<Arc<Attempt>>,
    program: Option<Program>,
}

struct Ranks {
    delivered: Mutex<Vec<Sent>>,
    all: Vec<Rank>,
    in_place: bool,
}

const EQUAL: [u16; 8] = [0; 8];

#[derive(Debug, Clone, Copy)]
struct How {
    in_place: bool,
    op: ReduceOp,
    frame_bytes: usize,
    quantisation: Option<Quantisation>,
    /// As many of them count as there are ranks.
    shares: [u16; 8],
    /// The number of the site of each rank, if it goes over sites; then shares are those of sites, by their numbers.
    sites: Option<[u16; 8]>,
    /// The first tensor only, if not all-reduce.
    shape: fn(usize) -> Shape,
}

/// The tensors of one rank, as they are described.
fn plan(descriptor: &Descriptor, ranks: usize, rank: usize, how: How) -> (Plan, Ownership) {
    let plan = Plan::new(&descriptor.parts, &(how.shape)(ranks), rank, how.frame_bytes);
    let ownership = match how.sites {
        Some(of) => {
            let place = |number: &u16| Site { number: *number, share: how.shares[usize::from(*number)] };
            Ownership::over_sites(&plan, &of[..ranks].iter().map(place).collect::<Vec<_>>())
        }
        None => Ownership::new(&plan, &how.shares[..ranks]),
    };
    (plan, ownership)
}

impl Ranks {
    fn new(inputs: &[Vec<f32>], halves: usize, how: How) -> Self {
        let levels: Vec<Level> = Level::ALL.into_iter().filter(|level| level.is_available()).collect();
        let (n, counter) = (inputs.len(), Arc::default());
        let all = inputs.iter().enumerate().map(|(index, input)| {
            let mut rank = Rank {
                floats: input.clone(),
                recv: vec![f32::NAN; if how.in_place { 0 } else { input.len() }],
                halves: (0..halves).map(|i| (i * 2_311 + index * 977) as u16).collect(),
                owner: Arc::default(),
                attempt: None,
                program: None,
            };
            // Two tensors that are a run, unless they are quantised.
            // Other shapes cut each tensor by itself.
            let is_run = how.quantisation.is_none() && (how.shape)(n) == Shape::all_reduce(n);
            let cut = if is_run { input.len() / 3 } else { 0 };
            let (floats, more) = rank.floats.split_at_mut(cut);
            let (recv, more_recv) = rank.recv.split_at_mut(if how.in_place { 0 } else { cut });
            let mut tensors = Vec::new();
            for (floats, recv) in [(floats, recv), (more, more_recv)] {
                let tensor = if how.in_place {
                    Tensor::in_place(floats, how.op)
                } else {
                    Tensor::out_of_place(floats, recv, how.op).expect("same length")
                }
                .with(how.quantisation);
                crate::memory::check_part(&tensor.descriptor).expect("possible");
                tensors.push(tensor);
            }
            if how.quantisation.is_some() {
                tensors.remove(0);
            }
            let mut halves = Tensor::in_place(&mut rank.halves, how.op);
            halves.descriptor.data_type = DataType::Float16;
            tensors.push(halves);
            let parts = tensors.iter().map(|tensor| tensor.descriptor).collect();
            let descriptor = Descriptor::all_reduce(parts, Algorithm::Pairwise);
            let raws: Vec<_> = tensors.into_iter().map(|tensor| tensor.raw).collect();
            let (plan, ownership) = plan(&descriptor, n, index, how);
            let plan = plan.at(levels[index % levels.len()]);
            let memory = |bytes| Arc::new(Backup::new(bytes, &counter));
            let backup = memory(backup_bytes(&descriptor, &raws));
            let owner: Weak<dyn AttemptOwner> = Arc::<Owner>::downgrade(&rank.owner);
            let (program, tensors) = (Program::tree(plan, ownership), (&descriptor, &raws[..]));
            let attempt = Attempt::new(ID, Arc::new(program.clone()), tensors, (backup, &memory), owner);
            attempt.prepare();
            (rank.program, rank.attempt) = (Some(program), Some(attempt));
            rank
        });
        Self { delivered: Mutex::default(), all: all.collect(), in_place: how.in_place }
    }

    fn attempt(&self, rank: usize) -> &Arc<Attempt> {
        self.all[rank].attempt.as_ref().expect("made by new")
    }

    fn begin(&self, rank: usize) {
        self.attempt(rank).start();
    }

    /// Ranks that have a frame to deliver.
    fn senders(&self) -> Vec<usize> {
        (0..self.all.len()).filter(|&rank| !self.all[rank].owner.sent.lock().is_empty()).collect()
    }

    /// Takes one of the frames that a rank has sent, with the rank that it goes to.
    fn take(&self, sender: usize, choice: usize) -> (usize, Outgoing) {
        let mut sent = self.all[sender].owner.sent.lock();
        let index = choice % sent.len();
        sent.remove(index)
    }

    /// Moves a frame of `sender`; only the first `len` bytes of it.
    fn deliver(&self, sender: usize, choice: usize, len: usize) {
        let (to, frame) = self.take(sender, choice);
        let header = frame.header;
        let payload = payload_of(&frame);
        frame.transfer.released(&header);
        let receiver = self.attempt(to);
        let part = &payload[..payload.len().min(len)];
        match receiver.admit(&header).expect("due") {
            Landing::Direct => land(&**receiver, &header, 0, part),
            Landing::Fold => {
                let granule = receiver.granule_bytes(&header);
                assert!(receiver.fold(&header, 0, &part[..part.len() / granule * granule]));
            }
            Landing::Discard => panic!("the gate is open"),
        }
        if part.len() == payload.len() {
            self.delivered.lock().push(sent(sender, to, &header));
            receiver.arrived(&header);
        }
    }

    /// Demands that all have sent the frames of their programs.
    fn assert_as_programmed(&self) {
        let programs = self.all.iter().filter_map(|rank| rank.program.as_ref());
        assert_sent_as_programmed(self.delivered.lock().clone(), programs);
    }

    fn deliver_all(&self, order: &[(usize, usize)]) {
        let mut order = order.iter().cycle();
        while let senders = self.senders()
            && !senders.is_empty()
        {
            let (sender, frame) = order.next().expect("endless");
            self.deliver(senders[sender % senders.len()], *frame, usize::MAX);
        }
    }

    fn faults(&self) -> Vec<OpFault> {
        self.all.iter().flat_map(|rank| rank.owner.faults.lock().clone()).collect()
    }

    /// The end of a failed attempt.
    fn fail(&self) {
        for rank in 0..self.all.len() {
            self.attempt(rank).progress().retract();
            self.attempt(rank).restore();
        }
    }

    /// The content that must be what it was after a failure.
    fn kept(&self) -> Vec<(Vec<u8>, Vec<u16>)> {
        self.all.iter().map(|rank| (bytes_of(&rank.floats), rank.halves.clone())).collect()
    }

    fn result(&self, rank: usize) -> Vec<u8> {
        let rank = &self.all[rank];
        bytes_of(if self.in_place { &rank.floats } else { &rank.recv })
    }
}

fn half_bytes(halves: &[u16]) -> Vec<u8> {
    halves.iter().flat_map(|half| half.to_ne_bytes()).collect()
}

/// The result of the first tensor, unit by unit as if its owners owned the whole chunk.
fn exchanged(how: How, quantisation: Quantisation, (inputs, halves): (&[&[u8]], usize)) -> Vec<u8> {
    let (ranks, operation) = (inputs.len(), (ID.tag.number, 0));
    if how.shares == EQUAL && how.sites.is_none() {
        return quantised_pairwise_oracle(DataType::Float32, how.op, quantisation, operation, inputs);
    }
    let alone: Vec<u16> = (0..8).collect();
    let sites = &how.sites.as_ref().map_or(alone.as_slice(), |sites| sites)[..ranks];
    let part = PartDescriptor {
        quantisation: Some(quantisation),
        ..PartDescriptor::new(inputs[0].len() as u64 / 4, DataType::Float32, how.op)
    };
    // The second tensor counts, too.
    let halves = PartDescriptor::new(halves as u64, DataType::Float16, how.op);
    let descriptor = Descriptor::all_reduce(vec![part, halves], Algorithm::Pairwise);
    let (plan, ownership) = plan(&descriptor, ranks, 0, how);
    let mut by_owners: HashMap<(usize, Owners), Vec<u8>> = HashMap::new();
    let mut result = vec![0; inputs[0].len()];
    for frame in plan.all_frames().filter(|frame| frame.part == 0) {
        let owner = ownership.owner(&frame);
        let local_of = |rank: usize| match ownership.parent(rank, &frame) {
            Some(parent) if sites[parent] == sites[rank] => parent,
            _ => rank,
        };
        let owners = Owners { owner, local: (0..ranks).map(local_of).collect() };
        let of_chunk = by_owners.entry((frame.chunk, owners)).or_insert_with_key(|(chunk, owners)| {
            let owners_of = |at: usize| (at == *chunk).then(|| owners.clone());
            let all = (inputs, sites);
            quantised_sites_oracle(DataType::Float32, how.op, quantisation, operation, all, owners_of)
        });
        let elements = plan.unit_of(&frame).elements;
        let bytes = 4 * elements.start..4 * elements.end;
        result[bytes.clone()].copy_from_slice(&of_chunk[bytes]);
    }
    result
}

fn oracle(how: How, kept: &[(Vec<u8>, Vec<u16>)]) -> (Vec<u8>, Vec<u8>) {
    let floats: Vec<&[u8]> = kept.iter().map(|(floats, _)| floats.as_slice()).collect();
    let halves: Vec<Vec<u8>> = kept.iter().map(|(_, halves)| half_bytes(halves)).collect();
    let halves: Vec<&[u8]> = halves.iter().map(Vec::as_slice).collect();
    let reduced = |data_type, inputs: &[&[u8]]| match how.sites {
        Some(sites) => sites_all_reduce_oracle(data_type, how.op, inputs, &sites[..inputs.len()]),
        None => ring_all_reduce_oracle(data_type, how.op, inputs),
    };
    let floats = match how.quantisation {
        Some(quantisation) => exchanged(how, quantisation, (&floats, halves[0].len() / 2)),
        None => reduced(DataType::Float32, &floats),
    };
    (floats, reduced(DataType::Float16, &halves))
}

fn quantisations() -> impl Strategy<Value = Option<Quantisation>> {
    let schemes = [
        Scheme::MinMax(DataType::Uint8),
        Scheme::ZeroPointScale(DataType::Int16),
        Scheme::BlockAffineU8(Block::B64),
        Scheme::BlockSymmetricI8(Block::B128),
        Scheme::BlockAffineU4(Block::B64),
        Scheme::CastBf16,
        Scheme::BlockE4m3(Block::B64),
    ];
    let how = |(scheme, seed): (Scheme, Option<u64>)| match seed {
        Some(seed) if scheme.has_stochastic() => Quantisation::new(scheme).stochastic(seed),
        _ => Quantisation::new(scheme),
    };
    prop::option::of((prop::sample::select(schemes.to_vec()), any::<Option<u64>>()).prop_map(how))
}

fn hows() -> impl Strategy<Value = How> {
    let ops = prop::sample::select(vec![ReduceOp::Sum, ReduceOp::Avg]);
    let frames = prop::sample::select(vec![8usize, 64, 1 << 20]);
    let shares = prop_oneof![Just(EQUAL), prop::array::uniform8(0u16..10)];
    // One site, sites of one, and all between.
    let sites = prop::option::of(prop::array::uniform8(0u16..5));
    (any::<bool>(), ops, frames, quantisations(), shares, sites).prop_map(
        |(in_place, op, frame_bytes, quantisation, shares, sites)| How {
            in_place,
            op,
            frame_bytes,
            quantisation,
            shares,
            sites,
            shape: Shape::all_reduce,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn any_order_of_delivery_gives_the_bytes_of_the_oracle(
        ranks in 3usize..7, floats in 1usize..900, halves in 0usize..40, how in hows(), is_late in any::<bool>(),
        order in prop::collection::vec(any::<(usize, usize)>(), 60),
    ) {
        let all = Ranks::new(&inputs(ranks, floats), halves, how);
        let before = all.kept();
        // Rank 0 may hear that it has begun after everything else has come that does not depend on it.
        let late = usize::from(is_late);
        (late..ranks).for_each(|rank| all.begin(rank));
        all.deliver_all(&order);
        if is_late {
            // Unless there is nothing for it to begin with, since it owns all.
            prop_assert!(how.shares != EQUAL || how.sites.is_some() || !all.attempt(1).progress().has_received_all());
            all.begin(0);
            all.deliver_all(&order);
        }
        prop_assert_eq!(all.faults(), []);
        all.assert_as_programmed();
        let expected = oracle(how, &before);
        for rank in 0..ranks {
            let progress = all.attempt(rank).progress();
            prop_assert!(progress.has_received_all() && progress.has_released_all());
            prop_assert_eq!(*all.all[rank].owner.received_all.lock(), 1);
            all.attempt(rank).deliver().expect("everything has come");
            progress.retract();
            prop_assert_eq!(&all.result(rank), &expected.0, "rank {} of {:?}", rank, how);
            prop_assert_eq!(half_bytes(&all.all[rank].halves), &expected.1[..]);
        }
    }

    #[test]
    fn an_attempt_that_is_cut_off_anywhere_leaves_everything_as_it_was(
        ranks in 3usize..6, frames in 0usize..60, part in 0usize..70, how in hows(),
        order in prop::collection::vec(any::<usize>(), 60),
    ) {
        let all = Ranks::new(&inputs(ranks, 700), 9, How { frame_bytes: 64, ..how });
        let before = all.kept();
        (0..ranks).for_each(|rank| all.begin(rank));
        for (number, index) in order[..frames].iter().enumerate() {
            let senders = all.senders();
            if senders.is_empty() {
                break;
            }
            // The last frame is cut.
            let len = if number + 1 == frames { part } else { usize::MAX };
            all.deliver(senders[index % senders.len()], *index, len);
        }
        all.fail();
        prop_assert!(all.kept() == before);
    }
}

const PLAIN: How = How {
    in_place: true,
    op: ReduceOp::Sum,
    frame_bytes: 64,
    quantisation: None,
    shares: EQUAL,
    sites: None,
    shape: Shape::all_reduce,
};

fn header(stage: usize, offset: u64, len: u32) -> FrameHeader {
    FrameHeader { op: op_key(ID), part: 0, stage: stage as u32, offset, len, flags: 0, checksum: 0 }
}

#[test]
fn frames_that_are_not_due_are_refused() {
    // Three chunks of 32 floats, of two frames each. Rank 0 owns chunk 1, at bytes 128 to 255.
    let all = Ranks::new(&inputs(3, 96), 0, PLAIN);
    let attempt = all.attempt(0);
    let (contribution, result) = (1, 3 + 1);
    assert_eq!(attempt.admit(&header(contribution, 128, 64)), Ok(Landing::Direct));
    assert!(attempt.admit(&header(contribution, 128, 64)).is_err(), "a duplicate");
    assert_eq!(attempt.admit(&header(contribution + 1, 128, 64)), Ok(Landing::Direct), "of another rank");
    assert_eq!(attempt.admit(&header(result, 256, 64)), Ok(Landing::Direct));
    for (stage, offset, len, what) in [
        (result, 256, 64, "a duplicate"),
        (0, 128, 64, "the own contribution"),
        (3, 128, 64, "the own result"),
        (contribution, 0, 64, "a chunk of another owner"),
        (contribution, 160, 64, "between two frames"),
        (contribution, 192, 63, "shorter than the frame"),
        (contribution, 192, 65, "longer than the frame"),
        (result, 128, 64, "a result of a chunk that its sender does not own"),
        (6, 128, 64, "beyond the last stage"),
        (usize::MAX >> 33, 128, 64, "far beyond"),
    ] {
        assert!(attempt.admit(&header(stage, offset, len)).is_err(), "{what}");
    }
}

#[test]
fn over_sites_frames_of_other_levels_and_forms_are_refused() {
    // Two sites of two; four chunks of two frames each. The owner of a frame gets it from its neighbour and from the
    // local owner of the other site, and nobody else; a quantised one from its neighbour as it is.
    let (sites, scheme) = (Some([0, 0, 1, 1, 0, 0, 0, 0]), Scheme::BlockAffineU8(Block::B64));
    for quantisation in [None, Some(Quantisation::new(scheme))] {
        let how = How { sites, quantisation, ..PLAIN };
        let all = Ranks::new(&inputs(4, 512), 0, how);
        let part =
            PartDescriptor { quantisation, ..PartDescriptor::new(512, DataType::Float32, ReduceOp::Sum) };
        let (plan, ownership) = plan(&Descriptor::all_reduce(vec![part], Algorithm::Sites), 4, 0, how);
        let children = |rank: usize, frame: &Frame| {
            (0..4).filter(|other| ownership.parent(*other, frame) == Some(rank)).count()
        };
        for frame in plan.all_frames() {
            let plain = plan.plain_frame(&frame).filter(|_| quantisation.is_some()).unwrap_or(frame);
            for (rank, from) in (0..4).flat_map(|rank| (0..4).map(move |from| (rank, from))) {
                let is_admitted = |stage, frame: &Frame| {
                    let header = header(stage, frame.offset as u64, frame.len as u32);
                    all.attempt(rank).admit(&header).is_ok()
                };
                let (up, down) = (ownership.parent(from, &frame), ownership.parent(rank, &frame));
                let (is_up, is_near) = (up == Some(rank), from / 2 == rank / 2);
                let is_plain = quantisation.is_some() && is_near;
                assert_eq!(
                    is_admitted(8 + from, &plain),
                    is_up && is_plain,
                    "{from} adds {plain:?} at {rank}"
                );
                assert_eq!(is_admitted(from, &frame), is_up && !is_plain, "{from} adds {frame:?} at {rank}");
                // Not before this rank has sent what the result is made of.
                let is_due = down == Some(from) && children(rank, &frame) == 0;
                assert_eq!(is_admitted(4 + from, &frame), is_due, "{from} sends {frame:?} to {rank}");
                assert!(!is_admitted(12 + from, &frame), "there is no such stage");
            }
        }
    }
}

/// Between sites the encoded form goes; within them elements go up, and the encoded form down.
#[test]
fn over_sites_elements_are_quantised_on_their_way_to_other_sites() {
    let sites = Some([0, 0, 1, 1, 0, 0, 0, 0]);
    let scheme = Quantisation::new(Scheme::BlockAffineU8(Block::B256));
    let all = Ranks::new(&inputs(4, 8192), 0, How { quantisation: Some(scheme), sites, ..PLAIN });
    (0..4).for_each(|rank| all.begin(rank));
    let mut moved = [[0_u64; 4]; 4];
    while let Some(sender) = all.senders().first().copied() {
        let peeked = {
            let sent = all.all[sender].owner.sent.lock();
            sent.first().map(|(to, frame)| (*to, u64::from(frame.header.len)))
        };
        let (to, len) = peeked.expect("it has a frame");
        moved[sender][to] += len;
        all.deliver(sender, 0, usize::MAX);
    }
    // 32 blocks of 256 elements and 8 bytes: each crosses once each way. Half of the elements of each rank go up to its
    // neighbour, which is the local owner of that half, and half of the results come back.
    let (plain, encoded) = (4 * 8192, 32 * 264);
    for site in [[0, 1], [2, 3]] {
        let crossing: u64 = site
            .iter()
            .flat_map(|from| (0..4).map(|to| (*from, to)))
            .filter(|(from, to)| from / 2 != to / 2)
            .map(|(from, to)| moved[from][to])
            .sum();
        assert_eq!(crossing, encoded, "{moved:?}");
        assert_eq!(moved[site[0]][site[1]] + moved[site[1]][site[0]], plain + encoded, "{moved:?}");
    }
}

#[test]
fn each_rank_moves_as_much_as_on_the_ring() {
    let scheme = Quantisation::new(Scheme::BlockAffineU8(Block::B256));
    // Four chunks of 1024 elements; encoded, four blocks of 256 + 8 bytes each.
    for (quantisation, chunk) in [(None, 4096), (Some(scheme), 4 * 264)] {
        let all = Ranks::new(&inputs(4, 4096), 0, How { quantisation, ..PLAIN });
        (0..4).for_each(|rank| all.begin(rank));
        all.deliver_all(&[(0, 0)]);
        assert_eq!(all.attempt(2).progress().traffic(), (6 * chunk, 6 * chunk));
        // The frames that were sent are gone, so count again.
        let again = Ranks::new(&inputs(4, 4096), 0, How { quantisation, ..PLAIN });
        again.begin(2);
        let bytes = |to: usize| -> u64 {
            let sent = again.all[2].owner.sent.lock();
            sent.iter().filter(|(rank, _)| *rank == to).map(|(_, frame)| u64::from(frame.header.len)).sum()
        };
        assert_eq!([0, 1, 2, 3].map(bytes), [chunk, chunk, 0, chunk]);
    }
}

/// Shapes of the other collectives, among ranks of which the last is the root.
const SHAPES: [fn(usize) -> Shape; 4] = [
    |ranks| Shape::broadcast(ranks, ranks - 1),
    |ranks| Shape::reduce(ranks, ranks - 1),
    |ranks| Shape::all_gather(ranks, &[]),
    |ranks| Shape::reduce_scatter(ranks, &[]),
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn every_shape_gives_what_it_says_or_leaves_everything_as_it_was(
        ranks in 3usize..7, floats in 0usize..300, in_place: bool, shape in prop::sample::select(&SHAPES[..]),
        cut in prop::option::of((0usize..60, 0usize..70)), order in prop::collection::vec(any::<(usize, usize)>(), 60),
    ) {
        let inputs = inputs(ranks, floats);
        let all = Ranks::new(&inputs, 0, How { in_place, op: ReduceOp::Avg, shape, ..PLAIN });
        let before = all.kept();
        (0..ranks).for_each(|rank| all.begin(rank));
        if let Some((frames, part)) = cut {
            for (number, (sender, index)) in order.iter().take(frames).enumerate() {
                let senders = all.senders();
                if senders.is_empty() {
                    break;
                }
                let len = if number + 1 == frames { part } else { usize::MAX };
                all.deliver(senders[sender % senders.len()], *index, len);
            }
            all.fail();
            prop_assert!(all.kept() == before);
            return Ok(());
        }
        all.deliver_all(&order);
        for rank in 0..ranks {
            let progress = all.attempt(rank).progress();
            prop_assert!(progress.has_received_all() && progress.has_released_all());
            all.attempt(rank).deliver().expect("everything has come");
            let (result, mut at) = (all.result(rank), 0);
            for chunk in expected(&shape(ranks), rank, ReduceOp::Avg, None, &inputs, in_place) {
                let Some(chunk) = chunk else { break };
                prop_assert!(result[at..].starts_with(&chunk), "rank {}, byte {}", rank, at);
                at += chunk.len();
            }
        }
        prop_assert_eq!(all.faults(), []);
    }
}
