//! The report as one page that needs nothing from outside: the summary, and a plot of the rate of operations over time.

use super::{Report, Slot, Timeline};
use std::fmt::Write;

/// Width of the plot, in its own units; the page stretches it.
const WIDTH: f64 = 960.0;
/// Height of the part with the rates.
const HEIGHT: f64 = 200.0;
/// Room at the left for the numbers.
const LEFT: f64 = 64.0;
/// Room below for the strokes of faults.
const FAULTS: f64 = 24.0;
/// Room below that for the times.
const TIMES: f64 = 20.0;
/// A line through more places than this would fill the plot.
const STRETCHES: usize = 200;

const STYLE: &str = "body { font: 15px sans-serif; margin: 2em; } pre { white-space: pre-wrap; }
svg { max-width: 70em; } text { font-size: 12px; } path { fill: none; stroke: #1a56b0; }
.expected { stroke: #888; stroke-dasharray: 4 3; } .fault { stroke: #b3261e; }";

/// The page with this summary.
pub(super) fn page(report: &Report, summary: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>pccl-stress: {}</title>\n\
         <style>\n{STYLE}\n</style>\n</head>\n<body>\n<pre>{}</pre>\n{}\
         <p>Completed operations per second over time; dashed: the undisturbed rate at the world size of that moment. \
         A stroke below stands for faults.</p>\n</body>\n</html>\n",
        report.status.word(),
        escape(summary),
        plot(&report.timeline)
    )
}

/// Makes any text part of a page.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            // Not allowed in a page, not even escaped.
            c if c.is_control() && c != '\n' && c != '\t' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

fn plot(timeline: &Timeline) -> String {
    let end_us = timeline.end_us().max(1) as f64;
    let rates = |slot: &Slot| slot.rate().max(slot.expected_rate().unwrap_or(0.0));
    let most = timeline.slots.iter().map(rates).fold(1.0, f64::max);
    let x = |us: u64| LEFT + us as f64 / end_us * (WIDTH - LEFT);
    let y = |rate: f64| HEIGHT * (1.0 - rate / most);
    let done = timeline.slots.chunks(timeline.slots.len().div_ceil(STRETCHES).max(1)).map(|slots| {
        let (operations, us) =
            slots.iter().fold((0, 0), |sum, slot| (sum.0 + slot.operations, sum.1 + slot.span_us));
        Some((x(slots[0].from_us + us / 2), y(operations as f64 * 1e6 / us.max(1) as f64)))
    });
    let expected = timeline.slots.iter().flat_map(|slot| {
        let rate = slot.expected_rate();
        [slot.from_us, slot.from_us + slot.span_us].map(|at| rate.map(|rate| (x(at), y(rate))))
    });
    let with_faults = timeline.slots.iter().filter(|slot| !slot.faults.is_empty());
    let faults = with_faults.flat_map(|slot| {
        let x = x(slot.from_us + slot.span_us / 2);
        [None, Some((x, HEIGHT + 6.0)), Some((x, HEIGHT + FAULTS))]
    });
    let foot = HEIGHT + FAULTS + TIMES;
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {foot}\" role=\"img\" aria-label=\"Operations per second over time\">\n\
         <text x=\"0\" y=\"12\">{most:.0} / s</text>\n<text x=\"0\" y=\"{HEIGHT}\">0</text>\n\
         <text x=\"{LEFT}\" y=\"{foot}\">0 s</text>\n\
         <text x=\"{WIDTH}\" y=\"{foot}\" text-anchor=\"end\">{:.0} s</text>\n{}{}{}</svg>\n",
        end_us / 1e6,
        path("expected", expected),
        path("done", done),
        path("fault", faults)
    )
}

/// A line through places. `None` interrupts it.
fn path(class: &str, places: impl Iterator<Item = Option<(f64, f64)>>) -> String {
    let (mut path, mut drawing) = (String::new(), false);
    for place in places {
        if let Some((x, y)) = place {
            let _ = write!(path, "{}{x:.1} {y:.1}", if drawing { 'L' } else { 'M' });
        }
        drawing = place.is_some();
    }
    format!("<path class=\"{class}\" d=\"{path}\"/>\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Status, tests::report};
    use std::path::Path;

    fn page_of(status: Status) -> String {
        let report = report(status);
        page(&report, &report.summary(Path::new("here")))
    }

    #[test]
    fn a_page_needs_nothing_from_outside_and_text_cannot_become_markup() {
        let page = page_of(Status::Failed);
        assert!(page.contains("wrong &lt;b&gt;&amp;\"bytes\"\u{fffd}"), "{page}");
        assert!(page.contains("pccl-stress --seconds 10 --seed 5"), "{page}");
        for outside in ["<script", "http:", "https:", "src=", "href=", "@import", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
    }

    #[test]
    fn the_plot_shows_rates_and_faults() {
        let page = page_of(Status::Passed);
        // 40 of at most 45 operations per second, all ten seconds; what was expected begins after three of them.
        assert!(page.contains("<text x=\"0\" y=\"12\">45 / s</text>"), "{page}");
        assert!(page.contains("<path class=\"done\" d=\"M108.8 22.2L198.4 22.2L288.0 22.2"), "{page}");
        assert!(page.contains("<path class=\"expected\" d=\"M332.8 0.0L422.4 0.0"), "{page}");
        assert!(page.contains("<path class=\"fault\" d=\"M915.2 206.0L915.2 224.0\"/>"), "{page}");
    }

    #[test]
    fn a_run_of_nothing_makes_a_page() {
        assert!(plot(&Timeline::default()).contains("<path class=\"done\" d=\"\"/>"));
    }
}
