//! Masters that go in order, are replaced one after the other, begin and find runs by a list, and one that acts by an
//! operator's word.

use crate::{
    fleet::{Fleet, config},
    journal::Place,
    master_process::{MasterProcess, PROGRAM},
    peer::WATCHDOG,
    standby::Run,
};
use pccl::MasterConfig;
use pccl_protocol::Status;
use pccl_tests::spec::Spec;
use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicU8, Ordering},
    thread,
    time::{Duration, Instant},
};

/// The status of the master at this place.
fn status_at(place: &str) -> Option<Status> {
    pccl_master::query_status(place, crate::run_key().as_ref(), WATCHDOG).ok()
}

/// Waits until one of these places has a status that is such.
#[track_caller]
fn await_one(places: &[String], what: &str, is_such: impl Fn(&Status) -> bool) -> (String, Status) {
    let deadline = Instant::now() + WATCHDOG;
    loop {
        let found = places.iter().find_map(|place| {
            let status = status_at(place).filter(&is_such)?;
            Some((place.clone(), status))
        });
        if let Some(found) = found {
            return found;
        }
        assert!(
            Instant::now() < deadline,
            "{what}: {:?}",
            places.iter().map(|place| status_at(place)).collect::<Vec<_>>()
        );
        // A master takes in only a limited number of strangers of one machine per second, standbys among them.
        thread::sleep(Duration::from_millis(50));
    }
}

/// Masters that are started by one list, each at an address of its own.
struct List {
    places: Vec<String>,
    processes: Vec<Option<MasterProcess>>,
}

impl List {
    fn new(count: u8) -> Self {
        static LISTS: AtomicU8 = AtomicU8::new(1);
        let [high, low] = (std::process::id() as u16).to_be_bytes();
        let list = LISTS.fetch_add(1, Ordering::Relaxed);
        let place = |at| format!("127.{}.{low}.{}:48148", 100 + high % 100, list * 8 + at);
        Self { places: (0..count).map(place).collect(), processes: (0..count).map(|_| None).collect() }
    }

    fn start(&mut self, at: usize, program: &Path) {
        let (listen, masters) = (self.places[at].clone(), self.places.clone());
        let config = MasterConfig { listen, masters, ..config() };
        self.processes[at] = Some(MasterProcess::start_program(program, &config));
    }

    fn start_all(&mut self, program: &Path) {
        (0..self.places.len()).for_each(|at| self.start(at, program));
    }

    /// The place of the one that acts, with this number of complete copies beside it.
    #[track_caller]
    fn await_acting(&self, standbys: usize) -> (usize, Status) {
        let is_such = |status: &Status| status.lead.acts && status.lead.standbys.len() == standbys;
        let (place, status) = await_one(&self.places, "nobody acts", is_such);
        (self.places.iter().position(|other| *other == place).expect("one of them"), status)
    }

    /// Peers that have the whole list.
    fn fleet(&self, peers: usize) -> Fleet {
        let mut fleet = Fleet::at(&self.places.join(","));
        for _ in 0..peers {
            fleet.spawn(&[]);
        }
        fleet.send("connect");
        fleet.send(format!("wait {peers} 0"));
        for peer in fleet.iter_mut() {
            peer.answer().good();
            peer.answer().good();
        }
        fleet.meet();
        fleet
    }
}

/// All reduce at once, and each has the sum.
fn reduce(fleet: &mut Fleet, seed: u64) {
    let spec = Spec::sum(10_000, seed);
    fleet.send(format!("reduce {spec} 0 0"));
    let answers = fleet.answers();
    fleet.check(&[spec], &answers);
}

#[test]
fn a_master_that_is_stopped_hands_over_in_the_middle_of_an_operation() {
    let mut run = Run::new(3, 2);
    for (seed, point) in [(1, "to master: Initiate"), (2, "from master: Commence")] {
        let spec = Spec::sum(1_000_000, seed);
        run.fleet[0].ask(format!("trap stop 1 {point}")).good();
        run.fleet.send(format!("reduce {spec} 0 0"));
        run.fleet[0].await_stop();
        let mut first = run.fleet.process.take().expect("it acts");
        first.ask_to_stop();
        run.fleet[0].resume();
        let answers = run.fleet.answers();
        run.fleet.check(&[spec], &answers);
        first.await_end();
        run.await_successor();
        if let Some(next) = run.standbys.first() {
            let place = next.address().to_owned();
            run.fleet.await_status(&place);
        }
    }
    // The last one has nobody that could go on: the run ends, and the peers are told.
    let mut last = run.fleet.process.take().expect("it acts");
    last.ask_to_stop();
    last.await_end();
    run.fleet.send(format!("reduce {} 0 0", Spec::sum(10, 3)));
    for answer in run.fleet.answers() {
        assert_eq!((answer.kind(), answer.field("code")), ("Kicked", "MasterStopping"), "{answer:?}");
    }
}

#[test]
fn an_operator_has_a_master_step_down_and_the_next_one_end_the_run() {
    let place = Place::new("step-down");
    std::fs::create_dir_all(place.path()).expect("a directory");
    let admin = |name: &str| place.path().join(name);
    let first = MasterConfig { accept_standbys: true, admin: Some(admin("first")), ..config() };
    let mut run = Run::with(first, 2, 0);
    let alone = pccl_master::step_down(&admin("first"), WATCHDOG).expect_err("nobody goes on");
    assert!(alone.contains("no master stands by") && alone.contains("end-run"), "{alone}");
    run.fleet.config.admin = Some(admin("second"));
    run.stand_by();
    run.fleet.config.admin = None;
    run.stand_by();
    let refused = pccl_master::step_down(&admin("second"), WATCHDOG).expect_err("it stands by");
    assert!(refused.contains(&run.fleet.address), "{refused}");
    run.standbys.swap(0, 1);
    // With one only, so that it is known who goes on.
    drop(run.standbys.remove(0));
    run.fleet.reduce(Spec::sum(10, 1));
    let mut gone = run.fleet.process.take().expect("it acts");
    let done = pccl_master::step_down(&admin("first"), WATCHDOG).expect("another one goes on");
    assert!(done.contains("has taken over in term 1"), "{done}");
    gone.await_end();
    run.await_successor();
    run.fleet.reduce(Spec::sum(10, 2));
    run.fleet.config.admin = None;
    run.stand_by();
    pccl_master::end_run(&admin("second"), WATCHDOG).expect("it acts");
    run.fleet.process.take().expect("it acted").await_end();
    for answer in run.fleet.all("pending") {
        assert_eq!((answer.kind(), answer.field("code")), ("Kicked", "MasterStopping"), "{answer:?}");
    }
    let left = vec![run.standbys[0].address().to_owned()];
    await_one(&left, "it knows a run", |status| !status.lead.acts && status.peers.is_empty());
}

/// As docs/upgrading.md says: one master after the other is stopped and started with the new program, while peers
/// train.
#[test]
fn masters_are_replaced_one_after_the_other_and_no_call_fails() {
    let place = Place::new("upgrade");
    std::fs::create_dir_all(place.path()).expect("a directory");
    let copy = |name: &str| -> PathBuf {
        let path = place.path().join(name);
        std::fs::copy(PROGRAM, &path).expect("a copy of the program");
        path
    };
    let (old, new) = (copy("old"), copy("new"));
    let mut list = List::new(3);
    list.start_all(&old);
    let (first, status) = list.await_acting(2);
    assert_eq!(first, 0, "the first of the list begins a run");
    let run = status.run;
    let mut fleet = list.fleet(3);
    std::fs::remove_file(&old).expect("nobody needs it any more");
    // Those that stand by first, then the one that acts.
    for at in [1, 2, 0] {
        let mut master = list.processes[at].take().expect("it runs");
        fleet.send(format!("reduce {} 0 0", Spec::sum(1_000_000, at as u64)));
        master.ask_to_stop();
        master.await_end();
        let answers = fleet.answers();
        fleet.check(&[Spec::sum(1_000_000, at as u64)], &answers);
        list.start(at, &new);
        let (_, status) = list.await_acting(2);
        assert_eq!(status.run, run, "another run");
        reduce(&mut fleet, 9);
    }
    let (acting, status) = list.await_acting(2);
    assert!(acting != 0 && status.peers.len() == 3, "{status}");
}

/// The first of the list is killed and started again beside those that stand by: it begins no second run.
#[test]
fn one_command_line_finds_the_run_or_begins_it() {
    let mut list = List::new(3);
    let program = Path::new(PROGRAM);
    list.start(1, program);
    list.start(2, program);
    for at in 1..3 {
        let waits = |status: &Status| {
            let text = status.lead.text.as_ref().map(ToString::to_string).unwrap_or_default();
            !status.lead.acts && status.run.0 == 0 && !text.is_empty()
        };
        await_one(&list.places[at..=at], "it does not wait", waits);
    }
    list.start(0, program);
    assert_eq!(list.await_acting(2).0, 0);
    // With nobody in it a run is none: another one begins, whether the first of the list goes in order or dies.
    let mut first = list.processes[0].take().expect("it runs");
    first.ask_to_stop();
    first.await_end();
    list.start(0, program);
    assert_eq!(list.await_acting(2).0, 0);
    list.processes[0] = None;
    list.start(0, program);
    let (first, status) = list.await_acting(2);
    assert_eq!(first, 0);
    let mut fleet = list.fleet(3);
    list.processes[0] = None;
    list.start(0, program);
    reduce(&mut fleet, 1);
    let (acting, after) = list.await_acting(2);
    assert_eq!((after.run, after.peers.len(), acting != 0), (status.run, 3, true));
    // A newcomer with the whole list comes to the others.
    fleet.address = list.places.join(",");
    let newcomer = fleet.spawn(&[]);
    fleet[newcomer].send("connect");
    (0..newcomer).for_each(|peer| fleet[peer].send("wait 4 0"));
    fleet.answers().into_iter().for_each(|answer| drop(answer.good()));
}

#[test]
fn a_standby_acts_by_an_operators_word_when_half_of_the_members_are_lost() {
    let place = Place::new("forced");
    std::fs::create_dir_all(place.path()).expect("a directory");
    let admin = |name: &str| place.path().join(name);
    let mut run = Run::with(MasterConfig { accept_standbys: true, ..config() }, 4, 0);
    for name in ["one", "two"] {
        run.fleet.config.admin = Some(admin(name));
        run.stand_by();
    }
    run.fleet.config.admin = None;
    let force = |name: &str| pccl_master::force_take_over(&admin(name), WATCHDOG);
    let refused = force("one").expect_err("another one acts");
    assert!(refused.contains("acts"), "{refused}");
    run.fleet.reduce(Spec::sum(10, 1));
    // The master is not to notice that they are lost: otherwise the others are more than half.
    [3, 2].into_iter().for_each(|at| run.fleet[at].stop());
    run.kill_master();
    for at in [3, 2] {
        run.fleet[at].kill();
        run.fleet.remove(at);
    }
    run.fleet.send(format!("reduce {} 0 5", Spec::sum(10, 2)));
    // Of two that are asked at the same time one acts at most.
    let words = thread::scope(|scope| {
        let both = ["one", "two"].map(|name| scope.spawn(move || force(name)));
        both.map(|thread| thread.join().expect("an answer"))
    });
    assert!(words.iter().filter(|word| word.is_ok()).count() < 2, "{words:?}");
    let word = match words.into_iter().find_map(Result::ok) {
        Some(word) => word,
        None => force("one").expect("nobody acts"),
    };
    assert!(word.contains("lost") && word.contains("acts in term 1"), "{word}");
    let answers = run.fleet.answers();
    run.fleet.check(&[Spec::sum(10, 2)], &answers);
    assert!(answers.iter().all(|answer| answer.number("participants") == 2), "{answers:?}");
    run.await_successor();
    let left = run.standbys[0].address().to_owned();
    run.fleet.await_status(&left);
    run.fleet.reduce(Spec::sum(10, 3));
}

/// An operator errs: all members live, and come to the other standby as well. One acts at the end, be it by promises or
/// by that word, and no call fails.
#[test]
fn a_forced_take_over_beside_living_members_ends_with_one_that_acts() {
    let place = Place::new("forced-early");
    std::fs::create_dir_all(place.path()).expect("a directory");
    for round in 0..3 {
        let admin = place.path().join(format!("admin-{round}"));
        let mut run = Run::with(MasterConfig { accept_standbys: true, ..config() }, 3, 1);
        run.fleet.config.admin = Some(admin.clone());
        run.stand_by();
        run.fleet.reduce(Spec::sum(10, round));
        run.fleet.send(format!("reduce {} 0 0", Spec::sum(1_000_000, round)));
        run.kill_master();
        let word = thread::spawn(move || pccl_master::force_take_over(&admin, WATCHDOG));
        let answers = run.fleet.answers();
        run.fleet.check(&[Spec::sum(1_000_000, round)], &answers);
        let word = word.join().expect("an answer");
        run.await_successor();
        // The other one stands by for it, so it does not act.
        let other = run.standbys[0].address().to_owned();
        let (_, status) = await_one(std::slice::from_ref(&other), "it is alone", |status| !status.lead.acts);
        run.fleet.await_status(&other);
        assert!(run.fleet.reduce(Spec::sum(10, 3)).iter().all(|answer| answer.number("participants") == 3));
        let after = status_at(&run.fleet.address).expect("it acts");
        assert!(after.lead.acts && after.peers.len() == 3, "{word:?}: {status} {after}");
    }
}

/// The first master was started without a list and a journal. Started again after another one has taken over, it takes
/// nobody into a second run, says so, and newcomers find the run that there is.
#[test]
fn a_first_master_that_is_started_again_begins_no_second_run() {
    let mut run = Run::new(3, 2);
    let first = run.fleet.address.clone();
    run.kill_master();
    run.fleet.reduce(Spec::sum(1000, 1));
    run.await_successor();
    let again = MasterProcess::start(&run.fleet.config);
    let is_told = |status: &Status| {
        let text = status.lead.text.as_ref().map(ToString::to_string).unwrap_or_default();
        !status.lead.acts && text.contains("so this one begins none") && text.contains("--standby-of")
    };
    await_one(std::slice::from_ref(&first), "it begins a second run", is_told);
    let all = format!("{first},{}", run.masters());
    let acting = std::mem::replace(&mut run.fleet.address, all);
    let newcomer = run.fleet.spawn(&[]);
    run.fleet.address = acting;
    run.fleet[newcomer].send("connect");
    (0..newcomer).for_each(|peer| run.fleet[peer].send("wait 4 0"));
    run.fleet.answers().into_iter().for_each(|answer| drop(answer.good()));
    // Without those that know a run it takes newcomers.
    drop((run.standbys, run.fleet.process.take()));
    await_one(std::slice::from_ref(&first), "it takes nobody in", |status| status.lead.acts);
    drop(again);
}

/// One that may have been superseded does not say that it acts.
#[test]
fn a_master_of_which_nothing_leaves_does_not_say_that_it_acts() {
    let mut run = Run::new(3, 1);
    [1, 2].into_iter().for_each(|peer| run.fleet[peer].stop());
    run.standbys[0].stop();
    let places = vec![run.fleet.address.clone()];
    let (_, status) = await_one(&places, "it says that it acts", |status| !status.lead.acts);
    assert!(status.to_string().contains("another master could take over"), "{status}");
    [1, 2].into_iter().for_each(|peer| run.fleet[peer].resume());
    await_one(&places, "it does not say that it acts", |status| status.lead.acts);
    run.fleet.reduce(Spec::sum(10, 1));
}
