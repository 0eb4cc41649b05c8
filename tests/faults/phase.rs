//! The phases: how each is brought about, and which peer stands still in it until the fault has been injected.

use crate::{arena::Arena, fleet::sync_command, network::Node};
use pccl_tests::spec::{Spec, StateSpec};

/// The call that the run is in when the fault strikes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// A newcomer has registered and waits.
    Joining,
    /// A member dials the newcomer behind it.
    Setup,
    /// The others have voted to begin.
    Voting,
    /// The first half of the data.
    ReduceScatter,
    /// The second half.
    Gather,
    /// The peer has everything and votes to complete.
    Completing,
    /// It hashes its shared state.
    Hashing,
    /// It gives its shared state to another one.
    Transfer,
    /// A small all-reduce goes directly; the edge that a network fault concerns is beside the ring.
    Direct,
    /// A large all-reduce goes by pairwise exchange, over that edge, too: contributions arrive.
    Pairwise,
    /// Results arrive.
    PairwiseResult,
    /// Nobody is in a call.
    Idle,
}

impl Phase {
    pub(crate) const ALL: [Self; 12] = [
        Self::Joining,
        Self::Setup,
        Self::Voting,
        Self::ReduceScatter,
        Self::Gather,
        Self::Completing,
        Self::Hashing,
        Self::Transfer,
        Self::Direct,
        Self::Pairwise,
        Self::PairwiseResult,
        Self::Idle,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Joining => "joining",
            Self::Setup => "p2p set-up",
            Self::Voting => "voting",
            Self::ReduceScatter => "red.-scat.",
            Self::Gather => "gather",
            Self::Completing => "completing",
            Self::Hashing => "hashing",
            Self::Transfer => "transfer",
            Self::Direct => "direct",
            Self::Pairwise => "pairwise",
            Self::PairwiseResult => "pw. result",
            Self::Idle => "idle",
        }
    }

    /// Whether the fourth peer only joins in this phase.
    pub(crate) const fn has_newcomer(self) -> bool {
        matches!(self, Self::Joining | Self::Setup)
    }

    /// Whether the phase is a part of an all-reduce.
    pub(crate) const fn is_reduce(self) -> bool {
        matches!(self, Self::Voting | Self::ReduceScatter | Self::Gather | Self::Completing)
            || self.uses_mesh()
    }

    /// Whether the phase is a part of an all-reduce over the mesh.
    pub(crate) const fn uses_mesh(self) -> bool {
        matches!(self, Self::Direct) || self.is_pairwise()
    }

    /// Whether the phase is a part of a pairwise exchange.
    pub(crate) const fn is_pairwise(self) -> bool {
        matches!(self, Self::Pairwise | Self::PairwiseResult)
    }

    /// The callers' choice of the schedule, as the last word of their command.
    pub(crate) const fn schedule(self) -> &'static str {
        if self.is_pairwise() { "pairwise" } else { "" }
    }

    /// Elements that are reduced: two frames per chunk, or the most that four peers exchange directly, but for one.
    pub(crate) const fn elements(self) -> usize {
        if matches!(self, Self::Direct) { 16_000 } else { 600_000 }
    }

    /// The line of the log at which the victim stands still.
    const fn point(self) -> &'static str {
        match self {
            Self::Joining => "registered as peer",
            Self::Setup => "dialing",
            Self::Voting => "to master: Initiate",
            Self::ReduceScatter => "frame begins, stage 1 of 6",
            Self::Gather => "frame begins, stage 4 of 6",
            Self::Completing => "to master: Complete",
            Self::Hashing => "hashing",
            Self::Transfer => "state request for",
            Self::Direct => "begins early",
            Self::Pairwise => "frame begins, a contribution",
            Self::PairwiseResult => "frame begins, a result",
            Self::Idle => "",
        }
    }
}

/// The tasks of the peers in a phase that has begun.
#[derive(Debug)]
pub(crate) struct Scene {
    /// The peer that stands still.
    pub(crate) victim: Node,
    /// The peer at the other end of the edge that a network fault concerns: what flows from the victim to it.
    pub(crate) next: Node,
    /// The inputs of the peers, in a phase of an all-reduce.
    pub(crate) spec: Spec,
    /// The call of each peer, to be made again where a sync failed.
    pub(crate) syncs: Vec<String>,
    /// The state that all of them have to hold after the sync.
    pub(crate) wanted: Vec<StateSpec>,
}

/// Brings the phase about, up to the point where the victim stands still. `loses`: the others will lose the victim.
pub(crate) fn begin(arena: &mut Arena, phase: Phase, spec: Spec, loses: bool) -> Scene {
    let members = arena.fleet.len();
    let ring = arena.ring(members);
    let mut scene = Scene { victim: ring[1], next: ring[2], spec, syncs: Vec::new(), wanted: Vec::new() };
    // A peer that waits for four peers would wait for ever if one of them is lost.
    let admit = if loses { "topology" } else { "wait 4 0" };
    match phase {
        Phase::Joining => {
            (scene.victim, scene.next) = (arena.spawn(), ring[0]);
            arm(arena, &scene, phase);
            arena.fleet[scene.victim].send("connect");
            arena.fleet[scene.victim].await_stop();
            arena.fleet.peers[..members].iter_mut().for_each(|peer| peer.send(admit));
        }
        Phase::Setup => {
            (scene.victim, scene.next) = (ring[members - 1], arena.spawn());
            arm(arena, &scene, phase);
            arena.fleet[scene.next].send("connect");
            // Its ports have been tried: it is let in by the next votes.
            arena.fleet[scene.next].await_log("admission waits for the topology vote");
            arena.fleet.peers[..members].iter_mut().for_each(|peer| peer.send(admit));
            arena.fleet[scene.victim].await_stop();
        }
        Phase::Voting | Phase::ReduceScatter | Phase::Gather | Phase::Completing => {
            arm(arena, &scene, phase);
            arena.fleet.send(format!("reduce {spec} 7 20"));
            arena.fleet[scene.victim].await_stop();
        }
        Phase::Direct | Phase::Pairwise | Phase::PairwiseResult => {
            arena.fleet.await_mesh();
            (scene.victim, scene.next) = (ring[2], ring[0]);
            arm(arena, &scene, phase);
            arena.fleet.send(format!("reduce {spec} 7 20 {}", phase.schedule()));
            arena.fleet[scene.victim].await_stop();
        }
        Phase::Hashing | Phase::Transfer => begin_sync(arena, phase, &ring, &mut scene),
        Phase::Idle => {
            arena.fleet[scene.victim].stop();
            arena.fleet[scene.victim].await_stop();
        }
    }
    scene
}

fn arm(arena: &mut Arena, scene: &Scene, phase: Phase) {
    arena.fleet[scene.victim].ask(format!("trap stop 1 {}", phase.point())).good();
}

fn begin_sync(arena: &mut Arena, phase: Phase, ring: &[Node], scene: &mut Scene) {
    let count = scene.spec.count;
    let new = vec![StateSpec::new("a", count, 1), StateSpec::new("b", 1000, 2)];
    let old = vec![StateSpec::new("a", count, 3), StateSpec::new("b", 1000, 2)];
    // In a transfer two have the newer state and two fetch it, each from another one first.
    let is_old = |node: Node| phase == Phase::Transfer && (node == ring[2] || node == ring[3]);
    let command = |node: Node| match is_old(node) {
        true => sync_command(0, "popular", &old),
        false => sync_command(1, "popular", &new),
    };
    scene.syncs = (0..ring.len()).map(command).collect();
    scene.wanted = new.clone();
    arm(arena, scene, phase);
    for (peer, command) in arena.fleet.peers.iter_mut().zip(&scene.syncs) {
        peer.send(command);
    }
    arena.fleet[scene.victim].await_stop();
    if phase == Phase::Transfer {
        scene.next = arena.network.fetchers(scene.victim)[0];
    }
}
