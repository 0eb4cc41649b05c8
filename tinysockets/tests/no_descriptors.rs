//! An acceptor in a process that has no file descriptor left. Alone in its program, because the limit is the process's.

use std::{
    fs::File,
    net::TcpStream,
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use crossbeam_channel::unbounded;
use tinysockets::{
    acceptor::{AcceptLimits, Acceptor, Incoming},
    conn::Conn,
    listener::Listener,
    preamble::{Preamble, Role},
};

const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(20);

static WARNINGS: AtomicUsize = AtomicUsize::new(0);

struct CountWarnings;

impl log::Log for CountWarnings {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }
    fn log(&self, record: &log::Record<'_>) {
        if record.level() == log::Level::Warn {
            WARNINGS.fetch_add(1, Ordering::SeqCst);
        }
    }
    fn flush(&self) {}
}

fn lower_descriptor_limit(limit: u64) {
    // SAFETY: both calls get a pointer to a live local struct of the right type.
    unsafe {
        let mut now: libc::rlimit = std::mem::zeroed();
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut now), 0);
        now.rlim_cur = now.rlim_cur.min(limit);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const now), 0);
    }
}

#[test]
fn without_descriptors_it_pauses_and_then_goes_on() {
    // Equal warnings would be counted.
    pccl_log::be_synchronous();
    log::set_logger(&CountWarnings).unwrap();
    log::set_max_level(log::LevelFilter::Warn);
    lower_descriptor_limit(128);
    let (sender, accepted) = unbounded();
    let listener = Listener::bind(None, 0, 1).unwrap();
    let port = listener.local_port();
    let handler = move |incoming: Incoming| sender.send(incoming.accept().is_ok()).unwrap();
    let limits = AcceptLimits { pause: PAUSE, ..AcceptLimits::default() };
    let _acceptor = Acceptor::spawn(vec![(Role::Data, listener)], limits, None, Box::new(handler)).unwrap();

    let null = File::open("/dev/null").unwrap();
    let mut all: Vec<File> = std::iter::from_fn(|| null.try_clone().ok()).collect();
    all.pop();
    let start = Instant::now();
    let client = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let client = Conn::from(client);
    client.send_all(&Preamble::new(Role::Data).encode(), Some(start + PATIENCE)).unwrap();
    while WARNINGS.load(Ordering::SeqCst) < 5 {
        assert!(start.elapsed() < PATIENCE, "the acceptor does not say that it cannot go on");
        pccl_testkit::barrier::look_again();
    }
    let failures = WARNINGS.load(Ordering::SeqCst) as u32;
    assert!(start.elapsed() >= PAUSE * (failures - 1), "{failures} failures without a pause between them");
    assert!(accepted.is_empty());

    drop(all);
    assert!(accepted.recv_timeout(PATIENCE).unwrap());
}
