//! A logger that writes to a file and, at the n-th line with a certain text, kills or stops its own process: so a peer
//! dies at a named point of the protocol as any process dies, without a hook in the library.

use std::{
    fs::File,
    io::Write,
    sync::{Mutex, OnceLock, PoisonError},
};

/// The event at the named point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deed {
    /// SIGKILL.
    Kill,
    /// SIGSTOP; somebody else has to send SIGCONT.
    Stop,
}

struct Trap {
    text: String,
    left: usize,
    deed: Deed,
}

struct Logger {
    file: Mutex<Option<File>>,
    trap: Mutex<Option<Trap>>,
}

static LOGGER: OnceLock<Logger> = OnceLock::new();

/// Starts to log to `path`.
pub(crate) fn install(path: &str) -> Result<(), String> {
    let file = File::create(path).map_err(|error| format!("{path}: {error}"))?;
    let logger = LOGGER.get_or_init(|| Logger { file: Mutex::new(Some(file)), trap: Mutex::new(None) });
    // The deed is to happen on the thread that says the line, before it goes on.
    pccl_log::be_synchronous();
    log::set_logger(logger).map_err(|error| error.to_string())?;
    log::set_max_level(log::LevelFilter::Debug);
    Ok(())
}

/// Arms the trap: `deed` happens at the `nth` line that contains `text`, counted from 1.
pub(crate) fn arm(deed: Deed, nth: usize, text: &str) {
    if let Some(logger) = LOGGER.get() {
        *logger.trap.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(Trap { text: text.to_owned(), left: nth, deed });
        log::set_max_level(log::LevelFilter::Trace);
    }
}

/// Takes the trap away; says how many lines were still missing.
pub(crate) fn disarm() -> Option<usize> {
    log::set_max_level(log::LevelFilter::Debug);
    let trap = LOGGER.get()?.trap.lock().unwrap_or_else(PoisonError::into_inner).take();
    trap.map(|trap| trap.left)
}

impl log::Log for Logger {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.target().starts_with("pccl") || metadata.target().starts_with("tinysockets")
    }

    fn log(&self, record: &log::Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let line = record.args().to_string();
        let stamp = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0.0, |since| since.as_secs_f64());
        if let Some(file) = self.file.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            let _ = writeln!(file, "{stamp:.6} {:5} {}: {line}", record.level(), record.target());
        }
        let deed = {
            let mut slot = self.trap.lock().unwrap_or_else(PoisonError::into_inner);
            match slot.as_mut().filter(|trap| line.contains(&trap.text)) {
                Some(trap) => {
                    trap.left -= 1;
                    if trap.left == 0 { slot.take().map(|trap| trap.deed) } else { None }
                }
                None => None,
            }
        };
        match deed {
            Some(Deed::Kill) => signal_self(libc::SIGKILL),
            Some(Deed::Stop) => signal_self(libc::SIGSTOP),
            None => {}
        }
    }

    fn flush(&self) {}
}

/// Sent to the calling thread, so that it takes effect before the next line runs.
fn signal_self(signal: i32) {
    // SAFETY: takes an integer and touches no memory of ours.
    unsafe {
        libc::raise(signal);
    }
}
