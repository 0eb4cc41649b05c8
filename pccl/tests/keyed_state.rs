//! Shared state in runs with a key: votes, loans and repairs use digests with a key of the run; what lasts longer than
//! the run does not. Peers are threads of this process.

use pccl::{
    Cause, Communicator, Error, Master, MasterConfig, Remedy, RunKey, SaveOptions, SharedState, SyncInfo,
    SyncStrategy,
};
use std::{thread, time::Duration};

const MIB: usize = 1 << 20;
/// Longer than anything takes on a busy machine. Nothing waits for it unless a test fails.
const PATIENCE: Duration = Duration::from_secs(60);
const BYTES: usize = 5 * MIB + 17;

fn key() -> RunKey {
    RunKey::from_bytes([0x6b; 32])
}

fn config(key: Option<RunKey>) -> MasterConfig {
    let listen = "127.0.0.1:0".into();
    MasterConfig { listen, peer_timeout: PATIENCE, run_key: key, ..MasterConfig::default() }
}

fn master(key: Option<RunKey>) -> (Master, String) {
    master_of(config(key))
}

fn master_of(config: MasterConfig) -> (Master, String) {
    let _ = env_logger::builder().is_test(true).try_init();
    let key = config.run_key.clone();
    let master = Master::launch(config).expect("master starts");
    let address = master.local_addr().to_string();
    let fragment = key.map_or_else(String::new, |key| format!("#{}", key.to_text()));
    (master, format!("pccl://{address}{fragment}"))
}

fn peer(address: &str) -> Communicator {
    named(address, "somebody")
}

fn named(address: &str, name: &str) -> Communicator {
    let builder = Communicator::builder(address).name(name).first_ports(0, 0).call_timeout(PATIENCE);
    builder.build().expect("valid settings")
}

fn content(seed: u8) -> Vec<u8> {
    (0..BYTES).map(|i| (i / 4093) as u8 ^ (i as u8).wrapping_mul(31) ^ seed.wrapping_mul(67)).collect()
}

fn state_of(tensor: &mut [u8], revision: u64) -> SharedState<'_> {
    let mut state = SharedState::new(revision);
    state.tensor("w", tensor).expect("a key");
    state
}

/// All of them enter a run and sync once. Returns the result of each.
fn sync_all(address: &str, states: &mut [&mut SharedState<'_>]) -> Vec<Result<SyncInfo, Error>> {
    sync_named(address, &[], states)
}

/// The same with names, as far as there are some.
fn sync_named(
    address: &str,
    names: &[&str],
    states: &mut [&mut SharedState<'_>],
) -> Vec<Result<SyncInfo, Error>> {
    let count = states.len();
    let names = names.iter().copied().chain(std::iter::repeat("somebody"));
    thread::scope(|scope| {
        let peers: Vec<_> = states
            .iter_mut()
            .zip(names)
            .map(|(state, name)| {
                scope.spawn(move || {
                    let comm = named(address, name);
                    comm.connect().expect("connects");
                    comm.wait_for_world(count, None).expect("all are there");
                    comm.sync_shared_state(state, SyncStrategy::EnforcePopular)
                })
            })
            .collect();
        peers.into_iter().map(|peer| peer.join().expect("no panic")).collect()
    })
}

#[test]
fn what_differs_is_repaired_in_pieces() {
    let (_master, address) = master(Some(key()));
    let good = content(1);
    let mut tensors = [good.clone(), good.clone(), good.clone()];
    tensors[1][2 * MIB + 5] ^= 1;
    let results = {
        let [a, b, c] = &mut tensors;
        sync_all(&address, &mut [&mut state_of(a, 0), &mut state_of(b, 0), &mut state_of(c, 0)])
    };
    let moved: Vec<u64> = results.into_iter().map(|result| result.expect("synced").rx_bytes).collect();
    assert_eq!((moved[0], moved[2]), (0, 0));
    // One MiB, and the list of digests above it.
    assert!((MIB as u64..MIB as u64 + 1000).contains(&moved[1]), "{moved:?}");
    assert!(tensors.iter().all(|tensor| *tensor == good));
}

/// A state that knows its digests of one run takes part in another one, whose key is another one.
#[test]
fn digests_of_one_run_say_nothing_in_the_next() {
    let mut tensors = vec![content(1); 9];
    let mut states: Vec<_> = tensors.iter_mut().map(|tensor| state_of(tensor, 4)).collect();
    let mut kept = states.remove(0);
    let before = kept.hash();
    for run in [Some(key()), Some(key()), None, Some(key())] {
        let is_keyed = run.is_some();
        let (_master, address) = master(run);
        let (mut fresh, mut third) = (states.remove(0), states.remove(0));
        for result in sync_all(&address, &mut [&mut kept, &mut fresh, &mut third]) {
            assert_eq!(result.expect("synced").rx_bytes, 0, "with a key: {is_keyed}");
        }
        assert_eq!(kept.hash(), before, "the public hash is the same with a key and without");
    }
}

/// An offered state is named by a digest that outlives the run.
#[test]
fn a_run_with_a_key_goes_on_from_a_file_of_another_one() {
    let path = std::env::temp_dir().join(format!("pccl-keyed-{}", std::process::id()));
    let good = content(7);
    {
        let (_master, address) = master(Some(key()));
        let mut tensor = good.clone();
        let mut state = state_of(&mut tensor, 12);
        let result = sync_all(&address, &mut [&mut state]).remove(0);
        assert_eq!(result.expect("works alone").revision, 12);
        state.save(&path, &SaveOptions::default()).expect("saved");
    }
    for brings_it in [true, false] {
        let (_master, address) = master(Some(key()));
        let mut tensor = vec![0; BYTES];
        let mut state = state_of(&mut tensor, 0);
        assert_eq!(state.load(&path).expect("loaded"), 12);
        let comm = peer(&address);
        comm.offer_resume(&state);
        comm.connect().expect("connects");
        if brings_it {
            comm.sync_shared_state(&mut state, SyncStrategy::EnforcePopular).expect("it is what was offered");
            drop(state);
            assert_eq!(tensor, good);
            continue;
        }
        drop(state);
        tensor[3] ^= 1;
        let mut state = state_of(&mut tensor, 12);
        let error =
            comm.sync_shared_state(&mut state, SyncStrategy::EnforcePopular).expect_err("another one");
        assert!(error.to_string().contains("with other tensors than those"), "{error}");
    }
    std::fs::remove_file(&path).expect("it was there");
}

/// A newcomer fetches what a member lends, before it is let in.
#[test]
fn loans_are_fetched_by_the_same_digests() {
    let (_master, address) = master(Some(key()));
    let good = content(3);
    let (mut tensor, mut empty) = (good.clone(), vec![0; BYTES]);
    thread::scope(|scope| {
        let newcomer = scope.spawn(|| {
            // Not before the other one has the world for itself.
            while pccl_master::query_status(address.as_str(), Some(&key()), PATIENCE)
                .expect("a status")
                .sizes
                .global
                == 0
            {
                pccl_testkit::barrier::look_again();
            }
            let comm = peer(&address);
            let mut state = state_of(&mut empty, 0);
            let ahead = comm.connect_with_state(&mut state, Some(PATIENCE), |_| {}).expect("let in");
            let info = comm.sync_shared_state(&mut state, SyncStrategy::EnforcePopular).expect("synced");
            (ahead, info)
        });
        let comm = peer(&address);
        comm.connect().expect("connects");
        let mut state = state_of(&mut tensor, 9);
        comm.sync_shared_state(&mut state, SyncStrategy::EnforcePopular).expect("works alone");
        while comm.world().global_size < 2 {
            let wait = || {
                while !comm.are_peers_pending().expect("an answer") {
                    pccl_testkit::barrier::look_again();
                }
            };
            comm.lend_state(&state, wait).expect("lent");
            comm.update_topology().expect("it votes alone");
        }
        comm.sync_shared_state(&mut state, SyncStrategy::EnforcePopular).expect("synced");
        let (ahead, info) = newcomer.join().expect("no panic");
        assert_eq!(ahead.revision, Some(9));
        assert!(info.came_ahead && info.rx_bytes == 0, "{info:?}");
    });
    assert_eq!(empty, good);
}

#[test]
fn only_trusted_seeders_give() {
    let (good, other) = (content(1), content(2));
    let seeded = || MasterConfig { trusted_seeders: vec!["vault".into()], ..config(Some(key())) };
    let (_master, address) = master_of(seeded());
    let mut tensors = [good.clone(), good.clone(), other.clone()];
    let results = {
        let [a, b, c] = &mut tensors;
        let states = &mut [&mut state_of(a, 0), &mut state_of(b, 0), &mut state_of(c, 0)];
        sync_named(&address, &["a", "vault", "c"], states)
    };
    let given: Vec<u64> = results.into_iter().map(|result| result.expect("synced").tx_bytes).collect();
    assert!(given[0] == 0 && given[1] >= BYTES as u64 && given[2] == 0, "{given:?}");
    assert!(tensors.iter().all(|tensor| *tensor == good));
    // Where it is not there, nothing is moved and all are told.
    let (_master, address) = master_of(seeded());
    let mut tensors = [good.clone(), good.clone(), other.clone()];
    let results = {
        let [a, b, c] = &mut tensors;
        let states = &mut [&mut state_of(a, 0), &mut state_of(b, 0), &mut state_of(c, 0)];
        sync_named(&address, &["a", "b", "c"], states)
    };
    for result in results {
        let error = result.expect_err("nobody may give");
        let cause = error.verdict().map(|verdict| verdict.cause);
        assert_eq!((cause, error.remedy()), (Some(Cause::SeederMissing), Remedy::WaitForPeers), "{error}");
        assert!(error.to_string().contains("vault is not here"), "{error}");
    }
    assert_eq!(tensors[2], other);
    // Without a key a name proves nothing.
    let error = Master::launch(MasterConfig { run_key: None, ..seeded() }).map(drop).expect_err("no key");
    assert!(error.to_string().contains("for runs with a key"), "{error}");
    let nobody = MasterConfig { trusted_seeders: vec!["no name".into()], ..config(Some(key())) };
    let error = Master::launch(nobody).map(drop).expect_err("no name");
    assert!(error.to_string().contains("\"no name\""), "{error}");
}
