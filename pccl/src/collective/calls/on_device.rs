//! Tensors on devices in an all-reduce: those that are quantised where they are, and those for which memory of the host
//! stands.

use super::{Beside, Place, Prepared};
use crate::{
    Error,
    backups::BackupPool,
    memory::{Backup, OnDevice, RawTensor},
};
use pccl_protocol::PartDescriptor;
use std::{ops::Range, sync::Arc};

/// Puts memory of the host in the place of each tensor on a device that is not quantised there.
pub(super) fn with_host_memory(mut prepared: Prepared, backups: &BackupPool) -> Result<Prepared, Error> {
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
    let half = staged.iter().map(|(_, device)| device.bytes()).sum();
    let room = backups.take(2 * half);
    let (mut tensors, mut start) = (Vec::with_capacity(staged.len()), 0);
    for (index, device) in staged {
        let bytes = start..start + device.bytes();
        start = bytes.end;
        room.fill(bytes.clone(), |to| device.read(0, to))?;
        prepared.raws[index] = RawTensor::within(&room, bytes.clone(), bytes.start + half..bytes.end + half);
        tensors.push((device, bytes));
    }
    prepared.rooms.push(room.clone());
    prepared.beside = Some(Box::new(Copies { tensors, room, half }));
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

/// Where tensors on devices are, and what stands for them.
#[derive(Debug)]
struct Copies {
    /// With the bytes of what came from there.
    tensors: Vec<(OnDevice, Range<usize>)>,
    room: Arc<Backup>,
    half: usize,
}

impl Beside for Copies {
    fn ranges(&self) -> Vec<(Range<usize>, bool)> {
        self.tensors.iter().flat_map(|(device, _)| device.ranges()).collect()
    }

    fn after(&self, _place: Place) -> Result<(), Error> {
        for (device, bytes) in &self.tensors {
            let result = bytes.start + self.half..bytes.end + self.half;
            self.room.view(result, |result| device.write(0, result))?;
        }
        Ok(())
    }
}
