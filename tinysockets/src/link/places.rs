//! Where the payload of a frame lies: in one piece of memory or in many, as a transfer says.
//!
//! Pieces that are next to each other in a frame go through one system call. Where they are so small that even many of
//! them are not worth one, they are copied.

use std::io;

use super::{
    FaultKind, FrameHeader,
    core::Fault,
    memory::{self, PLACES_MAX, Place},
};
use crate::conn::Conn;

/// The number of bytes that is worth a system call. Fewer bytes in as many places as a call takes are copied.
const WORTH_A_CALL_BYTES: usize = 32 << 10;

/// Bytes that are copied for one system call.
const COPIED_BYTES: usize = 16 << 10;

/// Bytes of a payload that are next to each other in the frame, and the places where they lie.
pub(super) struct Places<'a> {
    places: Vec<Place<'a>>,
    bytes: usize,
    are_tiny: bool,
}

impl<'a> Places<'a> {
    /// The places of the payload of `header` from byte `done` on: at most this number of bytes, and no more places than
    /// a call takes. `place_of` says where the bytes from a given one on lie.
    pub(super) fn of(
        header: &FrameHeader,
        done: usize,
        at_most: usize,
        place_of: impl Fn(usize) -> Place<'a>,
    ) -> Result<Self, Fault> {
        let len = header.len as usize;
        let end = len.min(done.saturating_add(at_most));
        let (mut places, mut at) = (Vec::new(), done);
        while at < end && places.len() < PLACES_MAX {
            let mut place = place_of(at);
            let bytes = place.range.len();
            if bytes == 0 || bytes > len - at || !place.memory.contains(&place.range) {
                let (range, lent, op) = (&place.range, place.memory.len(), header.op);
                let text =
                    format!("byte {at} of a frame of {len} at {range:?} of {lent} bytes lent (op {op:?})");
                return Err(Fault::new(FaultKind::Internal, text));
            }
            place.range.end = place.range.start + bytes.min(end - at);
            at += place.range.len();
            places.push(place);
        }
        let are_tiny = places.len() == PLACES_MAX && at - done < WORTH_A_CALL_BYTES && at < end;
        Ok(Self { places, bytes: at - done, are_tiny })
    }

    /// Bytes in all places together.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether they are better copied, together with those that follow.
    pub(super) fn are_tiny(&self) -> bool {
        self.are_tiny
    }

    /// Whether all of the memory may be written.
    pub(super) fn are_writable(&self) -> bool {
        self.places.iter().all(|place| place.memory.is_writable())
    }

    /// Sends `header` and then the bytes, as [`memory::send`].
    pub(super) fn send(&self, header: &[u8], conn: &Conn) -> Option<io::Result<usize>> {
        memory::send(header, &self.places, conn)
    }

    /// Receives into the places, as [`memory::receive`].
    pub(super) fn receive(&self, conn: &Conn) -> Option<io::Result<usize>> {
        memory::receive(&self.places, conn)
    }

    /// Shows the first `count` bytes, place by place. `None` if a gate is closed.
    pub(super) fn view(&self, mut count: usize, mut read: impl FnMut(&[u8])) -> Option<()> {
        for Place { memory, range } in &self.places {
            let len = range.len().min(count);
            if len > 0 {
                memory.view(range.start..range.start + len, &mut read)?;
            }
            count -= len;
        }
        Some(())
    }

    /// Copies `bytes`, of which there are no more than in all places, into them. `None` if a gate is closed.
    pub(super) fn fill(&self, mut bytes: &[u8]) -> Option<()> {
        for Place { memory, range } in &self.places {
            let (here, rest) = bytes.split_at(range.len().min(bytes.len()));
            if !here.is_empty() {
                memory.update(range.start..range.start + here.len(), |place| place.copy_from_slice(here))?;
            }
            bytes = rest;
        }
        Some(())
    }
}

/// Sends `header` and then a copy of the payload from byte `done` on, as far as it fits into a buffer. The result is
/// that of [`memory::send`].
pub(super) fn send_copied<'a>(
    frame: &FrameHeader,
    done: usize,
    place_of: impl Fn(usize) -> Place<'a>,
    header: &[u8],
    conn: &Conn,
) -> Result<Option<io::Result<usize>>, Fault> {
    let (mut buffer, mut used) = ([0; COPIED_BYTES], 0);
    while used < COPIED_BYTES {
        let places = Places::of(frame, done + used, COPIED_BYTES - used, &place_of)?;
        if places.bytes() == 0 {
            break;
        }
        let copied = places.view(places.bytes(), |bytes| {
            buffer[used..used + bytes.len()].copy_from_slice(bytes);
            used += bytes.len();
        });
        if copied.is_none() {
            return Ok(None);
        }
    }
    let parts = [io::IoSlice::new(header), io::IoSlice::new(&buffer[..used])];
    Ok(Some(conn.try_send_many(&parts)))
}
