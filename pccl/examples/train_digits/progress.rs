//! One line that is always up to date on a terminal; a line now and then elsewhere.

use std::io::{self, Write};
use std::time::{Duration, Instant};

/// Between two updates, so that fast steps do not flood a terminal.
const TERMINAL_INTERVAL: Duration = Duration::from_millis(100);
/// Between two lines in a log file.
const LOG_INTERVAL: Duration = Duration::from_secs(2);
/// Back to the first column, and the line empty.
const CLEAR: &str = "\r\x1b[2K";

/// Shows progress on `out`.
pub(crate) struct Progress<W> {
    out: W,
    terminal: bool,
    last: Option<Instant>,
    last_event: String,
}

impl<W: Write> Progress<W> {
    /// `terminal`: whether `out` is one.
    pub(crate) const fn new(out: W, terminal: bool) -> Self {
        Self { out, terminal, last: None, last_event: String::new() }
    }

    /// Shows `status` if it is time to. An `event` that was not there last time gets a line that stays.
    pub(crate) fn update(&mut self, now: Instant, status: &str, event: &str) -> io::Result<()> {
        let new_event = event != self.last_event;
        let interval = if self.terminal { TERMINAL_INTERVAL } else { LOG_INTERVAL };
        if !new_event && self.last.is_some_and(|last| now.saturating_duration_since(last) < interval) {
            return Ok(());
        }
        self.last = Some(now);
        if new_event {
            event.clone_into(&mut self.last_event);
            self.line(&format!("  {event}"))?;
        }
        if self.terminal {
            // Without automatic wrapping, so that a line too long for the terminal is cut and stays one line.
            write!(self.out, "{CLEAR}\x1b[?7l{status}\x1b[?7h")?;
        } else {
            writeln!(self.out, "{status}")?;
        }
        self.out.flush()
    }

    /// Writes a line that stays.
    pub(crate) fn line(&mut self, text: &str) -> io::Result<()> {
        let clear = if self.terminal { CLEAR } else { "" };
        writeln!(self.out, "{clear}{text}")?;
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_gets_a_line_per_interval_and_every_event() {
        let mut out = Vec::new();
        let mut progress = Progress::new(&mut out, false);
        let start = Instant::now();
        progress.update(start, "step 1", "started").unwrap();
        progress.update(start + LOG_INTERVAL / 2, "step 2", "started").unwrap();
        progress.update(start + LOG_INTERVAL / 2, "step 2", "killed").unwrap();
        progress.update(start + LOG_INTERVAL * 2, "step 3", "killed").unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "  started\nstep 1\n  killed\nstep 2\nstep 3\n");
    }

    #[test]
    fn a_terminal_keeps_one_line_and_its_wrapping() {
        let mut out = Vec::new();
        let mut progress = Progress::new(&mut out, true);
        let start = Instant::now();
        progress.update(start, "step 10", "").unwrap();
        progress.update(start, "step 11", "").unwrap();
        progress.line("done").unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "\r\x1b[2K\x1b[?7lstep 10\x1b[?7h\r\x1b[2Kdone\n");
    }
}
