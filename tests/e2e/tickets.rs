//! The run key alone is not enough: connections between peers need what the master gave for them.

use crate::{
    fleet::{Fleet, config},
    peer::WATCHDOG,
    rogue::{Rogue, control, receive, registration, send, until},
};
use pccl::{MasterConfig, RunKey, WireMode};
use pccl_protocol::{KickCode, M2c, PreviousIdentity, TicketRole};
use pccl_tests::spec::Spec;
use std::{path::PathBuf, time::Duration};
use tinysockets::preamble::{Preamble, Refusal, Role};

fn key() -> RunKey {
    RunKey::from_bytes([0x4b; 32])
}

fn with_operator(name: &str) -> (MasterConfig, PathBuf) {
    let admin = std::env::temp_dir().join(format!("pccl-e2e-{}-{name}.sock", std::process::id()));
    // The rogue sends no beats.
    let config = MasterConfig { peer_timeout: WATCHDOG, ..config() };
    (MasterConfig { admin: Some(admin.clone()), run_key: Some(key()), ..config }, admin)
}

/// Two peers, and a rogue that the master has let in and thrown out again.
fn after_an_ejection(name: &str) -> (Fleet, Rogue) {
    let (config, admin) = with_operator(name);
    let mut fleet = Fleet::with(config, 2, &[&format!("key={}", key().to_text())]);
    fleet.send("wait 3 0");
    let mut rogue = Rogue::register(&fleet.address, &key());
    rogue.join();
    fleet.answers().into_iter().for_each(|answer| drop(answer.good()));
    pccl_master::remove_peer(&admin, &rogue.me.to_string(), "it does nothing", WATCHDOG).expect("obeyed");
    rogue.await_kick();
    // Both peers have heard of it.
    fleet.reduce(Spec::sum(1000, 1));
    fleet.meet();
    (fleet, rogue)
}

#[test]
fn an_ejected_member_does_not_come_back_by_what_it_was_given() {
    let (mut fleet, rogue) = after_an_ejection("ejected");
    let tickets: Vec<_> = rogue.tickets.iter().filter(|it| it.role == TicketRole::Data).collect();
    assert!(!tickets.is_empty());
    for ticket in &tickets {
        let good = rogue.preamble(ticket);
        let refused = |preamble: Preamble| rogue.refused(&preamble, &ticket.secret);
        let wrong = Some(Refusal::WrongTicket);
        assert_eq!(refused(good), wrong, "its edge is of an old plan");
        assert_eq!(refused(Preamble { epoch: good.epoch + 1, ..good }), wrong, "another epoch");
        let generation = good.link_generation + 1;
        assert_eq!(refused(Preamble { link_generation: generation, ..good }), wrong, "another edge");
        for role in [Role::State, Role::Probe] {
            assert_eq!(refused(Preamble { role, ..good }), wrong, "another role");
        }
        let other = rogue.plan.as_ref().expect("a plan").members.iter().map(|member| member.peer);
        for from in other.filter(|peer| *peer != rogue.me) {
            assert_eq!(refused(Preamble { from: from.0, ..good }), wrong, "in the place of another peer");
        }
        for role in [Role::Data, Role::State, Role::Probe] {
            let preamble = Preamble { role, epoch: good.epoch + 1, ..good };
            assert_eq!(rogue.refused(&preamble, key().secret()), wrong, "the run key is no ticket");
            assert_eq!(rogue.refused(&preamble, &rogue.service_key), wrong, "nor is its own service key");
        }
    }
    let (id, master) = (rogue.me, fleet.address.clone());
    for text in [
        format!("of peer {id} for Data: its edge is not in the plan of the group"),
        format!("it says that it is peer {id}, and has no ticket for Data from the master"),
    ] {
        until(&text, || fleet.iter().any(|peer| peer.log().contains(&text)));
    }
    fleet.reduce(Spec::sum(700_000, 2));
    let status = pccl_master::query_status(&master, Some(&key()), WATCHDOG).expect("an answer");
    assert_eq!((status.peers.len(), status.run_keys), (2, 1));
}

#[test]
fn a_ticket_opens_a_data_connection_in_the_wire_mode_of_the_run_and_in_no_other() {
    for &wire in WireMode::ALL {
        let (config, _) = with_operator(&format!("wire-{wire}"));
        let setting = format!("key={}", key().to_text());
        let mut fleet = Fleet::with(MasterConfig { wire, ..config }, 2, &[&setting]);
        fleet.send("wait 3 0");
        let mut rogue = Rogue::register(&fleet.address, &key());
        assert_eq!(rogue.wire, wire);
        // It calls its neighbours by its tickets, in the mode of the run, and they take it.
        rogue.join();
        fleet.answers().into_iter().for_each(|answer| drop(answer.good()));
        let plan = rogue.plan.as_ref().expect("it was let in");
        let mut tickets =
            rogue.tickets.iter().filter(|it| it.role == TicketRole::Data && it.epoch == plan.epoch);
        let ticket = tickets.next().expect("an edge begins at it");
        for other in WireMode::ALL.iter().filter(|other| **other != wire) {
            let preamble = Preamble { security: other.security(), ..rogue.preamble(ticket) };
            let refused = rogue.refused(&preamble, &ticket.secret);
            assert_eq!(refused, Some(Refusal::UnsupportedSecurity), "{other} in a run with {wire}");
        }
    }
}

#[test]
fn nobody_takes_the_identity_of_a_peer_that_does_not_know_what_that_one_was_told() {
    let mut fleet = Fleet::with(with_operator("identity").0, 2, &[&format!("key={}", key().to_text())]);
    let rogue = Rogue::register(&fleet.address, &key());
    let living = pccl_master::query_status(&fleet.address, Some(&key()), WATCHDOG).expect("an answer").peers;
    let victim = living.iter().find(|peer| peer.peer != rogue.me).expect("the fleet").peer;
    let claim = |peer, proof| {
        let mut stream = control(&fleet.address, &key());
        send(&mut stream, &registration([1, 2], Some(PreviousIdentity { run: rogue.run, peer, proof })));
        receive(&mut stream)
    };
    for proof in [None, Some(rogue.service_key.clone())] {
        let M2c::Kicked(reason) = claim(victim, proof) else { panic!("it was believed") };
        assert_eq!(reason.code, KickCode::Malformed);
        let text = format!("it says that it was peer {victim}, and does not prove it");
        assert_eq!(reason.detail.as_str(), text);
    }
    // A peer that was told the service key proves its identity.
    assert!(matches!(claim(rogue.me, Some(rogue.service_key.clone())), M2c::Keys(_)));
    // A peer that comes back does so by itself.
    fleet[1].ask("close").good();
    drop(rogue);
    fleet[0].send("wait 2 0");
    fleet[1].ask("connect").good();
    fleet[0].answer().good();
    fleet.meet();
    fleet.reduce(Spec::sum(1000, 3));
}

#[test]
fn a_run_gets_a_new_key_while_it_goes_on() {
    let (config, admin) = with_operator("rotation");
    let new = RunKey::from_bytes([0x4c; 32]);
    let [old_setting, new_setting] = [&key(), &new].map(|key| format!("key={}", key.to_text()));
    let mut fleet = Fleet::with(config, 3, &[&old_setting]);
    let status = |fleet: &Fleet, key: &RunKey| {
        pccl_master::query_status(&fleet.address, Some(key), Duration::from_secs(30))
    };
    assert!(
        status(&fleet, &new).unwrap_err().contains("the run key, or the name of the run, is another one")
    );
    let both = pccl_master::AcceptedKeys { used: new.clone(), second: Some(key()) };
    let done = pccl_master::rotate_key(&admin, &both, WATCHDOG).expect("obeyed");
    assert_eq!(done, "the run has a new key, another one is still accepted; peers that were told: 3");
    fleet.reduce(Spec::sum(1000, 1));
    assert_eq!([&new, &key()].map(|key| status(&fleet, key).expect("an answer").run_keys), [2, 2]);
    // For a while newcomers may have either.
    fleet.join(&[&new_setting]);
    fleet.join(&[&old_setting]);
    fleet.reduce(Spec::sum(700_000, 2));
    pccl_master::rotate_key(&admin, &new.clone().into(), WATCHDOG).expect("obeyed");
    assert_eq!(status(&fleet, &new).expect("an answer").run_keys, 1);
    let place = fleet.spawn(&[&old_setting]);
    let answer = fleet[place].ask("connect").bad("Refused");
    assert!(answer.text.contains("the run key, or the name of the run, is another one"), "{answer:?}");
    fleet.remove(place);
    fleet.join(&[&new_setting]);
    // A peer that was in has the new key as well, and comes back with it.
    fleet[0].ask("close").good();
    fleet[1].send("wait 6 0");
    for peer in &mut fleet[2..] {
        peer.send("wait 6 0");
    }
    fleet[0].ask("connect").good();
    for peer in &mut fleet[1..] {
        peer.answer().good();
    }
    fleet.meet();
    fleet.reduce(Spec::sum(1000, 3));
    assert!(fleet[0].log().contains("the run has a new key"), "{}", fleet[0].log());
    let everything: String = fleet.iter().map(|peer| peer.log()).collect();
    assert!(!everything.contains(&new.to_text()) && !everything.contains(&key().to_text()));
}
