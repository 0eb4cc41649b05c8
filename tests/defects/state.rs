//! Shared state.

use crate::support::run_plain;
use parking_lot::Mutex;
use pccl::{SharedState, SyncInfo, SyncStrategy};

/// In the original a peer that only receives is picked as the source now and then, and one source serves everybody.
#[test]
fn bug_12_who_only_receives_sends_nothing_and_the_load_is_spread() {
    use SyncStrategy::{ReceiveOnly, SendOnly};
    // Two may give and hold what is elected; so does one that may not give; two need it.
    let roles = [(SendOnly, 1), (ReceiveOnly, 1), (SendOnly, 1), (ReceiveOnly, 2), (ReceiveOnly, 3)];
    let reports = Mutex::new(vec![None; roles.len()]);
    run_plain(roles.len(), |index, comm| {
        let (strategy, content) = roles[index];
        for revision in 0..3 {
            let mut weights = vec![content; 5000];
            let mut state = SharedState::new(revision);
            state.tensor("w", &mut weights).expect("key");
            let info = comm.sync_shared_state(&mut state, strategy).expect("sync");
            assert!(weights.iter().all(|&weight| weight == 1), "peer {index} holds {}", weights[0]);
            reports.lock()[index] = Some(info);
        }
    });
    let reports: Vec<SyncInfo> = reports.into_inner().into_iter().map(|info| info.expect("synced")).collect();
    let sent: Vec<u64> = reports.iter().map(|info| info.tx_bytes).collect();
    assert_eq!(sent, [20_000, 0, 20_000, 0, 0], "each of the two sources serves one receiver");
    assert_eq!(reports.iter().map(|info| info.rx_bytes).collect::<Vec<_>>(), [0, 0, 0, 20_000, 20_000]);
}

/// The original sends lengths of 32 bits: a tensor of 4 GiB and more is cut short. `PCCL_TEST_FULL=1` moves one (it
/// needs 9 GiB of memory and 4 GiB for temporary files); otherwise the same is done with a small one.
#[test]
fn bug_24_a_tensor_of_more_than_4_gib_arrives_whole() {
    let len = if crate::fleet::full() { (1 << 32) + 5 } else { (5 << 20) + 5 };
    run_plain(2, |index, comm| {
        // Every piece differs.
        let mut weights = vec![index as u8; len];
        if index == 0 {
            weights[len - 3..].copy_from_slice(&[1, 2, 3]);
        }
        let mut state = SharedState::new(0);
        state.tensor("w", &mut weights).expect("key");
        let strategy = [SyncStrategy::SendOnly, SyncStrategy::ReceiveOnly][index];
        let info = comm.sync_shared_state(&mut state, strategy).expect("sync");
        assert_eq!([info.tx_bytes, info.rx_bytes][index], len as u64);
        assert_eq!(weights[len - 3..], [1, 2, 3]);
        assert!(weights[..len - 3].iter().all(|&byte| byte == 0));
    });
}
