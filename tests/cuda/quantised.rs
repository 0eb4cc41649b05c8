//! Quantised all-reduces of tensors on devices: the bytes of the oracle, and only what travels is copied.

use crate::{
    device,
    kinds::{Case, Kind, Where, case},
    memory, peers,
};
use pccl::{
    Block, Call, Communicator, DataType, DeviceMemory, Error, LaunchOptions, Quantisation, ReduceOp,
    Schedule, Scheme, Target, Tensor,
};
use pccl_quant_reference::{data::elements_of, quantised_pairwise_oracle, quantised_ring_oracle};
use pccl_testkit::{
    random::Rng,
    standin::{Count, Standin},
};
use std::sync::Mutex;

const TAG: u64 = 5;

/// The tensor that one peer gives, its place on the device, and the place of its result.
struct Place {
    given: Vec<u8>,
    send: u64,
    recv: u64,
}

/// Tensors of `peers` peers, in place or not.
fn places(
    standin: &Standin,
    peers: usize,
    data_type: DataType,
    elements: usize,
    in_place: bool,
) -> Vec<Place> {
    let place = |number: usize| {
        let given = elements_of(data_type, 0, elements, &mut Rng::keyed(&[number as u64, elements as u64]));
        let (send, _) = device(standin, &given);
        let recv = if in_place { send } else { device(standin, &vec![0xA5; given.len()]).0 };
        Place { given, send, recv }
    };
    (0..peers).map(place).collect()
}

/// Reduces the tensor of a peer.
fn reduce(
    comm: &Communicator,
    place: &Place,
    (data_type, op, schedule): (DataType, ReduceOp, Schedule),
    quantisation: Option<Quantisation>,
) -> Result<pccl::ReduceInfo, Error> {
    let lent = |address| -> DeviceMemory { memory(address, place.given.len()) };
    let tensor = match place.send == place.recv {
        true => Tensor::on_device(lent(place.send), data_type, op)?,
        false => Tensor::between_devices(lent(place.send), lent(place.recv), data_type, op)?,
    };
    let options = LaunchOptions { tag: TAG, schedule, ..LaunchOptions::from(()) };
    comm.call(Call::all_reduce(vec![tensor]).quantised(quantisation), options)
}

/// All of a run: each peer ends with what the oracle says, and what only was to be read is as before.
fn check(
    standin: &Standin,
    peers_of_run: usize,
    (data_type, op, schedule): (DataType, ReduceOp, Schedule),
    quantisation: Quantisation,
    (elements, in_place): (usize, bool),
) {
    let places = places(standin, peers_of_run, data_type, elements, in_place);
    let ring = Mutex::new(vec![Vec::new(); peers_of_run]);
    let copied = standin.count(Count::BytesToHost);
    let infos = peers(peers_of_run, |number, comm| {
        let rank = comm.world().rank;
        ring.lock().expect("no panic")[rank].clone_from(&places[number].given);
        reduce(comm, &places[number], (data_type, op, schedule), Some(quantisation)).expect("reduced")
    });
    let copied = standin.count(Count::BytesToHost) - copied;
    let ring = ring.into_inner().expect("no panic");
    let ring: Vec<&[u8]> = ring.iter().map(Vec::as_slice).collect();
    let expected = match schedule {
        Schedule::Pairwise => quantised_pairwise_oracle(data_type, op, quantisation, (TAG, 0), &ring),
        _ => quantised_ring_oracle(data_type, op, quantisation, (TAG, 0), &ring),
    };
    for place in &places {
        let what = format!("{data_type}, {op}, {quantisation}, {schedule:?}, in place: {in_place}");
        assert!(standin.get(place.recv, place.given.len()) == expected, "{what}");
        assert!(in_place || standin.get(place.send, place.given.len()) == place.given, "{what}: send buffer");
        standin.free(place.send);
        standin.free(place.recv);
    }
    let algorithm = format!("{:?}", infos[0].algorithm);
    assert_eq!(algorithm, format!("{schedule:?}"), "the way that was asked for");
    // Each chunk at most once for each hop of the first half, encoded; the owner's elements by pairwise exchange.
    let raw = (elements * data_type.size_bytes()) as u64;
    let most = if schedule == Schedule::Pairwise { raw + raw / 2 * peers_of_run as u64 } else { 0 };
    let most = most.max(raw * peers_of_run as u64 * 2 / 3);
    assert!(copied <= most, "{copied} bytes were copied to the host, of {raw} of each of {peers_of_run}");
}

#[test]
fn the_ring_yields_the_bytes_of_the_oracle() {
    let standin = Standin::load().expect("the stand-in");
    let affine = Quantisation::new(Scheme::BlockAffineU8(Block::B256));
    let ring = Schedule::Ring;
    for (data_type, quantisation, op) in [
        (DataType::Float32, affine, ReduceOp::Avg),
        (DataType::Float32, affine.stochastic(9), ReduceOp::Sum),
        (DataType::Float64, Quantisation::new(Scheme::BlockSymmetricI8(Block::B64)), ReduceOp::Avg),
        (DataType::BFloat16, Quantisation::new(Scheme::BlockAffineU4(Block::B128)), ReduceOp::Avg),
        (DataType::Float32, Quantisation::new(Scheme::BlockE4m3(Block::B1024)), ReduceOp::Sum),
    ] {
        for in_place in [true, false] {
            check(&standin, 2, (data_type, op, ring), quantisation, (70_001, in_place));
        }
    }
    check(&standin, 3, (DataType::Float32, ReduceOp::Avg, ring), affine, (200_003, true));
    let cast = Quantisation::new(Scheme::CastBf16);
    check(&standin, 3, (DataType::Float32, ReduceOp::Avg, ring), cast, (90_001, false));
    assert!(standin.count(Count::Kernels) > 0);
}

#[test]
fn pairwise_exchange_yields_the_bytes_of_the_oracle() {
    let standin = Standin::load().expect("the stand-in");
    let affine = Quantisation::new(Scheme::BlockAffineU8(Block::B256)).stochastic(3);
    for in_place in [true, false] {
        let how = (DataType::Float32, ReduceOp::Avg, Schedule::Pairwise);
        check(&standin, 3, how, affine, (150_001, in_place));
    }
}

#[test]
fn a_reduce_to_one_peer_copies_what_travels_but_for_its_root() {
    let standin = Standin::load().expect("the stand-in");
    let affine = Quantisation::new(Scheme::BlockAffineU8(Block::B256));
    let places = places(&standin, 3, DataType::Float32, 200_001, true);
    let down = standin.count(Count::BytesToHost);
    let up = standin.count(Count::BytesToDevice);
    peers(3, |number, comm| {
        let lent = memory(places[number].send, places[number].given.len());
        let data = Target::on_device(lent, DataType::Float32).expect("whole");
        let call = Call::reduce(data, 1, ReduceOp::Avg).quantised(affine);
        let options = LaunchOptions { schedule: Schedule::Ring, ..LaunchOptions::from(TAG) };
        comm.call(call, options).expect("reduced");
    });
    let (down, up) = (standin.count(Count::BytesToHost) - down, standin.count(Count::BytesToDevice) - up);
    let raw = places[0].given.len() as u64;
    assert!(down < 2 * raw && down > raw, "{down} bytes to the host, of {raw} each");
    assert!(up < 2 * raw && up > raw, "{up} bytes to the device, of {raw} each");
    let changed = places.iter().filter(|it| standin.get(it.send, it.given.len()) != it.given).count();
    assert_eq!(changed, 1, "only the root has a result");
}

/// Copies to the host and to devices of a collective of three ranks on devices, all together.
fn copied(standin: &Standin, case: &Case) -> (u64, u64) {
    let copied = || (standin.count(Count::BytesToHost), standin.count(Count::BytesToDevice));
    let before = copied();
    peers(3, |_, comm| {
        let place = (comm.world().rank, comm.world().group_size);
        let mut buffers = case.buffers(standin, place, Where::Device);
        let call = case.call(&mut buffers, place);
        comm.call(call, case.options()).expect("done");
        buffers.iter().filter_map(|it| it.address).for_each(|address| standin.free(address));
    });
    let after = copied();
    (after.0 - before.0, after.1 - before.1)
}

#[test]
fn where_each_rank_has_a_part_little_but_what_travels_is_copied() {
    let standin = Standin::load().expect("the stand-in");
    let affine = Quantisation::new(Scheme::BlockAffineU8(Block::B256));
    let quantised = |kind| {
        let plain = case(kind, DataType::Float32, 100_003, Schedule::Ring);
        Case { quantisation: Some(affine), ..plain }
    };
    let part = 4 * 100_003;
    // Each rank gives its part, and gets all of them, a quarter as long.
    let (down, up) = copied(&standin, &quantised(Kind::AllGather));
    assert!(down < part && up < 3 * part, "{down} bytes to the host, {up} to devices");
    // Two sums of each rank on their way, and its own part as it is.
    let (down, up) = copied(&standin, &quantised(Kind::ReduceScatter));
    assert!(down < 5 * part && up < 5 * part, "{down} bytes to the host, {up} to devices");
}

#[test]
fn schemes_per_chunk_and_plain_tensors_go_by_memory_of_the_host() {
    let standin = Standin::load().expect("the stand-in");
    let min_max = Quantisation::new(Scheme::MinMax(DataType::Uint8));
    for (quantisation, elements) in [(Some(min_max), 90_001), (None, 90_001), (None, 100), (None, 0)] {
        for in_place in [true, false] {
            let places = places(&standin, 2, DataType::Float32, elements, in_place);
            let ring = Mutex::new(vec![Vec::new(); 2]);
            let how = (DataType::Float32, ReduceOp::Sum, Schedule::default());
            peers(2, |number, comm| {
                ring.lock().expect("no panic")[comm.world().rank].clone_from(&places[number].given);
                reduce(comm, &places[number], how, quantisation).expect("reduced");
            });
            let ring = ring.into_inner().expect("no panic");
            let ring: Vec<&[u8]> = ring.iter().map(Vec::as_slice).collect();
            let expected = match quantisation {
                Some(it) => quantised_ring_oracle(DataType::Float32, ReduceOp::Sum, it, (TAG, 0), &ring),
                None => pccl_quant_reference::ring_all_reduce_oracle(DataType::Float32, ReduceOp::Sum, &ring),
            };
            for place in &places {
                assert!(standin.get(place.recv, place.given.len()) == expected, "{quantisation:?}");
            }
        }
    }
}

#[test]
fn what_fails_leaves_the_device_as_it_was() {
    let standin = Standin::load().expect("the stand-in");
    let affine = Quantisation::new(Scheme::BlockAffineU8(Block::B256));
    for quantisation in [Some(affine), None] {
        let places = places(&standin, 2, DataType::Float32, 300_000, true);
        let failed = peers(2, |number, comm| {
            // They call for different things, which is found when both have encoded what they send first.
            let op = if number == 0 { ReduceOp::Sum } else { ReduceOp::Avg };
            let how = (DataType::Float32, op, Schedule::Ring);
            reduce(comm, &places[number], how, quantisation).expect_err("a mismatch")
        });
        assert!(failed.iter().all(|error| matches!(error, Error::Aborted(_))), "{failed:?}");
        for place in &places {
            assert!(standin.get(place.send, place.given.len()) == place.given);
        }
    }
}

#[test]
fn buffers_that_do_not_fit_or_overlap_are_refused() {
    let standin = Standin::load().expect("the stand-in");
    let (address, _) = device(&standin, &[0; 4096]);
    let at = |from: u64, bytes| memory(address + from, bytes);
    let refused = Tensor::on_device(at(0, 10), DataType::Float32, ReduceOp::Sum);
    assert!(matches!(refused, Err(Error::InvalidArgument(_))), "{refused:?}");
    let refused = Tensor::between_devices(at(0, 16), at(16, 32), DataType::Float32, ReduceOp::Sum);
    assert!(matches!(refused, Err(Error::InvalidArgument(_))), "{refused:?}");
    let affine = Quantisation::new(Scheme::BlockAffineU8(Block::B256));
    for quantisation in [None, Some(affine)] {
        let results = peers(2, |_, comm| {
            let tensor =
                Tensor::between_devices(at(0, 2048), at(1024, 2048), DataType::Float32, ReduceOp::Sum);
            comm.call(Call::all_reduce(vec![tensor.expect("a tensor")]).quantised(quantisation), ())
        });
        assert!(results.iter().all(|it| matches!(it, Err(Error::InvalidArgument(_)))), "{results:?}");
    }
}

#[test]
fn values_that_are_not_finite_are_found_on_a_device() {
    let standin = Standin::load().expect("the stand-in");
    let mut values = vec![1.0_f32; 400_000];
    values[300_001] = f32::NAN;
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let places: Vec<u64> = (0..2).map(|_| device(&standin, &bytes).0).collect();
    let affine = Quantisation::new(Scheme::BlockAffineU8(Block::B256));
    let failed = peers(2, |number, comm| {
        let tensor = Tensor::on_device(memory(places[number], bytes.len()), DataType::Float32, ReduceOp::Sum);
        let call = Call::all_reduce(vec![tensor.expect("a tensor")]).quantised(affine);
        comm.call(call.refusing_non_finite(), ()).expect_err("not finite").to_string()
    });
    assert!(failed.iter().all(|text| text.contains("300001")), "{failed:?}");
}
