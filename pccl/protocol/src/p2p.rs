//! Packets between peers on a shared-state connection.

use crate::{Key, Numbering, StateAnswer, StatePart, SyncId};

packets! {
    /// Requests for shared state and their answers. Several requests may be under way; they are answered in turn.
    pub enum P2p: Numbering {
        /// Ask a source for a part of a tensor.
        StateRequest(StateRequest) = 1 => Numbering::UNNUMBERED,
        /// Its answer; the bytes of the part follow outside of any packet.
        StateAnswer(StateAnswer) = 2 => Numbering::UNNUMBERED,
    }
}

wire_struct! {
    /// Ask a source for a part of a tensor.
    pub struct StateRequest {
        /// The sync that it is for.
        pub sync: SyncId,
        /// The tensor.
        pub key: Key,
        /// The part of it.
        pub part: StatePart,
    }
}
