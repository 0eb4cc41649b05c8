//! Peers that fetch the shared state before they are let in, from those who train on: what is moved when, and what goes
//! wrong. Peers are threads of this process; a serving peer may stand behind a proxy that
//! lies for it. Those who are in lend until the master says that somebody waits: so no test depends on how long
//! anything takes.

mod loans;

use crate::liar::{self, Liar, Lie};
use pccl::{
    Ahead, Builder, CallKind, Communicator, Error, Master, MasterConfig, Remedy, SharedState, StatusWait,
    SyncInfo, SyncStrategy,
};
use pccl_testkit::barrier::Barrier;
use std::{thread, time::Duration};

const MIB: usize = 1 << 20;
/// Longer than anything takes on a busy machine. Nothing waits for it unless a test fails.
const PATIENCE: Duration = Duration::from_secs(60);
/// The tensor of these tests.
const BYTES: usize = 5 * MIB + 17;

fn master() -> (Master, String) {
    let _ = env_logger::builder().is_test(true).try_init();
    let config =
        MasterConfig { listen: "127.0.0.1:0".into(), peer_timeout: PATIENCE, ..MasterConfig::default() };
    let master = Master::launch(config).expect("master starts");
    let address = master.local_addr().to_string();
    (master, address)
}

fn plain(address: &str) -> Builder {
    Communicator::builder(address).first_ports(0, 0).call_timeout(PATIENCE)
}

fn peers<const N: usize>(address: &str) -> [Communicator; N] {
    std::array::from_fn(|_| plain(address).build().expect("valid settings"))
}

/// These are a world.
fn meet(peers: &[Communicator]) {
    thread::scope(|scope| {
        for comm in peers {
            scope.spawn(|| {
                comm.connect().expect("connect");
                comm.wait_for_world(peers.len(), None).expect("all are there");
            });
        }
    });
}

fn content(seed: u8) -> Vec<u8> {
    (0..BYTES).map(|i| (i / 4093) as u8 ^ (i as u8).wrapping_mul(31) ^ seed.wrapping_mul(67)).collect()
}

fn state_of(tensor: &mut [u8], revision: u64) -> SharedState<'_> {
    let mut state = SharedState::new(revision);
    state.tensor("w", tensor).expect("a key");
    state
}

fn sync(comm: &Communicator, state: &mut SharedState<'_>) -> Result<SyncInfo, Error> {
    comm.sync_shared_state(state, SyncStrategy::EnforcePopular)
}

/// Until somebody waits to be let in and counts.
fn wait_for_newcomer(comm: &Communicator) {
    while !comm.are_peers_pending().expect("all ask") {
        // Not as fast as the master can answer.
        thread::sleep(Duration::from_millis(2));
    }
}

/// Lends, lets newcomers come to the door, and waits until one counts.
fn lend(comm: &Communicator, state: &SharedState<'_>, door: &Barrier) {
    let work = || {
        door.wait();
        wait_for_newcomer(comm);
    };
    comm.lend_state(state, work).expect("lent");
}

/// Syncs and lends until the world has `world` peers. Returns the bytes that the syncs have moved to this peer.
fn lend_until(comm: &Communicator, state: &mut SharedState<'_>, world: usize, door: &Barrier) -> u64 {
    let mut moved = sync(comm, state).expect("synced").rx_bytes;
    lend(comm, state, door);
    loop {
        comm.update_topology().expect("all call");
        moved += sync(comm, state).expect("synced").rx_bytes;
        if comm.world().global_size >= world {
            return moved;
        }
        comm.lend_state(state, || wait_for_newcomer(comm)).expect("lent");
    }
}

/// A newcomer that does as the others do until the world has `world` peers: what it held, and its first sync.
fn join(comm: &Communicator, tensor: &mut [u8], world: usize, door: &Barrier) -> (Ahead, SyncInfo) {
    door.wait();
    let mut state = state_of(tensor, 0);
    let ahead = comm.connect_with_state(&mut state, Some(PATIENCE), |_| {}).expect("let in");
    assert_eq!(comm.fetched_revision(), ahead.revision);
    assert!(comm.lend_state(&state, || ()).is_err(), "it was in no sync");
    // As a loop that makes the state anew for each step. Its word spares it the hashing.
    drop(state);
    let mut state = state_of(tensor, 0);
    if let Some(revision) = comm.fetched_revision() {
        state.unchanged_since("w", revision).expect("there is such a tensor");
    }
    let first = sync(comm, &mut state).expect("synced");
    assert_eq!(comm.fetched_revision(), None);
    while comm.world().global_size < world {
        comm.lend_state(&state, || wait_for_newcomer(comm)).expect("lent");
        comm.update_topology().expect("all call");
        assert_eq!(sync(comm, &mut state).expect("synced").rx_bytes, 0);
    }
    (ahead, first)
}

#[test]
fn newcomers_come_with_the_state_and_the_sync_moves_nothing() {
    for newcomers in [1, 3] {
        let (_master, address) = master();
        let (old, new): ([_; 3], [_; 3]) = (peers(&address), peers(&address));
        meet(&old);
        let (good, world) = (content(1), 3 + newcomers);
        let door = &Barrier::new(world);
        thread::scope(|scope| {
            for comm in &old {
                let mut tensor = good.clone();
                scope.spawn(move || {
                    assert_eq!(lend_until(comm, &mut state_of(&mut tensor, 7), world, door), 0);
                    comm.barrier(()).expect("all are there");
                });
            }
            for comm in &new[..newcomers] {
                let good = &good;
                scope.spawn(move || {
                    let mut tensor = content(2);
                    let (ahead, first) = join(comm, &mut tensor, world, door);
                    assert_eq!((ahead.revision, ahead.rx_bytes), (Some(7), BYTES as u64));
                    assert!(first.came_ahead && first.rx_bytes == 0 && first.revision == 7, "{first:?}");
                    assert!(tensor == *good);
                    comm.barrier(()).expect("all are there");
                });
            }
        });
    }
}

#[test]
fn what_changes_while_a_newcomer_waits_is_fetched_as_well() {
    let door = &Barrier::new(3);
    let (_master, address) = master();
    let (old, [new]): ([_; 2], _) = (peers(&address), peers(&address));
    meet(&old);
    thread::scope(|scope| {
        for comm in &old {
            scope.spawn(move || {
                let mut tensor = content(1);
                let mut state = state_of(&mut tensor, 1);
                sync(comm, &mut state).expect("synced");
                lend(comm, &state, door);
                drop(state);
                // It holds that, and this is another one.
                tensor[2 * MIB] ^= 1;
                assert_eq!(lend_until(comm, &mut state_of(&mut tensor, 2), 3, &Barrier::new(1)), 0);
            });
        }
        let mut tensor = content(2);
        let (ahead, first) = join(&new, &mut tensor, 3, door);
        assert_eq!((ahead.revision, ahead.rx_bytes), (Some(2), (BYTES + MIB) as u64));
        assert!(first.came_ahead && first.rx_bytes == 0, "{first:?}");
        let mut changed = content(1);
        changed[2 * MIB] ^= 1;
        assert!(tensor == changed);
    });
}

/// A peer that stands behind a proxy.
fn behind(address: &str, liar: &Liar) -> Communicator {
    let builder = plain(address).bind(liar::INSIDE.into()).advertised_host(&liar.host());
    let builder = builder.first_ports(liar.ports.0, liar.ports.1).strict_ports(true);
    builder.build().expect("valid settings")
}

/// Two serving peers, one of whom stands behind a proxy that lies.
fn with_a_liar(lie: Lie) {
    let door = &Barrier::new(3);
    let (_master, address) = master();
    let (liar, honest) = (Liar::new(lie, 0), Liar::new(Lie::None, 0));
    // It gives nothing before the other one has lied.
    honest.wait_for(&liar);
    let (old, [new]) = ([behind(&address, &honest), behind(&address, &liar)], peers(&address));
    meet(&old);
    thread::scope(|scope| {
        for comm in &old {
            scope.spawn(move || lend_until(comm, &mut state_of(&mut content(1), 1), 3, door));
        }
        let mut tensor = content(2);
        let (ahead, first) = join(&new, &mut tensor, 3, door);
        assert_eq!((ahead.revision, first.rx_bytes), (Some(1), 0), "{lie:?}");
        assert!(tensor == content(1), "{lie:?}");
    });
    assert!(liar.lies() > 0, "{lie:?}");
}

#[test]
fn a_serving_peer_that_lies_or_breaks_off_costs_nothing_but_its_pieces() {
    for lie in
        [Lie::WrongBytes, Lie::WrongDigests, Lie::EndlessList, Lie::Nonsense, Lie::Hangup, Lie::Silence]
    {
        with_a_liar(lie);
    }
}

#[test]
fn a_serving_peer_that_leaves_ends_its_loan_and_the_others_go_on() {
    let door = &Barrier::new(4);
    let (_master, address) = master();
    let (old, [new]): ([_; 3], _) = (peers(&address), peers(&address));
    meet(&old);
    thread::scope(|scope| {
        for (number, comm) in old.iter().enumerate() {
            scope.spawn(move || {
                let mut tensor = content(1);
                let mut state = state_of(&mut tensor, 1);
                if number == 2 {
                    sync(comm, &mut state).expect("synced");
                    let leave = || {
                        door.wait();
                        comm.close();
                    };
                    return comm.lend_state(&state, leave).expect("it ran");
                }
                sync(comm, &mut state).expect("synced");
                lend(comm, &state, door);
                comm.update_topology().expect("all call");
                assert_eq!(sync(comm, &mut state).expect("synced").rx_bytes, 0);
            });
        }
        let (ahead, first) = join(&new, &mut content(2), 3, door);
        assert_eq!((ahead.revision, first.rx_bytes), (Some(1), 0));
    });
}

#[test]
fn a_mixture_of_two_states_is_not_committed() {
    let door = &Barrier::new(2);
    let (_master, address) = master();
    // It gives two pieces, and breaks off from then on.
    let liar = Liar::new(Lie::Hangup, 2);
    let (old, [new]) = ([behind(&address, &liar)], peers(&address));
    meet(&old);
    thread::scope(|scope| {
        scope.spawn(move || {
            let [comm] = old;
            let mut tensor = content(1);
            let mut state = state_of(&mut tensor, 1);
            sync(&comm, &mut state).expect("synced");
            let leave = || {
                door.wait();
                // The newcomer has told of its failure: nothing is on its way any more.
                let in_vain =
                    |wait: &StatusWait| wait.text.as_str().contains("in vain from 1 of 1 serving peers");
                while !comm.status().expect("the master is there").waits.iter().any(in_vain) {
                    thread::sleep(Duration::from_millis(2));
                }
                comm.close();
            };
            comm.lend_state(&state, leave).expect("it ran");
        });
        let mut tensor = content(2);
        let mut state = state_of(&mut tensor, 1);
        door.wait();
        let ahead = new.connect_with_state(&mut state, Some(PATIENCE), |_| {}).expect("let in");
        assert_eq!((ahead.revision, ahead.rx_bytes), (None, 2 * MIB as u64));
        let error = sync(&new, &mut state).expect_err("a mixture");
        let names_it = |text: &str| text.contains("tensor w holds only a part");
        assert!(matches!(&error, Error::InvalidUsage(text) if names_it(text)), "{error}");
        // Part of both, as it was said to be.
        drop(state);
        assert!(tensor != content(1) && tensor != content(2));
        // With a content of its own again it is a state as any other.
        tensor.copy_from_slice(&content(3));
        assert_eq!(sync(&new, &mut state_of(&mut tensor, 1)).expect("synced").revision, 1);
    });
}

#[test]
fn where_nobody_lends_a_newcomer_is_let_in_as_ever() {
    let door = &Barrier::new(3);
    let (_master, address) = master();
    let (old, [new]): ([_; 2], _) = (peers(&address), peers(&address));
    meet(&old);
    thread::scope(|scope| {
        for comm in &old {
            scope.spawn(move || {
                let mut tensor = content(1);
                let mut state = state_of(&mut tensor, 1);
                sync(comm, &mut state).expect("synced");
                door.wait();
                wait_for_newcomer(comm);
                comm.update_topology().expect("all call");
                sync(comm, &mut state).expect("synced");
            });
        }
        let mut tensor = content(2);
        let (ahead, first) = join(&new, &mut tensor, 3, door);
        assert_eq!(ahead, Ahead::default());
        assert!(!first.came_ahead && first.rx_bytes == BYTES as u64, "{first:?}");
        assert!(tensor == content(1));
    });
}

#[test]
fn a_newcomer_whose_tensors_do_not_fit_is_let_in_and_told_so() {
    let (_master, address) = master();
    let (old, [new]): ([_; 2], _) = (peers(&address), peers(&address));
    meet(&old);
    for key in ["w", "other"] {
        let door = &Barrier::new(3);
        thread::scope(|scope| {
            for comm in &old {
                scope.spawn(move || {
                    let mut tensor = content(1);
                    let mut state = state_of(&mut tensor, 1);
                    sync(comm, &mut state).expect("synced");
                    lend(comm, &state, door);
                    comm.update_topology().expect("all call");
                    sync(comm, &mut state).expect("the newcomer goes");
                });
            }
            let mut tensor = vec![0_u8; 3];
            let mut state = SharedState::new(0);
            state.tensor(key, &mut tensor).expect("a key");
            door.wait();
            let ahead = new.connect_with_state(&mut state, Some(PATIENCE), |_| {}).expect("let in");
            assert_eq!(ahead, Ahead::default(), "{key}");
            let error = sync(&new, &mut state).expect_err("other tensors");
            assert_eq!(error.remedy(), Remedy::GiveUp, "{error}");
            assert!(tensor == [0; 3]);
        });
    }
}

#[test]
fn who_connects_again_holds_what_it_held() {
    let door = &Barrier::new(3);
    let (_master, address) = master();
    let (old, [new]): ([_; 2], _) = (peers(&address), peers(&address));
    meet(&old);
    thread::scope(|scope| {
        for comm in &old {
            scope.spawn(move || {
                let mut tensor = content(1);
                let mut state = state_of(&mut tensor, 1);
                assert_eq!(lend_until(comm, &mut state, 3, door), 0);
                // The newcomer goes and comes again.
                lend(comm, &state, door);
                comm.update_topology().expect("all call");
                assert_eq!(sync(comm, &mut state).expect("synced").rx_bytes, 0);
            });
        }
        let mut tensor = content(2);
        join(&new, &mut tensor, 3, door);
        new.close();
        let mut state = state_of(&mut tensor, 1);
        door.wait();
        new.make_good_with_state(Remedy::Reconnect, 1, &mut state).expect("let in");
        let synced = sync(&new, &mut state).expect("synced");
        assert!(synced.came_ahead && synced.rx_bytes == 0, "{synced:?}");
    });
}

#[test]
fn a_limit_and_a_close_end_the_wait() {
    let (_master, address) = master();
    let (old, [new]): ([_; 2], _) = (peers(&address), peers(&address));
    meet(&old);
    let mut tensor = content(2);
    let short = Some(Duration::from_millis(200));
    let error =
        new.connect_with_state(&mut state_of(&mut tensor, 0), short, |_| {}).expect_err("nobody comes");
    assert!(matches!(error, Error::TimedOut { call: CallKind::Connect, .. }), "{error:?}");
    thread::scope(|scope| {
        let waits = scope.spawn(|| new.connect_with_state(&mut state_of(&mut tensor, 0), None, |_| {}));
        // It is on the list of the master.
        while old[0].status().expect("the master is there").peers.len() < 3 {
            thread::sleep(Duration::from_millis(2));
        }
        new.close();
        assert_eq!(waits.join().expect("no panic"), Err(Error::NotConnected));
    });
}

#[test]
fn the_word_of_the_program_is_taken_for_what_is_unchanged_and_checked_where_that_is_built_in() {
    let (_master, address) = master();
    let [comm]: [_; 1] = peers(&address);
    comm.connect().expect("connect");
    let mut tensor = content(1);
    let mut trusting = |change: bool, since: u64, revision: u64| {
        if change {
            tensor[9] ^= 1;
        }
        let mut state = state_of(&mut tensor, revision);
        state.unchanged_since("w", since).expect("there is such a tensor");
        sync(&comm, &mut state)
    };
    // Nothing was committed: no word is needed.
    assert_eq!(trusting(false, 1, 1).expect("synced").revision, 1);
    assert_eq!(trusting(false, 1, 2).expect("synced").revision, 2);
    // A revision that this peer does not know.
    assert_eq!(trusting(true, 3, 3).expect("synced").revision, 3);
    if cfg!(debug_assertions) {
        let error = trusting(true, 3, 4).expect_err("it has changed");
        assert!(matches!(&error, Error::InvalidUsage(text) if text.contains("tensor w")), "{error}");
        // A peer that lends gives the same word.
        let mut state = state_of(&mut tensor, 3);
        state.unchanged_since("w", 3).expect("there is such a tensor");
        let error = comm.lend_state(&state, || ()).expect_err("it has changed");
        let is_named = |text: &str| text.contains("tensor w was said to be unchanged since revision 3");
        assert!(matches!(&error, Error::InvalidUsage(text) if is_named(text)), "{error}");
    }
    let error = SharedState::new(0).unchanged_since("v", 0).map(drop).expect_err("no such tensor");
    assert!(error.to_string().contains("\"v\""));
}

#[test]
fn the_word_about_what_was_fetched_ahead_is_checked_where_that_is_built_in() {
    let (_master, address) = master();
    let (old, [new]): ([_; 2], _) = (peers(&address), peers(&address));
    meet(&old);
    let door = &Barrier::new(3);
    thread::scope(|scope| {
        for comm in &old {
            scope.spawn(move || {
                let mut tensor = content(1);
                assert_eq!(lend_until(comm, &mut state_of(&mut tensor, 4), 3, door), 0);
            });
        }
        door.wait();
        let mut tensor = content(2);
        let ahead = new.connect_with_state(&mut state_of(&mut tensor, 0), Some(PATIENCE), |_| {});
        let revision = ahead.expect("let in").revision.expect("it was lent");
        if cfg!(debug_assertions) {
            tensor[9] ^= 1;
            let mut state = state_of(&mut tensor, 0);
            state.unchanged_since("w", revision).expect("there is such a tensor");
            let error = sync(&new, &mut state).expect_err("it has changed");
            assert!(matches!(&error, Error::InvalidUsage(text) if text.contains("tensor w")), "{error}");
            tensor[9] ^= 1;
        }
        let mut state = state_of(&mut tensor, 0);
        state.unchanged_since("w", revision).expect("there is such a tensor");
        let synced = sync(&new, &mut state).expect("synced");
        assert!(synced.came_ahead && synced.rx_bytes == 0, "{synced:?}");
    });
}

#[test]
fn a_state_shows_its_tensors_by_their_types() {
    let (mut floats, mut steps) = ([1.0_f32, 2.0], [7_u64]);
    let mut state = SharedState::new(0);
    state.tensor("f", &mut floats).expect("a key").tensor("s", &mut steps).expect("a key");
    assert_eq!(state.view::<f32>("f"), Some(&[1.0, 2.0][..]));
    assert_eq!(state.view::<u64>("s"), Some(&[7][..]));
    assert_eq!((state.view::<i32>("f"), state.view::<f32>("g")), (None, None));
}
