//! The journal of the loop: each event is written, and on its way to the standbys, before anything leaves that follows
//! from it; a master that starts again recovers from it.

use crate::event_loop::EventLoop;
use crate::event_loop::connections::conn::{Conn, Phase};
use crate::event_loop::replication::leader_side::Followers;
use crate::{
    journal::{Client, Entry, Journal, Open, StateSnapshot},
    leadership::Leader,
    origin::Origin,
    state::{Action, ClientKey, IdSource, Input},
};
use pccl_protocol::{PeerId, StatusJournal};
use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    io,
};

/// This number of registrations behind the end of an older copy of a journal is recognised.
const LOOK_AHEAD: u64 = 1024;

/// State of the loop for its journal and for its standbys.
#[derive(Debug)]
pub(crate) struct Replication {
    journal: Option<Journal>,
    origin: Origin,
    open: Open,
    pub(crate) leader: Leader,
    pub(crate) followers: Followers,
    /// Something has happened in this turn.
    has_news: bool,
    /// Clients that a journal knew and that have not come back: they say whether it held everything.
    pub(crate) recalled: BTreeSet<u64>,
}

impl Replication {
    pub(crate) fn new(journal: Option<Journal>, origin: Origin, open: Open, leader: Leader) -> Self {
        let followers = Followers::default();
        Self { journal, origin, open, leader, followers, has_news: false, recalled: BTreeSet::new() }
    }

    /// The state wants something of others.
    pub(crate) fn note_asked(&mut self, action: &Action) {
        self.open.note_asked(action);
    }

    fn record(&mut self, entry: &Entry<'_>) {
        self.has_news = true;
        if let Some(journal) = &mut self.journal {
            journal.record(entry);
        }
        self.followers.record(entry);
    }

    /// The journal does not hold everything: it is out of the way of the next start. Returns the text about it.
    pub(crate) fn set_aside(&mut self, why: &str) -> String {
        let aside = self.journal.as_mut().map_or_else(String::new, Journal::set_aside);
        format!(
            "the journal is an older copy, or its end is lost: {why}. Going on from it would set the run back. {aside}"
        )
    }

    /// Whether a peer has one of the next identities that this master would give.
    pub(crate) fn is_to_be_given(&self, peer: PeerId, drawn: u64) -> bool {
        let mut identities = self.origin.identities();
        (drawn..drawn + LOOK_AHEAD).any(|nth| identities.peer_id(nth) == peer)
    }

    /// How the journal is, if there is to be one.
    pub(crate) fn journal_status(&self) -> Option<StatusJournal> {
        self.journal.as_ref().map(Journal::status)
    }

    /// The run has ended in order.
    pub(crate) fn end(&mut self) {
        if let Some(journal) = &mut self.journal {
            journal.end();
        }
    }
}

impl EventLoop {
    /// The state is about to take this in.
    pub(crate) fn record_input(&mut self, input: &Input) {
        if let Some(replication) = &mut self.replication {
            replication.open.note_answered(input);
            replication.record(&Entry::Taken { at: self.at, input: Cow::Borrowed(input) });
        }
    }

    /// The state is about to draw its consequences.
    pub(crate) fn record_settled(&mut self) {
        if let Some(replication) = &mut self.replication {
            replication.record(&Entry::Settled);
        }
    }

    /// A client has this number of the packets to it.
    pub(crate) fn record_acknowledged(&mut self, client: ClientKey, count: u64) {
        if let Some(replication) = &mut self.replication {
            replication.record(&Entry::Acknowledged { client, count });
        }
    }

    /// The entries of this turn are written, and on their way to the standbys. Nothing of this turn has left before.
    pub(crate) fn end_turn(&mut self) {
        self.settle();
        let Some(replication) = &mut self.replication else { return };
        let copies = replication.followers.take_changed().then(|| replication.leader.copies());
        if let Some(copies) = &copies {
            replication.record(&Entry::Copies(copies.clone()));
        }
        if std::mem::take(&mut replication.has_news) {
            let (released, is_alone) = replication.leader.how_far();
            replication.record(&Entry::Turn { released, is_alone });
            replication.has_news = false;
            replication.leader.end_turn(|| self.state.voters(), |peer| self.state.client_of(peer).is_some());
        }
        if replication.journal.as_mut().is_some_and(|journal| journal.flush() || journal.is_due()) {
            self.write_snapshot();
        }
        if let Some(copies) = copies {
            self.tell_copies(&copies);
        }
        self.replicate();
    }

    /// All that is known is written, and takes the place of what was written before.
    pub(crate) fn write_snapshot(&mut self) {
        if self.replication.as_ref().is_none_or(|replication| replication.journal.is_none()) {
            return;
        }
        let snapshot = self.snapshot();
        let Some(replication) = &mut self.replication else { return };
        match (&mut replication.journal, snapshot) {
            (Some(journal), Some(snapshot)) => journal.begin(&snapshot),
            (Some(journal), None) => journal.give_up(&io::Error::other("what is known cannot be written")),
            (None, _) => {}
        }
    }

    /// All that is known. Only when the state has settled: what it has not drawn the consequences of is no part of what
    /// it remembers.
    pub(crate) fn snapshot(&self) -> Option<StateSnapshot> {
        debug_assert!(!self.unsettled);
        let replication = self.replication.as_ref()?;
        let state = self.state.remember();
        let tickets = self.tickets.as_ref().map(|issuer| issuer.remember()).transpose();
        match (state, tickets) {
            (Ok(state), Ok(tickets)) => Some(StateSnapshot {
                origin: replication.origin.clone(),
                at: self.at,
                next_client: self.reactor.next_key(),
                state,
                tickets,
                clients: self.clients(),
                open: replication.open.clone(),
                past: replication.leader.past(),
            }),
            (Err(error), _) | (_, Err(error)) => {
                log::error!("internal error: what this master knows cannot be written: {error}");
                None
            }
        }
    }

    fn clients(&self) -> BTreeMap<ClientKey, Client> {
        let is_client =
            |key: u64, conn: &Conn| matches!(conn.phase, Phase::Client(_)) && !self.is_standby(key);
        let clients = self.conns.iter().filter(|(key, conn)| is_client(**key, conn));
        let describe = |conn: &Conn| {
            let (before, frames) = conn.queue.not_acknowledged();
            let frames = frames.into_iter().map(<[u8]>::to_vec).collect();
            Client {
                remote: conn.remote.ip(),
                received: conn.received,
                at_most: conn.at_most,
                before,
                frames,
            }
        };
        clients.map(|(key, conn)| (ClientKey(*key), describe(conn))).collect()
    }

    /// Goes on: registered peers may come back over other connections, all others are gone, and who was asked is asked
    /// once more. To be called once, before anything else happens.
    pub(crate) fn go_on(&mut self) {
        self.write_snapshot();
        let known: Vec<(u64, bool)> =
            self.conns.keys().map(|key| (*key, self.state.may_return(ClientKey(*key)))).collect();
        for (key, may_return) in known {
            let (client, text) = (ClientKey(key), "another master goes on".to_owned());
            if may_return {
                self.take(Input::Away { client, text, with_master: true });
            } else {
                self.remove(key);
                self.take(Input::Disconnected { client, text });
            }
        }
        let open =
            self.replication.as_ref().map(|replication| replication.open.actions()).unwrap_or_default();
        let mut slow = Vec::new();
        open.into_iter().for_each(|action| self.apply(action, &mut slow));
        self.settle();
    }
}
