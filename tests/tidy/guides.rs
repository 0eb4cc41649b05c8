//! The guides that docs.rs shows: documents of the repository as modules of `pccl`. A published crate has only files of
//! its own directory, so they are there a second time, with links that lead somewhere in the documentation of the
//! crate. These tests make them, and see that they are up to date.

use crate::tree::{Tree, resolve};

/// Where they lie.
pub(crate) const FOLDER: &str = "pccl/src/guide/";
/// Documents that users of the library read: the module of `pccl::guide`, and the document that it shows.
const GUIDES: &[(&str, &str)] = &[
    ("semantics", "docs/semantics/README.md"),
    ("semantics::results", "docs/semantics/results.md"),
    ("semantics::shared_state", "docs/semantics/shared-state.md"),
    ("errors", "docs/errors.md"),
    ("recovery", "docs/recovery.md"),
    ("quantisation", "docs/quantisation.md"),
    ("deploying", "docs/deploying.md"),
    ("operating", "docs/operating/README.md"),
    ("operating::status", "docs/operating/status.md"),
    ("operating::troubleshooting", "docs/operating/troubleshooting.md"),
    ("operating::doctor", "docs/operating/doctor.md"),
    ("operating::network", "docs/operating/network.md"),
    ("operating::leaving", "docs/operating/leaving.md"),
    ("operating::keys", "docs/operating/keys.md"),
    ("operating::state", "docs/operating/state.md"),
    ("operating::timeouts", "docs/operating/timeouts.md"),
    ("operating::restarts", "docs/operating/restarts.md"),
    ("operating::failover", "docs/operating/failover.md"),
];

/// The guides with their texts.
pub(crate) fn made(tree: &Tree) -> Vec<(String, String)> {
    let guide = |(module, document): &(&str, &str)| {
        let text = tree.get(*document).map(String::as_str).unwrap_or_default();
        (format!("{FOLDER}{}.md", module.replace("::", "/")), guide_of(document, text))
    };
    GUIDES.iter().map(guide).collect()
}

/// Problems of the guides.
pub(crate) fn problems(tree: &Tree) -> Vec<String> {
    let made = made(tree);
    let old = made.iter().filter(|(path, text)| tree.get(path) != Some(text));
    let old = old.map(|(path, _)| {
        format!("{path}: is old; cargo test -p pccl-tests --test tidy make_guides -- --ignored makes it anew")
    });
    let is_known = |path: &&String| path.starts_with(FOLDER) && path.ends_with(".md");
    let foreign = tree.keys().filter(is_known).filter(|path| !made.iter().any(|(known, _)| known == *path));
    old.chain(foreign.map(|path| format!("{path}: no document is behind it"))).collect()
}

/// The document at a path as a guide: its links lead to other guides, or are the name of a file of the repository; and
/// what is written in Rust is not compiled, because it is a part of something.
fn guide_of(path: &str, document: &str) -> String {
    let mut guide = String::with_capacity(document.len());
    let mut rest = document;
    while let Some(at) = rest.find("](") {
        let (before, link) = rest.split_at(at);
        let Some((target, after)) = link[2..].split_once(')') else { break };
        let (file, place) = target.split_once('#').unwrap_or((target, ""));
        let is_file = !file.is_empty() && !file.contains("://");
        let linked = if is_file { resolve(path, file) } else { None };
        let module = GUIDES.iter().find(|(_, document)| linked.as_deref() == Some(*document));
        let place = if place.is_empty() { String::new() } else { format!("#{place}") };
        match (module, linked, before.rfind('[')) {
            (Some((module, _)), ..) => guide.push_str(&format!("{before}](crate::guide::{module}{place})")),
            (None, Some(linked), Some(open)) => {
                let text = &before[open + 1..];
                guide.push_str(&before[..open]);
                let name = text.trim_matches('`');
                let is_its_name = file == text || (name.contains('.') && linked.ends_with(name));
                guide.push_str(&if is_its_name {
                    format!("`{linked}`")
                } else {
                    format!("{text} (`{linked}`)")
                });
            }
            _ => guide.push_str(&format!("{before}]({target})")),
        }
        rest = after;
    }
    guide.push_str(rest);
    guide.replace("```rust\n", "```rust,ignore\n")
}

#[test]
fn links_lead_to_guides_or_name_files() {
    let document = "See [how](errors.md#the-loop), [b](#here), [c](topology.md#x), [x/d.md](../x/d.md), \
                    [`a.md`](../a.md) and [d](https://e.org).\n```rust\nf();\n```\n";
    let guide = "See [how](crate::guide::errors#the-loop), [b](#here), c (`docs/topology.md`), `x/d.md`, \
                 `a.md` and [d](https://e.org).\n```rust,ignore\nf();\n```\n";
    assert_eq!(guide_of("docs/semantics.md", document), guide);
}

#[test]
fn old_guides_are_found() {
    let tree = crate::tree::planted(&[("docs/errors.md", "# New"), ("pccl/src/guide/errors.md", "# Old")]);
    let found = problems(&tree);
    assert!(found.iter().any(|problem| problem.starts_with("pccl/src/guide/errors.md: is old")), "{found:?}");
    let extra = crate::tree::planted(&[("pccl/src/guide/other.md", "# Other")]);
    assert!(problems(&extra).iter().any(|problem| problem.contains("no document is behind it")));
}

#[test]
#[ignore = "writes the guides"]
fn make_guides() {
    for (path, text) in made(&crate::tree::read()) {
        let path = crate::tree::root().join(path);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("the folder can be made");
        std::fs::write(path, text).expect("the guide can be written");
    }
}
