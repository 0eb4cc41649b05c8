//! Fetches tensors that differ into memory of our own, from one source after another until one gives all.
//!
//! A source that the run loses is given up at once, see [`super::source`]. One that lives and does not answer, or whose
//! connection stands still, is given up in a part of the peer time-out, so that there is time for another one.

use super::{StateTensor, source::Watch, syncs::Syncs};
use crate::{threads::spawn, world::Identity};
use pccl_protocol::{
    FetchItem, Key, P2p, SourceFailure, SourceFault, StateAnswer, StateRequest, StateSource, SyncId,
    SyncPlan, Text, limits,
};
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
pub(crate) type Contents = BTreeMap<Key, Vec<u8>>;

/// What became of a fetch.
#[derive(Debug, Default)]
pub(crate) struct Fetched {
    /// Everything that came; what is missing only if there is an error.
    pub(crate) contents: Contents,
    /// Sources that were asked in vain.
    pub(crate) failures: Vec<SourceFailure>,
    /// Why something is missing.
    pub(crate) error: Option<String>,
}

/// How a source failed.
struct Fault {
    kind: SourceFault,
    text: String,
    /// The connection stood and broke, which is worth another one.
    broke: bool,
}

impl Fault {
    fn lost(error: std::io::Error) -> Self {
        let broke = error.kind() != std::io::ErrorKind::TimedOut;
        Self { kind: SourceFault::Unreached, text: error.to_string(), broke }
    }

    fn refused(text: impl ToString) -> Self {
        Self { kind: SourceFault::Refused, text: text.to_string(), broke: false }
    }

    fn unreached(text: String) -> Self {
        Self { kind: SourceFault::Unreached, text, broke: false }
    }
}

/// Fetches everything in the plan. What one source has given stays when the next one is asked for the rest.
pub(crate) fn fetch(
    shared: &Syncs,
    me: Identity,
    plan: &SyncPlan,
    tensors: &[StateTensor],
    deadline: Option<Instant>,
) -> Fetched {
    let mut fetched = Fetched::default();
    let job = Job { shared, me, plan, tensors, deadline };
    for source in &plan.sources {
        let watch = shared.source.begin(source.peer);
        // Whoever went before this peer watched will not be told of again.
        shared.source.keep(|peer| shared.table.has_member(peer));
        if shared.is_over() {
            fetched.error = Some("the session ended".into());
            return fetched;
        }
        if shared.source.is_stopped() || deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            fetched.error = Some("the sync is over".into());
            return fetched;
        }
        let mut ask = || fetch_from(&job, source, &watch, &mut fetched.contents);
        // What came over a connection that broke is kept.
        let asked = ask().or_else(|fault| if fault.broke && !watch.is_gone() { ask() } else { Err(fault) });
        let Err(fault) = asked else { return fetched };
        if shared.source.is_stopped() {
            fetched.error = Some("the sync is over".into());
            return fetched;
        }
        let name = format!("{} ({}:{})", source.peer, source.host, source.port);
        let text = if watch.is_gone() { "the run has lost it".to_owned() } else { fault.text };
        log::warn!("shared state from peer {name}: {text}");
        let text = Text::new(format!("{name}: {text}"));
        fetched.failures.push(SourceFailure { peer: source.peer, fault: fault.kind, text });
    }
    let texts: Vec<&str> = fetched.failures.iter().map(|failure| failure.text.as_str()).collect();
    fetched.error = Some(if texts.is_empty() { "no source was named".into() } else { texts.join("; ") });
    fetched
}

/// What one fetch needs.
struct Job<'a> {
    shared: &'a Syncs,
    me: Identity,
    plan: &'a SyncPlan,
    tensors: &'a [StateTensor],
    /// The caller's limit.
    deadline: Option<Instant>,
}

fn earlier(deadline: Instant, limit: Option<Instant>) -> Instant {
    limit.map_or(deadline, |limit| limit.min(deadline))
}

fn fetch_from(
    job: &Job<'_>,
    source: &StateSource,
    watch: &Watch<'_>,
    contents: &mut Contents,
) -> Result<(), Fault> {
    let Job { shared, me, plan, tensors, deadline } = *job;
    let mut stream = connect(shared, me, source, (watch, deadline)).map_err(Fault::unreached)?;
    watch.connected(stream.breaker());
    for item in &plan.fetch {
        if contents.contains_key(&item.key) {
            continue;
        }
        let position = tensors.binary_search_by(|tensor| tensor.key.cmp(&item.key)).map_err(|_| {
            Fault::refused(format!("the plan names a tensor {} that this peer does not have", item.key))
        })?;
        let len = tensors[position].memory.bytes();
        let content = fetch_tensor(&mut stream, plan.sync, item, len, (Patience::of(me), deadline))?;
        contents.insert(item.key.clone(), content);
    }
    Ok(())
}

/// Dials on a thread of its own, so that the loss of the source ends the wait here.
fn connect(
    shared: &Syncs,
    me: Identity,
    source: &StateSource,
    (watch, latest): (&Watch<'_>, Option<Instant>),
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
    let deadline = earlier(Instant::now() + shared.config.dial_timeout, latest);
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
    (patience, latest): (Patience, Option<Instant>),
) -> Result<Vec<u8>, Fault> {
    let request = P2p::StateRequest(StateRequest { sync, key: item.key.clone() });
    let (sent_by, answered_by) = (Instant::now() + patience.stall, Instant::now() + patience.answer);
    stream.send_bytes(&request.to_frame(), earlier(sent_by, latest)).map_err(Fault::lost)?;
    let (kind, body) = stream.recv_packet(earlier(answered_by, latest)).map_err(Fault::lost)?;
    match P2p::from_frame(kind, &body).map_err(Fault::refused)? {
        P2p::StateAnswer(StateAnswer::Bytes(bytes)) if bytes == len as u64 => {}
        P2p::StateAnswer(StateAnswer::Bytes(bytes)) => {
            let text = format!("offers {bytes} bytes for tensor {}, {len} are needed", item.key);
            return Err(Fault::refused(text));
        }
        P2p::StateAnswer(StateAnswer::NotServing(_)) => {
            return Err(Fault::refused(format!("does not serve sync {sync}")));
        }
        P2p::StateAnswer(StateAnswer::UnknownKey(_)) => {
            return Err(Fault::refused(format!("has no tensor {}", item.key)));
        }
        P2p::StateRequest(_) => return Err(Fault::refused("a request where an answer belongs")),
    }
    log::trace!("fetching {} bytes of {}", len, item.key);
    let mut content = vec![0; len];
    stream.recv_exact_progress(&mut content, patience.stall, latest).map_err(Fault::lost)?;
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let digest = pccl_hash::tree_hash_parallel(&content, threads);
    if digest != item.digest {
        let text = format!("tensor {} arrived with hash {digest}, {} was elected", item.key, item.digest);
        return Err(Fault::refused(text));
    }
    Ok(content)
}
