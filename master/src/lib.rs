//! The authority of a run: pure state machine, event loop and the pccl-master binary.
//!
//! [`Master::launch`] runs one in this process. It decides who is in the run and what happens next, and never sees a
//! tensor. [`state`] decides, without sockets or clocks; a private event loop moves the bytes. Rings and shares are
//! computed by the crate `pccl-planner`.
//!
//! Modules from top to bottom, each of which uses only those below it: `handle`, `config`, `error`,
//! `event_loop`, `relay`, `doctor`, `rates`, `journal`, `leadership`, `origin`, `state`, `json`, `operate`.
#![forbid(unsafe_code)]

// `log::warn!` and the like put a record into a queue: nothing here waits for the logger of the program.
extern crate pccl_log as log;

mod config;
pub mod doctor;
mod error;
mod event_loop;
mod handle;
mod journal;
mod json;
pub mod leadership;
mod operate;
mod origin;
mod rates;
mod relay;
pub mod state;

pub use config::MasterConfig;
pub use error::MasterError;
pub use handle::{Master, StopHandle};
pub use json::status_to_json;
pub use operate::{
    accept_revision, end_run, force_take_over, lock_out, query_rates, query_status, remove_peer, rotate_key,
    step_down,
};
pub use pccl_settings::Setting;
pub use rates::{rates_to_csv, rates_to_json};
pub use relay::RelayConfig;
pub use tinysockets::key::{AcceptedKeys, KEY_VARIABLE, KeyError, RunKey, RunName, RunNameError};
pub use tinysockets::mode::WireMode;
