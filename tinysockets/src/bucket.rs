//! How often something may happen. Pure: told the time, of whatever clock.

use std::{ops::Sub, time::Duration};

/// A number of times at once, and then a number each second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// At once, after a time without any.
    pub burst: f64,
    /// In the long run.
    pub per_second: f64,
}

/// The rest of a rate for one who is counted.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Bucket<T> {
    left: f64,
    since: T,
}

impl<T: Copy + Sub<Output = Duration>> Bucket<T> {
    /// Nothing has happened yet.
    pub fn full(rate: &Rate, now: T) -> Self {
        Self { left: rate.burst, since: now }
    }

    /// How often it may happen now.
    pub fn left(&self, rate: &Rate, now: T) -> f64 {
        (self.left + (now - self.since).as_secs_f64() * rate.per_second).min(rate.burst)
    }

    /// Whether it may happen `count` times more; then that is counted.
    pub fn take(&mut self, rate: &Rate, now: T, count: f64) -> bool {
        let left = self.left(rate, now);
        (self.left, self.since) = (left, now);
        let may = left >= count;
        if may {
            self.left -= count;
        }
        may
    }

    /// It happens `count` times, whether it may or not. How long nothing more should happen then, for the rate to hold.
    pub fn spend(&mut self, rate: &Rate, now: T, count: f64) -> Duration {
        (self.left, self.since) = (self.left(rate, now) - count, now);
        if self.left < 0.0 { self.wait_for(rate, now, 0.0) } else { Duration::ZERO }
    }

    /// Takes one count back: the event is not to count.
    pub fn give_back(&mut self, rate: &Rate) {
        self.left = (self.left + 1.0).min(rate.burst);
    }

    /// How long it takes until it may happen once more. A little more than that, so that it may then.
    pub fn wait(&self, rate: &Rate, now: T) -> Duration {
        self.wait_for(rate, now, 1.0)
    }

    /// The same, until it may happen `count` times more, which are no more than a burst.
    pub fn wait_for(&self, rate: &Rate, now: T, count: f64) -> Duration {
        let missing = (count - self.left(rate, now)).max(0.0);
        Duration::from_secs_f64(missing / rate.per_second) + Duration::from_micros(2)
    }
}

/// Lines of a log about those of whom there may be any number. Some are written at once; the others are counted, and
/// the next one that is written says how many they were.
#[derive(Debug)]
pub struct Lines<T> {
    bucket: Bucket<T>,
    rate: Rate,
    left_out: u64,
}

impl<T: Copy + Sub<Output = Duration>> Lines<T> {
    /// Nothing has been written yet.
    pub fn new(rate: Rate, now: T) -> Self {
        Self { bucket: Bucket::full(&rate, now), rate, left_out: 0 }
    }

    /// The text behind a line that is written now; `None`: the line is left out.
    pub fn next(&mut self, now: T) -> Option<String> {
        if !self.bucket.take(&self.rate, now, 1.0) {
            self.left_out += 1;
            return None;
        }
        match std::mem::take(&mut self.left_out) {
            0 => Some(String::new()),
            count => Some(format!(" ({count} such lines before this one were left out)")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    const RATE: Rate = Rate { burst: 4.0, per_second: 2.0 };

    #[test]
    fn a_burst_and_then_so_many_each_second() {
        let began = Instant::now();
        let mut bucket = Bucket::full(&RATE, began);
        let mut taken = |now| (0..10).filter(|_| bucket.take(&RATE, now, 1.0)).count();
        assert_eq!((taken(began), taken(began)), (4, 0));
        assert_eq!(taken(began + Duration::from_millis(1500)), 3);
        assert_eq!(taken(began + Duration::from_secs(60)), 4);
        bucket.give_back(&RATE);
        assert!(bucket.take(&RATE, began + Duration::from_secs(60), 1.0));
        let later = began + Duration::from_secs(60);
        assert!(bucket.take(&RATE, later + bucket.wait(&RATE, later), 1.0));
    }

    #[test]
    fn lines_that_are_left_out_are_counted() {
        let began = Instant::now();
        let mut lines = Lines::new(RATE, began);
        assert_eq!((0..10).filter_map(|_| lines.next(began)).count(), 4);
        let later = began + Duration::from_secs(60);
        assert_eq!(lines.next(later).unwrap(), " (6 such lines before this one were left out)");
        assert_eq!(lines.next(later).unwrap(), "");
    }
}
