//! Copies between tensors on devices and the memory of the host that stands for them, while their operation goes on.
//!
//! Memory of the host has what came from a device and the result, as far as an operation needs the one and the other
//! ([`Role`]). A thread copies the contributions down piece by piece, in the order in which they are needed; a thread
//! that needs a piece waits for it ([`Origin`]). Then it copies pieces of the result up as they are finished, while
//! others are still on their way. Few bytes are copied by the thread that calls.
//!
//! Contributed bytes stay where they are until the operation is over, and replaced bytes are copied down before
//! anything is copied over them. So a tensor in place is as before if the operation fails ([`Pipeline::undo`]).
//!
//! No error ends the call here: the operation begins for all peers, and fails for all of them.

use super::{Backup, OnDevice, Origins, RawTensor, Role};
use crate::{Error, threads};
use parking_lot::{Condvar, Mutex, MutexGuard};
use pccl_protocol::limits;
use std::{
    fmt, io, mem,
    ops::Range,
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};
use tinysockets::link::{self, Origin};

/// Bytes that are waited for, and finished, as one.
const PIECE_BYTES: usize = 1 << 20;
/// Pieces that are copied at once, at most, so that their copies overlap with each other.
const BATCH_PIECES: usize = 8;
/// A device that copies nothing for so long is waited for no more.
const PATIENCE: Duration = Duration::from_millis(limits::DEVICE_PATIENCE_MS);

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Pipeline {
    copier: Arc<Copier>,
    /// None if there is so little to copy that no thread is worth it.
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Hears of the copies down, on the thread that copies.
pub(crate) struct Hearer {
    /// One has failed, or one of the copies up.
    pub(crate) failed: Box<dyn Fn(String) + Send>,
    /// All have succeeded.
    pub(crate) copied: Box<dyn Fn() + Send>,
}

struct Copier {
    tensors: Vec<Standing>,
    pieces: Vec<Piece>,
    room: Arc<Backup>,
    /// Bytes of all tensors.
    bytes: usize,
    /// How long anybody waits for the next piece to come down.
    patience: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

/// A tensor on a device, and what stands for it.
#[derive(Debug)]
struct Standing {
    device: OnDevice,
    /// Bytes of the tensors before it.
    before: usize,
    /// First byte in the room of what comes down: a contribution, or what is replaced.
    down: usize,
    /// The same of the result.
    up: usize,
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
    /// How many are.
    down: usize,
    finished_bytes: Vec<usize>,
    /// Copied up, or being copied.
    is_up: Vec<bool>,
    /// Finished, and not yet taken to be copied up.
    waiting: Vec<usize>,
    /// Taken.
    is_taken: Vec<bool>,
    /// All contributions are there.
    is_all_down: bool,
    /// All results are there.
    is_complete: bool,
    /// Nothing is to be copied any more.
    is_stopped: bool,
    failure: Option<Error>,
    hearer: Option<Hearer>,
}

impl Pipeline {
    /// Bytes of room that tensors need.
    pub(crate) fn room_bytes(tensors: &[OnDevice]) -> usize {
        tensors.iter().map(|tensor| areas(tensor.role()) * tensor.bytes()).sum()
    }

    /// Begins to copy what tensors contribute into `room`, which has [`Pipeline::room_bytes`]. `turns` are those in
    /// which equal parts of all of it are needed; at least one. With a `failure` nothing is copied.
    pub(crate) fn begin(
        tensors: Vec<OnDevice>,
        room: Arc<Backup>,
        turns: &[usize],
        failure: Option<Error>,
    ) -> Self {
        Self::begin_with(tensors, room, turns, failure, PATIENCE)
    }

    /// The same with another patience.
    pub(super) fn begin_with(
        tensors: Vec<OnDevice>,
        room: Arc<Backup>,
        turns: &[usize],
        failure: Option<Error>,
        patience: Duration,
    ) -> Self {
        let copier = Arc::new(Copier::new(tensors, room, patience));
        let order = copier.order(turns);
        let thread = Mutex::new(None);
        if let Some(error) = failure {
            copier.fail(copier.state.lock(), error);
        } else if copier.pieces.len() <= copier.tensors.len() && copier.bytes <= PIECE_BYTES {
            copier.copy_down(&order);
        } else {
            let its = copier.clone();
            let run = move || {
                its.copy_down(&order);
                its.copy_up();
            };
            match threads::spawn("pccl-device", run) {
                Ok(begun) => *thread.lock() = Some(begun),
                Err(error) => {
                    let error = Error::System(crate::Reason::system(error.tried(), error.error));
                    copier.fail(copier.state.lock(), error);
                }
            }
        }
        Self { copier, thread }
    }

    /// The memory that stands for a tensor.
    pub(crate) fn raw(&self, tensor: usize) -> RawTensor {
        let (copier, Standing { device, down, up, .. }) = (&self.copier, &self.copier.tensors[tensor]);
        let area = |start: usize| start..start + device.bytes();
        let raw = match device.role() {
            Role::Gives => RawTensor::part_of(&copier.room, area(*down)).read_only(),
            Role::Gets | Role::Replaces => RawTensor::part_of(&copier.room, area(*up)),
            Role::Folds | Role::Scatters | Role::Exchanges => {
                RawTensor::within(&copier.room, area(*down), area(*up))
            }
        };
        raw.standing_for(self.origins(tensor))
    }

    /// Where the contribution of a tensor comes from, and where its result goes.
    pub(super) fn origins(&self, tensor: usize) -> Origins {
        let copier = self.copier.clone();
        let contribution = Arc::new(Contribution { copier: copier.clone(), tensor });
        Origins { contribution, result: Arc::new(Outcome { copier, tensor }) }
    }

    /// Address ranges on the devices, and whether they are written.
    pub(crate) fn ranges(&self) -> Vec<(Range<usize>, bool)> {
        self.copier.tensors.iter().flat_map(|tensor| tensor.device.ranges()).collect()
    }

    /// Whether all contributions have been copied down.
    pub(crate) fn is_all_down(&self) -> bool {
        self.copier.state.lock().is_all_down
    }

    /// The error of a copy, if there was one.
    pub(crate) fn failure(&self) -> Option<Error> {
        self.copier.state.lock().failure.clone()
    }

    /// Tells `hearer` once if a copy fails or has failed, or if all contributions are down from now on. It takes the
    /// place of an earlier one.
    pub(crate) fn tell(&self, hearer: Hearer) {
        let mut state = self.copier.state.lock();
        match &state.failure {
            Some(error) => {
                let text = error.to_string();
                drop(state);
                (hearer.failed)(text);
            }
            None => state.hearer = Some(hearer),
        }
    }

    /// Copies the rest of the results up; they are there when this returns.
    pub(crate) fn complete(&self) -> Result<(), Error> {
        self.copier.completed();
        match self.thread.lock().take() {
            Some(thread) => drop(thread.join()),
            None => self.copier.copy_up(),
        }
        self.failure().map_or(Ok(()), Err)
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
            // The thread that copies may be the last one to know the operation.
            if thread.thread().id() != std::thread::current().id() {
                drop(thread.join());
            }
        }
    }
}

/// Areas of the room that a tensor has.
fn areas(role: Role) -> usize {
    match role {
        Role::Gives | Role::Gets => 1,
        Role::Folds | Role::Scatters | Role::Exchanges | Role::Replaces => 2,
    }
}

impl Copier {
    fn new(devices: Vec<OnDevice>, room: Arc<Backup>, patience: Duration) -> Self {
        let (mut tensors, mut pieces) = (Vec::with_capacity(devices.len()), Vec::new());
        let (mut before, mut place) = (0, 0);
        for (tensor, device) in devices.into_iter().enumerate() {
            let (bytes, first_piece, areas) = (device.bytes(), pieces.len(), areas(device.role()));
            let cuts = (0..bytes).step_by(PIECE_BYTES);
            pieces.extend(cuts.map(|at| Piece { tensor, bytes: at..bytes.min(at + PIECE_BYTES) }));
            let up = place + (areas - 1) * bytes;
            tensors.push(Standing { device, before, down: place, up, first_piece });
            (before, place) = (before + bytes, place + areas * bytes);
        }
        let count = pieces.len();
        let state = State {
            is_down: vec![false; count],
            finished_bytes: vec![0; count],
            is_up: vec![false; count],
            is_taken: vec![false; count],
            ..State::default()
        };
        let (state, changed) = (Mutex::new(state), Condvar::new());
        Self { tensors, pieces, room, bytes: before, patience, state, changed }
    }

    /// The order in which the pieces of contributions are needed.
    fn order(&self, turns: &[usize]) -> Vec<usize> {
        let chunk_of = |piece: &Piece| {
            let at = self.tensors[piece.tensor].before + piece.bytes.start;
            (at as u128 * turns.len() as u128 / self.bytes.max(1) as u128) as usize
        };
        let turn = |chunk: usize| turns.get(chunk.min(turns.len().saturating_sub(1)));
        let mut order: Vec<usize> = (0..self.pieces.len()).filter(|index| self.comes_down(*index)).collect();
        // In the piece in which a chunk begins there is the end of the one before.
        order.sort_by_key(|index| turn(chunk_of(&self.pieces[*index])));
        let before = order.first().and_then(|first| first.checked_sub(1));
        if let Some(before) = before.filter(|index| self.comes_down(*index)) {
            order.retain(|index| *index != before);
            order.insert(0, before);
        }
        order
    }

    fn role(&self, piece: usize) -> Role {
        self.tensors[self.pieces[piece].tensor].device.role()
    }

    fn comes_down(&self, piece: usize) -> bool {
        self.role(piece).contributes()
    }

    /// Bytes of the room that are for what comes down of a piece.
    fn below(&self, piece: &Piece) -> Range<usize> {
        let start = self.tensors[piece.tensor].down;
        start + piece.bytes.start..start + piece.bytes.end
    }

    /// The same for the result.
    fn above(&self, piece: &Piece) -> Range<usize> {
        let start = self.tensors[piece.tensor].up;
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
            let copied = self.room.fill(self.below(&piece), |to| device.read(piece.bytes.start, to));
            let mut state = self.state.lock();
            if let Err(error) = copied {
                return self.fail(state, error);
            }
            for index in batch {
                state.is_down[*index] = true;
            }
            state.down += batch.len();
            self.changed.notify_all();
        }
        let mut state = self.state.lock();
        state.is_all_down = true;
        // For a failure of a copy up it stays.
        if let Some(hearer) = state.hearer.take() {
            drop(state);
            (hearer.copied)();
            let mut state = self.state.lock();
            state.hearer.get_or_insert(hearer);
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
                state.is_taken[*index] = true;
            }
            drop(state);
            for (batch, piece) in self.batches(&pieces) {
                if let Err(error) = self.write_up(batch, &piece) {
                    return self.fail(self.state.lock(), error);
                }
            }
        }
    }

    /// Copies some of a result up, and what is there down before, if it is replaced.
    fn write_up(&self, batch: &[usize], piece: &Piece) -> Result<(), Error> {
        let device = &self.tensors[piece.tensor].device;
        if device.role() == Role::Replaces {
            // Nobody else uses this part of the room.
            self.room.fill(self.below(piece), |to| device.read_target(piece.bytes.start, to))?;
        }
        let mut state = self.state.lock();
        for index in batch {
            state.is_up[*index] = true;
        }
        drop(state);
        // Nobody writes what is finished.
        self.room.view(self.above(piece), |from| device.write(piece.bytes.start, from))
    }

    fn fail(&self, mut state: MutexGuard<'_, State>, error: Error) {
        let (text, hearer) = (error.to_string(), state.hearer.take());
        state.failure.get_or_insert(error);
        self.changed.notify_all();
        drop(state);
        if let Some(hearer) = hearer {
            (hearer.failed)(text);
        }
    }

    /// All results are there, also those that nobody has named.
    fn completed(&self) {
        let mut state = self.state.lock();
        let left: Vec<usize> = (0..self.pieces.len())
            .filter(|index| self.role(*index).receives())
            .filter(|index| !state.is_taken[*index] && !state.waiting.contains(index))
            .collect();
        state.waiting.extend(left);
        state.is_complete = true;
        self.changed.notify_all();
    }

    /// Writes what was there over what was copied up in place.
    fn put_back(&self) -> Result<(), Error> {
        let is_up = mem::take(&mut self.state.lock().is_up);
        let pieces: Vec<usize> = (0..is_up.len()).filter(|index| is_up[*index]).collect();
        for (_, piece) in self.batches(&pieces) {
            let device = &self.tensors[piece.tensor].device;
            if device.is_in_place() && device.role().is_restored() {
                self.room.view(self.below(&piece), |from| device.write(piece.bytes.start, from))?;
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

/// The contribution of a tensor.
#[derive(Debug)]
struct Contribution {
    copier: Arc<Copier>,
    tensor: usize,
}

impl Origin for Contribution {
    fn arrived(&self, range: &Range<usize>) -> bool {
        let pieces = self.copier.touched(self.tensor, range);
        let mut state = self.copier.state.lock();
        let until = || Instant::now() + self.copier.patience;
        let (mut down, mut deadline) = (state.down, until());
        loop {
            if state.is_down[pieces.clone()].iter().all(|is_down| *is_down) {
                return true;
            }
            if state.is_stopped || state.failure.is_some() {
                return false;
            }
            // The thread that copies waits for nobody but the device before all is down.
            let is_late = self.copier.changed.wait_until(&mut state, deadline).timed_out();
            if state.down > down {
                link::gets_on();
                (down, deadline) = (state.down, until());
            } else if is_late && !state.is_stopped {
                self.copier.fail(state, nothing_copied(self.copier.patience));
                return false;
            }
        }
    }

    fn finished(&self, _: Range<usize>) {}
}

/// A device that copies nothing.
fn nothing_copied(patience: Duration) -> Error {
    let text = format!("it has copied nothing for {patience:?}");
    let error = io::Error::new(io::ErrorKind::TimedOut, text);
    Error::System(crate::Reason::system("waiting for a device", error))
}

/// The result that a tensor gets.
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
        if !self.copier.tensors[self.tensor].device.role().receives() {
            return;
        }
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
