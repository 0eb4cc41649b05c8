//! Finds the connections that a fault means, and does it to them.

use crate::{
    fault::{LinkFault, Trouble},
    journal::Journal,
    oracle::{Edge, Oracle},
    proxy::{Harm, Link, Place, Proxy, Way},
};
use std::io;
use tinysockets::preamble::Role;

/// The path that the connections of a run go through.
pub(crate) struct Links {
    /// `None`: peers connect to each other directly.
    proxy: Option<Proxy>,
    /// When those disturbances end that last.
    lasting: Vec<u64>,
}

impl Links {
    pub(crate) fn start(with_proxy: bool) -> io::Result<Self> {
        let proxy = if with_proxy { Some(Proxy::start()?) } else { None };
        Ok(Self { proxy, lasting: Vec::new() })
    }

    /// A place for one more peer.
    pub(crate) fn open(&self, peer: usize) -> io::Result<Option<Place>> {
        self.proxy.as_ref().map(|proxy| proxy.open(peer)).transpose()
    }

    pub(crate) fn close(&self, peer: usize) {
        if let Some(proxy) = &self.proxy {
            proxy.close(peer);
        }
    }

    /// How many disturbances last; `None`: there cannot be any.
    pub(crate) fn disturbed(&self, now_us: u64) -> Option<usize> {
        self.proxy.as_ref().map(|_| self.lasting.iter().filter(|until| now_us < **until).count())
    }

    /// Ends what lasts.
    pub(crate) fn heal(&mut self) {
        self.lasting.clear();
        if let Some(proxy) = &self.proxy {
            proxy.heal();
        }
    }

    /// Does it to the connections of the peer with this identity, told to the oracle before.
    pub(crate) fn apply(
        &mut self,
        fault: LinkFault,
        identity: u128,
        oracle: &mut Oracle,
        journal: &mut Journal,
        now_us: u64,
    ) -> io::Result<()> {
        let Some(proxy) = &self.proxy else { return Ok(()) };
        let mut links = proxy.links();
        links.retain(|link| link.from == identity || link.to == identity);
        if !fault.all && !links.is_empty() {
            let chosen = links[(fault.pick >> 8) as usize % links.len()];
            links = vec![chosen];
        }
        if links.is_empty() {
            return journal.event(now_us, &format!("{:?}: no connection", fault.trouble));
        }
        let until_us = now_us + fault.for_us;
        let damages = matches!(fault.trouble, Trouble::Flip { .. });
        if fault.trouble.breaks() {
            let edges: Vec<Edge> = links.iter().map(|link| Edge::between(link.from, link.to)).collect();
            let until_us = if fault.trouble == Trouble::Cut { until_us } else { now_us };
            oracle.edges_harmed(&edges, damages, until_us, now_us);
        }
        if !matches!(fault.trouble, Trouble::Reset | Trouble::Flip { .. }) {
            self.lasting.retain(|until| now_us < *until);
            self.lasting.push(until_us);
            oracle.links_slowed(until_us);
        }
        let text = format!("{:?} for {} ms: {}", fault.trouble, fault.for_us / 1000, names(&links));
        journal.event(now_us, &text)?;
        let ids: Vec<_> = links.iter().map(|link| link.id).collect();
        let way = if fault.pick & 1 == 0 { Way::Forward } else { Way::Back };
        let harms = match fault.trouble {
            Trouble::Delay { us } => vec![Way::Forward, Way::Back]
                .into_iter()
                .map(|way| Harm::Delay { way, delay_us: us, until_us })
                .collect(),
            Trouble::Throttle { bytes_per_s } => vec![Way::Forward, Way::Back]
                .into_iter()
                .map(|way| Harm::Throttle { way, bytes_per_s, until_us })
                .collect(),
            Trouble::Cut => vec![Harm::Lose { way, until_us }],
            // On data connections next to nothing flows back.
            Trouble::Flip { in_bytes } if links.iter().any(|link| link.role == Role::Data) => {
                vec![Harm::Flip { way: Way::Forward, in_bytes }]
            }
            Trouble::Flip { in_bytes } => vec![Harm::Flip { way, in_bytes }],
            Trouble::Reset => vec![Harm::Reset],
        };
        harms.into_iter().for_each(|harm| proxy.harm(ids.clone(), harm));
        Ok(())
    }
}

fn names(links: &[Link]) -> String {
    let name = |link: &Link| format!("{:?} {:08x} -> {:08x}", link.role, link.from >> 96, link.to >> 96);
    links.iter().map(name).collect::<Vec<_>>().join(", ")
}
