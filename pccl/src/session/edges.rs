//! The two edges of the ring that touch this peer: dialing the next one, and collecting the connections of the previous.

use super::{Identity, STACK_BYTES, conductor::Event};
use crate::config::{Config, FrameChecksums};
use crossbeam_channel::Sender;
use pccl_protocol::{GroupEpoch, RingMember, limits};
use std::{
    net::{IpAddr, TcpStream},
    time::{Duration, Instant},
};
use tinysockets::{
    address::HostPort,
    dial::dial_with_preamble,
    link::tune_data_socket,
    preamble::{Preamble, Role},
};

/// How long an early connection of the previous rank waits for the ring plan that explains it.
const WAITING_TIMEOUT: Duration = Duration::from_secs(60);
/// Most early connections.
const MAX_WAITING: usize = 4 * limits::MAX_POOL_CONNECTIONS as usize;

/// One directed edge: the peer at the other end, and the generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Edge {
    pub(crate) peer: u128,
    pub(crate) generation: u64,
    pub(crate) connections: u16,
}

impl Edge {
    /// Peer and generation: what names the edge.
    pub(crate) fn name(&self) -> (u128, u64) {
        (self.peer, self.generation)
    }
}

/// What a dial has come to.
#[derive(Debug)]
pub(crate) struct Dialed {
    pub(crate) edge: Edge,
    pub(crate) result: Result<Vec<TcpStream>, String>,
}

/// Dials `target` on a thread of its own, so that a newer ring plan never waits for it. The result is an event.
pub(crate) fn dial(
    config: &Config,
    me: Identity,
    epoch: GroupEpoch,
    edge: Edge,
    target: &RingMember,
    events: &Sender<Event>,
) {
    let address = HostPort::new(target.host.as_str(), target.p2p_port);
    let timeout = config.dial_timeout;
    let preamble = Preamble {
        run: me.run.0,
        from: me.peer.0,
        to: edge.peer,
        group: config.group.0,
        epoch: epoch.0,
        connection_count: edge.connections,
        link_generation: edge.generation,
        ..Preamble::new(Role::Data)
    };
    let thread_events = events.clone();
    let spawned =
        std::thread::Builder::new().name("pccl-dial".into()).stack_size(STACK_BYTES).spawn(move || {
            let result = dial_pool(&address, preamble, Instant::now() + timeout);
            let _ = thread_events.send(Event::Dialed(Dialed { edge, result }));
        });
    if let Err(error) = spawned {
        let result = Err(format!("cannot start a thread: {error}"));
        let _ = events.send(Event::Dialed(Dialed { edge, result }));
    }
}

fn dial_pool(address: &HostPort, preamble: Preamble, deadline: Instant) -> Result<Vec<TcpStream>, String> {
    log::trace!("dialing {address}");
    (0..preamble.connection_count)
        .map(|connection_index| {
            let preamble = Preamble { connection_index, ..preamble };
            let (stream, round_trip) =
                dial_with_preamble(address, &preamble, deadline).map_err(|error| error.to_string())?;
            tune_data_socket(&stream, round_trip);
            Ok(stream)
        })
        .collect()
}

/// Connections from previous ranks that no link has taken yet. They may come before the plan that explains them.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    streams: Vec<(Preamble, TcpStream, Instant)>,
}

impl Waiting {
    /// Adds a connection; the oldest one goes if there are too many.
    pub(crate) fn add(&mut self, preamble: Preamble, stream: TcpStream) {
        self.streams.retain(|(_, _, since)| since.elapsed() < WAITING_TIMEOUT);
        if self.streams.len() >= MAX_WAITING {
            self.streams.remove(0);
        }
        self.streams.push((preamble, stream, Instant::now()));
    }

    /// Closes connections that belong to epochs before `epoch`, but for those of `edge`.
    pub(crate) fn forget_before(&mut self, epoch: GroupEpoch, edge: Option<Edge>) {
        self.streams.retain(|(preamble, _, _)| {
            preamble.epoch >= epoch.0 || edge.is_some_and(|edge| is_of(preamble, &edge))
        });
    }

    /// All connections of `edge`, in order, once they are complete.
    pub(crate) fn take(&mut self, edge: &Edge) -> Option<Vec<TcpStream>> {
        let position = |index: u16| {
            self.streams
                .iter()
                .rposition(|(preamble, _, _)| is_of(preamble, edge) && preamble.connection_index == index)
        };
        (0..edge.connections).map(position).collect::<Option<Vec<_>>>()?;
        let (taken, kept) =
            std::mem::take(&mut self.streams).into_iter().partition(|(p, _, _)| is_of(p, edge));
        self.streams = kept;
        let mut taken: Vec<(Preamble, TcpStream, Instant)> = taken;
        taken.sort_by_key(|(preamble, _, since)| (preamble.connection_index, std::cmp::Reverse(*since)));
        taken.dedup_by_key(|(preamble, _, _)| preamble.connection_index);
        Some(taken.into_iter().map(|(_, stream, _)| stream).collect())
    }
}

fn is_of(preamble: &Preamble, edge: &Edge) -> bool {
    preamble.from == edge.peer
        && preamble.link_generation == edge.generation
        && preamble.connection_count == edge.connections
        && preamble.connection_index < edge.connections
}

/// Whether frames to `next` carry checksums.
pub(crate) fn wants_checksums(choice: FrameChecksums, own: &RingMember, next: &RingMember) -> bool {
    match choice {
        FrameChecksums::Always => true,
        FrameChecksums::Never => false,
        FrameChecksums::Automatic => {
            let loopback = next.host.as_str() == "localhost"
                || next.host.as_str().parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
            !loopback && own.host != next.host
        }
    }
}
