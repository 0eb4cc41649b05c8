//! Which lanes are started, and what the end of one means.

use super::*;
use crate::state::compare::{Comparison, Levels};
use pccl_hash::{Tree, tree::MEBIBYTE};
use tinysockets::address::HostPort;

fn board(sources: usize, mebibytes: usize) -> Board {
    let mut board = Board::new(sources);
    let (own, theirs) = (vec![0; mebibytes * MEBIBYTE], vec![1; mebibytes * MEBIBYTE]);
    let (own, theirs) = (Levels::of(&Tree::Plain, &own, 1), Levels::of(&Tree::Plain, &theirs, 1));
    let comparison = Comparison::new(&own, theirs.root());
    let first = comparison.first().expect("they differ");
    let below = match first.part {
        StatePart::Mebibyte(_) => vec![first],
        StatePart::Digests(list) => {
            comparison.check(&first, &theirs.list(list).expect("there")).expect("honest")
        }
    };
    below.into_iter().for_each(|wanted| board.schedule.add(Job { tensor: 0, wanted }));
    board
}

fn sources(starts: &[Start]) -> Vec<(usize, u16)> {
    starts.iter().map(|start| (start.source, start.index)).collect()
}

fn broke() -> Fault {
    Fault::lost(io::ErrorKind::ConnectionReset.into())
}

#[test]
fn little_work_is_for_one_source_and_much_for_all() {
    assert_eq!(sources(&board(3, 1).start(Duration::ZERO, 24)), [(0, 0)]);
    assert_eq!(sources(&board(3, 9).start(Duration::ZERO, 24)), [(0, 0), (1, 0)]);
    assert_eq!(sources(&board(3, 100).start(Duration::ZERO, 24)), [(0, 0), (1, 0), (2, 0)]);
    assert_eq!(sources(&board(3, 100).start(Duration::ZERO, 2)), [(0, 0), (1, 0)]);
}

#[test]
fn where_nothing_moves_the_next_source_is_asked() {
    let mut board = board(3, 1);
    assert_eq!(sources(&board.start(Duration::ZERO, 24)), [(0, 0)]);
    assert_eq!(sources(&board.start(HEDGE / 2, 24)), []);
    assert_eq!(sources(&board.start(HEDGE, 24)), [(1, 0)]);
    assert_eq!(sources(&board.start(HEDGE * 2, 24)), [(2, 0)]);
    assert_eq!(sources(&board.start(HEDGE * 1_000_000, 24)), []);
}

#[test]
fn a_connection_that_stands_gets_others_beside_it_while_there_is_work() {
    let mut board = board(1, 40);
    assert_eq!(sources(&board.start(Duration::ZERO, 24)), [(0, 0)]);
    board.sources[0].worth = 3;
    let spare = board.start(Duration::ZERO, 24);
    assert_eq!(sources(&spare), [(0, 1), (0, 2)]);
    // One that is not had, or closed at once, is no fault, and not tried again.
    assert!(!board.lane_ended(spare[1], false, Err(Fault::unreached("refused"))));
    assert_eq!((sources(&board.start(Duration::ZERO, 24)), board.running()), (vec![], 2));
    assert!(!board.lane_ended(spare[0], false, Err(broke())));
    assert_eq!((sources(&board.start(Duration::ZERO, 24)), board.running()), (vec![], 1));
    // One that lies is.
    board.sources[0].worth = 2;
    let spare = board.start(Duration::ZERO, 24);
    assert_eq!(sources(&spare), [(0, 1)]);
    assert!(board.lane_ended(spare[0], false, Err(Fault::refused("wrong bytes"))));
}

#[test]
fn a_broken_connection_is_made_again_once_and_a_failed_source_left_out() {
    let mut board = board(2, 1);
    let first = board.start(Duration::ZERO, 24)[0];
    let job = board.schedule.take(first.lane, Duration::ZERO).expect("work");
    assert!(!board.lane_ended(first, true, Err(broke())));
    let again = board.start(Duration::ZERO, 24)[0];
    assert_eq!((again.source, again.index), (0, 0));
    assert_eq!(board.schedule.take(again.lane, Duration::ZERO), Some(job));
    assert!(board.lane_ended(again, false, Err(broke())));
    let other = board.start(Duration::ZERO, 24)[0];
    assert_eq!(other.source, 1);
    assert!(!board.is_lost());
    assert!(board.lane_ended(other, true, Err(Fault::refused("wrong bytes"))));
    assert!(board.is_lost());
    assert_eq!((sources(&board.start(HEDGE * 9, 24)), board.schedule.waiting()), (vec![], 1));
}

/// A firewall that resets what it has forgotten does so in a handshake too, which is no fault of the source.
#[test]
fn a_connection_that_ends_before_it_is_proven_is_made_again_once_and_one_that_is_refused_is_not() {
    let target = || HostPort::new("source", 1);
    let ended = || Fault::undialed(&DialError::NoAnswer { target: target() });
    let mut board = board(2, 1);
    let first = board.start(Duration::ZERO, 24)[0];
    assert!(!board.lane_ended(first, false, Err(ended())));
    let again = board.start(Duration::ZERO, 24)[0];
    assert_eq!((again.source, again.index), (0, 0));
    assert!(board.lane_ended(again, false, Err(ended())));
    let other = board.start(Duration::ZERO, 24)[0];
    assert_eq!(other.source, 1);
    let refused = Fault::undialed(&DialError::ConnectionRefused { target: target() });
    assert!(board.lane_ended(other, false, Err(refused)));
}

#[test]
fn connections_that_break_together_after_each_has_given_something_are_made_again() {
    let mut board = board(1, 40);
    for _ in 0..3 {
        let mut lanes = board.start(Duration::ZERO, 24);
        board.sources[0].worth = 2;
        lanes.extend(board.start(Duration::ZERO, 24));
        assert_eq!(lanes.len(), 2);
        for lane in &lanes {
            let job = board.schedule.take(lane.lane, Duration::ZERO).expect("work");
            board.finish(0, &job, Vec::new(), MEBIBYTE, Duration::ZERO);
        }
        lanes.into_iter().for_each(|lane| assert!(!board.lane_ended(lane, true, Err(broke()))));
    }
    // One that breaks before it has given anything, after others broke, is the last.
    let lane = board.start(Duration::ZERO, 1)[0];
    assert!(board.lane_ended(lane, false, Err(broke())));
}

#[test]
fn what_is_in_its_place_ends_the_fetch() {
    let mut board = board(1, 1);
    let lane = board.start(Duration::ZERO, 24)[0];
    let job = board.schedule.take(lane.lane, Duration::ZERO).expect("work");
    board.expect(&job, 10);
    assert!(board.schedule.arrive(&job));
    board.finish(0, &job, Vec::new(), 10, Duration::from_secs(1));
    assert!(matches!(board.over, Some(Over::Done)));
    assert_eq!((board.done_bytes, board.total_bytes, board.sources[0].gave_bytes), (10, 10, 10));
    // An end of a lane is nobody's fault now.
    assert!(!board.lane_ended(lane, true, Err(broke())));
    assert!(board.sources[0].fault.is_none());
}
