//! The listening sockets of an event loop: binding, accepting, and what to do when the system has no descriptor left.

use crate::{
    address::{AddressError, HostPort},
    conn::Conn,
    ledger,
};
use mio::{Interest, Registry, Token, net::TcpListener};
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

/// Connections that wait in the kernel until they are accepted.
const BACKLOG: i32 = 1024;
/// Connections accepted in one turn of the loop: few, so that clients that are there already do not wait for them.
const ACCEPTS_PER_TURN: usize = 16;
/// Pause after an accept error that does not go away by itself, such as "too many open files".
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// All addresses that the text `host:port` stands for; port 0 is a free one. Fails with one sentence.
pub fn resolve(listen: &str, deadline: Instant) -> Result<Vec<SocketAddr>, String> {
    // Port 0 is no port that one could connect to, so `HostPort` does not take it from text.
    let (text, free_port) = match listen.strip_suffix(":0") {
        Some(host) => (format!("{host}:1"), true),
        None => (listen.to_owned(), false),
    };
    let mut host_port: HostPort = text.parse().map_err(|error: AddressError| error.to_string())?;
    if free_port {
        host_port.port = 0;
    }
    host_port.resolve(deadline).map_err(|error| error.to_string())
}

/// Binds one listening socket for each address. With port 0 the first one gets a free port and the others the same.
/// The first address must succeed, or the next one is the first; later failures are logged only, because a name such
/// as `localhost` often stands for an address family that the machine does not have.
pub fn bind_all(addresses: &[SocketAddr]) -> io::Result<Vec<std::net::TcpListener>> {
    let mut bound: Vec<std::net::TcpListener> = Vec::new();
    let mut first_error = None;
    for address in addresses {
        let mut address = *address;
        if let (0, Some(first)) = (address.port(), bound.first()) {
            address.set_port(first.local_addr()?.port());
        }
        match bind(address) {
            Ok(listener) => bound.push(listener),
            Err(error) => {
                log::debug!("cannot listen on {address}: {error}");
                first_error.get_or_insert(error);
            }
        }
    }
    match first_error {
        Some(error) if bound.is_empty() => Err(error),
        _ if bound.is_empty() => {
            Err(io::Error::new(io::ErrorKind::AddrNotAvailable, "no address to listen on"))
        }
        _ => Ok(bound),
    }
}

/// Binds one listening socket. The IPv6 wildcard takes IPv4 connections too; where the machine has no IPv6 it becomes
/// the IPv4 wildcard.
fn bind(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    match bind_exactly(address) {
        Err(error)
            if address.ip() == Ipv6Addr::UNSPECIFIED
                && matches!(error.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL)) =>
        {
            bind_exactly((Ipv4Addr::UNSPECIFIED, address.port()).into())
        }
        other => other,
    }
}

fn bind_exactly(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    ledger::enter(&socket);
    if address.is_ipv6() {
        socket.set_only_v6(address.ip() != Ipv6Addr::UNSPECIFIED)?;
    }
    // Otherwise a master that is started again has to wait for the connections of the old one to be forgotten.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Listening sockets in the care of the loop.
#[derive(Debug)]
pub struct Listeners {
    sockets: Vec<TcpListener>,
    /// The sockets may have connections.
    ready: bool,
    /// No accept before this instant.
    paused_until: Option<Instant>,
    /// The present series of accept errors has been logged.
    complained: bool,
}

impl Listeners {
    /// Registers all of them under `token`.
    ///
    /// # Errors
    /// The error of the system.
    pub fn register(
        sockets: Vec<std::net::TcpListener>,
        registry: &Registry,
        token: Token,
    ) -> io::Result<Self> {
        let mut sockets: Vec<TcpListener> = sockets.into_iter().map(TcpListener::from_std).collect();
        for socket in &mut sockets {
            registry.register(socket, token, Interest::READABLE)?;
        }
        Ok(Self { sockets, ready: true, paused_until: None, complained: false })
    }

    /// Connections may have arrived.
    pub fn set_ready(&mut self) {
        self.ready = true;
    }

    /// Whether connections can be accepted now.
    pub fn is_ready(&self) -> bool {
        self.ready && self.paused_until.is_none()
    }

    /// When accepting goes on after an error.
    pub fn deadline(&self) -> Option<Instant> {
        self.paused_until
    }

    /// Accepts what waits, a bounded number at a time.
    pub fn accept(&mut self, now: Instant) -> Vec<(Conn, SocketAddr)> {
        if self.paused_until.is_some_and(|until| until > now) || !self.ready {
            return Vec::new();
        }
        self.paused_until = None;
        let mut accepted = Vec::new();
        let mut all_empty = true;
        for socket in &self.sockets {
            match accept_some(socket, &mut accepted) {
                Ok(emptied) => all_empty &= emptied,
                Err(error) => {
                    all_empty = false;
                    self.paused_until = Some(now + ACCEPT_PAUSE);
                    if !self.complained {
                        log::warn!(
                            "cannot accept connections for now, trying again every {ACCEPT_PAUSE:?}: {error}"
                        );
                        self.complained = true;
                    }
                }
            }
        }
        if self.paused_until.is_none() {
            self.complained = false;
        }
        self.ready = !all_empty;
        accepted
    }
}

/// Accepts until nothing waits (`true`) or the turn's share is used up (`false`).
fn accept_some(socket: &TcpListener, accepted: &mut Vec<(Conn, SocketAddr)>) -> io::Result<bool> {
    for _ in 0..ACCEPTS_PER_TURN {
        match socket.accept() {
            Ok((stream, remote)) => {
                ledger::enter(&stream);
                accepted.push((Conn::from(std::net::TcpStream::from(OwnedFd::from(stream))), remote));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
            Err(error) if is_lasting(&error) => return Err(error),
            // Everything else concerns the one connection that was being accepted (it was reset, its network is gone):
            // the kernel has dropped it, the next one may be fine.
            Err(error) => log::debug!("a connection was lost before it was accepted: {error}"),
        }
    }
    Ok(false)
}

/// Whether an accept error says something about this process or machine rather than about one connection.
fn is_lasting(error: &io::Error) -> bool {
    !matches!(
        error.raw_os_error(),
        Some(
            libc::EINTR
                | libc::ECONNABORTED
                | libc::EPROTO
                | libc::EPERM
                | libc::ENETDOWN
                | libc::ENOPROTOOPT
                | libc::EHOSTDOWN
                | libc::ENONET
                | libc::EHOSTUNREACH
                | libc::EOPNOTSUPP
                | libc::ENETUNREACH
                | libc::ECONNRESET
        )
    )
}
