//! Something on the way between peers and their master that may cut connections.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
};

#[derive(Default)]
struct Way {
    /// Both sides of the connections that go through.
    streams: Mutex<Vec<[TcpStream; 2]>>,
    /// Connections are closed as they come.
    is_shut: AtomicBool,
    /// Bytes that went through.
    passed: AtomicU64,
    /// After this number of bytes, once, everything is cut.
    limit: u64,
    is_cut: AtomicBool,
}

/// Listens for peers, and connects each to the master.
pub(crate) struct Proxy {
    address: String,
    way: Arc<Way>,
}

impl Proxy {
    /// In front of `master`. After `limit` bytes, in both directions together, it cuts all connections, once.
    pub(crate) fn start(master: &str, limit: Option<u64>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound").to_string();
        let way = Arc::new(Way { limit: limit.unwrap_or(u64::MAX), ..Way::default() });
        let (own, master) = (Arc::clone(&way), master.to_owned());
        // It ends with the process: nobody connects any more.
        thread::spawn(move || {
            for peer in listener.incoming() {
                let (Ok(peer), Ok(to)) = (peer, TcpStream::connect(&master)) else { continue };
                if own.is_shut.load(Ordering::SeqCst) {
                    continue;
                }
                let copy = |stream: &TcpStream| stream.try_clone().expect("a descriptor");
                own.streams.lock().expect("lock").push([copy(&peer), copy(&to)]);
                for (from, into) in [(copy(&peer), copy(&to)), (copy(&to), copy(&peer))] {
                    let own = Arc::clone(&own);
                    thread::spawn(move || own.pump(from, into));
                }
            }
        });
        Self { address, way }
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> String {
        self.address.clone()
    }

    /// Bytes that went through, in both directions.
    pub(crate) fn passed(&self) -> u64 {
        self.way.passed.load(Ordering::SeqCst)
    }

    /// Cuts all connections; how many there were.
    pub(crate) fn cut(&self) -> usize {
        self.way.cut()
    }

    /// The same, and none comes any more.
    pub(crate) fn shut_and_cut(&self) {
        self.way.is_shut.store(true, Ordering::SeqCst);
        self.way.cut();
    }

    /// Connections go through again.
    pub(crate) fn let_in(&self) {
        self.way.is_shut.store(false, Ordering::SeqCst);
    }
}

impl Way {
    fn cut(&self) -> usize {
        let streams = std::mem::take(&mut *self.streams.lock().expect("lock"));
        for stream in streams.iter().flatten() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        streams.len()
    }

    fn pump(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            let before = self.passed.fetch_add(count as u64, Ordering::SeqCst);
            let room = usize::try_from(self.limit.saturating_sub(before)).unwrap_or(usize::MAX);
            let is_last = room < count && !self.is_cut.swap(true, Ordering::SeqCst);
            let count = if is_last { room } else { count };
            if to.write_all(&buffer[..count]).is_err() {
                break;
            }
            if is_last {
                self.cut();
                return;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
    }
}
