//! The rules of each kind of packet to the master. They stand beside the packet where it is declared
//! ([`C2m`](crate::C2m)); the master's packet guard, its rate limits and the documents follow from them.

/// The phases in which a sender may be, as a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Senders(u8);

impl Senders {
    /// No sender.
    pub const NOBODY: Self = Self(0);
    /// A client that has not registered.
    pub const STRANGER: Self = Self(1);
    /// A peer that waits for admission.
    pub const PENDING: Self = Self(2);
    /// A peer that is being admitted.
    pub const CONNECTING: Self = Self(4);
    /// A full member.
    pub const ACCEPTED: Self = Self(8);
    /// Every peer that belongs to a ring, or to one that is being built.
    pub const IN_RING: Self = Self::CONNECTING.or(Self::ACCEPTED);
    /// Every peer.
    pub const REGISTERED: Self = Self::PENDING.or(Self::IN_RING);
    /// Every client.
    pub const ANYBODY: Self = Self::STRANGER.or(Self::REGISTERED);

    /// Both sets together.
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all phases of `other` are in this set.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// In words, as documents say it.
    pub fn text(self) -> String {
        let names = [
            (Self::ANYBODY, "every client"),
            (Self::REGISTERED, "every peer"),
            (Self::STRANGER, "a client that has not registered"),
            (Self::PENDING, "pending"),
            (Self::CONNECTING, "connecting"),
            (Self::ACCEPTED, "accepted"),
        ];
        let mut left = self;
        let mut words = Vec::new();
        for (senders, name) in names {
            if left.has(senders) {
                left = Self(left.0 & !senders.0);
                words.push(name);
            }
        }
        if words.is_empty() { "nobody".to_owned() } else { words.join(", ") }
    }
}

/// The subjects by which the master counts packets, each for itself. It reads a sender that is faster than the rate of
/// a subject later, and drops none for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub enum Counter {
    /// Signs of life.
    Beats,
    /// Votes that callers give up.
    VotesGivenUp,
    /// Results of probes.
    Probes,
    /// Reports about edges, and about ports that a peer does not reach.
    Reports,
    /// Dial-back requests.
    Calls,
    /// Steps of a loan, and of a fetch ahead.
    Steps,
    /// Keys of shared state; a packet counts as many as it names.
    Keys,
    /// Questions for measured rates, whose answers are large.
    Rates,
    /// Questions for the status.
    Questions,
}

impl Counter {
    /// In words, as documents say it.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Beats => "beats",
            Self::VotesGivenUp => "votes given up",
            Self::Probes => "probes",
            Self::Reports => "reports",
            Self::Calls => "dial-back requests",
            Self::Steps => "steps of loans and prefetches",
            Self::Keys => "keys",
            Self::Rates => "questions for rates",
            Self::Questions => "questions",
        }
    }
}

/// The rules of one kind of packet to the master.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacketRules {
    /// Phases of its sender, if the sender's group lets newcomers in. Further conditions, on the facts of the run, are
    /// the master's.
    pub from: Senders,
    /// Phases of its sender, if peers form its groups of member lists.
    pub from_listed: Senders,
    /// The subject by which the master counts it.
    pub counter: Option<Counter>,
    /// Whether it counts among the packets of a session ([`Return`](crate::Return)).
    pub is_numbered: bool,
    /// Whether the master notes each fact that this packet changes. After any other packet it runs all of its rules.
    pub notes_changes: bool,
}

impl PacketRules {
    /// A packet that these may send, whether their groups let newcomers in or not.
    const fn from(senders: Senders) -> Self {
        Self { from: senders, from_listed: senders, counter: None, is_numbered: true, notes_changes: false }
    }

    /// The same, but with other senders among peers whose groups are formed of lists.
    pub const fn listed(self, senders: Senders) -> Self {
        Self { from_listed: senders, ..self }
    }

    /// The same, counted by this subject.
    pub const fn counted(self, counter: Counter) -> Self {
        Self { counter: Some(counter), ..self }
    }

    /// The same, with each change noted where it is recorded.
    pub const fn noting_changes(self) -> Self {
        Self { notes_changes: true, ..self }
    }
}

/// The rules to begin with: by the phases of the sender.
pub(crate) mod from {
    use super::{PacketRules, Senders};

    pub(crate) const NOBODY: PacketRules = PacketRules::from(Senders::NOBODY);
    pub(crate) const STRANGER: PacketRules = PacketRules::from(Senders::STRANGER);
    pub(crate) const ACCEPTED: PacketRules = PacketRules::from(Senders::ACCEPTED);
    pub(crate) const IN_RING: PacketRules = PacketRules::from(Senders::IN_RING);
    pub(crate) const REGISTERED: PacketRules = PacketRules::from(Senders::REGISTERED);
    pub(crate) const ANYBODY: PacketRules = PacketRules::from(Senders::ANYBODY);
    /// A packet that makes a connection, or is about its packets or its leader. The state machine never sees it.
    pub(crate) const CONNECTION: PacketRules = PacketRules { is_numbered: false, ..NOBODY };
}

/// The rules of one kind of packet that only the connection decides about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Numbering {
    /// Whether it counts among the packets of a session ([`Return`](crate::Return)).
    pub is_numbered: bool,
}

impl Numbering {
    /// A packet of a session, which goes on over another connection.
    pub const NUMBERED: Self = Self { is_numbered: true };
    /// A packet that makes a connection, or is about its packets or its leader; or one of no session.
    pub const UNNUMBERED: Self = Self { is_numbered: false };
}
