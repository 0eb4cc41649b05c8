//! What a collective is: its descriptor, its algorithm, its result.

use crate::{OpId, Verdict, limits};
use pccl_quant::{DataType, ReduceOp};
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
}

impl Encode for PartDescriptor {
    fn encode(&self, out: &mut Vec<u8>) {
        self.count.encode(out);
        out.push(self.data_type.code());
        out.push(self.op.code());
    }
}

impl Decode for PartDescriptor {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self {
            count: u64::decode(reader)?,
            data_type: decode_data_type(reader)?,
            op: {
                let code = u8::decode(reader)?;
                ReduceOp::from_code(code)
                    .ok_or(WireError::BadValue { what: "reduce operation", value: code.into() })?
            },
        })
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

wire_struct! {
    /// What travels with a vote to begin a collective. All votes of one attempt must be equal.
    pub struct Descriptor {
        /// The tensors, in the caller's order.
        pub parts: Vec<PartDescriptor>,
        /// Caller's choice of the algorithm; [`Algorithm::Automatic`] leaves it to the master.
        pub algorithm: Algorithm,
    }
}

impl Descriptor {
    /// Names the first difference between two descriptors, for the verdict of a mismatch.
    pub fn difference(&self, other: &Self) -> Option<(String, String)> {
        if self.parts.len() != other.parts.len() {
            return Some((format!("{} tensors", self.parts.len()), format!("{} tensors", other.parts.len())));
        }
        if self.algorithm != other.algorithm {
            return Some((format!("algorithm {}", self.algorithm), format!("algorithm {}", other.algorithm)));
        }
        let (index, (a, b)) = self.parts.iter().zip(&other.parts).enumerate().find(|(_, (a, b))| a != b)?;
        let show = |p: &PartDescriptor| {
            format!("tensor {index}: {} x {} elements of {}", p.op, p.count, p.data_type)
        };
        Some((show(a), show(b)))
    }
}

wire_code! {
    /// How the data of a collective travels.
    pub enum Algorithm {
        /// The master chooses.
        Automatic = 0 => "automatic",
        /// Pipelined ring: reduce-scatter, then gather.
        Ring = 1 => "ring",
    }
}

wire_struct! {
    /// A fault that a peer met in a collective.
    pub struct OpFault {
        /// What went wrong.
        pub kind: OpFaultKind,
        /// The other end of the edge, if an edge is at fault.
        pub peer: Option<crate::PeerId>,
        /// Generation of that edge.
        pub generation: crate::LinkGeneration,
        /// Details.
        pub text: crate::Text,
    }
}

wire_code! {
    /// Kinds of faults in a collective.
    pub enum OpFaultKind {
        /// The connection from the previous peer of the ring broke.
        InboundLost = 1 => "connection from the previous peer lost",
        /// The connection to the next peer of the ring broke.
        OutboundLost = 2 => "connection to the next peer lost",
        /// A frame arrived with a wrong checksum.
        Corrupt = 3 => "corrupt frame",
        /// The previous peer sent what the plan does not contain.
        Violation = 4 => "frame outside the plan",
        /// The caller gave the operation up.
        CallerAbort = 5 => "given up by the caller",
        /// Anything else that stopped this peer.
        Local = 6 => "local failure",
    }
}

wire_union! {
    /// How one attempt of a collective ended. Decided once by the master, the same for all.
    pub enum Outcome {
        /// Every participant holds the result.
        Done(crate::Nothing) = 0,
        /// Nobody may use the result; buffers are restored.
        Aborted(Verdict) = 1,
    }
}

impl OpId {
    /// The identity of the next attempt of the same tag in the same epoch.
    pub const fn next_attempt(self) -> Self {
        Self { attempt: self.attempt + 1, ..self }
    }
}
