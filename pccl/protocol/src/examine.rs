//! Questions about itself that a machine which is about to take part asks the master, without joining.

use crate::{
    Address, GroupId, Host, Hosts, Name, PeerId, ReachTarget, RequestId, RunId, Unreached, WireMode, limits,
};
use tinysockets::wire::{Decode, Encode, ListItem, Reader, WireError};

/// Bytes 0, at most [`MAX_PADDING_BYTES`](limits::MAX_PADDING_BYTES): a packet that has them is one that a
/// path with a smaller largest packet than its ends believe does not let through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Padding(pub u16);

const PADDING: &str = "padding";

impl Encode for Padding {
    fn encode(&self, out: &mut Vec<u8>) {
        self.0.encode(out);
        out.resize(out.len() + usize::from(self.0), 0);
    }
}

impl Decode for Padding {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let len = u16::decode(reader)?;
        if usize::from(len) > limits::MAX_PADDING_BYTES {
            return Err(WireError::TooLong {
                what: PADDING,
                len: len.into(),
                max: limits::MAX_PADDING_BYTES,
            });
        }
        match reader.take(len.into(), PADDING)?.iter().find(|byte| **byte != 0) {
            Some(byte) => Err(WireError::BadValue { what: PADDING, value: (*byte).into() }),
            None => Ok(Self(len)),
        }
    }
}

serialized_as_wire!(Padding);

wire_struct! {
    /// Question of a machine that has not registered: how do you see me, and do you reach my ports?
    pub struct Examine {
        /// Names the answer.
        pub request: RequestId,
        /// As whom it answers on its ports, and visits peers to measure the way to them, chosen by itself.
        pub peer: PeerId,
        /// Host under which others are to reach it; `None` means the source address that the master sees.
        pub advertised_host: Option<Host>,
        /// Further addresses of it, as in a [`Register`](crate::Register).
        pub addresses: Vec<Address>,
        /// Port of its data listener.
        pub p2p_port: u16,
        /// Port of its shared-state listener.
        pub state_port: u16,
        /// As many bytes come back.
        pub padding: Padding,
    }
}

wire_struct! {
    /// A peer of the run, for a machine that asks from outside.
    pub struct ExaminedPeer {
        /// Its identity, and where the one who asks reaches it.
        pub target: ReachTarget,
        /// Its group.
        pub group: GroupId,
        /// Its name.
        pub name: Name,
    }
}

impl ListItem for ExaminedPeer {
    const LIST: &'static str = "peers of the run";
    const MAX_ITEMS: usize = limits::MAX_PEERS;
}

wire_struct! {
    /// Answer to an [`Examine`].
    pub struct Examined {
        /// The question.
        pub request: RequestId,
        /// As in the question.
        pub peer: PeerId,
        /// The run.
        pub run: RunId,
        /// How probes travel in a run with a key; `None` without one. In front of an answer with it come
        /// [`Tickets`](crate::Tickets) for probes of the first [`MAX_VISITED`](limits::MAX_VISITED) of the peers.
        pub wire: Option<WireMode>,
        /// Address from which the master sees the question come.
        pub seen: Host,
        /// Time of the master's clock when it had tried the ports, in microseconds since 1970.
        pub unix_us: u64,
        /// Where others dial a peer that runs there.
        pub hosts: Hosts,
        /// Only peers that others can dial take part.
        pub require_reachable: bool,
        /// Ports that the master did not reach.
        pub unreached: Vec<Unreached>,
        /// The peers that are in the run.
        pub peers: Vec<ExaminedPeer>,
        /// As many bytes as came.
        pub padding: Padding,
    }
}
