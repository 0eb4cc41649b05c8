//! Sockets and their threads: listeners, queued sockets, packet streams and the multiplexed data link.
//!
//! This crate moves bytes and knows none of PCCL's packets. [`wire`] holds the encoding that packets are written in.

#![deny(unsafe_code)]

pub mod acceptor;
pub mod address;
pub mod dial;
pub mod link;
pub mod listener;
pub mod preamble;
#[allow(unsafe_code)]
pub mod sys;
mod threads;
pub mod wire;
