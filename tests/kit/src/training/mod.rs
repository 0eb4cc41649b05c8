//! A training whose peers are processes: started, killed and replaced by plan, watched, and judged.
//!
//! A peer process tells what happens to it by a [`Reporter`] on its standard output. The program that starts the peers
//! is a [`Supervision`]: it shows what they report, kills and replaces them, draws the run, and says whether all ended
//! with one state and reached the accuracy. `examples/train_digits` of the crate `pccl` is both.

mod plot;
mod progress;
mod report;
mod run;
#[cfg(test)]
mod run_tests;
mod supervisor;

pub use progress::{LogLines, Progress};
pub use report::{Event, Reporter};
pub use run::KillPlan;
pub use supervisor::exit_with_supervisor;

use report::FinalReport;
use run::{Run, Summary, size};
use std::{
    io::{self, Write},
    path::PathBuf,
    process::Command,
    time::Duration,
};
use supervisor::Supervisor;

/// A run to supervise.
#[derive(Debug, Clone)]
pub struct Supervision {
    /// Stands above the plot.
    pub title: String,
    /// Peers to start with.
    pub peers: u32,
    /// Outer steps of the run.
    pub steps: u64,
    /// When peers are killed.
    pub kills: KillPlan,
    /// Test accuracy that each peer has to reach, 0 to 1.
    pub accuracy_min: f64,
    /// When the run is given up, counted from its start.
    pub deadline: Duration,
    /// Where the plot goes.
    pub plot: PathBuf,
}

impl Supervision {
    /// Runs the whole training; `command` makes the command line of the peer with a given number. `false` if it did not
    /// go as it should, with the reasons on `progress`. No process is left behind.
    ///
    /// # Errors
    /// If a peer cannot be started, or progress cannot be shown.
    pub fn run<W: Write>(
        &self,
        command: &dyn Fn(u32) -> Command,
        progress: &Progress<W>,
    ) -> io::Result<bool> {
        let mut run = Run::new(self.kills, self.peers, self.steps, self.accuracy_min, self.deadline);
        let mut supervisor = Supervisor::new(command);
        supervisor.run(&mut run, self.peers, progress)?;
        progress.end(&run.status())?;
        let plotted = self.write_plot(&run);
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

    fn write_plot(&self, run: &Run) -> io::Result<PathBuf> {
        let (path, svg) = (&self.plot, plot::render(&self.title, run.samples(), run.marks()));
        std::fs::write(path, svg).map_err(|error| {
            io::Error::new(error.kind(), format!("cannot write {}: {error}", path.display()))
        })?;
        Ok(std::path::absolute(path).unwrap_or_else(|_| path.clone()))
    }
}

fn print_summary<W: Write>(progress: &Progress<W>, summary: &Summary) -> io::Result<()> {
    let total = |count: fn(&FinalReport) -> u64| summary.finals.values().map(count).sum::<u64>();
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
