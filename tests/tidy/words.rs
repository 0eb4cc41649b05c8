//! Sentences without a subject and words that the field calls otherwise may only become fewer.

use crate::tree::Tree;
use std::collections::BTreeMap;

/// How often each stands in the repository today. A change that removes some lowers the number.
pub(crate) const COUNTS: &str = "tests/tidy/words.txt";
/// Words that begin a sentence in the place of its subject.
const HEADLESS: &[&str] = &["Who", "Whoever", "What", "Whose"];
/// Words that are to go, each beside that of the field.
const RETIRED: &[(&str, &str)] = &[
    ("so many", "a number"),
    ("acting master", "leader"),
    ("deposed", "stepped down"),
    ("electorate", "quorum"),
    ("feeder", "replication, leader side"),
    ("keeper", "journal writer"),
    ("summons", "dial-back request"),
    ("moonshot", "background search"),
    ("lender", "serving peer"),
    ("door key", "service key"),
    ("chapter", "snapshot"),
    ("ticket office", "ticket issuer"),
];
/// Rules, not text.
const APART: &[&str] = &["tests/tidy/words.rs", COUNTS, "tests/abi/original/"];

/// Counts that differ from those that are written down.
pub(crate) fn problems(tree: &Tree) -> Vec<String> {
    let known = parse(tree.get(COUNTS).map_or("", String::as_str));
    let mut problems = Vec::new();
    for (name, places) in found(tree) {
        let (count, at_most) = (places.len(), known.get(&name).copied().unwrap_or(0));
        if count > at_most {
            let hint = RETIRED.iter().find(|(word, _)| *word == name);
            let hint = hint.map_or_else(String::new, |(_, better)| format!(" (of the field: {better})"));
            problems.push(format!(
                "\"{name}\" stands {count} times, at most {at_most}{hint}; the list: print_words"
            ));
        } else if count < at_most {
            problems.push(format!("\"{name}\" stands {count} times: write that into {COUNTS}"));
        }
    }
    problems
}

/// The places of each, as `path:line`.
pub(crate) fn found(tree: &Tree) -> BTreeMap<String, Vec<String>> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    found.insert("headless sentence".to_owned(), Vec::new());
    RETIRED.iter().for_each(|(word, _)| drop(found.insert((*word).to_owned(), Vec::new())));
    let is_text =
        |path: &&String| !APART.iter().any(|apart| path.starts_with(apart)) && !path.ends_with(".toml");
    for path in tree.keys().filter(is_text).filter(|path| !path.starts_with(crate::guides::FOLDER)) {
        let lines: Vec<&str> = tree[path].lines().map(|line| text_of(path, line)).collect();
        for (index, line) in lines.iter().enumerate() {
            let place = format!("{path}:{}", index + 1);
            for _ in 0..headless(line, lines.get(index + 1..).unwrap_or_default()) {
                found.entry("headless sentence".to_owned()).or_default().push(place.clone());
            }
            let lower = tree[path].lines().nth(index).unwrap_or_default().to_lowercase();
            for (word, _) in RETIRED {
                for _ in lower.matches(word) {
                    found.entry((*word).to_owned()).or_default().push(place.clone());
                }
            }
        }
    }
    found
}

/// The prose of a line: what stands in a comment, or in a document.
fn text_of<'a>(path: &str, line: &'a str) -> &'a str {
    let line = line.trim_start();
    if path.ends_with(".md") {
        return line;
    }
    let comment = ["///", "//!", "//", "# ", "/*", "*"].iter().find_map(|mark| line.strip_prefix(mark));
    comment.unwrap_or_default().trim_start()
}

/// Sentences of a line that begin so and are no questions; they may end on the lines below.
fn headless(line: &str, below: &[&str]) -> usize {
    let mut count = 0;
    for (at, _) in line.char_indices().filter(|(at, _)| begins_sentence(&line[..*at])) {
        let rest = &line[at..];
        let word = rest.split(|c: char| !c.is_alphabetic()).next().unwrap_or_default();
        // A cell of a table may be a label.
        let is_label = rest[word.len()..].starts_with(" |");
        if HEADLESS.contains(&word) && !is_label && !is_question(rest, below) {
            count += 1;
        }
    }
    count
}

fn begins_sentence(before: &str) -> bool {
    let before = before.trim_start_matches(['#', '-', '*', '|', ' ']);
    before.is_empty() || [". ", ": ", "| ", "? ", "! ", "(", "**"].iter().any(|end| before.ends_with(end))
}

fn is_question(rest: &str, below: &[&str]) -> bool {
    let lines = std::iter::once(rest).chain(below.iter().take(3).copied());
    let end = lines.flat_map(|line| line.chars().chain([' '])).find(|c| ".?!|".contains(*c));
    end == Some('?')
}

fn parse(text: &str) -> BTreeMap<String, usize> {
    let lines = text.lines().filter_map(|line| line.rsplit_once(' '));
    lines.filter_map(|(name, count)| Some((name.to_owned(), count.parse().ok()?))).collect()
}

#[test]
fn sentences_without_a_subject_are_counted_and_questions_are_not() {
    let text =
        "Who comes late waits. One asks: who are you?\n- What is left\nstays.\nWhat is it?\n| Who | What |\n";
    let code =
        "let x = \"Who is it\"; // What follows is text.\n/// Whose key it is\n/// counts so many times.\n";
    let tree = crate::tree::planted(&[("a.md", text), ("b.rs", code)]);
    let found = found(&tree);
    assert_eq!(found["headless sentence"], ["a.md:1", "a.md:2", "b.rs:2"]);
    assert_eq!(found["so many"], ["b.rs:3"]);
}

#[test]
fn counts_may_only_fall() {
    let with = |counts: &str| {
        let tree = crate::tree::planted(&[("a.md", "Who is late waits. So many peers."), (COUNTS, counts)]);
        problems(&tree)
    };
    assert_eq!(with("headless sentence 1\nso many 1\n"), Vec::<String>::new());
    assert_eq!(with("headless sentence 0\nso many 1\n").len(), 1);
    assert_eq!(with("headless sentence 1\nso many 2\n").len(), 1);
}
