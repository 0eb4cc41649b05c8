//! How long a search may go on. The planner has no clock; its caller says how much time is left.

use std::time::Duration;

/// Time for a search, told by the caller.
pub(crate) struct Budget<'a> {
    left: &'a mut dyn FnMut() -> Duration,
    /// The time that must be left over for the steps after this one.
    reserve: Duration,
}

impl<'a> Budget<'a> {
    pub(crate) fn new(left: &'a mut dyn FnMut() -> Duration) -> Self {
        Self { left, reserve: Duration::ZERO }
    }

    /// Whether to stop now. Searches ask at least every millisecond of their work.
    pub(crate) fn is_over(&mut self) -> bool {
        (self.left)() <= self.reserve
    }

    /// Runs a step that may use this fraction of the time that is left to the present one.
    pub(crate) fn share<T>(&mut self, fraction: f64, step: impl FnOnce(&mut Self) -> T) -> T {
        let outer = self.reserve;
        let mine = (self.left)().saturating_sub(outer);
        self.reserve = outer + mine.mul_f64(1.0 - fraction);
        let result = step(self);
        self.reserve = outer;
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_nest_and_give_back_what_they_did_not_use() {
        let mut now = 0;
        let mut left = || {
            now += 1;
            Duration::from_millis(100 - now)
        };
        let mut budget = Budget::new(&mut left);
        let count = |budget: &mut Budget<'_>| {
            let mut steps = 0;
            while !budget.is_over() {
                steps += 1;
            }
            steps
        };
        // 99 are left after the first question; half of them are for the step.
        let steps = budget.share(0.5, |budget| {
            let inner = budget.share(0.5, count);
            assert!((23..=25).contains(&inner), "{inner}");
            count(budget)
        });
        assert!((22..=25).contains(&steps), "{steps}");
        let rest = count(&mut budget);
        assert!((45..=50).contains(&rest), "{rest}");
    }
}
