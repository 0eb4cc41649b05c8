//! Tensors on devices: those that are quantised where they are, and those for which memory of the host stands.

use super::{Beside, Context, Place, Prepared, Signals, shape_of};
use crate::{
    Error,
    memory::{Hearer, OnDevice, Pipeline, RawTensor, Role},
};
use pccl_protocol::{Collective, PartDescriptor};
use std::ops::Range;

/// Puts memory of the host in the place of each tensor on a device that is not quantised there. Begins after what is
/// queued on the streams of them all, for which this waits. A refusal of the device is the failure of the operation.
pub(super) fn with_host_memory(prepared: &mut Prepared, context: &Context<'_>) -> Result<(), Error> {
    let (mut staged, mut failure) = (Vec::new(), prepared.failure.clone());
    for (index, (raw, part)) in prepared.raws.iter_mut().zip(&prepared.descriptor.parts).enumerate() {
        let Some(device) = raw.device().cloned() else { continue };
        // A rank that gives a quantised tensor gets back what it has become.
        let role = match device.role() {
            Role::Gives if part.quantisation.is_some() => Role::Exchanges,
            role => role,
        };
        let device = device.in_role(role);
        let collective = &prepared.descriptor.collective;
        match device.settled().and_then(|device| Ok((is_quantised_there(&device, part, collective)?, device)))
        {
            Ok((true, device)) => *raw = RawTensor::on_device(device),
            Ok((false, device)) => staged.push((index, device.staged())),
            Err(error) => {
                failure.get_or_insert(error);
                staged.push((index, device.staged()));
            }
        }
    }
    prepared.failure.clone_from(&failure);
    if staged.is_empty() {
        return Ok(());
    }
    let (indices, devices): (Vec<usize>, Vec<OnDevice>) = staged.into_iter().unzip();
    let room = context.backups.take(Pipeline::room_bytes(&devices));
    let turns = turns(&prepared.descriptor.collective, context);
    let pipeline = Pipeline::begin(devices, room.clone(), &turns, failure);
    for (tensor, index) in indices.into_iter().enumerate() {
        prepared.raws[index] = pipeline.raw(tensor);
    }
    prepared.rooms.push(room);
    prepared.beside.push(Box::new(Copies(pipeline)));
    Ok(())
}

/// Whether a tensor is encoded, added to and decoded on its device.
pub(super) fn is_quantised_there(
    device: &OnDevice,
    part: &PartDescriptor,
    collective: &Collective,
) -> Result<bool, Error> {
    let Some(quantisation) = part.quantisation else { return Ok(false) };
    let codec = quantisation.codec(part.data_type, part.op);
    let codec = codec.map_err(|error| Error::InvalidArgument(error.to_string()))?;
    match collective {
        // The part of a rank is on the host, or there.
        Collective::ReduceScatter(_) if device.role() != Role::Scatters => Ok(false),
        _ => device.has_codec(&codec),
    }
}

/// The turns in which the ring needs the chunks of contributions, as the caller knows it. The others copy in any order.
fn turns(collective: &Collective, context: &Context<'_>) -> Vec<usize> {
    match shape_of(collective, &[], &context.world.ring) {
        Some(shape) if shape.folds() => {
            (0..shape.chunks()).map(|chunk| shape.hops_to(context.world.rank, chunk)).collect()
        }
        _ => vec![0],
    }
}

/// Those of tensors on devices and of what stands for them.
#[derive(Debug)]
struct Copies(Pipeline);

impl Beside for Copies {
    fn ranges(&self) -> Vec<(Range<usize>, bool)> {
        self.0.ranges()
    }

    fn before(&self, _: Place, _: &[RawTensor], Signals { fault, ready }: Signals) {
        self.0.tell(Hearer { failed: fault, copied: ready });
    }

    fn is_ready(&self) -> bool {
        self.0.is_all_down()
    }

    fn after(&self, _: Place, _: &[RawTensor]) -> Result<(), Error> {
        self.0.complete()
    }

    fn stop(&self) {
        self.0.stop();
    }

    fn undo(&self) -> Result<(), Error> {
        self.0.undo()
    }

    fn failure(&self) -> Option<Error> {
        self.0.failure()
    }
}
