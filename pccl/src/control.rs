//! The connection to the master, for whoever has something to say to it or waits for its answer.
//!
//! It knows nothing of the session that it belongs to: what that does when the connection cannot go on by itself is
//! given to it as [`Callbacks`].

use crate::{Error, LossCause, Reason, error::End, flight};
use parking_lot::Mutex;
use pccl_flight::Recorder;
use pccl_protocol::{C2m, CallKind, M2c, RequestId};
use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tinysockets::queued::{QueuedSocket, RecvError};

/// How long a packet to the master may take to be written.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);

/// What the session does for its connection to the master.
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
    socket: OnceLock<QueuedSocket<M2c>>,
    heard: Mutex<Instant>,
    end: Mutex<Option<End>>,
    requests: AtomicU64,
}

impl Control {
    /// Without a connection: what is sent before [`Control::open`] goes nowhere.
    pub(crate) fn new(flight: Arc<Recorder>, callbacks: Callbacks) -> Self {
        Self {
            flight,
            callbacks,
            socket: OnceLock::new(),
            heard: Mutex::new(Instant::now()),
            end: Mutex::new(None),
            requests: AtomicU64::new(0),
        }
    }

    /// There is a connection.
    pub(crate) fn open(&self, socket: QueuedSocket<M2c>) {
        let _ = self.socket.set(socket);
        // It may have ended before it was visible to those who close it.
        if let Some(end) = self.end() {
            self.close(&end.to_string());
        }
    }

    /// Ends the connection.
    pub(crate) fn close(&self, why: &str) {
        if let Some(socket) = self.socket.get() {
            socket.close(why);
        }
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

    /// Sends a packet to the master. If that is not possible, the session ends, and with it whatever waits for an
    /// answer.
    pub(crate) fn send(&self, packet: &C2m) {
        let Some(socket) = self.socket.get() else { return };
        log::trace!("to master: {}", packet.name());
        flight::sent(&self.flight, packet);
        if let Err(error) = socket.send(&packet.to_frame(), Some(Instant::now() + SEND_TIMEOUT)) {
            let text = format!("cannot send {} to the master: {error}", packet.name());
            self.lose(Reason::new(LossCause::Broken, text).because(error));
        }
    }

    /// As [`Control::send`], for threads that must not wait: what cannot be written at once is left to another one.
    pub(crate) fn send_soon(&self, packet: C2m) {
        let Some(socket) = self.socket.get() else { return };
        log::trace!("to master: {}", packet.name());
        flight::sent(&self.flight, &packet);
        match socket.send(&packet.to_frame(), Some(Instant::now())) {
            Err(error) if error.kind() == std::io::ErrorKind::TimedOut => (self.callbacks.send_later)(packet),
            // A connection that has ended tells everybody itself.
            _ => {}
        }
    }

    /// Reads what the master sends on the calling thread, until `done` or `deadline`. May return earlier: another
    /// thread may be at it, or there may be nothing more to read.
    pub(crate) fn read_until(&self, deadline: Option<Instant>, done: impl FnMut() -> bool) {
        if let Some(socket) = self.socket.get() {
            socket.read_until(deadline, done);
        }
    }

    /// Has the thread in [`Control::read_until`] look whether it is done.
    pub(crate) fn interrupt_reader(&self) {
        if let Some(socket) = self.socket.get() {
            socket.interrupt();
        }
    }

    /// Operations go on while no thread waits for them: packets of the master are to be read without delay.
    pub(crate) fn recall_reader(&self) {
        if let Some(socket) = self.socket.get() {
            socket.recall();
        }
    }

    /// Waits for a packet of the master that `pick` takes and does not give back. Bounded by the life of the session,
    /// which ends when the master is silent, and by `deadline`.
    pub(crate) fn receive<T>(
        &self,
        deadline: Option<Instant>,
        pick: impl FnMut(M2c) -> Result<T, M2c>,
    ) -> Result<T, Error> {
        let socket = self.socket.get().ok_or(Error::NotConnected)?;
        let found = socket.recv_match(deadline, pick);
        found.map_err(|error| match self.end() {
            Some(end) => end.to_error(),
            None => match error {
                RecvError::TimedOut => Error::TimedOut {
                    call: CallKind::None,
                    text: "no answer from the master yet".into(),
                    verdict: None,
                },
                RecvError::Closed(reason) => Error::MasterLost(Reason::from(&reason)),
            },
        })
    }

    /// Throws away answers that nobody waits for any more. Only between calls.
    pub(crate) fn forget_answers(&self) {
        if let Some(socket) = self.socket.get() {
            while socket.recv_match(Instant::now(), |_| Ok(())).is_ok() {}
        }
    }

    /// A packet of the master has arrived.
    pub(crate) fn note_heard(&self, packet: &M2c) {
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
