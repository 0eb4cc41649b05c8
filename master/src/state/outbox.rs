//! The consequences of facts: what the caller of the machine is to do, in this order, and whether there is more to look
//! at.

use super::types::{Action, ClientKey};
use pccl_protocol::M2c;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    actions: Vec<Action>,
    /// Facts have changed on which more depends than single operations.
    pub(crate) changed: bool,
}

impl Outbox {
    /// Moves what is to be done to the end of `out`.
    pub(crate) fn drain_into(&mut self, out: &mut Vec<Action>) {
        out.append(&mut self.actions);
    }

    pub(crate) fn push(&mut self, action: Action) {
        self.actions.push(action);
    }

    pub(crate) fn close(&mut self, client: ClientKey) {
        self.push(Action::Close { client });
    }

    pub(crate) fn send(&mut self, client: ClientKey, packet: M2c) {
        self.push(Action::Send { client, packet });
    }

    pub(crate) fn send_all(&mut self, clients: Vec<ClientKey>, packet: M2c) {
        self.push(Action::SendAll { clients, packet });
    }

    fn log(&mut self, level: log::Level, text: String) {
        self.push(Action::Log { level, text });
    }

    /// For what happens in each step of a training.
    pub(crate) fn debug(&mut self, text: String) {
        self.log(log::Level::Debug, text);
    }

    /// For what an operator wants to know: who comes and goes, rings, plans.
    pub(crate) fn info(&mut self, text: String) {
        self.log(log::Level::Info, text);
    }

    pub(crate) fn warn(&mut self, text: String) {
        self.log(log::Level::Warn, text);
    }

    pub(crate) fn error(&mut self, text: String) {
        self.log(log::Level::Error, text);
    }
}
