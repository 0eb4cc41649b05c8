//! An all-reduce that ends at every frame: the inputs of the survivors are restored bit by bit, in the real library.
//! (An exhaustive test without a network, down to parts of a frame, stands beside the code.)

use crate::{
    fleet::{Fleet, config, full},
    kill::{Seen, reduce_with_death},
};
use pccl::ReduceOp;
use pccl_tests::spec::Spec;

/// Three frames in each chunk, the last one short, so that a rank receives twelve frames in four stages.
const COUNT: usize = 3 * 131_072 * 2 + 3 * 5000;
const FRAMES: usize = 12;

/// A victim dies at the beginning or at the end of each frame that it receives.
fn at_every_frame(in_place: bool, settings: &[&str]) {
    let mut fleet = Fleet::with(config(), 3, settings);
    for nth in 1..=FRAMES {
        for (case, point) in ["frame begins", "frame complete"].into_iter().enumerate() {
            if !full() && (nth + case) % 2 == 0 {
                continue;
            }
            for victim in if full() { 0..3 } else { nth % 3..nth % 3 + 1 } {
                let op = if nth % 2 == 0 { ReduceOp::Avg } else { ReduceOp::Prod };
                let spec = Spec { op, in_place, ..Spec::sum(COUNT, nth as u64) };
                reduce_with_death(&mut fleet, victim, point, nth, spec, Seen::Either);
                fleet.join(settings);
            }
        }
    }
}

#[test]
fn at_every_frame_in_place() {
    at_every_frame(true, &[]);
}

#[test]
fn at_every_frame_out_of_place() {
    at_every_frame(false, &[]);
}

/// Several frames are under way at once, each on a connection of its own.
#[test]
fn at_every_frame_of_several_connections() {
    at_every_frame(true, &["pool=3"]);
}
