//! A barrier that does not wait for a thread that has failed.

use std::{
    any::Any,
    panic,
    sync::{Condvar, Mutex, PoisonError},
    thread::{self, ScopedJoinHandle},
    time::Duration,
};

/// Longer than anything that a test does between two meetings on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);

/// As [`std::sync::Barrier`], but a wait ends with a panic when somebody does not come: a test whose other thread has
/// failed then fails too, and does not hang. At once, if that one attends ([`Barrier::attend`]).
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
    /// Somebody who attends has failed.
    has_failed: bool,
}

/// The pause between two looks at something that nobody tells: short beside all that is waited for, and long enough
/// that the looking takes no processor from it.
pub fn look_again() {
    thread::sleep(Duration::from_millis(1));
}

/// The words of a thread that waits for others when one of them has failed.
const FOLLOWS: &str = "another thread has failed";

/// The part of a thread in the meetings: see [`Barrier::attend`].
#[derive(Debug)]
pub struct Attendance<'a>(&'a Barrier);

impl Drop for Attendance<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.state.lock().unwrap_or_else(PoisonError::into_inner).has_failed = true;
            self.0.changed.notify_all();
        }
    }
}

/// Waits for threads that meet, and for all of them. If any have failed, this panics as the first one of them that did
/// not fail because of another one.
pub fn join_all<'a, R: 'a>(threads: impl IntoIterator<Item = ScopedJoinHandle<'a, R>>) -> Vec<R> {
    let (mut results, mut cause) = (Vec::new(), None);
    let all: Vec<thread::Result<R>> = threads.into_iter().map(ScopedJoinHandle::join).collect();
    for result in all {
        match result {
            Ok(result) => results.push(result),
            Err(panic) => {
                let follows = |panic: &Box<dyn Any + Send>| panic.downcast_ref::<&str>() == Some(&FOLLOWS);
                if cause.as_ref().is_none_or(|cause| follows(cause) && !follows(&panic)) {
                    cause = Some(panic);
                }
            }
        }
    }
    cause.map_or(results, |panic| panic::resume_unwind(panic))
}

impl Barrier {
    /// For `count` threads.
    #[must_use]
    pub fn new(count: usize) -> Self {
        Self { state: Mutex::default(), changed: Condvar::new(), count }
    }

    /// As long as a thread holds what this returns, its end by a panic ends the waits of all others.
    #[must_use]
    pub fn attend(&self) -> Attendance<'_> {
        Attendance(self)
    }

    /// Waits until all are here.
    ///
    /// # Panics
    /// If somebody does not come for three minutes, or has failed.
    pub fn wait(&self) {
        self.wait_for(PATIENCE);
    }

    fn wait_for(&self, patience: Duration) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let meeting = state.meetings;
        state.here += 1;
        if state.here >= self.count {
            (state.here, state.meetings) = (0, meeting + 1);
            drop(state);
            return self.changed.notify_all();
        }
        let (state, _) = self
            .changed
            .wait_timeout_while(state, patience, |state| state.meetings == meeting && !state.has_failed)
            .unwrap_or_else(PoisonError::into_inner);
        let (here, is_over, has_failed) = (state.here, state.meetings != meeting, state.has_failed);
        drop(state);
        if has_failed && !is_over && !thread::panicking() {
            // Not by `panic!`: what has failed is printed alone.
            panic::resume_unwind(Box::new(FOLLOWS));
        }
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
    #[should_panic(expected = "the cause")]
    fn who_has_failed_is_not_waited_for_and_is_the_one_that_is_told() {
        let barrier = Barrier::new(3);
        thread::scope(|scope| {
            let wait = || {
                let _here = barrier.attend();
                barrier.wait();
            };
            let fail = || {
                let _here = barrier.attend();
                panic!("the cause");
            };
            join_all([scope.spawn(wait), scope.spawn(fail), scope.spawn(wait)]);
        });
    }

    #[test]
    #[should_panic(expected = "1 of 2 threads came")]
    fn who_does_not_come_is_not_waited_for() {
        Barrier::new(2).wait_for(Duration::from_millis(20));
    }
}
