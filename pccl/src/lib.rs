//! PCCL: fault-tolerant collective communication for training one model on machines that are far apart and die without
//! notice.
//!
//! A training process makes blocking calls on a [`Communicator`]: connect to a run, agree on who is in it, all-reduce
//! tensors, prove that all peers hold bit-identical state, carry on when somebody is killed. A small [`Master`] decides
//! who is in and what happens next; tensors flow from peer to peer around a ring of TCP connections.
//!
//! The guarantees, in this order: **never a wrong result** (a call that succeeds has left the same bytes on every peer
//! that was in it, a call that fails has left send buffers and in-place buffers as they were); **never a hang without a
//! culprit** (each wait makes progress, ends, or can say for whom it waits); **the wire is the limit**.
//!
//! The [guides](guide) say what each call yields, what to do about errors, and how to run this on machines.
//!
//! ```no_run
//! use pccl::{Communicator, Error, SharedState, SyncStrategy};
//! use std::{
//!     process::ExitCode,
//!     time::{Duration, Instant},
//! };
//!
//! const STEPS: u64 = 20;
//! /// A weight that counts for nothing beside any other.
//! const NEXT_TO_NOTHING: f64 = f64::MIN_POSITIVE;
//!
//! /// The state of the training: the same on every peer, and handed to newcomers; and when it has last
//! /// said how it goes.
//! pub struct Training {
//!     pub weights: Vec<f32>,
//!     pub step: [u64; 1],
//!     pub revision: u64,
//!     pub said: Instant,
//! }
//!
//! impl Default for Training {
//!     fn default() -> Self {
//!         Self { weights: vec![0.0; 1000], step: [0], revision: 0, said: Instant::now() }
//!     }
//! }
//!
//! fn main() -> ExitCode {
//!     // Says what is waited for.
//!     env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("info")).init();
//!     let communicator = Communicator::builder("127.0.0.1:48148").build();
//!     match communicator.and_then(|comm| train(&comm, &mut Training::default())) {
//!         Ok(()) => ExitCode::SUCCESS,
//!         Err(error) => {
//!             eprintln!("{error}");
//!             ExitCode::FAILURE
//!         }
//!     }
//! }
//!
//! pub fn train(comm: &Communicator, training: &mut Training) -> Result<(), Error> {
//!     // Connects, waits until there are two peers, and makes steps. Each failure is made good, and its step repeated.
//!     comm.run_with_state(
//!         training,
//!         2,
//!         |it| shared(&mut it.weights, &mut it.step, it.revision),
//!         |it| it.step[0] < STEPS,
//!         outer_step,
//!     )
//! }
//!
//! fn shared<'a>(weights: &'a mut [f32], step: &'a mut [u64], revision: u64) -> Result<SharedState<'a>, Error> {
//!     let mut state = SharedState::new(revision);
//!     state.tensor("weights", weights)?.tensor("step", step)?;
//!     Ok(state)
//! }
//!
//! fn outer_step(comm: &Communicator, training: &mut Training) -> Result<(), Error> {
//!     let Training { weights, step, revision, .. } = training;
//!     let mut state = shared(weights, step, *revision)?;
//!     let synced = comm.sync_shared_state(&mut state, SyncStrategy::EnforcePopular)?;
//!     *revision = synced.revision;
//!
//!     // Newcomers fetch the state from here while this peer computes. For who comes with it nobody waits.
//!     let weights = || state.view("weights").unwrap_or_default();
//!     let (mut change, weight) = match synced.came_ahead {
//!         true => (vec![0.0; weights().len()], NEXT_TO_NOTHING),
//!         false => (comm.lend_state(&state, || train_locally(weights()))?, 1.0),
//!     };
//!     // Before the state changes: nothing is moved to newcomers that hold it already, and what was computed stays.
//!     while comm.are_peers_pending()? {
//!         comm.update_topology()?;
//!         comm.sync_shared_state(&mut state, SyncStrategy::EnforcePopular)?;
//!     }
//!     comm.weighted_average(&mut change, weight, ())?;
//!     training.weights.iter_mut().zip(&change).for_each(|(weight, change)| *weight += change);
//!     training.step[0] += 1;
//!     training.revision += 1;
//!     if training.step[0].is_multiple_of(10) {
//!         tell(training, comm.world().group_size);
//!     }
//!     Ok(())
//! }
//!
//! /// How the last ten steps went.
//! fn tell(training: &mut Training, peers: usize) {
//!     let squares = training.weights.iter().map(|weight| (1.0 - weight).powi(2));
//!     let loss = squares.sum::<f32>() / training.weights.len() as f32;
//!     let rate = 10.0 / training.said.elapsed().as_secs_f32();
//!     println!("step {}: loss {loss:.4}, {peers} peers, {rate:.1} steps/s", training.step[0]);
//!     training.said = Instant::now();
//! }
//!
//! /// Stands in for your training: returns how far the weights moved.
//! fn train_locally(weights: &[f32]) -> Vec<f32> {
//!     std::thread::sleep(Duration::from_millis(100));
//!     weights.iter().map(|weight| 0.1 * (1.0 - weight)).collect()
//! }
//! ```

// Modules from top to bottom, each of which uses only those below it: `guide`, `detached`, `segments`, `scope`,
// `communicator`, `topology`, `options`, `session`, `state`, `collective`, `config`, `settings`, `masters`, `control`,
// `dial_back`, `flight`, `backups`, `memory`, `notice`, `error`, `limit`, `world`, `relay`, `threads`, `ways`,
// `tickets`.
// `log::warn!` and the like put a record into a queue: nothing here waits for the logger of the program.
extern crate pccl_log as log;

mod backups;
mod collective;
mod communicator;
mod config;
mod control;
mod detached;
mod dial_back;
mod error;
mod flight;
pub mod guide;
mod limit;
mod masters;
#[allow(unsafe_code)]
mod memory;
mod notice;
mod options;
mod relay;
mod scope;
mod segments;
mod session;
mod settings;
mod state;
mod threads;
mod tickets;
mod topology;
mod ways;
mod world;

pub use collective::{
    calls::{Call, Clip, ClipReport, PeerNorm, Report, Root},
    op::ReduceInfo,
};
pub use communicator::{Checkpoint, Communicator, DetachedLoan, Member, Resume};
pub use detached::DetachedReduce;
pub use error::{ConnectCause, Error, LossCause, Reason, Remedy, Result};
pub use memory::{Source, Staged, StateMemory, Target, Tensor};
pub use notice::{Notice, SIGTERM};
pub use options::{CollectiveOptions, LaunchOptions, ManyOptions, ReduceOptions, Schedule, SyncOptions};
pub use pccl_cuda::{CudaError, DeviceMemory, HAS_CUDA, is_cuda_supported, usable as usable_devices};
pub use pccl_iteration::{GlobalIteration, IterationConfig, IterationError, Policy};
pub use pccl_master::{Master, MasterConfig, MasterError, RelayConfig, RunKey, RunName, WireMode, doctor};
pub use pccl_protocol::{
    Algorithm, CallKind, Cause, CollectiveId, CollectiveKind, Culprit, FetchProgress, GroupEpoch, GroupId,
    GroupUuid, Host, KickCode, KickReason, Name, OpId, Operation, PeerId, PeerStage, Phase, RunId, Status,
    StatusGroup, StatusPeer, StatusWait, Text, Verdict, WorldSizes,
};
pub use pccl_quant::{
    DataType, Element, ReduceOp,
    quantise::{Block, Quantisation, Scheme},
};
pub use pccl_settings::Setting;
pub use scope::{AsyncReduce, Scope};
pub use segments::{Segment, SegmentedError, SegmentedInfo};
pub use settings::{Builder, FrameChecksums, PeerSettings};
pub use state::{
    SaveInfo, SaveOptions, Saving, SharedState, StateFile, StateFileError, StateSnapshot, SyncInfo,
    SyncProgress, SyncStrategy,
    ahead::Ahead,
    diff::{Camp, Divergence, StateDiff, TensorDiff},
};
pub use topology::{Optimized, RatedEdge};
pub use world::World;
