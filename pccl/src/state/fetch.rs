//! Fetches tensors that differ into memory of our own, from one source after another until one gives all.

use super::StateTensor;
use crate::session::{Identity, Shared};
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

/// How long a source may take to answer a request. It may still be waiting for its own plan, but not for longer than
/// [`super::server`] lets it; and a source that is cut off must leave time for the next one.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(6);
/// How long a transfer may stand still before the next source is asked.
const STALL_TIMEOUT: Duration = Duration::from_secs(5);

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
        if shared.end().is_some() {
            return Err("the session ended".into());
        }
        match fetch_from(shared, me, plan, tensors, source, &mut fetched) {
            Ok(()) => return Ok(fetched),
            Err(error) => {
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
    fetched: &mut Fetched,
) -> Result<(), String> {
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
    let (stream, _) = dial_with_preamble(&address, &preamble, deadline).map_err(|error| error.to_string())?;
    let mut stream = PacketStream::new(stream, limits::MAX_PACKET_BYTES);
    for item in &plan.fetch {
        if fetched.contains_key(&item.key) {
            continue;
        }
        let position = tensors
            .binary_search_by(|tensor| tensor.key.cmp(&item.key))
            .map_err(|_| format!("the plan names a tensor {} that this peer does not have", item.key))?;
        let content = fetch_tensor(&mut stream, plan.sync, item, tensors[position].memory.bytes())?;
        fetched.insert(item.key.clone(), content);
    }
    Ok(())
}

fn fetch_tensor(
    stream: &mut PacketStream,
    sync: SyncId,
    item: &FetchItem,
    len: usize,
) -> Result<Vec<u8>, String> {
    let request = P2p::StateRequest(StateRequest { sync, key: item.key.clone() });
    let text = |error: std::io::Error| error.to_string();
    stream.send_bytes(&request.to_frame(), Instant::now() + STALL_TIMEOUT).map_err(text)?;
    let (kind, body) =
        stream.recv_packet(Instant::now() + ANSWER_TIMEOUT).map_err(|error| error.to_string())?;
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
    stream.recv_exact_progress(&mut content, STALL_TIMEOUT).map_err(text)?;
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let digest = pccl_hash::tree_hash_parallel(&content, threads);
    if digest != item.digest {
        return Err(format!("tensor {} arrived with hash {digest}, {} was elected", item.key, item.digest));
    }
    Ok(content)
}
