//! Errors of the driver in the middle of a sync.

use crate::{device, noise, peers};
use pccl::{DataType, Error, SharedState, StateMemory, SyncStrategy};
use pccl_testkit::standin::{Count, Standin};

const OUT_OF_MEMORY: u32 = 2;

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
        // Whoever cannot vote leaves, and nobody waits for it.
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
