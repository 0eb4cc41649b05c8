//! Both ends of a handshake, with and without a key, that get anything in place of what the other end says: no input
//! opens a door that has a lock, or convinces a caller that has a key.
#![no_main]

use std::sync::LazyLock;
use tinysockets::{
    handshake::{Door, Heard, Knock, Visit},
    key::RunKey,
    preamble::{Preamble, Role},
    ticket::Lock,
};

static KEY: LazyLock<RunKey> = LazyLock::new(|| RunKey::from_bytes([7; 32]));

/// The first byte chooses the end, whether it has a key, and how much of a good first message comes before the input.
fn play(choice: u8, data: &[u8]) {
    let key = (choice & 1 != 0).then(|| KEY.clone());
    let preamble = Preamble::new(Role::Control);
    let (mut knock, hello) = Knock::new(&preamble, key.as_ref().map(RunKey::secret)).expect("random numbers");
    if choice & 2 != 0 {
        for byte in data {
            let Some(place) = knock.missing().first_mut() else { return };
            *place = *byte;
            match knock.received(1) {
                Ok(Heard::Nothing) => {}
                Ok(Heard::Reply(_)) | Err(_) => return,
                Ok(Heard::Proven(..)) => panic!("convinced without the key"),
            }
        }
        return;
    }
    let good = hello.len() * usize::from(choice >> 4) / 15;
    let mut door = Door::new(key.clone().map(Lock::from));
    for byte in hello[..good].iter().chain(data).copied() {
        let Some(place) = door.missing().first_mut() else { return };
        *place = byte;
        match door.received(1) {
            Visit::Nothing | Visit::Answer(_) => {}
            Visit::Unwanted(..) => return,
            Visit::Known(..) => return assert!(key.is_none(), "opened without the key"),
        }
    }
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Some((choice, rest)) = data.split_first() {
        play(*choice, rest);
    }
});
