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
//! The [guides](guide) say what each call yields, what to do about errors, and how to run this on machines.
//!
//! ```no_run
//! use pccl::{Communicator, Error, ReduceOp, SharedState, SyncStrategy};
//!
//! const STEPS: u64 = 20;
//!
//! /// What makes up the state of the training: the same on every peer, and handed to newcomers.
//! pub struct Training {
//!     pub weights: Vec<f32>,
//!     pub step: [u64; 1],
//!     pub revision: u64,
//! }
//!
//! fn main() -> Result<(), Error> {
//!     let comm = Communicator::builder("127.0.0.1:48148").build()?;
//!     train(&comm, &mut Training { weights: vec![0.0; 1000], step: [0], revision: 0 })
//! }
//!
//! pub fn train(comm: &Communicator, training: &mut Training) -> Result<(), Error> {
//!     // Connects, waits until there are two peers, and makes steps. What fails is made good, and the step made again.
//!     comm.run(training, 2, |training| training.step[0] < STEPS, outer_step)
//! }
//!
//! fn outer_step(comm: &Communicator, training: &mut Training) -> Result<(), Error> {
//!     let mut state = SharedState::new(training.revision);
//!     state.tensor("weights", &mut training.weights)?.tensor("step", &mut training.step)?;
//!     comm.sync_shared_state(&mut state, SyncStrategy::EnforcePopular)?;
//!     training.revision = state.revision() + 1;
//!
//!     let mut change = train_locally(&training.weights);
//!     comm.all_reduce(&mut change, ReduceOp::Avg)?;
//!     training.weights.iter_mut().zip(&change).for_each(|(weight, change)| *weight += change);
//!     training.step[0] += 1;
//!
//!     // At the end of the step: a newcomer begins with the sync, and so do the others after this.
//!     if comm.are_peers_pending()? {
//!         comm.update_topology()?;
//!     }
//!     Ok(())
//! }
//!
//! /// Stands in for your training: returns how far the weights moved.
//! fn train_locally(weights: &[f32]) -> Vec<f32> {
//!     weights.iter().map(|weight| 0.1 * (1.0 - weight)).collect()
//! }
//! ```

// Modules from top to bottom, each of which uses only those below it: `guide`, `detached`, `scope`, `communicator`,
// `topology`, `options`, `session`, `state`, `collective`, `config`, `control`, `flight`, `backups`, `memory`,
// `threads`, `error`, `limit`, `world`.
mod backups;
mod collective;
mod communicator;
mod config;
mod control;
mod detached;
mod error;
mod flight;
pub mod guide;
mod limit;
#[allow(unsafe_code)]
mod memory;
mod options;
mod scope;
mod session;
mod state;
mod threads;
mod topology;
mod world;

pub use collective::{
    calls::{Call, Root},
    op::ReduceInfo,
};
pub use communicator::{Builder, Checkpoint, Communicator, Member, Resume};
pub use config::FrameChecksums;
pub use detached::DetachedReduce;
pub use error::{ConnectCause, Error, LossCause, Reason, Remedy, Result};
pub use memory::{Source, StateMemory, Target, Tensor};
pub use options::{CollectiveOptions, LaunchOptions, ManyOptions, ReduceOptions, Schedule, SyncOptions};
pub use pccl_iteration::{GlobalIteration, IterationConfig, IterationError, Policy};
pub use pccl_master::{Master, MasterConfig, MasterError};
pub use pccl_protocol::{
    Algorithm, CallKind, Cause, CollectiveId, CollectiveKind, Culprit, GroupEpoch, GroupId, GroupUuid, Host,
    KickCode, KickReason, Name, OpId, Operation, PeerId, PeerStage, Phase, RunId, Status, StatusGroup,
    StatusPeer, StatusWait, Text, Verdict, WorldSizes,
};
pub use pccl_quant::{
    DataType, Element, ReduceOp,
    quantise::{Block, Quantisation, Scheme},
};
pub use scope::{AsyncReduce, Scope};
pub use state::{
    SaveInfo, SaveOptions, Saving, SharedState, StateFile, StateFileError, StateSnapshot, SyncInfo,
    SyncProgress, SyncStrategy,
    diff::{Camp, Divergence, StateDiff, TensorDiff},
};
pub use topology::{Optimized, RatedEdge};
pub use world::World;
