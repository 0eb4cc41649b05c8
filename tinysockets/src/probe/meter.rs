//! From counts of bytes to the rate of a path: pure arithmetic.

use std::time::Duration;

/// Shortest and longest window over which bytes are counted.
const WINDOW: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(250));
/// A rate is stable when this number of windows in a row are ...
const STABLE_WINDOWS: usize = 4;
/// ... this close to their mean, ...
const STABLE_SPREAD: f64 = 0.06;
/// ... and this number came before them, in which the connections were still speeding up.
const FIRST_WINDOWS: usize = 2;

/// The count of the receiving end of one connection: bytes, and microseconds by its clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) bytes: u64,
    pub(super) micros: u64,
}

/// How long a window is on a path with this round trip.
pub(super) fn window(round_trip: Duration) -> Duration {
    (round_trip * 2).clamp(WINDOW.0, WINDOW.1)
}

/// Collects the rates of windows.
#[derive(Debug, Default)]
pub(super) struct Meter {
    last: Vec<Count>,
    /// Bytes per second.
    rates: Vec<f64>,
}

impl Meter {
    /// A window is over; the counts of all connections.
    pub(super) fn add(&mut self, counts: &[Count]) {
        let rate = |(now, before): (&Count, &Count)| {
            let micros = now.micros.saturating_sub(before.micros);
            if micros == 0 {
                0.0
            } else {
                (now.bytes - before.bytes.min(now.bytes)) as f64 * 1e6 / micros as f64
            }
        };
        self.last.resize(counts.len(), Count::default());
        self.rates.push(counts.iter().zip(&self.last).map(rate).sum());
        self.last = counts.to_vec();
    }

    /// The rate, if the last windows agree on it, in bytes per second.
    pub(super) fn stable(&self) -> Option<f64> {
        let tail = self.rates.get(FIRST_WINDOWS..).filter(|later| later.len() >= STABLE_WINDOWS)?;
        let tail = &tail[tail.len() - STABLE_WINDOWS..];
        let mean = mean(tail)?;
        tail.iter()
            .all(|rate| (rate - mean).abs() <= STABLE_SPREAD * mean)
            .then_some(mean)
            .filter(|rate| *rate > 0.0)
    }

    /// The rate when the time is over: that of the later half, when the connections were up to speed.
    pub(super) fn rate(&self) -> Option<f64> {
        self.stable().or_else(|| mean(&self.rates[self.rates.len() / 2..])).filter(|rate| *rate > 0.0)
    }
}

fn mean(rates: &[f64]) -> Option<f64> {
    (!rates.is_empty()).then(|| rates.iter().sum::<f64>() / rates.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A meter after windows of 50 ms on two connections with these rates, in bytes per second together.
    fn meter(rates: &[u64]) -> Meter {
        let mut meter = Meter::default();
        let mut counts = [Count::default(); 2];
        for rate in rates {
            for count in &mut counts {
                count.bytes += rate / 40;
                count.micros += 50_000;
            }
            meter.add(&counts);
        }
        meter
    }

    #[test]
    fn a_steady_rate_is_found_early_and_a_rising_one_is_not() {
        assert_eq!(meter(&[1_000_000; 5]).stable(), None, "it may still be speeding up");
        assert_eq!(meter(&[1_000_000; 6]).stable(), Some(1_000_000.0));
        let rising: Vec<u64> = (0..20).map(|i| 1_000_000 << (i / 2)).collect();
        assert_eq!(meter(&rising).stable(), None);
        let arrived =
            [vec![100_000, 400_000, 900_000], vec![1_000_000, 1_020_000, 980_000, 1_000_000]].concat();
        assert_eq!(meter(&arrived).stable(), Some(1_000_000.0));
    }

    #[test]
    fn a_restless_rate_is_that_of_the_later_half() {
        let meter = meter(&[0, 0, 1_000_000, 2_000_000, 1_000_000, 2_000_000]);
        assert_eq!((meter.stable(), meter.rate()), (None, Some(5_000_000.0 / 3.0)));
    }

    #[test]
    fn nothing_has_no_rate() {
        assert_eq!(Meter::default().rate(), None);
        assert_eq!(meter(&[0; 8]).rate(), None);
        assert_eq!((window(Duration::ZERO), window(Duration::from_secs(1))), WINDOW);
    }
}
