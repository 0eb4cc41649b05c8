//! The names of peers, and the ports on which they listen.

use crate::fleet::{Fleet, config};
use pccl_tests::spec::Spec;
use std::{net::TcpListener, time::Duration};

#[test]
fn the_name_of_a_peer_is_in_the_status_in_verdicts_and_in_flight_records() {
    let mut fleet = Fleet::with_each(config(), &[&["name=rack1/gpu-7"], &["name=rack2/gpu-8"], &[]]);
    let status = pccl_master::query_status(&fleet.address, None, Duration::from_secs(20)).expect("an answer");
    let names: Vec<&str> = status.peers.iter().map(|peer| peer.name.as_str()).collect();
    let own = format!(":{}", fleet[2].pid());
    assert!(names.contains(&"rack1/gpu-7") && names.contains(&"rack2/gpu-8"), "{names:?}");
    assert!(names.iter().any(|name| name.ends_with(&own)), "{names:?}");
    assert!(status.peers.iter().all(|peer| peer.p2p_port > 0 && peer.state_port > 0));
    let text = status.to_string();
    assert!(text.contains("(rack1/gpu-7, 127.0.0.1), ports "), "{text}");
    assert!(text.starts_with("run ") && text.contains("3 peers in 1 group ("), "{text}");
    let json = pccl_master::status_to_json(&status);
    assert!(json.contains("\"name\":\"rack2/gpu-8\",\"p2p_port\":"), "{json}");

    let spec = Spec::sum(2_000_000, 1);
    fleet[1].ask("trap kill 1 frame begins").good();
    fleet.send(format!("reduce {spec} 0 0"));
    fleet[1].await_death();
    let verdict = fleet[0].answer().bad("Aborted:PeerDied");
    assert!(verdict.text.contains("(rack2/gpu-8, 127.0.0.1)"), "{verdict:?}");
    assert_eq!(fleet[2].answer().text, verdict.text);
    let dump = fleet[0].ask(format!("dump {}", std::env::temp_dir().display())).good();
    let file = std::fs::read_to_string(dump.field("file")).expect("the file of the flight recorder");
    let _ = std::fs::remove_file(dump.field("file"));
    assert!(file.contains("\nname=rack1/gpu-7\n") && file.contains("rack2/gpu-8"), "{file}");
}

#[test]
fn a_port_that_is_taken_is_a_warning_or_an_error() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = taken.local_addr().expect("bound").port();
    let ports = format!("ports={port},0");
    let mut fleet = Fleet::empty(config());
    let place = fleet.spawn(&["bind=127.0.0.1", &ports, "strict=1"]);
    let answer = fleet[place].ask("connect").bad("System");
    assert!(answer.text.contains(&format!("port {port}")), "{answer:?}");
    fleet.remove(place);
    let place = fleet.spawn(&["bind=127.0.0.1", &ports]);
    fleet[place].ask("connect").good();
    fleet[place].await_log(&format!("port {port} for tensors is taken: this peer listens on "));
    let status = pccl_master::query_status(&fleet.address, None, Duration::from_secs(20)).expect("an answer");
    let used = status.peers[0].p2p_port;
    assert!(used > port, "{used}");
    let wanted = format!("this peer listens on {used}");
    assert!(fleet[place].log().lines().any(|line| line.contains(" WARN ") && line.contains(&wanted)));
}
