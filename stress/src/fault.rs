//! Faults that can be done to a run.

/// Something that is done to the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    Kill(usize),
    Stop {
        peer: usize,
        for_us: u64,
    },
    Leave(usize),
    Spawn,
    /// Something happens to connections of a peer.
    Link(LinkFault),
    /// The master is killed, and another one started on the same port after this time.
    Master {
        down_us: u64,
    },
    /// The master is stopped for a while, which is to harm nobody.
    MasterStop {
        for_us: u64,
    },
}

/// Something that happens to connections between peers; the peers themselves are left alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LinkFault {
    pub(crate) peer: usize,
    /// All connections of the peer, instead of one.
    pub(crate) all: bool,
    /// Chooses the connection, and the direction where there is one.
    pub(crate) pick: u64,
    pub(crate) trouble: Trouble,
    /// How long it lasts, where it lasts.
    pub(crate) for_us: u64,
}

/// Trouble that a connection gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// Both directions.
    Delay {
        us: u64,
    },
    /// Both directions.
    Throttle {
        bytes_per_s: u64,
    },
    /// Bytes that are sent one way are lost.
    Cut,
    Reset,
    /// One bit is inverted one way, after `in_bytes` more bytes.
    Flip {
        in_bytes: u64,
    },
}

impl Trouble {
    /// Whether it breaks connections.
    pub(crate) fn breaks(self) -> bool {
        !matches!(self, Self::Delay { .. } | Self::Throttle { .. })
    }
}

impl Fault {
    /// One word for what it is; reports count by it.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Kill(_) => "kill",
            Self::Stop { .. } => "stop",
            Self::Leave(_) => "leave",
            Self::Spawn => "spawn",
            Self::Master { .. } => "master",
            Self::MasterStop { .. } => "master_stop",
            Self::Link(link) => match link.trouble {
                Trouble::Delay { .. } => "delay",
                Trouble::Throttle { .. } => "throttle",
                Trouble::Cut => "cut",
                Trouble::Reset => "reset",
                Trouble::Flip { .. } => "flip",
            },
        }
    }

    /// Whom it is done to, if that is a peer that is there.
    pub(crate) fn peer(&self) -> Option<usize> {
        match *self {
            Self::Kill(peer) | Self::Stop { peer, .. } | Self::Leave(peer) => Some(peer),
            // The peers go on.
            Self::Spawn | Self::Link(_) | Self::Master { .. } | Self::MasterStop { .. } => None,
        }
    }
}
