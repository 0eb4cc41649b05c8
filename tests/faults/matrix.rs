//! The matrix of all faults at all phases, and its table.

use crate::{
    arena::{Times, full},
    cell::{self, Fault, Outcome},
    lab,
    phase::Phase,
    quiet,
};
use parking_lot::Mutex;
use std::{
    any::Any,
    fmt::Write as _,
    io::Write as _,
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, Instant},
};

/// Cells that run at the same time: they mostly wait.
const WORKERS: usize = 5;
/// By how much a machine that is busy with other things may delay what takes its time-outs.
const NOISE: Duration = Duration::from_secs(10);

type Row = [Option<Result<Outcome, String>>; Phase::ALL.len()];

#[test]
fn every_fault_at_every_phase() {
    let _shared = quiet::shared();
    let begun = Instant::now();
    let times = Times::new();
    let mut jobs: Vec<(usize, usize)> = (0..Phase::ALL.len())
        .flat_map(|phase| (0..Fault::ALL.len()).map(move |fault| (fault, phase)))
        .collect();
    jobs.retain(|&(fault, phase)| wanted(Fault::ALL[fault], Phase::ALL[phase]));
    assert!(!jobs.is_empty(), "PCCL_FAULTS_ONLY names no cell: write a fault, a phase, or both");
    let jobs = Mutex::new(jobs);
    let table: Mutex<Vec<Row>> = Mutex::new(vec![Row::default(); Fault::ALL.len()]);
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                loop {
                    let Some((fault, phase)) = jobs.lock().pop() else { break };
                    let result = catch_unwind(AssertUnwindSafe(|| {
                        cell::run(Fault::ALL[fault], Phase::ALL[phase], times)
                    }));
                    table.lock()[fault][phase] = Some(result.map_err(|payload| text(&*payload)));
                }
            });
        }
    });
    let table = table.into_inner();
    let (lines, failures) = render(&table, times);
    // Not by a macro, whose output is kept back from who watches a test that passes.
    let _ = std::io::stderr()
        .write_all(format!("\n{lines}in {:.0} s\n", begun.elapsed().as_secs_f64()).as_bytes());
    assert!(failures.is_empty(), "{} cells fail:\n{}", failures.len(), failures.join("\n"));
}

/// `PCCL_FAULTS_ONLY=SIGKILL,idle` runs one row, one column, or one cell.
fn wanted(fault: Fault, phase: Phase) -> bool {
    if lab::program().is_some() && !fault.works_in_a_lab() {
        return false;
    }
    let Ok(only) = std::env::var("PCCL_FAULTS_ONLY") else { return true };
    let mut words = only.split(',').filter(|word| !word.is_empty());
    words.all(|word| word == fault.name() || word == phase.name())
}

fn text(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "panic without a text".into())
}

/// The table, and the cells that are not as they should be.
fn render(table: &[Row], times: Times) -> (String, Vec<String>) {
    let mut out = format!(
        "peer time-out {:?}, edge time-out {:?}, dial time-out {:?}; seconds until the others had completed, aborts \
         in brackets\n",
        times.peer, times.edge, times.dial
    );
    let mut failures = Vec::new();
    let _ = write!(out, "{:14}", "");
    for phase in Phase::ALL {
        let _ = write!(out, "|{:>11}", phase.name());
    }
    out.push('\n');
    for (fault, row) in Fault::ALL.into_iter().zip(table) {
        let _ = write!(out, "{:14}", fault.name());
        for (phase, cell) in Phase::ALL.into_iter().zip(row) {
            let (word, failure) = judge(fault, cell.as_ref(), times);
            let _ = write!(out, "|{word:>11}");
            failures.extend(failure.map(|text| format!("{} at {}: {text}", fault.name(), phase.name())));
        }
        out.push('\n');
    }
    (out, failures)
}

fn judge(fault: Fault, cell: Option<&Result<Outcome, String>>, times: Times) -> (String, Option<String>) {
    match cell {
        None => ("-".into(), None),
        Some(Err(text)) => ("FAIL".into(), Some(text.clone())),
        Some(Ok(Outcome { time, aborts })) => {
            let aborts = if *aborts > 0 { format!(" ({aborts})") } else { String::new() };
            let word = format!("{:.1}{aborts}", time.as_secs_f64());
            let noise = if full() { Duration::ZERO } else { NOISE };
            let late = fault != Fault::Throttle && *time > times.bound() + noise;
            (word, late.then(|| format!("took {time:?}, the bound is {:?}", times.bound())))
        }
    }
}
