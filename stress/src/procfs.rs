//! Figures of the kernel about a process: memory, threads, descriptors; and whether they grow.

use serde::{Deserialize, Serialize};
use std::{fs, io};

/// Samples that a judgement needs, and the time that they must span.
const SAMPLES_MIN: usize = 30;
const SPAN_MIN_US: u64 = 60_000_000;
/// The first samples show a process that is still filling its buffers.
const WARM_UP_US: u64 = 10_000_000;
/// Above this number of samples every other one is dropped.
const SAMPLES_MAX: usize = 2_000;
/// Growth of the regression line over the observed time that is no leak: the world changes its size meanwhile.
const MEMORY_LIMIT_KIB: f64 = 32_768.0;
const THREADS_LIMIT: f64 = 16.0;
const DESCRIPTORS_LIMIT: f64 = 32.0;

/// One look at a process.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sample {
    pub(crate) at_us: u64,
    pub(crate) memory_kib: f64,
    pub(crate) threads: f64,
    pub(crate) descriptors: f64,
}

/// Looks at a process.
pub(crate) fn sample(pid: u32, at_us: u64) -> io::Result<Sample> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.split_whitespace().next()).and_then(|word| word.parse::<f64>().ok())
    };
    // A process that has just ended has a status without memory.
    let missing = || io::Error::new(io::ErrorKind::NotFound, "the process has no memory any more");
    Ok(Sample {
        at_us,
        memory_kib: field("VmRSS:").ok_or_else(missing)?,
        threads: field("Threads:").ok_or_else(missing)?,
        descriptors: fs::read_dir(format!("/proc/{pid}/fd"))?.count() as f64,
    })
}

/// A description of this machine, in a few words.
pub(crate) fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let build = if cfg!(debug_assertions) { "debug build" } else { "release build" };
    format!("{cores} cores, {} {}, {build}", std::env::consts::OS, std::env::consts::ARCH)
}

/// One line for each thread of a process: its name, its state, and where in the kernel it sleeps.
pub(crate) fn threads(pid: u32) -> Vec<String> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let read = |path: std::path::PathBuf| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    tasks
        .flatten()
        .map(|task| {
            let path = task.path();
            let status = read(path.join("status"));
            let state = status.lines().find_map(|line| line.strip_prefix("State:")).unwrap_or("").trim();
            format!("{:<16} {state:<14} {}", read(path.join("comm")), read(path.join("wchan")))
        })
        .collect()
}

/// How a process grew.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Growth {
    pub(crate) span_us: u64,
    pub(crate) memory_kib: f64,
    pub(crate) threads: f64,
    pub(crate) descriptors: f64,
}

impl Growth {
    /// The figure that grew too much.
    pub(crate) fn excess(&self) -> Option<String> {
        let over = [
            ("KiB of memory", self.memory_kib, MEMORY_LIMIT_KIB),
            ("threads", self.threads, THREADS_LIMIT),
            ("descriptors", self.descriptors, DESCRIPTORS_LIMIT),
        ];
        let (what, growth, limit) = over.into_iter().find(|(_, growth, limit)| growth > limit)?;
        let seconds = self.span_us / 1_000_000;
        Some(format!("grew by {growth:.0} {what} in {seconds} s (regression line; {limit:.0} are allowed)"))
    }
}

/// All looks at one process.
#[derive(Debug, Clone, Default)]
pub(crate) struct Series {
    samples: Vec<Sample>,
    /// One in this many samples is kept.
    stride: usize,
    seen: usize,
}

impl Series {
    pub(crate) fn push(&mut self, sample: Sample) {
        let stride = self.stride.max(1);
        if self.seen.is_multiple_of(stride) {
            self.samples.push(sample);
        }
        self.seen += 1;
        if self.samples.len() > SAMPLES_MAX {
            let mut index = 0;
            self.samples.retain(|_| {
                index += 1;
                index % 2 == 1
            });
            self.stride = stride * 2;
        }
    }

    /// The growth over the observed time, if that was long enough to say.
    pub(crate) fn growth(&self) -> Option<Growth> {
        let born = self.samples.first()?.at_us;
        let warm = self.samples.iter().position(|sample| sample.at_us - born >= WARM_UP_US)?;
        let samples = &self.samples[warm..];
        let span_us = samples.last()?.at_us - samples.first()?.at_us;
        if samples.len() < SAMPLES_MIN || span_us < SPAN_MIN_US {
            return None;
        }
        let rise = |value: fn(&Sample) -> f64| {
            let points = samples.iter().map(|sample| ((sample.at_us - born) as f64, value(sample)));
            slope(points.clone()) * span_us as f64
        };
        Some(Growth {
            span_us,
            memory_kib: rise(|sample| sample.memory_kib),
            threads: rise(|sample| sample.threads),
            descriptors: rise(|sample| sample.descriptors),
        })
    }
}

/// Slope of the regression line (least squares).
fn slope(points: impl Iterator<Item = (f64, f64)> + Clone) -> f64 {
    let count = points.clone().count() as f64;
    let (sum_x, sum_y) = points.clone().fold((0.0, 0.0), |(sx, sy), (x, y)| (sx + x, sy + y));
    let (mean_x, mean_y) = (sum_x / count, sum_y / count);
    let (above, below) = points.fold((0.0, 0.0), |(above, below), (x, y)| {
        (above + (x - mean_x) * (y - mean_y), below + (x - mean_x) * (x - mean_x))
    });
    if below > 0.0 { above / below } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(count: u64, memory: impl Fn(u64) -> f64, threads: impl Fn(u64) -> f64) -> Series {
        let mut series = Series::default();
        for second in 0..count {
            series.push(Sample {
                at_us: second * 1_000_000,
                memory_kib: memory(second),
                threads: threads(second),
                descriptors: 20.0,
            });
        }
        series
    }

    #[test]
    fn a_leak_is_found_and_a_level_is_none() {
        let leak =
            series(10_000, |second| 1000.0 + second as f64 * 10.0, |_| 9.0).growth().expect("long enough");
        assert!((leak.memory_kib - 99_900.0).abs() < 200.0, "{leak:?}");
        assert!(leak.excess().expect("leak").contains("memory"));
        let threads = series(600, |_| 1e6, |second| second as f64 / 20.0).growth().expect("long enough");
        assert!(threads.excess().expect("leak").contains("threads"));
        // Up in the warm-up, then up and down.
        let level =
            series(600, |second| 1e6 * (second as f64).min(5.0) + (second % 7) as f64, |s| (s % 5) as f64);
        assert_eq!(level.growth().expect("long enough").excess(), None);
    }

    #[test]
    fn short_lives_are_not_judged() {
        assert_eq!(series(69, |second| second as f64 * 1e6, |_| 1.0).growth(), None);
        assert_eq!(Series::default().growth(), None);
    }

    #[test]
    fn long_series_stay_small_and_keep_their_span() {
        let series = series(100_000, |second| second as f64, |_| 1.0);
        assert!(series.samples.len() <= SAMPLES_MAX + 1);
        assert!(series.growth().expect("long").span_us > 99_000 * 1_000_000 * 9 / 10);
    }

    #[test]
    fn this_process_can_be_looked_at() {
        let sample = sample(std::process::id(), 5).expect("own process");
        assert!(
            sample.memory_kib > 100.0 && sample.threads >= 1.0 && sample.descriptors >= 3.0,
            "{sample:?}"
        );
        assert!(!threads(std::process::id()).is_empty());
    }
}
