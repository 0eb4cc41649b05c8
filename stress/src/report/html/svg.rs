//! A plot's frame: axes with round numbers, and the way from values to places.

use std::fmt::Write;

/// Width of a plot, in its own units; the page stretches it.
pub(super) const WIDTH: f64 = 960.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 12.0;
/// Room for the numbers below the plot.
const BELOW: f64 = 24.0;
/// How wide a letter is at most on average.
const LETTER_WIDTH: f64 = 7.5;

/// Makes any text part of a page.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // Not allowed in a page, not even escaped.
            c if c.is_control() && c != '\n' && c != '\t' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// Round numbers from 0 to at least `most`, about `count` of them.
pub(super) fn round_ticks(most: f64, count: usize) -> Vec<f64> {
    let most = if most.is_finite() && most > 0.0 { most } else { 1.0 };
    let rough = most / count.max(1) as f64;
    let magnitude = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .map(|factor| factor * magnitude)
        .into_iter()
        .find(|step| *step >= rough * 0.999)
        .unwrap_or(magnitude * 10.0);
    (0..=(most / step).ceil() as usize).map(|index| index as f64 * step).collect()
}

/// Round times from 0 up to `most` seconds, with their names.
fn time_ticks(most: f64) -> Vec<(f64, String)> {
    const STEPS: [f64; 16] = [
        1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0, 14_400.0,
        28_800.0,
    ];
    let fits = |step: &&f64| most / **step <= 10.0;
    let step = STEPS.iter().find(fits).copied().unwrap_or(86_400.0 * (most / 864_000.0).ceil());
    let name = |seconds: f64| match step {
        step if step < 60.0 => format!("{seconds} s"),
        step if step < 3600.0 => format!("{} min", seconds / 60.0),
        _ => format!("{} h", seconds / 3600.0),
    };
    (0..=(most / step) as usize).map(|index| (index as f64 * step, name(index as f64 * step))).collect()
}

/// A number without needless digits.
pub(super) fn short(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{} M", value / 1e6),
        value if value >= 10_000.0 => format!("{} k", value / 1e3),
        value if value.fract() == 0.0 => format!("{value:.0}"),
        value if value < 0.1 => format!("{value:.2}"),
        value => format!("{value:.1}"),
    }
}

/// A plot that is being drawn.
pub(super) struct Plot {
    body: String,
    bottom: f64,
    height: f64,
    x_max: f64,
    y_max: f64,
    label: String,
}

impl Plot {
    /// A plot `height` high with `x` from 0 to `x_max` and `y` from 0 to a round number from `y_max` up. `below` is
    /// left free between the plot and the numbers of the horizontal axis. `label` says to somebody who cannot see it
    /// what it is.
    pub(super) fn new(label: &str, height: f64, below: f64, x_max: f64, y_max: f64) -> Self {
        let bottom = TOP + height;
        let ticks = round_ticks(y_max, 4);
        let mut plot = Self {
            body: String::new(),
            bottom,
            height: bottom + below + BELOW,
            x_max: x_max.max(1e-9),
            y_max: ticks.last().copied().unwrap_or(1.0),
            label: label.to_owned(),
        };
        for tick in ticks {
            let y = plot.y(tick);
            plot.line("grid", LEFT, y, WIDTH - RIGHT, y);
            plot.text("tick end", LEFT - 8.0, y + 4.0, &short(tick));
        }
        plot
    }

    /// The same with seconds on the horizontal axis.
    pub(super) fn over_time(label: &str, height: f64, below: f64, seconds: f64, y_max: f64) -> Self {
        let mut plot = Self::new(label, height, below, seconds, y_max);
        let axis = plot.bottom + below;
        for (second, name) in time_ticks(seconds) {
            let x = plot.x(second);
            plot.line("grid", x, axis, x, axis + 5.0);
            plot.text(plot.anchor(x, &name), x, axis + 19.0, &name);
        }
        plot
    }

    /// How a name stands at a tick of the horizontal axis: in the middle under it, unless that would leave the picture.
    fn anchor(&self, x: f64, name: &str) -> &'static str {
        let half = name.chars().count() as f64 * LETTER_WIDTH / 2.0;
        match x {
            x if x <= LEFT => "tick",
            x if x + half > WIDTH => "tick end",
            _ => "tick middle",
        }
    }

    pub(super) fn x(&self, value: f64) -> f64 {
        LEFT + (value / self.x_max).clamp(0.0, 1.0) * (WIDTH - LEFT - RIGHT)
    }

    pub(super) fn y(&self, value: f64) -> f64 {
        self.bottom - (value / self.y_max).clamp(0.0, 1.0) * (self.bottom - TOP)
    }

    /// The lower edge of the plot proper.
    pub(super) fn bottom(&self) -> f64 {
        self.bottom
    }

    pub(super) fn line(&mut self, class: &str, x1: f64, y1: f64, x2: f64, y2: f64) {
        let _ = writeln!(
            self.body,
            "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
        );
    }

    /// A line across the whole height.
    pub(super) fn upright(&mut self, class: &str, x: f64) {
        let (x, bottom) = (self.x(x), self.bottom);
        self.line(class, x, TOP, x, bottom);
    }

    pub(super) fn text(&mut self, class: &str, x: f64, y: f64, text: &str) {
        let _ =
            writeln!(self.body, "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", escape(text));
    }

    /// A rectangle in places, with a text that shows when the mouse is over it.
    pub(super) fn rect(&mut self, class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64), title: &str) {
        let (width, height) = ((x2 - x1).max(0.5), (y2 - y1).max(0.0));
        let _ = writeln!(
            self.body,
            "<rect class=\"{class}\" x=\"{x1:.1}\" y=\"{y1:.1}\" width=\"{width:.1}\" height=\"{height:.1}\">\
             <title>{}</title></rect>",
            escape(title)
        );
    }

    /// A line through places. `None` interrupts it.
    pub(super) fn path(&mut self, class: &str, places: impl Iterator<Item = Option<(f64, f64)>>) {
        let (mut path, mut drawing) = (String::new(), false);
        for place in places {
            if let Some((x, y)) = place {
                let _ = write!(path, "{}{x:.1} {y:.1}", if drawing { 'L' } else { 'M' });
            }
            drawing = place.is_some();
        }
        if !path.is_empty() {
            let _ = writeln!(self.body, "<path class=\"{class}\" d=\"{path}\"/>");
        }
    }

    pub(super) fn finish(self) -> String {
        format!(
            "<svg viewBox=\"0 0 {WIDTH} {:.0}\" role=\"img\" aria-label=\"{}\">\n{}</svg>\n",
            self.height,
            escape(&self.label),
            self.body
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_reach_the_end() {
        assert_eq!(round_ticks(7.0, 4), [0.0, 2.0, 4.0, 6.0, 8.0]);
        assert_eq!(round_ticks(6.0, 4), [0.0, 2.0, 4.0, 6.0]);
        assert_eq!(round_ticks(0.0, 4), [0.0, 0.5, 1.0]);
        assert_eq!(round_ticks(f64::NAN, 4), round_ticks(1.0, 4));
        for most in [0.001, 0.9, 12.0, 12_345.0, 9e9] {
            let ticks = round_ticks(most, 4);
            assert!((3..8).contains(&ticks.len()) && ticks.last().is_some_and(|last| *last >= most * 0.999));
        }
    }

    #[test]
    fn times_are_named_as_people_do() {
        let names = |most| time_ticks(most).into_iter().map(|(_, name)| name).collect::<Vec<_>>();
        assert_eq!(names(0.5), ["0 s"]);
        assert_eq!(names(25.0), ["0 s", "5 s", "10 s", "15 s", "20 s", "25 s"]);
        assert_eq!(names(200.0).last().map(String::as_str), Some("200 s"));
        assert_eq!(names(1200.0).last().map(String::as_str), Some("20 min"));
        assert_eq!(names(28_800.0).last().map(String::as_str), Some("8 h"));
        assert!(names(86_400.0 * 100.0).len() <= 11);
    }

    #[test]
    fn the_last_tick_stays_in_the_picture() {
        let plot = Plot::over_time("x", 100.0, 0.0, 3600.0, 1.0).finish();
        assert!(plot.contains("<text class=\"tick end\" x=\"944.0\" y=\"131.0\">60 min</text>"), "{plot}");
        let early = Plot::over_time("x", 100.0, 0.0, 3900.0, 1.0).finish();
        assert!(early.contains("<text class=\"tick middle\"") && early.contains(">60 min</text>"), "{early}");
    }

    #[test]
    fn text_cannot_become_markup() {
        assert_eq!(
            escape("<a href=\"x\">&'\u{1b}[0m</a>"),
            "&lt;a href=&quot;x&quot;&gt;&amp;&#39;\u{fffd}[0m&lt;/a&gt;"
        );
    }

    #[test]
    fn values_outside_stay_inside() {
        let plot = Plot::new("x", 100.0, 0.0, 10.0, 10.0);
        assert_eq!(plot.x(-5.0), plot.x(0.0));
        assert_eq!(plot.y(99.0), plot.y(10.0));
    }
}
