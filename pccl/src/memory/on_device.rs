//! A tensor on a device in collectives: where it is, and what is done with it there.

use super::{RawTensor, Tensor, device_error};
use crate::{Error, Reason};
use pccl_cuda::{CudaError, DeviceMemory};
use pccl_protocol::PartDescriptor;
use pccl_quant::{
    DataType, ReduceOp, first_non_finite,
    quantise::{Codec, Rounding},
};
use std::{
    marker::PhantomData,
    ops::Range,
    sync::{Arc, OnceLock},
};
use tinysockets::link::Lent;

/// Bytes that are looked at on the host at once. A multiple of every element size.
const PIECE_BYTES: usize = 1 << 20;

impl Tensor<'_> {
    /// A tensor on a device that is reduced in place. The call that it is given to begins after what is queued then on
    /// the stream that came with the memory; when it returns, the result is there. After a failed call the memory is
    /// bit-identical to before.
    ///
    /// If it is [quantised](Self::quantised) by blocks or casts, it is encoded, added to and decoded on the device, and
    /// only what travels is copied.
    ///
    /// # Errors
    /// `InvalidArgument` if the bytes are not whole elements.
    pub fn on_device(memory: DeviceMemory, data_type: DataType, op: ReduceOp) -> Result<Self, Error> {
        whole_elements(&memory, data_type)?;
        Ok(Self::of_device(OnDevice::new(memory.clone(), memory, Role::Exchanges), data_type, op))
    }

    /// The same from `send` into `recv`. After a failed call `send` is bit-identical to before and the content of
    /// `recv` is undefined.
    ///
    /// # Errors
    /// As [`Tensor::on_device`], and `InvalidArgument` if the two have different lengths.
    pub fn between_devices(
        send: DeviceMemory,
        recv: DeviceMemory,
        data_type: DataType,
        op: ReduceOp,
    ) -> Result<Self, Error> {
        if send.bytes() != recv.bytes() {
            let text = format!("send buffer has {} bytes, receive buffer {}", send.bytes(), recv.bytes());
            return Err(Error::InvalidArgument(text));
        }
        whole_elements(&send, data_type)?;
        Ok(Self::of_device(OnDevice::new(send, recv, Role::Exchanges), data_type, op))
    }

    fn of_device(device: OnDevice, data_type: DataType, op: ReduceOp) -> Self {
        let count = (device.bytes() / data_type.size_bytes()) as u64;
        Self {
            raw: RawTensor::on_device(device),
            descriptor: PartDescriptor::new(count, data_type, op),
            lent: PhantomData,
        }
    }
}

/// How many elements device memory holds.
pub(super) fn whole_elements(memory: &DeviceMemory, data_type: DataType) -> Result<usize, Error> {
    let (bytes, size) = (memory.bytes(), data_type.size_bytes());
    if bytes % size != 0 {
        let text = format!("{bytes} bytes of device memory are not elements of {size} bytes");
        return Err(Error::InvalidArgument(text));
    }
    Ok(bytes / size)
}

/// The use of a tensor of one rank by a collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// It is read.
    Gives,
    /// It is read, and what is folded into it stays in memory of the library.
    Folds,
    /// The same, but the part of the result that is this rank's goes to a buffer of its own.
    Scatters,
    /// It is read, and gets the result.
    Exchanges,
    /// It gets the result, and may be left with anything in it after a failure.
    Gets,
    /// It gets the result, and what was there comes back after a failure.
    Replaces,
}

impl Role {
    /// Whether what is there is read for the others.
    pub(crate) fn contributes(self) -> bool {
        matches!(self, Self::Gives | Self::Folds | Self::Scatters | Self::Exchanges)
    }

    /// Whether the result goes there.
    pub(crate) fn receives(self) -> bool {
        matches!(self, Self::Scatters | Self::Exchanges | Self::Gets | Self::Replaces)
    }

    /// Whether what is overwritten in place comes back after a failure.
    pub(crate) fn is_restored(self) -> bool {
        matches!(self, Self::Exchanges | Self::Replaces)
    }
}

/// The contribution of a tensor on a device, and where its result goes: the same memory, if it is reduced in place.
#[derive(Debug, Clone)]
pub(crate) struct OnDevice {
    send: DeviceMemory,
    recv: DeviceMemory,
    role: Role,
    /// The first error of what was done there.
    failure: Arc<OnceLock<CudaError>>,
}

impl OnDevice {
    /// With that use of it.
    pub(super) fn new(send: DeviceMemory, recv: DeviceMemory, role: Role) -> Self {
        Self { send, recv, role, failure: Arc::default() }
    }

    /// The same after what is queued now on its streams, for which this waits.
    pub(crate) fn settled(&self) -> Result<Self, Error> {
        let settled = |memory: &DeviceMemory| {
            let settled = memory.clone().settled();
            settled.map_err(|error| refused("waiting for the stream of a tensor", error))
        };
        Ok(Self { send: settled(&self.send)?, recv: settled(&self.recv)?, ..self.clone() })
    }

    /// Its use by the collective.
    pub(crate) fn role(&self) -> Role {
        self.role
    }

    /// The same for another use.
    pub(crate) fn in_role(self, role: Role) -> Self {
        Self { role, ..self }
    }

    /// The same as memory of the host is to stand for it: what is folded into it stays there.
    pub(crate) fn staged(self) -> Self {
        match self.role {
            Role::Scatters => Self { recv: self.send.clone(), role: Role::Folds, ..self },
            _ => self,
        }
    }

    /// The first error of what was done there.
    pub(crate) fn failure(&self) -> Option<Error> {
        self.failure.get().map(|error| refused("working on a tensor on a device", error.clone()))
    }

    /// Some of its bytes.
    pub(super) fn part(&self, bytes: Range<usize>) -> Self {
        Self { send: self.send.part(bytes.clone()), recv: self.recv.part(bytes), ..self.clone() }
    }

    /// The memory that it contributes, and where the result goes.
    pub(super) fn memories(&self) -> (&DeviceMemory, &DeviceMemory) {
        (&self.send, &self.recv)
    }

    /// Whether the result takes the place of what it contributes.
    pub(super) fn is_in_place(&self) -> bool {
        self.send.range() == self.recv.range()
    }

    /// Length in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.send.bytes()
    }

    /// Its address ranges, and whether they are written.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = (Range<usize>, bool)> + use<> {
        let range = |memory: &DeviceMemory| memory.range().start as usize..memory.range().end as usize;
        let read = (!self.is_in_place()).then(|| (range(&self.send), false));
        std::iter::once((range(&self.recv), self.role.receives())).chain(read)
    }

    /// Whether it can be encoded and decoded where it is. Compiles the kernels at first use.
    pub(crate) fn has_codec(&self, codec: &Codec) -> Result<bool, Error> {
        self.send.has_codec(codec).map_err(|error| refused("loading kernels", error))
    }

    /// Copies what it contributes, from byte `at` on.
    pub(crate) fn read(&self, at: usize, to: &mut [u8]) -> Result<(), Error> {
        self.send.read(at, to).map_err(|error| refused("reading a tensor on a device", error))
    }

    /// Copies what is where the result goes, from byte `at` on.
    pub(crate) fn read_target(&self, at: usize, to: &mut [u8]) -> Result<(), Error> {
        self.recv.read(at, to).map_err(|error| refused("reading a tensor on a device", error))
    }

    /// Copies a part of the result to where it goes, from byte `at` on.
    pub(crate) fn write(&self, at: usize, bytes: &[u8]) -> Result<(), Error> {
        self.recv.clone().write(at, bytes).map_err(unwritten)
    }

    /// Puts what another memory of a device holds where the result goes, from byte `at` on.
    pub(super) fn write_from(&self, at: usize, other: &DeviceMemory) -> Result<(), Error> {
        self.recv.clone().write_from(at, other).map_err(unwritten)
    }

    /// The first element of what it contributes that is not finite.
    pub(super) fn first_non_finite(&self, data_type: DataType) -> Result<Option<usize>, Error> {
        let mut piece = vec![0; PIECE_BYTES.min(self.bytes())];
        for at in (0..self.bytes()).step_by(PIECE_BYTES) {
            let piece = &mut piece[..PIECE_BYTES.min(self.bytes() - at)];
            self.read(at, piece)?;
            if let Some(element) = first_non_finite(data_type, piece) {
                return Ok(Some(at / data_type.size_bytes() + element));
            }
        }
        Ok(None)
    }

    /// Lends it behind the gate of `nothing`, lent memory without bytes.
    pub(super) fn lend(&self, nothing: Lent) -> LentDevice {
        LentDevice { tensor: self.clone(), nothing }
    }
}

/// A quantised tensor on a device as one attempt of a collective uses it: until the outcome it is only read, and what
/// travels is the only thing of it that is on the host.
///
/// Accessors hold a pass of the gate while the device works, which takes as long as that; `None`: the gate is closed.
#[derive(Debug)]
pub(crate) struct LentDevice {
    tensor: OnDevice,
    nothing: Lent,
}

impl LentDevice {
    /// The bytes of it that are lent on the host: none.
    pub(super) fn on_host(&self) -> &Lent {
        &self.nothing
    }

    /// As [`DeviceMemory::encode`] of some of its bytes.
    pub(crate) fn encode(
        &self,
        codec: &Codec,
        bytes: Range<usize>,
        encoded: &mut [u8],
        rounding: (Rounding, u64),
    ) -> Option<Result<(), CudaError>> {
        self.run(|tensor| tensor.send.part(bytes).encode(codec, encoded, rounding))
    }

    /// As [`DeviceMemory::add_and_encode`] of some of its bytes.
    pub(crate) fn add_and_encode(
        &self,
        codec: &Codec,
        bytes: Range<usize>,
        encoded: &mut [u8],
        ranks: Option<u32>,
        rounding: (Rounding, u64),
    ) -> Option<Result<(), CudaError>> {
        self.run(|tensor| tensor.send.part(bytes).add_and_encode(codec, encoded, ranks, rounding))
    }

    /// As [`DeviceMemory::decode_set`], to where some of the bytes of the result go.
    pub(crate) fn decode_set(
        &self,
        codec: &Codec,
        bytes: Range<usize>,
        encoded: &[u8],
    ) -> Option<Result<(), CudaError>> {
        self.run(|tensor| tensor.recv.part(bytes).decode_set(codec, encoded))
    }

    /// The first byte of the tensor that has a place where the result goes. A rank that gets its part has the bytes
    /// `own` of it.
    pub(crate) fn result_start(&self, own: &Range<usize>) -> usize {
        if self.tensor.role == Role::Scatters { own.start } else { 0 }
    }

    /// Puts elements where some of the bytes of the result go, counted from [`LentDevice::result_start`].
    pub(crate) fn set(&self, bytes: Range<usize>, elements: &[u8]) -> Option<Result<(), CudaError>> {
        self.run(|tensor| tensor.recv.part(bytes).write(0, elements))
    }

    /// A copy of some of the bytes that it contributes.
    pub(crate) fn to_host(&self, bytes: Range<usize>) -> Option<Result<Vec<u8>, CudaError>> {
        self.run(|tensor| tensor.send.part(bytes).to_vec())
    }

    /// Makes the contribution the result: of who is alone.
    pub(crate) fn keep(&self) -> Option<Result<(), CudaError>> {
        self.run(|tensor| match tensor.is_in_place() {
            true => Ok(()),
            false => tensor.recv.clone().write_from(0, &tensor.send),
        })
    }

    /// Has the device work under a pass of the gate, and keeps what went wrong.
    fn run<R>(&self, work: impl FnOnce(&OnDevice) -> Result<R, CudaError>) -> Option<Result<R, CudaError>> {
        let _pass = self.nothing.gate().enter()?;
        let done = work(&self.tensor);
        if let Err(error) = &done {
            // The first one counts.
            let _ = self.tensor.failure.set(error.clone());
        }
        Some(done)
    }
}

/// The error of the driver about a result that did not get where it goes.
pub(super) fn unwritten(error: CudaError) -> Error {
    refused("writing a tensor on a device", error)
}

pub(super) fn refused(tried: &str, error: CudaError) -> Error {
    match error {
        // The address that the caller has named is no memory of a device of this machine.
        CudaError::NoDriver(_) | CudaError::NotDeviceMemory { .. } => {
            Error::InvalidArgument(error.to_string())
        }
        error => Error::System(Reason::system(tried, device_error(error))),
    }
}
