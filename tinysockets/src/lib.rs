//! Sockets and their threads: listeners, queued sockets, packet streams and the multiplexed data link.
//!
//! This crate moves bytes and knows none of PCCL's packets. [`wire`] holds the encoding that packets are written in.
//!
//! | to | use |
//! |---|---|
//! | hold a connection, whoever made it | [`conn`] |
//! | find and reach somebody | [`address`], [`place`], [`dial`] |
//! | be reached | [`listener`], [`acceptor`] |
//! | be reached by many, on one thread | [`listeners`], [`reactor`], [`write_queue`] |
//! | know who can be reached, of many at once | [`reach`] |
//! | meet somebody whom nobody can dial, or let such meet | [`relay`] |
//! | know how fast a path is | [`probe`] |
//! | say who one is when a connection starts | [`preamble`] |
//! | take no more from strangers than one can bear | [`throttle`], [`bucket`] |
//! | prove that one has the key of the run, or a ticket | [`key`], [`ticket`], [`handshake`] |
//! | keep what travels secret and unchanged | [`seal`] |
//! | pass bytes to another process of this machine | [`shm`] |
//! | exchange packets that arrive in any order, from many threads | [`queued`] |
//! | ask and answer, with limits in time, and no thread | [`stream`] |
//! | move the frames of collective operations | [`link`] |
//! | know its sockets again, in the child of a `fork` | [`ledger`] |
//! | keep a file from others | [`private_file`] |
//! | call what the standard library lacks | [`sys`] |
//!
//! Modules from top to bottom, each of which uses only those below it: `relay`, `acceptor`, `reach`, `dial`, `queued`,
//! `reactor`, `link`, `listener`, `listeners`, `probe`, `stream`, `conn`, `handshake`, `seal`, `ticket`, `key`,
//! `mode`, `ledger`, `preamble`, `shm`, `cipher`, `place`, `address`, `primitive`, `private_file`, `sys`, `threads`,
//! `throttle`, `bucket`, `wire`, `write_queue`.

#![deny(unsafe_code)]

// `log::warn!` and the like put a record into a queue: nothing here waits for the logger of the program.
extern crate pccl_log as log;

pub mod acceptor;
pub mod address;
pub mod bucket;
mod cipher;
pub mod conn;
pub mod dial;
pub mod handshake;
pub mod key;
pub mod ledger;
pub mod link;
pub mod listener;
pub mod listeners;
pub mod mode;
pub mod place;
pub mod preamble;
mod primitive;
pub mod private_file;
pub mod probe;
pub mod queued;
pub mod reach;
pub mod reactor;
pub mod relay;
pub mod seal;
pub mod shm;
pub mod stream;
#[allow(unsafe_code)]
pub mod sys;
mod threads;
pub mod throttle;
pub mod ticket;
pub mod wire;
pub mod write_queue;
