//! Low-communication training: each member of a run takes many inner steps on its own data, and now and then the
//! members average how far they have moved (DiLoCo, [arXiv 2311.08105](https://arxiv.org/abs/2311.08105)).
//!
//! The parameters are cut into fragments that take turns (Streaming DiLoCo,
//! [arXiv 2501.18512](https://arxiv.org/abs/2501.18512)). A **round** exchanges one fragment. Each member contributes
//! its pseudo-gradient: the outer parameters from which it came, minus its own ones. The mean of all is the gradient of
//! one step of the outer optimiser. Outer parameters and outer momentum are the shared state of the run: the same bits
//! on every member.
//!
//! | to | use |
//! |---|---|
//! | train | [`DiLoCo`], with [`Settings`] |
//! | know what a round took | [`RoundReport`], [`Stats`] |
//! | average with compression and error feedback, without an optimiser | [`Averager`] |
//!
//! ```no_run
//! use pccl_diloco::{Compression, DiLoCo, Settings};
//!
//! # fn inner_step(_: &mut [f32]) {}
//! let mut weights = vec![0.0_f32; 1_000_000];
//! let (compression, settings) = (Compression::Int4, Settings::default());
//! let settings = Settings { every: 100, fragments: 4, overlap: 5, compression, ..settings };
//! let comm = pccl::Communicator::builder("127.0.0.1:48148").build()?;
//! let mut run = DiLoCo::join(comm.into(), settings, &mut weights)?;
//! while run.step_index() < 10_000 {
//!     inner_step(&mut weights);
//!     run.step(&mut weights, 1.0)?;
//! }
//! run.finish(&mut weights, None)?;
//! # Ok::<(), pccl::Error>(())
//! ```
//!
//! The rounds are made by a thread of the library. So a member that computes for long keeps nobody waiting: when a
//! quorum is ready and a grace time has passed, the thread of a member that is not ready takes part with weight zero.
//!
//! Modules from top to bottom, each of which uses only those below it: `diloco`, `rounds`, `board`, `readiness`,
//! `average`, `samples`, `audit`, `settings`, `outer`, `compress`, `fragments`, `stats`.
#![forbid(unsafe_code)]

// `log::warn!` and the like put a record into a queue: nothing here waits for the logger of the program.
extern crate pccl_log as log;

mod audit;
mod average;
mod board;
mod compress;
mod diloco;
mod fragments;
mod outer;
mod readiness;
mod rounds;
mod samples;
mod settings;
mod stats;

pub use average::{Averaged, Averager};
pub use compress::Compression;
pub use diloco::{Action, DiLoCo};
pub use fragments::Fragments;
pub use outer::{Outer, OuterStep, OwnStep};
pub use settings::{Grace, Settings};
pub use stats::{RoundReport, Stats};
