//! Listening sockets, and how one finds a free port.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
    os::fd::{AsFd, BorrowedFd},
};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::{address::canonical, conn::Conn, ledger};

/// Connections that the kernel keeps ready for us at most; it cuts this to its own limit.
const BACKLOG: i32 = 1024;

/// A listening TCP socket that never blocks.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    local_addr: SocketAddr,
}

impl Listener {
    /// Listens on `first_port` of `host`, or on the first free one of the `tries` ports from there on. Port 0 lets the
    /// system choose. Without a `host` it listens on all addresses, IPv6 and IPv4, where the system has IPv6.
    ///
    /// `AddrInUse` says that all the ports were taken.
    pub fn bind(host: Option<IpAddr>, first_port: u16, tries: u16) -> io::Result<Self> {
        let last_port = if first_port == 0 { 0 } else { first_port.saturating_add(tries.max(1) - 1) };
        for port in first_port..=last_port {
            match bind_port(host, port) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                    log::debug!("port {port} is taken");
                }
                Err(error) => return Err(with_context(host, port, &error)),
                Ok(socket) => {
                    let local_addr = socket.local_addr()?;
                    return Ok(Self { socket, local_addr });
                }
            }
        }
        let on = host.map_or_else(String::new, |host| format!(" of {host}"));
        let text = format!(
            "ports {first_port} to {last_port}{on} are all in use; free one, or choose another first port"
        );
        Err(io::Error::new(io::ErrorKind::AddrInUse, text))
    }

    /// The port that it listens on.
    #[must_use]
    pub fn local_port(&self) -> u16 {
        self.local_addr.port()
    }

    /// The address that it listens on; `[::]` or `0.0.0.0` when it is all of them.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Takes the next connection, `None` if there is none at the moment. The connection is in blocking mode, sends at
    /// once (`TCP_NODELAY`), and is not inherited by child programs.
    pub fn accept(&self) -> io::Result<Option<(Conn, SocketAddr)>> {
        match self.socket.accept() {
            Ok((stream, remote)) => {
                ledger::enter(&stream);
                // Fails only for a connection that is gone already, which the first read will say.
                let _ = stream.set_nodelay(true);
                Ok(Some((stream.into(), canonical(remote))))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn with_context(host: Option<IpAddr>, port: u16, error: &io::Error) -> io::Error {
    let host = host.map_or_else(|| "all addresses".to_owned(), |host| host.to_string());
    io::Error::new(error.kind(), format!("cannot listen on port {port} of {host}: {error}"))
}

fn bind_port(host: Option<IpAddr>, port: u16) -> io::Result<TcpListener> {
    let Some(host) = host else {
        return match listen(Ipv6Addr::UNSPECIFIED.into(), port) {
            // IPv6 is not compiled in, or switched off.
            Err(error) if lacks_ipv6(&error) => listen(Ipv4Addr::UNSPECIFIED.into(), port),
            result => result,
        };
    };
    listen(host, port)
}

fn lacks_ipv6(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EAFNOSUPPORT) || error.kind() == io::ErrorKind::AddrNotAvailable
}

fn listen(host: IpAddr, port: u16) -> io::Result<TcpListener> {
    let address = SocketAddr::new(host, port);
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    ledger::enter(&socket);
    if host == IpAddr::V6(Ipv6Addr::UNSPECIFIED) {
        socket.set_only_v6(false)?;
    }
    // Without this a port stays blocked for a minute after its connections have ended. It does not let two sockets
    // listen on one port: the second one fails in `bind` or, if both were bound first, in `listen`.
    socket.set_reuse_address(true)?;
    socket.bind(&SockAddr::from(address))?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn a_taken_port_is_bumped_to_the_next_free_one() {
        let first = Listener::bind(None, 0, 1).unwrap();
        let port = first.local_port();
        let second = Listener::bind(None, port, 200).unwrap();
        assert!(second.local_port() > port);
        let third = Listener::bind(None, port, 200).unwrap();
        assert!(third.local_port() > second.local_port());
        drop(first);
        let again = Listener::bind(None, port, 1).unwrap();
        assert_eq!(again.local_port(), port);
    }

    #[test]
    fn the_search_for_a_port_is_bounded_and_tells_its_range() {
        let taken = Listener::bind(Some(Ipv4Addr::LOCALHOST.into()), 0, 1).unwrap();
        let error = Listener::bind(Some(Ipv4Addr::LOCALHOST.into()), taken.local_port(), 1).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert!(error.to_string().contains(&taken.local_port().to_string()));
        let wildcard = Listener::bind(None, taken.local_port(), 1).unwrap_err();
        assert_eq!(wildcard.kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn the_search_ends_at_the_last_port() {
        let top = Listener::bind(Some(Ipv4Addr::LOCALHOST.into()), 65535, 1);
        let bumped = Listener::bind(Some(Ipv4Addr::LOCALHOST.into()), 65535, 100);
        assert!(top.is_err() || bumped.is_err());
    }

    #[test]
    fn no_host_means_ipv6_and_ipv4() {
        let listener = Listener::bind(None, 0, 1).unwrap();
        let port = listener.local_port();
        let v4 = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        let remotes = [take(&listener)];
        assert_eq!(remotes, [v4.local_addr().unwrap()], "shown as IPv4 even on a dual-stack socket");
        if listener.local_addr().is_ipv6() {
            let v6 = TcpStream::connect((Ipv6Addr::LOCALHOST, port)).unwrap();
            assert_eq!(take(&listener), v6.local_addr().unwrap());
        }
    }

    #[test]
    fn one_ipv6_address_can_be_bound_alone() {
        let Ok(listener) = Listener::bind(Some(Ipv6Addr::LOCALHOST.into()), 0, 1) else {
            return; // This machine has no IPv6.
        };
        assert!(TcpStream::connect((Ipv6Addr::LOCALHOST, listener.local_port())).is_ok());
        assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, listener.local_port())).is_err());
    }

    fn take(listener: &Listener) -> SocketAddr {
        use crate::sys::{Interest, deadline_after, poll_fd};
        let deadline = deadline_after(std::time::Duration::from_secs(20));
        assert!(poll_fd(listener.as_fd(), Interest::Read, deadline).unwrap().readable);
        listener.accept().unwrap().unwrap().1
    }
}
