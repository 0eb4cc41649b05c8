//! A file of the shared state (safetensors): each input is refused, or all of it can be read and compared.
#![no_main]

use pccl::StateFile;
use std::{fs, path::PathBuf, process, sync::LazyLock};

static PATH: LazyLock<PathBuf> =
    LazyLock::new(|| PathBuf::from("/dev/shm").join(format!("pccl-fuzz-{}.safetensors", process::id())));

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    fs::write(&*PATH, data).expect("shared memory can be written");
    if let Ok(mut file) = StateFile::open(&*PATH) {
        let _ = (file.revision(), file.hash(), file.tensors().count());
        let _ = file.verify();
    }
});
