//! A picture of a matrix and the ring that was planned over it.

use super::Input;
use crate::Plan;
use std::fmt::Write;

/// Side of a large matrix, of a small one, and of the cells in between, in pixels.
const LARGEST_SIDE: f64 = 900.0;
const SMALLEST_SIDE: f64 = 360.0;
const CELL: f64 = 90.0;
/// Up to this many peers names can be read.
const NAMED_PEERS: usize = 100;
/// Narrower cells have no room for their numbers.
const CELL_WITH_NUMBER: f64 = 34.0;
/// Longer names are cut, in characters.
const LONGEST_NAME: usize = 24;
/// Size of most letters, and how wide they are at most on average.
const LETTERS: f64 = 14.0;
const LETTER_WIDTH: f64 = 0.62;
/// Room at the edges, and for the legend under the matrix.
const PADDING: f64 = 20.0;
const LEGEND: f64 = 110.0;
/// Widest lines, in pixels: in large cells they would cover what is around them.
const WIDEST_FRAME: f64 = 4.0;
const WIDEST_LINE: f64 = 2.5;
/// Colours from bad to good.
const COLOURS: [&str; 8] =
    ["#440154", "#46327e", "#365c8d", "#277f8e", "#1fa187", "#4ac16d", "#a0da39", "#fde725"];

/// Rows send, columns receive; bright is fast (or cheap), white is impossible. The ring goes along the row of each peer
/// to the column of the next, which is framed, and on to the row of that one; its slowest edge is red. A legend says
/// so.
pub fn to_svg(input: &Input, plan: &Plan) -> String {
    let n = input.names.len();
    let side = (n as f64 * CELL).clamp(SMALLEST_SIDE, LARGEST_SIDE);
    let cell = side / n as f64;
    let longest = input.names.iter().map(|name| shortened(name).chars().count()).max().unwrap_or(0);
    let margin = if n <= NAMED_PEERS { longest as f64 * name_size(cell) * LETTER_WIDTH + 30.0 } else { 30.0 };
    let (width, height) = (margin + side + PADDING, margin + side + LEGEND);
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0} {height:.0}" width="{width:.0}"
                height="{height:.0}" font-family="sans-serif"><rect width="100%" height="100%" fill="#fff"/>
                <g transform="translate({margin:.1} {margin:.1})">"##
    );
    let scale = Scale::of(input);
    cells(&mut out, input, &scale, cell);
    ring(&mut out, plan, cell);
    if cell >= CELL_WITH_NUMBER {
        numbers(&mut out, input, cell);
    }
    if n <= NAMED_PEERS {
        names(&mut out, input, cell);
    }
    legend(&mut out, input, &scale, side);
    out.push_str("</g></svg>\n");
    out
}

/// Which colour stands for which value: by the logarithm, between the lowest and the highest.
struct Scale {
    low: f64,
    high: f64,
    costs: bool,
}

impl Scale {
    fn of(input: &Input) -> Self {
        let values = || edges(input).map(|(_, value)| value);
        Self {
            low: values().fold(f64::INFINITY, f64::min),
            high: values().fold(f64::NEG_INFINITY, f64::max),
            costs: input.matrix.is_costs(),
        }
    }

    fn colour(&self, value: f64) -> usize {
        let log = |value: f64| value.max(1e-9).ln();
        let (low, high) = (log(self.low), log(self.high));
        let part = if high > low { (log(value) - low) / (high - low) } else { 1.0 };
        let good = if self.costs { 1.0 - part } else { part };
        ((good * COLOURS.len() as f64) as usize).min(COLOURS.len() - 1)
    }
}

/// Edges by their place in the matrix, and their values.
fn edges(input: &Input) -> impl Iterator<Item = (usize, f64)> {
    let n = input.names.len();
    (0..n * n).filter_map(move |at| input.matrix.value(at / n, at % n).map(|value| (at, value)))
}

/// One path for each colour, which keeps large matrices small.
fn cells(out: &mut String, input: &Input, scale: &Scale, cell: f64) {
    let n = input.names.len();
    let mut paths = vec![String::new(); COLOURS.len()];
    for (at, value) in edges(input) {
        let _ = write!(paths[scale.colour(value)], "M{} {}h1v1h-1z", at % n, at / n);
    }
    for (path, colour) in paths.iter().zip(COLOURS) {
        let _ = writeln!(out, r#"<path transform="scale({cell:.4})" fill="{colour}" d="{path}"/>"#);
    }
}

fn ring(out: &mut String, plan: &Plan, cell: f64) {
    let next = plan.order.iter().skip(1).chain(plan.order.first());
    let at = |peer: usize| peer as f64 + 0.5;
    // In cells, as are all coordinates here.
    let (frame, thin) = ((WIDEST_FRAME / cell).min(0.15), (WIDEST_LINE / cell).min(0.06));
    let mut line = String::new();
    let mut marks = String::new();
    for (&from, &to) in plan.order.iter().zip(next).filter(|(from, to)| from != to) {
        let start = if line.is_empty() { "M" } else { "L" };
        let _ = write!(line, "{start}{} {}H{}V{}", at(from), at(from), at(to), at(to));
        let colour = if plan.slowest == Some((from, to)) { "#e00" } else { "#000" };
        // Within the cell: what is around it stays to be seen.
        let (x, y, side) = (to as f64 + frame / 2.0, from as f64 + frame / 2.0, 1.0 - frame);
        let _ = writeln!(
            marks,
            r#"<rect x="{x:.4}" y="{y:.4}" width="{side:.4}" height="{side:.4}" fill="none" stroke="{colour}"
                stroke-width="{frame:.4}"/>"#
        );
    }
    let _ = writeln!(
        out,
        r##"<g transform="scale({cell:.4})"><path d="{line}" fill="none" stroke="#000" stroke-opacity="0.4"
                stroke-width="{thin:.4}"/>{marks}</g>"##
    );
}

fn numbers(out: &mut String, input: &Input, cell: f64) {
    let n = input.names.len();
    let size = (cell * 0.26).min(LETTERS);
    let middle = |index: usize| (index as f64 + 0.5) * cell;
    for (at, value) in edges(input) {
        let (x, y) = (middle(at % n), middle(at / n) + size / 3.0);
        let value = number(value / input.cost_scale);
        // With a rim, so that it can be read on every colour and over the ring.
        let _ = writeln!(
            out,
            r##"<text font-size="{size:.1}" text-anchor="middle" x="{x:.1}" y="{y:.1}" fill="#000" stroke="#fff"
                stroke-width="2" paint-order="stroke">{value}</text>"##
        );
    }
}

/// Three significant digits, which have room in a cell.
fn number(value: f64) -> String {
    let digits = (2 - value.abs().max(1e-9).log10().floor() as i32).clamp(0, 3) as usize;
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

fn name_size(cell: f64) -> f64 {
    (cell * 0.7).min(LETTERS)
}

fn names(out: &mut String, input: &Input, cell: f64) {
    let size = name_size(cell);
    for (at, name) in input.names.iter().enumerate() {
        let middle = (at as f64 + 0.5) * cell;
        let baseline = middle + size / 3.0;
        let name = escaped(&shortened(name));
        let _ = writeln!(
            out,
            r#"<text font-size="{size:.1}" text-anchor="end" x="-8" y="{baseline:.1}">{name}</text>
                <text font-size="{size:.1}" transform="translate({baseline:.1} -8) rotate(-90)">{name}</text>"#
        );
    }
}

fn shortened(name: &str) -> String {
    let mut out: String = name.chars().take(LONGEST_NAME).collect();
    if out.len() < name.len() {
        out.pop();
        out.push('…');
    }
    out
}

/// The meaning of colours and lines.
fn legend(out: &mut String, input: &Input, scale: &Scale, side: f64) {
    let unit = if scale.costs { "cost" } else { "Mbit/s" };
    let (low, high) = (number(scale.low / input.cost_scale), number(scale.high / input.cost_scale));
    let _ = writeln!(out, r#"<g transform="translate(0 {:.1})" font-size="{LETTERS}">"#, side + 20.0);
    for (at, colour) in COLOURS.iter().enumerate() {
        let part = if scale.costs { COLOURS.len() - 1 - at } else { at };
        let _ = write!(out, r#"<rect x="{}" width="20" height="16" fill="{colour}"/>"#, part * 20);
    }
    let _ = writeln!(
        out,
        r##"<text x="170" y="13">{low} to {high} {unit}</text>
                <text y="38">A row sends to a column. White: no link.</text><rect x="2" y="50" width="14"
                height="14" fill="none" stroke="#000" stroke-width="3"/><text x="24"
                y="62">an edge of the ring</text><rect x="172" y="50" width="14" height="14" fill="none"
                stroke="#e00" stroke-width="3"/><text x="194" y="62">its slowest edge</text></g>"##
    );
}

fn escaped(text: &str) -> String {
    let mut out = String::new();
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            // XML knows no control characters, not even escaped.
            control if control.is_control() => out.push(' '),
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Options,
        offline::{Kind, read},
        rings::plan,
    };
    use std::time::Duration;

    #[test]
    fn every_edge_has_a_cell_and_every_step_of_the_ring_a_mark() {
        let input = read("a&,b<,c\n,100,50\n40,,10\n80,,\n", Kind::Rates, None).unwrap();
        let plan = plan(&input.matrix, &Options::default(), &mut || Duration::from_secs(3600)).unwrap();
        let svg = to_svg(&input, &plan);
        assert_eq!(svg.matches("h1v1h-1z").count(), 5);
        assert_eq!(svg.matches("stroke=\"#e00\"").count(), 1 + 1);
        // Frames of the ring, and two in the legend. Between attributes there may be a line break.
        let words = svg.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(words.matches("fill=\"none\" stroke=\"#000\" stroke-width").count(), 2 + 1);
        assert!(svg.contains(">a&amp;<") && svg.contains(">b&lt;<") && svg.ends_with("</svg>\n"));
    }

    #[test]
    fn few_peers_have_numbers_a_legend_and_frames_that_cover_no_name() {
        let input = read("nyc,sgp,fra\n,150,480.25\n140,,0.123\n500,16000,\n", Kind::Rates, None).unwrap();
        let plan = plan(&input.matrix, &Options::default(), &mut || Duration::from_secs(3600)).unwrap();
        let svg = to_svg(&input, &plan);
        for text in [">480<", ">0.123<", ">16000<", ">0.123 to 16000 Mbit/s<", ">its slowest edge<"] {
            assert!(svg.contains(text), "{text} is missing in {svg}");
        }
        // Frames are drawn in cells: each stays in its own, and is narrow.
        let value = |rect: &str, name: &str| -> f64 {
            let (_, rest) = rect.split_once(&format!(" {name}=\"")).unwrap();
            rest.split_once('"').unwrap().0.parse().unwrap()
        };
        let (_, ring) = svg.split_once("<path d=\"M").unwrap();
        let (ring, _) = ring.split_once("</g>").unwrap();
        let frames: Vec<&str> = ring.split("<rect").skip(1).collect();
        assert_eq!(frames.len(), 3);
        for frame in frames {
            let width = value(frame, "stroke-width");
            assert!(width * SMALLEST_SIDE / 3.0 <= WIDEST_FRAME + 0.1, "{frame}");
            for (at, side) in [("x", "width"), ("y", "height")] {
                let inside = value(frame, at).fract() - width / 2.0;
                assert!(inside > -1e-3 && inside + value(frame, side) + width < 1.001, "{frame}");
            }
        }
    }

    #[test]
    fn many_peers_have_neither_numbers_nor_names() {
        let n = NAMED_PEERS + 1;
        let row = vec!["7"; n].join(",");
        let names: Vec<String> = (0..n).map(|peer| format!("p{peer}")).collect();
        let table = format!("{}\n{}", names.join(","), format!("{row}\n").repeat(n));
        let input = read(&table, Kind::Rates, None).unwrap();
        let order = Plan {
            order: (0..n).collect(),
            ..plan(&input.matrix, &Options::default(), &mut || Duration::ZERO).unwrap()
        };
        let svg = to_svg(&input, &order);
        assert!(!svg.contains(">p1<") && !svg.contains(">7<") && svg.contains(">7 to 7 Mbit/s<"));
    }

    #[test]
    fn long_names_are_cut_and_numbers_are_short() {
        assert_eq!(shortened("münchen"), "münchen");
        assert_eq!(shortened(&"x".repeat(30)), format!("{}…", "x".repeat(LONGEST_NAME - 1)));
        let numbers = [12_345.6, 150.0, 15.04, 0.5, 0.0].map(number);
        assert_eq!(numbers, ["12346", "150", "15", "0.5", "0"]);
    }
}
