//! Joining a run: this peer registers, and waits until the others have let it in. If it loses a master that has a
//! journal or standbys meanwhile, it registers anew: nothing is lost of a peer that is in no ring yet.

use super::{
    Communicator,
    join::{AtDoor, Patience},
};
use crate::{Error, LossCause, Reason, limit::Limit, session::Shared};
use pccl_protocol::{CallKind, PreviousIdentity};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

impl Communicator {
    /// Registers, and has `wait` wait until the others have let this peer in; leaves when the limit passes.
    pub(super) fn enter<R: Default>(
        &self,
        timeout: Option<Duration>,
        ahead: bool,
        mut wait: impl FnMut(&Shared, Limit) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let ahead = ahead && !self.config.settings.formed_groups;
        let at = self.door.enter()?;
        let closes = at.call_backs();
        self.make_way()?;
        if let Some(carried) = &self.carried {
            carried.look()?;
        }
        let mut shared = self.register(&at, ahead, self.config.settings.connect_timeout)?;
        drop(at);
        let limit = Limit::of(timeout);
        let entered = loop {
            if self.config.settings.formed_groups {
                shared.enter_without_admission();
                break R::default();
            }
            let admitted = wait(&shared, limit);
            shared.calls.end_exclusive();
            match admitted {
                Err(Error::MasterLost(reason)) => {
                    shared = self.register_anew(&shared, reason, ahead, (closes, limit))?;
                }
                other => break self.leave_if_late(&shared, limit, other)?,
            }
        };
        // Not only if it is newer: the one before is of another session.
        if let Some(known) = shared.told.take_answer_world() {
            *self.world.lock() = known;
        }
        if let Some(identity) = shared.told.identity() {
            let proof = shared.told.wallet.service_key().map(|key| key.secret().clone());
            *self.previous.lock() = Some(PreviousIdentity { run: identity.run, peer: identity.peer, proof });
        }
        Ok(entered)
    }

    /// Drops the session before, if it is over.
    fn make_way(&self) -> Result<(), Error> {
        let mut slot = self.session.lock();
        if slot.as_ref().is_some_and(|session| session.shared.control.end().is_none()) {
            return Err(Error::InvalidUsage("already connected".into()));
        }
        if slot.as_ref().is_some_and(|session| session.shared.calls.activity().in_flight() > 0) {
            return Err(Error::InvalidUsage("wait for the all-reduces of the lost connection first".into()));
        }
        // The old session goes first: its listeners free their ports.
        *slot = None;
        Ok(())
    }

    /// Reaches the master within `time` and registers.
    fn register(&self, at: &AtDoor<'_>, ahead: bool, time: Duration) -> Result<Arc<Shared>, Error> {
        // Not under the lock: it may take long, and another thread may want to close.
        let session = self.reach(at, ahead, Patience::new(Instant::now(), time))?;
        let shared = session.shared.clone();
        let mut slot = self.session.lock();
        // Under the lock: a caller that closes from now on finds the session.
        at.check()?;
        *slot = Some(session);
        Ok(shared)
    }

    /// The master was lost before it let this peer in. Registers with the one that is there within the master grace, if
    /// one is to be expected.
    fn register_anew(
        &self,
        before: &Shared,
        reason: Reason<LossCause>,
        ahead: bool,
        (closes, limit): (u64, Limit),
    ) -> Result<Arc<Shared>, Error> {
        let is_death = matches!(reason.kind(), LossCause::Closed | LossCause::Broken | LossCause::Silent);
        let left = before.master_grace_left().filter(|left| is_death && !left.is_zero());
        let Some(left) = left else { return Err(Error::MasterLost(reason)) };
        log::info!("the master was lost before it let this peer in ({reason}); registering anew");
        let at = self.door.enter()?;
        if at.call_backs() != closes {
            return Err(Error::NotConnected);
        }
        self.make_way()?;
        match self.register(&at, ahead, left.min(limit.left())) {
            Err(Error::ConnectFailed(why)) if limit.is_over() => Err(late(limit, &why.to_string())),
            Err(Error::ConnectFailed(why)) => {
                Err(Error::MasterLost(reason.say(|text| format!("{text}; {why}"))))
            }
            other => other,
        }
    }

    /// Leaves if this peer was not let in before the limit passed.
    fn leave_if_late<R>(
        &self,
        shared: &Arc<Shared>,
        limit: Limit,
        admitted: Result<R, Error>,
    ) -> Result<R, Error> {
        if !matches!(admitted, Err(Error::TimedOut { .. })) {
            return admitted;
        }
        let waits = shared.calls.blocked_text().unwrap_or_else(|| "admission waits for the master".into());
        // Not under the lock: another thread may want to close.
        let session = self.session.lock().take_if(|session| Arc::ptr_eq(&session.shared, shared));
        if let Some(session) = session {
            session.leave();
        }
        Err(late(limit, &waits))
    }
}

/// The limit has passed before this peer was let in.
fn late(limit: Limit, waits: &str) -> Error {
    let text = format!("not let in after {:?}: {waits}", limit.time());
    Error::TimedOut { call: CallKind::Connect, text, verdict: None }
}
