//! All-to-all: each one gives each one a part.
//!
//! The tensor of the collective has the parts of rank 0 for all ranks first, then those of rank 1, and so on. If they
//! are not equal, all ranks have to know all numbers of elements beforehand; votes have a digest of them.

use super::{
    Call, Context, Place,
    moves::{Layout, Moves},
    same_type,
};
use crate::{
    Error,
    memory::{Source, Target},
};
use pccl_protocol::{Blocks, Collective, MemberCount, Split};
use pccl_quant::ReduceOp;

impl<'a> Call<'a> {
    /// Gives each rank an equal part of `send`, and puts what all give this one into `recv`, in the order of the ranks.
    /// See [`Communicator::all_to_all`](crate::Communicator::all_to_all).
    pub fn all_to_all(send: impl Into<Source<'a>>, recv: impl Into<Target<'a>>) -> Self {
        Self::to_all(send.into(), recv.into(), None)
    }

    /// As [`Call::all_to_all`], with parts that are not equal: `counts` has, for each rank, the numbers of elements
    /// that it gives rank 0, rank 1, and so on. All peers give the same.
    /// [`Communicator::all_to_all_counts`](crate::Communicator::all_to_all_counts) is for peers that know their own
    /// numbers only.
    pub fn all_to_all_counts(
        send: impl Into<Source<'a>>,
        recv: impl Into<Target<'a>>,
        counts: &[u64],
    ) -> Self {
        Self::to_all(send.into(), recv.into(), Some(counts.to_vec()))
    }

    fn to_all(send: Source<'a>, recv: Target<'a>, counts: Option<Vec<u64>>) -> Self {
        let (given, taken) = (send.count(), recv.count());
        let (data_type, recv_type) = (send.data_type(), recv.data_type());
        let (send, recv) = (send.span(), recv.span());
        Self::new(move |context| {
            same_type(data_type, recv_type)?;
            let (blocks, all) = match &counts {
                None => equal(context, given, taken)?,
                Some(counts) => of_counts(context, counts, given, taken)?,
            };
            let part = context.part(all, data_type, ReduceOp::Sum)?;
            let descriptor = context.descriptor(Collective::AllToAll(blocks), vec![part]);
            let (send, recv) = (Some(send.clone()), Some(recv.clone()));
            let known = counts.clone();
            let layout = Box::new(move |place: Place| match &known {
                Some(counts) => layout(place, |from, to| counts[from * place.ranks + to] as usize),
                None => layout(place, |_, _| given / place.ranks),
            });
            let counts = counts.clone().unwrap_or_default();
            Moves { descriptor, counts, send, recv, layout }.prepare(context)
        })
    }
}

/// Equal parts among the ranks that the caller knows, and the elements of all of them.
fn equal(context: &Context<'_>, given: usize, taken: usize) -> Result<(Blocks, usize), Error> {
    let ranks = context.world.ring.len().max(1);
    if given != taken || !given.is_multiple_of(ranks) {
        return Err(Error::InvalidArgument(format!(
            "{given} elements to send and {taken} to receive are no equal part for each of {ranks} ranks"
        )));
    }
    let split = Split::Equal(u32::try_from(ranks).unwrap_or(u32::MAX));
    Ok((Blocks { split, digest: 0 }, given.saturating_mul(ranks)))
}

/// Parts of given numbers of elements, and the elements of all of them.
fn of_counts(
    context: &Context<'_>,
    counts: &[u64],
    given: usize,
    taken: usize,
) -> Result<(Blocks, usize), Error> {
    let (ranks, rank) = (context.world.ring.len(), context.world.rank);
    let refuse = |text: String| Err(Error::InvalidArgument(text));
    if ranks == 0 || counts.len() != ranks * ranks {
        return refuse(format!("{} counts for a group of {ranks}, and not one for each pair", counts.len()));
    }
    let all = counts.iter().try_fold(0u64, |sum, count| sum.checked_add(*count));
    let Some(all) = all.and_then(|all| usize::try_from(all).ok()) else {
        return refuse("counts of too many elements".into());
    };
    let gives = |rank: usize| counts[rank * ranks..][..ranks].iter().sum::<u64>();
    let takes = counts.iter().skip(rank).step_by(ranks).sum::<u64>();
    if (gives(rank), takes) != (given as u64, taken as u64) {
        return refuse(format!(
            "{given} elements to send and {taken} to receive, and by the counts rank {rank} gives {} and takes {takes}",
            gives(rank)
        ));
    }
    let member = |(rank, peer): (usize, &_)| MemberCount { peer: *peer, count: gives(rank) };
    let split = Split::Members(context.world.ring.iter().enumerate().map(member).collect());
    let bytes: Vec<u8> = counts.iter().flat_map(|count| count.to_le_bytes()).collect();
    // 0 stands for equal parts.
    let digest = (pccl_hash::tree_hash(&bytes).to_u128() as u64).max(1);
    Ok((Blocks { split, digest }, all))
}

/// The use that a rank makes of its buffers, where `count` elements go from a rank to another one.
fn layout(Place { rank, ranks }: Place, count: impl Fn(usize, usize) -> usize) -> Layout {
    let (mut layout, mut at, mut taken) = (Layout::default(), 0, 0);
    for from in 0..ranks {
        let mut given = 0;
        for to in 0..ranks {
            let (elements, first) = (count(from, to), at + given);
            if to == rank {
                let place = taken..taken + elements;
                taken = place.end;
                match from == rank {
                    true => layout.keeps = Some((given..given + elements, place)),
                    false => layout.takes.push((place, first)),
                }
            }
            given += elements;
        }
        if from == rank {
            layout.gives = Some((0..given, at));
        }
        at += given;
    }
    layout
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_gives_a_row_and_takes_a_column() {
        // Rank 0 gives 1, 2, 3; rank 1 gives 4, 0, 5; rank 2 gives 6, 7, 8.
        let counts = [1, 2, 3, 4, 0, 5, 6, 7, 8];
        let of = |rank| layout(Place { rank, ranks: 3 }, |from, to| counts[3 * from + to]);
        let (first, second) = (of(0), of(1));
        assert_eq!(first.gives, Some((0..6, 0)));
        assert_eq!(first.takes, [(1..5, 6), (5..11, 15)]);
        assert_eq!(first.keeps, Some((0..1, 0..1)));
        assert_eq!(second.gives, Some((0..9, 6)));
        assert_eq!(second.takes, [(0..2, 1), (2..9, 21)]);
        assert_eq!(second.keeps, Some((4..4, 2..2)));
    }
}
