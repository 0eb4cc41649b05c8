//! Encoding and decoding of quantised tensors between the caller's memory and what travels.

use crate::memory::{LentDevice, PartMemory};
use pccl_quant::quantise::{Codec, Quantisation, Rounding};
use pccl_schedule::Unit;
use std::ops::Range;
use tinysockets::link::Lent;

/// Elements that are coded at once, if the scheme can be cut: they stay in the first-level cache. A multiple of every
/// block.
pub(super) const PIECE_ELEMENTS: usize = 2048;

/// Largest element.
pub(super) const ELEMENT_BYTES_MAX: usize = 8;

/// The parts that a quantised tensor has beside its memory.
pub(super) struct Coding {
    pub(super) codec: Codec,
    quantisation: Quantisation,
    /// The encoded form of the tensor.
    pub(super) staging: Lent,
}

/// Why a unit was not dealt with.
pub(super) enum Stop {
    /// The gate is closed: nobody is interested any more.
    Closed,
    Failed(String),
}

impl Stop {
    /// As the text of an error, where nothing should have closed the gate yet.
    pub(super) fn after_the_outcome(self) -> String {
        match self {
            Self::Closed => "the memory was taken back before the result".to_owned(),
            Self::Failed(text) => text,
        }
    }
}

impl<E: std::error::Error> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Failed(error.to_string())
    }
}

/// A part of a unit that is coded at once.
pub(super) struct Piece {
    /// Bytes of the tensor.
    pub(super) bytes: Range<usize>,
    /// Bytes of its encoded form.
    pub(super) encoded: Range<usize>,
    /// Number of the first element in the chunk.
    pub(super) first_in_chunk: u64,
}

impl Coding {
    pub(super) fn new(codec: Codec, quantisation: Quantisation, staging: Lent) -> Self {
        Self { codec, quantisation, staging }
    }

    pub(super) fn pieces(&self, unit: &Unit) -> impl Iterator<Item = Piece> + use<> {
        let step = if self.codec.piece_elements().is_some() { PIECE_ELEMENTS } else { usize::MAX };
        let (codec, unit) = (self.codec, unit.clone());
        let element_bytes = codec.data_type().size_bytes();
        // Whole pieces are whole blocks, so the lengths of pieces add up.
        let encoded = move |elements: usize| unit.encoded.start + codec.encoded_len(elements).unwrap_or(0);
        let (start, count, first) = (unit.elements.start, unit.elements.len(), unit.first_in_chunk);
        (0..count).step_by(step).map(move |done| {
            let end = count.min(done.saturating_add(step));
            Piece {
                bytes: (start + done) * element_bytes..(start + end) * element_bytes,
                encoded: encoded(done)..encoded(end),
                first_in_chunk: (first + done) as u64,
            }
        })
    }

    /// Encodes a unit of a tensor into the staging memory.
    pub(super) fn encode(&self, memory: &PartMemory, unit: &Unit, rounding: Rounding) -> Result<(), Stop> {
        if let PartMemory::OnDevice(device) = memory {
            let (rounding, bytes) = ((rounding, unit.first_in_chunk as u64), self.bytes_of(unit));
            let encode = |encoded: &mut [u8]| device.encode(&self.codec, bytes, encoded, rounding);
            return Ok(self.staging.update(unit.encoded.clone(), encode).flatten().ok_or(Stop::Closed)??);
        }
        for piece in self.pieces(unit) {
            let encode = |own: &[u8]| {
                self.staging.update(piece.encoded.clone(), |encoded| {
                    self.codec.encode(own, encoded, rounding, piece.first_in_chunk)
                })
            };
            memory.own().view(piece.bytes.clone(), encode).flatten().ok_or(Stop::Closed)??;
        }
        Ok(())
    }

    /// Adds a unit of the staging memory to the elements of a tensor on a device, divides by `ranks` if there are any,
    /// and encodes the sum in its place.
    pub(super) fn add_on(
        &self,
        device: &LentDevice,
        unit: &Unit,
        ranks: Option<u32>,
        rounding: Rounding,
    ) -> Result<(), Stop> {
        let (rounding, bytes) = ((rounding, unit.first_in_chunk as u64), self.bytes_of(unit));
        let add = |encoded: &mut [u8]| device.add_and_encode(&self.codec, bytes, encoded, ranks, rounding);
        Ok(self.staging.update(unit.encoded.clone(), add).flatten().ok_or(Stop::Closed)??)
    }

    /// Puts the decoded elements of a unit where the result of a tensor goes.
    pub(super) fn decode(&self, unit: &Unit, memory: &PartMemory) -> Result<(), Stop> {
        if let PartMemory::OnDevice(device) = memory {
            let decode = |encoded: &[u8]| device.decode_set(&self.codec, self.bytes_of(unit), encoded);
            return Ok(self.staging.view(unit.encoded.clone(), decode).flatten().ok_or(Stop::Closed)??);
        }
        for piece in self.pieces(unit) {
            let decode = |encoded: &[u8]| {
                memory
                    .result()
                    .update(piece.bytes.clone(), |elements| self.codec.decode_set(encoded, elements))
            };
            self.staging.view(piece.encoded.clone(), decode).flatten().ok_or(Stop::Closed)??;
        }
        Ok(())
    }

    /// Bytes of the tensor that a unit is.
    pub(super) fn bytes_of(&self, unit: &Unit) -> Range<usize> {
        let size = self.codec.data_type().size_bytes();
        unit.elements.start * size..unit.elements.end * size
    }

    /// The rounding of `rank` for a unit of the tensor with that number. Random numbers are those of tag, tensor, chunk
    /// and rank: the same in every attempt.
    pub(super) fn rounding(&self, tag: u64, rank: usize, tensor: usize, unit: &Unit) -> Rounding {
        let place = (tensor as u64) << 32 | unit.chunk as u64;
        let operation = tag.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ place;
        self.quantisation.rounding(operation, rank as u32)
    }
}
