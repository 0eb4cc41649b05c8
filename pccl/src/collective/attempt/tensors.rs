//! The memory of an attempt that works on the caller's tensors.
//!
//! **Values** lie where the result goes: a value that is not yet the result, too, as the result will replace it. Where
//! the result stays with the owner of a chunk, the other ranks must not lose what they have: in place they fold into
//! the backup, and send that on. A value of others that is folded while it comes needs no memory; others have memory of
//! their own, side by side for each unit, and so have values that this rank only passes on. Values of quantised tensors
//! lie encoded in *staging* memory, see [`super::coded`].
//!
//! **Restore.** In place, each byte is saved once, before it is overwritten for the first time: by the fold itself, or,
//! if nothing is folded into it here, when the result begins to come. A slot counts how many of its bytes are saved; a
//! restore copies back exactly those.

use super::{
    fold::{BLOCK_BYTES, Kind, Scratch, fold_inputs},
    store::Store,
};
use crate::{
    collective::{
        coding::{Coding, Stop},
        runs::{RunMemory, Stretch},
    },
    memory::{Backup, PartMemory, RawTensor},
};
use pccl_protocol::Descriptor;
use pccl_quant::{DataType, ReduceOp, copy_streaming, finish_average, fold_in_place_saving, fold_into};
use pccl_schedule::{Arrival, Frame, Hop, Input, Program, Step, Unit};
use std::{
    collections::HashMap,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};
use tinysockets::link::{FrameHeader, Gate, Landing, Lent, Place};

/// See the module's documentation.
pub(super) struct Tensors {
    pub(super) program: Arc<Program>,
    /// Number of the operation.
    pub(super) number: u64,
    pub(super) parts: Vec<Part>,
    /// By the first slot of each unit that has them.
    pub(super) rooms: HashMap<usize, Room>,
    saved: Box<[AtomicU32]>,
    backup: Arc<Backup>,
    /// Keeps the memory alive that the lent ranges of the parts point into.
    memory: Arc<Backup>,
}

/// A run of tensors.
pub(super) struct Part {
    pub(super) data_type: DataType,
    pub(super) op: ReduceOp,
    pub(super) memory: RunMemory,
    /// If it is quantised.
    pub(super) coding: Option<Coding>,
    /// Values of others that are folded when all of them are here, or that are only passed on.
    pub(super) contributions: Lent,
    /// To add up in, if what is quantised cannot be cut.
    pub(super) sums: Lent,
    /// A copy of elements that travel as they are, and are on a device.
    pub(super) copied: Lent,
}

/// The first bytes of a unit in the memories of its run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    contributions: usize,
    pub(super) sums: usize,
}

/// Bytes of memory that each run needs beside itself and its backup: encoded form, contributions, sums, copied
/// elements; and the rooms of the units in them.
fn layout(program: &Program, raws: &[RawTensor]) -> (Vec<[usize; 4]>, HashMap<usize, Room>) {
    let (plan, mut rooms) = (program.plan(), HashMap::new());
    let mut parts: Vec<[usize; 4]> =
        (0..plan.parts()).map(|part| [plan.encoded_bytes(part), 0, 0, 0]).collect();
    for (frame, unit, steps) in program.units() {
        let (part, run) = (&mut parts[frame.part], plan.run(frame.part));
        let (raw, size) = (&raws[run.tensors.start], run.descriptor.data_type.size_bytes());
        for step in steps.iter() {
            if raw.device().is_some() && step.is_own() && step.sends.iter().any(|hop| hop.is_plain) {
                part[3] = raw.bytes();
            }
            if step.is_own() || !has_room(step) {
                continue;
            }
            rooms.insert(unit.slots.start, Room { contributions: part[1], sums: part[2] });
            part[1] += step.received().map(|hop| value_bytes(&unit, size, hop)).sum::<usize>();
            if let Some(codec) = plan.codec(frame.part).filter(|codec| codec.piece_elements().is_none()) {
                part[2] += unit.elements.len() * codec.sum_type().size_bytes();
            }
        }
    }
    (parts, rooms)
}

/// Whether values that a step takes in have memory of their own.
fn has_room(step: &Step) -> bool {
    !step.streams() && (step.passes_on() || !step.forwards())
}

/// Bytes of the value of a unit that comes that way, if its elements have that size.
fn value_bytes(unit: &Unit, element_bytes: usize, hop: Hop) -> usize {
    if hop.is_plain { unit.elements.len() * element_bytes } else { unit.encoded.len() }
}

impl Tensors {
    pub(super) fn new(
        program: Arc<Program>,
        number: u64,
        (descriptor, raws): (&Descriptor, &[RawTensor]),
        gate: &Arc<Gate>,
        (backup, room): (Arc<Backup>, &dyn Fn(usize) -> Arc<Backup>),
    ) -> Self {
        let plan = program.plan();
        let (bytes, rooms) = layout(&program, raws);
        let memory = room(bytes.iter().flatten().sum());
        let (mut saved, mut used) = (0, 0);
        let mut lend = |bytes: usize| {
            used += bytes;
            memory.lend(used - bytes..used, gate)
        };
        let parts = plan.runs().zip(bytes).enumerate().map(|(index, (run, bytes))| {
            let [encoded, contributions, sums, copied] = bytes.map(&mut lend);
            let codec = plan.codec(index).zip(run.descriptor.quantisation);
            Part {
                data_type: run.descriptor.data_type,
                op: run.descriptor.op,
                memory: RunMemory::lend(run, (descriptor, raws), gate, &backup, &mut saved),
                coding: codec.map(|(codec, quantisation)| Coding::new(codec, quantisation, encoded)),
                contributions,
                sums,
                copied,
            }
        });
        let (parts, slots) = (parts.collect(), plan.slots());
        let saved = (0..slots).map(|_| AtomicU32::new(0)).collect();
        Self { number, parts, rooms, saved, backup, memory, program }
    }

    /// Out of place, copies what this rank alone has and keeps.
    fn keep(&self, part: &Part, unit: &Unit) -> Result<(), Stop> {
        let size = part.data_type.size_bytes();
        let bytes = unit.elements.start * size..unit.elements.end * size;
        for Stretch { memory, bytes, .. } in part.memory.stretches(bytes) {
            if let PartMemory::OnDevice(device) = memory {
                device.keep().ok_or(Stop::Closed)??;
            } else if let PartMemory::OutOfPlace { send, recv } = memory {
                let copy = |out: &mut [u8]| send.view(bytes.clone(), |own| copy_streaming(out, own));
                recv.update(bytes.clone(), copy).flatten().ok_or(Stop::Closed)?;
            }
        }
        Ok(())
    }

    /// Units next to each other in a chunk of which `of_step` says the same of one of their steps, each row of them as
    /// one unit: that is as good for a rank that encodes or decodes all of them.
    pub(super) fn rows<T: PartialEq>(
        &self,
        of_step: impl Fn(&Part, &Step) -> Option<T>,
    ) -> Vec<(usize, Unit, T)> {
        let mut rows: Vec<(usize, Unit, T)> = Vec::new();
        for (frame, unit, steps) in self.program.units() {
            let part = &self.parts[frame.part];
            let Some(said) = steps.iter().find_map(|step| of_step(part, step)) else {
                continue;
            };
            match rows.last_mut() {
                Some((index, row, same))
                    if (*index, row.chunk, row.slots.end) == (frame.part, unit.chunk, unit.slots.start)
                        && *same == said =>
                {
                    row.elements.end = unit.elements.end;
                    row.encoded.end = unit.encoded.end;
                    row.slots.end = unit.slots.end;
                }
                _ => rows.push((frame.part, unit, said)),
            }
        }
        rows
    }

    /// Where the value of a step lies, if it is not encoded.
    fn value_of<'a>(&self, step: &Step, memory: &'a PartMemory) -> &'a Lent {
        match memory {
            PartMemory::InPlace { backup, .. } if self.is_passed_on(step) => backup,
            memory => memory.result(),
        }
    }

    /// Whether the value of a step is not for the caller of this rank, and no result will replace it.
    fn is_passed_on(&self, step: &Step) -> bool {
        !step.is_result && !self.program.plan().shape().distributes()
    }

    /// The elements of others that are folded into a unit, side by side, in the order of the step.
    pub(super) fn contributions_to(&self, unit: &Unit, part: &Part, step: &Step) -> Range<usize> {
        let start = self.rooms.get(&unit.slots.start).map_or(0, |room| room.contributions);
        let size = part.data_type.size_bytes();
        start..start + step.received().map(|hop| value_bytes(unit, size, hop)).sum::<usize>()
    }

    /// Where the value of others begins among contributions that a frame brings, if it lies there.
    fn contribution(&self, header: &FrameHeader, part: &Part) -> Option<usize> {
        if part.contributions.is_empty() {
            return None;
        }
        let (index, stage) = (header.part as usize, header.stage as usize);
        let arrival = self.program.arrival(index, stage, header.offset, header.len)?;
        let (unit, size) = (self.program.plan().unit_of(&arrival.frame), part.data_type.size_bytes());
        let step = arrival.step();
        if !has_room(step) {
            return None;
        }
        let before = step.received().take(arrival.number).map(|hop| value_bytes(&unit, size, hop));
        let unit_start = if arrival.hop.is_plain { unit.elements.start * size } else { unit.encoded.start };
        let in_unit = header.offset as usize - unit_start;
        Some(self.contributions_to(&unit, part, step).start + before.sum::<usize>() + in_unit)
    }

    /// Where a frame lies among contributions whose value this rank passes on by that step.
    fn passed(&self, header: &FrameHeader, step: &Step) -> Option<usize> {
        if !step.passes_on() {
            return None;
        }
        let frame = self.program.plan().frame_anywhere(header.part as usize, header.offset, header.len)?;
        let unit = self.program.plan().unit_of(&frame);
        let room = self.rooms.get(&unit.slots.start)?;
        Some(room.contributions + frame.offset - unit.encoded.start)
    }

    /// How a step folds elements of a run.
    pub(super) fn kind(&self, part: &Part, step: &Step) -> Kind {
        let is_average = part.op == ReduceOp::Avg && step.is_result;
        let ranks = is_average.then_some(self.program.plan().ranks() as u32);
        Kind { data_type: part.data_type, op: part.op, ranks }
    }

    /// Saves what a result will overwrite into which nothing was folded here. `None`: the gate is closed.
    fn save(&self, frame: &Frame) -> Option<()> {
        for Stretch { memory, bytes, at } in self.parts[frame.part].memory.stretches(frame.range()) {
            if let PartMemory::InPlace { data, backup } = memory
                && !backup.is_empty()
            {
                let end = at + bytes.len();
                let save =
                    |content: &[u8]| backup.update(bytes.clone(), |saved| copy_streaming(saved, content));
                data.view(bytes.clone(), save)??;
                self.saved[frame.slot].store(end as u32, Ordering::Release);
            }
        }
        Some(())
    }

    /// Folds what has come with the part of the own elements that lies in one tensor. In place, this number of bytes of
    /// the slot is then saved.
    fn fold_stretch(
        &self,
        kind: Kind,
        step: &Step,
        stretch: &Stretch<'_>,
        payload: &[u8],
        (slot, saved_bytes): (usize, usize),
    ) -> Result<(), Stop> {
        let (Kind { data_type, op, ranks }, bytes) = (kind, || stretch.bytes.clone());
        if !stretch.memory.own().has_arrived(&stretch.bytes) {
            return Err(Stop::Closed);
        }
        let average = |data: &mut [u8]| match ranks {
            Some(ranks) => finish_average(data_type, data, ranks),
            None => Ok(()),
        };
        let folded = match stretch.memory {
            PartMemory::InPlace { data, backup } if !self.is_passed_on(step) => data.update(bytes(), |own| {
                backup.update(bytes(), |saved| {
                    let result = fold_in_place_saving(data_type, op, own, payload, saved);
                    self.saved[slot].store(saved_bytes as u32, Ordering::Release);
                    result.and_then(|()| average(own))
                })
            }),
            memory => self.value_of(step, memory).update(bytes(), |out| {
                memory.own().view(bytes(), |own| {
                    fold_into(data_type, op, out, own, payload).and_then(|()| average(out))
                })
            }),
        };
        Ok(folded.flatten().ok_or(Stop::Closed)??)
    }

    /// Folds a unit of which all contributions are here, block by block.
    fn fold_unit(&self, part: &Part, frame: &Frame, step: &Step) -> Result<(), Stop> {
        let unit = self.program.plan().unit_of(frame);
        let stretches = || part.memory.stretches(unit.encoded.clone());
        if !stretches().all(|stretch| stretch.memory.own().has_arrived(&stretch.bytes)) {
            return Err(Stop::Closed);
        }
        let (kind, len, mut scratch) = (self.kind(part, step), unit.encoded.len(), Scratch::default());
        let own_number =
            step.inputs.iter().position(|input| *input == Input::Own).unwrap_or(step.inputs.len());
        let fold = |all: &[u8]| {
            for Stretch { memory, bytes, at } in stretches() {
                for start in bytes.clone().step_by(BLOCK_BYTES) {
                    let block = start..bytes.end.min(start + BLOCK_BYTES);
                    let at = at + block.start - bytes.start..at + block.end - bytes.start;
                    let own = self
                        .own_beside_value(memory, step, &block, (frame.slot, at.end))
                        .ok_or(Stop::Closed)?;
                    let fold = |own: &[u8]| {
                        let input = |number: usize| match number.cmp(&own_number) {
                            std::cmp::Ordering::Less => &all[number * len..][at.clone()],
                            std::cmp::Ordering::Equal => own,
                            std::cmp::Ordering::Greater => &all[(number - 1) * len..][at.clone()],
                        };
                        let fold = |out: &mut [u8]| fold_inputs(kind, step, input, out, &mut scratch);
                        self.value_of(step, memory).update(block.clone(), fold)
                    };
                    own.view(block.clone(), fold).flatten().ok_or(Stop::Closed)??;
                }
            }
            Ok(())
        };
        part.contributions.view(self.contributions_to(&unit, part, step), fold).ok_or(Stop::Closed)?
    }

    /// Where own elements lie that are folded into a value: in place in the backup, where they are saved by that. This
    /// number of bytes of the slot is then saved.
    fn own_beside_value<'a>(
        &self,
        memory: &'a PartMemory,
        step: &Step,
        bytes: &Range<usize>,
        (slot, saved_bytes): (usize, usize),
    ) -> Option<&'a Lent> {
        match memory {
            PartMemory::InPlace { data, backup } if !self.is_passed_on(step) => {
                let save = |own: &[u8]| backup.update(bytes.clone(), |saved| saved.copy_from_slice(own));
                data.view(bytes.clone(), save)??;
                self.saved[slot].store(saved_bytes as u32, Ordering::Release);
                Some(backup)
            }
            memory => Some(memory.own()),
        }
    }

    /// Where a payload lies from byte `done` on: in staging memory, if it is encoded, otherwise in what `which` picks.
    fn place<'a>(
        part: &'a Part,
        header: &FrameHeader,
        done: usize,
        which: impl Fn(&PartMemory) -> &Lent,
    ) -> Place<'a> {
        let start = header.offset as usize;
        let range = start + done..start + header.len as usize;
        match &part.coding {
            Some(coding) => Place { memory: &coding.staging, range },
            None => part.memory.place(range, which),
        }
    }
}

impl Store for Tensors {
    fn prepare(&self) -> Result<(), Stop> {
        let is_alone = self.program.plan().ranks() == 1;
        let own = |part: &Part, step: &Step| {
            let is_plain = step.sends.iter().any(|hop| hop.is_plain);
            step.is_own().then_some((part.coding.is_some() && !is_alone, is_plain, step.is_result))
        };
        for (index, unit, (is_coded, is_plain, is_result)) in self.rows(own) {
            match (is_coded, is_plain) {
                (true, true) => self.copy_elements(&self.parts[index], &unit)?,
                (true, false) => self.encode(index, &unit)?,
                (false, _) if is_result => self.keep(&self.parts[index], &unit)?,
                (false, _) => {}
            }
        }
        Ok(())
    }

    fn admit(&self, arrival: &Arrival<'_>) -> Landing {
        let (frame, step) = (&arrival.frame, arrival.step());
        if self.parts[frame.part].coding.is_some() {
            return Landing::Direct;
        }
        if step.streams() {
            return Landing::Fold;
        }
        let overwrites = step.forwards() && step.is_result && arrival.before == 0;
        if overwrites && self.save(frame).is_none() { Landing::Discard } else { Landing::Direct }
    }

    fn granule_bytes(&self, part: usize) -> usize {
        self.parts.get(part).map_or(1, |part| part.data_type.size_bytes())
    }

    fn fold_piece(&self, arrival: &Arrival<'_>, done: usize, payload: &[u8]) -> Result<(), Stop> {
        let (frame, step) = (&arrival.frame, arrival.step());
        let part = &self.parts[frame.part];
        let (start, kind) = (frame.offset + done, self.kind(part, step));
        for stretch in part.memory.stretches(start..start + payload.len()) {
            let (payload, saved) = (&payload[stretch.in_range()], done + stretch.in_range().end);
            self.fold_stretch(kind, step, &stretch, payload, (frame.slot, saved))?;
        }
        Ok(())
    }

    fn target(&self, header: &FrameHeader, done: usize) -> Place<'_> {
        let part = &self.parts[header.part as usize];
        match self.contribution(header, part) {
            Some(start) => {
                Place { memory: &part.contributions, range: start + done..start + header.len as usize }
            }
            None => Self::place(part, header, done, PartMemory::result),
        }
    }

    fn source(&self, header: &FrameHeader, done: usize) -> Place<'_> {
        let (part, stage) = (&self.parts[header.part as usize], header.stage as usize);
        if self.program.is_plain(stage) {
            let start = header.offset as usize;
            let memory = match part.memory.whole() {
                PartMemory::OnDevice(_) => &part.copied,
                memory => memory.own(),
            };
            return Place { memory, range: start + done..start + header.len as usize };
        }
        let sent = self.program.departure(header.part as usize, stage, header.offset, header.len);
        if let Some(start) = sent.as_ref().and_then(|(steps, step)| self.passed(header, &steps[*step])) {
            let range = start + done..start + header.len as usize;
            return Place { memory: &part.contributions, range };
        }
        Self::place(part, header, done, |memory| {
            match sent.as_ref().filter(|(steps, step)| !steps[*step].is_own()) {
                Some((steps, step)) => self.value_of(&steps[*step], memory),
                None => memory.own(),
            }
        })
    }

    fn complete(&self, frame: &Frame, unit: &Unit, step: &Step) -> Result<(), Stop> {
        let part = &self.parts[frame.part];
        if let Some(coding) = &part.coding {
            return self.complete_coded(frame.part, coding, unit, step);
        }
        if !step.forwards() && !step.streams() {
            self.fold_unit(part, frame, step)?;
        }
        if step.is_result {
            part.memory.finished(frame.range());
        }
        Ok(())
    }

    fn deliver(&self) -> Result<(), Stop> {
        self.deliver_coded()
    }

    fn restore(&self) {
        for frame in self.program.plan().all_frames() {
            let saved = self.saved[frame.slot].load(Ordering::Acquire) as usize;
            if saved > 0 {
                let saved = frame.offset..frame.offset + saved;
                self.parts[frame.part].memory.restore(saved, &self.backup);
            }
        }
    }

    fn memory(&self) -> &Arc<Backup> {
        &self.memory
    }
}
