//! The proxy's thread: waits for sockets, orders and due bytes, and moves them.

use super::{
    Harm, Link, LinkId, Links,
    connection::{Connection, Fate},
};
use crate::os;
use mio::{
    Events, Interest, Poll, Token, Waker,
    net::{TcpListener, TcpStream},
};
use std::{
    collections::BTreeMap,
    io,
    net::SocketAddr,
    sync::{
        Arc,
        mpsc::{Receiver, Sender},
    },
    time::Duration,
};

const WAKER: Token = Token(0);
/// Events that are taken at once.
const EVENTS: usize = 256;

/// A command of the supervisor.
#[derive(Debug)]
pub(super) enum Command {
    /// Connections to this door go to the peer's listener.
    Open {
        peer: usize,
        door: std::net::TcpListener,
        target: SocketAddr,
    },
    /// The peer is gone.
    Close {
        peer: usize,
    },
    /// `done` is told when it has been carried out.
    Harm {
        links: Vec<LinkId>,
        harm: Harm,
        done: Sender<()>,
    },
    /// Everything is well again, but for what was reset.
    Heal,
    Stop,
}

struct Door {
    peer: usize,
    listener: TcpListener,
    target: SocketAddr,
}

/// See the module's documentation.
pub(super) struct Net {
    poll: Poll,
    commands: Receiver<Command>,
    links: Links,
    doors: BTreeMap<usize, Door>,
    /// With the door that each came through.
    connections: BTreeMap<usize, (SocketAddr, Connection)>,
    next: usize,
    buffer: Vec<u8>,
}

impl Net {
    pub(super) fn new(commands: Receiver<Command>, links: Links) -> io::Result<(Self, Arc<Waker>)> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        let (doors, connections) = (BTreeMap::new(), BTreeMap::new());
        Ok((Self { poll, commands, links, doors, connections, next: 1, buffer: Vec::new() }, waker))
    }

    /// Runs until it is told to stop.
    pub(super) fn run(mut self) {
        let mut events = Events::with_capacity(EVENTS);
        loop {
            let now_us = os::monotonic_us();
            let due = self.connections.values().filter_map(|(_, c)| c.due_us()).min();
            // Rounded up: what is due in half a millisecond is not to be asked for without end until then.
            let wait = due.map(|due| Duration::from_millis(due.saturating_sub(now_us).div_ceil(1000)));
            if let Err(error) = self.poll.poll(&mut events, wait)
                && error.kind() != io::ErrorKind::Interrupted
            {
                return log::error!("the proxy cannot wait for its sockets: {error}");
            }
            let mut touched: Vec<usize> = Vec::new();
            for event in &events {
                if event.token() == WAKER {
                    continue;
                }
                let (id, is_far) = (event.token().0 / 2, event.token().0 % 2 == 1);
                if let Some((_, connection)) = self.connections.get_mut(&id) {
                    let broken = event.is_error();
                    connection.note(is_far, event.is_readable() || broken, event.is_writable() || broken);
                    touched.push(id);
                } else if self.doors.contains_key(&id) {
                    self.accept(id);
                }
            }
            let now_us = os::monotonic_us();
            let is_due = |c: &Connection| c.due_us().is_some_and(|due| due <= now_us);
            let due = self.connections.iter().filter(|(_, (_, c))| is_due(c));
            touched.extend(due.map(|(id, _)| *id));
            touched.sort_unstable();
            touched.dedup();
            touched.into_iter().for_each(|id| self.serve(id, now_us));
            if !self.obey() {
                return;
            }
        }
    }

    fn id(&mut self) -> usize {
        self.next += 1;
        self.next
    }

    /// Does what the supervisor wants; `false`: to stop.
    fn obey(&mut self) -> bool {
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Open { peer, door, target } => {
                    let id = self.id();
                    let mut listener = TcpListener::from_std(door);
                    let registered =
                        self.poll.registry().register(&mut listener, Token(id * 2), Interest::READABLE);
                    match registered {
                        Ok(()) => drop(self.doors.insert(id, Door { peer, listener, target })),
                        Err(error) => log::error!("the proxy cannot watch a door: {error}"),
                    }
                }
                Command::Close { peer } => {
                    self.doors.retain(|_, door| door.peer != peer);
                    let gone = self.connections.iter().filter(|(_, (_, c))| c.listener == peer);
                    let gone: Vec<usize> = gone.map(|(id, _)| *id).collect();
                    gone.into_iter().for_each(|id| self.end(id, true));
                }
                Command::Harm { links, harm, done } => {
                    links.into_iter().for_each(|id| self.harm(id, harm));
                    // The caller that waits for it lives as long as this thread.
                    let _ = done.send(());
                }
                Command::Heal => {
                    let ids: Vec<usize> = self.connections.keys().copied().collect();
                    for id in ids {
                        let healed = self.connections.get_mut(&id).map(|(_, c)| c.heal());
                        if let Some(Err(error)) = healed {
                            log::error!("the proxy cannot end a loss: {error}");
                        }
                        self.serve(id, os::monotonic_us());
                    }
                }
                Command::Stop => return false,
            }
        }
        true
    }

    fn harm(&mut self, id: LinkId, harm: Harm) {
        let Some((_, connection)) = self.connections.get_mut(&id) else { return };
        match harm {
            Harm::Delay { way, delay_us, until_us } => connection.pipe(way).delay(delay_us, until_us),
            Harm::Throttle { way, bytes_per_s, until_us } => {
                connection.pipe(way).throttle(bytes_per_s, until_us);
            }
            Harm::Flip { way, in_bytes } => connection.pipe(way).flip(in_bytes),
            Harm::Lose { way, until_us } => {
                if let Err(error) = connection.lose(way, until_us) {
                    log::error!("the proxy cannot lose segments: {error}");
                }
            }
            Harm::Reset => self.end(id, true),
        }
    }

    fn accept(&mut self, door: usize) {
        loop {
            let Some(Door { peer, listener, target }) = self.doors.get(&door) else { return };
            let (peer, target) = (*peer, *target);
            let Ok((stream, _)) = listener.accept() else { return };
            let id = self.id();
            let mut connection = Connection::new(peer, stream);
            let interest = Interest::READABLE | Interest::WRITABLE;
            match self.poll.registry().register(connection.near(), Token(id * 2), interest) {
                Ok(()) => drop(self.connections.insert(id, (target, connection))),
                Err(error) => log::error!("the proxy cannot watch a connection: {error}"),
            }
        }
    }

    fn serve(&mut self, id: usize, now_us: u64) {
        let Some((target, connection)) = self.connections.get_mut(&id) else { return };
        if connection.far().is_none() {
            let (target, listener) = (*target, connection.listener);
            match connection.greet() {
                Ok(None) => return,
                Ok(Some(preamble)) => {
                    if self.reach(id, target, now_us).is_err() {
                        return self.end(id, true);
                    }
                    let link =
                        Link { id, from: preamble.from, to: preamble.to, role: preamble.role, listener };
                    self.links.lock().insert(id, link);
                }
                Err(_) => return self.end(id, true),
            }
        }
        let Some((_, connection)) = self.connections.get_mut(&id) else { return };
        match connection.pump(now_us, &mut self.buffer) {
            Fate::Lives => {}
            Fate::Over => self.end(id, false),
            Fate::Broke => self.end(id, true),
        }
    }

    /// Dials the peer behind the door.
    fn reach(&mut self, id: usize, target: SocketAddr, now_us: u64) -> io::Result<()> {
        let Some((_, connection)) = self.connections.get_mut(&id) else { return Ok(()) };
        connection.connect(TcpStream::connect(target)?, now_us);
        let Some(far) = connection.far() else { return Ok(()) };
        self.poll.registry().register(far, Token(id * 2 + 1), Interest::READABLE | Interest::WRITABLE)
    }

    fn end(&mut self, id: usize, reset: bool) {
        self.links.lock().remove(&id);
        if let Some((_, connection)) = self.connections.remove(&id)
            && reset
        {
            connection.reset();
        }
    }
}
