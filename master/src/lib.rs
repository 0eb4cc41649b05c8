//! The authority of a run: pure state machine, event loop and the pccl-master binary.
#![forbid(unsafe_code)]

pub mod state;
pub mod topology;
