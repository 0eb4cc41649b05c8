//! Counts: all peers learn how many elements each rank gives each, before an all-to-all whose parts are not equal.
//!
//! It is an all-gather of numbers in memory of the library: of each peer those that it gives, and those that it takes.
//! Whether they fit each other all find alike.

use super::{Beside, Call, Place, Prepared, Report, Signals};
use crate::{
    Error,
    memory::{Backup, RawTensor},
};
use pccl_protocol::{Collective, MemberCount, PartDescriptor, Split};
use pccl_quant::{DataType, ReduceOp};
use std::{ops::Range, sync::Arc};

impl Call<'_> {
    /// Tells all peers how many elements this one gives each rank, and takes of each. The numbers of all are in
    /// `report` when it has succeeded. See [`Communicator::exchange_counts`](crate::Communicator::exchange_counts).
    pub fn exchange_counts(send_counts: &[u64], recv_counts: &[u64], report: &Report<Vec<u64>>) -> Self {
        let (own, report) = ([send_counts, recv_counts].concat(), report.clone());
        let (given, taken) = (send_counts.len(), recv_counts.len());
        Self::new(move |context| {
            let ranks = context.world.ring.len();
            if (given, taken) != (ranks, ranks) {
                let text = format!("{given} counts to send and {taken} to receive for a group of {ranks}");
                return Err(Error::InvalidArgument(text));
            }
            report.take();
            let numbers = 2 * ranks;
            let half = numbers * ranks * size_of::<u64>();
            let room = context.backups.take(2 * half);
            let raw = RawTensor::within(&room, 0..half, half..2 * half);
            let part = PartDescriptor::new((numbers * ranks) as u64, DataType::Uint64, ReduceOp::Sum);
            // Counts go by rank, so the members have to be those that the caller knew.
            let member = |peer: &_| MemberCount { peer: *peer, count: numbers as u64 };
            let split = Split::Members(context.world.ring.iter().map(member).collect());
            let descriptor = context.descriptor(Collective::AllGather(split), vec![part]);
            let beside = Exchange { own: own.clone(), room: room.clone(), half, report: report.clone() };
            let prepared = Prepared::of(descriptor, raw);
            Ok(Prepared { rooms: vec![room], beside: vec![Box::new(beside)], ..prepared })
        })
    }
}

/// The numbers of elements that each rank gives each, if all take what they are given. `all` has the numbers of each
/// rank: first those that it gives, then those that it takes.
fn judge(all: &[u64], ranks: usize) -> Result<Vec<u64>, Error> {
    let number = |rank: usize, index: usize| all[rank * 2 * ranks + index];
    for (from, to) in (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, to))) {
        let (gives, takes) = (number(from, to), number(to, ranks + from));
        if gives != takes {
            return Err(Error::InvalidArgument(format!(
                "rank {from} gives rank {to} {gives} elements, and rank {to} takes {takes} of it"
            )));
        }
    }
    Ok((0..ranks).flat_map(|from| (0..ranks).map(move |to| number(from, to))).collect())
}

/// Where the numbers of all are.
#[derive(Debug)]
struct Exchange {
    own: Vec<u64>,
    room: Arc<Backup>,
    half: usize,
    report: Report<Vec<u64>>,
}

impl Beside for Exchange {
    fn ranges(&self) -> Vec<(Range<usize>, bool)> {
        Vec::new()
    }

    fn before(&self, place: Place, _: &[RawTensor], _: Signals) {
        let bytes: Vec<u8> = self.own.iter().flat_map(|number| number.to_ne_bytes()).collect();
        let start = place.rank * bytes.len();
        self.room.fill(start..start + bytes.len(), |out| out.copy_from_slice(&bytes));
    }

    fn after(&self, place: Place, _: &[RawTensor]) -> Result<(), Error> {
        let decode =
            |bytes: &[u8]| bytes.as_chunks().0.iter().map(|it| u64::from_ne_bytes(*it)).collect::<Vec<_>>();
        let all = self.room.view(self.half..2 * self.half, decode);
        self.report.put(judge(&all, place.ranks)?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_do_not_fit_name_both_ranks() {
        // Rank 0 gives 1 and 2 and takes 1 and 3; rank 1 gives 3 and 4 and takes 2 and 4.
        let all = [1, 2, 1, 3, 3, 4, 2, 4];
        assert_eq!(judge(&all, 2), Ok(vec![1, 2, 3, 4]));
        let odd = [1, 2, 1, 3, 3, 4, 5, 4];
        let error = judge(&odd, 2).expect_err("rank 1 takes 5").to_string();
        assert!(error.contains("rank 0 gives rank 1 2 elements, and rank 1 takes 5 of it"), "{error}");
    }
}
