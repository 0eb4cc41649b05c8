//! Directories of tests.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// An empty directory of one test, removed with this.
#[derive(Debug)]
pub struct Directory(pub PathBuf);

impl Directory {
    /// Makes one. No two of a process may have the same name at one time.
    ///
    /// # Panics
    ///
    /// If it cannot be made.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("pccl-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("a directory for a test");
        Self(path)
    }

    /// The path of a file in it.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Sets who may do what with a file or directory.
///
/// # Panics
///
/// If it is not there or belongs to somebody else.
#[cfg(unix)]
pub fn set_mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("its owner may");
}
