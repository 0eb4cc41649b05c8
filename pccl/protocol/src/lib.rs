//! Every packet, identifier and limit that master and peers share.
//!
//! Hand-written, explicit encodings: each struct is encoded field by field in the order of its declaration (see
//! [`tinysockets::wire`]), each enum starts with a code that never changes. Decoding is total: wrong bytes give a
//! [`WireError`], never a panic, and never an allocation that a length field alone could cause.
//!
//! * [`C2m`]: what a peer tells the master; [`M2c`]: what the master tells a peer.
//! * [`P2p`]: requests and answers between peers on a shared-state connection.
//! * [`Verdict`]: why an operation failed, the same on every peer.
//! * [`limits`]: every limit, in one file.
//!
//! Modules from top to bottom, each of which uses only those below it: `c2m`, `m2c`, `p2p`, `status`, `ticket`,
//! `probe`, `collective`, `forming`, `state`, `verdict`, `call`, `kind`, `examine`, `reach`, `world`, `standby`,
//! `returning`, `hosts`, `json`, `figure`, `ids`, `part`, `limits`, `packet_rules`, `macros`, `kept`, `reasons`.
#![forbid(unsafe_code)]

#[macro_use]
mod macros;

mod c2m;
mod call;
mod collective;
mod examine;
mod figure;
mod forming;
mod hosts;
mod ids;
pub mod json;
pub mod kept;
mod kind;
pub mod limits;
mod m2c;
mod p2p;
mod packet_rules;
mod part;
mod probe;
mod reach;
mod reasons;
mod returning;
mod standby;
mod state;
mod status;
mod ticket;
mod verdict;
mod world;

pub use c2m::*;
pub use call::*;
pub use collective::*;
pub use examine::*;
pub use figure::*;
pub use forming::*;
pub use hosts::*;
pub use ids::*;
pub use kind::*;
pub use m2c::*;
pub use p2p::*;
pub use packet_rules::{Counter, Numbering, PacketRules, Senders};
pub use part::*;
pub use probe::*;
pub use reach::*;
pub use reasons::*;
pub use returning::*;
pub use standby::*;
pub use state::*;
pub use status::*;
pub use ticket::*;
pub use tinysockets::{
    mode::WireMode,
    wire::{WireError, is_hidden},
};
pub use verdict::*;
pub use world::*;
