//! Shared state that is repaired by pieces: what moves, from whom, what a liar can do, and that a sync that fails
//! leaves every byte as it was. Peers are threads of this process; a source may stand behind a proxy that lies for it.

#[path = "repair/liar.rs"]
mod liar;

use liar::{Liar, Lie};
use parking_lot::Mutex;
use pccl::{
    Builder, Cause, Communicator, Error, Master, MasterConfig, Remedy, SharedState, SyncInfo, SyncStrategy,
};
use std::{sync::Arc, thread, time::Duration};

const MIB: usize = 1 << 20;
/// Longer than anything takes on a busy machine. Nothing waits for it unless a test fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// Hears what the library warns of, beside the log of the test.
struct Ears(env_logger::Logger);

static WARNINGS: Mutex<Vec<String>> = Mutex::new(Vec::new());

impl log::Log for Ears {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::Level::Warn || self.0.enabled(metadata)
    }

    fn log(&self, record: &log::Record<'_>) {
        if record.level() <= log::Level::Warn {
            WARNINGS.lock().push(record.args().to_string());
        }
        self.0.log(record);
    }

    fn flush(&self) {}
}

/// Whether a receiver said that it leaves this source out.
fn was_named(liar: &Liar) -> bool {
    assert!(pccl_log::flush(PATIENCE));
    let host = format!("({}:", liar.host());
    WARNINGS.lock().iter().any(|line| line.starts_with("shared state from peer") && line.contains(&host))
}

fn master() -> (Master, String) {
    master_with(PATIENCE)
}

fn master_with(peer_timeout: Duration) -> (Master, String) {
    static LISTENS: std::sync::Once = std::sync::Once::new();
    LISTENS.call_once(|| {
        let logger = env_logger::builder().is_test(true).build();
        log::set_max_level(logger.filter().max(log::LevelFilter::Warn));
        log::set_boxed_logger(Box::new(Ears(logger))).expect("the first logger");
    });
    let config = MasterConfig { listen: "127.0.0.1:0".into(), peer_timeout, ..MasterConfig::default() };
    let master = Master::launch(config).expect("master starts");
    let address = master.local_addr().to_string();
    (master, address)
}

fn plain(builder: Builder) -> Builder {
    builder.first_ports(0, 0)
}

/// A connected world of these peers.
fn world(address: &str, peers: Vec<Builder>) -> Vec<Communicator> {
    let peers: Vec<_> = peers.into_iter().map(|it| it.build().expect("valid settings")).collect();
    thread::scope(|scope| {
        for comm in &peers {
            let count = peers.len();
            scope.spawn(move || {
                comm.connect().expect("connect");
                comm.wait_for_world(count, Some(PATIENCE)).expect("all are there");
            });
        }
    });
    assert!(!address.is_empty());
    peers
}

fn content(bytes: usize, seed: u8) -> Vec<u8> {
    (0..bytes).map(|i| (i / 4093) as u8 ^ (i as u8).wrapping_mul(31) ^ seed.wrapping_mul(67)).collect()
}

/// One sync of all: each has a revision and a tensor.
fn sync(peers: &[Communicator], states: &mut [(u64, Vec<u8>)]) -> Vec<Result<SyncInfo, Error>> {
    thread::scope(|scope| {
        let calls: Vec<_> = peers
            .iter()
            .zip(states)
            .map(|(comm, (revision, tensor))| {
                scope.spawn(move || {
                    let mut state = SharedState::new(*revision);
                    state.tensor("w", tensor.as_mut_slice()).expect("key");
                    let strategy = SyncStrategy::EnforcePopular;
                    let mut last = None;
                    let result =
                        comm.sync_shared_state_with(&mut state, strategy, |progress| last = Some(progress));
                    if let Ok(info) = &result {
                        assert_eq!(last.map_or(0, |it| it.done_bytes), info.rx_bytes);
                        assert!(last.is_none_or(|it| it.done_bytes == it.total_bytes && it.sources > 0));
                    }
                    result
                })
            })
            .collect();
        calls.into_iter().map(|call| call.join().expect("no panic")).collect()
    })
}

fn traffic(results: &[Result<SyncInfo, Error>]) -> Vec<(u64, u64)> {
    let of = |result: &Result<SyncInfo, Error>| {
        let info = result.as_ref().expect("synced");
        (info.tx_bytes, info.rx_bytes)
    };
    results.iter().map(of).collect()
}

#[test]
fn only_the_mebibytes_that_differ_are_moved() {
    let (_master, address) = master();
    let peers =
        world(&address, vec![plain(Communicator::builder(&address)), plain(Communicator::builder(&address))]);
    let good = content(300 * MIB + 17, 1);
    let mut stale = good.clone();
    let changed = [0, 5 * MIB, 6 * MIB - 1, 100 * MIB + 3, 255 * MIB, 256 * MIB, 299 * MIB, 300 * MIB + 16];
    changed.iter().for_each(|at| stale[*at] ^= 0x55);
    let mut states = vec![(1, good.clone()), (0, stale)];
    // Seven whole ones (two changes are in the same one), and the short end.
    let moved = 6 * MIB as u64 + 17;
    assert_eq!(traffic(&sync(&peers, &mut states)), [(moved, 0), (0, moved)]);
    assert!(states[1].1 == good);
    states.iter_mut().for_each(|state| state.0 = 2);
    assert_eq!(traffic(&sync(&peers, &mut states)), [(0, 0), (0, 0)]);
}

#[test]
fn several_sources_give_at_once_and_memory_spills_to_a_file() {
    let (_master, address) = master();
    let few = plain(Communicator::builder(&address)).state_memory(6 * MIB);
    let mut builders = vec![plain(Communicator::builder(&address)); 3];
    builders.push(few);
    let peers = world(&address, builders);
    let good = content(48 * MIB, 1);
    let mut states = vec![(1, good.clone()); 3];
    states.push((0, content(48 * MIB, 2)));
    let traffic = traffic(&sync(&peers, &mut states));
    assert_eq!(traffic[3], (0, 48 * MIB as u64));
    // Pieces that a peer asked for twice because somebody was slow may add to it.
    assert!(traffic.iter().map(|it| it.0).sum::<u64>() >= 48 * MIB as u64, "{traffic:?}");
    assert!(traffic[..3].iter().filter(|it| it.0 > 0).count() > 1, "one gave all: {traffic:?}");
    assert!(states.iter().all(|state| state.1 == good));
}

#[test]
fn where_nothing_can_be_set_aside_the_call_says_so_and_changes_nothing() {
    let (_master, address) = master();
    let nowhere = plain(Communicator::builder(&address)).state_memory(0).state_spill_dir("/nonexistent/dir");
    let peers = world(&address, vec![plain(Communicator::builder(&address)), nowhere]);
    let old = content(3 * MIB, 2);
    let mut states = vec![(1, content(3 * MIB, 1)), (0, old.clone())];
    let results = sync(&peers, &mut states);
    let error = results[1].as_ref().expect_err("no room");
    assert!(matches!(error, Error::System(_)) && error.remedy() == Remedy::GiveUp, "{error:?}");
    let text = error.to_string();
    assert!(
        ["/nonexistent/dir", "state_memory", "state_spill_dir"].iter().all(|it| text.contains(it)),
        "{text}"
    );
    let other = results[0].as_ref().expect_err("the sync failed");
    assert_eq!(other.verdict().map(|verdict| verdict.cause), Some(Cause::NoSource));
    assert!(states[1].1 == old);
}

/// A source behind a liar, and the settings of its peer.
fn behind_a_liar(address: &str, lie: Lie, honest: usize) -> (Builder, Arc<Liar>) {
    let liar = Liar::new(lie, honest);
    let builder = Communicator::builder(address)
        .bind(liar::INSIDE.into())
        .advertised_host(&liar.host())
        .first_ports(liar.ports.0, liar.ports.1)
        .strict_ports(true);
    (builder, liar)
}

#[test]
fn the_lies_of_the_only_source_are_noticed_and_everything_is_put_back() {
    for (lie, honest, told) in [
        (Lie::WrongBytes, 0, "arrived with hash"),
        // Some pieces are in their places already.
        (Lie::WrongBytes, 5, "arrived with hash"),
        (Lie::WrongDigests, 0, "do not lead to what was elected"),
        (Lie::EndlessList, 0, "offers 18446744073709551615 bytes"),
        (Lie::EmptyList, 0, "offers 0 bytes"),
        (Lie::TooLong, 3, "offers 1048577 bytes"),
        (Lie::TooShort, 0, "offers 1048575 bytes"),
        (Lie::OtherPiece, 2, "arrived with hash"),
        (Lie::Nonsense, 0, ""),
        (Lie::Nonsense, 4, ""),
        (Lie::Hangup, 0, ""),
    ] {
        for memory in [0, 256 * MIB] {
            let (_master, address) = master();
            let (source, liar) = behind_a_liar(&address, lie, honest);
            let receiver = plain(Communicator::builder(&address)).state_memory(memory);
            let peers = world(&address, vec![source, receiver]);
            let old = content(9 * MIB + 5, 2);
            let mut states = vec![(1, content(9 * MIB + 5, 1)), (0, old.clone())];
            let results = sync(&peers, &mut states);
            assert!(states[1].1 == old, "{lie:?} left something else");
            for result in &results {
                let error = result.as_ref().expect_err("nobody tells the truth");
                let verdict = error.verdict().unwrap_or_else(|| panic!("{lie:?}: {error}"));
                assert_eq!(verdict.cause, Cause::NoSource, "{lie:?}: {error}");
                assert!(error.to_string().contains(told), "{lie:?}: {error}");
                assert!(error.to_string().contains(&liar.host()), "the liar is not named: {error}");
            }
            assert!(liar.lies() > 0);
            drop(peers);
        }
    }
}

/// Over one connection, so that what was verified before the lie is in its place when the lie is found.
#[test]
fn what_a_failed_sync_has_fetched_is_not_moved_again() {
    const BYTES: usize = 9 * MIB + 5;
    let olds = [content(BYTES, 2), vec![0; BYTES]];
    for (memory, old) in
        [0, 256 * MIB].into_iter().flat_map(|memory| olds.iter().map(move |old| (memory, old)))
    {
        let (_master, address) = master();
        let (source, liar) = behind_a_liar(&address, Lie::WrongBytes, 5);
        let receiver = plain(Communicator::builder(&address)).state_memory(memory).pool_size(1);
        let peers = world(&address, vec![source, receiver]);
        let good = content(BYTES, 1);
        let mut states = vec![(1, good.clone()), (0, old.clone())];
        assert!(sync(&peers, &mut states).iter().all(Result::is_err));
        assert!(states[1].1 == *old, "it left something else");
        liar.repent();
        let (_, moved) = traffic(&sync(&peers, &mut states))[1];
        assert!(states[1].1 == good, "{memory} bytes of memory");
        // A disk that is slow keeps nothing.
        let least = (BYTES - 5 * MIB) as u64;
        assert!(
            moved == least || (memory == 0 && moved > least),
            "{moved} bytes moved with {memory} of memory"
        );
        // Nothing is left that would count once more.
        states[1] = (0, old.clone());
        states[0].0 = 2;
        assert_eq!(traffic(&sync(&peers, &mut states))[1].1, BYTES as u64);
        drop(peers);
    }
}

#[test]
fn a_liar_among_the_sources_costs_nothing_but_its_pieces() {
    for lie in [
        Lie::WrongBytes,
        Lie::WrongDigests,
        Lie::EndlessList,
        Lie::EmptyList,
        Lie::TooLong,
        Lie::TooShort,
        Lie::Nonsense,
        Lie::Hangup,
        Lie::SilentPiece,
        Lie::Drip,
    ] {
        let (_master, address) = master();
        let (first, liar) = behind_a_liar(&address, lie, 0);
        let (second, honest) = behind_a_liar(&address, Lie::None, 0);
        // Nobody else gives a piece before the liar has lied.
        honest.wait_for(&liar);
        let peers = world(&address, vec![first, second, plain(Communicator::builder(&address))]);
        let good = content(40 * MIB, 1);
        let mut states = vec![(1, good.clone()), (1, good.clone()), (0, content(40 * MIB, 2))];
        let results = sync(&peers, &mut states);
        assert_eq!(traffic(&results)[2].1, 40 * MIB as u64);
        assert!(states[2].1 == good, "{lie:?}");
        assert!(liar.lies() > 0);
        // A liar that only falls behind is reported when all is there, and not before.
        let is_slow = matches!(lie, Lie::SilentPiece | Lie::Drip);
        assert!(is_slow || was_named(&liar), "{lie:?} is not named");
        drop(peers);
    }
}

/// A source that stops in the middle of something is given up after a part of the peer time-out.
#[test]
fn the_only_source_that_falls_silent_is_named() {
    for lie in [Lie::Silence, Lie::SilentPiece] {
        let (_master, address) = master_with(Duration::from_secs(6));
        let (source, liar) = behind_a_liar(&address, lie, 3);
        let peers = world(&address, vec![source, plain(Communicator::builder(&address))]);
        let old = content(9 * MIB, 2);
        let mut states = vec![(1, content(9 * MIB, 1)), (0, old.clone())];
        for result in &sync(&peers, &mut states) {
            let error = result.as_ref().expect_err("nobody gives the rest");
            let cause = error.verdict().map(|verdict| verdict.cause);
            assert_eq!(cause, Some(Cause::NoSource), "{lie:?}: {error}");
            assert!(error.to_string().contains(&liar.host()), "it is not named: {error}");
        }
        assert!(states[1].1 == old, "{lie:?} left something else");
        drop(peers);
    }
}

/// One whose bytes move is only slow: that is for the caller to decide, by a limit.
#[test]
fn the_only_source_that_drips_is_named_when_the_limit_passes() {
    let (_master, address) = master();
    let (source, liar) = behind_a_liar(&address, Lie::Drip, 2);
    let limited = plain(Communicator::builder(&address)).call_timeout(Duration::from_secs(4));
    let peers = world(&address, vec![source, limited]);
    let old = content(9 * MIB, 2);
    let mut states = vec![(1, content(9 * MIB, 1)), (0, old.clone())];
    let results = sync(&peers, &mut states);
    let error = results[1].as_ref().expect_err("the limit has passed");
    assert!(matches!(error, Error::TimedOut { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains(&liar.host()) && text.contains("of 9.0 MiB"), "{text}");
    let other = results[0].as_ref().expect_err("the sync failed");
    assert_eq!(other.verdict().map(|verdict| verdict.cause), Some(Cause::CallTimeout), "{other}");
    assert!(states[1].1 == old, "it left something else");
}

/// Each connection ends after one answer: another one is made as long as something comes.
#[test]
fn a_source_that_closes_after_each_answer_gives_everything() {
    for honest in [0, 2] {
        let (_master, address) = master();
        let (source, _) = behind_a_liar(&address, Lie::OneAnswer, honest);
        let peers = world(&address, vec![source, plain(Communicator::builder(&address))]);
        let good = content(9 * MIB, 1);
        let mut states = vec![(1, good.clone()), (0, content(9 * MIB, 2))];
        assert_eq!(traffic(&sync(&peers, &mut states))[1].1, 9 * MIB as u64);
        assert!(states[1].1 == good);
        drop(peers);
    }
}

/// No time-out is short enough to matter here: what stands still is asked for elsewhere.
#[test]
fn sources_that_stand_still_hold_nobody_up() {
    for given in [0, 3] {
        let (_master, address) = master();
        let (first, one) = behind_a_liar(&address, Lie::Silence, given);
        let (second, other) = behind_a_liar(&address, Lie::Silence, given);
        let mut builders = vec![first, second];
        builders.extend(vec![plain(Communicator::builder(&address)); 2]);
        let peers = world(&address, builders);
        let good = content(30 * MIB, 1);
        let mut states = vec![(1, good.clone()); 3];
        states.push((0, content(30 * MIB, 2)));
        let results = sync(&peers, &mut states);
        assert_eq!(traffic(&results)[3].1, 30 * MIB as u64);
        assert!(states[3].1 == good);
        assert!(one.lies() + other.lies() > 0);
    }
}
