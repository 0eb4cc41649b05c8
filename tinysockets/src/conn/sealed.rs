//! The bytes of a connection in [records](crate::seal).

use std::{
    io,
    os::fd::BorrowedFd,
    sync::atomic::{AtomicBool, Ordering},
};

use parking_lot::Mutex;

use crate::{
    mode::WireMode,
    seal::{Opener, Seal, Sealer, Suite},
    sys,
};

/// Both directions of a connection with records. Nobody waits under one of the locks but for one who receives without
/// a limit in time, and a connection has one receiver.
pub(super) struct Sealed {
    pub(super) suite: Suite,
    pub(super) mode: WireMode,
    sealer: Mutex<Sealer>,
    opener: Mutex<Opener>,
    /// There are bytes for the receiver of which the kernel does not know any more.
    has_bytes: AtomicBool,
    /// Records wait for room in the socket.
    is_waiting: AtomicBool,
}

impl std::fmt::Debug for Sealed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sealed({}, {})", self.suite, self.mode)
    }
}

impl Sealed {
    pub(super) fn new(seal: Seal) -> Self {
        let Seal { suite, mode, sealer, opener } = seal;
        let has_bytes = AtomicBool::new(opener.is_ready());
        let (sealer, opener) = (Mutex::new(sealer), Mutex::new(opener));
        Self { suite, mode, sealer, opener, has_bytes, is_waiting: AtomicBool::new(false) }
    }

    /// Makes records of what `fill` gives, unless earlier ones still wait, and sends what the socket takes; returns how
    /// many bytes have been taken. `fill` is as for [`Sealer::seal`].
    pub(super) fn try_send(
        &self,
        fd: BorrowedFd<'_>,
        at_most: usize,
        fill: impl FnMut(usize, &mut [u8]),
    ) -> io::Result<usize> {
        let mut sealer = self.sealer.lock();
        self.flush(fd, &mut sealer)?;
        let taken = sealer.seal(at_most, fill)?;
        match self.flush(fd, &mut sealer) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(taken),
        }
    }

    /// Sends the records that wait.
    fn flush(&self, fd: BorrowedFd<'_>, sealer: &mut Sealer) -> io::Result<()> {
        while !sealer.waiting().is_empty() {
            match sys::send(fd, sealer.waiting(), true) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => sealer.sent(count),
                Err(error) => {
                    self.is_waiting.store(true, Ordering::Relaxed);
                    return Err(error);
                }
            }
        }
        self.is_waiting.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Hands authentic bytes to `take`, which says how many of them it has taken. `None` without a call of it: the end
    /// of the stream. An end within a record is one as well: its bytes never come out.
    pub(super) fn recv(
        &self,
        fd: BorrowedFd<'_>,
        dont_wait: bool,
        take: impl FnOnce(&[u8]) -> usize,
    ) -> io::Result<Option<usize>> {
        let mut opener = self.opener.lock();
        while opener.plain().is_empty() {
            if !opener.open()? {
                match sys::recv(fd, opener.room(), dont_wait)? {
                    0 => return Ok(None),
                    count => opener.received(count),
                }
            }
        }
        let taken = take(opener.plain());
        opener.take(taken);
        self.has_bytes.store(opener.is_ready(), Ordering::Relaxed);
        Ok(Some(taken))
    }

    /// Sends the records that wait, if there are some.
    pub(super) fn try_flush(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        if self.is_waiting() { self.flush(fd, &mut self.sealer.lock()) } else { Ok(()) }
    }

    /// Whether records wait for room in the socket.
    pub(super) fn is_waiting(&self) -> bool {
        self.is_waiting.load(Ordering::Relaxed)
    }

    /// Whether there are bytes for the receiver of which the kernel does not know any more.
    pub(super) fn has_bytes(&self) -> bool {
        self.has_bytes.load(Ordering::Relaxed)
    }
}
