//! Small operations in flight, each with a tag of its own, which peers vote for, complete and replace by others.

use super::{PATIENCE, crowd::Crowd, launch, peer::Peer};
use pccl_protocol::{Algorithm, C2m, Complete, Descriptor, Initiate, M2c, OpId, PartDescriptor, VoteRef};
use pccl_quant::{DataType, ReduceOp};
use std::{
    cell::Cell,
    time::{Duration, Instant},
};

/// The work that peers do.
pub(crate) struct Load {
    pub(crate) peers: usize,
    /// Operations in flight together.
    pub(crate) flying: u64,
    /// Beside one that never ends: the group is never quiet.
    pub(crate) endless: bool,
    pub(crate) length: Duration,
    /// How often it is looked at what the master takes meanwhile.
    pub(crate) looks: u32,
}

fn initiate(op: OpId) -> C2m {
    let part = PartDescriptor::new(16, DataType::Float32, ReduceOp::Sum);
    C2m::Initiate(Initiate {
        op,
        descriptor: Descriptor::all_reduce(vec![part], Algorithm::Automatic),
        has_begun: false,
    })
}

fn vote(peer: &mut Peer, tag: u64) {
    let epoch = peer.ring.1;
    peer.post(&initiate(OpId { epoch, tag: tag.into(), attempt: 0 }));
}

/// An operation of all that runs, and that nobody completes.
pub(crate) fn begin(crowd: &mut Crowd, tag: u64) {
    for peer in crowd.peers.values_mut() {
        vote(peer, tag);
        peer.flush();
    }
    let (size, begun) = (crowd.peers.len(), Cell::new(0));
    let begins = crowd.run_with(
        PATIENCE,
        |_| begun.get() == size,
        |_, packet| begun.set(begun.get() + usize::from(matches!(packet, M2c::Commence(_)))),
    );
    assert!(begins, "the operation does not begin");
}

pub(crate) fn run(name: &str, load: &Load) {
    let Load { peers, flying, endless, length, looks } = *load;
    let master = launch();
    let mut crowd = Crowd::new(master.address);
    crowd.admit(peers);
    crowd.run(Duration::from_secs(2), |_| false);
    crowd.forget_measures();
    // The endless one has tag 0.
    let first = u64::from(!endless);
    for peer in crowd.peers.values_mut() {
        (first..=flying).for_each(|tag| vote(peer, tag));
        peer.flush();
    }
    let (began, before) = (Instant::now(), master.usage());
    let mut outcomes: u64 = 0;
    for look in 1..=looks {
        crowd.run_with(
            length / looks,
            |_| false,
            |peer, packet| match packet {
                M2c::Commence(commence) if commence.op.tag.number > 0 => {
                    let (op, fault, moved_bytes) = (commence.op, None, 1);
                    peer.post(&C2m::Complete(Complete { op, fault, moved_bytes }));
                }
                M2c::Outcome(outcome) => {
                    outcomes += 1;
                    vote(peer, outcome.op.tag.number + flying);
                }
                M2c::Stale(stale) => {
                    if let VoteRef::Collective(op) = stale.vote {
                        vote(peer, op.tag.number);
                    }
                }
                _ => {}
            },
        );
        if looks > 1 {
            println!(
                "{name}: {:>7} operations, {:>4} s: {:.1} MB, slowest echo {:.2} s",
                outcomes / peers as u64,
                (length * look / looks).as_secs(),
                master.usage().resident_mb,
                crowd.slowest_echo().as_secs_f64()
            );
        }
    }
    let (used_s, took_s) = (master.usage().cpu_s - before.cpu_s, began.elapsed().as_secs_f64());
    let operations = outcomes as f64 / peers as f64;
    println!(
        "{name}: {:.1} operations/s, {:.1} us of the master's CPU each ({:.2} us for each peer), \
         {:.0} % of a core, slowest echo {:.2} s",
        operations / took_s,
        used_s * 1e6 / operations,
        used_s * 1e6 / operations / peers as f64,
        used_s * 100.0 / took_s,
        crowd.slowest_echo().as_secs_f64()
    );
}
