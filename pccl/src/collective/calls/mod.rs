//! Collectives as callers make them: one file for each, with what is its own. It checks the arguments, makes the
//! descriptor that peers vote for, and says which memory attempts work on and what the caller's memory gets
//! besides.
//!
//! Attempts know a [`Shape`] and memory of the whole tensor, in place or out of place. Where the caller has memory
//! for a part of it only, the library has the rest ([`Prepared::rooms`]), and what belongs to the caller is copied by
//! [`Beside`]. Where data only moves, nobody folds anything, so attempts need no more than parts ([`Beside::pieces`]).

mod all_gather;
mod all_reduce;
mod all_to_all;
mod barrier;
mod broadcast;
mod clip;
mod counts;
mod gather;
mod moves;
mod on_device;
mod reduce;
mod reduce_scatter;
mod report;
mod rooted;
mod scatter;
mod send_recv;
mod weighted;

pub use clip::{Clip, ClipReport, PeerNorm};
pub use report::Report;

use crate::{
    Error, World,
    backups::BackupPool,
    memory::{Backup, RawTensor},
};
use pccl_protocol::{
    Algorithm, Collective, Cut, Descriptor, Finite, MemberCount, NotFinite, Nothing, Pair, PartDescriptor,
    PeerId, Split,
};
use pccl_quant::{DataType, ReduceOp, quantise::Quantisation};
use pccl_schedule::Shape;
use std::{fmt, marker::PhantomData, ops::Range, sync::Arc};

/// Makes the operation of a call, once for each try.
type Prepare = dyn Fn(&Context<'_>) -> Result<Prepared, Error> + Send + Sync;

/// A collective with the memory that it works on: what [`Communicator::call`](crate::Communicator::call) and
/// [`Scope::launch`](crate::Scope::launch) carry out. Each kind has a constructor.
///
/// ```no_run
/// # let comm = pccl::Communicator::builder("127.0.0.1:48148").build()?;
/// let (mut weights, mut gradient) = (vec![0.0_f32; 1000], vec![1.0_f32; 1000]);
/// comm.scope(|scope| {
///     let first = scope.launch(pccl::Call::broadcast(&mut weights[..], 0), 1)?;
///     let second = scope.launch(pccl::Call::reduce(&mut gradient[..], 0, pccl::ReduceOp::Sum), 2)?;
///     first.wait()?;
///     second.wait()
/// })?;
/// # Ok::<(), pccl::Error>(())
/// ```
pub struct Call<'a> {
    prepare: Box<Prepare>,
    quantisation: Option<Quantisation>,
    refuses_non_finite: bool,
    cut: Option<Cut>,
    lent: PhantomData<&'a mut [u8]>,
}

impl fmt::Debug for Call<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").field("quantisation", &self.quantisation).finish_non_exhaustive()
    }
}

impl Call<'_> {
    /// `prepare` makes the operation, once for each try. The caller's memory that it captures is borrowed for the life
    /// of the call.
    fn new(prepare: impl Fn(&Context<'_>) -> Result<Prepared, Error> + Send + Sync + 'static) -> Self {
        let prepare = Box::new(prepare);
        Self { prepare, quantisation: None, refuses_non_finite: false, cut: None, lent: PhantomData }
    }

    /// The same, with elements that are quantised while they travel: floats only, and the same way on all peers.
    /// Where all peers receive the same, they end with the same bytes, the one that has given them included. Tensors
    /// of an all-reduce that have a quantisation of their own keep it.
    #[must_use]
    pub fn quantised(mut self, quantisation: impl Into<Option<Quantisation>>) -> Self {
        self.quantisation = quantisation.into();
        self
    }

    /// The same, and it fails for all if a contribution holds NaN or an infinity: nothing is sent, all buffers are as
    /// before, and the verdict ([`Cause::NotFinite`](crate::Cause::NotFinite)) names each peer that gives such values,
    /// with the first of them. Each peer looks at its own values before it votes, which takes one pass over them. All
    /// peers have to ask for it, or none. Where nothing is reduced it changes nothing.
    #[must_use]
    pub fn refusing_non_finite(mut self) -> Self {
        self.refuses_non_finite = true;
        self
    }

    /// The same, as a segment of a call in several.
    pub(crate) fn segment(mut self, cut: Cut) -> Self {
        self.cut = Some(cut);
        self
    }

    /// Checks the arguments and makes the operation. May be called again, for another try.
    pub(crate) fn prepare(
        &self,
        (me, world): (PeerId, &World),
        backups: &BackupPool,
        (algorithm, refuses_non_finite): (Algorithm, bool),
    ) -> Result<Prepared, Error> {
        let quantisation = self.quantisation;
        let context = Context { me, world, backups, algorithm, quantisation };
        let mut prepared = (self.prepare)(&context)?;
        prepared.descriptor.cut = self.cut;
        on_device::with_host_memory(&mut prepared, &context)?;
        if (refuses_non_finite || self.refuses_non_finite) && prepared.descriptor.kind().folds() {
            prepared.look_at_values()?;
        }
        Ok(prepared)
    }
}

/// The things with which a call is prepared.
struct Context<'a> {
    me: PeerId,
    world: &'a World,
    backups: &'a BackupPool,
    algorithm: Algorithm,
    quantisation: Option<Quantisation>,
}

impl Context<'_> {
    /// A tensor of a collective, quantised as the call is.
    fn part(&self, count: usize, data_type: DataType, op: ReduceOp) -> Result<PartDescriptor, Error> {
        let part = PartDescriptor {
            quantisation: self.quantisation,
            ..PartDescriptor::new(count as u64, data_type, op)
        };
        crate::memory::check_part(&part)?;
        Ok(part)
    }

    /// The elements of a tensor of which this rank has `own`: the sum of the counts, or as many for each rank.
    fn whole(&self, counts: Option<&[u64]>, own: usize) -> usize {
        let ranks = self.world.ring.len().max(1);
        let counted = counts.map(|counts| counts.iter().copied().fold(0, u64::saturating_add));
        counted.map_or(own.saturating_mul(ranks), |all| usize::try_from(all).unwrap_or(usize::MAX))
    }

    fn descriptor(&self, collective: Collective, parts: Vec<PartDescriptor>) -> Descriptor {
        Descriptor { collective, ..Descriptor::all_reduce(parts, self.algorithm) }
    }
}

/// An operation that is ready for its first vote.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) descriptor: Descriptor,
    /// The two who take part, if it is not for all.
    pub(crate) pair: Option<Pair>,
    pub(crate) raws: Vec<RawTensor>,
    /// Of an all-to-all whose parts are not equal, how many elements each rank gives each.
    pub(crate) counts: Vec<u64>,
    /// Memory of the library that `raws` point to.
    pub(crate) rooms: Vec<Arc<Backup>>,
    pub(crate) beside: Vec<Box<dyn Beside>>,
    /// An error of the memory of this peer. It votes all the same, so that nobody waits for it, and the operation fails
    /// for all.
    pub(crate) failure: Option<Error>,
}

impl Prepared {
    fn new(descriptor: Descriptor, raws: Vec<RawTensor>) -> Self {
        let (rooms, beside, counts) = (Vec::new(), Vec::new(), Vec::new());
        Self { descriptor, pair: None, raws, counts, rooms, beside, failure: None }
    }

    /// The same, of a caller that has named a peer like this.
    fn naming(mut self, root: Root) -> Self {
        self.descriptor.by_rank = root.is_rank();
        self
    }

    /// Of one tensor in the caller's memory.
    fn of(descriptor: Descriptor, raw: RawTensor) -> Self {
        Self::new(descriptor, vec![raw])
    }

    /// Finds out whether this peer contributes finite values only, which its vote says.
    fn look_at_values(&mut self) -> Result<(), Error> {
        self.descriptor.finite = Finite::All(Nothing {});
        for (tensor, (raw, part)) in (0..).zip(self.raws.iter().zip(&self.descriptor.parts)) {
            if let Some(element) = raw.first_non_finite(part.data_type)? {
                self.descriptor.finite = Finite::Not(NotFinite { tensor, element: element as u64 });
                break;
            }
        }
        Ok(())
    }
}

/// The reports about an attempt that work beside it may make, on any thread.
pub(crate) struct Signals {
    /// It fails, for the reason given.
    pub(crate) fault: Box<dyn Fn(String) + Send>,
    /// [`Beside::is_ready`] has become true.
    pub(crate) ready: Box<dyn Fn() + Send>,
}

/// Work on the caller's memory beside the tensors that attempts work on.
pub(crate) trait Beside: fmt::Debug + Send + Sync {
    /// Address ranges of that memory, and whether they are written.
    fn ranges(&self) -> Vec<(Range<usize>, bool)>;

    /// The pieces of the operation's only tensor that this peer has in that place, in their order, if it has only parts
    /// of it: then the operation has no tensors of its own.
    fn pieces(&self, _place: Place) -> Option<Vec<RawTensor>> {
        None
    }

    /// Before this peer votes for an attempt in which it has that place, with these tensors. Nobody sends anything yet.
    fn before(&self, _place: Place, _raws: &[RawTensor], _signals: Signals) {}

    /// Whether all that the operation needs of this peer is there. Before that it does not vote that it is complete:
    /// others may have received what was never there.
    fn is_ready(&self) -> bool {
        true
    }

    /// After a success, on the caller's thread, when no other thread uses any of the memory.
    fn after(&self, _place: Place, _raws: &[RawTensor]) -> Result<(), Error> {
        Ok(())
    }

    /// The operation has failed: from now on no thread may wait for anything that this does.
    fn stop(&self) {}

    /// After a failure, on the caller's thread, when no other thread uses any of the memory: puts back what has been
    /// changed.
    fn undo(&self) -> Result<(), Error> {
        Ok(())
    }

    /// The error that happened here: this peer's caller gets it for an operation that fails.
    fn failure(&self) -> Option<Error> {
        None
    }
}

/// Own rank and number of ranks in an attempt.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
}

/// How the members of a ring carry a collective out; `None` if they cannot, which the master finds as well. `counts`
/// are the elements that each rank gives each in an all-to-all; none if all are equal.
pub(crate) fn shape_of(collective: &Collective, counts: &[u64], ring: &[PeerId]) -> Option<Shape> {
    let ranks = ring.len();
    if collective.misfit(ring).is_some() {
        return None;
    }
    let rank_of = |root: &PeerId| ring.iter().position(|peer| peer == root);
    Some(match collective {
        // Of no tensors.
        Collective::AllReduce(_) | Collective::Barrier(_) => Shape::all_reduce(ranks),
        Collective::Broadcast(root) => Shape::broadcast(ranks, rank_of(root)?),
        Collective::AllGather(split) => Shape::all_gather(ranks, &counts_of(split)),
        Collective::ReduceScatter(split) => Shape::reduce_scatter(ranks, &counts_of(split)),
        Collective::Reduce(root) => Shape::reduce(ranks, rank_of(root)?),
        // Rank 0 of the two is the one that sends.
        Collective::SendRecv(_) => Shape::broadcast(ranks, 0),
        Collective::Gather(it) => Shape::gather(ranks, rank_of(&it.root)?, &counts_of(&it.split)),
        Collective::Scatter(it) => Shape::scatter(ranks, rank_of(&it.root)?, &counts_of(&it.split)),
        Collective::AllToAll(_) => Shape::all_to_all(ranks, counts),
    })
}

/// The counts of a split as shapes have them: none, if all are equal.
fn counts_of(split: &Split) -> Vec<u64> {
    match split {
        Split::Equal(_) => Vec::new(),
        Split::Members(counts) => counts.iter().map(|member| member.count).collect(),
    }
}

/// The one peer that gives or gets everything: a rank of [`Communicator::world`](crate::Communicator::world), or a
/// peer. All peers have to name the same one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Root {
    /// The peer that has this rank in the world that this peer knows.
    Rank(usize),
    /// This peer, whatever its rank is.
    Peer(PeerId),
}

impl From<usize> for Root {
    fn from(rank: usize) -> Self {
        Self::Rank(rank)
    }
}

impl From<PeerId> for Root {
    fn from(peer: PeerId) -> Self {
        Self::Peer(peer)
    }
}

impl Root {
    /// Whether it means the peer that had a rank in the world that the caller knew.
    const fn is_rank(self) -> bool {
        matches!(self, Self::Rank(_))
    }

    fn peer(self, world: &World) -> Result<PeerId, Error> {
        match self {
            Self::Peer(peer) => Ok(peer),
            Self::Rank(rank) => world.ring.get(rank).copied().ok_or_else(|| {
                Error::InvalidArgument(format!("no rank {rank} in a group of {}", world.ring.len()))
            }),
        }
    }
}

/// Which part of a tensor of `all` elements belongs to whom: `counts` by rank, or equal parts of `own` elements.
fn split(world: &World, counts: Option<&[u64]>, own: usize, all: usize) -> Result<Split, Error> {
    let refuse = |text: String| Err(Error::InvalidArgument(text));
    let Some(counts) = counts else {
        // Without elements there is nothing to be told from them; then it is the world as this peer knows it.
        let ranks = all.checked_div(own).unwrap_or(world.ring.len());
        let fits = ranks > 0 && own.checked_mul(ranks) == Some(all);
        return match u32::try_from(ranks).ok().filter(|_| fits) {
            Some(ranks) => Ok(Split::Equal(ranks)),
            None if all == 0 => refuse(format!(
                "0 elements are not one part of {own} for each rank: is the buffer for all of them missing?"
            )),
            None => refuse(format!("{all} elements are not one part of {own} for each rank")),
        };
    };
    if counts.len() != world.ring.len() {
        return refuse(format!("{} counts for a group of {}", counts.len(), world.ring.len()));
    }
    let mine = counts.get(world.rank).copied().unwrap_or(0);
    if mine != own as u64 {
        return refuse(format!("{own} elements, and a count of {mine} for the own rank, {}", world.rank));
    }
    if counts.iter().try_fold(0u64, |sum, count| sum.checked_add(*count)) != Some(all as u64) {
        return refuse(format!("{all} elements, and counts of another sum"));
    }
    let member = |(peer, count): (&PeerId, &u64)| MemberCount { peer: *peer, count: *count };
    Ok(Split::Members(world.ring.iter().zip(counts).map(member).collect()))
}

/// The elements of a tensor of `all` elements that belong to a place.
fn own_part(split: &Split, all: usize, place: Place) -> Range<usize> {
    match split {
        Split::Equal(_) => {
            let own = all / place.ranks;
            place.rank * own..(place.rank + 1) * own
        }
        Split::Members(counts) => {
            let before: u64 = counts[..place.rank].iter().map(|member| member.count).sum();
            before as usize..(before + counts[place.rank].count) as usize
        }
    }
}

/// Refuses two tensors of different types.
fn same_type(send: DataType, recv: DataType) -> Result<(), Error> {
    if send == recv {
        return Ok(());
    }
    Err(Error::InvalidArgument(format!(
        "the send buffer has elements of {send}, the receive buffer of {recv}"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn world(rank: usize) -> World {
        World { rank, ring: (1..=3).map(PeerId).collect(), ..World::default() }
    }

    fn refused<T: fmt::Debug>(result: Result<T, Error>, part: &str) {
        let error = result.expect_err("refused");
        assert!(matches!(&error, Error::InvalidArgument(text) if text.contains(part)), "{error}");
    }

    #[test]
    fn roots_are_ranks_or_peers() {
        assert_eq!(Root::from(2).peer(&world(0)), Ok(PeerId(3)));
        assert_eq!(Root::from(PeerId(9)).peer(&world(0)), Ok(PeerId(9)));
        refused(Root::from(3).peer(&world(0)), "no rank 3 in a group of 3");
    }

    #[test]
    fn equal_parts_are_one_for_each_rank() {
        assert_eq!(split(&world(0), None, 4, 12), Ok(Split::Equal(3)));
        // The master says whether there are this number of ranks: others may know of a newer world.
        assert_eq!(split(&world(0), None, 4, 16), Ok(Split::Equal(4)));
        assert_eq!(split(&world(0), None, 0, 0), Ok(Split::Equal(3)));
        refused(split(&world(0), None, 4, 13), "not one part of 4");
        refused(split(&world(0), None, 0, 13), "not one part of 0");
        refused(split(&world(0), None, 4, 0), "missing?");
    }

    #[test]
    fn given_counts_have_to_fit() {
        let counts = [5, 0, 7];
        let Ok(Split::Members(members)) = split(&world(2), Some(&counts), 7, 12) else { panic!("fits") };
        assert_eq!(members.iter().map(|member| member.count).collect::<Vec<_>>(), counts);
        assert_eq!(members[2].peer, PeerId(3));
        refused(split(&world(2), Some(&counts[..2]), 7, 12), "2 counts for a group of 3");
        refused(split(&world(1), Some(&counts), 7, 12), "a count of 0 for the own rank, 1");
        refused(split(&world(2), Some(&counts), 7, 13), "another sum");
        refused(split(&world(2), Some(&[u64::MAX, 1, 7]), 7, 7), "another sum");
        let own = |rank| own_part(&Split::Members(members.clone()), 12, Place { rank, ranks: 3 });
        assert_eq!((own(0), own(1), own(2)), (0..5, 5..5, 5..12));
        assert_eq!(own_part(&Split::Equal(3), 12, Place { rank: 1, ranks: 3 }), 4..8);
    }
}
