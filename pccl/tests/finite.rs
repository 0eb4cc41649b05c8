//! Contributions that are not finite are refused where all ask for that: nothing is sent, and who gives them is named.

use pccl::{
    Block, Builder, Call, Cause, Communicator, Error, LaunchOptions, Master, MasterConfig, Quantisation,
    ReduceInfo, ReduceOp, Remedy, Scheme, Tensor,
};
use std::{thread, time::Duration};

/// Longer than anything takes on a busy machine. Nothing waits for it unless a test fails.
const PATIENCE: Duration = Duration::from_secs(60);
const PEERS: usize = 3;

fn group(refuse: impl Fn(usize) -> bool) -> (Master, Vec<Communicator>) {
    let _ = env_logger::builder().is_test(true).try_init();
    let config =
        MasterConfig { listen: "127.0.0.1:0".into(), peer_timeout: PATIENCE, ..MasterConfig::default() };
    let master = Master::launch(config).expect("master starts");
    let address = master.local_addr().to_string();
    let set = |builder: Builder| builder.first_ports(0, 0).call_timeout(PATIENCE);
    let peer = |number: usize| {
        let builder = set(Communicator::builder(&address)).name(&format!("peer-{number}"));
        builder.refuse_non_finite(refuse(number)).build().expect("valid settings")
    };
    let peers: Vec<_> = (0..PEERS).map(peer).collect();
    at_once(&peers, |_, comm| {
        comm.connect().expect("connects");
        comm.wait_for_world(PEERS, None).expect("all are there");
    });
    (master, peers)
}

/// All of them do this at once.
fn at_once<R: Send>(peers: &[Communicator], work: impl Fn(usize, &Communicator) -> R + Sync) -> Vec<R> {
    thread::scope(|scope| {
        let work = &work;
        let all: Vec<_> =
            peers.iter().enumerate().map(|(number, comm)| scope.spawn(move || work(number, comm))).collect();
        all.into_iter().map(|one| one.join().expect("no panic")).collect()
    })
}

/// All were told the same: who gives what is not finite.
fn names(results: &[Result<ReduceInfo, Error>], peers: &[&str], text: &str) {
    for result in results {
        let error = result.as_ref().expect_err("refused");
        let verdict = error.verdict().unwrap_or_else(|| panic!("{error}"));
        assert_eq!((verdict.cause, error.remedy()), (Cause::NotFinite, Remedy::GiveUp), "{error}");
        let named: Vec<_> = verdict.culprits.iter().map(|culprit| culprit.name.as_str()).collect();
        let mut sorted = named.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, peers);
        assert_eq!(verdict.bytes_done, 0);
        assert!(verdict.detail.as_str().contains(text), "{error}");
        assert!(!error.is_retryable());
    }
}

#[test]
fn all_are_told_who_gives_what_is_not_finite_and_nothing_is_changed() {
    let (_master, peers) = group(|_| true);
    for (length, bad) in [(10, f32::NAN), (700_001, f32::INFINITY), (700_001, f32::NEG_INFINITY)] {
        let input = |number: usize| -> Vec<f32> {
            let mut values = vec![number as f32; length];
            if number > 0 {
                values[length - number] = bad;
            }
            values
        };
        let results = at_once(&peers, |number, comm| {
            let mut values = input(number);
            let result = comm.all_reduce(&mut values, ReduceOp::Avg);
            let same = values.iter().zip(input(number)).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "peer {number}");
            result
        });
        names(&results, &["peer-1", "peer-2"], &format!("in tensor 0 at element {}", length - 2));
        // With other values it goes on.
        let sums = at_once(&peers, |number, comm| {
            let mut values = vec![number as f32; length];
            comm.all_reduce(&mut values, ReduceOp::Sum).map(|_| values[length - 1])
        });
        assert_eq!(sums, vec![Ok(3.0); PEERS]);
    }
}

#[test]
fn every_reduction_looks_at_what_it_is_given() {
    let (_master, peers) = group(|_| true);
    let values = |number: usize| [1.0_f64, if number == 1 { f64::NAN } else { 2.0 }, 3.0];
    let results = at_once(&peers, |number, comm| comm.reduce(&mut values(number), 0, ReduceOp::Max));
    names(&results, &["peer-1"], "at element 1");
    let results =
        at_once(&peers, |number, comm| comm.reduce_scatter(&values(number), &mut [0.0_f64], ReduceOp::Sum));
    names(&results, &["peer-1"], "at element 1");
    let results = at_once(&peers, |number, comm| comm.weighted_average(&mut values(number), 2.0, ()));
    names(&results, &["peer-1"], "at element 1");
    let results = at_once(&peers, |number, comm| {
        let (mut fine, mut given) = ([1_i32; 5], values(number));
        let tensors = vec![
            Tensor::in_place(&mut fine[..], ReduceOp::Sum),
            Tensor::in_place(&mut given[..], ReduceOp::Sum),
        ];
        comm.call(tensors, LaunchOptions::default())
    });
    names(&results, &["peer-1"], "in tensor 1 at element 1");
    let results = at_once(&peers, |number, comm| {
        let scheme = Scheme::BlockAffineU8(Block::ALL[0]);
        let mut given = values(number).map(|value| value as f32);
        comm.call(
            Call::all_reduce(vec![Tensor::in_place(&mut given[..], ReduceOp::Sum)])
                .quantised(Quantisation::new(scheme)),
            0,
        )
    });
    names(&results, &["peer-1"], "at element 1");
    // Calls that reduce nothing, and those on types without such values, are as ever. Which peer has which rank is not
    // said.
    for (number, result) in at_once(&peers, |_, comm| {
        let mut given = values(1);
        comm.broadcast(&mut given, 1, ()).map(|_| given[1].is_nan())
    })
    .into_iter()
    .enumerate()
    {
        assert_eq!(result, Ok(true), "peer {number}");
    }
    let counts = at_once(&peers, |_, comm| {
        let mut count = [u32::MAX; 1];
        comm.all_reduce(&mut count, ReduceOp::Max).map(|_| count[0])
    });
    assert_eq!(counts, vec![Ok(u32::MAX); PEERS]);
}

#[test]
fn one_operation_can_ask_for_it_and_all_have_to_ask_alike() {
    let (_master, peers) = group(|_| false);
    let run = |asks: fn(usize) -> bool| {
        at_once(&peers, |number, comm| {
            let mut given = [if number == 2 { f32::NAN } else { 1.0 }];
            let call = Call::all_reduce(vec![Tensor::in_place(&mut given[..], ReduceOp::Sum)]);
            comm.call(if asks(number) { call.refusing_non_finite() } else { call }, 5)
        })
    };
    names(&run(|_| true), &["peer-2"], "in tensor 0 at element 0");
    for result in run(|number| number == 1) {
        let error = result.expect_err("they differ");
        assert_eq!(error.verdict().map(|verdict| verdict.cause), Some(Cause::MismatchedCall), "{error}");
        assert!(error.to_string().contains("refusing contributions that are not finite"), "{error}");
    }
    // By default anything may be given.
    assert!(run(|_| false).iter().all(Result::is_ok));
}
