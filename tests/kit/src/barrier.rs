//! A barrier that does not wait for a thread that has failed.

use std::{
    sync::{Condvar, Mutex, PoisonError},
    thread,
    time::Duration,
};

/// Longer than anything that a test does between two meetings on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);

/// As [`std::sync::Barrier`], but a wait ends with a panic when somebody does not come: a test whose other thread has
/// failed then fails too, and does not hang.
#[derive(Debug)]
pub struct Barrier {
    state: Mutex<State>,
    changed: Condvar,
    count: usize,
}

#[derive(Debug, Default)]
struct State {
    here: usize,
    meetings: u64,
}

impl Barrier {
    /// For `count` threads.
    #[must_use]
    pub fn new(count: usize) -> Self {
        Self { state: Mutex::default(), changed: Condvar::new(), count }
    }

    /// Waits until all are here.
    ///
    /// # Panics
    /// If somebody does not come for three minutes.
    pub fn wait(&self) {
        self.wait_for(PATIENCE);
    }

    fn wait_for(&self, patience: Duration) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let meeting = state.meetings;
        state.here += 1;
        if state.here >= self.count {
            *state = State { here: 0, meetings: meeting + 1 };
            drop(state);
            return self.changed.notify_all();
        }
        let (state, _) = self
            .changed
            .wait_timeout_while(state, patience, |state| state.meetings == meeting)
            .unwrap_or_else(PoisonError::into_inner);
        let (here, is_over) = (state.here, state.meetings != meeting);
        drop(state);
        assert!(is_over || thread::panicking(), "{here} of {} threads came", self.count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_meet_again_and_again() {
        let barrier = Barrier::new(3);
        thread::scope(|scope| {
            (0..3).for_each(|_| drop(scope.spawn(|| (0..50).for_each(|_| barrier.wait()))))
        });
        assert_eq!(barrier.state.lock().expect("lock").meetings, 50);
    }

    #[test]
    #[should_panic(expected = "1 of 2 threads came")]
    fn who_does_not_come_is_not_waited_for() {
        Barrier::new(2).wait_for(Duration::from_millis(20));
    }
}
