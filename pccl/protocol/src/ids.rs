//! Identifiers. Each is a newtype, so that an epoch is never taken for a revision.

use crate::limits;
use std::fmt;
use tinysockets::wire::{Decode, Encode, ListItem, Reader, WireError, is_hidden, put_string};

macro_rules! id {
    ($(#[$meta:meta])* $name:ident($ty:ty), $fmt:literal) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $ty);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $fmt, self.0)
            }
        }

        impl Encode for $name {
            fn encode(&self, out: &mut Vec<u8>) {
                self.0.encode(out);
            }
        }

        impl Decode for $name {
            fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError> {
                Ok(Self(Decode::decode(reader)?))
            }
        }

        serialized_as_wire!($name);
    };
}

id!(
    /// Identity of a run: chosen by the master when it starts.
    RunId(u128), "{:032x}"
);
id!(
    /// Number of a peer group, chosen by the caller.
    GroupId(u32), "{}"
);
id!(
    /// Counts changes of the membership of the run.
    WorldEpoch(u64), "{}"
);
id!(
    /// Counts changes of the ring of one group: each epoch has exactly one ring.
    GroupEpoch(u64), "{}"
);
id!(
    /// Generation of the connections of one ring edge; a rebuilt edge has a new one.
    LinkGeneration(u64), "{}"
);
id!(
    /// Number of a shared-state sync at the master.
    SyncId(u64), "{}"
);
id!(
    /// Revision of the shared state of a group.
    Revision(u64), "{}"
);
id!(
    /// Counts the masters of a run that have acted one after the other: each acts in a term of its own.
    Term(u64), "{}"
);
id!(
    /// Identity of one copy of what a master knows: that of the leader, or of one that stands by. Random.
    CopyId(u64), "{:016x}"
);
id!(
    /// Number that ties an answer to the request of one peer.
    RequestId(u64), "{}"
);

/// Identity of a peer: random, given by the master at registration, never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PeerId(pub u128);

/// Shows the first eight hexadecimal digits; `{:#}` shows all.
impl fmt::Display for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() { write!(f, "{:032x}", self.0) } else { write!(f, "{:08x}", self.0 >> 96) }
    }
}

/// How sentences name a peer: identity, name and host.
#[derive(Debug, Clone, Copy)]
pub struct Named<'a>(pub PeerId, pub &'a Name, pub &'a str);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(peer, name, host) = self;
        if *peer == PeerId::default() && !name.as_str().is_empty() {
            // Somebody who is known by name only.
            write!(f, "{name} (not connected)")
        } else if name.as_str().is_empty() {
            write!(f, "{peer} ({host})")
        } else {
            write!(f, "{peer} ({name}, {host})")
        }
    }
}

impl Encode for PeerId {
    fn encode(&self, out: &mut Vec<u8>) {
        self.0.encode(out);
    }
}

impl Decode for PeerId {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self(u128::decode(reader)?))
    }
}

serialized_as_wire!(PeerId);

impl ListItem for PeerId {
    const LIST: &'static str = "list of peers";
    const MAX_ITEMS: usize = limits::MAX_PEERS;
}

/// The two members of an operation that only they take part in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pair {
    /// The one that sends.
    pub from: PeerId,
    /// The one that receives.
    pub to: PeerId,
}

impl Pair {
    /// Whether this is one of the two.
    pub fn has(self, peer: PeerId) -> bool {
        peer == self.from || peer == self.to
    }
}

impl Encode for Pair {
    fn encode(&self, out: &mut Vec<u8>) {
        self.from.encode(out);
        self.to.encode(out);
    }
}

impl Decode for Pair {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self { from: Decode::decode(reader)?, to: Decode::decode(reader)? })
    }
}

serialized_as_wire!(Pair);

/// The tag tells the operations of a group apart that are in flight at the same time: the number that the caller gives,
/// of an operation between two members who they are, and which of the segments of one call that are in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Tag {
    /// The caller's number.
    pub number: u64,
    /// The two who take part; `None`: all members do.
    pub pair: Option<Pair>,
    /// Which of the operations of one call, below [`limits::TRACKS`]. 0 for a call that is one operation.
    pub track: u8,
}

impl Tag {
    /// Whether an operation with this tag has a part for a member.
    pub fn involves(self, peer: PeerId) -> bool {
        self.pair.is_none_or(|pair| pair.has(peer))
    }
}

impl From<u64> for Tag {
    fn from(number: u64) -> Self {
        Self { number, pair: None, track: 0 }
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tag {}", self.number)?;
        if self.track > 0 {
            write!(f, " on track {}", self.track)?;
        }
        self.pair.map_or(Ok(()), |Pair { from, to }| write!(f, " from {from} to {to}"))
    }
}

impl Encode for Tag {
    fn encode(&self, out: &mut Vec<u8>) {
        self.number.encode(out);
        self.pair.encode(out);
        self.track.encode(out);
    }
}

impl Decode for Tag {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let tag = Self {
            number: Decode::decode(reader)?,
            pair: Decode::decode(reader)?,
            track: Decode::decode(reader)?,
        };
        // An operation between two members is never cut.
        let tracks = if tag.pair.is_some() { 1 } else { limits::TRACKS };
        if tag.track >= tracks {
            return Err(WireError::BadValue { what: "track of a tag", value: tag.track.into() });
        }
        Ok(tag)
    }
}

serialized_as_wire!(Tag);

/// Identity of one attempt of one collective.
///
/// `attempt` counts the outcomes that `tag` has had in `epoch`, so every peer knows it before it votes, and nothing
/// that belongs to a dead attempt can be mistaken for its retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct OpId {
    /// Epoch of the group that runs the collective.
    pub epoch: GroupEpoch,
    /// The caller's tag.
    pub tag: Tag,
    /// Outcomes that this tag had before in this epoch.
    pub attempt: u32,
}

impl fmt::Display for OpId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (epoch {}, attempt {})", self.tag, self.epoch, self.attempt)
    }
}

impl Encode for OpId {
    fn encode(&self, out: &mut Vec<u8>) {
        self.epoch.encode(out);
        self.tag.encode(out);
        self.attempt.encode(out);
    }
}

impl Decode for OpId {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self {
            epoch: Decode::decode(reader)?,
            tag: Decode::decode(reader)?,
            attempt: Decode::decode(reader)?,
        })
    }
}

serialized_as_wire!(OpId);

macro_rules! text {
    ($(#[$meta:meta])* $name:ident, $max:expr, $what:literal, $replacement:literal for $is_bad:expr) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(String);

        impl $name {
            /// The text, with a substitute for each character that its kind does not have, cut at the limit of its
            /// kind (at a character boundary).
            pub fn new(text: impl Into<String>) -> Self {
                let mut text = text.into();
                if text.chars().any($is_bad) {
                    text = text.chars().map(|c| if $is_bad(c) { $replacement } else { c }).collect();
                }
                let mut end = text.len().min($max);
                while !text.is_char_boundary(end) {
                    end -= 1;
                }
                text.truncate(end);
                Self(text)
            }

            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl Encode for $name {
            fn encode(&self, out: &mut Vec<u8>) {
                put_string(out, &self.0);
            }
        }

        impl Decode for $name {
            fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError> {
                let text = reader.string($max, $what)?;
                match text.chars().find(|character| $is_bad(*character)) {
                    None => Ok(Self(text)),
                    Some(bad) => Err(WireError::BadValue { what: $what, value: u64::from(u32::from(bad)) }),
                }
            }
        }

        serialized_as_wire!($name);
    };
}

text!(
    /// An explanatory sentence of at most [`limits::MAX_TEXT_BYTES`] bytes, without
    /// [hidden characters](is_hidden).
    Text, limits::MAX_TEXT_BYTES, "text", ' ' for is_hidden
);
text!(
    /// A host name or address of at most [`limits::MAX_HOST_BYTES`] bytes: letters, digits and `-_.:%`.
    Host, limits::MAX_HOST_BYTES, "host", '_' for is_foreign_to_hosts
);
text!(
    /// The name that a peer gives itself: at most [`limits::MAX_NAME_BYTES`] bytes of letters, digits and `-_.:@/+=~`,
    /// so that it can stand in a line of a log or a table. A packet with anything else in a name is malformed. Empty
    /// for a peer that is not known any more.
    Name, limits::MAX_NAME_BYTES, "name", '_' for is_foreign_to_names
);
text!(
    /// The name of a [`Figure`](crate::Figure): at most [`limits::MAX_FIGURE_NAME_BYTES`] bytes of those that a
    /// [`Name`] may have.
    FigureName, limits::MAX_FIGURE_NAME_BYTES, "figure name", '_' for is_foreign_to_names
);
text!(
    /// The key of a shared-state tensor, at most [`limits::MAX_KEY_BYTES`] bytes, without
    /// [hidden characters](is_hidden). Callers must check a user's key with [`Key::is_valid`]
    /// *before* they build one: two long keys with the same front would become equal.
    Key, limits::MAX_KEY_BYTES, "shared-state key", ' ' for is_hidden
);

fn is_foreign_to_hosts(character: char) -> bool {
    !(character.is_alphanumeric() || "-_.:%".contains(character))
}

fn is_foreign_to_names(character: char) -> bool {
    !(character.is_alphanumeric() || "-_.:@/+=~".contains(character))
}

impl Key {
    /// Whether this can be a key as it stands.
    #[must_use]
    pub fn is_valid(key: &str) -> bool {
        (1..=limits::MAX_KEY_BYTES).contains(&key.len()) && !key.contains(is_hidden)
    }
}

impl ListItem for Name {
    const LIST: &'static str = "names";
    const MAX_ITEMS: usize = limits::MAX_TRUSTED_SEEDERS;
}

/// Names one forming of a group: chosen by the callers, used once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct GroupUuid(pub u128);

/// A counter as a number, anything larger as UUIDs are written.
impl fmt::Display for GroupUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Ok(number) = u64::try_from(self.0) {
            return write!(f, "{number}");
        }
        let digits = format!("{:032x}", self.0);
        let (a, b, c, d) = (&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20]);
        write!(f, "{a}-{b}-{c}-{d}-{}", &digits[20..])
    }
}

impl Encode for GroupUuid {
    fn encode(&self, out: &mut Vec<u8>) {
        self.0.encode(out);
    }
}

impl Decode for GroupUuid {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self(u128::decode(reader)?))
    }
}

serialized_as_wire!(GroupUuid);
