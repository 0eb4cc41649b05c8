//! Fetches what differs of the shared state, from all sources at once, and puts it into place piece by piece.
//!
//! The caller's thread starts lanes and waits; each lane is a thread with a connection ([`super::lane`]).
//! [`super::schedule`] and [`super::team`] decide what they do. A source that fails is left out, and what it owed goes
//! to the others. A source that the run loses is given up at once, see [`super::source`].

use super::{
    SyncProgress,
    compare::{Comparison, Levels},
    journal::{Journal, Pieces},
    lane::{self, bytes_of},
    progress::Meter,
    salvage::Salvage,
    schedule::Job,
    syncs::Syncs,
    team::{Board, Fault, HEDGE, Over, Start},
};
use crate::{memory::Piece, threads::STACK_BYTES, world::Identity};
use parking_lot::{Condvar, Mutex};
use pccl_protocol::{PeerId, SourceFailure, SourceFault, SyncPlan, Text};
use std::{
    io,
    path::Path,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

/// Most lanes of one fetch.
const MAX_LANES: usize = 24;
/// The number of lanes that there may be, however little memory is allowed.
const MIN_LANES: usize = 4;
/// Memory for which one more lane is allowed.
const MEMORY_PER_LANE: usize = 4 << 20;
/// The memory of it that a lane takes for itself: for the piece that it receives, and for the one that it sets aside.
const BUFFERS_PER_LANE: usize = 2 * pccl_hash::tree::MEBIBYTE;
/// How often progress is reported.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// A tensor that is to be fetched.
pub(crate) struct Target<'a> {
    pub(crate) content: Vec<Piece<'a>>,
    pub(crate) levels: Arc<Levels>,
}

/// How much memory a fetch may take beside the tensors, and where what is more goes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room<'a> {
    pub(crate) memory: usize,
    pub(crate) spill_dir: &'a Path,
}

impl Room<'_> {
    fn lanes(&self) -> usize {
        (self.memory / MEMORY_PER_LANE).clamp(MIN_LANES, MAX_LANES)
    }

    /// For what is replaced.
    fn journal_bytes(&self) -> usize {
        self.memory.saturating_sub(self.lanes() * BUFFERS_PER_LANE)
    }
}

/// Within which bounds a fetch goes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds<'a> {
    pub(crate) room: Room<'a>,
    /// Replaced content is kept, so that it can be put back. The fetch is one of a sync.
    pub(crate) undoable: bool,
    /// The caller's limit.
    pub(crate) deadline: Option<Instant>,
    /// Moment of [`super::source`] before the fetch was asked for.
    pub(crate) begun: u64,
}

/// The result of a fetch.
#[derive(Debug)]
pub(crate) struct Fetched<'a> {
    /// With what it takes to undo it, if that is wanted.
    pub(crate) journal: Journal<'a>,
    pub(crate) rx_bytes: u64,
    /// The pieces that were replaced: number of the tensor in the plan, and of the MiB.
    pub(crate) placed: Vec<(usize, u64)>,
    /// Sources that were asked in vain, or failed later.
    pub(crate) failures: Vec<SourceFailure>,
    /// Sources that gave something and did not fail.
    pub(crate) gave: Vec<PeerId>,
    /// Why something is missing, with the error of this machine, if that is why.
    pub(crate) error: Option<(String, Option<io::Error>)>,
    /// It is missing because a tensor has another length than at a source.
    pub(crate) misfit: bool,
}

/// The state that the lanes of one fetch share.
pub(super) struct Fetch<'s, 'a> {
    pub(super) shared: &'s Syncs,
    pub(super) me: Identity,
    pub(super) plan: &'s SyncPlan,
    pub(super) comparisons: Vec<Comparison<'s>>,
    pub(super) journal: Journal<'a>,
    pub(super) bounds: Bounds<'s>,
    pub(super) began: Instant,
    pub(super) board: Mutex<Board>,
    /// Lanes with nothing to do wait for this.
    pub(super) work: Condvar,
    /// The caller's thread waits for this: there is work for more lanes, one has ended, or all is over.
    news: Condvar,
}

/// Fetches everything in the plan, but for what an earlier fetch has left; `targets` are its tensors, in their order.
pub(crate) fn fetch<'a>(
    shared: &Syncs,
    me: Identity,
    plan: &SyncPlan,
    (targets, salvage): (Vec<Target<'a>>, Option<Salvage>),
    bounds: Bounds<'_>,
    progress: &mut dyn FnMut(SyncProgress),
) -> Fetched<'a> {
    let (contents, levels): (Vec<_>, Vec<_>) =
        targets.into_iter().map(|target| (target.content, target.levels)).unzip();
    let pieces = contents
        .into_iter()
        .map(|content: Vec<Piece<'a>>| content.into_iter().map(Mutex::new).collect::<Pieces<'a>>());
    let room = bounds.room;
    let journal = match bounds.undoable {
        true => Journal::new(pieces.collect(), room.journal_bytes(), room.spill_dir),
        false => Journal::that_forgets(pieces.collect()),
    };
    let journal = match salvage.and_then(|salvage| salvage.for_plan(plan)) {
        Some(leftover) => journal.resume(leftover),
        None => journal,
    };
    let comparisons: Vec<_> =
        levels.iter().zip(&plan.fetch).map(|(own, item)| Comparison::new(own, item.digest)).collect();
    let mut board = Board::new(plan.sources.len());
    for (tensor, comparison) in comparisons.iter().enumerate() {
        log::trace!("fetching {}", plan.fetch[tensor].key);
        if let Some(wanted) = comparison.first() {
            let job = Job { tensor, wanted };
            board.expect(&job, bytes_of(comparison, &job));
            board.schedule.add(job);
        }
    }
    if board.schedule.is_done() {
        board.over = Some(Over::Done);
    }
    let fetch = Fetch {
        shared,
        me,
        plan,
        comparisons,
        journal,
        bounds,
        began: Instant::now(),
        board: Mutex::new(board),
        work: Condvar::new(),
        news: Condvar::new(),
    };
    fetch.run(room.lanes(), progress);
    shared.underway.end();
    fetch.result()
}

impl<'a> Fetch<'_, 'a> {
    pub(super) fn now(&self) -> Duration {
        self.began.elapsed()
    }

    pub(super) fn earlier(&self, deadline: Instant) -> Instant {
        self.bounds.deadline.map_or(deadline, |limit| limit.min(deadline))
    }

    /// Whether a source may still be asked.
    pub(super) fn is_needed(&self, source: PeerId) -> bool {
        // A newcomer that is not let in yet has no plan of its group; the master names other sources when it loses one.
        !self.bounds.undoable || self.shared.table.has_member(source)
    }

    /// Starts lanes until everything is here, or cannot be had.
    fn run(&self, most: usize, progress: &mut dyn FnMut(SyncProgress)) {
        std::thread::scope(|scope| {
            let mut meter = Meter::default();
            let mut report_at = REPORT_INTERVAL;
            let mut board = self.board.lock();
            while board.over.is_none() {
                self.look_around(&mut board);
                for start in board.start(self.now(), most) {
                    let lane = std::thread::Builder::new().name("pccl-lane".into()).stack_size(STACK_BYTES);
                    if let Err(error) = lane.spawn_scoped(scope, move || lane::run(self, start)) {
                        let fault = Fault::unreached(format!("no thread for it: {error}"));
                        board.lane_ended(start, false, Err(fault));
                    }
                }
                self.tell(&board);
                if board.over.is_none() {
                    self.news.wait_until(&mut board, Instant::now() + HEDGE / 2);
                }
                if self.now() >= report_at && board.over.is_none() {
                    report_at = self.now() + REPORT_INTERVAL;
                    let seen = self.progress_of(&board, &mut meter);
                    // The callback may take its time, and nobody waits for it.
                    drop(board);
                    log::info!("shared state: {seen}");
                    progress(seen);
                    board = self.board.lock();
                }
            }
            drop(board);
            self.work.notify_all();
            // Whatever is still under way is not needed any more.
            self.shared.source.keep(|_| false);
        });
        let board = self.board.lock();
        if matches!(board.over, Some(Over::Done)) && board.total_bytes > 0 {
            let seen = self.progress_of(&board, &mut Meter::default());
            drop(board);
            log::debug!("shared state: {seen}");
            progress(seen);
        }
    }

    /// Tells those who look from elsewhere how far this is.
    fn tell(&self, board: &Board) {
        let bytes = (board.done_bytes, board.total_bytes);
        self.shared.underway.note(self.began, bytes, board.giving());
    }

    fn progress_of(&self, board: &Board, meter: &mut Meter) -> SyncProgress {
        let gave = board.sources.iter().filter(|source| source.gave_bytes > 0).count();
        SyncProgress {
            done_bytes: board.done_bytes,
            total_bytes: board.total_bytes,
            rate: meter.rate(self.now(), board.done_bytes),
            sources: if matches!(board.over, Some(Over::Done)) { gave } else { board.giving() },
        }
    }

    /// Ends the fetch if there is no use in it any more.
    fn look_around(&self, board: &mut Board) {
        let why = if self.shared.is_over() {
            "the session ended".into()
        } else if self.shared.source.is_stopped_since(self.bounds.begun) {
            "the sync is over".into()
        } else if self.bounds.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            self.at_the_limit(board)
        } else if board.sources.is_empty() {
            "no source was named".into()
        } else {
            return;
        };
        board.over = Some(Over::Failed(why, None));
    }

    /// The parts that are missing when the caller's limit passes, and who was to give it.
    fn at_the_limit(&self, board: &Board) -> String {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let asked = (0..board.sources.len()).filter(|number| board.sources[*number].running > 0);
        let asked: Vec<String> = asked.map(|number| self.name(number)).collect();
        let (done, total) = (mib(board.done_bytes), mib(board.total_bytes));
        format!(
            "{done:.1} of {total:.1} MiB had been fetched, and the rest was asked of {}",
            asked.join(", ")
        )
    }

    /// Whether a lane to this source has nothing to do any more.
    pub(super) fn is_over(&self, source: usize) -> bool {
        let board = self.board.lock();
        board.over.is_some() || board.sources[source].fault.is_some()
    }

    /// A connection to a source stands; its path is worth this number of connections.
    pub(super) fn connected(&self, source: usize, worth: usize) {
        let mut board = self.board.lock();
        let source = &mut board.sources[source];
        if source.worth == 0 {
            source.worth = worth;
            drop(board);
            self.news.notify_one();
        }
    }

    /// A part is in its place.
    pub(super) fn finish(&self, source: usize, job: &Job, below: Vec<(Job, usize)>, bytes: usize) {
        let more_work = !below.is_empty();
        if !self.bounds.undoable {
            self.shared.fetched_ahead.fetch_add(bytes as u64, Ordering::Relaxed);
        }
        let mut board = self.board.lock();
        board.finish(source, job, below, bytes, self.now());
        self.tell(&board);
        let over = board.over.is_some();
        drop(board);
        if more_work || over {
            self.work.notify_all();
            self.news.notify_one();
        }
    }

    /// Nothing more is to be fetched.
    pub(super) fn end(&self, over: Over) {
        self.board.lock().over.get_or_insert(over);
        self.work.notify_all();
        self.news.notify_one();
    }

    /// A lane has ended; its source is left out if it is at fault.
    pub(super) fn lane_ended(&self, start: Start, got: bool, result: Result<(), Fault>) {
        let mut board = self.board.lock();
        self.look_around(&mut board);
        let left_out = board.lane_ended(start, got, result);
        if left_out {
            let source = &self.plan.sources[start.source];
            let fault = board.sources[start.source].fault.as_ref();
            let (fault, text) = (fault.map(|it| it.kind), fault.map_or("", |it| it.text.as_str()));
            // A loan ends at any time.
            let is_usual = !self.bounds.undoable && matches!(fault, Some(SourceFault::Unreached));
            let level = if is_usual { log::Level::Debug } else { log::Level::Warn };
            log::log!(level, "shared state from peer {}: {text}", self.name(start.source));
            if board.is_lost() {
                board.over = Some(Over::Failed(String::new(), None));
            }
            // The other connections to it are of no use either.
            self.shared.source.keep(|peer| peer != source.peer);
        }
        drop(board);
        self.work.notify_all();
        self.news.notify_one();
    }

    fn name(&self, source: usize) -> String {
        let source = &self.plan.sources[source];
        format!("{} ({})", source.peer, source.hosts.listed(source.port))
    }

    /// How it ended. After the last lane.
    fn result(self) -> Fetched<'a> {
        let now = self.now();
        let board = std::mem::take(&mut *self.board.lock());
        let is_done = matches!(board.over, Some(Over::Done));
        let (mut failures, mut gave) = (Vec::new(), Vec::new());
        for (number, source) in board.sources.iter().enumerate() {
            let peer = self.plan.sources[number].peer;
            let failure = |fault, text: &str| {
                let text = Text::new(format!("{}: {text}", self.name(number)));
                SourceFailure { peer, fault, text }
            };
            let silent = source.since.map(|since| now.saturating_sub(since)).filter(|time| *time >= HEDGE);
            match (&source.fault, silent) {
                (Some(fault), _) => failures.push(failure(fault.kind, &fault.text)),
                (None, _) if source.gave_bytes > 0 => gave.push(peer),
                // The next sync had better ask somebody else first.
                (None, Some(time)) if is_done => {
                    failures
                        .push(failure(SourceFault::Unreached, &format!("nothing came from it in {time:?}")));
                }
                (None, _) => {}
            }
        }
        let spilled_bytes = self.journal.spilled_bytes();
        if spilled_bytes > 0 {
            log::info!("{spilled_bytes} bytes of old state wait in {}", self.journal.directory().display());
        }
        let misfit = matches!(board.over, Some(Over::Misfit(_)));
        let error = match board.over {
            Some(Over::Done) => None,
            Some(Over::Misfit(text)) => Some((text, None)),
            Some(Over::Failed(text, error)) if !text.is_empty() => Some((text, error)),
            _ => {
                let texts: Vec<&str> = failures.iter().map(|failure| failure.text.as_str()).collect();
                Some((texts.join("; "), None))
            }
        };
        let Board { done_bytes: rx_bytes, placed, .. } = board;
        Fetched { journal: self.journal, rx_bytes, placed, failures, gave, error, misfit }
    }
}
