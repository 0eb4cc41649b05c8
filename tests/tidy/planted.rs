//! The defects that `stress/planted/run` plants still fit the sources.

use crate::tree;
use std::{io::ErrorKind, process::Command};

#[test]
fn planted_defects_fit_the_sources() {
    let root = tree::root();
    let folder = root.join("stress/planted");
    let files = std::fs::read_dir(&folder).expect("the folder of planted defects");
    let mut patches: Vec<_> = files.map(|file| file.expect("readable").path()).collect();
    patches.retain(|path| path.extension().is_some_and(|extension| extension == "patch"));
    assert!(patches.len() >= 5, "{patches:?}");
    for patch in patches {
        let output = Command::new("git").args(["apply", "--check"]).arg(&patch).current_dir(&root).output();
        let output = match output {
            // A tree without git is none in which patches are made.
            Err(error) if error.kind() == ErrorKind::NotFound => return,
            other => other.expect("git runs"),
        };
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {text}", patch.display());
    }
}
