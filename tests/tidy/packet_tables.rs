//! The tables of packets in the documents: number, name, senders and count of each packet are those of its declaration
//! in the protocol. The columns behind them are written by hand.

use crate::tree::Tree;
use pccl_protocol::{C2m, M2c, PacketRules, Senders};

/// A document, and the first columns of each row of its table.
type Table = (&'static str, Vec<String>);

fn tables() -> [Table; 2] {
    let to_master = C2m::TABLE.iter().map(|(kind, name, rules)| {
        let counted = rules.counter.map_or("", |counter| counter.text());
        format!("| {kind} | `{name}` | {} | {counted} |", senders_of(rules))
    });
    let to_peer = M2c::TABLE.iter().map(|(kind, name, _)| format!("| {kind} | `{name}` |"));
    [
        ("docs/protocol/peer-to-master.md", to_master.collect()),
        ("docs/protocol/master-to-peer.md", to_peer.collect()),
    ]
}

fn senders_of(rules: &PacketRules) -> String {
    match (rules.from, rules.from_listed) {
        _ if !rules.is_numbered => "outside of the session".to_owned(),
        (from, listed) if from == listed => from.text(),
        (Senders::NOBODY, listed) => format!("in fixed groups: {}", listed.text()),
        (from, Senders::NOBODY) => format!("{}; not in fixed groups", from.text()),
        (from, listed) => format!("{}; in fixed groups: {}", from.text(), listed.text()),
    }
}

/// Rows that are missing, and rows that say something else than the declaration.
pub(crate) fn problems(tree: &Tree) -> Vec<String> {
    let mut problems = Vec::new();
    for (path, rows) in tables() {
        let text = tree.get(path).map_or("", String::as_str);
        let stale = rows.iter().filter(|row| !text.lines().any(|line| line.starts_with(row.as_str())));
        problems.extend(stale.map(|row| {
            format!("{path}: no row begins with {row} (make_packet_tables writes what rows begin with)")
        }));
        let count = text.lines().filter(|line| is_row(line)).count();
        if count != rows.len() {
            problems.push(format!("{path}: {count} rows about packets, {} packets", rows.len()));
        }
    }
    problems
}

/// Whether a line is about a packet: its second column is a name in code.
fn is_row(line: &str) -> bool {
    line.split(" | ").nth(1).is_some_and(|cell| cell.starts_with('`')) && line.starts_with("| ")
}

/// A document with the beginnings of its rows as they are declared.
fn made(text: &str, rows: &[String]) -> String {
    let renewed = |line: &str| {
        let row = rows.iter().find(|row| is_row(line) && row.split(" | ").nth(1) == line.split(" | ").nth(1));
        let Some(row) = row else { return line.to_owned() };
        let columns = row.matches('|').count() - 1;
        let rest = line.splitn(columns + 2, '|').nth(columns + 1).unwrap_or_default();
        format!("{row}{rest}")
    };
    text.lines().map(|line| renewed(line) + "\n").collect()
}

#[test]
fn rows_that_are_stale_or_missing_are_found() {
    let stale = "| 1 | `Register` | nobody |  | says |\n";
    let tree = crate::tree::planted(&[("docs/protocol/peer-to-master.md", stale)]);
    let found = problems(&tree);
    assert!(found.iter().any(|problem| problem.contains("| 1 | `Register` | a client that")), "{found:?}");
    assert!(found.iter().any(|problem| problem.contains("1 rows about packets")), "{found:?}");
    let [(_, rows), _] = tables();
    let row = "| 1 | `Register` | a client that has not registered |  | says |\n";
    assert_eq!(made(stale, &rows), row);
}

#[test]
#[ignore = "writes the first columns of the tables of packets"]
fn make_packet_tables() {
    for (path, rows) in tables() {
        let path = crate::tree::root().join(path);
        let text = std::fs::read_to_string(&path).expect("the document can be read");
        std::fs::write(path, made(&text, &rows)).expect("the document can be written");
    }
}
