//! The knowledge of a master that has died, or that this one stands by for, out of its journal. The state machine is
//! given once more what it was given. Its packets are counted and kept as they were. Nothing is sent and nobody is
//! asked.

use crate::event_loop::connections::frame::frame;
use crate::event_loop::connections::place::Place;
use crate::event_loop::tickets::TicketIssuer;
use crate::{
    journal::{Entry, Open, StateSnapshot},
    leadership::{Past, VoterSets},
    origin::Origin,
    state::{Action, ClientKey, Input, MasterState, Options, Timestamp},
};
use pccl_protocol::{M2c, RunId};
use std::collections::BTreeMap;
use tinysockets::key::RunKeys;

/// See the module's documentation.
pub(crate) struct Recalled {
    pub(crate) at: Timestamp,
    pub(crate) next_client: u64,
    pub(crate) state: MasterState,
    pub(crate) tickets: Option<TicketIssuer>,
    pub(crate) places: BTreeMap<ClientKey, Place>,
    pub(crate) open: Open,
    pub(crate) origin: Origin,
    /// The knowledge of leadership in it.
    pub(crate) past: Past,
}

impl Recalled {
    /// The knowledge at the end of a journal.
    ///
    /// # Errors
    /// Why that cannot be found out.
    pub(crate) fn of(
        snapshot: StateSnapshot,
        entries: Vec<Entry<'static>>,
        options: Options,
        keys: Option<RunKeys>,
    ) -> Result<Self, String> {
        let mut recalled = Self::begin(snapshot, options, keys)?;
        entries.into_iter().for_each(|entry| recalled.live_through(entry));
        recalled.end();
        Ok(recalled)
    }

    /// The knowledge of a snapshot.
    ///
    /// # Errors
    /// Why that cannot be found out.
    pub(crate) fn begin(
        snapshot: StateSnapshot,
        options: Options,
        keys: Option<RunKeys>,
    ) -> Result<Self, String> {
        let StateSnapshot { origin, at, next_client, state, tickets, clients, open, mut past } = snapshot;
        let text = |error: postcard::Error| error.to_string();
        let tickets = match (keys, tickets) {
            (None, None) => None,
            (Some(keys), Some(known)) => Some(TicketIssuer::recall(&origin, keys, &known).map_err(text)?),
            (Some(_), None) => return Err("the run had no run key".into()),
            (None, Some(_)) => return Err("the run has a run key, and none is given".into()),
        };
        let state = MasterState::recall(options, Box::new(Origin::identities(&origin)), &state);
        let state = state.map_err(text)?;
        let places = clients.into_iter().map(|(key, client)| (key, Place::of(client))).collect();
        if past.is_alone {
            // As long as nobody else can take over it is not noted who the members are.
            past.voter_sets = VoterSets::from(past.turn, state.voters());
        }
        Ok(Self { at, next_client, state, tickets, places, open, origin, past })
    }

    /// The end of the last turn may be missing. If it is not, this changes nothing.
    pub(crate) fn end(&mut self) {
        self.live_through(Entry::Settled);
    }

    /// Whether nobody else can have taken over.
    pub(crate) fn is_sure_to_act(&self) -> bool {
        self.past.is_alone
    }

    /// The run.
    pub(crate) fn run(&self) -> RunId {
        self.origin.run
    }

    pub(crate) fn live_through(&mut self, entry: Entry<'static>) {
        let mut actions = Vec::new();
        match entry {
            Entry::Taken { at, input } => {
                let input = input.into_owned();
                self.at = self.at.max(at);
                self.count(&input);
                self.open.note_answered(&input);
                self.state.take(at, input, &mut actions);
            }
            Entry::Settled => self.state.settle(&mut actions),
            Entry::Acknowledged { client, count } => {
                if let Some(place) = self.places.get_mut(&client) {
                    place.queue.acknowledge(count);
                }
            }
            Entry::Copies(copies) => self.past.copies = copies,
            Entry::Turn { released, is_alone } => {
                self.past.end_turn((released, is_alone), self.state.voters());
            }
        }
        actions.into_iter().for_each(|action| self.carry_out(action));
    }

    fn count(&mut self, input: &Input) {
        match input {
            Input::Connected { client, remote, .. } => {
                self.next_client = self.next_client.max(client.0 + 1);
                self.places.insert(*client, Place::new(*remote));
            }
            Input::Packet { client, .. } => {
                if let Some(place) = self.places.get_mut(client) {
                    place.received += 1;
                }
            }
            Input::Returned { client } => {
                if let Some(place) = self.places.get_mut(client) {
                    place.at_most = None;
                }
            }
            Input::Disconnected { client, .. } => self.forget(*client),
            _ => {}
        }
    }

    fn carry_out(&mut self, action: Action) {
        self.open.note_asked(&action);
        match action {
            Action::Send { client, packet } => self.send(client, &packet),
            Action::SendAll { clients, packet } => {
                clients.into_iter().for_each(|client| self.send(client, &packet));
            }
            Action::Close { client } => self.forget(client),
            Action::Plan { .. } | Action::Reach { .. } | Action::DropPlan { .. } | Action::Log { .. } => {}
        }
    }

    fn send(&mut self, client: ClientKey, packet: &M2c) {
        let Some(place) = self.places.get_mut(&client) else { return };
        let front = self.tickets.as_mut().map(|issuer| issuer.in_front_of(client, packet, self.at.millis()));
        for packet in front.iter().flatten().chain([packet]) {
            place.queue.push_left(frame(packet));
        }
    }

    fn forget(&mut self, client: ClientKey) {
        self.places.remove(&client);
        if let Some(issuer) = &mut self.tickets {
            issuer.forget(client);
        }
    }
}
