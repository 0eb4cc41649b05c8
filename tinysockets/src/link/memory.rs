//! The caller's memory in the hands of the link's threads. The only module of the link with unsafe code.
//!
//! An operation lends ranges of its caller's buffers as [`Lent`] objects, all behind one [`Gate`]. Each accessor takes
//! a pass, touches the memory, and gives the pass back; none of them can block in between: system calls are made with
//! `MSG_DONTWAIT`. So after [`Gate::close`] the memory is free again as soon as the calls under way return
//! ([`Gate::wait_drained`]), no matter what any peer does, and no connection has to be broken for it.
//!
//! # The owner of each range
//!
//! | accessor | touches | may run at the same time, on the same bytes, as |
//! |---|---|---|
//! | [`Lent::view`] | reads through `&[u8]` | `view`, `send` |
//! | [`Lent::update`] | writes through `&mut [u8]` | nothing |
//! | `send` | the kernel reads | `view`, `send`, `receive` |
//! | `receive` | the kernel writes | `send` |
//!
//! `send` and `receive` make no reference to the bytes, only the kernel touches them. A neighbour may send the
//! gathered value of a range as soon as it *has* the old one, which can be before the sending thread here has returned
//! from its call; both calls then meet on the same bytes, with nothing left to send that matters.
//!
//! Over a connection with records the bytes are copied into a record before it is sent, and out of one after it was
//! found authentic. Nobody has the old value of a range before the copy has ended, so `send` and `receive` do not meet.

use std::{fmt, io, ops::Range, sync::Arc};

pub use super::gate::{Gate, Pass};
use crate::{conn::Conn, sys};

/// The source or goal behind lent memory, if its content comes from elsewhere, or goes there, piece by piece.
pub trait Origin: fmt::Debug + Send + Sync {
    /// Waits until the bytes of a range are here; `false`: they will not come, and the thread that brings them says so.
    /// Called by the thread that is about to read them. The event that it waits for must not depend on this thread.
    fn arrived(&self, range: &Range<usize>) -> bool;
    /// The bytes of a range are written, and nobody writes them any more. Must not block.
    fn finished(&self, range: Range<usize>);
}

/// A range of the caller's memory that is lent to the threads of links until its gate closes.
pub struct Lent {
    start: *mut u8,
    len: usize,
    writable: bool,
    gate: Arc<Gate>,
    origin: Option<Arc<dyn Origin>>,
}

// SAFETY: a `Lent` is an address with a length. Memory is reached only through accessors, under a pass of the gate, and
// `new` obliges its caller to keep the memory valid for all threads until the gate is drained.
unsafe impl Send for Lent {}
// SAFETY: as above; `new` also obliges its caller to see to it that concurrent accesses are compatible.
unsafe impl Sync for Lent {}

impl Lent {
    /// Lends `len` bytes from `start` on, for reading, and for writing if `writable`.
    ///
    /// # Safety
    ///
    /// - From now until `gate` is closed and drained, the bytes are initialised and valid for reads (and writes, if
    ///   `writable`) from any thread, and nobody accesses them in a way that conflicts with the accessors, except
    ///   through `Lent` objects.
    /// - A caller that shares this object, and others for the same bytes, sees to it that accessors run at the same
    ///   time on the same bytes only where the table in the module's documentation allows it.
    /// - `len` is at most `isize::MAX`. With `len` 0, `start` may be dangling, but not null.
    #[must_use]
    pub unsafe fn new(start: *mut u8, len: usize, writable: bool, gate: Arc<Gate>) -> Self {
        Self { start, len, writable, gate, origin: None }
    }

    /// Lends `len` bytes from `start` on, for reading only.
    ///
    /// # Safety
    ///
    /// As for [`Lent::new`], with `writable` false.
    #[must_use]
    pub unsafe fn read_only(start: *const u8, len: usize, gate: Arc<Gate>) -> Self {
        Self { start: start.cast_mut(), len, writable: false, gate, origin: None }
    }

    /// The same memory, which stands for something else.
    #[must_use]
    pub fn standing_for(mut self, origin: Arc<dyn Origin>) -> Self {
        self.origin = Some(origin);
        self
    }

    /// Waits until the bytes of `range` are here, if they come from elsewhere; `false`: they will not come. Every
    /// accessor that reads does that by itself, before it takes its pass. A caller that holds a pass already calls this
    /// before it takes the pass, so that closing the gate does not wait for it.
    pub fn has_arrived(&self, range: &Range<usize>) -> bool {
        self.origin.as_ref().is_none_or(|origin| origin.arrived(range))
    }

    /// Says that the bytes of `range` are written, and that nobody writes them any more.
    pub fn finished(&self, range: Range<usize>) {
        if let Some(origin) = &self.origin {
            origin.finished(range);
        }
    }

    /// Bytes lent.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is lent.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the memory may be written.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// The gate in front of the memory.
    pub fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    /// Whether `range` lies within the memory lent. Accessors return `None` for a range that does not.
    pub fn contains(&self, range: &Range<usize>) -> bool {
        range.start <= range.end && range.end <= self.len
    }

    /// Runs `read` on the bytes of `range`. `None` if the gate is closed, the range is out of bounds, or the bytes will
    /// not come. `read` must not block: closing the gate waits for it.
    pub fn view<R>(&self, range: Range<usize>, read: impl FnOnce(&[u8]) -> R) -> Option<R> {
        if !self.has_arrived(&range) {
            return None;
        }
        let (_pass, start) = self.open(&range)?;
        // SAFETY: `open` checked the bounds and holds a pass until the end of this function, so by the contract of
        // `new` the bytes are valid, and nobody writes them now.
        let bytes = unsafe { std::slice::from_raw_parts(start, range.len()) };
        Some(read(bytes))
    }

    /// Runs `write` on the bytes of `range`. `None` if the gate is closed, the range is out of bounds or the memory was
    /// lent for reading only. `write` must not block: closing the gate waits for it.
    pub fn update<R>(&self, range: Range<usize>, write: impl FnOnce(&mut [u8]) -> R) -> Option<R> {
        let (_pass, start) = self.open_writable(&range)?;
        // SAFETY: as in `view`; the memory is writable, and by the contract of `new` nobody else touches these bytes
        // now.
        let bytes = unsafe { std::slice::from_raw_parts_mut(start, range.len()) };
        Some(write(bytes))
    }

    /// Checks the bounds, takes a pass, and returns the address of the first byte of `range`.
    fn open(&self, range: &Range<usize>) -> Option<(Pass<'_>, *mut u8)> {
        debug_assert!(self.contains(range), "range {range:?} exceeds {} lent bytes", self.len);
        if !self.contains(range) {
            return None;
        }
        let pass = self.gate.enter()?;
        // SAFETY: the offset is within the memory lent, which by the contract of `new` is one object of at most
        // `isize::MAX` bytes; the pass keeps it alive.
        Some((pass, unsafe { self.start.add(range.start) }))
    }

    fn open_writable(&self, range: &Range<usize>) -> Option<(Pass<'_>, *mut u8)> {
        debug_assert!(self.writable, "memory lent for reading only is not written");
        if self.writable { self.open(range) } else { None }
    }
}

/// Most places of one system call.
pub(super) const PLACES_MAX: usize = 32;

/// Bytes of a payload that lie together.
#[derive(Debug, Clone)]
pub struct Place<'a> {
    /// The memory in which they lie.
    pub memory: &'a Lent,
    /// Where in it. Not empty.
    pub range: Range<usize>,
}

/// Sends `header` and then the bytes of at most [`PLACES_MAX`] places, as far as the socket takes them without
/// blocking: one system call, which returns the number of bytes taken of all together, or `WouldBlock`. `None` if a
/// gate is closed or a range is out of bounds; nothing was sent then.
pub(super) fn send(header: &[u8], places: &[Place<'_>], conn: &Conn) -> Option<io::Result<usize>> {
    let mut parts = [sys::raw_part(std::ptr::dangling_mut(), 0); PLACES_MAX + 1];
    parts[0] = sys::raw_part(header.as_ptr().cast_mut(), header.len());
    let mut passes = [const { None }; PLACES_MAX];
    if !places.iter().take(PLACES_MAX).all(|place| place.memory.has_arrived(&place.range)) {
        return None;
    }
    for ((place, pass), part) in places.iter().zip(&mut passes).zip(&mut parts[1..]) {
        let (entered, start) = place.memory.open(&place.range)?;
        *pass = Some(entered);
        *part = sys::raw_part(start, place.range.len());
    }
    let parts = &parts[..=places.len().min(PLACES_MAX)];
    let total = parts.iter().map(|part| part.iov_len).sum();
    // SAFETY: as below; and the record is memory of its own.
    if let Some(sealed) = conn.try_send_with(total, |given, record| unsafe { copy_out(parts, given, record) })
    {
        return Some(sealed);
    }
    // SAFETY: the first part is a live slice. For the others `open` checked the bounds, and the passes are held until
    // the end of this function, so by the contract of `Lent::new` the bytes are mapped. There is no reference to them,
    // and a concurrent `receive` may change them. The call only reads the bytes that it sends.
    Some(unsafe { sys::send_parts_raw(conn.fd(), parts, true) })
}

/// Receives into at most [`PLACES_MAX`] places what the socket has, without blocking: one system call, which returns
/// the number of bytes received (0 for no places, or at the end of the stream), or `WouldBlock`. `None` if a gate is
/// closed, a range is out of bounds or memory was lent for reading only; nothing was received then.
pub(super) fn receive(places: &[Place<'_>], conn: &Conn) -> Option<io::Result<usize>> {
    let mut parts = [sys::raw_part(std::ptr::dangling_mut(), 0); PLACES_MAX];
    let mut passes = [const { None }; PLACES_MAX];
    for ((place, pass), part) in places.iter().zip(&mut passes).zip(&mut parts) {
        let (entered, start) = place.memory.open_writable(&place.range)?;
        *pass = Some(entered);
        *part = sys::raw_part(start, place.range.len());
    }
    let parts = &parts[..places.len().min(PLACES_MAX)];
    if parts.is_empty() {
        return Some(Ok(0));
    }
    // SAFETY: as below; and the record is memory of its own.
    let sealed = conn.try_recv_with(|record| unsafe { copy_in(record, parts) });
    if let Some(sealed) = sealed {
        return Some(sealed.map(|count| count.unwrap_or(0)));
    }
    // SAFETY: as in `send`, and the bytes are writable. Nothing but the kernel touches them now: by the contract of
    // `Lent::new` no reference to them is in use, and a concurrent `send` puts up with whatever it reads.
    Some(unsafe { sys::recv_parts_raw(conn.fd(), parts, true) })
}

/// Copies the bytes of `parts` from byte `given` on, as far as they fit, into `record`.
///
/// # Safety
/// The parts name memory that may be read, and that nobody writes now.
unsafe fn copy_out(parts: &[sys::RawPart], mut given: usize, record: &mut [u8]) {
    let mut filled = 0;
    for part in parts {
        let from = given.min(part.iov_len);
        let count = (part.iov_len - from).min(record.len() - filled);
        let to = record[filled..filled + count].as_mut_ptr();
        // SAFETY: `from + count` bytes of the part may be read, by the contract, and `count` of the record written; a
        // record and the caller's memory do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(part.iov_base.cast::<u8>().add(from), to, count) };
        (given, filled) = (given - from, filled + count);
    }
}

/// Copies from `record` into `parts`, as far as both go; returns how many bytes that were.
///
/// # Safety
/// The parts name memory that may be written, and that nobody else touches now.
unsafe fn copy_in(record: &[u8], parts: &[sys::RawPart]) -> usize {
    let mut taken = 0;
    for part in parts {
        let count = part.iov_len.min(record.len() - taken);
        let from = record[taken..taken + count].as_ptr();
        // SAFETY: `count` bytes of the record may be read, and as many of the part written, by the contract; a record
        // and the caller's memory do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(from, part.iov_base.cast::<u8>(), count) };
        taken += count;
    }
    taken
}

impl fmt::Debug for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lent")
            .field("len", &self.len)
            .field("writable", &self.writable)
            .field("gate", &self.gate)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::{
        io::{Read, Write},
        net::{TcpListener, TcpStream},
    };

    use super::*;

    fn pair() -> (Conn, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let one = TcpStream::connect(listener.local_addr().expect("bound")).expect("connect");
        (one.into(), listener.accept().expect("accept").0)
    }

    fn lend(bytes: &mut [u8], gate: &Arc<Gate>) -> Lent {
        // SAFETY: the tests keep the slice alive and untouched while its `Lent` is in use, on one thread.
        unsafe { Lent::new(bytes.as_mut_ptr(), bytes.len(), true, Arc::clone(gate)) }
    }

    #[test]
    fn a_closed_gate_shuts_every_accessor() {
        let (one, mut other) = pair();
        other.write_all(b"data").expect("send");
        let (gate, mut bytes) = (Arc::new(Gate::new()), *b"0123456789");
        let lent = lend(&mut bytes, &gate);
        assert_eq!(lent.view(2..4, <[u8]>::to_vec), Some(b"23".to_vec()));
        assert_eq!(lent.update(0..2, |bytes| bytes.copy_from_slice(b"ab")), Some(()));
        gate.close();
        assert_eq!(lent.view(2..4, <[u8]>::len), None);
        assert_eq!(lent.update(2..4, |bytes| bytes.len()), None);
        let place = || Place { memory: &lent, range: 0..4 };
        assert!(send(b"header", &[place()], &one).is_none());
        assert!(receive(&[place()], &one).is_none());
        assert!(gate.wait_drained(None));
        assert_eq!(&bytes, b"ab23456789");
    }

    #[test]
    fn sends_header_and_places_and_receives_into_places() {
        let (one, mut other) = pair();
        let (gate, mut bytes) = (Arc::new(Gate::new()), *b"0123456789");
        let lent = lend(&mut bytes, &gate);
        let place = |range| Place { memory: &lent, range };
        let sent = send(b"head", &[place(3..6), place(0..1)], &one).expect("open").expect("room");
        assert_eq!(sent, 8);
        assert_eq!(send(b"", &[place(9..10)], &one).expect("open").expect("room"), 1);
        let mut got = [0; 9];
        other.read_exact(&mut got).expect("receive");
        assert_eq!(&got, b"head34509");

        let nothing = receive(&[place(0..4)], &one).expect("open").expect_err("nothing was sent");
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
        other.write_all(b"abc").expect("send");
        one.wait(sys::Interest::Read, None).expect("poll");
        assert_eq!(receive(&[place(7..9), place(1..3)], &one).expect("open").expect("three"), 3);
        drop(other);
        one.wait(sys::Interest::Read, None).expect("poll");
        assert_eq!(receive(&[place(0..4)], &one).expect("open").expect("end"), 0);
        assert_eq!(&bytes, b"0c23456ab9");
    }

    #[test]
    fn bounds_are_those_of_the_range_lent() {
        let (gate, mut bytes) = (Arc::new(Gate::new()), [0; 4]);
        let lent = lend(&mut bytes, &gate);
        assert!(lent.contains(&(0..4)) && lent.contains(&(4..4)));
        #[allow(clippy::reversed_empty_ranges)]
        let reversed = 3..2;
        assert!(!lent.contains(&(0..5)) && !lent.contains(&(5..5)) && !lent.contains(&reversed));
        assert_eq!(lent.view(4..4, <[u8]>::len), Some(0));
    }
}
