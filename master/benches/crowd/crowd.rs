//! All light peers of one group, driven by one thread.

use super::{
    PATIENCE,
    peer::{News, Peer},
};
use mio::{Events, Interest, Poll, Token};
use pccl_protocol::{C2m, EdgeReport, M2c, Nothing, Purpose, ReachReport, RequestId, VoteTopology};
use std::{
    collections::BTreeMap,
    net::SocketAddr,
    time::{Duration, Instant},
};
use tinysockets::throttle::MAX_HALF_OPEN_OF_NETWORK;

pub(crate) struct Crowd {
    address: SocketAddr,
    poll: Poll,
    pub(crate) peers: BTreeMap<usize, Peer>,
    next: usize,
    requests: u64,
    buffer: Vec<u8>,
    /// Bytes of all ring plans that have arrived.
    pub(crate) plan_bytes: u64,
    slowest_echo: Duration,
    /// `None`: nobody beats by itself.
    pub(crate) next_look_at_beats: Option<Instant>,
}

/// Peers that come at the same time: so few that builds may be measured which let no more wait.
const COME_AT_ONCE: usize = 250;
/// How often it is looked at whose beats are due.
const LOOK_AT_BEATS: Duration = Duration::from_millis(10);

impl Crowd {
    pub(crate) fn new(address: SocketAddr) -> Self {
        let poll = Poll::new().expect("an event queue");
        let (peers, buffer) = (BTreeMap::new(), vec![0; 256 << 10]);
        let (slowest_echo, plan_bytes) = (Duration::ZERO, 0);
        let next_look_at_beats = Some(Instant::now());
        Self {
            address,
            poll,
            peers,
            next: 0,
            requests: 0,
            buffer,
            plan_bytes,
            slowest_echo,
            next_look_at_beats,
        }
    }

    fn members(&self) -> impl Iterator<Item = &Peer> {
        self.peers.values().filter(|peer| !peer.leaving && !peer.gone)
    }

    /// Lets peers in until there are `size` of them.
    pub(crate) fn admit(&mut self, size: usize) {
        loop {
            let have = self.members().count();
            if have >= size {
                return;
            }
            // The first one alone needs nobody's vote.
            let come = if have == 0 { 1 } else { COME_AT_ONCE.min(size - have) };
            self.come(come);
            if have > 0 {
                self.vote_topology();
            }
            let wanted = have + come;
            let is_in = |crowd: &Self| crowd.members().all(|p| p.accepted) && crowd.all_in_ring_of(wanted);
            assert!(self.run(PATIENCE, is_in), "{wanted} peers are not admitted");
        }
    }

    /// This number of peers connect and register.
    pub(crate) fn come(&mut self, some: usize) {
        let mut left = some;
        while left > 0 {
            // A master keeps only a number of connections that have not said whose they are.
            let come = left.min(MAX_HALF_OPEN_OF_NETWORK / 2);
            (0..come).for_each(|_| self.connect());
            left -= come;
            let is_known = |crowd: &Self| crowd.members().all(|peer| peer.me.is_some());
            assert!(self.run(PATIENCE, is_known), "{come} peers are not registered");
        }
    }

    /// All who are in vote to let others in.
    pub(crate) fn vote_topology(&mut self) {
        let request = self.request();
        self.send_accepted(&C2m::VoteTopology(VoteTopology { request, wait_for_world: 0 }));
    }

    /// Names the next question of all.
    pub(crate) fn request(&mut self) -> RequestId {
        self.requests += 1;
        RequestId(self.requests)
    }

    /// All who are in send this.
    pub(crate) fn send_accepted(&mut self, packet: &C2m) {
        let accepted = |peer: &&mut Peer| peer.accepted && !peer.gone && !peer.leaving;
        self.peers.values_mut().filter(accepted).for_each(|peer| peer.send(packet));
    }

    fn connect(&mut self) {
        let key = self.next;
        self.next += 1;
        let spread = Duration::from_millis((key as u64 * 37) % 1000);
        let mut peer = Peer::connect(self.address, spread);
        let both = Interest::READABLE | Interest::WRITABLE;
        self.poll.registry().register(&mut peer.stream, Token(key), both).expect("an event queue");
        self.peers.insert(key, peer);
    }

    /// The first `some` leave, which takes an answer.
    pub(crate) fn leave(&mut self, some: usize) {
        for peer in self.peers.values_mut().filter(|peer| !peer.leaving).take(some) {
            peer.leaving = true;
            peer.send(&C2m::Leave(Nothing {}));
        }
    }

    /// The last `some` close their connections.
    pub(crate) fn die(&mut self, some: usize) {
        for _ in 0..some {
            drop(self.peers.pop_last());
        }
    }

    /// Whether all who left have been let go.
    pub(crate) fn gone(&self) -> bool {
        self.peers.values().all(|peer| !peer.leaving)
    }

    /// Whether all who stay have a ring of this size, and nothing waits for an echo.
    pub(crate) fn all_in_ring_of(&self, size: usize) -> bool {
        self.members().all(|peer| peer.ring.0 == size)
    }

    pub(crate) fn slowest_echo(&self) -> Duration {
        let open = self.members().filter_map(|peer| peer.open.front()).map(|sent| sent.elapsed()).max();
        self.slowest_echo.max(open.unwrap_or_default())
    }

    pub(crate) fn forget_measures(&mut self) {
        (self.slowest_echo, self.plan_bytes) = (Duration::ZERO, 0);
    }

    /// Answers the master until `done`, or for so long.
    pub(crate) fn run(&mut self, longest: Duration, done: impl Fn(&Self) -> bool) -> bool {
        self.run_with(longest, done, |_, _| {})
    }

    /// As [`Crowd::run`]; other packets than those that all peers answer go to `take`.
    pub(crate) fn run_with(
        &mut self,
        longest: Duration,
        done: impl Fn(&Self) -> bool,
        mut take: impl FnMut(&mut Peer, M2c),
    ) -> bool {
        let deadline = Instant::now() + longest;
        let mut events = Events::with_capacity(2048);
        while !done(self) {
            if Instant::now() >= deadline {
                return false;
            }
            self.poll.poll(&mut events, Some(Duration::from_millis(5))).expect("events");
            for event in &events {
                let (key, is_over) = (event.token().0, event.is_read_closed() || event.is_error());
                self.look(key, is_over, &mut take);
                if self.peers.get(&key).is_some_and(|peer| peer.gone) {
                    self.peers.remove(&key);
                }
            }
            self.beats();
        }
        true
    }

    fn beats(&mut self) {
        let now = Instant::now();
        if self.next_look_at_beats.is_none_or(|next| now < next) {
            return;
        }
        self.next_look_at_beats = Some(now + LOOK_AT_BEATS);
        for peer in self.peers.values_mut().filter(|peer| peer.next_beat <= now && !peer.leaving) {
            peer.beat(now);
        }
    }

    /// Reads what a peer has been sent, and answers. Whether its connection `is_over` says the event.
    fn look(&mut self, key: usize, is_over: bool, take: &mut impl FnMut(&mut Peer, M2c)) {
        let Some(peer) = self.peers.get_mut(&key) else { return };
        let mut news = Vec::new();
        peer.receive(&mut self.buffer, is_over, &mut news);
        for news in news {
            match news {
                News::Plan(plan, bytes) => {
                    peer.ring = (plan.members.len(), plan.epoch);
                    self.plan_bytes += bytes as u64;
                    let me = peer.me.expect("registered");
                    peer.post(&C2m::EdgeReport(EdgeReport::all_up(&plan, me, &[Purpose::Ring])));
                }
                News::Packet(M2c::ReachPlan(plan)) => {
                    let (check, epoch, unreached) = (plan.check, peer.ring.1, Vec::new());
                    peer.post(&C2m::ReachReport(ReachReport { check, epoch, unreached }));
                }
                News::Packet(M2c::Registered(registered)) => peer.me = Some(registered.peer),
                News::Packet(M2c::Admitted(_)) => peer.accepted = true,
                News::Packet(M2c::Echo(_)) => {
                    let sent = peer.open.pop_front().expect("an echo answers a beat");
                    self.slowest_echo = self.slowest_echo.max(sent.elapsed());
                }
                News::Packet(M2c::Kicked(reason)) => panic!("a light peer was dropped: {reason}"),
                News::Packet(packet) => take(peer, packet),
            }
        }
        peer.flush();
    }
}
