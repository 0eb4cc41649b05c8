//! The error of a call that the master has judged, and the line of the log for it.

use super::Error;
use parking_lot::Mutex;
use pccl_protocol::{CallKind, Cause, PeerId, Verdict};
use std::time::{Duration, Instant};

/// Verdicts on the calls that one event ended arrive within this time.
const ONE_EVENT: Duration = Duration::from_secs(1);

impl Error {
    /// The error of a call that was judged: a limit that passed is `TimedOut` for the caller that had it. Writes the
    /// verdict to the log, once in this process for all calls that one event ended.
    pub(crate) fn judged(call: CallKind, verdict: Verdict, has_given_up: bool) -> Self {
        static LAST: Mutex<Last> = Mutex::new(Last(None));
        if LAST.lock().is_new(&verdict, Instant::now()) {
            log::warn!("{verdict}");
        } else {
            log::debug!("{verdict}");
        }
        if has_given_up && verdict.cause == Cause::CallTimeout {
            return Self::TimedOut { call, text: verdict.to_string(), verdict: Some(Box::new(verdict)) };
        }
        Self::Aborted(Box::new(verdict))
    }
}

/// The event that the log has last heard of: a cause with its culprits.
struct Last(Option<(Cause, Vec<PeerId>, Instant)>);

impl Last {
    /// Whether a verdict that arrives `now` is of another event. One that keeps happening is so once a second.
    fn is_new(&mut self, verdict: &Verdict, now: Instant) -> bool {
        let culprits: Vec<PeerId> = verdict.culprits.iter().map(|it| it.peer).collect();
        if let Some((cause, peers, since)) = &self.0
            && (*cause, peers) == (verdict.cause, &culprits)
            && now.saturating_duration_since(*since) < ONE_EVENT
        {
            return false;
        }
        self.0 = Some((verdict.cause, culprits, now));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pccl_protocol::{Culprit, Host, Name, Operation, Phase, SyncId, Text};

    fn verdict(cause: Cause, culprit: u128, sync: u64) -> Verdict {
        let culprit = Culprit { peer: PeerId(culprit), host: Host::default(), name: Name::default() };
        Verdict {
            cause,
            culprits: vec![culprit],
            operation: Operation::Sync(SyncId(sync)),
            phase: Phase::Voting,
            bytes_done: 0,
            silent_ms: 0,
            detail: Text::default(),
        }
    }

    #[test]
    fn calls_that_one_event_ended_are_one_line() {
        let (mut last, began) = (Last(None), Instant::now());
        assert!(last.is_new(&verdict(Cause::PeerDied, 1, 1), began));
        for sync in 2..1000 {
            assert!(!last.is_new(&verdict(Cause::PeerDied, 1, sync), began + ONE_EVENT / 2));
        }
        assert!(last.is_new(&verdict(Cause::PeerDied, 2, 1000), began));
        assert!(last.is_new(&verdict(Cause::PeerSilent, 2, 1000), began));
        assert!(!last.is_new(&verdict(Cause::PeerSilent, 2, 1001), began));
        assert!(last.is_new(&verdict(Cause::PeerSilent, 2, 1002), began + ONE_EVENT));
    }

    #[test]
    fn a_limit_is_that_of_the_caller_that_had_it() {
        let judged =
            |has_given_up| Error::judged(CallKind::Sync, verdict(Cause::CallTimeout, 3, 1), has_given_up);
        assert!(matches!(judged(true), Error::TimedOut { verdict: Some(_), .. }));
        assert!(matches!(judged(false), Error::Aborted(_)));
        let died = Error::judged(CallKind::Sync, verdict(Cause::PeerDied, 3, 1), true);
        assert!(matches!(died, Error::Aborted(_)));
    }
}
