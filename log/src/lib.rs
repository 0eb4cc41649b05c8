//! The log of the library: a thread of its own hands records to the program's logger, so that nothing that prints
//! stops anything.
//!
//! A logger may wait as long as it likes: for a pipe that nobody reads, a terminal that is paused, a disk that stands
//! still. The macros of this crate only put a record into a bounded queue. They need nothing of the program but a
//! logger of the crate `log`, and they do nothing without one.
//!
//! * A full queue drops what comes, counts it, and says so at the place of the gap when there is room again.
//! * A warning or an error that comes again with the same text is counted; the count is written after 30 s.
//! * The end of the process waits for the queue, for at most a second.
//! * The child of a `fork` begins with an empty queue; it has none of the parent's threads.
//!
//! Modules from top to bottom, each of which uses only those below it: `queues`, `queue`, `repeats`, `line`,
//! `system`.

mod line;
mod queue;
mod queues;
mod repeats;
mod system;

pub use line::Origin;
pub use log::{Level, LevelFilter, Log, Metadata, Record, max_level, set_boxed_logger, set_max_level};

use line::{Item, Line};
use std::{
    fmt,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

/// Records go to the logger on the thread that writes them.
static SYNCHRONOUS: AtomicBool = AtomicBool::new(false);

/// Whether records of this level are taken at all.
pub fn is_enabled(level: Level) -> bool {
    level <= log::STATIC_MAX_LEVEL && level <= log::max_level()
}

/// Puts a record into the queue; the macros call it. Never waits.
pub fn say(level: Level, target: &'static str, origin: Origin, text: fmt::Arguments<'_>) {
    // A logger that logs would feed itself for ever.
    if queue::is_writer() {
        return;
    }
    let line = Line::new(level, target, origin, text.to_string());
    if SYNCHRONOUS.load(Ordering::Relaxed) {
        return line.write();
    }
    queues::queues().records.push(Item::Line(line));
}

/// Prints a text on standard output by a queue and a thread of its own. Never waits.
pub fn print(text: impl Into<String>) {
    queues::queues().output.push(Item::Output(text.into()));
}

/// Prints a text on standard error behind all records so far, whatever the level of the log is. Never waits.
pub fn print_error(text: impl Into<String>) {
    queues::queues().records.push(Item::Error(text.into()));
}

/// Waits until the logger has all records so far, and has flushed them; says whether it has. Returns early if the
/// logger has been busy with one record for that long already.
pub fn flush(within: Duration) -> bool {
    queue::is_writer() || queues::queues().records.flush(Instant::now() + within, within)
}

/// Whether this thread is the one that calls the logger.
pub fn is_writer() -> bool {
    queue::is_writer()
}

/// From now on the logger is called on the thread that logs, and each repetition too: for programs that look for a
/// crash, or stop themselves at a certain line.
pub fn be_synchronous() {
    SYNCHRONOUS.store(true, Ordering::Relaxed);
}

/// Logs at a level that an expression gives; `target:` may come first.
#[macro_export]
macro_rules! log {
    (target: $target:expr, $level:expr, $($text:tt)+) => {{
        let level = $level;
        if $crate::is_enabled(level) {
            let origin = $crate::Origin { module: module_path!(), file: file!(), line: line!() };
            $crate::say(level, $target, origin, format_args!($($text)+));
        }
    }};
    ($level:expr, $($text:tt)+) => { $crate::log!(target: module_path!(), $level, $($text)+) };
}

/// Logs an error.
#[macro_export]
macro_rules! error {
    ($($text:tt)+) => { $crate::log!($crate::Level::Error, $($text)+) };
}

/// Logs a warning.
#[macro_export]
macro_rules! warn {
    ($($text:tt)+) => { $crate::log!($crate::Level::Warn, $($text)+) };
}

/// Logs what an operator may want to know.
#[macro_export]
macro_rules! info {
    ($($text:tt)+) => { $crate::log!($crate::Level::Info, $($text)+) };
}

/// Logs what helps to find a mistake.
#[macro_export]
macro_rules! debug {
    ($($text:tt)+) => { $crate::log!($crate::Level::Debug, $($text)+) };
}

/// Logs each step.
#[macro_export]
macro_rules! trace {
    ($($text:tt)+) => { $crate::log!($crate::Level::Trace, $($text)+) };
}
