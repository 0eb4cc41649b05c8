//! Whole rings of attempts without a network: frames are delivered one by one, in any order, and cut off anywhere.

use super::{
    attempt::Attempt,
    progress::{AttemptOwner, op_key},
    runs::backup_bytes,
};
use crate::memory::{Backup, Tensor};
use parking_lot::Mutex;
use pccl_protocol::{
    Algorithm, Descriptor, GroupEpoch, LinkGeneration, OpFault, OpFaultKind, OpId, PeerId, Tag,
};
use pccl_quant::{Level, ReduceOp, quantise::Quantisation};
use pccl_quant_reference::ring_all_reduce_oracle;
use pccl_schedule::{Plan, Program, Shape};
use proptest::prelude::*;
use std::{
    ops::Range,
    sync::{Arc, Weak},
};
use tinysockets::link::{FrameHeader, Landing, Outgoing, Place, Transfer};

pub(super) const ID: OpId =
    OpId { epoch: GroupEpoch(3), tag: Tag { number: 9, pair: None, track: 0 }, attempt: 1 };

/// Stands for the operation and for the links to other ranks.
#[derive(Default)]
pub(super) struct Owner {
    /// With the ranks that they go to.
    pub(super) sent: Mutex<Vec<(usize, Outgoing)>>,
    pub(super) received_all: Mutex<usize>,
    pub(super) faults: Mutex<Vec<OpFault>>,
}

impl AttemptOwner for Owner {
    fn received_all(&self, op: OpId) {
        assert_eq!(op, ID);
        *self.received_all.lock() += 1;
    }

    fn released_all(&self, _: OpId) {}

    fn fault(&self, _: OpId, fault: OpFault) {
        self.faults.lock().push(fault);
    }

    fn send(&self, _: OpId, rank: usize, frames: &mut dyn Iterator<Item = Outgoing>) -> bool {
        self.sent.lock().extend(frames.map(|frame| (rank, frame)));
        true
    }
}

/// A frame that a rank has sent, as others see it: the ranks that it goes from and to, its stage, its run, and its
/// place in that.
pub(super) type Sent = ([usize; 2], u32, u32, (u64, u32));

pub(super) fn sent(from: usize, to: usize, header: &FrameHeader) -> Sent {
    ([from, to], header.stage, header.part, (header.offset, header.len))
}

/// Demands that these frames are those of the programs of all ranks, each once.
pub(super) fn assert_sent_as_programmed<'a>(
    mut frames: Vec<Sent>,
    programs: impl Iterator<Item = &'a Program>,
) {
    let mut wanted: Vec<Sent> = Vec::new();
    for (from, program) in programs.enumerate() {
        wanted.extend(program.sent().into_iter().map(|(hop, frame)| {
            let place = (frame.offset as u64, frame.len as u32);
            ([from, hop.rank], hop.stage as u32, frame.part as u32, place)
        }));
    }
    frames.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(frames, wanted);
}

pub(super) struct Rank {
    program: Program,
    pub(super) send: Vec<f32>,
    recv: Vec<f32>,
    pub(super) owner: Arc<Owner>,
    attempt: Option<Arc<Attempt>>,
}

pub(super) struct Ring {
    pub(super) ranks: Vec<Rank>,
    delivered: Mutex<Vec<Sent>>,
    memory: Memory,
}

/// The kind of memory of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Memory {
    InPlace,
    /// In place, without a backup.
    Unsaved,
    OutOfPlace,
    /// Several tensors, some in place and some not, which are a run.
    Several,
}

impl Memory {
    /// The tensors that `count` elements are, and whether each is in place.
    fn tensors(self, count: usize) -> Vec<(Range<usize>, bool)> {
        if self == Self::Several {
            let cuts = [0, count.min(1), count / 3, count / 3, count / 2, count];
            let cuts = || {
                cuts.iter().scan(0, |last, cut| Some(std::mem::replace(last, (*last).max(*cut)).max(*cut)))
            };
            return cuts().zip(cuts().skip(1)).enumerate().map(|(i, (a, b))| (a..b, i % 2 == 0)).collect();
        }
        vec![(0..count, self != Self::OutOfPlace)]
    }
}

impl From<bool> for Memory {
    fn from(in_place: bool) -> Self {
        if in_place { Self::InPlace } else { Self::OutOfPlace }
    }
}

impl Ring {
    fn new(inputs: &[Vec<f32>], in_place: bool, op: ReduceOp, frame_bytes: usize) -> Self {
        Self::with(inputs, in_place, op, frame_bytes, None)
    }

    /// An all-reduce. Quantised tensors are coded by another level of processor features on each rank.
    pub(super) fn with(
        inputs: &[Vec<f32>],
        in_place: bool,
        op: ReduceOp,
        frame_bytes: usize,
        quantisation: Option<Quantisation>,
    ) -> Self {
        let shape = Shape::all_reduce(inputs.len());
        Self::shaped(&shape, inputs, in_place.into(), op, (frame_bytes, quantisation))
    }

    /// A collective of any shape.
    pub(super) fn shaped(
        shape: &Shape,
        inputs: &[Vec<f32>],
        memory: Memory,
        op: ReduceOp,
        how: (usize, Option<Quantisation>),
    ) -> Self {
        Self::programmed(Program::ring, shape, inputs, memory, op, how)
    }

    /// A collective by another algorithm.
    pub(super) fn programmed(
        program: fn(Plan) -> Program,
        shape: &Shape,
        inputs: &[Vec<f32>],
        memory: Memory,
        op: ReduceOp,
        (frame_bytes, quantisation): (usize, Option<Quantisation>),
    ) -> Self {
        let levels: Vec<Level> = Level::ALL.into_iter().filter(|level| level.is_available()).collect();
        let ranks = inputs
            .iter()
            .enumerate()
            .map(|(index, input)| Rank {
                program: program(Plan::new(&[], shape, index, frame_bytes)),
                send: input.clone(),
                recv: vec![f32::NAN; input.len()],
                owner: Arc::default(),
                attempt: None,
            })
            .collect();
        let mut ring = Self { ranks, delivered: Mutex::default(), memory };
        let counter = Arc::default();
        for (index, rank) in ring.ranks.iter_mut().enumerate() {
            let (mut send, mut recv) = (&mut rank.send[..], &mut rank.recv[..]);
            let (mut parts, mut raws) = (Vec::new(), Vec::new());
            for (range, in_place) in memory.tensors(send.len()) {
                let (own_send, rest_send) = send.split_at_mut(range.len());
                let (own_recv, rest_recv) = recv.split_at_mut(range.len());
                (send, recv) = (rest_send, rest_recv);
                let tensor = if in_place {
                    Tensor::in_place(own_send, op)
                } else {
                    Tensor::out_of_place(own_send, own_recv, op).expect("same length")
                }
                .with(quantisation);
                crate::memory::check_part(&tensor.descriptor).expect("possible");
                parts.push(tensor.descriptor);
                let is_unsaved = memory == Memory::Unsaved;
                raws.push(if is_unsaved { tensor.raw.without_backup() } else { tensor.raw });
            }
            let descriptor = Descriptor::all_reduce(parts, Algorithm::Automatic);
            let plan =
                Plan::new(&descriptor.parts, shape, index, frame_bytes).at(levels[index % levels.len()]);
            let backup = Arc::new(Backup::new(backup_bytes(&descriptor, &raws), &counter));
            let owner: Weak<dyn AttemptOwner> = Arc::<Owner>::downgrade(&rank.owner);
            let room = |bytes| Arc::new(Backup::new(bytes, &counter));
            rank.program = program(plan);
            let tensors = (&descriptor, &raws[..]);
            let attempt = Attempt::new(ID, Arc::new(rank.program.clone()), tensors, (backup, &room), owner);
            attempt.prepare();
            rank.attempt = Some(attempt);
        }
        ring
    }

    pub(super) fn attempt(&self, rank: usize) -> &Arc<Attempt> {
        self.ranks[rank].attempt.as_ref().expect("made by new")
    }

    pub(super) fn start(&self) {
        for rank in 0..self.ranks.len() {
            self.attempt(rank).start();
        }
    }

    /// Frames under way, as (sender, index in its queue).
    pub(super) fn under_way(&self) -> usize {
        self.ranks.iter().map(|rank| rank.owner.sent.lock().len()).sum()
    }

    /// Takes a frame: with the ranks that it goes from and to.
    fn take(&self, mut index: usize) -> ([usize; 2], Outgoing) {
        for (sender, rank) in self.ranks.iter().enumerate() {
            let mut sent = rank.owner.sent.lock();
            if index < sent.len() {
                let (to, frame) = sent.remove(index);
                return ([sender, to], frame);
            }
            index -= sent.len();
        }
        unreachable!("the index is below the number of frames under way")
    }

    /// Moves one frame from its sender to another rank, in pieces of `piece` bytes, at most `pieces` of them. `false`:
    /// it was cut off.
    pub(super) fn deliver(&self, index: usize, piece: usize, pieces: usize) -> bool {
        let ([sender, to], frame) = self.take(index);
        let header = frame.header;
        let payload = payload_of(&frame);
        frame.transfer.released(&header);
        let receiver = self.attempt(to);
        let landing = receiver.admit(&header).expect("in the plan");
        for (number, bytes) in payload.chunks(piece).enumerate() {
            if number == pieces {
                return false;
            }
            let done = number * piece;
            match landing {
                Landing::Fold => assert!(receiver.fold(&header, done, bytes)),
                Landing::Direct => {
                    land(&**receiver, &header, done, bytes);
                }
                Landing::Discard => panic!("the gate is open"),
            }
        }
        self.delivered.lock().push(sent(sender, to, &header));
        receiver.arrived(&header);
        true
    }

    /// Demands of a finished ring that it has sent the frames of its program.
    pub(super) fn assert_as_programmed(&self) {
        let programs = self.ranks.iter().map(|rank| &rank.program);
        assert_sent_as_programmed(self.delivered.lock().clone(), programs);
    }

    pub(super) fn retract_all(&self) {
        for rank in 0..self.ranks.len() {
            self.attempt(rank).progress().retract();
        }
    }

    pub(super) fn results(&self) -> Vec<Vec<u8>> {
        let result = |rank: &Rank| {
            let tensors = self.memory.tensors(rank.send.len()).into_iter();
            let of_tensor = |(range, in_place): (Range<usize>, bool)| {
                bytes_of(if in_place { &rank.send[range] } else { &rank.recv[range] })
            };
            tensors.flat_map(of_tensor).collect()
        };
        self.ranks.iter().map(result).collect()
    }
}

/// The bytes that travel as a frame.
pub(super) fn payload_of(frame: &Outgoing) -> Vec<u8> {
    let mut payload = Vec::new();
    while payload.len() < frame.header.len as usize {
        let Place { memory, range } = frame.transfer.source(&frame.header, payload.len());
        assert!(!range.is_empty());
        memory.view(range, |bytes| payload.extend_from_slice(bytes)).expect("the sender's gate is open");
    }
    assert_eq!(payload.len(), frame.header.len as usize);
    payload
}

/// Puts bytes of a frame, from byte `done` on, where they go.
pub(super) fn land(receiver: &dyn Transfer, header: &FrameHeader, mut done: usize, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let Place { memory, range } = receiver.target(header, done);
        let (here, rest) = bytes.split_at(bytes.len().min(range.len()));
        assert!(!here.is_empty());
        let range = range.start..range.start + here.len();
        memory.update(range, |to| to.copy_from_slice(here)).expect("the receiver's gate is open");
        (done, bytes) = (done + here.len(), rest);
    }
}

pub(super) fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

pub(super) fn inputs(ranks: usize, count: usize) -> Vec<Vec<f32>> {
    (0..ranks).map(|rank| (0..count).map(|i| (i * 7 + rank * 1000) as f32 * 0.37 - 50.0).collect()).collect()
}

fn oracle(inputs: &[Vec<f32>], op: ReduceOp) -> Vec<u8> {
    let bytes: Vec<Vec<u8>> = inputs.iter().map(|input| bytes_of(input)).collect();
    let views: Vec<&[u8]> = bytes.iter().map(Vec::as_slice).collect();
    ring_all_reduce_oracle(pccl_quant::DataType::Float32, op, &views)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn any_order_of_delivery_gives_the_same_bytes_everywhere(
        ranks in 2usize..6, count in 0usize..60, in_place: bool, frame in 1usize..4,
        op in prop::sample::select(&[ReduceOp::Sum, ReduceOp::Avg, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min][..]),
        order in prop::collection::vec(any::<prop::sample::Index>(), 400),
    ) {
        let inputs = inputs(ranks, count);
        let ring = Ring::new(&inputs, in_place, op, frame * 8);
        ring.start();
        let mut order = order.iter().cycle();
        while ring.under_way() > 0 {
            let index = order.next().expect("endless").index(ring.under_way());
            prop_assert!(ring.deliver(index, 8, usize::MAX));
        }
        ring.assert_as_programmed();
        let expected = oracle(&inputs, op);
        for (rank, result) in ring.results().iter().enumerate() {
            prop_assert_eq!(result, &expected, "rank {}", rank);
            prop_assert!(ring.attempt(rank).progress().has_received_all());
            prop_assert!(ring.attempt(rank).progress().has_released_all());
            let owner = &ring.ranks[rank].owner;
            prop_assert!(owner.faults.lock().is_empty());
            let received_anything = ring.attempt(rank).progress().traffic().1 > 0;
            prop_assert_eq!(*owner.received_all.lock(), usize::from(received_anything));
        }
    }
}

/// Stops after every number of whole frames, and then after every number of pieces of the next one: whatever had been
/// overwritten by then comes back bit for bit.
#[test]
fn an_abort_at_every_frame_and_part_of_a_frame_restores_every_byte() {
    for ranks in [2, 3, 4] {
        for in_place in [true, false] {
            let inputs = inputs(ranks, 26);
            // Frames of four elements, pieces of one: several frames per chunk, the last of each chunk shorter.
            for whole in 0.. {
                let mut finished = false;
                for pieces in 0..=4 {
                    let ring = Ring::new(&inputs, in_place, ReduceOp::Avg, 16);
                    ring.start();
                    // The newest frame first, so that single frames run far ahead of the others.
                    let mut cut = true;
                    for _ in 0..whole {
                        cut = ring.under_way() > 0 && ring.deliver(ring.under_way() - 1, 4, usize::MAX);
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
                            "ranks {ranks}, in place {in_place}, after {whole} frames and {pieces} pieces, rank {rank}"
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

#[test]
fn a_restore_that_is_left_out_would_be_noticed() {
    let inputs = inputs(2, 26);
    let ring = Ring::new(&inputs, true, ReduceOp::Sum, 16);
    ring.start();
    assert!(ring.deliver(0, 4, usize::MAX));
    ring.retract_all();
    assert_ne!(bytes_of(&ring.ranks[1].send), bytes_of(&inputs[1]), "one frame has been folded");
    ring.attempt(1).restore();
    assert_eq!(bytes_of(&ring.ranks[1].send), bytes_of(&inputs[1]));
}

#[test]
fn frames_that_are_not_due_are_refused() {
    let inputs = inputs(3, 26);
    let ring = Ring::new(&inputs, true, ReduceOp::Sum, 16);
    ring.start();
    let header = |stage: u32, offset: u64| FrameHeader {
        op: op_key(ID),
        part: 0,
        stage,
        offset,
        len: 16,
        flags: 0,
        checksum: 0,
    };
    // Rank 0 of 3 receives chunk 2 (bytes 72..104) at stages 0 and 3.
    let attempt = ring.attempt(0);
    assert_eq!(attempt.admit(&header(0, 72)), Ok(Landing::Fold));
    assert!(attempt.admit(&header(0, 72)).is_err(), "a duplicate");
    assert!(
        attempt.admit(&header(3, 72)).is_err(),
        "a gather frame before the reduction of its chunk is complete"
    );
    assert!(attempt.admit(&header(1, 72)).is_err(), "another chunk's bytes");
    assert!(attempt.admit(&header(9, 72)).is_err(), "no such stage");
}

#[test]
fn damage_names_the_edge_that_it_came_over() {
    let inputs = inputs(2, 26);
    let ring = Ring::new(&inputs, true, ReduceOp::Sum, 16);
    ring.start();
    let (_, frame) = ring.take(0);
    ring.attempt(1).corrupt(&frame.header, 77, 5);
    let faults = ring.ranks[1].owner.faults.lock();
    assert_eq!(faults.len(), 1);
    assert_eq!((faults[0].kind, faults[0].peer), (OpFaultKind::Corrupt, Some(PeerId(77))));
    assert_eq!(faults[0].generation, LinkGeneration(5));
}

#[test]
fn after_a_retract_frames_are_thrown_away() {
    let inputs = inputs(2, 26);
    let ring = Ring::new(&inputs, true, ReduceOp::Sum, 16);
    ring.start();
    ring.attempt(1).progress().retract();
    let (_, frame) = ring.take(0);
    assert_eq!(ring.attempt(1).admit(&frame.header), Ok(Landing::Discard));
    assert!(!ring.attempt(1).fold(&frame.header, 0, &[0; 16]));
    assert_eq!(bytes_of(&ring.ranks[1].send), bytes_of(&inputs[1]));
}
