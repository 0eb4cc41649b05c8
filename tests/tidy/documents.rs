//! Rules for the content of documents and scripts.

use crate::tree::{Tree, resolve};
use std::collections::BTreeSet;

/// Documents get no longer than this.
const MAX_LINES: usize = 700;
/// Pages of `docs/` have at most this number of words, so that each answers one question. One that is made to look
/// things up may be longer.
const MAX_WORDS: usize = 2500;
/// The list of all pages.
const PAGES: &str = "docs/README.md";
/// In front of the code block with the commands that a newcomer starts with.
const COMMANDS_MARK: &str = "<!-- commands -->";

/// Problems of all documents; `exists` says whether a path, relative to the root, is there.
pub(crate) fn problems(tree: &Tree, exists: impl Fn(&str) -> bool) -> Vec<String> {
    let mut problems = Vec::new();
    for (path, text) in tree.iter().filter(|(path, _)| path.ends_with(".md")) {
        if text.lines().count() > MAX_LINES {
            problems.push(format!("{path}: more than {MAX_LINES} lines"));
        }
        for line in diagram_lines(text).filter(|line| line.contains(';')) {
            problems.push(format!("{path}: a semicolon ends a statement of a diagram: {line}"));
        }
        // Those of guides are for rustdoc, which looks at them.
        for target in links(text).into_iter().filter(|_| !path.starts_with(crate::guides::FOLDER)) {
            match resolve(path, &target) {
                Some(file) if exists(&file) => {}
                _ => problems.push(format!("{path}: link to {target}, which is not there")),
            }
        }
    }
    // Put together, so that this file does not contain them.
    let machine_paths = [concat!("/wo", "rk/"), concat!("/tm", "p/")];
    for (path, text) in tree.iter().filter(|(path, _)| path.ends_with(".md") || path.starts_with(".ci/")) {
        for machine_path in machine_paths.iter().filter(|machine_path| text.contains(*machine_path)) {
            problems.push(format!("{path}: {machine_path} is a path of one machine"));
        }
    }
    problems.extend(page_problems(tree));
    problems.extend(decision_problems(tree));
    problems.extend(command_problems(tree));
    problems.extend(code_list_problems(tree));
    problems
}

/// Pages that are too long for one question, or that the list of all pages lacks. Decisions have a list of their own.
fn page_problems(tree: &Tree) -> Vec<String> {
    let list = tree.get(PAGES);
    let listed: BTreeSet<String> =
        list.iter().flat_map(|text| links(text)).filter_map(|target| resolve(PAGES, &target)).collect();
    let is_page = |path: &str| {
        path.starts_with("docs/") && path.ends_with(".md") && !path.starts_with("docs/decisions/")
    };
    let mut problems = Vec::new();
    for (path, text) in tree.iter().filter(|(path, _)| is_page(path)) {
        let words = text.split_whitespace().count();
        if words > MAX_WORDS && path != crate::durations::PAGE {
            problems.push(format!("{path}: {words} words, at most {MAX_WORDS}"));
        }
        if list.is_some() && path != PAGES && !listed.contains(path) {
            problems.push(format!("{path}: {PAGES} does not list it"));
        }
    }
    problems
}

/// Enums whose variants a document lists: the document, the source, the start of the enum.
const LISTED: &[(&str, &str, &str)] = &[
    ("docs/protocol/frames.md", "pccl/protocol/src/p2p.rs", "pub enum P2p: Numbering {"),
    ("docs/errors.md", "pccl/protocol/src/verdict.rs", "pub enum Cause {"),
    ("docs/errors.md", "pccl/protocol/src/reasons.rs", "pub enum KickCode {"),
    ("docs/errors.md", "pccl/src/error.rs", "pub enum Error {"),
    ("docs/errors.md", "pccl/src/error.rs", "pub enum Remedy {"),
];

/// Explains the rules of the master in their order.
const RULES_DOCUMENT: &str = "docs/protocol/rules.md";

/// Names that the code has and the document that lists them does not. Packets are looked for with their numbers.
fn code_list_problems(tree: &Tree) -> Vec<String> {
    let mut problems = Vec::new();
    for (document, source, start) in LISTED {
        let Some(code) = tree.get(*source) else { continue };
        let text = tree.get(*document).map_or("", String::as_str);
        let variants = variants(code, start);
        if variants.is_empty() {
            problems.push(format!("{source}: no {start}"));
        }
        for (name, number) in variants {
            let has_row = number.is_none_or(|number| {
                text.contains(&format!("| {number} | `{name}` |"))
                    || text.contains(&format!("{number} `{name}`"))
            });
            if !has_row || !text.contains(&format!("`{name}")) {
                problems.push(format!("{document}: {name} of {source} is missing, or has another number"));
            }
        }
    }
    let name = |line: &str| Some(line.trim().strip_prefix("(\"")?.split_once('"')?.0.to_owned());
    let machine = tree.get("master/src/state/mod.rs").map_or("", String::as_str);
    let (_, rules) = machine.split_once("const RULES").unwrap_or_default();
    let (rules, _) = rules.split_once("\n];").unwrap_or_default();
    let listed = tree.get(RULES_DOCUMENT).map_or("", String::as_str);
    if tree.contains_key("master/src/state/mod.rs") && rules.lines().filter_map(name).next().is_none() {
        problems.push("master/src/state/mod.rs: no rules".to_owned());
    }
    for rule in rules.lines().filter_map(name) {
        if !listed.contains(&format!("`{rule}`")) {
            problems.push(format!("{RULES_DOCUMENT}: the rule {rule} of the master is missing"));
        }
    }
    problems
}

/// Names of the variants of an enum, and the packet number where there is one.
fn variants(code: &str, start: &str) -> Vec<(String, Option<String>)> {
    let Some((_, body)) = code.split_once(start) else { return Vec::new() };
    let mut depth = 1;
    let mut variants = Vec::new();
    for line in body.lines().map(str::trim) {
        let name: String = line.chars().take_while(char::is_ascii_alphanumeric).collect();
        if depth == 1 && name.starts_with(|c: char| c.is_ascii_uppercase()) {
            let number =
                line.split_once(") = ").map(|(_, rest)| rest.chars().take_while(char::is_ascii_digit));
            let number = number.map(Iterator::collect);
            variants.push((name, number));
        }
        depth += line.matches('{').count();
        depth = depth.saturating_sub(line.matches('}').count());
        if depth == 0 {
            break;
        }
    }
    variants
}

/// Lines of the diagrams in a document.
fn diagram_lines(text: &str) -> impl Iterator<Item = &str> {
    let blocks = text.split("```mermaid\n").skip(1);
    blocks.filter_map(|rest| rest.split("```").next()).flat_map(str::lines)
}

/// Targets of links to files of the repository.
fn links(text: &str) -> BTreeSet<String> {
    let mut prose = String::new();
    let mut fenced = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            // Every second piece between backticks is code.
            prose.extend(line.split('`').step_by(2).chain(["\n"]));
        }
    }
    let targets = prose.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let is_file =
        |target: &&str| !target.contains("://") && !target.starts_with('#') && !target.starts_with("mailto:");
    targets.filter(is_file).map(|target| target.split('#').next().unwrap_or(target).to_owned()).collect()
}

/// Decisions that nobody finds, or that do not say what a decision says.
fn decision_problems(tree: &Tree) -> Vec<String> {
    let indexes = ["docs/architecture.md", "docs/decisions/README.md"];
    let linked: BTreeSet<String> = indexes
        .iter()
        .filter_map(|index| Some((index, tree.get(*index)?)))
        .flat_map(|(index, text)| links(text).into_iter().filter_map(|target| resolve(index, &target)))
        .collect();
    let mut problems = Vec::new();
    for (path, text) in tree.iter() {
        let Some(name) = path.strip_prefix("docs/decisions/").filter(|name| *name != "README.md") else {
            continue;
        };
        if !linked.contains(path) {
            problems.push(format!("{path}: linked neither from {} nor from {}", indexes[0], indexes[1]));
        }
        if !name
            .get(..5)
            .is_some_and(|front| front[..4].bytes().all(|b| b.is_ascii_digit()) && front.ends_with('-'))
        {
            problems.push(format!("{path}: the name of a decision begins with four digits and a hyphen"));
        }
        for heading in ["## Context", "## Decision", "## Consequences"] {
            if !text.lines().any(|line| line == heading) {
                problems.push(format!("{path}: no part \"{heading}\""));
            }
        }
    }
    problems
}

/// The commands of the README are what the checks run.
fn command_problems(tree: &Tree) -> Vec<String> {
    let file = |path: &str| tree.get(path).map_or("", String::as_str);
    let commands = commands(file("README.md"));
    if commands.is_empty() {
        return vec![format!("README.md: no commands behind {COMMANDS_MARK}")];
    }
    let missing = commands.iter().filter(|command| !file(".ci/run").contains(command.as_str()));
    missing.map(|command| format!("README.md: \"{command}\" does not stand in .ci/run")).collect()
}

/// The first block of Rust in a document.
pub(crate) fn rust_block(text: &str) -> String {
    let block = text.lines().skip_while(|line| *line != "```rust").skip(1);
    block.take_while(|line| *line != "```").map(|line| format!("{line}\n")).collect()
}

fn commands(readme: &str) -> Vec<String> {
    let block = readme.lines().skip_while(|line| *line != COMMANDS_MARK).skip(2);
    block
        .take_while(|line| !line.starts_with("```"))
        .map(str::to_owned)
        .filter(|line| !line.is_empty())
        .collect()
}

#[cfg(test)]
const GOOD: &[(&str, &str)] = &[
    (
        "README.md",
        "<!-- commands -->\n```sh\ncargo a\ncargo b\n```\n[docs](docs/architecture.md#top) [x](https://x) [y](#y)",
    ),
    (".ci/run", "cargo a\ncargo b"),
    ("docs/architecture.md", "[one](decisions/0001-one.md) `[code](nowhere)`\n```\n[code](nowhere)\n```"),
    ("docs/decisions/0001-one.md", "## Context\n## Decision\n## Consequences\n[up](../architecture.md)"),
];

#[cfg(test)]
fn planted(path: &str, text: &str) -> Vec<String> {
    let mut tree = crate::tree::planted(GOOD);
    tree.insert(path.to_owned(), text.to_owned());
    problems(&tree, |file| tree.contains_key(file))
}

#[test]
fn good_documents_pass() {
    assert_eq!(planted("docs/other.md", "nothing"), Vec::<String>::new());
}

#[test]
fn dead_links_are_found() {
    assert_eq!(planted("docs/a.md", "[x](architecture.md) [y](missing.md)").len(), 1);
    assert_eq!(planted("docs/a.md", "[x](../../outside.md)").len(), 1);
}

#[test]
fn machine_paths_are_found() {
    assert_eq!(planted("docs/a.md", concat!("see /wo", "rk/x")).len(), 1);
    assert_eq!(planted(".ci/other", concat!("rm /tm", "p/x")).len(), 1);
}

#[test]
fn hidden_and_incomplete_decisions_are_found() {
    assert_eq!(planted("docs/decisions/0002-two.md", "## Context\n## Decision\n## Consequences").len(), 1);
    assert_eq!(planted("docs/decisions/0001-one.md", "## Context").len(), 2);
    assert_eq!(planted("docs/decisions/two.md", "## Context\n## Decision\n## Consequences").len(), 2);
}

#[test]
fn commands_that_are_not_checked_are_found() {
    assert_eq!(planted(".ci/run", "cargo a").len(), 1);
    assert_eq!(planted("README.md", "no commands").len(), 1);
}

#[test]
fn packets_that_a_document_forgets_are_found() {
    let code = "pub enum P2p: Numbering {\n    /// One.\n    One(One) = 1 => NONE,\n    Two(Two) = 2,\n}\n\
                enum Other {\n    Three,\n}\n";
    let document = "| 1 | `One` | first |\n| 3 | `Two` | second |";
    let path = "docs/protocol/frames.md";
    let tree = crate::tree::planted(&[("pccl/protocol/src/p2p.rs", code), (path, document)]);
    let found = code_list_problems(&tree);
    assert_eq!(found, [format!("{path}: Two of pccl/protocol/src/p2p.rs is missing, or has another number")]);
}

#[test]
fn errors_that_a_document_forgets_are_found() {
    let code = "pub enum Error {\n    #[error(\"{0}\")]\n    First(String),\n    Second {\n        Have: u32,\n    \
                },\n}\npub enum Remedy {\n    Retry,\n}";
    let tree =
        crate::tree::planted(&[("pccl/src/error.rs", code), ("docs/errors.md", "`First(x)` and `Retry`")]);
    assert_eq!(
        code_list_problems(&tree),
        ["docs/errors.md: Second of pccl/src/error.rs is missing, or has another number"]
    );
}

#[test]
fn rules_that_a_document_forgets_are_found() {
    let code =
        "const RULES: &[Rule] = &[\n    (\"one\", |it| it.one()),\n    (\"two\", MasterState::two),\n];";
    let tree = crate::tree::planted(&[("master/src/state/mod.rs", code), (RULES_DOCUMENT, "1. `one`")]);
    assert_eq!(
        code_list_problems(&tree),
        [format!("{RULES_DOCUMENT}: the rule two of the master is missing")]
    );
}

#[test]
fn broken_diagrams_are_found() {
    assert_eq!(planted("docs/a.md", "a; b\n```mermaid\nA->>B: c; d\n```\n").len(), 1);
}

#[test]
fn long_documents_are_found() {
    assert_eq!(planted("docs/a.md", &"\n".repeat(MAX_LINES + 1)).len(), 1);
    assert_eq!(planted("docs/a.md", &"word ".repeat(MAX_WORDS)), Vec::<String>::new());
    assert_eq!(planted("docs/a.md", &"word ".repeat(MAX_WORDS + 1)).len(), 1);
    assert_eq!(planted("docs/decisions/0001-one.md", &"word ".repeat(MAX_WORDS + 1)).len(), 3);
}

#[test]
fn pages_that_are_in_no_list_are_found() {
    let found = planted(PAGES, "[here](decisions/0001-one.md)");
    assert_eq!(found, ["docs/architecture.md: docs/README.md does not list it"]);
    assert_eq!(planted(PAGES, "[here](architecture.md)"), Vec::<String>::new());
}
