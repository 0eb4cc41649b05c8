//! What a session has for syncs: the tensors that it gives to others, and the source that it fetches from.

use super::{server::StateServer, source::SourceWatch};
use crate::{
    Error,
    collective::table::OpTable,
    config::Config,
    control::Control,
    world::{Identity, Told},
};
use pccl_flight::Recorder;
use pccl_protocol::{C2m, M2c, RequestId};
use std::{sync::Arc, time::Instant};

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Syncs {
    pub(crate) config: Arc<Config>,
    pub(crate) flight: Arc<Recorder>,
    control: Arc<Control>,
    told: Arc<Told>,
    /// Knows the plan of the group.
    pub(crate) table: Arc<OpTable>,
    pub(crate) server: StateServer,
    pub(crate) source: SourceWatch,
}

impl Syncs {
    /// Of a session that begins.
    pub(crate) fn new(
        config: Arc<Config>,
        (control, told): (Arc<Control>, Arc<Told>),
        table: Arc<OpTable>,
        flight: Arc<Recorder>,
    ) -> Self {
        let (server, source) = (StateServer::default(), SourceWatch::default());
        Self { config, flight, control, told, table, server, source }
    }

    /// As [`Told::identity`].
    pub(super) fn identity(&self) -> Option<Identity> {
        self.told.identity()
    }

    /// As [`Control::next_request`].
    pub(super) fn next_request(&self) -> RequestId {
        self.control.next_request()
    }

    /// As [`Control::send`].
    pub(super) fn send(&self, packet: &C2m) {
        self.control.send(packet);
    }

    /// As [`Control::receive`].
    pub(super) fn receive<T>(
        &self,
        deadline: Option<Instant>,
        pick: impl FnMut(M2c) -> Result<T, M2c>,
    ) -> Result<T, Error> {
        self.control.receive(deadline, pick)
    }

    /// Whether the session has ended.
    pub(super) fn is_over(&self) -> bool {
        self.control.end().is_some()
    }
}
