//! Peers as threads of this process.

use parking_lot::{Condvar, Mutex};
use pccl::{Builder, Communicator, Master, MasterConfig};
use std::time::{Duration, Instant};

/// Longer than anything takes on a busy machine. Nothing waits for it unless a test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A barrier at which nobody waits for ever: a thread that has panicked takes the others along.
pub(crate) struct Meeting {
    threads: usize,
    /// Meetings that were held, and threads that have come to the next one.
    state: Mutex<(usize, usize)>,
    changed: Condvar,
}

impl Meeting {
    pub(crate) fn new(threads: usize) -> Self {
        Self { threads, state: Mutex::new((0, 0)), changed: Condvar::new() }
    }

    #[track_caller]
    pub(crate) fn wait(&self) {
        let mut state = self.state.lock();
        let (own, came) = *state;
        if came + 1 == self.threads {
            *state = (own + 1, 0);
            self.changed.notify_all();
            return;
        }
        state.1 += 1;
        let deadline = Instant::now() + PATIENCE;
        while state.0 == own {
            assert!(
                !self.changed.wait_until(&mut state, deadline).timed_out(),
                "the other threads do not come"
            );
        }
    }
}

/// A master that listens on `listen` and takes nobody for dead because the machine is busy.
pub(crate) fn master_on(listen: &str) -> Master {
    Master::launch(MasterConfig {
        listen: listen.to_owned(),
        insecure: true,
        peer_timeout: PATIENCE,
        ..MasterConfig::default()
    })
    .expect("the master starts")
}

pub(crate) fn master() -> Master {
    master_on("127.0.0.1:0")
}

/// Settings of a peer of the run of `master`.
pub(crate) fn settings(master: &Master) -> Builder {
    Communicator::builder(&master.local_addr().to_string()).first_ports(0, 0)
}

/// Connects and waits until the run has `world` peers.
pub(crate) fn join(settings: Builder, world: usize) -> Communicator {
    let comm = settings.build().expect("valid settings");
    comm.connect().expect("connect");
    comm.wait_for_world(world, Some(PATIENCE)).expect("the world is complete in time");
    comm
}

/// Runs `body` on `n` peers, each on a thread of its own, all of them in the world before and until the last is
/// through.
pub(crate) fn run(
    master: &Master,
    n: usize,
    change: impl Fn(usize, Builder) -> Builder + Sync,
    body: impl Fn(usize, &Communicator) + Sync,
) {
    let (start, end) = (Meeting::new(n), Meeting::new(n));
    std::thread::scope(|scope| {
        for index in 0..n {
            let (start, end, change, body) = (&start, &end, &change, &body);
            scope.spawn(move || {
                let comm = join(change(index, settings(master)), n);
                start.wait();
                body(index, &comm);
                end.wait();
            });
        }
    });
}

/// [`run`] with a master of its own and default settings.
pub(crate) fn run_plain(n: usize, body: impl Fn(usize, &Communicator) + Sync) {
    run(&master(), n, |_, settings| settings, body);
}

/// Sums ones over the group: returns the number of peers that took part.
#[track_caller]
pub(crate) fn count(comm: &Communicator) -> usize {
    let mut data = [1f32; 1000];
    let info = comm.all_reduce(&mut data, pccl::ReduceOp::Sum).expect("no abort");
    assert!(data.iter().all(|&sum| sum == info.world_size as f32), "{data:?}");
    info.world_size
}

/// Polls what only somebody else can make true.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        pccl_testkit::barrier::look_again();
    }
}
