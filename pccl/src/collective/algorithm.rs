//! The algorithm by which an attempt goes: the program that this rank carries out.

use super::{calls::shape_of, slot::Slot};
use parking_lot::Mutex;
use pccl_protocol::{Algorithm, Collective, CollectiveKind, Descriptor, GroupEpoch, Pair, PartDescriptor};
use pccl_schedule::{FRAME_BYTES, Ownership, Plan, Program, Shape, frame_bytes};
use std::{collections::VecDeque, sync::Arc};

/// Programs that are kept.
const MAX_KEPT: usize = 16;
/// Frames of a program that is kept, times ranks, at most. A larger one takes memory, as its steps may have an input of
/// each rank, and its operation takes longer than its making.
const MAX_KEPT_INPUTS: usize = 1 << 14;

/// The programs of operations that were begun last: a training makes the same calls in every step.
#[derive(Debug, Default)]
pub(crate) struct Programs {
    kept: Mutex<VecDeque<Kept>>,
}

/// A program, and everything that it follows from.
#[derive(Debug)]
struct Kept {
    plan: (GroupEpoch, Option<Pair>),
    collective: Collective,
    parts: Vec<PartDescriptor>,
    algorithm: Algorithm,
    program: Arc<Program>,
}

impl Programs {
    /// The program of this rank, made now or before. None if the members cannot carry out the collective. `counts` are
    /// those of an all-to-all, as [`shape_of`] wants them.
    pub(crate) fn get(&self, slot: &Slot, descriptor: &Descriptor, counts: &[u64]) -> Option<Arc<Program>> {
        let plan = (slot.id.epoch, slot.id.tag.pair);
        let is_it = |kept: &Kept| {
            (kept.plan, kept.algorithm) == (plan, descriptor.algorithm)
                && kept.collective == descriptor.collective
                && kept.parts == descriptor.parts
        };
        let found = self.kept.lock().iter().find(|kept| is_it(kept)).map(|kept| kept.program.clone());
        if found.is_some() {
            return found;
        }
        let shape = shape_of(&descriptor.collective, counts, &slot.ring)?;
        let program = Arc::new(program_of(slot, &shape, descriptor));
        let (frames, tensors) = (program.plan().slots(), program.plan().parts());
        // The next call has other counts.
        let may_come_again = counts.is_empty();
        if may_come_again && frames.max(tensors).saturating_mul(slot.ring.len()) <= MAX_KEPT_INPUTS {
            let (collective, parts) = (descriptor.collective.clone(), descriptor.parts.clone());
            let (algorithm, program) = (descriptor.algorithm, program.clone());
            let mut all = self.kept.lock();
            all.truncate(MAX_KEPT - 1);
            all.push_front(Kept { plan, collective, parts, algorithm, program });
        }
        Some(program)
    }
}

/// The program of an attempt that does nothing, and only gets its verdict.
pub(crate) fn no_program(slot: &Slot) -> Arc<Program> {
    let shape = Shape::all_reduce(slot.ring.len());
    Arc::new(Program::ring(Plan::new(&[], &shape, slot.rank, FRAME_BYTES)))
}

/// The program of this rank in the present ring.
fn program_of(slot: &Slot, shape: &Shape, descriptor: &Descriptor) -> Program {
    let ranks = slot.ring.len();
    let plan = |frame_bytes| Plan::new(&descriptor.parts, shape, slot.rank, frame_bytes);
    match descriptor.algorithm_for(ranks, slot.paths) {
        algorithm @ (Algorithm::AllGather | Algorithm::Direct | Algorithm::ReduceBroadcast) => {
            Program::exchange(plan(FRAME_BYTES), algorithm)
        }
        algorithm @ (Algorithm::Pairwise | Algorithm::Sites) => {
            // Only what can be cut anywhere can be owned by anybody.
            let is_all_reduce = descriptor.kind() == CollectiveKind::AllReduce;
            let shares = if is_all_reduce { slot.plan.shares() } else { Vec::new() };
            let plan = plan(frame_bytes(descriptor, ranks, algorithm, &shares));
            let ownership = match algorithm {
                Algorithm::Sites => Ownership::over_sites(&plan, &slot.plan.sites()),
                _ => Ownership::new(&plan, &shares),
            };
            Program::tree(plan, ownership)
        }
        _ => Program::ring(plan(FRAME_BYTES)),
    }
}
