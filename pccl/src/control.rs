//! The connection to the master, for callers that have something to say to it or wait for its answer.
//!
//! When the connection ends that something on the way may have closed, another one takes its place and goes on where it
//! was ([`pccl_protocol::Return`]): sent packets are kept until the master has them, and a caller that waits for an
//! answer waits on.
//!
//! It knows nothing of the session that it belongs to: what that does when the connection cannot go on by itself is
//! given to it as [`Callbacks`].

mod kept;

use crate::{Error, LossCause, Reason, error::End, flight};
use kept::Kept;
use parking_lot::{Condvar, Mutex};
use pccl_flight::Recorder;
use pccl_protocol::{Beat, C2m, CallKind, M2c, Received, RequestId};
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tinysockets::{
    conn::Conn,
    queued::{QueuedConfig, QueuedSocket, RecvError, TapFn},
};

/// How long a packet to the master may take to be written.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);

/// The work that the session does for its connection to the master.
pub(crate) struct Callbacks {
    /// Ends the session.
    pub(crate) finish: Box<dyn Fn(End) + Send + Sync>,
    /// Sends a packet on a thread that may wait.
    pub(crate) send_later: Box<dyn Fn(C2m) + Send + Sync>,
}

impl fmt::Debug for Callbacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Callbacks").finish_non_exhaustive()
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Control {
    flight: Arc<Recorder>,
    callbacks: Callbacks,
    /// The present connection, or the last one.
    socket: Mutex<Option<Arc<QueuedSocket<M2c>>>>,
    /// There is another one, or none will come; goes with `socket`.
    changed: Condvar,
    /// Packets that the master may not have. Locked while something is sent, so that packets leave in their order.
    sent: Mutex<Kept>,
    /// Packets of the master that have come and are counted.
    received: AtomicU64,
    heard: Mutex<Instant>,
    end: Mutex<Option<End>>,
    requests: AtomicU64,
}

impl Control {
    /// Without a connection: a packet that is sent before [`Control::open`] goes nowhere.
    pub(crate) fn new(flight: Arc<Recorder>, callbacks: Callbacks) -> Self {
        Self {
            flight,
            callbacks,
            socket: Mutex::default(),
            changed: Condvar::new(),
            sent: Mutex::default(),
            received: AtomicU64::new(0),
            heard: Mutex::new(Instant::now()),
            end: Mutex::new(None),
            requests: AtomicU64::new(0),
        }
    }

    /// There is a connection, the first one, or one that takes the place of the last: by that, the master has got
    /// this number of packets, and the others are sent again.
    pub(crate) fn open(
        &self,
        conn: Conn,
        config: QueuedConfig,
        tap: TapFn<M2c>,
        master_has: u64,
    ) -> std::io::Result<()> {
        let mut sent = self.sent.lock();
        if !sent.acknowledge(master_has) {
            let text = format!(
                "the master says that it has {master_has} packets: more than were sent, or fewer than it had \
                 confirmed, as one that goes on from an older copy of its journal"
            );
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, text));
        }
        let before = self.socket.lock().clone();
        let socket = Arc::new(QueuedSocket::start_after(conn, config, tap, before.as_deref())?);
        *self.heard.lock() = Instant::now();
        *self.socket.lock() = Some(socket.clone());
        self.changed.notify_all();
        // It may have ended before it was visible to those who close it.
        if let Some(end) = self.end() {
            drop(sent);
            socket.close(&end.to_string());
            return Ok(());
        }
        if let Err(error) = socket.send(&sent.bytes(), Some(Instant::now() + SEND_TIMEOUT)) {
            socket.break_off(&format!("cannot send again what the master has not got: {error}"));
        }
        Ok(())
    }

    fn socket(&self) -> Option<Arc<QueuedSocket<M2c>>> {
        self.socket.lock().clone()
    }

    /// Whether there is a connection that has not ended, as far as is known.
    pub(crate) fn is_connected(&self) -> bool {
        self.socket().is_some_and(|socket| socket.close_reason().is_none())
    }

    /// Packets of the master that have come, for a connection that takes the place of this one. `None`: none can, since
    /// not all is kept that would have to be sent again.
    pub(crate) fn can_go_on(&self) -> Option<u64> {
        self.sent.lock().is_complete().then(|| self.received.load(Ordering::Relaxed))
    }

    /// The master has this number of packets.
    pub(crate) fn acknowledged(&self, count: u64) {
        // The next one says it, too.
        if let Some(mut sent) = self.sent.try_lock() {
            sent.acknowledge(count);
        }
    }

    /// Sends a beat, and how many packets have come. Only while there is a connection: the next beat says more.
    pub(crate) fn send_beat(&self, beat: Beat) {
        if self.is_connected() {
            let received = Received { count: self.received.load(Ordering::Relaxed) };
            self.send_all(&[C2m::Beat(beat), C2m::Received(received)]);
        }
    }

    /// Ends the connection.
    pub(crate) fn close(&self, why: &str) {
        if let Some(socket) = self.socket() {
            socket.close(why);
        }
        let _socket = self.socket.lock();
        self.changed.notify_all();
    }

    /// The connection leads nowhere: another one is looked for.
    pub(crate) fn break_off(&self, why: &str) {
        if let Some(socket) = self.socket() {
            socket.break_off(why);
        }
    }

    /// Waits so long, less if the session ends.
    pub(crate) fn pause(&self, time: Duration) {
        let deadline = Instant::now() + time;
        let mut socket = self.socket.lock();
        while self.end().is_none() && !self.changed.wait_until(&mut socket, deadline).timed_out() {}
    }

    /// Why the session ended, if it has.
    pub(crate) fn end(&self) -> Option<End> {
        self.end.lock().clone()
    }

    /// The error of a call that found the session ended.
    pub(crate) fn end_error(&self) -> Error {
        self.end().map_or(Error::NotConnected, |end| end.to_error())
    }

    /// Notes why the session ended. `false`: it had ended before.
    pub(crate) fn note_end(&self, end: &End) -> bool {
        let mut slot = self.end.lock();
        let is_first = slot.is_none();
        slot.get_or_insert_with(|| end.clone());
        is_first
    }

    /// Ends the session because of this master: every operation gets its result, every wait ends.
    pub(crate) fn lose(&self, why: Reason<LossCause>) {
        (self.callbacks.finish)(End::MasterLost(why));
    }

    /// A number for a new request.
    pub(crate) fn next_request(&self) -> RequestId {
        RequestId(self.requests.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Sends a packet to the master: over this connection or, if it ends before that, over the next one.
    pub(crate) fn send(&self, packet: &C2m) {
        self.send_all(std::slice::from_ref(packet));
    }

    /// As [`Control::send`], of several packets at once.
    pub(crate) fn send_all(&self, packets: &[C2m]) {
        let mut sent = self.sent.lock();
        let Some(socket) = self.socket() else { return };
        let mut frames = Vec::new();
        for packet in packets {
            log::trace!("to master: {}", packet.name());
            flight::sent(&self.flight, packet);
            let frame = packet.to_frame();
            frames.extend_from_slice(&frame);
            sent.push(packet, frame);
        }
        // A connection that has ended tells everybody itself.
        if let Err(error) = socket.send(&frames, Some(Instant::now() + SEND_TIMEOUT))
            && error.kind() == std::io::ErrorKind::TimedOut
        {
            let name = packets.first().map_or("", C2m::name);
            socket.break_off(&format!("cannot send {name} to the master: {error}"));
        }
    }

    /// As [`Control::send`], for threads that must not wait: a packet that cannot be written at once is left to another
    /// one.
    pub(crate) fn send_soon(&self, packet: C2m) {
        let Some(mut sent) = self.sent.try_lock() else { return (self.callbacks.send_later)(packet) };
        let Some(socket) = self.socket() else { return };
        log::trace!("to master: {}", packet.name());
        flight::sent(&self.flight, &packet);
        let frame = packet.to_frame();
        match socket.send(&frame, Some(Instant::now())) {
            Err(error) if error.kind() == std::io::ErrorKind::TimedOut => {
                drop(sent);
                (self.callbacks.send_later)(packet);
            }
            // A connection that has ended tells everybody itself.
            _ => sent.push(&packet, frame),
        }
    }

    /// Reads what the master sends on the calling thread, until `done` or `deadline`. May return earlier: another
    /// thread may be at it, or there may be nothing more to read.
    pub(crate) fn read_until(&self, deadline: Option<Instant>, done: impl FnMut() -> bool) {
        if let Some(socket) = self.socket() {
            socket.read_until(deadline, done);
        }
    }

    /// Has the thread in [`Control::read_until`] look whether it is done.
    pub(crate) fn interrupt_reader(&self) {
        if let Some(socket) = self.socket() {
            socket.interrupt();
        }
    }

    /// Operations go on while no thread waits for them: packets of the master are to be read without delay.
    pub(crate) fn recall_reader(&self) {
        if let Some(socket) = self.socket() {
            socket.recall();
        }
    }

    /// Waits for a packet of the master that `pick` takes and does not give back. Bounded by the life of the session,
    /// which ends when the master is silent, and by `deadline`.
    pub(crate) fn receive<T>(
        &self,
        deadline: Option<Instant>,
        mut pick: impl FnMut(M2c) -> Result<T, M2c>,
    ) -> Result<T, Error> {
        let mut socket = self.socket().ok_or(Error::NotConnected)?;
        loop {
            match socket.recv_match(deadline, &mut pick) {
                Ok(found) => return Ok(found),
                Err(RecvError::TimedOut) => break,
                Err(RecvError::Closed(_)) => {}
            }
            match self.next_socket(&socket, deadline) {
                Some(next) => socket = next,
                None => break,
            }
        }
        if self.end().is_some() {
            return Err(self.end_error());
        }
        let text = "no answer from the master yet".into();
        Err(Error::TimedOut { call: CallKind::None, text, verdict: None })
    }

    /// Waits for the connection that takes the place of one that has ended. `None`: the session has ended as well, or
    /// the deadline passed. One of both comes about: the thread that notes the end of a connection ends the session, or
    /// has another connection looked for with a limit.
    fn next_socket(
        &self,
        before: &Arc<QueuedSocket<M2c>>,
        deadline: Option<Instant>,
    ) -> Option<Arc<QueuedSocket<M2c>>> {
        let mut socket = self.socket.lock();
        while self.end().is_none() {
            if let Some(next) = socket.as_ref().filter(|next| !Arc::ptr_eq(next, before)) {
                return Some(next.clone());
            }
            match deadline {
                None => self.changed.wait(&mut socket),
                Some(deadline) if self.changed.wait_until(&mut socket, deadline).timed_out() => return None,
                Some(_) => {}
            }
        }
        None
    }

    /// Throws away answers that nobody waits for any more. Only between calls.
    pub(crate) fn forget_answers(&self) {
        if let Some(socket) = self.socket() {
            while socket.recv_match(Instant::now(), |_| Ok(())).is_ok() {}
        }
    }

    /// A packet of the master has arrived.
    pub(crate) fn note_heard(&self, packet: &M2c) {
        self.received.fetch_add(u64::from(packet.is_numbered()), Ordering::Relaxed);
        *self.heard.lock() = Instant::now();
        log::trace!("from master: {}", packet.name());
        flight::received(&self.flight, packet);
    }

    /// How long nothing has been heard of the master. `stood_still` is for how long this process could not hear it
    /// since this was last asked: that is no silence.
    pub(crate) fn silence(&self, stood_still: Duration) -> Duration {
        let mut heard = self.heard.lock();
        *heard += stood_still;
        heard.elapsed()
    }
}
