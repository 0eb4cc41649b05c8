//! Newcomers that are far away: each asks for the status over a fresh connection, as a peer that connects would. Those
//! that speak at once send their first message right behind the last packet of TCP's handshake; those that speak late
//! are on busy machines.

use std::{
    io::{self, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};
use tinysockets::key::RunKey;

/// From a newcomer to the master, and back.
const ONE_WAY: Duration = Duration::from_millis(50);
/// From the end of TCP's handshake to the first message of a newcomer that speaks late.
const LATE: Duration = Duration::from_millis(50);
/// Newcomers of each kind at one time, and the pause of each between two connections.
const AT_A_TIME: usize = 3;
const PAUSE: Duration = Duration::from_millis(100);
/// Longest wait for one answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// The answers to newcomers of one kind.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Answered {
    asked: u32,
    answered: u32,
    longest: Duration,
}

impl Answered {
    fn and(self, other: Self) -> Self {
        Self {
            asked: self.asked + other.asked,
            answered: self.answered + other.answered,
            longest: self.longest.max(other.longest),
        }
    }

    pub(crate) fn text(&self) -> String {
        format!("{}/{} {:.0}", self.answered, self.asked, self.longest.as_secs_f64() * 1e3)
    }
}

/// All of them, each with a thread.
pub(crate) struct Newcomers {
    stop: Arc<AtomicBool>,
    at_once: Vec<JoinHandle<Answered>>,
    late: Vec<JoinHandle<Answered>>,
}

impl Newcomers {
    pub(crate) fn start(master: SocketAddr, key: Option<&RunKey>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let some = |pause: Duration| {
            let line = line(master, pause);
            let one = |_| {
                let (stop, key) = (Arc::clone(&stop), key.cloned());
                thread::spawn(move || come_and_go(line, key.as_ref(), &stop))
            };
            (0..AT_A_TIME).map(one).collect()
        };
        let (at_once, late) = (some(Duration::ZERO), some(LATE));
        Self { stop, at_once, late }
    }

    /// Ends them. Of those that spoke at once, and late.
    pub(crate) fn end(self) -> [Answered; 2] {
        self.stop.store(true, Ordering::Relaxed);
        [self.at_once, self.late].map(|threads| {
            let seen = threads.into_iter().map(|thread| thread.join().expect("no panic"));
            seen.fold(Answered::default(), Answered::and)
        })
    }
}

fn come_and_go(line: SocketAddr, key: Option<&RunKey>, stop: &AtomicBool) -> Answered {
    let mut seen = Answered::default();
    while !stop.load(Ordering::Relaxed) {
        let began = Instant::now();
        let is_answered = pccl_master::query_status(&line.to_string(), key, PATIENCE).is_ok();
        seen = seen.and(Answered {
            asked: 1,
            answered: u32::from(is_answered),
            longest: if is_answered { began.elapsed() } else { Duration::ZERO },
        });
        thread::sleep(PAUSE);
    }
    seen
}

/// Where a line to `master` begins that speaks `late` after it has connected.
fn line(master: SocketAddr, late: Duration) -> SocketAddr {
    let near = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let address = near.local_addr().expect("an address");
    thread::spawn(move || {
        for stream in near.incoming().flatten() {
            // Its ends notice that it has failed.
            thread::spawn(move || drop(carry(stream, master, late)));
        }
    });
    address
}

fn carry(near: TcpStream, master: SocketAddr, late: Duration) -> io::Result<()> {
    let mut first = [0; 4096];
    let count = (&near).read(&mut first)?;
    thread::sleep(ONE_WAY);
    let far = TcpStream::connect(master)?;
    thread::sleep(late);
    (&far).write_all(&first[..count])?;
    let (back, to) = (far.try_clone()?, near.try_clone()?);
    thread::spawn(move || pump(&back, &to));
    pump(&near, &far)
}

fn pump(from: &TcpStream, to: &TcpStream) -> io::Result<()> {
    let result = loop {
        let mut piece = [0; 4096];
        match (&mut &*from).read(&mut piece) {
            Ok(0) => break Ok(()),
            Ok(count) => {
                thread::sleep(ONE_WAY);
                (&mut &*to).write_all(&piece[..count])?;
            }
            Err(error) => break Err(error),
        }
    };
    thread::sleep(ONE_WAY);
    let _ = to.shutdown(std::net::Shutdown::Write);
    result
}
