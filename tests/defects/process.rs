//! Effects of the library on the process that it lives in.

use crate::{
    fleet::{Fleet, config, sync_command},
    peer::WATCHDOG,
    support::run_plain,
};
use pccl::{Error, ReduceOp};
use pccl_tests::spec::{Spec, StateSpec};
use std::{
    collections::HashSet,
    io::Write as _,
    process::{Command, Output},
    time::Instant,
};

/// The original logs an error for each connection of a pool but the first whenever a link is closed.
#[test]
fn bug_21_closing_pooled_connections_is_no_error() {
    let mut fleet = Fleet::with(config(), 3, &["pool=4"]);
    fleet.reduce(Spec::sum(200_000, 1));
    fleet[0].ask("close").good();
    let mut left = fleet.peers.split_off(1);
    for peer in &mut left {
        peer.send("reduce f32:sum:1000:1:in 0 0");
    }
    for peer in &mut left {
        assert_eq!(peer.answer().good().number("participants"), 2);
        peer.ask("close").good();
    }
    for peer in fleet.peers.iter().chain(&left) {
        let log = peer.log();
        assert!(log.contains("registered as peer"), "nothing was logged");
        assert!(!log.contains(" ERROR "), "peer {}: {log}", peer.index);
        // A link may say once that its other end has closed it.
        let mut said = HashSet::new();
        for line in log.lines().filter(|line| line.contains(" WARN ")) {
            let text = line.split_once(" WARN ").map_or(line, |(_, text)| text);
            let link = text.split(", connection ").next().unwrap_or(text).to_owned();
            assert!(said.insert(link), "peer {} complains of one link more than once: {line}", peer.index);
        }
    }
}

/// The original leaks a descriptor on both sides with each sync that moves something.
#[test]
fn bug_26_syncs_that_move_something_leak_no_descriptor() {
    const SYNCS: u64 = 20;
    let mut fleet = Fleet::new(2);
    let sync = |fleet: &mut Fleet, revision: u64| {
        let state = |seed| [StateSpec::new("w", 1000, seed)];
        let commands =
            [sync_command(revision, "send", &state(1)), sync_command(revision, "receive", &state(2))];
        for (answer, rx) in fleet.sync(&commands).into_iter().zip([0, 4000]) {
            assert_eq!(answer.good().number("rx"), rx);
        }
    };
    sync(&mut fleet, 0);
    let counts = |fleet: &Fleet| [fleet[0].proc_count("fd"), fleet[1].proc_count("fd")];
    let before = counts(&fleet);
    assert!(before.iter().all(|&count| count > 0), "descriptors can be counted");
    for revision in 1..=SYNCS {
        sync(&mut fleet, revision);
    }
    // The thread that served the last request goes a little later, or with the next one.
    let deadline = Instant::now() + WATCHDOG;
    while counts(&fleet).iter().zip(before).any(|(&now, before)| now > before + 2) {
        assert!(Instant::now() < deadline, "{before:?} descriptors became {:?}", counts(&fleet));
        pccl_testkit::barrier::look_again();
    }
}

const LEVEL: &str = "PCCL_TEST_LOG_LEVEL";

/// Logs to standard error, as a program would that uses the library.
struct ToStderr;

impl log::Log for ToStderr {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let line = format!("{} {}: {}\n", record.level(), record.target(), record.args());
        let _ = std::io::stderr().write_all(line.as_bytes());
    }

    fn flush(&self) {}
}

/// The child of the next test: calls that succeed and calls that fail, whatever is logged.
#[test]
#[ignore = "a part of another test"]
fn child_with_a_log_level() {
    let level = std::env::var(LEVEL).ok().and_then(|level| level.parse().ok());
    let _ = log::set_logger(&ToStderr);
    log::set_max_level(level.unwrap_or(log::LevelFilter::Info));
    run_plain(2, |index, comm| {
        // In the original both are fatal lines of the log: the process ends, unless the log is off.
        let mut half = [half::f16::from_f32(1.5); 10];
        comm.all_reduce(&mut half, ReduceOp::Sum).expect("no abort");
        assert_eq!(half[9].to_f32(), 3.0);
        let mut uneven = vec![1f32; 10 + index];
        let error = comm.all_reduce(&mut uneven, ReduceOp::Sum).unwrap_err();
        assert!(matches!(error, Error::Aborted(_)), "{error}");
        assert!(uneven.iter().all(|&value| value == 1.0));
        assert_eq!(crate::support::count(comm), 2);
    });
}

/// In the original a line of the log at a high level ends the process, a level that it does not know turns all of that
/// off, and the log goes to standard output, into the output of the program.
#[test]
fn gap_18_the_log_changes_nothing_and_never_goes_to_standard_output() {
    let run = |level: &str| -> Output {
        Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "process::child_with_a_log_level", "--ignored", "--nocapture"])
            .env(LEVEL, level)
            .output()
            .expect("it starts")
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    for level in ["off", "trace", "nonsense"] {
        let output = run(level);
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "level {level}: {}\n{stdout}\n{stderr}", output.status);
        assert!(stdout.contains("1 passed"), "level {level}: {stdout}");
        for word in ["pccl::", "tinysockets", "registered", "master"] {
            assert!(!stdout.contains(word), "level {level}: {word} on standard output: {stdout}");
        }
        assert_eq!(stderr.contains("TRACE pccl"), level == "trace", "level {level}: {stderr}");
        assert_eq!(stderr.contains("registered as peer"), level != "off", "level {level}: {stderr}");
    }
}
