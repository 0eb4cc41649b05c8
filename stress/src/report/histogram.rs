//! Durations in classes of equal width on a logarithmic scale: bounded memory, and the sum of two is easily made.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A class ends 12 % above its beginning.
const PER_DECADE: f64 = 20.0;

/// See the module's documentation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Histogram {
    pub(crate) count: u64,
    /// The longest one, exactly.
    pub(crate) max_us: u64,
    /// How many there are in each class.
    classes: BTreeMap<u32, u64>,
}

impl Histogram {
    pub(crate) fn add(&mut self, us: u64) {
        let class = ((us.max(1) as f64).log10() * PER_DECADE).floor() as u32;
        *self.classes.entry(class).or_default() += 1;
        self.count += 1;
        self.max_us = self.max_us.max(us);
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        for (&class, &count) in &other.classes {
            *self.classes.entry(class).or_default() += count;
        }
        self.count += other.count;
        self.max_us = self.max_us.max(other.max_us);
    }

    /// The smallest end of a class below which `percent` of all are, but never more than the longest; 0 if there are
    /// none.
    pub(crate) fn quantile_us(&self, percent: u64) -> u64 {
        let rank = (self.count * percent).div_ceil(100).max(1);
        let mut below = 0;
        for (&class, &count) in &self.classes {
            below += count;
            if below >= rank {
                return (end_us(class) as u64).min(self.max_us);
            }
        }
        self.max_us
    }

    /// Median, 95 % and longest, for people.
    pub(crate) fn words(&self) -> String {
        let [median, most] = [50, 95].map(|percent| self.quantile_us(percent));
        format!("median {}, 95 % {}, slowest {}", ms(median), ms(most), ms(self.max_us))
    }
}

fn begin_us(class: u32) -> f64 {
    10f64.powf(f64::from(class) / PER_DECADE)
}

fn end_us(class: u32) -> f64 {
    begin_us(class + 1)
}

/// A duration in milliseconds, with three digits where it is short.
pub(crate) fn ms(us: u64) -> String {
    match us {
        0 => "0 ms".to_owned(),
        1..10_000 => format!("{:.1} ms", us as f64 / 1000.0),
        _ => format!("{} ms", us / 1000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(durations: impl IntoIterator<Item = u64>) -> Histogram {
        let mut histogram = Histogram::default();
        durations.into_iter().for_each(|us| histogram.add(us));
        histogram
    }

    #[test]
    fn quantiles_are_at_most_a_class_above_the_exact_ones() {
        let histogram = of(1..=10_000);
        for (percent, exact) in [(1, 100), (50, 5_000), (95, 9_500)] {
            let quantile = histogram.quantile_us(percent);
            assert!((exact..=exact * 113 / 100).contains(&quantile), "{percent} %: {quantile}");
        }
        assert_eq!(histogram.quantile_us(100), 10_000);
        assert_eq!(of([7]).quantile_us(50), 7);
        assert_eq!(Histogram::default().quantile_us(50), 0);
        assert_eq!(of([0]).quantile_us(50), 0);
    }

    #[test]
    fn a_sum_is_what_both_would_have_been() {
        let mut sum = of([1, 50, 3_000]);
        sum.merge(&of([50, 9_000_000]));
        assert_eq!(sum, of([1, 50, 3_000, 50, 9_000_000]));
    }
}
