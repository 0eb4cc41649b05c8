//! Two peers with unique tags in batches, beside an operation that never ends: the group is never quiet.

use super::{PATIENCE, crowd::Crowd, launch, peer::Peer};
use pccl_protocol::{Algorithm, C2m, Complete, Descriptor, Initiate, M2c, OpId, PartDescriptor, VoteRef};
use pccl_quant::{DataType, ReduceOp};
use std::{
    cell::Cell,
    time::{Duration, Instant},
};

/// Tags in flight together.
const BATCH: u64 = 16;

fn initiate(op: OpId) -> C2m {
    let part = PartDescriptor::new(16, DataType::Float32, ReduceOp::Sum);
    C2m::Initiate(Initiate { op, descriptor: Descriptor::all_reduce(vec![part], Algorithm::Automatic) })
}

/// An operation of all that runs, and that nobody completes.
pub(crate) fn begin(crowd: &mut Crowd, tag: u64) {
    for peer in crowd.peers.values_mut() {
        let epoch = peer.ring.1;
        peer.send(&initiate(OpId { epoch, tag: tag.into(), attempt: 0 }));
    }
    let (size, begun) = (crowd.peers.len(), Cell::new(0));
    let begins = crowd.run_with(
        PATIENCE,
        |_| begun.get() == size,
        |_, packet| begun.set(begun.get() + usize::from(matches!(packet, M2c::Commence(_)))),
    );
    assert!(begins, "the operation does not begin");
}

pub(crate) fn run(seconds: usize) {
    let master = launch();
    let mut crowd = Crowd::new(master.address);
    crowd.admit(2);
    crowd.forget_measures();
    let (began, length) = (Instant::now(), Duration::from_secs(seconds as u64));
    let before = master.usage();
    let mut done: u64 = 0;
    let vote = |peer: &mut Peer, tag: u64| {
        let epoch = peer.ring.1;
        peer.send(&initiate(OpId { epoch, tag: tag.into(), attempt: 0 }));
    };
    // The large operation: tag 0 begins, and nobody completes it.
    for peer in crowd.peers.values_mut() {
        (0..=BATCH).for_each(|tag| vote(peer, tag));
    }
    let mut next_look = began;
    while began.elapsed() < length {
        crowd.run_with(
            length / 10,
            |_| false,
            |peer, packet| match packet {
                M2c::Commence(commence) if commence.op.tag.number > 0 => {
                    let (op, fault, moved_bytes) = (commence.op, None, 1);
                    peer.send(&C2m::Complete(Complete { op, fault, moved_bytes }));
                }
                M2c::Outcome(outcome) => {
                    done += 1;
                    vote(peer, outcome.op.tag.number + BATCH);
                }
                M2c::Stale(stale) => {
                    if let VoteRef::Collective(op) = stale.vote {
                        vote(peer, op.tag.number);
                    }
                }
                _ => {}
            },
        );
        if Instant::now() >= next_look {
            next_look += length / 10;
            let now = master.usage();
            println!(
                "tags: {:>7} operations, {:>4} s: {:.1} MB, slowest echo {:.2} s",
                done / 2,
                began.elapsed().as_secs(),
                now.resident_mb,
                crowd.slowest_echo().as_secs_f64()
            );
        }
    }
    let used = master.usage().cpu_s - before.cpu_s;
    println!(
        "tags: {:.0} operations/s, {:.1} us of the master's CPU each, slowest echo {:.2} s",
        done as f64 / 2.0 / began.elapsed().as_secs_f64(),
        used * 1e6 / (done as f64 / 2.0),
        crowd.slowest_echo().as_secs_f64()
    );
}
