//! Fetches tensors that differ into memory of our own, from one source after another until one gives all.
//!
//! A source that the run loses is given up at once, see [`super::source`]. One that lives and does not answer, or whose
//! connection stands still, is given up in a part of the peer time-out, so that there is time for another one.

use super::{StateTensor, source::Watch};
use crate::session::{Identity, Shared, spawn};
use pccl_protocol::{FetchItem, Key, P2p, StateAnswer, StateRequest, StateSource, SyncId, SyncPlan, limits};
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};
use tinysockets::{
    address::HostPort,
    dial::dial_with_preamble,
    preamble::{Preamble, Role},
    stream::PacketStream,
};

/// How long a source is waited for.
#[derive(Debug, Clone, Copy)]
struct Patience {
    /// For the answer to a request. The source may still be waiting for its own plan, but not for longer than
    /// [`super::server`] lets it.
    answer: Duration,
    /// For the next bytes of a transfer.
    stall: Duration,
}

impl Patience {
    fn of(me: Identity) -> Self {
        let whole = super::time_base(me.peer_timeout);
        Self { answer: whole * 3 / 5, stall: whole / 2 }
    }
}

/// Fetched and verified contents, by key.
pub(crate) type Fetched = BTreeMap<Key, Vec<u8>>;

/// Fetches everything in the plan. What one source has given stays when the next one is asked for the rest.
pub(crate) fn fetch(
    shared: &Shared,
    me: Identity,
    plan: &SyncPlan,
    tensors: &[StateTensor],
) -> Result<Fetched, String> {
    let mut fetched = Fetched::new();
    let mut failures = Vec::new();
    for source in &plan.sources {
        let watch = shared.source.begin(source.peer);
        // Whoever went before this peer watched will not be told of again.
        shared.source.keep(|peer| shared.table.has_member(peer));
        if shared.end().is_some() {
            return Err("the session ended".into());
        }
        match fetch_from(shared, me, plan, tensors, source, &watch, &mut fetched) {
            Ok(()) => return Ok(fetched),
            Err(error) => {
                let error = if watch.is_gone() { "the run has lost it".to_owned() } else { error };
                log::warn!("shared state from peer {} ({}): {error}", source.peer, source.host);
                failures.push(format!("{} ({}): {error}", source.peer, source.host));
            }
        }
    }
    Err(if failures.is_empty() { "no source was named".into() } else { failures.join("; ") })
}

fn fetch_from(
    shared: &Shared,
    me: Identity,
    plan: &SyncPlan,
    tensors: &[StateTensor],
    source: &StateSource,
    watch: &Watch<'_>,
    fetched: &mut Fetched,
) -> Result<(), String> {
    let mut stream = connect(shared, me, source, watch)?;
    watch.connected(stream.breaker());
    for item in &plan.fetch {
        if fetched.contains_key(&item.key) {
            continue;
        }
        let position = tensors
            .binary_search_by(|tensor| tensor.key.cmp(&item.key))
            .map_err(|_| format!("the plan names a tensor {} that this peer does not have", item.key))?;
        let len = tensors[position].memory.bytes();
        let content = fetch_tensor(&mut stream, plan.sync, item, len, Patience::of(me))?;
        fetched.insert(item.key.clone(), content);
    }
    Ok(())
}

/// Dials on a thread of its own, so that the loss of the source ends the wait here.
fn connect(
    shared: &Shared,
    me: Identity,
    source: &StateSource,
    watch: &Watch<'_>,
) -> Result<PacketStream, String> {
    let preamble = Preamble {
        run: me.run.0,
        from: me.peer.0,
        to: source.peer.0,
        group: shared.config.group.0,
        connection_count: 1,
        ..Preamble::new(Role::State)
    };
    let address = HostPort::new(source.host.as_str(), source.port);
    let deadline = Instant::now() + shared.config.dial_timeout;
    let (result, dialed) = crossbeam_channel::bounded(1);
    // Not waited for: it ends by its deadline and holds nothing of this session.
    spawn("pccl-fetch", move || {
        let _ = result.send(dial_with_preamble(&address, &preamble, deadline));
    })
    .map_err(|error| error.to_string())?;
    let dialed = crossbeam_channel::select! {
        recv(dialed) -> dialed => dialed.map_err(|error| error.to_string())?,
        recv(watch.gone()) -> _ => return Err("the run has lost it".into()),
    };
    let conn = dialed.map_err(|error| error.to_string())?;
    Ok(PacketStream::new(conn, limits::MAX_PACKET_BYTES))
}

fn fetch_tensor(
    stream: &mut PacketStream,
    sync: SyncId,
    item: &FetchItem,
    len: usize,
    patience: Patience,
) -> Result<Vec<u8>, String> {
    let request = P2p::StateRequest(StateRequest { sync, key: item.key.clone() });
    let text = |error: std::io::Error| error.to_string();
    stream.send_bytes(&request.to_frame(), Instant::now() + patience.stall).map_err(text)?;
    let (kind, body) = stream.recv_packet(Instant::now() + patience.answer).map_err(text)?;
    match P2p::from_frame(kind, &body).map_err(|error| error.to_string())? {
        P2p::StateAnswer(StateAnswer::Bytes(bytes)) if bytes == len as u64 => {}
        P2p::StateAnswer(StateAnswer::Bytes(bytes)) => {
            return Err(format!("offers {bytes} bytes for tensor {}, {len} are needed", item.key));
        }
        P2p::StateAnswer(StateAnswer::NotServing(_)) => return Err(format!("does not serve sync {sync}")),
        P2p::StateAnswer(StateAnswer::UnknownKey(_)) => return Err(format!("has no tensor {}", item.key)),
        P2p::StateRequest(_) => return Err("a request where an answer belongs".into()),
    }
    log::trace!("fetching {} bytes of {}", len, item.key);
    let mut content = vec![0; len];
    stream.recv_exact_progress(&mut content, patience.stall).map_err(text)?;
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let digest = pccl_hash::tree_hash_parallel(&content, threads);
    if digest != item.digest {
        return Err(format!("tensor {} arrived with hash {digest}, {} was elected", item.key, item.digest));
    }
    Ok(content)
}
