//! A member of a run: carries out what the protocol wants, on the caller's thread, beside one thread for signs of life.

mod cancel;
mod config;
mod driver;
mod error;
mod heart;
mod nonce;
mod watch;

pub use cancel::Cancel;
pub use config::IterationConfig;
pub use error::IterationError;

use crate::{
    protocol::{Call, Decision, Machine, Member, Register, check_id, keys::Keys},
    store::Store,
};
use driver::{CALL_TIMEOUT, Driver, check_payload};
use heart::Heart;
use parking_lot::Mutex;
use std::{collections::BTreeSet, sync::Arc, time::Instant};

/// Where this member stands.
#[derive(Debug, Clone)]
struct Standing {
    me: Member,
    /// The last decision that this member knows.
    register: Arc<Register>,
    is_member: bool,
}

/// A member of a run whose members agree on a global iteration through a store, without a coordinator.
///
/// Every decision has a number that is one larger than the last. All members that return from the same `advance` hold
/// the same [`Decision`]. May be used from several threads; calls that take part run one after the other.
pub struct GlobalIteration {
    store: Arc<dyn Store>,
    config: IterationConfig,
    keys: Keys,
    id: String,
    heart: Heart,
    cancel: Cancel,
    standing: Mutex<Standing>,
    forced: Mutex<BTreeSet<String>>,
    /// Held by whoever takes part.
    turn: Mutex<()>,
}

impl GlobalIteration {
    /// Joins a run as `id`, and begins it when `world_size` members have joined. Returns once the run has taken this
    /// member in; [`decision`](Self::decision) tells which iteration has begun with it. A member that was started again
    /// thus learns where the others are before it takes part. `payload` (at most 4096 bytes) is shown to all members.
    ///
    /// # Errors
    /// See [`IterationError`].
    pub fn join(
        store: Arc<dyn Store>,
        id: &str,
        payload: &[u8],
        config: IterationConfig,
    ) -> Result<Self, IterationError> {
        Self::join_until(store, id, payload, config, Cancel::default())
    }

    /// As [`join`](Self::join); `cancel` ends it, and all calls of the member.
    ///
    /// # Errors
    /// See [`IterationError`].
    pub fn join_until(
        store: Arc<dyn Store>,
        id: &str,
        payload: &[u8],
        config: IterationConfig,
        cancel: Cancel,
    ) -> Result<Self, IterationError> {
        config.check()?;
        check_id("member", id).map_err(IterationError::Setting)?;
        let keys = Keys::new(&config.run);
        let heart = Heart::start(Arc::clone(&store), keys.clone(), config.heartbeat_interval, config.mirror)
            .map_err(|error| IterationError::Setting(format!("cannot start a thread: {error}")))?;
        let driver = Driver { store: &*store, config: &config, keys: &keys, heart: &heart, cancel: &cancel };
        let (me, register) = driver.join(id, payload, &BTreeSet::new())?;
        Ok(Self {
            id: id.to_owned(),
            heart,
            cancel,
            standing: Mutex::new(Standing { me, register, is_member: true }),
            forced: Mutex::default(),
            turn: Mutex::default(),
            store,
            config,
            keys,
        })
    }

    /// The member that this is.
    pub fn member(&self) -> Member {
        self.standing.lock().me.clone()
    }

    /// The last decision that this member has taken part in or was taken in by. Asks nobody.
    pub fn decision(&self) -> Decision {
        self.standing.lock().register.decision.clone()
    }

    /// The store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Ends the calls of this member from another thread.
    pub fn cancel(&self) {
        self.cancel.cancel();
    }

    /// The settings.
    pub fn config(&self) -> &IterationConfig {
        &self.config
    }

    /// Arrives for the next iteration and returns when it is decided: when all members have arrived, or those that
    /// live, or, after a time without progress, as many as the policy demands. `payload` (at most 4096 bytes) stands in
    /// the decision.
    ///
    /// # Errors
    /// See [`IterationError`]. After [`Fenced`](IterationError::Fenced) only [`catch_up`](Self::catch_up) helps; after
    /// most others the same call may be made again.
    pub fn advance(&self, payload: &[u8]) -> Result<Decision, IterationError> {
        check_payload(payload)?;
        let _turn = self.turn.lock();
        let standing = self.standing.lock().clone();
        if !standing.is_member {
            return Err(IterationError::NotMember(self.id.clone()));
        }
        let driver = self.driver();
        let rules = driver.rules(&self.forced.lock());
        let members = standing.register.decision.entries.len();
        let (me, base) = (standing.me.clone(), standing.register);
        let mut machine =
            Machine::advance(self.keys.clone(), rules, me.clone(), base, payload.to_vec(), nonce::next());
        let register = driver.drive(&mut machine, members, None).inspect_err(|error| {
            if matches!(error, IterationError::Fenced { .. }) {
                self.standing.lock().is_member = false;
                self.heart.beat_for(None);
                // Others may have removed the key already, and this life gives no further sign.
                let deadline = Instant::now() + CALL_TIMEOUT;
                if let Err(error) = self.store.delete(&self.keys.heartbeat(&me), deadline) {
                    log::debug!("the sign of life of {me} stays: {error}");
                }
            }
        })?;
        self.forced.lock().clear();
        Ok(self.adopt(me, register))
    }

    /// Comes back after this member was fenced off or has left: joins again as a new life, and returns the decision
    /// that has taken it in. A member that is in already gets its last decision.
    ///
    /// # Errors
    /// See [`IterationError`].
    pub fn catch_up(&self, payload: &[u8]) -> Result<Decision, IterationError> {
        check_payload(payload)?;
        let _turn = self.turn.lock();
        let standing = self.standing.lock().clone();
        if standing.is_member {
            // Somebody who sleeps may have been dropped without knowing.
            match self.current()? {
                Some(found) if found.contains(&standing.me) => return Ok(standing.register.decision.clone()),
                _ => {}
            }
        }
        let forced = self.forced.lock().clone();
        let (me, register) = self.driver().join(&self.id, payload, &forced)?;
        Ok(self.adopt(me, register))
    }

    /// The decision that the store holds now, whoever is in it; `None` before the run has begun.
    ///
    /// # Errors
    /// The store, or what it holds, is no use.
    pub fn current(&self) -> Result<Option<Decision>, IterationError> {
        read_current(&*self.store, &self.config.run, Instant::now() + self.config.store_timeout)
    }

    /// Leaves: the others do not wait for this member any more. The rest of its last iteration goes on without it.
    ///
    /// # Errors
    /// The store cannot be told. The others will find out by the missing signs of life.
    pub fn leave(&self) -> Result<(), IterationError> {
        let _turn = self.turn.lock();
        let me = {
            let mut standing = self.standing.lock();
            if !std::mem::replace(&mut standing.is_member, false) {
                return Ok(());
            }
            standing.me.clone()
        };
        self.heart.beat_for(None);
        self.driver().call_anyway(Call::Set(self.keys.left(&me), b"1".to_vec())).map(drop)
    }

    /// For the next decision that this member proposes, these identities and no others must be there, whatever the
    /// policy demands. For an operator who knows that the rest will not come back. The register still admits one
    /// decision only.
    pub fn force_members<S: Into<String>>(&self, ids: impl IntoIterator<Item = S>) {
        *self.forced.lock() = ids.into_iter().map(Into::into).collect();
    }

    fn adopt(&self, me: Member, register: Arc<Register>) -> Decision {
        let decision = register.decision.clone();
        self.driver().write_mirror(&me, &decision);
        *self.standing.lock() = Standing { me, register, is_member: true };
        decision
    }

    fn driver(&self) -> Driver<'_> {
        let Self { config, keys, heart, cancel, .. } = self;
        Driver { store: &*self.store, config, keys, heart, cancel }
    }
}

impl std::fmt::Debug for GlobalIteration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let standing = self.standing.lock();
        f.debug_struct("GlobalIteration")
            .field("member", &standing.me)
            .field("iteration", &standing.register.decision.iteration)
            .finish_non_exhaustive()
    }
}

/// The decision that the register of a run holds; `None` before the run has begun.
///
/// # Errors
/// The store, or what it holds, is no use.
pub fn read_current(
    store: &dyn Store,
    run: &str,
    deadline: Instant,
) -> Result<Option<Decision>, IterationError> {
    let bytes = store.get(&Keys::new(run).state(), deadline).map_err(IterationError::Store)?;
    let Some(bytes) = bytes.filter(|bytes| !bytes.is_empty()) else { return Ok(None) };
    match Register::read(bytes) {
        Ok(register) => Ok(Some(register.decision)),
        Err(error) => Err(IterationError::Lost(format!("the register cannot be read: {error}"))),
    }
}
