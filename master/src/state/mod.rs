//! The state machine of the master: facts in, actions out.
//!
//! Nothing here touches a socket, a thread, a clock or a random source, and every collection is ordered, so equal
//! inputs give equal outputs.

mod types;

pub use types::{Action, ClientKey, IdSource, Input, Options, Timestamp};

/// Everything that the master knows and decides.
pub struct MasterState {
    options: Options,
    ids: Box<dyn IdSource + Send>,
}

impl MasterState {
    /// A master without clients.
    pub fn new(options: Options, ids: Box<dyn IdSource + Send>) -> Self {
        Self { options, ids }
    }

    /// Takes one fact in at time `now` and appends what is to be done to `out`, in order.
    pub fn handle(&mut self, now: Timestamp, input: Input, out: &mut Vec<Action>) {
        let _ = (now, input, out, &self.options, &mut self.ids);
    }

    /// When an [`Input::Tick`] is due next; may lie in the past.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        None
    }

    /// One sentence for everything that waits, naming for whom.
    pub fn blocked_on(&self) -> Vec<String> {
        Vec::new()
    }
}
