//! The parts of a session for syncs: the tensors that it gives to others, and the source that it fetches from.

use super::{ahead::AheadNews, progress::Underway, server::StateServer, source::SourceWatch, upload::Upload};
use crate::{
    Error,
    collective::table::OpTable,
    config::Config,
    control::Control,
    dial_back::DialBacks,
    relay::Relay,
    tickets::Wallet,
    ways::Ways,
    world::{Identity, Told},
};
use parking_lot::Mutex;
use pccl_flight::Recorder;
use pccl_hash::Tree;
use pccl_protocol::{C2m, M2c, PeerId, RequestId};
use std::{
    sync::{Arc, atomic::AtomicU64},
    time::Instant,
};
use tinysockets::bucket::{Bucket, Rate};

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
    pub(crate) upload: Upload,
    pub(crate) source: SourceWatch,
    /// Connections that sources are to make.
    pub(super) dial_backs: Arc<DialBacks>,
    /// Bytes that this peer has fetched ahead.
    pub(crate) fetched_ahead: AtomicU64,
    /// While this peer waits to be let in.
    pub(crate) ahead: Mutex<AheadNews>,
    /// How far a fetch is.
    pub(crate) underway: Underway,
    /// Loans of which the master was told.
    pub(super) loans: Mutex<Bucket<Instant>>,
}

/// Loans of which the master is told. One that ends after less than the mean of that is of use to nobody.
pub(super) const LOANS: Rate = Rate { burst: 64.0, per_second: 64.0 };

impl Syncs {
    /// Of a session that begins.
    pub(crate) fn new(
        config: Arc<Config>,
        (control, told, dial_backs): (Arc<Control>, Arc<Told>, Arc<DialBacks>),
        table: Arc<OpTable>,
        flight: Arc<Recorder>,
    ) -> Self {
        let (server, source) = (StateServer::default(), SourceWatch::default());
        let upload = Upload::new(config.settings.upload_share_pct);
        let (fetched_ahead, ahead, underway) = (AtomicU64::new(0), Mutex::default(), Underway::default());
        Self {
            config,
            flight,
            control,
            told,
            table,
            server,
            upload,
            source,
            dial_backs,
            fetched_ahead,
            ahead,
            underway,
            loans: Mutex::new(Bucket::full(&LOANS, Instant::now())),
        }
    }

    /// As [`Told::identity`].
    pub(super) fn identity(&self) -> Option<Identity> {
        self.told.identity()
    }

    /// The ways to others that the master told.
    pub(crate) fn ways(&self) -> &Arc<Ways> {
        &self.told.ways
    }

    /// The way to the relay, if the master has one.
    pub(crate) fn relay(&self) -> Option<&Relay> {
        self.told.relay.get()
    }

    /// The tickets that the master gave to connect to others with.
    pub(crate) fn wallet(&self) -> &Wallet {
        &self.told.wallet
    }

    /// As [`Told::tree`].
    pub(crate) fn tree(&self) -> Tree {
        self.told.tree()
    }

    /// Whether this session is that of the peer `id`.
    pub(crate) fn is_me(&self, id: PeerId) -> bool {
        self.identity().is_some_and(|me| me.peer == id)
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

    /// Refuses everything that others want from now on; the session has ended.
    pub(crate) fn stop_serving(&self) {
        self.server.stop();
        self.upload.stop();
    }

    /// Whether the session has ended.
    pub(super) fn is_over(&self) -> bool {
        self.control.end().is_some()
    }
}
