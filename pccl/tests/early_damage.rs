//! A damaged frame that arrives before the news that its operation has begun: the others may hear that a little
//! earlier.

use pccl::{Cause, Communicator, Error, FrameChecksums, Master, MasterConfig, ReduceOp};
use std::{
    io::{Read, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};

/// More than anything here needs.
const PATIENCE: Duration = Duration::from_secs(30);
/// For the receiver to tell of the damage. It tells nothing of a frame that it kept for a call that had not come yet,
/// until the operation begins.
const TELLING: Duration = Duration::from_secs(1);
/// Behind the header of the next frame.
const DAMAGED_BYTE: usize = 100;

/// A flag that threads wait for.
#[derive(Default)]
struct Flag(Mutex<bool>, Condvar);

impl Flag {
    fn set(&self, value: bool) {
        *self.0.lock().expect("no panic") = value;
        self.1.notify_all();
    }

    fn wait(&self, value: bool) {
        assert!(self.wait_for(value, PATIENCE), "nothing happened for {PATIENCE:?}");
    }

    /// Returns whether the flag has the value before `limit` is over.
    fn wait_for(&self, value: bool, limit: Duration) -> bool {
        let guard = self.0.lock().expect("no panic");
        let (_guard, timeout) = self.1.wait_timeout_while(guard, limit, |is| *is != value).expect("no panic");
        !timeout.timed_out()
    }

    fn take(&self) -> bool {
        let was = std::mem::take(&mut *self.0.lock().expect("no panic"));
        self.1.notify_all();
        was
    }
}

/// Hears of the damaged frame.
struct Ears(Flag);
static EARS: Ears = Ears(Flag(Mutex::new(false), Condvar::new()));

impl log::Log for Ears {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        // The second form is of a frame that came before the call and was kept.
        let text = record.args().to_string();
        if text.starts_with("payload damaged on its way") || text.contains("wrong checksum of the frame") {
            self.0.set(true);
        }
    }

    fn flush(&self) {}
}

type Treat = Box<dyn FnMut(&mut [u8]) + Send>;

/// Forwards connections from `listener` to `target`. Bytes that come back from there pass while `open`; those that go
/// there are damaged once after `damage` was set.
fn proxy(listener: TcpListener, target: SocketAddr, open: Arc<Flag>, damage: Arc<Flag>) {
    let copy = |mut from: TcpStream, mut to: TcpStream, mut treat: Treat| {
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = from.read(&mut buffer) {
                treat(&mut buffer[..count]);
                if to.write_all(&buffer[..count]).is_err() {
                    return;
                }
            }
        });
    };
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(server) = TcpStream::connect(target) else { continue };
            let (damage, open) = (damage.clone(), open.clone());
            let mut left = None;
            let spoil = move |bytes: &mut [u8]| {
                if damage.take() {
                    left = Some(DAMAGED_BYTE);
                }
                left = match left {
                    Some(at) if at < bytes.len() => {
                        bytes[at] ^= 1;
                        None
                    }
                    later => later.map(|at| at - bytes.len()),
                };
            };
            let streams = (client.try_clone().expect("descriptor"), server.try_clone().expect("descriptor"));
            copy(client, server, Box::new(spoil));
            copy(streams.1, streams.0, Box::new(move |_| open.wait(true)));
        }
    });
}

fn address(last: u8) -> IpAddr {
    // Tests that run at the same time do not meet.
    let id = std::process::id();
    Ipv4Addr::new(127, 40 + (id >> 8) as u8 % 20, id as u8, last).into()
}

#[test]
fn damage_that_comes_before_the_beginning_is_reported_when_it_begins() {
    let over = Arc::new(Flag::default());
    let end = over.clone();
    // A fault that gets lost leaves everybody waiting; the test is to fail all the same.
    std::thread::spawn(move || {
        if std::panic::catch_unwind(|| end.wait(true)).is_err() {
            std::process::abort();
        }
    });
    log::set_logger(&EARS).expect("first logger");
    log::set_max_level(log::LevelFilter::Warn);
    let config = MasterConfig { listen: "127.0.0.1:0".into(), ..MasterConfig::default() };
    let master = Master::launch(config).expect("a master");
    let flag = |value| {
        let flag = Flag::default();
        flag.set(value);
        Arc::new(flag)
    };
    let (open, damage) = (flag(true), flag(false));
    let control = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let control_address = control.local_addr().expect("bound").to_string();
    proxy(control, master.local_addr(), open.clone(), flag(false));
    let data = TcpListener::bind((address(2), 0)).expect("a free port");
    let port = data.local_addr().expect("bound").port();
    proxy(data, (address(1), port).into(), flag(true), damage.clone());

    let first = Communicator::builder(&master.local_addr().to_string())
        .first_ports(0, 0)
        .frame_checksums(FrameChecksums::Always)
        .build()
        .expect("valid settings");
    let second = Communicator::builder(&control_address)
        .bind(address(1))
        .first_ports(port, 0)
        .advertised_host(&address(2).to_string())
        // Its port for state is not forwarded; the edge is to be dialled through the proxy nevertheless.
        .outbound_only(false)
        .build()
        .expect("valid settings");
    let reduce = |comm: &Communicator| {
        let mut data = vec![1.0_f32; 2000];
        let result = comm.all_reduce(&mut data, ReduceOp::Sum);
        let expected = if result.is_ok() { 2.0 } else { 1.0 };
        assert!(data.iter().all(|&value| value == expected), "{result:?}");
        result
    };
    let both = |between: &dyn Fn()| {
        std::thread::scope(|scope| {
            let calls = [&first, &second].map(|comm| scope.spawn(move || reduce(comm)));
            between();
            calls.map(|call| call.join().expect("no panic"))
        })
    };
    std::thread::scope(|scope| {
        first.connect().expect("first peer");
        scope.spawn(|| first.wait_for_world(2, Some(PATIENCE)).expect("two peers"));
        second.connect().expect("second peer");
    });
    for result in both(&|| {}) {
        result.expect("nothing is wrong");
    }

    open.set(false);
    damage.set(true);
    let results = both(&|| {
        // The first one has begun and sent; the second one does not know yet that all have voted.
        damage.wait(false);
        EARS.0.wait_for(true, TELLING);
        open.set(true);
    });
    for result in results {
        match result {
            Err(Error::Aborted(verdict)) => {
                assert_eq!((verdict.cause, verdict.culprits.len()), (Cause::Corruption, 2), "{verdict}");
            }
            other => panic!("{other:?}"),
        }
    }
    for result in both(&|| {}) {
        result.expect("the edge is whole");
    }
    over.set(true);
}
