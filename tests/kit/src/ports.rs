//! Ports for programs that cannot be asked for the one that they have got.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

/// Below the range from which a system takes the ports that it gives away itself (Linux: from 32,768). A port that
/// the system has just given, and taken back, may be given to somebody else before it is used.
const FIRST: u32 = 20_000;
const COUNT: u32 = 10_000;

/// A port of the loopback at which nobody listens, and that no call of this function in this process has given before.
/// Two processes begin at different places.
///
/// # Panics
///
/// If nobody can listen at any of them.
pub fn free_port() -> u16 {
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    // Processes of one test run have numbers that lie close together, hence the factor.
    let begin = std::process::id().wrapping_mul(61);
    for _ in 0..COUNT {
        let place = begin.wrapping_add(GIVEN.fetch_add(1, Ordering::Relaxed)) % COUNT;
        let port = u16::try_from(FIRST + place).expect("below 65,536");
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
    panic!("nobody can listen at a port from {FIRST} on")
}

#[cfg(test)]
mod tests {
    use super::free_port;
    use std::net::{Ipv4Addr, TcpListener};

    #[test]
    fn no_port_is_given_twice_nor_while_somebody_listens() {
        let first = free_port();
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, first)).expect("nobody listens");
        let second = free_port();
        assert_ne!(first, second);
        assert!(TcpListener::bind((Ipv4Addr::LOCALHOST, second)).is_ok());
        drop(taken);
        assert!((0..100).all(|_| ![first, second].contains(&free_port())));
    }
}
