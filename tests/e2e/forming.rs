//! Groups of given members between processes: deaths while they are formed, and between two formings.

use crate::{
    fleet::{Fleet, NEVER, config},
    peer::Answer,
};
use pccl::MasterConfig;
use pccl_tests::spec::Spec;
use std::time::Duration;

/// Three frames in each chunk of three ranks.
const LARGE: usize = 1_000_000;

/// Connected processes that are in no group; number i is called w{i}.
fn fleet(n: usize) -> Fleet {
    let mut fleet = Fleet::empty(MasterConfig { peer_timeout: NEVER, ..config() });
    (0..n).for_each(|number| newcomer(&mut fleet, number));
    fleet
}

/// `number` counts all processes that there have been.
fn newcomer(fleet: &mut Fleet, number: usize) {
    let place = fleet.spawn(&[&format!("name=w{number}"), "formed=1"]);
    let answer = fleet[place].ask("connect").good();
    fleet[place].id = Some(answer.field("id").to_owned());
}

fn form_command(uuid: u32, members: &[String]) -> String {
    format!("form {uuid} 60000 {}", members.join(","))
}

fn names(fleet: &Fleet) -> Vec<String> {
    fleet.iter().map(|peer| format!("w{}", peer.index)).collect()
}

fn ids(fleet: &Fleet) -> Vec<String> {
    fleet.iter().map(|peer| format!("#{}", peer.id.as_ref().expect("connected"))).collect()
}

/// Forms a group of all, the last one first, and reduces.
#[track_caller]
fn form(fleet: &mut Fleet, uuid: u32) {
    let mut list = names(fleet);
    list.reverse();
    let n = list.len();
    for (place, answer) in fleet.all(form_command(uuid, &list)).into_iter().enumerate() {
        assert_eq!(answer.good().number("rank"), n - 1 - place);
    }
    fleet.meet();
    for answer in fleet.reduce(Spec::sum(1000, u64::from(uuid))) {
        assert_eq!((answer.number("participants"), answer.number("failures")), (n, 0));
    }
}

/// Until the edges beside the ring stand, and everybody has been told so: a trap would take news of this group that is
/// still on its way for that of the next one.
#[track_caller]
fn settle(fleet: &mut Fleet) {
    assert!(fleet.iter().count() >= 3, "two have no such edges");
    loop {
        fleet.reduce_by("pairwise", Spec::sum(1000, 1));
        if fleet.algorithms(0).last().is_some_and(|name| name == "pairwise") {
            return;
        }
    }
}

/// One verdict for all of these, which names the dead one and asks for a forming.
#[track_caller]
fn one_verdict(answers: &[Answer], kind: &str, dead: &str) {
    for answer in answers {
        let answer = answer.clone().bad(kind);
        assert_eq!(answer.field("remedy"), "FormGroup", "{answer:?}");
        assert!(answer.text.contains(&dead[..8]), "the dead one is not named: {answer:?}");
        let texts = [&answer.text, &answers[0].text].map(|text| without_epochs(text));
        assert_eq!(texts[0], texts[1], "the verdict is not the same for all");
    }
}

/// A text without the numbers of epochs: operations that one break ends may have begun before and after the master has
/// noticed a change of the ring.
fn without_epochs(text: &str) -> String {
    let mut parts = text.split("epoch ");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |all, part| all + "epoch" + part.trim_start_matches(|c: char| c.is_ascii_digit()))
}

#[test]
fn a_death_at_each_point_of_a_forming() {
    let mut fleet = fleet(3);
    let points = [
        ("to master: FormGroup", false),
        ("from master: GroupPlan", false),
        ("to master: EdgeReport", false),
        ("from master: GroupFormed", true),
    ];
    for (case, (point, is_formed)) in points.into_iter().enumerate() {
        let (uuid, victim) = (10 * case as u32, case % 3);
        if case > 0 {
            settle(&mut fleet);
        }
        fleet[victim].ask(format!("trap kill 1 {point}")).good();
        let list = ids(&fleet);
        fleet.send(form_command(uuid, &list));
        fleet[victim].await_death();
        let dead = fleet[victim].id.clone().expect("connected");
        fleet.remove(victim);
        let answers = fleet.answers();
        if is_formed {
            answers.into_iter().for_each(|answer| drop(answer.good()));
            let answers = fleet.all(format!("reduce {} 0 0", Spec::sum(1000, 1)));
            one_verdict(&answers, "Aborted:GroupBroken", &dead);
        } else {
            // Members that call after the death has been noticed are told that the dead one is not connected, each for
            // itself.
            let (late, early): (Vec<Answer>, Vec<Answer>) =
                answers.into_iter().partition(|answer| answer.kind() == "Aborted:GroupBroken");
            assert!(late.is_empty() || point == "to master: FormGroup", "{late:?}");
            one_verdict(&late, "Aborted:GroupBroken", &dead);
            one_verdict(&early, "Aborted:PeerDied", &dead);
        }
        // Those who are left, and then with a process that has come for it.
        form(&mut fleet, uuid + 1);
        newcomer(&mut fleet, 3 + case);
        form(&mut fleet, uuid + 2);
    }
}

#[test]
fn a_death_between_formings_is_an_error_until_the_next_one() {
    let mut fleet = fleet(3);
    form(&mut fleet, 1);
    fleet[1].kill();
    let dead = fleet[1].id.clone().expect("connected");
    fleet.remove(1);
    for turn in 0..3 {
        let answers = fleet.all(format!("reduce {} {turn} 0", Spec::sum(LARGE, 1)));
        one_verdict(&answers, "Aborted:GroupBroken", &dead);
        assert!(answers.iter().all(|answer| answer.field("restored") == "true"));
    }
    let answers = fleet.all("sync 0 popular none");
    for answer in &answers {
        let answer = answer.clone().bad("Aborted:GroupBroken");
        assert!(answer.text.contains(&dead[..8]), "{answer:?}");
    }
    form(&mut fleet, 2);
}

#[test]
fn a_death_in_the_middle_of_an_operation_restores_and_names() {
    let mut fleet = fleet(3);
    for (case, point) in
        ["frame begins, stage 0 of 4", "frame complete, stage 1 of 4"].into_iter().enumerate()
    {
        form(&mut fleet, 10 * case as u32);
        let victim = 2 * case % 3;
        fleet[victim].ask(format!("trap kill 1 {point}")).good();
        fleet.send(format!("reduce {} 7 0 ring", Spec::sum(LARGE, 1)));
        fleet[victim].await_death();
        let dead = fleet[victim].id.clone().expect("connected");
        fleet.remove(victim);
        let answers = fleet.answers();
        one_verdict(&answers, "Aborted:GroupBroken", &dead);
        assert!(answers.iter().all(|answer| answer.field("restored") == "true"));
        newcomer(&mut fleet, 3 + case);
    }
}

#[test]
fn a_member_that_comes_late_is_waited_for_and_one_that_never_comes_is_named() {
    let mut fleet = fleet(2);
    let list: Vec<String> = ["w0", "w1", "w2"].map(String::from).into();
    fleet.send(form_command(1, &list));
    newcomer_late(&mut fleet, &list);
    for answer in fleet.answers() {
        answer.good();
    }
    fleet.meet();
    fleet.reduce(Spec::sum(1000, 1));
    let list: Vec<String> = ["w0", "w1", "w2", "nobody"].map(String::from).into();
    fleet[0].send(format!("form 2 500 {}", list.join(",")));
    (1..3).for_each(|place| fleet[place].send(form_command(2, &list)));
    let answers = fleet.answers();
    answers[0].clone().bad("TimedOut:CallTimeout");
    for answer in &answers {
        assert!(answer.text.contains("nobody (not connected)") && answer.text.contains("w0"), "{answer:?}");
        assert_eq!(answer.field("remedy"), "FormGroup");
    }
    // The group before is as it was: nobody is missing in it.
    fleet.reduce(Spec::sum(1000, 2));
}

fn newcomer_late(fleet: &mut Fleet, list: &[String]) {
    let waits = |fleet: &Fleet| {
        let status =
            pccl_master::query_status(&fleet.address, None, Duration::from_secs(20)).expect("an answer");
        status.waits.iter().any(|wait| wait.text.as_str().contains("w2, which is not connected"))
    };
    let deadline = std::time::Instant::now() + crate::peer::WATCHDOG;
    while !waits(fleet) {
        assert!(std::time::Instant::now() < deadline, "the status does not say for whom the forming waits");
        pccl_testkit::barrier::look_again();
    }
    newcomer(fleet, 2);
    let place = fleet.len() - 1;
    fleet[place].send(form_command(1, list));
}
