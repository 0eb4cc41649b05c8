//! Images of kernels that an earlier process has compiled, in files.
//!
//! A file is written beside its name and then renamed, so that nobody finds half of one. It holds a digest of the rest;
//! what does not fit it is no image, and is replaced by whoever compiles the kernels next. Nothing here fails: without
//! a directory, or with one that cannot be used, there are no images.

use pccl_hash::{Digest128, tree::tree_hash};
use std::{
    env,
    ffi::OsString,
    fs::{self, DirBuilder, File},
    io::{self, Read, Write},
    os::unix::fs::DirBuilderExt,
    path::PathBuf,
    process,
    sync::atomic::{AtomicU64, Ordering},
};

/// The directory; empty: none.
const VARIABLE: &str = "PCCL_KERNEL_CACHE";
/// No image is longer.
const MAX_BYTES: u64 = 16 << 20;

/// A directory with images.
#[derive(Debug)]
pub(crate) struct Cache {
    directory: Option<PathBuf>,
}

impl Cache {
    /// That of the environment.
    pub(crate) fn of_environment() -> Self {
        let directory = directory(env::var_os(VARIABLE), env::var_os("XDG_CACHE_HOME"), env::var_os("HOME"));
        Self { directory }
    }

    /// The image that `key` names, if it is there and whole.
    pub(crate) fn get(&self, key: &[&str]) -> Option<Vec<u8>> {
        let mut content = Vec::new();
        File::open(self.path(key)?).ok()?.take(MAX_BYTES).read_to_end(&mut content).ok()?;
        let (digest, image) = content.split_at_checked(Digest128::BYTES)?;
        (tree_hash(image).0 == digest).then(|| image.to_vec())
    }

    /// Keeps an image under `key`, if that is possible.
    pub(crate) fn put(&self, key: &[&str], image: &[u8]) {
        let Some(path) = self.path(key) else { return };
        if let Err(error) = write(&path, image) {
            log::debug!("compiled kernels are not kept in {}: {error}", path.display());
        }
    }

    fn path(&self, key: &[&str]) -> Option<PathBuf> {
        let mut text = String::new();
        for part in key {
            text += &format!("{}:{part}", part.len());
        }
        let name: String = tree_hash(text.as_bytes()).0.iter().map(|byte| format!("{byte:02x}")).collect();
        Some(self.directory.as_ref()?.join(name))
    }
}

fn directory(own: Option<OsString>, caches: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    if let Some(own) = own {
        return (!own.is_empty()).then(|| own.into());
    }
    let absolute = |path: OsString| Some(PathBuf::from(path)).filter(|path| path.is_absolute());
    let caches = caches.and_then(absolute).or_else(|| Some(home.and_then(absolute)?.join(".cache")));
    Some(caches?.join("pccl/kernels"))
}

fn write(path: &PathBuf, image: &[u8]) -> io::Result<()> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    if let Some(directory) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    }
    let own = path.with_extension(format!("{}-{}", process::id(), COUNT.fetch_add(1, Ordering::Relaxed)));
    let written = File::create(&own).and_then(|mut file| {
        file.write_all(&tree_hash(image).0)?;
        file.write_all(image)
    });
    let result = written.and_then(|()| fs::rename(&own, path));
    if result.is_err() {
        let _ = fs::remove_file(own);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty(name: &str) -> Cache {
        let directory = env::temp_dir().join(format!("pccl-kernels-{}-{name}", process::id()));
        let _ = fs::remove_dir_all(&directory);
        Cache { directory: Some(directory) }
    }

    fn files(cache: &Cache) -> Vec<PathBuf> {
        let directory = cache.directory.as_ref().expect("one");
        fs::read_dir(directory).expect("made").map(|entry| entry.expect("readable").path()).collect()
    }

    #[test]
    fn an_image_is_found_by_its_key_alone() {
        let cache = empty("key");
        assert_eq!(cache.get(&["a", "b"]), None);
        cache.put(&["a", "b"], b"image");
        assert_eq!(cache.get(&["a", "b"]).as_deref(), Some(&b"image"[..]));
        for other in [&["a", "c"][..], &["ab"], &["ab", ""], &["", "ab"], &["b", "a"]] {
            assert_eq!(cache.get(other), None, "{other:?}");
        }
        cache.put(&["a", "b"], b"");
        assert_eq!(cache.get(&["a", "b"]).as_deref(), Some(&b""[..]));
        assert_eq!(files(&cache).len(), 1, "nothing else is left");
        fs::remove_dir_all(cache.directory.expect("one")).expect("removed");
    }

    #[test]
    fn a_file_that_is_not_whole_is_no_image() {
        let cache = empty("whole");
        cache.put(&["k"], b"an image");
        let path = files(&cache).remove(0);
        let whole = fs::read(&path).expect("there");
        for length in 0..whole.len() {
            fs::write(&path, &whole[..length]).expect("written");
            assert_eq!(cache.get(&["k"]), None, "{length} bytes");
        }
        for at in 0..whole.len() {
            let mut wrong = whole.clone();
            wrong[at] ^= 1;
            fs::write(&path, wrong).expect("written");
            assert_eq!(cache.get(&["k"]), None, "byte {at}");
        }
        cache.put(&["k"], b"an image");
        assert_eq!(fs::read(&path).expect("there"), whole);
        fs::remove_dir_all(cache.directory.expect("one")).expect("removed");
    }

    #[test]
    fn a_directory_that_cannot_be_made_keeps_nothing() {
        let file = env::temp_dir().join(format!("pccl-kernels-{}-file", process::id()));
        fs::write(&file, b"").expect("written");
        for directory in [None, Some(file.join("below"))] {
            let cache = Cache { directory };
            cache.put(&["k"], b"image");
            assert_eq!(cache.get(&["k"]), None);
        }
        fs::remove_file(file).expect("removed");
    }

    #[test]
    fn the_directory_is_the_own_one_or_among_caches() {
        let some = |text: &str| Some(OsString::from(text));
        assert_eq!(directory(some("/k"), some("/c"), some("/h")), Some("/k".into()));
        assert_eq!(directory(some(""), some("/c"), some("/h")), None);
        assert_eq!(directory(None, some("/c"), some("/h")), Some("/c/pccl/kernels".into()));
        assert_eq!(directory(None, some("c"), some("/h")), Some("/h/.cache/pccl/kernels".into()));
        assert_eq!(directory(None, None, some("")), None);
        assert_eq!(directory(None, None, None), None);
    }
}
