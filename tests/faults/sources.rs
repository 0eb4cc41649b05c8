//! Sources of shared state that the run loses without their connections ending: whoever fetches from them asks the next
//! one, or gives up, as soon as the master has dropped them.

use crate::fleet::{Fleet, NEVER, config, sync_command};
use pccl::MasterConfig;
use pccl_tests::spec::StateSpec;
use std::time::Duration;

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
    fleet[1].signal(libc::SIGCONT);
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
