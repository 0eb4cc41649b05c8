//! Where others reach a peer: its host, and further addresses.

use crate::{Host, limits};
use std::{fmt, net::IpAddr};
use tinysockets::{
    address::HostPort,
    place::{Place, is_private, may_be_told},
    wire::{Decode, Encode, ListItem, Reader, WireError},
};

/// An address that others may try: never one that means another machine to everybody, such as a loopback one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(IpAddr);

const ADDRESS: &str = "address";

impl Address {
    /// `None`: not to be told to others.
    #[must_use]
    pub fn new(ip: IpAddr) -> Option<Self> {
        let ip = ip.to_canonical();
        may_be_told(ip).then_some(Self(ip))
    }

    /// The address.
    #[must_use]
    pub const fn ip(self) -> IpAddr {
        self.0
    }
}

impl Encode for Address {
    fn encode(&self, out: &mut Vec<u8>) {
        match self.0 {
            IpAddr::V4(ip) => {
                out.push(4);
                out.extend_from_slice(&ip.octets());
            }
            IpAddr::V6(ip) => {
                out.push(6);
                out.extend_from_slice(&ip.octets());
            }
        }
    }
}

impl Decode for Address {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let family = u8::decode(reader)?;
        let bad = WireError::BadValue { what: ADDRESS, value: family.into() };
        let ip: IpAddr = match family {
            4 => u32::decode(reader)?.to_be_bytes().into(),
            6 => u128::decode(reader)?.to_be_bytes().into(),
            _ => return Err(bad),
        };
        // Each address has one encoding.
        Self::new(ip).filter(|address| address.0 == ip).ok_or(bad)
    }
}

serialized_as_wire!(Address);

impl ListItem for Address {
    const LIST: &'static str = "addresses";
    const MAX_ITEMS: usize = limits::MAX_ADDRESSES;
}

wire_struct! {
    /// Where others reach a peer. Shows as the host.
    pub struct Hosts {
        /// The host that it advertises, or the address from which the master sees it come.
        pub host: Host,
        /// Addresses that are tried beside it.
        pub others: Vec<Address>,
    }
}

impl Hosts {
    /// The host as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.host.as_str()
    }

    /// To be dialed at this port. An address that the master sees in a private network, or on one machine, goes first:
    /// that is the network of the run.
    #[must_use]
    pub fn at(&self, port: u16) -> Place {
        let seen = self.as_str().parse::<IpAddr>().ok();
        Place {
            target: HostPort::new(self.as_str(), port),
            others: self.others.iter().map(|address| address.ip()).collect(),
            first: seen.filter(|ip| is_private(*ip) || ip.is_loopback()),
            short_segments: false,
        }
    }

    /// All of them with this port, for sentences.
    #[must_use]
    pub fn listed(&self, port: u16) -> String {
        let all = self.others.iter().map(|address| address.ip().to_string());
        let all = std::iter::once(self.as_str().to_owned()).chain(all);
        all.map(|host| HostPort::new(host, port).to_string()).collect::<Vec<_>>().join(" or ")
    }
}

impl From<Host> for Hosts {
    fn from(host: Host) -> Self {
        Self { host, others: Vec::new() }
    }
}

impl fmt::Display for Hosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.host.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tinysockets::wire::decode_exact;

    #[test]
    fn what_means_another_machine_to_everybody_is_malformed() {
        for ip in ["127.0.0.1", "::1", "fe80::1", "0.0.0.0", "::ffff:10.0.0.1"] {
            let mut bytes = Vec::new();
            Address(ip.parse().expect("an address")).encode(&mut bytes);
            assert!(decode_exact::<Address>(&bytes).is_err(), "{ip}");
        }
        assert!(decode_exact::<Address>(&[5, 1, 2, 3, 4]).is_err());
        assert_eq!(decode_exact(&[4, 10, 0, 0, 1]).ok(), Address::new([10, 0, 0, 1].into()));
    }

    #[test]
    fn a_private_network_goes_first_and_the_world_does_not() {
        let hosts = |host: &str| Hosts {
            host: Host::new(host),
            others: vec![Address::new("2a00::1".parse().expect("an address")).expect("global")],
        };
        let first = |host: &str| hosts(host).at(7).first.map(|ip| ip.to_string());
        assert_eq!(first("10.0.0.1").as_deref(), Some("10.0.0.1"));
        assert_eq!(first("127.0.0.1").as_deref(), Some("127.0.0.1"));
        assert_eq!([first("8.8.8.8"), first("a.name")], [None, None]);
        assert_eq!(hosts("8.8.8.8").listed(7), "8.8.8.8:7 or [2a00::1]:7");
    }
}
