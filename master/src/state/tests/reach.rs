//! Peers that cannot be reached, or reach nobody: found out among honest peers in virtual time, for many sizes.

use super::harness::{Rig, ip, register};
use crate::state::{ClientKey, Input, PeerPhase, Timestamp};
use pccl_protocol::*;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const DIAL: Duration = Duration::from_millis(limits::DEFAULT_DIAL_TIMEOUT_MS);
/// A connection that can be made, and a refusal.
const SOON: Duration = Duration::from_millis(20);
const BEAT: Duration = Duration::from_secs(1);

#[derive(Debug, Clone)]
enum Event {
    Beat,
    /// A dial of an edge has ended.
    Dialed(PeerId, LinkGeneration, GroupEpoch),
    /// All ports were tried.
    Found(ReachPlan),
    /// The master has tried the listeners.
    Tried,
}

/// The connections that work between peers, and how the others fail.
struct Net {
    /// Whether the first reaches the second.
    reaches: Box<dyn Fn(u64, u64) -> bool>,
    /// Whether others, the master among them, reach the port for state.
    state: Box<dyn Fn(u64) -> bool>,
    /// Whether the master reaches the port for data.
    master: Box<dyn Fn(u64) -> bool>,
    slow: bool,
    /// The peers that never answer a plan of a ring, and whether they do not say either whom they reach.
    mute: BTreeMap<u64, bool>,
}

impl Net {
    fn new(slow: bool, reaches: impl Fn(u64, u64) -> bool + 'static) -> Self {
        Self {
            reaches: Box::new(reaches),
            state: Box::new(|_| true),
            master: Box::new(|_| true),
            slow,
            mute: BTreeMap::new(),
        }
    }

    fn time(&self, works: bool) -> Duration {
        if works || !self.slow { SOON } else { DIAL }
    }

    fn text(&self) -> &'static str {
        if self.slow { "did not answer in time" } else { "connection refused" }
    }
}

/// Honest peers and the master.
struct Model {
    rig: Rig,
    net: Net,
    queue: BTreeMap<(Timestamp, u64), (u64, Event)>,
    sequence: u64,
    up: BTreeSet<(PeerId, PeerId, LinkGeneration)>,
    reported: BTreeMap<u64, GroupEpoch>,
    numbers: BTreeMap<PeerId, u64>,
    kicked: BTreeMap<u64, KickReason>,
    warned: BTreeMap<u64, Vec<String>>,
}

impl Model {
    /// Peers 1 to n; 1 is in first and alone, the others wait for it to let them in.
    fn new(n: u64, net: Net) -> Self {
        let mut model = Self {
            rig: Rig::with(|options| options.require_reachable = true),
            net,
            queue: BTreeMap::new(),
            sequence: 0,
            up: BTreeSet::new(),
            reported: BTreeMap::new(),
            numbers: BTreeMap::new(),
            kicked: BTreeMap::new(),
            warned: BTreeMap::new(),
        };
        (1..=n).for_each(|peer| model.join(peer));
        model
    }

    fn join(&mut self, n: u64) {
        self.rig.register(n, 0);
        self.numbers.insert(self.rig.peers[&n], n);
        self.after(Duration::from_millis(n * 37 % 1000), n, Event::Beat);
        let works = (self.net.master)(n) && (self.net.state)(n);
        self.after(self.net.time(works), n, Event::Tried);
        self.deliver();
    }

    fn after(&mut self, delay: Duration, n: u64, event: Event) {
        self.sequence += 1;
        self.queue.insert((self.rig.now + delay, self.sequence), (n, event));
    }

    /// Runs until `done`, or for that long; returns how long it took.
    fn run(&mut self, time: Duration, done: impl Fn(&Self) -> bool) -> Duration {
        let (start, end) = (self.rig.now, self.rig.now + time);
        while !done(self) && self.rig.now < end {
            let event = self.queue.first_key_value().map(|((at, _), _)| *at);
            let tick = self.rig.state.next_deadline().map(|at| at.max(self.rig.now));
            let next = [event, tick, Some(end)].into_iter().flatten().min().unwrap_or(end);
            self.rig.now = next;
            if event == Some(next) {
                if let Some((_, (n, event))) = self.queue.pop_first()
                    && !self.rig.closed.contains(&n)
                {
                    self.happen(n, event);
                }
            } else if tick == Some(next) {
                self.rig.tick();
                let again = self.rig.state.next_deadline().is_some_and(|at| at <= self.rig.now);
                assert!(!again, "a tick left a deadline behind that is due");
            }
            self.deliver();
        }
        self.rig.now.since(start)
    }

    fn happen(&mut self, n: u64, event: Event) {
        match event {
            Event::Beat => {
                self.after(BEAT, n, Event::Beat);
                self.rig.beat(n, 0);
            }
            Event::Tried => {
                let ports = [(false, (self.net.master)(n)), (true, (self.net.state)(n))];
                let closed = ports.into_iter().filter(|(_, works)| !works);
                let closed = closed.map(|(is_state, _)| (is_state, self.net.text().to_owned())).collect();
                self.rig.input(Input::Reached { peer: self.rig.peers[&n], closed, unix_us: 0 });
            }
            Event::Dialed(to, generation, epoch) => self.dialed(n, to, generation, epoch),
            Event::Found(plan) => {
                let epoch = if self.net.mute.contains_key(&n) { GroupEpoch(0) } else { self.rig.epoch(n) };
                let fails = |target: &ReachTarget| {
                    let to = self.numbers[&target.peer];
                    [
                        (false, (self.net.reaches)(n, to)),
                        (true, (self.net.reaches)(n, to) && (self.net.state)(to)),
                    ]
                    .map(|(is_state, works)| (!works).then_some((target.peer, is_state)))
                };
                let failed = plan.targets.iter().flat_map(fails).flatten();
                let text = Text::new(self.net.text());
                let unreached =
                    failed.map(|(peer, is_state)| Unreached { peer, is_state, text: text.clone() });
                let (check, unreached) = (plan.check, unreached.collect());
                self.rig.send(n, C2m::ReachReport(ReachReport { check, epoch, unreached }));
            }
        }
    }

    fn dialed(&mut self, n: u64, to: PeerId, generation: LinkGeneration, epoch: GroupEpoch) {
        if self.rig.epoch(n) != epoch || self.reported.get(&n) == Some(&epoch) {
            return;
        }
        let from = self.rig.peers[&n];
        if (self.net.reaches)(n, self.numbers[&to]) {
            self.up.insert((from, to, generation));
            return [n, self.numbers[&to]].into_iter().for_each(|end| self.confirm(end));
        }
        let text = Text::new(self.net.text());
        self.reported.insert(n, epoch);
        self.rig.broken(n, EdgeFault { from, to, generation, forgotten: false, text });
    }

    fn confirm(&mut self, n: u64) {
        let Some(plan) = self.rig.plans.get(&n).cloned() else { return };
        let (epoch, me) = (plan.epoch, self.rig.peers[&n]);
        let mut ring = plan.edges_of(me).filter(|(purpose, _)| *purpose == Purpose::Ring);
        let stands = ring.all(|(_, name)| self.up.contains(&(name.from, name.to, name.generation)));
        let is_mute = self.net.mute.contains_key(&n) && plan.members.len() > 1;
        if stands && !is_mute && self.reported.get(&n) != Some(&epoch) {
            self.reported.insert(n, epoch);
            self.rig.up(n, Purpose::Ring);
        }
    }

    /// Every peer acts on what it was sent, until nothing is left.
    fn deliver(&mut self) {
        while let Some((n, mail)) = self.rig.mail.pop_first() {
            for packet in mail {
                match packet {
                    M2c::GroupPlan(plan) => self.take_plan(n, &plan),
                    M2c::ReachPlan(plan) if self.net.mute.get(&n) != Some(&true) => {
                        let works = |target: &ReachTarget| {
                            let to = self.numbers[&target.peer];
                            (self.net.reaches)(n, to) && (self.net.state)(to)
                        };
                        let time = self.net.time(plan.targets.iter().all(works));
                        self.after(time, n, Event::Found(plan));
                    }
                    M2c::Kicked(reason) => drop(self.kicked.insert(n, reason)),
                    M2c::Warning(text) => self.warned.entry(n).or_default().push(text.to_string()),
                    _ => {}
                }
            }
        }
    }

    fn take_plan(&mut self, n: u64, plan: &GroupPlan) {
        let me = self.rig.peers[&n];
        if self.rig.closed.contains(&n) || self.rig.epoch(n) != plan.epoch {
            return;
        }
        let is_mute = self.net.mute.contains_key(&n);
        let next = plan.edges_for(Purpose::Ring).find(|name| name.from == me);
        if let Some(EdgeName { to, generation, .. }) = next
            && !is_mute
            && !self.up.contains(&(me, to, generation))
        {
            let time = self.net.time((self.net.reaches)(n, self.numbers[&to]));
            self.after(time, n, Event::Dialed(to, generation, plan.epoch));
        }
        self.confirm(n);
    }

    fn stands(&self) -> bool {
        let snapshot = self.rig.state.snapshot();
        snapshot.groups.iter().all(|group| group.confirmed)
            && snapshot.peers.iter().all(|peer| peer.phase == PeerPhase::Accepted)
    }

    /// Lets the others in, and returns how long it took until the ring stood.
    fn admit(&mut self) -> Duration {
        self.rig.vote_topology(1, 1, 0);
        self.deliver();
        let time = self.run(Duration::from_secs(120), Self::stands);
        assert!(self.stands(), "no ring: {:?}", self.rig.state.blocked_on());
        time
    }
}

/// Sizes of groups; the time of a test grows with their cube.
fn sizes() -> impl Iterator<Item = u64> {
    let large: &[u64] =
        if std::env::var_os("PCCL_TEST_FULL").is_some() { &[48, 64, 100, 128] } else { &[64] };
    (3..=12).chain([16, 17, 24, 32, 33]).chain(large.iter().copied())
}

/// How many are bad: one, two, a third, half; those that came first, those that came last, or every second one.
fn bad_ones(n: u64) -> Vec<BTreeSet<u64>> {
    let mut all = Vec::new();
    for count in [1, 2, n / 3, n / 2] {
        all.push((1..=count).collect());
        all.push((n - count + 1..=n).collect());
        all.push((0..count).map(|i| 1 + (2 * i) % n).collect());
    }
    all.sort();
    all.dedup();
    if n > 33 {
        // They take long: the bad ones that came first, and every second one.
        all = [1, 2, n / 3, n / 2].map(|count| (1..=count).collect()).into();
        all.push((0..n / 2).map(|i| 1 + 2 * i).collect());
    }
    all
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Inbound,
    Outbound,
}

/// The state that must hold in the end: those who stay, in time, and nobody else; the others were told why.
fn check(model: &Model, time: Duration, expected: &BTreeSet<u64>, what: &str) {
    let stay: BTreeSet<u64> = model.rig.accepted().into_iter().collect();
    assert_eq!(&stay, expected, "{what}");
    assert!(time <= DIAL * 3 + Duration::from_secs(1), "{what}: {time:?}");
    for (n, reason) in &model.kicked {
        assert_eq!(reason.code, KickCode::Unreachable, "{what}: {n} {reason}");
        let text = reason.detail.as_str();
        assert!(text.contains(&format!("(10.0.0.{n})")) && text.contains(":1000"), "{what}: {text}");
    }
}

#[test]
fn the_largest_possible_ring_stands_soon_whoever_cannot_be_reached() {
    for n in sizes() {
        for slow in [true, false] {
            for (kind, bad) in [Kind::Inbound, Kind::Outbound]
                .into_iter()
                .flat_map(|k| bad_ones(n).into_iter().map(move |b| (k, b)))
            {
                let (dead, closed) = (bad.clone(), bad.clone());
                let mut net = Net::new(slow, move |from, to| {
                    !dead.contains(if kind == Kind::Inbound { &to } else { &from })
                });
                net.master = Box::new(move |to| kind == Kind::Outbound || !closed.contains(&to));
                let mut model = Model::new(n, net);
                let time = model.admit();
                let expected = (1..=n).filter(|peer| !bad.contains(peer)).collect();
                check(&model, time, &expected, &format!("{n} peers, slow: {slow}, {kind:?}: {bad:?}"));
                for (peer, reason) in &model.kicked {
                    let said = match kind {
                        Kind::Inbound => "open it or set advertised_host",
                        Kind::Outbound => "reaches nobody",
                    };
                    assert!(reason.detail.as_str().contains(said), "{n} peers, {peer}: {reason}");
                }
                let warned: BTreeSet<u64> = model.warned.keys().copied().collect();
                assert_eq!(warned, if kind == Kind::Inbound { bad } else { BTreeSet::new() });
            }
        }
    }
}

#[test]
fn of_two_halves_the_larger_stays_or_the_one_that_came_first() {
    for n in sizes() {
        for slow in [true, false] {
            let half = n / 2;
            let mut model = Model::new(n, Net::new(slow, move |from, to| (from <= half) == (to <= half)));
            let time = model.admit();
            let expected = if n % 2 == 0 { (1..=half).collect() } else { (half + 1..=n).collect() };
            check(&model, time, &expected, &format!("{n} peers, slow: {slow}"));
        }
    }
}

#[test]
fn a_ring_does_not_wait_for_those_who_never_build_it() {
    for n in sizes() {
        for deaf in [false, true] {
            for bad in bad_ones(n).into_iter().filter(|bad| !bad.contains(&1)) {
                let mut net = Net::new(true, |_, _| true);
                net.mute = bad.iter().map(|peer| (*peer, deaf)).collect();
                let mut model = Model::new(n, net);
                let time = model.admit();
                let stay: BTreeSet<u64> = model.rig.accepted().into_iter().collect();
                let what = format!("{n} peers, deaf: {deaf}, {bad:?}");
                assert_eq!(stay, (1..=n).filter(|peer| !bad.contains(peer)).collect(), "{what}");
                assert!(time <= DIAL * 3 + Duration::from_secs(1), "{what}: {time:?}");
                assert!(model.kicked.values().all(|reason| reason.code == KickCode::RingTimeout), "{what}");
            }
        }
    }
}

/// A running group that is split, or in which a firewall closes: the edges break, and cannot be built again.
#[test]
fn a_ring_that_stood_loses_only_those_who_cannot_be_reached() {
    for n in [3, 4, 5, 8, 11, 12, 16, 32] {
        for split in [false, true] {
            let mut model = Model::new(n, Net::new(true, |_, _| true));
            model.admit();
            assert_eq!(model.rig.accepted().len() as u64, n);
            let half = n / 2;
            model.net.reaches = if split {
                Box::new(move |from, to| (from <= half) == (to <= half))
            } else {
                Box::new(move |_, to| to > 1)
            };
            let ring = model.rig.ring(0);
            for at in 0..ring.len() {
                let (from, to) = (ring[at], ring[(at + 1) % ring.len()]);
                if !(model.net.reaches)(from, to) {
                    let edge = model.rig.edge(from, to);
                    model.up.remove(&(edge.from, edge.to, edge.generation));
                    model.rig.broken(from, edge);
                }
            }
            model.deliver();
            let time = model.run(Duration::from_secs(120), Model::stands);
            let stay: BTreeSet<u64> = model.rig.accepted().into_iter().collect();
            let expected: BTreeSet<u64> = match split {
                false => (2..=n).collect(),
                true if n % 2 == 0 => (1..=half).collect(),
                true => (half + 1..=n).collect(),
            };
            assert_eq!(stay, expected, "{n} peers, split: {split}");
            assert!(time <= DIAL * 3 + Duration::from_secs(1), "{n} peers, split: {split}: {time:?}");
        }
    }
}

#[test]
fn whose_state_nobody_can_fetch_goes_and_is_told() {
    for (slow, first) in [(true, 1), (false, 1), (true, 3)] {
        let mut net = Net::new(slow, |_, _| true);
        net.state = Box::new(move |peer| peer != first);
        let mut model = Model::new(3, net);
        model.admit();
        model.run(DIAL * 3, |model| model.kicked.contains_key(&first) && model.stands());
        assert_eq!(model.rig.accepted(), (1..=3).filter(|n| *n != first).collect::<Vec<u64>>());
        let reason = &model.kicked[&first];
        let text = format!("at 10.0.0.{first}:2000: open it or set advertised_host");
        assert!(reason.code == KickCode::Unreachable && reason.detail.as_str().contains(&text), "{reason}");
        assert!(model.warned[&first][0].starts_with(&format!("nobody reaches you {text}")));
    }
    // Where it is the same for all, it is nobody's fault: there may be no state at all.
    let mut net = Net::new(false, |_, _| true);
    net.state = Box::new(|_| false);
    let mut model = Model::new(4, net);
    model.admit();
    model.run(Duration::from_secs(60), |_| false);
    assert_eq!(model.rig.accepted(), [1, 2, 3, 4]);
}

#[test]
fn of_two_peers_the_one_that_the_master_does_not_reach_either_goes() {
    for bad in [1, 2] {
        let mut net = Net::new(true, move |_, to| to != bad);
        net.master = Box::new(move |to| to != bad);
        let mut model = Model::new(2, net);
        model.admit();
        assert_eq!(model.rig.accepted(), [3 - bad]);
    }
}

#[test]
fn a_master_that_reaches_nobody_drops_nobody() {
    let mut net = Net::new(true, |_, _| true);
    net.master = Box::new(|_| false);
    net.state = Box::new(|_| true);
    let mut model = Model::new(5, net);
    let alone = model.rig.state.blocked_on();
    model.run(DIAL + SOON, |_| false);
    let said = model.rig.state.blocked_on().join("\n");
    assert!(said.contains("at 10.0.0.1:1000: open it or set advertised_host"), "{alone:?} {said}");
    model.admit();
    assert_eq!(model.rig.accepted(), [1, 2, 3, 4, 5]);
    model.run(Duration::from_secs(10), |_| false);
    let said = model.rig.state.blocked_on().join("\n");
    assert!(!said.contains("nobody reaches"), "the ring shows that they are reached: {said}");
}

#[test]
fn nobody_is_dropped_who_stood_still_while_it_was_tried() {
    let mut model = Model::new(4, Net::new(true, |from, to| (from, to) != (4, 1)));
    model.rig.vote_topology(1, 1, 0);
    model.deliver();
    // 2 is stopped from just before the others are asked until they have given it up.
    model.run(Duration::from_millis(3_200), |_| false);
    let (stopped, others) = std::mem::take(&mut model.queue).into_iter().partition(|(_, (n, _))| *n == 2);
    let stopped: BTreeMap<_, _> = stopped;
    model.queue = others;
    model.net.reaches = Box::new(|from, to| (from, to) != (4, 1) && to != 2 && from != 2);
    model.run(Duration::from_millis(5_500), |_| false);
    assert_eq!(model.kicked, BTreeMap::new());
    model.net.reaches = Box::new(|from, to| (from, to) != (4, 1));
    for (_, (n, event)) in stopped {
        model.after(SOON, n, event);
    }
    model.run(Duration::from_secs(30), Model::stands);
    assert_eq!(model.rig.accepted(), [1, 2, 3, 4], "{:?}", model.kicked);
}

/// A peer that was dropped for its ports and comes back again and again does not cost the others a ring each time.
#[test]
fn who_comes_back_with_closed_ports_waits_longer_each_time() {
    waits_longer_each_time(|_, _| register(0));
}

/// Its ports are others each time, as a program has it that asks for any: it is known by who it was.
#[test]
fn who_comes_back_with_other_closed_ports_waits_longer_each_time() {
    let befores: [fn(u64) -> u64; 2] = [|_| 4, |n| n - 1];
    for before in befores {
        waits_longer_each_time(move |rig, n| {
            let previous = rig.peers.get(&before(n)).filter(|_| n > 4);
            let previous = previous.map(|peer| PreviousIdentity { run: RunId(7), peer: *peer, proof: None });
            Register { p2p_port: 1000 + n as u16, previous, ..register(0) }
        });
    }
}

fn waits_longer_each_time(registration: impl Fn(&Rig, u64) -> Register) {
    let mut net = Net::new(true, |_, to| to < 4);
    net.master = Box::new(|to| to < 4);
    let mut model = Model::new(3, net);
    model.admit();
    // One machine, which registers under a new identity each time.
    let come = |model: &mut Model, n: u64| {
        model.rig.input(Input::Connected { client: ClientKey(n), remote: ip(9), local: ip(0) });
        model.rig.send(n, C2m::Register(registration(&model.rig, n)));
        model.numbers.insert(model.rig.peers[&n], n);
        model.after(BEAT, n, Event::Beat);
        model.after(DIAL, n, Event::Tried);
        model.deliver();
    };
    let vote = |model: &mut Model, request: u64| {
        (1..=3).for_each(|n| model.rig.vote_topology(n, request, 0));
        model.deliver();
    };
    for n in [4, 5] {
        come(&mut model, n);
        vote(&mut model, n);
        model.run(Duration::from_secs(30), |model| model.kicked.contains_key(&n));
        assert_eq!(model.kicked[&n].code, KickCode::Unreachable, "{n}");
        model.run(Duration::from_secs(5), Model::stands);
    }
    let epoch = model.rig.epoch(1);
    come(&mut model, 6);
    assert!(model.warned[&6][0].contains("10.0.0.9:100"), "{:?}", model.warned[&6]);
    vote(&mut model, 6);
    model.run(Duration::from_secs(9), |_| false);
    assert_eq!((model.rig.epoch(1), model.rig.phase(6)), (epoch, Some(PeerPhase::Pending)));
    // Then it may try once more.
    model.run(Duration::from_secs(2), |_| false);
    vote(&mut model, 7);
    model.run(Duration::from_secs(20), |model| model.kicked.contains_key(&6));
    assert!(model.rig.epoch(1) > epoch && model.kicked.contains_key(&6));
}
