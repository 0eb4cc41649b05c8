//! The work of the caller's thread once an operation is launched: it sleeps, takes the memory back, and restores it.

use super::{Op, ReduceInfo};
use crate::{Error, flight, limit::Limit};
use pccl_flight::{Subject, What};
use std::time::Instant;
use threadpark::Parker;

impl Op {
    /// Sleeps until there is a result, takes the memory back, and restores it after a failure. When the limit
    /// passes, the operation is given up; the master's answer to that is the result.
    pub(crate) fn wait(&self, limit: Limit) -> Result<ReduceInfo, Error> {
        if let Some(deadline) = limit.deadline()
            && !self.wait_until_done(deadline)
        {
            self.give_up(Some(limit));
        }
        self.read_until_over(None);
        let parker = Parker::new();
        loop {
            let mut state = self.state.lock();
            if state.is_over() {
                break;
            }
            state.waiters.push(parker.unparker());
            drop(state);
            // Bounded by the life of the session: it ends when the master is silent, and its end finishes this
            // operation.
            parker.park();
        }
        let mut state = self.state.lock();
        let attempt = state.attempt.take();
        let mut result = state.result.clone().unwrap_or(Err(Error::NotConnected));
        drop(state);
        let Some(attempt) = attempt else {
            return result.and(self.undo()).and(Err(Error::NotConnected));
        };
        // After `OutcomeUnknown` too the caller gets the whole result: others may have it.
        let keep = matches!(result, Ok(()) | Err(Error::OutcomeUnknown(_)));
        for beside in self.beside.iter().filter(|_| !keep) {
            beside.stop();
        }
        let concluded = attempt.conclude(keep, &self.common.backups);
        let failed = |text: String| self.own_failure().unwrap_or_else(|| Error::System(text.into()));
        let concluded = concluded.map_err(failed);
        let delivered = concluded.and_then(|()| match keep {
            true => self.beside.iter().try_for_each(|beside| beside.after(attempt.place(), &self.raws)),
            false => self.undo(),
        });
        // A caller whose memory was the cause gets told what is wrong with it; another try would not help.
        let own = self.own_failure().filter(|_| !keep);
        result = delivered.and(own.map_or(result, Err));
        let (tx_bytes, rx_bytes) = attempt.progress().traffic();
        let recorder = &self.common.flight;
        let record_result = |error: Option<&Error>| {
            let subject = Some(Subject::Op(attempt.id()));
            flight::result(recorder, What::OpResult, subject, tx_bytes + rx_bytes, error);
        };
        match result {
            Ok(()) => {
                record_result(None);
                Ok(ReduceInfo {
                    world_size: attempt.place().ranks,
                    rank: attempt.place().rank,
                    tx_bytes,
                    rx_bytes,
                    algorithm: attempt.algorithm(),
                })
            }
            Err(error) => {
                if !keep {
                    flight::op(recorder, What::OpRestored, attempt.id());
                }
                record_result(Some(&error));
                Err(error)
            }
        }
    }

    /// Puts back what has been changed beside the tensors.
    fn undo(&self) -> Result<(), Error> {
        // All of them, whatever the first ones say.
        let undone: Vec<Result<(), Error>> = self.beside.iter().map(|beside| beside.undo()).collect();
        undone.into_iter().collect()
    }

    /// The error of the memory of this peer.
    fn own_failure(&self) -> Option<Error> {
        let on_devices = || self.raws.iter().find_map(|raw| raw.device()?.failure());
        let beside = || self.beside.iter().find_map(|beside| beside.failure());
        self.failure.clone().or_else(beside).or_else(on_devices)
    }

    /// Sleeps until [`Op::wait`] would return at once (`true`), or until `deadline`. Beside the thread that waits.
    pub(crate) fn wait_until_done(&self, deadline: Instant) -> bool {
        self.read_until_over(Some(deadline));
        let parker = Parker::new();
        loop {
            let mut state = self.state.lock();
            if state.is_over() {
                return true;
            }
            if Instant::now() >= deadline {
                return false;
            }
            state.waiters.push(parker.unparker());
            drop(state);
            parker.park_until(deadline);
        }
    }

    /// Reads the packets of the master on this thread until the operation is over, if nobody else does: then each step
    /// of it need not wake two threads. May return earlier.
    fn read_until_over(&self, deadline: Option<Instant>) {
        let is_over = || self.state.lock().is_over();
        // A caller that only asks does not take the turn from the thread that reads.
        let is_late = deadline.is_some_and(|deadline| deadline <= Instant::now());
        if !is_late && !is_over() {
            self.common.control.read_until(deadline, is_over);
        }
    }

    /// Whether [`Op::wait`] would return at once.
    pub(crate) fn is_done(&self) -> bool {
        self.state.lock().is_over()
    }
}
