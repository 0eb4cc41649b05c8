//! How a peer whose connection to the master has ended goes on over another one.
//!
//! Packets are numbered, in each direction by itself and over all connections of a peer, from 1: all but those that
//! make a connection or are about its packets or about who leads (`is_numbered`). Each end keeps what it has sent until
//! the other one has said that it came, and sends the rest again over the next connection. So every packet comes once
//! and in its order, and nobody else notices.

use crate::{CopyId, PeerId, RunId, Term};
use tinysockets::key::SecretKey;

wire_struct! {
    /// First packet of a connection of a peer that is registered already: the one that it had has ended.
    pub struct Return {
        /// Its run.
        pub run: RunId,
        /// Its identity.
        pub peer: PeerId,
        /// In a run with a key, what only that peer was told beside the master ([`Keys::service_key`](crate::Keys)).
        pub proof: Option<SecretKey>,
        /// Numbered packets of the master that have come.
        pub received: u64,
        /// The newest term that it knows: it obeys no master of an older one.
        pub term: Term,
    }
}

wire_struct! {
    /// The connection takes the place of the one before. The packets that the sender had not received come behind it,
    /// and the receiver sends the same.
    #[derive(Copy)]
    pub struct Returned {
        /// Numbered packets of the peer that have come.
        pub received: u64,
        /// The term in which the master acts.
        pub term: Term,
        /// Its copy of what it knows.
        pub acting: CopyId,
    }
}

wire_struct! {
    /// Numbered packets that have come so far: the other end need not keep them.
    #[derive(Copy)]
    pub struct Received {
        /// How many.
        pub count: u64,
    }
}
