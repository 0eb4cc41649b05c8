//! Nodes, peers and connections between them, and what is true of all together.

use super::{
    copy::Copy,
    nodes::{Node, Role},
    peers::Peer,
};
use crate::rng::Rng;
use pccl_protocol::{Claim, Copies, CopiesKnown, CopyId, PeerId, Term};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A planted defect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    None,
    /// One promise is enough to act.
    NoMajority,
    /// A peer forgets what it has promised.
    ForgottenTerm,
    /// Messages that follow from a turn leave before those who stand by have the turn.
    EarlyRelease,
    /// Peers promise themselves to whoever asks, be its copy complete or not.
    AnyCopy,
    /// A copy that is gone is not waited for, whoever knows of it.
    ShortList,
    /// Only the last members count, not those of turns that others may not know.
    LastMembers,
    /// Messages that follow from a take-over leave before enough members know the first list of the new term.
    Unconfirmed,
    /// A master that is started again forgets that others may have taken over.
    ForgottenCopies,
    /// A master that steps down lets everything leave.
    ReleasedAtEnd,
    /// One acts by an operator's word though another one acts.
    ForcedBesideActing,
    /// One asks for promises though another one is about to act by an operator's word.
    ForcedUnheard,
    /// One that acts by an operator's word takes back peers that know more than it does.
    ForcedTakesAll,
    /// The same, if it knows more of a newer term only.
    ForcedTakesOtherTerm,
}

impl Fault {
    /// Those that show when nobody acts by an operator's word.
    pub(super) const ALL: [Self; 9] = [
        Self::NoMajority,
        Self::ForgottenTerm,
        Self::EarlyRelease,
        Self::AnyCopy,
        Self::ShortList,
        Self::LastMembers,
        Self::Unconfirmed,
        Self::ForgottenCopies,
        Self::ReleasedAtEnd,
    ];
    /// Those of an operator's word.
    pub(super) const FORCED: [Self; 4] =
        [Self::ForcedBesideActing, Self::ForcedUnheard, Self::ForcedTakesAll, Self::ForcedTakesOtherTerm];
}

/// The decisions of a state machine: one number for each turn.
pub(super) type Log = Vec<u64>;

/// News of a turn, for those who stand by.
#[derive(Debug, Clone)]
pub(super) enum News {
    Event(u64, BTreeSet<PeerId>),
    Back(PeerId),
    Copies(Copies),
    Turn { released: u64, is_alone: bool },
}

/// A message that travels.
#[derive(Debug, Clone)]
pub(super) enum Message {
    StandBy {
        copy: CopyId,
        acts_soon: bool,
    },
    /// The answer of one that stands by: whether it objects to another one that acts by an operator's word, and how
    /// much it knows.
    StandsBy {
        objects: bool,
        age: (Term, u64),
    },
    Opening(Copy),
    Append(Vec<News>),
    Appended(u64),
    Return {
        peer: PeerId,
        term: Term,
        received: usize,
    },
    Returned {
        term: Term,
        acting: CopyId,
    },
    Copies(Copies),
    Known(CopiesKnown),
    Claim(Claim),
    Promise {
        term: Term,
        refused: Option<String>,
    },
    GivesBack(Claim),
    Away,
    Tell {
        log: Log,
    },
}

/// The node or the peer at an end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum End {
    Node(usize),
    Peer(usize),
}

#[derive(Debug)]
struct Conn {
    ends: [End; 2],
    /// Messages on the way to each of them.
    queues: [VecDeque<Message>; 2],
    is_open: bool,
    /// Whether each end has noticed that it is not.
    noticed: [bool; 2],
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct World {
    pub(super) rng: Rng,
    pub(super) fault: Fault,
    pub(super) nodes: Vec<Node>,
    pub(super) peers: Vec<Peer>,
    conns: BTreeMap<u64, Conn>,
    next: u64,
    /// The longest log that a peer was told.
    pub(super) told: Log,
    broken: Option<String>,
    /// One has acted by an operator's word.
    pub(super) is_forced: bool,
    /// Nobody dies, sleeps or is cut off but by the test.
    is_calm: bool,
}

impl World {
    pub(super) fn new(seed: u64, fault: Fault) -> Self {
        let mut rng = Rng::new(seed ^ 0x0ff1_ce00);
        let (nodes, peers) = (rng.range(2, 4) as usize, rng.range(3, 6) as usize);
        let members: BTreeSet<PeerId> = (0..peers).map(Peer::id).collect();
        let mut world = Self {
            rng,
            fault,
            nodes: Vec::new(),
            peers: Vec::new(),
            conns: BTreeMap::new(),
            next: 1,
            told: Vec::new(),
            broken: None,
            is_forced: false,
            is_calm: false,
        };
        world.nodes.push(Node::acting(CopyId(u64::MAX), members));
        world.nodes.extend((1..nodes).map(|_| Node::standing()));
        for index in 0..peers {
            let conn = world.connect(End::Peer(index), End::Node(0));
            world.peers.push(Peer::new(index, conn, nodes));
            world.nodes[0].has_peer(conn, Peer::id(index));
        }
        world
    }

    /// Where nothing goes wrong by itself.
    pub(super) fn calm(seed: u64) -> Self {
        Self { is_calm: true, ..Self::new(seed, Fault::None) }
    }

    pub(super) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(super) fn connect(&mut self, from: End, to: End) -> u64 {
        let name = self.number();
        let conn = Conn { ends: [from, to], queues: Default::default(), is_open: true, noticed: [false; 2] };
        self.conns.insert(name, conn);
        name
    }

    /// The node at the other end.
    pub(super) fn other_end(&self, conn: u64, end: End) -> Option<End> {
        let ends = self.conns.get(&conn)?.ends;
        Some(ends[usize::from(ends[0] == end)])
    }

    /// Sends over a connection; what is sent over one that is broken is lost.
    pub(super) fn send(&mut self, conn: u64, from: End, message: Message) {
        if let Some(conn) = self.conns.get_mut(&conn).filter(|conn| conn.is_open) {
            let to = usize::from(conn.ends[0] == from);
            conn.queues[to].push_back(message);
        }
    }

    /// One end closes: the other one gets what is on the way, and then notices.
    pub(super) fn close(&mut self, conn: u64, by: End) {
        if let Some(conn) = self.conns.get_mut(&conn) {
            conn.is_open = false;
            let at = usize::from(conn.ends[1] == by);
            conn.noticed[at] = true;
            conn.queues[at].clear();
        }
    }

    pub(super) fn is_awake(&self, end: End) -> bool {
        match end {
            End::Node(node) => !self.nodes[node].sleeps && !matches!(self.nodes[node].role, Role::Dead),
            End::Peer(peer) => self.peers[peer].lives,
        }
    }

    /// One thing happens somewhere.
    pub(super) fn step(&mut self) {
        let faults = u64::from(!self.is_calm);
        match self.rng.weighted(&[60, 12, 10, 10, faults]) {
            Some(0) => self.deliver(),
            Some(1) => self.turn(),
            Some(2) => self.peer_looks_around(),
            Some(3) => self.node_looks_around(),
            _ => self.trouble(),
        }
    }

    /// Something arrives, or an end of a connection notices that it is over.
    fn deliver(&mut self) {
        let ready = |(name, conn): (&u64, &Conn)| {
            let at = |at: usize| {
                let has = !conn.queues[at].is_empty() || !conn.is_open && !conn.noticed[at];
                (has && self.is_awake(conn.ends[at])).then_some((*name, at))
            };
            [at(0), at(1)]
        };
        let ready: Vec<(u64, usize)> = self.conns.iter().flat_map(ready).flatten().collect();
        if ready.is_empty() {
            return;
        }
        let (name, at) = ready[self.rng.below(ready.len() as u64) as usize];
        let Some(conn) = self.conns.get_mut(&name) else { return };
        let (end, message) = (conn.ends[at], conn.queues[at].pop_front());
        if message.is_none() {
            conn.noticed[at] = true;
        }
        if conn.noticed == [true; 2] {
            self.conns.remove(&name);
        }
        match (end, message) {
            (End::Node(node), Some(message)) => self.node_receives(node, name, message),
            (End::Node(node), None) => self.node_loses(node, name),
            (End::Peer(peer), Some(message)) => self.peer_receives(peer, name, message),
            (End::Peer(peer), None) => self.peer_loses(peer, name),
        }
    }

    /// Something goes wrong.
    fn trouble(&mut self) {
        let node = self.rng.below(self.nodes.len() as u64) as usize;
        match self.rng.below(14) {
            13 => self.step_down(node),
            0 => self.die(End::Node(node)),
            7 => self.nodes[node].restart(self.fault),
            1 if self.rng.percent(30) => {
                let peer = self.rng.below(self.peers.len() as u64) as usize;
                self.die(End::Peer(peer));
            }
            2 | 3 => self.nodes[node].sleeps = true,
            4..=6 => self.nodes[node].sleeps = false,
            _ => self.cut(),
        }
    }

    /// A connection breaks, and what is on the way is lost.
    fn cut(&mut self) {
        if self.conns.is_empty() {
            return;
        }
        let at = self.rng.below(self.conns.len() as u64) as usize;
        if let Some(conn) = self.conns.values_mut().nth(at) {
            conn.is_open = false;
            conn.queues = Default::default();
        }
    }

    pub(super) fn die(&mut self, end: End) {
        match end {
            End::Node(node) => self.nodes[node].die(),
            End::Peer(peer) => self.peers[peer].lives = false,
        }
        let names: Vec<u64> =
            self.conns.iter().filter(|(_, conn)| conn.ends.contains(&end)).map(|(name, _)| *name).collect();
        names.into_iter().for_each(|name| self.close(name, end));
    }

    /// Messages on the way from or to those that are dead are lost.
    pub(super) fn forget_the_dead(&mut self) {
        let dead: Vec<u64> =
            self.conns.iter().filter(|(_, conn)| !conn.is_open).map(|(name, _)| *name).collect();
        for name in dead {
            if let Some(conn) = self.conns.get_mut(&name) {
                conn.queues = Default::default();
            }
        }
    }

    /// The first master dies. `false`: fewer standbys know all that it knows yet, or not all peers know that.
    pub(super) fn kill_first(&mut self, standbys: usize) -> bool {
        let list = self.nodes[0].list();
        let is_ready = list.standbys.len() >= standbys && self.peers.iter().all(|peer| peer.knows(&list));
        if is_ready {
            self.die(End::Node(0));
        }
        is_ready
    }

    /// A standby dies to which a peer has promised itself. `false`: there is none.
    pub(super) fn kill_one_with_promises(&mut self) -> bool {
        let asks = (0..self.nodes.len()).find(|at| {
            let claim = self.nodes[*at].claim();
            claim.is_some_and(|claim| self.peers.iter().any(|peer| peer.is_bound_by(claim)))
        });
        asks.is_some_and(|at| {
            self.die(End::Node(at));
            true
        })
    }

    /// A peer was told this.
    pub(super) fn note_told(&mut self, peer: usize, log: &Log) {
        let before = std::mem::replace(&mut self.peers[peer].told, log.clone());
        if !log.starts_with(&before) {
            self.broken = Some(format!("peer {peer} was told {before:?}, and then {log:?}"));
        }
        let (short, long) = if log.len() < self.told.len() { (log, &self.told) } else { (&self.told, log) };
        if !long.starts_with(short) {
            self.broken = Some(format!("a peer was told {log:?}, and another one {:?}", self.told));
        }
        if log.len() > self.told.len() {
            self.told.clone_from(log);
        }
    }

    /// Whether all is well so far.
    pub(super) fn verdict(&self) -> Result<(), String> {
        self.broken.clone().map_or(Ok(()), Err)
    }

    pub(super) fn is_calm(&self) -> bool {
        self.is_calm
    }

    /// Whether somebody is tired of the silence at the other end of a connection, which may be one for a moment only.
    pub(super) fn is_tired_of(&mut self, conn: u64, end: End) -> bool {
        let Some(conn) = self.conns.get(&conn) else { return false };
        let other = conn.ends[usize::from(conn.ends[0] == end)];
        let percent = match (self.is_awake(other), self.is_calm) {
            (false, _) => 40,
            (true, false) => 2,
            (true, true) => 0,
        };
        self.rng.percent(percent)
    }

    pub(super) fn told_len(&self) -> usize {
        self.told.len()
    }

    pub(super) fn newest_term(&self) -> u64 {
        self.nodes.iter().filter_map(|node| node.term()).map(|term| term.0).max().unwrap_or(0)
    }
}
