//! The ring of bytes in a [`Region`]: one process writes, one reads, and each wakes the other where that waits.
//!
//! Both counters only grow. The own one is kept here as well, so the other process can spoil nothing but its own, and
//! that one is checked each time: a distance that no ring has is an error, and no address is ever made of it.
//!
//! **Wake-ups.** An end that finds nothing to do sets its flag, looks once more, and only then waits; the other one
//! moves its counter first and looks at the flag then. A fence lies between the two steps of each end, so at least one
//! sees the other. The writer is woken when half of the ring is free: each wake-up is then worth a good deal of bytes.

use std::{
    io,
    sync::atomic::{AtomicU32, Ordering, fence},
};

use super::region::{RING_BYTES, Region};

/// Bytes after which a counter is moved: the other end is at work on a piece while this one is at the next.
const PIECE_BYTES: usize = 128 << 10;
/// The room that is worth waking the writer.
const WORTH_WAKING_BYTES: usize = RING_BYTES / 2;

/// The end that writes.
#[derive(Debug)]
pub(crate) struct Writer {
    region: Region,
    written: u64,
}

/// The end that reads.
#[derive(Debug)]
pub(crate) struct Reader {
    region: Region,
    read: u64,
}

impl Writer {
    /// The end that writes into a region which is new.
    pub(crate) fn new(region: Region) -> Self {
        Self { region, written: 0 }
    }

    /// Bytes that the reader has not read.
    pub(crate) fn unread(&self) -> io::Result<usize> {
        between(self.region.read().load(Ordering::Acquire), self.written)
    }

    /// Writes what there is room for, of at most this number of bytes; returns how many that were. `fill` is told how
    /// many of the bytes it has given, and fills the place that it gets with those that follow. `wake` wakes the reader
    /// where it waits.
    pub(crate) fn write(
        &mut self,
        at_most: usize,
        mut fill: impl FnMut(usize, &mut [u8]),
        mut wake: impl FnMut() -> io::Result<()>,
    ) -> io::Result<usize> {
        let count = at_most.min(RING_BYTES - self.unread()?);
        let mut done = 0;
        while done < count {
            let at = place(self.written);
            let end = at + (count - done).min(RING_BYTES - at).min(PIECE_BYTES);
            // SAFETY: no more bytes than are free are filled from `written` on, which only this method moves, and it
            // has one slice at a time.
            fill(done, unsafe { self.region.bytes_mut(at..end) });
            done += end - at;
            self.written += (end - at) as u64;
            self.region.written().store(self.written, Ordering::Release);
            wake_if(self.region.reader_waits(), &mut wake)?;
        }
        Ok(done)
    }

    /// Asks to be woken when there is room. `false`: there is by now.
    pub(crate) fn waits(&self) -> io::Result<bool> {
        announce(self.region.writer_waits());
        Ok(RING_BYTES - self.unread()? < WORTH_WAKING_BYTES)
    }
}

impl Reader {
    /// The end that reads from a region which is new.
    pub(crate) fn new(region: Region) -> Self {
        Self { region, read: 0 }
    }

    /// Bytes that are there.
    pub(crate) fn unread(&self) -> io::Result<usize> {
        between(self.read, self.region.written().load(Ordering::Acquire))
    }

    /// Hands bytes that are there to `take`, which says how many of them it has taken: as many as lie together, and no
    /// more than a piece. `wake` wakes the writer where it waits and there is room for much.
    pub(crate) fn read(
        &mut self,
        take: impl FnOnce(&[u8]) -> usize,
        mut wake: impl FnMut() -> io::Result<()>,
    ) -> io::Result<usize> {
        let (at, unread) = (place(self.read), self.unread()?);
        let end = at + unread.min(RING_BYTES - at).min(PIECE_BYTES);
        // SAFETY: the range lies between `read`, which only this method moves, and `written`.
        let taken = take(unsafe { self.region.bytes(at..end) }).min(end - at);
        self.read += taken as u64;
        self.region.read().store(self.read, Ordering::Release);
        if RING_BYTES - (unread - taken) >= WORTH_WAKING_BYTES {
            wake_if(self.region.writer_waits(), &mut wake)?;
        }
        Ok(taken)
    }

    /// Asks to be woken when there are bytes. `false`: there are by now.
    pub(crate) fn waits(&self) -> io::Result<bool> {
        announce(self.region.reader_waits());
        Ok(self.unread()? == 0)
    }
}

/// Where in the ring the byte with this number lies.
fn place(number: u64) -> usize {
    (number % RING_BYTES as u64) as usize
}

/// Bytes between the two counters.
fn between(read: u64, written: u64) -> io::Result<usize> {
    let unread = written.checked_sub(read).and_then(|unread| usize::try_from(unread).ok());
    let broken =
        || io::Error::new(io::ErrorKind::InvalidData, "the other end has spoilt the memory that is shared");
    unread.filter(|unread| *unread <= RING_BYTES).ok_or_else(broken)
}

/// Says that this end waits, before it looks once more.
fn announce(flag: &AtomicU32) {
    flag.store(1, Ordering::Relaxed);
    fence(Ordering::SeqCst);
}

/// Wakes the other end if it waits, after this one has moved its counter.
fn wake_if(flag: &AtomicU32, wake: &mut impl FnMut() -> io::Result<()>) -> io::Result<()> {
    fence(Ordering::SeqCst);
    if flag.load(Ordering::Relaxed) != 0 && flag.swap(0, Ordering::Relaxed) != 0 { wake() } else { Ok(()) }
}
