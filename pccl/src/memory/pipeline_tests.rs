//! A pipeline by itself, on the stand-in driver.

use super::{Backup, Hearer, OnDevice, Origins, Role, pipeline::Pipeline};
use pccl_cuda::DeviceMemory;
use pccl_testkit::{random::Rng, standin::Standin};
use std::{
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

const BYTES: usize = (3 << 20) + 100;
const PIECE: usize = 1 << 20;

/// Device memory with a content, for as long as the process.
fn device(standin: &Standin, content: &[u8]) -> (u64, DeviceMemory) {
    let address = standin.device_memory(content.len());
    standin.put(address, content);
    // SAFETY: the memory stays, and each test uses it by one pipeline.
    let memory = unsafe { DeviceMemory::from_raw(address, content.len(), 0) };
    (address, memory.expect("device memory").settled().expect("settled"))
}

fn room(bytes: usize) -> Arc<Backup> {
    Arc::new(Backup::new(bytes, &Arc::default()))
}

#[test]
fn what_is_finished_goes_up_before_the_rest_and_is_put_back() {
    let standin = Standin::load().expect("the stand-in");
    let given = Rng::keyed(&[1]).bytes(BYTES);
    let (address, memory) = device(&standin, &given);
    let room = room(2 * BYTES);
    let tensor = OnDevice::new(memory.clone(), memory, Role::Exchanges);
    let pipeline = Pipeline::begin(vec![tensor], room.clone(), &[1, 0, 2], None);
    let Origins { contribution, result } = pipeline.origins(0);
    assert!(contribution.arrived(&(0..BYTES)), "all of it comes down");
    assert!(room.view(0..BYTES, |down| down == given));
    room.fill(BYTES + PIECE..BYTES + 2 * PIECE, |out| out.fill(7));
    // In two parts: only then is the piece finished.
    result.finished(PIECE..PIECE + 10);
    result.finished(PIECE + 10..2 * PIECE);
    let deadline = Instant::now() + Duration::from_secs(60);
    while standin.get(address + PIECE as u64, 1) != [7] {
        assert!(Instant::now() < deadline, "a finished piece goes up while others are not");
        pccl_testkit::barrier::look_again();
    }
    assert_eq!(standin.get(address, PIECE), given[..PIECE], "and no other one");
    pipeline.undo().expect("put back");
    assert!(standin.get(address, BYTES) == given, "as it was");
}

#[test]
fn a_device_that_copies_nothing_is_given_up() {
    let standin = Standin::load().expect("the stand-in");
    let (_, memory) = device(&standin, &vec![3; BYTES]);
    let tensor = OnDevice::new(memory.clone(), memory, Role::Exchanges);
    // One of the copies, not what is needed to begin with them.
    standin.hold(12);
    let patience = Duration::from_millis(50);
    let pipeline = Pipeline::begin_with(vec![tensor], room(2 * BYTES), &[0, 1], None, patience);
    let (told, hears) = mpsc::channel();
    pipeline.tell(Hearer {
        failed: Box::new(move |text| told.send(text).expect("somebody hears it")),
        copied: Box::new(|| panic!("nothing is down")),
    });
    let Origins { contribution, .. } = pipeline.origins(0);
    assert!(!contribution.arrived(&(0..BYTES)), "it does not come");
    let text = hears.recv_timeout(Duration::from_secs(60)).expect("told");
    assert!(text.contains("it has copied nothing for 50ms"), "{text}");
    standin.hold(0);
    assert!(pipeline.undo().is_ok(), "nothing is to be put back");
    assert!(pipeline.failure().is_some());
}

#[test]
fn a_copy_that_fails_is_told_and_nobody_waits_for_it() {
    let standin = Standin::load().expect("the stand-in");
    let (_, memory) = device(&standin, &vec![3; BYTES]);
    let tensor = OnDevice::new(memory.clone(), memory, Role::Exchanges);
    // The copies, not what is needed to begin with them.
    standin.fail(12, 2);
    let pipeline = Pipeline::begin(vec![tensor], room(2 * BYTES), &[0, 1], None);
    let Origins { contribution, .. } = pipeline.origins(0);
    assert!(!contribution.arrived(&(0..BYTES)), "it does not come");
    let (told, hears) = mpsc::channel();
    pipeline.tell(Hearer {
        failed: Box::new(move |text| told.send(text).expect("somebody hears it")),
        copied: Box::new(|| panic!("not all is down")),
    });
    let text = hears.recv_timeout(Duration::from_secs(60)).expect("told");
    assert!(text.contains("reading a tensor on a device"), "{text}");
    standin.fail(0, 0);
    assert!(pipeline.complete().is_err(), "and the end is no success");
}
