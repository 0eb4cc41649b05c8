use std::{
    fs::File,
    os::fd::{AsRawFd, OwnedFd},
    sync::atomic::Ordering,
};

use super::{region::RING_BYTES, *};

const PORT: u16 = 4711;

/// Both ends of a new ring.
fn ring() -> (Writer, Reader) {
    let (one, descriptor) = Region::create(5, PORT).unwrap();
    let other = open(&descriptor, 5, PORT).unwrap();
    (Writer::new(one), Reader::new(other))
}

fn open(descriptor: &OwnedFd, nonce: u128, port: u16) -> io::Result<Region> {
    Region::open(std::process::id(), descriptor.as_raw_fd() as u32, nonce, port)
}

fn nobody() -> io::Result<()> {
    panic!("nobody waits")
}

#[test]
fn only_the_memory_of_this_connection_is_opened() {
    let (_region, descriptor) = Region::create(5, PORT).unwrap();
    assert!(open(&descriptor, 5, PORT).is_ok());
    for (nonce, port) in [(6, PORT), (5 << 64, PORT), (5, PORT + 1)] {
        let error = open(&descriptor, nonce, port).unwrap_err();
        assert!(error.to_string().contains("another connection"), "{error}");
    }
    let file = OwnedFd::from(File::open("/dev/null").unwrap());
    assert!(open(&file, 5, PORT).unwrap_err().to_string().contains("another file"));
}

#[test]
fn its_length_is_sealed() {
    let (_region, descriptor) = Region::create(5, PORT).unwrap();
    let file = File::from(descriptor);
    let len = file.metadata().unwrap().len();
    assert!(file.set_len(len - 1).is_err() && file.set_len(len + 1).is_err());
}

#[test]
fn bytes_go_around_and_room_has_an_end() {
    let (mut writer, mut reader) = ring();
    let (mut number, mut expected) = (0u8, 0u8);
    for round in 0..50 {
        let wanted = 1 + round * 81_000;
        let written = writer
            .write(
                wanted,
                |_, place| {
                    place.iter_mut().for_each(|byte| (*byte, number) = (number, number.wrapping_add(1)))
                },
                nobody,
            )
            .unwrap();
        assert_eq!(written, wanted.min(RING_BYTES));
        assert_eq!(writer.unread().unwrap(), written);
        let mut left = written;
        while left > 0 {
            let taken = reader.read(
                |bytes| {
                    let count = bytes.len().div_ceil(2);
                    for byte in &bytes[..count] {
                        assert_eq!(*byte, expected);
                        expected = expected.wrapping_add(1);
                    }
                    count
                },
                nobody,
            );
            left -= taken.unwrap();
        }
        assert_eq!((writer.unread().unwrap(), reader.unread().unwrap()), (0, 0));
    }
}

#[test]
fn who_waits_is_woken_once() {
    let (mut writer, reader) = ring();
    let mut wakes = 0;
    let mut wake = || {
        wakes += 1;
        Ok(())
    };
    assert!(reader.waits().unwrap(), "there is nothing");
    writer.write(10, |_, _| (), &mut wake).unwrap();
    writer.write(10, |_, _| (), &mut wake).unwrap();
    assert!(!reader.waits().unwrap(), "there is something by now");
    assert_eq!(wakes, 1);

    let (mut writer, mut reader) = ring();
    writer.write(usize::MAX, |_, _| (), nobody).unwrap();
    assert!(writer.waits().unwrap(), "there is no room");
    let mut wakes = 0;
    while reader.unread().unwrap() > 0 {
        let before = reader.unread().unwrap();
        let woken = wakes;
        let wake = || {
            wakes += 1;
            Ok(())
        };
        reader.read(<[u8]>::len, wake).unwrap();
        assert!(wakes == woken || before <= RING_BYTES / 2 + (128 << 10), "half of it is free");
    }
    assert_eq!(wakes, 1);
    assert!(!writer.waits().unwrap(), "there is room by now");
}

#[test]
fn a_counter_that_is_nonsense_is_an_error_and_no_address() {
    for wrong in [1, RING_BYTES as u64 + 1, u64::MAX] {
        let (one, descriptor) = Region::create(5, PORT).unwrap();
        let (other, third) = (open(&descriptor, 5, PORT).unwrap(), open(&descriptor, 5, PORT).unwrap());
        let mut writer = Writer::new(one);
        third.read().store(wrong, Ordering::Release);
        let error = writer.write(10, |_, _| panic!("no byte is touched"), nobody).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        let mut reader = Reader::new(other);
        third.written().store(wrong.max(RING_BYTES as u64 + 1), Ordering::Release);
        let error = reader.read(|_| panic!("no byte is touched"), nobody).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
