//! The treatment of a tensor by a kind of collective, as plain data: how it is cut into chunks, which rank owns each,
//! and which way chunks go.
//!
//! A chunk has one owner. If the shape *folds*, all ranks contribute to a chunk, and its owner ends with what they fold
//! to. If it *distributes*, what the owner then has goes to all others. A shape that does not fold leaves what the
//! owner had in the first place, a shape that does not distribute leaves the result with the owner alone.
//!
//! | collective | chunks | owner of chunk `c` | folds | distributes |
//! |---|---|---|---|---|
//! | all-reduce | one per rank, nearly equal | rank before rank `c` | yes | yes |
//! | broadcast | one | the root | no | yes |
//! | all-gather | one per rank | rank `c` | no | yes |
//! | reduce-scatter | one per rank | rank `c` | yes | no |
//! | reduce | one | the root | yes | no |
//!
//! The contributions to a chunk are folded in the order of the ranks around the ring, from the one after its owner to
//! the owner, by every algorithm.

/// See the module's documentation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape {
    ranks: usize,
    cut: Cut,
    /// Owner of the first chunk; each further chunk belongs to the rank after that of the one before.
    first_owner: usize,
    folds: bool,
    distributes: bool,
}

/// Where a tensor is cut.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Cut {
    /// One chunk per rank; the first few have one element more than the others.
    Even,
    /// One chunk.
    Whole,
    /// One chunk per rank, with these numbers of elements.
    Counts(Vec<u64>),
}

impl Cut {
    fn per_rank(counts: &[u64], ranks: usize) -> Self {
        assert!(counts.is_empty() || counts.len() == ranks, "one count for each rank");
        if counts.is_empty() { Self::Even } else { Self::Counts(counts.to_vec()) }
    }
}

impl Shape {
    /// Everybody gets what all contribute.
    pub fn all_reduce(ranks: usize) -> Self {
        let first_owner = ranks.saturating_sub(1);
        Self { ranks, cut: Cut::Even, first_owner, folds: true, distributes: true }
    }

    /// Everybody gets what `root` has.
    pub fn broadcast(ranks: usize, root: usize) -> Self {
        Self { ranks, cut: Cut::Whole, first_owner: root, folds: false, distributes: true }
    }

    /// `root` gets what all contribute.
    pub fn reduce(ranks: usize, root: usize) -> Self {
        Self { ranks, cut: Cut::Whole, first_owner: root, folds: true, distributes: false }
    }

    /// Everybody gets the chunks that the ranks have: of rank `c` that with number `c`. `counts` are their elements;
    /// empty: nearly equal ones.
    pub fn all_gather(ranks: usize, counts: &[u64]) -> Self {
        Self { ranks, cut: Cut::per_rank(counts, ranks), first_owner: 0, folds: false, distributes: true }
    }

    /// Rank `c` gets the chunk with number `c` of what all contribute. `counts` as for [`Shape::all_gather`].
    pub fn reduce_scatter(ranks: usize, counts: &[u64]) -> Self {
        Self { ranks, cut: Cut::per_rank(counts, ranks), first_owner: 0, folds: true, distributes: false }
    }

    /// One of each kind, with its name, for tensors of `elements` elements: for tests of what is made of shapes.
    pub fn samples(ranks: usize, root: usize, elements: usize) -> Vec<(&'static str, Self)> {
        // Uneven, the first ones empty.
        let mut counts = vec![0; ranks];
        counts[ranks - 1] = elements as u64 / 2;
        counts[root] += (elements - elements / 2) as u64;
        vec![
            ("all-reduce", Self::all_reduce(ranks)),
            ("broadcast", Self::broadcast(ranks, root)),
            ("reduce", Self::reduce(ranks, root)),
            ("all-gather", Self::all_gather(ranks, &[])),
            ("all-gather of given counts", Self::all_gather(ranks, &counts)),
            ("reduce-scatter", Self::reduce_scatter(ranks, &[])),
            ("reduce-scatter of given counts", Self::reduce_scatter(ranks, &counts)),
        ]
    }

    /// Number of ranks.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Whether contributions are folded on their way to the owner of a chunk.
    pub fn folds(&self) -> bool {
        self.folds
    }

    /// Whether what the owner of a chunk has goes to all others.
    pub fn distributes(&self) -> bool {
        self.distributes
    }

    /// Number of chunks: one, or one per rank.
    pub fn chunks(&self) -> usize {
        if self.cut == Cut::Whole { 1 } else { self.ranks }
    }

    /// The rank that owns a chunk.
    pub fn owner(&self, chunk: usize) -> usize {
        (self.first_owner + chunk) % self.ranks
    }

    /// The chunk that a rank owns, if any.
    pub fn chunk_owned_by(&self, rank: usize) -> Option<usize> {
        let chunk = (rank + self.ranks - self.first_owner) % self.ranks;
        (chunk < self.chunks()).then_some(chunk)
    }

    /// The rank whose contribution is the first in the fold of a chunk, or that has it if it is not folded.
    pub fn start_of(&self, chunk: usize) -> usize {
        (self.owner(chunk) + usize::from(self.folds)) % self.ranks
    }

    /// How many hops around the ring it is to a rank from where a chunk starts.
    pub fn hops_to(&self, rank: usize, chunk: usize) -> usize {
        (rank + self.ranks - self.start_of(chunk)) % self.ranks
    }

    /// Whether consecutive tensors may be cut as one: not if a rank has a part of each.
    pub fn spans_tensors(&self) -> bool {
        self.cut == Cut::Whole || (self.folds && self.distributes)
    }

    /// Whether tensors of `elements` elements can be cut so.
    pub fn fits(&self, elements: u64) -> bool {
        match &self.cut {
            Cut::Even | Cut::Whole => true,
            Cut::Counts(counts) => {
                counts.iter().try_fold(0u64, |sum, count| sum.checked_add(*count)) == Some(elements)
            }
        }
    }

    /// Number of elements of each chunk, of a tensor of `elements` elements, which it fits.
    pub fn chunk_counts(&self, elements: usize) -> impl Iterator<Item = usize> + '_ {
        assert!(
            self.fits(elements as u64),
            "counts that do not fit are refused when an operation is launched"
        );
        let (base, extra) = (elements / self.ranks, elements % self.ranks);
        (0..self.chunks()).map(move |chunk| match &self.cut {
            Cut::Even => base + usize::from(chunk < extra),
            Cut::Whole => elements,
            Cut::Counts(counts) => counts[chunk] as usize,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn chunks_cover_the_tensor_and_have_one_owner_each(
            ranks in 1usize..=9, root: prop::sample::Index, elements in 0usize..200,
        ) {
            for (name, shape) in Shape::samples(ranks, root.index(ranks), elements) {
                prop_assert_eq!(shape.chunk_counts(elements).sum::<usize>(), elements, "{}", name);
                prop_assert_eq!(shape.chunk_counts(elements).count(), shape.chunks());
                let owned = (0..ranks).filter_map(|rank| shape.chunk_owned_by(rank).map(|chunk| (chunk, rank)));
                let mut owned: Vec<_> = owned.collect();
                owned.sort_unstable();
                let owners: Vec<_> = (0..shape.chunks()).map(|chunk| (chunk, shape.owner(chunk))).collect();
                prop_assert_eq!(owned, owners, "{}", name);
            }
        }
    }

    #[test]
    fn a_chunk_starts_after_its_owner_if_it_is_folded() {
        let hops =
            |shape: &Shape| (0..shape.chunks()).map(|chunk| shape.hops_to(1, chunk)).collect::<Vec<_>>();
        assert_eq!(hops(&Shape::all_reduce(4)), [1, 0, 3, 2]);
        assert_eq!(hops(&Shape::reduce_scatter(4, &[])), [0, 3, 2, 1]);
        assert_eq!(hops(&Shape::all_gather(4, &[])), [1, 0, 3, 2]);
        assert_eq!(hops(&Shape::broadcast(4, 3)), [2]);
    }

    #[test]
    fn counts_have_to_add_up() {
        let shape = Shape::all_gather(3, &[1, 0, 4]);
        assert!(shape.fits(5) && !shape.fits(4) && !shape.fits(6));
        assert!(!Shape::reduce_scatter(2, &[u64::MAX, 2]).fits(1));
        assert!(Shape::broadcast(3, 1).fits(7) && Shape::all_reduce(3).fits(0));
    }

    #[test]
    fn owners_are_those_that_the_documentation_names() {
        let owners = |shape: Shape| (0..shape.chunks()).map(|chunk| shape.owner(chunk)).collect::<Vec<_>>();
        assert_eq!(owners(Shape::all_reduce(4)), [3, 0, 1, 2]);
        assert_eq!(owners(Shape::broadcast(4, 2)), [2]);
        assert_eq!(owners(Shape::reduce(4, 3)), [3]);
        assert_eq!(owners(Shape::all_gather(4, &[])), [0, 1, 2, 3]);
        assert_eq!(owners(Shape::reduce_scatter(4, &[5, 0, 1, 1])), [0, 1, 2, 3]);
    }
}
