//! Errors of the driver in the middle of a sync, and of an all-reduce.

use crate::{
    device,
    kinds::{Case, KINDS, ROOT, Where, case},
    lend, noise, peers,
};
use pccl::{
    Block, Call, Cause, DataType, Error, Quantisation, ReduceOp, Schedule, Scheme, SharedState, StateMemory,
    SyncStrategy, Tensor,
};
use pccl_quant_reference::data::elements_of;
use pccl_testkit::{
    random::Rng,
    standin::{Count, Standin},
};

const OUT_OF_MEMORY: u32 = 2;
const LAUNCH_FAILED: u32 = 719;

/// One peer has the state, the other one an older one on a device, whose driver fails at a call. Whether both have
/// committed, and what is on the device then.
fn fetch(standin: &Standin, fail_at: u64) -> (bool, bool, Vec<u8>, u64) {
    const BYTES: usize = (3 << 20) + 5;
    let (ours, theirs) = (noise(BYTES, 1), noise(BYTES, 2));
    let (address, memory) = device(standin, &theirs);
    let calls = standin.count(Count::Calls);
    standin.fail(fail_at, OUT_OF_MEMORY);
    let results = peers(2, |number, comm| -> Result<(), Error> {
        let mut host = ours.clone();
        let mut state = SharedState::new(if number == 0 { 7 } else { 0 });
        let tensor = match number {
            0 => StateMemory::new(host.as_mut_slice()),
            _ => StateMemory::on_device(memory.clone(), DataType::Uint8)?,
        };
        state.memory("weights", tensor, false)?;
        let result = comm.sync_shared_state(&mut state, SyncStrategy::EnforcePopular);
        // A peer that cannot vote leaves, and nobody waits for it.
        if matches!(result, Err(Error::System(_))) {
            comm.close();
        }
        result.map(drop)
    });
    let calls = standin.count(Count::Calls) - calls;
    standin.fail(0, 0);
    let after = standin.get(address, BYTES);
    assert!(after == ours || after == theirs, "half of a state, after an error at call {fail_at}");
    if results[1].is_ok() {
        assert!(after == ours, "what is committed is there");
    } else {
        assert!(after == theirs, "what is not committed is as it was, after an error at call {fail_at}");
    }
    standin.free(address);
    (results[0].is_ok(), results[1].is_ok(), after, calls)
}

#[test]
fn a_sync_leaves_no_half_state_whatever_call_fails() {
    let standin = Standin::load().expect("the stand-in");
    let (first, second, _, calls) = fetch(&standin, 0);
    assert!(first && second && calls > 20, "{calls} calls");
    // Spread over all of them: each run takes a master and two peers.
    let step = usize::try_from(calls / 12).expect("a few calls").max(1);
    let mut failed = 0;
    for number in (1..=calls).step_by(step) {
        failed += u32::from(!fetch(&standin, number).1);
    }
    assert!(failed > 3, "{failed} of the runs had an error");
}

/// One peer has its tensor on the host, the other one on a device, whose driver fails at a call. Whether the other one
/// has succeeded, and how many calls there were.
fn reduce(
    standin: &Standin,
    quantisation: Option<Quantisation>,
    (fail_at, error): (u64, u32),
) -> (bool, u64) {
    const COUNT: usize = 600_000;
    let ours = vec![1.0_f32; COUNT];
    let theirs = elements_of(DataType::Float32, 0, COUNT, &mut Rng::keyed(&[1]));
    let (address, _) = device(standin, &theirs);
    let calls = standin.count(Count::Calls);
    standin.fail(fail_at, error);
    let results = peers(2, |number, comm| -> Result<Vec<u8>, Error> {
        let mut host = ours.clone();
        let result = if number == 0 {
            let tensor = Tensor::in_place(&mut host, ReduceOp::Sum);
            comm.call(Call::all_reduce(vec![tensor]).quantised(quantisation), ())
        } else {
            lend(address, 4 * COUNT)
                .map_err(|error| Error::System(error.to_string().into()))
                .and_then(|memory| Tensor::on_device(memory, DataType::Float32, ReduceOp::Sum))
                .and_then(|tensor| comm.call(Call::all_reduce(vec![tensor]).quantised(quantisation), ()))
        };
        // A peer that cannot vote leaves, and nobody waits for it.
        if matches!(result, Err(Error::System(_))) {
            comm.close();
        }
        result?;
        Ok(host.iter().flat_map(|value| value.to_le_bytes()).collect())
    });
    let calls = standin.count(Count::Calls) - calls;
    standin.fail(0, 0);
    let after = standin.get(address, theirs.len());
    let what = format!("after error {error} at call {fail_at}: {:?}", results[1].as_ref().map(drop));
    match (&results[0], &results[1]) {
        (Ok(sum), Ok(_)) => assert!(after == *sum, "{what}"),
        // It is told that the result did not get to the device.
        (Ok(_), Err(Error::System(_))) => {}
        (Ok(_), other) => panic!("only one has succeeded, {what}, {:?}", other.is_ok()),
        // A device that is lost gives and takes nothing any more, also not what was there.
        (Err(_), Err(Error::System(_))) if error == LAUNCH_FAILED => {}
        (Err(_), _) => assert!(after == theirs, "not as it was, {what}"),
    }
    standin.free(address);
    (results[1].is_ok(), calls)
}

#[test]
fn an_all_reduce_leaves_a_result_or_what_was_there_whatever_call_fails() {
    let standin = Standin::load().expect("the stand-in");
    let affine = Quantisation::new(Scheme::BlockAffineU8(Block::B256));
    for quantisation in [None, Some(affine)] {
        let (done, calls) = reduce(&standin, quantisation, (0, 0));
        assert!(done && calls > 20, "{calls} calls");
        let step = usize::try_from(calls / 16).expect("a few calls").max(1);
        for error in [OUT_OF_MEMORY, LAUNCH_FAILED] {
            let mut failed = 0;
            for number in (1..=calls).step_by(step) {
                failed += u32::from(!reduce(&standin, quantisation, (number, error)).0);
            }
            assert!(failed > 8, "{failed} of the runs had error {error}");
        }
    }
}

/// One peer names memory of the host as if it were that of a device. It is no reason to wait for it.
#[test]
fn memory_of_no_device_ends_the_call_for_all_and_names_the_peer() {
    let standin = Standin::load().expect("the stand-in");
    let affine = Quantisation::new(Scheme::BlockAffineU8(Block::B256));
    let of =
        |kind, quantisation| Case { quantisation, ..case(kind, DataType::Float32, 5_001, Schedule::Ring) };
    let plain = KINDS.into_iter().map(|kind| of(kind, None));
    let quantised =
        KINDS.into_iter().filter(|kind| kind.may_be_quantised()).map(|kind| of(kind, Some(affine)));
    let cases: Vec<Case> = plain.chain(quantised).collect();
    peers(2, |_, comm| {
        let (rank, ranks) = (comm.world().rank, comm.world().group_size);
        for case in &cases {
            for culprit in [0, ROOT] {
                let place = if rank == culprit { Where::Nowhere } else { Where::Device };
                let mut buffers = case.buffers(&standin, (rank, ranks), place);
                let call = case.call(&mut buffers, (rank, ranks));
                let error = comm.call(call, case.options()).expect_err("no memory of a device");
                let what = format!("{case:?}, the fault of {culprit}, rank {rank}: {error}");
                match error {
                    Error::InvalidArgument(text) if rank == culprit => {
                        assert!(text.contains("is not device memory"), "{what}");
                    }
                    Error::Aborted(verdict) if rank != culprit => {
                        let named: Vec<_> = verdict.culprits.iter().map(|it| it.peer).collect();
                        assert_eq!(named, [comm.world().ring[culprit]], "{what}");
                        assert_eq!(verdict.cause, Cause::LocalFault, "{what}");
                        assert!(verdict.detail.to_string().contains("is not device memory"), "{what}");
                    }
                    _ => panic!("{what}"),
                }
                for (index, buffer) in buffers.iter().enumerate() {
                    let is_as_before = buffer.content(&standin) == buffer.before;
                    assert!(is_as_before || !case.is_kept(index, rank), "{what}: buffer {index} has changed");
                    buffer.address.into_iter().for_each(|address| standin.free(address));
                }
            }
        }
    });
}
