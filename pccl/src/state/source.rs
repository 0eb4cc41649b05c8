//! The source that this peer fetches shared state from, watched: when the run loses that peer, or this session ends,
//! the fetch is over at once, however patient its time-outs are.

use crossbeam_channel::{Receiver, Sender};
use parking_lot::Mutex;
use pccl_protocol::PeerId;
use std::sync::atomic::{AtomicBool, Ordering};
use tinysockets::stream::StreamBreaker;

/// At most one source at a time, as a sync is alone.
#[derive(Debug, Default)]
pub(crate) struct SourceWatch {
    watched: Mutex<Option<Watched>>,
    /// The sync is over: no source is needed any more.
    is_stopped: AtomicBool,
}

#[derive(Debug)]
struct Watched {
    source: PeerId,
    /// Gone once the source is: that wakes whoever waits for the connection.
    alive: Option<Sender<()>>,
    breaker: Option<StreamBreaker>,
}

impl SourceWatch {
    /// Begins to watch `source`.
    pub(crate) fn begin(&self, source: PeerId) -> Watch<'_> {
        let (alive, gone) = crossbeam_channel::bounded(0);
        *self.watched.lock() = Some(Watched { source, alive: Some(alive), breaker: None });
        Watch { all: self, gone }
    }

    /// A sync is about to be voted for.
    pub(crate) fn start(&self) {
        self.is_stopped.store(false, Ordering::SeqCst);
    }

    /// The sync has its outcome: ends the fetch, if one is under way.
    pub(crate) fn stop(&self) {
        self.is_stopped.store(true, Ordering::SeqCst);
        self.keep(|_| false);
    }

    /// Whether the sync has its outcome.
    pub(crate) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::SeqCst)
    }

    /// Ends the fetch if its source is not among those that `remain`.
    pub(crate) fn keep(&self, remain: impl FnOnce(PeerId) -> bool) {
        if let Some(watched) = self.watched.lock().as_mut()
            && !remain(watched.source)
        {
            watched.alive = None;
            if let Some(breaker) = &watched.breaker {
                breaker.break_off();
            }
        }
    }
}

/// One source is watched for as long as this lives.
#[derive(Debug)]
pub(crate) struct Watch<'a> {
    all: &'a SourceWatch,
    gone: Receiver<()>,
}

impl Watch<'_> {
    /// Disconnected when the source is gone; nothing is ever sent.
    pub(crate) fn gone(&self) -> &Receiver<()> {
        &self.gone
    }

    /// Whether the source is gone.
    pub(crate) fn is_gone(&self) -> bool {
        self.all.watched.lock().as_ref().is_none_or(|watched| watched.alive.is_none())
    }

    /// From now on the connection breaks when the source goes; at once, if it has gone.
    pub(crate) fn connected(&self, breaker: StreamBreaker) {
        if let Some(watched) = self.all.watched.lock().as_mut() {
            if watched.alive.is_none() {
                breaker.break_off();
            }
            watched.breaker = Some(breaker);
        }
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        *self.all.watched.lock() = None;
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
    fn a_source_that_goes_ends_the_wait_and_the_connection() {
        let all = SourceWatch::default();
        let watch = all.begin(PeerId(1));
        all.keep(|peer| peer == PeerId(1));
        assert_eq!((watch.gone().try_recv(), watch.is_gone()), (Err(TryRecvError::Empty), false));
        let (near, mut far) = connection();
        watch.connected(near.breaker());
        all.keep(|peer| peer == PeerId(2));
        assert_eq!((watch.gone().try_recv(), watch.is_gone()), (Err(TryRecvError::Disconnected), true));
        assert_eq!(far.read(&mut [0]).expect("closed in order"), 0);
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
