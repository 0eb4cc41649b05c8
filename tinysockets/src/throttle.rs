//! How much strangers may ask for: whose connections are taken, and which of them goes first when there are too many.
//!
//! Strangers are counted by networks, /24 for IPv4 and /64 for IPv6: somebody with one address there often has them
//! all. IPv6 is counted by blocks of networks as well, /48: somebody with one network there often has all 65,536. Each
//! network may begin a number of connections at once, and then a number each second; one that turns out to be of
//! somebody who belongs to the run does not count. Networks and blocks that have begun many share a rate, so that a lot
//! of them together cannot take all of the processor either. Pure: told the time, no input or output.

use std::{
    collections::{BTreeMap, BTreeSet, hash_map::RandomState},
    hash::BuildHasher,
    net::{IpAddr, Ipv6Addr},
    time::Instant,
};

use crate::bucket::{Bucket, Rate};

/// Connections that a network may begin without anybody who belongs to the run.
const PER_NETWORK: Rate = Rate { burst: 2048.0, per_second: 128.0 };
/// The same for a block of networks.
const PER_BLOCK: Rate = Rate { burst: 4096.0, per_second: 256.0 };
/// Rate that networks share which have begun more than [`FEW`], and blocks which have begun more than
/// [`FEW_OF_BLOCK`].
const OF_BUSY_NETWORKS: Rate = Rate { burst: 4096.0, per_second: 1024.0 };
/// Connections of a network that are nothing special.
const FEW: f64 = 256.0;
/// Connections of a block that are nothing special.
const FEW_OF_BLOCK: f64 = 1024.0;
/// Connections of a block at one time that are nothing special.
const FEW_AT_A_TIME: usize = 32;
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

    /// The block in which it lies: for IPv4 that is itself.
    fn block(self) -> Self {
        if self.is_v4() { self } else { Self(self.0 & (u128::MAX << 80)) }
    }

    fn is_v4(self) -> bool {
        self.0 >> 32 == 0xffff
    }

    /// Stands for those that are not counted each for itself: no address is in it.
    const OTHERS: Self = Self(Ipv6Addr::UNSPECIFIED.to_bits() | 1);
}

/// The rest of the rate of each network.
#[derive(Debug)]
pub struct Throttle {
    networks: Buckets,
    blocks: Buckets,
    busy: Bucket<Instant>,
}

/// Buckets of many networks that are counted each for itself.
#[derive(Debug)]
struct Buckets {
    rate: Rate,
    /// A number of connections that is nothing special.
    few: f64,
    all: BTreeMap<Network, Bucket<Instant>>,
}

impl Buckets {
    fn new(rate: Rate, few: f64) -> Self {
        Self { rate, few, all: BTreeMap::new() }
    }

    /// The one as which `network` is counted.
    fn counted(&mut self, network: Network, now: Instant) -> Network {
        if self.all.len() >= MAX_NETWORKS && !self.all.contains_key(&network) {
            self.all.retain(|_, bucket| bucket.left(&self.rate, now) < self.rate.burst);
        }
        let has_room = self.all.len() < MAX_NETWORKS || self.all.contains_key(&network);
        if has_room { network } else { Network::OTHERS }
    }

    /// Takes one. Whether there was one, and whether it has begun many.
    fn take(&mut self, network: Network, now: Instant) -> (bool, bool) {
        let network = self.counted(network, now);
        let bucket = self.all.entry(network).or_insert_with(|| Bucket::full(&self.rate, now));
        let is_busy = bucket.left(&self.rate, now) <= self.rate.burst - self.few;
        (bucket.take(&self.rate, now, 1.0), is_busy)
    }

    fn give_back(&mut self, network: Network) {
        if let Some(bucket) = self.all.get_mut(&network) {
            bucket.give_back(&self.rate);
        }
    }
}

impl Throttle {
    /// Nobody has come yet.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            networks: Buckets::new(PER_NETWORK, FEW),
            blocks: Buckets::new(PER_BLOCK, FEW_OF_BLOCK),
            busy: Bucket::full(&OF_BUSY_NETWORKS, now),
        }
    }

    /// Whether `network` may begin another connection; then it has one less.
    pub fn take(&mut self, network: Network, now: Instant) -> bool {
        let (may, is_busy) = self.networks.take(network, now);
        // Of IPv4 a block is a network.
        let (may_block, is_busy_block) = match may && !network.is_v4() {
            true => self.blocks.take(network.block(), now),
            false => (true, false),
        };
        let is_busy = is_busy || is_busy_block;
        may && may_block && (!is_busy || self.busy.take(&OF_BUSY_NETWORKS, now, 1.0))
    }

    /// A connection that was taken belongs to the run.
    pub fn give_back(&mut self, network: Network) {
        self.networks.give_back(network);
        self.blocks.give_back(network.block());
    }
}

/// Connections of strangers, by their networks. Their keys count up with the time at which they came.
#[derive(Debug)]
pub struct Crowd<K> {
    all: BTreeMap<K, Network>,
    /// Those that have shown nothing.
    networks: BTreeMap<Network, BTreeSet<K>>,
    /// Those that have shown that they have what opens, if they have not recorded that somewhere.
    opened: BTreeSet<K>,
    /// Lots that nobody foresees.
    lots: Lots,
}

impl<K: Copy + Ord> Default for Crowd<K> {
    fn default() -> Self {
        Self {
            all: BTreeMap::new(),
            networks: BTreeMap::new(),
            opened: BTreeSet::new(),
            lots: Lots { hasher: RandomState::new(), drawn: 0 },
        }
    }
}

impl<K: Copy + Ord> Crowd<K> {
    /// One more.
    pub fn add(&mut self, key: K, network: Network) {
        self.remove(key);
        self.all.insert(key, network);
        self.networks.entry(network).or_default().insert(key);
    }

    /// Its first message is good: it goes after all others.
    pub fn open(&mut self, key: K) {
        if let Some(network) = self.all.get(&key).copied() {
            self.leave_network(key, network);
            self.opened.insert(key);
        }
    }

    /// Whether its first message was good.
    pub fn has_opened(&self, key: K) -> bool {
        self.opened.contains(&key)
    }

    /// One less, if it was there.
    pub fn remove(&mut self, key: K) {
        if let Some(network) = self.all.remove(&key) {
            self.leave_network(key, network);
            self.opened.remove(&key);
        }
    }

    fn leave_network(&mut self, key: K, network: Network) {
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

    /// Which has to go, if there are more than `total_max`, or more than `network_max` of one network that have shown
    /// nothing. Those that have opened go last. Of the others one of the network that has most of them goes, of the
    /// block that has most; if none has many, any: somebody with many networks has most of those connections. Which one
    /// is drawn of the older half: so a newcomer has time to speak, and a crowd that comes fast does not drive out
    /// everybody who takes longer than that.
    pub fn one_too_many(&mut self, total_max: usize, network_max: usize) -> Option<K> {
        if self.len() <= total_max.min(network_max) {
            return None;
        }
        let Some(most) = self.networks.values().max_by_key(|keys| keys.len()) else {
            return (self.len() > total_max).then(|| self.lots.draw(self.opened.iter().copied()))?;
        };
        if most.len() > network_max {
            return self.lots.draw(most.iter().copied());
        }
        if self.len() <= total_max {
            return None;
        }
        let (block, count) = self.most_crowded_block()?;
        if count <= FEW_AT_A_TIME {
            let silent = self.all.keys().filter(|key| !self.opened.contains(key));
            return self.lots.draw(silent.copied());
        }
        let in_block = self.networks.range(block..).take_while(|(network, _)| network.block() == block);
        let (_, most) = in_block.max_by_key(|(_, keys)| keys.len())?;
        self.lots.draw(most.iter().copied())
    }

    /// The block of which most are there that have shown nothing, and how many. Called for each connection of a flood:
    /// networks of one block lie side by side.
    fn most_crowded_block(&self) -> Option<(Network, usize)> {
        let mut most: Option<(Network, usize)> = None;
        let mut now = most;
        for (network, keys) in &self.networks {
            let before = now.filter(|(block, _)| *block == network.block()).map_or(0, |(_, count)| count);
            now = Some((network.block(), before + keys.len()));
            if most.is_none_or(|(_, count)| before + keys.len() > count) {
                most = now;
            }
        }
        most
    }
}

/// Draws lots.
#[derive(Debug)]
struct Lots {
    hasher: RandomState,
    drawn: u64,
}

impl Lots {
    /// One of the first half of them.
    fn draw<T>(&mut self, all: impl Iterator<Item = T> + Clone) -> Option<T> {
        let count = all.clone().count().div_ceil(2) as u64;
        self.drawn += 1;
        let lot = self.hasher.hash_one(self.drawn).checked_rem(count)?;
        all.into_iter().nth(usize::try_from(lot).ok()?)
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
        let stranger = |i: u128| Network::of(Ipv6Addr::from_bits((0x2001 << 112) | (i << 80)).into());
        let granted = (0..1_u128 << 14).filter(|i| throttle.take(stranger(*i), now)).count();
        assert_eq!(granted, MAX_NETWORKS + BURST);
        assert!(throttle.networks.all.len() <= MAX_NETWORKS + 1);
        let later = now + Duration::from_secs(3600);
        assert!(throttle.take(network("192.0.2.1"), later));
        assert!(throttle.networks.all.len() <= 2);
    }

    #[test]
    fn networks_of_one_block_are_counted_together() {
        let now = Instant::now();
        let mut throttle = Throttle::new(now);
        let of_block = |i: usize| network(&format!("2001:db8:5:{i:x}::1"));
        let granted = (0..1 << 14).filter(|i| throttle.take(of_block(i % 1000), now)).count();
        assert_eq!(granted, PER_BLOCK.burst as usize);
        assert!(throttle.take(network("2001:db8:6::1"), now));
    }

    /// How many of these of the second kind are left when `count` of the first kind have come.
    fn left(crowd: &mut Crowd<u32>, honest: &[u32], from: impl Fn(u32) -> Network, count: u32) -> usize {
        for i in 0..count {
            crowd.add(1_000_000 + i, from(i));
            while let Some(key) = crowd.one_too_many(384, 256) {
                crowd.remove(key);
            }
        }
        honest.iter().filter(|key| crowd.contains(**key)).count()
    }

    #[test]
    fn of_too_many_one_of_the_most_crowded_network_goes_first_and_of_many_networks_any() {
        let (one, other) = (network("192.0.2.1"), network("198.51.100.1"));
        let mut crowd: Crowd<u8> = (0..40).map(|i| (i, one)).chain((40..60).map(|i| (i, other))).collect();
        assert!((0..20).all(|_| crowd.one_too_many(59, 99).is_some_and(|key| key < 40)), "the crowded one");
        assert!((0..20).all(|_| crowd.one_too_many(99, 39).is_some_and(|key| key < 40)), "too many of one");
        assert_eq!(crowd.one_too_many(60, 40), None);
        (0..40).for_each(|key| crowd.remove(key));
        let drawn: BTreeSet<u8> = (0..200).filter_map(|_| crowd.one_too_many(19, 99)).collect();
        assert!(drawn.len() > 5 && drawn.iter().all(|key| (40..50).contains(key)), "{drawn:?}");
        assert_eq!(crowd.keys().collect::<Vec<_>>(), (40..60).collect::<Vec<_>>());
        (40..61).for_each(|key| crowd.remove(key));
        assert!(crowd.is_empty() && crowd.networks.is_empty() && crowd.one_too_many(0, 0).is_none());
    }

    #[test]
    fn a_crowd_of_one_block_drives_out_nobody_else() {
        let honest = network("2001:db8:9::1");
        let mut crowd: Crowd<u32> = (0..8).map(|key| (key, honest)).collect();
        let of_block = |i: u32| network(&format!("2001:db8:5:{:x}::1", i % 1000));
        assert_eq!(left(&mut crowd, &[0, 1, 2, 3, 4, 5, 6, 7], of_block, 2000), 8);
    }

    #[test]
    fn a_newcomer_has_time_to_speak_before_a_crowd_of_many_networks_drives_it_out() {
        let networks = |i: u32| network(&format!("10.{}.{}.1", i / 200, i % 200));
        let mut crowd: Crowd<u32> = (0..384).map(|i| (i, networks(i))).collect();
        let honest: Vec<u32> = (1000..1008).collect();
        honest.iter().for_each(|key| crowd.add(*key, network("192.0.2.1")));
        assert_eq!(left(&mut crowd, &honest, networks, 384 / 2 - 8), 8);
    }

    #[test]
    fn a_crowd_of_many_networks_drives_out_nobody_who_has_opened_and_others_by_lot() {
        let honest = network("192.0.2.1");
        let networks = |i: u32| network(&format!("10.{}.{}.1", i % 400 / 200, i % 200));
        let mut crowd: Crowd<u32> = (0..8).map(|key| (key, honest)).collect();
        (0..4).for_each(|key| crowd.open(key));
        assert_eq!(left(&mut crowd, &[0, 1, 2, 3], networks, 2000), 4, "who has opened goes last");
        // After half as many more as there is room for, some of the others are there: the oldest would all have gone.
        let mut survived = 0;
        for _ in 0..20 {
            let mut crowd: Crowd<u32> = (0..8).map(|key| (key, honest)).collect();
            survived += left(&mut crowd, &[0, 1, 2, 3, 4, 5, 6, 7], networks, 384 + 192 - 8);
        }
        assert!((20..110).contains(&survived), "{survived} of 160 outlive 192 more, 59 on average");
        // When nobody else is left, one of those that have opened goes.
        let mut crowd: Crowd<u32> = (0..8).map(|key| (key, honest)).collect();
        (0..8).for_each(|key| crowd.open(key));
        assert!(crowd.one_too_many(7, 7).is_some_and(|key| crowd.has_opened(key)));
        assert_eq!(crowd.one_too_many(8, 7), None);
    }
}
