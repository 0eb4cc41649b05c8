//! The sending end of a link.

use std::{
    cell::Cell,
    collections::HashSet,
    io,
    os::fd::AsFd,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use pccl_hash::Checksum;

use super::{
    Direction, FLAG_CHECKSUM, FRAME_HEADER_BYTES, FaultKind, FrameHeader, LinkEvents, LinkFault,
    MAX_FRAME_BYTES, Outgoing, Transfer,
    ceiling::{self, Ceiling},
    core::{Core, Fault, guarded},
    places::{Places, send_copied},
    queue::{Pushed, Queue, Sending, Work},
    tuning::is_paced,
};
use crate::{
    conn::Conn,
    place::SHORT_SEGMENT_BYTES,
    sys::{self, Interest, PollEntry, TcpInfo, Waker},
};

/// Bytes that complete a frame once its memory is gone.
static FILLER: [u8; 64 << 10] = [0; 64 << 10];

/// Payloads up to this size are sent by the thread that pushes them, if a connection is idle: copying them costs that
/// thread about as much as waking another.
const SENT_BY_PUSHER_BYTES_MAX: usize = 16 << 10;

thread_local! {
    /// Set while this thread sends a frame that it pushes.
    static PUSHING: Cell<bool> = const { Cell::new(false) };
}

/// How an [`OutLink`] is set up.
pub struct OutConfig {
    /// The peer at the receiving end.
    pub peer: u128,
    /// Generation of the link, for reports.
    pub generation: u64,
    /// Whether payloads carry checksums.
    pub has_checksums: bool,
    /// Hears of the end of the link.
    pub events: Arc<dyn LinkEvents>,
    /// Thread names begin with this; the operating system shows the first 15 bytes.
    pub name: String,
}

/// Retransmissions without an acknowledgement after which a segment counts as stalled: on a path with a round trip
/// below 200 ms the third one comes 1.4 s after the first loss, with one of 5 s after more than half a minute.
const VAIN_RETRANSMITS: u8 = 3;

/// Frames and bytes that an [`OutLink`] has yet to deliver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Backlog {
    /// Frames that no connection has taken yet.
    pub queued_frames: usize,
    /// Bytes in the kernel's send buffers that were not sent yet, and in shared memory that were not taken yet.
    pub notsent_bytes: u64,
    /// Segments on their way that were not acknowledged yet.
    pub unacked_segments: u64,
    /// Milliseconds since anything was acknowledged on a connection that has bytes under way; `None` if none has. On a
    /// slow path with a deep queue the counters above can stand still for long while acknowledgements keep coming. 0 as
    /// long as the kernel, which knows the path's round trip, has not sent the oldest segment again three times in
    /// vain.
    pub last_ack_ms: Option<u64>,
    /// Longest smoothed round trip of all connections, in microseconds.
    pub rtt_us_max: u32,
    /// Longest segment of a connection whose oldest one was sent again and again in vain, if segments of it are longer
    /// than those that every path takes; 0 if there is none. Its first words, which are short, have passed.
    pub vain_segment_bytes: u32,
}

impl Backlog {
    /// Whether bytes that were handed to the operating system have not been acknowledged yet.
    #[must_use]
    pub const fn is_waiting(&self) -> bool {
        self.notsent_bytes > 0 || self.unacked_segments > 0
    }
}

/// The sending end of a link: one queue, and a TX thread per connection that pulls from it.
///
/// Dropping it closes it.
pub struct OutLink {
    shared: Arc<Shared>,
}

struct Shared {
    core: Core,
    queue: Mutex<Queue>,
    /// One per connection; its thread waits for it, and for the peer to hang up, while there is nothing to send.
    wakers: Vec<Waker>,
    has_checksums: bool,
    sent_bytes: AtomicU64,
    /// Of the rate of connections that the kernel paces; none if it does not.
    ceiling: Option<Mutex<Ceiling>>,
}

/// Whether a frame could be begun.
enum Begun {
    Sending(Sending),
    /// Its gate is closed, so it was released unsent.
    Dropped,
    /// There was a fault: the link has ended, and the frame is dealt with.
    Failed,
}

/// The result of one attempt to send.
enum Step {
    /// The frame is complete.
    Done,
    /// Part of it is on its way.
    More,
    /// The connection takes nothing now.
    Full,
}

impl OutLink {
    /// Starts the threads of a link over `conns`, which are ready for frames. Tune them before.
    pub fn start(conns: Vec<Conn>, config: OutConfig) -> io::Result<Arc<Self>> {
        let OutConfig { peer, generation, has_checksums, events, name } = config;
        let ceiling = conns.iter().all(is_paced).then(Mutex::default);
        let core = Core::new(Direction::Out, peer, generation, conns, events)?;
        let wakers = (0..core.connections()).map(|_| Waker::new()).collect::<io::Result<_>>()?;
        let queue = Mutex::new(Queue::new(core.connections()));
        let sent_bytes = AtomicU64::new(0);
        let shared = Arc::new(Shared { core, queue, wakers, has_checksums, sent_bytes, ceiling });
        // From here on an early return drops the link, which ends the threads started so far.
        let link = Arc::new(Self { shared: Arc::clone(&shared) });
        for connection in 0..shared.wakers.len() as u16 {
            let own = Arc::clone(&shared);
            shared.core.spawn(&format!("{name}-tx{connection}"), move || own.run(connection))?;
        }
        Ok(link)
    }

    /// Queues a frame. Never blocks. A small frame that finds a connection idle is sent by the calling thread, as far
    /// as that goes without waiting, which saves waking another; so [`Transfer::released`] may be called before this
    /// returns. If the link has ended, the transfer hears of it at once, on this thread: [`Transfer::link_failed`],
    /// then [`Transfer::released`].
    pub fn push(&self, frame: Outgoing) {
        let is_small = frame.header.len as usize <= SENT_BY_PUSHER_BYTES_MAX;
        // Not within another such push: the callback from there may push, and so on without end.
        let may_borrow = is_small && !PUSHING.get();
        let pushed = self.shared.queue.lock().push(frame, may_borrow);
        match pushed {
            Pushed::Shut(frame) => self.shared.refuse([frame]),
            Pushed::Queued(None) => {}
            Pushed::Queued(Some(connection)) => self.shared.wake(connection),
            Pushed::Borrowed(connection, frame) => {
                PUSHING.set(true);
                self.shared.send_borrowed(connection, frame);
                PUSHING.set(false);
            }
        }
    }

    /// Queues several frames in their order, under one lock. A single frame is treated as by [`push`](Self::push).
    pub fn push_all(&self, frames: impl IntoIterator<Item = Outgoing>) {
        // The iterator is foreign code, so it runs before the lock is taken.
        let mut frames: Vec<_> = frames.into_iter().collect();
        if frames.len() <= 1 {
            frames.pop().into_iter().for_each(|frame| self.push(frame));
            return;
        }
        let pushed = self.shared.queue.lock().push_all(frames);
        match pushed {
            Ok(woken) => woken.into_iter().for_each(|connection| self.shared.wake(connection)),
            Err(frames) => self.shared.refuse(frames),
        }
    }

    /// The peer at the other end, and the generation.
    pub fn name(&self) -> (u128, u64) {
        self.shared.core.name()
    }

    /// Whether the link has ended, broken or closed.
    pub fn is_broken(&self) -> bool {
        self.shared.core.fault().is_some()
    }

    /// Why the link has ended; [`FaultKind::Closed`] if by [`close`](Self::close).
    pub fn fault(&self) -> Option<LinkFault> {
        self.shared.core.fault().cloned()
    }

    /// Breaks the link for a reason that the caller has found, such as [`FaultKind::Stalled`]. No effect on a link that
    /// has ended.
    pub fn fail(&self, connection: u16, kind: FaultKind, text: impl Into<String>) {
        self.shared.end(connection, Fault::new(kind, text));
    }

    /// Whether nothing passes on a connection that has nothing to send: see [`OutLink::forget`].
    pub fn is_deaf(&self) -> bool {
        self.shared.core.is_deaf()
    }

    /// Breaks the link for having been forgotten on the way, if it is deaf.
    pub fn forget(&self) {
        if self.is_deaf() {
            self.shared.end(0, self.shared.core.forgotten());
        }
    }

    /// Closes the link: shuts the connections down, drops the queue, and waits until the threads are gone. Frames that
    /// were handed to the operating system before are still delivered. On return all frames are released, apart from
    /// those that other threads push at this moment; only on the thread of a link, or within a callback, it does not
    /// wait. Closing twice is harmless.
    ///
    /// The caller must not hold a lock that a callback takes.
    pub fn close(&self) {
        self.shared.end(0, Fault::new(FaultKind::Closed, "closed by this side"));
        self.shared.core.wait_until_gone();
    }

    /// Bytes handed to the operating system so far, headers included.
    pub fn sent_bytes(&self) -> u64 {
        self.shared.sent_bytes.load(Ordering::Relaxed)
    }

    /// Frames that no connection has taken yet.
    pub fn queued_frames(&self) -> usize {
        self.shared.queue.lock().len()
    }

    /// Frames and bytes that have yet to be delivered, as far as the operating system tells.
    pub fn backlog(&self) -> Backlog {
        let queued_frames = self.queued_frames();
        let mut backlog = Backlog { queued_frames, ..Backlog::default() };
        for connection in 0..self.shared.core.connections() as u16 {
            let conn = self.shared.core.conn(connection);
            backlog.notsent_bytes += conn.untaken_bytes() as u64;
            if let Ok(info) = conn.info() {
                backlog.notsent_bytes += u64::from(info.notsent_bytes);
                backlog.unacked_segments += u64::from(info.unacked_segments);
                backlog.rtt_us_max = backlog.rtt_us_max.max(info.rtt_us);
                if info.unacked_segments > 0 {
                    let is_patient = info.vain_retransmits < VAIN_RETRANSMITS;
                    let age = if is_patient { 0 } else { u64::from(info.last_ack_ms) };
                    backlog.last_ack_ms = Some(backlog.last_ack_ms.map_or(age, |other| other.min(age)));
                    if !is_patient && info.segment_bytes > SHORT_SEGMENT_BYTES {
                        backlog.vain_segment_bytes = backlog.vain_segment_bytes.max(info.segment_bytes);
                    }
                }
            }
        }
        backlog
    }
}

impl Drop for OutLink {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    /// A TX thread: sends frames until the link ends.
    fn run(&self, connection: u16) {
        loop {
            let work = self.queue.lock().next(connection);
            let goes_on = match work {
                Work::Frame(frame) => match self.begin(connection, frame) {
                    Begun::Sending(sending) => {
                        self.pace();
                        self.send(connection, sending)
                    }
                    Begun::Dropped => true,
                    Begun::Failed => false,
                },
                Work::Rest(sending) => self.send(connection, *sending),
                Work::Sleep => match self.wait_for_work(connection) {
                    Ok(()) => true,
                    Err(fault) => {
                        self.end(connection, fault);
                        false
                    }
                },
                Work::End => return,
            };
            if !goes_on {
                return;
            }
        }
    }

    /// Looks at the rate of the link now and then, and bounds that of its connections.
    fn pace(&self) {
        let Some(mut rates) = self.ceiling.as_ref().and_then(Mutex::try_lock) else { return };
        let now = Instant::now();
        if !rates.is_due(now) {
            return;
        }
        let conns = || (0..self.core.connections() as u16).map(|connection| self.core.conn(connection));
        // The thread that sends on a connection hears that it has ended.
        let Ok(infos) = conns().map(Conn::info).collect::<io::Result<Vec<TcpInfo>>>() else { return };
        let round_trip_us = infos.iter().map(|info| info.rtt_us).min().unwrap_or(0);
        // Not the bytes that are acknowledged: these leap when a lost segment comes that others have waited for.
        let bytes = |info: &TcpInfo| u64::from(info.delivered_segments) * u64::from(info.segment_bytes);
        let delivered_bytes = infos.iter().map(bytes).collect();
        let ceilings = rates.note(now, delivered_bytes, Duration::from_micros(round_trip_us.into()));
        for (conn, ceiling) in conns().zip(ceilings.iter().flatten()) {
            if let Err(error) = sys::set_max_pacing_rate(conn.fd(), *ceiling) {
                log::debug!("the rate of a connection was not bounded: {error}");
            }
        }
        if let Some(ceilings) = ceilings {
            let (peer, generation) = self.core.name();
            let bound = if ceilings.contains(&ceiling::NONE) {
                "not bounded".into()
            } else {
                format!("{ceilings:?}")
            };
            log::debug!(
                "link to peer {peer:032x} (generation {generation}): bytes/s of each connection: {bound}"
            );
        }
    }

    /// Sends a small frame on the thread that pushes it. The connection is in its hands.
    fn send_borrowed(&self, connection: u16, frame: Outgoing) {
        let sending = match self.begin(connection, frame) {
            Begun::Sending(mut sending) => {
                match guarded(|| self.step(connection, &mut sending)).and_then(|step| step) {
                    Ok(Step::Done) => {
                        release(sending.frame);
                        None
                    }
                    Ok(Step::More | Step::Full) => Some(Box::new(sending)),
                    Err(fault) => return self.fail_frame(connection, fault, sending.frame),
                }
            }
            Begun::Dropped => None,
            Begun::Failed => return,
        };
        let given_back = self.queue.lock().give_back(connection, sending);
        match given_back {
            Ok(false) | Err(None) => {}
            Ok(true) => self.wake(connection),
            Err(Some(rest)) => self.refuse([rest.frame]),
        }
    }

    fn wait_for_work(&self, connection: u16) -> Result<(), Fault> {
        let (conn, waker) = (self.core.conn(connection), &self.wakers[usize::from(connection)]);
        let mut entries = [conn.poll_entry(Interest::Read), PollEntry::new(waker.as_fd(), Interest::Read)];
        sys::poll_many(&mut entries, None).map_err(|error| Fault::io("waiting for work", &error))?;
        // Cleared before the queue is looked at, so a wake that comes later is kept for the next wait.
        waker.clear();
        if !entries[0].readiness().any() {
            return Ok(());
        }
        self.look_at_peer(connection).map_err(|fault| self.core.after_rest(connection, fault))
    }

    /// Nothing ever arrives at the sending end, so if there is something to read, the peer has gone.
    fn look_at_peer(&self, connection: u16) -> Result<(), Fault> {
        match self.core.conn(connection).try_recv(&mut [0]) {
            Ok(0) => Err(Fault::new(FaultKind::Eof, "the peer closed the connection")),
            Ok(_) => {
                Err(Fault::new(FaultKind::Violation, "the peer sent bytes against the direction of the link"))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(Fault::io("connection lost", &error)),
        }
    }

    /// Prepares a frame to be sent.
    fn begin(&self, connection: u16, frame: Outgoing) -> Begun {
        let begun = guarded(|| self.encode_header(&frame));
        match begun.and_then(|begun| begun) {
            Ok(Some(header)) => Begun::Sending(Sending { frame, header, sent: 0 }),
            Ok(None) => {
                release(frame);
                Begun::Dropped
            }
            Err(fault) => {
                self.fail_frame(connection, fault, frame);
                Begun::Failed
            }
        }
    }

    /// Sends a frame to its end, waiting where it must. `false`: the link has ended.
    fn send(&self, connection: u16, mut sending: Sending) -> bool {
        let sent = guarded(|| {
            loop {
                match self.step(connection, &mut sending)? {
                    Step::Done => return Ok(()),
                    Step::More => {}
                    Step::Full => self.wait_for_room(connection)?,
                }
            }
        });
        match sent.and_then(|sent| sent) {
            Ok(()) => {
                release(sending.frame);
                true
            }
            Err(fault) => {
                self.fail_frame(connection, fault, sending.frame);
                false
            }
        }
    }

    /// Sends what the connection takes at once: one system call.
    fn step(&self, connection: u16, sending: &mut Sending) -> Result<Step, Fault> {
        let Sending { frame, header, sent } = sending;
        let (conn, total) = (self.core.conn(connection), FRAME_HEADER_BYTES + frame.header.len as usize);
        if *sent == total {
            return left(conn, Step::Done);
        }
        let header_left = &header[(*sent).min(FRAME_HEADER_BYTES)..];
        let done = sent.saturating_sub(FRAME_HEADER_BYTES);
        let source = |done| frame.transfer.source(&frame.header, done);
        let places = Places::of(&frame.header, done, usize::MAX, source)?;
        let result = if places.are_tiny() {
            send_copied(&frame.header, done, source, header_left, conn)?
        } else {
            places.send(header_left, conn)
        };
        let result = match result {
            Some(result) => result,
            // The gate is closed. A frame not begun is dropped, of one begun the peer expects the whole: what is
            // missing is made up, so that the next one is found.
            None if *sent == 0 => return Ok(Step::Done),
            None if header_left.is_empty() => conn.try_send(&FILLER[..FILLER.len().min(total - *sent)]),
            None => conn.try_send(header_left),
        };
        match result {
            Ok(0) => Err(Fault::new(FaultKind::Io, "the connection takes no bytes")),
            Ok(count) => {
                *sent += count;
                self.sent_bytes.fetch_add(count as u64, Ordering::Relaxed);
                if *sent == total { left(conn, Step::Done) } else { Ok(Step::More) }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Step::Full),
            Err(error) => Err(Fault::io("sending failed", &error)),
        }
    }

    /// Ends the link for a fault in `frame`.
    fn fail_frame(&self, connection: u16, fault: Fault, frame: Outgoing) {
        let first = self.end(connection, fault);
        drop_frames([frame], first);
    }

    /// Waits without a limit until the connection takes bytes: a caller that judges that it is stuck ends the link,
    /// which shuts it down and so ends the wait.
    fn wait_for_room(&self, connection: u16) -> Result<(), Fault> {
        let ready = self
            .core
            .conn(connection)
            .wait(Interest::ReadWrite, None)
            .map_err(|error| Fault::io("waiting to send", &error))?;
        if ready.readable || ready.hangup || ready.error { self.look_at_peer(connection) } else { Ok(()) }
    }

    /// The header with its checksum, or `None` if the gate is closed.
    fn encode_header(&self, frame: &Outgoing) -> Result<Option<[u8; FRAME_HEADER_BYTES]>, Fault> {
        let len = frame.header.len as usize;
        if len > MAX_FRAME_BYTES {
            let text = format!("a frame of {len} bytes (op {:?})", frame.header.op);
            return Err(Fault::new(FaultKind::Internal, text));
        }
        let flags = frame.header.flags & !FLAG_CHECKSUM;
        let mut header = FrameHeader { flags, checksum: 0, ..frame.header };
        if self.has_checksums {
            let (mut checksum, mut done) = (Checksum::new(), 0);
            while done < len {
                let source = |done| frame.transfer.source(&frame.header, done);
                let places = Places::of(&frame.header, done, usize::MAX, source)?;
                if places.view(places.bytes(), |bytes| checksum.append(bytes)).is_none() {
                    return Ok(None);
                }
                done += places.bytes();
            }
            header.flags |= FLAG_CHECKSUM;
            header.checksum = checksum.value();
        }
        Ok(Some(header.encode()))
    }

    fn wake(&self, connection: u16) {
        self.wakers[usize::from(connection)].wake();
    }

    fn end(&self, connection: u16, fault: Fault) -> &LinkFault {
        self.core.end(connection, fault, |first| {
            let orphans = self.queue.lock().shut();
            for waker in &self.wakers {
                waker.wake();
            }
            drop_frames(orphans, first);
        })
    }

    /// Deals with frames that nobody will send because the link has ended.
    fn refuse(&self, frames: impl IntoIterator<Item = Outgoing>) {
        // The queue is shut after the fault is known.
        if let Some(fault) = self.core.fault() {
            drop_frames(frames, fault);
        }
    }
}

/// `step`, once everything that the connection has taken has left it.
fn left(conn: &Conn, step: Step) -> Result<Step, Fault> {
    match conn.try_flush() {
        Ok(()) => Ok(step),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Step::Full),
        Err(error) => Err(Fault::io("sending failed", &error)),
    }
}

/// Tells each transfer once that the link failed, and releases each frame.
fn drop_frames(frames: impl IntoIterator<Item = Outgoing>, fault: &LinkFault) {
    let mut told = HashSet::new();
    for frame in frames {
        if told.insert(Arc::as_ptr(&frame.transfer).cast::<()>()) {
            report_failure(&frame.transfer, fault);
        }
        release(frame);
    }
}

/// [`Transfer::link_failed`], fenced.
pub(super) fn report_failure(transfer: &Arc<dyn Transfer>, fault: &LinkFault) {
    if let Err(panic) = guarded(|| transfer.link_failed(fault)) {
        log::error!("while the failure of a link was reported: {}", panic.text);
    }
}

/// [`Transfer::released`], fenced. Each frame comes here exactly once.
fn release(frame: Outgoing) {
    // Within the fence the frame is dropped too, and with it perhaps the last handle of the transfer.
    let released = guarded(move || {
        let Outgoing { transfer, header } = frame;
        transfer.released(&header);
    });
    if let Err(panic) = released {
        log::error!("while a frame was released: {}", panic.text);
    }
}
