//! A connection through the proxy: two sockets, a pipe each way.

use super::pipe::Pipe;
use mio::net::TcpStream;
use socket2::{SockFilter, SockRef};
use std::{
    io::{self, ErrorKind, Read, Write},
    net::Shutdown,
    time::Duration,
};
use tinysockets::preamble::{PREAMBLE_BYTES, Preamble};

/// Bytes that are read at once.
const READ_BYTES: usize = 64 << 10;
/// A classic BPF program of one instruction, "return 0": the kernel drops every segment that arrives for the socket,
/// unacknowledged, as if it had been lost on the way.
const LOSE_ALL: [SockFilter; 1] = [SockFilter::new(libc::BPF_RET as u16 | libc::BPF_K as u16, 0, 0, 0)];

/// Which way bytes flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// From the end that dialled.
    Forward,
    Back,
}

/// One end of the connection.
#[derive(Debug)]
struct End {
    stream: TcpStream,
    readable: bool,
    writable: bool,
    /// Nothing more comes from it.
    finished: bool,
    /// It has been told that nothing more comes.
    told: bool,
    /// Until when what it sends is lost.
    loses_until_us: Option<u64>,
}

impl End {
    fn new(stream: TcpStream) -> Self {
        Self { stream, readable: false, writable: false, finished: false, told: false, loses_until_us: None }
    }

    fn lose(&mut self, until_us: u64) -> io::Result<()> {
        SockRef::from(&self.stream).attach_filter(&LOSE_ALL)?;
        self.loses_until_us = Some(until_us);
        Ok(())
    }

    fn end_loss(&mut self, now_us: u64) -> io::Result<()> {
        if self.loses_until_us.is_some_and(|until| until <= now_us) {
            self.loses_until_us = None;
            SockRef::from(&self.stream).detach_filter()?;
        }
        Ok(())
    }
}

/// The fate of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Lives,
    /// Both ends have closed it.
    Over,
    /// An end broke it; the other end is to see a break as well.
    Broke,
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Connection {
    /// Number of the peer behind the door.
    pub(super) listener: usize,
    near: End,
    far: Option<End>,
    first: Vec<u8>,
    forward: Pipe,
    back: Pipe,
}

impl Connection {
    pub(super) fn new(listener: usize, near: TcpStream) -> Self {
        tune(&near);
        let (forward, back) = (Pipe::default(), Pipe::default());
        Self { listener, near: End::new(near), far: None, first: Vec::new(), forward, back }
    }

    /// Takes note of an event of one of its sockets.
    pub(super) fn note(&mut self, is_far: bool, readable: bool, writable: bool) {
        let end = if is_far { self.far.as_mut() } else { Some(&mut self.near) };
        if let Some(end) = end {
            end.readable |= readable;
            end.writable |= writable;
        }
    }

    pub(super) fn near(&mut self) -> &mut TcpStream {
        &mut self.near.stream
    }

    pub(super) fn far(&mut self) -> Option<&mut TcpStream> {
        self.far.as_mut().map(|end| &mut end.stream)
    }

    /// Reads on the preamble; returns it once it is there.
    ///
    /// # Errors
    /// When the other end closed the connection before, or speaks something else.
    pub(super) fn greet(&mut self) -> io::Result<Option<Preamble>> {
        while self.near.readable && self.first.len() < PREAMBLE_BYTES {
            let mut rest = [0; PREAMBLE_BYTES];
            let missing = PREAMBLE_BYTES - self.first.len();
            match self.near.stream.read(&mut rest[..missing]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.first.extend(&rest[..count]),
                Err(error) => absorb(error, &mut self.near.readable)?,
            }
        }
        let Ok(first) = <&[u8; PREAMBLE_BYTES]>::try_from(&self.first[..]) else { return Ok(None) };
        Preamble::decode(first).map(Some).map_err(io::Error::other)
    }

    /// Is connected to the far end; the preamble goes first.
    pub(super) fn connect(&mut self, far: TcpStream, now_us: u64) {
        tune(&far);
        self.far = Some(End::new(far));
        self.forward.push(now_us, std::mem::take(&mut self.first));
    }

    pub(super) fn pipe(&mut self, way: Way) -> &mut Pipe {
        match way {
            Way::Forward => &mut self.forward,
            Way::Back => &mut self.back,
        }
    }

    /// From now on what is sent this way is lost on its way to the proxy.
    pub(super) fn lose(&mut self, way: Way, until_us: u64) -> io::Result<()> {
        match (way, self.far.as_mut()) {
            (Way::Forward, _) => self.near.lose(until_us),
            (Way::Back, Some(far)) => far.lose(until_us),
            (Way::Back, None) => Ok(()),
        }
    }

    /// Ends all that is done to it.
    pub(super) fn heal(&mut self) -> io::Result<()> {
        self.forward.heal();
        self.back.heal();
        self.near.end_loss(u64::MAX)?;
        self.far.as_mut().map_or(Ok(()), |far| far.end_loss(u64::MAX))
    }

    /// Closes it so that both ends see a reset.
    pub(super) fn reset(self) {
        for end in [Some(self.near), self.far].into_iter().flatten() {
            // If it is gone already there is nobody to see a reset.
            drop(SockRef::from(&end.stream).set_linger(Some(Duration::ZERO)));
        }
    }

    /// When it has something to do without an event; that may be over.
    pub(super) fn due_us(&self) -> Option<u64> {
        let takes = |end: Option<&End>| end.is_some_and(|end| end.writable);
        // Bytes that a socket does not take wait for an event.
        let forward = self.forward.due_us().filter(|_| takes(self.far.as_ref()));
        let back = self.back.due_us().filter(|_| takes(Some(&self.near)));
        let losses = [self.near.loses_until_us, self.far.as_ref().and_then(|far| far.loses_until_us)];
        [forward, back].into_iter().chain(losses).flatten().min()
    }

    /// Moves what can be moved.
    pub(super) fn pump(&mut self, now_us: u64, buffer: &mut Vec<u8>) -> Fate {
        let Some(far) = self.far.as_mut() else { return Fate::Lives };
        let ways = [(true, &mut self.forward), (false, &mut self.back)];
        for (forward, pipe) in ways {
            let (from, to) = if forward { (&mut self.near, &mut *far) } else { (&mut *far, &mut self.near) };
            if carry(from, to, pipe, now_us, buffer).is_err() {
                return Fate::Broke;
            }
        }
        if self.near.end_loss(now_us).is_err() || far.end_loss(now_us).is_err() {
            return Fate::Broke;
        }
        if self.near.told && far.told { Fate::Over } else { Fate::Lives }
    }
}

fn tune(stream: &TcpStream) {
    // Only a matter of speed, and of how soon a connection goes whose ends are gone.
    drop(stream.set_nodelay(true));
    let keepalive =
        socket2::TcpKeepalive::new().with_time(Duration::from_secs(20)).with_interval(Duration::from_secs(5));
    drop(SockRef::from(stream).set_tcp_keepalive(&keepalive));
}

/// That there is nothing to do at the moment is no error.
fn absorb(error: io::Error, ready: &mut bool) -> io::Result<()> {
    match error.kind() {
        ErrorKind::WouldBlock => *ready = false,
        ErrorKind::Interrupted => {}
        // A far end that is not connected yet.
        ErrorKind::NotConnected => *ready = false,
        _ => return Err(error),
    }
    Ok(())
}

fn carry(from: &mut End, to: &mut End, pipe: &mut Pipe, now_us: u64, buffer: &mut Vec<u8>) -> io::Result<()> {
    loop {
        let mut moved = false;
        let room = pipe.room(now_us).min(READ_BYTES);
        if from.readable && !from.finished && room > 0 {
            buffer.resize(READ_BYTES, 0);
            match from.stream.read(&mut buffer[..room]) {
                Ok(0) => from.finished = true,
                Ok(count) => {
                    pipe.push(now_us, buffer[..count].to_vec());
                    moved = true;
                }
                Err(error) => absorb(error, &mut from.readable)?,
            }
        }
        while to.writable
            && let Some(bytes) = pipe.ready(now_us)
        {
            match to.stream.write(bytes) {
                Ok(count) => {
                    pipe.pass(count);
                    moved = true;
                }
                Err(error) => absorb(error, &mut to.writable)?,
            }
        }
        if !moved {
            break;
        }
    }
    if from.finished && pipe.is_empty() && !to.told {
        to.told = true;
        to.stream.shutdown(Shutdown::Write)?;
    }
    Ok(())
}
