//! Finds an edge that stands still although bytes wait on it, and one whose bytes this end does not take.
//!
//! Only the sending end can tell: it has bytes that the kernel has not sent or that the other end has not acknowledged,
//! and their number does not change. An edge without such bytes is idle or starved, not stuck. The master decides what
//! follows from a stalled edge: it knows whether the peer at the other end is alive. And that end knows whether the
//! edge has delivered what it does not take: because it is at work on what came before, or does not come to run.

use crate::collective::links::Inbound;
use std::time::{Duration, Instant};
use tinysockets::link::Backlog;

/// Shortest stall that is reported to the master.
const REPORT_AFTER: Duration = Duration::from_secs(1);
/// Work on what has come that takes no longer is not told.
const WORK_AFTER: Duration = Duration::from_millis(100);
/// A link that sends nothing for so long is idle.
const IDLE_AFTER: Duration = Duration::from_secs(2);
/// A link that stands still so soon after it was idle may have been lost before.
const SOON: Duration = Duration::from_secs(3);
/// A pause of our own that is no evidence against the edge.
const OWN_PAUSE: Duration = Duration::from_secs(1);

/// Watches one link to another peer, from one beat to the next.
#[derive(Debug, Default)]
pub(crate) struct StallWatch {
    seen: Option<Seen>,
}

#[derive(Debug)]
struct Seen {
    counters: (u64, u64, u64),
    /// There were bytes to deliver.
    waiting: bool,
    /// Since when the counters have stood still.
    since: Instant,
    /// The last look.
    at: Instant,
    /// When it last sent, or had something to deliver.
    busy_at: Instant,
    /// When the link was last idle, and for how long.
    rested: Option<(Instant, Duration)>,
}

/// A link that stands still although it has bytes to deliver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Standstill {
    pub(crate) lasts: Duration,
    /// For how long it had been idle just before; zero if it was not.
    pub(crate) rest: Duration,
}

impl StallWatch {
    /// Looks at the link, with the bytes that it has sent so far. Returns that it stands still, if it has bytes to
    /// deliver and that is long enough to be told.
    pub(crate) fn look(
        &mut self,
        now: Instant,
        interval: Duration,
        sent_bytes: u64,
        backlog: Backlog,
    ) -> Option<Standstill> {
        let waiting = backlog.is_waiting();
        let counters = (sent_bytes, backlog.notsent_bytes, backlog.unacked_segments);
        let still = self.seen.as_ref().filter(|seen| {
            let paused = now.duration_since(seen.at) > interval + OWN_PAUSE;
            // Where the kernel says when it last heard of the other end, more bytes of our own are no movement.
            let unmoved = seen.counters == counters || (seen.waiting && backlog.last_ack_ms.is_some());
            waiting && !paused && unmoved
        });
        // Bytes under way that are acknowledged, be it out of order or a second time, are on a path that works.
        let acked = backlog.last_ack_ms.and_then(|age| now.checked_sub(Duration::from_millis(age)));
        let since = still.map_or(now, |seen| acked.map_or(seen.since, |acked| seen.since.max(acked)));
        let (mut busy_at, mut rested) = (now, None);
        if let Some(seen) = &self.seen {
            let rest = now.duration_since(seen.busy_at);
            let sends = seen.counters.0 != sent_bytes;
            let was_idle = sends && rest >= IDLE_AFTER.max(2 * interval);
            rested = if was_idle { Some((now, rest)) } else { seen.rested };
            busy_at = if sends || waiting { now } else { seen.busy_at };
        }
        self.seen = Some(Seen { counters, waiting, since, at: now, busy_at, rested });
        let rested = rested.filter(|(until, _)| since.saturating_duration_since(*until) <= SOON);
        let rest = rested.map_or(Duration::ZERO, |(_, rest)| rest);
        Some(Standstill { lasts: now.duration_since(since), rest }).filter(|it| it.lasts >= REPORT_AFTER)
    }
}

/// Watches one link from another peer, from one beat to the next.
#[derive(Debug, Default)]
pub(crate) struct WorkWatch {
    /// Bytes received, and since when their number is this one.
    seen: Option<(u64, Instant)>,
}

impl WorkWatch {
    /// Looks at the link. Returns for how long this end has not got on with what has come, if it is that on which the
    /// other end may wait.
    pub(crate) fn look(&mut self, now: Instant, link: Inbound) -> Option<Duration> {
        let since = self.seen.filter(|seen| seen.0 == link.received_bytes).map_or(now, |seen| seen.1);
        self.seen = Some((link.received_bytes, since));
        let work = link.busy.filter(|busy| *busy >= WORK_AFTER);
        work.or_else(|| link.has_unread.then(|| now.duration_since(since)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEAT: Duration = Duration::from_secs(1);

    fn backlog(notsent_bytes: u64, unacked_segments: u64) -> Backlog {
        Backlog { queued_frames: 3, notsent_bytes, unacked_segments, rtt_us_max: 100, ..Backlog::default() }
    }

    fn looks(steps: &[(u64, (u64, Backlog))]) -> Vec<Option<u64>> {
        let start = Instant::now();
        let mut watch = StallWatch::default();
        let look = |(second, (sent, backlog)): &(u64, (u64, Backlog))| {
            let at = start + Duration::from_secs(*second);
            watch.look(at, BEAT, *sent, *backlog).map(|stalled| stalled.lasts.as_secs())
        };
        steps.iter().map(look).collect()
    }

    #[test]
    fn a_link_that_stands_still_right_after_a_rest_says_how_long_that_was() {
        let start = Instant::now();
        let mut watch = StallWatch::default();
        let mut look = |second: u64, sent, backlog| {
            let standstill = watch.look(start + Duration::from_secs(second), BEAT, sent, backlog);
            standstill.map(|it| (it.lasts.as_secs(), it.rest.as_secs()))
        };
        let with = |unacked, age| Backlog { last_ack_ms: Some(age), ..backlog(0, unacked) };
        for second in 0..=20 {
            assert_eq!(look(second, 10, backlog(0, 0)), None);
        }
        assert_eq!(look(21, 50, with(4, 0)), None);
        // Only now the kernel counts how long nothing was acknowledged.
        assert_eq!(look(22, 70, with(6, 0)), None);
        assert_eq!(look(23, 70, with(6, 23_000)), Some((1, 21)));
        assert_eq!(look(24, 70, with(6, 24_000)), Some((2, 21)));
        // It moves, and stands still later.
        assert_eq!(look(25, 90, with(6, 0)), None);
        assert_eq!(look(26, 95, with(6, 0)), None);
        assert_eq!(look(27, 95, with(6, 1_000)), Some((1, 0)));
    }

    #[test]
    fn an_end_that_takes_nothing_says_how_long_it_has_not_got_on() {
        let start = Instant::now();
        let mut watch = WorkWatch::default();
        let ms = Duration::from_millis;
        let mut look = |second: u64, received_bytes, busy, has_unread| {
            let link = Inbound { received_bytes, busy, has_unread };
            watch.look(start + Duration::from_secs(second), link)
        };
        assert_eq!(look(0, 10, None, false), None, "it waits for the other end");
        assert_eq!(look(1, 10, Some(ms(5)), false), None);
        assert_eq!(look(2, 10, Some(ms(700)), true), Some(ms(700)));
        // It does not come to run, and then it takes some.
        assert_eq!(look(3, 10, None, true), Some(ms(3000)));
        assert_eq!(look(4, 90, None, true), Some(ms(0)));
        assert_eq!(look(5, 90, Some(ms(5)), true), Some(ms(1000)));
        assert_eq!(look(6, 90, None, false), None);
    }

    #[test]
    fn bytes_that_do_not_move_are_a_stall() {
        let b = (10, backlog(500, 4));
        assert_eq!(looks(&[(0, b), (1, b), (2, b), (3, b)]), [None, Some(1), Some(2), Some(3)]);
    }

    #[test]
    fn any_movement_ends_it() {
        let (b, c) = ((10, backlog(500, 4)), (10, backlog(499, 4)));
        assert_eq!(looks(&[(0, b), (1, b), (2, c), (3, c)]), [None, Some(1), None, Some(1)]);
    }

    #[test]
    fn acknowledgements_of_any_kind_are_movement() {
        let with = |age| (10, Backlog { last_ack_ms: Some(age), ..backlog(500, 4) });
        let looked = looks(&[(0, with(0)), (1, with(300)), (2, with(100)), (3, with(1100)), (4, with(2100))]);
        assert_eq!(looked, [None, None, None, Some(1), Some(2)]);
    }

    #[test]
    fn more_bytes_on_a_dead_path_are_no_movement() {
        let with = |sent, unacked, age| (sent, Backlog { last_ack_ms: Some(age), ..backlog(0, unacked) });
        let looked = looks(&[
            (0, with(10, 4, 1500)),
            (1, with(50, 9, 2500)),
            (2, with(90, 12, 3500)),
            (3, with(99, 2, 10)),
        ]);
        assert_eq!(looked, [None, Some(1), Some(2), None]);
        // After a time with nothing to deliver it begins anew.
        let idle = (10, backlog(0, 0));
        assert_eq!(looks(&[(0, idle), (5, idle), (6, with(50, 9, 6000))]), [None; 3]);
    }

    #[test]
    fn an_idle_or_starved_link_does_not_stall() {
        let b = (10, backlog(0, 0));
        assert_eq!(looks(&[(0, b), (1, b), (9, b)]), [None; 3]);
    }

    #[test]
    fn a_pause_of_this_process_is_no_evidence() {
        let b = (10, backlog(500, 4));
        assert_eq!(looks(&[(0, b), (20, b), (21, b)]), [None, None, Some(1)]);
    }
}
