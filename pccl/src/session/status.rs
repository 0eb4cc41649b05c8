//! Questions for the state of the run: their answers go to the callers that asked, beside every other call.

use parking_lot::{Condvar, Mutex};
use pccl_protocol::{RequestId, Status};
use std::collections::BTreeMap;

/// The callers that have asked and not been answered.
#[derive(Debug, Default)]
pub(crate) struct StatusDesk {
    waiting: Mutex<Waiting>,
    news: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    answers: BTreeMap<RequestId, Option<Status>>,
    closed: bool,
}

impl StatusDesk {
    /// Announces a question; before it is sent.
    pub(crate) fn expect(&self, request: RequestId) {
        self.waiting.lock().answers.insert(request, None);
    }

    /// An answer has arrived. One that nobody waits for is thrown away.
    pub(crate) fn answer(&self, status: Status) {
        if let Some(slot) = self.waiting.lock().answers.get_mut(&status.request) {
            *slot = Some(status);
            self.news.notify_all();
        }
    }

    /// No answer comes any more.
    pub(crate) fn close(&self) {
        self.waiting.lock().closed = true;
        self.news.notify_all();
    }

    /// Waits for the answer to an announced question; `None` if none can come any more. Bounded by the life of the
    /// session, which ends when the master is silent.
    pub(crate) fn wait(&self, request: RequestId) -> Option<Status> {
        let mut waiting = self.waiting.lock();
        loop {
            if let Some(Some(status)) = waiting.answers.get_mut(&request).map(Option::take) {
                waiting.answers.remove(&request);
                return Some(status);
            }
            if waiting.closed {
                waiting.answers.remove(&request);
                return None;
            }
            self.news.wait(&mut waiting);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pccl_protocol::{RunId, StatusLead, Term, WorldSizes};

    fn status(request: u64) -> Status {
        Status {
            request: RequestId(request),
            run: RunId(1),
            uptime_ms: request,
            run_keys: 0,
            wire: None,
            trusted_seeders: Vec::new(),
            sizes: WorldSizes::default(),
            groups: Vec::new(),
            peers: Vec::new(),
            waits: Vec::new(),
            relay: None,
            lead: StatusLead { term: Term(0), acts: true, standbys: Vec::new(), text: None, journal: None },
        }
    }

    #[test]
    fn each_question_gets_its_own_answer_and_strays_are_dropped() {
        let desk = StatusDesk::default();
        desk.expect(RequestId(1));
        desk.expect(RequestId(2));
        std::thread::scope(|scope| {
            let second = scope.spawn(|| desk.wait(RequestId(2)));
            desk.answer(status(3));
            desk.answer(status(2));
            desk.answer(status(1));
            assert_eq!(desk.wait(RequestId(1)), Some(status(1)));
            assert_eq!(second.join().expect("no panic"), Some(status(2)));
        });
        assert!(desk.waiting.lock().answers.is_empty());
    }

    #[test]
    fn the_end_of_the_session_ends_the_wait() {
        let desk = StatusDesk::default();
        desk.expect(RequestId(1));
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| desk.wait(RequestId(1)));
            desk.close();
            assert_eq!(waiter.join().expect("no panic"), None);
        });
        desk.expect(RequestId(2));
        assert_eq!(desk.wait(RequestId(2)), None);
    }
}
