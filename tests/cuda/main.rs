//! Tensors on a device, from end to end, on the stand-in driver: peers are threads here.

mod collectives;
mod failures;
mod faults;
mod kinds;
mod leaks;
mod pipeline;
mod quantised;
mod slow;
mod state;

use pccl::{Communicator, CudaError, DeviceMemory, Master, MasterConfig};
use pccl_testkit::barrier::{Barrier, join_all};
use pccl_testkit::{random::Rng, standin::Standin};
use std::time::Duration;

/// How the masters here are set up.
fn config() -> MasterConfig {
    MasterConfig { listen: "127.0.0.1:0".parse().expect("an address"), ..MasterConfig::default() }
}

/// Runs `body` on each of `n` connected peers with its number.
fn peers<R: Send>(n: usize, body: impl Fn(usize, &Communicator) -> R + Sync) -> Vec<R> {
    peers_under(config(), n, body)
}

/// The same, with a master that is set up like this.
fn peers_under<R: Send>(
    config: MasterConfig,
    n: usize,
    body: impl Fn(usize, &Communicator) -> R + Sync,
) -> Vec<R> {
    run(config, n, |_| None, body)
}

/// The same, with peers that name sites.
fn peers_of<R: Send>(
    n: usize,
    site: impl Fn(usize) -> Option<String> + Sync,
    body: impl Fn(usize, &Communicator) -> R + Sync,
) -> Vec<R> {
    run(config(), n, site, body)
}

fn run<R: Send>(
    config: MasterConfig,
    n: usize,
    site: impl Fn(usize) -> Option<String> + Sync,
    body: impl Fn(usize, &Communicator) -> R + Sync,
) -> Vec<R> {
    let master = Master::launch(config).expect("the master starts");
    let address = master.local_addr().to_string();
    let together = Barrier::new(n);
    let peer = |number: usize| {
        let _here = together.attend();
        let builder = Communicator::builder(&address).first_ports(0, 0);
        let builder = match site(number) {
            Some(name) => builder.site(&name),
            None => builder,
        };
        let comm = builder.build().expect("valid settings");
        comm.connect().expect("connected");
        comm.wait_for_world(n, Some(Duration::from_secs(60))).expect("all are there");
        together.wait();
        let result = body(number, &comm);
        together.wait();
        result
    };
    std::thread::scope(|scope| {
        let peer = &peer;
        let threads: Vec<_> = (0..n).map(|number| scope.spawn(move || peer(number))).collect();
        join_all(threads)
    })
}

/// New memory of a device with this content, as long as the process.
fn device(standin: &Standin, content: &[u8]) -> (u64, DeviceMemory) {
    let address = standin.device_memory(content.len().max(1));
    assert_ne!(address, 0, "device memory");
    standin.put(address, content);
    (address, memory(address, content.len()))
}

/// Memory of a device, as long as the process.
fn memory(address: u64, bytes: usize) -> DeviceMemory {
    lend(address, bytes).expect("device memory")
}

/// The same, where the driver may refuse it.
fn lend(address: u64, bytes: usize) -> Result<DeviceMemory, CudaError> {
    // SAFETY: the memory stays until all peers are done, and each test uses it by one peer.
    unsafe { DeviceMemory::from_raw(address, bytes, 0) }
}

fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    Rng::keyed(&[seed]).bytes(bytes)
}
