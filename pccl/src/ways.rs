//! Which address of each other peer led to it: later connections begin with that.

use parking_lot::Mutex;
use pccl_protocol::{Hosts, PeerId, limits};
use std::{collections::BTreeMap, net::IpAddr};
use tinysockets::{conn::Conn, place::Place};

/// Of one session.
#[derive(Debug, Default)]
pub(crate) struct Ways {
    known: Mutex<BTreeMap<PeerId, IpAddr>>,
}

impl Ways {
    /// Where to dial a peer at one of its ports.
    pub(crate) fn to(&self, peer: PeerId, hosts: &Hosts, port: u16) -> Place {
        let place = hosts.at(port);
        match self.known.lock().get(&peer) {
            Some(known) => Place { first: Some(*known), ..place },
            None => place,
        }
    }

    /// A connection that this end has made led to the peer that was meant.
    pub(crate) fn led_to(&self, peer: PeerId, conn: &Conn) {
        let Ok(address) = conn.peer_addr() else { return };
        let ip = address.ip().to_canonical();
        let mut known = self.known.lock();
        // Peers come and go, each with another identity.
        if known.len() >= limits::MAX_PEERS && !known.contains_key(&peer) {
            known.clear();
        }
        if known.insert(peer, ip) != Some(ip) {
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
        (2..2 * limits::MAX_PEERS as u128).for_each(|peer| ways.led_to(PeerId(peer), &conn));
        assert!(ways.known.lock().len() <= limits::MAX_PEERS);
    }
}
