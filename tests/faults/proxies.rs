//! The network between the peers of one test: every connection goes through a proxy in this process, which can cut,
//! reset, throttle and refuse it. No privileges are needed.
//!
//! Peer `i` listens on a loopback address of its own and gives another one out, on which the proxy listens with the
//! same ports; it reaches the master through a third one. The dialing node is read from the preamble of the connection.
//!
//! A proxy acknowledges what it receives. So that a cut still looks like one to the sender, its buffers are small and
//! it reads nothing more: all but the last few kilobytes stay unacknowledged at the sender.

use crate::network::Node;
use parking_lot::{Condvar, Mutex};
use socket2::{Domain, SockRef, Socket, Type};
use std::{
    collections::{HashMap, HashSet},
    io::{ErrorKind, Read, Write},
    net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpListener, TcpStream},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU16, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};
use tinysockets::preamble::{PREAMBLE_BYTES, Preamble, Role};

/// The master.
const MASTER: Node = usize::MAX;
/// Bytes that a socket of the proxy takes in before somebody reads them.
const BUFFER_BYTES: usize = 16 << 10;
/// Segments as on an Ethernet: the receive window then opens in small steps, as it does on a slow link.
const SEGMENT_BYTES: u32 = 1460;
/// How soon a thread of the proxy notices that its connection is over.
const LOOK: Duration = Duration::from_millis(50);

/// The fate of bytes from one node to another.
#[derive(Default)]
struct Rules {
    /// Nothing passes; what was sent waits.
    cut: HashSet<(Node, Node)>,
    /// Taken in and thrown away; new connections get no answer.
    swallowed: HashSet<(Node, Node)>,
    /// New connections get no answer.
    blocked: HashSet<(Node, Node)>,
    /// New connections to the port of shared state get no answer.
    no_state: HashSet<(Node, Node)>,
    /// The next new connection is reset.
    reset_next: HashSet<(Node, Node)>,
    /// Bytes per second.
    rates: HashMap<(Node, Node), u64>,
    /// Numbers of the peers, by identity.
    ids: HashMap<u128, Node>,
    /// The node that has an unknown identity.
    newcomer: Option<Node>,
    closed: bool,
}

impl Rules {
    fn is_silent(&self, ends: (Node, Node), role: Role) -> bool {
        self.blocked.contains(&ends)
            || self.swallowed.contains(&ends)
            || role == Role::State && self.no_state.contains(&ends)
    }
}

struct Shared {
    rules: Mutex<Rules>,
    changed: Condvar,
    live: Mutex<Vec<Weak<Connection>>>,
}

struct Connection {
    dialer: Node,
    listener: Node,
    role: Role,
    near: TcpStream,
    far: TcpStream,
    dead: AtomicBool,
}

impl Connection {
    fn is_between(&self, a: Node, b: Node) -> bool {
        (self.dialer, self.listener) == (a, b) || (self.dialer, self.listener) == (b, a)
    }

    /// Ends it; with a reset for both ends, if so wanted.
    fn end(&self, reset: bool) {
        for stream in [&self.near, &self.far] {
            if reset {
                let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
            }
        }
        self.dead.store(true, Ordering::Release);
        for stream in [&self.near, &self.far] {
            // Wakes a thread that reads; sends nothing.
            let _ = stream.shutdown(Shutdown::Read);
        }
    }

    fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }
}

impl Shared {
    /// Waits until `bytes` may pass; `false`: the connection is over.
    fn pass(&self, ends: (Node, Node), bytes: usize, due: &mut Instant, is_over: impl Fn() -> bool) -> bool {
        let mut rules = self.rules.lock();
        let mut charged = false;
        loop {
            if rules.closed || is_over() {
                return false;
            }
            if rules.cut.contains(&ends) {
                self.changed.wait_for(&mut rules, LOOK);
                continue;
            }
            let Some(rate) = rules.rates.get(&ends) else { return true };
            if !charged {
                *due = (*due).max(Instant::now()) + Duration::from_secs_f64(bytes as f64 / *rate as f64);
                charged = true;
            }
            if Instant::now() >= *due {
                return true;
            }
            self.changed.wait_for(&mut rules, LOOK.min(due.duration_since(Instant::now())));
        }
    }
}

/// See the module's documentation.
pub(crate) struct Proxies {
    shared: Arc<Shared>,
    master: SocketAddr,
    prefix: [u8; 3],
    ports: (u16, u16),
    doors: Vec<(SocketAddr, JoinHandle<()>)>,
}

impl Proxies {
    /// A network with a master and no peers.
    pub(crate) fn new(master: &str) -> Self {
        static NEXT: AtomicU16 = AtomicU16::new(0);
        let process = std::process::id();
        let index = NEXT.fetch_add(1, Ordering::Relaxed) % 5000;
        Self {
            shared: Arc::new(Shared {
                rules: Mutex::default(),
                changed: Condvar::new(),
                live: Mutex::default(),
            }),
            master: master.parse().expect("the master's address"),
            // Each process has addresses of its own, each network in it has ports of its own.
            prefix: [127, 1 + (process >> 8 & 0x7F) as u8, process as u8],
            ports: (20_000 + 2 * index, 20_001 + 2 * index),
            doors: Vec::new(),
        }
    }

    fn address(&self, last: usize) -> Ipv4Addr {
        let [a, b, c] = self.prefix;
        Ipv4Addr::new(a, b, c, u8::try_from(last).expect("few peers"))
    }

    /// Opens the doors of one more peer. Returns the address under which it reaches the master, and its settings.
    pub(crate) fn add(&mut self, node: Node) -> (String, Vec<String>) {
        let (own, shown, control) =
            (self.address(1 + node), self.address(80 + node), self.address(160 + node));
        let (p2p, state) = self.ports;
        for port in [p2p, state] {
            self.open((shown, port), Some(node), (own, port).into());
        }
        self.open((control, p2p), None, self.master);
        let last = self.doors.len() - 1;
        let control = self.doors[last].0;
        let settings = vec![format!("bind={own}"), format!("host={shown}"), format!("ports={p2p},{state}")];
        (control.to_string(), settings)
    }

    /// Listens on `door` for those who want to reach `listener`; `None`: the master, and only one peer uses this door.
    fn open(&mut self, door: (Ipv4Addr, u16), listener: Option<Node>, target: SocketAddr) {
        let address = SocketAddr::V4(SocketAddrV4::new(door.0, door.1));
        let socket = listen(address).expect("a loopback address");
        let shared = self.shared.clone();
        let through = match listener {
            Some(listener) => Through::Peer(listener),
            None => Through::Master(usize::from(door.0.octets()[3]) - 160),
        };
        let thread = std::thread::spawn(move || {
            for near in socket.incoming().map_while(Result::ok) {
                if shared.rules.lock().closed {
                    break;
                }
                let shared = shared.clone();
                std::thread::spawn(move || serve(&shared, near, through, target));
            }
        });
        self.doors.push((address, thread));
    }

    /// Where others reach the port of shared state of this peer.
    pub(crate) fn state_address(&self, node: Node) -> String {
        format!("{}:{}", self.address(80 + node), self.ports.1)
    }

    /// Which peer has this identity.
    pub(crate) fn introduce(&self, id: &str, node: Node) {
        let id = u128::from_str_radix(id, 16).expect("an identity");
        self.shared.rules.lock().ids.insert(id, node);
    }

    /// Unknown identities are those of this peer.
    pub(crate) fn expect_newcomer(&self, node: Node) {
        self.shared.rules.lock().newcomer = Some(node);
    }

    fn change(&self, change: impl FnOnce(&mut Rules)) {
        change(&mut self.shared.rules.lock());
        self.shared.changed.notify_all();
    }

    /// Nothing passes from `from` to `to` any more.
    pub(crate) fn cut(&self, from: Node, to: Node) {
        self.change(|rules| rules.cut.extend([(from, to)]));
    }

    /// Nothing passes between this node and any other, the master included.
    pub(crate) fn cut_off(&self, node: Node) {
        self.change(|rules| {
            for other in (0..16).chain([MASTER]).filter(|&other| other != node) {
                rules.cut.extend([(node, other), (other, node)]);
            }
        });
    }

    /// Nothing passes between this node and the master any more.
    pub(crate) fn cut_from_master(&self, node: Node) {
        self.change(|rules| rules.cut.extend([(node, MASTER), (MASTER, node)]));
    }

    /// The bytes from `from` to `to` are acknowledged, and do not arrive.
    pub(crate) fn swallow(&self, from: Node, to: Node) {
        self.change(|rules| rules.swallowed.extend([(from, to)]));
    }

    /// New connections from `from` to `to` get no answer; those that stand are not touched.
    pub(crate) fn block(&self, from: Node, to: Node) {
        self.change(|rules| rules.blocked.extend([(from, to)]));
    }

    /// `to` gives no answer at its port of shared state to `from`.
    pub(crate) fn block_state(&self, from: Node, to: Node) {
        self.change(|rules| rules.no_state.extend([(from, to)]));
    }

    /// Bytes per second in both directions.
    pub(crate) fn throttle(&self, a: Node, b: Node, rate: u64) {
        self.change(|rules| rules.rates.extend([((a, b), rate), ((b, a), rate)]));
    }

    /// Everything is well again, but for what was reset.
    pub(crate) fn heal(&self) {
        self.change(|rules| {
            *rules = Rules {
                ids: std::mem::take(&mut rules.ids),
                newcomer: rules.newcomer,
                closed: rules.closed,
                ..Rules::default()
            };
        });
    }

    /// Resets every connection between the two; if there is none, the next one from `a` to `b`.
    pub(crate) fn reset(&self, a: Node, b: Node) {
        let live = self.live();
        let found: Vec<_> = live.iter().filter(|connection| connection.is_between(a, b)).collect();
        found.iter().for_each(|connection| connection.end(true));
        if found.is_empty() {
            self.change(|rules| rules.reset_next.extend([(a, b)]));
        }
    }

    /// The nodes with a connection to the shared-state listener of `listener`.
    pub(crate) fn fetchers(&self, listener: Node) -> Vec<Node> {
        let is_fetch = |c: &&Arc<Connection>| c.listener == listener && c.role == Role::State;
        self.live().iter().filter(is_fetch).map(|connection| connection.dialer).collect()
    }

    fn live(&self) -> Vec<Arc<Connection>> {
        let mut live = self.shared.live.lock();
        live.retain(|connection| connection.upgrade().is_some_and(|connection| !connection.is_dead()));
        live.iter().filter_map(Weak::upgrade).collect()
    }
}

impl Drop for Proxies {
    fn drop(&mut self) {
        self.change(|rules| rules.closed = true);
        for connection in self.live() {
            connection.end(false);
        }
        for (address, thread) in self.doors.drain(..) {
            // Wakes the thread that accepts.
            drop(TcpStream::connect(address));
            let _ = thread.join();
        }
    }
}

#[derive(Clone, Copy)]
enum Through {
    /// To this peer.
    Peer(Node),
    /// From this peer to the master.
    Master(Node),
}

fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    // Before it listens, so that accepted connections have them from their first packet on.
    socket.set_recv_buffer_size(BUFFER_BYTES)?;
    socket.set_tcp_mss(SEGMENT_BYTES)?;
    socket.bind(&address.into())?;
    socket.listen(64)?;
    Ok(socket.into())
}

fn dial(target: SocketAddr, source: Option<IpAddr>) -> std::io::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    if let Some(source) = source {
        socket.bind(&SocketAddr::new(source, 0).into())?;
    }
    socket.set_recv_buffer_size(BUFFER_BYTES)?;
    socket.set_send_buffer_size(BUFFER_BYTES)?;
    socket.set_tcp_mss(SEGMENT_BYTES)?;
    socket.connect(&target.into())?;
    Ok(socket.into())
}

/// One connection, from its first byte to its last.
fn serve(shared: &Arc<Shared>, mut near: TcpStream, through: Through, target: SocketAddr) {
    let mut first = [0; PREAMBLE_BYTES];
    let _ = near.set_read_timeout(Some(Duration::from_secs(5)));
    let (dialer, listener, role, first) = match through {
        Through::Master(peer) => (peer, MASTER, Role::Control, &[][..]),
        Through::Peer(listener) => {
            let Ok(()) = near.read_exact(&mut first) else { return };
            let Ok(preamble) = Preamble::decode(&first) else { return };
            let rules = shared.rules.lock();
            let Some(dialer) = rules.ids.get(&preamble.from).copied().or(rules.newcomer) else { return };
            (dialer, listener, preamble.role, &first[..])
        }
    };
    let _ = near.set_read_timeout(Some(LOOK));
    let ends = (dialer, listener);
    if shared.rules.lock().reset_next.remove(&ends) {
        let _ = SockRef::from(&near).set_linger(Some(Duration::ZERO));
        return;
    }
    if shared.rules.lock().is_silent(ends, role) {
        return keep_silent(shared, &near);
    }
    if !shared.pass(ends, first.len(), &mut Instant::now(), || has_hung_up(&near)) {
        return;
    }
    // The master sees each peer on a host of its own.
    let source = match through {
        Through::Master(_) => near.local_addr().ok().map(|door| door.ip()),
        Through::Peer(_) => None,
    };
    let Ok(mut far) = dial(target, source) else { return };
    for stream in [&near, &far] {
        let _ = stream.set_nodelay(true);
        let _ = stream.set_read_timeout(Some(LOOK));
        let _ = stream.set_write_timeout(Some(LOOK));
    }
    if far.write_all(first).is_err() {
        return;
    }
    let connection = Arc::new(Connection { dialer, listener, role, near, far, dead: AtomicBool::new(false) });
    shared.live.lock().push(Arc::downgrade(&connection));
    let (shared, back) = (shared.clone(), connection.clone());
    let for_back = shared.clone();
    std::thread::spawn(move || pump(&for_back, &back, &back.far, &back.near, (listener, dialer)));
    pump(&shared, &connection, &connection.near, &connection.far, ends);
}

/// Whether the dialling end has closed the connection. It sends nothing more before it has an answer.
fn has_hung_up(near: &TcpStream) -> bool {
    let _ = near.set_nonblocking(true);
    let gone = matches!(near.peek(&mut [0]), Ok(0)) || near.take_error().is_ok_and(|error| error.is_some());
    let _ = near.set_nonblocking(false);
    gone
}

/// Never answers.
fn keep_silent(shared: &Shared, near: &TcpStream) {
    let mut rules = shared.rules.lock();
    while !rules.closed && !has_hung_up(near) {
        shared.changed.wait_for(&mut rules, LOOK);
    }
}

/// Carries bytes one way until one end closes or the connection is ended.
fn pump(shared: &Shared, connection: &Connection, mut from: &TcpStream, to: &TcpStream, ends: (Node, Node)) {
    let mut buffer = [0; 4096];
    let mut due = Instant::now();
    let is_over = || connection.is_dead();
    while !is_over() {
        let bytes = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(bytes) => bytes,
            Err(error) if is_pause(&error) => continue,
            Err(_) => return connection.end(true),
        };
        if !shared.pass(ends, bytes, &mut due, is_over) {
            return;
        }
        if shared.rules.lock().swallowed.contains(&ends) {
            continue;
        }
        if !write_all(to, &buffer[..bytes], is_over) {
            return connection.end(true);
        }
    }
    if !is_over() && shared.pass(ends, 0, &mut due, is_over) {
        let _ = to.shutdown(Shutdown::Write);
    }
}

fn write_all(mut to: &TcpStream, mut bytes: &[u8], is_over: impl Fn() -> bool) -> bool {
    while !bytes.is_empty() && !is_over() {
        match to.write(bytes) {
            Ok(0) => return false,
            Ok(written) => bytes = &bytes[written..],
            Err(error) if is_pause(&error) => {}
            Err(_) => return false,
        }
    }
    bytes.is_empty()
}

fn is_pause(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}
