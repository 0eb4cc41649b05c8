//! The data link against plain TCP, in the same run: `cargo bench -p tinysockets --bench link`.
//!
//! - *Flow*: one way over one connection, frames of 512 KiB, straight into place. Plain TCP writes and reads the same
//!   frames with blocking calls from and into the same kind of memory.
//! - *Flow through memory*: the same, where both ends share memory.
//! - *Ping-pong*: 1 KiB there and back. Plain TCP uses one blocking thread on each side.
//! - *With a key*: processor time of the flow for each GB, with records and without, and that of the cipher alone,
//!   which seals and opens as many bytes in the cache.
//!
//! The figure to watch is the ratio; absolute ones depend on what else the machine does.

#[path = "../tests/link_support/mod.rs"]
mod link_support;

use std::{
    io::{IoSlice, Read, Write},
    net::TcpStream,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

#[cfg(feature = "aws-lc")]
use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use link_support::{Book, Way, conn_pairs, op, socket_pairs, start_in, start_out};
use pccl_testkit::usage::cpu_seconds;
#[cfg(not(feature = "aws-lc"))]
use ring::aead::{AES_128_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use threadpark::{Parker, Unparker};
use tinysockets::{
    conn::Conn,
    link::{
        FRAME_HEADER_BYTES, FrameHeader, Gate, Landing, Lent, LinkFault, OutLink, Outgoing, Place, Transfer,
        Violation, tune_data_socket,
    },
};

const FRAME_BYTES: usize = 512 << 10;
const BUFFER_FRAMES: usize = 64;
const FLOW_FRAMES: u64 = 1024;
/// Bytes of the records of a flow.
const RECORD_BYTES: usize = 64 << 10;
const PING_BYTES: usize = 1024;
const PINGS: u64 = 5_000;
const ROUNDS: usize = 7;

fn main() {
    let frames = |rate: f64| rate * FRAME_BYTES as f64 / (1 << 30) as f64;
    report("flow, GiB/s", ROUNDS, || frames(plain_flow()), || frames(link_flow(Way::Plain)));
    report("flow through memory, GiB/s", ROUNDS, || frames(plain_flow()), || frames(link_flow(Way::Shared)));
    report("1 KiB round trips per second", ROUNDS, plain_ping_pong, link_ping_pong);
    report_key();
}

/// Prints the medians of the processor time of a GB on the wire, all measured in turns.
fn report_key() {
    let gigabytes = (FLOW_FRAMES * FRAME_BYTES as u64) as f64 / 1e9;
    let cost = |call: &dyn Fn()| {
        let before = cpu_seconds().expect("the system tells");
        (0..4).for_each(|_| call());
        (cpu_seconds().expect("the system tells") - before) / 4.0 / gigabytes
    };
    let flow = |way| {
        move || {
            link_flow(way);
        }
    };
    let runs: Vec<[f64; 3]> = (0..ROUNDS)
        .map(|_round| [cost(&flow(Way::Plain)), cost(&flow(Way::Sealed)), cost(&cipher)])
        .collect();
    let median = |column: usize| {
        let mut values: Vec<f64> = runs.iter().map(|run| run[column]).collect();
        values.sort_by(f64::total_cmp);
        values[ROUNDS / 2]
    };
    let [plain, keyed, cipher] = [0, 1, 2].map(median);
    println!(
        "processor time, s/GB: without a key {plain:.3}, with one {keyed:.3} ({:.2}), cipher alone {cipher:.3} ({:.2})",
        keyed / plain,
        1.0 + cipher / plain
    );
}

/// Seals and opens the bytes of a flow, record by record, in place.
fn cipher() {
    let key = || LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &[7; 16]).expect("16 bytes"));
    let (sealing, opening, mut record) = (key(), key(), vec![1; RECORD_BYTES]);
    for number in 0..FLOW_FRAMES * (FRAME_BYTES / RECORD_BYTES) as u64 {
        let nonce = || {
            let mut nonce = [0; NONCE_LEN];
            nonce[NONCE_LEN - 8..].copy_from_slice(&number.to_be_bytes());
            Nonce::assume_unique_for_key(nonce)
        };
        record.truncate(RECORD_BYTES);
        sealing.seal_in_place_append_tag(nonce(), Aad::empty(), &mut record).expect("sealed");
        let opened = opening.open_in_place(nonce(), Aad::empty(), &mut record).expect("opened");
        assert_eq!(opened.len(), RECORD_BYTES);
    }
}

/// Runs both in turns and prints the medians, and the median of the ratios of neighbouring runs.
fn report(what: &str, rounds: usize, plain: impl Fn() -> f64, link: impl Fn() -> f64) {
    let mut runs: Vec<[f64; 3]> = (0..rounds)
        .map(|_round| {
            let (plain, link) = (plain(), link());
            [plain, link, link / plain]
        })
        .collect();
    let mut median = |column: usize| {
        runs.sort_by(|a, b| a[column].total_cmp(&b[column]));
        runs[rounds / 2][column]
    };
    println!("{what}: plain TCP {:.2}, link {:.2}, ratio {:.2}", median(0), median(1), median(2));
}

/// Options belong to the socket, so they are set through a copy of its descriptor; what is measured stays plain.
fn tune(stream: &TcpStream) {
    tune_data_socket(&Conn::from(stream.try_clone().expect("a copy")), Duration::ZERO);
}

fn tuned_pair() -> (TcpStream, TcpStream) {
    let (mut one, mut other) = socket_pairs(1);
    let (one, other) = (one.remove(0), other.remove(0));
    tune(&one);
    tune(&other);
    (one, other)
}

fn header(at: u64, len: usize) -> FrameHeader {
    let offset = at % BUFFER_FRAMES as u64 * FRAME_BYTES as u64;
    FrameHeader { op: op(1), part: 0, stage: 0, offset, len: len as u32, flags: 0, checksum: 0 }
}

fn send_plain(stream: &mut TcpStream, header: &FrameHeader, payload: &[u8]) {
    let encoded = header.encode();
    let sent = stream.write_vectored(&[IoSlice::new(&encoded), IoSlice::new(payload)]).expect("send");
    let (from_header, from_payload) = (sent.min(encoded.len()), sent.saturating_sub(encoded.len()));
    stream.write_all(&encoded[from_header..]).expect("send");
    stream.write_all(&payload[from_payload..]).expect("send");
}

fn receive_plain(stream: &mut TcpStream, buffer: &mut [u8]) {
    let mut encoded = [0; FRAME_HEADER_BYTES];
    stream.read_exact(&mut encoded).expect("receive");
    let header = FrameHeader::decode(&encoded).expect("header");
    let offset = header.offset as usize;
    stream.read_exact(&mut buffer[offset..offset + header.len as usize]).expect("receive");
}

/// Frames per second.
fn plain_flow() -> f64 {
    let (mut one, mut other) = tuned_pair();
    let (source, mut target) = (vec![1; BUFFER_FRAMES * FRAME_BYTES], vec![2; BUFFER_FRAMES * FRAME_BYTES]);
    let start = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| {
            for at in 0..FLOW_FRAMES {
                let header = header(at, FRAME_BYTES);
                send_plain(&mut one, &header, &source[header.offset as usize..][..FRAME_BYTES]);
            }
        });
        for _ in 0..FLOW_FRAMES {
            receive_plain(&mut other, &mut target);
        }
    });
    FLOW_FRAMES as f64 / start.elapsed().as_secs_f64()
}

/// Round trips per second.
fn plain_ping_pong() -> f64 {
    let (mut one, mut other) = tuned_pair();
    let start = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = [0; PING_BYTES];
            for _ in 0..PINGS {
                receive_plain(&mut other, &mut buffer);
                send_plain(&mut other, &header(0, PING_BYTES), &buffer);
            }
        });
        let mut buffer = [0; PING_BYTES];
        for _ in 0..PINGS {
            send_plain(&mut one, &header(0, PING_BYTES), &buffer);
            receive_plain(&mut one, &mut buffer);
        }
    });
    PINGS as f64 / start.elapsed().as_secs_f64()
}

/// Memory at one end; counts what arrives, and can send it back.
struct End {
    me: Weak<Self>,
    gate: Arc<Gate>,
    lent: Lent,
    memory: *mut [u8],
    arrived: AtomicU64,
    wanted: u64,
    done: Unparker,
    answer_over: OnceLock<Weak<OutLink>>,
}

// SAFETY: the memory is reached through `lent` only.
unsafe impl Send for End {}
// SAFETY: as above. Frames on the same bytes follow each other.
unsafe impl Sync for End {}

impl End {
    fn new(len: usize, wanted: u64, done: Unparker) -> Arc<Self> {
        let gate = Arc::new(Gate::new());
        let memory = Box::into_raw(vec![1u8; len].into_boxed_slice());
        // SAFETY: freed in `drop`, after the gate was drained.
        let lent = unsafe { Lent::new(memory.cast(), len, true, Arc::clone(&gate)) };
        let (arrived, answer_over) = (AtomicU64::new(0), OnceLock::new());
        Arc::new_cyclic(|me| {
            let me = Weak::clone(me);
            Self { me, gate, lent, memory, arrived, wanted, done, answer_over }
        })
    }

    fn outgoing(&self, header: FrameHeader) -> Outgoing {
        Outgoing { transfer: self.me.upgrade().expect("alive"), header }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.gate.close();
        self.gate.wait_drained(None);
        // SAFETY: from `Box::into_raw`, and drained.
        drop(unsafe { Box::from_raw(self.memory) });
    }
}

impl Transfer for End {
    fn admit(&self, _header: &FrameHeader) -> Result<Landing, Violation> {
        Ok(Landing::Direct)
    }
    fn fold(&self, _header: &FrameHeader, _done: usize, _payload: &[u8]) -> bool {
        false
    }
    fn granule_bytes(&self, _header: &FrameHeader) -> usize {
        1
    }
    fn target(&self, header: &FrameHeader, done: usize) -> Place<'_> {
        let start = header.offset as usize;
        Place { memory: &self.lent, range: start + done..start + header.len as usize }
    }
    fn source(&self, header: &FrameHeader, done: usize) -> Place<'_> {
        let start = header.offset as usize;
        Place { memory: &self.lent, range: start + done..start + header.len as usize }
    }
    fn arrived(&self, header: &FrameHeader) {
        let arrived = self.arrived.fetch_add(1, Ordering::AcqRel) + 1;
        if arrived >= self.wanted {
            self.done.unpark();
        } else if let Some(link) = self.answer_over.get().and_then(Weak::upgrade) {
            link.push(self.outgoing(*header));
        }
    }
    fn corrupt(&self, _header: &FrameHeader, _peer: u128, _generation: u64) {}
    fn released(&self, _header: &FrameHeader) {}
    fn link_failed(&self, fault: &LinkFault) {
        eprintln!("{fault}");
        self.done.unpark();
    }
}

/// Frames per second.
fn link_flow(way: Way) -> f64 {
    let (ones, others) = conn_pairs(1, way);
    ones.iter().chain(&others).for_each(|conn| _ = tune_data_socket(conn, Duration::ZERO));
    let parker = Parker::new();
    let ends = [0; 2].map(|_| End::new(BUFFER_FRAMES * FRAME_BYTES, FLOW_FRAMES, parker.unparker()));
    let book = Arc::new(Book::default());
    book.announce(op(1), Arc::<End>::clone(&ends[1]));
    let (out, _) = start_out(ones, false);
    let (into, _) = start_in(others, &book);
    let start = Instant::now();
    out.push_all((0..FLOW_FRAMES).map(|at| ends[0].outgoing(header(at, FRAME_BYTES))));
    parker.park();
    let rate = FLOW_FRAMES as f64 / start.elapsed().as_secs_f64();
    assert_eq!(ends[1].arrived.load(Ordering::Acquire), FLOW_FRAMES);
    into.close();
    out.close();
    rate
}

/// Round trips per second.
fn link_ping_pong() -> f64 {
    let parker = Parker::new();
    let ends = [PINGS, PINGS + 1].map(|wanted| End::new(PING_BYTES, wanted, parker.unparker()));
    let mut links = Vec::new();
    for (from, to) in [(0, 1), (1, 0)] {
        let (one, other) = tuned_pair();
        let book = Arc::new(Book::default());
        book.announce(op(1), Arc::<End>::clone(&ends[to]));
        let (out, _) = start_out(vec![one], false);
        let into = start_in(vec![other], &book).0;
        ends[from].answer_over.set(Arc::downgrade(&out)).expect("set once");
        links.push((out, into));
    }
    let start = Instant::now();
    links[0].0.push(ends[0].outgoing(header(0, PING_BYTES)));
    parker.park();
    let rate = PINGS as f64 / start.elapsed().as_secs_f64();
    assert_eq!(ends[0].arrived.load(Ordering::Acquire), PINGS);
    for (out, into) in links {
        into.close();
        out.close();
    }
    rate
}
