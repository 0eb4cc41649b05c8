//! The treatment of a tensor by a kind of collective, as plain data: how it is cut into chunks, which rank owns each,
//! and which way chunks go.
//!
//! A chunk has one owner. If the shape *folds*, all ranks contribute to a chunk, and its owner ends with what they fold
//! to. If it *distributes*, what the owner then has goes to all others; if not, the result stays with the owner alone.
//! A shape that does not fold has a *source* for each chunk: the rank that has it in the first place. That is the owner
//! itself where the shape distributes. Otherwise a chunk goes from its source to its owner, and that is all.
//!
//! | collective | chunks | owner of chunk `c` | folds | distributes | source of chunk `c` |
//! |---|---|---|---|---|---|
//! | all-reduce | one per rank, nearly equal | rank before rank `c` | yes | yes | |
//! | broadcast | one | the root | no | yes | the root |
//! | all-gather | one per rank | rank `c` | no | yes | rank `c` |
//! | reduce-scatter | one per rank | rank `c` | yes | no | |
//! | reduce | one | the root | yes | no | |
//! | gather | one per rank | the root | no | no | rank `c` |
//! | scatter | one per rank | rank `c` | no | no | the root |
//! | all-to-all | one per pair of ranks | rank `c mod n` | no | no | rank `c / n` |
//!
//! The contributions to a chunk are folded in the order of the ranks around the ring, from the one after its owner to
//! the owner, by every algorithm.

/// See the module's documentation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape {
    ranks: usize,
    /// How many chunks there are.
    chunks: usize,
    cut: Cut,
    owners: Ranks,
    /// The sources of chunks that go to their owners, and nowhere else.
    sources: Option<Ranks>,
    folds: bool,
    distributes: bool,
}

/// The rank of each chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ranks {
    /// That of the first chunk; each further chunk has the rank after that of the one before.
    From(usize),
    /// This rank, of all chunks.
    One(usize),
    /// As many chunks next to each other have one rank as there are ranks, from rank 0 on.
    Rows,
}

impl Ranks {
    fn of(self, chunk: usize, ranks: usize) -> usize {
        match self {
            Self::From(first) => (first + chunk) % ranks,
            Self::One(rank) => rank,
            Self::Rows => chunk / ranks,
        }
    }
}

/// Where a tensor is cut.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Cut {
    /// The first few chunks have one element more than the others.
    Even,
    /// The chunks have these numbers of elements.
    Counts(Vec<u64>),
}

impl Cut {
    fn by(counts: &[u64], chunks: usize) -> Self {
        assert!(counts.is_empty() || counts.len() == chunks, "one count for each chunk");
        if counts.is_empty() { Self::Even } else { Self::Counts(counts.to_vec()) }
    }
}

impl Shape {
    /// Everybody gets what all contribute.
    pub fn all_reduce(ranks: usize) -> Self {
        let owners = Ranks::From(ranks.saturating_sub(1));
        Self { ranks, chunks: ranks, cut: Cut::Even, owners, sources: None, folds: true, distributes: true }
    }

    /// Everybody gets what `root` has.
    pub fn broadcast(ranks: usize, root: usize) -> Self {
        let (chunks, owners) = (1, Ranks::One(root));
        Self { chunks, owners, folds: false, ..Self::all_reduce(ranks) }
    }

    /// `root` gets what all contribute.
    pub fn reduce(ranks: usize, root: usize) -> Self {
        Self { folds: true, distributes: false, ..Self::broadcast(ranks, root) }
    }

    /// Everybody gets the chunks that the ranks have: of rank `c` that with number `c`. `counts` are their elements;
    /// empty: nearly equal ones.
    pub fn all_gather(ranks: usize, counts: &[u64]) -> Self {
        let (cut, owners) = (Cut::by(counts, ranks), Ranks::From(0));
        Self { cut, owners, folds: false, ..Self::all_reduce(ranks) }
    }

    /// Rank `c` gets the chunk with number `c` of what all contribute. `counts` as for [`Shape::all_gather`].
    pub fn reduce_scatter(ranks: usize, counts: &[u64]) -> Self {
        Self { folds: true, distributes: false, ..Self::all_gather(ranks, counts) }
    }

    /// `root` gets the chunks that the ranks have: of rank `c` that with number `c`. `counts` as for
    /// [`Shape::all_gather`].
    pub fn gather(ranks: usize, root: usize, counts: &[u64]) -> Self {
        let (owners, sources) = (Ranks::One(root), Some(Ranks::From(0)));
        Self { owners, sources, distributes: false, ..Self::all_gather(ranks, counts) }
    }

    /// Rank `c` gets the chunk with number `c` of what `root` has. `counts` as for [`Shape::all_gather`].
    pub fn scatter(ranks: usize, root: usize, counts: &[u64]) -> Self {
        let sources = Some(Ranks::One(root));
        Self { sources, distributes: false, ..Self::all_gather(ranks, counts) }
    }

    /// Rank `d` gets of each rank `s` the chunk with number `n s + d`. `counts` are the elements of all of them; empty:
    /// nearly equal ones.
    pub fn all_to_all(ranks: usize, counts: &[u64]) -> Self {
        let chunks = ranks * ranks;
        let (cut, sources) = (Cut::by(counts, chunks), Some(Ranks::Rows));
        Self { chunks, cut, sources, distributes: false, ..Self::all_gather(ranks, &[]) }
    }

    /// One of each kind, with its name, for tensors of `elements` elements: for tests of what is made of shapes.
    pub fn samples(ranks: usize, root: usize, elements: usize) -> Vec<(&'static str, Self)> {
        // Uneven, the first ones empty.
        let mut counts = vec![0; ranks];
        counts[ranks - 1] = elements as u64 / 2;
        counts[root] += (elements - elements / 2) as u64;
        let mut blocks = vec![0; ranks * ranks];
        blocks[ranks * ranks - 1] = elements as u64 / 2;
        blocks[root] += (elements - elements / 2) as u64;
        vec![
            ("all-reduce", Self::all_reduce(ranks)),
            ("broadcast", Self::broadcast(ranks, root)),
            ("reduce", Self::reduce(ranks, root)),
            ("all-gather", Self::all_gather(ranks, &[])),
            ("all-gather of given counts", Self::all_gather(ranks, &counts)),
            ("reduce-scatter", Self::reduce_scatter(ranks, &[])),
            ("reduce-scatter of given counts", Self::reduce_scatter(ranks, &counts)),
            ("gather", Self::gather(ranks, root, &[])),
            ("gather of given counts", Self::gather(ranks, root, &counts)),
            ("scatter", Self::scatter(ranks, root, &[])),
            ("scatter of given counts", Self::scatter(ranks, root, &counts)),
            ("all-to-all", Self::all_to_all(ranks, &[])),
            ("all-to-all of given counts", Self::all_to_all(ranks, &blocks)),
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

    /// Number of chunks.
    pub fn chunks(&self) -> usize {
        self.chunks
    }

    /// The rank that owns a chunk.
    pub fn owner(&self, chunk: usize) -> usize {
        self.owners.of(chunk, self.ranks)
    }

    /// Whether each chunk goes from its source to its owner, and nowhere else.
    pub fn only_moves(&self) -> bool {
        self.sources.is_some()
    }

    /// The rank whose contribution is the first in the fold of a chunk, or that has it if it is not folded.
    pub fn start_of(&self, chunk: usize) -> usize {
        match self.sources {
            Some(sources) => sources.of(chunk, self.ranks),
            None => (self.owner(chunk) + usize::from(self.folds)) % self.ranks,
        }
    }

    /// How many hops around the ring it is to a rank from where a chunk starts.
    pub fn hops_to(&self, rank: usize, chunk: usize) -> usize {
        (rank + self.ranks - self.start_of(chunk)) % self.ranks
    }

    /// Whether consecutive tensors may be cut as one: not if a rank has a part of each.
    pub fn spans_tensors(&self) -> bool {
        matches!(self.owners, Ranks::One(_)) && !self.only_moves() || (self.folds && self.distributes)
    }

    /// Whether tensors of `elements` elements can be cut so.
    pub fn fits(&self, elements: u64) -> bool {
        match &self.cut {
            Cut::Even => true,
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
        let (base, extra) = (elements / self.chunks, elements % self.chunks);
        (0..self.chunks()).map(move |chunk| match &self.cut {
            Cut::Even => base + usize::from(chunk < extra),
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
        fn chunks_cover_the_tensor_and_belong_to_ranks(
            ranks in 1usize..=9, root: prop::sample::Index, elements in 0usize..200,
        ) {
            for (name, shape) in Shape::samples(ranks, root.index(ranks), elements) {
                prop_assert_eq!(shape.chunk_counts(elements).sum::<usize>(), elements, "{}", name);
                prop_assert_eq!(shape.chunk_counts(elements).count(), shape.chunks());
                for chunk in 0..shape.chunks() {
                    prop_assert!(shape.owner(chunk) < ranks && shape.start_of(chunk) < ranks, "{}", name);
                    prop_assert!(shape.only_moves() || shape.folds() || shape.distributes(), "{}", name);
                }
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
        assert_eq!(owners(Shape::gather(3, 1, &[])), [1, 1, 1]);
        assert_eq!(owners(Shape::scatter(3, 1, &[])), [0, 1, 2]);
        assert_eq!(owners(Shape::all_to_all(2, &[])), [0, 1, 0, 1]);
    }

    #[test]
    fn sources_are_those_that_the_documentation_names() {
        let sources =
            |shape: Shape| (0..shape.chunks()).map(|chunk| shape.start_of(chunk)).collect::<Vec<_>>();
        assert_eq!(sources(Shape::gather(3, 1, &[])), [0, 1, 2]);
        assert_eq!(sources(Shape::scatter(3, 1, &[])), [1, 1, 1]);
        assert_eq!(sources(Shape::all_to_all(2, &[1, 2, 3, 4])), [0, 0, 1, 1]);
    }
}
