//! Calls that do not fit together, or that ask for much.

use crate::support::{Meeting, run_plain, wait_until};
use half::bf16;
use pccl::{Error, ReduceOp, ReduceOptions};

/// Different tags wait for ever in the original, and nobody says so. Here each wait is reported to everybody, with the
/// peer that it waits for, and ends once that peer makes the call.
#[test]
fn bug_17_different_tags_are_reported_and_nothing_is_lost() {
    let step = Meeting::new(2);
    run_plain(2, |index, comm| {
        let (own, other) = ([1, 2][index], [2, 1][index]);
        let (mut first, mut second) = ([own as f32; 100], [other as f32; 100]);
        let missing = comm.world().ring[1 - comm.world().rank].to_string();
        comm.scope(|ops| {
            let sum = |tag| ReduceOptions::new(ReduceOp::Sum).tag(tag);
            let early = ops.all_reduce(&mut first, sum(own)).expect("launched");
            wait_until("both waits are reported", || {
                let waits = comm.status().expect("status").waits;
                let says = |tag: u64, who: &str| {
                    waits.iter().any(|wait| {
                        let text = wait.text.as_str();
                        text.contains(&format!("all-reduce tag {tag} ")) && text.contains(who)
                    })
                };
                says(own, &missing) && says(other, "")
            });
            step.wait();
            let late = ops.all_reduce(&mut second, sum(other)).expect("launched");
            early.wait().expect("no abort");
            late.wait().expect("no abort");
        });
        assert_eq!((first, second), ([own as f32 * 2.0; 100], [other as f32 * 2.0; 100]));
    });
}

/// More operations than the pool of the original has room for end the process by an exception on a worker thread. Here
/// the one that is too many is refused, and the others run.
#[test]
fn bug_18_one_operation_too_many_is_an_error() {
    const MOST: usize = pccl_protocol::limits::MAX_TAGS_IN_FLIGHT;
    run_plain(2, |_, comm| {
        let mut data = vec![[1i32; 3]; MOST + 1];
        comm.scope(|ops| {
            let mut launched = Vec::new();
            for (tag, data) in data.iter_mut().enumerate() {
                let result = ops.all_reduce(data, ReduceOptions::new(ReduceOp::Sum).tag(tag as u64));
                match result {
                    Ok(op) => launched.push(op),
                    // Those that are through count until they have been waited for.
                    Err(error) => assert!(tag >= MOST && matches!(error, Error::InvalidUsage(_)), "{error}"),
                }
            }
            assert_eq!(launched.len(), MOST);
            for op in launched {
                op.wait().expect("no abort");
            }
        });
        assert!(data[..MOST].iter().all(|sum| *sum == [2; 3]));
        assert_eq!(data[MOST], [1; 3]);
    });
}

/// Fewer elements than peers end the process of the original when quantised, and 16-bit floats always do.
#[test]
fn bug_19_sixteen_bit_floats_and_tiny_tensors_are_reduced() {
    run_plain(3, |index, comm| {
        for op in ReduceOp::ALL {
            let mut one = [bf16::from_f32(index as f32 + 1.0)];
            comm.all_reduce(&mut one, op).expect("no abort");
            let expected = match op {
                ReduceOp::Sum | ReduceOp::Prod => 6.0,
                ReduceOp::Avg => 2.0,
                ReduceOp::Max => 3.0,
                ReduceOp::Min => 1.0,
            };
            assert_eq!(one[0].to_f32(), expected, "{op:?}");
        }
    });
}

/// Buffers that do not begin at a multiple of 16 bytes abort the process of the original when hashed; slices of arrays
/// seldom do.
#[test]
fn bug_25_slices_that_begin_anywhere_are_reduced() {
    run_plain(2, |index, comm| {
        for start in 0..17 {
            let mut bytes = vec![7u8; 5000];
            bytes[start..start + 4001].fill(index as u8 + 1);
            comm.all_reduce(&mut bytes[start..start + 4001], ReduceOp::Sum).expect("no abort");
            let (inside, outside) = (&bytes[start..start + 4001], [&bytes[..start], &bytes[start + 4001..]]);
            assert!(inside.iter().all(|&sum| sum == 3), "start {start}");
            assert!(outside.concat().iter().all(|&byte| byte == 7), "start {start}");
            let mut floats = vec![0.5f32; 300];
            comm.all_reduce(&mut floats[start..start + 201], ReduceOp::Sum).expect("no abort");
            assert!(floats[start..start + 201].iter().all(|&sum| sum == 1.0), "start {start}");
        }
    });
}
