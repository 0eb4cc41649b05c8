//! The document with all durations that the library knows, made of the constants and of the comments above them.

use crate::tree::{self, Tree};
use std::{collections::BTreeMap, fmt::Write, time::Duration};

pub(crate) const PAGE: &str = "docs/durations.md";
const HEAD: &str = "\
# Durations

This page lists every duration that is a constant of the library, by directory: how long something waits, lasts or
counts. Most waits that a user may set are in [settings](settings.md); their defaults are here too. The page is made of
the sources by `make_durations` of tidy.
";

/// A constant that is a duration.
struct Constant {
    file: String,
    name: String,
    value: String,
    meaning: String,
}

fn is_library(path: &str) -> bool {
    let is_elsewhere = ["tests/", "stress/", "fuzz/", "examples/"].iter().any(|dir| path.starts_with(dir));
    let has = |part: &str| path.contains(part);
    path.ends_with(".rs") && has("/src/") && !is_elsewhere && !has("/tests/") && !has("tests.rs")
}

/// The number that this product of literals is.
fn product(text: &str) -> Option<u64> {
    text.split('*').map(|factor| factor.trim().replace('_', "").parse::<u64>().ok()).product()
}

fn in_words(duration: Duration) -> String {
    match duration.as_millis() {
        ms if ms > 172_800_000 => format!("{} days", ms / 86_400_000),
        ms if ms > 7_200_000 && ms % 3_600_000 == 0 => format!("{} h", ms / 3_600_000),
        ms if ms >= 120_000 && ms % 60_000 == 0 => format!("{} min", ms / 60_000),
        ms if ms >= 1000 && ms % 1000 == 0 => format!("{} s", ms / 1000),
        ms => format!("{ms} ms"),
    }
}

/// The durations of an expression such as `(Duration::from_millis(50), Duration::from_secs(1))`, in words; what is
/// made of another constant is said by its name.
fn value_of(name: &str, expression: &str) -> Option<String> {
    if name.ends_with("_MS") {
        return Some(in_words(Duration::from_millis(product(expression)?)));
    }
    let parts = expression.split("Duration::from_").skip(1).map(|part| {
        let (unit, rest) = part.split_once('(')?;
        let (number, _) = rest.split_once(')')?;
        let Some(number) = product(number) else {
            let constant = number.trim().rsplit("::").next()?;
            return Some(format!("`{constant}`"));
        };
        match unit {
            "secs" => Some(in_words(Duration::from_secs(number))),
            "millis" => Some(in_words(Duration::from_millis(number))),
            _ => None,
        }
    });
    let parts: Option<Vec<String>> = parts.collect();
    parts.filter(|parts| !parts.is_empty()).map(|parts| parts.join(" to "))
}

/// The constant of a module that this line declares: name and expression.
fn declared(line: &str) -> Option<(&str, &str)> {
    let (visibility, rest) = line.split_once("const ")?;
    if !visibility.is_empty() && !visibility.starts_with("pub") {
        return None;
    }
    let (name, rest) = rest.split_once(": ")?;
    let (kind, expression) = rest.split_once(" = ")?;
    let is_duration = kind.contains("Duration") || name.ends_with("_MS");
    is_duration.then_some((name, expression.trim_end_matches(';')))
}

/// The first sentence of the comment that ends above line `at`.
fn comment(lines: &[&str], at: usize) -> String {
    let above = lines[..at].iter().rev().map_while(|line| line.trim_start().strip_prefix("/// "));
    let mut above: Vec<&str> = above.collect();
    above.reverse();
    let text = above.join(" ");
    // Colons and full stops within code are followed by no space.
    text.split_inclusive(". ")
        .next()
        .unwrap_or_default()
        .trim_end()
        .replace('|', "\\|")
        .replace("[`", "`")
        .replace("`]", "`")
}

fn constants(path: &str, text: &str) -> Vec<Constant> {
    let lines: Vec<&str> =
        text.lines().take_while(|line| !line.trim_start().starts_with("mod tests {")).collect();
    let found = lines.iter().enumerate().filter_map(|(at, line)| {
        let next = lines.get(at + 1).filter(|_| line.ends_with(" =")).map_or("", |next| next.trim_start());
        let whole = format!("{line} {next}");
        let (name, expression) = declared(whole.trim_end())?;
        let value = value_of(name, expression)?;
        let (file, name) = (path.to_owned(), name.to_owned());
        Some(Constant { file, name, value, meaning: comment(&lines, at) })
    });
    found.collect()
}

fn all(tree: &Tree) -> Vec<Constant> {
    let library = tree.iter().filter(|(path, _)| is_library(path));
    library.flat_map(|(path, text)| constants(path, text)).collect()
}

fn page(tree: &Tree) -> String {
    let mut rooms: BTreeMap<String, Vec<Constant>> = BTreeMap::new();
    for constant in all(tree) {
        let room = constant.file.rsplit_once('/').map_or("", |(room, _)| room).to_owned();
        rooms.entry(room).or_default().push(constant);
    }
    let mut page = HEAD.to_owned();
    for (room, constants) in rooms {
        let _ = write!(page, "\n## {room}\n\n| File | Constant | Value | Meaning |\n|---|---|---|---|\n");
        for Constant { file, name, value, meaning } in constants {
            let short = file.rsplit('/').next().unwrap_or_default();
            let _ = writeln!(page, "| [{short}](../{file}) | `{name}` | {value} | {meaning} |");
        }
    }
    page
}

/// Durations without a meaning, and a page that is not made of the sources as they are.
pub(crate) fn problems(tree: &Tree) -> Vec<String> {
    let bare = all(tree).into_iter().filter(|constant| constant.meaning.is_empty());
    let mut problems: Vec<String> =
        bare.map(|it| format!("{}: no comment says what {} is", it.file, it.name)).collect();
    if tree.get(PAGE) != Some(&page(tree)) {
        problems.push(format!("{PAGE} is stale (make_durations writes it)"));
    }
    problems
}

#[test]
fn durations_are_found_and_told() {
    let source = "\
/// Looks `again`
/// after this | time. Then it ends.
pub(super) const LOOK: Duration = Duration::from_millis(2_500);
const PAUSE: (Duration, Duration) =
    (Duration::from_secs(1), Duration::from_secs(3600 * 2));
/// As the other end, see [`LOOK_MS`].
const OTHER: Duration = Duration::from_millis(limits::LOOK_MS);
/// Bytes.
const ROOM: usize = 4;
mod tests {
    const IGNORED: Duration = Duration::from_secs(1);
}
";
    let mut tree = tree::planted(&[("pccl/src/look.rs", source), ("tests/src/look.rs", source)]);
    let found = all(&tree);
    let told: Vec<_> = found.iter().map(|it| (&it.name[..], &it.value[..], &it.meaning[..])).collect();
    assert_eq!(
        told,
        [
            ("LOOK", "2500 ms", "Looks `again` after this \\| time."),
            ("PAUSE", "1 s to 120 min", ""),
            ("OTHER", "`LOOK_MS`", "As the other end, see `LOOK_MS`."),
        ]
    );
    assert_eq!(problems(&tree).len(), 2, "one has no meaning, and there is no page");
    let page = page(&tree);
    assert!(page.contains("\n| [look.rs](../pccl/src/look.rs) | `OTHER` | `LOOK_MS` |"), "{page}");
    tree.insert(PAGE.to_owned(), page);
    assert_eq!(problems(&tree).len(), 1);
}

#[test]
#[ignore = "writes the page of durations"]
fn make_durations() {
    let path = tree::root().join(PAGE);
    std::fs::write(path, page(&tree::read())).expect("the document can be written");
}
