//! The entries of a queue, and how they are written.

use log::Level;
use std::{
    fmt,
    io::{self, Write},
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, Instant},
};

/// A record that waited longer than this says how long.
const LATE: Duration = Duration::from_secs(2);

/// Where in the sources a record comes from.
#[derive(Debug, Clone, Copy)]
pub struct Origin {
    /// Path of the module.
    pub module: &'static str,
    /// Path of the file.
    pub file: &'static str,
    /// Line in it.
    pub line: u32,
}

/// One record of the log.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    pub(crate) level: Level,
    target: &'static str,
    origin: Origin,
    pub(crate) text: String,
    said_at: Instant,
}

impl Line {
    pub(crate) fn new(level: Level, target: &'static str, origin: Origin, text: String) -> Self {
        Self { level, target, origin, text, said_at: Instant::now() }
    }

    /// A record of this crate.
    pub(crate) fn own(text: String) -> Self {
        let origin = Origin { module: module_path!(), file: file!(), line: line!() };
        Self::new(Level::Warn, "pccl_log", origin, text)
    }

    /// The same record with another text, said now.
    pub(crate) fn with_text(&self, text: String) -> Self {
        Self::new(self.level, self.target, self.origin, text)
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.level == other.level && self.target == other.target && self.text == other.text
    }

    /// Hands it to the program's logger.
    pub(crate) fn write(&self) {
        match self.said_at.elapsed() {
            waited if waited >= LATE => {
                self.hand_over(format_args!("{} (said {} s ago)", self.text, waited.as_secs()));
            }
            _ => self.hand_over(format_args!("{}", self.text)),
        }
    }

    fn hand_over(&self, text: fmt::Arguments<'_>) {
        let mut builder = log::Record::builder();
        builder.level(self.level).target(self.target).module_path_static(Some(self.origin.module));
        builder.file_static(Some(self.origin.file)).line(Some(self.origin.line));
        log::logger().log(&builder.args(text).build());
    }
}

/// An entry of a queue.
#[derive(Debug)]
pub(crate) enum Item {
    /// For the program's logger.
    Line(Line),
    /// For standard error.
    Error(String),
    /// For standard output.
    Output(String),
    /// The logger is to flush.
    Flush,
}

impl Item {
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Self>()
            + match self {
                Self::Line(line) => line.text.len(),
                Self::Error(text) | Self::Output(text) => text.len(),
                Self::Flush => 0,
            }
    }

    /// Writes it, however long that takes. Neither an error nor a panic of a logger leaves it: there is nobody to be
    /// told, and what comes next may succeed.
    pub(crate) fn write(&self) {
        let _ = catch_unwind(AssertUnwindSafe(|| match self {
            Self::Line(line) => line.write(),
            Self::Error(text) => drop(io::stderr().write_all(text.as_bytes())),
            Self::Output(text) => {
                let mut stdout = io::stdout();
                drop(stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()));
            }
            Self::Flush => log::logger().flush(),
        }));
    }
}
