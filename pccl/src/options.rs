//! Options of all-reduces.

use pccl_quant::{ReduceOp, quantise::Quantisation};

/// How to reduce one tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReduceOptions {
    /// The reduction.
    pub op: ReduceOp,
    /// Names the operation among those in flight: all peers use the same tag for the same operation. Default 0.
    pub tag: u64,
    /// How elements are quantised while they travel. Default: not at all.
    pub quantisation: Option<Quantisation>,
}

impl ReduceOptions {
    /// A reduction with tag 0, of elements that travel as they are.
    pub fn new(op: ReduceOp) -> Self {
        Self { op, tag: 0, quantisation: None }
    }

    /// Sets the tag.
    pub fn tag(mut self, tag: u64) -> Self {
        self.tag = tag;
        self
    }

    /// Quantises elements while they travel: sums and averages of floats, the same way on all peers. Every peer gets the
    /// same bytes; how far they are off says `docs/quantisation.md`.
    pub fn quantisation(mut self, quantisation: impl Into<Quantisation>) -> Self {
        self.quantisation = Some(quantisation.into());
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
