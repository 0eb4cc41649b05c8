//! How the parameters are cut into fragments.

use pccl::Error;
use std::ops::Range;

/// Most fragments.
const MAX_FRAGMENTS: usize = 4096;

/// The fragments of a flat vector of parameters, one after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fragments {
    /// Where each begins, and where the last one ends.
    bounds: Vec<usize>,
}

impl Fragments {
    /// `count` fragments of `elements` elements, which differ by one element at most.
    ///
    /// # Errors
    /// `InvalidArgument` if there are fewer elements than fragments, or no fragment.
    pub fn even(elements: usize, count: usize) -> Result<Self, Error> {
        if count == 0 || count > elements {
            let text =
                format!("{count} fragments of {elements} parameters: 1 fragment to as many as parameters");
            return Err(Error::InvalidArgument(text));
        }
        let lengths: Vec<_> =
            (0..count).map(|at| (at + 1) * elements / count - at * elements / count).collect();
        Self::of_lengths(&lengths)
    }

    /// Fragments of these lengths, in elements.
    ///
    /// # Errors
    /// `InvalidArgument` if one is empty, or if there are none, more than 4,096, or too many elements to count.
    pub fn of_lengths(lengths: &[usize]) -> Result<Self, Error> {
        if lengths.is_empty() || lengths.len() > MAX_FRAGMENTS {
            let text = format!("{} fragments: 1 to {MAX_FRAGMENTS}", lengths.len());
            return Err(Error::InvalidArgument(text));
        }
        if let Some(empty) = lengths.iter().position(|length| *length == 0) {
            return Err(Error::InvalidArgument(format!("fragment {empty} has no parameters")));
        }
        let mut bounds = vec![0_usize];
        for length in lengths {
            let end = bounds
                .last()
                .and_then(|end| end.checked_add(*length))
                .filter(|end| *end < isize::MAX as usize / 8);
            bounds.push(end.ok_or_else(|| Error::InvalidArgument("fragments too large to count".into()))?);
        }
        Ok(Self { bounds })
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.bounds.len() - 1
    }

    /// Elements of all.
    pub fn elements(&self) -> usize {
        self.bounds.last().copied().unwrap_or_default()
    }

    /// The elements of one; empty if there is no such fragment.
    pub fn range(&self, fragment: usize) -> Range<usize> {
        match self.bounds.get(fragment..).unwrap_or_default() {
            [begin, end, ..] => *begin..*end,
            _ => 0..0,
        }
    }

    /// The fragment of a round: they take turns.
    pub(crate) fn of_round(&self, round: u64) -> usize {
        (round % self.count() as u64) as usize
    }

    /// A digest of where they lie, so that members can tell that theirs are the same.
    pub(crate) fn digest(&self) -> u32 {
        let bytes: Vec<u8> = self.bounds.iter().flat_map(|bound| (*bound as u64).to_le_bytes()).collect();
        pccl_hash::crc32c(&bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_fragments_cover_all_and_differ_by_one() {
        for (elements, count) in [(10, 3), (4, 4), (1_000_003, 7)] {
            let fragments = Fragments::even(elements, count).expect("fragments");
            let lengths: Vec<_> = (0..count).map(|at| fragments.range(at).len()).collect();
            assert_eq!(lengths.iter().sum::<usize>(), elements);
            assert!(lengths.iter().max().expect("one") - lengths.iter().min().expect("one") <= 1);
            assert_eq!(fragments.range(count), 0..0);
        }
    }

    #[test]
    fn fragments_that_make_no_sense_are_refused() {
        for refused in [Fragments::even(3, 4), Fragments::even(3, 0), Fragments::of_lengths(&[2, 0])] {
            assert!(matches!(refused, Err(Error::InvalidArgument(_))), "{refused:?}");
        }
        assert!(Fragments::of_lengths(&[usize::MAX, 2]).is_err());
    }
}
