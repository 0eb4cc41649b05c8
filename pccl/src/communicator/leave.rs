//! Leaving because this machine is about to be taken away.

use super::Communicator;
use crate::{
    Error, Notice,
    limit::moment_after,
    notice::{Given, Waited},
    threads,
};
use std::{
    sync::{Arc, Weak},
    time::Duration,
};

impl Communicator {
    /// Sees to it that this peer has left when `within` has passed since the notice was given: what is in flight then
    /// is cut off, as by [`Communicator::close`]. It is the net under a loop that asks [`Notice::is_given`] between its
    /// steps and calls [`Communicator::close_within`], and that may be blocked for longer, by others or by its own
    /// computation. A peer that has left before is left alone; so is one whose notice was dropped.
    ///
    /// # Errors
    /// `System` if there is no thread for it.
    pub fn close_on(self: &Arc<Self>, notice: &Notice, within: Duration) -> Result<(), Error> {
        let (this, given) = (Arc::downgrade(self), notice.given().clone());
        threads::spawn("pccl-leave", move || leave(&this, &given, within))?;
        Ok(())
    }
}

fn leave(comm: &Weak<Communicator>, given: &Given, within: Duration) {
    if given.wait(None) != Waited::Given {
        return;
    }
    let deadline = moment_after(within);
    if given.wait_for_end(deadline) == Waited::Over {
        return;
    }
    if let Some(comm) = comm.upgrade()
        && comm.id().is_some()
    {
        log::warn!(
            "{within:?} after the notice this peer has not left by itself: what is in flight is cut off"
        );
        comm.close();
    }
}
