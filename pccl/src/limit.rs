//! How long a call may wait for others.

use std::time::{Duration, Instant};

/// A time longer than this is as good as this.
const LONGEST: Duration = Duration::from_secs(366 * 86_400);

/// The moment after that time.
pub(crate) fn moment_after(time: Duration) -> Instant {
    Instant::now() + time.min(LONGEST)
}

/// The limit of one call, if it has one, from the moment in which this was made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limit(Option<(Duration, Instant)>);

impl Limit {
    /// A limit that counts from now.
    pub(crate) fn of(time: Option<Duration>) -> Self {
        Self(time.map(|time| (time.min(LONGEST), moment_after(time))))
    }

    /// When it has passed.
    pub(crate) fn deadline(self) -> Option<Instant> {
        self.0.map(|(_, deadline)| deadline)
    }

    /// Whether it has passed.
    pub(crate) fn is_over(self) -> bool {
        self.0.is_some_and(|(_, deadline)| deadline <= Instant::now())
    }

    /// How long until it has passed.
    pub(crate) fn left(self) -> Duration {
        self.0.map_or(LONGEST, |(_, deadline)| deadline.saturating_duration_since(Instant::now()))
    }

    /// How long it is; a call without one is over when it is.
    pub(crate) fn time(self) -> Duration {
        self.0.map_or(LONGEST, |(time, _)| time)
    }

    /// As packets carry it.
    pub(crate) fn millis(self) -> u64 {
        millis(self.time())
    }

    /// As [`Limit::millis`]. A limit of nothing ends a wait in pieces: then it is the time since the call, `called`.
    pub(crate) fn millis_since(self, called: Instant) -> u64 {
        if self.time().is_zero() { millis(called.elapsed()) } else { self.millis() }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
