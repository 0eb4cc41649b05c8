//! Pairwise exchange from inside: peers are threads of this process, with a real master.

use crate::mesh::{in_sites, reduce_by, values};
use pccl::{
    Algorithm, Block, Communicator, Element, Error, ManyOptions, ReduceInfo, ReduceOp, ReduceOptions,
    Schedule, Scheme, Tensor,
};

/// Runs `work` on `peers` peers of one run, each with its index, and returns what they return.
fn on_peers<R: Send>(peers: usize, work: impl Fn(usize, &Communicator) -> R + Sync) -> Vec<R> {
    in_sites(&vec![""; peers], work)
}

/// Reduces until it went the way that was asked for.
fn reduce<T: Element>(comm: &Communicator, data: &[T], options: ReduceOptions) -> (Vec<T>, ReduceInfo) {
    let pairwise = options.schedule == Schedule::Pairwise;
    reduce_by(comm, data, options, if pairwise { Algorithm::Pairwise } else { Algorithm::Ring })
}

#[test]
fn it_gives_the_bytes_of_the_ring() {
    for (peers, count) in [(3, 400_001), (4, 3), (5, 70_000), (8, 100_000)] {
        let results = on_peers(peers, |index, comm| {
            let data = values(index, count);
            let options = ReduceOptions::new(ReduceOp::Avg);
            let ring = reduce(comm, &data, options.schedule(Schedule::Ring));
            let pairwise = reduce(comm, &data, options.schedule(Schedule::Pairwise));
            assert_eq!(ring.1.algorithm, Algorithm::Ring);
            assert_eq!(ring.1.rank, pairwise.1.rank);
            assert!(ring.0 == pairwise.0, "{peers} peers, {count} elements");
            pairwise.0
        });
        assert!(results.windows(2).all(|pair| pair[0] == pair[1]));
    }
}

/// The error of what is quantised is that of two quantisations, however many ranks there are, and less than the ring's.
#[test]
fn quantised_sums_are_as_good_with_eight_ranks_as_with_three() {
    const COUNT: usize = 60_000;
    let error = |results: &[f32], peers: usize| {
        let mean = |at: usize| {
            (0..peers).map(|index| f64::from(values(index, COUNT)[at])).sum::<f64>() / peers as f64
        };
        let squares = (0..COUNT).step_by(97).map(|at| (f64::from(results[at]) - mean(at)).powi(2));
        (squares.sum::<f64>() / (COUNT as f64 / 97.0)).sqrt()
    };
    let errors = |peers: usize| {
        let scheme = Scheme::BlockAffineU8(Block::B256);
        let results = on_peers(peers, |index, comm| {
            let options = ReduceOptions::new(ReduceOp::Avg).quantisation(scheme);
            let data = values(index, COUNT);
            let pairwise = reduce(comm, &data, options.schedule(Schedule::Pairwise)).0;
            (pairwise, reduce(comm, &data, options.schedule(Schedule::Ring)).0)
        });
        assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "the same bytes on every rank");
        (error(&results[0].0, peers), error(&results[0].1, peers))
    };
    let (three, eight) = (errors(3), errors(8));
    assert!(eight.0 < three.0 * 1.1, "{three:?} {eight:?}");
    assert!(eight.0 * 1.2 < eight.1, "{eight:?}");
}

#[test]
fn tensors_of_all_kinds_in_one_operation() {
    on_peers(4, |index, comm| {
        let floats = values(index, 50_000);
        let (mut coded, mut plain) = (floats.clone(), floats.clone());
        let mut integers: Vec<i64> = (0..10_007).map(|i| i * (index as i64 - 2)).collect();
        let before = integers.clone();
        let mut sum = vec![f32::NAN; floats.len()];
        let run = |schedule, coded: &mut [f32], plain: &mut [f32], integers: &mut [i64], sum: &mut [f32]| {
            let mut tensors = [
                Tensor::in_place(coded, ReduceOp::Sum).quantised(Scheme::BlockSymmetricI8(Block::B128)),
                Tensor::in_place(plain, ReduceOp::Max),
                Tensor::in_place(integers, ReduceOp::Min),
                Tensor::out_of_place(&floats, sum, ReduceOp::Sum).expect("same length"),
            ];
            let options = ManyOptions { schedule, ..ManyOptions::default() };
            comm.all_reduce_many(&mut tensors, options).expect("nobody leaves")
        };
        run(Schedule::Pairwise, &mut coded, &mut plain, &mut integers, &mut sum);
        let by_pairs = (plain.clone(), integers.clone(), sum.clone());
        plain.copy_from_slice(&floats);
        integers.copy_from_slice(&before);
        run(Schedule::Ring, &mut coded, &mut plain, &mut integers, &mut sum);
        assert!(by_pairs == (plain, integers, sum));
    });
}

#[test]
fn all_have_to_ask_for_the_same() {
    on_peers(3, |index, comm| {
        let schedule = if index == 1 { Schedule::Ring } else { Schedule::Pairwise };
        let mut data = vec![1f32; 10];
        let error = comm.all_reduce(&mut data, ReduceOptions::new(ReduceOp::Sum).schedule(schedule));
        let Err(Error::Aborted(verdict)) = error else { panic!("{error:?}") };
        assert_eq!(verdict.cause, pccl::Cause::MismatchedCall);
        assert_eq!(data, [1.0; 10]);
    });
}

#[test]
fn two_peers_and_one_element_take_what_there_is() {
    on_peers(2, |_, comm| {
        let mut data = [1f32];
        let options = ReduceOptions::new(ReduceOp::Sum).schedule(Schedule::Pairwise);
        let info = comm.all_reduce(&mut data, options).expect("nobody leaves");
        assert_ne!(info.algorithm, Algorithm::Pairwise, "there is no mesh");
        assert_eq!(data, [2.0]);
    });
}
