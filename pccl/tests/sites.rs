//! All-reduces in two levels over sites from inside: peers are threads of this process, with a real master.

use crate::mesh::{PATIENCE, in_sites, reduce_by, values};
use pccl::{
    Algorithm, Block, Communicator, DataType, Element, Error, Quantisation, ReduceInfo, ReduceOp,
    ReduceOptions, Schedule, Scheme,
};
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

const SITES: [&str; 6] = ["a", "b", "b", "a", "b", "c"];
const COUNT: usize = 60_000;
const SCHEME: Scheme = Scheme::BlockAffineU8(Block::B256);

/// The result that all peers come to by themselves if `quantised` says how data travels; it is the same on every rank.
fn quantised_over_sites<T: Element + PartialEq + Send>(
    (op, quantised): (ReduceOp, Quantisation),
    input: impl Fn(usize) -> Vec<T> + Sync,
) -> Vec<T> {
    let mut results = in_sites(&SITES, |index, comm| {
        let options = ReduceOptions::new(op).quantisation(quantised).schedule(Schedule::Sites);
        reduce_by(comm, &input(index), options, Algorithm::Sites).0
    });
    assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "the same bytes on every rank");
    results.swap_remove(0)
}

/// Ranges of blocks of a chunk of the ring.
fn ranges(values: &[f64]) -> Vec<f64> {
    let range = |block: &[f64]| {
        let (least, most) =
            block.iter().fold((f64::MAX, f64::MIN), |(least, most), x| (least.min(*x), most.max(*x)));
        most - least
    };
    values.chunks(COUNT / SITES.len()).flat_map(|chunk| chunk.chunks(256)).map(range).collect()
}

/// The bound of docs/quantisation.md for averages of equal ranges.
#[test]
fn the_error_of_an_average_is_that_of_one_rounding_for_each_crossing() {
    let value = |index: usize, at: usize| ((at * 7_919 + index * 104_729) % 20_011) as f64 / 10_005.5 - 1.0;
    let mean = |at: usize| (0..SITES.len()).map(|index| value(index, at)).sum::<f64>() / SITES.len() as f64;
    let how = (ReduceOp::Avg, Quantisation::new(SCHEME));
    let wide = quantised_over_sites(how, |index| (0..COUNT).map(|at| value(index, at)).collect::<Vec<f64>>());
    let narrow =
        quantised_over_sites(how, |index| (0..COUNT).map(|at| value(index, at) as f32).collect::<Vec<_>>());
    let bound = 2.0 / 255.0 + 1e-5;
    for at in 0..COUNT {
        for result in [wide[at], f64::from(narrow[at])] {
            assert!((result - mean(at)).abs() <= bound, "{at}: {result} instead of {}", mean(at));
        }
    }
    // Stochastic rounding: a whole step each time.
    let how = (ReduceOp::Avg, Quantisation::new(SCHEME).stochastic(7));
    let result =
        quantised_over_sites(how, |index| (0..COUNT).map(|at| value(index, at)).collect::<Vec<f64>>());
    assert!((0..COUNT).all(|at| (result[at] - mean(at)).abs() <= 2.0 * bound));
    assert!(result != wide, "it is rounded otherwise");
}

/// Within a site elements are added as they are: what is large and cancels out there leaves no trace. The error of a
/// sum is bounded by the ranges of what sites come to, and of the sum.
#[test]
fn within_a_site_nothing_is_quantised() {
    let small = |index: usize, at: usize| ((at * 31 + index * 17) % 65) as f64 / 8.0 - 4.0;
    // Opposite on the first two ranks of each site with more than one. Every sum is exact as f32.
    let large = |index: usize, at: usize| {
        [1.0, 1.0, -1.0, -1.0, 0.0, 0.0][index] * ((at * 7_919) % 1024) as f64 * 1024.0
    };
    let input = |index: usize| {
        (0..COUNT).map(|at| (small(index, at) + large(index, at)) as f32).collect::<Vec<f32>>()
    };
    let sum_of = |of: &dyn Fn(usize) -> bool| -> Vec<f64> {
        let members: Vec<usize> = (0..SITES.len()).filter(|index| of(*index)).collect();
        (0..COUNT).map(|at| members.iter().map(|index| small(*index, at)).sum()).collect()
    };
    let exact = sum_of(&|_| true);
    let of_sites = ["a", "b", "c"].map(|site| ranges(&sum_of(&|index| SITES[index] == site)));
    let of_sum = ranges(&exact);
    let result = quantised_over_sites((ReduceOp::Sum, Quantisation::new(SCHEME)), input);
    let chunk = COUNT / SITES.len();
    for (at, (result, exact)) in result.iter().zip(&exact).enumerate() {
        let block = at / chunk * chunk.div_ceil(256) + at % chunk / 256;
        let crossing: f64 = of_sites.iter().map(|ranges| ranges[block]).sum::<f64>() / 510.0;
        // The sum that is quantised is off already.
        let bound = crossing + (of_sum[block] + 2.0 * crossing) / 510.0 + 1e-3;
        assert!((f64::from(*result) - exact).abs() <= bound, "{at}: {result} instead of {exact}, {bound}");
    }
    // A scheme that cannot be cut, too.
    let how = Quantisation::new(Scheme::MinMax(DataType::Uint8));
    let result = quantised_over_sites((ReduceOp::Sum, how), input);
    assert!(result.iter().zip(&exact).all(|(result, exact)| (f64::from(*result) - exact).abs() < 0.3));
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
