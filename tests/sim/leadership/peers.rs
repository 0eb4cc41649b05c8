//! Peers: whom they obey, and where they look when that one is not heard.

use super::{
    nodes::Role,
    world::{End, Fault, Log, Message, World},
};
use pccl_protocol::{Allegiance, Claim, Copies, PeerId, Term};

#[derive(Debug)]
pub(super) struct Peer {
    index: usize,
    pub(super) lives: bool,
    allegiance: Allegiance,
    /// The connection to the master that it obeys.
    conn: Option<u64>,
    /// The one to a master that may act, or come to act, and how often it has been thought of since.
    visit: Option<(u64, u32)>,
    /// The log that it was told last.
    pub(super) told: Log,
    /// How many nodes there are, and which is tried next.
    nodes: usize,
    turn: usize,
}

impl Peer {
    pub(super) fn id(index: usize) -> PeerId {
        PeerId(index as u128 + 1)
    }

    pub(super) fn index_of(peer: PeerId) -> usize {
        peer.0 as usize - 1
    }

    /// The newest term that it knows.
    pub(super) fn term(&self) -> Term {
        self.allegiance.term()
    }

    /// Whether it knows this list.
    pub(super) fn knows(&self, list: &Copies) -> bool {
        self.allegiance.standbys() == list.standbys
    }

    /// Whether it has given this promise, and does not know that it was of use.
    pub(super) fn is_bound_by(&self, claim: Claim) -> bool {
        self.allegiance.is_bound() && self.allegiance.term() == claim.term
    }

    pub(super) fn new(index: usize, conn: u64, nodes: usize) -> Self {
        Self {
            index,
            lives: true,
            allegiance: Allegiance::default(),
            conn: Some(conn),
            visit: None,
            told: Log::new(),
            nodes,
            turn: 0,
        }
    }
}

impl World {
    /// A peer looks for a master, if it has none or is tired of the silence of the one that it has.
    pub(super) fn peer_looks_around(&mut self) {
        let at = self.rng.below(self.peers.len() as u64) as usize;
        let end = End::Peer(at);
        if !self.peers[at].lives {
            return;
        }
        if let Some(conn) = self.peers[at].conn {
            if self.is_tired_of(conn, end) {
                self.peers[at].conn = None;
                self.close(conn, end);
            }
            return;
        }
        if let Some((conn, patience)) = &mut self.peers[at].visit {
            *patience += 1;
            if *patience > 12 {
                let conn = *conn;
                self.peers[at].visit = None;
                self.close(conn, end);
            }
            return;
        }
        let peer = &mut self.peers[at];
        peer.turn += 1;
        let (node, term) = (peer.turn % peer.nodes, peer.allegiance.term());
        let received = peer.told.len();
        if matches!(self.nodes[node].role, Role::Dead) {
            // Nobody listens there.
            return;
        }
        let conn = self.connect(end, End::Node(node));
        self.send(conn, end, Message::Return { peer: Peer::id(at), term, received });
        self.peers[at].visit = Some((conn, 0));
    }

    pub(super) fn peer_receives(&mut self, at: usize, conn: u64, message: Message) {
        let end = End::Peer(at);
        let fault = self.fault;
        let peer = &mut self.peers[at];
        debug_assert_eq!(peer.index, at);
        let is_visit = peer.visit.is_some_and(|(visit, _)| visit == conn);
        if !is_visit && peer.conn != Some(conn) {
            return;
        }
        if let Some((_, patience)) = &mut peer.visit {
            *patience = 0;
        }
        match message {
            Message::Copies(copies) => {
                if let Some(known) = peer.allegiance.told(&copies) {
                    self.send(conn, end, Message::Known(known));
                }
            }
            Message::Returned { term, acting } if is_visit => {
                peer.visit = None;
                if peer.allegiance.obeys(term, acting) || fault == Fault::ForgottenTerm {
                    peer.conn = Some(conn);
                } else {
                    self.close(conn, end);
                }
            }
            Message::Claim(claim) => {
                let before = peer.allegiance.clone();
                let mut refused = peer.allegiance.promise(claim).err();
                if fault == Fault::AnyCopy && refused.is_some() && claim.term > peer.allegiance.term() {
                    peer.allegiance.obeys(claim.term, claim.copy);
                    refused = None;
                }
                if fault == Fault::ForgottenTerm {
                    peer.allegiance = before;
                }
                let leaves = is_visit && refused.is_some();
                self.send(conn, end, Message::Promise { term: claim.term, refused });
                if leaves {
                    // Another standby may be the right one.
                    self.peers[at].visit = None;
                    self.close(conn, end);
                }
            }
            Message::GivesBack(claim) => peer.allegiance.given_back(claim),
            Message::Away => {
                peer.visit = None;
                self.close(conn, end);
            }
            Message::Tell { log } if !is_visit => self.note_told(at, &log),
            other => panic!("peer {at} gets {other:?}"),
        }
    }

    pub(super) fn peer_loses(&mut self, at: usize, conn: u64) {
        let peer = &mut self.peers[at];
        peer.conn = peer.conn.filter(|own| *own != conn);
        peer.visit = peer.visit.filter(|(visit, _)| *visit != conn);
    }
}
