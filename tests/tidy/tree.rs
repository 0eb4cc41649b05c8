//! The files of the repository.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

/// Directories that hold nothing of ours.
const SKIPPED: &[&str] = &["target", ".git", "build"];
/// Kinds of files that are looked at.
const KINDS: &[&str] = &["rs", "toml", "md", "c", "h", "cc", "cpp"];

/// Root of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Path (relative to the root, with `/`) and content of every file that the rules are about.
pub(crate) type Tree = BTreeMap<String, String>;

/// Reads the repository.
pub(crate) fn read() -> Tree {
    let mut tree = Tree::new();
    read_into(&root(), "", &mut tree).expect("the repository can be read");
    assert!(tree.len() > 50, "this does not look like the repository: {} files", tree.len());
    tree
}

fn read_into(dir: &Path, prefix: &str, tree: &mut Tree) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = format!("{prefix}{name}");
        if entry.file_type()?.is_dir() {
            if !SKIPPED.contains(&name.as_str()) {
                read_into(&entry.path(), &format!("{path}/"), tree)?;
            }
        } else if prefix == ".ci/"
            || path == crate::words::COUNTS
            || KINDS.iter().any(|kind| name.ends_with(&format!(".{kind}")))
        {
            tree.insert(path, fs::read_to_string(entry.path())?);
        }
    }
    Ok(())
}

/// Path from the root of `target` in the document at `path`; `None` if it leads out of the repository.
pub(crate) fn resolve(path: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = path.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// A tree for tests of the rules.
#[cfg(test)]
pub(crate) fn planted(files: &[(&str, &str)]) -> Tree {
    files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect()
}
