//! A tensor of a collective, as peers describe it.

use crate::limits;
use pccl_quant::{
    DataType, ReduceOp,
    quantise::{self, Quantisation, Scheme},
};
use std::fmt;
use tinysockets::wire::{Decode, Encode, ListItem, Reader, WireError};

/// One tensor of a collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartDescriptor {
    /// Number of elements.
    pub count: u64,
    /// Element type.
    pub data_type: DataType,
    /// Reduction.
    pub op: ReduceOp,
    /// How elements are quantised while they travel, if they are.
    pub quantisation: Option<Quantisation>,
}

impl PartDescriptor {
    /// A tensor whose elements travel as they are.
    pub const fn new(count: u64, data_type: DataType, op: ReduceOp) -> Self {
        Self { count, data_type, op, quantisation: None }
    }

    /// Bytes of all elements as they travel, at most.
    pub(crate) fn most_bytes(&self) -> u64 {
        // The smallest piece that is quantised is one element with its metadata.
        let element_bytes = match self.quantisation {
            None => self.data_type.size_bytes() as u64,
            Some(_) => MOST_QUANTISED_BYTES,
        };
        self.count.saturating_mul(element_bytes)
    }
}

/// An element by itself: the metadata of a chunk, and a code of 64 bits.
const MOST_QUANTISED_BYTES: u64 = 24 + 8;

/// Set in the byte of the reduction if a quantisation follows.
const QUANTISED: u8 = 0x80;

impl Encode for PartDescriptor {
    fn encode(&self, out: &mut Vec<u8>) {
        self.count.encode(out);
        out.push(self.data_type.code());
        out.push(self.op.code() | if self.quantisation.is_some() { QUANTISED } else { 0 });
        if let Some(quantisation) = self.quantisation {
            out.push(quantisation.scheme().algorithm().code());
            quantisation.scheme().parameter().encode(out);
            quantisation.seed().encode(out);
        }
    }
}

impl Decode for PartDescriptor {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let (count, data_type) = (u64::decode(reader)?, decode_data_type(reader)?);
        let code = u8::decode(reader)?;
        let op = ReduceOp::from_code(code & !QUANTISED)
            .ok_or(WireError::BadValue { what: "reduce operation", value: code.into() })?;
        let quantisation = if code & QUANTISED == 0 { None } else { Some(decode_quantisation(reader)?) };
        Ok(Self { count, data_type, op, quantisation })
    }
}

serialized_as_wire!(PartDescriptor);

fn decode_quantisation(reader: &mut Reader<'_>) -> Result<Quantisation, WireError> {
    let code = u8::decode(reader)?;
    let algorithm = quantise::Algorithm::from_code(code)
        .ok_or(WireError::BadValue { what: "quantisation", value: code.into() })?;
    let parameter = u16::decode(reader)?;
    let scheme = Scheme::of(algorithm, parameter)
        .ok_or(WireError::BadValue { what: "parameter of a quantisation", value: parameter.into() })?;
    let quantisation = Quantisation::new(scheme);
    Ok(Option::<u64>::decode(reader)?.map_or(quantisation, |seed| quantisation.stochastic(seed)))
}

impl fmt::Display for PartDescriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} x {} elements of {}", self.op, self.count, self.data_type)?;
        self.quantisation.map_or(Ok(()), |quantisation| write!(f, " as {quantisation}"))
    }
}

impl ListItem for PartDescriptor {
    const LIST: &'static str = "list of tensors";
    const MAX_ITEMS: usize = limits::MAX_PARTS;
}

pub(crate) fn decode_data_type(reader: &mut Reader<'_>) -> Result<DataType, WireError> {
    let code = u8::decode(reader)?;
    DataType::from_code(code).ok_or(WireError::BadValue { what: "data type", value: code.into() })
}
