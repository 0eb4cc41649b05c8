//! The run as its master sees it, for an operator or a program that asks.

use crate::{
    Algorithm, CallKind, CollectiveId, EdgeRate, FetchProgress, Figure, GroupEpoch, GroupId, Host, Name,
    Named, PeerId, RequestId, Revision, RunId, Standby, Term, Text, WireMode, WorldSizes, limits,
};
use std::fmt;
use tinysockets::wire::ListItem;

wire_code! {
    /// How far a peer has come.
    #[non_exhaustive]
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
        /// Its name.
        pub name: Name,
        /// Port of its data listener.
        pub p2p_port: u16,
        /// Port of its shared-state listener.
        pub state_port: u16,
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
        /// Its oldest collective in flight by its last sign of life.
        pub operation: Option<CollectiveId>,
        /// How far its fetch of shared state was by its last sign of life, if there was one.
        pub fetch: Option<FetchProgress>,
        /// Nobody can dial it: it dials all of its connections itself.
        pub outbound_only: bool,
        /// Numbers that its program has reported.
        pub figures: Vec<Figure>,
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
        /// Its last committed revision, if there is one.
        pub revision: Option<Revision>,
        /// The slowest edge of the ring, if all of them have been measured.
        pub slowest: Option<EdgeRate>,
        /// How large operations go, unless the caller chooses: by [`Algorithm::Ring`], [`Algorithm::Pairwise`] or
        /// [`Algorithm::Sites`].
        pub schedule: Algorithm,
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
        /// The waiting things, and for whom they wait.
        pub text: Text,
    }
}

impl ListItem for StatusWait {
    const LIST: &'static str = "waits of a status";
    const MAX_ITEMS: usize = limits::MAX_STATUS_WAITS;
}

wire_struct! {
    /// Two peers that are connected through the relay.
    #[derive(Copy)]
    pub struct RelayedPair {
        /// The one that has begun.
        pub from: PeerId,
        /// The other one.
        pub to: PeerId,
    }
}

impl ListItem for RelayedPair {
    const LIST: &'static str = "relayed pairs";
    const MAX_ITEMS: usize = limits::MAX_RELAYED_PAIRS;
}

wire_struct! {
    /// The work of the relay of the master.
    pub struct StatusRelay {
        /// Its port.
        pub port: u16,
        /// The bound for all relayed bytes together, in Mbit/s.
        pub mbit_per_s: u32,
        /// Bytes that were relayed so far.
        pub bytes: u64,
        /// The pairs that are connected through it, once for each connection.
        pub pairs: Vec<RelayedPair>,
    }
}

wire_code! {
    /// The stage of the journal of a master that is to keep one.
    #[non_exhaustive]
    pub enum JournalStage {
        /// Another process could go on from it.
        Kept = 1 => "kept",
        /// It could not be written, and is begun again as soon as that works.
        GivenUp = 2 => "given-up",
        /// The master stands by, and begins it when it acts.
        Later = 3 => "later",
    }
}

wire_struct! {
    /// The journal of the master.
    pub struct StatusJournal {
        /// The stage that it is in.
        pub stage: JournalStage,
        /// Since when it is given up, in milliseconds; 0 if it is not.
        pub since_ms: u64,
        /// Why it is given up.
        pub text: Option<Text>,
    }
}

wire_struct! {
    /// The leader of the run.
    pub struct StatusLead {
        /// The term of the master that acts, as far as is known.
        pub term: Term,
        /// Whether it is the one that answers. Otherwise that stands by, and what it says of the run is what it has
        /// heard last.
        pub acts: bool,
        /// Those who stand by and know all that it knows.
        pub standbys: Vec<Standby>,
        /// The event that it waits for, if any.
        pub text: Option<Text>,
        /// The journal of the master that answers, if it is to keep one.
        pub journal: Option<StatusJournal>,
    }
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
        /// How many run keys the master accepts: none, one, or two while one takes the place of the other.
        pub run_keys: u8,
        /// How bulk data travels, in a run with a key.
        pub wire: Option<WireMode>,
        /// The only peers that may give shared state to others, by their names; empty if all may.
        pub trusted_seeders: Vec<Name>,
        /// Sizes of the world; `group` is the size of the asking peer's group, 0 for a client that is no peer.
        pub sizes: WorldSizes,
        /// Groups with a ring, by number.
        pub groups: Vec<StatusGroup>,
        /// Registered peers, in the order of their registration.
        pub peers: Vec<StatusPeer>,
        /// Waits, longest first; at most [`limits::MAX_STATUS_WAITS`] entries.
        pub waits: Vec<StatusWait>,
        /// Through which peers meet that nobody can dial, if the master has a relay.
        pub relay: Option<StatusRelay>,
        /// The leader of the run, with its standbys.
        pub lead: StatusLead,
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waiting = self.peers.iter().filter(|peer| peer.stage != PeerStage::Accepted).count();
        writeln!(
            f,
            "run {}, master up {}: {} in {} (at least {} needed), {waiting} not let in yet, world epoch {}",
            self.run,
            Time(self.uptime_ms),
            Count(self.sizes.global, "peer"),
            Count(self.sizes.groups, "group"),
            self.sizes.min_world,
            self.sizes.world_epoch,
        )?;
        for group in &self.groups {
            let ring: Vec<String> = group.ring.iter().map(PeerId::to_string).collect();
            let state = if group.connected { "connected" } else { "being connected" };
            writeln!(f, "group {}, epoch {}, ring {state}: {}", group.group, group.epoch, ring.join(" > "))?;
            write!(f, "group {}, ", group.group)?;
            match group.revision {
                Some(revision) => write!(f, "shared state at revision {revision}, ")?,
                None => write!(f, "no shared state yet, ")?,
            }
            if let Some(edge) = group.slowest {
                write!(
                    f,
                    "slowest edge {} -> {} with {}, ",
                    self.called(edge.from),
                    self.called(edge.to),
                    edge.rate()
                )?;
            }
            let schedule = group.schedule.in_words();
            writeln!(f, "large operations go {schedule}")?;
        }
        for peer in &self.peers {
            let named = Named(peer.peer, &peer.name, peer.host.as_str());
            let ports = (peer.p2p_port, peer.state_port);
            write!(
                f,
                "peer {named}, ports {} and {}{}, group {}, {}: ",
                ports.0,
                ports.1,
                if peer.outbound_only { " (outbound-only)" } else { "" },
                peer.group,
                peer.stage
            )?;
            match peer.call {
                // How long a caller has been in no call is not known.
                CallKind::None => write!(f, "in no call")?,
                call => write!(f, "in {call} for {}", Time(peer.call_ms))?,
            }
            write!(f, ", heard {} ago", Time(peer.silent_ms))?;
            if let Some(operation) = &peer.operation {
                write!(f, ", {operation}")?;
            }
            if let Some(fetch) = &peer.fetch {
                write!(f, ", fetches shared state: {fetch}")?;
            }
            write!(f, ", {} bytes moved", peer.moved_bytes)?;
            peer.figures.iter().try_for_each(|figure| write!(f, ", {figure}"))?;
            writeln!(f)?;
        }
        for wait in &self.waits {
            writeln!(f, "waiting for {}: {}", Time(wait.since_ms), wait.text)?;
        }
        if self.waits.is_empty() {
            writeln!(f, "nothing waits")?;
        }
        f.write_str(match self.wire {
            None if self.run_keys > 0 => "run key, the wire mode is that of the run, which is not known yet\n",
            None => "no run key: whoever reaches a port takes part, and nothing is encrypted\n",
            Some(WireMode::Encrypt) => "run key, wire mode encrypt: every connection is encrypted\n",
            Some(WireMode::Integrity) => {
                "run key, wire mode integrity: who is on the way can read tensors and shared state, not change them\n"
            }
            Some(WireMode::Off) => {
                "run key, wire mode off: who is on the way can read and change tensors and shared state\n"
            }
        })?;
        if !self.trusted_seeders.is_empty() {
            let seeders: Vec<String> = self.trusted_seeders.iter().map(|name| self.seeder(name)).collect();
            writeln!(f, "only trusted seeders give shared state: {}", seeders.join(", "))?;
        }
        if let Some(relay) = &self.relay {
            self.write_relay(f, relay)?;
        }
        self.lead.fmt(f)?;
        match self.run_keys {
            2.. => f.write_str("a second run key is accepted\n"),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for StatusJournal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = self.text.as_ref().map_or("", Text::as_str);
        match self.stage {
            JournalStage::Kept => {
                writeln!(f, "the journal is kept: a master started there after this one goes on")
            }
            JournalStage::GivenUp => writeln!(
                f,
                "NO JOURNAL for {}: if this master dies now, its run ends. It is begun again when that works ({why})",
                Time(self.since_ms)
            ),
            JournalStage::Later => writeln!(f, "the journal begins when this master acts"),
        }
    }
}

/// No line for a run that never had more than one master and keeps no journal.
impl fmt::Display for StatusLead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { term, acts, standbys, text, journal } = self;
        let places = standbys.iter().map(|standby| standby.hosts.listed(standby.port));
        let places = places.collect::<Vec<_>>().join(", ");
        match (acts, standbys.is_empty()) {
            (true, true) if *term == Term(0) => {}
            (true, true) => writeln!(f, "master of term {term}, nobody stands by")?,
            (true, false) => writeln!(f, "master of term {term}, standbys: {places}")?,
            (false, true) => writeln!(f, "this master stands by for that of term {term}")?,
            (false, false) => writeln!(f, "this master was that of term {term}, standbys: {places}")?,
        }
        if let Some(text) = text {
            writeln!(f, "{text}")?;
        }
        journal.as_ref().map_or(Ok(()), |journal| journal.fmt(f))
    }
}

impl Status {
    fn write_relay(&self, f: &mut fmt::Formatter<'_>, relay: &StatusRelay) -> fmt::Result {
        let StatusRelay { port, mbit_per_s, bytes, pairs } = relay;
        write!(f, "relay on port {port}, at most {mbit_per_s} Mbit/s: {bytes} bytes relayed")?;
        let named = |pair: &RelayedPair| format!("{} -> {}", self.called(pair.from), self.called(pair.to));
        match pairs.is_empty() {
            true => writeln!(f, ", nobody uses it"),
            false => writeln!(f, ", now for {}", pairs.iter().map(named).collect::<Vec<_>>().join(", ")),
        }
    }

    /// A trusted seeder, and whether it is there.
    fn seeder(&self, name: &Name) -> String {
        match self.peers.iter().find(|peer| peer.name == *name) {
            Some(peer) => format!("{name} (peer {}, {})", peer.peer, peer.stage),
            None => format!("{name} (not here)"),
        }
    }

    /// A peer in few words: its name, if it has one.
    fn called(&self, id: PeerId) -> String {
        let known = self.peers.iter().find(|peer| peer.peer == id).map(|peer| peer.name.as_str());
        known.filter(|name| !name.is_empty()).map_or_else(|| id.to_string(), |name| format!("{id} ({name})"))
    }
}

/// A number with a noun that has a plural in s.
struct Count(u32, &'static str);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}{}", self.0, self.1, if self.0 == 1 { "" } else { "s" })
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
    use crate::{CollectiveKind, OpId};

    fn peer(id: u128, stage: PeerStage) -> StatusPeer {
        StatusPeer {
            peer: PeerId(id << 96),
            host: Host::new("10.0.0.1"),
            name: Name::new("node7:4711"),
            p2p_port: 48_150,
            state_port: 48_149,
            group: GroupId(2),
            stage,
            call: CallKind::Collective(CollectiveKind::AllReduce),
            call_ms: 12_345,
            silent_ms: 250,
            moved_bytes: 99,
            operation: Some(CollectiveId {
                kind: CollectiveKind::AllReduce,
                op: OpId { epoch: GroupEpoch(4), tag: 7.into(), attempt: 1 },
            }),
            fetch: None,
            outbound_only: false,
            figures: Vec::new(),
        }
    }

    #[test]
    fn the_text_says_who_is_in_and_who_waits_for_whom() {
        let mut status = Status {
            request: RequestId(1),
            run: RunId(0xabc),
            uptime_ms: 7_260_000,
            run_keys: 0,
            wire: Some(WireMode::Encrypt),
            trusted_seeders: Vec::new(),
            sizes: WorldSizes { global: 1, groups: 1, min_world: 2, ..WorldSizes::default() },
            groups: vec![StatusGroup {
                group: GroupId(2),
                epoch: GroupEpoch(4),
                connected: true,
                ring: vec![PeerId(0x11 << 96), PeerId(0x22 << 96)],
                revision: Some(Revision(12)),
                slowest: Some(EdgeRate { from: PeerId(0x11 << 96), to: PeerId(0x22 << 96), kbit_s: 87_654 }),
                schedule: Algorithm::Ring,
            }],
            peers: vec![
                StatusPeer { call: CallKind::None, operation: None, ..peer(0x11, PeerStage::Accepted) },
                peer(0x22, PeerStage::Pending),
            ],
            waits: vec![StatusWait { since_ms: 61_500, text: Text::new("admission waits for peer 11") }],
            relay: None,
            lead: StatusLead { term: Term(0), acts: true, standbys: Vec::new(), text: None, journal: None },
        };
        let text = status.to_string();
        for part in [
            "master up 2 h 1 min: 1 peer in 1 group (at least 2 needed), 1 not let in yet",
            "group 2, epoch 4, ring connected: 00000011 > 00000022\n",
            "group 2, shared state at revision 12, slowest edge 00000011 (node7:4711) -> 00000022 (node7:4711) \
             with 87.7 Mbit/s, large operations go around the ring\n",
            "peer 00000022 (node7:4711, 10.0.0.1), ports 48150 and 48149, group 2, pending: in all_reduce for 12.3 s, \
             heard 250 ms ago, \
             all-reduce tag 7 (epoch 4, attempt 1), 99 bytes moved\n",
            "peer 00000011 (node7:4711, 10.0.0.1), ports 48150 and 48149, group 2, accepted: in no call, heard 250 ms \
             ago, 99 bytes moved\n",
            "waiting for 61.5 s: admission waits for peer 11\n",
        ] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
        let fetch =
            |rate, sources| FetchProgress { done_bytes: 312 << 20, total_bytes: 1 << 30, rate, sources };
        status.peers[1].operation = None;
        status.peers[1].fetch = Some(fetch(41 << 20, 3));
        let wanted = "heard 250 ms ago, fetches shared state: 312.0 of 1024.0 MiB from 3 sources, 41.0 MiB/s, 18 s \
                      left, 99 bytes moved\n";
        assert!(status.to_string().contains(wanted), "{status}");
        status.peers[1].fetch = Some(fetch(0, 1));
        let wanted = "312.0 of 1024.0 MiB from 1 source, 0.0 MiB/s, nothing moves, 99 bytes moved\n";
        assert!(status.to_string().contains(wanted), "{status}");
        status.peers[1].outbound_only = true;
        assert!(
            status.to_string().contains("ports 48150 and 48149 (outbound-only), group 2, pending"),
            "{status}"
        );
        let pair = RelayedPair { from: PeerId(0x11 << 96), to: PeerId(0x33 << 96) };
        status.relay = Some(StatusRelay { port: 48_147, mbit_per_s: 100, bytes: 4096, pairs: vec![pair] });
        let wanted = "relay on port 48147, at most 100 Mbit/s: 4096 bytes relayed, now for 00000011 (node7:4711) -> \
                      00000033\n";
        assert!(status.to_string().contains(wanted), "{status}");
        status.relay = None;
        status.waits.clear();
        for (wire, end) in [
            (None, "nothing is encrypted\n"),
            (
                Some(WireMode::Encrypt),
                "nothing waits\nrun key, wire mode encrypt: every connection is encrypted\n",
            ),
            (Some(WireMode::Integrity), "can read tensors and shared state, not change them\n"),
            (Some(WireMode::Off), "can read and change tensors and shared state\n"),
        ] {
            status.wire = wire;
            assert!(status.to_string().ends_with(end), "{status}");
        }
        status.trusted_seeders = vec![Name::new("node7:4711"), Name::new("vault")];
        let end = "only trusted seeders give shared state: node7:4711 (peer 00000011, accepted), vault (not here)\n";
        assert!(status.to_string().ends_with(end), "{status}");
    }
}
