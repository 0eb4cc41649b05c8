//! The sign of life of a member: a key that changes as long as its process runs.

use crate::{
    protocol::{
        Member,
        keys::{Keys, mirror_heartbeat},
    },
    store::Store,
};
use parking_lot::{Condvar, Mutex};
use std::{
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// Shortest time that one sign of life may take.
const SHORTEST_CALL: Duration = Duration::from_secs(1);

struct Shared {
    store: Arc<dyn Store>,
    keys: Keys,
    interval: Duration,
    mirror: bool,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    member: Option<Member>,
    /// Beats at once.
    fresh: bool,
    stop: bool,
}

/// The thread that gives signs of life. Dropping it ends it.
pub(super) struct Heart {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Heart {
    /// Starts the thread; it is silent until [`beat_for`](Self::beat_for).
    pub(super) fn start(
        store: Arc<dyn Store>,
        keys: Keys,
        interval: Duration,
        mirror: bool,
    ) -> std::io::Result<Self> {
        let (state, changed) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { store, keys, interval, mirror, state, changed });
        let for_thread = Arc::clone(&shared);
        let thread = thread::Builder::new().name("pccl-iteration".into()).spawn(move || for_thread.run())?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// From now on this life gives signs, or nobody.
    pub(super) fn beat_for(&self, member: Option<&Member>) {
        let mut state = self.shared.state.lock();
        if state.member.as_ref() != member {
            state.member = member.cloned();
            state.fresh = true;
            self.shared.changed.notify_all();
        }
    }
}

impl Drop for Heart {
    fn drop(&mut self) {
        self.shared.state.lock().stop = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic of that thread has nothing that is needed here.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self) {
        let mut beats = 0_u64;
        let mut complained = false;
        let mut state = self.state.lock();
        while !state.stop {
            state.fresh = false;
            if let Some(member) = state.member.clone() {
                drop(state);
                beats += 1;
                match self.beat(&member, beats) {
                    Ok(()) => complained = false,
                    Err(error) if !complained => {
                        log::warn!("no sign of life of member {member}: {error}");
                        complained = true;
                    }
                    Err(_) => {}
                }
                state = self.state.lock();
            }
            let next = Instant::now() + self.interval;
            while !state.stop && !state.fresh && !self.changed.wait_until(&mut state, next).timed_out() {}
        }
    }

    fn beat(&self, member: &Member, beats: u64) -> Result<(), crate::StoreError> {
        let deadline = Instant::now() + self.interval.max(SHORTEST_CALL);
        self.store.set(&self.keys.heartbeat(member), beats.to_string().as_bytes(), deadline)?;
        if self.mirror {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let text = format!("{:.6}", now.as_secs_f64());
            self.store.set(&mirror_heartbeat(&member.id), text.as_bytes(), deadline)?;
        }
        Ok(())
    }
}
