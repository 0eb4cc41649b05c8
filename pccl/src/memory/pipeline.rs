//! Copies between tensors on devices and the memory of the host that stands for them, while their operation goes on.
//!
//! The memory of the host has two halves: what came from the devices, and the results. A thread copies the
//! contributions down piece by piece, in the order in which the ring needs them; whoever needs a piece waits for it
//! ([`Origin`]). Then it copies pieces of the result up as they are finished, while others are still on their way. Few
//! bytes are copied by the thread that calls.
//!
//! What was contributed stays in its half until the operation is over. So what has been copied up to a tensor that is
//! reduced in place is put back if the operation fails ([`Pipeline::undo`]).

use super::{Backup, OnDevice};
use crate::{Error, threads};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::{fmt, mem, ops::Range, sync::Arc, thread::JoinHandle};
use tinysockets::link::Origin;

/// Bytes that are waited for, and finished, as one.
const PIECE_BYTES: usize = 1 << 20;
/// Pieces that are copied at once, at most, so that their copies overlap with each other.
const BATCH_PIECES: usize = 8;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Pipeline {
    copier: Arc<Copier>,
    /// None if there is so little to copy that no thread is worth it.
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Hears that a copy has failed.
type Failed = Box<dyn Fn(String) + Send>;

struct Copier {
    tensors: Vec<Standing>,
    pieces: Vec<Piece>,
    room: Arc<Backup>,
    /// Bytes of each of the two halves.
    half: usize,
    state: Mutex<State>,
    changed: Condvar,
}

/// A tensor on a device, and what stands for it.
#[derive(Debug)]
struct Standing {
    device: OnDevice,
    /// First byte in each half.
    start: usize,
    first_piece: usize,
}

#[derive(Debug)]
struct Piece {
    tensor: usize,
    /// Bytes of the tensor.
    bytes: Range<usize>,
}

/// How far it is, of each piece.
#[derive(Default)]
struct State {
    is_down: Vec<bool>,
    finished_bytes: Vec<usize>,
    /// Copied up, or about to be.
    is_up: Vec<bool>,
    /// Finished, and not yet copied up.
    waiting: Vec<usize>,
    /// All results are there.
    is_complete: bool,
    /// Nothing is to be copied any more.
    is_stopped: bool,
    failure: Option<Error>,
    failed: Option<Failed>,
}

impl Pipeline {
    /// Begins to copy what tensors contribute into `room`, which has room for them twice; the part of `rank` of each of
    /// `ranks` parts comes first, then that of the rank before, and so on.
    pub(crate) fn begin(
        tensors: Vec<OnDevice>,
        room: Arc<Backup>,
        (rank, ranks): (usize, usize),
    ) -> Result<Self, Error> {
        let copier = Arc::new(Copier::new(tensors, room));
        let order = copier.order(rank, ranks);
        if copier.pieces.len() <= copier.tensors.len() && copier.half <= PIECE_BYTES {
            copier.copy_down(&order);
            return match copier.state.lock().failure.take() {
                None => Ok(Self { copier: copier.clone(), thread: Mutex::new(None) }),
                Some(error) => Err(error),
            };
        }
        let its = copier.clone();
        let run = move || {
            its.copy_down(&order);
            its.copy_up();
        };
        let thread = threads::spawn("pccl-device", run)
            .map_err(|error| Error::System(crate::Reason::system(error.tried(), error.error)))?;
        Ok(Self { copier, thread: Mutex::new(Some(thread)) })
    }

    /// Where the contribution of a tensor comes from, and where its result goes.
    pub(crate) fn origins(&self, tensor: usize) -> (Arc<dyn Origin>, Arc<dyn Origin>) {
        let copier = self.copier.clone();
        (Arc::new(Contribution { copier: copier.clone(), tensor }), Arc::new(Outcome { copier, tensor }))
    }

    /// Bytes of a tensor in the first half of the room.
    pub(crate) fn place(&self, tensor: usize) -> Range<usize> {
        let Standing { device, start, .. } = &self.copier.tensors[tensor];
        *start..*start + device.bytes()
    }

    /// Address ranges on the devices, and whether they are written.
    pub(crate) fn ranges(&self) -> Vec<(Range<usize>, bool)> {
        self.copier.tensors.iter().flat_map(|tensor| tensor.device.ranges()).collect()
    }

    /// Calls `failed` once, if a copy fails or has failed.
    pub(crate) fn tell(&self, failed: impl Fn(String) + Send + 'static) {
        let mut state = self.copier.state.lock();
        match &state.failure {
            Some(error) => {
                let text = error.to_string();
                drop(state);
                failed(text);
            }
            None => state.failed = Some(Box::new(failed)),
        }
    }

    /// Copies the rest of the results up; they are there when this returns.
    pub(crate) fn complete(&self) -> Result<(), Error> {
        self.copier.completed();
        match self.thread.lock().take() {
            Some(thread) => drop(thread.join()),
            None => self.copier.copy_up(),
        }
        self.copier.state.lock().failure.clone().map_or(Ok(()), Err)
    }

    /// From now on nobody waits for a piece, and nothing is copied that has not begun.
    pub(crate) fn stop(&self) {
        self.copier.state.lock().is_stopped = true;
        self.copier.changed.notify_all();
    }

    /// Puts back what was copied up. After that nothing is under way.
    pub(crate) fn undo(&self) -> Result<(), Error> {
        self.stop();
        if let Some(thread) = self.thread.lock().take() {
            drop(thread.join());
        }
        self.copier.put_back()
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.get_mut().take() {
            drop(thread.join());
        }
    }
}

impl Copier {
    fn new(devices: Vec<OnDevice>, room: Arc<Backup>) -> Self {
        let (mut tensors, mut pieces, mut half) = (Vec::with_capacity(devices.len()), Vec::new(), 0);
        for (tensor, device) in devices.into_iter().enumerate() {
            let (bytes, first_piece) = (device.bytes(), pieces.len());
            let cuts = (0..bytes).step_by(PIECE_BYTES);
            pieces.extend(cuts.map(|at| Piece { tensor, bytes: at..bytes.min(at + PIECE_BYTES) }));
            tensors.push(Standing { device, start: half, first_piece });
            half += bytes;
        }
        let count = pieces.len();
        let state = State {
            is_down: vec![false; count],
            finished_bytes: vec![0; count],
            is_up: vec![false; count],
            ..State::default()
        };
        Self { tensors, pieces, room, half, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// The order in which a rank of the ring needs the pieces: chunks with falling numbers, from its own on.
    fn order(&self, rank: usize, ranks: usize) -> Vec<usize> {
        let ranks = ranks.max(1);
        let chunk_of = |piece: &Piece| {
            let at = self.tensors[piece.tensor].start + piece.bytes.start;
            (at as u128 * ranks as u128 / self.half.max(1) as u128) as usize
        };
        let turn = |chunk: usize| (rank + ranks - chunk.min(ranks - 1)) % ranks;
        let mut order: Vec<usize> = (0..self.pieces.len()).collect();
        // In the piece in which a chunk begins there is the end of the one before.
        order.sort_by_key(|index| turn(chunk_of(&self.pieces[*index])));
        if let Some(before) = order.first().and_then(|first| first.checked_sub(1)) {
            order.retain(|index| *index != before);
            order.insert(0, before);
        }
        order
    }

    /// Bytes in the first half.
    fn place(&self, piece: &Piece) -> Range<usize> {
        let start = self.tensors[piece.tensor].start;
        start + piece.bytes.start..start + piece.bytes.end
    }

    /// Pieces that follow each other in one tensor as one, as far as a batch goes.
    fn batches<'a>(&'a self, order: &'a [usize]) -> impl Iterator<Item = (&'a [usize], Piece)> {
        let follows = |a: &usize, b: &usize| *b == a + 1 && self.pieces[*a].tensor == self.pieces[*b].tensor;
        order.chunk_by(follows).flat_map(|run| run.chunks(BATCH_PIECES)).filter_map(|batch| {
            let (first, last) = (&self.pieces[*batch.first()?], &self.pieces[*batch.last()?]);
            Some((batch, Piece { tensor: first.tensor, bytes: first.bytes.start..last.bytes.end }))
        })
    }

    /// Copies contributions down, in this order, until a copy fails or it is stopped.
    fn copy_down(&self, order: &[usize]) {
        for (batch, piece) in self.batches(order) {
            if self.state.lock().is_stopped {
                return;
            }
            let device = &self.tensors[piece.tensor].device;
            // Nobody reads it before the piece is down, and nobody else writes it.
            let copied = self.room.fill(self.place(&piece), |to| device.read(piece.bytes.start, to));
            let mut state = self.state.lock();
            if let Err(error) = copied {
                return self.fail(state, error);
            }
            for index in batch {
                state.is_down[*index] = true;
            }
            self.changed.notify_all();
        }
    }

    /// Copies results up as they are finished, until all are, a copy fails, or it is stopped.
    fn copy_up(&self) {
        loop {
            let mut state = self.state.lock();
            let is_over = |state: &State| state.is_stopped || state.failure.is_some();
            while state.waiting.is_empty() && !state.is_complete && !is_over(&state) {
                self.changed.wait(&mut state);
            }
            if state.waiting.is_empty() || is_over(&state) {
                return;
            }
            let mut pieces = mem::take(&mut state.waiting);
            pieces.sort_unstable();
            for index in &pieces {
                state.is_up[*index] = true;
            }
            drop(state);
            for (_, piece) in self.batches(&pieces) {
                let place = self.place(&piece);
                let result = place.start + self.half..place.end + self.half;
                let device = &self.tensors[piece.tensor].device;
                // Nobody writes what is finished.
                let copied = self.room.view(result, |from| device.write(piece.bytes.start, from));
                if let Err(error) = copied {
                    return self.fail(self.state.lock(), error);
                }
            }
        }
    }

    fn fail(&self, mut state: MutexGuard<'_, State>, error: Error) {
        let (text, failed) = (error.to_string(), state.failed.take());
        state.failure.get_or_insert(error);
        self.changed.notify_all();
        drop(state);
        if let Some(failed) = failed {
            failed(text);
        }
    }

    /// All results are there, also those that nobody has named.
    fn completed(&self) {
        let mut state = self.state.lock();
        let left: Vec<usize> = (0..self.pieces.len())
            .filter(|index| !state.is_up[*index] && !state.waiting.contains(index))
            .collect();
        state.waiting.extend(left);
        state.is_complete = true;
        self.changed.notify_all();
    }

    /// Writes what was contributed over what was copied up in place.
    fn put_back(&self) -> Result<(), Error> {
        let is_up = mem::take(&mut self.state.lock().is_up);
        let pieces: Vec<usize> = (0..is_up.len()).filter(|index| is_up[*index]).collect();
        for (_, piece) in self.batches(&pieces) {
            let device = &self.tensors[piece.tensor].device;
            if device.is_in_place() {
                self.room.view(self.place(&piece), |from| device.write(piece.bytes.start, from))?;
            }
        }
        Ok(())
    }

    /// The pieces in which bytes of a tensor lie.
    fn touched(&self, tensor: usize, range: &Range<usize>) -> Range<usize> {
        let first = self.tensors[tensor].first_piece;
        if range.is_empty() {
            return first..first;
        }
        first + range.start / PIECE_BYTES..first + (range.end - 1) / PIECE_BYTES + 1
    }
}

impl fmt::Debug for Copier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Copier").field("tensors", &self.tensors).finish_non_exhaustive()
    }
}

/// What a tensor contributes.
#[derive(Debug)]
struct Contribution {
    copier: Arc<Copier>,
    tensor: usize,
}

impl Origin for Contribution {
    fn arrived(&self, range: &Range<usize>) -> bool {
        let pieces = self.copier.touched(self.tensor, range);
        let mut state = self.copier.state.lock();
        loop {
            if state.is_down[pieces.clone()].iter().all(|is_down| *is_down) {
                return true;
            }
            if state.is_stopped || state.failure.is_some() {
                return false;
            }
            // The thread that copies waits for nobody before all is down.
            self.copier.changed.wait(&mut state);
        }
    }

    fn finished(&self, _: Range<usize>) {}
}

/// What a tensor gets.
#[derive(Debug)]
struct Outcome {
    copier: Arc<Copier>,
    tensor: usize,
}

impl Origin for Outcome {
    fn arrived(&self, _: &Range<usize>) -> bool {
        true
    }

    fn finished(&self, range: Range<usize>) {
        let mut state = self.copier.state.lock();
        for index in self.copier.touched(self.tensor, &range) {
            let piece = &self.copier.pieces[index].bytes;
            state.finished_bytes[index] += range.end.min(piece.end) - range.start.max(piece.start);
            if state.finished_bytes[index] == piece.len() {
                state.waiting.push(index);
                self.copier.changed.notify_all();
            }
        }
    }
}
