//! The peers of the run. A connection becomes a client, a client that registers becomes a peer, and a peer is accepted
//! by a vote of all members (`admission`) or leaves by an end that it, the operator or time decides (`liveness`).
//!
//! The room owns the list of clients and peers with the settings and the time (`members`, `client`). `sender` says how
//! far each has come; `packet_guard` decides what it may send then, `rate_limits` how often. `disconnected` keeps the
//! place of a peer whose connection broke. `preflight`, `ports`, `reachability` and `black_holes` find out who can be
//! dialed by whom; `outbound_only` and `dial_back` serve those who cannot be; `probation` makes a peer wait that was
//! dropped for its ports.
//!
//! All other rooms read `members`; only this one adds to it or takes away.

pub(crate) mod admission;
pub(crate) mod black_holes;
pub(crate) mod client;
pub(crate) mod dial_back;
pub(crate) mod disconnected;
pub(crate) mod liveness;
pub(crate) mod members;
pub(crate) mod outbound_only;
pub(crate) mod packet_guard;
pub(crate) mod ports;
pub(crate) mod preflight;
pub(crate) mod probation;
pub(crate) mod rate_limits;
pub(crate) mod reachability;
pub(crate) mod sender;
