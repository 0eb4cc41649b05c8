//! The two roles of the program, given a master to connect to.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::Command;

use crate::args::Args;
use crate::dataset;
use crate::peer::{self, Collective, PeerConfig};
use crate::plot;
use crate::progress::Progress;
use crate::report::Report;
use crate::run::{KillPlan, Run, Summary, size};
use crate::supervisor::{self, Supervisor};

/// What goes wrong outside of training itself.
pub(crate) type Failure = Box<dyn std::error::Error>;

/// Trains as one peer and reports on stdout; `Ok(false)` after a failure that the reports tell.
pub(crate) fn peer<C: Collective>(args: &Args, comm: &mut C) -> Result<bool, Failure> {
    if args.supervised {
        supervisor::exit_with_supervisor()?;
    }
    let data = dataset::load()?;
    let config = PeerConfig::new(args.steps, args.shard, args.seed, args.pace());
    let mut sink = |report: &Report| {
        let mut out = io::stdout().lock();
        writeln!(out, "{report}")?;
        out.flush()
    };
    match peer::run(comm, &data, config, &mut sink) {
        Ok(_) => Ok(true),
        Err(error) => {
            sink(&Report::Failed { reason: error.to_string() })?;
            Ok(false)
        }
    }
}

/// Runs a whole training with the master at `master`; `Ok(false)` if it did not go as it should, with the reasons on
/// stdout.
pub(crate) fn supervise<W: Write>(
    args: &Args,
    master: &str,
    progress: &Progress<W>,
) -> Result<bool, Failure> {
    let program = std::env::current_exe()?;
    let plot = args.plot.clone().unwrap_or_else(|| program.with_file_name("train_digits.svg"));
    let command = |peer: u32| {
        let mut command = Command::new(&program);
        command.args(["--role", "peer", "--supervised", "--master", master]);
        command.args(["--shard", &peer.to_string(), "--steps", &args.steps.to_string()]);
        command.args(["--seed", &args.seed.to_string(), "--pace-ms", &args.pace_ms.to_string()]);
        command
    };
    let plan = args.kill_every.map_or(KillPlan::Midway, KillPlan::Every);
    let mut run = Run::new(plan, args.peers, args.steps, args.deadline());
    let mut supervisor = Supervisor::new(&command);
    supervisor.run(&mut run, args.peers, progress)?;
    progress.end(&run.status())?;
    let plotted = write_plot(&plot, &run);
    match run.verdict() {
        Ok(summary) => {
            print_summary(progress, &summary)?;
            progress.line(&format!("plot:     {}", plotted?.display()))?;
            Ok(true)
        }
        Err(problems) => {
            print_problems(progress, &supervisor, &problems)?;
            Ok(false)
        }
    }
}

fn write_plot(path: &PathBuf, run: &Run) -> io::Result<PathBuf> {
    let svg = plot::render("Digits, trained by peers that die and are replaced", run.samples(), run.marks());
    std::fs::write(path, svg)
        .map_err(|error| io::Error::new(error.kind(), format!("cannot write {}: {error}", path.display())))?;
    Ok(std::path::absolute(path).unwrap_or_else(|_| path.clone()))
}

fn print_summary<W: Write>(progress: &Progress<W>, summary: &Summary) -> io::Result<()> {
    let total =
        |count: fn(&crate::report::FinalReport) -> u64| summary.finals.values().map(count).sum::<u64>();
    for (peer, report) in &summary.finals {
        progress.line(&format!(
            "peer {peer:<4} state {:016x} at revision {}, test accuracy {:.2} %, sent {}, received {}",
            report.hash,
            report.revision,
            report.accuracy * 100.0,
            size(report.traffic.tx_bytes),
            size(report.traffic.rx_bytes)
        ))?;
    }
    let aborts = summary.finals.values().map(|report| report.aborts).max().unwrap_or(0);
    progress.line(&format!(
        "run:      {} killed, {} joined, {} too late; {aborts} aborts, {} retries in all",
        summary.kills,
        summary.joins,
        summary.late,
        total(|report| report.retries)
    ))?;
    progress.line("result:   all peers hold the same state, and the accuracy is reached")
}

fn print_problems<W: Write>(
    progress: &Progress<W>,
    supervisor: &Supervisor<'_>,
    problems: &[String],
) -> io::Result<()> {
    for peer in supervisor.peers() {
        for line in supervisor.stderr_of(peer) {
            progress.line(&format!("peer {peer}: {line}"))?;
        }
    }
    problems.iter().try_for_each(|problem| progress.line(&format!("FAILED: {problem}")))
}
