//! Loggers that wait, repeat, panic and log, and the end of a process: each part in a process of its own, because there
//! is one logger in a process.

use std::{
    io::{Read, Write},
    os::{fd::OwnedFd, unix::net::UnixStream},
    process::{Command, ExitStatus, Stdio},
    sync::{Condvar, Mutex},
    time::{Duration, Instant},
};

/// Which part this process is.
const PART: &str = "PCCL_TEST_PART";
/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// More than a queue has room for.
const FLOOD: usize = 20_000;

/// Keeps what it is given, and lets nobody go on while it is shut.
struct Gate {
    is_shut: Mutex<bool>,
    opened: Condvar,
    lines: Mutex<Vec<String>>,
}

static GATE: Gate =
    Gate { is_shut: Mutex::new(false), opened: Condvar::new(), lines: Mutex::new(Vec::new()) };

impl Gate {
    fn shut(&self, is_shut: bool) {
        *self.is_shut.lock().expect("no panic") = is_shut;
        self.opened.notify_all();
    }

    fn lines(&self) -> Vec<String> {
        assert!(pccl_log::flush(PATIENCE));
        self.lines.lock().expect("no panic").clone()
    }
}

impl pccl_log::Log for Gate {
    fn enabled(&self, _: &pccl_log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &pccl_log::Record<'_>) {
        let text = record.args().to_string();
        let shut = self.is_shut.lock().expect("no panic");
        drop(self.opened.wait_while(shut, |is_shut| *is_shut).expect("no panic"));
        assert!(!text.contains("panic"), "a logger that fails");
        // It feeds itself, unless somebody sees to it.
        pccl_log::info!("about {text}");
        self.lines.lock().expect("no panic").push(format!("{} {text}", record.target()));
    }

    fn flush(&self) {}
}

/// Writes to standard error.
struct ToStderr;

impl pccl_log::Log for ToStderr {
    fn enabled(&self, _: &pccl_log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &pccl_log::Record<'_>) {
        let _ = writeln!(std::io::stderr(), "{}", record.args());
    }

    fn flush(&self) {
        let _ = writeln!(std::io::stderr(), "flushed");
    }
}

fn start(logger: impl pccl_log::Log + 'static) {
    pccl_log::set_boxed_logger(Box::new(logger)).expect("the first logger");
    pccl_log::set_max_level(pccl_log::LevelFilter::Trace);
}

struct Shared(&'static Gate);

impl pccl_log::Log for Shared {
    fn enabled(&self, metadata: &pccl_log::Metadata<'_>) -> bool {
        self.0.enabled(metadata)
    }

    fn log(&self, record: &pccl_log::Record<'_>) {
        self.0.log(record);
    }

    fn flush(&self) {
        self.0.flush();
    }
}

/// A logger that waits stops nobody; the lines that it missed are counted, at their place.
fn gap() {
    start(Shared(&GATE));
    GATE.shut(true);
    for i in 0..FLOOD {
        pccl_log::debug!("line {i}");
    }
    assert!(!pccl_log::flush(Duration::from_millis(1)), "nothing can have been written");
    GATE.shut(false);
    let lines = GATE.lines();
    pccl_log::debug!("afterwards");
    let number = |line: &String| line.strip_prefix("writing line ").and_then(|it| it.parse::<usize>().ok());
    let heard: Vec<usize> = lines.iter().filter_map(number).collect();
    assert!(heard.iter().copied().eq(0..heard.len()), "in their order, from the beginning");
    let gap = lines.last().expect("lines").strip_prefix("pccl_log ").expect("the gap is at the end");
    let (dropped, rest) = gap.split_once(' ').expect("words");
    assert_eq!(rest, "lines of the log were dropped here: they came faster than they were written");
    assert_eq!(heard.len() + dropped.parse::<usize>().expect("a number"), FLOOD);
    assert_eq!(GATE.lines()[lines.len()..], ["writing afterwards"]);
}

/// The errors of a logger are its own affair.
fn mishaps() {
    start(Shared(&GATE));
    pccl_log::info!("panic");
    pccl_log::log!(target: "elsewhere", pccl_log::Level::Info, "goes on after {}", "that");
    assert_eq!(GATE.lines(), ["elsewhere goes on after that"]);
}

/// Warnings that come again are counted, and the end of the process says how many.
fn repeats() {
    start(ToStderr);
    for _ in 0..1000 {
        pccl_log::warn!("storm");
        pccl_log::info!("news");
    }
    std::process::exit(3);
}

/// The end does not wait for long, whatever stands in the way; neither does that of a forked child.
fn blocked_end() {
    start(ToStderr);
    (0..FLOOD).for_each(|i| pccl_log::info!("line {i} of a log that nobody reads"));
    pccl_log::print("printed\n");
    // SAFETY: the child calls nothing but what is meant for children: a log, and the end.
    let child = unsafe { libc::fork() };
    (0..FLOOD).for_each(|i| pccl_log::info!("line {i} of the child or its parent"));
    if child == 0 {
        std::process::exit(4);
    }
    let mut status = 0;
    // SAFETY: it writes to a number of this function.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(libc::WEXITSTATUS(status), 4);
}

/// A reader that has gone is no reason to end.
fn nobody_there() {
    // SAFETY: this is how a program in C begins.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    start(ToStderr);
    (0..FLOOD).for_each(|i| pccl_log::info!("line {i}"));
    assert!(pccl_log::flush(PATIENCE));
}

#[test]
fn part() {
    match std::env::var(PART).as_deref() {
        Ok("gap") => gap(),
        Ok("mishaps") => mishaps(),
        Ok("repeats") => repeats(),
        Ok("blocked end") => blocked_end(),
        Ok("nobody there") => nobody_there(),
        _ => {}
    }
}

fn command(part: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("own path"));
    command
        .args(["--exact", "part", "--nocapture"])
        .env(PART, part)
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    command
}

fn run(part: &str) -> (ExitStatus, String, String) {
    let output = command(part).stderr(Stdio::piped()).output().expect("a process");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status, text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_logger_that_waits_stops_nobody_and_its_gap_is_counted() {
    let (status, _, stderr) = run("gap");
    assert!(status.success(), "{stderr}");
}

#[test]
fn loggers_may_panic_and_log() {
    let (status, _, stderr) = run("mishaps");
    assert!(status.success(), "{stderr}");
}

#[test]
fn the_end_says_how_often_a_warning_was_repeated() {
    let (status, _, stderr) = run("repeats");
    assert_eq!(status.code(), Some(3));
    let lines: Vec<&str> = stderr.lines().collect();
    assert_eq!(lines.iter().filter(|line| **line == "news").count(), 1000, "only warnings are counted");
    let storm: Vec<_> = lines.iter().filter(|line| line.starts_with("storm")).collect();
    assert_eq!(*storm[0], "storm");
    let count = |line: &str| -> usize {
        let (_, behind) = line.split_once(" (and ").expect(line);
        behind.split(' ').next().and_then(|number| number.parse().ok()).expect(line)
    };
    assert_eq!(storm[1..].iter().map(|line| count(line)).sum::<usize>(), 999, "{storm:?}");
    assert_eq!(lines.last(), Some(&"flushed"));
}

#[test]
fn a_log_that_nobody_reads_delays_no_end() {
    let (stderr, _unread) = UnixStream::pair().expect("sockets");
    let mut child = command("blocked end").stderr(OwnedFd::from(stderr)).spawn().expect("a process");
    let start = Instant::now();
    let mut printed = String::new();
    child.stdout.take().expect("piped").read_to_string(&mut printed).expect("text");
    assert!(child.wait().expect("its end").success());
    assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
    assert!(printed.contains("printed"), "what goes elsewhere is not held up: {printed}");
}

#[test]
fn a_reader_that_has_gone_is_no_reason_to_end() {
    let (stderr, reader) = UnixStream::pair().expect("sockets");
    drop(reader);
    let mut child = command("nobody there").stderr(OwnedFd::from(stderr)).spawn().expect("a process");
    assert!(child.wait().expect("its end").success());
}
