//! The loop and its journal: it writes what happens before anything leaves that follows from it, and goes on where the
//! master has been that it takes the place of.

use super::{
    EventLoop,
    conn::{Conn, Phase},
};
use crate::{
    journal::{Chapter, Client, Entry, Journal, Open},
    origin::Origin,
    state::{Action, ClientKey, Input},
};
use std::{borrow::Cow, collections::BTreeMap};

/// What the loop has for its journal.
#[derive(Debug)]
pub(super) struct Keeper {
    journal: Journal,
    origin: Origin,
    open: Open,
}

impl Keeper {
    pub(super) fn new(journal: Journal, origin: Origin, open: Open) -> Self {
        Self { journal, origin, open }
    }

    /// The state wants something of others.
    pub(super) fn note_asked(&mut self, action: &Action) {
        self.open.note_asked(action);
    }

    /// The run has ended in order.
    pub(super) fn end(&mut self) {
        self.journal.end();
    }
}

impl EventLoop {
    /// The state is about to take this in.
    pub(super) fn record_input(&mut self, input: &Input) {
        if let Some(keeper) = &mut self.keeper {
            keeper.open.note_answered(input);
            keeper.journal.record(&Entry::Taken { at: self.at, input: Cow::Borrowed(input) });
        }
    }

    /// The state is about to draw its consequences.
    pub(super) fn record_settled(&mut self) {
        if let Some(keeper) = &mut self.keeper {
            keeper.journal.record(&Entry::Settled);
        }
    }

    /// A client has so many of the packets to it.
    pub(super) fn record_acknowledged(&mut self, client: ClientKey, count: u64) {
        if let Some(keeper) = &mut self.keeper {
            keeper.journal.record(&Entry::Acknowledged { client, count });
        }
    }

    /// What has happened in this turn is written. Nothing of it has left before.
    pub(super) fn write_journal(&mut self) {
        if self.keeper.as_mut().is_some_and(|keeper| keeper.journal.flush()) {
            self.begin_chapter();
        }
    }

    /// All that is known is written, and takes the place of what was written before.
    pub(super) fn begin_chapter(&mut self) {
        // What the state has not drawn the consequences of is no part of what it remembers.
        self.settle();
        let Some(keeper) = &self.keeper else { return };
        let state = self.state.remember();
        let tickets = self.tickets.as_ref().map(|office| office.remember()).transpose();
        let (state, tickets) = match (state, tickets) {
            (Ok(state), Ok(tickets)) => (state, tickets),
            (Err(error), _) | (_, Err(error)) => {
                log::error!("internal error: what this master knows cannot be written: {error}");
                if let Some(mut keeper) = self.keeper.take() {
                    keeper.end();
                }
                return;
            }
        };
        let chapter = Chapter {
            origin: keeper.origin.clone(),
            at: self.at,
            next_client: self.reactor.next_key(),
            state,
            tickets,
            clients: self.clients(),
            open: keeper.open.clone(),
        };
        if let Some(keeper) = &mut self.keeper {
            keeper.journal.begin(&chapter);
        }
    }

    fn clients(&self) -> BTreeMap<ClientKey, Client> {
        let clients = self.conns.iter().filter(|(_, conn)| matches!(conn.phase, Phase::Client(_)));
        let describe = |conn: &Conn| {
            let (before, frames) = conn.queue.not_acknowledged();
            let frames = frames.into_iter().map(<[u8]>::to_vec).collect();
            Client { remote: conn.remote.ip(), received: conn.received, before, frames }
        };
        clients.map(|(key, conn)| (ClientKey(*key), describe(conn))).collect()
    }

    /// Goes on: registered peers may come back over other connections, all others are gone, and who was asked is asked
    /// once more. To be called once, before anything else happens.
    pub(super) fn go_on(&mut self) {
        self.begin_chapter();
        let known: Vec<(u64, bool)> =
            self.conns.keys().map(|key| (*key, self.state.may_return(ClientKey(*key)))).collect();
        for (key, may_return) in known {
            let (client, text) = (ClientKey(key), "the master was started again".to_owned());
            if may_return {
                self.take(Input::Away { client, text });
            } else {
                self.remove(key);
                self.take(Input::Disconnected { client, text });
            }
        }
        let open = self.keeper.as_ref().map(|keeper| keeper.open.actions()).unwrap_or_default();
        let mut slow = Vec::new();
        open.into_iter().for_each(|action| self.apply(action, &mut slow));
        self.settle();
    }
}
