//! Where somebody may be reached: under a host, and under further addresses with the same port. In which order these
//! are tried, and which addresses of this machine others could try.
//!
//! The order is that of RFC 8305: the families take turns, IPv6 begins. One address may be known to be better.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    time::Instant,
};

use crate::address::{HostPort, ResolveError, canonical};

/// Most addresses that are tried for one connection. Further addresses of a name or a packet are left out.
pub const MAX_ADDRESSES: usize = 8;

/// The longest segment of a connection that is opened for paths that drop large packets without a word. With headers
/// and options the packet has at most 1260 bytes, and every IPv6 path takes 1280.
pub const SHORT_SEGMENT_BYTES: u32 = 1200;

/// Addresses in the networks that all of the world reaches, of machines that have always answered there: the servers of
/// the root zone. Nothing is sent to them.
const FAR_AWAY: [SocketAddr; 2] = [
    SocketAddr::new(IpAddr::V6(Ipv6Addr::new(0x2001, 0x503, 0xba3e, 0, 0, 0, 2, 0x30)), 53),
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(198, 41, 0, 4)), 53),
];

/// Where somebody may be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The host under which it is known, which may be a name with several addresses, and the port.
    pub target: HostPort,
    /// Further addresses of it, with the same port.
    pub others: Vec<IpAddr>,
    /// The address to begin with, if it is one of all these.
    pub first: Option<IpAddr>,
    /// Connections to it are opened with segments of at most [`SHORT_SEGMENT_BYTES`],
    /// in both directions.
    pub short_segments: bool,
}

impl From<HostPort> for Place {
    fn from(target: HostPort) -> Self {
        Self { target, others: Vec::new(), first: None, short_segments: false }
    }
}

impl Place {
    /// All addresses in the order in which they are to be tried, each once, at most [`MAX_ADDRESSES`]. Names are looked
    /// up in `names` first, and are noted there, so that a slow name server is asked once.
    pub(crate) fn addresses(
        &self,
        names: &mut Names,
        deadline: Instant,
    ) -> Result<Vec<SocketAddr>, ResolveError> {
        let port = self.target.port;
        let found = match names.get(&self.target.host) {
            Some(found) => found.clone(),
            None => {
                let found = self.target.resolve(deadline);
                names.insert(self.target.host.clone(), found.clone());
                found
            }
        };
        let others = self.others.iter().map(|ip| SocketAddr::new(*ip, port));
        let with_port = |mut address: SocketAddr| {
            address.set_port(port);
            address
        };
        let mut found = found?;
        // Others cannot be told of what is reached over a link-local address.
        if !found.iter().all(is_link_local) {
            found.retain(|address| !is_link_local(address));
        }
        Ok(in_turn(found.into_iter().map(with_port).chain(others), self.first))
    }
}

fn is_link_local(address: &SocketAddr) -> bool {
    matches!(address, SocketAddr::V6(address) if address.ip().is_unicast_link_local())
}

/// The addresses that were found for the names of hosts.
pub(crate) type Names = BTreeMap<String, Result<Vec<SocketAddr>, ResolveError>>;

/// The order in which addresses are tried: `first` if it is there, then the families in turn.
fn in_turn(addresses: impl Iterator<Item = SocketAddr>, first: Option<IpAddr>) -> Vec<SocketAddr> {
    let mut families: [Vec<SocketAddr>; 2] = [Vec::new(), Vec::new()];
    for address in addresses.map(canonical) {
        let family = &mut families[usize::from(address.is_ipv4())];
        match first == Some(address.ip()) {
            _ if family.contains(&address) => {}
            true => family.insert(0, address),
            false => family.push(address),
        }
    }
    let begins = first.map_or(0, |first| usize::from(first.to_canonical().is_ipv4()));
    let is_there = |first: IpAddr| families[begins].first().is_some_and(|address| address.ip() == first);
    let begins = if first.is_some_and(is_there) { begins } else { 0 };
    let longest = families[0].len().max(families[1].len());
    let order = (0..longest).flat_map(|at| [begins, 1 - begins].map(|family| families[family].get(at)));
    order.flatten().copied().take(MAX_ADDRESSES).collect()
}

/// The address from which this machine would send to another one, before any translation. No packet is sent.
#[must_use]
pub fn own_address(to: SocketAddr) -> Option<IpAddr> {
    let any: SocketAddr = match to {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(to).ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|me| !me.is_unspecified())
}

/// The addresses of this machine at which others may try a listener, each once: that to which it is `bound`, or those
/// on the ways out to the world, at most one of each family, and `near`, that on the way to somebody. `has_ipv6`:
/// whether it takes connections over IPv6.
#[must_use]
pub fn own_addresses(bound: Option<IpAddr>, has_ipv6: bool, near: Option<IpAddr>) -> Vec<IpAddr> {
    let all: Vec<IpAddr> = match bound.filter(|ip| !ip.is_unspecified()) {
        Some(ip) => vec![ip],
        None => near.into_iter().chain(FAR_AWAY.into_iter().filter_map(own_address)).collect(),
    };
    let mut own = Vec::with_capacity(all.len());
    for ip in all.into_iter().map(|ip| ip.to_canonical()) {
        if may_be_told(ip) && (has_ipv6 || ip.is_ipv4()) && !own.contains(&ip) {
            own.push(ip);
        }
    }
    own
}

/// Whether an address may be told to others as one of this machine: not one that means another machine to each.
#[must_use]
pub fn may_be_told(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => {
            let is_special = ip.is_loopback() || ip.is_link_local() || ip.is_multicast() || ip.is_broadcast();
            !is_special && ip.octets()[0] != 0
        }
        IpAddr::V6(ip) => {
            let is_special = ip.is_loopback() || ip.is_unicast_link_local() || ip.is_multicast();
            !is_special && !ip.is_unspecified()
        }
    }
}

/// Why nobody on another machine can connect to a host, if it is an address in digits of which that is known: one
/// sentence that says what to give instead. The dialer judges loopback addresses and names.
#[must_use]
pub fn why_unusable(host: &str) -> Option<String> {
    let (digits, zone) = host.split_once('%').map_or((host, None), |(digits, zone)| (digits, Some(zone)));
    let ip = digits.parse::<IpAddr>().ok()?.to_canonical();
    let why = match ip {
        _ if ip.is_unspecified() => {
            "stands for all addresses of a machine, to listen on, and not for one to connect to; give one of them"
        }
        IpAddr::V4(ip) if ip.octets()[0] == 0 => "is the address of no machine; give that of one",
        IpAddr::V4(ip) if ip.is_broadcast() => {
            "is the address of all machines of a network; give that of one"
        }
        _ if ip.is_multicast() => "is the address of a multicast group; give that of a machine",
        IpAddr::V6(ip) if ip.is_unicast_link_local() => {
            "is a link-local address: it counts on one link, each machine writes the zone behind `%` in its own way, \
             and peers cannot pass it on; give another address of that machine (unique local fd00::/8, global, or IPv4)"
        }
        _ if zone.is_some() => "has a zone, which only link-local addresses have; leave it out",
        _ => return None,
    };
    Some(format!("{host} {why}"))
}

/// Whether an address is one of a private network: others may have the same one elsewhere.
#[must_use]
pub fn is_private(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        // Also the addresses that providers share among their customers, which overlays like to use.
        IpAddr::V4(ip) => ip.is_private() || (ip.octets()[0] == 100 && ip.octets()[1] & 0xc0 == 64),
        IpAddr::V6(ip) => ip.is_unique_local(),
    }
}

/// Whether somebody that comes from an address may have this machine dial another one: its own, and those that all of
/// the world reaches. Those of private networks only if it comes from such a network or from this machine, and this
/// machine itself only if it comes from here: else it could look behind a firewall through this machine.
#[must_use]
pub fn may_have_dialed(asker: IpAddr, address: IpAddr) -> bool {
    let (asker, address) = (asker.to_canonical(), address.to_canonical());
    let is_from_here = asker.is_loopback();
    match address {
        _ if asker == address => true,
        _ if address.is_loopback() => is_from_here,
        _ if !may_be_told(address) => false,
        _ => !is_private(address) || is_from_here || is_private(asker),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(addresses: &[&str], first: Option<&str>) -> Vec<String> {
        let addresses = addresses.iter().map(|ip| SocketAddr::new(ip.parse().unwrap(), 7));
        let order = in_turn(addresses, first.map(|ip| ip.parse().unwrap()));
        assert!(order.iter().all(|address| address.port() == 7));
        order.iter().map(|address| address.ip().to_string()).collect()
    }

    #[test]
    fn families_take_turns_and_ipv6_begins() {
        assert_eq!(
            order(&["1.0.0.1", "1.0.0.2", "1.0.0.3", "2::1", "2::2"], None),
            ["2::1", "1.0.0.1", "2::2", "1.0.0.2", "1.0.0.3"]
        );
        assert_eq!(order(&["1.0.0.1", "1.0.0.1", "::ffff:1.0.0.1"], None), ["1.0.0.1"], "each once");
        assert_eq!(order(&[], Some("2::1")), [""; 0]);
    }

    #[test]
    fn what_is_known_to_be_better_goes_first_and_the_other_family_is_next() {
        let all = ["1.0.0.1", "1.0.0.2", "2::1", "2::2"];
        assert_eq!(order(&all, Some("1.0.0.2")), ["1.0.0.2", "2::1", "1.0.0.1", "2::2"]);
        assert_eq!(order(&all, Some("2::2")), ["2::2", "1.0.0.1", "2::1", "1.0.0.2"]);
        assert_eq!(order(&all, Some("1.0.0.9")), ["2::1", "1.0.0.1", "2::2", "1.0.0.2"], "nobody's address");
    }

    #[test]
    fn there_is_an_end_to_it() {
        let many: Vec<String> = (0..100).map(|host| format!("1.0.0.{host}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(order(&many, None).len(), MAX_ADDRESSES);
    }

    #[test]
    fn names_are_looked_up_once_and_the_port_is_that_of_the_place() {
        let mut names = Names::new();
        let deadline = Instant::now();
        let known = Ok(vec!["1.2.3.4:1".parse().unwrap()]);
        names.insert("known".to_owned(), known);
        let place = Place { others: vec!["2::1".parse().unwrap()], ..Place::from(HostPort::new("known", 9)) };
        let found = place.addresses(&mut names, deadline).unwrap();
        assert_eq!(found, ["[2::1]:9".parse().unwrap(), "1.2.3.4:9".parse().unwrap()]);
        assert!(Place::from(HostPort::new("1.2.3.4", 9)).addresses(&mut names, deadline).is_ok());
        assert_eq!(names.len(), 2);
    }

    #[test]
    fn some_addresses_mean_another_machine_to_everybody() {
        let told = |ip: &str| may_be_told(ip.parse().unwrap());
        for ip in
            ["127.0.0.1", "0.0.0.0", "169.254.1.1", "224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1"]
        {
            assert!(!told(ip), "{ip}");
        }
        assert!(!told("ff02::1") && !told("::ffff:127.0.0.1"));
        assert!(["10.0.0.1", "8.8.8.8", "fd00::1", "2a00::1"].into_iter().all(told));
    }

    #[test]
    fn a_listener_is_where_it_is_bound_or_where_this_machine_goes_out() {
        let ip = |text: &str| Some(text.parse::<IpAddr>().unwrap());
        let own = |bound: &str, near| own_addresses(ip(bound), true, ip(near));
        assert_eq!(own("10.0.0.1", "10.9.9.9"), [ip("10.0.0.1").unwrap()]);
        assert!(own("127.0.0.1", "10.9.9.9").is_empty());
        for bound in [None, ip("::"), ip("0.0.0.0")] {
            let all = own_addresses(bound, false, ip("10.9.9.9"));
            assert_eq!(all.first(), ip("10.9.9.9").as_ref());
            assert!(all.iter().all(|ip| ip.is_ipv4() && may_be_told(*ip)), "{all:?}");
            assert!(own_addresses(bound, true, ip("::1")).into_iter().all(may_be_told));
        }
    }

    #[test]
    fn nobody_looks_behind_a_firewall_through_this_machine() {
        let may =
            |asker: &str, address: &str| may_have_dialed(asker.parse().unwrap(), address.parse().unwrap());
        for (asker, address) in [
            ("127.0.0.1", "127.0.0.1"),
            ("127.0.0.1", "::1"),
            ("::ffff:127.0.0.1", "10.0.0.1"),
            ("10.0.0.1", "192.168.0.7"),
            ("10.0.0.1", "8.8.8.8"),
            ("8.8.8.8", "8.8.8.8"),
            ("8.8.8.8", "2a00::1"),
            ("169.254.7.7", "169.254.7.7"),
        ] {
            assert!(may(asker, address), "{asker} {address}");
        }
        for (asker, address) in [
            ("10.0.0.1", "127.0.0.1"),
            ("10.0.0.1", "::ffff:127.0.0.1"),
            ("10.0.0.1", "0.0.0.0"),
            ("10.0.0.1", "169.254.169.254"),
            ("127.0.0.1", "169.254.169.254"),
            ("fe80::1", "fe80::2"),
            ("8.8.8.8", "10.0.0.1"),
            ("8.8.8.8", "fd00::1"),
            ("8.8.8.8", "::"),
            ("8.8.8.8", "224.0.0.1"),
        ] {
            assert!(!may(asker, address), "{asker} {address}");
        }
    }

    #[test]
    fn an_address_that_nobody_can_connect_to_is_refused_with_what_to_give_instead() {
        for (host, reason) in [
            ("0.0.0.0", "to listen on"),
            ("::", "to listen on"),
            ("::ffff:0.0.0.0", "to listen on"),
            ("0.0.0.9", "no machine"),
            ("255.255.255.255", "all machines"),
            ("224.0.0.1", "multicast"),
            ("ff02::1%eth0", "multicast"),
            ("fe80::1", "link-local"),
            ("fe80::1%eth0", "link-local"),
            ("fd00::1%eth0", "leave it out"),
        ] {
            let text = why_unusable(host).unwrap_or_default();
            assert!(text.starts_with(host) && text.contains(reason), "{host}: {text}");
        }
        for host in ["127.0.0.1", "::1", "10.0.0.1", "169.254.1.1", "fd00::1", "2a00::1", "name.local"] {
            assert_eq!(why_unusable(host), None);
        }
    }

    #[test]
    fn a_link_local_address_of_a_name_is_left_out_beside_others() {
        let mut names = Names::new();
        let found = ["[fe80::1%2]:1", "10.0.0.1:1"].map(|address| address.parse().unwrap());
        names.insert("both".to_owned(), Ok(found.to_vec()));
        names.insert("only".to_owned(), Ok(found[..1].to_vec()));
        let mut of =
            |name| Place::from(HostPort::new(name, 1)).addresses(&mut names, Instant::now()).unwrap();
        assert_eq!((of("both"), of("only")), (found[1..].to_vec(), found[..1].to_vec()));
    }

    #[test]
    fn private_networks_are_known() {
        let private = |ip: &str| is_private(ip.parse().unwrap());
        assert!(["10.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1", "fd00::1"].into_iter().all(private));
        assert!(!["172.32.0.1", "100.128.0.1", "8.8.8.8", "2a00::1"].into_iter().any(private));
    }

    #[test]
    fn this_machine_sends_to_itself_from_itself() {
        let here: SocketAddr = "127.0.0.1:9".parse().unwrap();
        assert_eq!(own_address(here), Some(here.ip()));
    }
}
