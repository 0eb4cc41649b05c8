//! The lines of the log about waits: for whom, when that changes, and as a warning when it takes long.

use std::time::{Duration, Instant};

/// How long a wait is nothing special.
const FIRST_WARNING: Duration = Duration::from_secs(10);
/// The time between two warnings about one wait.
const NEXT_WARNING: Duration = Duration::from_secs(30);

/// The wait of the oldest call that is under way.
#[derive(Debug, Default)]
pub(crate) struct WaitLog {
    wait: Option<Wait>,
}

#[derive(Debug)]
struct Wait {
    /// When the call began.
    called: Instant,
    /// When its bytes were last seen to move, or it began.
    since: Instant,
    moved_bytes: u64,
    text: String,
    warn_after: Duration,
}

/// The line that there is to be said.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    News(String),
    Warning(String),
}

impl WaitLog {
    /// For whom the oldest call waits.
    pub(super) fn text(&self) -> Option<String> {
        self.wait.as_ref().map(|wait| wait.text.clone())
    }

    /// Takes in whether there is a wait: for whom, when the call began, and what it has moved.
    pub(super) fn note(&mut self, now: Instant, wait: Option<(String, (Instant, u64))>) -> Option<Line> {
        let Some((text, (called, moved_bytes))) = wait else {
            self.wait = None;
            return None;
        };
        self.look(now, called, moved_bytes, text)
    }

    /// Takes in what the master says that a call waits for: one that began at `called` and has moved `moved_bytes`.
    fn look(&mut self, now: Instant, called: Instant, moved_bytes: u64, text: String) -> Option<Line> {
        let wait = match &mut self.wait {
            Some(wait) if wait.called == called => wait,
            slot => slot.insert(Wait {
                called,
                since: called,
                moved_bytes,
                text: String::new(),
                warn_after: FIRST_WARNING,
            }),
        };
        if wait.moved_bytes != moved_bytes {
            // It is slow, and does not wait.
            (wait.moved_bytes, wait.since, wait.warn_after) = (moved_bytes, now, FIRST_WARNING);
        }
        let news = wait.text != text;
        let waited = now.saturating_duration_since(wait.since);
        if waited >= wait.warn_after {
            wait.warn_after = waited + NEXT_WARNING;
            wait.text = text;
            return Some(Line::Warning(format!("waiting for {} s: {}", waited.as_secs(), wait.text)));
        }
        wait.text = text;
        news.then(|| Line::News(format!("waiting: {}", wait.text)))
    }
}

/// Without a lock: the log may be a function of the program.
pub(super) fn say(line: Line) {
    match line {
        Line::News(line) => log::info!("{line}"),
        Line::Warning(line) => log::warn!("{line}"),
    }
}

/// When to say that the master is silent.
#[derive(Debug, Default)]
pub(crate) struct SilenceLog {
    warned: Option<Duration>,
}

impl SilenceLog {
    /// Whether it is time to say so, after so long a silence.
    pub(crate) fn is_due(&mut self, silent: Duration) -> bool {
        if silent < FIRST_WARNING {
            self.warned = None;
            return false;
        }
        let due = self.warned.is_none_or(|warned| silent >= warned + NEXT_WARNING);
        if due {
            self.warned = Some(silent);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn a_wait_is_news_once_and_a_warning_now_and_then() {
        let (mut log, start) = (WaitLog::default(), Instant::now());
        let said: Vec<(u64, Line)> = (1..100)
            .filter_map(|at| {
                let text = if at < 50 { "for A" } else { "for B" };
                Some((at, log.look(start + seconds(at), start, 7, text.into())?))
            })
            .collect();
        let warning = |at: u64, text: &str| (at, Line::Warning(format!("waiting for {at} s: {text}")));
        let news = |at, text: &str| (at, Line::News(format!("waiting: {text}")));
        let (a, b) = ("for A", "for B");
        assert_eq!(said, [news(1, a), warning(10, a), warning(40, a), news(50, b), warning(70, b)]);
    }

    #[test]
    fn bytes_that_move_and_another_call_begin_it_anew() {
        let (mut log, start) = (WaitLog::default(), Instant::now());
        let warnings =
            |log: &mut WaitLog, from: u64, to: u64, called, moved: &dyn Fn(u64) -> u64| -> Vec<u64> {
                let look = |at: &u64| {
                    let line = log.look(start + seconds(*at), called, moved(*at), "x".into());
                    matches!(line, Some(Line::Warning(_)))
                };
                (from..to).filter(look).collect()
            };
        assert!(warnings(&mut log, 0, 60, start, &|at| at).is_empty());
        // It moved last at 59 s.
        assert_eq!(warnings(&mut log, 60, 102, start, &|_| 59), [69, 99]);
        assert_eq!(warnings(&mut log, 102, 113, start + seconds(102), &|_| 0), [112]);
    }

    #[test]
    fn the_silence_of_the_master_is_told_now_and_then() {
        let mut log = SilenceLog::default();
        let told: Vec<u64> = (0..80).filter(|at| log.is_due(seconds(*at))).collect();
        assert_eq!(told, [10, 40, 70]);
        assert!(!log.is_due(seconds(1)) && log.is_due(seconds(11)));
    }
}
