//! Somebody on the way between the peers of a test and to their master, who writes down every byte.
//!
//! A peer listens on a loopback address of its own and gives another one out, on which the recorder listens with the
//! same ports; it reaches the master through a door of the recorder as well. No privileges are needed.

use std::{
    collections::HashSet,
    io::{Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU16, Ordering},
    },
};

/// One direction of one connection.
type Recording = Arc<Mutex<Vec<u8>>>;

/// See the module's documentation.
pub(crate) struct Recorder {
    prefix: [u8; 3],
    ports: (u16, u16),
    is_over: Arc<AtomicBool>,
    doors: Vec<SocketAddr>,
    recordings: Arc<Mutex<Vec<Recording>>>,
}

impl Recorder {
    /// Of a run that nobody has joined yet.
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU16 = AtomicU16::new(0);
        let (process, index) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed) % 1000);
        Self {
            // Each process has addresses of its own, each recorder in it has ports of its own.
            prefix: [127, 0x80 | (process >> 8 & 0x3F) as u8, process as u8],
            ports: (18_000 + 2 * index, 18_001 + 2 * index),
            is_over: Arc::default(),
            doors: Vec::new(),
            recordings: Arc::default(),
        }
    }

    fn address(&self, last: u8, port: u16) -> SocketAddr {
        let [a, b, c] = self.prefix;
        (Ipv4Addr::new(a, b, c, last), port).into()
    }

    /// Opens a door to the master; returns the address for the peers.
    pub(crate) fn before_master(&mut self, master: &str) -> String {
        let door = self.address(1, self.ports.0);
        self.open(door, master.parse().expect("the address of the master"));
        door.to_string()
    }

    /// Opens the doors of a peer with this number; returns its settings.
    pub(crate) fn before_peer(&mut self, number: u8) -> [String; 3] {
        let (own, shown, (p2p, state)) = (2 + number, 100 + number, self.ports);
        for port in [p2p, state] {
            self.open(self.address(shown, port), self.address(own, port));
        }
        let address = |last| self.address(last, 0).ip();
        [format!("bind={}", address(own)), format!("host={}", address(shown)), format!("ports={p2p},{state}")]
    }

    fn open(&mut self, door: SocketAddr, target: SocketAddr) {
        let listener = TcpListener::bind(door).expect("a loopback address");
        let (is_over, recordings) = (self.is_over.clone(), self.recordings.clone());
        self.doors.push(door);
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                if is_over.load(Ordering::Acquire) {
                    return;
                }
                let Ok(far) = TcpStream::connect(target) else { continue };
                let pairs = [(near.try_clone(), far.try_clone()), (Ok(far), Ok(near))];
                for (from, into) in pairs {
                    let (Ok(from), Ok(into)) = (from, into) else { continue };
                    let recording = Recording::default();
                    recordings.lock().expect("no panic").push(recording.clone());
                    std::thread::spawn(move || pass_on(from, into, &recording));
                }
            }
        });
    }

    /// Bytes that were written down so far.
    pub(crate) fn recorded_bytes(&self) -> usize {
        let recordings = self.recordings.lock().expect("no panic");
        recordings.iter().map(|recording| recording.lock().expect("no panic").len()).sum()
    }

    /// How many of `wanted`, which are eight bytes each, are somewhere in what was written down.
    pub(crate) fn found(&self, wanted: &HashSet<[u8; 8]>) -> usize {
        let mut found = HashSet::new();
        for recording in self.recordings.lock().expect("no panic").iter() {
            let recording = recording.lock().expect("no panic");
            let places = recording.windows(8).filter_map(|bytes| bytes.first_chunk());
            found.extend(places.filter(|bytes| wanted.contains(*bytes)).copied());
        }
        found.len()
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        for door in &self.doors {
            // Wakes the thread that accepts.
            drop(TcpStream::connect(door));
        }
    }
}

fn pass_on(mut from: TcpStream, mut into: TcpStream, recording: &Recording) {
    let _ = into.set_nodelay(true);
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        recording.lock().expect("no panic").extend_from_slice(&buffer[..count]);
        if into.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = into.shutdown(Shutdown::Write);
    let _ = from.shutdown(Shutdown::Read);
}
