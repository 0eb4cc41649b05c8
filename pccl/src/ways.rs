//! The knowledge of the way to each other peer: which address led to it, with which later connections begin, and
//! whether the path drops large packets.

use parking_lot::Mutex;
use pccl_protocol::{Hosts, PeerId, limits};
use std::{collections::BTreeMap, net::IpAddr};
use tinysockets::{
    conn::Conn,
    place::{Place, SHORT_SEGMENT_BYTES},
};

/// Of one session.
#[derive(Debug, Default)]
pub(crate) struct Ways {
    known: Mutex<BTreeMap<PeerId, Way>>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Way {
    address: Option<IpAddr>,
    /// Large packets may not pass.
    short_segments: bool,
}

impl Ways {
    /// Where to dial a peer at one of its ports.
    pub(crate) fn to(&self, peer: PeerId, hosts: &Hosts, port: u16) -> Place {
        let place = hosts.at(port);
        match self.known.lock().get(&peer) {
            Some(way) => {
                Place { first: way.address.or(place.first), short_segments: way.short_segments, ..place }
            }
            None => place,
        }
    }

    /// The path drops large packets, as the master has found.
    pub(crate) fn needs_short_segments(&self, peer: PeerId) {
        self.note(peer, |way| way.short_segments = true);
    }

    /// A connection that had been made brought nothing in time. It costs little to try the next one with short
    /// segments.
    pub(crate) fn brought_nothing(&self, peer: PeerId) {
        let mut was_known = true;
        self.note(peer, |way| was_known = std::mem::replace(&mut way.short_segments, true));
        if !was_known {
            log::warn!(
                "a connection to peer {peer} stood, and nothing came over it: connections to it have segments of at \
                 most {SHORT_SEGMENT_BYTES} bytes from now on, in case the path drops large packets (MTU)"
            );
        }
    }

    fn note(&self, peer: PeerId, what: impl FnOnce(&mut Way)) {
        let mut known = self.known.lock();
        // Peers come and go, each with another identity.
        if known.len() >= limits::MAX_PEERS && !known.contains_key(&peer) {
            known.clear();
        }
        what(known.entry(peer).or_default());
    }

    /// A connection that this end has made led to the peer that was meant.
    pub(crate) fn led_to(&self, peer: PeerId, conn: &Conn) {
        let Ok(address) = conn.peer_addr() else { return };
        let ip = address.ip().to_canonical();
        let mut before = None;
        self.note(peer, |way| before = way.address.replace(ip));
        if before != Some(ip) {
            log::debug!("peer {peer} is reached at {ip}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pccl_protocol::{Address, Host};
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn what_led_to_a_peer_is_tried_first_and_peers_are_forgotten() {
        let ways = Ways::default();
        let address = Address::new([10, 0, 0, 1].into()).expect("may be told");
        let hosts = Hosts { host: Host::new("8.8.8.8"), others: vec![address] };
        assert_eq!(ways.to(PeerId(1), &hosts, 7), hosts.at(7));
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let stream = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
        let conn = Conn::from(stream);
        ways.led_to(PeerId(1), &conn);
        assert_eq!(ways.to(PeerId(1), &hosts, 7).first, Some([127, 0, 0, 1].into()));
        assert_eq!(ways.to(PeerId(2), &hosts, 7).first, None);
        assert!(!ways.to(PeerId(1), &hosts, 7).short_segments);
        ways.needs_short_segments(PeerId(1));
        ways.brought_nothing(PeerId(2));
        ways.led_to(PeerId(1), &conn);
        let short = [1, 2, 3].map(|peer| ways.to(PeerId(peer), &hosts, 7).short_segments);
        assert_eq!(short, [true, true, false]);
        (2..2 * limits::MAX_PEERS as u128).for_each(|peer| ways.led_to(PeerId(peer), &conn));
        assert!(ways.known.lock().len() <= limits::MAX_PEERS);
    }
}
