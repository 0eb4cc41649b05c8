//! Peers that keep to the protocol, one that falls silent, and somebody who asks for the status.

use pccl_protocol::{
    Beat, C2m, EdgeReport, GroupId, M2c, Name, PeerId, Purpose, Register, limits::MAX_PACKET_BYTES,
};
use std::{
    net::{SocketAddr, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};
use tinysockets::{
    address::HostPort,
    conn::Conn,
    dial::introduce,
    key::RunKey,
    preamble::{Preamble, Role},
    wire::FrameParser,
};

/// Honest peers. Few, so that those who attack find places among those who wait.
const PEERS: usize = 4;
/// Time between two beats of an honest peer, and between two questions for the status.
const BEAT: Duration = Duration::from_millis(200);
const QUESTION: Duration = Duration::from_millis(500);
/// Longest wait for one answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long answers took.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Times {
    count: u32,
    sum: Duration,
    pub(crate) longest: Duration,
}

impl Times {
    fn add(&mut self, time: Duration) {
        self.count += 1;
        self.sum += time;
        self.longest = self.longest.max(time);
    }

    pub(crate) fn mean(&self) -> Duration {
        self.sum / self.count.max(1)
    }
}

/// The observations of the honest peers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Found {
    /// From beats to their echoes.
    pub(crate) answers: Times,
    /// From a fresh connection to the status.
    pub(crate) status: Times,
    /// From the last beat of the silent peer to the end of its connection.
    pub(crate) silent_dropped: Option<Duration>,
    /// Events that must not happen.
    pub(crate) failures: Vec<String>,
}

/// The work that one of them does until it is to stop.
type Work = Box<dyn FnOnce(&AtomicBool, &Mutex<Found>) + Send>;

/// All of them, each with a thread.
pub(crate) struct Honest {
    stop: Arc<AtomicBool>,
    found: Arc<Mutex<Found>>,
    threads: Vec<JoinHandle<()>>,
}

impl Honest {
    /// All have registered when this returns.
    pub(crate) fn start(address: SocketAddr, key: Option<RunKey>) -> Self {
        let (stop, found) = (Arc::new(AtomicBool::new(false)), Arc::<Mutex<Found>>::default());
        let mut threads = Vec::new();
        let mut spawn = |work: Work| {
            let (stop, found) = (Arc::clone(&stop), Arc::clone(&found));
            threads.push(thread::spawn(move || work(&stop, &found)));
        };
        for _ in 0..PEERS {
            let mut peer = Peer::register(address, key.as_ref());
            spawn(Box::new(move |stop, found| {
                while !stop.load(Ordering::Relaxed) {
                    let took = peer.beat();
                    let mut found = found.lock().expect("no panic");
                    match took {
                        Ok(took) => found.answers.add(took),
                        Err(text) => return found.failures.push(format!("honest peer: {text}")),
                    }
                    drop(found);
                    thread::sleep(BEAT);
                }
            }));
        }
        let mut silent = Peer::register(address, key.as_ref());
        spawn(Box::new(move |stop, found| {
            let _ = silent.beat();
            let last = Instant::now();
            while !stop.load(Ordering::Relaxed) {
                match silent.receive(Duration::from_millis(50)) {
                    Ok(Some(M2c::Kicked(_))) | Err(_) => {
                        found.lock().expect("no panic").silent_dropped = Some(last.elapsed());
                        return;
                    }
                    Ok(_) => {}
                }
            }
        }));
        spawn(Box::new(move |stop, found| {
            while !stop.load(Ordering::Relaxed) {
                let began = Instant::now();
                let answer = pccl_master::query_status(&address.to_string(), key.as_ref(), PATIENCE);
                let mut found = found.lock().expect("no panic");
                match answer {
                    Ok(_) => found.status.add(began.elapsed()),
                    Err(text) => found.failures.push(format!("status: {text}")),
                }
                drop(found);
                thread::sleep(QUESTION);
            }
        }));
        Self { stop, found, threads }
    }

    /// Ends them; what they have seen.
    pub(crate) fn end(self) -> Found {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().expect("no panic");
        }
        self.found.lock().expect("no panic").clone()
    }
}

/// A registration for group 0.
pub(crate) fn registration() -> C2m {
    C2m::Register(Register {
        group: GroupId(0),
        advertised_host: None,
        addresses: Vec::new(),
        p2p_port: 1,
        state_port: 2,
        pool_connections: 1,
        name: Name::default(),
        previous: None,
        formed: false,
        alone: false,
        resume: None,
        outbound_only: Some(false),
        site: Name::default(),
    })
}

pub(crate) fn beat(sequence: u64) -> C2m {
    C2m::Beat(Beat { sequence, ..Beat::default() })
}

/// Has the master accept a connection as one for control.
pub(crate) fn introduced(conn: Conn, address: SocketAddr, key: Option<&RunKey>) -> Result<Conn, String> {
    let target = HostPort::new(address.ip().to_string(), address.port());
    introduce(
        conn,
        &target,
        &Preamble::new(Role::Control),
        key.map(RunKey::secret),
        Instant::now() + PATIENCE,
    )
    .map_err(|error| error.to_string())
}

/// One peer.
struct Peer {
    conn: Conn,
    parser: FrameParser,
    me: PeerId,
    beats: u64,
}

impl Peer {
    fn register(address: SocketAddr, key: Option<&RunKey>) -> Self {
        let stream = TcpStream::connect(address).expect("the master listens");
        stream.set_nodelay(true).expect("a socket");
        let conn = introduced(stream.into(), address, key).expect("the master accepts");
        let mut peer = Self { conn, parser: FrameParser::new(MAX_PACKET_BYTES), me: PeerId(0), beats: 0 };
        peer.send(&registration()).expect("the master reads");
        while peer.me == PeerId(0) {
            let packet = peer.receive(PATIENCE).expect("the master answers");
            if let Some(M2c::Registered(registered)) = packet {
                peer.me = registered.peer;
            }
        }
        peer
    }

    fn send(&mut self, packet: &C2m) -> Result<(), String> {
        let deadline = Some(Instant::now() + PATIENCE);
        self.conn.send_all(&packet.to_frame(), deadline).map_err(|error| error.to_string())
    }

    /// The next packet, if one comes in this time. The edges of plans are confirmed.
    fn receive(&mut self, longest: Duration) -> Result<Option<M2c>, String> {
        let deadline = Instant::now() + longest;
        let mut piece = [0; 4096];
        loop {
            if let Some((kind, body)) = self.parser.next_frame().map_err(|error| error.to_string())? {
                let packet = M2c::from_frame(kind, body).map_err(|error| error.to_string())?;
                if let M2c::GroupPlan(plan) = &packet {
                    self.send(&C2m::EdgeReport(EdgeReport::all_up(plan, self.me, &[Purpose::Ring])))?;
                }
                return Ok(Some(packet));
            }
            match self.conn.recv_some(&mut piece, Some(deadline)) {
                Ok(0) => return Err("the connection has ended".into()),
                Ok(count) => self.parser.feed(&piece[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::TimedOut => return Ok(None),
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    /// Sends a beat; how long its echo took.
    fn beat(&mut self) -> Result<Duration, String> {
        self.beats += 1;
        let began = Instant::now();
        self.send(&beat(self.beats))?;
        loop {
            match self.receive(PATIENCE)? {
                None => return Err("no echo".into()),
                Some(M2c::Kicked(reason)) => return Err(reason.to_string()),
                Some(M2c::Echo(echo)) if echo.sequence == self.beats => return Ok(began.elapsed()),
                Some(_) => {}
            }
        }
    }
}
