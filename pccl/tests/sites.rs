//! All-reduces in two levels over sites from inside: peers are threads of this process, with a real master.

mod mesh;

use mesh::{PATIENCE, in_sites, reduce_by, values};
use pccl::{Algorithm, Communicator, Element, Error, ReduceInfo, ReduceOp, ReduceOptions, Schedule};
use std::time::Instant;

/// Reduces until it went over sites.
fn over_sites<T: Element>(comm: &Communicator, data: &[T], op: ReduceOp) -> (Vec<T>, ReduceInfo) {
    reduce_by(comm, data, ReduceOptions::new(op).schedule(Schedule::Sites), Algorithm::Sites)
}

#[test]
fn all_have_the_same_sum_whatever_the_sites() {
    let all: [&[&str]; 5] = [
        &["a", "a", "b"],
        &["a", "b", "b", "a", "b"],
        &["a", "a", "b", "b", "c", "c"],
        // Without a name: sites of one.
        &["a", "", "a", "a", ""],
        // More peers than have a mesh whatever it is worth.
        &["a", "b", "c", "a", "b", "c", "a", "b", "c"],
    ];
    for sites in all {
        let count = 100_003;
        let results = in_sites(sites, |index, comm| {
            let floats = over_sites(comm, &values(index, count), ReduceOp::Avg);
            let integers: Vec<i32> = (0..count as i32).map(|i| i.wrapping_mul(index as i32 - 1)).collect();
            let sum = over_sites(comm, &integers, ReduceOp::Sum).0;
            let mut ring = integers;
            let options = ReduceOptions::new(ReduceOp::Sum).schedule(Schedule::Ring);
            comm.all_reduce(&mut ring, options).expect("nobody leaves");
            assert!(sum == ring, "integers have one sum");
            assert_eq!(floats.1.world_size, sites.len());
            floats.0
        });
        assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "the same bytes on every rank");
        for at in (0..count).step_by(977) {
            let sum: f64 = (0..sites.len()).map(|index| f64::from(values(index, count)[at])).sum();
            let mean = sum / sites.len() as f64;
            assert!((f64::from(results[0][at]) - mean).abs() < 0.01, "{at}: {} {mean}", results[0][at]);
        }
    }
}

#[test]
fn a_peer_that_goes_leaves_the_others_with_what_they_had_and_with_sites() {
    let results = in_sites(&["a", "a", "b", "b", "b"], |index, comm| {
        let data = values(index, 300_000);
        over_sites(comm, &data, ReduceOp::Sum);
        if index == 1 {
            comm.close();
            return None;
        }
        // Its site is now of one. Until all know that, calls may fail, and leave everything as it was.
        let start = Instant::now();
        let mut result = data.clone();
        loop {
            let options = ReduceOptions::new(ReduceOp::Sum).schedule(Schedule::Sites);
            match comm.all_reduce(&mut result, options) {
                Ok(info) if info.algorithm == Algorithm::Sites => {
                    assert_eq!(info.world_size, 4);
                    return Some(result);
                }
                Ok(_) => result.copy_from_slice(&data),
                Err(Error::Aborted(_)) => assert!(result == data, "restored"),
                Err(error) => panic!("{error}"),
            }
            assert!(start.elapsed() < PATIENCE, "the mesh of those who stay does not stand");
        }
    });
    let left: Vec<_> = results.into_iter().flatten().collect();
    assert!(left.len() == 4 && left.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn without_sites_it_is_as_if_the_schedule_were_automatic() {
    for sites in [&["a"; 3], &[""; 3]] {
        in_sites(sites, |_, comm| {
            let mut data = vec![1f32; 200_000];
            let options = ReduceOptions::new(ReduceOp::Sum).schedule(Schedule::Sites);
            let info = comm.all_reduce(&mut data, options).expect("nobody leaves");
            assert!(info.algorithm != Algorithm::Sites && data == vec![3f32; 200_000]);
        });
    }
}
