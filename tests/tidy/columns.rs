//! No line is wider than a screen.

use crate::tree::Tree;

/// Longest line, in characters.
const MAX_COLUMNS: usize = 120;
/// Kept as its authors wrote it.
const FOREIGN: &str = "tests/abi/original/";

/// Longer lines of code, comments and prose. Rows of tables, and what programs print (blocks without a language or as
/// `text`), are as wide as they have to be.
pub(crate) fn problems(tree: &Tree) -> Vec<String> {
    let mut problems = Vec::new();
    let is_own = |path: &String| !path.starts_with(FOREIGN) && !path.starts_with(crate::guides::FOLDER);
    for (path, text) in tree.iter().filter(|(path, _)| is_own(path)) {
        let is_prose = path.ends_with(".md");
        let mut block = None;
        for (index, line) in text.lines().enumerate() {
            if is_prose && let Some(language) = line.trim_start().strip_prefix("```") {
                block = if block.is_some() { None } else { Some(language) };
            }
            let is_output = block.is_some_and(|language| ["", "text"].contains(&language));
            let is_free = is_prose && (is_output || line.trim_start().starts_with('|'));
            let columns = line.chars().count();
            if columns > MAX_COLUMNS && !is_free {
                problems.push(format!("{path}:{}: {columns} columns, at most {MAX_COLUMNS}", index + 1));
            }
        }
    }
    problems
}

#[test]
fn long_lines_are_found_except_where_they_have_to_be() {
    let long = "x".repeat(MAX_COLUMNS + 1);
    let prose = format!("{long}\n| {long} |\n```text\n{long}\n```\n```sh\n{long}\n```\n{long}\n");
    let code = format!("{}\n// {long}\n", "x".repeat(MAX_COLUMNS));
    let found = problems(&crate::tree::planted(&[("a.md", &prose), ("b.rs", &code)]));
    assert_eq!(
        found,
        [
            "a.md:1: 121 columns, at most 120",
            "a.md:7: 121 columns, at most 120",
            "a.md:9: 121 columns, at most 120",
            "b.rs:2: 124 columns, at most 120"
        ]
    );
}
