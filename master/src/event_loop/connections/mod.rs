//! Connections of the loop: bytes in, packets out, and what a client may take of this machine.
//!
//! `half_open` judges the first bytes of a connection, `conn` is one connection with its write queue, `reading` and
//! `inbox` turn its bytes into packets, `frame` makes frames of packets. `resumption` keeps the place of a client whose
//! connection ended. `large_packets` and `descriptors` divide memory and descriptors.

pub(crate) mod conn;
pub(crate) mod descriptors;
pub(crate) mod frame;
pub(crate) mod half_open;
pub(crate) mod inbox;
pub(crate) mod large_packets;
pub(crate) mod place;
pub(crate) mod reading;
pub(crate) mod resumption;
