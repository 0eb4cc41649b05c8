//! Files of the TSPLIB with a full matrix.

use super::bad_input::BadInput;
use crate::MAX_MATRIX_PEERS;

/// Costs row by row, with the line of each.
pub(super) struct Tsplib {
    pub(super) peers: usize,
    pub(super) costs: Vec<(u32, usize)>,
}

/// Whether a file looks like one of the TSPLIB: its first line with text is one of the specification.
pub(super) fn is_tsplib(text: &str) -> bool {
    let first = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    let keyword = first.split(':').next().unwrap_or_default().trim();
    first.contains(':')
        && ["NAME", "TYPE", "COMMENT", "DIMENSION", "EDGE_WEIGHT_TYPE", "EDGE_WEIGHT_FORMAT"]
            .contains(&keyword)
}

/// Reads the specification and the edge weights.
pub(super) fn read(text: &str) -> Result<Tsplib, BadInput> {
    let mut peers = None;
    let mut has_format = false;
    let mut lines = text.lines().enumerate();
    for (at, line) in lines.by_ref() {
        let (keyword, value) = line.split_once(':').unwrap_or((line, ""));
        let (keyword, value, line) = (keyword.trim(), value.trim(), at + 1);
        let only = |expected: &[&str]| {
            let text = format!("{keyword} {value:?} is not supported; {} is", expected.join(" or "));
            expected.contains(&value).then_some(()).ok_or_else(|| BadInput::new(line, text))
        };
        match keyword {
            "TYPE" => only(&["ATSP", "TSP"])?,
            "EDGE_WEIGHT_TYPE" => only(&["EXPLICIT"])?,
            "EDGE_WEIGHT_FORMAT" => {
                only(&["FULL_MATRIX"])?;
                has_format = true;
            }
            "DIMENSION" => {
                let number = value.parse().ok().filter(|n| (1..=MAX_MATRIX_PEERS).contains(n));
                let text = format!("DIMENSION {value:?} is not a number from 1 to {MAX_MATRIX_PEERS}");
                peers = Some(number.ok_or_else(|| BadInput::new(line, text))?);
            }
            "EDGE_WEIGHT_SECTION" => {
                let Some(peers) = peers.filter(|_| has_format) else {
                    let text = "DIMENSION and EDGE_WEIGHT_FORMAT must come before EDGE_WEIGHT_SECTION";
                    return Err(BadInput::new(line, text));
                };
                return weights(peers, lines);
            }
            _ => {}
        }
    }
    Err(BadInput::new(text.lines().count().max(1), "there is no EDGE_WEIGHT_SECTION"))
}

fn weights<'a>(peers: usize, lines: impl Iterator<Item = (usize, &'a str)>) -> Result<Tsplib, BadInput> {
    let mut costs = Vec::new();
    let mut last = 1;
    for (at, line) in lines {
        last = at + 1;
        for word in line.split_whitespace() {
            if costs.len() == peers * peers || word.starts_with(|c: char| c.is_ascii_alphabetic()) {
                return finish(peers, costs, last, word);
            }
            let from = costs.len() / peers;
            let is_diagonal = costs.len() % peers == from;
            // An entry in the diagonal does not matter, and is often out of any range.
            let cost = if is_diagonal { Some(0) } else { word.parse().ok() };
            let cost = cost.filter(|cost| *cost <= crate::MAX_COST);
            let text = || format!("{word:?} is not a whole number from 0 to {}", crate::MAX_COST);
            costs.push((cost.ok_or_else(|| BadInput::new(last, text()))?, last));
        }
    }
    finish(peers, costs, last, "EOF")
}

fn finish(peers: usize, costs: Vec<(u32, usize)>, line: usize, word: &str) -> Result<Tsplib, BadInput> {
    let wanted = peers * peers;
    if costs.len() != wanted {
        return Err(BadInput::new(line, format!("{} weights; {peers} x {peers} are needed", costs.len())));
    }
    if word.starts_with(|c: char| c.is_ascii_digit() || c == '-') {
        return Err(BadInput::new(line, format!("more than {peers} x {peers} weights")));
    }
    Ok(Tsplib { peers, costs })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "NAME: x\nTYPE: ATSP\nDIMENSION: 3\nEDGE_WEIGHT_TYPE: EXPLICIT\n\
                        EDGE_WEIGHT_FORMAT: FULL_MATRIX\nEDGE_WEIGHT_SECTION\n";

    #[test]
    fn weights_may_be_broken_into_lines_anywhere() {
        let text = format!("{HEAD} 9999 1\n 2 3 99999999999 4 5\n6 0\nEOF\n");
        assert!(is_tsplib(&text) && !is_tsplib("a,b\n,1\n1,\n"));
        let read = read(&text).unwrap();
        assert_eq!(read.peers, 3);
        assert_eq!(read.costs.iter().map(|(cost, _)| *cost).collect::<Vec<_>>(), [0, 1, 2, 3, 0, 4, 5, 6, 0]);
        assert_eq!(read.costs[8].1, 9);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        let weights = |weights: &str| format!("{HEAD}{weights}");
        for (text, line, part) in [
            ("NAME: x\nTYPE: CVRP\n".to_owned(), 2, "ATSP"),
            ("NAME: x\nDIMENSION: 0\n".to_owned(), 2, "DIMENSION"),
            ("NAME: x\nEDGE_WEIGHT_FORMAT: UPPER_ROW\n".to_owned(), 2, "FULL_MATRIX"),
            ("NAME: x\nEDGE_WEIGHT_SECTION\n".to_owned(), 2, "must come before"),
            ("NAME: x\n".to_owned(), 1, "no EDGE_WEIGHT_SECTION"),
            (weights("0 1 2\n3 0 x4\n"), 8, "5 weights"),
            (weights("0 1 2\n3 0 -4\n"), 8, "whole number"),
            (weights("0 1 2\n3 0 4 5 6\nEOF"), 9, "8 weights"),
            (weights("0 1 2\n3 0 4\n5 6 0 7\nEOF"), 9, "more than 3 x 3"),
        ] {
            let error = read(&text).err().unwrap();
            assert!(error.line == line && error.to_string().contains(part), "{text:?}: {error}");
        }
    }
}
