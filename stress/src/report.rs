//! What is told about a run: the line while it lasts, the report and the summary when it is over.

use crate::{
    json::Json,
    oracle::{Check, Counts, Recovery, Violation},
    procfs::Growth,
    record::{Faults, Record},
};

/// A process that lived long enough to be judged.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Survivor {
    pub(crate) name: String,
    pub(crate) growth: Growth,
}

/// A run that is over.
#[derive(Debug, Clone)]
pub(crate) struct Report {
    pub(crate) seed: u64,
    pub(crate) replay: String,
    pub(crate) profile: String,
    pub(crate) peers: String,
    pub(crate) peer_timeout_ms: u64,
    pub(crate) elements: u64,
    pub(crate) wanted_seconds: u64,
    pub(crate) seconds: f64,
    pub(crate) interrupted: bool,
    pub(crate) faults: Faults,
    pub(crate) counts: Counts,
    pub(crate) longest_gap_us: u64,
    pub(crate) recoveries: Vec<Recovery>,
    pub(crate) survivors: Vec<Survivor>,
    pub(crate) violations: Vec<Violation>,
    /// Monotonic time at which the run began; violations are told relative to it.
    pub(crate) began_us: u64,
    pub(crate) folder: String,
}

/// Upper ends of the classes in which recoveries are counted, in milliseconds; one class more is above the last.
const CLASSES_MS: [u64; 7] = [10, 30, 100, 300, 1_000, 3_000, 10_000];

/// Distribution of durations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Distribution {
    pub(crate) count: usize,
    pub(crate) median_us: u64,
    pub(crate) p95_us: u64,
    pub(crate) max_us: u64,
    /// How many there are in each class.
    pub(crate) classes: [u64; CLASSES_MS.len() + 1],
}

impl Distribution {
    /// The distribution of these durations; quantiles are values that occurred (nearest rank).
    pub(crate) fn of(durations: impl Iterator<Item = u64>) -> Self {
        let mut sorted: Vec<u64> = durations.collect();
        sorted.sort_unstable();
        let quantile = |percent: usize| {
            let rank = (sorted.len() * percent).div_ceil(100).max(1);
            sorted.get(rank - 1).copied().unwrap_or(0)
        };
        let mut classes = [0; CLASSES_MS.len() + 1];
        for us in &sorted {
            classes[CLASSES_MS.partition_point(|&end_ms| end_ms * 1000 < *us)] += 1;
        }
        let (median_us, p95_us, max_us) = (quantile(50), quantile(95), quantile(100));
        Self { count: sorted.len(), median_us, p95_us, max_us, classes }
    }

    fn json(&self) -> Json {
        Json::Object(vec![
            ("count", (self.count as u64).into()),
            ("median_ms", ms(self.median_us)),
            ("p95_ms", ms(self.p95_us)),
            ("max_ms", ms(self.max_us)),
            ("class_ends_ms", Json::List(CLASSES_MS.map(Json::from).into())),
            ("classes", Json::List(self.classes.map(Json::from).into())),
        ])
    }

    /// How many there are up to each limit, without empty classes.
    fn histogram(&self) -> String {
        let ends = CLASSES_MS.iter().map(|end_ms| format!("up to {end_ms} ms")).chain(["more".to_owned()]);
        let classes = ends.zip(self.classes).filter(|(_, count)| *count > 0);
        classes.map(|(end, count)| format!("{end}: {count}")).collect::<Vec<_>>().join(", ")
    }
}

fn ms(us: u64) -> Json {
    Json::Number(us as f64 / 1000.0)
}

/// One line about a run that goes on.
pub(crate) fn live_line(left_s: u64, world: usize, record: &Record, counts: &Counts) -> String {
    let slowest = record.recoveries.iter().map(|recovery| recovery.duration_us).max().unwrap_or(0);
    format!(
        "{:>3}:{:02} left, world {world}, {} operations, revision {}, {} kills, {} faults, {} aborts, {} retries, {} joins, \
         slowest recovery {} ms",
        left_s / 60,
        left_s % 60,
        counts.operations,
        counts.newest_revision,
        record.faults.get("kill").copied().unwrap_or(0),
        record.faults.values().sum::<u64>(),
        counts.aborted_operations,
        counts.failed_calls,
        counts.joins,
        slowest / 1000
    )
}

impl Report {
    pub(crate) fn passed(&self) -> bool {
        self.violations.is_empty() && !self.interrupted
    }

    fn distribution(&self, undisturbed: bool) -> Distribution {
        let kills = self.recoveries.iter().filter(|recovery| recovery.kind == "kill");
        let chosen = kills.filter(|recovery| recovery.undisturbed == undisturbed);
        Distribution::of(chosen.map(|recovery| recovery.duration_us))
    }

    fn seconds_into(&self, violation: &Violation) -> f64 {
        violation.at_us.saturating_sub(self.began_us) as f64 / 1e6
    }

    /// The report for programs.
    pub(crate) fn json(&self) -> Json {
        let (faults, counts) = (&self.faults, &self.counts);
        let failed =
            |check: Check| self.violations.iter().filter(|violation| violation.check == check).count() as u64;
        Json::Object(vec![
            ("passed", self.passed().into()),
            ("interrupted", self.interrupted.into()),
            ("seed", self.seed.into()),
            ("replay", self.replay.as_str().into()),
            ("profile", self.profile.as_str().into()),
            ("peers", self.peers.as_str().into()),
            ("peer_timeout_ms", self.peer_timeout_ms.into()),
            ("elements", self.elements.into()),
            ("wanted_seconds", self.wanted_seconds.into()),
            ("seconds", Json::Number(self.seconds)),
            ("faults", Json::Object(faults.iter().map(|(&kind, &count)| (kind, count.into())).collect())),
            ("counts", counts_json(counts)),
            ("longest_gap_ms", ms(self.longest_gap_us)),
            ("recovery", self.distribution(true).json()),
            ("recovery_while_peers_were_stopped", self.distribution(false).json()),
            ("survivors", Json::List(self.survivors.iter().map(survivor_json).collect())),
            (
                "violations_per_check",
                Json::Object(Check::ALL.map(|check| (check.name(), failed(check).into())).into()),
            ),
            (
                "violations",
                Json::List(self.violations.iter().map(|violation| self.violation_json(violation)).collect()),
            ),
        ])
    }

    fn violation_json(&self, violation: &Violation) -> Json {
        Json::Object(vec![
            ("seconds", Json::Number(self.seconds_into(violation))),
            ("check", violation.check.name().into()),
            ("text", violation.text.as_str().into()),
        ])
    }

    /// The report for people.
    pub(crate) fn summary(&self) -> String {
        let (faults, counts) = (&self.faults, &self.counts);
        let mut out = String::new();
        let mut line = |text: String| {
            out.push_str(&text);
            out.push('\n');
        };
        line(format!(
            "{}: {:.0} s of {} s, profile {}, {} peers, seed {}",
            match (self.passed(), self.interrupted) {
                (true, _) => "PASSED",
                (false, true) if self.violations.is_empty() => "INTERRUPTED",
                _ => "FAILED",
            },
            self.seconds,
            self.wanted_seconds,
            self.profile,
            self.peers,
            self.seed
        ));
        let made: Vec<String> = faults.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
        line(format!("did       {}", made.join(", ")));
        line(format!(
            "saw       {} operations ({} calls), {} revisions, {} joins, {} operations aborted, {} calls tried again, {} stopped \
             peers dropped",
            counts.operations,
            counts.completed_calls,
            counts.newest_revision,
            counts.joins,
            counts.aborted_operations,
            counts.failed_calls,
            counts.drops
        ));
        for (name, undisturbed) in [("recovery ", true), ("  (stops)", false)] {
            let d = self.distribution(undisturbed);
            line(format!(
                "{name} after {} kills: median {} ms, 95 % {} ms, slowest {} ms",
                d.count,
                d.median_us / 1000,
                d.p95_us / 1000,
                d.max_us / 1000
            ));
            if d.count > 0 {
                line(format!("          {}", d.histogram()));
            }
        }
        line(format!("longest   gap between completed operations {} ms", self.longest_gap_us / 1000));
        for survivor in &self.survivors {
            let growth = &survivor.growth;
            line(format!(
                "growth    of {} in {} s: {:+.0} KiB, {:+.1} threads, {:+.1} descriptors",
                survivor.name,
                growth.span_us / 1_000_000,
                growth.memory_kib,
                growth.threads,
                growth.descriptors
            ));
        }
        for violation in &self.violations {
            let seconds = self.seconds_into(violation);
            line(format!("VIOLATION at {seconds:.3} s, {}: {}", violation.check.name(), violation.text));
        }
        if !self.violations.is_empty() {
            line(format!("logs      {}", self.folder));
            line(format!("again     {}", self.replay));
        }
        out
    }
}

fn counts_json(counts: &Counts) -> Json {
    Json::Object(vec![
        ("operations", counts.operations.into()),
        ("completed_calls", counts.completed_calls.into()),
        ("aborted_operations", counts.aborted_operations.into()),
        ("failed_calls", counts.failed_calls.into()),
        ("syncs", counts.syncs.into()),
        ("joins", counts.joins.into()),
        ("drops", counts.drops.into()),
        ("fetched_bytes", counts.fetched_bytes.into()),
        ("newest_revision", counts.newest_revision.into()),
    ])
}

fn survivor_json(survivor: &Survivor) -> Json {
    let growth = &survivor.growth;
    Json::Object(vec![
        ("name", survivor.name.as_str().into()),
        ("seconds", Json::Number(growth.span_us as f64 / 1e6)),
        ("memory_kib", Json::Number(growth.memory_kib)),
        ("threads", Json::Number(growth.threads)),
        ("descriptors", Json::Number(growth.descriptors)),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        Report {
            seed: 5,
            replay: "pccl-stress --seed 5".into(),
            profile: "calm".into(),
            peers: "3..4".into(),
            peer_timeout_ms: 3000,
            elements: 10,
            wanted_seconds: 60,
            seconds: 60.5,
            interrupted: false,
            faults: Faults::default(),
            counts: Counts::default(),
            longest_gap_us: 0,
            recoveries: Vec::new(),
            survivors: Vec::new(),
            violations: Vec::new(),
            began_us: 1_000_000,
            folder: "here".into(),
        }
    }

    #[test]
    fn quantiles_are_values_that_occurred() {
        let distribution = Distribution::of(1..=100);
        let (count, median_us, p95_us, max_us) = (100, 50, 95, 100);
        let classes = [100, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(distribution, Distribution { count, median_us, p95_us, max_us, classes });
        assert_eq!(Distribution::of([7].into_iter()).median_us, 7);
        assert_eq!(Distribution::of([].into_iter()), Distribution::default());
    }

    #[test]
    fn classes_include_their_upper_end() {
        let distribution = Distribution::of([10_000, 10_001, 30_000, 11_000_000].into_iter());
        assert_eq!(distribution.classes, [1, 2, 0, 0, 0, 0, 0, 1]);
        assert_eq!(distribution.histogram(), "up to 10 ms: 1, up to 30 ms: 2, more: 1");
    }

    #[test]
    fn only_a_whole_run_without_violations_passes() {
        assert!(report().passed());
        assert!(report().summary().starts_with("PASSED"));
        assert!(report().json().write().contains("\"passed\": true"));
        let interrupted = Report { interrupted: true, ..report() };
        assert!(!interrupted.passed());
        assert!(interrupted.summary().starts_with("INTERRUPTED"));
        let violation = Violation { at_us: 3_500_000, check: Check::Result, text: "wrong".into() };
        let failed = Report { violations: vec![violation], ..report() };
        assert!(!failed.passed());
        let summary = failed.summary();
        for part in ["FAILED", "2.500 s", "result: wrong", "here", "--seed 5"] {
            assert!(summary.contains(part), "{part} in {summary}");
        }
        assert!(failed.json().write().contains("\"result\": 1"));
    }

    #[test]
    fn the_live_line_has_what_matters() {
        let recovery = Recovery { kind: "kill", duration_us: 12_345, undisturbed: true };
        let record = Record { faults: Faults::from([("kill", 9)]), recoveries: vec![recovery] };
        let line = live_line(125, 4, &record, &Counts::default());
        assert!(line.contains("2:05 left") && line.contains("world 4") && line.contains("9 kills"), "{line}");
        assert!(line.contains("12 ms"), "{line}");
    }
}
