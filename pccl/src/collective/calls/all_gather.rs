//! All-gather: everybody gets what each one gives, side by side in the order of the ranks.

use super::{Beside, Call, Place, Prepared, Signals, own_part, same_type, split};
use crate::{
    Error,
    memory::{Backup, RawTensor, Role, Source, Span, Target},
};
use pccl_protocol::{Collective, Split};
use pccl_quant::ReduceOp;
use std::{ops::Range, sync::Arc};

impl<'a> Call<'a> {
    /// Puts what all peers send into `recv`, equally much of each. See
    /// [`Communicator::all_gather`](crate::Communicator::all_gather).
    pub fn all_gather(send: impl Into<Source<'a>>, recv: impl Into<Target<'a>>) -> Self {
        Self::gather(send.into(), recv.into(), None)
    }

    /// Puts what all peers send into `recv`, of each rank as many elements as `counts` says. See
    /// [`Communicator::all_gather_counts`](crate::Communicator::all_gather_counts).
    pub fn all_gather_counts(
        send: impl Into<Source<'a>>,
        recv: impl Into<Target<'a>>,
        counts: &[u64],
    ) -> Self {
        Self::gather(send.into(), recv.into(), Some(counts.to_vec()))
    }

    fn gather(send: Source<'a>, recv: Target<'a>, counts: Option<Vec<u64>>) -> Self {
        let (own, all) = (send.count(), recv.count());
        let (data_type, recv_type) = (send.data_type(), recv.data_type());
        // What is there is lost in any case.
        let (send, recv) = (send.span(), recv.span());
        Self::new(move |context| {
            same_type(data_type, recv_type)?;
            let split = split(context.world, counts.as_deref(), own, all)?;
            let part = context.part(all, data_type, ReduceOp::Sum)?;
            let room = context.backups.take(if send.is_on_device() { send.range().len() } else { 0 });
            let failure = copy_down(&send, &room).err();
            let beside = Gather { send: send.clone(), room: room.clone(), all, split: split.clone() };
            let descriptor = context.descriptor(Collective::AllGather(split), vec![part]);
            let prepared = Prepared::of(descriptor, recv.raw(Role::Gets));
            Ok(Prepared { rooms: vec![room], beside: vec![Box::new(beside)], failure, ..prepared })
        })
    }
}

/// Copies what this rank gives into the memory of the library, if it is on a device.
fn copy_down(send: &Span, room: &Backup) -> Result<(), Error> {
    if send.is_on_device() {
        let send = send.settled()?;
        for piece in send.pieces() {
            let content = send.read(piece.clone())?;
            room.fill(piece, |to| to.copy_from_slice(&content));
        }
    }
    Ok(())
}

/// The own part comes from a buffer of its own.
#[derive(Debug)]
struct Gather {
    send: Span,
    /// What it holds, if it is on a device.
    room: Arc<Backup>,
    all: usize,
    split: Split,
}

impl Beside for Gather {
    fn ranges(&self) -> Vec<(Range<usize>, bool)> {
        vec![(self.send.range(), false)]
    }

    fn before(&self, place: Place, raws: &[RawTensor], signals: Signals) {
        let [recv] = raws else { return };
        let element_bytes = recv.bytes().checked_div(self.all).unwrap_or(0);
        let start = own_part(&self.split, self.all, place).start * element_bytes;
        let put = |own: &[u8]| recv.put(start, own);
        let bytes = 0..self.send.range().len();
        if self.send.is_on_device() {
            self.room.view(bytes, put);
        } else if let Err(error) = self.send.read(bytes).map(|own| put(&own)) {
            (signals.fault)(error.to_string());
        }
    }
}
