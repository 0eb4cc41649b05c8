//! The whole harness, shortly: a run with faults that has to pass, and the promise that no process outlives it.
//!
//! Two short runs are among the tests of the workspace. Those of other profiles take minutes: `cargo test -p
//! pccl-stress -- --ignored`. `PCCL_STRESS_SECONDS` makes each longer. `PYTHON` is the interpreter for peers in Python.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

/// More than any of these tests needs on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    // Left over from the run before, if there was one.
    drop(fs::remove_dir_all(&folder));
    folder
}

fn stress(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pccl-stress"));
    if !args.contains(&"--peers") {
        command.args(["--peers", "3..4"]);
    }
    command.args(["--elements", "5000", "--out"]).arg(folder).args(args);
    command
}

/// The text after `"name": ` in the report.
fn field(report: &str, name: &str) -> String {
    let key = format!("\"{name}\": ");
    let (_, rest) = report.split_once(&key).unwrap_or_else(|| panic!("no {name} in {report}"));
    rest.split([',', '\n']).next().unwrap_or_default().to_owned()
}

fn number(report: &str, name: &str) -> u64 {
    field(report, name).parse().unwrap_or_else(|error| panic!("{name}: {error} in {report}"))
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn a_short_run_with_a_fixed_seed_passes() {
    let folder = folder("smoke");
    let seconds = std::env::var("PCCL_STRESS_SECONDS").unwrap_or_else(|_| "20".into());
    let output = stress(&folder, &["--seed", "7", "--seconds", &seconds]).output().expect("program runs");
    assert!(output.status.success(), "{}", text(&output));
    let report = fs::read_to_string(folder.join("report.json")).expect("report");
    assert_eq!(field(&report, "passed"), "true");
    assert_eq!(field(&report, "seed"), "7");
    for count in [
        "kill",
        "spawn",
        "operations",
        "pairwise_operations",
        "other_operations",
        "joins",
        "joins_ahead",
        "syncs",
        "newest_revision",
    ] {
        assert!(number(&report, count) > 0, "no {count} in {report}");
    }
    assert!(fs::read_to_string(folder.join("summary.txt")).expect("summary").starts_with("PASSED"));
    let page = fs::read_to_string(folder.join("report.html")).expect("page");
    assert!(page.contains("PASSED") && page.contains("<svg"), "{page}");
    goes_on(&folder, number(&report, "operations"));
}

/// A second part adds to the report, keeps the log of the first, and has to have the same settings and build.
fn goes_on(folder: &Path, operations: u64) {
    let resume = |elements: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pccl-stress"));
        command.args(["--peers", "3..4", "--elements", elements, "--seconds", "4", "--continue"]).arg(folder);
        command.output().expect("program runs")
    };
    let log = fs::read_to_string(folder.join("events.log")).expect("log");
    let other = resume("5001");
    assert_eq!(other.status.code(), Some(2), "{}", text(&other));
    let output = resume("5000");
    assert!(output.status.success(), "{}", text(&output));
    assert_eq!(fs::read_to_string(folder.join("events.log")).expect("log"), log);
    assert!(fs::read_to_string(folder.join("part-2/events.log")).expect("log").contains("--seed 8"));
    let report = fs::read_to_string(folder.join("report.json")).expect("report");
    assert!(number(&report, "operations") > operations, "{report}");
    for seed in ["\"seed\": 7", "\"seed\": 8"] {
        assert!(report.contains(seed), "{seed} in {report}");
    }
    let summary = fs::read_to_string(folder.join("summary.txt")).expect("summary");
    assert!(summary.lines().next().is_some_and(|line| line.contains(" in 2 parts of ")), "{summary}");
    // Without settings of its own it takes those that are there; a run of another build says nothing about this one.
    let bare = |folder: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pccl-stress"));
        command.arg("--continue").arg(folder).output().expect("program runs")
    };
    let complete = bare(folder);
    assert_eq!(complete.status.code(), Some(2), "{}", text(&complete));
    assert!(text(&complete).contains("is complete"), "{}", text(&complete));
    let build = field(&report, "build");
    let foreign =
        report.replacen(&build, "\"0123\"", 1).replacen("\"goal_seconds\": ", "\"goal_seconds\": 9", 1);
    fs::write(folder.join("report.json"), foreign).expect("report");
    let refused = bare(folder);
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused));
    assert!(text(&refused).contains("has a run of another build (0123)"), "{}", text(&refused));
}

#[test]
#[ignore = "one of many profiles: with --ignored"]
fn groups_dying_masters_and_asynchronous_steps_pass() {
    let folder = folder("groups");
    let seconds = std::env::var("PCCL_STRESS_SECONDS").unwrap_or_else(|_| "50".into());
    let args = ["--peers", "5..6", "--groups", "2", "--master-kill", "--profile", "async", "--seed", "8"];
    // Few other faults: around the end of a master there are none, so it waits for those that last.
    let args = [&args[..], &["--fault-every", "3"]].concat();
    let output = stress(&folder, &args).args(["--seconds", &seconds]).output().expect("program runs");
    assert!(output.status.success(), "{}", text(&output));
    let report = fs::read_to_string(folder.join("report.json")).expect("report");
    let of_the_master = ["\"master\": ", "\"master_stop\": "].iter().any(|kind| report.contains(kind));
    assert!(of_the_master && number(&report, "operations") > 0, "{report}");
}

#[test]
#[ignore = "one of many profiles: with --ignored"]
fn all_reduces_in_segments_pass() {
    let folder = folder("segments");
    let seconds = std::env::var("PCCL_STRESS_SECONDS").unwrap_or_else(|_| "20".into());
    let args = ["--profile", "segments", "--seed", "10", "--seconds", &seconds];
    let output = stress(&folder, &args).output().expect("program runs");
    assert!(output.status.success(), "{}", text(&output));
    let report = fs::read_to_string(folder.join("report.json")).expect("report");
    for count in ["kill", "segments", "joins"] {
        assert!(number(&report, count) > 0, "no {count} in {report}");
    }
}

#[test]
#[ignore = "one of many profiles: with --ignored"]
fn masters_that_have_standbys_die_and_cost_nobody_a_call() {
    let folder = folder("standbys");
    let seconds = std::env::var("PCCL_STRESS_SECONDS").unwrap_or_else(|_| "40".into());
    let args = ["--master-kill", "--standbys", "1", "--c-peers", "1", "--fault-every", "3", "--seed", "2"];
    let output = stress(&folder, &args).args(["--seconds", &seconds]).output().expect("program runs");
    assert!(output.status.success(), "{}", text(&output));
    let log = fs::read_to_string(folder.join("events.log")).expect("log");
    assert!(log.contains(": acts in term 1 1"), "nobody has taken over and has a standby again:\n{log}");
}

/// An interpreter that peers in Python can use, if there is one.
fn python() -> Option<String> {
    let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".into());
    let imported = Command::new(&python).args(["-c", "import numpy"]).output();
    imported.is_ok_and(|it| it.status.success()).then_some(python)
}

#[test]
fn peers_in_c_and_python_take_part() {
    let folder = folder("languages");
    let seconds = std::env::var("PCCL_STRESS_SECONDS").unwrap_or_else(|_| "20".into());
    let args = ["--seed", "9", "--seconds", &seconds, "--peers", "4..5", "--c-peers", "1"];
    // Without proxies between them, tensors go through memory that two peers share.
    let mut run = stress(&folder, &[&args[..], &["--no-proxy"]].concat());
    let python = python();
    match &python {
        Some(python) => drop(run.args(["--python-peers", "1", "--python", python])),
        None => eprintln!("without peers in Python: none here has numpy, see PYTHON"),
    }
    let output = run.output().expect("program runs");
    assert!(output.status.success(), "{}", text(&output));
    let log = fs::read_to_string(folder.join("events.log")).expect("log");
    for language in ["Rust", "C"].into_iter().chain(python.map(|_| "Python")) {
        assert!(log.contains(&format!(" in {language}, ")), "no peer in {language}:\n{log}");
    }
    let report = fs::read_to_string(folder.join("report.json")).expect("report");
    for count in ["pairwise_operations", "other_operations", "kill", "joins_ahead"] {
        assert!(number(&report, count) > 0, "no {count} in {report}");
    }
    assert!(number(&report, "joins") >= 4, "{report}");
}

#[test]
#[ignore = "one of many profiles: with --ignored"]
fn a_large_state_is_fetched_ahead_and_without_a_key_all_goes_on() {
    let folder = folder("state");
    let seconds = std::env::var("PCCL_STRESS_SECONDS").unwrap_or_else(|_| "20".into());
    let args =
        ["--profile", "state", "--state-mib", "8", "--state-memory-mib", "1", "--insecure", "--c-peers", "1"];
    let output = stress(&folder, &args).args(["--seed", "3", "--seconds", &seconds]).output();
    let output = output.expect("program runs");
    assert!(output.status.success(), "{}", text(&output));
    let report = fs::read_to_string(folder.join("report.json")).expect("report");
    for count in ["joins_ahead", "joins_unmoved", "ahead_bytes", "kill"] {
        assert!(number(&report, count) > 0, "no {count} in {report}");
    }
}

#[test]
fn peers_in_a_language_that_is_not_there_are_refused() {
    let folder = folder("no-language");
    let c = stress(&folder, &["--c-peers", "1"]).env("CC", "/nowhere/cc").output().expect("program runs");
    let python = ["--python-peers", "1", "--python", "/nowhere/python"];
    let python = stress(&folder, &python).output().expect("program runs");
    for (output, need) in [(c, "a C compiler"), (python, "a Python that has numpy")] {
        assert_eq!(output.status.code(), Some(2), "{}", text(&output));
        assert!(text(&output).contains(need), "{}", text(&output));
    }
}

#[test]
fn wrong_arguments_are_refused() {
    let folder = folder("refused");
    for args in [
        &["--elements", "0"][..],
        &["--profile", "hail"],
        &["--peers", "1..2"],
        &["--groups", "2", "--peers", "3..4"],
        &["--standbys", "1"],
        &["--standbys", "1", "--master-kill", "--master-journal"],
    ] {
        let output = stress(&folder, args).output().expect("program runs");
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", text(&output));
    }
}

/// Numbers of the processes that the run has started, by its log of events.
fn children(folder: &Path) -> Vec<u32> {
    let log = fs::read_to_string(folder.join("events.log")).unwrap_or_default();
    let started = log.lines().filter_map(|line| line.split_once(", process ")).map(|(_, pid)| pid);
    started.filter_map(|pid| pid.trim().parse().ok()).collect()
}

/// Whether a process of the run is still there. A zombie is not, nor is another program that was given its number.
fn is_running(pid: u32) -> bool {
    let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&command).contains("pccl-stress")
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "{what} within {PATIENCE:?}");
        thread::sleep(Duration::from_millis(20));
    }
}

fn signal(name: &str, pid: u32) {
    let status =
        Command::new("sh").args(["-c", &format!("kill -{name} {pid}")]).status().expect("shell runs");
    assert!(status.success(), "kill -{name} {pid}");
}

/// A run that lasts longer than the test, with its three first peers as members, one of them stopped from outside.
fn started(folder: &Path) -> (Child, Vec<u32>) {
    let mut run = stress(folder, &["--seed", "1", "--minutes", "30", "--profile", "calm"]);
    let run = run.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("program starts");
    let joined = || {
        let log = fs::read_to_string(folder.join("events.log")).unwrap_or_default();
        log.matches(" joined ").count() >= 3
    };
    wait_until("three peers join", joined);
    let pids = children(folder);
    signal("STOP", *pids.last().expect("peers were started"));
    (run, pids)
}

#[test]
fn an_interrupted_run_reports_and_leaves_no_process() {
    let folder = folder("interrupted");
    let (mut run, _) = started(&folder);
    signal("INT", run.id());
    let status = run.wait().expect("the run ends");
    assert_eq!(status.code(), Some(130));
    let report = fs::read_to_string(folder.join("report.json")).expect("report");
    assert_eq!(
        (field(&report, "status"), field(&report, "passed")),
        ("\"interrupted\"".into(), "false".into())
    );
    assert_eq!(children(&folder).into_iter().filter(|&pid| is_running(pid)).count(), 0);
}

#[test]
fn a_killed_supervisor_leaves_no_process() {
    let folder = folder("killed");
    let (mut run, pids) = started(&folder);
    assert!(pids.len() >= 3);
    run.kill().expect("still running");
    run.wait().expect("the run ends");
    wait_until("all children end", || children(&folder).into_iter().all(|pid| !is_running(pid)));
}
