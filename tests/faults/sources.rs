//! Sources of shared state that the run loses without their connections ending: whoever fetches from them asks the next
//! one, or gives up, as soon as the master has dropped them. And ports of shared state that are closed: who cannot be
//! helped goes, and the others go on.

use crate::arena::{Arena, Times};
use crate::fleet::{Fleet, NEVER, config, sync_command};
use crate::peer::{Answer, WATCHDOG};
use crate::quiet;
use pccl::{FetchProgress, MasterConfig, StatusPeer};
use pccl_tests::spec::StateSpec;
use std::time::{Duration, Instant};

/// Four peers, of which the first two have the newer state and stand still when they are asked for it. No time-out is
/// short enough to matter here.
fn begin(name: &str) -> (Fleet, std::path::PathBuf, Vec<StateSpec>) {
    let admin = std::env::temp_dir().join(format!("pccl-faults-{}-{name}.sock", std::process::id()));
    let config = MasterConfig { peer_timeout: NEVER, admin: Some(admin.clone()), ..config() };
    let mut fleet = Fleet::with(config, 4, &["dial-timeout-ms=600000"]);
    let (new, old) = (vec![StateSpec::new("a", 5000, 1)], vec![StateSpec::new("a", 5000, 2)]);
    for source in 0..2 {
        fleet[source].ask("trap stop 1 state request for").good();
    }
    for (place, peer) in fleet.iter_mut().enumerate() {
        let (revision, state) = if place < 2 { (1, &new) } else { (0, &old) };
        peer.send(sync_command(revision, "popular", state));
    }
    (0..2).for_each(|source| fleet[source].await_stop());
    (fleet, admin, new)
}

fn drop_from_the_run(fleet: &Fleet, admin: &std::path::Path, place: usize) {
    let id = fleet[place].id.as_ref().expect("known");
    pccl_master::remove_peer(admin, id, "it stands still", Duration::from_secs(20)).expect("removed");
}

#[test]
fn the_next_source_is_asked_when_the_run_loses_one() {
    let (mut fleet, admin, new) = begin("one");
    drop_from_the_run(&fleet, &admin, 0);
    fleet[1].resume();
    for place in 1..4 {
        let answer = fleet[place].answer().good();
        assert_eq!(answer.list("digests"), [new[0].digest()]);
    }
}

#[test]
fn a_fetch_fails_when_the_run_has_lost_all_sources() {
    let (mut fleet, admin, _) = begin("all");
    drop_from_the_run(&fleet, &admin, 0);
    drop_from_the_run(&fleet, &admin, 1);
    let answers: Vec<_> = (2..4).map(|place| fleet[place].answer().bad("Aborted:PeerDropped")).collect();
    assert_eq!(answers[0].text, answers[1].text);
    assert!(answers.iter().all(|answer| answer.field("restored") == "true"), "{answers:?}");
    assert!(answers[0].text.contains("it stands still"), "{answers:?}");
}

/// The master's knowledge of the fetch of the peer at `place`, once that is `as_wanted`.
fn await_fetch(
    fleet: &Fleet,
    place: usize,
    as_wanted: impl Fn(Option<FetchProgress>) -> bool,
) -> Option<FetchProgress> {
    let deadline = Instant::now() + WATCHDOG;
    loop {
        let status = pccl_master::query_status(&fleet.address, crate::run_key().as_ref(), WATCHDOG)
            .expect("the master answers");
        let id = |peer: &StatusPeer| format!("{:#}", peer.peer);
        let peer = status.peers.iter().find(|peer| fleet[place].id.as_ref() == Some(&id(peer)));
        let fetch = peer.expect("it is in the run").fetch;
        if as_wanted(fetch) {
            return fetch;
        }
        assert!(Instant::now() < deadline, "the status says {fetch:?}");
        // A master bounds how often one network may come.
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

#[test]
fn the_status_says_how_far_a_fetch_is() {
    let config = MasterConfig { peer_timeout: NEVER, ..config() };
    let mut fleet = Fleet::with(config, 2, &[]);
    let state = |seed| vec![StateSpec::new("w", 5 << 18, seed)];
    // After the list of digests, and at least one MiB of five.
    fleet[0].ask("trap stop 4 state request for").good();
    fleet[0].send(sync_command(1, "send", &state(1)));
    fleet[1].send(sync_command(0, "receive", &state(2)));
    fleet[0].await_stop();
    let moves = |fetch: Option<FetchProgress>| fetch.is_some_and(|fetch| fetch.done_bytes >= 1 << 20);
    let fetch = await_fetch(&fleet, 1, moves).expect("it is under way");
    assert!((fetch.total_bytes, fetch.sources) == (5 << 20, 1) && fetch.done_bytes < 5 << 20, "{fetch:?}");
    fleet[0].resume();
    for place in 0..2 {
        assert_eq!(fleet[place].answer().good().list("digests"), [state(1)[0].digest()]);
    }
    await_fetch(&fleet, 1, |fetch| fetch.is_none());
}

/// Content of a peer that has trained, and of one that comes.
fn trained() -> Vec<StateSpec> {
    vec![StateSpec::new("w", 5000, 1)]
}

fn fresh(seed: u64) -> Vec<StateSpec> {
    vec![StateSpec::new("w", 5000, 100 + seed)]
}

/// One sync of these peers at these revisions; who has revision 0 is fresh.
fn sync(arena: &mut Arena, calls: &[(usize, u64)]) -> Vec<Answer> {
    for (place, revision) in calls {
        let state = if *revision > 0 { trained() } else { fresh(*place as u64) };
        arena.fleet[*place].send(sync_command(*revision, "popular", &state));
    }
    calls.iter().map(|(place, _)| arena.fleet[*place].answer()).collect()
}

fn committed(answers: &[Answer], revision: usize) {
    for answer in answers {
        let answer = answer.clone().good();
        assert_eq!(
            (answer.number("revision"), answer.list("digests")),
            (revision, vec![trained()[0].digest()])
        );
    }
}

/// The error of a peer that was dropped because state cannot be fetched names these ports.
fn dropped(arena: &Arena, answer: &Answer, sources: &[usize]) {
    let answer = answer.clone().bad("Kicked");
    assert_eq!((answer.field("code"), answer.field("restored")), ("Unreachable", "true"), "{answer:?}");
    for source in sources {
        assert!(answer.text.contains(&arena.network.state_address(*source)), "{}", answer.text);
        let id = arena.fleet[*source].id.as_ref().expect("connected");
        assert!(answer.text.contains(&id[..8]), "{}", answer.text);
    }
}

#[test]
fn a_newcomer_that_reaches_no_source_goes_and_the_others_commit_in_the_same_call() {
    let _shared = quiet::shared();
    let mut arena = Arena::on_loopback(Times::new(), 2);
    committed(&sync(&mut arena, &[(0, 1), (1, 1)]), 1);
    // Its way out is closed.
    let newcomer = arena.join(&[0, 1]);
    arena.network.block_state(newcomer, 0);
    arena.network.block_state(newcomer, 1);
    let answers = sync(&mut arena, &[(0, 2), (1, 2), (newcomer, 0)]);
    committed(&answers[..2], 2);
    dropped(&arena, &answers[2], &[0, 1]);
    committed(&sync(&mut arena, &[(0, 3), (1, 3)]), 3);
}

#[test]
fn one_source_whose_port_is_closed_to_a_newcomer_goes_on_after_one_failure() {
    let _shared = quiet::shared();
    let mut arena = Arena::on_loopback(Times::new(), 1);
    committed(&sync(&mut arena, &[(0, 1)]), 1);
    let newcomer = arena.join(&[0]);
    arena.network.block_state(newcomer, 0);
    for answer in sync(&mut arena, &[(0, 2), (newcomer, 0)]) {
        let answer = answer.bad("Aborted:NoSource");
        assert_eq!(answer.field("remedy"), "Retry");
        assert!(answer.text.contains(&arena.network.state_address(0)), "{}", answer.text);
    }
    let answers = sync(&mut arena, &[(0, 2), (newcomer, 0)]);
    committed(&answers[..1], 2);
    dropped(&arena, &answers[1], &[0]);
}

#[test]
fn two_fresh_peers_with_closed_ports_end_with_an_error_that_names_them() {
    let _shared = quiet::shared();
    let mut arena = Arena::on_loopback(Times::new(), 2);
    arena.network.block_state(0, 1);
    arena.network.block_state(1, 0);
    for answer in sync(&mut arena, &[(0, 0), (1, 0)]) {
        answer.bad("Aborted:NoSource");
    }
    let answers = sync(&mut arena, &[(0, 0), (1, 0)]);
    let good = answers.iter().position(|answer| answer.ok).expect("one goes on");
    dropped(&arena, &answers[1 - good], &[good]);
}

#[test]
fn a_fresh_source_that_nobody_reaches_goes_and_the_others_elect_again() {
    let _shared = quiet::shared();
    let mut arena = Arena::on_loopback(Times::new(), 3);
    arena.network.block_state(0, 2);
    arena.network.block_state(1, 2);
    let answers = sync(&mut arena, &[(0, 0), (1, 0), (2, 1)]);
    dropped(&arena, &answers[2], &[2]);
    for answer in &answers[..2] {
        let answer = answer.clone().bad("Aborted:PeerDropped");
        assert_eq!(answer.field("remedy"), "Retry");
        assert!(answer.text.contains(&arena.network.state_address(2)), "{}", answer.text);
    }
    let answers = sync(&mut arena, &[(0, 0), (1, 0)]);
    assert!(answers.iter().all(|answer| answer.ok), "{answers:?}");
}

#[test]
fn who_holds_the_only_copy_stays_though_its_port_is_closed() {
    let _shared = quiet::shared();
    let mut arena = Arena::on_loopback(Times::new(), 1);
    committed(&sync(&mut arena, &[(0, 1)]), 1);
    let newcomers = [arena.join(&[0]), arena.join(&[0, 1])];
    newcomers.iter().for_each(|newcomer| arena.network.block_state(*newcomer, 0));
    let answers = sync(&mut arena, &[(0, 2), (1, 0), (2, 0)]);
    committed(&answers[..1], 2);
    for answer in &answers[1..] {
        dropped(&arena, answer, &[0]);
        assert!(answer.text.contains("holds the only copy; open that port there"), "{}", answer.text);
    }
}

#[test]
fn a_source_whose_port_is_closed_is_not_asked_again_while_others_serve() {
    let _shared = quiet::shared();
    let mut arena = Arena::on_loopback(Times::new(), 2);
    committed(&sync(&mut arena, &[(0, 1), (1, 1)]), 1);
    (2..5).for_each(|newcomer| arena.network.block_state(newcomer, 0));
    let mut members = vec![0, 1];
    let mut asked = 0;
    for revision in 2..5 {
        let newcomer = arena.join(&members);
        let mut calls: Vec<(usize, u64)> = members.iter().map(|member| (*member, revision)).collect();
        calls.push((newcomer, 0));
        committed(&sync(&mut arena, &calls), revision as usize);
        asked += arena.fleet[newcomer].log().matches("shared state from peer").count();
        members.push(newcomer);
    }
    assert!(asked <= 1, "the closed port was dialled {asked} times");
}
