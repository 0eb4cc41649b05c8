//! The plot of a run as an SVG file that needs nothing else: loss of each peer over time (logarithmic) above, number
//! of peers below, kills and joins across both.

use super::run::{Mark, MarkKind, Sample};
use std::{fmt::Write as _, time::Duration};

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 520.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 760.0;
const LOSS: Panel = Panel { top: 40.0, bottom: 330.0 };
const WORLD: Panel = Panel { top: 370.0, bottom: 470.0 };
/// Okabe and Ito's colours, which people with colour blindness can tell apart.
const COLOURS: [&str; 7] = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#000000"];
/// Losses below this are drawn at it: a logarithm has no zero.
const LOSS_MIN: f64 = 1e-4;
/// Peers named in the legend, for which there is room.
const LEGEND_MAX: usize = 16;

struct Panel {
    top: f64,
    bottom: f64,
}

/// Draws a run. Samples and marks are in order of time.
pub(crate) fn render(title: &str, samples: &[Sample], marks: &[Mark]) -> String {
    let scale = Scale::new(samples, marks);
    let mut svg = String::new();
    header(&mut svg, title);
    axes(&mut svg, &scale);
    marks_lines(&mut svg, &scale, marks);
    let mut peers: Vec<u32> = samples.iter().map(|sample| sample.peer).collect();
    peers.sort_unstable();
    peers.dedup();
    for &peer in &peers {
        loss_line(&mut svg, &scale, samples, peer);
    }
    world_line(&mut svg, &scale, samples);
    legend(&mut svg, &peers);
    svg.push_str("</svg>\n");
    svg
}

/// From values to places.
struct Scale {
    seconds: f64,
    /// Decades of the loss axis.
    decades: (i32, i32),
    world: usize,
}

impl Scale {
    fn new(samples: &[Sample], marks: &[Mark]) -> Self {
        let ends = samples.iter().map(|s| s.at).chain(marks.iter().map(|m| m.at));
        let losses = samples.iter().map(|s| log_loss(s.step.loss));
        let (low, high) = losses.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
        let low = if low.is_finite() { low.floor() as i32 } else { -1 };
        let high = if high.is_finite() { high.ceil() as i32 } else { 0 };
        Self {
            seconds: ends.max().unwrap_or(Duration::ZERO).as_secs_f64().max(1e-3),
            decades: (low, high.max(low + 1)),
            world: samples.iter().map(|s| s.step.world).max().unwrap_or(1).max(1),
        }
    }

    fn x(&self, at: Duration) -> f64 {
        self.x_seconds(at.as_secs_f64())
    }

    fn x_seconds(&self, seconds: f64) -> f64 {
        LEFT + (RIGHT - LEFT) * seconds / self.seconds
    }

    fn y_log(&self, log: f64) -> f64 {
        let (low, high) = (f64::from(self.decades.0), f64::from(self.decades.1));
        LOSS.bottom - (LOSS.bottom - LOSS.top) * (log - low) / (high - low)
    }

    fn y_world(&self, world: usize) -> f64 {
        WORLD.bottom - (WORLD.bottom - WORLD.top) * world as f64 / (self.world + 1) as f64
    }
}

fn log_loss(loss: f32) -> f64 {
    let loss = f64::from(loss);
    // The report of a training that has gone wrong must not break the picture.
    if loss.is_finite() { loss.clamp(LOSS_MIN, 1e6).log10() } else { 6.0 }
}

fn header(svg: &mut String, title: &str) {
    // Writing to a String cannot fail; the same holds for all that follow.
    let _ = write!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" \
         height=\"{HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    text(svg, LEFT, 24.0, "start", "#000", title);
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, colour: &str, content: &str) {
    let content = content.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"{colour}\">{content}</text>"
    );
}

fn line(svg: &mut String, (x1, y1): (f64, f64), (x2, y2): (f64, f64), style: &str) {
    let _ = writeln!(svg, "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" {style}/>");
}

fn axes(svg: &mut String, scale: &Scale) {
    const GRID: &str = "stroke=\"#ddd\"";
    const AXIS: &str = "stroke=\"#444\"";
    for decade in scale.decades.0..=scale.decades.1 {
        let y = scale.y_log(f64::from(decade));
        line(svg, (LEFT, y), (RIGHT, y), GRID);
        text(svg, LEFT - 8.0, y + 4.0, "end", "#444", &format!("{}", 10f64.powi(decade)));
    }
    for world in (0..=scale.world).step_by(scale.world.div_ceil(6)) {
        let y = scale.y_world(world);
        line(svg, (LEFT, y), (RIGHT, y), GRID);
        text(svg, LEFT - 8.0, y + 4.0, "end", "#444", &world.to_string());
    }
    let tick = tick_seconds(scale.seconds);
    for index in 0..=(scale.seconds / tick) as u32 {
        let seconds = f64::from(index) * tick;
        let x = scale.x_seconds(seconds);
        line(svg, (x, WORLD.bottom), (x, WORLD.bottom + 5.0), AXIS);
        text(svg, x, WORLD.bottom + 20.0, "middle", "#444", &format!("{}", (seconds * 1e3).round() / 1e3));
    }
    for panel in [LOSS, WORLD] {
        line(svg, (LEFT, panel.top), (LEFT, panel.bottom), AXIS);
        line(svg, (LEFT, panel.bottom), (RIGHT, panel.bottom), AXIS);
    }
    text(svg, LEFT + 8.0, LOSS.top + 12.0, "start", "#444", "local training loss (nats)");
    text(svg, LEFT + 8.0, WORLD.top + 10.0, "start", "#444", "peers in the all-reduce");
    text(svg, RIGHT, WORLD.bottom + 38.0, "end", "#444", "seconds since the start");
}

/// 1, 2 or 5 times a power of ten, such that there are between 4 and 10 ticks.
fn tick_seconds(seconds: f64) -> f64 {
    let power = 10f64.powf((seconds / 5.0).log10().floor());
    [5.0, 2.0].iter().map(|factor| factor * power).find(|tick| seconds / tick >= 4.0).unwrap_or(power)
}

const fn colour(peer: u32) -> &'static str {
    COLOURS[peer as usize % COLOURS.len()]
}

const fn mark_look(kind: MarkKind) -> (&'static str, &'static str) {
    match kind {
        MarkKind::Kill => ("#c00000", "killed"),
        MarkKind::Join => ("#2a7d2a", "joined"),
    }
}

fn marks_lines(svg: &mut String, scale: &Scale, marks: &[Mark]) {
    for (index, mark) in marks.iter().enumerate() {
        let (colour, word) = mark_look(mark.kind);
        let x = scale.x(mark.at);
        let style = format!("stroke=\"{colour}\" stroke-dasharray=\"4 3\"");
        line(svg, (x, LOSS.top), (x, WORLD.bottom), &style);
        // Neighbours in time get different heights, so that their words do not cover each other.
        let y = LOSS.top + 30.0 + 14.0 * (index % 4) as f64;
        text(svg, x + 3.0, y, "start", colour, &format!("{} {word}", mark.peer));
    }
}

fn loss_line(svg: &mut String, scale: &Scale, samples: &[Sample], peer: u32) {
    let mut points = String::new();
    for sample in samples.iter().filter(|sample| sample.peer == peer) {
        let _ = write!(points, "{:.1},{:.1} ", scale.x(sample.at), scale.y_log(log_loss(sample.step.loss)));
    }
    let colour = colour(peer);
    let points = points.trim_end();
    let _ = writeln!(
        svg,
        "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>"
    );
}

fn world_line(svg: &mut String, scale: &Scale, samples: &[Sample]) {
    let Some(first) = samples.first() else { return };
    let mut path = format!("M{:.1},{:.1}", scale.x(first.at), scale.y_world(first.step.world));
    // Several peers report each step; the first report of a step tells the size.
    let mut step = first.step.step;
    for sample in samples.iter().skip(1) {
        if sample.step.step > step {
            step = sample.step.step;
            let _ = write!(path, "H{:.1}V{:.1}", scale.x(sample.at), scale.y_world(sample.step.world));
        }
    }
    let _ = writeln!(svg, "<path d=\"{path}\" fill=\"none\" stroke=\"#222\" stroke-width=\"2\"/>");
}

fn legend(svg: &mut String, peers: &[u32]) {
    let x = RIGHT + 20.0;
    let mut y = LOSS.top + 10.0;
    for &peer in peers.iter().take(LEGEND_MAX) {
        let style = format!("stroke=\"{}\" stroke-width=\"3\"", colour(peer));
        line(svg, (x, y - 4.0), (x + 22.0, y - 4.0), &style);
        text(svg, x + 28.0, y, "start", "#000", &format!("peer {peer}"));
        y += 17.0;
    }
    if peers.len() > LEGEND_MAX {
        text(svg, x + 28.0, y, "start", "#000", &format!("and {} more", peers.len() - LEGEND_MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::training::report::{StepReport, Traffic};

    fn sample(ms: u64, peer: u32, step: u64, loss: f32, world: usize) -> Sample {
        let step = StepReport { step, world, loss, revision: step, traffic: Traffic::default() };
        Sample { at: Duration::from_millis(ms), peer, step }
    }

    /// Every coordinate of a polyline or path.
    fn numbers(text: &str) -> Vec<f64> {
        text.split(|c: char| !(c.is_ascii_digit() || ".-".contains(c)))
            .filter_map(|n| n.parse().ok())
            .collect()
    }

    fn attribute<'a>(svg: &'a str, start: &str) -> Vec<&'a str> {
        svg.match_indices(start).map(|(at, _)| svg[at + start.len()..].split('"').next().unwrap()).collect()
    }

    #[test]
    fn lines_marks_and_legend_are_there() {
        let samples = [
            sample(0, 0, 1, 2.0, 2),
            sample(5, 1, 1, 1.0, 2),
            sample(500, 0, 2, 0.2, 2),
            sample(1000, 0, 3, 0.02, 3),
        ];
        let mark = |ms, kind, peer| Mark { at: Duration::from_millis(ms), kind, peer };
        let svg =
            render("a < b & c", &samples, &[mark(100, MarkKind::Kill, 1), mark(900, MarkKind::Join, 2)]);
        assert!(svg.starts_with("<svg xmlns") && svg.ends_with("</svg>\n"));
        for part in ["a &lt; b &amp; c", ">1 killed<", ">2 joined<", ">peer 0<", ">peer 1<", ">seconds"] {
            assert!(svg.contains(part), "{part} is missing in {svg}");
        }
        let lines = attribute(&svg, "<polyline points=\"");
        assert_eq!(lines.iter().map(|line| line.split(' ').count()).collect::<Vec<_>>(), [3, 1]);
        // Time runs right, and a falling loss falls.
        let points = numbers(lines[0]);
        assert!(points[0] < points[2] && points[2] < points[4] && (points[4] - RIGHT).abs() < 0.2);
        assert!(points[1] < points[3] && points[3] < points[5]);
        let path = attribute(&svg, "<path d=\"")[0];
        assert_eq!(path.matches('H').count(), 2, "one piece for each step of the run");
    }

    #[test]
    fn odd_values_stay_inside_the_picture() {
        let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -1.0, f32::MAX];
        let samples: Vec<_> =
            odd.iter().enumerate().map(|(i, &l)| sample(i as u64, 0, i as u64, l, i)).collect();
        let svg = render("odd", &samples, &[]);
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        let points = numbers(attribute(&svg, "<polyline points=\"")[0]);
        assert_eq!(points.len(), 2 * odd.len());
        assert!(points.chunks(2).all(|p| (LEFT..=RIGHT).contains(&p[0])));
        assert!(points.chunks(2).all(|p| (LOSS.top..=LOSS.bottom).contains(&p[1])), "{points:?}");
    }

    #[test]
    fn an_empty_run_has_a_picture_too() {
        let svg = render("nothing", &[], &[]);
        assert!(!svg.contains("NaN") && svg.ends_with("</svg>\n"));
    }

    #[test]
    fn ticks_are_round_and_few() {
        for seconds in [1e-3, 0.7, 1.0, 4.9, 12.0, 59.0, 3600.0] {
            let count = seconds / tick_seconds(seconds);
            assert!((3.9..=10.1).contains(&count), "{seconds}: {count}");
        }
        assert_eq!(tick_seconds(12.0), 2.0);
    }
}
