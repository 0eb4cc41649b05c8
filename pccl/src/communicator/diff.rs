//! Finding out where peers differ, by collectives: each peer gathers the same and so finds the same.

use super::Communicator;
use crate::{
    CollectiveOptions, Error, Reason, SharedState,
    limit::Limit,
    state::{
        StateTensor,
        compare::Levels,
        diff::{self, DIGEST_BYTES, Declared, LEAF_BYTES, StateDiff, TensorDiff},
        hashing::hashed,
    },
};
use pccl_hash::{Tree, tree::MEBIBYTE};
use pccl_protocol::PeerId;
use std::{
    borrow::Cow,
    time::{Duration, Instant},
};

/// Tag of the collectives of a comparison: far from what callers take.
const TAG: u64 = u64::from_be_bytes(*b"\0\0\0\0diff");
/// Differing tensors of which is found out where they differ.
const LOCATED_MAX: usize = 64;

impl Communicator {
    /// Finds out where the peers of the group differ, and changes nothing. All of them call it, with the same keys,
    /// types and counts; the revision does not matter. Tensors whose content may differ are left out. Every peer gets
    /// the same answer: which tensors differ, who has which content, in which elements, and the first values that
    /// differ. If all is the same, it costs the hashing, and from each peer 16 bytes for each tensor and 56 more;
    /// otherwise, for the first 64 tensors that differ, also 16 bytes for each MiB and at most 8 KiB.
    ///
    /// It is a guard that can stand in any training loop, also beside collectives of another library:
    ///
    /// ```no_run
    /// # let comm = pccl::Communicator::builder("127.0.0.1:48148").build()?;
    /// # let (mut weights, step) = (vec![0.0_f32; 1000], 100);
    /// if step % 100 == 0 {
    ///     let mut state = pccl::SharedState::new(0);
    ///     state.tensor("weights", &mut weights)?;
    ///     let diff = comm.diff_shared_state(&state)?;
    ///     if !diff.is_same() {
    ///         println!("step {step}: {diff}");
    ///     }
    /// }
    /// # Ok::<(), pccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::call`]; `PendingAsyncOps` while operations are in flight. `InvalidArgument` on all peers if
    /// they have different tensors: the text names the first and who has it how.
    pub fn diff_shared_state(&self, state: &SharedState<'_>) -> Result<StateDiff, Error> {
        self.diff_until(state, Limit::of(self.call_timeout()))
    }

    /// As [`Communicator::diff_shared_state`], with a limit of its own instead of the communicator's.
    ///
    /// # Errors
    /// As there; `TimedOut`.
    pub fn diff_shared_state_within(
        &self,
        state: &SharedState<'_>,
        timeout: Duration,
    ) -> Result<StateDiff, Error> {
        self.diff_until(state, Limit::of(Some(timeout)))
    }

    fn diff_until(&self, state: &SharedState<'_>, limit: Limit) -> Result<StateDiff, Error> {
        let tensors: Vec<&StateTensor> = state.tensors.iter().filter(|it| !it.allow_inequality).collect();
        let count = self.shared()?.calls.activity().in_flight();
        if count > 0 {
            return Err(Error::PendingAsyncOps { count });
        }
        if self.world().group_size < 2 {
            return Ok(StateDiff { tensors: Vec::new(), compared: tensors.len() });
        }
        self.check_declared(&tensors, limit)?;
        let levels = hashed(&Tree::Plain, &tensors)?;
        let digests: Vec<_> = levels.iter().map(Levels::root).collect();
        let rows = self.gather_rows(&diff::bytes_of(&digests), limit)?;
        let differs = |(index, tensor): (usize, &&StateTensor)| {
            let camps = diff::camps(&rows, index)?;
            let (key, data_type, count) = (tensor.key.as_str().to_owned(), tensor.data_type, tensor.count);
            Some((index, TensorDiff { key, data_type, count, camps, ranges: Vec::new(), first: None }))
        };
        let (places, mut found): (Vec<usize>, Vec<TensorDiff>) =
            tensors.iter().enumerate().filter_map(differs).unzip();
        let apart: Vec<(&StateTensor, &Levels)> =
            places.iter().map(|index| (tensors[*index], &levels[*index])).take(LOCATED_MAX).collect();
        if !apart.is_empty() {
            self.locate(&apart, &mut found, limit)?;
        }
        Ok(StateDiff { tensors: found, compared: tensors.len() })
    }

    /// Finds out whether all peers have the same tensors, and otherwise which is the first that they have not.
    fn check_declared(&self, tensors: &[&StateTensor], limit: Limit) -> Result<(), Error> {
        let declared = |tensor: &&StateTensor| Declared {
            key: tensor.key.as_str().to_owned(),
            text: format!("{:?}[{}]", tensor.data_type, tensor.count),
        };
        let all = diff::encode_declared(&tensors.iter().map(declared).collect::<Vec<_>>());
        let mut summary = (all.len() as u64).to_le_bytes().to_vec();
        summary.extend(diff::bytes_of(&[pccl_hash::tree_hash(&all)]));
        let rows = self.gather_rows(&summary, limit)?;
        if rows.iter().all(|(_, row)| *row == rows[0].1) {
            return Ok(());
        }
        // All come here, and all make it as long as the longest.
        let length = |row: &[u8]| row.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let longest = rows.iter().map(|(_, row)| length(row)).max().unwrap_or(0);
        let mut padded = all;
        padded.resize(usize::try_from(longest).unwrap_or(0), 0);
        let text = diff::declared_apart(&self.gather_rows(&padded, limit)?).unwrap_or_default();
        Err(Error::InvalidArgument(format!("the peers do not have the same tensors to compare: {text}")))
    }

    /// Finds out where these tensors differ, and notes it in the first of `found`.
    fn locate(
        &self,
        apart: &[(&StateTensor, &Levels)],
        found: &mut [TensorDiff],
        limit: Limit,
    ) -> Result<(), Error> {
        // Which MiBs differ.
        let mut digests = Vec::new();
        let mut ends = Vec::new();
        for (_, levels) in apart {
            digests.extend_from_slice(levels.mebibytes());
            ends.push(digests.len());
        }
        let rows = self.gather_rows(&diff::bytes_of(&digests), limit)?;
        let begins = std::iter::once(0).chain(ends.iter().copied());
        let mut pieces = Vec::new();
        for ((begin, end), found) in begins.zip(&ends).zip(found.iter_mut()) {
            let differing: Vec<usize> =
                diff::differing(&rows, begin..*end).into_iter().map(|index| index - begin).collect();
            found.ranges = diff::ranges(&differing, MEBIBYTE, (found.count, found.data_type));
            pieces.push(differing.first().copied());
        }
        // Which leaf of the first of them differs.
        let mut digests = Vec::new();
        let mut parts = Vec::new();
        for ((tensor, _), piece) in apart.iter().zip(&pieces) {
            let begin = digests.len();
            let piece = piece_of(tensor, *piece, MEBIBYTE)?;
            digests.extend(piece.chunks(LEAF_BYTES).map(pccl_hash::tree_hash));
            parts.push(begin..digests.len());
        }
        let rows = self.gather_rows(&diff::bytes_of(&digests), limit)?;
        let leaf = |(part, piece): (&std::ops::Range<usize>, &Option<usize>)| {
            let first = *diff::differing(&rows, part.clone()).first()?;
            Some((*piece)? * (MEBIBYTE / LEAF_BYTES) + first - part.start)
        };
        let leaves: Vec<Option<usize>> = parts.iter().zip(&pieces).map(leaf).collect();
        // Which element of that leaf differs.
        let mut content = Vec::new();
        let mut parts = Vec::new();
        for ((tensor, _), leaf) in apart.iter().zip(&leaves) {
            let begin = content.len();
            content.extend_from_slice(&piece_of(tensor, *leaf, LEAF_BYTES)?);
            parts.push(begin..content.len());
        }
        let rows = self.gather_rows(&content, limit)?;
        for ((part, leaf), found) in parts.into_iter().zip(&leaves).zip(found) {
            let begin = leaf.unwrap_or(0) * (LEAF_BYTES / found.data_type.size_bytes());
            found.first = diff::first_divergence(&rows, part, begin as u64, found.data_type);
        }
        Ok(())
    }

    /// The bytes that each peer gives, by rank; all give the same number of bytes.
    fn gather_rows(&self, own: &[u8], limit: Limit) -> Result<Vec<(PeerId, Vec<u8>)>, Error> {
        let world = self.world();
        let me = world.ring.get(world.rank).copied().ok_or(Error::NotConnected)?;
        // With the identity, as ranks may change between two collectives.
        let send = [&me.0.to_le_bytes()[..], own].concat();
        let mut recv = vec![0; send.len() * world.ring.len()];
        let timeout = limit.deadline().map(|deadline| deadline.saturating_duration_since(Instant::now()));
        self.all_gather(&send, &mut recv, CollectiveOptions { timeout, ..TAG.into() })?;
        let row = |row: &[u8]| {
            let (peer, row) = row.split_first_chunk::<DIGEST_BYTES>()?;
            Some((PeerId(u128::from_le_bytes(*peer)), row.to_vec()))
        };
        let rows: Vec<(PeerId, Vec<u8>)> = recv.chunks(send.len()).filter_map(row).collect();
        diff::check_rows(&rows, own.len())?;
        Ok(rows)
    }
}

/// A piece of a tensor, the last of which may be short; nothing if there is none.
fn piece_of(tensor: &StateTensor, piece: Option<usize>, bytes: usize) -> Result<Cow<'_, [u8]>, Error> {
    let whole = tensor.memory.bytes();
    let begin = piece.map_or(whole, |piece| piece * bytes).min(whole);
    let part = tensor.memory.part(begin..whole.min(begin + bytes));
    part.map_err(|error| Error::System(Reason::system("comparing the shared state", error)))
}
