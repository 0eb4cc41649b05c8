//! How far averages of quantised tensors are off that went between processes. Their bytes are those of the oracles, as
//! `Fleet::check` finds; what is measured here are these bytes.

use crate::{fleet::Fleet, quantised::quantised};
use pccl::{Block, DataType, ReduceOp, Scheme};
use pccl_tests::{
    pattern,
    spec::{Spec, Way},
};

const BLOCK: usize = 256;
/// Chunks of whole blocks for 3 and for 8 peers.
const COUNT: usize = 24 * BLOCK * 20;

fn floats(bytes: &[u8]) -> Vec<f64> {
    bytes.as_chunks().0.iter().map(|&bytes| f64::from(f32::from_le_bytes(bytes))).collect()
}

fn range(block: &[f64]) -> f64 {
    block.iter().fold(f64::MIN, |most, x| most.max(*x))
        - block.iter().fold(f64::MAX, |least, x| least.min(*x))
}

/// An average by this schedule: what every peer puts in, and what comes out.
fn average(fleet: &mut Fleet, schedule: &str) -> (Vec<Vec<f64>>, Vec<f64>) {
    let spec: Spec = quantised(DataType::Float32, ReduceOp::Avg, COUNT, Scheme::BlockAffineU8(Block::B256));
    let answer = fleet.reduce_by(schedule, spec).remove(0);
    assert_eq!(answer.field("algorithm"), schedule);
    let orders = fleet.orders(&answer, answer.number("participants"));
    let results = orders.iter().map(|order| (order, spec.result(order, Way::of(schedule, &[]))));
    let (order, result) = results
        .into_iter()
        .find(|(_, result)| pattern::digest(result) == answer.field("digests"))
        .expect("the bytes of one of the orders");
    (order.iter().map(|&index| floats(&spec.input(index))).collect(), floats(&result))
}

/// Root of the mean square of the errors, relative to that of the averages, over blocks of ordinary numbers. Each of
/// those errors is within `limit` times the mean range of the ranks' blocks. Where a rank has a NaN or an infinity, all
/// is NaN.
fn error(fleet: &mut Fleet, schedule: &str, limit: f64) -> f64 {
    let (inputs, result) = average(fleet, schedule);
    let ranks = inputs.len() as f64;
    let (mut squares, mut size, mut blocks, mut poisoned) = (0.0, 0.0, 0, 0);
    for (number, result) in result.chunks(BLOCK).enumerate() {
        let inputs: Vec<&[f64]> =
            inputs.iter().map(|input| &input[number * BLOCK..(number + 1) * BLOCK]).collect();
        let all = || inputs.iter().flat_map(|input| input.iter());
        if all().any(|x| !x.is_finite()) {
            poisoned += 1;
            assert!(result.iter().all(|x| x.is_nan()), "block {number} of {schedule}: {result:?}");
            continue;
        }
        if all().any(|x| x.abs() > 1e30) {
            // Sums of such numbers may become infinite, and are no measure of errors.
            continue;
        }
        assert!(result.iter().all(|x| x.is_finite()), "block {number} of {schedule} has nothing special");
        blocks += 1;
        let mean_range = inputs.iter().map(|input| range(input)).sum::<f64>() / ranks;
        for (index, result) in result.iter().enumerate() {
            let exact = inputs.iter().map(|input| input[index]).sum::<f64>() / ranks;
            assert!((exact - result).abs() <= limit * mean_range, "{exact} is {result} by {schedule}");
            squares += (exact - result).powi(2);
            size += exact.powi(2);
        }
    }
    assert!(blocks > 100 && poisoned > 10, "{blocks} ordinary blocks, {poisoned} that are NaN");
    (squares / size).sqrt()
}

/// Every contribution and the result are rounded once, so that the bound, R / 255, and the error do not depend on the
/// number of peers. Around the ring a partial sum is rounded at each hop; its bound is a sum over them.
#[test]
fn the_error_of_an_exchange_does_not_depend_on_the_number_of_peers() {
    const ROUNDING: f64 = 1e-6;
    let mut few = Fleet::new(3);
    few.await_pairwise();
    let at_3 = error(&mut few, "pairwise", 1.0 / 255.0 + ROUNDING);
    let mut many = Fleet::new(8);
    many.await_pairwise();
    let at_8 = error(&mut many, "pairwise", 1.0 / 255.0 + ROUNDING);
    let ring_at_8 = error(&mut many, "ring", 9.0 / 1020.0 + ROUNDING);
    println!("relative errors: pairwise {at_3:.5} at 3, {at_8:.5} at 8; ring {ring_at_8:.5} at 8");
    assert!((0.8..1.25).contains(&(at_8 / at_3)), "{at_3} at 3 peers, {at_8} at 8");
    assert!(ring_at_8 > 1.3 * at_8, "{ring_at_8} around the ring, {at_8} by exchange");
}
