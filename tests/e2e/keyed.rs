//! A run with a key: everything works as without, and nobody else takes part.

use crate::{
    fleet::{Fleet, config, sync_command},
    recorder::Recorder,
};
use pccl::{MasterConfig, RunKey, WireMode};
use pccl_tests::spec::{Spec, StateSpec, Way};
use std::{
    collections::HashSet,
    time::{Duration, Instant},
};
use tinysockets::{
    address::HostPort,
    dial::{DialError, dial_with_preamble},
    preamble::{Preamble, Refusal, Role},
};

const KEY: [u8; 32] = *b"\xf1key of a run, all of its bytes.";

fn key() -> RunKey {
    RunKey::from_bytes(KEY)
}

fn keyed() -> MasterConfig {
    MasterConfig { run_key: Some(key()), ..config() }
}

#[test]
fn reduces_syncs_and_probes_go_over_records() {
    for peers in [2, 4] {
        let mut fleet = Fleet::with(keyed(), peers, &["shared=0"]);
        assert!(fleet[0].log().contains("(run key, "), "{}", fleet[0].log());
        for spec in [Spec::sum(1000, 1), Spec::sum(3_000_000, 2), Spec::sum(700_001, 3)] {
            fleet.reduce(spec);
        }
        fleet.all("optimize").into_iter().for_each(|answer| drop(answer.good()));
        fleet.reduce(Spec::sum(2_000_000, 4));
    }
}

#[test]
fn a_newcomer_fetches_the_state_and_a_death_is_survived() {
    let mut fleet = Fleet::with(keyed(), 3, &[]);
    let tensor = |seed| [StateSpec::new("a", 700_000, seed)];
    let commands = [1, 2, 1].map(|seed| sync_command(0, "popular", &tensor(seed)));
    let digest = tensor(1)[0].digest();
    for answer in fleet.sync(&commands) {
        assert_eq!(answer.good().list("digests"), std::slice::from_ref(&digest));
    }
    let spec = Spec::sum(2_000_000, 1);
    fleet[1].ask("trap kill 1 frame begins").good();
    fleet.send(format!("reduce {spec} 0 0"));
    fleet[1].await_death();
    fleet[0].answer().bad("Aborted:PeerDied");
    fleet[2].answer().bad("Aborted:PeerDied");
}

#[test]
fn who_has_no_key_or_another_one_is_refused_for_good_and_the_run_goes_on() {
    // The key that the program gives counts before that of the environment.
    let (right, wrong) = (format!("key={}", key().to_text()), format!("key={}", "0".repeat(64)));
    let mut fleet = Fleet::with(keyed(), 2, &[&right]);
    for (key, settings, text) in [
        (Some(key()), vec![wrong.as_str()], "the run key, or the name of the run, is another one"),
        (None, vec![], "set PCCL_RUN_KEY"),
    ] {
        let place = fleet.spawn_with(key.as_ref(), &settings);
        let answer = fleet[place].ask("connect").bad("Refused");
        assert!(answer.text.contains(text), "{answer:?}");
        fleet.remove(place);
    }
    let error = pccl_master::query_status(&fleet.address, None, Duration::from_secs(20)).unwrap_err();
    assert!(error.contains("run key"), "{error}");
    let status =
        pccl_master::query_status(&fleet.address, Some(&key()), Duration::from_secs(20)).expect("an answer");
    assert_eq!(status.peers.len(), 2);
    // And a peer with a key does not talk to a master without one.
    let mut open = Fleet::with_master_process(MasterConfig { run_key: None, ..config() }, 0, &[]);
    let place = open.spawn_with(Some(&key()), &[]);
    let answer = open[place].ask("connect").bad("Refused");
    assert!(answer.text.contains("has no run key"), "{answer:?}");
}

/// Somebody on the way sends what is meant for the master of one run to that of the other.
#[test]
fn of_two_runs_with_one_key_nobody_is_led_into_the_other_and_a_new_key_keeps_the_name() {
    let admin = std::env::temp_dir().join(format!("pccl-e2e-{}-named.sock", std::process::id()));
    let named = |text: &str| MasterConfig { run_name: text.parse().ok(), ..keyed() };
    let mut run_a =
        Fleet::with(MasterConfig { admin: Some(admin.clone()), ..named("A") }, 2, &["run-name=A"]);
    let mut run_b = Fleet::empty(named("B"));
    let patience = Duration::from_secs(60);
    let status = |fleet: &Fleet, name: &str, key: &RunKey| {
        pccl_master::query_status(&format!("pccl://{}{name}", fleet.address), Some(key), patience)
    };
    let another = "the run key, or the name of the run, is another one";
    for settings in [&["run-name=A"][..], &[]] {
        let place = run_b.spawn(settings);
        let answer = run_b[place].ask("connect").bad("Refused");
        assert!(answer.text.contains(another), "{answer:?}");
        run_b.remove(place);
    }
    assert_eq!(status(&run_b, "/B", &key()).expect("an answer").peers.len(), 0);
    run_b.join(&["run-name=B"]);
    for name in ["/A", ""] {
        assert!(status(&run_b, name, &key()).unwrap_err().contains(another));
    }
    let new = RunKey::from_bytes([0x4d; 32]);
    let new_key = format!("key={}", new.to_text());
    let both = pccl_master::AcceptedKeys { used: new.clone(), second: Some(key()) };
    let done = pccl_master::rotate_key(&admin, &both, patience).expect("obeyed");
    assert!(done.ends_with("peers that were told: 2"), "{done}");
    run_a.join(&["run-name=A", &new_key]);
    run_a.join(&["run-name=A"]);
    pccl_master::rotate_key(&admin, &new.clone().into(), patience).expect("obeyed");
    run_a.reduce(Spec::sum(1000, 1));
    // It comes back with the new key, and finds the way to the others.
    run_a[0].ask("close").good();
    run_a[1].send("wait 4 0");
    run_a[2].send("wait 4 0");
    run_a[3].send("wait 4 0");
    run_a[0].ask("connect").good();
    for peer in &mut run_a[1..] {
        peer.answer().good();
    }
    run_a.meet();
    run_a.reduce(Spec::sum(700_000, 2));
    assert_eq!(status(&run_a, "/A", &new).expect("an answer").peers.len(), 4);
    for (name, key) in [("/A", &key()), ("", &new)] {
        assert!(status(&run_a, name, key).unwrap_err().contains(another));
    }
}

#[test]
fn a_run_works_in_its_wire_mode_and_takes_checks_only_in_that_which_encrypts() {
    let mut fleet = Fleet::with(MasterConfig { wire: WireMode::Integrity, ..keyed() }, 2, &[]);
    fleet.reduce(Spec::sum(200_000, 1));
    let soon = || Instant::now() + Duration::from_secs(60);
    let status =
        pccl_master::query_status(&fleet.address, Some(&key()), Duration::from_secs(20)).expect("an answer");
    assert_eq!(status.wire, Some(WireMode::Integrity));
    let peer = &status.peers[0];
    for &wire in WireMode::ALL {
        for port in [peer.p2p_port, peer.state_port] {
            let (security, run, from, to) = (wire.security(), status.run.0, 1, peer.peer.0);
            let preamble = Preamble { security, run, from, to, ..Preamble::new(Role::Check) };
            let target = HostPort::new("127.0.0.1", port);
            match dial_with_preamble(&target, &preamble, Some(key().secret()), soon()) {
                Ok(_) => assert_eq!(wire, WireMode::Encrypt),
                Err(DialError::Refused { reason: Refusal::UnsupportedSecurity, .. }) => {
                    assert_ne!(wire, WireMode::Encrypt);
                }
                Err(error) => panic!("{wire}: {error}"),
            }
        }
    }
}

/// A run whose every byte is written down: an all-reduce, a sync, and a newcomer who fetches the state, in this mode.
/// Returns the recorder, and the bytes of the tensors.
fn recorded(wire: WireMode) -> (Recorder, Vec<Vec<u8>>) {
    let mut recorder = Recorder::new();
    let mut fleet = Fleet::empty(MasterConfig { wire, ..keyed() });
    fleet.address = recorder.before_master(&fleet.address);
    let mut settings = |number: u8| -> Vec<String> {
        let name = format!("name={NAME}{number}");
        recorder.before_peer(number).into_iter().chain([name]).collect()
    };
    for number in 0..2 {
        let settings = settings(number);
        fleet.spawn(&settings.iter().map(String::as_str).collect::<Vec<_>>());
    }
    fleet.send("connect");
    fleet.send("wait 2 0");
    for _ in 0..2 {
        fleet.answers().into_iter().for_each(|answer| drop(answer.good()));
    }
    fleet.meet();
    let spec = Spec::sum(200_000, 1);
    fleet.reduce(spec);
    let state = [StateSpec::new(TENSOR, 200_000, 2)];
    let sync = [(); 3].map(|()| sync_command(0, "popular", &state));
    fleet.sync(&sync[..2]).into_iter().for_each(|answer| drop(answer.good()));
    let newcomer = settings(2);
    fleet.join(&newcomer.iter().map(String::as_str).collect::<Vec<_>>());
    let old = StateSpec { seed: 3, ..state[0].clone() };
    let commands = [
        sync_command(1, "popular", &state),
        sync_command(1, "popular", &state),
        sync_command(0, "popular", &[old]),
    ];
    for answer in fleet.sync(&commands) {
        assert_eq!(answer.good().list("digests"), [state[0].digest()]);
    }
    let tensors = vec![spec.input(0), spec.input(1), spec.result(&[0, 1], Way::Ring), state[0].content()];
    (recorder, tensors)
}

const NAME: &str = "machine-of-somebody-";
const TENSOR: &str = "encoder.attention.weight";

/// Pieces of eight bytes that say something: none of them is all the same.
fn pieces<'a>(texts: impl IntoIterator<Item = &'a [u8]>, step: usize) -> HashSet<[u8; 8]> {
    let windows = texts.into_iter().flat_map(|text| text.windows(8).step_by(step));
    let pieces = windows.filter_map(|bytes| bytes.first_chunk::<8>());
    pieces.filter(|bytes| bytes.iter().collect::<HashSet<_>>().len() > 4).copied().collect()
}

#[test]
fn who_records_all_ports_learns_neither_tensors_nor_names_nor_the_key() {
    let hex = key().to_text();
    let secrets = pieces([NAME.as_bytes(), TENSOR.as_bytes(), &KEY, hex.as_bytes()], 1);
    let recorded_in = |wire| {
        let (recorder, tensors) = recorded(wire);
        let tensors = pieces(tensors.iter().map(Vec::as_slice), 8);
        assert!(recorder.recorded_bytes() > 2_000_000, "{} bytes were recorded", recorder.recorded_bytes());
        (recorder.found(&tensors), recorder.found(&secrets), tensors.len())
    };
    let (tensors, names, _) = recorded_in(WireMode::Encrypt);
    assert_eq!((tensors, names), (0, 0));
    // The recorder finds what there is to be found.
    for wire in [WireMode::Integrity, WireMode::Off] {
        let (tensors, _, all) = recorded_in(wire);
        assert!(tensors > all / 2, "{wire}: {tensors} of {all}");
    }
}
