//! The calls that training needs, made on a [`pccl::Communicator`].

use std::time::Duration;

use pccl::{Communicator, Error, ReduceOp, Remedy, SharedState, SyncStrategy};

use crate::diloco::OuterState;
use crate::peer::{Collective, CommError, ReduceInfo, SyncInfo};
use crate::report::Traffic;

/// How long a lone peer waits for company in one call.
const COMPANY_TIMEOUT: Duration = Duration::from_secs(1);

/// A peer of the run whose master was given.
#[derive(Debug)]
pub(crate) struct Peer {
    comm: Communicator,
}

impl Peer {
    /// A peer that is not connected yet.
    pub(crate) fn new(master: &str, advertised_host: Option<&str>) -> Result<Self, Error> {
        let mut builder = Communicator::builder(master);
        if let Some(host) = advertised_host {
            builder = builder.advertised_host(host);
        }
        Ok(Self { comm: builder.build()? })
    }
}

impl Collective for Peer {
    fn connect(&mut self) -> Result<(), CommError> {
        self.comm.make_good(Remedy::Reconnect, 1).map_err(|error| CommError::Fatal(error.to_string()))
    }

    fn world(&self) -> usize {
        self.comm.world().global_size
    }

    fn update_topology(&mut self) -> Result<(), CommError> {
        if self.world() > 1 {
            return self.comm.update_topology().map_err(translate);
        }
        match self.comm.wait_for_world(2, Some(COMPANY_TIMEOUT)) {
            Ok(_) | Err(Error::TimedOut { .. }) => Ok(()),
            Err(error) => Err(translate(error)),
        }
    }

    fn sync(&mut self, revision: u64, state: &mut OuterState) -> Result<SyncInfo, CommError> {
        let mut shared = SharedState::new(revision);
        shared.tensor("parameters", &mut state.params).map_err(translate)?;
        shared.tensor("momentum", &mut state.momentum).map_err(translate)?;
        shared.tensor("step", &mut state.step).map_err(translate)?;
        let info =
            self.comm.sync_shared_state(&mut shared, SyncStrategy::EnforcePopular).map_err(translate)?;
        let traffic = Traffic { tx_bytes: info.tx_bytes, rx_bytes: info.rx_bytes };
        Ok(SyncInfo { revision: info.revision, traffic })
    }

    fn all_reduce_avg(&mut self, values: &mut [f32]) -> Result<ReduceInfo, CommError> {
        let info = self.comm.all_reduce(values, ReduceOp::Avg).map_err(translate)?;
        let traffic = Traffic { tx_bytes: info.tx_bytes, rx_bytes: info.rx_bytes };
        Ok(ReduceInfo { world: info.world_size, traffic })
    }
}

fn translate(error: Error) -> CommError {
    match error.remedy() {
        Remedy::Retry => CommError::Retry(error.to_string()),
        Remedy::WaitForPeers => CommError::Alone,
        Remedy::Reconnect => CommError::Reconnect(error.to_string()),
        Remedy::GiveUp | Remedy::FormGroup => CommError::Fatal(error.to_string()),
    }
}
