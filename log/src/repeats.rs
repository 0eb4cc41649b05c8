//! Warnings and errors that come again with the same text: counted, and written once in [`PERIOD`].

use crate::line::Line;
use log::Level;
use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// How long repetitions are counted before the count is written.
const PERIOD: Duration = Duration::from_secs(30);
/// Texts that are remembered; the oldest goes first.
const MOST_TEXTS: usize = 64;

/// The warnings of the last [`PERIOD`], oldest first.
#[derive(Debug, Default)]
pub(crate) struct Repeats {
    seen: VecDeque<Seen>,
}

#[derive(Debug)]
struct Seen {
    line: Line,
    since: Instant,
    /// Repetitions since then.
    count: u64,
}

impl Seen {
    /// The line about the repetitions, if there were any.
    fn summary(&self, now: Instant) -> Option<Line> {
        let seconds = now.saturating_duration_since(self.since).as_secs_f64();
        let count = match self.count {
            0 => return None,
            1 => "once".to_owned(),
            count => format!("{count} times"),
        };
        let text = format!("{} (and {count} more within {seconds:.1} s)", self.line.text);
        Some(self.line.with_text(text))
    }
}

impl Repeats {
    /// Whether the record is a repetition that was counted. Gives back what has to be written because there was no
    /// room to remember it any longer.
    pub(crate) fn count(&mut self, line: &Line, now: Instant) -> (bool, Option<Line>) {
        if line.level > Level::Warn {
            return (false, None);
        }
        self.forget(now);
        if let Some(seen) = self.seen.iter_mut().find(|seen| seen.line.is_same(line)) {
            seen.count += 1;
            return (true, None);
        }
        let oldest = if self.seen.len() >= MOST_TEXTS { self.seen.pop_front() } else { None };
        self.seen.push_back(Seen { line: line.clone(), since: now, count: 0 });
        (false, oldest.and_then(|oldest| oldest.summary(now)))
    }

    /// Forgets what was not repeated in its time.
    fn forget(&mut self, now: Instant) {
        self.seen.retain(|seen| seen.count > 0 || now < seen.since + PERIOD);
    }

    /// When [`Self::due`] has something to say.
    pub(crate) fn due_at(&self) -> Option<Instant> {
        self.seen.iter().find(|seen| seen.count > 0).map(|seen| seen.since + PERIOD)
    }

    /// A count that is to be written now; its next time begins.
    pub(crate) fn due(&mut self, now: Instant) -> Option<Line> {
        if self.due_at().is_none_or(|at| now < at) {
            return None;
        }
        let at = self.seen.iter().position(|seen| seen.count > 0)?;
        let mut seen = self.seen.remove(at)?;
        let summary = seen.summary(now);
        (seen.since, seen.count) = (now, 0);
        self.seen.push_back(seen);
        summary
    }

    /// All counts, at the end.
    pub(crate) fn drain(&mut self, now: Instant) -> Vec<Line> {
        self.seen.drain(..).filter_map(|seen| seen.summary(now)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::Origin;

    fn record(level: Level, text: &str) -> Line {
        Line::new(level, "test", Origin { module: "test", file: "test", line: 1 }, text.to_owned())
    }

    #[test]
    fn repetitions_are_written_once_in_a_period() {
        let (mut repeats, start) = (Repeats::default(), Instant::now());
        let (storm, other) = (record(Level::Warn, "storm"), record(Level::Error, "other"));
        for i in 0..1000 {
            let now = start + Duration::from_millis(10 * i);
            assert_eq!(repeats.count(&storm, now).0, i > 0);
            assert_eq!(repeats.count(&other, now).0, i > 0, "what comes between does not matter");
        }
        assert_eq!(repeats.due_at(), Some(start + PERIOD));
        assert!(repeats.due(start + PERIOD / 2).is_none());
        let due = [(); 3].map(|()| repeats.due(start + PERIOD).map(|record| record.text));
        let texts = ["storm", "other"].map(|text| Some(format!("{text} (and 999 times more within 30.0 s)")));
        assert_eq!(due, [texts[0].clone(), texts[1].clone(), None]);
        // The next period begins with the count, and nothing is written at its end if nothing came.
        assert!(repeats.count(&storm, start + PERIOD * 3 / 2).0);
        assert_eq!(repeats.due_at(), Some(start + 2 * PERIOD));
        let texts = |records: Vec<Line>| records.into_iter().map(|record| record.text).collect::<Vec<_>>();
        assert_eq!(texts(repeats.drain(start + 2 * PERIOD)), ["storm (and once more within 30.0 s)"]);
        assert!(!repeats.count(&other, start + 3 * PERIOD).0);
        assert!(!repeats.count(&other, start + 5 * PERIOD).0, "forgotten");
    }

    #[test]
    fn what_only_informs_is_never_counted() {
        let mut repeats = Repeats::default();
        for _ in 0..3 {
            assert!(!repeats.count(&record(Level::Info, "the same"), Instant::now()).0);
        }
        assert_eq!(repeats.due_at(), None);
    }

    #[test]
    fn the_count_of_a_text_for_which_there_is_no_room_is_written() {
        let (mut repeats, now) = (Repeats::default(), Instant::now());
        let first = record(Level::Warn, "first");
        assert!(!repeats.count(&first, now).0);
        assert!(repeats.count(&first, now).0);
        let written =
            (0..MOST_TEXTS).filter_map(|i| repeats.count(&record(Level::Warn, &i.to_string()), now).1);
        let written: Vec<_> = written.map(|record| record.text).collect();
        assert_eq!(written, ["first (and once more within 0.0 s)"]);
        assert_eq!(repeats.seen.len(), MOST_TEXTS);
    }
}
