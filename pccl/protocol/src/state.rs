//! Shared state: what peers vote on and what the master answers.

use crate::part::decode_data_type;
use crate::{Hosts, Key, Nothing, PeerId, Revision, SyncId, Text, Verdict, limits};
use pccl_hash::{Digest128, TreeHasher};
use pccl_quant::DataType;
use std::time::Duration;
use tinysockets::wire::{Decode, Encode, ListItem, Reader, WireError};

wire_code! {
    /// Which part a peer takes in a sync. Numbers as in the C interface.
    #[non_exhaustive]
    pub enum SyncStrategy {
        /// Adopt what the most peers hold.
        EnforcePopular = 0 => "enforce-popular",
        /// Only take state, never give any.
        ReceiveOnly = 1 => "receive-only",
        /// Only give state, never take any.
        SendOnly = 2 => "send-only",
    }
}

/// One tensor of a peer's shared state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateEntry {
    /// Name, unique in the state.
    pub key: Key,
    /// Number of elements.
    pub count: u64,
    /// Element type.
    pub data_type: DataType,
    /// The content may differ between peers; it is moved only to peers whose revision is outdated.
    pub allow_inequality: bool,
    /// State hash of the content.
    pub digest: Digest128,
}

impl Encode for StateEntry {
    fn encode(&self, out: &mut Vec<u8>) {
        self.key.encode(out);
        self.count.encode(out);
        out.push(self.data_type.code());
        self.allow_inequality.encode(out);
        encode_digest(&self.digest, out);
    }
}

impl Decode for StateEntry {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self {
            key: Key::decode(reader)?,
            count: u64::decode(reader)?,
            data_type: decode_data_type(reader)?,
            allow_inequality: bool::decode(reader)?,
            digest: decode_digest(reader)?,
        })
    }
}

serialized_as_wire!(StateEntry);

impl ListItem for StateEntry {
    const LIST: &'static str = "shared-state entries";
    const MAX_ITEMS: usize = limits::MAX_STATE_ENTRIES;
}

wire_struct! {
    /// A shared state from which a run could go on.
    #[derive(Copy)]
    pub struct ResumeOffer {
        /// Its revision.
        pub revision: Revision,
        /// Its [`state_digest`] by the tree without a key, as a number, if the peer knows it: then the first sync has
        /// to bring exactly that state.
        pub digest: Option<u128>,
    }
}

/// One digest over keys, types and contents. The entries are in the order of their keys.
pub fn state_digest(entries: &[StateEntry]) -> Digest128 {
    let mut hasher = TreeHasher::new();
    for entry in entries {
        hasher.update(entry.key.as_str().as_bytes());
        hasher.update(&[0, entry.data_type.code()]);
        hasher.update(&entry.count.to_le_bytes());
        hasher.update(entry.digest.as_bytes());
    }
    hasher.finish()
}

fn encode_digest(digest: &Digest128, out: &mut Vec<u8>) {
    out.extend_from_slice(digest.as_bytes());
}

fn decode_digest(reader: &mut Reader<'_>) -> Result<Digest128, WireError> {
    Ok(Digest128(<[u8; 16]>::decode(reader)?))
}

/// A tensor that a peer has to fetch: the content with this digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchItem {
    /// Name of the tensor.
    pub key: Key,
    /// State hash that the fetched bytes must have.
    pub digest: Digest128,
}

impl Encode for FetchItem {
    fn encode(&self, out: &mut Vec<u8>) {
        self.key.encode(out);
        encode_digest(&self.digest, out);
    }
}

impl Decode for FetchItem {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self { key: Key::decode(reader)?, digest: decode_digest(reader)? })
    }
}

serialized_as_wire!(FetchItem);

impl ListItem for FetchItem {
    const LIST: &'static str = "tensors to fetch";
    const MAX_ITEMS: usize = limits::MAX_STATE_ENTRIES;
}

wire_struct! {
    /// A peer that holds the elected content.
    pub struct StateSource {
        /// The peer.
        pub peer: PeerId,
        /// Where the receiver reaches it.
        pub hosts: Hosts,
        /// Port of its shared-state listener.
        pub port: u16,
        /// It cannot be dialed: the receiver asks for its connections with [`C2m::CallMe`](crate::C2m::CallMe).
        pub back: bool,
        /// Nor can the receiver: it waits for those connections at the relay.
        pub relayed: bool,
    }
}

impl ListItem for StateSource {
    const LIST: &'static str = "sources";
    const MAX_ITEMS: usize = limits::MAX_SYNC_SOURCES;
}

wire_struct! {
    /// The task of a peer in a sync after the election.
    pub struct SyncPlan {
        /// Number of this sync; requests to sources carry it.
        pub sync: SyncId,
        /// The elected revision.
        pub revision: Revision,
        /// Tensors that this peer has to fetch; empty if its content is already the elected one.
        pub fetch: Vec<FetchItem>,
        /// Some peers that hold all of them, best first; this peer is never among them.
        pub sources: Vec<StateSource>,
    }
}

wire_struct! {
    /// A loan: a peer gives the state that a sync has committed also outside of syncs, to newcomers.
    #[derive(Copy)]
    pub struct Loan {
        /// The sync.
        pub sync: SyncId,
        /// Whether the loan begins or ends. It also ends with the next vote of the peer for a sync.
        pub stands: bool,
    }
}

wire_union! {
    /// How far a newcomer is with the state that it fetches ahead, before it is let in.
    pub enum AheadStep {
        /// It wants to: as long as the members of its group lend their state, it is let in when it holds that.
        Wanted(Nothing) = 0,
        /// It holds what this sync has committed, verified.
        Holds(SyncId) = 1,
        /// It did not get all of what the master has named. It waits for other sources, or a newer state.
        Failed(AheadFailure) = 2,
        /// It will not get it, and why; it is to be let in as it is.
        GivenUp(Text) = 3,
    }
}

wire_struct! {
    /// Why a newcomer does not hold what a sync has committed.
    pub struct AheadFailure {
        /// The sync.
        pub sync: SyncId,
        /// Sources that were asked in vain, or failed later.
        pub failures: Vec<SourceFailure>,
    }
}

wire_code! {
    /// How a source failed a peer that wanted to fetch from it.
    pub enum SourceFault {
        /// It was not reached, or the connection broke or stood still.
        Unreached = 1 => "not reached",
        /// It answered, but did not give what was elected.
        Refused = 2 => "refused",
    }
}

wire_struct! {
    /// A source that was asked in vain.
    pub struct SourceFailure {
        /// The source.
        pub peer: PeerId,
        /// The fault of the source.
        pub fault: SourceFault,
        /// Host, port and error in words.
        pub text: Text,
    }
}

impl ListItem for SourceFailure {
    const LIST: &'static str = "failed sources";
    const MAX_ITEMS: usize = limits::MAX_SYNC_SOURCES;
}

wire_struct! {
    /// How far a peer is that fetches shared state. Its [`Display`](std::fmt::Display) is for people.
    #[derive(Copy)]
    pub struct FetchProgress {
        /// Bytes that have arrived, are verified and in their places.
        pub done_bytes: u64,
        /// Bytes that differ, as far as that is known.
        pub total_bytes: u64,
        /// Bytes per second, over the last seconds.
        pub rate: u64,
        /// Sources that give at the moment.
        pub sources: u16,
    }
}

impl FetchProgress {
    /// How long the rest takes at this rate; `None` while nothing moves.
    pub fn time_left(&self) -> Option<Duration> {
        let left = self.total_bytes.saturating_sub(self.done_bytes);
        (self.rate > 0).then(|| Duration::from_millis(left.saturating_mul(1000) / self.rate))
    }
}

impl std::fmt::Display for FetchProgress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let (done, total, rate) = (mib(self.done_bytes), mib(self.total_bytes), mib(self.rate));
        let s = if self.sources == 1 { "" } else { "s" };
        write!(f, "{done:.1} of {total:.1} MiB from {} source{s}, {rate:.1} MiB/s", self.sources)?;
        match self.time_left() {
            Some(left) => write!(f, ", {:.0} s left", left.as_secs_f64().ceil()),
            None => write!(f, ", nothing moves"),
        }
    }
}

wire_union! {
    /// The report of a peer when its part of a sync has ended.
    pub enum SyncReport {
        /// Everything that differed is here and verified. The replaced content is kept until the outcome.
        Ready(Nothing) = 0,
        /// No source gave what was needed.
        Failed(Text) = 1,
    }
}

wire_union! {
    /// How a sync ended, the same for all of the group.
    pub enum SyncOutcome {
        /// Everybody is ready: fetched tensors take their places, the revision is committed.
        Committed(Revision) = 0,
        /// Everybody stays where they were; the sync may be tried again.
        Failed(Verdict) = 1,
    }
}

wire_struct! {
    /// The digests of a level of a tensor's tree that lie below one node.
    #[derive(Copy, PartialOrd, Ord)]
    pub struct DigestList {
        /// The level of the digests, at least 1: that is one digest per MiB.
        pub level: u8,
        /// Number of the node above them, on the next level.
        pub parent: u64,
    }
}

wire_union! {
    /// A part of a tensor.
    #[derive(Copy, PartialOrd, Ord)]
    pub enum StatePart {
        /// Digests.
        Digests(DigestList) = 0,
        /// The bytes of the MiB with this number.
        Mebibyte(u64) = 1,
    }
}

wire_union! {
    /// Answer of a source to a state request.
    pub enum StateAnswer {
        /// The bytes of the part follow: this many.
        Bytes(u64) = 0,
        /// This peer does not serve that sync (not begun yet, or over).
        NotServing(Nothing) = 1,
        /// This peer has no such tensor.
        UnknownKey(Nothing) = 2,
        /// The tensor has no such part.
        UnknownPart(Nothing) = 3,
    }
}
