//! The tables of settings in the documents, made of those from which the command line, C and Python take them.

use crate::tree::Tree;
use pccl::PeerSettings;
use pccl_master::{MasterConfig, Setting};

const PAGE: &str = "docs/settings.md";
const BEGIN: &str = "<!-- settings of a master: made by `make_settings_table` of tidy -->\n";
const BEGIN_PEER: &str = "<!-- settings of a peer: made by `make_settings_table` of tidy -->\n";
const END: &str = "<!-- end of settings -->\n";

fn of_master() -> String {
    let rows: String = MasterConfig::SETTINGS.iter().map(|setting| row(setting, true)).collect();
    let head =
        "| Setting | Value | Default | Command line | Environment | Meaning |\n|---|---|---|---|---|---|\n";
    format!("{head}{rows}")
}

fn of_peer() -> String {
    let rows: String = PeerSettings::SETTINGS.iter().map(|setting| row(setting, false)).collect();
    format!("| Setting | Value | Default | Environment | Meaning |\n|---|---|---|---|---|\n{rows}")
}

fn row<C>(setting: &Setting<C>, has_arguments: bool) -> String {
    let argument = setting.argument.map(|name| format!("`--{}`", name.replace('_', "-"))).unwrap_or_default();
    let argument = if has_arguments { format!(" {argument} |") } else { String::new() };
    let variable = setting.variable.map(|name| format!("`{name}`")).unwrap_or_default();
    let (name, form, default) = (setting.name, setting.form, (setting.default)());
    let text = setting.paragraph();
    let first = text.split_inclusive(". ").next().unwrap_or_default().trim_end_matches(['.', ' ']);
    format!("| `{name}` | {form} | {default} |{argument} {variable} | {first} |\n")
}

/// The page with the tables as they are declared, if it has places for them.
fn made(text: &str) -> Option<String> {
    let mut text = text.to_owned();
    for (mark, table) in [(BEGIN, of_master()), (BEGIN_PEER, of_peer())] {
        let (before, rest) = text.split_once(mark)?;
        let (_, behind) = rest.split_once(END)?;
        text = format!("{before}{mark}{table}{END}{behind}");
    }
    Some(text)
}

/// A table that says something else than the declaration, or is missing.
pub(crate) fn problems(tree: &Tree) -> Vec<String> {
    let text = tree.get(PAGE).map_or("", String::as_str);
    if made(text).as_deref() == Some(text) {
        return Vec::new();
    }
    vec![format!("{PAGE}: a table of settings is stale (make_settings_table writes it)")]
}

#[test]
fn a_table_that_is_stale_or_missing_is_found() {
    let page = |rows: &str, peer: &str| {
        crate::tree::planted(&[(PAGE, &format!("{BEGIN}{rows}{END}{BEGIN_PEER}{peer}{END}"))])
    };
    assert_eq!(problems(&page(&of_master(), &of_peer())), Vec::<String>::new());
    assert_eq!(problems(&page(&of_master().replace("10s", "11s"), &of_peer())).len(), 1);
    assert_eq!(problems(&page(&of_master(), "")).len(), 1);
    assert_eq!(problems(&crate::tree::planted(&[(PAGE, "no table\n")])).len(), 1);
}

#[test]
#[ignore = "writes the table of settings"]
fn make_settings_table() {
    let path = crate::tree::root().join(PAGE);
    let text = std::fs::read_to_string(&path).expect("the document can be read");
    std::fs::write(path, made(&text).expect("a place for the table")).expect("the document can be written");
}
