//! Whole exchanges without a network: frames are delivered one by one, in any order, and cut off anywhere.

use super::{
    attempt::Attempt,
    attempt_tests::{ID, Owner, Sent, assert_sent_as_programmed, land, payload_of, sent},
    progress::{AttemptOwner, op_key},
};
use crate::memory::{Backup, Tensor};
use parking_lot::Mutex;
use pccl_protocol::{Algorithm, Descriptor, OpFaultKind, PeerId};
use pccl_quant::{DataType, ReduceOp};
use pccl_quant_reference::ring_all_reduce_oracle;
use pccl_schedule::{Plan, Program, Shape};
use proptest::prelude::*;
use std::sync::{Arc, Weak};
use tinysockets::link::{FrameHeader, Landing, Outgoing, Transfer};

/// The two tensors of one rank: one in place, of half floats, one out of place, of double floats.
struct Rank {
    halves: Vec<u16>,
    send: Vec<f64>,
    recv: Vec<f64>,
    owner: Arc<Owner>,
    attempt: Option<Arc<Attempt>>,
    program: Option<Program>,
}

/// The ranks, and the frames that were delivered.
struct Ranks(Vec<Rank>, Mutex<Vec<Sent>>);

impl Ranks {
    fn new(ranks: usize, halves: usize, doubles: usize, op: ReduceOp, algorithm: Algorithm) -> Self {
        let mut all = Vec::new();
        for index in 0..ranks {
            let mut rank = Rank {
                // Normal numbers, subnormal ones, infinities and NaN.
                halves: (0..halves).map(|i| (i * 2_311 + index * 977) as u16).collect(),
                send: (0..doubles).map(|i| (i * 7 + index * 1000) as f64 * 0.37 - 50.0).collect(),
                recv: vec![f64::NAN; doubles],
                owner: Arc::default(),
                attempt: None,
                program: None,
            };
            let mut first = Tensor::in_place(&mut rank.halves, op);
            first.descriptor.data_type = DataType::Float16;
            // Two tensors that are a run.
            let (send, more) = rank.send.split_at(doubles / 3);
            let (recv, more_recv) = rank.recv.split_at_mut(doubles / 3);
            let second = Tensor::out_of_place(send, recv, op).expect("same length");
            let third = Tensor::out_of_place(more, more_recv, op).expect("same length");
            let parts = vec![first.descriptor, second.descriptor, third.descriptor];
            let descriptor = Descriptor::all_reduce(parts, Algorithm::Automatic);
            let raws = [first.raw, second.raw, third.raw];
            let memory = |bytes| Arc::new(Backup::new(bytes, &Arc::default()));
            let owner: Weak<dyn AttemptOwner> = Arc::<Owner>::downgrade(&rank.owner);
            let plan = Plan::new(&descriptor.parts, &Shape::all_reduce(ranks), index, 1 << 20);
            let (program, tensors) = (Program::exchange(plan, algorithm), (&descriptor, &raws[..]));
            let attempt =
                Attempt::new(ID, Arc::new(program.clone()), tensors, (memory(2 * halves), &memory), owner);
            attempt.prepare();
            (rank.program, rank.attempt) = (Some(program), Some(attempt));
            all.push(rank);
        }
        Self(all, Mutex::default())
    }

    fn attempt(&self, rank: usize) -> &Arc<Attempt> {
        self.0[rank].attempt.as_ref().expect("made by new")
    }

    fn begin(&self, rank: usize) {
        self.attempt(rank).start();
    }

    /// All ranks from `first` on begin.
    fn start(&self, first: usize) {
        (first..self.0.len()).for_each(|rank| self.begin(rank));
    }

    /// Ranks that have a frame to deliver.
    fn senders(&self) -> Vec<usize> {
        (0..self.0.len()).filter(|&rank| !self.0[rank].owner.sent.lock().is_empty()).collect()
    }

    /// Takes one of the frames that a rank has sent, with the rank that it goes to.
    fn take(&self, sender: usize, choice: prop::sample::Index) -> (usize, Outgoing) {
        let mut sent = self.0[sender].owner.sent.lock();
        let index = choice.index(sent.len());
        sent.remove(index)
    }

    /// Moves a frame of `sender`; only the first `len` bytes of it.
    fn deliver(&self, sender: usize, choice: prop::sample::Index, len: usize) {
        let (to, frame) = self.take(sender, choice);
        let header = frame.header;
        let payload = payload_of(&frame);
        frame.transfer.released(&header);
        let receiver = self.attempt(to);
        assert_eq!(receiver.admit(&header), Ok(Landing::Direct));
        let part = &payload[..payload.len().min(len)];
        land(&**receiver, &header, 0, part);
        if part.len() == payload.len() {
            self.1.lock().push(sent(sender, to, &header));
            receiver.arrived(&header);
        }
    }

    /// Demands that all have sent the frames of their programs.
    fn assert_as_programmed(&self) {
        let programs = self.0.iter().filter_map(|rank| rank.program.as_ref());
        assert_sent_as_programmed(self.1.lock().clone(), programs);
    }

    /// Bytes of the three buffers of each rank.
    fn buffers(&self) -> Vec<[Vec<u8>; 3]> {
        let doubles = |values: &[f64]| values.iter().flat_map(|value| value.to_ne_bytes()).collect();
        self.0
            .iter()
            .map(|rank| {
                let halves = rank.halves.iter().flat_map(|half| half.to_ne_bytes()).collect();
                [halves, doubles(&rank.send), doubles(&rank.recv)]
            })
            .collect()
    }
}

fn oracle(data_type: DataType, op: ReduceOp, buffers: &[[Vec<u8>; 3]], which: usize) -> Vec<u8> {
    let inputs: Vec<&[u8]> = buffers.iter().map(|buffers| buffers[which].as_slice()).collect();
    ring_all_reduce_oracle(data_type, op, &inputs)
}

const OPS: [ReduceOp; 5] = ReduceOp::ALL;

const WAYS: [Algorithm; 3] = [Algorithm::AllGather, Algorithm::Direct, Algorithm::ReduceBroadcast];

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn any_order_of_delivery_gives_the_bytes_of_the_pipelined_ring(
        ranks in 2usize..7, halves in 0usize..60, doubles in 1usize..40, op in prop::sample::select(&OPS[..]),
        algorithm in prop::sample::select(&WAYS[..]), begins_late in any::<bool>(),
        order in prop::collection::vec(any::<(prop::sample::Index, prop::sample::Index)>(), 30),
    ) {
        let all = Ranks::new(ranks, halves, doubles, op, algorithm);
        let before = all.buffers();
        // Some hear that it has begun after all contributions have come.
        let late = usize::from(begins_late);
        all.start(late);
        let mut order = order.iter().cycle();
        for begun in [late, 0] {
            while let senders = all.senders() && !senders.is_empty() {
                let (sender, frame) = order.next().expect("endless");
                all.deliver(senders[sender.index(senders.len())], *frame, usize::MAX);
            }
            if begun > 0 {
                all.begin(0);
            }
        }
        all.assert_as_programmed();
        prop_assert_eq!(&all.buffers(), &before, "nothing is written before the outcome");
        let expected = [
            oracle(DataType::Float16, op, &before, 0),
            oracle(DataType::Float64, op, &before, 1),
        ];
        for (rank, before) in before.iter().enumerate() {
            let attempt = all.attempt(rank);
            prop_assert!(attempt.progress().has_received_all() && attempt.progress().has_released_all());
            prop_assert_eq!(*all.0[rank].owner.received_all.lock(), 1);
            let is_leaf = algorithm == Algorithm::ReduceBroadcast && rank > 0;
            let bytes = (if is_leaf { 1 } else { ranks - 1 } * (2 * halves + 8 * doubles)) as u64;
            prop_assert_eq!(attempt.progress().traffic(), (bytes, bytes));
            attempt.deliver().expect("the gate is open");
            attempt.progress().retract();
            let [halves, send, recv] = &all.buffers()[rank];
            prop_assert_eq!((halves, recv), (&expected[0], &expected[1]), "rank {}", rank);
            prop_assert_eq!(send, &before[1]);
        }
    }

    #[test]
    fn an_attempt_that_is_cut_off_anywhere_leaves_everything_as_it_was(
        ranks in 2usize..6, frames in 0usize..12, part in 0usize..200, algorithm in prop::sample::select(&WAYS[..]),
        order in prop::collection::vec(any::<prop::sample::Index>(), 12),
    ) {
        let all = Ranks::new(ranks, 9, 11, ReduceOp::Avg, algorithm);
        let before = all.buffers();
        all.start(0);
        for (number, index) in order[..frames].iter().enumerate() {
            let senders = all.senders();
            if senders.is_empty() {
                break;
            }
            // The last frame is cut.
            let len = if number + 1 == frames { part } else { usize::MAX };
            all.deliver(senders[index.index(senders.len())], *index, len);
        }
        (0..ranks).for_each(|rank| all.attempt(rank).progress().retract());
        prop_assert_eq!(all.buffers(), before);
    }
}

#[test]
fn frames_that_are_not_due_are_refused() {
    let all = Ranks::new(3, 4, 2, ReduceOp::Sum, Algorithm::AllGather);
    all.start(0);
    let header = |stage: u32, part: u32, offset: u64, len: u32| FrameHeader {
        op: op_key(ID),
        part,
        stage,
        offset,
        len,
        flags: 0,
        checksum: 0,
    };
    let attempt = all.attempt(0);
    assert_eq!(attempt.admit(&header(1, 0, 0, 24)), Ok(Landing::Direct));
    assert!(attempt.admit(&header(1, 0, 0, 24)).is_err(), "a duplicate");
    for (stage, part, offset, len) in [
        (0, 0, 0, 24),
        (3, 0, 0, 24),
        (4, 0, 0, 24),
        (u32::MAX, 0, 0, 24),
        (2, 1, 0, 24),
        (2, 0, 8, 24),
        (2, 0, 0, 23),
        (2, 0, 0, 25),
    ] {
        assert!(attempt.admit(&header(stage, part, offset, len)).is_err(), "{stage} {part} {offset} {len}");
    }
    assert_eq!(attempt.admit(&header(2, 0, 0, 24)), Ok(Landing::Direct));
    // By way of rank 0 it alone gets contributions, and it alone sends the result.
    let all = Ranks::new(3, 4, 2, ReduceOp::Sum, Algorithm::ReduceBroadcast);
    for (rank, due) in [(0, vec![1, 2]), (1, vec![3]), (2, vec![3])] {
        for stage in 0..5 {
            let is_admitted = all.attempt(rank).admit(&header(stage, 0, 0, 24)).is_ok();
            assert_eq!(is_admitted, due.contains(&stage), "rank {rank}, stage {stage}");
        }
    }
}

#[test]
fn damage_names_the_edge_that_it_came_over() {
    let all = Ranks::new(2, 4, 2, ReduceOp::Sum, Algorithm::AllGather);
    all.start(0);
    let (_, frame) = all.0[0].owner.sent.lock().remove(0);
    all.attempt(1).corrupt(&frame.header, 77, 5);
    let faults = all.0[1].owner.faults.lock();
    assert_eq!((faults[0].kind, faults[0].peer), (OpFaultKind::Corrupt, Some(PeerId(77))));
    assert!(!all.attempt(1).progress().has_received_all());
}

/// An early frame may be of a call that differs, which the master finds. Until then it is a fault of the attempt, and
/// neither of a link nor of a buffer.
#[test]
fn an_early_frame_that_does_not_fit_is_a_fault_and_no_violation() {
    let ranks = Ranks::new(3, 8, 9, ReduceOp::Sum, Algorithm::Direct);
    let before = ranks.buffers();
    ranks.start(1);
    let (_, frame) = ranks.0[1].owner.sent.lock().remove(0);
    let receiver = ranks.attempt(0);
    let faults = || ranks.0[0].owner.faults.lock().iter().map(|fault| fault.kind).collect::<Vec<_>>();
    for wrong in [
        FrameHeader { len: frame.header.len + 1, ..frame.header },
        FrameHeader { stage: 0, ..frame.header },
        FrameHeader { part: 7, ..frame.header },
    ] {
        assert_eq!(receiver.admit(&wrong), Ok(Landing::Discard), "{wrong:?}");
        assert!(receiver.admit(&FrameHeader { flags: 0, ..wrong }).is_err(), "{wrong:?}");
    }
    assert_eq!(faults(), [OpFaultKind::Violation; 3]);
    assert_eq!(receiver.admit(&frame.header), Ok(Landing::Direct));
    assert_eq!(receiver.admit(&frame.header), Ok(Landing::Discard), "a second time");
    assert_eq!(faults(), [OpFaultKind::Violation; 4]);
    receiver.progress().retract();
    receiver.restore();
    assert_eq!(ranks.buffers(), before);
}
