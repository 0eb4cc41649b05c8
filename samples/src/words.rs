//! A ledger as numbers of a fixed count, which is how it is part of a shared state.

use crate::{
    Error, Ledger,
    ledger::{Entry, capacity},
};

/// The first word, with the key: these numbers are a ledger, of this layout.
const MAGIC: u64 = 0x0001_7265_6764_656C;
/// Magic, total, counted, grants, entries.
const HEADER: usize = 5;
/// Owner (two words, the lower one first), grant, start, end.
const PER_ENTRY: usize = 5;

/// How many words a ledger for `members` members has, at most [`MAX_MEMBERS`](crate::MAX_MEMBERS).
pub fn words_for(members: usize) -> usize {
    HEADER + PER_ENTRY * capacity(members)
}

impl Ledger {
    /// Puts it into `words`, of [`words_for`] the members; what is beyond the entries is zero.
    pub fn write(&self, words: &mut [u64]) {
        let header = [MAGIC ^ self.key, self.total, self.counted, self.grants, self.entries.len() as u64];
        let entries = self.entries.iter().flat_map(|entry| {
            let (low, high) = (entry.owner as u64, (entry.owner >> 64) as u64);
            [low, high, entry.grant, entry.range.start, entry.range.end]
        });
        let zeros = std::iter::repeat(0);
        words
            .iter_mut()
            .zip(header.into_iter().chain(entries).chain(zeros))
            .for_each(|(to, word)| *to = word);
    }

    /// The ledger in `words`, for a data set of `total` positions, with the `key` that it was made with.
    ///
    /// # Errors
    /// `Damaged` if they are none.
    pub fn read(words: &[u64], total: u64, key: u64) -> Result<Self, Error> {
        let (header, rest) = words.split_first_chunk::<HEADER>().ok_or(Error::Damaged("it is too short"))?;
        let [magic, own_total, counted, grants, count] = *header;
        let capacity = rest.len() / PER_ENTRY;
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        if own_total != total {
            return Err(Error::Damaged("its data set has another length"));
        }
        if magic != MAGIC ^ key {
            return Err(Error::Damaged("it was made with another seed, batch or number of epochs"));
        }
        if count > capacity {
            return Err(Error::Damaged("it has too many entries"));
        }
        let entry = |words: &[u64]| match *words {
            [low, high, grant, start, end] => {
                Entry { owner: u128::from(high) << 64 | u128::from(low), grant, range: start..end }
            }
            _ => Entry { owner: 0, grant: 0, range: 0..0 },
        };
        let entries: Vec<_> = rest.chunks_exact(PER_ENTRY).take(count).map(entry).collect();
        let mut end = 0;
        for entry in &entries {
            if entry.range.start < end || entry.range.is_empty() || entry.range.end > total {
                return Err(Error::Damaged("its entries are out of order"));
            }
            end = entry.range.end;
        }
        let left: u64 = entries.iter().map(|entry| entry.range.end - entry.range.start).sum();
        if counted.checked_add(left) != Some(total) {
            return Err(Error::Damaged("its sums are wrong"));
        }
        Ok(Self { key, total, counted, grants, entries, capacity })
    }
}
