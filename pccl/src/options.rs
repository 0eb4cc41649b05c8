//! Options of all-reduces.

use pccl_quant::ReduceOp;

/// How to reduce one tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReduceOptions {
    /// The reduction.
    pub op: ReduceOp,
    /// Names the operation among those in flight: all peers use the same tag for the same operation. Default 0.
    pub tag: u64,
}

impl ReduceOptions {
    /// A reduction with tag 0.
    pub fn new(op: ReduceOp) -> Self {
        Self { op, tag: 0 }
    }

    /// Sets the tag.
    pub fn tag(mut self, tag: u64) -> Self {
        self.tag = tag;
        self
    }
}

impl From<ReduceOp> for ReduceOptions {
    fn from(op: ReduceOp) -> Self {
        Self::new(op)
    }
}

/// How to reduce many tensors in one operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ManyOptions {
    /// Names the operation among those in flight. Default 0.
    pub tag: u64,
    /// How often to try again after an abort, as long as there are at least two peers. Default: without limit.
    pub retries: u32,
}

impl Default for ManyOptions {
    fn default() -> Self {
        Self { tag: 0, retries: u32::MAX }
    }
}
