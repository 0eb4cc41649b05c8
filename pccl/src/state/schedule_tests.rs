//! Random interleavings of lanes that take, deliver, stand still and die: nothing is lost and nothing is done twice.

use super::*;
use crate::state::compare::{Comparison, Levels};
use pccl_hash::{Tree, tree::MEBIBYTE};
use proptest::prelude::*;
use std::collections::BTreeSet;

/// The pieces of a tensor of this number of MiB, all of which differ.
fn pieces(mebibytes: usize) -> Vec<Job> {
    let (own, theirs) = (vec![0; mebibytes * MEBIBYTE], vec![1; mebibytes * MEBIBYTE]);
    let (own, theirs) = (Levels::of(&Tree::Plain, &own, 1), Levels::of(&Tree::Plain, &theirs, 1));
    let comparison = Comparison::new(&own, theirs.root());
    let first = comparison.first().expect("they differ");
    let StatePart::Digests(list) = first.part else { return vec![Job { tensor: 0, wanted: first }] };
    let below = comparison.check(&first, &theirs.list(list).expect("there")).expect("honest");
    below.into_iter().map(|wanted| Job { tensor: 0, wanted }).collect()
}

fn schedule(jobs: &[Job]) -> Schedule {
    let mut schedule = Schedule::default();
    jobs.iter().for_each(|job| schedule.add(*job));
    schedule
}

const LATER: Duration = Duration::from_secs(10);

#[test]
fn what_a_dead_lane_owes_comes_first_again() {
    let jobs = pieces(4);
    let mut schedule = schedule(&jobs);
    let taken: Vec<Job> = (0..3).filter_map(|_| schedule.take(1, Duration::ZERO)).collect();
    assert_eq!(taken, jobs[..3]);
    assert!(schedule.arrive(&jobs[0]));
    schedule.finish(&jobs[0], []);
    schedule.lose(1);
    assert_eq!(schedule.waiting(), 3);
    let taken: Vec<Job> = (0..4).filter_map(|_| schedule.take(2, Duration::ZERO)).collect();
    assert_eq!(taken, jobs[1..]);
}

#[test]
fn what_is_overdue_is_asked_for_elsewhere_and_counts_once() {
    let jobs = pieces(2);
    let mut schedule = schedule(&jobs);
    for job in &jobs {
        assert_eq!(schedule.take(1, Duration::ZERO), Some(*job));
    }
    assert_eq!(schedule.steal(1, LATER), None, "it asked for all of it itself");
    assert_eq!(schedule.steal(2, OVERDUE / 2), None);
    assert_eq!(schedule.next_steal(2), Some(OVERDUE));
    assert_eq!(schedule.steal(2, OVERDUE), Some(jobs[0]));
    assert_eq!(schedule.steal(2, OVERDUE), Some(jobs[1]));
    // A third one waits as long again.
    assert_eq!((schedule.steal(3, OVERDUE), schedule.next_steal(3)), (None, Some(OVERDUE * 2)));
    assert!(schedule.arrive(&jobs[0]) && !schedule.arrive(&jobs[0]));
    // It is here: nobody else needs to ask, and the death of those who asked is nothing to it.
    assert_eq!(schedule.steal(3, LATER), Some(jobs[1]));
    schedule.lose(1);
    schedule.lose(2);
    schedule.finish(&jobs[0], []);
    assert!(!schedule.arrive(&jobs[0]) && !schedule.is_done());
    assert!(schedule.arrive(&jobs[1]));
    schedule.finish(&jobs[1], []);
    assert!(schedule.is_done());
}

#[derive(Debug, Clone)]
enum Step {
    Take(LaneId),
    Steal(LaneId),
    /// The lane delivers the oldest thing that it owes.
    Deliver(LaneId),
    Die(LaneId),
    Pass,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let lane = || 0..4_u32;
    prop::collection::vec(
        prop_oneof![
            4 => lane().prop_map(Step::Take),
            2 => lane().prop_map(Step::Steal),
            4 => lane().prop_map(Step::Deliver),
            1 => lane().prop_map(Step::Die),
            2 => Just(Step::Pass),
        ],
        0..120,
    )
}

proptest! {
    #[test]
    fn every_part_is_placed_once(count in 1..9_usize, steps in steps()) {
        let jobs = pieces(count);
        let mut schedule = schedule(&jobs);
        let mut owed: Vec<VecDeque<Job>> = vec![VecDeque::new(); 4];
        let mut placed = BTreeSet::new();
        let mut now = Duration::ZERO;
        // In the end one lane is left, which does all that is still missing.
        let rest = (1..4).map(Step::Die).chain((0..4 * jobs.len()).flat_map(|_| {
            [Step::Take(0), Step::Pass, Step::Steal(0), Step::Deliver(0)]
        }));
        for step in steps.into_iter().chain(rest) {
            match step {
                Step::Take(lane) => owed[lane as usize].extend(schedule.take(lane, now)),
                Step::Steal(lane) => {
                    if let Some(job) = schedule.steal(lane, now) {
                        prop_assert!(!owed[lane as usize].contains(&job), "asked twice over one lane");
                        owed[lane as usize].push_back(job);
                    }
                }
                Step::Deliver(lane) => {
                    if let Some(job) = owed[lane as usize].pop_front()
                        && schedule.arrive(&job)
                    {
                        prop_assert!(placed.insert(job.key()), "placed twice");
                        schedule.finish(&job, []);
                    }
                }
                Step::Die(lane) => {
                    owed[lane as usize].clear();
                    schedule.lose(lane);
                }
                Step::Pass => now += OVERDUE,
            }
            prop_assert_eq!(schedule.is_done(), placed.len() == jobs.len());
        }
        prop_assert!(schedule.is_done());
    }
}
