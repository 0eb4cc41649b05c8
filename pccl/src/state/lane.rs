//! A lane: one connection to one source, with a thread that asks, checks and puts what arrives into its place.
//!
//! Several requests are under way at a time, so that the source always has one to answer: as many as the lane gets
//! through in a part of a second, and no more than its share of what is left.

use super::{
    compare::Comparison,
    fetch::Fetch,
    journal::Writer,
    schedule::Job,
    source::Watch,
    team::{Board, Fault, Over, Start},
    time_base,
};
use crate::{dial_back, relay, threads::spawn, world::Identity};
use parking_lot::MutexGuard;
use pccl_hash::tree::MEBIBYTE;
use pccl_protocol::{C2m, CallMe, P2p, StateAnswer, StatePart, StateRequest, TicketRole, limits};
use std::{
    collections::VecDeque,
    io,
    time::{Duration, Instant},
};
use tinysockets::{
    conn::Conn,
    dial::dial_place,
    link::{MAX_AUTOMATIC_CONNECTIONS, ROUND_TRIP_PER_CONNECTION, tune_data_socket},
    place::SHORT_SEGMENT_BYTES,
    preamble::{Preamble, Role},
    stream::PacketStream,
    sys::TcpInfo,
};

/// Fewest and most requests under way.
const DEPTH: std::ops::RangeInclusive<usize> = 2..=32;
/// Requests under way should take about this long.
const AHEAD: Duration = Duration::from_millis(250);

/// How long a source is waited for.
#[derive(Debug, Clone, Copy)]
struct Patience {
    /// For the answer to a request. The source may still be waiting for its own plan, but not for longer than
    /// [`super::server`] lets it.
    answer: Duration,
    /// For the next bytes of a transfer.
    stall: Duration,
}

impl Patience {
    fn of(me: Identity) -> Self {
        let whole = time_base(me.peer_timeout);
        Self { answer: whole * 3 / 5, stall: whole / 2 }
    }
}

/// Runs a lane until nothing is left to do, or its source has failed.
pub(super) fn run(fetch: &Fetch<'_, '_>, start: Start) {
    let source = &fetch.plan.sources[start.source];
    let watch = fetch.shared.source.begin(source.peer);
    // A source that went before this peer watched will not be told of again.
    fetch.shared.source.keep(|peer| fetch.is_needed(peer));
    let mut got = false;
    let result = if fetch.is_over(start.source) {
        Ok(())
    } else {
        Lane::connect(fetch, start, &watch).and_then(|mut lane| {
            let mut result = lane.run();
            if result.is_err() && lane.may_be_black_hole() {
                result = lane.reopen(&watch).and_then(|()| lane.run());
            }
            got = lane.got;
            result
        })
    };
    let result = result.map_err(|fault| match watch.is_gone() {
        true => Fault { kind: fault.kind, text: "the run has lost it".into(), broke: false },
        false => fault,
    });
    drop(watch);
    fetch.lane_ended(start, got, result);
}

struct Lane<'f, 's, 'a> {
    fetch: &'f Fetch<'s, 'a>,
    start: Start,
    stream: PacketStream,
    patience: Patience,
    /// Asked for, in this order.
    owed: VecDeque<Job>,
    writer: Writer<'f, 'a>,
    buffer: Vec<u8>,
    /// How many requests are under way at most.
    depth: usize,
    /// How long an answer takes.
    pace: Duration,
    /// Something has come, and was right.
    got: bool,
    /// Nothing came in time.
    timed_out: bool,
}

impl<'f, 's, 'a> Lane<'f, 's, 'a> {
    fn connect(fetch: &'f Fetch<'s, 'a>, start: Start, watch: &Watch<'_>) -> Result<Self, Fault> {
        let stream = Self::open(fetch, start, watch)?;
        let round_trip = stream.conn().round_trip();
        // Two at least: while one thread checks what has arrived, the other one receives.
        let worth = match fetch.shared.config.settings.pool_size {
            0 => 2 + (round_trip.as_nanos() / ROUND_TRIP_PER_CONNECTION.as_nanos()) as usize,
            wanted => wanted.into(),
        };
        fetch.connected(start.source, worth.min(MAX_AUTOMATIC_CONNECTIONS.into()));
        Ok(Self {
            fetch,
            start,
            stream,
            patience: Patience::of(fetch.me),
            owed: VecDeque::new(),
            writer: fetch.journal.writer(),
            buffer: Vec::new(),
            depth: *DEPTH.start(),
            pace: AHEAD,
            got: false,
            timed_out: false,
        })
    }

    fn open(fetch: &Fetch<'_, '_>, start: Start, watch: &Watch<'_>) -> Result<PacketStream, Fault> {
        let conn = match fetch.plan.sources[start.source].back {
            true => Self::be_dialed(fetch, start, watch)?,
            false => Self::dial(fetch, start, watch)?,
        };
        tune_data_socket(&conn, conn.round_trip());
        let stream = PacketStream::new(conn, limits::MAX_STATE_PACKET_BYTES);
        watch.connected(stream.breaker());
        Ok(stream)
    }

    /// Whether the path may have swallowed large packets: only the source sees which are lost.
    fn may_be_black_hole(&self) -> bool {
        let is_long = |info: TcpInfo| info.segment_bytes > SHORT_SEGMENT_BYTES;
        let is_dialed = !self.fetch.plan.sources[self.start.source].back;
        self.timed_out && is_dialed && self.stream.conn().info().is_ok_and(is_long)
    }

    /// Connects once more, with short segments, and asks again for what is owed.
    fn reopen(&mut self, watch: &Watch<'_>) -> Result<(), Fault> {
        let fetch = self.fetch;
        fetch.shared.ways().brought_nothing(fetch.plan.sources[self.start.source].peer);
        self.stream = Self::open(fetch, self.start, watch)?;
        self.timed_out = false;
        let requests: Vec<u8> = self.owed.iter().flat_map(|job| self.request(job)).collect();
        self.send(&requests)
    }

    /// Dials on a thread of its own, so that the loss of the source ends the wait here.
    fn dial(fetch: &Fetch<'_, '_>, start: Start, watch: &Watch<'_>) -> Result<Conn, Fault> {
        let (shared, me, source) = (fetch.shared, fetch.me, &fetch.plan.sources[start.source]);
        let preamble = Preamble {
            security: me.wire.security(),
            run: me.run.0,
            from: me.peer.0,
            to: source.peer.0,
            group: shared.config.group.0,
            connection_index: start.index,
            connection_count: start.index + 1,
            ..Preamble::new(Role::State)
        };
        let (ways, peer) = (shared.ways().clone(), source.peer);
        let place = ways.to(peer, &source.hosts, source.port);
        let deadline = fetch.earlier(Instant::now() + shared.config.settings.dial_timeout);
        let (preamble, ticket) = shared.wallet().stamp(preamble).map_err(Fault::unreached)?;
        let (result, dialed) = crossbeam_channel::bounded(1);
        // Not waited for: it ends by its deadline and holds nothing of this session.
        spawn("pccl-fetch", move || {
            let dialed = dial_place(&place, &|_| preamble, ticket.as_ref(), deadline);
            if let Ok(conn) = &dialed {
                ways.led_to(peer, conn);
            }
            let _ = result.send(dialed);
        })
        .map_err(Fault::unreached)?;
        let dialed = crossbeam_channel::select! {
            recv(dialed) -> dialed => dialed.map_err(Fault::unreached)?,
            recv(watch.gone()) -> _ => return Err(Fault::unreached("the run has lost it")),
        };
        dialed.map_err(|error| Fault::undialed(&error))
    }

    /// Has the source dial, which cannot be dialed.
    fn be_dialed(fetch: &Fetch<'_, '_>, start: Start, watch: &Watch<'_>) -> Result<Conn, Fault> {
        let (shared, source) = (fetch.shared, &fetch.plan.sources[start.source]);
        // The wish goes by way of the master.
        let deadline = fetch.earlier(Instant::now() + shared.config.settings.dial_timeout * 2);
        let wish = CallMe {
            peer: source.peer,
            role: TicketRole::StateBack,
            index: start.index,
            count: start.index + 1,
        };
        let dialed_back = shared.dial_backs.ask(wish, |wish| shared.send(&C2m::CallMe(wish)));
        if let Some(relay) = shared.relay().filter(|_| source.relayed) {
            let what = relay::Purpose { role: Role::StateBack, generation: 0, index: start.index };
            relay.expect(source.peer, what);
        }
        let arrived = crossbeam_channel::select! {
            recv(dialed_back.arrivals()) -> arrived => arrived.ok(),
            recv(watch.gone()) -> _ => return Err(Fault::unreached("the run has lost it")),
            default(deadline.saturating_duration_since(Instant::now())) => None,
        };
        arrived.map(|(_, _, conn)| conn).ok_or_else(|| Fault::unreached(dial_back::NOT_DIALED_BACK))
    }

    fn run(&mut self) -> Result<(), Fault> {
        while self.ask()? {
            let began = Instant::now();
            self.take_answer()?;
            self.pace = (self.pace * 3 + began.elapsed()) / 4;
            let ahead = AHEAD.as_nanos() / self.pace.as_nanos().max(1);
            self.depth = usize::try_from(ahead).unwrap_or(usize::MAX).clamp(*DEPTH.start(), *DEPTH.end());
        }
        Ok(())
    }

    /// Asks for more, if there is room for it. Waits while nothing is under way; `false` when nothing is left to do.
    fn ask(&mut self) -> Result<bool, Fault> {
        let mut requests = Vec::new();
        let mut board = self.fetch.board.lock();
        loop {
            if board.over.is_some() || board.sources[self.start.source].fault.is_some() {
                return Ok(false);
            }
            let asked = self.owed.len();
            self.take_jobs(&mut board);
            requests.extend(self.owed.range(asked..).flat_map(|job| self.request(job)));
            if !self.owed.is_empty() {
                break;
            }
            self.await_news(&mut board);
        }
        drop(board);
        self.send(&requests)?;
        Ok(true)
    }

    fn request(&self, job: &Job) -> Vec<u8> {
        let key = self.fetch.plan.fetch[job.tensor].key.clone();
        P2p::StateRequest(StateRequest { sync: self.fetch.plan.sync, key, part: job.wanted.part }).to_frame()
    }

    fn send(&mut self, requests: &[u8]) -> Result<(), Fault> {
        if requests.is_empty() {
            return Ok(());
        }
        let deadline = self.fetch.earlier(Instant::now() + self.patience.stall);
        let sent = self.stream.send_bytes(requests, deadline);
        sent.map_err(|error| self.lost(error))
    }

    fn lost(&mut self, error: io::Error) -> Fault {
        self.timed_out = error.kind() == io::ErrorKind::TimedOut;
        Fault::lost(error)
    }

    fn take_jobs(&mut self, board: &mut Board) {
        let now = self.fetch.now();
        let lane = self.start.lane;
        let share = board.schedule.waiting() / board.running().max(1) + 1;
        while self.owed.len() < self.depth.min(share) {
            let Some(job) = board.schedule.take(lane, now) else { break };
            self.owed.push_back(job);
        }
        if self.owed.is_empty() {
            self.owed.extend(board.schedule.steal(lane, now));
        }
    }

    /// Waits until there may be something to do.
    fn await_news(&self, board: &mut MutexGuard<'_, Board>) {
        match board.schedule.next_steal(self.start.lane) {
            None => self.fetch.work.wait(board),
            Some(due) => drop(self.fetch.work.wait_until(board, self.fetch.began + due)),
        }
    }

    /// Receives the answer to the oldest request, and puts what it brings into its place.
    fn take_answer(&mut self) -> Result<(), Fault> {
        let Some(job) = self.owed.front().copied() else { return Ok(()) };
        let item = &self.fetch.plan.fetch[job.tensor];
        let comparison = &self.fetch.comparisons[job.tensor];
        let needed = comparison.bytes(job.wanted.part).unwrap_or(0);
        let deadline = self.fetch.earlier(Instant::now() + self.patience.answer);
        let answer = self.stream.recv_packet(deadline);
        let (kind, body) = answer.map_err(|error| self.lost(error))?;
        match P2p::from_frame(kind, &body).map_err(Fault::refused)? {
            P2p::StateAnswer(StateAnswer::Bytes(bytes)) if bytes == needed as u64 => {}
            P2p::StateAnswer(StateAnswer::Bytes(bytes))
                if !self.fetch.bounds.undoable && bytes <= MEBIBYTE as u64 =>
            {
                // The master has seen only the tensors of those who vote.
                let key = &item.key;
                let text =
                    format!("a part of tensor {key} has {bytes} bytes in the run, and {needed} at this peer");
                self.fetch.end(Over::Misfit(text));
                return Err(Fault::unreached("not needed any more"));
            }
            P2p::StateAnswer(StateAnswer::Bytes(bytes)) => {
                let text = format!("offers {bytes} bytes for a part of tensor {}, it has {needed}", item.key);
                return Err(Fault::refused(text));
            }
            P2p::StateAnswer(StateAnswer::NotServing(_)) if !self.fetch.bounds.undoable => {
                return Err(Fault::unreached("its loan has ended"));
            }
            P2p::StateAnswer(StateAnswer::UnknownPart(_)) if !self.fetch.bounds.undoable => {
                let text = format!("tensor {} has another length in the run", item.key);
                self.fetch.end(Over::Misfit(text));
                return Err(Fault::unreached("not needed any more"));
            }
            P2p::StateAnswer(StateAnswer::NotServing(_)) => {
                return Err(Fault::refused(format!("does not serve sync {}", self.fetch.plan.sync)));
            }
            P2p::StateAnswer(StateAnswer::UnknownKey(_)) => {
                return Err(Fault::refused(format!("has no tensor {}", item.key)));
            }
            P2p::StateAnswer(StateAnswer::UnknownPart(_)) => {
                return Err(Fault::refused(format!("has no {:?} of tensor {}", job.wanted.part, item.key)));
            }
            P2p::StateRequest(_) => return Err(Fault::refused("a request where an answer belongs")),
        }
        if self.buffer.len() < needed {
            // Not resized: what was in it is not worth a copy.
            self.buffer = vec![0; needed];
        }
        let bytes = &mut self.buffer[..needed];
        let limit = self.fetch.bounds.deadline;
        if let Err(error) = self.stream.recv_exact_progress(bytes, self.patience.stall, limit) {
            return Err(self.lost(error));
        }
        let bytes = &self.buffer[..needed];
        self.owed.pop_front();
        log::trace!("part of {} arrived: {:?}", item.key, job.wanted.part);
        let below = comparison.check(&job.wanted, bytes);
        let below = below.map_err(|text| Fault::refused(format!("tensor {}: {text}", item.key)))?;
        let below = below.into_iter().map(|wanted| Job { tensor: job.tensor, wanted });
        let below = below.map(|job| (job, bytes_of(comparison, &job))).collect();
        self.got = true;
        self.place(&job, below, needed)
    }

    fn place(&mut self, job: &Job, mut below: Vec<(Job, usize)>, bytes: usize) -> Result<(), Fault> {
        let is_first = self.fetch.board.lock().schedule.arrive(job);
        if !is_first {
            return Ok(());
        }
        if let StatePart::Mebibyte(number) = job.wanted.part {
            let piece = usize::try_from(number).unwrap_or(usize::MAX);
            if let Err(error) = self.writer.replace(job.tensor, piece, &self.buffer[..bytes]) {
                let directory = self.fetch.journal.directory().display();
                let text = format!(
                    "what the fetched state replaces can neither be kept in memory nor in {directory}: {error}; allow \
                     more memory (state_memory), or name another directory (state_spill_dir)"
                );
                self.fetch.end(Over::Failed(text, Some(error)));
                return Ok(());
            }
        }
        below.retain(|(job, _)| !self.recall(job));
        self.fetch.finish(self.start.source, job, below, bytes);
        Ok(())
    }

    /// Puts a piece into its place that an earlier attempt has fetched. Whether there is one.
    fn recall(&mut self, job: &Job) -> bool {
        let StatePart::Mebibyte(number) = job.wanted.part else { return false };
        let Ok(piece) = usize::try_from(number) else { return false };
        let comparison = &self.fetch.comparisons[job.tensor];
        let is_right = |bytes: &[u8]| comparison.check(&job.wanted, bytes).is_ok();
        let is_here = self.writer.recall(job.tensor, piece, is_right);
        if is_here {
            self.fetch.board.lock().placed.push((job.tensor, number));
        }
        is_here
    }
}

/// How many bytes a part has.
pub(super) fn bytes_of(comparison: &Comparison<'_>, job: &Job) -> usize {
    comparison.bytes(job.wanted.part).unwrap_or(0)
}
