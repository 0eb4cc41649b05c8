//! The differences between runs. Each run switches some faults fully off and weighs the others differently: a uniform
//! mixture of all faults hides those that need quiet elsewhere.

use crate::rng::Rng;

/// Milliseconds of virtual time.
pub(crate) const MS: u64 = 1_000;

/// How much of the model a run has. Parts that came later draw from numbers of their own, so that a seed stays the run
/// that it always was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Model {
    /// Only the faults that were there first.
    First,
    /// Those that came later, too.
    Strikes,
    /// Clients connect with each other beside the ring.
    Mesh,
    /// There are large operations, too, and callers that choose a schedule.
    Large,
    /// Callers have limits for all of their calls, too.
    Limits,
    /// Shared state cannot be fetched from some processes, or by some.
    State,
    /// There are collectives of all kinds.
    Kinds,
    /// Members lend their state, and newcomers fetch it before they are let in.
    Ahead,
    /// When the connection of a peer ends, the master keeps its place for a while.
    Away,
    /// Nobody can dial some processes.
    Outbound,
    /// Some masters have a relay for those.
    Relay,
    /// Everything: small operations begin early.
    Early,
}

/// Faults that a run may inject, in the order of [`Swarm::fault_weights`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A process ends; its connections are closed.
    Die,
    /// A host vanishes without a word.
    Vanish,
    /// A process stops and goes on later.
    Pause,
    /// The link between a client and the master delivers nothing for a while.
    Stall,
    /// A control connection breaks while both ends live.
    Cut,
    /// A peer leaves on purpose.
    Leave,
    /// A new process, or one that was there before, connects.
    Join,
    /// Connections from one process to another cannot be built for a while.
    Block,
    /// An established edge breaks.
    BreakEdge,
    /// The loop of the master stands still.
    MasterGap,
    /// A client that sends anything connects.
    Hostile,
}

pub(crate) const FAULTS: [Fault; 11] = [
    Fault::Die,
    Fault::Vanish,
    Fault::Pause,
    Fault::Stall,
    Fault::Cut,
    Fault::Leave,
    Fault::Join,
    Fault::Block,
    Fault::BreakEdge,
    Fault::MasterGap,
    Fault::Hostile,
];

/// Faults that came later, in the order of [`Swarm::strike_weights`]. They are drawn from numbers of their own, so that
/// a seed that has none of them is the run that it always was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Strike {
    /// Nothing passes from one process to another, in one direction, while both live.
    CutData,
    /// Nothing that a client sends reaches the master.
    Unheard,
    /// Nothing that the master sends reaches a client.
    Deaf,
    /// A peer moves its data very slowly, or its application computes for long.
    Slow,
    /// A process connects with the identity of a peer that lives.
    Twin,
    /// A peer registers a second time on its connection.
    Twice,
    /// A caller is in `update_topology` while the others reduce or sync.
    WrongCall,
}

pub(crate) const STRIKES: [Strike; 7] = [
    Strike::CutData,
    Strike::Unheard,
    Strike::Deaf,
    Strike::Slow,
    Strike::Twin,
    Strike::Twice,
    Strike::WrongCall,
];

/// Choices for one run.
#[derive(Debug, Clone)]
pub(crate) struct Swarm {
    pub(crate) slots: usize,
    pub(crate) groups: u64,
    pub(crate) min_world: u32,
    pub(crate) tags: u64,
    /// Delay of every message, at least and at most, in microseconds.
    pub(crate) delay: (u64, u64),
    /// Percentage of messages that take up to `spike` longer.
    pub(crate) spike_percent: u64,
    pub(crate) spike: u64,
    /// Time between two faults, at most.
    pub(crate) fault_gap: u64,
    pub(crate) fault_weights: [u64; FAULTS.len()],
    /// Length of the first phase.
    pub(crate) fault_time: u64,
    /// Percentages per opportunity.
    pub(crate) mismatch: u64,
    pub(crate) give_up: u64,
    /// Small contributions that go out before all have voted.
    pub(crate) early: u64,
    pub(crate) diverge: u64,
    pub(crate) fetch_failure: u64,
    pub(crate) corrupt: u64,
    /// Peers vote send-only and, newcomers, receive-only.
    pub(crate) strategies: bool,
    /// Size of the world that peers wait for; 0 for never.
    pub(crate) wait_for_world: u32,
    /// Topology votes are withdrawn after a random time up to this; 0 for never.
    pub(crate) topology_deadline: u64,
    /// Percentage of the other calls that have a limit.
    pub(crate) limits: u64,
    pub(crate) tag_history: usize,
    /// The loop of the master reads for up to this long before the master settles, in microseconds; 0: after each
    /// input.
    pub(crate) turn: u64,
    /// Longest time that an application computes.
    pub(crate) think: u64,
    /// Time after which a straggler is dropped, far longer than any application computes; 0 for never.
    pub(crate) straggler: u64,
    pub(crate) strike_weights: [u64; STRIKES.len()],
    /// Time between two strikes, at most.
    pub(crate) strike_gap: u64,
    /// A dropped process that lives connects again by itself.
    pub(crate) reconnects: bool,
    /// Calls are mismatched in all ways, not only in the count of elements.
    pub(crate) odd_calls: bool,
    /// Percentage of attempts that something in a process stops.
    pub(crate) local: u64,
    /// Clients report an edge on which nobody dials them. The library leaves that to the dialing end.
    pub(crate) inbound_reports: bool,
    /// The ring is optimised once in this many epochs of the world; 0 for never.
    pub(crate) optimize_every: u64,
    /// Longest time that data takes beyond the usual fraction of a second.
    pub(crate) transfer: u64,
    /// Clients connect the edges beside the ring.
    pub(crate) mesh: bool,
    /// The master sees all clients on one host.
    pub(crate) one_host: bool,
    /// Percentage of operations that are large, or for which the callers choose a schedule.
    pub(crate) large: u64,
    /// Percentage of processes whose port of shared state is closed, and of those that can fetch from nobody.
    pub(crate) state_faults: u64,
    /// Percentage of operations that are no all-reduces.
    pub(crate) kinds: u64,
    /// Percentage of committed syncs after which a client lends, and of newcomers that want it; 0 for never.
    pub(crate) lend: u64,
    pub(crate) ahead: u64,
    /// How many ends of connections, in percent, may be followed by another one, for all that the master knows.
    pub(crate) away: u64,
    /// Percentage of processes that nobody can dial.
    pub(crate) hidden: u64,
    /// The master has a relay, and so there may be any number of those.
    pub(crate) relay: bool,
    /// Processes let the master find out whether others can dial them.
    pub(crate) is_tested: bool,
}

impl Swarm {
    pub(crate) fn new(rng: &mut Rng) -> Self {
        let mut weights = [0; FAULTS.len()];
        for weight in &mut weights {
            if rng.percent(45) {
                *weight = [1, 3, 10, 30][rng.below(4) as usize];
            }
        }
        let mut sometimes = |percent: u64, low: u64, high: u64| {
            let value = rng.range(low, high);
            if rng.percent(percent) { value } else { 0 }
        };
        let wait_for_world = sometimes(25, 2, 5) as u32;
        let slots = sometimes(100, 1, 7);
        Self {
            slots: slots as usize,
            groups: sometimes(100, 1, 3),
            min_world: sometimes(30, 1, 2) as u32 + 1,
            tags: sometimes(100, 1, 4),
            delay: (sometimes(100, 10, 2_000), sometimes(100, 2_000, 60_000)),
            spike_percent: sometimes(40, 1, 10),
            spike: sometimes(100, 50 * MS, 1_500 * MS),
            fault_gap: sometimes(100, 100 * MS, 4_000 * MS),
            fault_weights: weights,
            fault_time: sometimes(100, 5_000 * MS, 40_000 * MS),
            mismatch: sometimes(20, 1, 20),
            give_up: sometimes(25, 1, 20),
            early: 0,
            diverge: sometimes(40, 1, 40),
            fetch_failure: sometimes(25, 1, 50),
            corrupt: sometimes(20, 1, 15),
            strategies: sometimes(30, 1, 1) == 1,
            // More than there are would never come.
            wait_for_world: wait_for_world.min(slots as u32),
            topology_deadline: if wait_for_world > 0 {
                8_000 * MS
            } else {
                sometimes(30, 500 * MS, 8_000 * MS)
            },
            tag_history: sometimes(100, 1, 6) as usize,
            turn: 0,
            think: sometimes(100, 0, 400 * MS),
            limits: 0,
            straggler: 0,
            strike_weights: [0; STRIKES.len()],
            strike_gap: 0,
            reconnects: false,
            odd_calls: false,
            local: 0,
            transfer: 0,
            optimize_every: 0,
            inbound_reports: true,
            mesh: false,
            one_host: false,
            large: 0,
            state_faults: 0,
            kinds: 0,
            lend: 0,
            ahead: 0,
            away: 0,
            hidden: 0,
            relay: false,
            is_tested: false,
        }
    }

    /// One group that is large enough for a mesh, edges on which nothing passes, and little else: among all other
    /// faults a mesh seldom stands for long.
    pub(crate) fn favour_mesh(&mut self, rng: &mut Rng) {
        (self.slots, self.groups, self.tag_history) = (rng.range(4, 7) as usize, 1, 6);
        self.wait_for_world = self.wait_for_world.min(4);
        let rare = [Fault::Pause, Fault::Join, Fault::Block, Fault::BreakEdge, Fault::MasterGap];
        for (fault, weight) in FAULTS.iter().zip(&mut self.fault_weights) {
            *weight = if rare.contains(fault) { (*weight).min(3) } else { 0 };
        }
        for (strike, weight) in STRIKES.iter().zip(&mut self.strike_weights) {
            *weight = if *strike == Strike::CutData { 10 } else { 0 };
        }
        self.fault_gap = rng.range(2_000 * MS, 10_000 * MS);
        self.strike_gap = rng.range(2_000 * MS, 15_000 * MS);
        self.fault_time = rng.range(20_000 * MS, 120_000 * MS);
    }

    /// Adds what came later.
    pub(crate) fn extend(&mut self, rng: &mut Rng) {
        for weight in &mut self.strike_weights {
            if rng.percent(40) {
                *weight = [1, 3, 10][rng.below(3) as usize];
            }
        }
        self.strike_gap = rng.range(300 * MS, 8_000 * MS);
        self.reconnects = rng.percent(60);
        self.odd_calls = rng.percent(50);
        self.local = if rng.percent(20) { rng.range(1, 10) } else { 0 };
        self.transfer = if rng.percent(50) { rng.range(200 * MS, 4_000 * MS) } else { 0 };
    }
}
