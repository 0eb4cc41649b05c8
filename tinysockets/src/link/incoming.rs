//! The receiving end of a link.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use pccl_hash::Checksum;

use super::{
    Direction, Directory, EarlyFrame, FRAME_HEADER_BYTES, FaultKind, FrameHeader, Landing, LinkEvents,
    LinkFault, Lookup, Transfer,
    core::{Core, Fault, guarded},
    early,
    outgoing::report_failure,
    places::Places,
    scratch::Scratch,
    work::Work,
};
use crate::{conn::Conn, sys::Interest};

/// Least and most scratch memory of a connection.
const SCRATCH_BYTES: std::ops::RangeInclusive<usize> = 32 << 10..=512 << 10;

/// How far a read for a header, or for the rest of a frame in scratch memory, may reach beyond it. Small frames then
/// come with one system call; of a large one this much is copied once more. Bytes that come in records, or in shared
/// memory, are read ahead there.
const READ_AHEAD_BYTES: usize = 8 << 10;

/// Most bytes of one receive into the caller's memory: bounds the time under a pass, and keeps the bytes in the cache
/// until they are checksummed.
const DIRECT_PIECE_BYTES: usize = 256 << 10;

/// Largest element that a fold may ask for.
const GRANULE_BYTES_MAX: usize = 4096;

/// How an [`InLink`] is set up.
pub struct InConfig {
    /// The peer at the sending end.
    pub peer: u128,
    /// Generation of the link, for reports.
    pub generation: u64,
    /// Scratch memory per connection, 64 to 128 KiB being sensible: it should stay in the L2 cache. Clamped to 32 to
    /// 512 KiB.
    pub scratch_bytes: usize,
    /// Hears of the end of the link.
    pub events: Arc<dyn LinkEvents>,
    /// Thread names begin with this; the operating system shows the first 15 bytes.
    pub name: String,
}

/// The receiving end of a link: an RX thread per connection.
///
/// Dropping it closes it.
pub struct InLink {
    shared: Arc<Shared>,
}

struct Shared {
    core: Core,
    directory: Arc<dyn Directory>,
    received_bytes: AtomicU64,
    /// That of each thread.
    works: Vec<Arc<Work>>,
}

impl InLink {
    /// Starts the threads of a link over `conns`, on which frames are about to arrive. Frames are looked up in
    /// `directory`.
    pub fn start(conns: Vec<Conn>, config: InConfig, directory: Arc<dyn Directory>) -> io::Result<Arc<Self>> {
        let InConfig { peer, generation, scratch_bytes, events, name } = config;
        let scratch_bytes = scratch_bytes.clamp(*SCRATCH_BYTES.start(), *SCRATCH_BYTES.end());
        let core = Core::new(Direction::In, peer, generation, conns, events)?;
        let connections = core.connections() as u16;
        let works = (0..connections).map(|_| Arc::new(Work::new())).collect();
        let shared = Arc::new(Shared { core, directory, received_bytes: AtomicU64::new(0), works });
        // From here on an early return drops the link, which ends the threads started so far.
        let link = Arc::new(Self { shared: Arc::clone(&shared) });
        for connection in 0..connections {
            let own = Arc::clone(&shared);
            let run = move || own.run(connection, Scratch::new(scratch_bytes));
            shared.core.spawn(&format!("{name}-rx{connection}"), run)?;
        }
        Ok(link)
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

    /// Breaks the link for a reason that the caller has found. No effect on a link that has ended.
    pub fn fail(&self, connection: u16, kind: FaultKind, text: impl Into<String>) {
        self.shared.end(connection, Fault::new(kind, text));
    }

    /// Whether nothing passes on a connection on which nothing comes: see [`InLink::forget`].
    pub fn is_deaf(&self) -> bool {
        self.shared.core.is_deaf()
    }

    /// Breaks the link for having been forgotten on the way, if it is deaf.
    pub fn forget(&self) {
        if self.is_deaf() {
            self.shared.end(0, self.shared.core.forgotten());
        }
    }

    /// Closes the link: shuts the connections down and waits until the threads are gone. On return no callback of this
    /// link runs or will run; only on the thread of a link, or within a callback, it does not wait. Closing twice is
    /// harmless.
    ///
    /// The caller must not hold a lock that a callback takes.
    pub fn close(&self) {
        self.shared.end(0, Fault::new(FaultKind::Closed, "closed by this side"));
        self.shared.core.wait_until_gone();
    }

    /// Bytes received so far, headers included.
    pub fn received_bytes(&self) -> u64 {
        self.shared.received_bytes.load(Ordering::Relaxed)
    }

    /// Whether anything has come that no thread has taken yet.
    pub fn has_unread(&self) -> bool {
        (0..self.shared.core.connections() as u16).any(|connection| {
            let ready = self.shared.core.conn(connection).wait(Interest::Read, Some(Instant::now()));
            ready.is_ok_and(|ready| ready.readable)
        })
    }

    /// For how long a thread has been at work on what has come, and has neither got on with it
    /// ([`gets_on`](super::gets_on)) nor received anything; the shortest time, if there are several. `None`: all wait
    /// for their connections.
    pub fn busy(&self) -> Option<Duration> {
        self.shared.works.iter().filter_map(|work| work.lasts()).min()
    }
}

impl Drop for InLink {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    /// An RX thread: takes frames until the link ends.
    fn run(&self, connection: u16, scratch: Scratch) {
        let (conn, work) = (self.core.conn(connection), &self.works[usize::from(connection)]);
        work.attach();
        let mut receiver = Receiver { shared: self, conn, hands_out: !conn.is_plain(), scratch, work };
        loop {
            // The transfer of the frame under way is kept outside, so that it can be told of a failure in it.
            let mut transfer = None;
            let received = guarded(|| {
                receiver.frame(&mut transfer)?;
                // Within the fence, for this may be the last handle of the transfer.
                transfer = None;
                Ok(())
            });
            if let Err(fault) = received.and_then(|received| received) {
                let fault = if transfer.is_none() { self.core.after_rest(connection, fault) } else { fault };
                let first = self.end(connection, fault);
                if let Some(transfer) = transfer {
                    report_failure(&transfer, first);
                }
                return;
            }
        }
    }

    fn end(&self, connection: u16, fault: Fault) -> &LinkFault {
        self.core.end(connection, fault, |_| {})
    }
}

/// One connection's receiving.
struct Receiver<'a> {
    shared: &'a Shared,
    conn: &'a Conn,
    /// Bytes come in records, or in memory that is shared, and may be taken from there.
    hands_out: bool,
    scratch: Scratch,
    work: &'a Work,
}

/// The fate of a payload.
enum Payload {
    /// It is where it belongs; this is its checksum, if the sender made one.
    Landed(Option<u32>),
    /// The operation has stopped, the payload was thrown away.
    Discarded,
}

impl Receiver<'_> {
    /// Receives one frame. Puts its transfer into `transfer` as soon as it is known.
    fn frame(&mut self, transfer: &mut Option<Arc<dyn Transfer>>) -> Result<(), Fault> {
        let header = self.header()?;
        let found = match self.shared.directory.find(&header.op) {
            Lookup::Active(found) => &*transfer.insert(found),
            Lookup::Retired => return self.discard(&header, header.len as usize).map(|_| ()),
            Lookup::Unknown if header.is_early() => return self.early(header),
            Lookup::Unknown => {
                let text = format!("frame of an operation that was never announced: {}", describe(&header));
                return Err(Fault::new(FaultKind::Violation, text));
            }
        };
        let landing = found.admit(&header).map_err(|violation| {
            let text = format!("frame out of plan, {}: {}", describe(&header), violation.text);
            Fault::new(FaultKind::Violation, text)
        })?;
        let payload = match landing {
            Landing::Fold => self.fold(&header, &**found)?,
            Landing::Direct => self.direct(&header, &**found)?,
            Landing::Discard => self.discard(&header, header.len as usize)?,
        };
        match payload {
            Payload::Landed(Some(checksum)) if checksum != header.checksum => {
                log::warn!("payload damaged on its way, {}", describe(&header));
                let (peer, generation) = self.shared.core.name();
                found.corrupt(&header, peer, generation);
            }
            Payload::Landed(_) => self.work.during(|| found.arrived(&header)),
            Payload::Discarded => {}
        }
        Ok(())
    }

    fn header(&mut self) -> Result<FrameHeader, Fault> {
        loop {
            let buffered = self.scratch.buffered();
            if let Some((header, _)) = buffered.split_first_chunk::<FRAME_HEADER_BYTES>() {
                let header = FrameHeader::decode(header)
                    .map_err(|error| Fault::new(FaultKind::Violation, error.to_string()))?;
                self.scratch.consume(FRAME_HEADER_BYTES);
                return Ok(header);
            }
            let (is_boundary, missing) = (buffered.is_empty(), FRAME_HEADER_BYTES - buffered.len());
            if self.fill(if self.hands_out { missing } else { READ_AHEAD_BYTES })? == 0 {
                let place = if is_boundary { "between two frames" } else { "inside a frame header" };
                return Err(Fault::new(FaultKind::Eof, format!("the peer closed the connection {place}")));
            }
        }
    }

    /// Receives the payload piece by piece, through scratch memory or where it lies.
    fn fold(&mut self, header: &FrameHeader, transfer: &dyn Transfer) -> Result<Payload, Fault> {
        let (len, granule) = (header.len as usize, transfer.granule_bytes(header));
        if granule == 0 || granule > GRANULE_BYTES_MAX {
            let text = format!("elements of {granule} bytes cannot be folded");
            return Err(Fault::new(FaultKind::Internal, text));
        }
        if len % granule != 0 {
            let text = format!("length is no multiple of {granule} bytes: {}", describe(header));
            return Err(Fault::new(FaultKind::Violation, text));
        }
        let mut checksum = header.has_checksum().then(Checksum::new);
        let (work, mut done, mut goes_on) = (self.work, 0, true);
        while done < len {
            // Folds the whole elements at the beginning of `bytes`; returns how many bytes they have.
            let mut take = |bytes: &[u8]| {
                let available = bytes.len().min(len - done);
                let piece = &bytes[..available - available % granule];
                if !piece.is_empty() {
                    if let Some(checksum) = &mut checksum {
                        checksum.append(piece);
                    }
                    goes_on = work.during(|| transfer.fold(header, done, piece));
                }
                piece.len()
            };
            self.scratch.align();
            let whole = if self.scratch.buffered().is_empty() && self.hands_out {
                self.take_in_place(header, take)?
            } else {
                let whole = take(self.scratch.buffered());
                self.scratch.consume(whole);
                whole
            };
            done += whole;
            if !goes_on {
                return self.discard(header, len - done);
            }
            if whole == 0 {
                // Where it lies: one element, whose parts do not lie together.
                let buffered = self.scratch.buffered().len();
                let rest = len - done - buffered + READ_AHEAD_BYTES;
                self.fill_or_eof(header, if self.hands_out { granule - buffered } else { rest })?;
            }
        }
        Ok(Payload::Landed(checksum.map(|checksum| checksum.value())))
    }

    /// Hands bytes to `take` where they lie; returns how many of them it has taken.
    fn take_in_place(&self, header: &FrameHeader, take: impl FnOnce(&[u8]) -> usize) -> Result<usize, Fault> {
        match self.conn.recv_with(take) {
            Some(Ok(Some(count))) => {
                self.count(count);
                Ok(count)
            }
            Some(Ok(None)) | None => Err(eof_in(header)),
            Some(Err(error)) => Err(Fault::io("receiving failed", &error)),
        }
    }

    /// Receives the payload straight into its places, apart from what was read together with the header, and from
    /// places so small that it is better copied.
    fn direct(&mut self, header: &FrameHeader, transfer: &dyn Transfer) -> Result<Payload, Fault> {
        let mut checksum = header.has_checksum().then(Checksum::new);
        let (len, mut done) = (header.len as usize, 0);
        while done < len {
            let target = |done| transfer.target(header, done);
            let places = Places::of(header, done, DIRECT_PIECE_BYTES, target)?;
            if !places.are_writable() {
                return Err(Fault::new(
                    FaultKind::Internal,
                    "memory lent for reading is no place to receive",
                ));
            }
            let buffered = self.scratch.buffered();
            let count = if !buffered.is_empty() {
                let count = buffered.len().min(places.bytes());
                if places.fill(&buffered[..count]).is_none() {
                    return self.discard(header, len - done);
                }
                self.scratch.consume(count);
                count
            } else if places.are_tiny() {
                self.fill_or_eof(header, len - done + READ_AHEAD_BYTES)?;
                continue;
            } else {
                if self.hands_out {
                    // One system call waits and receives; no pass is held meanwhile.
                    self.take_in_place(header, |_| 0)?;
                }
                match places.receive(self.conn) {
                    None => return self.discard(header, len - done),
                    Some(Ok(0)) => return Err(eof_in(header)),
                    Some(Ok(count)) => {
                        self.count(count);
                        count
                    }
                    Some(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                        self.conn
                            .wait(Interest::Read, None)
                            .map_err(|error| Fault::io("waiting to receive", &error))?;
                        continue;
                    }
                    Some(Err(error)) => return Err(Fault::io("receiving failed", &error)),
                }
            };
            done += count;
            if let Some(checksum) = &mut checksum
                && places.view(count, |bytes| checksum.append(bytes)).is_none()
            {
                return self.discard(header, len - done);
            }
        }
        Ok(Payload::Landed(checksum.map(|checksum| checksum.value())))
    }

    /// Reads the next `left` bytes of a frame and throws them away.
    fn discard(&mut self, header: &FrameHeader, mut left: usize) -> Result<Payload, Fault> {
        loop {
            let here = self.scratch.buffered().len().min(left);
            self.scratch.consume(here);
            left -= here;
            if left == 0 {
                return Ok(Payload::Discarded);
            }
            self.fill_or_eof(header, left + READ_AHEAD_BYTES)?;
        }
    }

    /// Receives an early frame whose operation is not known, for later.
    fn early(&mut self, header: FrameHeader) -> Result<(), Fault> {
        early::check_length(&header)?;
        let len = header.len as usize;
        let mut payload = Vec::with_capacity(len);
        while payload.len() < len {
            let here = self.scratch.buffered();
            let here = &here[..here.len().min(len - payload.len())];
            if here.is_empty() {
                self.fill_or_eof(&header, len - payload.len())?;
                continue;
            }
            payload.extend_from_slice(here);
            let count = here.len();
            self.scratch.consume(count);
        }
        let frame = EarlyFrame::new(header, payload, self.shared.core.name());
        self.shared.directory.keep(frame).map_err(|violation| {
            let text = format!("early frame, {}: {}", describe(&header), violation.text);
            Fault::new(FaultKind::Violation, text)
        })
    }

    fn fill_or_eof(&mut self, header: &FrameHeader, at_most: usize) -> Result<(), Fault> {
        if self.fill(at_most)? == 0 { Err(eof_in(header)) } else { Ok(()) }
    }

    /// Receives into scratch memory; waits until there is something. 0 is the end of the stream.
    fn fill(&mut self, at_most: usize) -> Result<usize, Fault> {
        let conn = self.conn;
        let count = self
            .scratch
            .fill(at_most, |place| conn.recv(place))
            .map_err(|error| Fault::io("receiving failed", &error))?;
        self.count(count);
        Ok(count)
    }

    fn count(&self, bytes: usize) {
        self.shared.received_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

fn eof_in(header: &FrameHeader) -> Fault {
    let text = format!("the peer closed the connection inside a frame, {}", describe(header));
    Fault::new(FaultKind::Eof, text)
}

fn describe(header: &FrameHeader) -> String {
    let FrameHeader { op, part, stage, offset, len, .. } = header;
    format!(
        "epoch {} tag {} attempt {}, part {part}, stage {stage}, bytes {offset}+{len}",
        op.epoch, op.tag, op.attempt
    )
}
