//! A tensor on a device in collectives: where it is, and what is done with it there.

use super::device_error;
use crate::{Error, Reason};
use pccl_cuda::{CudaError, DeviceMemory};
use pccl_quant::{
    DataType, first_non_finite,
    quantise::{Codec, Rounding},
};
use std::ops::Range;
use tinysockets::link::Lent;

/// Bytes that are looked at on the host at once. A multiple of every element size.
const PIECE_BYTES: usize = 1 << 20;

/// What a tensor on a device contributes, and where its result goes: the same memory, if it is reduced in place.
#[derive(Debug, Clone)]
pub(crate) struct OnDevice {
    send: DeviceMemory,
    recv: DeviceMemory,
}

impl OnDevice {
    /// Nothing that is queued on a stream has to be waited for any more.
    pub(super) fn new(send: DeviceMemory, recv: DeviceMemory) -> Self {
        Self { send, recv }
    }

    /// Some of its bytes.
    pub(super) fn part(&self, bytes: Range<usize>) -> Self {
        Self { send: self.send.part(bytes.clone()), recv: self.recv.part(bytes) }
    }

    /// What it contributes, and where the result goes.
    pub(super) fn memories(&self) -> (&DeviceMemory, &DeviceMemory) {
        (&self.send, &self.recv)
    }

    /// Length in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.send.bytes()
    }

    /// Its address ranges, and whether they are written.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = (Range<usize>, bool)> + use<> {
        let range = |memory: &DeviceMemory| memory.range().start as usize..memory.range().end as usize;
        let (send, recv) = (range(&self.send), range(&self.recv));
        let read = (send != recv).then_some((send, false));
        std::iter::once((recv, true)).chain(read)
    }

    /// Whether it can be encoded and decoded where it is. Compiles the kernels at first use.
    pub(crate) fn has_codec(&self, codec: &Codec) -> Result<bool, Error> {
        self.send.has_codec(codec).map_err(|error| refused("loading kernels", error))
    }

    /// Copies what it contributes, from byte `at` on.
    pub(crate) fn read(&self, at: usize, to: &mut [u8]) -> Result<(), Error> {
        self.send.read(at, to).map_err(|error| refused("reading a tensor on a device", error))
    }

    /// Copies a part of the result to where it goes, from byte `at` on.
    pub(crate) fn write(&self, at: usize, bytes: &[u8]) -> Result<(), Error> {
        self.recv.clone().write(at, bytes).map_err(unwritten)
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
    /// What of it is lent on the host: no byte.
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
        let _pass = self.nothing.gate().enter()?;
        Some(self.tensor.send.part(bytes).encode(codec, encoded, rounding))
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
        let _pass = self.nothing.gate().enter()?;
        Some(self.tensor.send.part(bytes).add_and_encode(codec, encoded, ranks, rounding))
    }

    /// As [`DeviceMemory::decode_set`], to where some of the bytes of the result go.
    pub(crate) fn decode_set(
        &self,
        codec: &Codec,
        bytes: Range<usize>,
        encoded: &[u8],
    ) -> Option<Result<(), CudaError>> {
        let _pass = self.nothing.gate().enter()?;
        Some(self.tensor.recv.part(bytes).decode_set(codec, encoded))
    }

    /// A copy of some of the bytes that it contributes.
    pub(crate) fn to_host(&self, bytes: Range<usize>) -> Option<Result<Vec<u8>, CudaError>> {
        let _pass = self.nothing.gate().enter()?;
        Some(self.tensor.send.part(bytes).to_vec())
    }

    /// Makes the contribution the result: of who is alone.
    pub(crate) fn keep(&self) -> Option<Result<(), CudaError>> {
        let _pass = self.nothing.gate().enter()?;
        let OnDevice { send, recv } = &self.tensor;
        Some(send.to_vec().and_then(|content| recv.clone().write(0, &content)))
    }
}

/// What the driver says about a result that did not get where it goes.
pub(super) fn unwritten(error: CudaError) -> Error {
    refused("writing a tensor on a device", error)
}

pub(super) fn refused(tried: &str, error: CudaError) -> Error {
    Error::System(Reason::system(tried, device_error(error)))
}
