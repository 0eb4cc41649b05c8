//! The relay itself: takes visitors, and moves the bytes of those who have met.

use std::{
    io,
    net::Shutdown,
    os::fd::AsFd,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::pairing::{Pairing, Place, place_of};
use crate::{
    acceptor::{AcceptLimits, Acceptor, Incoming},
    bucket::{Bucket, Rate},
    conn::Conn,
    listener::Listener,
    preamble::{Refusal, Reply, Role, SECURITY_OFF},
    sys::{self, Interest, PollEntry, Waker},
    threads,
    ticket::Lock,
};

/// Bytes that are kept for each direction of a pair, and moved at once.
const BUFFER_BYTES: usize = 64 << 10;
/// Less than this is not worth a call: a relay that has used up the rate waits until there is so much of it.
const LEAST_BYTES: usize = 16 << 10;
/// Bytes that the system keeps for each direction of a connection.
const SYSTEM_BUFFER_BYTES: usize = 1 << 20;
/// Pause after a wait for connections has failed.
const PAUSE: Duration = Duration::from_millis(100);

/// Limits of the resources that visitors may take.
#[derive(Debug, Clone, Copy)]
pub struct RelayLimits {
    /// For all bytes together, each counted once.
    pub bytes_per_second: u64,
    /// Pairs at once. As many again may wait for somebody.
    pub pairs_max: usize,
    /// How long a visitor waits for the other one.
    pub patience: Duration,
}

/// The work that a relay has done, and the visitors that it serves.
#[derive(Debug, Default)]
pub struct Gauge {
    bytes: AtomicU64,
    connections: AtomicUsize,
    pairs: Mutex<Vec<(u128, u128)>>,
}

impl Gauge {
    /// Bytes that were relayed.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The visitors that have met and are connected now; of each pair first the one that has begun, once for each
    /// connection.
    #[must_use]
    pub fn pairs(&self) -> Vec<(u128, u128)> {
        self.pairs.lock().clone()
    }
}

/// Somebody who was let in, and where it belongs.
type Visitor = (Place, (u128, u128), Seat);

/// A running relay. Dropping it closes all of its connections.
#[derive(Debug)]
pub struct Relay {
    acceptor: Acceptor,
    gauge: Arc<Gauge>,
    stop: Arc<AtomicBool>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// Starts one, for visitors of this run that know the token, and prove a key if there is a lock.
    ///
    /// # Errors
    /// If the system has no thread or descriptor for it.
    pub fn start(
        listener: Listener,
        lock: Option<Lock>,
        (run, token): (u128, u64),
        limits: RelayLimits,
    ) -> io::Result<Self> {
        let (gauge, stop, waker) = (Arc::<Gauge>::default(), Arc::<AtomicBool>::default(), Waker::new()?);
        let inbox = Arc::<Mutex<Vec<Visitor>>>::default();
        let rate = Rate {
            burst: (limits.bytes_per_second as f64 / 10.0).max(BUFFER_BYTES as f64),
            per_second: limits.bytes_per_second.max(1) as f64,
        };
        let mut work = Work {
            inbox: inbox.clone(),
            waker: waker.clone(),
            stop: stop.clone(),
            gauge: gauge.clone(),
            patience: limits.patience,
            pairing: Pairing::default(),
            splices: Vec::new(),
            bucket: Bucket::full(&rate, Instant::now()),
            rate,
        };
        let (for_handler, knocks, is_locked) = (gauge.clone(), waker.clone(), lock.is_some());
        let handler = Box::new(move |incoming: Incoming| {
            let preamble = incoming.preamble;
            if preamble.role != Role::Relay {
                return incoming.refuse(Refusal::WrongRole);
            }
            if preamble.run != run {
                return incoming.refuse(Refusal::WrongRun);
            }
            if preamble.epoch != token {
                return incoming.refuse(Refusal::NotExpected);
            }
            if is_locked && preamble.security != SECURITY_OFF {
                return incoming.refuse(Refusal::UnsupportedSecurity);
            }
            if for_handler.connections.load(Ordering::Relaxed) >= 4 * limits.pairs_max {
                return incoming.refuse(Refusal::Full);
            }
            let Ok(conn) = incoming.accept() else { return };
            prepare(&conn);
            let seat = Seat::take(conn, for_handler.clone());
            inbox.lock().push((place_of(&preamble), (preamble.from, preamble.to), seat));
            knocks.wake();
        });
        let acceptor =
            Acceptor::spawn(vec![(Role::Relay, listener)], AcceptLimits::default(), lock, handler)?;
        let pairs_max = limits.pairs_max;
        let thread = threads::spawn("pccl-relay", move || work.run(pairs_max))?;
        Ok(Self { acceptor, gauge, stop, waker, thread: Some(thread) })
    }

    /// The port that it listens on.
    #[must_use]
    pub fn local_port(&self) -> u16 {
        self.acceptor.local_port(0).unwrap_or(0)
    }

    /// The gauge of its work.
    #[must_use]
    pub fn gauge(&self) -> Arc<Gauge> {
        self.gauge.clone()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.acceptor.shutdown();
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            log::error!("the thread of the relay had panicked");
        }
    }
}

/// An option that cannot be set is left as it is.
fn prepare(conn: &Conn) {
    if let Err(error) = conn.bound_system_buffers(SYSTEM_BUFFER_BYTES) {
        log::debug!("a connection to the relay is not set up as it should be: {error}");
    }
}

/// A connection that counts as long as it lives.
#[derive(Debug)]
struct Seat {
    conn: Conn,
    gauge: Arc<Gauge>,
}

impl Seat {
    fn take(conn: Conn, gauge: Arc<Gauge>) -> Self {
        gauge.connections.fetch_add(1, Ordering::Relaxed);
        Self { conn, gauge }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.gauge.connections.fetch_sub(1, Ordering::Relaxed);
        // Closing a connection with unread bytes resets it, and the bytes that the other end has not read yet are lost.
        let _ = self.conn.shutdown(Shutdown::Write);
        let _ = self.conn.try_recv(&mut [0; 1024]);
    }
}

/// Bytes that one end has sent and the other one has not taken yet.
#[derive(Debug)]
struct Buffer {
    bytes: Box<[u8]>,
    filled: std::ops::Range<usize>,
}

impl Buffer {
    fn new() -> Self {
        Self { bytes: vec![0; BUFFER_BYTES].into(), filled: 0..0 }
    }

    /// Takes at most this number of bytes of an end, if it is empty; how many. `None`: that end is dead.
    fn fill(&mut self, from: &Conn, at_most: usize) -> Option<usize> {
        if !self.filled.is_empty() || at_most == 0 {
            return Some(0);
        }
        let room = at_most.min(BUFFER_BYTES);
        match from.try_recv(&mut self.bytes[..room]) {
            Ok(0) => None,
            Ok(count) => {
                self.filled = 0..count;
                Some(count)
            }
            Err(error) if is_for_now(&error) => Some(0),
            Err(_) => None,
        }
    }

    /// Gives an end what it takes. `None`: it is dead.
    fn drain(&mut self, to: &Conn) -> Option<()> {
        while !self.filled.is_empty() {
            match to.try_send(&self.bytes[self.filled.clone()]) {
                Ok(count) => self.filled.start += count,
                Err(error) if is_for_now(&error) => break,
                Err(_) => return None,
            }
        }
        Some(())
    }
}

fn is_for_now(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Two ends that have met.
#[derive(Debug)]
struct Splice {
    ends: [Seat; 2],
    names: (u128, u128),
    /// From the end with the same index to the other one.
    buffers: [Buffer; 2],
}

impl Splice {
    /// Tells both that the other one is here.
    fn join(one: Seat, other: Seat, names: (u128, u128)) -> io::Result<Self> {
        for seat in [&one, &other] {
            seat.conn.send_all(&Reply::Accepted.encode(), Some(Instant::now()))?;
        }
        Ok(Self { ends: [one, other], names, buffers: [Buffer::new(), Buffer::new()] })
    }

    /// The event to wait for at one of its ends, if anything.
    fn interest(&self, end: usize, may_read: bool) -> Option<Interest> {
        let reads = may_read && self.buffers[end].filled.is_empty();
        match (reads, !self.buffers[1 - end].filled.is_empty()) {
            (true, true) => Some(Interest::ReadWrite),
            (true, false) => Some(Interest::Read),
            (false, true) => Some(Interest::Write),
            (false, false) => None,
        }
    }

    /// Moves what can be moved; how many bytes were taken. `None`: one of the ends is dead.
    fn advance(&mut self, mut left: usize) -> Option<usize> {
        let mut taken = 0;
        for end in 0..2 {
            self.buffers[end].drain(&self.ends[1 - end].conn)?;
            let count = self.buffers[end].fill(&self.ends[end].conn, left)?;
            self.buffers[end].drain(&self.ends[1 - end].conn)?;
            (taken, left) = (taken + count, left.saturating_sub(count));
        }
        Some(taken)
    }
}

struct Work {
    inbox: Arc<Mutex<Vec<Visitor>>>,
    waker: Waker,
    stop: Arc<AtomicBool>,
    gauge: Arc<Gauge>,
    patience: Duration,
    pairing: Pairing<Seat>,
    splices: Vec<Splice>,
    bucket: Bucket<Instant>,
    rate: Rate,
}

impl Work {
    fn run(&mut self, pairs_max: usize) {
        while !self.stop.load(Ordering::Acquire) {
            let now = Instant::now();
            self.let_in(pairs_max, now);
            self.move_bytes();
            if let Err(error) = self.wait() {
                log::warn!("the relay waits for connections: {error}");
                thread::park_timeout(PAUSE);
            }
        }
    }

    /// Bytes that may be taken now.
    fn left(&self, now: Instant) -> usize {
        self.bucket.left(&self.rate, now) as usize
    }

    /// Waits until there is something to do; closes visitors that end while they wait, or have waited for too long.
    fn wait(&mut self) -> io::Result<()> {
        let now = Instant::now();
        let may_read = self.left(now) >= LEAST_BYTES;
        let mut entries = vec![PollEntry::new(self.waker.as_fd(), Interest::Read)];
        entries.extend(self.pairing.waiting().map(|seat| seat.conn.poll_entry(Interest::Read)));
        let visitors = entries.len();
        for splice in &self.splices {
            let of_end = |end: usize| Some(splice.ends[end].conn.poll_entry(splice.interest(end, may_read)?));
            entries.extend((0..2).filter_map(of_end));
        }
        let of_rate = now + self.bucket.wait_for(&self.rate, now, LEAST_BYTES as f64);
        let of_rate = (!may_read && !self.splices.is_empty()).then_some(of_rate);
        let deadline = self.pairing.deadline().into_iter().chain(of_rate).min();
        sys::poll_many(&mut entries, deadline)?;
        let mut ready: Vec<bool> = entries[..visitors].iter().map(|entry| entry.readiness().any()).collect();
        if ready.remove(0) {
            self.waker.clear();
        }
        // A waiting visitor has nothing to say, so this is its end.
        let mut ready = ready.into_iter();
        self.pairing.retain(Instant::now(), |_| !ready.next().unwrap_or(false));
        Ok(())
    }

    /// Takes those who have come.
    fn let_in(&mut self, pairs_max: usize, now: Instant) {
        let arrived = std::mem::take(&mut *self.inbox.lock());
        for (place, (me, other), seat) in arrived {
            let names = if place.1 { (me, other) } else { (other, me) };
            let Some((one, two)) = self.pairing.meet(place, seat, now + self.patience) else { continue };
            if self.splices.len() >= pairs_max {
                log::warn!("the relay has no room for another pair: {pairs_max} are connected");
                continue;
            }
            match Splice::join(one, two, names) {
                Ok(splice) => {
                    log::info!("the relay connects {:032x} and {:032x}", names.0, names.1);
                    self.splices.push(splice);
                }
                Err(error) => log::debug!("a visitor of the relay has gone: {error}"),
            }
        }
        self.tell_pairs();
    }

    fn move_bytes(&mut self) {
        // The first pair gets the rest of the rate; so the order changes.
        if !self.splices.is_empty() {
            self.splices.rotate_left(1);
        }
        let now = Instant::now();
        let mut left = self.left(now);
        let mut moved = 0;
        let before = self.splices.len();
        self.splices.retain_mut(|splice| {
            let may = if left >= LEAST_BYTES { left } else { 0 };
            let Some(taken) = splice.advance(may) else { return false };
            (left, moved) = (left.saturating_sub(taken), moved + taken);
            true
        });
        self.bucket.take(&self.rate, now, moved as f64);
        self.gauge.bytes.fetch_add(moved as u64, Ordering::Relaxed);
        if self.splices.len() != before {
            self.tell_pairs();
        }
    }

    fn tell_pairs(&self) {
        *self.gauge.pairs.lock() = self.splices.iter().map(|splice| splice.names).collect();
    }
}
