//! Bytes of one direction through memory that two processes of one machine share, instead of through its TCP stack.
//!
//! The connection between the two stays what it is: it says who is there, it wakes the one that waits (a byte on it
//! means nothing but "look again"), and its end is the end of the stream. So everything else treats a stream in memory
//! as it treats a socket, and a process that dies is noticed as before. The memory is a ring of bytes (`Writer`,
//! `Reader`), which lies in a `Region` without a name in any file system.
//!
//! The end that dials makes the region if both ends of the connection have the same address, and says in its preamble
//! where the other one finds it: a descriptor of its process ([`Offer`]). Only a process of the same user can open
//! that. The region holds the random number of the offer, and the port from which the connection comes: a connection
//! that a proxy or a relay passes on comes from another one, and its bytes stay on it. An end that cannot open the
//! region says so with its reply, and bytes travel over the socket.

#[allow(unsafe_code)]
mod region;
#[allow(unsafe_code)]
mod ring;

use std::{
    io,
    net::SocketAddr,
    os::fd::{AsRawFd, OwnedFd},
};

pub(crate) use region::Region;
pub(crate) use ring::{Reader, Writer};

use crate::{
    address::canonical,
    cipher::rand::{SecureRandom, SystemRandom},
};

/// Where the other end of a connection finds memory to share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// The process that has it, by its number where it runs; not 0.
    pub process: u32,
    /// The descriptor there.
    pub descriptor: u32,
    /// The random number that the memory holds.
    pub nonce: u128,
}

/// Memory that was offered, until the other end has answered.
#[derive(Debug)]
pub(crate) struct Offered {
    region: Region,
    descriptor: OwnedFd,
    nonce: u128,
}

impl Offered {
    /// Makes memory for a connection from `local` to `remote`; `None` unless both are of this machine.
    pub(crate) fn new(local: SocketAddr, remote: SocketAddr) -> io::Result<Option<Self>> {
        if !is_one_machine(local, remote) {
            return Ok(None);
        }
        let mut nonce = [0; 16];
        let filled = SystemRandom::new().fill(&mut nonce);
        filled.map_err(|_| io::Error::other("the system has no random numbers"))?;
        let nonce = u128::from_ne_bytes(nonce);
        let (region, descriptor) = Region::create(nonce, local.port())?;
        Ok(Some(Self { region, descriptor, nonce }))
    }

    /// Where the other end finds it.
    pub(crate) fn offer(&self) -> Offer {
        // A descriptor is not negative.
        let descriptor = self.descriptor.as_raw_fd() as u32;
        Offer { process: std::process::id(), descriptor, nonce: self.nonce }
    }

    /// The memory, once the other end has it.
    pub(crate) fn taken(self) -> Region {
        self.region
    }
}

impl Offer {
    /// Opens the memory at the end that `remote` has dialed, at its address `local`.
    pub(crate) fn open(&self, local: SocketAddr, remote: SocketAddr) -> io::Result<Region> {
        if !is_one_machine(local, remote) {
            return Err(io::Error::other("the connection comes from another address"));
        }
        Region::open(self.process, self.descriptor, self.nonce, remote.port())
    }
}

/// Whether both ends of a connection have the same address, so that it never leaves the machine.
fn is_one_machine(local: SocketAddr, remote: SocketAddr) -> bool {
    canonical(local).ip() == canonical(remote).ip()
}

#[cfg(test)]
mod tests;
