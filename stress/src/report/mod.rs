//! The report about a run that is over, or about several parts of one together. As JSON it holds all that is needed to
//! add another part.

mod histogram;
mod page;
mod summary;
mod throughput;
mod timeline;

pub(crate) use histogram::{Histogram, ms};
use summary::clock;
pub(crate) use summary::live_line;
pub(crate) use throughput::{Baseline, Cost, Done, Kept};
pub(crate) use timeline::{Slot, Timeline};

use crate::{
    oracle::{Check, Counts, Recovery},
    procfs::{Growth, Series},
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, io, path::Path};

/// Of the files of a report; another number is another meaning of them.
const FORMAT: u32 = 2;
/// Survivors that the report tells about: those that lived longest.
const SURVIVORS_MAX: usize = 12;
/// Names of the files.
const JSON: &str = "report.json";
const HTML: &str = "report.html";
const SUMMARY: &str = "summary.txt";

/// How a run, or a part of it, ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Status {
    Passed,
    Failed,
    /// Somebody ended it early. Until then every check held.
    Interrupted,
    /// It has not ended yet, or its supervisor was killed.
    Unfinished,
}

impl Status {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Passed => "PASSED",
            Self::Failed => "FAILED",
            Self::Interrupted => "INTERRUPTED",
            Self::Unfinished => "UNFINISHED",
        }
    }
}

/// A broken promise, as it is told.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Finding {
    pub(crate) part: usize,
    /// Since the beginning of the part.
    pub(crate) seconds: f64,
    pub(crate) check: String,
    pub(crate) text: String,
}

/// One go of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) number: usize,
    pub(crate) status: Status,
    pub(crate) seed: u64,
    /// The command that makes it again.
    pub(crate) replay: String,
    pub(crate) wanted_seconds: u64,
    pub(crate) seconds: f64,
    /// When it began, in seconds since 1970.
    pub(crate) began_unix_s: u64,
    /// Where it ran.
    pub(crate) machine: String,
    pub(crate) operations: u64,
    pub(crate) faults: u64,
    pub(crate) kept: Kept,
    pub(crate) baseline: Baseline,
}

/// Recoveries after faults of one kind.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Recoveries {
    /// Nothing else was wrong meanwhile.
    pub(crate) undisturbed: Histogram,
    pub(crate) disturbed: Histogram,
}

/// Work that was done at one world size while faults were made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct AtSize {
    pub(crate) us: u64,
    pub(crate) kept: Kept,
}

/// Everything that adds up over the parts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Totals {
    pub(crate) seconds: f64,
    /// How often each kind of fault was made.
    pub(crate) faults: BTreeMap<String, u64>,
    pub(crate) counts: Counts,
    pub(crate) kept: Kept,
    pub(crate) longest_gap_us: u64,
    /// When it began, since the beginning of the first part.
    pub(crate) longest_gap_at_us: u64,
    pub(crate) recoveries: BTreeMap<String, Recoveries>,
    pub(crate) costs: BTreeMap<String, Cost>,
    pub(crate) sizes: BTreeMap<usize, AtSize>,
}

impl Totals {
    /// A fault was followed by a recovery.
    pub(crate) fn recovered(&mut self, recovery: &Recovery) {
        let kind = self.recoveries.entry(recovery.kind.to_owned()).or_default();
        if recovery.undisturbed { &mut kind.undisturbed } else { &mut kind.disturbed }
            .add(recovery.duration_us);
    }

    /// Recoveries after kills.
    pub(crate) fn kills(&self) -> Recoveries {
        self.recoveries.get("kill").cloned().unwrap_or_default()
    }

    pub(crate) fn faults_made(&self) -> u64 {
        self.faults.values().sum()
    }

    /// Adds a part that begins where this ends.
    fn merge(&mut self, other: Self, offset_us: u64) {
        self.seconds += other.seconds;
        self.counts.add(&other.counts);
        self.kept.merge(other.kept);
        if other.longest_gap_us > self.longest_gap_us {
            self.longest_gap_us = other.longest_gap_us;
            self.longest_gap_at_us = other.longest_gap_at_us + offset_us;
        }
        for (kind, count) in other.faults {
            *self.faults.entry(kind).or_default() += count;
        }
        for (kind, more) in other.recoveries {
            let here = self.recoveries.entry(kind).or_default();
            here.undisturbed.merge(&more.undisturbed);
            here.disturbed.merge(&more.disturbed);
        }
        for (kind, cost) in other.costs {
            self.costs.entry(kind).or_default().merge(cost);
        }
        for (size, more) in other.sizes {
            let here = self.sizes.entry(size).or_default();
            here.us += more.us;
            here.kept.merge(more.kept);
        }
    }
}

/// A process that lived long enough to be judged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Survivor {
    pub(crate) part: usize,
    pub(crate) name: String,
    pub(crate) growth: Growth,
}

impl Survivor {
    /// A survivor with these samples, if it was observed for long enough.
    pub(crate) fn of(name: String, series: &Series) -> Option<Self> {
        Some(Self { part: 1, name, growth: series.growth()? })
    }
}

/// Keeps those that grew too much, and of the others those that lived longest.
pub(crate) fn keep_longest(survivors: &mut Vec<Survivor>) {
    survivors
        .sort_by_key(|survivor| (survivor.growth.excess().is_none(), u64::MAX - survivor.growth.span_us));
    survivors.truncate(SURVIVORS_MAX);
}

/// See the module's documentation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    format: u32,
    pub(crate) passed: bool,
    pub(crate) status: Status,
    /// Arguments that all parts have in common.
    pub(crate) settings: String,
    /// Checksums of the programs that all parts have run.
    #[serde(default)]
    pub(crate) build: String,
    /// How long all parts together are to be.
    #[serde(default)]
    goal_seconds: u64,
    pub(crate) violations: Vec<Finding>,
    /// How often each check failed.
    violations_per_check: BTreeMap<String, u64>,
    pub(crate) totals: Totals,
    pub(crate) parts: Vec<Part>,
    pub(crate) survivors: Vec<Survivor>,
    pub(crate) timeline: Timeline,
}

impl Report {
    /// The report of one part.
    pub(crate) fn of(
        settings: String,
        build: String,
        part: Part,
        totals: Totals,
        timeline: Timeline,
        survivors: Vec<Survivor>,
        violations: Vec<Finding>,
    ) -> Self {
        let (goal_seconds, parts) = (part.wanted_seconds, vec![part]);
        let mut report = Self {
            format: FORMAT,
            passed: false,
            status: Status::Unfinished,
            settings,
            build,
            goal_seconds,
            violations,
            violations_per_check: BTreeMap::new(),
            totals,
            parts,
            survivors,
            timeline,
        };
        report.judge();
        report
    }

    /// This report with another part added.
    pub(crate) fn with(&self, other: Self) -> Self {
        let mut sum = self.clone();
        let first = sum.parts.len();
        sum.goal_seconds = sum.goal_seconds.max(sum.totals.seconds as u64 + other.goal_seconds);
        let offset_us = sum.timeline.end_us();
        for (index, mut part) in other.parts.into_iter().enumerate() {
            part.number = first + index + 1;
            sum.parts.push(part);
        }
        let number = sum.parts.len();
        sum.totals.merge(other.totals, offset_us);
        sum.timeline.append(number, other.timeline);
        sum.violations
            .extend(other.violations.into_iter().map(|violation| Finding { part: number, ..violation }));
        for mut survivor in other.survivors {
            survivor.part = number;
            sum.survivors.push(survivor);
        }
        keep_longest(&mut sum.survivors);
        sum.judge();
        sum
    }

    /// A part that failed stays failed; one that was cut short proves nothing, but spoils nothing either.
    fn judge(&mut self) {
        let last = self.parts.last().map_or(Status::Unfinished, |part| part.status);
        let failed =
            !self.violations.is_empty() || self.parts.iter().any(|part| part.status == Status::Failed);
        self.status = if failed { Status::Failed } else { last };
        self.passed = self.status == Status::Passed;
        self.violations_per_check = Check::ALL.map(|check| (check.name().to_owned(), 0)).into();
        for violation in &self.violations {
            *self.violations_per_check.entry(violation.check.clone()).or_default() += 1;
        }
    }

    /// The seconds that the run lacks of the length that it is to have.
    pub(crate) fn missing_seconds(&self) -> u64 {
        self.goal_seconds.saturating_sub(self.totals.seconds as u64)
    }

    /// How long all parts together were and are to be.
    pub(crate) fn length(&self) -> String {
        let lengths = self.parts.iter().map(|part| clock(part.seconds as u64));
        let (done, goal) = (clock(self.totals.seconds as u64), clock(self.goal_seconds));
        match self.parts.len() {
            1 => format!("{done} of {goal}"),
            count => {
                format!("{done} of {goal} in {count} parts of {}", lengths.collect::<Vec<_>>().join(", "))
            }
        }
    }

    /// Seed of the next part, if nobody wishes another one.
    pub(crate) fn next_seed(&self) -> u64 {
        let first = self.parts.first().map_or(0, |part| part.seed);
        first.wrapping_add(self.parts.len() as u64)
    }

    pub(crate) fn json(&self) -> io::Result<String> {
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        Ok(text)
    }

    /// Reads what [`Self::json`] wrote.
    pub(crate) fn parse(text: &str) -> io::Result<Self> {
        let report: Self = serde_json::from_str(text)?;
        if report.format != FORMAT {
            let text = format!("the report has format {}, this program writes {FORMAT}", report.format);
            return Err(io::Error::other(text));
        }
        Ok(report)
    }

    /// The report in this folder.
    pub(crate) fn read(folder: &Path) -> io::Result<Self> {
        let path = folder.join(JSON);
        let named = |error| io::Error::other(format!("{}: {error}", path.display()));
        Self::parse(&std::fs::read_to_string(&path).map_err(named)?).map_err(named)
    }

    /// Writes the report in its three forms. Each file is there whole or as it was before.
    pub(crate) fn write(&self, folder: &Path) -> io::Result<()> {
        let summary = self.summary(folder);
        for (name, text) in [(JSON, self.json()?), (HTML, page::page(self, &summary)), (SUMMARY, summary)] {
            let unfinished = folder.join(format!("{name}.new"));
            std::fs::write(&unfinished, text)?;
            std::fs::rename(unfinished, folder.join(name))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
