//! Finding out where peers differ. Peers are threads of this process.

use crate::together::together;
use pccl::{Communicator, DataType, Error, Master, MasterConfig, PeerId, SharedState, StateDiff};
use std::time::Duration;

/// Longer than anything takes on a busy machine. Nothing waits for it unless a test fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// Peers of one run, by their ranks.
fn fleet(count: usize) -> (Master, Vec<Communicator>) {
    let _ = env_logger::builder().is_test(true).try_init();
    let config =
        MasterConfig { listen: "127.0.0.1:0".into(), peer_timeout: PATIENCE, ..MasterConfig::default() };
    let master = Master::launch(config).expect("master starts");
    let address = master.local_addr().to_string();
    let peer = || Communicator::builder(&address).first_ports(0, 0).build().expect("valid settings");
    let mut peers: Vec<Communicator> = (0..count).map(|_| peer()).collect();
    together(&peers, |_, comm| {
        comm.connect().expect("connect");
        comm.wait_for_world(count, Some(PATIENCE)).expect("all are there");
    });
    peers.sort_by_key(|comm| comm.world().rank);
    (master, peers)
}

/// The difference that all peers find; they have to find the same.
fn found(
    peers: &[Communicator],
    call: impl Fn(usize, &Communicator) -> Result<StateDiff, Error> + Sync,
) -> StateDiff {
    let mut all = together(peers, |rank, comm| call(rank, comm).expect("compared"));
    let first = all.swap_remove(0);
    assert!(all.iter().all(|other| *other == first), "{first}");
    first
}

fn ids(peers: &[Communicator]) -> Vec<PeerId> {
    peers[0].world().ring
}

#[test]
fn what_is_the_same_differs_nowhere() {
    let (_master, peers) = fleet(3);
    let diff = found(&peers, |rank, comm| {
        let (mut weights, mut none, mut seed) = (vec![1.5_f32; 700_000], [0_i64; 0], [rank as u64]);
        let mut state = SharedState::new(rank as u64 * 10);
        state.tensor("weights", &mut weights)?.tensor("none", &mut none)?;
        state.tensor_allowing_inequality("seed", &mut seed)?;
        comm.diff_shared_state(&state)
    });
    assert!(diff.is_same());
    assert_eq!(diff.to_string(), "2 tensors are the same on all peers");
}

#[test]
fn every_difference_is_found_with_its_place_and_values() {
    const COUNT: usize = 1_000_003;
    for ranks in [2, 3, 5] {
        let (_master, peers) = fleet(ranks);
        let ids = ids(&peers);
        let before = together(&peers, |_, comm| comm.status().is_ok());
        assert!(before.iter().all(|is_fine| *is_fine));
        for place in [0, 1, 1023, 1024, 262_143, 262_144, 500_000, COUNT - 1] {
            let diff = found(&peers, |rank, comm| {
                let (mut weights, mut other, mut same) = (vec![1.0_f32; COUNT], vec![7_u8; 5000], [3_i16; 9]);
                if rank == 1 {
                    weights[place] = 2.5;
                    weights[COUNT - 1] = 9.0;
                    other[4097] = 8;
                }
                let copy = (weights.clone(), other.clone());
                let mut state = SharedState::new(0);
                state
                    .tensor("weights", &mut weights)?
                    .tensor("other", &mut other)?
                    .tensor("same", &mut same)?;
                let diff = comm.diff_shared_state(&state);
                assert_eq!((weights, other), copy, "nothing is changed");
                diff
            });
            let [other, weights] = &diff.tensors[..] else { panic!("{diff}") };
            assert_eq!((other.key.as_str(), weights.key.as_str(), diff.compared), ("other", "weights", 3));
            assert_eq!((weights.data_type, weights.count), (DataType::Float32, COUNT as u64));
            let first = weights.first.as_ref().expect("located");
            assert_eq!(first.element, place as u64);
            let value = if place == COUNT - 1 { "9" } else { "2.5" };
            let values: Vec<(PeerId, String)> = ids
                .iter()
                .enumerate()
                .map(|(rank, id)| (*id, if rank == 1 { value } else { "1" }.to_owned()))
                .collect();
            assert_eq!(first.values, values);
            assert!(weights.ranges[0].contains(&(place as u64)), "{diff}");
            assert_eq!(weights.ranges.last().expect("some").end, COUNT as u64);
            assert_eq!(other.first.as_ref().map(|first| first.element), Some(4097));
            // Of two contents that are equally frequent, that of rank 0 counts.
            assert_eq!(weights.apart().collect::<Vec<_>>(), [ids[1]]);
            assert_eq!(weights.camps[0].peers.len(), ranks - 1);
        }
    }
}

#[test]
fn all_hear_the_same_of_many_differences() {
    let (_master, peers) = fleet(3);
    let diff = found(&peers, |rank, comm| {
        let mut tensors: Vec<Vec<u16>> = (0..80).map(|tensor| vec![tensor + rank as u16; 300]).collect();
        let mut state = SharedState::new(0);
        for (index, tensor) in tensors.iter_mut().enumerate() {
            state.tensor(&format!("t{index:02}"), tensor)?;
        }
        comm.diff_shared_state(&state)
    });
    assert_eq!(diff.tensors.len(), 80);
    assert!(diff.tensors.iter().all(|tensor| tensor.camps.len() == 3));
    let located = diff.tensors.iter().filter(|tensor| tensor.first.is_some()).count();
    assert_eq!(located, 64, "as documented");
}

#[test]
fn peers_with_other_tensors_are_told_which() {
    let (_master, peers) = fleet(3);
    let ids = ids(&peers);
    let errors = together(&peers, |rank, comm| {
        let (mut weights, mut bias) = (vec![0.0_f32; if rank == 2 { 11 } else { 10 }], [0.0_f64; 1]);
        let mut state = SharedState::new(0);
        state.tensor("weights", &mut weights).expect("valid").tensor("bias", &mut bias).expect("valid");
        comm.diff_shared_state(&state).expect_err("not comparable")
    });
    for error in &errors {
        let text = error.to_string();
        assert!(matches!(error, Error::InvalidArgument(_)), "{text}");
        let apart = format!("\"weights\": Float32[10] at {} {}, Float32[11] at {}", ids[0], ids[1], ids[2]);
        assert!(text.contains(&apart), "{text}");
    }
    // The group goes on.
    let diff = found(&peers, |_, comm| comm.diff_shared_state(&SharedState::new(0)));
    assert_eq!((diff.compared, diff.is_same()), (0, true));
}

#[test]
fn a_peer_that_leaves_fails_it_for_the_others() {
    let (_master, peers) = fleet(3);
    let results = together(&peers, |rank, comm| {
        if rank == 1 {
            comm.close();
            return None;
        }
        let mut weights = vec![0.0_f32; 10];
        let mut state = SharedState::new(0);
        state.tensor("weights", &mut weights).expect("valid");
        // Once for the three, of whom one is gone, and again for those who are left.
        let first = comm.diff_shared_state(&state);
        let again = first.is_err().then(|| comm.diff_shared_state(&state));
        Some((first, again))
    });
    for (first, again) in results.into_iter().flatten() {
        assert!(matches!(first, Err(Error::Aborted(_))), "{first:?}");
        assert!(again.expect("tried again").expect("compared").is_same());
    }
}

#[test]
fn it_does_not_go_beside_operations_in_flight() {
    let (_master, peers) = fleet(2);
    let mut data = [1.0_f32; 4];
    peers[0]
        .scope(|scope| {
            let handle = scope.launch(
                pccl::Call::all_reduce(vec![pccl::Tensor::in_place(&mut data, pccl::ReduceOp::Sum)]),
                5,
            )?;
            let error = peers[0].diff_shared_state(&SharedState::new(0)).expect_err("busy");
            assert_eq!(error, Error::PendingAsyncOps { count: 1 });
            let mut other = [1.0_f32; 4];
            peers[1].all_reduce(&mut other, pccl::ReduceOptions::new(pccl::ReduceOp::Sum).tag(5))?;
            handle.wait()
        })
        .expect("reduced");
    assert_eq!(data, [2.0; 4]);
}
