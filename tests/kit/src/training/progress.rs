//! One line that is always up to date on a terminal; a line now and then elsewhere. The log goes around it.

use parking_lot::Mutex;
use std::{
    io::{self, IsTerminal, Stdout, Write},
    sync::Arc,
    time::{Duration, Instant},
};

/// Between two updates, so that fast steps do not flood a terminal.
const TERMINAL_INTERVAL: Duration = Duration::from_millis(100);
/// Between two lines in a log file.
const LOG_INTERVAL: Duration = Duration::from_secs(2);
/// Back to the first column, and the line empty.
const CLEAR: &str = "\r\x1b[2K";

/// Shows progress on `out`. A clone shows it in the same place.
#[derive(Debug)]
pub struct Progress<W>(Arc<Mutex<Screen<W>>>);

impl<W> Clone for Progress<W> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

#[derive(Debug)]
struct Screen<W> {
    out: W,
    terminal: bool,
    last: Option<Instant>,
    /// The line that was up to date when it was shown; on a terminal it is still there.
    status: Option<String>,
}

impl Progress<Stdout> {
    /// Progress on the standard output.
    #[must_use]
    pub fn stdout() -> Self {
        let out = io::stdout();
        let terminal = out.is_terminal();
        Self::new(out, terminal)
    }
}

impl<W: Write> Progress<W> {
    /// `terminal`: whether `out` is one.
    pub(crate) fn new(out: W, terminal: bool) -> Self {
        Self(Arc::new(Mutex::new(Screen { out, terminal, last: None, status: None })))
    }

    /// Shows `status` if it is time to, and `events`, each of which gets a line that stays.
    pub(crate) fn update(&self, now: Instant, status: &str, events: &[String]) -> io::Result<()> {
        let mut screen = self.0.lock();
        let interval = if screen.terminal { TERMINAL_INTERVAL } else { LOG_INTERVAL };
        let early = screen.last.is_some_and(|last| now.saturating_duration_since(last) < interval);
        if events.is_empty() && early {
            return Ok(());
        }
        screen.last = Some(now);
        screen.clear()?;
        for event in events {
            writeln!(screen.out, "  {event}")?;
        }
        screen.status = Some(status.to_owned());
        if screen.terminal {
            screen.draw()?
        } else {
            writeln!(screen.out, "{status}")?
        }
        screen.out.flush()
    }

    /// Leaves the last `status` for good.
    pub(crate) fn end(&self, status: &str) -> io::Result<()> {
        let mut screen = self.0.lock();
        let shown = !screen.terminal && screen.status.as_deref() == Some(status);
        screen.clear()?;
        screen.status = None;
        if !shown {
            writeln!(screen.out, "{status}")?;
        }
        screen.out.flush()
    }

    /// Writes a line that stays in the place of the one that is up to date.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn line(&self, text: &str) -> io::Result<()> {
        let mut screen = self.0.lock();
        screen.clear()?;
        screen.status = None;
        writeln!(screen.out, "{text}")?;
        screen.out.flush()
    }

    /// Takes the lines of a log to `to`, which may be the same terminal: they get lines of their own.
    pub const fn log<E: Write>(self, to: E) -> LogLines<W, E> {
        LogLines { progress: self, to }
    }
}

impl<W: Write> Screen<W> {
    fn clear(&mut self) -> io::Result<()> {
        if self.terminal { write!(self.out, "{CLEAR}") } else { Ok(()) }
    }

    fn draw(&mut self) -> io::Result<()> {
        // Without automatic wrapping, so that a line too long for the terminal is cut and stays one line.
        self.status
            .as_ref()
            .filter(|_| self.terminal)
            .map_or(Ok(()), |status| write!(self.out, "\x1b[?7l{status}\x1b[?7h"))
    }
}

/// Where a logger writes while progress is shown.
#[derive(Debug)]
pub struct LogLines<W, E> {
    progress: Progress<W>,
    to: E,
}

impl<W: Write, E: Write> Write for LogLines<W, E> {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        self.write_all(lines).map(|()| lines.len())
    }

    /// A logger hands over whole lines.
    fn write_all(&mut self, lines: &[u8]) -> io::Result<()> {
        let mut screen = self.progress.0.lock();
        screen.clear()?;
        screen.out.flush()?;
        self.to.write_all(lines)?;
        self.to.flush()?;
        screen.draw()?;
        screen.out.flush()
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both streams of a program on one terminal.
    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Shared {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().clone()).unwrap()
        }
    }

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn events(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_log_gets_a_line_per_interval_and_every_event() {
        let out = Shared::default();
        let progress = Progress::new(out.clone(), false);
        let start = Instant::now();
        progress.update(start, "step 1", &events(&["started"])).unwrap();
        progress.update(start + LOG_INTERVAL / 2, "step 2", &[]).unwrap();
        progress.update(start + LOG_INTERVAL / 2, "step 2", &events(&["killed", "aborted"])).unwrap();
        progress.update(start + LOG_INTERVAL * 2, "step 3", &[]).unwrap();
        progress.end("step 3").unwrap();
        assert_eq!(out.text(), "  started\nstep 1\n  killed\n  aborted\nstep 2\nstep 3\n");
        progress.end("step 4").unwrap();
        assert!(out.text().ends_with("\nstep 3\nstep 4\n"));
    }

    #[test]
    fn a_terminal_keeps_one_line_and_its_wrapping() {
        let out = Shared::default();
        let progress = Progress::new(out.clone(), true);
        let start = Instant::now();
        progress.update(start, "step 10", &[]).unwrap();
        progress.update(start, "step 11", &[]).unwrap();
        progress.line("done").unwrap();
        assert_eq!(out.text(), "\r\x1b[2K\x1b[?7lstep 10\x1b[?7h\r\x1b[2Kdone\n");
    }

    #[test]
    fn lines_of_the_log_stand_above_the_status() {
        let out = Shared::default();
        let progress = Progress::new(out.clone(), true);
        progress.update(Instant::now(), "step 10", &[]).unwrap();
        let shown = out.text();
        let mut log = progress.clone().log(out.clone());
        log.write_all(b"[WARN] lost a peer\n").unwrap();
        assert_eq!(out.text(), format!("{shown}{CLEAR}[WARN] lost a peer\n\x1b[?7lstep 10\x1b[?7h"));
        // After the last line there is no status to draw again.
        progress.line("done").unwrap();
        let shown = out.text();
        log.write_all(b"[WARN] late\n").unwrap();
        assert_eq!(out.text(), format!("{shown}{CLEAR}[WARN] late\n"));
    }

    #[test]
    fn a_file_gets_nothing_but_text() {
        let out = Shared::default();
        let progress = Progress::new(out.clone(), false);
        progress.update(Instant::now(), "step 10", &[]).unwrap();
        progress.clone().log(out.clone()).write_all(b"[WARN] lost\n").unwrap();
        assert_eq!(out.text(), "step 10\n[WARN] lost\n");
    }
}
