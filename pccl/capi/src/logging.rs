//! The log, to stderr or to a function of the program, and the environment of the original.

use crate::failure::{Failure, Outcome};
use log::{Level, LevelFilter, Log, Metadata, Record};
use parking_lot::{Mutex, MutexGuard};
use std::{
    cell::RefCell,
    ffi::{CString, c_char, c_int, c_void},
    sync::{
        Once,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// Level while the environment does not name one.
const DEFAULT_LEVEL: LevelFilter = LevelFilter::Warn;

/// How long whoever replaces the function waits for the one before: for the lines that are its own, and for its return.
const LAST_LINES: Duration = Duration::from_secs(2);

/// Settings of the original that have no meaning here, and why.
const WITHOUT_EFFECT: &[(&str, &str)] = &[
    ("PCCL_MULTIPLEX_CHUNK_SIZE", "frames have a size of their own"),
    ("PCCL_MAX_CONCURRENT_COLLECTIVE_OPS", "all-reduces in flight do not use up threads"),
];

/// The function of a program that takes lines: level, origin, text, and what the program wants to have back.
pub(crate) type Callback = unsafe extern "C" fn(c_int, *const c_char, *const c_char, *mut c_void);

/// Where lines go instead of to stderr.
#[derive(Clone, Copy)]
struct Target {
    /// The level that the environment asks for counts if there is none.
    level: Option<LevelFilter>,
    callback: Callback,
    user: usize,
}

/// Held for a look or a change only, never while the function runs.
static TARGET: Mutex<Option<Target>> = Mutex::new(None);
/// The function runs.
static IS_CALLED: AtomicBool = AtomicBool::new(false);
/// Held while the function is being replaced.
static REPLACING: Mutex<()> = Mutex::new(());

thread_local! {
    /// The lock of the target in the thread that forks.
    static HELD: RefCell<Option<MutexGuard<'static, Option<Target>>>> = const { RefCell::new(None) };
}

/// Starts the log at the level that `PCCL_LOG_LEVEL` or `RUST_LOG` asks for, once, and warns of settings without
/// effect.
pub(crate) fn start() {
    static ONCE: Once = Once::new();
    install();
    ONCE.call_once(|| {
        if let Some(wanted) = wanted().filter(|wanted| parse_level(wanted).is_none()) {
            log::warn!(
                "PCCL_LOG_LEVEL={wanted:?} is not one of TRACE, DEBUG, INFO, WARN, ERR, FATAL, NONE; using WARN"
            );
        }
        for (name, why) in WITHOUT_EFFECT.iter().filter(|(name, _)| std::env::var_os(name).is_some()) {
            log::warn!("{name} has no effect: {why}");
        }
    });
}

/// Hands lines of `level` and above to a function from now on; -1 stands for what the environment asks for. Without a
/// function they go to stderr again. When this succeeds, the function before is not called any more.
pub(crate) fn set_callback(level: c_int, callback: Option<Callback>, user: *mut c_void) -> Outcome {
    let level = match level {
        -1 => None,
        0 => Some(LevelFilter::Off),
        1 => Some(LevelFilter::Error),
        2 => Some(LevelFilter::Warn),
        3 => Some(LevelFilter::Info),
        4 => Some(LevelFilter::Debug),
        5 => Some(LevelFilter::Trace),
        _ => return Err(Failure::argument(format!("{level} is no pcclLogLevel_t"))),
    };
    if log::is_writer() {
        return Err(Failure::usage("the function that takes the log cannot be replaced from within itself"));
    }
    install();
    let stderr = stderr_level();
    let Some(_replacing) = REPLACING.try_lock_for(LAST_LINES) else {
        return Err(Failure::usage("another thread replaces the function that takes the log"));
    };
    // Lines that wait for the function before are handed to it first.
    log::flush(LAST_LINES);
    let target = callback.map(|callback| Target { level, callback, user: user.addr() });
    let before = std::mem::replace(&mut *TARGET.lock(), target);
    log::set_max_level(target.map_or(stderr, |_| level.unwrap_or(stderr)));
    let is_same = before.zip(target).is_some_and(|(before, target)| before.calls_as(&target));
    if !is_same && !log::flush(LAST_LINES) && IS_CALLED.load(Ordering::Acquire) {
        return Err(Failure::usage(
            "the function that took the log has not returned for 2 s: it gets no further line, but it still runs",
        ));
    }
    Ok(())
}

/// Puts a line of the program among those of the library.
pub(crate) fn write(level: c_int, text: &str) -> Outcome {
    let level = match level {
        1 => Level::Error,
        2 => Level::Warn,
        3 => Level::Info,
        4 => Level::Debug,
        5 => Level::Trace,
        _ => return Err(Failure::argument(format!("{level} is no level of a line"))),
    };
    install();
    log::log!(target: "pccl_program", level, "{text}");
    Ok(())
}

/// Before a `fork`: nobody changes where lines go until [`thaw`], which the same thread has to call.
pub(crate) fn freeze() {
    HELD.with(|held| *held.borrow_mut() = Some(TARGET.lock()));
}

/// Ends [`freeze`], after the `fork`.
pub(crate) fn thaw() {
    HELD.with(|held| drop(held.borrow_mut().take()));
}

/// In the child of a `fork` in which no call is possible: it logs nothing.
pub(crate) fn end_in_child() {
    thaw();
    log::set_max_level(LevelFilter::Off);
}

/// Puts the log in its place, once.
fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let stderr = stderr();
        let level = stderr.filter();
        if log::set_boxed_logger(Box::new(Logger { stderr })).is_ok() {
            log::set_max_level(level);
        }
    });
}

/// The level that the environment asks for.
fn wanted() -> Option<String> {
    std::env::var("PCCL_LOG_LEVEL").ok()
}

/// The log to stderr.
fn stderr() -> env_logger::Logger {
    let level = wanted().as_deref().map_or(Some(DEFAULT_LEVEL), parse_level);
    let mut builder = env_logger::Builder::new();
    builder.filter_level(level.unwrap_or(DEFAULT_LEVEL));
    if level != Some(LevelFilter::Off) {
        // The warnings of this module are few, and meant for whoever set something.
        builder.filter_module(module_path!(), LevelFilter::Warn);
    }
    if std::env::var_os("RUST_LOG").is_some() {
        builder.parse_default_env();
    }
    builder.build()
}

/// The most detailed level that goes to stderr.
fn stderr_level() -> LevelFilter {
    stderr().filter()
}

struct Logger {
    stderr: env_logger::Logger,
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    // On the thread of the log, or, of a program's own records in Rust, on any.
    fn log(&self, record: &Record<'_>) {
        let target = *TARGET.lock();
        match target {
            None => self.stderr.log(record),
            Some(target) => {
                if target.level.map_or_else(|| self.stderr.matches(record), |level| record.level() <= level) {
                    target.hand_over(record);
                }
            }
        }
    }

    fn flush(&self) {
        self.stderr.flush();
    }
}

impl Target {
    /// Whether lines go to the same place as by the other one.
    fn calls_as(&self, other: &Self) -> bool {
        std::ptr::fn_addr_eq(self.callback, other.callback) && self.user == other.user
    }

    fn hand_over(&self, record: &Record<'_>) {
        let text = |text: String| CString::new(text.replace('\0', " ")).unwrap_or_default();
        let (origin, text) = (text(record.target().to_owned()), text(record.args().to_string()));
        let user = std::ptr::without_provenance_mut(self.user);
        IS_CALLED.store(true, Ordering::Release);
        // SAFETY: by the contract of `pcclSetLogCallback` it may be called with `user` from any thread until it is
        // replaced, and the one that replaces it waits for the thread of the log or is told that it still runs; the
        // texts live until it has returned.
        unsafe { (self.callback)(record.level() as c_int, origin.as_ptr(), text.as_ptr(), user) };
        IS_CALLED.store(false, Ordering::Release);
    }
}

fn parse_level(name: &str) -> Option<LevelFilter> {
    Some(match name.to_ascii_uppercase().as_str() {
        "TRACE" => LevelFilter::Trace,
        "DEBUG" => LevelFilter::Debug,
        "INFO" => LevelFilter::Info,
        "WARN" => LevelFilter::Warn,
        "ERR" | "ERROR" | "FATAL" | "BUG" => LevelFilter::Error,
        "NONE" => LevelFilter::Off,
        _ => return None,
    })
}
