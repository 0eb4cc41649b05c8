//! Notices that this machine is about to be taken away: signals, or what a command of the cloud says.
//!
//! Nothing is installed or run unless a program makes a [`Notice`] and asks for it. A loop looks at the notice between
//! its steps and leaves; see [`Communicator::close_on`](crate::Communicator::close_on) for one that may be blocked.

mod command;
#[allow(unsafe_code)]
mod signals;

pub use signals::SIGTERM;

use crate::Error;
use parking_lot::{Condvar, Mutex};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Whether this peer is to leave soon, and who says so.
///
/// ```no_run
/// use pccl::{Communicator, Error, Notice, ReduceOp, SIGTERM};
/// use std::{sync::Arc, time::Duration};
///
/// let notice = Notice::new().on_signals(&[SIGTERM])?.on_command("test -e going", Duration::from_secs(5))?;
/// let comm = Arc::new(Communicator::builder("127.0.0.1:48148").build()?);
/// comm.connect()?;
/// comm.close_on(&notice, Duration::from_secs(25))?;
/// while !notice.is_given() {
///     comm.all_reduce(&mut [1.0_f32; 4], ReduceOp::Avg)?;
/// }
/// comm.close_within(Duration::from_secs(20))?;
/// # Ok::<(), Error>(())
/// ```
///
/// When it is dropped, the handlers of signals are as they were before, unless somebody has put others in their place
/// since, and commands run no more.
#[derive(Debug, Default)]
pub struct Notice {
    given: Arc<Given>,
    handlers: Vec<signals::Handler>,
    commands: Vec<command::Watch>,
}

/// The state of the notice, for all who wait for it.
#[derive(Debug, Default)]
pub(crate) struct Given {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The source that has given it, in words.
    by: Option<String>,
    /// Nobody can give it any more.
    over: bool,
}

/// The result of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waited {
    Given,
    Over,
    TimedOut,
}

impl Notice {
    /// One that only [`Notice::give`] gives.
    pub fn new() -> Self {
        Self::default()
    }

    /// Handles these signals of the process from now on: one of them gives the notice, and does nothing else. The
    /// handlers that were there before are not called meanwhile. Several notices may ask for the same signal. In a
    /// child that was forked, and has not called `exec`, the signals have their usual effect.
    ///
    /// # Errors
    /// `InvalidArgument` for a signal that cannot be handled, or that says that the program has a fault; `System` if
    /// the system refuses.
    pub fn on_signals(mut self, signals: &[i32]) -> Result<Self, Error> {
        for signal in signals {
            self.handlers.push(signals::Handler::install(*signal, &self.given)?);
        }
        Ok(self)
    }

    /// Runs a command of the shell now and then, so long after the end of the run before, until it ends with the status
    /// 0: that gives the notice. Anything else is none. A run that takes more than 10 s is killed, with all that it has
    /// started. Its output is discarded.
    ///
    /// # Errors
    /// `System` if there is no thread for it.
    pub fn on_command(mut self, command: &str, every: Duration) -> Result<Self, Error> {
        self.commands.push(command::Watch::start(command, every, &self.given)?);
        Ok(self)
    }

    /// Gives it, on behalf of the program: `by` says for whom. Only the first time counts.
    pub fn give(&self, by: &str) {
        self.given.give(by);
    }

    /// Whether it was given.
    pub fn is_given(&self) -> bool {
        self.given.by().is_some()
    }

    /// The source that has given it, in words: `signal 15`, or `command ...`.
    pub fn given_by(&self) -> Option<String> {
        self.given.by()
    }

    /// Waits until it is given, for this time at most; whether it is. `None`: as long as it takes.
    pub fn wait(&self, timeout: Option<Duration>) -> bool {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        self.given.wait(deadline) == Waited::Given
    }

    pub(crate) fn given(&self) -> &Arc<Given> {
        &self.given
    }
}

impl Drop for Notice {
    fn drop(&mut self) {
        self.given.state.lock().over = true;
        self.given.changed.notify_all();
    }
}

impl Given {
    pub(crate) fn give(&self, by: &str) {
        let mut state = self.state.lock();
        if state.by.is_none() {
            log::warn!("this peer is to leave soon: {by}");
            state.by = Some(by.to_owned());
            self.changed.notify_all();
        }
    }

    pub(crate) fn by(&self) -> Option<String> {
        self.state.lock().by.clone()
    }

    /// Waits until it is given, or cannot be any more, or the time is over.
    pub(crate) fn wait(&self, deadline: Option<Instant>) -> Waited {
        self.wait_for(deadline, |state| match (&state.by, state.over) {
            (Some(_), _) => Some(Waited::Given),
            (None, true) => Some(Waited::Over),
            (None, false) => None,
        })
    }

    /// Waits until its notice is gone, given or not, or the time is over.
    pub(crate) fn wait_for_end(&self, deadline: Instant) -> Waited {
        self.wait_for(Some(deadline), |state| state.over.then_some(Waited::Over))
    }

    fn wait_for(&self, deadline: Option<Instant>, end: impl Fn(&State) -> Option<Waited>) -> Waited {
        let mut state = self.state.lock();
        loop {
            if let Some(waited) = end(&state) {
                return waited;
            }
            match deadline {
                None => self.changed.wait(&mut state),
                Some(deadline) if Instant::now() >= deadline => return Waited::TimedOut,
                Some(deadline) => {
                    self.changed.wait_until(&mut state, deadline);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn the_first_to_give_it_counts_and_whoever_waits_hears_of_it() {
        let notice = Notice::new();
        assert!(!notice.is_given() && !notice.wait(Some(Duration::ZERO)));
        thread::scope(|scope| {
            let waits = scope.spawn(|| notice.wait(Some(PATIENCE)));
            notice.give("the operator");
            notice.give("somebody else");
            assert!(waits.join().expect("no panic"));
        });
        assert_eq!(notice.given_by().as_deref(), Some("the operator"));
    }

    #[test]
    fn the_first_command_that_succeeds_gives_it() {
        let notice = Notice::new().on_command("exit 1", Duration::from_millis(1)).expect("a thread");
        assert!(!notice.wait(Some(Duration::from_millis(100))));
        let notice = notice.on_command("exit 0", PATIENCE).expect("a thread");
        assert!(notice.wait(Some(PATIENCE)));
        assert_eq!(notice.given_by().as_deref(), Some("command \"exit 0\""));
    }

    #[test]
    fn a_notice_that_goes_ends_the_command_that_runs() {
        let began = Instant::now();
        drop(Notice::new().on_command("sleep 300", PATIENCE).expect("a thread"));
        assert!(began.elapsed() < PATIENCE);
    }

    #[test]
    fn signals_that_cannot_be_handled_are_refused() {
        for signal in [0, -1, libc::SIGKILL, libc::SIGSTOP, libc::SIGSEGV, 1000] {
            let error = Notice::new().on_signals(&[signal]).expect_err("refused");
            assert!(matches!(error, Error::InvalidArgument(_)), "{signal}: {error}");
        }
    }
}
