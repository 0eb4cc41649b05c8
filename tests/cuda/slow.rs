//! A device that is slow, or busy with something else: nobody takes that for an edge on which nothing moves.

use crate::{config, device, memory, noise, peers_under};
use pccl::{Block, Call, DataType, MasterConfig, Quantisation, ReduceOp, Scheme, Tensor};
use pccl_quant_reference::ring_all_reduce_oracle;
use pccl_testkit::standin::Standin;
use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

const BYTES: usize = 16 << 20;

/// The time that counts as a standstill of an edge.
const STANDSTILL: Duration = Duration::from_secs(1);

fn impatient() -> MasterConfig {
    let beat_interval = Some(Duration::from_millis(200));
    MasterConfig { edge_timeout: STANDSTILL, beat_interval, ..config() }
}

/// Copies go on all the time, and who waits for them takes nothing from the other for several times as long as makes a
/// standstill.
#[test]
fn slow_copies_are_waited_for() {
    let standin = Standin::load().expect("the stand-in");
    let (address, _) = device(&standin, &noise(BYTES, 1));
    let ring = Mutex::new(vec![Vec::new(); 2]);
    let results = peers_under(impatient(), 2, |number, comm| {
        let mut own = noise(BYTES, number as u64);
        ring.lock().expect("no panic")[comm.world().rank].clone_from(&own);
        if number == 0 {
            return comm.call(vec![Tensor::in_place(&mut own, ReduceOp::Max)], ()).map(|_| own);
        }
        // Some three calls for each MiB, so that half of it is down after a few seconds.
        standin.slow(100);
        let tensor = Tensor::on_device(memory(address, BYTES), DataType::Uint8, ReduceOp::Max);
        let reduced = comm.call(vec![tensor.expect("a tensor")], ());
        standin.slow(0);
        reduced.map(|_| standin.get(address, BYTES))
    });
    let ring = ring.into_inner().expect("no panic");
    let ring: Vec<&[u8]> = ring.iter().map(Vec::as_slice).collect();
    let expected = ring_all_reduce_oracle(DataType::Uint8, ReduceOp::Max, &ring);
    for result in results {
        assert!(result.expect("reduced") == expected);
    }
}

/// A kernel that has to wait for the device, on a thread that receives.
#[test]
fn a_kernel_that_waits_is_waited_for() {
    let standin = Standin::load().expect("the stand-in");
    let affine = Quantisation::new(Scheme::BlockAffineU8(Block::B256));
    let (address, _) = device(&standin, &vec![0; BYTES]);
    let is_over = AtomicBool::new(false);
    let results = peers_under(impatient(), 2, |number, comm| {
        if number == 0 {
            let mut own = vec![1.0_f32; BYTES / size_of::<f32>()];
            let tensor = Tensor::in_place(&mut own, ReduceOp::Sum);
            let reduced = comm.call(Call::all_reduce(vec![tensor]).quantised(affine), ()).map(drop);
            is_over.store(true, Ordering::SeqCst);
            return reduced;
        }
        let has_moved = || comm.status().expect("a status").peers.iter().any(|it| it.moved_bytes > 0);
        let busy = || {
            while !is_over.load(Ordering::SeqCst) && !has_moved() {
                pccl_testkit::barrier::look_again();
            }
            standin.slow(3_000);
            let until = Instant::now() + 5 * STANDSTILL;
            while !is_over.load(Ordering::SeqCst) && Instant::now() < until {
                pccl_testkit::barrier::look_again();
            }
            standin.slow(0);
        };
        thread::scope(|scope| {
            scope.spawn(busy);
            let tensor = Tensor::on_device(memory(address, BYTES), DataType::Float32, ReduceOp::Sum);
            let call = Call::all_reduce(vec![tensor.expect("a tensor")]).quantised(affine);
            let reduced = comm.call(call, ()).map(drop);
            is_over.store(true, Ordering::SeqCst);
            reduced
        })
    });
    results.into_iter().for_each(|result| result.expect("reduced"));
    let ones: Vec<u8> = 1.0_f32.to_le_bytes().into_iter().cycle().take(BYTES).collect();
    assert!(standin.get(address, BYTES) == ones, "what one gives, and nothing of the other");
}
