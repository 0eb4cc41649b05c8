//! The run as its master sees it, for an operator or a program that asks.

use crate::{CallKind, GroupEpoch, GroupId, Host, OpId, PeerId, RequestId, RunId, Text, WorldSizes, limits};
use std::fmt;
use tinysockets::wire::ListItem;

wire_code! {
    /// How far a peer has come.
    pub enum PeerStage {
        /// Waits for the others to let it in.
        Pending = 1 => "pending",
        /// In a ring that is being connected.
        Connecting = 2 => "connecting",
        /// Full member: votes and is counted.
        Accepted = 3 => "accepted",
    }
}

wire_struct! {
    /// One registered peer.
    pub struct StatusPeer {
        /// The peer.
        pub peer: PeerId,
        /// The address under which the master sees it.
        pub host: Host,
        /// Its group.
        pub group: GroupId,
        /// How far it has come.
        pub stage: PeerStage,
        /// The call that its caller's thread was in by its last sign of life.
        pub call: CallKind,
        /// Since when, in milliseconds; for [`CallKind::None`] it says nothing.
        pub call_ms: u64,
        /// Time since the master heard anything of it, in milliseconds.
        pub silent_ms: u64,
        /// Bytes that it had sent and received in operations by its last sign of life.
        pub moved_bytes: u64,
        /// Its oldest operation in flight by its last sign of life.
        pub operation: Option<OpId>,
    }
}

impl ListItem for StatusPeer {
    const LIST: &'static str = "peers of a status";
    const MAX_ITEMS: usize = limits::MAX_PEERS;
}

wire_struct! {
    /// One group with a ring.
    pub struct StatusGroup {
        /// The group.
        pub group: GroupId,
        /// Its epoch.
        pub epoch: GroupEpoch,
        /// Whether all members have connected the ring of that epoch.
        pub connected: bool,
        /// Members in the order in which data flows.
        pub ring: Vec<PeerId>,
    }
}

impl ListItem for StatusGroup {
    const LIST: &'static str = "groups of a status";
    const MAX_ITEMS: usize = limits::MAX_PEERS;
}

wire_struct! {
    /// Something that waits.
    pub struct StatusWait {
        /// Since when, in milliseconds.
        pub since_ms: u64,
        /// What waits, and for whom.
        pub text: Text,
    }
}

impl ListItem for StatusWait {
    const LIST: &'static str = "waits of a status";
    const MAX_ITEMS: usize = limits::MAX_STATUS_WAITS;
}

wire_struct! {
    /// The run at one instant. Its [`Display`](fmt::Display) is a short text of several lines.
    pub struct Status {
        /// The request that this answers.
        pub request: RequestId,
        /// The run.
        pub run: RunId,
        /// How long the master has been running, in milliseconds.
        pub uptime_ms: u64,
        /// Sizes of the world; `group` is the size of the asking peer's group, 0 for a client that is no peer.
        pub sizes: WorldSizes,
        /// Groups with a ring, by number.
        pub groups: Vec<StatusGroup>,
        /// Registered peers, in the order of their registration.
        pub peers: Vec<StatusPeer>,
        /// What waits, longest first; at most [`limits::MAX_STATUS_WAITS`] entries.
        pub waits: Vec<StatusWait>,
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waiting = self.peers.iter().filter(|peer| peer.stage != PeerStage::Accepted).count();
        writeln!(
            f,
            "run {}, master up {}: {} peers in {} groups (at least {} needed), {waiting} not let in yet, world epoch {}",
            self.run,
            Time(self.uptime_ms),
            self.sizes.global,
            self.sizes.groups,
            self.sizes.min_world,
            self.sizes.world_epoch,
        )?;
        for group in &self.groups {
            let ring: Vec<String> = group.ring.iter().map(PeerId::to_string).collect();
            let state = if group.connected { "connected" } else { "being connected" };
            writeln!(f, "group {}, epoch {}, ring {state}: {}", group.group, group.epoch, ring.join(" > "))?;
        }
        for peer in &self.peers {
            write!(f, "peer {} ({}), group {}, {}: ", peer.peer, peer.host, peer.group, peer.stage)?;
            match peer.call {
                // How long a caller has been in no call is not known.
                CallKind::None => write!(f, "in no call")?,
                call => write!(f, "in {call} for {}", Time(peer.call_ms))?,
            }
            write!(f, ", heard {} ago", Time(peer.silent_ms))?;
            if let Some(operation) = &peer.operation {
                write!(f, ", all-reduce {operation}")?;
            }
            writeln!(f, ", {} bytes moved", peer.moved_bytes)?;
        }
        for wait in &self.waits {
            writeln!(f, "waiting for {}: {}", Time(wait.since_ms), wait.text)?;
        }
        if self.waits.is_empty() {
            writeln!(f, "nothing waits")?;
        }
        Ok(())
    }
}

/// Milliseconds, shown in the unit that fits.
struct Time(u64);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0 / 1000;
        match seconds {
            0 => write!(f, "{} ms", self.0),
            1..600 => write!(f, "{seconds}.{} s", self.0 % 1000 / 100),
            600..7200 => write!(f, "{} min", seconds / 60),
            _ => write!(f, "{} h {} min", seconds / 3600, seconds % 3600 / 60),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(id: u128, stage: PeerStage) -> StatusPeer {
        StatusPeer {
            peer: PeerId(id << 96),
            host: Host::new("10.0.0.1"),
            group: GroupId(2),
            stage,
            call: CallKind::AllReduce,
            call_ms: 12_345,
            silent_ms: 250,
            moved_bytes: 99,
            operation: Some(OpId { epoch: GroupEpoch(4), tag: 7, attempt: 1 }),
        }
    }

    #[test]
    fn the_text_says_who_is_in_and_who_waits_for_whom() {
        let mut status = Status {
            request: RequestId(1),
            run: RunId(0xabc),
            uptime_ms: 7_260_000,
            sizes: WorldSizes { global: 1, groups: 1, min_world: 2, ..WorldSizes::default() },
            groups: vec![StatusGroup {
                group: GroupId(2),
                epoch: GroupEpoch(4),
                connected: true,
                ring: vec![PeerId(0x11 << 96), PeerId(0x22 << 96)],
            }],
            peers: vec![
                StatusPeer { call: CallKind::None, operation: None, ..peer(0x11, PeerStage::Accepted) },
                peer(0x22, PeerStage::Pending),
            ],
            waits: vec![StatusWait { since_ms: 61_500, text: Text::new("admission waits for peer 11") }],
        };
        let text = status.to_string();
        for part in [
            "master up 2 h 1 min: 1 peers in 1 groups (at least 2 needed), 1 not let in yet",
            "group 2, epoch 4, ring connected: 00000011 > 00000022\n",
            "peer 00000022 (10.0.0.1), group 2, pending: in all_reduce for 12.3 s, heard 250 ms ago, \
             all-reduce tag 7 (epoch 4, attempt 1), 99 bytes moved\n",
            "peer 00000011 (10.0.0.1), group 2, accepted: in no call, heard 250 ms ago, 99 bytes moved\n",
            "waiting for 61.5 s: admission waits for peer 11\n",
        ] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
        status.waits.clear();
        assert!(status.to_string().ends_with("nothing waits\n"));
    }
}
