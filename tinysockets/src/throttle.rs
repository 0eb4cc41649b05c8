//! How much strangers may ask for: whose connections are taken, and which of them goes first when there are too many.
//!
//! Strangers are counted by networks, /24 for IPv4 and /64 for IPv6: whoever has one address there often has them all.
//! Each network may begin so many connections at once, and then so many each second; one that turns out to be of
//! somebody who belongs to the run does not count. Networks that have begun many share a rate, so that a lot of them
//! together cannot take all of the processor either. Pure: told the time, no input or output.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv6Addr},
    time::Instant,
};

use crate::bucket::{Bucket, Rate};

/// Connections that a network may begin without anybody who belongs to the run.
const PER_NETWORK: Rate = Rate { burst: 2048.0, per_second: 128.0 };
/// What networks that have begun more than [`FEW`] may begin together.
const OF_BUSY_NETWORKS: Rate = Rate { burst: 4096.0, per_second: 1024.0 };
/// Connections of a network that are nothing special.
const FEW: f64 = 256.0;
/// Networks that are counted each for itself; all others are counted as one.
const MAX_NETWORKS: usize = 1024;
/// Connections of which it is not known whose they are, at one time.
pub const MAX_HALF_OPEN: usize = 384;
/// The same of one network, so that there is room for others.
pub const MAX_HALF_OPEN_OF_NETWORK: usize = 256;
/// Lines of the log about strangers.
pub const LINES_ABOUT_STRANGERS: Rate = Rate { burst: 256.0, per_second: 8.0 };

/// Addresses that are counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Network(u128);

impl Network {
    /// The network of an address.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        let (address, bits) = match address.to_canonical() {
            IpAddr::V4(address) => (address.to_ipv6_mapped(), 96 + 24),
            IpAddr::V6(address) => (address, 64),
        };
        Self(address.to_bits() & (u128::MAX << (128 - bits)))
    }

    /// Stands for those that are not counted each for itself: no address is in it.
    const OTHERS: Self = Self(Ipv6Addr::UNSPECIFIED.to_bits() | 1);
}

/// What each network has left.
#[derive(Debug)]
pub struct Throttle {
    networks: BTreeMap<Network, Bucket<Instant>>,
    busy: Bucket<Instant>,
}

impl Throttle {
    /// Nobody has come yet.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self { networks: BTreeMap::new(), busy: Bucket::full(&OF_BUSY_NETWORKS, now) }
    }

    /// Whether `network` may begin another connection; then it has one less.
    pub fn take(&mut self, network: Network, now: Instant) -> bool {
        let network = self.counted(network, now);
        let bucket = self.networks.entry(network).or_insert_with(|| Bucket::full(&PER_NETWORK, now));
        let is_busy = bucket.left(&PER_NETWORK, now) <= PER_NETWORK.burst - FEW;
        bucket.take(&PER_NETWORK, now, 1.0) && (!is_busy || self.busy.take(&OF_BUSY_NETWORKS, now, 1.0))
    }

    /// A connection that was taken belongs to the run.
    pub fn give_back(&mut self, network: Network) {
        if let Some(bucket) = self.networks.get_mut(&network) {
            bucket.give_back(&PER_NETWORK);
        }
    }

    /// The network as which `network` is counted.
    fn counted(&mut self, network: Network, now: Instant) -> Network {
        if self.networks.len() >= MAX_NETWORKS && !self.networks.contains_key(&network) {
            self.networks.retain(|_, bucket| bucket.left(&PER_NETWORK, now) < PER_NETWORK.burst);
        }
        let has_room = self.networks.len() < MAX_NETWORKS || self.networks.contains_key(&network);
        if has_room { network } else { Network::OTHERS }
    }
}

/// Connections of strangers, by their networks. Their keys count up with the time at which they came.
#[derive(Debug)]
pub struct Crowd<K> {
    all: BTreeMap<K, Network>,
    networks: BTreeMap<Network, BTreeSet<K>>,
}

impl<K: Copy + Ord> Default for Crowd<K> {
    fn default() -> Self {
        Self { all: BTreeMap::new(), networks: BTreeMap::new() }
    }
}

impl<K: Copy + Ord> Crowd<K> {
    /// One more.
    pub fn add(&mut self, key: K, network: Network) {
        self.remove(key);
        self.all.insert(key, network);
        self.networks.entry(network).or_default().insert(key);
    }

    /// One less, if it was there.
    pub fn remove(&mut self, key: K) {
        let Some(network) = self.all.remove(&key) else { return };
        if let Some(keys) = self.networks.get_mut(&network) {
            keys.remove(&key);
            if keys.is_empty() {
                self.networks.remove(&network);
            }
        }
    }

    /// Whether it is there.
    pub fn contains(&self, key: K) -> bool {
        self.all.contains_key(&key)
    }

    /// The oldest of all.
    pub fn first(&self) -> Option<K> {
        self.all.keys().next().copied()
    }

    /// From the oldest to the newest.
    pub fn keys(&self) -> impl Iterator<Item = K> {
        self.all.keys().copied()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Which has to go, if there are more than `total_max`, or more than `network_max` of one network: the oldest of
    /// the network that has most of them.
    pub fn one_too_many(&self, total_max: usize, network_max: usize) -> Option<K> {
        if self.len() <= total_max.min(network_max) {
            return None;
        }
        let most = self.networks.values().max_by_key(|keys| (keys.len(), Reverse(keys.first().copied())))?;
        let is_too_many = self.len() > total_max || most.len() > network_max;
        most.first().copied().filter(|_| is_too_many)
    }
}

impl<K: Copy + Ord> FromIterator<(K, Network)> for Crowd<K> {
    fn from_iter<I: IntoIterator<Item = (K, Network)>>(connections: I) -> Self {
        let mut crowd = Self::default();
        connections.into_iter().for_each(|(key, network)| crowd.add(key, network));
        crowd
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn network(text: &str) -> Network {
        Network::of(text.parse().unwrap())
    }

    #[test]
    fn addresses_are_counted_by_networks() {
        assert_eq!(network("192.0.2.1"), network("192.0.2.255"));
        assert_eq!(network("192.0.2.1"), network("::ffff:192.0.2.9"));
        assert_ne!(network("192.0.2.1"), network("192.0.3.1"));
        assert_eq!(network("2001:db8::1"), network("2001:db8::ffff:1:2:3"));
        assert_ne!(network("2001:db8::1"), network("2001:db8:0:1::1"));
    }

    const BURST: usize = PER_NETWORK.burst as usize;

    #[test]
    fn a_network_that_asks_too_often_waits_and_no_other_one() {
        let now = Instant::now();
        let mut throttle = Throttle::new(now);
        let (noisy, quiet) = (network("192.0.2.1"), network("198.51.100.1"));
        let granted = (0..2 * BURST).filter(|_| throttle.take(noisy, now)).count();
        assert_eq!(granted, BURST);
        assert!(throttle.take(quiet, now));
        let later = now + Duration::from_millis(500);
        let granted = (0..BURST).filter(|_| throttle.take(noisy, later)).count();
        assert_eq!(granted, PER_NETWORK.per_second as usize / 2);
    }

    #[test]
    fn many_busy_networks_share_a_rate_and_a_quiet_one_does_not() {
        let now = Instant::now();
        let mut throttle = Throttle::new(now);
        let noisy: Vec<Network> = (0..100).map(|i| network(&format!("10.0.{i}.1"))).collect();
        let granted = (0..BURST)
            .map(|_| noisy.iter().filter(|network| throttle.take(**network, now)).count())
            .sum::<usize>();
        assert_eq!(granted, 100 * FEW as usize + OF_BUSY_NETWORKS.burst as usize);
        assert!((0..FEW as usize).all(|_| throttle.take(network("192.0.2.1"), now)));
    }

    #[test]
    fn members_of_the_run_do_not_count() {
        let now = Instant::now();
        let (mut throttle, members) = (Throttle::new(now), network("192.0.2.1"));
        for _ in 0..3 * BURST {
            assert!(throttle.take(members, now));
            throttle.give_back(members);
        }
    }

    #[test]
    fn any_number_of_networks_takes_little_memory() {
        let now = Instant::now();
        let mut throttle = Throttle::new(now);
        let stranger = |i: u128| Network::of(Ipv6Addr::from_bits((0x2001 << 112) | (i << 64)).into());
        let granted = (0..1_u128 << 14).filter(|i| throttle.take(stranger(*i), now)).count();
        assert_eq!(granted, MAX_NETWORKS + BURST);
        assert!(throttle.networks.len() <= MAX_NETWORKS + 1);
        let later = now + Duration::from_secs(3600);
        assert!(throttle.take(network("192.0.2.1"), later));
        assert!(throttle.networks.len() <= 2);
    }

    #[test]
    fn the_oldest_of_the_most_crowded_network_goes_first() {
        let (one, other) = (network("192.0.2.1"), network("198.51.100.1"));
        let mut crowd: Crowd<u8> = [(1, one), (2, other), (3, other)].into_iter().collect();
        assert_eq!((crowd.one_too_many(2, 9), crowd.one_too_many(9, 1)), (Some(2), Some(2)));
        assert_eq!(crowd.one_too_many(3, 2), None);
        crowd.remove(2);
        assert_eq!(crowd.one_too_many(1, 9), Some(1));
        assert_eq!(crowd.keys().collect::<Vec<_>>(), [1, 3]);
        [1, 3, 3].into_iter().for_each(|key| crowd.remove(key));
        assert!(crowd.is_empty() && crowd.networks.is_empty() && crowd.one_too_many(0, 0).is_none());
    }
}
