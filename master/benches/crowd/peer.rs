//! One light peer: a control connection without a thread, whose owner hands it what arrives.

use mio::net::TcpStream;
use pccl_protocol::{Beat, C2m, GroupId, GroupPlan, M2c, Name, PeerId, Register, limits::MAX_PACKET_BYTES};
use std::{
    collections::VecDeque,
    io::{ErrorKind, Read, Write},
    net::SocketAddr,
    time::{Duration, Instant},
};
use tinysockets::{
    preamble::{Preamble, REPLY_BYTES, Role},
    wire::FrameParser,
};

/// A packet that a peer has heard.
pub(crate) enum News {
    /// A plan, and how many bytes it takes.
    Plan(GroupPlan, usize),
    /// Any other packet.
    Packet(M2c),
}

pub(crate) struct Peer {
    pub(crate) stream: TcpStream,
    parser: FrameParser,
    /// Bytes of the answer to the preamble that have not come yet.
    reply_left: usize,
    unsent: VecDeque<u8>,
    /// Its identity, once it is registered.
    pub(crate) me: Option<PeerId>,
    pub(crate) accepted: bool,
    /// Members of the last ring, and its epoch.
    pub(crate) ring: (usize, pccl_protocol::GroupEpoch),
    pub(crate) leaving: bool,
    pub(crate) gone: bool,
    beats: u64,
    pub(crate) next_beat: Instant,
    /// When beats were sent that have not been answered.
    pub(crate) open: VecDeque<Instant>,
}

impl Peer {
    pub(crate) fn connect(address: SocketAddr, spread: Duration) -> Self {
        let stream = std::net::TcpStream::connect(address).expect("the master accepts");
        stream.set_nonblocking(true).expect("a socket");
        stream.set_nodelay(true).expect("a socket");
        let mut peer = Self {
            stream: TcpStream::from_std(stream),
            parser: FrameParser::new(MAX_PACKET_BYTES),
            reply_left: REPLY_BYTES,
            unsent: VecDeque::new(),
            me: None,
            accepted: false,
            ring: (0, pccl_protocol::GroupEpoch(0)),
            leaving: false,
            gone: false,
            beats: 0,
            next_beat: Instant::now() + spread,
            open: VecDeque::new(),
        };
        peer.unsent.extend(Preamble::new(Role::Control).encode());
        peer.send(&C2m::Register(Register {
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
        }));
        peer
    }

    pub(crate) fn send(&mut self, packet: &C2m) {
        self.post(packet);
        self.flush();
    }

    /// As [`Peer::send`], but it leaves with what comes behind it, at the latest when all that has come is read.
    pub(crate) fn post(&mut self, packet: &C2m) {
        self.unsent.extend(packet.to_frame());
    }

    pub(crate) fn flush(&mut self) {
        while !self.unsent.is_empty() && !self.gone {
            match self.stream.write(self.unsent.as_slices().0) {
                Ok(n) => drop(self.unsent.drain(..n)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => self.gone = true,
            }
        }
    }

    pub(crate) fn beat(&mut self, now: Instant) {
        self.beats += 1;
        self.next_beat = now + Duration::from_secs(1);
        self.open.push_back(now);
        self.send(&C2m::Beat(Beat { sequence: self.beats, ..Beat::default() }));
    }

    /// Reads all that has come; to the end of the stream if it `is_over`.
    pub(crate) fn receive(&mut self, buffer: &mut [u8], is_over: bool, news: &mut Vec<News>) {
        while !self.gone {
            match self.stream.read(buffer) {
                Ok(0) => self.gone = true,
                Ok(n) => {
                    let skip = self.reply_left.min(n);
                    self.reply_left -= skip;
                    self.parser.feed(&buffer[skip..n]);
                    self.take_frames(news);
                    // Bytes that come from now on are another event.
                    if n < buffer.len() && !is_over {
                        return;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => self.gone = true,
            }
        }
    }

    fn take_frames(&mut self, news: &mut Vec<News>) {
        while let Some((kind, body)) = self.parser.next_frame().expect("well-formed frames") {
            news.push(match M2c::from_frame(kind, body).expect("a packet") {
                M2c::GroupPlan(plan) => News::Plan(plan, body.len()),
                packet => News::Packet(packet),
            });
        }
    }
}
