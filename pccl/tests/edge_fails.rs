//! An edge between two members fails again and again, so that no step ends. A third peer, which waits to be let in at
//! the end of a step, is let in after an attempt that failed.

use pccl::{Cause, Communicator, Error, Master, MasterConfig, ReduceOp};
use pccl_testkit::ports::free_port;
use std::{
    io::{Read, Write},
    net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Longer than anything takes on a busy machine. Nothing waits for it unless the test fails.
const PATIENCE: Duration = Duration::from_secs(60);
/// Each connection through the way carries so much and breaks: enough to connect, and less than an operation moves.
const CARRIED: usize = 64 << 10;
const COUNT: usize = 1 << 20;

/// The way to one peer for all others.
#[derive(Default)]
struct Way {
    is_mended: AtomicBool,
}

impl Way {
    /// Listens on an address of its own, and leads to the same port of the machine.
    fn open(self: &Arc<Self>, host: Ipv4Addr) -> u16 {
        let port = free_port();
        let outside = TcpListener::bind((host, port)).expect("nobody else uses this address");
        let way = self.clone();
        // It ends with the process.
        thread::spawn(move || {
            for from in outside.incoming().map_while(Result::ok) {
                let Ok(to) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) else { continue };
                let copy = |stream: &TcpStream| stream.try_clone().expect("a descriptor");
                let (there, back) = (way.clone(), way.clone());
                let streams = (copy(&from), copy(&to));
                thread::spawn(move || there.carry(streams.0, streams.1));
                thread::spawn(move || back.carry(to, from));
            }
        });
        port
    }

    fn carry(&self, mut from: TcpStream, mut to: TcpStream) {
        let (mut buffer, mut carried) = (vec![0; 16 << 10], 0);
        while let Ok(bytes @ 1..) = from.read(&mut buffer) {
            carried += bytes;
            let breaks = carried > CARRIED && !self.is_mended.load(Ordering::SeqCst);
            if breaks || to.write_all(&buffer[..bytes]).is_err() {
                break;
            }
        }
        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    }
}

#[test]
fn a_third_peer_is_let_in_beside_an_edge_that_fails() {
    let _ = env_logger::builder().is_test(true).try_init();
    let master = Master::launch(MasterConfig { listen: "127.0.0.1:0".into(), ..MasterConfig::default() });
    let master = master.expect("master starts");
    let address = master.local_addr().to_string();
    let process = std::process::id();
    let host = Ipv4Addr::new(127, 1 + (process >> 8 & 0x7f) as u8, process as u8, 0);
    let way = Arc::new(Way::default());
    let (port, good) = (way.open(host), Arc::new(Way { is_mended: AtomicBool::new(true) }));
    let ports = (port, good.open(host));
    let plain = || Communicator::builder(&address).first_ports(0, 0);
    let behind = || plain().first_ports(ports.0, ports.1).strict_ports(true).bind(Ipv4Addr::LOCALHOST.into());
    let behind = || behind().advertised_host(&host.to_string());
    let (failures, deadline) = (AtomicUsize::new(0), Instant::now() + PATIENCE);
    // A step, and the newcomers at its end. It tells whether all three have made one together.
    let step = |comm: &Communicator, done: &mut bool| -> Result<(), Error> {
        let reduced = comm.all_reduce(&mut vec![1f32; COUNT], ReduceOp::Sum).inspect_err(|error| {
            let is_of_edge = error.verdict().is_some_and(|verdict| verdict.cause == Cause::EdgeBroken);
            failures.fetch_add(is_of_edge.into(), Ordering::SeqCst);
        })?;
        *done = reduced.world_size == 3;
        if !*done && comm.are_peers_pending()? {
            comm.update_topology()?;
        }
        Ok(())
    };
    let train = |comm: &Communicator| {
        let mut done = false;
        comm.run(&mut done, 2, |done| !done && Instant::now() < deadline, step).map(|()| done)
    };
    let pair = [plain(), behind()].map(|builder| builder.build().expect("valid settings"));
    let third = plain().build().expect("valid settings");
    thread::scope(|scope| {
        let first: Vec<_> = pair.iter().map(|comm| scope.spawn(|| train(comm))).collect();
        while failures.load(Ordering::SeqCst) == 0 && Instant::now() < deadline {
            thread::park_timeout(Duration::from_millis(10));
        }
        third.connect_within(Some(PATIENCE / 2)).expect("let in although no step ends");
        let failed = failures.load(Ordering::SeqCst);
        way.is_mended.store(true, Ordering::SeqCst);
        assert!(failed > 0, "no edge has failed");
        assert!(train(&third).expect("it trains"), "three train together");
        for peer in first {
            assert!(peer.join().expect("no panic").expect("they train"), "three train together");
        }
    });
}
