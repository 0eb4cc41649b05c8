//! The sources that this peer fetches shared state from, watched: when the run loses one of them, or this session ends,
//! what waits for it is woken at once, however patient its time-outs are.

use crossbeam_channel::{Receiver, Sender};
use parking_lot::Mutex;
use pccl_protocol::PeerId;
use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
};
use tinysockets::stream::StreamBreaker;

/// All connections to sources; of one sync, as a sync is alone.
#[derive(Debug, Default)]
pub(crate) struct SourceWatch {
    watched: Mutex<Watched>,
    /// How often a fetch was ended.
    stops: AtomicU64,
}

#[derive(Debug, Default)]
struct Watched {
    last: u64,
    connections: BTreeMap<u64, Connection>,
}

#[derive(Debug)]
struct Connection {
    source: PeerId,
    /// Gone once the source is: that wakes the thread that waits for the connection.
    alive: Option<Sender<()>>,
    breaker: Option<StreamBreaker>,
}

impl SourceWatch {
    /// Begins to watch `source` for one connection to it.
    pub(crate) fn begin(&self, source: PeerId) -> Watch<'_> {
        let (alive, gone) = crossbeam_channel::bounded(0);
        let mut watched = self.watched.lock();
        watched.last += 1;
        let number = watched.last;
        watched.connections.insert(number, Connection { source, alive: Some(alive), breaker: None });
        Watch { all: self, number, gone }
    }

    /// A moment before a fetch is asked for: [`SourceWatch::stop`] ends it from now on.
    pub(crate) fn moment(&self) -> u64 {
        self.stops.load(Ordering::SeqCst)
    }

    /// There is no use any more in what is being fetched: the sync has its outcome, or there is something newer.
    pub(crate) fn stop(&self) {
        self.stops.fetch_add(1, Ordering::SeqCst);
        self.keep(|_| false);
    }

    /// Whether a fetch that was asked for after this moment has been ended.
    pub(crate) fn is_stopped_since(&self, moment: u64) -> bool {
        self.stops.load(Ordering::SeqCst) != moment
    }

    /// Ends all connections to sources that are not among those that `remain`.
    pub(crate) fn keep(&self, remain: impl Fn(PeerId) -> bool) {
        let mut watched = self.watched.lock();
        for connection in watched.connections.values_mut().filter(|one| !remain(one.source)) {
            connection.alive = None;
            if let Some(breaker) = &connection.breaker {
                breaker.break_off();
            }
        }
    }
}

/// One connection is watched for as long as this lives.
#[derive(Debug)]
pub(crate) struct Watch<'a> {
    all: &'a SourceWatch,
    number: u64,
    gone: Receiver<()>,
}

impl Watch<'_> {
    /// Disconnected when the source is gone; nothing is ever sent.
    pub(crate) fn gone(&self) -> &Receiver<()> {
        &self.gone
    }

    /// Whether the source is gone.
    pub(crate) fn is_gone(&self) -> bool {
        self.all.watched.lock().connections.get(&self.number).is_none_or(|one| one.alive.is_none())
    }

    /// From now on the connection breaks when the source goes; at once, if it has gone.
    pub(crate) fn connected(&self, breaker: StreamBreaker) {
        if let Some(connection) = self.all.watched.lock().connections.get_mut(&self.number) {
            if connection.alive.is_none() {
                breaker.break_off();
            }
            connection.breaker = Some(breaker);
        }
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.all.watched.lock().connections.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::TryRecvError;
    use std::{
        io::Read,
        net::{TcpListener, TcpStream},
        time::Duration,
    };
    use tinysockets::stream::PacketStream;

    fn connection() -> (PacketStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let near = TcpStream::connect(listener.local_addr().expect("bound")).expect("listens");
        let (far, _) = listener.accept().expect("somebody dials");
        far.set_read_timeout(Some(Duration::from_secs(20))).expect("a time-out");
        (PacketStream::new(near.into(), 100), far)
    }

    #[test]
    fn a_source_that_goes_ends_the_waits_for_it_and_its_connections_and_no_others() {
        let all = SourceWatch::default();
        let (watch, second, other) = (all.begin(PeerId(1)), all.begin(PeerId(1)), all.begin(PeerId(2)));
        all.keep(|peer| peer <= PeerId(2));
        assert_eq!((watch.gone().try_recv(), watch.is_gone()), (Err(TryRecvError::Empty), false));
        let (near, mut far) = connection();
        watch.connected(near.breaker());
        let (near_other, mut far_other) = connection();
        other.connected(near_other.breaker());
        all.keep(|peer| peer == PeerId(2));
        for gone in [&watch, &second] {
            assert_eq!((gone.gone().try_recv(), gone.is_gone()), (Err(TryRecvError::Disconnected), true));
        }
        assert_eq!(far.read(&mut [0]).expect("closed in order"), 0);
        assert!(!other.is_gone());
        let moment = all.moment();
        assert!(!all.is_stopped_since(moment));
        all.stop();
        assert!(other.is_gone() && all.is_stopped_since(moment) && !all.is_stopped_since(all.moment()));
        assert_eq!(far_other.read(&mut [0]).expect("closed in order"), 0);
    }

    #[test]
    fn a_connection_that_comes_after_the_end_is_broken_at_once() {
        let all = SourceWatch::default();
        let watch = all.begin(PeerId(1));
        all.keep(|_| false);
        let (near, mut far) = connection();
        watch.connected(near.breaker());
        assert_eq!(far.read(&mut [0]).expect("closed in order"), 0);
        drop(watch);
        // The next one is not concerned.
        let watch = all.begin(PeerId(1));
        assert!(!watch.is_gone());
    }
}
