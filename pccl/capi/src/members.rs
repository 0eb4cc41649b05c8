//! Members of a global iteration, and stores, as C sees them.

use crate::{
    failure::{Failure, Outcome},
    registry::Registry,
    types::code,
};
use parking_lot::Mutex;
use pccl::Remedy;
use pccl_iteration::{
    Cancel, Decision, GlobalIteration, IterationConfig, IterationError, Store, StoreError, StoreServer,
    TcpStoreClient, protocol::check_id, read_current,
};
use std::{
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

/// All members of the process.
pub(crate) static ITERATIONS: Registry<Instance> = Registry::new("global iteration");
/// All stores that the process serves.
pub(crate) static STORES: Registry<StoreServer> = Registry::new("store");

/// How often a connection that is tried looks whether it is still wanted.
const CONNECT_SLICE: Duration = Duration::from_millis(500);

/// A member: its settings, and what it is once it has joined.
pub(crate) struct Instance {
    store: String,
    id: String,
    config: Mutex<IterationConfig>,
    cancel: Cancel,
    client: OnceLock<Arc<TcpStoreClient>>,
    member: OnceLock<GlobalIteration>,
    /// Held by the call that takes part; another one is a mistake.
    busy: Mutex<()>,
}

impl Instance {
    /// A member that has not joined.
    pub(crate) fn new(store: &str, run: String, id: &str, world_size: u32) -> Outcome<Self> {
        check_id("member", id).map_err(Failure::argument)?;
        TcpStoreClient::check_address(store).map_err(|error| failure(&IterationError::Store(error)))?;
        let config = IterationConfig { run, world_size: world_size as usize, ..IterationConfig::default() };
        config.check().map_err(|error| failure(&error))?;
        Ok(Self {
            store: store.to_owned(),
            id: id.to_owned(),
            config: Mutex::new(config),
            cancel: Cancel::default(),
            client: OnceLock::new(),
            member: OnceLock::new(),
            busy: Mutex::new(()),
        })
    }

    /// The name of the member.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Changes a setting of a member that has not joined.
    pub(crate) fn set(&self, change: impl FnOnce(&mut IterationConfig)) -> Outcome {
        if self.member.get().is_some() {
            return Err(Failure::usage("the member has joined"));
        }
        change(&mut self.config.lock());
        Ok(())
    }

    /// Ends calls that wait.
    pub(crate) fn cancel(&self) {
        self.cancel.cancel();
    }

    /// The member that has joined.
    pub(crate) fn member(&self) -> Outcome<&GlobalIteration> {
        self.member.get().ok_or_else(|| Failure::usage("the member has not joined"))
    }

    fn turn(&self) -> Outcome<parking_lot::MutexGuard<'_, ()>> {
        self.busy.try_lock().ok_or_else(|| Failure::usage("another call of this member is under way"))
    }

    /// Joins the run.
    pub(crate) fn join(&self, payload: &[u8]) -> Outcome<Decision> {
        let _turn = self.turn()?;
        if self.member.get().is_some() {
            return Err(Failure::usage("the member has joined already"));
        }
        let config = self.config.lock().clone();
        config.check().map_err(|error| failure(&error))?;
        let store: Arc<dyn Store> = self.client(config.store_timeout)?;
        let joined = GlobalIteration::join_until(store, &self.id, payload, config, self.cancel.clone());
        let joined = joined.map_err(|error| failure(&error))?;
        Ok(self.member.get_or_init(|| joined).decision())
    }

    /// Makes a call of a member that has joined.
    pub(crate) fn take_part<T>(
        &self,
        make: impl FnOnce(&GlobalIteration) -> Result<T, IterationError>,
    ) -> Outcome<T> {
        let _turn = self.turn()?;
        make(self.member()?).map_err(|error| failure(&error))
    }

    /// The decision that the store holds.
    pub(crate) fn current(&self) -> Outcome<Option<Decision>> {
        let (run, limit) = {
            let config = self.config.lock();
            (config.run.clone(), config.store_timeout)
        };
        let store = self.client(limit)?;
        read_current(&*store, &run, Instant::now() + limit).map_err(|error| failure(&error))
    }

    /// The connection to the store, which is tried for so long.
    fn client(&self, limit: Duration) -> Outcome<Arc<TcpStoreClient>> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(client) = self.client.get() {
                return Ok(Arc::clone(client));
            }
            if self.cancel.is_cancelled() {
                return Err(failure(&IterationError::Cancelled));
            }
            match TcpStoreClient::connect(&self.store, deadline.min(Instant::now() + CONNECT_SLICE)) {
                Ok(client) => return Ok(Arc::clone(self.client.get_or_init(|| Arc::new(client)))),
                Err(error) if error.is_passing() && Instant::now() < deadline => {}
                Err(error) => return Err(failure(&IterationError::Store(error))),
            }
        }
    }
}

/// The failure of a call.
fn failure(error: &IterationError) -> Failure {
    let (code, cause, remedy) = match error {
        IterationError::Setting(_) | IterationError::Store(StoreError::Refused(_)) => {
            (code::INVALID_ARGUMENT, "InvalidArgument", Remedy::GiveUp)
        }
        IterationError::Store(_) => (code::MASTER_CONNECTION_FAILED, "StoreUnreachable", Remedy::Retry),
        IterationError::Fenced { .. } => (code::RANK_CONNECTION_LOST, "Fenced", Remedy::Reconnect),
        IterationError::NotMember(_) => (code::INVALID_USAGE, "NotMember", Remedy::Reconnect),
        IterationError::NoQuorum { .. } => (code::TOO_FEW_PEERS, "NoQuorum", Remedy::WaitForPeers),
        IterationError::TimedOut { .. } => (code::TOO_FEW_PEERS, "TimedOut", Remedy::WaitForPeers),
        IterationError::Lost(_) => (code::MASTER_CONNECTION_FAILED, "StoreLost", Remedy::GiveUp),
        IterationError::Cancelled => (code::INVALID_USAGE, "Cancelled", Remedy::GiveUp),
    };
    Failure::with(code, cause, remedy, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use pccl_iteration::{Member, Policy};

    #[test]
    fn causes_are_words_of_the_document() {
        let document = include_str!("../../../docs/errors.md");
        let member = || Member { id: "0".into(), incarnation: 1 };
        let waited = Duration::from_secs(1);
        for error in [
            IterationError::Store(StoreError::Unreachable { store: "s".into(), reason: "r".into() }),
            IterationError::Fenced { member: member(), reason: "r".into() },
            IterationError::NotMember("0".into()),
            IterationError::NoQuorum { policy: Policy::StrictMajority, absent: vec![member()], waited },
            IterationError::Lost("l".into()),
            IterationError::Cancelled,
        ] {
            let failure = failure(&error);
            assert_ne!(failure.code, code::SUCCESS);
            assert!(document.contains(&format!("`{}", failure.cause)), "{}", failure.cause);
        }
    }
}
