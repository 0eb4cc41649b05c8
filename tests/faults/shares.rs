//! Pairwise exchange among peers whose edges differ: whose edges are slow owns less of the tensor.

use crate::{
    arena::{Arena, Times},
    peer::Answer,
    quiet,
};
use pccl_quant::quantise::{Block, Quantisation, Scheme};
use pccl_tests::spec::Spec;

/// Little enough for a busy machine to carry over all edges at once.
const FAST: u64 = 1_000_000;
const SLOW: u64 = 40_000;
/// 2 MB: with equal chunks 25 s, for 1 MB passes the slow edge.
const COUNT: usize = 500_000;

/// Four peers, of which 0 and 1 have a slow edge between them.
fn arena() -> Arena {
    let mut arena = Arena::on_loopback(Times::new(), 4);
    let pairs = (0..4).flat_map(|a| (0..a).map(move |b| (a, b)));
    for (a, b) in pairs {
        arena.network.limit(a, b, if a + b == 1 { SLOW } else { FAST });
    }
    arena.fleet.all("optimize").into_iter().for_each(|answer| drop(answer.good()));
    arena.fleet.meet();
    // Edges of another ring are built first.
    arena.fleet.await_pairwise();
    arena
}

/// Checks that all agree and that those with a slow edge have sent little more than the tensor.
fn check_shares(answers: &[Answer], bytes: usize) {
    for answer in answers {
        assert_eq!(answer.field("digests"), answers[0].field("digests"), "{answer:?}");
        assert_eq!((answer.field("algorithm"), answer.field("errors")), ("pairwise", ""), "{answer:?}");
    }
    let sent: Vec<usize> = answers.iter().map(|answer| answer.number("tx")).collect();
    // With equal chunks everybody sends one and a half times the tensor.
    let little = bytes * 5 / 4;
    assert!(
        sent[0] <= little && sent[1] <= little && sent[2] + sent[3] >= bytes * 7 / 2,
        "{sent:?} of {bytes}"
    );
}

/// The choice of the master, the bytes of the ring, and the loss of an owner in the middle.
#[test]
fn who_has_a_slow_edge_owns_less() {
    let _alone = quiet::alone();
    let mut arena = arena();
    let answers = arena.fleet.reduce(Spec::sum(COUNT, 1));
    check_shares(&answers, 4 * COUNT);
    let scheme = Quantisation::new(Scheme::BlockAffineU8(Block::B256));
    let spec = Spec { quantisation: Some(scheme), ..Spec::sum(4 * COUNT, 2) };
    let answers = arena.fleet.all(format!("reduce {spec} 0 0"));
    check_shares(&answers, 4 * COUNT + 4 * COUNT / 256 * 8);
    // One of the two that own most dies when it gets the result of another one.
    let spec = Spec::sum(2 * COUNT, 3);
    arena.fleet[3].ask("trap kill 2 frame begins, a result").good();
    arena.fleet.send(format!("reduce {spec} 0 20"));
    arena.fleet[3].await_death();
    arena.fleet.remove(3);
    let answers = arena.fleet.answers();
    for answer in &answers {
        assert_eq!(
            (answer.field("errors"), answer.number("participants")),
            ("Aborted:PeerDied", 3),
            "{answer:?}"
        );
    }
    arena.fleet.check(&[spec], &answers);
}
