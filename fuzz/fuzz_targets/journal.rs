//! The journal of a master that starts again: it goes on, or says why not.
#![no_main]

use pccl_master::{Master, MasterConfig};
use std::{fs, path::PathBuf, process, sync::LazyLock};

static PLACE: LazyLock<PathBuf> = LazyLock::new(|| {
    let place = PathBuf::from("/dev/shm").join(format!("pccl-fuzz-{}", process::id()));
    fs::create_dir_all(&place).expect("shared memory can be written");
    place
});

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    for entry in fs::read_dir(&*PLACE).expect("it is there").flatten() {
        let _ = fs::remove_file(entry.path());
    }
    fs::write(PLACE.join("journal"), data).expect("shared memory can be written");
    let config = MasterConfig {
        listen: "127.0.0.1:0".into(),
        journal: Some(PLACE.clone()),
        ..MasterConfig::default()
    };
    if let Ok(master) = Master::launch(config) {
        master.stop();
    }
});
