//! Packets between peers on a shared-state connection.

use crate::{Key, StateAnswer, SyncId};

packets! {
    /// Requests for shared state and their answers.
    pub enum P2p {
        /// Ask a source for one tensor.
        StateRequest(StateRequest) = 1,
        /// Its answer; the bytes of the tensor follow outside of any packet.
        StateAnswer(StateAnswer) = 2,
    }
}

wire_struct! {
    /// Ask a source for one tensor.
    pub struct StateRequest {
        /// The sync that it is for.
        pub sync: SyncId,
        /// The tensor.
        pub key: Key,
    }
}
