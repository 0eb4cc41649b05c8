//! Faults at every phase of a sync that repairs: a source, the only source, a receiver or the master is killed, stopped
//! or cut off. Every peer that is left ends with the same bytes; a sync that fails leaves every tensor as it was and
//! names the victim; and the run goes on.

use crate::{
    arena::{Arena, Times},
    fleet::sync_command,
    network::Node,
    peer::{Answer, Peer, WATCHDOG},
    quiet,
};
use parking_lot::Mutex;
use pccl_tests::spec::{Spec, StateSpec};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::Instant,
};

/// Cells that run at the same time: they mostly wait.
const WORKERS: usize = 4;
/// Elements of the tensor that is fetched: 6 MiB, so that there are pieces before and after the fault.
const ELEMENTS: usize = 6 << 18;

/// The part of the victim in the sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// It gives, and so does another one.
    Source,
    /// Nobody else has what it gives.
    OnlySource,
    Receiver,
}

impl Role {
    const ALL: [Self; 3] = [Self::Source, Self::OnlySource, Self::Receiver];
}

/// How far the sync is when the fault strikes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    /// The victim is about to vote.
    Voting,
    /// The first list of digests is asked for, or has arrived.
    Comparing,
    /// Pieces are in their places, and others are on their way.
    Moving,
    /// The victim has reported that it is ready, and somebody else has not.
    Ready,
    /// The victim has the outcome and has not done anything about it.
    Committing,
}

impl Moment {
    const ALL: [Self; 5] = [Self::Voting, Self::Comparing, Self::Moving, Self::Ready, Self::Committing];

    /// The line of its log at which the victim stands still: which one, and its text. A victim that is ready waits.
    const fn point(self, role: Role) -> Option<(usize, &'static str)> {
        let gives = !matches!(role, Role::Receiver);
        match self {
            Self::Voting => Some((1, "to master: SyncInitiate")),
            Self::Comparing if gives => Some((1, "state request for")),
            Self::Comparing => Some((1, "arrived: Digests")),
            Self::Moving if gives => Some((4, "state request for")),
            Self::Moving => Some((3, MOVING)),
            Self::Ready => None,
            Self::Committing => Some((1, "from master: SyncOutcome")),
        }
    }
}

/// A piece has arrived.
const MOVING: &str = "arrived: Mebibyte";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// SIGKILL.
    Kill,
    /// SIGSTOP until it has been dropped.
    Stop,
    /// Nothing passes between it and anybody.
    Vanish,
    /// Nothing passes between it and the master; it goes on with the others.
    Unheard,
    /// Its connections to one peer at the other end of a fetch are reset.
    Reset,
    /// Nothing passes between it and that peer.
    Cut,
}

impl Fault {
    const ALL: [Self; 6] = [Self::Kill, Self::Stop, Self::Vanish, Self::Unheard, Self::Reset, Self::Cut];

    /// Whether the run loses the victim.
    const fn loses(self) -> bool {
        !matches!(self, Self::Reset | Self::Cut)
    }

    fn inject(self, arena: &mut Arena, victim: Node, next: Node) {
        let network = &mut arena.network;
        match self {
            Self::Kill => return arena.fleet[victim].kill(),
            Self::Stop => return,
            Self::Vanish => network.cut_off(victim),
            Self::Unheard => network.cut_from_master(victim),
            Self::Reset => network.reset(victim, next),
            Self::Cut => {
                network.cut(victim, next);
                network.cut(next, victim);
            }
        }
        arena.fleet[victim].resume();
    }

    /// The causes that a verdict may give.
    const fn causes(self) -> &'static [&'static str] {
        match self {
            Self::Kill => &["Aborted:PeerDied"],
            Self::Stop | Self::Vanish | Self::Unheard => &["Aborted:PeerSilent"],
            // It may be noticed by the fetch first, or by the ring.
            Self::Reset | Self::Cut => &["Aborted:NoSource", "Aborted:EdgeBroken", "Aborted:PeerDropped"],
        }
    }
}

/// A sync that stands still at some moment.
struct Scene {
    victim: Node,
    /// The other end of a fetch of the victim.
    next: Node,
    /// A receiver that stands still so that the sync does not end before the fault.
    held: Option<Node>,
    syncs: Vec<String>,
}

fn new() -> Vec<StateSpec> {
    vec![StateSpec::new("a", ELEMENTS, 1), StateSpec::new("b", 1000, 2)]
}

/// The content of those that are to fetch.
fn old() -> Vec<StateSpec> {
    vec![StateSpec::new("a", ELEMENTS, 3), StateSpec::new("b", 1000, 2)]
}

fn digests(state: &[StateSpec]) -> Vec<String> {
    state.iter().map(StateSpec::digest).collect()
}

/// Four peers in a sync, up to the moment at which the victim stands still.
fn begin(arena: &mut Arena, role: Role, moment: Moment) -> Scene {
    let ring = arena.ring(4);
    let gives = |node: Node| node == ring[1] || node == ring[0] && role != Role::OnlySource;
    let command = |node| match gives(node) {
        true => sync_command(1, "popular", &new()),
        false => sync_command(0, "popular", &old()),
    };
    let (victim, mut next) = match role {
        Role::Source | Role::OnlySource => (ring[1], ring[2]),
        Role::Receiver => (ring[2], ring[1]),
    };
    let syncs: Vec<String> = (0..4).map(command).collect();
    let held = (moment == Moment::Ready).then_some(ring[3]);
    let (place, (nth, text)) = match (held, moment.point(role)) {
        (Some(held), _) => (held, (2, MOVING)),
        (None, point) => (victim, point.expect("it stands still somewhere")),
    };
    arena.fleet[place].ask(format!("trap stop {nth} {text}")).good();
    for (peer, command) in arena.fleet.peers.iter_mut().zip(&syncs) {
        peer.send(command);
    }
    arena.fleet[place].await_stop();
    if let Some(held) = held {
        await_only(arena, held);
        arena.fleet[victim].stop();
        arena.fleet[victim].await_stop();
        if role != Role::Receiver {
            next = held;
        }
    } else if role != Role::Receiver && matches!(moment, Moment::Comparing | Moment::Moving) {
        next = arena.network.fetchers(victim)[0];
    }
    Scene { victim, next, held, syncs }
}

/// Waits until the master waits for this peer only.
fn await_only(arena: &Arena, held: Node) {
    let id = |node: Node| arena.fleet[node].id.as_ref().expect("known")[..8].to_owned();
    let deadline = Instant::now() + WATCHDOG;
    loop {
        let status = pccl_master::query_status(&arena.fleet.address, crate::run_key().as_ref(), WATCHDOG)
            .expect("the master answers");
        let mut waits = status.waits.iter().map(|wait| wait.text.as_str());
        let sync = waits.find(|text| text.contains("waits for the end at"));
        let names = |node: Node| sync.is_some_and(|text| text.contains(&id(node)));
        if (0..4).all(|node| names(node) == (node == held)) {
            return;
        }
        assert!(Instant::now() < deadline, "the others are not ready: {sync:?}");
    }
}

/// Syncs until all who are left have committed the same. Returns the answers that told of a failure.
fn settle(arena: &mut Arena, syncs: &[String]) -> (Vec<Vec<Answer>>, Vec<String>) {
    let mut failures = Vec::new();
    loop {
        let answers = arena.fleet.answers();
        if let Some(place) = answers.iter().position(|answer| answer.kind() == "Kicked") {
            // A peer that cannot be helped goes; the others have just been told of their end.
            assert_eq!(answers[place].field("restored"), "true", "{answers:?}");
            arena.fleet.peers.remove(place);
            failures.push(vec![answers[place].clone()]);
            let others: Vec<_> = answers.iter().filter(|answer| answer.kind() != "Kicked").collect();
            if others.iter().all(|answer| answer.ok) {
                return (failures, others[0].list("digests"));
            }
            assert!(others.iter().all(|answer| !answer.ok && answer.field("restored") == "true"));
        } else if answers.iter().all(|answer| answer.ok) {
            let wanted = answers[0].list("digests");
            assert!(answers.iter().all(|answer| answer.list("digests") == wanted), "{answers:?}");
            assert!(answers.iter().all(|answer| answer.field("revision") == answers[0].field("revision")));
            return (failures, wanted);
        } else {
            assert!(!answers.iter().any(|answer| answer.ok), "it fails for all or for none: {answers:?}");
            for answer in &answers {
                let told = (answer.field("remedy"), answer.field("restored"));
                assert_eq!(told, ("Retry", "true"), "{answer:?}");
                assert_eq!(answer.text, answers[0].text, "not all were told the same");
            }
            failures.push(answers);
        }
        assert!(failures.len() < 4, "it fails again and again: {failures:?}");
        for peer in &mut arena.fleet.peers {
            peer.send(&syncs[peer.index]);
        }
    }
}

/// One fault at one moment.
fn run(role: Role, moment: Moment, fault: Fault, times: Times) {
    let mut arena = Arena::on_loopback(times, 4);
    let scene = begin(&mut arena, role, moment);
    let name = |node: Node| arena.fleet[node].id.as_ref().expect("known")[..8].to_owned();
    let (victim, next) = (name(scene.victim), name(scene.next));
    fault.inject(&mut arena, scene.victim, scene.next);
    if let Some(held) = scene.held {
        arena.fleet[held].resume();
    }
    let ghost = fault.loses().then(|| arena.fleet.peers.remove(scene.victim));
    let (failures, held) = settle(&mut arena, &scene.syncs);
    for answers in &failures {
        let (kind, text) = (answers[0].kind(), &answers[0].text);
        assert!(kind == "Kicked" || fault.causes().contains(&kind), "{answers:?}");
        let named = text.contains(&victim) || !fault.loses() && text.contains(&next);
        assert!(named, "neither {victim} nor {next} is named: {answers:?}");
    }
    check_failures(role, moment, fault, &failures);
    // The newer state is lost with the only peer that has it, unless the others have got it.
    let is_given = moment == Moment::Committing || fault == Fault::Unheard && moment != Moment::Voting;
    let is_lost = role == Role::OnlySource && fault.loses() && !is_given;
    assert_eq!(held, digests(&if is_lost { old() } else { new() }));
    let spec = Spec::sum(1000, 5);
    let answers = arena.fleet.all(format!("reduce {spec} 8 20"));
    arena.fleet.check(&[spec], &answers);
    assert!(answers.iter().all(|answer| answer.number("participants") == arena.fleet.len()), "{answers:?}");
    if let Some(ghost) = ghost.filter(|_| fault != Fault::Kill) {
        look_at_the_lost(&mut arena, ghost);
    }
}

/// The peers that have to be told of a failure, and those that must not be.
fn check_failures(role: Role, moment: Moment, fault: Fault, failures: &[Vec<Answer>]) {
    if fault.loses() {
        // Before it has voted nobody misses it, and afterwards only who gets nothing from it nor from anybody else.
        let fails = role == Role::OnlySource
            && fault != Fault::Unheard
            && !matches!(moment, Moment::Voting | Moment::Committing);
        assert_eq!(failures.len(), usize::from(fails), "{failures:?}");
    }
    let kicked = failures.iter().filter(|answers| answers[0].kind() == "Kicked").count();
    let may_go = usize::from(role == Role::OnlySource && fault == Fault::Cut);
    assert!(kicked <= may_go, "somebody went who need not: {failures:?}");
}

/// The victim that was dropped has committed, or its tensors are as before; it learns why.
fn look_at_the_lost(arena: &mut Arena, mut ghost: Peer) {
    arena.network.heal();
    ghost.resume();
    let answer = ghost.answer();
    if answer.ok {
        assert_eq!(answer.list("digests"), digests(&new()), "{answer:?}");
        return;
    }
    assert_eq!(answer.field("restored"), "true", "{answer:?}");
    assert!(["Kicked", "MasterLost"].contains(&answer.kind()), "{answer:?}");
    assert_eq!(answer.field("remedy"), "Reconnect", "{answer:?}");
}

/// Runs these cells on several threads; a failure names its cell.
fn run_all<T: Copy + Send + std::fmt::Debug>(cells: Vec<T>, run: impl Fn(T) + Sync) {
    let _shared = quiet::shared();
    let (cells, failed) = (Mutex::new(cells), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                loop {
                    let Some(cell) = cells.lock().pop() else { break };
                    if catch_unwind(AssertUnwindSafe(|| run(cell))).is_err() {
                        failed.lock().push(cell);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner();
    assert!(failed.is_empty(), "these cells fail; what they say stands above: {failed:?}");
}

/// Whether `PCCL_FAULTS_ONLY` leaves a cell with these names in.
fn wanted(names: &[String]) -> bool {
    let Ok(only) = std::env::var("PCCL_FAULTS_ONLY") else { return true };
    only.split(',').filter(|word| !word.is_empty()).all(|word| names.iter().any(|name| name == word))
}

#[test]
fn every_fault_at_every_moment_of_a_repair() {
    let mut cells = Vec::new();
    for role in Role::ALL {
        for moment in Moment::ALL {
            let faults = Fault::ALL.into_iter().map(|fault| (role, moment, fault));
            let names =
                |(a, b, c): &(Role, Moment, Fault)| [format!("{a:?}"), format!("{b:?}"), format!("{c:?}")];
            cells.extend(faults.filter(|cell| wanted(&names(cell))));
        }
    }
    let times = Times::new();
    run_all(cells, |(role, moment, fault)| run(role, moment, fault, times));
}

/// All connect to the master that is there now, and sync.
fn start_again(arena: &mut Arena, syncs: &[String]) {
    arena.fleet.send("connect");
    arena.fleet.send("wait 4 0");
    for answer in arena.fleet.answers().into_iter().chain(arena.fleet.answers()) {
        answer.good();
    }
    arena.meet();
    for answer in arena.fleet.sync(syncs) {
        assert_eq!(answer.good().list("digests"), digests(&new()));
    }
}

#[test]
fn the_master_dies_at_every_moment_of_a_repair() {
    let cells = [Role::Source, Role::Receiver].into_iter();
    let cells = cells.flat_map(|role| Moment::ALL.into_iter().map(move |moment| (role, moment)));
    let times = Times::new();
    run_all(cells.collect(), |(role, moment)| {
        let mut arena = Arena::with_master_process(times, 4);
        let scene = begin(&mut arena, role, moment);
        arena.fleet.kill_master_process();
        for node in scene.held.into_iter().chain([scene.victim]) {
            arena.fleet[node].resume();
        }
        for answer in arena.fleet.answers() {
            if answer.ok {
                assert_eq!(moment, Moment::Committing, "{answer:?}");
                assert_eq!(answer.list("digests"), digests(&new()), "{answer:?}");
            } else {
                assert!(["MasterLost", "OutcomeUnknown"].contains(&answer.kind()), "{answer:?}");
                let told = (answer.field("remedy"), answer.field("restored"));
                assert_eq!(told, ("Reconnect", "true"), "{answer:?}");
            }
        }
        // A peer that was through before notices now.
        arena.fleet.send("pending");
        for answer in arena.fleet.answers() {
            assert!(!answer.ok && answer.field("remedy") == "Reconnect", "{moment:?}: {answer:?}");
        }
        arena.fleet.start_master_process();
        start_again(&mut arena, &scene.syncs);
    });
}

#[test]
fn a_master_that_stood_still_in_a_repair_costs_nothing() {
    let times = Times::new();
    let pause = times.peer + times.peer / 2;
    run_all(Moment::ALL.to_vec(), |moment| {
        let mut arena = Arena::with_master_process(times, 4);
        let scene = begin(&mut arena, Role::Receiver, moment);
        arena.fleet.stop_master_process();
        for node in scene.held.into_iter().chain([scene.victim]) {
            arena.fleet[node].resume();
        }
        // The duration of the stop is the fault itself.
        std::thread::sleep(pause);
        arena.fleet.resume_master_process();
        for answer in arena.fleet.answers() {
            assert_eq!(answer.good().list("digests"), digests(&new()), "{moment:?}");
        }
        let answers = arena.fleet.reduce(Spec::sum(1000, 5));
        assert!(answers.iter().all(|answer| answer.number("participants") == 4), "{answers:?}");
    });
}
