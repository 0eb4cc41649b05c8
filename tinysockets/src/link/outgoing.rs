//! The sending end of a link.

use std::{
    collections::{HashSet, VecDeque},
    io,
    net::TcpStream,
    ops::Range,
    os::fd::AsFd,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;

use super::{
    ChecksumAppend, Direction, FLAG_CHECKSUM, FRAME_HEADER_BYTES, FaultKind, FrameHeader, Lent, LinkEvents,
    LinkFault, MAX_FRAME_BYTES, Outgoing, Transfer,
    core::{Core, Fault, guarded},
};
use crate::sys::{self, Interest, PollEntry, Waker};

/// What a frame is completed with once its memory is gone.
static FILLER: [u8; 64 << 10] = [0; 64 << 10];

/// How an [`OutLink`] is set up.
pub struct OutConfig {
    /// The peer at the receiving end.
    pub peer: u128,
    /// Generation of the link, for reports.
    pub generation: u64,
    /// How payloads are checksummed; `None`: not at all.
    pub checksum: Option<ChecksumAppend>,
    /// Hears of the end of the link.
    pub events: Arc<dyn LinkEvents>,
    /// Thread names begin with this; the operating system shows the first 15 bytes.
    pub name: String,
}

/// What an [`OutLink`] has yet to deliver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backlog {
    /// Frames that no connection has taken yet.
    pub queued_frames: usize,
    /// Bytes in the kernel's send buffers that were not sent yet.
    pub notsent_bytes: u64,
    /// Segments on their way that were not acknowledged yet.
    pub unacked_segments: u64,
    /// Longest smoothed round trip of all connections, in microseconds.
    pub rtt_us_max: u32,
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
    checksum: Option<ChecksumAppend>,
    sent_bytes: AtomicU64,
}

struct Queue {
    open: bool,
    frames: VecDeque<Outgoing>,
    /// Connections whose threads wait. Whoever wakes one takes it out; the last to fall asleep is woken first.
    idle: Vec<u16>,
}

impl OutLink {
    /// Starts the threads of a link over `streams`, which are ready for frames. Tune them before.
    pub fn start(streams: Vec<TcpStream>, config: OutConfig) -> io::Result<Arc<Self>> {
        let OutConfig { peer, generation, checksum, events, name } = config;
        let core = Core::new(Direction::Out, peer, generation, streams, events)?;
        let wakers = (0..core.connections()).map(|_| Waker::new()).collect::<io::Result<_>>()?;
        let queue = Mutex::new(Queue { open: true, frames: VecDeque::new(), idle: Vec::new() });
        let shared = Arc::new(Shared { core, queue, wakers, checksum, sent_bytes: AtomicU64::new(0) });
        // From here on an early return drops the link, which ends the threads started so far.
        let link = Arc::new(Self { shared: Arc::clone(&shared) });
        for connection in 0..shared.wakers.len() as u16 {
            let own = Arc::clone(&shared);
            shared.core.spawn(&format!("{name}-tx{connection}"), move || own.run(connection))?;
        }
        Ok(link)
    }

    /// Queues a frame. Never blocks. If the link has ended, the transfer hears of it at once, on this thread:
    /// [`Transfer::link_failed`], then [`Transfer::released`].
    pub fn push(&self, frame: Outgoing) {
        let mut queue = self.shared.queue.lock();
        if !queue.open {
            drop(queue);
            self.shared.refuse([frame]);
            return;
        }
        queue.frames.push_back(frame);
        let woken = queue.idle.pop();
        drop(queue);
        if let Some(connection) = woken {
            self.shared.wake(connection);
        }
    }

    /// Queues several frames in their order, under one lock. Otherwise like [`push`](Self::push).
    pub fn push_all(&self, frames: impl IntoIterator<Item = Outgoing>) {
        // The iterator is foreign code, so it runs before the lock is taken.
        let frames: Vec<_> = frames.into_iter().collect();
        let mut queue = self.shared.queue.lock();
        if !queue.open {
            drop(queue);
            self.shared.refuse(frames);
            return;
        }
        let asleep = queue.idle.len();
        let woken = queue.idle.split_off(asleep - asleep.min(frames.len()));
        queue.frames.extend(frames);
        drop(queue);
        for connection in woken {
            self.shared.wake(connection);
        }
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

    /// Closes the link: shuts the connections down, drops the queue, and waits until the threads are gone. Frames that
    /// were handed to the operating system before are still delivered. On return all frames are released; only on the
    /// thread of a link, or within a callback, it does not wait. Closing twice is harmless.
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
        self.shared.queue.lock().frames.len()
    }

    /// What has yet to be delivered, as far as the operating system tells.
    pub fn backlog(&self) -> Backlog {
        let queued_frames = self.queued_frames();
        let mut backlog = Backlog { queued_frames, notsent_bytes: 0, unacked_segments: 0, rtt_us_max: 0 };
        for connection in 0..self.shared.core.connections() as u16 {
            if let Ok(info) = sys::tcp_info(self.shared.core.fd(connection)) {
                backlog.notsent_bytes += u64::from(info.notsent_bytes);
                backlog.unacked_segments += u64::from(info.unacked_segments);
                backlog.rtt_us_max = backlog.rtt_us_max.max(info.rtt_us);
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
            match self.next(connection) {
                Ok(Some(frame)) => {
                    let sent = guarded(|| self.send(connection, &frame)).and_then(|sent| sent);
                    if let Err(fault) = sent {
                        let fault = self.end(connection, fault);
                        drop_frames([frame], fault);
                        return;
                    }
                    release(frame);
                }
                Ok(None) => return,
                Err(fault) => {
                    self.end(connection, fault);
                    return;
                }
            }
        }
    }

    /// The next frame to send; waits for one. `None` once the link has ended.
    fn next(&self, connection: u16) -> Result<Option<Outgoing>, Fault> {
        let mut queue = self.queue.lock();
        loop {
            if !queue.open {
                return Ok(None);
            }
            if let Some(frame) = queue.frames.pop_front() {
                return Ok(Some(frame));
            }
            queue.idle.push(connection);
            drop(queue);
            let waited = self.wait_for_work(connection);
            queue = self.queue.lock();
            // Still there if it was not a push that ended the wait.
            queue.idle.retain(|&idle| idle != connection);
            waited?;
        }
    }

    fn wait_for_work(&self, connection: u16) -> Result<(), Fault> {
        let (fd, waker) = (self.core.fd(connection), &self.wakers[usize::from(connection)]);
        let mut entries = [PollEntry::new(fd, Interest::Read), PollEntry::new(waker.as_fd(), Interest::Read)];
        sys::poll_many(&mut entries, None).map_err(|error| Fault::io("waiting for work", &error))?;
        // Cleared before the queue is looked at, so a wake that comes later is kept for the next wait.
        waker.clear();
        if entries[0].readiness().any() { self.look_at_peer(connection) } else { Ok(()) }
    }

    /// Nothing ever arrives at the sending end, so if there is something to read, the peer has gone.
    fn look_at_peer(&self, connection: u16) -> Result<(), Fault> {
        match sys::recv(self.core.fd(connection), &mut [0], true) {
            Ok(0) => Err(Fault::new(FaultKind::Eof, "the peer closed the connection")),
            Ok(_) => {
                Err(Fault::new(FaultKind::Violation, "the peer sent bytes against the direction of the link"))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(Fault::io("connection lost", &error)),
        }
    }

    /// Sends one frame. `Ok` also if it was dropped or filled up because its memory is gone.
    fn send(&self, connection: u16, frame: &Outgoing) -> Result<(), Fault> {
        let (memory, base) = frame.transfer.source(&frame.header);
        let payload = payload_range(&frame.header, memory, base)?;
        let Some(header) = self.encode_header(&frame.header, memory, &payload) else {
            return Ok(());
        };
        let total = FRAME_HEADER_BYTES + payload.len();
        let mut sent = 0;
        while sent < total {
            let header_left = &header[sent.min(FRAME_HEADER_BYTES)..];
            let from = payload.start + sent.saturating_sub(FRAME_HEADER_BYTES);
            let result = match memory.send(from..payload.end, self.core.fd(connection), header_left) {
                Some(result) => result,
                None if sent == 0 => return Ok(()),
                // The peer counts on the whole frame: what is missing is made up, so that the next one is found.
                None if header_left.is_empty() => {
                    let part = FILLER.len().min(total - sent);
                    sys::send(self.core.fd(connection), &FILLER[..part], true)
                }
                None => sys::send(self.core.fd(connection), header_left, true),
            };
            match result {
                Ok(0) => return Err(Fault::new(FaultKind::Io, "the connection takes no bytes")),
                Ok(count) => {
                    sent += count;
                    self.sent_bytes.fetch_add(count as u64, Ordering::Relaxed);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.wait_for_room(connection)?;
                }
                Err(error) => return Err(Fault::io("sending failed", &error)),
            }
        }
        Ok(())
    }

    /// Waits without a limit until the connection takes bytes: whoever judges that it is stuck ends the link, which
    /// shuts it down and so ends the wait.
    fn wait_for_room(&self, connection: u16) -> Result<(), Fault> {
        let ready = sys::poll_fd(self.core.fd(connection), Interest::ReadWrite, None)
            .map_err(|error| Fault::io("waiting to send", &error))?;
        if ready.readable || ready.hangup || ready.error { self.look_at_peer(connection) } else { Ok(()) }
    }

    /// The header with its checksum, or `None` if the gate is closed.
    fn encode_header(
        &self,
        header: &FrameHeader,
        memory: &Lent,
        payload: &Range<usize>,
    ) -> Option<[u8; FRAME_HEADER_BYTES]> {
        let mut header = FrameHeader { flags: header.flags & !FLAG_CHECKSUM, checksum: 0, ..*header };
        if let Some(append) = self.checksum {
            header.checksum = memory.view(payload.clone(), |bytes| append(0, bytes))?;
            header.flags |= FLAG_CHECKSUM;
        }
        Some(header.encode())
    }

    fn wake(&self, connection: u16) {
        self.wakers[usize::from(connection)].wake();
    }

    fn end(&self, connection: u16, fault: Fault) -> &LinkFault {
        self.core.end(connection, fault, |first| {
            let orphans = {
                let mut queue = self.queue.lock();
                queue.open = false;
                std::mem::take(&mut queue.frames)
            };
            for waker in &self.wakers {
                waker.wake();
            }
            drop_frames(orphans, first);
        })
    }

    /// Deals with frames that were pushed after the end.
    fn refuse(&self, frames: impl IntoIterator<Item = Outgoing>) {
        // The queue is shut after the fault is known.
        if let Some(fault) = self.core.fault() {
            drop_frames(frames, fault);
        }
    }
}

/// Where the payload of `header` lies in `memory`.
pub(super) fn payload_range(header: &FrameHeader, memory: &Lent, base: usize) -> Result<Range<usize>, Fault> {
    let len = header.len as usize;
    let range = base..base.saturating_add(len);
    if len > MAX_FRAME_BYTES || range.len() != len || !memory.contains(&range) {
        let lent = memory.len();
        let text = format!("frame of {len} bytes at {base} of {lent} bytes lent (op {:?})", header.op);
        return Err(Fault::new(FaultKind::Internal, text));
    }
    Ok(range)
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
