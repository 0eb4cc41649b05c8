//! The bytes of a connection in [memory](crate::shm) that both of its ends share.

use std::{io, os::fd::BorrowedFd};

use parking_lot::Mutex;

use super::sealed::Sealed;
use crate::{
    shm::{Reader, Region, Writer},
    sys,
};

/// How many wake-ups are taken at once: an end that waits is woken once, so there are hardly more than one.
const WAKES: usize = 16;

/// The end of a stream in memory that this connection has. Nobody waits under one of the locks but for one who receives
/// without a limit in time, and a connection has one receiver.
#[derive(Debug)]
pub(super) enum Shared {
    Writes(Mutex<Writer>),
    Reads(Mutex<Reader>),
}

/// The connection, of which each byte says "look again".
pub(super) struct Doorbell<'a> {
    pub(super) fd: BorrowedFd<'a>,
    pub(super) sealed: Option<&'a Sealed>,
}

impl Doorbell<'_> {
    /// Wakes the other end.
    fn wake(&self) -> io::Result<()> {
        let sent = match self.sealed {
            None => sys::send(self.fd, &[0], true),
            Some(sealed) => sealed.try_send(self.fd, 1, |_, byte| byte.fill(0)),
        };
        match sent {
            // It has more to hear than it can take.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            sent => sent.map(|_| ()),
        }
    }

    /// Takes wake-ups; waits for one unless that is not wanted. `false`: the other end is gone.
    fn drain(&self, dont_wait: bool) -> io::Result<bool> {
        match self.sealed {
            None => sys::recv(self.fd, &mut [0; WAKES], dont_wait).map(|count| count > 0),
            Some(sealed) => sealed.recv(self.fd, dont_wait, <[u8]>::len).map(|count| count.is_some()),
        }
    }
}

impl Shared {
    pub(super) fn new(region: Region, reads: bool) -> Self {
        if reads {
            Self::Reads(Mutex::new(Reader::new(region)))
        } else {
            Self::Writes(Mutex::new(Writer::new(region)))
        }
    }

    /// As [`Conn::try_send_with`](super::Conn::try_send_with).
    pub(super) fn try_send(
        &self,
        doorbell: &Doorbell<'_>,
        at_most: usize,
        mut fill: impl FnMut(usize, &mut [u8]),
    ) -> io::Result<usize> {
        let Self::Writes(writer) = self else { return Err(io::ErrorKind::Unsupported.into()) };
        let mut writer = writer.lock();
        loop {
            let count = writer.write(at_most, &mut fill, || doorbell.wake())?;
            if count > 0 || at_most == 0 {
                return Ok(count);
            }
            if writer.waits()? {
                // A wake-up from before would end the wait at once.
                return match doorbell.drain(true) {
                    Ok(true) => continue,
                    Ok(false) => Err(io::ErrorKind::BrokenPipe.into()),
                    Err(error) => Err(error),
                };
            }
        }
    }

    /// As [`Conn::recv_with`](super::Conn::recv_with), or [`Conn::try_recv_with`](super::Conn::try_recv_with). At the
    /// end that writes nothing arrives but wake-ups, and the end of the stream.
    pub(super) fn recv(
        &self,
        doorbell: &Doorbell<'_>,
        dont_wait: bool,
        take: impl FnOnce(&[u8]) -> usize,
    ) -> io::Result<Option<usize>> {
        let Self::Reads(reader) = self else {
            while doorbell.drain(dont_wait)? {}
            return Ok(None);
        };
        let mut reader = reader.lock();
        while reader.unread()? == 0 {
            if reader.waits()? {
                match doorbell.drain(dont_wait) {
                    Ok(true) => {}
                    // Bytes from before the end are there.
                    Ok(false) if reader.unread()? == 0 => return Ok(None),
                    Err(error) if reader.unread()? == 0 => return Err(error),
                    _ => break,
                }
            }
        }
        // If the writer is gone, that is heard once everything is read.
        reader.read(take, || doorbell.wake().or(Ok(()))).map(Some)
    }

    /// Whether there are bytes to be received. If not, the connection is readable as soon as there are.
    pub(super) fn has_bytes(&self) -> bool {
        match self {
            Self::Writes(_) => false,
            Self::Reads(reader) => {
                reader.try_lock().is_some_and(|reader| reader.waits().is_ok_and(|waits| !waits))
            }
        }
    }

    /// Bytes that were written and not read.
    pub(super) fn untaken_bytes(&self) -> usize {
        match self {
            Self::Writes(writer) => writer.lock().unread().unwrap_or(0),
            Self::Reads(_) => 0,
        }
    }
}
