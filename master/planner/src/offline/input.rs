//! A matrix from the text of a file.

use super::{
    bad_input::BadInput,
    table::{self, Table},
    tsplib,
};
use crate::{Link, MAX_COST, MAX_MATRIX_PEERS, Matrix};

/// Most decimals of a cost.
const MOST_DECIMALS: usize = 6;

/// The meaning of the numbers of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Rates in Mbit/s.
    Rates,
    /// Costs.
    Costs,
}

/// A matrix with names.
#[derive(Debug, Clone, PartialEq)]
pub struct Input {
    /// The names of the peers.
    pub names: Vec<String>,
    /// The known values of the edges between them.
    pub matrix: Matrix,
    /// Costs of the matrix are those of the file times this.
    pub cost_scale: f64,
}

/// Reads a table of rates or costs, with a table of latencies in milliseconds next to rates; or a file of the TSPLIB,
/// whose numbers are always costs. A blank is an edge that cannot be used, and so is a rate of 0; the diagonal does not
/// matter.
///
/// # Errors
/// [`BadInput`] of the first file, or of the latencies: then the flag is true.
pub fn read(text: &str, kind: Kind, latencies: Option<&str>) -> Result<Input, (BadInput, bool)> {
    let main = |error| (error, false);
    if tsplib::is_tsplib(text) {
        return from_tsplib(text).map_err(main);
    }
    let table = table::read(text).and_then(check_number).map_err(main)?;
    match kind {
        Kind::Costs => from_costs(table).map_err(main),
        Kind::Rates => {
            let rates = numbers(&table).map_err(main)?;
            let latencies = match latencies {
                Some(text) => Some(latencies_for(&table.names, text).map_err(|error| (error, true))?),
                None => None,
            };
            from_rates(table, &rates, latencies.as_deref()).map_err(main)
        }
    }
}

fn check_number(table: Table) -> Result<Table, BadInput> {
    if table.names.len() > MAX_MATRIX_PEERS {
        return Err(BadInput::new(1, format!("more than {MAX_MATRIX_PEERS} names")));
    }
    Ok(table)
}

fn from_tsplib(text: &str) -> Result<Input, BadInput> {
    let file = tsplib::read(text)?;
    let costs: Vec<Option<u32>> = file.costs.iter().map(|(cost, _)| Some(*cost)).collect();
    let matrix = Matrix::of_costs(file.peers, &costs).map_err(|error| BadInput::new(1, error.to_string()))?;
    Ok(Input { names: (1..=file.peers).map(|i| i.to_string()).collect(), matrix, cost_scale: 1.0 })
}

fn from_rates(
    table: Table,
    rates: &[Option<f64>],
    latencies: Option<&[Option<f64>]>,
) -> Result<Input, BadInput> {
    let n = table.names.len();
    let mut links = vec![None; n * n];
    for at in (0..n * n).filter(|at| at / n != at % n) {
        let Some(mbit_s) = rates[at].filter(|rate| *rate > 0.0) else { continue };
        let latency_us = match latencies.map(|all| all[at]) {
            Some(Some(ms)) => Some((ms * 1000.0).round().min(f64::from(MAX_COST)) as u32),
            Some(None) => {
                let edge = format!("{} -> {}", table.names[at / n], table.names[at % n]);
                let text = format!("{edge} has a rate, but no latency");
                return Err(BadInput::new(table.lines[at / n], text));
            }
            None => None,
        };
        links[at] = Some(Link { mbit_s, latency_us });
    }
    let matrix = Matrix::of_links(n, &links).map_err(|error| BadInput::new(1, error.to_string()))?;
    Ok(Input { names: table.names, matrix, cost_scale: 1.0 })
}

/// The numbers of a table, none below zero.
fn numbers(table: &Table) -> Result<Vec<Option<f64>>, BadInput> {
    let n = table.names.len();
    let number = |(at, cell): (usize, &String)| {
        if cell.is_empty() || at / n == at % n {
            return Ok(None);
        }
        let number = cell.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0);
        number.map(Some).ok_or_else(|| bad_cell(table, at, "a number of 0 or more"))
    };
    table.cells.iter().enumerate().map(number).collect()
}

fn bad_cell(table: &Table, at: usize, wanted: &str) -> BadInput {
    let n = table.names.len();
    let (from, to) = (&table.names[at / n], &table.names[at % n]);
    BadInput::new(table.lines[at / n], format!("{from} -> {to}: {:?} is not {wanted}", table.cells[at]))
}

/// Latencies in the order of these names.
fn latencies_for(names: &[String], text: &str) -> Result<Vec<Option<f64>>, BadInput> {
    let table = table::read(text)?;
    let values = &numbers(&table)?;
    let place = |name: &String| {
        let place = table.names.iter().position(|other| other == name);
        place.ok_or_else(|| BadInput::new(1, format!("there is no {name:?}")))
    };
    let places: Vec<usize> = names.iter().map(place).collect::<Result<_, _>>()?;
    let n = table.names.len();
    Ok(places.iter().flat_map(|from| places.iter().map(move |to| values[from * n + to])).collect())
}

/// Costs as whole numbers: the decimals of all of them are kept.
fn from_costs(table: Table) -> Result<Input, BadInput> {
    let n = table.names.len();
    let edges = || (0..n * n).filter(|at| at / n != at % n && !table.cells[*at].is_empty());
    let mut decimals = 0;
    for at in edges() {
        let cell = table.cells[at].as_str();
        let (whole, fraction) = cell.split_once('.').unwrap_or((cell, ""));
        let is_number = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit());
        if !is_number(whole) || !is_number(fraction) || whole.len() + fraction.len() == 0 {
            return Err(bad_cell(&table, at, "a number of 0 or more, written with digits and a point"));
        }
        let needed = fraction.trim_end_matches('0').len();
        if needed > MOST_DECIMALS {
            return Err(bad_cell(&table, at, &format!("a number with at most {MOST_DECIMALS} decimals")));
        }
        decimals = decimals.max(needed);
    }
    let wanted =
        format!("within the range: with {decimals} decimals costs go up to {MAX_COST} units of the last one");
    let mut costs = vec![None; n * n];
    for at in edges() {
        let cost = scaled(&table.cells[at], decimals);
        costs[at] = Some(cost.ok_or_else(|| bad_cell(&table, at, &wanted))?);
    }
    let matrix = Matrix::of_costs(n, &costs).map_err(|error| BadInput::new(1, error.to_string()))?;
    Ok(Input { names: table.names, matrix, cost_scale: 10f64.powi(decimals as i32) })
}

/// A decimal number as a whole number of its last digit's unit.
fn scaled(cell: &str, decimals: usize) -> Option<u32> {
    let (whole, fraction) = cell.split_once('.').unwrap_or((cell, ""));
    let fraction = fraction.trim_end_matches('0');
    let digits = format!("0{whole}{fraction:0<decimals$}");
    digits.parse::<u64>().ok().filter(|cost| *cost <= u64::from(MAX_COST)).map(|cost| cost as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str, kind: Kind, latencies: Option<&str>) -> (usize, String, bool) {
        let (error, of_latencies) = read(text, kind, latencies).unwrap_err();
        (error.line, error.to_string(), of_latencies)
    }

    #[test]
    fn rates_and_latencies() {
        let input = read("a,b\nx,100\n0,\n", Kind::Rates, Some("-,b,a\nb,,2\na,1.5,\n")).unwrap();
        assert_eq!(input.matrix.value(0, 1), Some(100.0));
        assert_eq!(input.matrix.latency_us(0, 1), Some(1500));
        assert_eq!(input.matrix.value(1, 0), None);
    }

    #[test]
    fn costs_keep_their_decimals() {
        let input = read("a,b\n,1.50\n.25,\n", Kind::Costs, None).unwrap();
        assert_eq!((input.matrix.cost(0, 1), input.matrix.cost(1, 0)), (Some(150), Some(25)));
        assert_eq!(input.cost_scale, 100.0);
        let input = read("a,b\n,007\n0,\n", Kind::Costs, None).unwrap();
        assert_eq!((input.matrix.cost(0, 1), input.matrix.cost(1, 0)), (Some(7), Some(0)));
    }

    #[test]
    fn bad_cells_are_named() {
        assert_eq!(
            error("a,b\n,-1\n2,\n", Kind::Rates, None),
            (2, "line 2: a -> b: \"-1\" is not a number of 0 or more".into(), false)
        );
        for bad in ["inf", "NaN", "1e", "12 Mbit/s"] {
            assert_eq!(error(&format!("a,b\n,1\n{bad},\n"), Kind::Rates, None).0, 3, "{bad}");
        }
        for bad in ["-1", "1e3", ".", "5000000000", "0.0000001", "+1"] {
            assert_eq!(error(&format!("a,b\n,1\n{bad},\n"), Kind::Costs, None).0, 3, "{bad}");
        }
        let (line, text, of_latencies) = error("a,b\n,1\n1,\n", Kind::Rates, Some("a,c\n,1\n1,\n"));
        assert!(line == 1 && text.contains("\"b\"") && of_latencies);
        let (line, text, of_latencies) = error("a,b\n,1\n1,\n", Kind::Rates, Some("a,b\n,1\n,\n"));
        assert!(line == 3 && text.contains("no latency") && !of_latencies, "{text}");
    }
}
