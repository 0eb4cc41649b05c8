//! Random identities from the operating system.

use crate::state::IdSource;
use pccl_protocol::{PeerId, RunId};
use std::{
    fs::File,
    hash::{BuildHasher, RandomState},
    io::{self, Read},
};

/// Where the system's random numbers come from.
const SOURCE: &str = "/dev/urandom";

/// An open source of random numbers.
pub(crate) struct RandomIds {
    source: File,
}

impl RandomIds {
    /// Opens the source and proves that it gives numbers: the first one is the identity of the run.
    pub(crate) fn open() -> io::Result<(Self, RunId)> {
        let mut ids = Self { source: File::open(SOURCE)? };
        let run = loop {
            match ids.read()? {
                0 => {}
                run => break RunId(run),
            }
        };
        Ok((ids, run))
    }

    fn read(&mut self) -> io::Result<u128> {
        let mut bytes = [0; 16];
        self.source.read_exact(&mut bytes)?;
        Ok(u128::from_be_bytes(bytes))
    }
}

impl IdSource for RandomIds {
    fn peer_id(&mut self) -> PeerId {
        // Should the source fail after it has worked, the standard library's hasher keys, which are random as well,
        // take its place. 0 stands for "no peer" in a preamble.
        let id = self.read().unwrap_or_else(|error| {
            log::warn!("{SOURCE} cannot be read any more ({error}), using another source");
            let half = |n: u8| u128::from(RandomState::new().hash_one(n));
            half(0) << 64 | half(1)
        });
        PeerId(id.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_differ() {
        let (mut ids, run) = RandomIds::open().unwrap();
        let (mut others, other_run) = RandomIds::open().unwrap();
        assert_ne!(run, other_run);
        assert_ne!(ids.peer_id(), ids.peer_id());
        assert_ne!(ids.peer_id(), others.peer_id());
    }

    #[test]
    fn a_source_that_fails_later_is_replaced() {
        let mut ids = RandomIds { source: File::open("/dev/null").unwrap() };
        assert_ne!(ids.peer_id(), ids.peer_id());
    }
}
