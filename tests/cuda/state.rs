//! Shared state on devices, among peers that have it on the host.

use crate::{device, noise, peers};
use pccl::{DataType, Error, SharedState, StateMemory, SyncInfo, SyncStrategy};
use pccl_testkit::standin::{Count, Standin};
use std::sync::Mutex;

const MEBIBYTE: usize = 1 << 20;

/// Three peers, of which the first and the last have their tensor on the device; the last one has `theirs`, at an older
/// revision. The report of each, and its content then.
fn mixed(standin: &Standin, ours: &[u8], theirs: &[u8]) -> Vec<(Result<SyncInfo, Error>, Vec<u8>)> {
    let fill = Mutex::new(());
    peers(3, |number, comm| {
        let content = if number == 2 { theirs } else { ours };
        let mut host = content.to_vec();
        let (address, memory) = {
            let _one = fill.lock().expect("no panic");
            device(standin, content)
        };
        let mut state = SharedState::new(if number == 2 { 0 } else { 7 });
        let tensor = match number {
            1 => StateMemory::new(host.as_mut_slice()),
            _ => StateMemory::on_device(memory, DataType::Uint8).expect("whole elements"),
        };
        state.memory("weights", tensor, false).expect("a tensor");
        let result = comm.sync_shared_state(&mut state, SyncStrategy::EnforcePopular);
        let hash = state.hash();
        drop(state);
        let after = if number == 1 { host } else { standin.get(address, content.len()) };
        if result.is_ok() {
            let mut same = after.clone();
            let mut on_host = SharedState::new(7);
            on_host.tensor("weights", &mut same).expect("a tensor");
            assert_eq!(hash, on_host.hash(), "the digest of the device is that of the host");
        }
        (result, after)
    })
}

#[test]
fn the_same_state_on_host_and_device_moves_nothing() {
    let standin = Standin::load().expect("the stand-in");
    let content = noise(3 * MEBIBYTE + 17, 1);
    let before = standin.count(Count::BytesToHost);
    for (result, after) in mixed(&standin, &content, &content) {
        assert_eq!(result.expect("committed").rx_bytes, 0);
        assert_eq!(after, content);
    }
    // Digests only: the content was hashed where it is.
    assert!(standin.count(Count::BytesToHost) - before < 4096);
}

#[test]
fn a_device_gets_what_differs_from_host_and_device() {
    let standin = Standin::load().expect("the stand-in");
    let ours = noise(5 * MEBIBYTE + 17, 2);
    let mut theirs = ours.clone();
    theirs[MEBIBYTE + 5] ^= 1;
    *theirs.last_mut().expect("not empty") ^= 1;
    let results = mixed(&standin, &ours, &theirs);
    for (number, (result, after)) in results.into_iter().enumerate() {
        let info = result.expect("committed");
        assert_eq!(info.revision, 7);
        assert_eq!(after, ours, "peer {number}");
        if number == 2 {
            assert_eq!(info.rx_bytes, (MEBIBYTE + 17) as u64, "what is in the two MiBs");
        }
    }
}

#[test]
fn all_of_a_tensor_is_fetched_to_a_device() {
    let standin = Standin::load().expect("the stand-in");
    let (ours, theirs) = (noise(9 * MEBIBYTE, 3), vec![0; 9 * MEBIBYTE]);
    for (result, after) in mixed(&standin, &ours, &theirs) {
        result.expect("committed");
        assert!(after == ours);
    }
}

#[test]
fn a_state_on_a_device_is_saved_and_loaded() {
    let standin = Standin::load().expect("the stand-in");
    let directory = std::env::temp_dir().join(format!("pccl-cuda-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let path = directory.join("state");
    let content = noise(2 * MEBIBYTE + 8, 4);
    let (_, memory) = device(&standin, &content);
    let mut state = SharedState::new(3);
    state
        .memory("t", StateMemory::on_device(memory, DataType::Uint8).expect("whole"), false)
        .expect("a tensor");
    assert_eq!(state.view::<u8>("t"), None, "nobody sees a device's memory");
    state.save(&path, &Default::default()).expect("saved");
    let (address, memory) = device(&standin, &vec![0; content.len()]);
    let mut other = SharedState::new(0);
    other
        .memory("t", StateMemory::on_device(memory, DataType::Uint8).expect("whole"), false)
        .expect("a tensor");
    assert_eq!(other.load(&path).expect("loaded"), 3);
    assert_eq!(standin.get(address, content.len()), content);
    assert_eq!(other.hash(), state.hash());
    std::fs::remove_dir_all(&directory).expect("removed");
}
