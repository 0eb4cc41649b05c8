//! The lines of `docs/semantics/` in numbers that can be checked by hand. Peers are threads here.

use half::{bf16, f16};
use pccl::{Communicator, Element, Error, Master, ReduceOp, ReduceOptions};
use pccl_testkit::barrier::Barrier;
use std::{fmt::Debug, time::Duration};

/// Runs `body` on each of `n` connected peers with its rank; the results are in the order of ranks.
fn ranks<R: Send>(n: usize, body: impl Fn(usize, &Communicator) -> R + Sync) -> Vec<R> {
    let master = Master::launch(crate::fleet::config()).expect("the master starts");
    let address = master.local_addr().to_string();
    let together = Barrier::new(n);
    let mut results: Vec<(usize, R)> = std::thread::scope(|scope| {
        let peer = || {
            let comm = Communicator::builder(&address).first_ports(0, 0).build().expect("valid settings");
            comm.connect().expect("connected");
            comm.wait_for_world(n, Some(Duration::from_secs(60))).expect("all are there");
            together.wait();
            let rank = comm.world().rank;
            let result = body(rank, &comm);
            together.wait();
            (rank, result)
        };
        let threads: Vec<_> = (0..n).map(|_| scope.spawn(peer)).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    results.sort_by_key(|(rank, _)| *rank);
    results.into_iter().map(|(_, result)| result).collect()
}

/// All ranks reduce `count` elements, each its own value everywhere; all have to get the same `wanted`.
#[track_caller]
fn reduces<T: Element + PartialEq + Debug>(values: &[T], count: usize, op: ReduceOp, wanted: &[T]) {
    for result in ranks(values.len(), |rank, comm| {
        let mut data = vec![values[rank]; count];
        comm.all_reduce(&mut data, op).expect("reduced");
        data
    }) {
        assert_eq!(result, wanted);
    }
}

/// Chunk c starts with rank c's value, and each later rank adds its own: here 10^8 - 10^8 + 1 in three orders.
#[test]
fn operands_are_folded_in_ring_order() {
    reduces(&[1e8f32, -1e8, 1.0], 3, ReduceOp::Sum, &[1.0, 0.0, 0.0]);
}

/// 2048 + 1 is 2048 in f16, but 2048 + 2 is not: what is rounded depends on the chunk, and on nothing else.
#[test]
fn sixteen_bit_floats_round_once_per_hop() {
    let h = f16::from_f32;
    reduces(&[h(2048.0), h(1.0), h(1.0)], 3, ReduceOp::Sum, &[h(2048.0), h(2050.0), h(2048.0)]);
    let b = bf16::from_f32;
    reduces(&[b(256.0), b(1.0), b(1.0)], 3, ReduceOp::Sum, &[b(256.0), b(258.0), b(256.0)]);
}

#[test]
fn an_average_is_one_division() {
    reduces(&[1.0f32, 1.0, 2.0], 2, ReduceOp::Avg, &[4.0f32 / 3.0; 2]);
    reduces(&[1.0f64, 1.0, 2.0], 2, ReduceOp::Avg, &[4.0f64 / 3.0; 2]);
    reduces(&[f16::ONE, f16::ONE, f16::from_f32(2.0)], 2, ReduceOp::Avg, &[f16::from_f32(4.0 / 3.0); 2]);
}

#[test]
fn integers_wrap_and_their_average_truncates() {
    reduces(&[200u8, 100], 2, ReduceOp::Sum, &[44, 44]);
    reduces(&[200u8, 100], 2, ReduceOp::Avg, &[22, 22]);
    reduces(&[-3i8, -2], 2, ReduceOp::Avg, &[-2, -2]);
    reduces(&[i64::MAX, 2], 1, ReduceOp::Prod, &[-2]);
    reduces(&[i32::MIN, 7, -9], 4, ReduceOp::Max, &[7; 4]);
}

#[test]
fn not_a_number_wins() {
    let bits = |values: &[f32], op| -> Vec<Vec<u32>> {
        ranks(values.len(), |rank, comm| {
            let mut data = [values[rank]; 2];
            comm.all_reduce(&mut data, op).expect("reduced");
            data.map(f32::to_bits).to_vec()
        })
    };
    // A computed NaN is the one quiet NaN, whatever went in; in a maximum it is the one that went in.
    let nan = f32::from_bits(0xFFC0_1234);
    for op in [ReduceOp::Sum, ReduceOp::Avg, ReduceOp::Prod] {
        assert_eq!(bits(&[nan, 1.0], op), [[0x7FC0_0000; 2]; 2]);
    }
    assert_eq!(bits(&[f32::INFINITY, f32::NEG_INFINITY], ReduceOp::Sum), [[0x7FC0_0000; 2]; 2]);
    for op in [ReduceOp::Max, ReduceOp::Min] {
        assert_eq!(bits(&[nan, 1.0], op), [[0xFFC0_1234; 2]; 2]);
        assert_eq!(bits(&[1.0, nan], op), [[0xFFC0_1234; 2]; 2]);
    }
    // Zeros have signs.
    assert_eq!(bits(&[-0.0, 0.0], ReduceOp::Max), [[0; 2]; 2]);
    assert_eq!(bits(&[-0.0, 0.0], ReduceOp::Min), [[0x8000_0000; 2]; 2]);
    assert_eq!(bits(&[-0.0, -0.0], ReduceOp::Sum), [[0x8000_0000; 2]; 2]);
}

#[test]
fn no_elements_and_fewer_than_peers() {
    reduces::<f32>(&[1.0, 2.0, 3.0], 0, ReduceOp::Sum, &[]);
    reduces(&[1u32, 2, 3], 1, ReduceOp::Sum, &[6]);
    reduces(&[1u32, 2, 3], 2, ReduceOp::Sum, &[6, 6]);
}

/// A buffer that is only read may be read by several operations; buffers that differ in length are refused.
#[test]
fn buffers_that_are_shared_or_do_not_fit() {
    ranks(2, |rank, comm| {
        let send = vec![rank as u32 + 1; 50_000];
        let (mut sum, mut product) = (vec![0; 50_000], vec![0; 50_000]);
        comm.scope(|scope| {
            let first = scope.all_reduce_into(&send, &mut sum, ReduceOptions::new(ReduceOp::Sum).tag(1));
            let second =
                scope.all_reduce_into(&send, &mut product, ReduceOptions::new(ReduceOp::Prod).tag(2));
            first.expect("launched").wait().expect("reduced");
            second.expect("launched").wait().expect("reduced");
        });
        assert!(sum.iter().all(|&value| value == 3) && product.iter().all(|&value| value == 2));
        let short = comm.all_reduce_into(&send, &mut sum[1..], ReduceOp::Sum);
        assert!(matches!(short, Err(Error::InvalidArgument(_))), "{short:?}");
    });
}
