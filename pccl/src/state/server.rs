//! Gives shared state to peers that fetch it, while the own caller is in a sync.
//!
//! The caller's tensors are on offer from before the vote until the outcome, behind a gate that the sync drains before
//! it returns. Each connection has a thread; it copies a piece under the gate and sends it from its own memory, so that
//! a slow receiver never holds the caller's memory.

use super::syncs::Syncs;
use crate::threads::spawn;
use parking_lot::{Condvar, Mutex};
use pccl_protocol::{Key, Nothing, P2p, StateAnswer, StateRequest, SyncId, limits};
use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};
use tinysockets::{
    conn::Conn,
    link::{Gate, Lent},
    stream::{PacketStream, StreamBreaker},
};

/// Bytes copied and sent at a time.
const PIECE_BYTES: usize = 256 << 10;
/// Most connections served at once.
const MAX_SERVED: usize = 256;
/// How long a connection may be idle between requests.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a connection is waited for.
#[derive(Debug, Clone, Copy)]
struct Patience {
    /// For a transfer that stands still.
    stall: Duration,
    /// For the master's news, when a request is for a sync that this peer does not know of yet. Shorter than the
    /// fetching end waits for the answer.
    plan: Duration,
}

impl Patience {
    fn of(shared: &Syncs) -> Self {
        let known = shared.identity().map_or(Duration::ZERO, |me| me.peer_timeout);
        let whole = super::time_base(known);
        Self { stall: whole, plan: whole / 2 }
    }
}

/// The tensors on offer in one sync.
#[derive(Debug)]
pub(crate) struct Offer {
    pub(crate) gate: Arc<Gate>,
    pub(crate) tensors: BTreeMap<Key, Lent>,
    pub(crate) sent_bytes: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    offer: Option<Arc<Offer>>,
    /// The sync that the offer is for, once the master has named it.
    sync: Option<SyncId>,
    /// The newest sync that this peer knows to be over.
    over: Option<SyncId>,
    stopped: bool,
    connections: Vec<(StreamBreaker, JoinHandle<()>)>,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct StateServer {
    state: Mutex<State>,
    changed: Condvar,
}

impl StateServer {
    /// Puts tensors on offer; nobody gets any before [`StateServer::begin`].
    pub(crate) fn offer(&self, offer: Arc<Offer>) {
        let mut state = self.state.lock();
        state.offer = Some(offer);
        state.sync = None;
    }

    /// The master has named the sync.
    pub(crate) fn begin(&self, sync: SyncId) {
        self.state.lock().sync = Some(sync);
        self.changed.notify_all();
    }

    /// Takes the offer back. When this returns nobody reads the caller's memory any more.
    pub(crate) fn withdraw(&self) {
        let mut state = self.state.lock();
        let offer = state.offer.take();
        state.over = state.sync.take().or(state.over);
        drop(state);
        self.changed.notify_all();
        if let Some(offer) = offer {
            offer.gate.close();
            // Passes are only held while a piece is copied.
            offer.gate.wait_drained(None);
        }
    }

    /// Refuses everything from now on and breaks all connections.
    pub(crate) fn stop(&self) {
        let mut state = self.state.lock();
        state.stopped = true;
        for (breaker, _) in &state.connections {
            breaker.break_off();
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Waits for the threads of all connections. After [`StateServer::stop`].
    pub(crate) fn join(&self) {
        let connections = std::mem::take(&mut self.state.lock().connections);
        for (_, thread) in connections {
            let _ = thread.join();
        }
    }

    /// Serves one connection on a thread of its own.
    pub(crate) fn serve(&self, shared: &Arc<Syncs>, conn: Conn, remote: SocketAddr) {
        let stream = PacketStream::new(conn, limits::MAX_PACKET_BYTES);
        let mut state = self.state.lock();
        state.connections.retain(|(_, thread)| !thread.is_finished());
        if state.stopped || state.connections.len() >= MAX_SERVED {
            return;
        }
        let breaker = stream.breaker();
        let shared = shared.clone();
        let patience = Patience::of(&shared);
        let spawned = spawn("pccl-state", move || {
            if let Err(error) = shared.server.run(stream, patience) {
                log::debug!("state connection from {remote} ended: {error}");
            }
        });
        match spawned {
            Ok(thread) => state.connections.push((breaker, thread)),
            Err(error) => log::warn!("state connection from {remote}: {error}"),
        }
    }

    fn run(&self, mut stream: PacketStream, patience: Patience) -> Result<(), String> {
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            let (kind, body) =
                stream.recv_packet(Instant::now() + IDLE_TIMEOUT).map_err(|error| error.to_string())?;
            let packet = P2p::from_frame(kind, &body).map_err(|error| error.to_string())?;
            let P2p::StateRequest(request) = packet else {
                return Err("an answer where a request belongs".into());
            };
            self.answer(&mut stream, &request, &mut piece, patience)?;
        }
    }

    fn answer(
        &self,
        stream: &mut PacketStream,
        request: &StateRequest,
        piece: &mut [u8],
        patience: Patience,
    ) -> Result<(), String> {
        let reply = |stream: &mut PacketStream, answer| {
            let packet = P2p::StateAnswer(answer);
            stream
                .send_bytes(&packet.to_frame(), Instant::now() + patience.stall)
                .map_err(|error| error.to_string())
        };
        log::trace!("state request for {}", request.key);
        let Some(offer) = self.offer_for(request.sync, patience.plan) else {
            return reply(stream, StateAnswer::NotServing(Nothing {}));
        };
        let Some(tensor) = offer.tensors.get(&request.key) else {
            return reply(stream, StateAnswer::UnknownKey(Nothing {}));
        };
        reply(stream, StateAnswer::Bytes(tensor.len() as u64))?;
        let mut sent = 0;
        while sent < tensor.len() {
            let len = piece.len().min(tensor.len() - sent);
            tensor
                .view(sent..sent + len, |bytes| piece[..len].copy_from_slice(bytes))
                .ok_or("the sync ended while its state was being sent")?;
            // Booked first: once the receiver has the last piece, the sync may be over.
            offer.sent_bytes.fetch_add(len as u64, Ordering::Relaxed);
            stream.send_bytes_progress(&piece[..len], patience.stall).map_err(|error| error.to_string())?;
            sent += len;
        }
        Ok(())
    }

    /// The offer of `sync`. The request may be here before the master's news: then it waits for that, not for ever.
    fn offer_for(&self, sync: SyncId, patience: Duration) -> Option<Arc<Offer>> {
        let deadline = Instant::now() + patience;
        let mut state = self.state.lock();
        loop {
            if state.stopped || state.over.is_some_and(|over| sync <= over) {
                return None;
            }
            match state.sync {
                Some(current) if current == sync => return state.offer.clone(),
                Some(current) if current > sync => return None,
                _ => {}
            }
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                return None;
            }
        }
    }
}
