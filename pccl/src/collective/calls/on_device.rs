//! Tensors on devices in an all-reduce: those that are quantised where they are, and those for which memory of the host
//! stands.

use super::{Beside, Context, Fault, Place, Prepared};
use crate::{
    Error,
    memory::{OnDevice, Pipeline, RawTensor},
};
use pccl_protocol::PartDescriptor;
use std::ops::Range;

/// Puts memory of the host in the place of each tensor on a device that is not quantised there.
pub(super) fn with_host_memory(mut prepared: Prepared, context: &Context<'_>) -> Result<Prepared, Error> {
    let mut staged = Vec::new();
    for (index, (raw, part)) in prepared.raws.iter().zip(&prepared.descriptor.parts).enumerate() {
        if let Some(device) = raw.device()
            && !is_quantised_there(device, part)?
        {
            staged.push((index, device.clone()));
        }
    }
    if staged.is_empty() {
        return Ok(prepared);
    }
    // Out of place on the host: what came from the devices, then the results.
    let half: usize = staged.iter().map(|(_, device)| device.bytes()).sum();
    let room = context.backups.take(2 * half);
    let (indices, devices): (Vec<usize>, Vec<OnDevice>) = staged.into_iter().unzip();
    let place = (context.world.rank, context.world.ring.len());
    let pipeline = Pipeline::begin(devices, room.clone(), place)?;
    for (tensor, index) in indices.into_iter().enumerate() {
        let (bytes, (contribution, result)) = (pipeline.place(tensor), pipeline.origins(tensor));
        let raw = RawTensor::within(&room, bytes.clone(), bytes.start + half..bytes.end + half);
        prepared.raws[index] = raw.standing_for(contribution, result);
    }
    prepared.rooms.push(room);
    prepared.beside = Some(Box::new(Copies(pipeline)));
    Ok(prepared)
}

/// Whether a tensor is encoded, added to and decoded on its device.
fn is_quantised_there(device: &OnDevice, part: &PartDescriptor) -> Result<bool, Error> {
    let Some(quantisation) = part.quantisation else { return Ok(false) };
    match quantisation.codec(part.data_type, part.op) {
        Ok(codec) => device.has_codec(&codec),
        Err(error) => Err(Error::InvalidArgument(error.to_string())),
    }
}

/// Those of tensors on devices and of what stands for them.
#[derive(Debug)]
struct Copies(Pipeline);

impl Beside for Copies {
    fn ranges(&self) -> Vec<(Range<usize>, bool)> {
        self.0.ranges()
    }

    fn before(&self, _place: Place, fault: Fault) {
        self.0.tell(fault);
    }

    fn after(&self, _place: Place) -> Result<(), Error> {
        self.0.complete()
    }

    fn stop(&self) {
        self.0.stop();
    }

    fn undo(&self) -> Result<(), Error> {
        self.0.undo()
    }
}
