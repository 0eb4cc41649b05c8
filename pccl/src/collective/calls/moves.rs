//! The memory of collectives that only move: gather, scatter, all-to-all.
//!
//! The tensor of such a collective is what one rank has, or what all of them have together. A rank has pieces of it, in
//! the buffers of its caller: links read and write them there. The part that a rank gives itself is copied at the end.
//!
//! A buffer on a device has memory of the library in its place: what is given is copied there before the vote, and what
//! was taken from there after the outcome.

use super::{Beside, Context, Place, Prepared};
use crate::{
    Error,
    backups::BackupPool,
    memory::{Backup, RawTensor, Role, Span},
};
use pccl_protocol::Descriptor;
use std::{fmt, ops::Range, sync::Arc};

/// Bytes of what all ranks give together, at most. A rank keeps account of the frames of all of it, also of those that
/// do not go by it: 20 MiB for as much as this.
const MAX_BYTES: u64 = 1 << 40;

/// The use that a rank makes of its buffers, in elements.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Layout {
    /// Elements of the send buffer that go to others, and the first one in the tensor.
    pub(super) gives: Option<(Range<usize>, usize)>,
    /// Elements of the receive buffer that come from others, and the first one in the tensor. Where others give nothing
    /// of it, nothing is written.
    pub(super) takes: Vec<(Range<usize>, usize)>,
    /// Elements that the rank gives itself: in the send buffer, and in the receive buffer.
    pub(super) keeps: Option<(Range<usize>, Range<usize>)>,
}

/// A collective that only moves.
pub(super) struct Moves {
    pub(super) descriptor: Descriptor,
    /// Of an all-to-all whose parts are not equal.
    pub(super) counts: Vec<u64>,
    /// The buffers of this rank: one that gives nothing has nothing to send, one that takes nothing no memory for it.
    pub(super) send: Option<Span>,
    pub(super) recv: Option<Span>,
    /// The use of them in a place.
    pub(super) layout: Box<dyn Fn(Place) -> Layout + Send + Sync>,
}

impl Moves {
    /// The operation.
    pub(super) fn prepare(self, context: &Context<'_>) -> Result<Prepared, Error> {
        if context.quantisation.is_some() {
            return Err(Error::InvalidArgument("what is only moved is not quantised".into()));
        }
        if self.descriptor.bytes() > MAX_BYTES {
            let bytes = self.descriptor.bytes();
            return Err(Error::InvalidArgument(format!("{bytes} bytes of all ranks, at most {MAX_BYTES}")));
        }
        let element_bytes = self.descriptor.parts.first().map_or(1, |part| part.data_type.size_bytes());
        let mut failure = None;
        let mut side = |(side, error): (Side, Option<Error>)| {
            failure = failure.take().or(error);
            side
        };
        let send = self.send.map(|span| side(Side::giving(span, context.backups)));
        let recv = self.recv.map(|span| side(Side::taking(span, context.backups)));
        let rooms = send.iter().chain(&recv).filter_map(|side| side.room.clone()).collect();
        let beside = Pieces { send, recv, element_bytes, layout: self.layout };
        let prepared = Prepared::new(self.descriptor, Vec::new());
        Ok(Prepared { counts: self.counts, rooms, beside: vec![Box::new(beside)], failure, ..prepared })
    }
}

/// A buffer of the caller, and the memory of it that links use.
#[derive(Debug)]
struct Side {
    span: Span,
    /// If it is on a device, memory of the library as long.
    room: Option<Arc<Backup>>,
    raw: RawTensor,
}

impl Side {
    fn room(span: &Span, backups: &BackupPool) -> Option<Arc<Backup>> {
        span.is_on_device().then(|| backups.take(span.range().len()))
    }

    /// A buffer that is sent, and why it could not be read.
    fn giving(span: Span, backups: &BackupPool) -> (Self, Option<Error>) {
        let Some(room) = Self::room(&span, backups) else {
            let raw = span.given();
            return (Self { span, room: None, raw }, None);
        };
        let copied = span.settled().and_then(|settled| {
            settled.pieces().try_for_each(|piece| {
                let content = settled.read(piece.clone())?;
                room.fill(piece, |out| out.copy_from_slice(&content));
                Ok(())
            })
        });
        let raw = RawTensor::part_of(&room, 0..span.range().len());
        (Self { span, room: Some(room), raw }, copied.err())
    }

    /// A buffer that is written, and why it cannot be.
    fn taking(span: Span, backups: &BackupPool) -> (Self, Option<Error>) {
        let Some(room) = Self::room(&span, backups) else {
            let raw = span.raw(Role::Gets);
            return (Self { span, room: None, raw }, None);
        };
        let settled = span.settled();
        let raw = RawTensor::part_of(&room, 0..span.range().len());
        let error = settled.as_ref().err().cloned();
        (Self { span: settled.unwrap_or(span), room: Some(room), raw }, error)
    }
}

/// The buffers of a rank.
struct Pieces {
    send: Option<Side>,
    recv: Option<Side>,
    element_bytes: usize,
    layout: Box<dyn Fn(Place) -> Layout + Send + Sync>,
}

impl fmt::Debug for Pieces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pieces").field("send", &self.send).field("recv", &self.recv).finish_non_exhaustive()
    }
}

impl Pieces {
    fn bytes(&self, elements: &Range<usize>) -> Range<usize> {
        elements.start * self.element_bytes..elements.end * self.element_bytes
    }
}

impl Beside for Pieces {
    fn ranges(&self) -> Vec<(Range<usize>, bool)> {
        let read = self.send.iter().map(|side| (side.span.range(), false));
        read.chain(self.recv.iter().map(|side| (side.span.range(), true))).collect()
    }

    fn pieces(&self, place: Place) -> Option<Vec<RawTensor>> {
        let Layout { gives, takes, .. } = (self.layout)(place);
        let piece = |side: &Option<Side>, (elements, at): &(Range<usize>, usize)| {
            let raw = side.as_ref()?.raw.part(self.bytes(elements));
            Some(raw.at(at * self.element_bytes))
        };
        let given = gives.iter().filter_map(|gives| piece(&self.send, gives));
        let mut all: Vec<_> =
            given.chain(takes.iter().filter_map(|takes| piece(&self.recv, takes))).collect();
        all.sort_by_key(RawTensor::starts_at);
        Some(all)
    }

    fn after(&self, place: Place, _: &[RawTensor]) -> Result<(), Error> {
        let Layout { takes, keeps, .. } = (self.layout)(place);
        let Some(recv) = &self.recv else { return Ok(()) };
        if let Some(room) = &recv.room {
            for (elements, _) in &takes {
                let bytes = self.bytes(elements);
                room.view(bytes.clone(), |taken| recv.span.fill(bytes, |out| out.copy_from_slice(taken)))?;
            }
        }
        if let Some((from, to)) = &keeps
            && let Some(send) = &self.send
            && !from.is_empty()
        {
            let own = send.span.read(self.bytes(from))?;
            recv.span.fill(self.bytes(to), |out| out.copy_from_slice(&own))?;
        }
        Ok(())
    }
}
