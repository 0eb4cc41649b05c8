//! The common part of event loops: one thread waits for many connections, accepts more, and knows which of them are to
//! be read and to which something may be written. The loop itself reads and writes.

use crate::{conn::Conn, listeners::Listeners};
use mio::{Events, Interest, Poll, Registry, Token, Waker, event::Source};
use std::{
    collections::BTreeSet,
    io, mem,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

const WAKER: Token = Token(usize::MAX);
const LISTENERS: Token = Token(usize::MAX - 1);
const OTHERS: Token = Token(usize::MAX - 2);
const EVENTS_PER_POLL: usize = 1024;
/// Longest wait: a loop wakes up this often even if nothing happens, so that a time in which the process stood still is
/// measured to this accuracy.
const PULSE: Duration = Duration::from_millis(500);
/// Shortest wait for a deadline, so that one that cannot be met never makes a loop spin.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

/// The descriptors of an event loop. Connections have keys, which count up from 1 and are never used again.
#[derive(Debug)]
pub struct Reactor {
    poll: Poll,
    events: Events,
    stop: Arc<AtomicBool>,
    waker: Arc<Waker>,
    /// Gone once nobody is accepted any more.
    listeners: Option<Listeners>,
    next_key: u64,
    /// Connections that may have something to read.
    readable: BTreeSet<u64>,
    /// Connections to which something may be written.
    dirty: BTreeSet<u64>,
    /// Connections whose other end has closed, or that have failed.
    over: BTreeSet<u64>,
    /// Something has come for what only ends waits.
    is_woken: bool,
}

/// Wakes a loop up to stop it.
#[derive(Debug, Clone)]
pub struct Stopper {
    stop: Arc<AtomicBool>,
    waker: Arc<Waker>,
}

impl Stopper {
    /// Asks the loop to stop. Takes no lock, allocates nothing.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        // The flag is looked at every `PULSE` anyway, so a failed wake-up costs that time and nothing else.
        let _ = self.waker.wake();
    }
}

impl Reactor {
    /// Accepts from all of these.
    ///
    /// # Errors
    /// The error of the system.
    pub fn new(listeners: Vec<std::net::TcpListener>) -> io::Result<Self> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        let listeners = Listeners::register(listeners, poll.registry(), LISTENERS)?;
        Ok(Self {
            poll,
            events: Events::with_capacity(EVENTS_PER_POLL),
            stop: Arc::default(),
            waker,
            listeners: Some(listeners),
            next_key: 1,
            readable: BTreeSet::new(),
            dirty: BTreeSet::new(),
            over: BTreeSet::new(),
            is_woken: false,
        })
    }

    /// The key of the next connection.
    pub fn next_key(&self) -> u64 {
        self.next_key
    }

    /// Connections get keys from this one on, if theirs would be smaller.
    pub fn begin_keys_at(&mut self, key: u64) {
        self.next_key = self.next_key.max(key);
    }

    /// Ends a wait, from any thread.
    pub fn waker(&self) -> Arc<Waker> {
        Arc::clone(&self.waker)
    }

    /// Something with which another thread can ask the loop to stop.
    pub fn stopper(&self) -> Stopper {
        Stopper { stop: Arc::clone(&self.stop), waker: self.waker() }
    }

    /// Whether it was asked to stop.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Closes the listening sockets.
    pub fn stop_listening(&mut self) {
        self.listeners = None;
    }

    /// How long a loop may wait that has to do something at `deadline`, if there is one.
    pub fn time_to_wait(&self, deadline: Option<Instant>) -> Duration {
        let can_accept = self.listeners.as_ref().is_some_and(Listeners::is_ready);
        if can_accept || !self.readable.is_empty() || !self.dirty.is_empty() {
            return Duration::ZERO;
        }
        let of_accept = self.listeners.as_ref().and_then(Listeners::deadline);
        let Some(earliest) = deadline.into_iter().chain(of_accept).min() else { return PULSE };
        earliest.saturating_duration_since(Instant::now()).clamp(SHORTEST_WAIT, PULSE)
    }

    /// Waits until something happens, for this time at most, and notes what. A signal handler of the host program that
    /// interrupts the wait ends it early.
    ///
    /// # Errors
    /// The event queue of the system failed.
    pub fn wait(&mut self, time: Duration) -> io::Result<()> {
        match self.poll.poll(&mut self.events, Some(time)) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            Err(error) => return Err(error),
        }
        for event in &self.events {
            match event.token() {
                WAKER => {}
                OTHERS => self.is_woken = true,
                LISTENERS => {
                    if let Some(listeners) = &mut self.listeners {
                        listeners.set_ready();
                    }
                }
                Token(token) => {
                    let key = token as u64;
                    if event.is_writable() {
                        self.dirty.insert(key);
                    }
                    let is_over = event.is_read_closed() || event.is_error();
                    if is_over {
                        self.over.insert(key);
                    }
                    if event.is_readable() || is_over {
                        self.readable.insert(key);
                    }
                }
            }
        }
        Ok(())
    }

    /// Accepts what waits, a bounded number at a time: keys, connections, and who they are from.
    pub fn accept(&mut self, now: Instant) -> Vec<(u64, Conn, SocketAddr)> {
        let Some(listeners) = &mut self.listeners else { return Vec::new() };
        let mut accepted = Vec::new();
        for (mut stream, remote) in listeners.accept(now) {
            // A socket of both families shows IPv4 addresses in their IPv6 form.
            let remote = SocketAddr::new(remote.ip().to_canonical(), remote.port());
            match stream.send_at_once().and_then(|()| self.add(&mut stream)) {
                Ok(key) => accepted.push((key, stream, remote)),
                Err(error) => {
                    log::debug!("{remote}: connection lost right after it was accepted: {error}");
                }
            }
        }
        accepted
    }

    /// Takes a connection in; its key.
    ///
    /// # Errors
    /// The error of the system.
    pub fn add(&mut self, source: &mut impl Source) -> io::Result<u64> {
        let key = self.next_key;
        self.next_key += 1;
        // Both at once: events are edges here, and each edge is remembered in `readable` or `dirty`.
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.registry().register(source, Token(key as usize), interest)?;
        Ok(key)
    }

    /// Takes something in that only ends waits, and whose edges [`Reactor::take_woken`] tells.
    ///
    /// # Errors
    /// The error of the system.
    pub fn add_waking(&mut self, source: &mut impl Source) -> io::Result<()> {
        self.registry().register(source, OTHERS, Interest::READABLE)
    }

    /// Whether something has come, since this was asked last, for what [`Reactor::add_waking`] has taken in.
    pub fn take_woken(&mut self) -> bool {
        mem::take(&mut self.is_woken)
    }

    /// Forgets a connection, which is to be closed then.
    pub fn remove(&mut self, key: u64, source: &mut impl Source) {
        self.forget(key);
        // Closing the socket takes it out of the event queue as well, so a failure here changes nothing.
        let _ = self.registry().deregister(source);
    }

    /// A connection goes on under another key: that of one which was removed.
    ///
    /// # Errors
    /// The error of the system.
    pub fn rekey(&mut self, from: u64, to: u64, source: &mut impl Source) -> io::Result<()> {
        self.forget(from);
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.registry().reregister(source, Token(to as usize), interest)?;
        // Edges that came under the old key are over.
        self.readable.insert(to);
        self.dirty.insert(to);
        Ok(())
    }

    fn forget(&mut self, key: u64) {
        self.readable.remove(&key);
        self.dirty.remove(&key);
        self.over.remove(&key);
    }

    fn registry(&self) -> &Registry {
        self.poll.registry()
    }

    /// This connection may have more to read than was read.
    pub fn mark_readable(&mut self, key: u64) {
        self.readable.insert(key);
    }

    /// Whether the end of a connection may stand behind what it still gives. If not, a reader that has received less
    /// than it had room for has received all, and hears of more.
    pub fn may_be_over(&self, key: u64) -> bool {
        self.over.contains(&key)
    }

    /// There is something to be written to this connection.
    pub fn mark_dirty(&mut self, key: u64) {
        self.dirty.insert(key);
    }

    /// Whether a connection may have something to read.
    pub fn has_readable(&self) -> bool {
        !self.readable.is_empty()
    }

    /// Connections that may have something to read, each once; some may be gone. A connection that is not read empty is
    /// to be marked again.
    pub fn take_readable(&mut self) -> BTreeSet<u64> {
        mem::take(&mut self.readable)
    }

    /// Connections to which something may be written, each once; some may be gone.
    pub fn take_dirty(&mut self) -> BTreeSet<u64> {
        mem::take(&mut self.dirty)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listeners::bind_all;
    use std::{io::Write, net::TcpStream, thread};

    fn reactor() -> (Reactor, SocketAddr) {
        let listeners = bind_all(&["127.0.0.1:0".parse().unwrap()]).unwrap();
        let address = listeners[0].local_addr().unwrap();
        (Reactor::new(listeners).unwrap(), address)
    }

    /// Waits until this gives something, with a limit.
    fn until<T>(reactor: &mut Reactor, mut get: impl FnMut(&mut Reactor) -> Option<T>) -> T {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            if let Some(value) = get(reactor) {
                return value;
            }
            assert!(Instant::now() < deadline, "nothing has happened");
            let time = reactor.time_to_wait(Some(deadline));
            reactor.wait(time).unwrap();
        }
    }

    #[test]
    fn who_connects_and_writes_is_read_once_for_each_edge() {
        let (mut reactor, address) = reactor();
        let mut client = TcpStream::connect(address).unwrap();
        let (key, mut conn, remote) = until(&mut reactor, |reactor| reactor.accept(Instant::now()).pop());
        assert_eq!((key, remote), (1, client.local_addr().unwrap()));
        client.write_all(b"ab").unwrap();
        until(&mut reactor, |reactor| {
            reactor.take_dirty();
            reactor.take_readable().contains(&key).then_some(())
        });
        let mut buffer = [0; 1];
        assert_eq!(conn.try_recv(&mut buffer).unwrap(), 1);
        // The edge is over; a loop that has not read all must say so.
        assert!(!reactor.has_readable() && !reactor.may_be_over(key));
        reactor.mark_readable(key);
        assert_eq!(reactor.time_to_wait(None), Duration::ZERO);
        client.shutdown(std::net::Shutdown::Write).unwrap();
        until(&mut reactor, |reactor| reactor.may_be_over(key).then_some(()));
        reactor.remove(key, &mut conn);
        assert!(!reactor.has_readable() && !reactor.may_be_over(key));
        drop(conn);
        reactor.stop_listening();
        assert!(TcpStream::connect(address).is_err());
    }

    #[test]
    fn what_only_ends_waits_is_told_once_for_each_edge() {
        let (mut reactor, _) = reactor();
        let address = "127.0.0.1:0".parse().unwrap();
        let mut listener = mio::net::TcpListener::bind(address).unwrap();
        reactor.add_waking(&mut listener).unwrap();
        assert!(!reactor.take_woken());
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        until(&mut reactor, |reactor| reactor.take_woken().then_some(()));
        listener.accept().unwrap();
        reactor.wait(Duration::ZERO).unwrap();
        assert!(!reactor.take_woken());
    }

    #[test]
    fn deadlines_and_other_threads_end_a_wait() {
        let (mut reactor, _) = reactor();
        assert!(reactor.accept(Instant::now()).is_empty());
        assert_eq!(reactor.time_to_wait(None), PULSE);
        assert_eq!(reactor.time_to_wait(Some(Instant::now())), SHORTEST_WAIT);
        let stopper = reactor.stopper();
        let thread = thread::spawn(move || stopper.stop());
        let began = Instant::now();
        reactor.wait(Duration::from_secs(30)).unwrap();
        assert!(began.elapsed() < Duration::from_secs(25) && reactor.is_stopped());
        thread.join().unwrap();
    }
}
