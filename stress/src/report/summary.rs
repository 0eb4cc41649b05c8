//! The report as text, and the line while the run lasts.

use super::{Part, Report, Status, Totals, ms};
use crate::oracle::Counts;
use std::{fmt::Write, path::Path};

/// One line about a run that goes on.
pub(crate) fn live_line(left_s: u64, world: usize, totals: &Totals, counts: &Counts) -> String {
    let slowest =
        |histograms: &super::Recoveries| histograms.undisturbed.max_us.max(histograms.disturbed.max_us);
    format!(
        "{} left, world {world}, {} operations, {} kills, {} other faults, {} aborts, {} retries, {} joins, slowest \
         recovery \
         {}, kept {}",
        clock(left_s),
        counts.operations,
        totals.faults.get("kill").copied().unwrap_or(0),
        totals.faults.iter().filter(|(kind, _)| *kind != "kill").map(|(_, count)| count).sum::<u64>(),
        counts.aborted_operations,
        counts.failed_calls,
        counts.joins,
        ms(slowest(&totals.kills())),
        totals.kept.words()
    )
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

/// Hours, minutes and seconds.
pub(super) fn clock(seconds: u64) -> String {
    match seconds / 3600 {
        0 => format!("{}:{:02}", seconds / 60, seconds % 60),
        hours => format!("{hours}:{:02}:{:02}", seconds / 60 % 60, seconds % 60),
    }
}

impl Part {
    /// The figures that everybody asks for.
    pub(super) fn words(&self) -> String {
        format!(
            "part {}: {}, {:.0} s of {} s, seed {}, {} operations, {} faults, kept {}",
            self.number,
            self.status.word(),
            self.seconds,
            self.wanted_seconds,
            self.seed,
            self.operations,
            self.faults,
            self.kept.words()
        )
    }
}

impl Report {
    /// The report for people without a browser. Logs are in `folder`.
    pub(crate) fn summary(&self, folder: &Path) -> String {
        let (totals, mut out) = (&self.totals, String::new());
        // Writing to a text cannot fail.
        macro_rules! line {
            ($($arg:tt)*) => {{ let _ = writeln!(out, $($arg)*); }};
        }
        line!("{}: {}, {}", self.status.word(), self.length(), self.settings);
        self.parts.iter().for_each(|part| line!("          {}", part.words()));
        // They come first: whoever is shown only a part of a long output has to see why the run failed.
        for violation in &self.violations {
            let (part, seconds) = (violation.part, violation.seconds);
            line!("VIOLATION at {seconds:.3} s of part {part}, {}: {}", violation.check, violation.text);
        }
        let made: Vec<String> = totals.faults.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
        line!("did       {}", made.join(", "));
        let counts = &totals.counts;
        line!(
            "saw       {} operations ({} by pairwise exchange, {} no all-reduces, {} calls), {} revisions, {} calls \
             that optimised the ring, {} joins, {} operations aborted, {} calls tried again, {} peers \
             dropped",
            counts.operations,
            counts.pairwise_operations,
            counts.other_operations,
            counts.completed_calls,
            counts.newest_revision,
            counts.optimizations,
            counts.joins,
            counts.aborted_operations,
            counts.failed_calls,
            counts.drops
        );
        if counts.segments > 0 {
            line!(
                "segments  {} of these operations; {} calls had segments with other contributors than the one before",
                counts.segments,
                counts.uneven_calls
            );
        }
        line!(
            "ahead     {} of {} joins with the whole state when they were let in, {} of these had nothing moved in \
             their first sync; {} fetched before, {} in syncs",
            counts.joins_ahead,
            counts.joins,
            counts.joins_unmoved,
            mib(counts.ahead_bytes),
            mib(counts.fetched_bytes)
        );
        line!(
            "kept      {} of the undisturbed throughput ({} operations of {:.0})",
            totals.kept.words(),
            totals.kept.operations,
            totals.kept.expected
        );
        for (kind, recoveries) in &totals.recoveries {
            for (histogram, when) in
                [(&recoveries.undisturbed, ""), (&recoveries.disturbed, ", while another fault lasted")]
            {
                if histogram.count > 0 {
                    line!("recovery  after {} x {kind}{when}: {}", histogram.count, histogram.words());
                }
            }
        }
        for (kind, cost) in &totals.costs {
            line!("cost      {} of undisturbed work for each {kind} ({} of them)", cost.words(), cost.faults);
        }
        line!("longest   gap between completed operations {}", ms(totals.longest_gap_us));
        for survivor in &self.survivors {
            let growth = &survivor.growth;
            line!(
                "growth    of {} in {} s: {:+.0} KiB, {:+.1} threads, {:+.1} descriptors",
                survivor.name,
                growth.span_us / 1_000_000,
                growth.memory_kib,
                growth.threads,
                growth.descriptors
            );
        }
        if self.status == Status::Failed {
            line!("logs      {}", folder.display());
            for part in self.parts.iter().filter(|part| part.status == Status::Failed) {
                line!("again     {}", part.replay);
            }
        }
        out
    }
}
