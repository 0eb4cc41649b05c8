//! Gives shared state to peers that fetch it: while the own caller is in a sync, and outside of syncs as long as a
//! loan stands.
//!
//! The caller's tensors are on offer from before the vote until the outcome, behind a gate that the sync drains before
//! it returns; a loan ([`super::loan`]) is an offer that stands until the serving peer, or the next sync, ends it.
//! Requests name the sync whose state they want, which tells what offer is meant. Each connection has a thread, which
//! answers one request after the other: it sends straight from the caller's memory, under the gate only while the
//! kernel copies, so that a slow receiver never holds that memory.

use super::{compare::Levels, loan::Lease, syncs::Syncs};
use crate::threads::spawn;
use parking_lot::{Condvar, Mutex};
use pccl_protocol::{Key, Nothing, P2p, StateAnswer, StatePart, StateRequest, SyncId, limits};
use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, SocketAddr},
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};
use tinysockets::{
    conn::Conn,
    link::{Gate, tune_data_socket},
    stream::{PacketStream, StreamBreaker},
};

/// Most connections served at once: one for each peer that there can be.
const MAX_SERVED: usize = limits::MAX_PEERS;
/// Most connections served at once before those are refused that only make a transfer faster.
const MAX_SPARE: usize = 64;
/// Most connections served at once that come from one address, so that one machine does not take all.
const MAX_OF_ADDRESS: usize = MAX_SERVED / 2;
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

/// The tensors on offer in one sync, or lent after it.
#[derive(Debug)]
pub(crate) struct Offer {
    pub(crate) gate: Arc<Gate>,
    pub(crate) tensors: BTreeMap<Key, (Lease, Arc<Levels>)>,
    pub(crate) sent_bytes: AtomicU64,
}

impl Offer {
    /// Nobody reads the tensors any more when this returns.
    pub(crate) fn end(&self) {
        self.gate.close();
        // Passes are only held while the kernel copies.
        self.gate.wait_drained(None);
    }
}

/// A connection that is served, by a thread of its own.
#[derive(Debug)]
struct Served {
    from: IpAddr,
    breaker: StreamBreaker,
    thread: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct State {
    offer: Option<Arc<Offer>>,
    /// The sync that the offer is for, once the master has named it.
    sync: Option<SyncId>,
    /// The newest sync that this peer knows to be over.
    over: Option<SyncId>,
    /// The offer that is lent, and the sync that committed it.
    loan: Option<(SyncId, Arc<Offer>)>,
    stopped: bool,
    connections: Vec<Served>,
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
            offer.end();
        }
    }

    /// Lends what a sync has committed. `false`, and nothing is lent: another loan stands.
    pub(crate) fn lend(&self, sync: SyncId, offer: &Arc<Offer>) -> bool {
        let mut state = self.state.lock();
        if state.loan.is_some() {
            return false;
        }
        state.loan = Some((sync, offer.clone()));
        true
    }

    /// Ends the loan of this offer. When this returns nobody reads it any more. Whether it stood until now.
    pub(crate) fn end_loan(&self, offer: &Arc<Offer>) -> bool {
        let stood = self.state.lock().loan.take_if(|(_, lent)| Arc::ptr_eq(lent, offer)).is_some();
        offer.end();
        stood
    }

    /// Ends the loan that stands, if there is one.
    pub(crate) fn end_any_loan(&self) {
        let loan = self.state.lock().loan.take();
        if let Some((_, offer)) = loan {
            offer.end();
        }
    }

    /// Refuses everything from now on and breaks all connections.
    pub(crate) fn stop(&self) {
        let mut state = self.state.lock();
        state.stopped = true;
        state.connections.iter().for_each(|served| served.breaker.break_off());
        drop(state);
        self.changed.notify_all();
    }

    /// Waits for the threads of all connections. After [`StateServer::stop`].
    pub(crate) fn join(&self) {
        let connections = std::mem::take(&mut self.state.lock().connections);
        for served in connections {
            let _ = served.thread.join();
        }
    }

    /// Serves one connection on a thread of its own. `index` counts the connections of one receiver.
    pub(crate) fn serve(&self, shared: &Arc<Syncs>, conn: Conn, index: u16, remote: SocketAddr) {
        tune_data_socket(&conn, conn.round_trip());
        let stream = PacketStream::new(conn, limits::MAX_STATE_PACKET_BYTES);
        let mut state = self.state.lock();
        state.connections.retain(|served| !served.thread.is_finished());
        let (from, most) = (remote.ip(), if index == 0 { MAX_SERVED } else { MAX_SPARE });
        let of_address = state.connections.iter().filter(|served| served.from == from).count();
        if state.stopped || state.connections.len() >= most || of_address >= MAX_OF_ADDRESS {
            return log::debug!("state connection from {remote} refused, {of_address} from there are served");
        }
        let (breaker, ended) = (stream.breaker(), stream.breaker());
        let shared = shared.clone();
        let patience = Patience::of(&shared);
        let spawned = spawn("pccl-state", move || {
            if let Err(error) = run(&shared, stream, patience) {
                log::debug!("state connection from {remote} ended: {error}");
            }
            // The other breaker, which stays until the next connection comes, would keep this one open.
            ended.break_off();
        });
        match spawned {
            Ok(thread) => state.connections.push(Served { from, breaker, thread }),
            Err(error) => log::warn!("state connection from {remote}: {error}"),
        }
    }

    /// The offer of `sync`, and whether it is a loan. The request may be here before the master's news: then it waits
    /// for that, not for ever.
    fn offer_for(&self, sync: SyncId, patience: Duration) -> Option<(Arc<Offer>, bool)> {
        let deadline = Instant::now() + patience;
        let mut state = self.state.lock();
        loop {
            if state.stopped {
                return None;
            }
            if let Some((_, offer)) = state.loan.as_ref().filter(|(lent, _)| *lent == sync) {
                return Some((offer.clone(), true));
            }
            if state.over.is_some_and(|over| sync <= over) {
                return None;
            }
            match state.sync {
                Some(current) if current == sync => return Some((state.offer.clone()?, false)),
                Some(current) if current > sync => return None,
                _ => {}
            }
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                return None;
            }
        }
    }
}

/// Answers the requests of one connection.
fn run(shared: &Syncs, mut stream: PacketStream, patience: Patience) -> Result<(), String> {
    loop {
        let (kind, body) =
            stream.recv_packet(Instant::now() + IDLE_TIMEOUT).map_err(|error| error.to_string())?;
        let packet = P2p::from_frame(kind, &body).map_err(|error| error.to_string())?;
        let P2p::StateRequest(request) = packet else {
            return Err("an answer where a request belongs".into());
        };
        answer(shared, &mut stream, &request, patience)?;
    }
}

fn answer(
    shared: &Syncs,
    stream: &mut PacketStream,
    request: &StateRequest,
    patience: Patience,
) -> Result<(), String> {
    let reply = |stream: &mut PacketStream, answer| {
        let packet = P2p::StateAnswer(answer);
        stream
            .send_bytes(&packet.to_frame(), Instant::now() + patience.stall)
            .map_err(|error| error.to_string())
    };
    log::trace!("state request for {}", request.key);
    let Some((offer, is_loan)) = shared.server.offer_for(request.sync, patience.plan) else {
        return reply(stream, StateAnswer::NotServing(Nothing {}));
    };
    let Some((tensor, levels)) = offer.tensors.get(&request.key) else {
        return reply(stream, StateAnswer::UnknownKey(Nothing {}));
    };
    let range = match request.part {
        StatePart::Mebibyte(number) => levels.mebibyte(number),
        StatePart::Digests(list) => {
            let Some(digests) = levels.list(list) else {
                return reply(stream, StateAnswer::UnknownPart(Nothing {}));
            };
            let mut answer = P2p::StateAnswer(StateAnswer::Bytes(digests.len() as u64)).to_frame();
            answer.extend_from_slice(&digests);
            let deadline = Instant::now() + patience.stall;
            return stream.send_bytes(&answer, deadline).map_err(|error| error.to_string());
        }
    };
    let Some(range) = range else {
        return reply(stream, StateAnswer::UnknownPart(Nothing {}));
    };
    reply(stream, StateAnswer::Bytes(range.len() as u64))?;
    // Booked first: once the receiver has the last piece, the sync may be over.
    offer.sent_bytes.fetch_add(range.len() as u64, Ordering::Relaxed);
    let sent = if is_loan {
        stream.keep_little_unsent();
        give_lent(shared, stream, tensor, range, patience)
    } else {
        stream.send_from_progress(range.len(), patience.stall, |done, send| {
            tensor.view(range.start + done..range.end, send)
        })
    };
    match sent {
        Ok(true) => Ok(()),
        Ok(false) => Err("what was on offer is not any more".into()),
        Err(error) => Err(error.to_string()),
    }
}

/// Sends a part of a tensor that is lent, at the pace at which this peer gives to newcomers.
fn give_lent(
    shared: &Syncs,
    stream: &mut PacketStream,
    tensor: &Lease,
    range: Range<usize>,
    patience: Patience,
) -> io::Result<bool> {
    let is_busy = || shared.table.moves_data();
    stream.send_from_progress(range.len(), patience.stall, |done, send| {
        let from = range.start + done;
        let turn = shared.upload.turn(range.end - from, is_busy)?;
        let sent = tensor.view(from..from + turn, send);
        let gone = sent.as_ref().map_or(0, |sent| sent.as_ref().map_or(0, |bytes| *bytes));
        shared.upload.take_back(turn - gone, is_busy());
        sent
    })
}
