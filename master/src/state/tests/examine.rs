//! Examinations of machines that are about to take part.

use super::harness::Rig;
use crate::state::Input;
use pccl_protocol::*;

fn question(peer: u128) -> Examine {
    Examine {
        request: RequestId(5),
        peer: PeerId(peer),
        advertised_host: None,
        addresses: Vec::new(),
        p2p_port: 48_150,
        state_port: 48_149,
        padding: Padding(3000),
    }
}

fn answer(rig: &mut Rig, n: u64) -> Examined {
    match rig.take(n).pop() {
        Some(M2c::Examined(answer)) => answer,
        other => panic!("no answer: {other:?}"),
    }
}

#[test]
fn a_machine_is_told_how_it_is_seen_and_nobody_else_hears_of_it() {
    let mut rig = Rig::world(2);
    let before = rig.state.snapshot();
    rig.connect(9);
    rig.mail.clear();
    rig.send(9, C2m::Examine(question(77)));
    let target = rig.tried.pop().expect("its ports are tried");
    assert_eq!((target.peer, target.hosts.as_str()), (PeerId(77), "10.0.0.9"));
    assert_eq!((target.p2p_port, target.state_port), (48_150, 48_149));
    assert!(rig.take(9).is_empty(), "before its ports have been tried");
    let closed = vec![(true, "no way".to_owned())];
    rig.input(Input::Reached { peer: PeerId(77), closed, unix_us: 123 });
    let told = answer(&mut rig, 9);
    assert_eq!((told.request, told.run, told.unix_us), (RequestId(5), RunId(7), 123));
    assert_eq!((told.peer, told.wire), (PeerId(77), None));
    assert_eq!((told.seen.as_str(), told.padding), ("10.0.0.9", Padding(3000)));
    let unreached: Vec<_> = told.unreached.iter().map(|port| (port.is_state, port.text.as_str())).collect();
    assert_eq!(unreached, [(true, "no way")]);
    let peers: Vec<_> =
        told.peers.iter().map(|peer| (peer.target.peer, peer.target.hosts.as_str())).collect();
    assert_eq!(peers, [(rig.peers[&1], "10.0.0.1"), (rig.peers[&2], "10.0.0.2")]);
    assert!(rig.take(1).is_empty() && rig.take(2).is_empty());
    assert_eq!(rig.state.snapshot().peers, before.peers);
}

#[test]
fn what_was_found_of_who_has_gone_is_nobodys() {
    let mut rig = Rig::world(1);
    rig.connect(9);
    rig.send(9, C2m::Examine(Examine { advertised_host: Some(Host::new("here")), ..question(77) }));
    assert_eq!(rig.tried.pop().expect("its ports are tried").hosts.as_str(), "here");
    rig.input(Input::Disconnected { client: crate::state::ClientKey(9), text: "gone".into() });
    rig.input(Input::Reached { peer: PeerId(77), closed: Vec::new(), unix_us: 0 });
    assert_eq!(rig.state.snapshot().peers.len(), 1);
}

#[test]
fn nobody_is_examined_as_somebody_else_or_without_end() {
    let mut rig = Rig::world(1);
    rig.connect(8);
    rig.send(8, C2m::Examine(question(rig.peers[&1].0)));
    assert_eq!(rig.kick_of(8).code, KickCode::Protocol);
    rig.connect(9);
    for n in 0..u128::from(limits::MAX_STRANGER_REQUESTS) {
        rig.send(9, C2m::Examine(question(77 + n)));
    }
    rig.send(9, C2m::Examine(question(99)));
    assert_eq!(rig.kick_of(9).code, KickCode::Protocol);
    rig.send(1, C2m::Examine(question(100)));
    assert_eq!(rig.kick_of(1).code, KickCode::Protocol);
}

#[test]
fn the_time_to_register_waits_for_the_answer_and_not_for_ever() {
    let mut rig = Rig::new();
    rig.connect(9);
    rig.pass(4_000, &[]);
    rig.send(9, C2m::Examine(question(77)));
    rig.pass(9_000, &[]);
    rig.input(Input::Reached { peer: PeerId(77), closed: Vec::new(), unix_us: 0 });
    assert_eq!(answer(&mut rig, 9).unreached, []);
    rig.connect(10);
    rig.send(10, C2m::Examine(question(78)));
    rig.pass(10_001, &[]);
    assert_eq!(rig.kick_of(10).code, KickCode::RegistrationTimeout);
}
