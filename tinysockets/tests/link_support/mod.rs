//! Parts that the tests of the data link share: socket pairs, events that keep count, and a transfer that records
//! everything.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

use std::{
    collections::HashMap,
    net::{Ipv4Addr, TcpListener, TcpStream},
    sync::{
        Arc, Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use tinysockets::{
    acceptor::{AcceptLimits, Acceptor, Incoming},
    address::HostPort,
    conn::Conn,
    dial::dial_with_preamble,
    handshake::{Door, Heard, Knock, KnockError, Visit},
    key::RunKey,
    link::{
        Directory, EarlyFrame, FaultKind, FrameHeader, Gate, InConfig, InLink, Landing, Lent, LinkEvents,
        LinkFault, Lookup, OpKey, OutConfig, OutLink, Outgoing, Place, Transfer, Violation,
    },
    listener::Listener,
    preamble::{Preamble, Role, SHARES_MEMORY},
    seal::Seal,
};

/// Longer than anything here takes on the slowest machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub const PEER: u128 = 0xFEED_0000_0000_0000_0000_0000_0000_BEEF;

pub fn socket_pairs(count: usize) -> (Vec<TcpStream>, Vec<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let address = listener.local_addr().expect("bound");
    let pair = |_| {
        let one = TcpStream::connect(address).expect("connect");
        let (other, _) = listener.accept().expect("accept");
        (one, other)
    };
    (0..count).map(pair).unzip()
}

/// Puts the first bytes of `stream` where they belong, and takes them off; how many they were.
pub fn put(place: &mut [u8], stream: &mut &[u8]) -> usize {
    let count = place.len().min(stream.len());
    place[..count].copy_from_slice(&stream[..count]);
    *stream = &stream[count..];
    count
}

/// The result that a door makes of a stream, as far as it wants it.
pub fn knock_at(door: &mut Door, mut stream: &[u8]) -> Visit {
    loop {
        let count = put(door.missing(), &mut stream);
        match door.received(count) {
            Visit::Nothing if !stream.is_empty() => {}
            visit => return visit,
        }
    }
}

/// The result that a [`Knock`] makes of a stream, as far as it wants it.
pub fn hear(knock: &mut Knock, mut stream: &[u8]) -> Result<Heard, KnockError> {
    loop {
        let count = put(knock.missing(), &mut stream);
        match knock.received(count)? {
            Heard::Nothing if !stream.is_empty() => {}
            heard => return Ok(heard),
        }
    }
}

/// Both ends of a handshake, without a network: that of the side that dials first.
pub fn seals() -> (Seal, Seal) {
    let key = RunKey::from_bytes([0x5e; 32]);
    let (mut knock, hello) = Knock::new(&Preamble::new(Role::Data), Some(key.secret())).expect("a handshake");
    let mut door = Door::new(Some(key.into()));
    let Visit::Answer(answer) = knock_at(&mut door, &hello) else { panic!("the key is the same") };
    let Ok(Heard::Proven(proof, near)) = hear(&mut knock, &answer) else { panic!("the key is the same") };
    let Visit::Known(_, Some(far)) = knock_at(&mut door, &proof) else { panic!("the proof is good") };
    (*near, *far)
}

/// How the bytes of a connection travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    Plain,
    Sealed,
    Shared,
    SharedWithKey,
}

impl Way {
    pub const ALL: [Self; 4] = [Self::Plain, Self::Sealed, Self::Shared, Self::SharedWithKey];
}

/// Pairs of connections, of which the first ones send.
pub fn conn_pairs(count: usize, way: Way) -> (Vec<Conn>, Vec<Conn>) {
    if matches!(way, Way::Shared | Way::SharedWithKey) {
        let key = (way == Way::SharedWithKey).then(|| RunKey::from_bytes([0x5e; 32]));
        return (0..count).map(|_| shared_pair(Role::Data, key.as_ref())).unzip();
    }
    let (ones, others) = socket_pairs(count);
    let (mut ones, mut others) = (conns(ones), conns(others));
    for (one, other) in ones.iter_mut().zip(&mut others).filter(|_| way == Way::Sealed) {
        let (near, far) = seals();
        one.protect(near);
        other.protect(far);
    }
    (ones, others)
}

/// A connection whose bytes go through memory: the end that has dialed, and the other one.
pub fn shared_pair(role: Role, key: Option<&RunKey>) -> (Conn, Conn) {
    let soon = Instant::now() + PATIENCE;
    let (sender, accepted) = crossbeam_channel::unbounded();
    let listener = Listener::bind(Some(Ipv4Addr::LOCALHOST.into()), 0, 1).expect("loopback");
    let handler = move |incoming: Incoming| drop(incoming.accept_sharing().map(|conn| sender.send(conn)));
    let lock = key.cloned().map(Into::into);
    let listeners = vec![(Role::Data, listener)];
    let acceptor =
        Acceptor::spawn(listeners, AcceptLimits::default(), lock, Box::new(handler)).expect("a thread");
    let target = HostPort::new("127.0.0.1", acceptor.local_port(0).expect("bound"));
    let preamble = Preamble { features: SHARES_MEMORY, ..Preamble::new(role) };
    let near = dial_with_preamble(&target, &preamble, key.map(RunKey::secret), soon).expect("accepted");
    let far = accepted.recv_timeout(PATIENCE).expect("accepted");
    assert!(near.is_shared() && far.is_shared(), "both ends are on this machine");
    (near, far)
}

/// The checksum of a payload.
pub fn checksum(payload: &[u8]) -> u32 {
    let mut checksum = pccl_hash::Checksum::new();
    checksum.append(payload);
    checksum.value()
}

/// A value under a lock, with waiting until it satisfies a condition.
#[derive(Default)]
pub struct Watched<T> {
    value: Mutex<T>,
    changed: Condvar,
}

impl<T> Watched<T> {
    pub fn new(value: T) -> Self {
        Self { value: Mutex::new(value), changed: Condvar::new() }
    }

    pub fn look<R>(&self, look: impl FnOnce(&T) -> R) -> R {
        look(&self.lock())
    }

    pub fn change<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        let result = change(&mut self.lock());
        self.changed.notify_all();
        result
    }

    #[track_caller]
    pub fn wait_until<R>(&self, what: &str, mut reached: impl FnMut(&T) -> Option<R>) -> R {
        let deadline = Instant::now() + PATIENCE;
        let mut value = self.lock();
        loop {
            if let Some(result) = reached(&value) {
                return result;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "waited in vain until {what}");
            value = self.changed.wait_timeout(value, left).expect("no panic under the lock").0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, T> {
        self.value.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Events that keep every fault.
#[derive(Default)]
pub struct Events {
    pub faults: Watched<Vec<LinkFault>>,
}

impl Events {
    #[track_caller]
    pub fn wait_for_fault(&self) -> LinkFault {
        self.faults.wait_until("the link broke", |faults| faults.first().cloned())
    }
}

impl LinkEvents for Events {
    fn broken(&self, fault: &LinkFault) {
        self.faults.change(|faults| faults.push(fault.clone()));
    }
}

/// A directory that can be changed at any time.
#[derive(Default)]
pub struct Book {
    entries: Mutex<HashMap<OpKey, Option<Arc<dyn Transfer>>>>,
    kept: Mutex<Vec<EarlyFrame>>,
    refuses: AtomicBool,
}

impl Book {
    pub fn announce(&self, op: OpKey, transfer: Arc<dyn Transfer>) {
        let mut kept = self.kept.lock().expect("no panic");
        self.entries.lock().expect("no panic").insert(op, Some(Arc::clone(&transfer)));
        let (its, rest) = std::mem::take(&mut *kept).into_iter().partition(|frame| frame.header().op == op);
        *kept = rest;
        drop(kept);
        let its: Vec<EarlyFrame> = its;
        its.iter().for_each(|frame| frame.hand_over(&*transfer).expect("a frame of the plan"));
    }

    /// From now on none are kept.
    pub fn refuse_early(&self) {
        self.refuses.store(true, Ordering::Relaxed);
    }

    /// Early frames that wait for their operations.
    pub fn kept(&self) -> usize {
        self.kept.lock().expect("no panic").len()
    }

    pub fn retire(&self, op: OpKey) {
        self.entries.lock().expect("no panic").insert(op, None);
    }
}

impl Directory for Book {
    fn find(&self, op: &OpKey) -> Lookup {
        match self.entries.lock().expect("no panic").get(op) {
            Some(Some(transfer)) => Lookup::Active(Arc::clone(transfer)),
            Some(None) => Lookup::Retired,
            None => Lookup::Unknown,
        }
    }

    fn keep(&self, frame: EarlyFrame) -> Result<(), Violation> {
        let mut kept = self.kept.lock().expect("no panic");
        if let Lookup::Active(transfer) = self.find(&frame.header().op) {
            drop(kept);
            return frame.hand_over(&*transfer);
        }
        if self.refuses.load(Ordering::Relaxed) {
            return Err(Violation { text: "no room".to_owned() });
        }
        kept.push(frame);
        Ok(())
    }
}

pub fn op(tag: u64) -> OpKey {
    OpKey { epoch: 1, tag, attempt: 0, pair: false, track: 0 }
}

pub fn frame(tag: u64, offset: usize, len: usize) -> FrameHeader {
    FrameHeader {
        op: op(tag),
        part: 0,
        stage: 0,
        offset: offset as u64,
        len: len as u32,
        flags: 0,
        checksum: 0,
    }
}

pub fn out_config(events: &Arc<Events>, with_checksum: bool) -> OutConfig {
    OutConfig {
        peer: PEER,
        generation: 3,
        has_checksums: with_checksum,
        events: Arc::<Events>::clone(events),
        name: "test".to_owned(),
    }
}

pub fn in_config(events: &Arc<Events>) -> InConfig {
    InConfig {
        peer: PEER,
        generation: 3,
        scratch_bytes: 64 << 10,
        events: Arc::<Events>::clone(events),
        name: "test".to_owned(),
    }
}

/// The sockets as connections.
pub fn conns(streams: Vec<impl Into<Conn>>) -> Vec<Conn> {
    streams.into_iter().map(Into::into).collect()
}

pub fn start_in(streams: Vec<impl Into<Conn>>, book: &Arc<Book>) -> (Arc<InLink>, Arc<Events>) {
    let events = Arc::new(Events::default());
    let directory: Arc<dyn Directory> = Arc::<Book>::clone(book);
    (InLink::start(conns(streams), in_config(&events), directory).expect("start"), events)
}

pub fn start_out(streams: Vec<impl Into<Conn>>, with_checksum: bool) -> (Arc<OutLink>, Arc<Events>) {
    let events = Arc::new(Events::default());
    (OutLink::start(conns(streams), out_config(&events, with_checksum)).expect("start"), events)
}

/// Events at a [`Recorder`], frame by frame (named by its offset).
#[derive(Default, Debug)]
pub struct Record {
    pub admitted: Vec<u64>,
    pub folded: HashMap<u64, Vec<u8>>,
    /// Pieces that did not begin at an address divisible by 64.
    pub misaligned: usize,
    pub arrived: Vec<u64>,
    pub corrupt: Vec<(u64, u128, u64)>,
    pub released: HashMap<u64, usize>,
    pub failures: Vec<LinkFault>,
}

type Hook = Arc<dyn Fn(&Recorder, &FrameHeader) + Send + Sync>;

/// A transfer over memory of its own: one buffer, frames at their offsets.
pub struct Recorder {
    pub record: Watched<Record>,
    pub gate: Arc<Gate>,
    pub landing: Landing,
    pub granule: usize,
    lent: Lent,
    memory: *mut [u8],
    /// Most bytes that it says to lie together.
    piece_bytes: AtomicUsize,
    /// Called at the end of `arrived` and `released`.
    pub hook: Watched<Option<Hook>>,
}

// SAFETY: the memory is reached through `lent` only while the gate is open, and through `bytes` only after it drained.
unsafe impl Send for Recorder {}
// SAFETY: as above.
unsafe impl Sync for Recorder {}

impl Recorder {
    pub fn new(bytes: Vec<u8>, landing: Landing, granule: usize) -> Arc<Self> {
        let gate = Arc::new(Gate::new());
        let memory = Box::into_raw(bytes.into_boxed_slice());
        // SAFETY: the memory is freed in `drop` after the gate was drained. Frames of these tests do not overlap.
        let lent = unsafe { Lent::new(memory.cast(), memory.len(), true, Arc::clone(&gate)) };
        let (record, hook, piece_bytes) =
            (Watched::default(), Watched::default(), AtomicUsize::new(usize::MAX));
        Arc::new(Self { record, gate, landing, granule, lent, memory, piece_bytes, hook })
    }

    /// As if the memory were in pieces of this number of bytes.
    pub fn cut_into(self: Arc<Self>, piece_bytes: usize) -> Arc<Self> {
        self.piece_bytes.store(piece_bytes, Ordering::Relaxed);
        self
    }

    fn place(&self, header: &FrameHeader, done: usize) -> Place<'_> {
        let (start, piece) = (header.offset as usize + done, self.piece_bytes.load(Ordering::Relaxed));
        let end = (header.offset as usize).saturating_add(header.len as usize);
        Place { memory: &self.lent, range: start..end.min(start.saturating_add(piece - start % piece)) }
    }

    pub fn on_event(&self, hook: impl Fn(&Self, &FrameHeader) + Send + Sync + 'static) {
        self.hook.change(|slot| *slot = Some(Arc::new(hook)));
    }

    fn run_hook(&self, header: &FrameHeader) {
        // Not under the lock, for the hook may lead back here.
        if let Some(hook) = self.hook.look(Option::clone) {
            hook(self, header);
        }
    }

    /// The memory, after closing the gate.
    pub fn bytes(&self) -> &[u8] {
        self.gate.close();
        assert!(self.gate.wait_drained(Some(Instant::now() + PATIENCE)), "a pass was never given back");
        // SAFETY: drained, so nobody else has access any more.
        unsafe { &*self.memory }
    }

    pub fn outgoing(self: &Arc<Self>, header: FrameHeader) -> Outgoing {
        Outgoing { transfer: Arc::<Self>::clone(self), header }
    }

    #[track_caller]
    pub fn wait_for_arrivals(&self, count: usize) {
        self.record.wait_until("frames arrived", |record| (record.arrived.len() >= count).then_some(()));
    }

    #[track_caller]
    pub fn wait_for_releases(&self, count: usize) {
        self.record
            .wait_until("frames were released", |record| (record.released.len() >= count).then_some(()));
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.bytes();
        // SAFETY: from `Box::into_raw`, and nobody refers to it any more.
        drop(unsafe { Box::from_raw(self.memory) });
    }
}

impl Transfer for Recorder {
    fn admit(&self, header: &FrameHeader) -> Result<Landing, Violation> {
        self.record.change(|record| {
            if record.admitted.contains(&header.offset) {
                return Err(Violation { text: "duplicate".to_owned() });
            }
            record.admitted.push(header.offset);
            Ok(self.landing)
        })
    }

    fn fold(&self, header: &FrameHeader, done: usize, payload: &[u8]) -> bool {
        assert_eq!(payload.len() % self.granule, 0, "pieces are whole elements");
        self.record.change(|record| {
            record.misaligned += usize::from(!(payload.as_ptr() as usize).is_multiple_of(64));
            let folded = record.folded.entry(header.offset).or_default();
            assert_eq!(folded.len(), done, "pieces come in order");
            folded.extend_from_slice(payload);
        });
        !self.gate.is_closed()
    }

    fn granule_bytes(&self, _header: &FrameHeader) -> usize {
        self.granule
    }

    fn target(&self, header: &FrameHeader, done: usize) -> Place<'_> {
        self.place(header, done)
    }

    fn source(&self, header: &FrameHeader, done: usize) -> Place<'_> {
        self.place(header, done)
    }

    fn arrived(&self, header: &FrameHeader) {
        self.record.change(|record| record.arrived.push(header.offset));
        self.run_hook(header);
    }

    fn corrupt(&self, header: &FrameHeader, peer: u128, generation: u64) {
        self.record.change(|record| record.corrupt.push((header.offset, peer, generation)));
    }

    fn released(&self, header: &FrameHeader) {
        self.record.change(|record| *record.released.entry(header.offset).or_default() += 1);
        self.run_hook(header);
    }

    fn link_failed(&self, fault: &LinkFault) {
        self.record.change(|record| record.failures.push(fault.clone()));
    }
}

/// Bytes that tell where they belong.
pub fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at as u8).wrapping_mul(167) ^ ((at >> 8) as u8) ^ seed).collect()
}

/// The kinds of all faults, in order.
pub fn kinds(faults: &[LinkFault]) -> Vec<FaultKind> {
    faults.iter().map(|fault| fault.kind).collect()
}
