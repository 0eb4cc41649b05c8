//! Collectives of tensors on devices.

use crate::{device, peers};
use pccl::{Communicator, DeviceMemory, Error, ReduceOp, Staged};
use pccl_testkit::standin::Standin;

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// The placeholder for the sum of `count` elements that lie there on a device, and is not there yet.
fn summed(comm: &Communicator, (address, stream): (u64, u64), count: usize) -> Staged {
    // SAFETY: the memory stays, and only this peer uses it.
    let memory = unsafe { DeviceMemory::from_raw(address, 4 * count, stream) }.expect("device memory");
    let mut staged = Staged::read(memory).expect("read");
    comm.all_reduce(staged.elements_mut::<f32>(), ReduceOp::Sum).expect("reduced");
    staged
}

#[test]
fn a_reduce_begins_after_the_stream_and_its_result_is_on_the_device() {
    let standin = Standin::load().expect("the stand-in");
    const COUNT: usize = 700_001;
    let prepared: Vec<_> = (0..2)
        .map(|number| {
            let (address, _) = device(&standin, &vec![0; 4 * COUNT]);
            let stream = standin.stream();
            standin.put_later(stream, address, &bytes(&vec![1.0 + number as f32; COUNT]));
            (address, stream)
        })
        .collect();
    peers(2, |number, comm| {
        let (address, stream) = prepared[number];
        let staged = summed(comm, (address, stream), COUNT);
        staged.write_back().expect("written");
        assert!(standin.get(address, 4 * COUNT) == bytes(&vec![3.0; COUNT]));
    });
}

#[test]
fn a_stream_waits_for_the_result_in_place_of_the_caller() {
    let standin = Standin::load().expect("the stand-in");
    const COUNT: usize = 700_001;
    let prepared: Vec<_> = (0..2)
        .map(|number| {
            let (address, _) = device(&standin, &bytes(&vec![1.0 + number as f32; COUNT]));
            (address, standin.stream())
        })
        .collect();
    peers(2, |number, comm| {
        let (address, stream) = prepared[number];
        let staged = summed(comm, (address, stream), COUNT);
        // SAFETY: the memory stays until the stream has done everything.
        unsafe { staged.write_back_on_stream() }.expect("queued");
        assert!(standin.get(address, 4 * COUNT) == bytes(&vec![1.0 + number as f32; COUNT]), "nobody waited");
        standin.settle(stream);
        assert!(standin.get(address, 4 * COUNT) == bytes(&vec![3.0; COUNT]));
    });
}

#[test]
fn a_reduce_that_fails_leaves_the_device_as_it_was() {
    let standin = Standin::load().expect("the stand-in");
    let before = bytes(&vec![4.0; 100_000]);
    let (address, memory) = device(&standin, &before);
    let failed = peers(1, |_, comm| {
        let mut staged = Staged::read(memory.clone()).expect("read");
        comm.all_reduce(staged.elements_mut::<f32>(), ReduceOp::Sum)
    });
    assert!(matches!(failed[0], Err(Error::TooFewPeers { .. })), "{failed:?}");
    assert_eq!(standin.get(address, before.len()), before);
}
