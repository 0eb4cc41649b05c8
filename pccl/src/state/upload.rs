//! The upload to newcomers, at the pace that [`super::pacer`] allows.

use super::pacer::{Gauge, Pacer, Turn};
use parking_lot::{Condvar, Mutex};
use std::time::{Duration, Instant};
use tinysockets::link::Backlog;

/// After which time it is looked again whether a collective is over.
const LOOK: Duration = Duration::from_millis(20);

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Upload {
    began: Instant,
    state: Mutex<State>,
    stopped: Condvar,
}

#[derive(Debug)]
struct State {
    pacer: Pacer,
    /// Of the links to other peers, by their names.
    gauge: Gauge<(u128, u64)>,
    is_stopped: bool,
}

impl Upload {
    /// Gives this percentage of the rate at which this peer can send.
    pub(crate) fn new(share_pct: u8) -> Self {
        let state = State { pacer: Pacer::new(share_pct), gauge: Gauge::default(), is_stopped: false };
        Self { began: Instant::now(), state: Mutex::new(state), stopped: Condvar::new() }
    }

    /// Notes the bytes that each link to another peer was given, and those that it has yet to deliver.
    pub(crate) fn note_links(&self, links: &[((u128, u64), u64, Backlog)]) {
        let gone =
            links.iter().map(|(name, sent, backlog)| (*name, sent.saturating_sub(backlog.notsent_bytes)));
        let waits = links.iter().any(|(.., backlog)| backlog.notsent_bytes > 0 || backlog.queued_frames > 0);
        let mut state = self.state.lock();
        if let Some(rate) = state.gauge.note(self.began.elapsed(), gone.collect(), waits) {
            state.pacer.note_rate(rate);
        }
    }

    /// Waits until something of `wanted` bytes may go, and says how much. `None` when the session ends.
    pub(super) fn turn(&self, wanted: usize, is_busy: impl Fn() -> bool) -> Option<usize> {
        loop {
            // Not under the lock of all newcomers.
            let is_busy = is_busy();
            let mut state = self.state.lock();
            if state.is_stopped {
                return None;
            }
            match state.pacer.ask(self.began.elapsed(), wanted, is_busy) {
                Turn::Bytes(bytes) => return Some(bytes),
                Turn::At(at) => {
                    let until = self.began + at;
                    self.stopped.wait_until(&mut state, until.min(Instant::now() + LOOK));
                }
            }
        }
    }

    /// This number of bytes of a turn did not go.
    pub(super) fn take_back(&self, bytes: usize, is_busy: bool) {
        if bytes > 0 {
            self.state.lock().pacer.take_back(bytes, is_busy);
        }
    }

    /// Nobody waits any more.
    pub(super) fn stop(&self) {
        self.state.lock().is_stopped = true;
        self.stopped.notify_all();
    }
}
