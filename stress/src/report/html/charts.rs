//! The plots of a report.

use super::svg::{Plot, WIDTH, short};
use crate::{
    procfs::Sample,
    report::{Recoveries, Report, Slot, Survivor, Timeline, ms},
};
use std::collections::BTreeSet;

/// Height of the row of one kind of fault.
const LANE: f64 = 20.0;
/// Room between two rows.
const LANE_GAP: f64 = 5.0;
/// A line through more places than this would fill the plot.
const STRETCHES: usize = 200;
/// How many colours there are for processes.
const COLOURS: usize = 6;

fn seconds(us: u64) -> f64 {
    us as f64 / 1e6
}

fn begin(slot: &Slot) -> f64 {
    seconds(slot.from_us)
}

fn end(slot: &Slot) -> f64 {
    seconds(slot.from_us + slot.span_us)
}

/// World size over time, and below it when which faults were made.
pub(super) fn world(timeline: &Timeline) -> String {
    let kinds: BTreeSet<&str> =
        timeline.slots.iter().flat_map(|slot| slot.faults.keys().map(String::as_str)).collect();
    let most = timeline.slots.iter().map(|slot| slot.world_max).max().unwrap_or(0);
    let lanes = (LANE + LANE_GAP) * kinds.len() as f64 + 12.0;
    let mut plot = Plot::over_time(
        "World size over time, and faults",
        150.0,
        lanes,
        seconds(timeline.end_us()),
        most as f64,
    );
    shade_undisturbed(&mut plot, timeline);
    for slot in timeline.slots.iter().filter(|slot| slot.world_min < slot.world_max) {
        let (from, to) = (
            (plot.x(begin(slot)), plot.y(slot.world_max as f64)),
            (plot.x(end(slot)), plot.y(slot.world_min as f64)),
        );
        let title = format!("{} to {} members at {:.0} s", slot.world_min, slot.world_max, begin(slot));
        plot.rect("band", from, to, &title);
    }
    let steps: Vec<_> = timeline
        .slots
        .iter()
        .flat_map(|slot| [begin(slot), end(slot)].map(|at| Some((plot.x(at), plot.y(slot.world())))))
        .collect();
    plot.path("line", steps.into_iter());
    mark_parts(&mut plot, timeline);
    for (row, kind) in kinds.iter().enumerate() {
        lane(&mut plot, timeline, kind, row);
    }
    plot.finish()
}

/// One row with a stroke wherever a fault of this kind was made; the higher, the more.
fn lane(plot: &mut Plot, timeline: &Timeline, kind: &str, row: usize) {
    let foot = plot.bottom() + 12.0 + (LANE + LANE_GAP) * row as f64 + LANE;
    let count = |slot: &Slot| slot.faults.get(kind).copied().unwrap_or(0);
    let most = timeline.slots.iter().map(count).max().unwrap_or(1).max(1) as f64;
    plot.line("grid", plot.x(0.0), foot, WIDTH - 16.0, foot);
    plot.text("tick end", plot.x(0.0) - 8.0, foot - 5.0, kind);
    let strokes: Vec<_> = timeline
        .slots
        .iter()
        .filter(|slot| count(slot) > 0)
        .flat_map(|slot| {
            let x = plot.x(begin(slot) / 2.0 + end(slot) / 2.0);
            [None, Some((x, foot)), Some((x, foot - LANE * count(slot) as f64 / most))]
        })
        .collect();
    plot.path("fault", strokes.into_iter());
}

/// Where the undisturbed rates were measured.
fn shade_undisturbed(plot: &mut Plot, timeline: &Timeline) {
    let mut run: Option<(f64, f64)> = None;
    let mut stretches = Vec::new();
    for slot in &timeline.slots {
        match (&mut run, slot.expected) {
            (Some((_, until)), None) => *until = end(slot),
            (None, None) => run = Some((begin(slot), end(slot))),
            (_, Some(_)) => stretches.extend(run.take()),
        }
    }
    stretches.extend(run);
    let (top, bottom) = (plot.y(f64::MAX), plot.bottom());
    for (from, to) in stretches {
        let (from, to) = (plot.x(from), plot.x(to));
        plot.rect("calm", (from, top), (to, bottom), "no faults are made here");
    }
}

fn mark_parts(plot: &mut Plot, timeline: &Timeline) {
    let borders: Vec<f64> = timeline
        .slots
        .windows(2)
        .filter(|pair| pair[0].part != pair[1].part)
        .map(|pair| begin(&pair[1]))
        .collect();
    borders.into_iter().for_each(|at| plot.upright("border", at));
}

/// Completed operations per second, and what the undisturbed rate would have been.
pub(super) fn rate(timeline: &Timeline) -> String {
    let most = timeline
        .slots
        .iter()
        .map(|slot| slot.rate().max(slot.expected_rate().unwrap_or(0.0)))
        .fold(0.0, f64::max);
    let mut plot =
        Plot::over_time("Operations per second over time", 200.0, 0.0, seconds(timeline.end_us()), most);
    shade_undisturbed(&mut plot, timeline);
    let stretches = || timeline.slots.chunks(timeline.slots.len().div_ceil(STRETCHES).max(1));
    for slots in stretches() {
        let rates = || slots.iter().map(Slot::rate);
        let (slowest, fastest) = (rates().fold(f64::MAX, f64::min), rates().fold(0.0, f64::max));
        if slots.len() > 1 && slowest < fastest {
            let from = (plot.x(begin(&slots[0])), plot.y(fastest));
            let to = (plot.x(end(&slots[slots.len() - 1])), plot.y(slowest));
            let title = format!("{slowest:.1} to {fastest:.1} per second at {:.0} s", begin(&slots[0]));
            plot.rect("band", from, to, &title);
        }
    }
    let average = |slots: &[Slot]| {
        let (from, to) = (begin(&slots[0]), end(&slots[slots.len() - 1]));
        let spans: u64 = slots.iter().map(|slot| slot.span_us).sum();
        let operations: u64 = slots.iter().map(|slot| slot.operations).sum();
        (from / 2.0 + to / 2.0, operations as f64 / seconds(spans.max(1)))
    };
    let done: Vec<_> = stretches()
        .map(|slots| {
            let (at, rate) = average(slots);
            Some((plot.x(at), plot.y(rate)))
        })
        .collect();
    let expected: Vec<_> = timeline
        .slots
        .iter()
        .flat_map(|slot| {
            let rate = slot.expected_rate();
            [begin(slot), end(slot)].map(|at| rate.map(|rate| (plot.x(at), plot.y(rate))))
        })
        .collect();
    plot.path("line", done.into_iter());
    plot.path("expected", expected.into_iter());
    mark_parts(&mut plot, timeline);
    plot.finish()
}

/// How often which recovery time occurred; the horizontal axis is logarithmic.
pub(super) fn recoveries(recoveries: &Recoveries) -> String {
    let both = [&recoveries.undisturbed, &recoveries.disturbed].map(|histogram| histogram.classes());
    let classes = || both.iter().flatten();
    if classes().next().is_none() {
        return "<p class=\"none\">There was no recovery to measure.</p>\n".to_owned();
    }
    let first = classes().map(|class| class.0).fold(f64::MAX, f64::min).log10().floor();
    let last = classes().map(|class| class.1).fold(0.0, f64::max).log10().ceil();
    let high = |begin: f64| -> u64 {
        let same = classes().filter(|class| (class.0 / begin - 1.0).abs() < 1e-3);
        same.map(|class| class.2).sum()
    };
    let most = classes().map(|class| high(class.0)).max().unwrap_or(0) as f64;
    let mut plot =
        Plot::new("Distribution of recovery times", 180.0, 0.0, last - first, (most * 1.15).max(4.0));
    let place = |us: f64| us.log10() - first;
    for exponent in first as i32..=last as i32 {
        let us = 10f64.powi(exponent);
        plot.upright("grid", place(us));
        let x = plot.x(place(us));
        let anchor = if us.log10() == last { "tick end" } else { "tick middle" };
        let name = if us < 1e6 { format!("{} ms", us / 1e3) } else { format!("{} s", us / 1e6) };
        plot.text(anchor, x, plot.bottom() + 19.0, &name);
    }
    let mut floors = std::collections::BTreeMap::new();
    for (classes, class) in both.iter().zip(["bar", "bar second"]) {
        for (from, to, count) in classes.iter().filter(|(_, _, count)| *count > 0) {
            let floor = floors.entry((from.log10() * 1000.0).round() as i64).or_insert(0);
            let (x1, x2) = (plot.x(place(*from)) + 0.5, plot.x(place(*to)) - 0.5);
            let (y1, y2) = (plot.y((*floor + count) as f64), plot.y(*floor as f64));
            let title = format!("{count} from {} to {}", ms(*from as u64), ms(*to as u64));
            plot.rect(class, (x1, y1), (x2, y2), &title);
            *floor += count;
        }
    }
    if recoveries.undisturbed.count > 0 {
        let median = recoveries.undisturbed.quantile_us(50);
        plot.upright("mark", place(median as f64));
        plot.text(
            "note",
            plot.x(place(median as f64)) + 6.0,
            plot.y(f64::MAX) + 12.0,
            &format!("median {}", ms(median)),
        );
    }
    plot.finish()
}

/// Class of the line of a process.
pub(super) fn colour(index: usize) -> String {
    format!("process c{} {}", index % COLOURS, if index < COLOURS { "" } else { "dashed" })
}

/// Things that the survivors used over time: a title and a plot for each of them.
pub(super) fn survivors(report: &Report) -> Vec<(&'static str, String)> {
    type Value = fn(&Sample) -> f64;
    let charts: [(&str, Value); 3] = [
        ("Memory, MiB", |sample| sample.memory_kib / 1024.0),
        ("Threads", |sample| sample.threads),
        ("Descriptors", |sample| sample.descriptors),
    ];
    let span = seconds(report.timeline.end_us());
    let draw = |(title, value): (&'static str, Value)| {
        let all = report.survivors.iter().flat_map(|survivor| &survivor.samples);
        let mut plot = Plot::over_time(title, 110.0, 0.0, span, all.map(value).fold(0.0, f64::max));
        for (index, survivor) in report.survivors.iter().enumerate() {
            let places: Vec<_> =
                line_of(survivor, value).map(|(at, value)| Some((plot.x(at), plot.y(value)))).collect();
            plot.path(&colour(index), places.into_iter());
        }
        mark_parts(&mut plot, &report.timeline);
        (title, plot.finish())
    };
    charts.into_iter().map(draw).collect()
}

fn line_of(survivor: &Survivor, value: impl Fn(&Sample) -> f64) -> impl Iterator<Item = (f64, f64)> {
    survivor.samples.iter().map(move |sample| (seconds(sample.at_us), value(sample)))
}

/// A rate for a table.
pub(super) fn rate_text(rate: f64) -> String {
    if rate >= 100.0 { format!("{rate:.0}") } else { short((rate * 10.0).round() / 10.0) }
}
