//! The log, to stderr or to a function of the program, and the environment of the original.

use crate::{
    child,
    failure::{Failure, Outcome},
};
use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use log::{Level, LevelFilter, Log, Metadata, Record};
use parking_lot::{Mutex, RwLock};
use std::{
    cell::Cell,
    ffi::{CString, c_char, c_int, c_void},
    sync::{
        Arc, Once,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
};

/// Level while the environment does not name one.
const DEFAULT_LEVEL: LevelFilter = LevelFilter::Warn;

/// Settings of the original that have no meaning here, and why.
const WITHOUT_EFFECT: &[(&str, &str)] = &[
    ("PCCL_MULTIPLEX_CHUNK_SIZE", "frames have a size of their own"),
    ("PCCL_MAX_CONCURRENT_COLLECTIVE_OPS", "all-reduces in flight do not use up threads"),
];

/// The function of a program that takes lines: level, origin, text, and what the program wants to have back.
pub(crate) type Callback = unsafe extern "C" fn(c_int, *const c_char, *const c_char, *mut c_void);

/// Lines that may wait for the function. A thread of the library must not wait for it: in Python it needs the
/// interpreter's lock, which somebody may hold for seconds.
const QUEUE_LINES: usize = 4096;

/// Where lines go instead of to stderr: to a thread that hands them to a function of the program, in their order.
#[derive(Clone)]
struct Target {
    /// What the environment asks for counts if there is none.
    level: Option<LevelFilter>,
    lines: Sender<Line>,
    /// Lines for which there was no room.
    lost: Arc<AtomicU64>,
}

/// One line of the log.
struct Line {
    level: Level,
    origin: CString,
    text: CString,
}

/// Read by whoever logs, written by whoever changes it.
static TARGET: RwLock<Option<Target>> = RwLock::new(None);
/// The thread that calls the function; held while the function is being replaced.
static HANDER: Mutex<Option<JoinHandle<()>>> = Mutex::new(None);

thread_local! {
    /// This thread hands lines to a function of the program.
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
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
/// function they go to stderr again. When this returns, the function before is not called any more.
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
    if IN_CALLBACK.get() {
        return Err(Failure::usage("the function that takes the log cannot be replaced from within itself"));
    }
    install();
    let stderr = stderr_level();
    let mut hander = HANDER.lock();
    // What waits for the function before is handed to it first.
    *TARGET.write() = None;
    if let Some(before) = hander.take() {
        let _ = before.join();
    }
    let Some(callback) = callback else {
        log::set_max_level(stderr);
        return Ok(());
    };
    let (lines, waiting) = bounded(QUEUE_LINES);
    let lost = Arc::new(AtomicU64::new(0));
    let (user, counted) = (user.addr(), lost.clone());
    let hand = move || hand_over(&waiting, &counted, callback, user);
    let thread = std::thread::Builder::new().name("pccl-log".into()).spawn(hand);
    *hander = Some(thread.map_err(|error| Failure::internal(format!("cannot start a thread: {error}")))?);
    log::set_max_level(level.unwrap_or(stderr));
    *TARGET.write() = Some(Target { level, lines, lost });
    Ok(())
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

/// What the environment asks for.
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

    fn log(&self, record: &Record<'_>) {
        // A forked child has the locks as they were in the middle of whatever the other threads did.
        if child::is_child() || IN_CALLBACK.get() {
            return;
        }
        let target = TARGET.read_recursive();
        let Some(Target { level, lines, lost }) = &*target else { return self.stderr.log(record) };
        if level.map_or_else(|| self.stderr.matches(record), |level| record.level() <= level) {
            let text = |text: String| CString::new(text.replace('\0', " ")).unwrap_or_default();
            let (origin, text) = (text(record.target().to_owned()), text(record.args().to_string()));
            if let Err(TrySendError::Full(_)) = lines.try_send(Line { level: record.level(), origin, text }) {
                lost.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn flush(&self) {
        self.stderr.flush();
    }
}

/// The thread that hands lines over, until nobody can send any more and all are handed over.
fn hand_over(lines: &Receiver<Line>, lost: &AtomicU64, callback: Callback, user: usize) {
    IN_CALLBACK.set(true);
    let hand = |line: &Line| {
        let user = std::ptr::without_provenance_mut(user);
        // SAFETY: by the contract of `pcclSetLogCallback` it may be called with `user` from any thread until it is
        // replaced, and whoever replaces it waits for this thread; the texts live until it has returned.
        unsafe { callback(line.level as c_int, line.origin.as_ptr(), line.text.as_ptr(), user) };
    };
    for line in lines {
        hand(&line);
        let lost = lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            let text = CString::new(format!("{lost} lines of the log were lost: they came too fast"))
                .unwrap_or_default();
            hand(&Line { level: Level::Warn, origin: CString::from(c"pccl"), text });
        }
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
