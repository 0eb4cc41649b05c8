//! A master, peers, and the breakable network between them.

use crate::{
    fleet::{Fleet, config},
    lab::{self, Lab},
    network::{Network, Node},
    proxies::Proxies,
};
use pccl::MasterConfig;
use std::time::Duration;

/// Whether the time-outs are the library's defaults, and the bounds exact.
pub(crate) fn full() -> bool {
    std::env::var_os("PCCL_FAULTS_FULL").is_some_and(|value| value != "0")
}

/// The time-outs of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    pub(crate) peer: Duration,
    pub(crate) edge: Duration,
    pub(crate) dial: Duration,
}

impl Times {
    /// Those for this run of the tests.
    pub(crate) fn new() -> Self {
        let ms = Duration::from_millis;
        if full() || lab::program().is_some() {
            Self { peer: ms(10_000), edge: ms(4000), dial: ms(3000) }
        } else {
            Self { peer: ms(3000), edge: ms(1000), dial: ms(800) }
        }
    }

    /// As [`Times::new`], for edges that are slow and shall not count as broken, on a busy machine neither.
    pub(crate) fn with_slow_edges() -> Self {
        Self { edge: Duration::from_secs(10), ..Self::new() }
    }

    /// Time in which the others have to have completed the next operation.
    pub(crate) fn bound(&self) -> Duration {
        self.peer + Duration::from_secs(1)
    }

    /// Long enough for the peer to be suspected, too short for it to be dropped.
    pub(crate) fn short_stop(&self) -> Duration {
        self.peer * 2 / 3
    }

    fn config(&self) -> MasterConfig {
        MasterConfig { peer_timeout: self.peer, edge_timeout: self.edge, ..config() }
    }
}

/// See the module's documentation. Places in the fleet are numbers of the peers, as long as nobody was removed.
pub(crate) struct Arena {
    // In this order: the peers go before the network that they are in.
    pub(crate) fleet: Fleet,
    pub(crate) network: Network,
    pub(crate) times: Times,
}

impl Arena {
    /// A world of `members`.
    pub(crate) fn new(times: Times, members: usize) -> Self {
        match lab::program() {
            Some(program) => {
                let network = Network::Lab(Lab::new(&program, times.peer, crate::run_key().as_ref()));
                Self::around(Fleet::at(&Lab::master_address()), network, times, members)
            }
            None => Self::on_loopback(times, members),
        }
    }

    /// A world of `members` behind proxies, wherever the others are.
    pub(crate) fn on_loopback(times: Times, members: usize) -> Self {
        let fleet = Fleet::empty(times.config());
        let network = Network::Proxies(Proxies::new(&fleet.address));
        Self::around(fleet, network, times, members)
    }

    /// A world behind proxies, of a member in each of these sites, once they reduce over sites.
    pub(crate) fn in_sites(times: Times, sites: &[&str]) -> Self {
        let fleet = Fleet::empty(times.config());
        let network = Network::Proxies(Proxies::new(&fleet.address));
        let mut arena = Self { fleet, network, times };
        for (member, site) in sites.iter().enumerate() {
            arena.let_in(member, &[format!("site={site}")]);
        }
        arena.fleet.await_schedule("sites");
        arena
    }

    /// The same without a run key, for edges so slow that a record, which counts when it is whole, takes longer than an
    /// edge may stand still by these times.
    pub(crate) fn insecure_on_loopback(times: Times, members: usize) -> Self {
        let fleet = Fleet::empty(MasterConfig { run_key: None, ..times.config() });
        let network = Network::Proxies(Proxies::new(&fleet.address));
        Self::around(fleet, network, times, members)
    }

    /// A world of `members` behind proxies, whose master is a process of its own.
    pub(crate) fn with_master_process(times: Times, members: usize) -> Self {
        let fleet = Fleet::with_master_process(times.config(), 0, &[]);
        let network = Network::Proxies(Proxies::new(&fleet.address));
        Self::around(fleet, network, times, members)
    }

    fn around(fleet: Fleet, network: Network, times: Times, members: usize) -> Self {
        let mut arena = Self { fleet, network, times };
        for member in 0..members {
            arena.let_in(member, &[]);
        }
        arena
    }

    /// One more member, after those before it: so each unknown identity is that of one peer.
    fn let_in(&mut self, member: Node, settings: &[String]) {
        self.spawn_with(settings);
        self.fleet[member].send("connect");
        self.fleet.peers[..member].iter_mut().for_each(|peer| peer.send(format!("wait {} 0", member + 1)));
        for answer in self.fleet.answers() {
            answer.good();
        }
        self.meet();
    }

    /// Starts a process that does not connect yet.
    pub(crate) fn spawn(&mut self) -> Node {
        self.spawn_with(&[])
    }

    fn spawn_with(&mut self, settings: &[String]) -> Node {
        let node = self.fleet.len();
        let dial = format!("dial-timeout-ms={}", self.times.dial.as_millis());
        self.network.spawn(&mut self.fleet, node, &[settings, &[dial]].concat());
        assert_eq!((self.fleet.len(), self.fleet[node].index), (node + 1, node));
        node
    }

    /// One more peer is started and let in by those at `places`. Returns its number.
    pub(crate) fn join(&mut self, places: &[Node]) -> Node {
        let node = self.spawn();
        let wait = format!("wait {} 0", places.len() + 1);
        places.iter().for_each(|place| self.fleet[*place].send(&wait));
        self.fleet[node].send("connect");
        for place in places.iter().chain([&node]) {
            self.fleet[*place].answer().good();
        }
        let answer = self.fleet[node].ask("world").good();
        let id = answer.ring()[answer.number("rank")].clone();
        self.fleet[node].id = Some(id);
        self.network.introduce(&self.fleet[node]);
        node
    }

    /// Learns who is who.
    pub(crate) fn meet(&mut self) {
        self.fleet.meet();
        for peer in &self.fleet.peers {
            self.network.introduce(peer);
        }
    }

    /// Numbers of the first `members` in ring order.
    pub(crate) fn ring(&mut self, members: usize) -> Vec<Node> {
        let ring = self.fleet[0].ask("world").good().ring();
        let place =
            |id: &String| self.fleet.peers[..members].iter().position(|peer| peer.id.as_ref() == Some(id));
        ring.iter().map(|id| place(id).expect("a member")).collect()
    }
}
