//! Where somebody listens: host and port as text, and their resolution within a deadline.

use std::{
    fmt,
    net::{IpAddr, SocketAddr, ToSocketAddrs},
    str::FromStr,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::Instant,
};

use crate::wire::is_hidden;

/// Longest host name that the domain name system allows, in bytes.
const MAX_HOST_BYTES: usize = 253;
/// Name lookups that may be under way at once. The resolver of the system cannot be interrupted, so lookups that
/// outlive their deadline go on in the background; this keeps a broken name server from filling the process with them.
const MAX_LOOKUPS: usize = 32;
static LOOKUPS: AtomicUsize = AtomicUsize::new(0);

/// A host (name, IPv4 or IPv6 address) and a TCP port. As text `host:port`, with an IPv6 address in brackets.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HostPort {
    /// Name or address; an IPv6 address without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

/// Why a text is no [`HostPort`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not an address: {problem} (write host:port, 10.0.0.1:48148 or [::1]:48148)")]
pub struct AddressError {
    text: String,
    problem: &'static str,
}

/// Why a host has no usable address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// The resolver says that it has none.
    #[error("host `{host}` cannot be resolved: {text}")]
    Unknown {
        /// The host asked for.
        host: String,
        /// The text of the resolver.
        text: String,
    },
    /// No answer before the deadline.
    #[error("resolving host `{host}` timed out; check the name servers of this machine")]
    TimedOut {
        /// The host asked for.
        host: String,
    },
}

impl HostPort {
    /// `host` (an IPv6 address without brackets) and `port`, unchecked until they are resolved.
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self { host: host.into(), port }
    }

    /// All addresses of the host, each once, in the order of the resolver's preference. A literal address is returned
    /// at once; a name is looked up on a short-lived thread, because only so does `deadline` hold.
    pub fn resolve(&self, deadline: Instant) -> Result<Vec<SocketAddr>, ResolveError> {
        if let Ok(ip) = self.host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(ip, self.port)]);
        }
        let unknown = |text: String| ResolveError::Unknown { host: self.host.clone(), text };
        let slot =
            LookupSlot::take().ok_or_else(|| unknown(format!("{MAX_LOOKUPS} lookups are still running")))?;
        let (sender, answer) = crossbeam_channel::bounded(1);
        let target = (self.host.clone(), self.port);
        // The resolver is foreign code with plug-ins, so its thread has the usual stack and not one of our small ones.
        thread::Builder::new()
            .name("resolve".to_owned())
            .spawn(move || {
                let found = target.to_socket_addrs().map(Vec::from_iter).map_err(|error| error.to_string());
                drop(slot);
                // Nobody waits any more if the deadline has passed.
                let _ = sender.send(found);
            })
            .map_err(|error| unknown(format!("no thread for the lookup: {error}")))?;
        let found = match answer.recv_deadline(deadline) {
            Ok(found) => found.map_err(unknown)?,
            Err(_) => return Err(ResolveError::TimedOut { host: self.host.clone() }),
        };
        let mut addresses = Vec::with_capacity(found.len());
        for address in found {
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        if addresses.is_empty() { Err(unknown("it has no address".to_owned())) } else { Ok(addresses) }
    }
}

struct LookupSlot;

impl LookupSlot {
    fn take() -> Option<Self> {
        let took = LOOKUPS
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| (n < MAX_LOOKUPS).then_some(n + 1));
        took.is_ok().then_some(Self)
    }
}

impl Drop for LookupSlot {
    fn drop(&mut self) {
        LOOKUPS.fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl From<SocketAddr> for HostPort {
    fn from(address: SocketAddr) -> Self {
        let host = match address {
            SocketAddr::V6(v6) if v6.scope_id() != 0 => format!("{}%{}", v6.ip(), v6.scope_id()),
            _ => address.ip().to_string(),
        };
        Self { host, port: address.port() }
    }
}

impl FromStr for HostPort {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let fail = |problem| AddressError { text: text.to_owned(), problem };
        if text.contains("://") {
            return Err(fail("give host and port alone, without the part up to `://`"));
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(|| fail("the port is missing"))?;
        let host = match host.strip_prefix('[').map(|rest| rest.strip_suffix(']')) {
            Some(Some(inner)) => {
                let address = inner.split_once('%').map_or(inner, |(address, _zone)| address);
                if address.parse::<std::net::Ipv6Addr>().is_err() {
                    return Err(fail("the brackets do not hold an IPv6 address"));
                }
                inner
            }
            Some(None) => return Err(fail("the port is missing, or the bracket is not closed before it")),
            None if host.contains(':') => return Err(fail("an IPv6 address needs brackets")),
            None => host,
        };
        if host.is_empty() {
            return Err(fail("the host is missing"));
        }
        if host.len() > MAX_HOST_BYTES {
            return Err(fail("the host is longer than 253 bytes"));
        }
        if host.contains(|c: char| c.is_whitespace() || is_hidden(c) || "[]/@".contains(c)) {
            return Err(fail("the host contains a character that no host name has"));
        }
        // `parse` alone would take a leading plus sign.
        let all_digits = port.bytes().all(|b| b.is_ascii_digit());
        match port.parse::<u16>() {
            Ok(port) if port != 0 && all_digits => Ok(Self::new(host, port)),
            _ => Err(fail("the port is not a number from 1 to 65535")),
        }
    }
}

/// `address` with an IPv4 address that a dual-stack socket shows as `::ffff:a.b.c.d` in its usual form.
#[must_use]
pub fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => SocketAddr::new(ip.into(), address.port()),
        IpAddr::V6(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    #[test]
    fn names_and_addresses_survive_parsing_and_display() {
        for (text, host, port) in [
            ("localhost:48148", "localhost", 48148),
            ("1.2.3.4:5", "1.2.3.4", 5),
            ("[::1]:48148", "::1", 48148),
            ("[fe80::1%eth0]:65535", "fe80::1%eth0", 65535),
        ] {
            let parsed: HostPort = text.parse().unwrap();
            assert_eq!(parsed, HostPort::new(host, port));
            assert_eq!(parsed.to_string(), text);
        }
    }

    #[test]
    fn what_is_no_address_is_refused_with_a_reason() {
        for (text, reason) in [
            ("", "the port is missing"),
            ("localhost", "the port is missing"),
            (":80", "the host is missing"),
            ("host:", "1 to 65535"),
            ("host:0", "1 to 65535"),
            ("host:65536", "1 to 65535"),
            ("host:+80", "1 to 65535"),
            ("::1:80", "needs brackets"),
            ("[::1]", "port is missing"),
            ("[::1:80", "not closed"),
            ("[example.org]:80", "IPv6"),
            ("a b:80", "character"),
            ("http://host:80", "without the part up to `://`"),
            ("tcp://host", "without the part up to `://`"),
            ("tcp://[::1]:80", "without the part up to `://`"),
        ] {
            let error = text.parse::<HostPort>().unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
        assert!(format!("{}:80", "x".repeat(254)).parse::<HostPort>().is_err());
    }

    #[test]
    fn a_literal_resolves_to_itself_and_localhost_to_this_machine() {
        let literal = HostPort::new("::1", 7).resolve(Instant::now()).unwrap();
        assert_eq!(literal, ["[::1]:7".parse().unwrap()]);
        let found = HostPort::new("localhost", 7).resolve(soon()).unwrap();
        assert!(found.iter().all(|address| address.ip().is_loopback() && address.port() == 7));
        assert!(!found.is_empty());
    }

    #[test]
    fn an_impossible_name_is_an_error_that_tells_the_name() {
        let error = HostPort::new("no..such..host", 7).resolve(soon()).unwrap_err();
        assert!(error.to_string().contains("no..such..host"));
    }

    #[test]
    fn mapped_addresses_are_shown_as_ipv4() {
        assert_eq!(canonical("[::ffff:1.2.3.4]:5".parse().unwrap()), "1.2.3.4:5".parse().unwrap());
        assert_eq!(canonical("[::1]:5".parse().unwrap()), "[::1]:5".parse().unwrap());
    }
}
