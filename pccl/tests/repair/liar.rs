//! Stands between a peer and all others. It carries everything, but changes what the peer answers to those who fetch
//! shared state from it.

use parking_lot::{Condvar, Mutex};
use pccl_testkit::ports::free_port;
use std::{
    io::{self, Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};
use tinysockets::preamble::REPLY_BYTES;

/// Where the peer listens.
pub(crate) const INSIDE: Ipv4Addr = Ipv4Addr::LOCALHOST;
/// Longer than any list of digests, shorter than a full piece.
const LONGEST_LIST: u64 = 4096;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lie {
    None,
    /// A byte of a piece is another one.
    WrongBytes,
    /// A byte of a list of digests is another one.
    WrongDigests,
    /// A list that never ends.
    EndlessList,
    /// A list with nothing in it.
    EmptyList,
    /// A piece with one byte more than it has.
    TooLong,
    /// A piece with one byte less.
    TooShort,
    /// The piece that was asked for before.
    OtherPiece,
    /// No packet.
    Nonsense,
    /// The connection ends in the middle of a piece.
    Hangup,
    /// No answer any more, and the connection stays.
    Silence,
    /// No bytes after the beginning of an answer, and the connection stays.
    SilentPiece,
    /// One byte per second.
    Drip,
    /// Each connection ends after one answer. That is no lie: it takes its time, and everything arrives.
    OneAnswer,
}

impl Lie {
    /// Whether it concerns lists of digests and no pieces.
    fn is_about_lists(self) -> bool {
        matches!(self, Self::WrongDigests | Self::EndlessList | Self::EmptyList)
    }
}

/// See the module's documentation. It ends with the process.
pub(crate) struct Liar {
    lie: Lie,
    /// This number of pieces are given as they are before it lies.
    honest: usize,
    given: AtomicUsize,
    repents: AtomicBool,
    /// The last piece that was given.
    previous: Mutex<Vec<u8>>,
    lies: Mutex<usize>,
    lied: Condvar,
    /// Nothing that this one lies about passes before it has lied.
    first: OnceLock<Arc<Self>>,
    host: Ipv4Addr,
    /// Of the peer, and of the proxy: for data and for shared state.
    pub(crate) ports: (u16, u16),
}

impl Liar {
    pub(crate) fn new(lie: Lie, honest: usize) -> Arc<Self> {
        static NEXT: AtomicU16 = AtomicU16::new(2);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let process = std::process::id();
        let host = Ipv4Addr::new(127, 1 + (process >> 8 & 0x7f) as u8, process as u8, next as u8);
        // Free on the inside; on the outside nobody else uses this address.
        let ports = (free_port(), free_port());
        let (given, lies) = (AtomicUsize::new(0), Mutex::new(0));
        let (lied, first) = (Condvar::new(), OnceLock::new());
        let (repents, previous) = (AtomicBool::new(false), Mutex::default());
        let liar = Arc::new(Self { lie, honest, given, repents, previous, lies, lied, first, host, ports });
        for (port, is_state) in [(ports.0, false), (ports.1, true)] {
            let door = TcpListener::bind((host, port)).expect("an address of our own");
            let liar = liar.clone();
            thread::spawn(move || {
                for outside in door.incoming().map_while(Result::ok) {
                    let liar = liar.clone();
                    thread::spawn(move || liar.serve(outside, SocketAddr::from((INSIDE, port)), is_state));
                }
            });
        }
        liar
    }

    pub(crate) fn host(&self) -> String {
        self.host.to_string()
    }

    pub(crate) fn wait_for(&self, other: &Arc<Self>) {
        assert!(self.first.set(other.clone()).is_ok(), "only one");
    }

    /// From now on it tells the truth.
    pub(crate) fn repent(&self) {
        self.repents.store(true, Ordering::Relaxed);
    }

    pub(crate) fn lies(&self) -> usize {
        *self.lies.lock()
    }

    fn serve(&self, outside: TcpStream, target: SocketAddr, is_state: bool) {
        let Ok(inside) = TcpStream::connect(target) else { return };
        let (Ok(from), Ok(to)) = (outside.try_clone(), inside.try_clone()) else { return };
        for stream in [&outside, &inside] {
            let _ = stream.set_nodelay(true);
        }
        let asking = thread::spawn(move || {
            carry(from, &to);
            let _ = to.shutdown(Shutdown::Write);
        });
        if is_state {
            let _ = self.answer(&inside, &outside);
        } else {
            carry(inside.try_clone().unwrap_or_else(|error| panic!("{error}")), &outside);
        }
        let _ = (outside.shutdown(Shutdown::Both), inside.shutdown(Shutdown::Both));
        let _ = asking.join();
    }

    /// Carries answers, and lies.
    fn answer(&self, mut inside: &TcpStream, mut outside: &TcpStream) -> io::Result<()> {
        let mut reply = [0; REPLY_BYTES];
        inside.read_exact(&mut reply)?;
        outside.write_all(&reply)?;
        loop {
            let mut length = [0; 4];
            inside.read_exact(&mut length)?;
            let mut packet = vec![0; u32::from_be_bytes(length) as usize];
            inside.read_exact(&mut packet)?;
            // Kind, code, and if the code says so, a number of bytes.
            let bytes = match packet[2] {
                0 => u64::from_be_bytes(packet[3..11].try_into().expect("eight bytes")),
                _ => 0,
            };
            let mut raw = vec![0; bytes as usize];
            inside.read_exact(&mut raw)?;
            let is_piece = bytes > LONGEST_LIST;
            if let Some(first) = self.first.get()
                && is_piece != first.lie.is_about_lists()
            {
                first.wait_for_a_lie();
            }
            let lies = match self.lie {
                _ if self.repents.load(Ordering::Relaxed) => false,
                Lie::None => false,
                lie if lie.is_about_lists() => !is_piece,
                Lie::Nonsense | Lie::Silence | Lie::OneAnswer => {
                    self.given.fetch_add(1, Ordering::Relaxed) >= self.honest
                }
                _ => is_piece && self.given.fetch_add(1, Ordering::Relaxed) >= self.honest,
            };
            let say = |packet: &mut [u8], bytes: u64| packet[3..11].copy_from_slice(&bytes.to_be_bytes());
            let previous = match is_piece {
                true => std::mem::replace(&mut *self.previous.lock(), raw.clone()),
                false => Vec::new(),
            };
            if lies {
                *self.lies.lock() += 1;
                self.lied.notify_all();
            }
            match self.lie {
                Lie::WrongBytes | Lie::WrongDigests if lies => {
                    let last = raw.len() - 1;
                    raw[last] ^= 1;
                }
                Lie::EndlessList if lies => {
                    packet[3..11].fill(0xff);
                    outside.write_all(&length)?;
                    outside.write_all(&packet)?;
                    loop {
                        outside.write_all(&raw)?;
                    }
                }
                Lie::Nonsense if lies => return outside.write_all(&[0xff; 4096]),
                Lie::Hangup if lies => raw.truncate(1000),
                Lie::Silence if lies => return io::copy(&mut inside, &mut io::sink()).map(drop),
                Lie::EmptyList if lies => {
                    say(&mut packet, 0);
                    raw.clear();
                }
                Lie::TooLong if lies => {
                    say(&mut packet, bytes + 1);
                    raw.push(0);
                }
                Lie::TooShort if lies => {
                    say(&mut packet, bytes - 1);
                    raw.truncate(raw.len() - 1);
                }
                Lie::OtherPiece if lies => raw = previous,
                Lie::SilentPiece | Lie::Drip if lies => {
                    outside.write_all(&length)?;
                    outside.write_all(&packet)?;
                    if self.lie == Lie::SilentPiece {
                        return io::copy(&mut inside, &mut io::sink()).map(drop);
                    }
                    for byte in raw {
                        outside.write_all(&[byte])?;
                        thread::sleep(Duration::from_secs(1));
                    }
                    return Ok(());
                }
                _ => {}
            }
            outside.write_all(&length)?;
            outside.write_all(&packet)?;
            outside.write_all(&raw)?;
            if lies && matches!(self.lie, Lie::Hangup | Lie::OneAnswer) {
                return Ok(());
            }
        }
    }

    fn wait_for_a_lie(&self) {
        let mut lies = self.lies.lock();
        while *lies == 0 {
            let timed_out = self.lied.wait_for(&mut lies, Duration::from_secs(60)).timed_out();
            assert!(!timed_out, "nobody asked the liar");
        }
    }
}

fn carry(mut from: TcpStream, mut to: &TcpStream) {
    let _ = io::copy(&mut from, &mut to);
}
