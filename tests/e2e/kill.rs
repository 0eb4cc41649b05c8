//! `kill -9` of one peer at each named point of the protocol: the others get one verdict, have their inputs back bit by
//! bit, and complete the retry.

use crate::{
    fleet::{Fleet, full, sync_command},
    peer::{Answer, Peer},
};
use pccl::{Block, Scheme};
use pccl_tests::spec::{Spec, StateSpec};

/// Three frames in each chunk of three ranks.
const LARGE: usize = 1_000_000;

/// The outcome of a death that the others see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seen {
    /// The operation goes on without the dead one.
    Nothing,
    /// It is aborted, and the verdict names the dead one.
    Verdict,
    /// The dead one may have sent all that the others need: they succeed with it, or all get the verdict.
    Either,
    /// They have succeeded with it.
    Success,
    /// It may have voted or not, and may have sent all that the others need: any of these.
    Any,
}

/// All reduce, `victim` dies at the `nth` line with `point`; the others have to complete.
pub(crate) fn reduce_with_death(
    fleet: &mut Fleet,
    victim: usize,
    point: &str,
    nth: usize,
    spec: Spec,
    seen: Seen,
) {
    reduce_with_death_by("automatic", fleet, victim, (point, nth, seen), spec);
}

/// As [`reduce_with_death`], by a schedule that the callers choose.
pub(crate) fn reduce_with_death_by(
    schedule: &str,
    fleet: &mut Fleet,
    victim: usize,
    (point, nth, seen): (&str, usize, Seen),
    spec: Spec,
) {
    let what = format!("death of peer {victim} at {nth}. {point:?}, {spec}");
    fleet[victim].ask(format!("trap kill {nth} {point}")).good();
    fleet.send(format!("reduce {spec} 7 20 {schedule}"));
    fleet[victim].await_death();
    let id = fleet[victim].id.clone().expect("connected");
    fleet.remove(victim);
    let answers = fleet.answers();
    for answer in &answers {
        let answer = answer.clone().good();
        let errors = answer.field("errors");
        let verdict =
            seen == Seen::Verdict || (matches!(seen, Seen::Either | Seen::Any) && !errors.is_empty());
        assert_eq!(errors, if verdict { "Aborted:PeerDied" } else { "" }, "{what}: {answer:?}");
        assert_eq!(answer.text, answers[0].text, "{what}: the verdict is not the same for all");
        assert!(!verdict || answer.text.contains(&id[..8]), "{what}: the dead one is not named: {answer:?}");
        let with_the_dead = !verdict && seen != Seen::Nothing;
        let participants = answer.number("participants");
        let is_either = seen == Seen::Any && !verdict && participants == answers.len();
        assert!(
            is_either || participants == answers.len() + usize::from(with_the_dead),
            "{what}: {answer:?}"
        );
    }
    fleet.check(&[spec], &answers);
    // When this is over the master knows of the death, also if the operation had ended first.
    fleet.reduce(Spec::sum(10, 1));
}

/// Points of an all-reduce of three ranks that each rank passes, and how the others see a death there.
const POINTS: [(&str, usize, Seen); 14] = [
    ("to master: Initiate", 1, Seen::Nothing),
    ("from master: Commence", 1, Seen::Verdict),
    ("frame begins, stage 0 of 4", 1, Seen::Verdict),
    ("frame begins, stage 0 of 4", 3, Seen::Verdict),
    ("frame complete, stage 0 of 4", 2, Seen::Verdict),
    ("frame begins, stage 1 of 4", 1, Seen::Verdict),
    ("frame complete, stage 1 of 4", 3, Seen::Verdict),
    ("frame begins, stage 2 of 4", 1, Seen::Verdict),
    ("frame complete, stage 2 of 4", 2, Seen::Verdict),
    ("frame begins, stage 3 of 4", 2, Seen::Either),
    ("frame complete, stage 3 of 4", 1, Seen::Either),
    ("frame complete, stage 3 of 4", 3, Seen::Either),
    ("to master: Complete", 1, Seen::Either),
    ("from master: Outcome", 1, Seen::Success),
];

#[test]
fn at_each_point_of_an_all_reduce() {
    let mut fleet = Fleet::new(3);
    for (case, (point, nth, seen)) in POINTS.into_iter().enumerate() {
        let victims = if full() { 0..3 } else { case % 3..case % 3 + 1 };
        for victim in victims {
            let spec = Spec { in_place: case % 4 != 3, ..Spec::sum(LARGE, case as u64) };
            reduce_with_death(&mut fleet, victim, point, nth, spec, seen);
            fleet.join(&[]);
            fleet.reduce(Spec::sum(1000, case as u64));
        }
    }
}

/// Idle peers notice nothing; the next operation runs without the dead one.
#[test]
fn between_operations() {
    let mut fleet = Fleet::new(3);
    fleet.reduce(Spec::sum(1000, 1));
    fleet[1].kill();
    fleet.remove(1);
    for answer in fleet.reduce(Spec::sum(1000, 2)) {
        assert_eq!(answer.number("group"), 2);
    }
}

/// The others have voted, and the one they wait for dies.
#[test]
fn while_the_others_wait_for_its_vote() {
    let mut fleet = Fleet::new(3);
    let spec = Spec::sum(1000, 1);
    fleet[0].send(format!("reduce {spec} 0 0"));
    fleet[1].send(format!("reduce {spec} 0 0"));
    fleet[2].kill();
    fleet.remove(2);
    let answers = fleet.answers();
    assert!(answers.iter().all(|answer| answer.ok && answer.field("participants") == "2"), "{answers:?}");
    fleet.check(&[spec], &answers);
}

/// Many tensors in one operation: all of them are restored, and the retry does all of them.
#[test]
fn in_the_middle_of_many_tensors() {
    let mut fleet = Fleet::new(3);
    let specs: Vec<Spec> =
        (0..6).map(|i| Spec { in_place: i % 2 == 0, ..Spec::sum(200_000 + i, i as u64) }).collect();
    let words: Vec<_> = specs.iter().map(ToString::to_string).collect();
    fleet[0].ask("trap kill 4 frame begins, stage 2 of 4").good();
    fleet.send(format!("many {} 3 20", words.join(",")));
    fleet[0].await_death();
    fleet.remove(0);
    let answers = fleet.answers();
    assert!(answers.iter().all(|answer| answer.field("errors") == "Aborted:PeerDied"), "{answers:?}");
    fleet.check(&specs, &answers);
    // The library's own retries do the same.
    fleet.join(&[]);
    fleet[0].ask("trap kill 4 frame begins, stage 2 of 4").good();
    fleet.send(format!("many {} 3 100", words.join(",")));
    fleet[0].await_death();
    fleet.remove(0);
    let answers = fleet.answers();
    assert!(answers.iter().all(|answer| answer.field("failures") == "0"), "{answers:?}");
    fleet.check(&specs, &answers);
}

/// Has the others vote on the topology until `over` says that it is enough.
fn vote_until(fleet: &mut Fleet, voters: usize, mut over: impl FnMut(&mut Fleet) -> bool) {
    let deadline = std::time::Instant::now() + crate::peer::WATCHDOG;
    while !over(fleet) {
        assert!(std::time::Instant::now() < deadline, "this takes too long");
        for peer in &mut fleet.peers[..voters] {
            peer.send("topology");
        }
        for peer in &mut fleet.peers[..voters] {
            peer.answer().good();
        }
    }
}

/// A newcomer that dies on its way in neither stops nor enters the run.
#[test]
fn newcomer_on_its_way_in() {
    let points = [
        "to master: Register",
        "from master: Registered",
        "from master: GroupPlan",
        "dialing",
        "connection 0 from peer",
        "to master: EdgeReport",
        "from master: Admitted",
    ];
    let mut fleet = Fleet::new(2);
    for (case, point) in points.into_iter().enumerate() {
        let newcomer = fleet.spawn(&[]);
        fleet[newcomer].ask(format!("trap kill 1 {point}")).good();
        fleet[newcomer].send("connect");
        vote_until(&mut fleet, 2, |fleet| fleet[newcomer].is_dead());
        fleet.remove(newcomer);
        fleet.all("topology");
        for answer in fleet.reduce(Spec::sum(1000, case as u64)) {
            assert_eq!(answer.number("participants"), 2, "{point}");
        }
    }
}

/// A member that dies while somebody is let in: the newcomer gets in, the others go on.
#[test]
fn member_while_a_newcomer_is_let_in() {
    let mut fleet = Fleet::new(3);
    // A newcomer joins at the end of the ring: the last rank dials it, and it dials the first.
    let points = [
        (0, "to master: VoteTopology"),
        (1, "from master: GroupPlan"),
        (2, "dialing"),
        (0, "connection 0 from peer"),
        (1, "to master: EdgeReport"),
        (2, "from master: TopologyDone"),
    ];
    for (case, (rank, point)) in points.into_iter().enumerate() {
        let newcomer = fleet.spawn(&[]);
        let victim = fleet.all_but(newcomer, "world").iter().position(|answer| answer.number("rank") == rank);
        let victim = victim.expect("every rank is there");
        fleet[victim].ask(format!("trap kill 1 {point}")).good();
        fleet[newcomer].send("connect");
        let known: Vec<_> =
            fleet.peers[..newcomer].iter().map(|peer| peer.id.clone().expect("connected")).collect();
        let deadline = std::time::Instant::now() + crate::peer::WATCHDOG;
        let mut joined = false;
        while !joined {
            assert!(std::time::Instant::now() < deadline, "{point}: this takes too long");
            fleet.peers[..newcomer].iter_mut().for_each(|peer| peer.send("topology"));
            for place in 0..newcomer {
                let answer = fleet[place].answer_or_death();
                assert!(answer.is_some() || place == victim, "{point}: peer {place} died");
                joined |=
                    answer.is_some_and(|answer| answer.good().ring().iter().any(|id| !known.contains(id)));
            }
        }
        fleet[newcomer].answer().good();
        fleet[victim].await_death();
        fleet.remove(victim);
        fleet.meet();
        for answer in fleet.reduce(Spec::sum(1000, case as u64)) {
            assert_eq!(answer.number("participants"), 3, "{point}");
        }
    }
}

#[test]
fn in_the_pending_query() {
    let mut fleet = Fleet::new(3);
    for point in ["to master: VotePending", "from master: PendingAnswer"] {
        fleet[1].ask(format!("trap kill 1 {point}")).good();
        fleet.send("pending");
        fleet[1].await_death();
        fleet.remove(1);
        assert!(fleet.answers().iter().all(|answer| answer.ok && answer.field("pending") == "false"));
        fleet.join(&[]);
    }
}

/// Syncs until all are done, checks that they hold `wanted`. The first sync has been answered already.
pub(crate) fn finish_sync(
    fleet: &mut Fleet,
    mut answers: Vec<Answer>,
    commands: &[String],
    wanted: &[StateSpec],
) {
    let digests: Vec<_> = wanted.iter().map(StateSpec::digest).collect();
    loop {
        let failed = answers.iter().filter(|answer| !answer.ok).count();
        assert!(failed == 0 || failed == answers.len(), "a sync fails for all or for none: {answers:?}");
        if failed == 0 {
            assert!(answers.iter().all(|answer| answer.list("digests") == digests), "{answers:?}");
            return;
        }
        for answer in answers {
            assert_eq!((answer.field("remedy"), answer.field("restored")), ("Retry", "true"), "{answer:?}");
        }
        answers = fleet.sync(commands);
    }
}

/// Syncs until the victim dies at `point`; which source is asked first depends on the identities, so it may take more
/// than one. Returns the answers of the others.
pub(crate) fn sync_with_death(
    fleet: &mut Fleet,
    victim: usize,
    point: &str,
    commands: &[String],
) -> Vec<Answer> {
    for _ in 0..60 {
        fleet[victim].ask(format!("trap kill 1 {point}")).good();
        for (peer, command) in fleet.iter_mut().zip(commands) {
            peer.send(command);
        }
        let died = fleet[victim].answer_or_death().is_none();
        let mut others = Vec::new();
        for place in (0..fleet.len()).filter(|&place| place != victim) {
            others.push(fleet[place].answer());
        }
        if died {
            fleet.remove(victim);
            return others;
        }
        fleet[victim].ask("untrap").good();
        let last = fleet.len() - 1;
        fleet.remove(last);
        fleet.join(&[]);
    }
    panic!("peer {victim} never gets to {point:?}");
}

#[test]
fn in_a_sync() {
    let mut fleet = Fleet::new(4);
    let popular = [StateSpec::new("a", 300_000, 1), StateSpec::new("b", 1000, 2)];
    let third = [StateSpec::new("a", 300_000, 3), StateSpec::new("b", 1000, 2)];
    let fourth = [StateSpec::new("a", 300_000, 4), StateSpec::new("b", 1000, 2)];
    // Two hold the popular content and two fetch it, each from another source first.
    let commands: Vec<_> =
        [&popular, &popular, &third, &fourth].map(|state| sync_command(0, "popular", state)).to_vec();
    let points = [
        (0, "to master: SyncInitiate"),
        (2, "to master: SyncInitiate"),
        (1, "from master: SyncPlan"),
        (3, "from master: SyncPlan"),
        (0, "state request for a"),
        (1, "state request for a"),
        (2, "fetching"),
        (3, "to master: SyncComplete"),
        (0, "to master: SyncComplete"),
        (2, "from master: SyncOutcome"),
        (0, "from master: SyncOutcome"),
    ];
    for (victim, point) in points {
        let mut commands = commands.clone();
        let answers = sync_with_death(&mut fleet, victim, point, &commands);
        commands.remove(victim);
        let lonely = victim < 2 && point == "to master: SyncInitiate";
        if lonely {
            // Nobody has a majority: whatever is elected, all hold the same afterwards.
            assert!(answers.iter().all(|answer| answer.ok), "{answers:?}");
            assert!(answers.iter().all(|answer| answer.field("digests") == answers[0].field("digests")));
        } else {
            finish_sync(&mut fleet, answers, &commands, &popular);
        }
        fleet.join(&[]);
    }
}

/// The helpers of this module on fleets and peers.
impl Fleet {
    /// A command to all but the last ones, and their answers.
    fn all_but(&mut self, first: usize, command: &str) -> Vec<Answer> {
        self.peers[..first].iter_mut().map(|peer| peer.ask(command)).collect()
    }
}

/// Many operations at once, and one dies: each of them fails or succeeds for all alike, and all are completed.
#[test]
fn with_many_operations_in_flight() {
    many_in_flight("automatic");
}

#[test]
fn with_many_exchanges_in_flight() {
    many_in_flight("pairwise");
}

fn many_in_flight(schedule: &str) {
    let mut fleet = Fleet::new(3);
    let quantised = |spec| Spec { quantisation: Some(Scheme::BlockAffineU8(Block::B256).into()), ..spec };
    for round in 0..if full() { 30 } else { 4 } {
        if schedule == "pairwise" {
            fleet.await_pairwise();
        }
        let spec = |i: usize| Spec::sum(60_000 * (i + 1), round * 8 + i as u64);
        let specs: Vec<Spec> =
            (0..8).map(|i| if i % 3 == 2 { quantised(spec(i)) } else { spec(i) }).collect();
        let words: Vec<_> = specs.iter().enumerate().map(|(tag, spec)| format!("{spec}@{tag}")).collect();
        fleet[1].ask(format!("trap kill {} frame complete", 3 + 7 * round % 30)).good();
        fleet.send(format!("scope {} 0 200 {schedule}", words.join(",")));
        Peer::await_death(&mut fleet[1]);
        fleet.remove(1);
        let answers = fleet.answers();
        let first = answers[0].clone().good();
        for answer in &answers {
            let answer = answer.clone().good();
            assert_eq!(answer.field("restored"), "true", "{answer:?}");
            assert_eq!(answer.field("digests"), first.field("digests"));
            assert_eq!(answer.field("failures"), first.field("failures"));
        }
        fleet.check_each(&specs, &first);
        fleet.join(&[]);
    }
}
