//! All-reduces of tensors on devices whose copies go on beside the ring.

use crate::{device, memory, noise, peers};
use pccl::{Call, DataType, Error, LaunchOptions, ReduceOp, Schedule, Tensor};
use pccl_quant_reference::ring_all_reduce_oracle;
use pccl_testkit::standin::{Count, Standin};
use std::sync::Mutex;

/// Reduces tensors of these lengths in bytes as one operation, at each peer, and checks all that is on the devices.
fn check(standin: &Standin, peers_of_run: usize, lengths: &[usize], in_place: bool, schedule: Schedule) {
    let place = |number: usize, tensor: usize, bytes: usize| {
        let given = noise(bytes, (number * 100 + tensor) as u64);
        let (send, _) = device(standin, &given);
        let recv = if in_place { send } else { device(standin, &vec![0; bytes]).0 };
        (given, send, recv)
    };
    let places: Vec<Vec<(Vec<u8>, u64, u64)>> = (0..peers_of_run)
        .map(|number| {
            lengths.iter().enumerate().map(|(tensor, bytes)| place(number, tensor, *bytes)).collect()
        })
        .collect();
    let ring = Mutex::new(vec![Vec::new(); peers_of_run]);
    let (down, up) = (standin.count(Count::BytesToHost), standin.count(Count::BytesToDevice));
    peers(peers_of_run, |number, comm| {
        let own: Vec<u8> = places[number].iter().flat_map(|(given, ..)| given.clone()).collect();
        ring.lock().expect("no panic")[comm.world().rank] = own;
        let tensors = places[number].iter().map(|(given, send, recv)| {
            let lent = |address| memory(address, given.len());
            match in_place {
                true => Tensor::on_device(lent(*send), DataType::Uint32, ReduceOp::Sum),
                false => Tensor::between_devices(lent(*send), lent(*recv), DataType::Uint32, ReduceOp::Sum),
            }
        });
        let tensors: Vec<Tensor<'_>> = tensors.map(|tensor| tensor.expect("a tensor")).collect();
        let options = LaunchOptions { schedule, ..LaunchOptions::from(()) };
        comm.call(Call::all_reduce(tensors), options).expect("reduced");
    });
    // Each contribution comes down once, and each result goes up once.
    let all: usize = lengths.iter().sum();
    assert_eq!(standin.count(Count::BytesToHost) - down, (peers_of_run * all) as u64);
    assert_eq!(standin.count(Count::BytesToDevice) - up, (peers_of_run * all) as u64);
    let ring = ring.into_inner().expect("no panic");
    let ring: Vec<&[u8]> = ring.iter().map(Vec::as_slice).collect();
    let expected = ring_all_reduce_oracle(DataType::Uint32, ReduceOp::Sum, &ring);
    for place in &places {
        let mut start = 0;
        for (given, send, recv) in place {
            let result = standin.get(*recv, given.len());
            assert!(result == expected[start..start + given.len()], "{lengths:?}, in place: {in_place}");
            assert!(in_place || standin.get(*send, given.len()) == *given, "the send buffer");
            start += given.len();
        }
    }
}

#[test]
fn many_pieces_and_many_tensors_arrive_on_the_devices() {
    let standin = Standin::load().expect("the stand-in");
    for in_place in [true, false] {
        check(&standin, 2, &[(5 << 20) + 4], in_place, Schedule::Ring);
        check(&standin, 3, &[4, (3 << 20) + 8, 0, 4096, 1 << 20, (1 << 20) + 4], in_place, Schedule::Ring);
        check(&standin, 3, &[(4 << 20) + 12], in_place, Schedule::Pairwise);
        check(&standin, 2, &[1 << 12, 4], in_place, Schedule::default());
    }
}

#[test]
fn an_operation_that_fails_leaves_what_is_on_the_device() {
    let standin = Standin::load().expect("the stand-in");
    let given: Vec<Vec<u8>> = (0..2).map(|seed| noise(6 << 20, seed)).collect();
    let places: Vec<u64> = given.iter().map(|given| device(&standin, given).0).collect();
    let failed = peers(2, |number, comm| {
        let op = if number == 0 { ReduceOp::Sum } else { ReduceOp::Max };
        let tensor = Tensor::on_device(memory(places[number], 6 << 20), DataType::Uint32, op);
        comm.call(vec![tensor.expect("a tensor")], ()).expect_err("a mismatch")
    });
    assert!(failed.iter().all(|error| matches!(error, Error::Aborted(_))), "{failed:?}");
    for (address, given) in places.iter().zip(&given) {
        assert!(standin.get(*address, given.len()) == *given);
    }
}
