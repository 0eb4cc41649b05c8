//! Sockets and their threads: listeners, queued sockets, packet streams and the multiplexed data link.
//!
//! This crate moves bytes and knows none of PCCL's packets. [`wire`] holds the encoding that packets are written in.
//!
//! | to | use |
//! |---|---|
//! | hold a connection, whoever made it | [`conn`] |
//! | find and reach somebody | [`address`], [`dial`] |
//! | be reached | [`listener`], [`acceptor`] |
//! | be reached by many, on one thread | [`listeners`], [`reactor`], [`write_queue`] |
//! | know who can be reached, of many at once | [`reach`] |
//! | say who one is when a connection starts | [`preamble`] |
//! | exchange packets that arrive in any order, from many threads | [`queued`] |
//! | ask and answer, with limits in time, and no thread | [`stream`] |
//! | move the frames of collective operations | [`link`] |
//! | know its sockets again, in the child of a `fork` | [`ledger`] |
//! | call what the standard library lacks | [`sys`] |
//!
//! Modules from top to bottom, each of which uses only those below it: `acceptor`, `reach`, `dial`, `queued`,
//! `reactor`, `link`, `listener`, `listeners`, `stream`, `conn`, `ledger`, `preamble`, `address`, `primitive`, `sys`,
//! `threads`, `wire`, `write_queue`.

#![deny(unsafe_code)]

pub mod acceptor;
pub mod address;
pub mod conn;
pub mod dial;
pub mod ledger;
pub mod link;
pub mod listener;
pub mod listeners;
pub mod preamble;
mod primitive;
pub mod queued;
pub mod reach;
pub mod reactor;
pub mod stream;
#[allow(unsafe_code)]
pub mod sys;
mod threads;
pub mod wire;
pub mod write_queue;
