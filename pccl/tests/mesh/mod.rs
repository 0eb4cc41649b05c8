//! Peers that are connected with each other beside the ring: threads of this process, with a real master.

use pccl::{Algorithm, Communicator, Element, Master, MasterConfig, ReduceInfo, ReduceOptions};
use std::{
    thread,
    time::{Duration, Instant},
};

/// Longer than anything takes on a busy machine. Nothing waits for it unless a test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Runs `work` on a peer in each of these sites, with its index, and returns what they return.
pub(crate) fn in_sites<R: Send>(sites: &[&str], work: impl Fn(usize, &Communicator) -> R + Sync) -> Vec<R> {
    let _ = env_logger::builder().is_test(true).try_init();
    let config =
        MasterConfig { listen: "127.0.0.1:0".into(), peer_timeout: PATIENCE, ..MasterConfig::default() };
    let master = Master::launch(config).expect("master starts");
    let (address, work) = (master.local_addr().to_string(), &work);
    thread::scope(|scope| {
        let run = |index: usize| {
            let builder = Communicator::builder(&address).first_ports(0, 0);
            let builder = if sites[index].is_empty() { builder } else { builder.site(sites[index]) };
            let comm = builder.build().expect("valid settings");
            comm.connect().expect("connect");
            comm.wait_for_world(sites.len(), Some(PATIENCE)).expect("world complete");
            work(index, &comm)
        };
        let threads: Vec<_> = (0..sites.len()).map(|index| scope.spawn(move || run(index))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

/// The values that a peer contributes.
pub(crate) fn values(index: usize, count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7_919 + index * 104_729) % 20_011) as f32 * 0.37 - 3_000.0).collect()
}

/// Reduces until it went this way: a mesh may take a moment longer than the ring.
pub(crate) fn reduce_by<T: Element>(
    comm: &Communicator,
    data: &[T],
    options: ReduceOptions,
    algorithm: Algorithm,
) -> (Vec<T>, ReduceInfo) {
    let start = Instant::now();
    loop {
        let mut result = data.to_vec();
        let info = comm.all_reduce(&mut result, options).expect("nobody leaves");
        if info.algorithm == algorithm {
            return (result, info);
        }
        assert!(start.elapsed() < PATIENCE, "the mesh does not stand");
    }
}
