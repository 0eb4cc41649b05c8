//! Visits: measurements by machines that are in no group of the run, such as that of the doctor. A visit has a small
//! share of a peer, and all visits together have one, so that a run does not suffer from who looks at it. Pure: told
//! the time.

use pccl_protocol::limits;
use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};
use tinysockets::{
    bucket::{Bucket, Rate},
    preamble::{Preamble, Refusal},
    probe::Share,
};

/// Visits at one time.
pub(super) const AT_ONCE: usize = 2;
/// Visits in all. With [`SHARE`], they take a fifth of the time of one connection at most in the long run.
const RATE: Rate = Rate { burst: 8.0, per_second: 0.1 };
/// The share that one visit may take: more time than the measurement of a visitor needs.
pub(super) const SHARE: Share = Share { time: Duration::from_secs(2), bytes: limits::MAX_VISIT_BYTES };
/// Visits that are remembered. At this rate the last of them is older than any ticket that is still good.
const REMEMBERED: usize = 32;

/// A visit that goes on until this is dropped.
#[derive(Debug)]
pub(crate) struct Visit {
    _place: Arc<()>,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Visits {
    /// Has another owner for each visit that goes on.
    places: Arc<()>,
    bucket: Option<Bucket<Instant>>,
    /// Visitors and the ends of their tickets, the newest last.
    made: VecDeque<(u128, u64)>,
}

impl Visits {
    /// Whether a visitor may come; each ticket is good for one visit.
    pub(super) fn admit(&mut self, preamble: &Preamble, now: Instant) -> Result<Visit, Refusal> {
        let made = (preamble.from, preamble.link_generation);
        if self.made.contains(&made) {
            return Err(Refusal::WrongTicket);
        }
        let bucket = self.bucket.get_or_insert_with(|| Bucket::full(&RATE, now));
        if Arc::strong_count(&self.places) > AT_ONCE || !bucket.take(&RATE, now, 1.0) {
            return Err(Refusal::Full);
        }
        if self.made.len() >= REMEMBERED {
            self.made.pop_front();
        }
        self.made.push_back(made);
        Ok(Visit { _place: self.places.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tinysockets::preamble::Role;

    fn visitor(from: u128, end: u64) -> Preamble {
        Preamble { from, link_generation: end, ..Preamble::new(Role::Probe) }
    }

    #[test]
    fn a_ticket_is_good_for_one_visit() {
        let (mut visits, now) = (Visits::default(), Instant::now());
        assert!(visits.admit(&visitor(1, 50), now).is_ok());
        assert_eq!(visits.admit(&visitor(1, 50), now).unwrap_err(), Refusal::WrongTicket);
        assert!(visits.admit(&visitor(1, 51), now).is_ok(), "another one of the same visitor");
        assert!(visits.admit(&visitor(2, 50), now).is_ok());
        let remembered_s = (REMEMBERED as f64 - RATE.burst) / RATE.per_second;
        assert!(remembered_s > 120.0, "longer than the life of a ticket");
    }

    #[test]
    fn a_few_come_at_once_and_then_one_after_the_other() {
        let (mut visits, began) = (Visits::default(), Instant::now());
        let held: Vec<Visit> = (0..2).filter_map(|n| visits.admit(&visitor(n, 0), began).ok()).collect();
        assert_eq!(held.len(), AT_ONCE);
        assert_eq!(visits.admit(&visitor(9, 0), began).unwrap_err(), Refusal::Full);
        drop(held);
        let mut taken =
            |first, now| (first..first + 50).filter(|n| visits.admit(&visitor(*n, 0), now).is_ok()).count();
        assert_eq!([taken(100, began), taken(200, began)], [6, 0], "who was refused may come again");
        assert_eq!(taken(200, began + Duration::from_secs(25)), 2);
        assert_eq!(taken(300, began + Duration::from_secs(1000)), 8);
    }
}
