//! A picture of a matrix and the ring that was planned over it.

use super::Input;
use crate::topology::Plan;
use std::fmt::Write;

/// Side of the whole matrix, in pixels, and the room for names.
const SIDE: f64 = 900.0;
const MARGIN: f64 = 150.0;
/// Up to this many peers names can be read.
const NAMED_PEERS: usize = 100;
/// Colours from bad to good.
const COLOURS: [&str; 8] =
    ["#440154", "#46327e", "#365c8d", "#277f8e", "#1fa187", "#4ac16d", "#a0da39", "#fde725"];

/// Rows send, columns receive; bright is fast (or cheap), white is impossible. The ring goes along the row of each peer to
/// the column of the next, which is marked, and on to the row of that one; its slowest edge is red.
pub fn to_svg(input: &Input, plan: &Plan) -> String {
    let n = input.names.len();
    let cell = SIDE / n as f64;
    let mut out = String::new();
    let size = SIDE + MARGIN + 20.0;
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size} {size}" font-family="sans-serif"><rect width="100%" height="100%" fill="#fff"/><g transform="translate({MARGIN} {MARGIN})">"##
    );
    cells(&mut out, input, cell);
    ring(&mut out, plan, cell);
    if n <= NAMED_PEERS {
        names(&mut out, input, cell);
    }
    out.push_str("</g></svg>\n");
    out
}

/// One path for each colour, which keeps large matrices small.
fn cells(out: &mut String, input: &Input, cell: f64) {
    let n = input.names.len();
    let edges = || (0..n * n).filter_map(|at| input.matrix.value(at / n, at % n).map(|value| (at, value)));
    let scale = |value: f64| value.max(1e-9).ln();
    let low = edges().map(|(_, value)| scale(value)).fold(f64::INFINITY, f64::min);
    let high = edges().map(|(_, value)| scale(value)).fold(f64::NEG_INFINITY, f64::max);
    let mut paths = vec![String::new(); COLOURS.len()];
    for (at, value) in edges() {
        let part = if high > low { (scale(value) - low) / (high - low) } else { 1.0 };
        let good = if input.matrix.is_costs() { 1.0 - part } else { part };
        let colour = ((good * COLOURS.len() as f64) as usize).min(COLOURS.len() - 1);
        let _ = write!(paths[colour], "M{} {}h1v1h-1z", at % n, at / n);
    }
    for (path, colour) in paths.iter().zip(COLOURS) {
        let _ = writeln!(out, r#"<path transform="scale({cell:.4})" fill="{colour}" d="{path}"/>"#);
    }
}

fn ring(out: &mut String, plan: &Plan, cell: f64) {
    let next = plan.order.iter().skip(1).chain(plan.order.first());
    let at = |peer: usize| peer as f64 + 0.5;
    let mut line = String::new();
    let mut marks = String::new();
    for (&from, &to) in plan.order.iter().zip(next).filter(|(from, to)| from != to) {
        let start = if line.is_empty() { "M" } else { "L" };
        let _ = write!(line, "{start}{} {}H{}V{}", at(from), at(from), at(to), at(to));
        let colour = if plan.slowest == Some((from, to)) { "#e00" } else { "#000" };
        let _ = writeln!(
            marks,
            r#"<rect x="{to}" y="{from}" width="1" height="1" fill="none" stroke="{colour}" stroke-width="0.15"/>"#
        );
    }
    let _ = writeln!(
        out,
        r##"<g transform="scale({cell:.4})"><path d="{line}" fill="none" stroke="#000" stroke-opacity="0.4" stroke-width="0.06"/>{marks}</g>"##
    );
}

fn names(out: &mut String, input: &Input, cell: f64) {
    let size = (cell * 0.7).min(14.0);
    for (at, name) in input.names.iter().enumerate() {
        let middle = (at as f64 + 0.5) * cell;
        let baseline = middle + size / 3.0;
        let name = escaped(name);
        let _ = writeln!(
            out,
            r#"<text font-size="{size:.1}" text-anchor="end" x="-4" y="{baseline:.1}">{name}</text><text font-size="{size:.1}" transform="translate({baseline:.1} -4) rotate(-90)">{name}</text>"#
        );
    }
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
        offline::{Kind, read},
        topology::{Options, plan},
    };
    use std::time::Duration;

    #[test]
    fn every_edge_has_a_cell_and_every_step_of_the_ring_a_mark() {
        let input = read("a&,b<,c\n,100,50\n40,,10\n80,,\n", Kind::Rates, None).unwrap();
        let plan = plan(&input.matrix, &Options::default(), &mut || Duration::from_secs(3600)).unwrap();
        let svg = to_svg(&input, &plan);
        assert_eq!(svg.matches("h1v1h-1z").count(), 5);
        assert_eq!(svg.matches("stroke=\"#e00\"").count(), 1);
        assert_eq!(svg.matches("stroke-width=\"0.15\"").count(), 3);
        assert!(svg.contains(">a&amp;<") && svg.contains(">b&lt;<") && svg.ends_with("</svg>\n"));
    }
}
