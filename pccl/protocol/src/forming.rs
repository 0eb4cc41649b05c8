//! Groups with given members: a list of peers, in order, that all of them call `form_group` with.

use crate::{GroupUuid, Name, PeerId, RequestId, Verdict, WorldSizes, limits};
use std::fmt;
use tinysockets::wire::ListItem;

wire_union! {
    /// How a caller names a member of the group that is to be formed.
    pub enum MemberRef {
        /// One connected life of a communicator.
        Peer(PeerId) = 1,
        /// The peer that has this name when the group is formed.
        Name(Name) = 2,
    }
}

impl fmt::Display for MemberRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Peer(peer) => write!(f, "{peer}"),
            Self::Name(name) => write!(f, "{name}"),
        }
    }
}

impl ListItem for MemberRef {
    const LIST: &'static str = "list of members";
    const MAX_ITEMS: usize = limits::MAX_PEERS;
}

wire_struct! {
    /// Vote to form a group.
    pub struct FormGroup {
        /// Names the answer.
        pub request: RequestId,
        /// Which forming; all members name the same one.
        pub uuid: GroupUuid,
        /// The members; the place is the rank.
        pub members: Vec<MemberRef>,
    }
}

wire_struct! {
    /// The group stands. Its ring plan came before.
    #[derive(Copy)]
    pub struct GroupFormed {
        /// The vote.
        pub request: RequestId,
        /// The world with this group.
        pub sizes: WorldSizes,
    }
}

wire_struct! {
    /// The group was not formed, for all who have voted; its uuid is used.
    pub struct FormFailed {
        /// The vote.
        pub request: RequestId,
        /// Why.
        pub verdict: Verdict,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_shown_as_a_number_and_a_uuid_as_usual() {
        assert_eq!(GroupUuid(1001).to_string(), "1001");
        let uuid = GroupUuid(0x0123_4567_89ab_cdef_0011_2233_4455_6677);
        assert_eq!(uuid.to_string(), "01234567-89ab-cdef-0011-223344556677");
    }
}
