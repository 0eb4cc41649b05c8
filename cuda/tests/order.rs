//! Copies, and the order after the streams of a program.

use crate::common::{Filled, memory, noise, write_on_stream};
use pccl_cuda::CudaError;
use pccl_hash::tree::level1_digests;
use pccl_testkit::standin::{Count, Standin};

#[test]
fn copies_of_any_length_arrive() {
    let standin = Standin::load().expect("the stand-in");
    for length in [0, 1, 4095, 1 << 20, (1 << 20) + 1, (9 << 20) + 77] {
        let content = noise(length, 1);
        let mut filled = Filled::new(&standin, &content, 2);
        assert_eq!(filled.memory.to_vec().expect("a copy"), content);
        let other = noise(length, 2);
        filled.memory.write(0, &other).expect("a copy");
        assert_eq!(filled.memory.to_vec().expect("a copy"), other);
        if length > 10 {
            filled.memory.write(5, &content[5..length - 3]).expect("a copy");
            let mut part = vec![0; length - 4];
            filled.memory.read(2, &mut part).expect("a copy");
            assert_eq!(
                part,
                [&other[2..5], &content[5..length - 3], &other[length - 3..length - 2]].concat()
            );
        }
    }
}

#[test]
fn uses_come_after_what_the_program_has_queued_on_its_stream() {
    let standin = Standin::load().expect("the stand-in");
    let (old, new) = (noise(3 << 20, 1), noise(3 << 20, 2));
    let address = standin.device_memory(old.len());
    for kind in 0..3 {
        standin.put(address, &old);
        let stream = standin.stream();
        standin.put_later(stream, address, &new);
        assert_eq!(standin.get(address, old.len()), old, "the stand-in does it as late as it may");
        let mut memory = memory(address, new.len(), stream);
        match kind {
            0 => assert_eq!(memory.to_vec().expect("a copy"), new),
            1 => assert_eq!(memory.level1_digests().expect("digests"), level1_digests(&new)),
            _ => {
                memory.write(0, &old[..10]).expect("a copy");
                assert_eq!(standin.get(address, old.len()), [&old[..10], &new[10..]].concat());
            }
        }
    }
    standin.free(address);
}

#[test]
fn a_stream_waits_for_a_copy_that_its_caller_does_not_wait_for() {
    let standin = Standin::load().expect("the stand-in");
    // Within the ring, and more than it holds.
    for length in [5, (3 << 20) + 1, (70 << 20) + 3] {
        let (old, new, last) = (noise(length, 1), noise(length, 2), noise(length, 3));
        let address = standin.device_memory(length);
        standin.put(address, &old);
        let stream = standin.stream();
        standin.put_later(stream, address, &[7]);
        write_on_stream(&memory(address, length, stream), &new).expect("a copy");
        let end = 1 << 20;
        assert!(standin.get(address, length).ends_with(&old[length - length.min(end)..]), "not waited for");
        // Work that the program queues then comes after it.
        standin.put_later(stream, address, &last[..length / 2]);
        standin.settle(stream);
        assert!(standin.get(address, length) == [&last[..length / 2], &new[length / 2..]].concat());
        standin.free(address);
    }
}

#[test]
fn results_on_many_streams_keep_few_lanes() {
    let standin = Standin::load().expect("the stand-in");
    let all: Vec<_> = (0..20)
        .map(|seed| {
            let (address, stream) = (standin.device_memory(1000), standin.stream());
            let content = noise(1000, seed);
            write_on_stream(&memory(address, 1000, stream), &content).expect("a copy");
            (address, stream, content)
        })
        .collect();
    // At most 8 lanes, and the 4 MiB of each one's ring; other tests have made some longer.
    let before = standin.count(Count::PinnedBytes);
    for (address, stream, content) in all {
        // A use of the same memory on the same stream sees it, too.
        assert_eq!(memory(address, 1000, stream).to_vec().expect("a copy"), content);
        standin.free(address);
    }
    assert_eq!(standin.count(Count::PinnedBytes), before, "lanes are used again");
}

#[test]
fn memory_of_the_host_is_refused() {
    let _standin = Standin::load().expect("the stand-in");
    let host = [0_u8; 64];
    let address = host.as_ptr() as u64;
    // SAFETY: it is refused.
    let refused = unsafe { pccl_cuda::DeviceMemory::from_raw(address, 64, 0) };
    assert_eq!(refused.expect_err("not of a device"), CudaError::NotDeviceMemory { address });
    assert_eq!(pccl_cuda::usable(), Ok(2));
}
