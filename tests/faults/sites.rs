//! A site that is cut off from the others in the middle of an all-reduce over sites.

use crate::{
    arena::{Arena, Times},
    network::Node,
    peer::Answer,
    quiet,
};
use pccl_tests::spec::Spec;
use std::collections::BTreeSet;

/// Points at which the last member stands still while the network breaks: others fold, or have got results.
const POINTS: [&str; 2] = ["frame begins, a contribution", "frame begins, a result"];

/// Nodes on both sides of the border: in the first of these sites, and in the others.
fn sides(sites: &[&str]) -> [Vec<Node>; 2] {
    let (first, others) = (0..sites.len()).partition(|node| sites[*node] == sites[0]);
    [first, others]
}

/// All-reduces over sites. When the last member stands at a point, every pair across the border is broken, and it goes
/// on.
fn with_broken_border(
    arena: &mut Arena,
    (sites, point): (&[&str], &str),
    spec: Spec,
    break_pair: impl Fn(&mut Arena, Node, Node),
) -> Vec<Answer> {
    let last = sites.len() - 1;
    arena.fleet[last].ask(format!("trap stop 1 {point}")).good();
    arena.fleet.send(format!("reduce {spec} 7 20 sites"));
    arena.fleet[last].await_stop();
    let [first, others] = sides(sites);
    for (a, b) in first.iter().flat_map(|a| others.iter().map(move |b| (*a, *b))) {
        break_pair(arena, a, b);
    }
    arena.fleet[last].resume();
    arena.fleet.answers()
}

/// The last error names an edge over the border.
#[track_caller]
fn check_blame(arena: &Arena, sites: &[&str], answer: &Answer) {
    for side in sides(sites) {
        let is_named =
            |node: &Node| arena.fleet[*node].id.as_ref().is_some_and(|id| answer.text.contains(&id[..8]));
        assert!(side.iter().any(is_named), "nobody of {side:?} is named: {answer:?}");
    }
}

/// All connections between the sites break, and new ones can be made: nobody is lost.
#[test]
fn connections_between_sites_that_break_cost_nobody_its_place() {
    let _shared = quiet::shared();
    let sites = ["a", "a", "b", "b", "c"];
    for (case, point) in POINTS.into_iter().enumerate() {
        let mut arena = Arena::in_sites(Times::new(), &sites);
        let spec = Spec { in_place: case == 0, ..Spec::sum(600_000, case as u64) };
        let reset = |arena: &mut Arena, a, b| arena.network.reset(a, b);
        let answers = with_broken_border(&mut arena, (&sites, point), spec, reset);
        // The bytes are those of an oracle, and inputs were intact after each failure.
        arena.fleet.check(&[spec], &answers);
        for answer in &answers {
            assert_eq!(answer.text, answers[0].text, "the verdict is not the same for all");
            // The retry may begin before all has been noticed that is broken.
            let is_edge = |error: &str| error == "Aborted:EdgeBroken";
            assert!(answer.field("errors").split('|').all(is_edge), "{answer:?}");
            assert_eq!(answer.number("participants"), sites.len(), "{answer:?}");
            check_blame(&arena, &sites, answer);
        }
        arena.fleet.reduce(Spec { in_place: case == 1, ..spec });
    }
}

/// Nothing passes between the sites any more, but all are heard by the master. There is no ring of all: one side goes
/// on, the other one is told why it was dropped. When the way is open again all reduce over sites as before.
#[test]
fn a_site_that_is_cut_off_is_told_so_and_comes_back() {
    let _shared = quiet::shared();
    for sites in [&["a", "a", "b", "b"][..], &["a", "a", "b"]] {
        let mut arena = Arena::in_sites(Times::new(), sites);
        let spec = Spec::sum(600_000, 1);
        let cut = |arena: &mut Arena, a, b| {
            arena.network.cut(a, b);
            arena.network.cut(b, a);
        };
        let answers = with_broken_border(&mut arena, (sites, POINTS[0]), spec, cut);
        let (stay, dropped): (Vec<Node>, Vec<Node>) = (0..sites.len()).partition(|node| answers[*node].ok);
        assert!(sides(sites).contains(&stay), "{stay:?} go on: {answers:?}");
        let left: Vec<Answer> = stay.iter().map(|node| answers[*node].clone()).collect();
        arena.fleet.check(&[spec], &left);
        assert_eq!(left[0].number("participants"), stay.len());
        for answer in &answers {
            assert_eq!(answer.field("restored"), "true", "a failed call has changed its input: {answer:?}");
            check_blame(&arena, sites, answer);
        }
        for node in &dropped {
            let answer = &answers[*node];
            assert_eq!((answer.kind(), answer.field("code")), ("Kicked", "Unreachable"), "{answer:?}");
        }
        let errors: BTreeSet<&str> = left.iter().map(|answer| answer.field("errors")).collect();
        assert!(
            errors.len() == 1 && errors.iter().all(|it| it.starts_with("Aborted:EdgeBroken")),
            "{errors:?}"
        );
        arena.network.heal();
        let mut members = stay;
        for node in dropped {
            arena.network.expect_newcomer(node);
            arena.fleet[node].send("connect");
            let wait = format!("wait {} 0", members.len() + 1);
            members.iter().for_each(|member| arena.fleet[*member].send(&wait));
            members.push(node);
            members.iter().for_each(|member| drop(arena.fleet[*member].answer().good()));
        }
        arena.meet();
        arena.fleet.await_schedule("sites");
    }
}
