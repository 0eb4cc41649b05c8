//! `kill -9` of the master at every phase, and a new one on the same address: every peer is told, nobody hangs, no peer
//! process restarts, and the peer that has trained longest keeps its state against any number of fresh ones.

use crate::{
    arena::{Arena, Times},
    fleet::sync_command,
    peer::Answer,
    phase::{Phase, begin},
    quiet,
};
use pccl_tests::spec::{Spec, StateSpec};
use std::time::Instant;

fn check_loss(phase: Phase, answer: &Answer) {
    if answer.ok {
        // A peer that had its answer before the master died has it.
        let nobody_has = matches!(phase, Phase::Joining | Phase::Voting | Phase::ReduceScatter | Phase::Idle);
        assert!(!nobody_has && !phase.uses_mesh(), "{answer:?}");
        return;
    }
    assert!(["MasterLost", "OutcomeUnknown"].contains(&answer.kind()), "{phase:?}: {answer:?}");
    assert_eq!(answer.field("remedy"), "Reconnect");
    if answer.kind() == "OutcomeUnknown" {
        // Where nothing is under way the test calls after the kill, for little: peers that have not noticed it begin
        // early, and may have all contributions before they do.
        let began_early = phase == Phase::Idle;
        let may_have_voted =
            matches!(phase, Phase::ReduceScatter | Phase::Gather | Phase::Completing) || phase.uses_mesh();
        assert!(may_have_voted || began_early, "{phase:?}: {answer:?}");
    } else if let Some(restored) = answer.fields.get("restored") {
        assert_eq!(restored, "true", "{phase:?}: {answer:?}");
    }
}

/// All connect again; one of them has trained, the others have not.
fn start_again(arena: &mut Arena, phase: Phase) {
    arena.fleet.send("connect");
    arena.fleet.send("wait 4 0");
    for answer in arena.fleet.answers().into_iter().chain(arena.fleet.answers()) {
        answer.good();
    }
    arena.meet();
    let (trained, fresh) = (StateSpec::new("w", 5000, 7), StateSpec::new("w", 5000, 8));
    let commands: Vec<_> = (0..4)
        .map(|peer| match peer {
            2 => sync_command(40, "popular", std::slice::from_ref(&trained)),
            _ => sync_command(0, "popular", std::slice::from_ref(&fresh)),
        })
        .collect();
    for answer in arena.fleet.sync(&commands) {
        let answer = answer.good();
        assert_eq!(
            (answer.field("digests"), answer.number("revision")),
            (&*trained.digest(), 40),
            "{phase:?}"
        );
    }
    let answers = arena.fleet.reduce(Spec::sum(10_000, 3));
    assert!(answers.iter().all(|answer| answer.number("participants") == 4), "{answers:?}");
}

#[test]
fn the_master_dies_at_every_phase() {
    let _shared = quiet::shared();
    let times = Times::new();
    for phase in Phase::ALL {
        let mut arena = Arena::with_master_process(times, if phase.has_newcomer() { 3 } else { 4 });
        let pids: Vec<_> = arena.fleet.iter().map(crate::peer::Peer::pid).collect();
        let scene = begin(&mut arena, phase, Spec::sum(phase.elements(), 1), true);
        let killed = Instant::now();
        arena.fleet.kill_master_process();
        arena.fleet[scene.victim].resume();
        if phase == Phase::Idle {
            arena.fleet.send("reduce f32:sum:1000:1:in 0 0");
        }
        for answer in arena.fleet.answers() {
            check_loss(phase, &answer);
        }
        assert!(killed.elapsed() < times.bound() * 3, "{phase:?}: {:?}", killed.elapsed());
        // A peer that was through before notices now.
        arena.fleet.send("pending");
        for answer in arena.fleet.answers() {
            assert!(!answer.ok && answer.field("remedy") == "Reconnect", "{phase:?}: {answer:?}");
        }
        arena.fleet.start_master_process();
        start_again(&mut arena, phase);
        assert!(arena.fleet.iter().map(crate::peer::Peer::pid).zip(pids).all(|(now, then)| now == then));
    }
}
