//! The network between the peers: proxies on loopback, or a laboratory of network namespaces where there is one.

use crate::{fleet::Fleet, lab::Lab, peer::Peer, proxies::Proxies};

/// A peer, by its number.
pub(crate) type Node = usize;

/// See the module's documentation.
pub(crate) enum Network {
    /// Needs no privileges; knows resets, blocked ports and false acknowledgements.
    Proxies(Proxies),
    /// Real packets, real loss of acknowledgements; knows cuts and rates.
    Lab(Lab),
}

impl Network {
    /// Starts a peer that does not connect yet.
    pub(crate) fn spawn(&mut self, fleet: &mut Fleet, node: Node, settings: &[String]) {
        match self {
            Self::Proxies(proxies) => {
                let (address, mut own) = proxies.add(node);
                own.extend_from_slice(settings);
                fleet.address = address;
                fleet.spawn(&own.iter().map(String::as_str).collect::<Vec<_>>());
                proxies.expect_newcomer(node);
            }
            Self::Lab(lab) => fleet.peers.push(lab.spawn(node, settings)),
        }
    }

    /// Learns who has which identity.
    pub(crate) fn introduce(&self, peer: &Peer) {
        if let Self::Proxies(proxies) = self {
            proxies.introduce(peer.id.as_ref().expect("connected"), peer.index);
        }
    }

    /// Unknown identities are those of this peer.
    pub(crate) fn expect_newcomer(&self, node: Node) {
        if let Self::Proxies(proxies) = self {
            proxies.expect_newcomer(node);
        }
    }

    /// Nothing passes from `from` to `to` any more.
    pub(crate) fn cut(&mut self, from: Node, to: Node) {
        match self {
            Self::Proxies(proxies) => proxies.cut(from, to),
            Self::Lab(lab) => lab.control(&format!("cut {from} {to}")),
        }
    }

    /// Nothing passes between this node and any other, the master included.
    pub(crate) fn cut_off(&mut self, node: Node) {
        match self {
            Self::Proxies(proxies) => proxies.cut_off(node),
            Self::Lab(lab) => lab.control(&format!("cut {node}")),
        }
    }

    /// Nothing passes between this node and the master.
    pub(crate) fn cut_from_master(&mut self, node: Node) {
        self.proxies().cut_from_master(node);
    }

    /// 200 kbit/s in both directions.
    pub(crate) fn throttle(&mut self, a: Node, b: Node) {
        match self {
            Self::Proxies(proxies) => proxies.throttle(a, b, 25_000),
            Self::Lab(lab) => lab.control(&format!("set {a} {b} both rate=0.2")),
        }
    }

    /// Limits the rate in both directions.
    pub(crate) fn limit(&mut self, a: Node, b: Node, bytes_per_s: u64) {
        self.proxies().throttle(a, b, bytes_per_s);
    }

    /// Resets every connection between the two; if there is none, the next one from `a` to `b`.
    pub(crate) fn reset(&mut self, a: Node, b: Node) {
        self.proxies().reset(a, b);
    }

    /// The bytes from `from` to `to` are acknowledged, and do not arrive.
    pub(crate) fn swallow(&mut self, from: Node, to: Node) {
        self.proxies().swallow(from, to);
    }

    /// New connections from `from` to `to` get no answer; those that stand are not touched.
    pub(crate) fn block(&mut self, from: Node, to: Node) {
        self.proxies().block(from, to);
    }

    /// `to` gives no answer at its port of shared state to `from`.
    pub(crate) fn block_state(&mut self, from: Node, to: Node) {
        self.proxies().block_state(from, to);
    }

    /// Where others reach the port of shared state of this peer.
    pub(crate) fn state_address(&self, node: Node) -> String {
        self.proxies().state_address(node)
    }

    /// Everything is well again, but for what was reset.
    pub(crate) fn heal(&mut self) {
        match self {
            Self::Proxies(proxies) => proxies.heal(),
            Self::Lab(lab) => lab.control("heal all"),
        }
    }

    /// The nodes with a connection to the shared-state listener of `listener`.
    pub(crate) fn fetchers(&self, listener: Node) -> Vec<Node> {
        match self {
            Self::Proxies(proxies) => proxies.fetchers(listener),
            Self::Lab(lab) => lab.fetchers(listener),
        }
    }

    fn proxies(&self) -> &Proxies {
        match self {
            Self::Proxies(proxies) => proxies,
            Self::Lab(_) => {
                panic!("the laboratory knows neither resets, blocked ports nor false acknowledgements")
            }
        }
    }
}
