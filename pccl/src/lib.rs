//! PCCL: fault-tolerant collective communication for training one model on machines that are far apart and die without
//! notice.
//!
//! A training process makes blocking calls on a [`Communicator`]: connect to a run, agree on who is in it, all-reduce
//! tensors, prove that all peers hold bit-identical state, carry on when somebody is killed. A small [`Master`] decides
//! who is in and what happens next; tensors flow from peer to peer around a ring of TCP connections.
//!
//! What holds, in this order: **never a wrong result** (a call that succeeds has left the same bytes on every peer that
//! was in it, a call that fails has left send buffers and in-place buffers as they were); **never a hang without a
//! culprit** (each wait makes progress, ends, or can say for whom it waits); **the wire is the limit**.
//!
//! ```no_run
//! # fn train_step(_: &mut [f32]) {}
//! use pccl::{Communicator, ReduceOp, Remedy, SharedState, SyncStrategy};
//!
//! # fn main() -> Result<(), pccl::Error> {
//! let comm = Communicator::builder("master.example:48148").build()?;
//! comm.connect()?;
//! let (mut weights, mut revision) = (vec![0f32; 1000], 0);
//! for _ in 0..100 {
//!     if comm.are_peers_pending()? {
//!         comm.update_topology()?;
//!     }
//!     let mut state = SharedState::new(revision);
//!     state.tensor("weights", &mut weights)?;
//!     comm.sync_shared_state(&mut state, SyncStrategy::EnforcePopular)?;
//!     revision = state.revision() + 1;
//!     let mut gradient = weights.clone();
//!     train_step(&mut gradient);
//!     while let Err(error) = comm.all_reduce(&mut gradient, ReduceOp::Avg) {
//!         match error.remedy() {
//!             Remedy::Retry => {}
//!             Remedy::WaitForPeers => drop(comm.wait_for_world(2, None)?),
//!             _ => return Err(error),
//!         }
//!     }
//!     weights.iter_mut().zip(&gradient).for_each(|(w, g)| *w -= 0.1 * g);
//! }
//! # Ok(())
//! # }
//! ```

mod collective;
mod communicator;
mod config;
mod error;
#[allow(unsafe_code)]
mod memory;
mod options;
mod scope;
mod session;
mod state;
mod world;

pub use collective::op::ReduceInfo;
pub use communicator::Communicator;
pub use config::{Builder, FrameChecksums};
pub use error::{Error, Remedy, Result};
pub use memory::Tensor;
pub use options::{ManyOptions, ReduceOptions};
pub use pccl_master::{Master, MasterConfig, MasterError};
pub use pccl_protocol::{Cause, Culprit, KickCode, KickReason, Operation, PeerId, Phase, Verdict};
pub use pccl_quant::{DataType, Element, ReduceOp};
pub use scope::{AsyncReduce, Scope};
pub use state::{SharedState, SyncInfo, SyncStrategy};
pub use world::World;
