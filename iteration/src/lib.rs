//! Agreement on a global iteration through a key-value store, without a coordinator among the members.
//!
//! The ranks of an elastic job agree on "which iteration are we in, and who is in it" through a [`store`] that they all
//! reach: a stock PyTorch TCPStore, the server of this crate, or memory. The truth is one register in that store, which
//! moves by compare-and-set only; [`protocol`] decides, without sockets or clocks, and [`GlobalIteration`] carries it
//! out.
//!
//! | to | use |
//! |---|---|
//! | take part in a run | [`GlobalIteration`] |
//! | reach a TCPStore | [`TcpStoreClient`] |
//! | serve one | [`StoreServer`] |
//! | test without a network | [`MemoryStore`] |
//!
//! Modules from top to bottom, each of which uses only those below it: `server`, `client`, `global`, `wire`, `store`,
//! `data`, `protocol`.
#![forbid(unsafe_code)]

// `log::warn!` and the like put a record into a queue: nothing here waits for the logger of the program.
extern crate pccl_log as log;

pub mod client;
pub mod data;
mod global;

pub mod protocol;

mod server;
pub mod store;
mod wire;

pub use client::TcpStoreClient;
pub use global::{Cancel, GlobalIteration, IterationConfig, IterationError, read_current};
pub use protocol::{Decision, Member, Policy};

pub use server::{ServerConfig, ServerError, ServerStop, StoreServer};
pub use store::{MemoryStore, Store, StoreError};
