//! One fault at one phase, from a fresh run of four peers to the check that everybody who should goes on.

use crate::{
    arena::{Arena, Times},
    peer::{Answer, Peer},
    phase::{Phase, Scene, begin},
};
use pccl_tests::spec::{Spec, StateSpec};
use std::time::{Duration, Instant};

/// The fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// SIGKILL.
    Kill,
    /// SIGSTOP until the peer has been dropped; then it comes back.
    Stop,
    /// SIGSTOP for less than the peer time-out.
    ShortStop,
    /// The connections between two peers are reset.
    Reset,
    /// The bytes from one peer to another do not arrive.
    OneWayCut,
    /// Nothing passes between two peers.
    FullCut,
    /// The bytes from one peer to another are acknowledged on the way, and do not arrive.
    Swallow,
    /// Nothing passes between a peer and anybody, until it has been dropped; then it comes back.
    Vanish,
    /// 200 kbit/s between two peers.
    Throttle,
    /// The connections between two peers are reset, and new ones get no answer.
    BlockedPort,
}

impl Fault {
    pub(crate) const ALL: [Self; 10] = [
        Self::Kill,
        Self::Stop,
        Self::ShortStop,
        Self::Reset,
        Self::OneWayCut,
        Self::FullCut,
        Self::Swallow,
        Self::Vanish,
        Self::Throttle,
        Self::BlockedPort,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Kill => "SIGKILL",
            Self::Stop => "SIGSTOP",
            Self::ShortStop => "short SIGSTOP",
            Self::Reset => "reset",
            Self::OneWayCut => "one-way cut",
            Self::FullCut => "full cut",
            Self::Swallow => "swallowed",
            Self::Vanish => "host cut off",
            Self::Throttle => "200 kbit/s",
            Self::BlockedPort => "blocked port",
        }
    }

    /// Whether the laboratory can bring it about.
    pub(crate) const fn works_in_a_lab(self) -> bool {
        !matches!(self, Self::Reset | Self::Swallow | Self::BlockedPort)
    }

    /// Whether the others lose the victim.
    const fn loses(self) -> bool {
        matches!(self, Self::Kill | Self::Stop | Self::Vanish)
    }

    /// The cause that a verdict has to give, if there is a verdict; `None`: there must be none.
    const fn cause(self) -> Option<&'static str> {
        match self {
            Self::Kill => Some("Aborted:PeerDied"),
            Self::Stop | Self::Vanish => Some("Aborted:PeerSilent"),
            Self::Reset | Self::OneWayCut | Self::FullCut | Self::Swallow | Self::BlockedPort => {
                Some("Aborted:EdgeBroken")
            }
            Self::ShortStop | Self::Throttle => None,
        }
    }

    /// Whether an all-reduce that runs at this phase has to be aborted. Elsewhere it may be: a peer that is lost while
    /// it votes to complete aborts the operation only if another one is not complete by then, and a peer that gets the
    /// first result of a pairwise exchange may have sent all that the others need from it. A small one begins early,
    /// and a fault before the last vote begins it anew.
    const fn must_abort(self, phase: Phase) -> bool {
        let moves_data = matches!(phase, Phase::ReduceScatter | Phase::Gather | Phase::Pairwise);
        self.cause().is_some() && moves_data
    }

    fn inject(self, arena: &mut Arena, scene: &Scene) {
        let (victim, next, network) = (scene.victim, scene.next, &mut arena.network);
        match self {
            Self::Kill => return arena.fleet[victim].kill(),
            Self::Stop => return,
            // The duration of the stop is the fault itself.
            Self::ShortStop => std::thread::sleep(arena.times.short_stop()),
            Self::Reset => network.reset(victim, next),
            Self::OneWayCut => network.cut(victim, next),
            Self::FullCut => {
                network.cut(victim, next);
                network.cut(next, victim);
            }
            Self::Swallow => network.swallow(victim, next),
            Self::Vanish => network.cut_off(victim),
            Self::Throttle => network.throttle(victim, next),
            Self::BlockedPort => {
                network.block(victim, next);
                network.block(next, victim);
                network.reset(victim, next);
            }
        }
        arena.fleet[victim].resume();
    }
}

/// The end of a cell.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outcome {
    /// Longest time in which the others completed an operation after the fault.
    pub(crate) time: Duration,
    /// Number of aborts that they saw.
    pub(crate) aborts: usize,
}

/// Runs a cell; panics if something is not as it should be.
pub(crate) fn run(fault: Fault, phase: Phase, times: Times) -> Outcome {
    let slow = fault == Fault::Throttle;
    // A proxy's small buffer drops what does not fit, and the kernel then sends again at growing distances: real
    // standstills of more than a second, which the shortest edge time-out would take for more than they are.
    let edge = if slow { times.edge.max(Duration::from_millis(2500)) } else { times.edge };
    let times = Times { edge, ..times };
    let mut arena = Arena::new(times, if phase.has_newcomer() { 3 } else { 4 });
    // At 200 kbit/s the edge carries this for about three edge time-outs: three halves of it, or one half.
    let elements_per_ms = if phase.is_pairwise() { 36 } else { 12 };
    let is_long = slow && phase != Phase::Direct;
    let count = if is_long { times.edge.as_millis() as usize * elements_per_ms } else { phase.elements() };
    let scene = begin(&mut arena, phase, Spec::sum(count, 1), fault.loses());
    let injected = Instant::now();
    fault.inject(&mut arena, &scene);
    let ghost = fault.loses().then(|| arena.fleet.peers.remove(scene.victim));
    let mut outcome = Outcome { time: Duration::ZERO, aborts: 0 };
    let answers = finish(&mut arena, phase, &scene);
    outcome.time = answers.1.duration_since(injected);
    let answers = answers.0;
    let names = [scene.victim, scene.next].map(|node| {
        let known = arena.fleet.iter().chain(&ghost).find(|peer| peer.index == node);
        known.and_then(|peer| peer.id.clone())
    });
    outcome.aborts += judge(fault, &names, &answers);
    assert!(!fault.must_abort(phase) || outcome.aborts == 1, "nobody was told: {answers:?}");

    let begun = Instant::now();
    let spec = Spec::sum(count + 1, 2);
    let answers = arena.fleet.all(format!("reduce {spec} 8 20 {}", phase.schedule()));
    outcome.time = outcome.time.max(begun.elapsed());
    outcome.aborts += judge(fault, &names, &answers);
    arena.fleet.check(&[spec], &answers);
    let left = if fault.loses() { 3 } else { 4 };
    assert!(answers.iter().all(|answer| answer.number("participants") == left), "{answers:?}");
    if let Some(ghost) = ghost.filter(|_| fault != Fault::Kill) {
        come_back(&mut arena, ghost, phase, &scene);
    }
    outcome
}

/// Waits for the others to complete what they were in, and checks it. Returns answers that tell of aborts, and when all
/// had completed.
fn finish(arena: &mut Arena, phase: Phase, scene: &Scene) -> (Vec<Answer>, Instant) {
    match phase {
        Phase::Joining | Phase::Setup => {
            let answers = arena.fleet.answers();
            let done = Instant::now();
            assert!(answers.iter().all(|answer| answer.ok), "{answers:?}");
            arena.meet();
            (Vec::new(), done)
        }
        Phase::Hashing | Phase::Transfer => {
            let failed = finish_sync(arena, scene);
            (failed, Instant::now())
        }
        Phase::Idle => {
            // The fault showed nothing yet: the operation that follows is the first.
            let spec = Spec { seed: 9, ..scene.spec };
            let answers = arena.fleet.all(format!("reduce {spec} 9 20"));
            let done = Instant::now();
            arena.fleet.check(&[spec], &answers);
            (answers, done)
        }
        _ => {
            assert!(phase.is_reduce());
            let answers = arena.fleet.answers();
            let done = Instant::now();
            arena.fleet.check(&[scene.spec], &answers);
            (answers, done)
        }
    }
}

fn finish_sync(arena: &mut Arena, scene: &Scene) -> Vec<Answer> {
    let wanted: Vec<_> = scene.wanted.iter().map(StateSpec::digest).collect();
    let mut failed = Vec::new();
    loop {
        let answers = arena.fleet.answers();
        if answers.iter().all(|answer| answer.ok) {
            assert!(answers.iter().all(|answer| answer.list("digests") == wanted), "{answers:?}");
            return failed;
        }
        assert!(!answers.iter().any(|answer| answer.ok), "a sync fails for all or for none: {answers:?}");
        for answer in &answers {
            assert_eq!((answer.field("remedy"), answer.field("restored")), ("Retry", "true"), "{answer:?}");
        }
        failed = answers;
        for peer in &mut arena.fleet.peers {
            peer.send(&scene.syncs[peer.index]);
        }
    }
}

/// Checks that every abort has the right cause and names the right ones, on all peers alike. Returns their number.
fn judge(fault: Fault, names: &[Option<String>], answers: &[Answer]) -> usize {
    let Some(first) = answers.first() else { return 0 };
    let list = |answer: &Answer| -> Vec<String> {
        match answer.fields.get("errors") {
            Some(errors) => errors.split('|').filter(|error| !error.is_empty()).map(str::to_owned).collect(),
            None if answer.ok => Vec::new(),
            None => vec![answer.kind().to_owned()],
        }
    };
    let errors = list(first);
    for answer in answers {
        assert_eq!(list(answer), errors, "not everybody was told the same: {answers:?}");
        assert_eq!(answer.text, first.text, "the verdict is not the same for all");
    }
    let Some(cause) = fault.cause() else {
        assert!(errors.is_empty(), "nothing had to be aborted: {first:?}");
        return 0;
    };
    if errors.is_empty() {
        return 0;
    }
    assert!(errors.iter().all(|error| error == cause), "expected {cause}: {first:?}");
    let named = if fault.loses() { &names[..1] } else { names };
    for id in named.iter().flatten() {
        assert!(first.text.contains(&id[..8]), "{id} is not named: {first:?}");
    }
    errors.len()
}

/// A newcomer that stood still before the master had tried its ports: nobody has waited for it. It is let in when it
/// lives again, at the second attempt if it was dropped meanwhile.
fn come_in_late(arena: &mut Arena, ghost: Peer, place: usize) {
    for peer in &mut arena.fleet.peers {
        peer.send("wait 4 0");
    }
    arena.fleet.peers.insert(place, ghost);
    let answer = arena.fleet[place].answer();
    if !answer.ok {
        assert!(answer.kind() == "Kicked" && answer.text.contains("silent"), "{answer:?}");
        assert_eq!(answer.field("remedy"), "Reconnect");
        arena.network.expect_newcomer(place);
        arena.fleet[place].ask("connect").good();
    }
    for peer in arena.fleet.peers.iter_mut().filter(|peer| peer.index != place) {
        peer.answer().good();
    }
    take_part(arena);
}

/// All four are in, and reduce.
fn take_part(arena: &mut Arena) {
    arena.meet();
    let answers = arena.fleet.reduce(Spec::sum(1000, 3));
    assert!(answers.iter().all(|answer| answer.number("participants") == 4), "{answers:?}");
}

/// The victim that was dropped learns why, connects again, and takes part.
fn come_back(arena: &mut Arena, mut ghost: Peer, phase: Phase, scene: &Scene) {
    let place = scene.victim;
    arena.network.heal();
    ghost.resume();
    if phase == Phase::Joining {
        return come_in_late(arena, ghost, place);
    }
    let mut answer = if phase == Phase::Idle { ghost.ask("pending") } else { ghost.answer() };
    let over = answer.ok;
    if over {
        // It had done its part in the operation, which was over before it was dropped.
        assert!(matches!(phase, Phase::Transfer | Phase::Completing | Phase::PairwiseResult), "{answer:?}");
        answer = ghost.ask("pending");
    }
    // A peer that has voted to complete does not know what became of it, and holds the result. In the second half of
    // the data that depends on how much of it had come before the fault.
    let may_have_voted = (matches!(phase, Phase::Gather | Phase::Completing) || phase.uses_mesh()) && !over;
    match answer.kind() {
        "OutcomeUnknown" if may_have_voted => arena.fleet.check_each(&[scene.spec], &answer),
        kind => assert!(kind == "Kicked" && (phase != Phase::Completing || over), "{answer:?}"),
    }
    assert!(!answer.ok, "{answer:?}");
    assert!(answer.text.contains("silent"), "it does not learn why: {answer:?}");
    assert_eq!(answer.field("remedy"), "Reconnect");
    arena.network.expect_newcomer(place);
    arena.fleet.peers.insert(place, ghost);
    for peer in &mut arena.fleet.peers {
        peer.send(if peer.index == place { "connect" } else { "wait 4 0" });
    }
    for answer in arena.fleet.answers() {
        answer.good();
    }
    take_part(arena);
}
