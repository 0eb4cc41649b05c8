//! A TCP proxy between the peers, in this process: each peer gives out an address at which the proxy listens, and
//! connections through it can be delayed, throttled, cut one way, damaged and reset.
//!
//! Peer `n` listens on a loopback address of its own, with ports that the proxy has found free; the proxy listens on
//! another address with the same ports. Bytes that are sent into a cut are lost before the proxy acknowledges them, by
//! a socket filter, so that the sender sees what it would see on a real network.

mod connection;
mod net;
mod pipe;

pub(crate) use connection::Way;

use net::{Command, Net};
use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener},
    sync::{
        Arc,
        mpsc::{Sender, channel},
    },
    thread::JoinHandle,
};
use tinysockets::preamble::Role;

/// A run claims a block of addresses by listening here.
const CLAIM_PORT: u16 = 47_111;
/// Peers with different addresses; by then the first of them have long ended.
const ADDRESSES: usize = 30_000;
/// Tries to find a port that is free.
const PORT_TRIES: usize = 100;

/// Names a connection.
pub(crate) type LinkId = usize;
type Links = Arc<Mutex<BTreeMap<LinkId, Link>>>;

/// A connection whose ends are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) id: LinkId,
    /// Identities of its ends.
    pub(crate) from: u128,
    pub(crate) to: u128,
    pub(crate) role: Role,
    /// Number of the peer that accepted it.
    pub(crate) listener: usize,
}

/// Harm that is done to a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Harm {
    Delay {
        way: Way,
        delay_us: u64,
        until_us: u64,
    },
    Throttle {
        way: Way,
        bytes_per_s: u64,
        until_us: u64,
    },
    /// Bytes that are sent this way are lost.
    Lose {
        way: Way,
        until_us: u64,
    },
    /// One bit is inverted, after `in_bytes` more bytes.
    Flip {
        way: Way,
        in_bytes: u64,
    },
    Reset,
}

/// How a peer listens, and where others reach it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) bind: IpAddr,
    pub(crate) shown: IpAddr,
    /// Of the data listener and of the shared-state listener.
    pub(crate) ports: (u16, u16),
}

/// See the module's documentation.
pub(crate) struct Proxy {
    /// Second byte of all addresses.
    block: u8,
    /// Keeps the block.
    _claim: TcpListener,
    commands: Sender<Command>,
    waker: Arc<mio::Waker>,
    links: Links,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    pub(crate) fn start() -> io::Result<Self> {
        let (block, claim) = claim()?;
        let links = Links::default();
        let (commands, orders) = channel();
        let (net, waker) = Net::new(orders, links.clone())?;
        let thread = std::thread::Builder::new().name("proxy".into()).spawn(|| net.run())?;
        Ok(Self { block, _claim: claim, commands, waker, links, thread: Some(thread) })
    }

    /// Opens the doors of a peer.
    pub(crate) fn open(&self, peer: usize) -> io::Result<Place> {
        let (bind, shown) = (self.address(peer, false), self.address(peer, true));
        let door = || -> io::Result<u16> {
            let (listener, port) = listen(shown, bind)?;
            self.command(Command::Open { peer, door: listener, target: SocketAddr::new(bind, port) });
            Ok(port)
        };
        let ports = (door()?, door()?);
        Ok(Place { bind, shown, ports })
    }

    /// A peer has ended.
    pub(crate) fn close(&self, peer: usize) {
        self.command(Command::Close { peer });
    }

    /// The connections whose ends are known.
    pub(crate) fn links(&self) -> Vec<Link> {
        self.links.lock().values().copied().collect()
    }

    /// Does something to connections; it is done when this returns. Those that have ended meanwhile are left out.
    pub(crate) fn harm(&self, links: Vec<LinkId>, harm: Harm) {
        let (done, carried_out) = channel();
        self.command(Command::Harm { links, harm, done });
        // An error means that the thread is gone, and it has said why.
        let _ = carried_out.recv();
    }

    /// Ends all that is done to connections.
    pub(crate) fn heal(&self) {
        self.command(Command::Heal);
    }

    fn command(&self, command: Command) {
        // The thread ends only with this handle, or has said why.
        drop(self.commands.send(command));
        drop(self.waker.wake());
    }

    fn address(&self, peer: usize, shown: bool) -> IpAddr {
        let index = peer % ADDRESSES + 1 + if shown { 1 << 15 } else { 0 };
        Ipv4Addr::new(127, self.block, (index >> 8) as u8, index as u8).into()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.command(Command::Stop);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// Finds a block of loopback addresses that no other run uses.
fn claim() -> io::Result<(u8, TcpListener)> {
    let mut last = None;
    for block in 64..=250 {
        match TcpListener::bind((Ipv4Addr::new(127, block, 255, 254), CLAIM_PORT)) {
            Ok(listener) => return Ok((block, listener)),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| io::ErrorKind::AddrInUse.into()))
}

/// Listens on a port of `shown` that is also free on `own`.
fn listen(shown: IpAddr, own: IpAddr) -> io::Result<(TcpListener, u16)> {
    for _ in 0..PORT_TRIES {
        let listener = TcpListener::bind((shown, 0))?;
        let port = listener.local_addr()?.port();
        if TcpListener::bind((own, port)).is_ok() {
            listener.set_nonblocking(true)?;
            return Ok((listener, port));
        }
    }
    Err(io::ErrorKind::AddrInUse.into())
}

#[cfg(test)]
mod tests;
