//! The table of settings of a master in the documents, made of the table from which the command line and C take them.

use crate::tree::Tree;
use pccl_master::{MasterConfig, Setting};

const PAGE: &str = "docs/settings.md";
const BEGIN: &str = "<!-- settings of a master: made by `make_settings_table` of tidy -->\n";
const END: &str = "<!-- end of settings -->\n";

fn row(setting: &Setting<MasterConfig>) -> String {
    let or_none = |text: Option<String>| text.unwrap_or_default();
    let argument = setting.argument.map(|name| format!("`--{}`", name.replace('_', "-")));
    let variable = setting.variable.map(|name| format!("`{name}`"));
    let (name, form, default) = (setting.name, setting.form, (setting.default)());
    let text = setting.text.split_whitespace().collect::<Vec<_>>().join(" ");
    let first = text.split_inclusive(". ").next().unwrap_or_default().trim_end_matches(['.', ' ']);
    format!("| `{name}` | {form} | {default} | {} | {} | {first} |\n", or_none(argument), or_none(variable))
}

fn table() -> String {
    let rows: String = MasterConfig::SETTINGS.iter().map(row).collect();
    format!(
        "| Setting | Value | Default | Command line | Environment | Meaning |\n|---|---|---|---|---|---|\n{rows}"
    )
}

/// The page with the table as it is declared, if it has a place for it.
fn made(text: &str) -> Option<String> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (_, behind) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}{}{END}{behind}", table()))
}

/// A table that says something else than the declaration, or is missing.
pub(crate) fn problems(tree: &Tree) -> Vec<String> {
    let text = tree.get(PAGE).map_or("", String::as_str);
    if made(text).as_deref() == Some(text) {
        return Vec::new();
    }
    vec![format!("{PAGE}: the table of settings is stale (make_settings_table writes it)")]
}

#[test]
fn a_table_that_is_stale_or_missing_is_found() {
    let page = |rows: &str| crate::tree::planted(&[(PAGE, &format!("{BEGIN}{rows}{END}"))]);
    assert_eq!(problems(&page(&table())), Vec::<String>::new());
    assert_eq!(problems(&page(&table().replace("10s", "11s"))).len(), 1);
    assert_eq!(problems(&crate::tree::planted(&[(PAGE, "no table\n")])).len(), 1);
}

#[test]
#[ignore = "writes the table of settings"]
fn make_settings_table() {
    let path = crate::tree::root().join(PAGE);
    let text = std::fs::read_to_string(&path).expect("the document can be read");
    std::fs::write(path, made(&text).expect("a place for the table")).expect("the document can be written");
}
