//! The knowledge of a master, as bytes: so that another process goes on as if it had been this one.
//!
//! To be asked for only between two inputs and when the state has settled: then nothing is left to be done that is not
//! a fact. Settings are not a part of it.

use super::MasterState;
use super::outbox::Outbox;
use super::types::{IdSource, Options};

impl MasterState {
    /// Everything that this master knows.
    ///
    /// # Errors
    /// The part that cannot be written, which would be a defect.
    pub fn remember(&self) -> Result<Vec<u8>, postcard::Error> {
        let who = (self.drawn, &self.roll, &self.groups, &self.admission, &self.formings);
        let rings = (&self.optimizer, &self.measured, &self.plans, &self.checks);
        let others = (self.last_sync, &self.stragglers, &self.asked, &self.joins, &self.revisions);
        postcard::to_stdvec(&(who, rings, others))
    }

    /// The master that knew this. It has these settings, of the same run, and the same source of identities.
    ///
    /// # Errors
    /// The bytes are not those of [`MasterState::remember`] of this version.
    pub fn recall(
        options: Options,
        ids: Box<dyn IdSource + Send>,
        bytes: &[u8],
    ) -> Result<Self, postcard::Error> {
        let (who, rings, others) = postcard::from_bytes(bytes)?;
        let (drawn, roll, groups, admission, formings) = who;
        let (optimizer, measured, plans, checks) = rings;
        let (last_sync, stragglers, asked, joins, revisions) = others;
        let mut recalled = Self {
            ids,
            drawn,
            out: Outbox::default(),
            roll,
            groups,
            admission,
            formings,
            optimizer,
            measured,
            plans,
            checks,
            last_sync,
            stragglers,
            asked,
            joins,
            revisions,
        };
        recalled.roll.options = options;
        Ok(recalled)
    }

    /// How many identities this master has given.
    pub fn drawn(&self) -> u64 {
        self.drawn
    }

    /// The settings of the run.
    pub fn options(&self) -> &Options {
        &self.roll.options
    }

    /// Gives the source of identities back.
    pub fn into_ids(self) -> Box<dyn IdSource + Send> {
        self.ids
    }
}
