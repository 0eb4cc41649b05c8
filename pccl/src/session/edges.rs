//! The two ends of an edge: dialing it, and collecting its connections.

use super::{
    edge::{Dialed, Side},
    event::Event,
};
use crate::{
    config::Config,
    settings::FrameChecksums,
    threads::STACK_BYTES,
    world::{Identity, Told},
};
use crossbeam_channel::Sender;
use pccl_protocol::{GroupEpoch, Member, WireMode, limits};
use std::{
    cell::Cell,
    net::{IpAddr, Ipv4Addr},
    time::{Duration, Instant},
};
use tinysockets::{
    address::HostPort,
    conn::Conn,
    dial::dial_place,
    key::SecretKey,
    link::{MAX_AUTOMATIC_CONNECTIONS, ROUND_TRIP_PER_CONNECTION, Tuned, tune_data_socket},
    place::Place,
    preamble::{Preamble, SHARES_MEMORY},
    throttle::{Crowd, Network},
};

/// How long an early connection of the previous rank waits for the ring plan that explains it.
const WAITING_TIMEOUT: Duration = Duration::from_secs(60);
/// Most early connections.
const MAX_WAITING: usize = 4 * limits::MAX_POOL_CONNECTIONS as usize;

/// Dials `target`, at the other end of an edge, on a thread of its own, so that a newer ring plan never waits for it.
/// The result is an event.
pub(crate) fn dial(
    (config, told): (&Config, &Told),
    me: Identity,
    epoch: GroupEpoch,
    (side, relayed): (Side, bool),
    target: &Member,
    events: &Sender<Event>,
) {
    let place = told.ways.to(target.peer, &target.hosts, target.p2p_port);
    let timeout = config.settings.dial_timeout;
    let edge = side.edge;
    let preamble = Preamble {
        security: me.wire.security(),
        features: if config.settings.shared_memory { SHARES_MEMORY } else { 0 },
        run: me.run.0,
        from: me.peer.0,
        to: edge.peer,
        group: config.group.0,
        epoch: epoch.0,
        connection_count: edge.connections,
        link_generation: edge.generation,
        ..Preamble::new(side.dials_as())
    };
    let failed = |text| drop(events.send(Event::Dialed(Dialed { side, result: Err(text) })));
    let (preamble, ticket) = match told.wallet.stamp(preamble) {
        Ok(stamped) => stamped,
        Err(text) => return failed(text),
    };
    let relay = told.relay.get().filter(|_| relayed).cloned();
    if relayed && relay.is_none() {
        return failed("the master has no relay".to_owned());
    }
    let (thread_events, ways, peer) = (events.clone(), told.ways.clone(), target.peer);
    let spawned =
        std::thread::Builder::new().name("pccl-dial".into()).stack_size(STACK_BYTES).spawn(move || {
            let (ticket, deadline) = (ticket.as_ref(), Instant::now() + timeout);
            let result = match relay {
                Some(relay) => relay.begin(&preamble, ticket, deadline).map(|conn| vec![conn]),
                None => dial_pool(&place, preamble, ticket, deadline)
                    .inspect(|conns| conns.iter().take(1).for_each(|first| ways.led_to(peer, first))),
            };
            let _ = thread_events.send(Event::Dialed(Dialed { side, result }));
        });
    if let Err(error) = spawned {
        failed(format!("cannot start a thread: {error}"));
    }
}

/// As [`ROUND_TRIP_PER_CONNECTION`], of connections that go by a model of the path and have the send buffers that it
/// asks for. More of them look for their rate at the same time, each by sending more than there is room for.
const ROUND_TRIP_PER_ROOMY_CONNECTION: Duration = Duration::from_millis(50);
/// Up to this round trip one connection fills the path by itself, if it need not take a lost packet for congestion.
const SINGLE_ROUND_TRIP_MAX: Duration = Duration::from_millis(60);

/// How many connections an edge has when nobody asked for a number. On a short path one connection fills the wire, and
/// a second only costs switches between threads. On a long one several hold more than the kernel's buffers allow one,
/// and a lost packet stops only one of them; yet each frame takes longer over a slower connection.
fn automatic_connections(round_trip: Duration, tuned: Tuned) -> u16 {
    if tuned.is_paced && round_trip <= SINGLE_ROUND_TRIP_MAX {
        return 1;
    }
    let is_roomy = tuned.is_paced && tuned.has_room;
    let part = if is_roomy { ROUND_TRIP_PER_ROOMY_CONNECTION } else { ROUND_TRIP_PER_CONNECTION };
    let parts = round_trip.as_nanos().div_ceil(part.as_nanos());
    u16::try_from(parts).unwrap_or(u16::MAX).clamp(1, MAX_AUTOMATIC_CONNECTIONS)
}

/// Dials one connection, which tells how long the path is and which address is the right one, and then all others at
/// the same time.
pub(super) fn dial_pool(
    place: &Place,
    preamble: Preamble,
    ticket: Option<&SecretKey>,
    deadline: Instant,
) -> Result<Vec<Conn>, String> {
    log::trace!("dialing {}", place.target);
    // The needs of the path are known before anything is said.
    let numbered = |conn: &Conn| {
        let round_trip = conn.round_trip();
        let tuned = tune_data_socket(conn, round_trip);
        let connection_count = match preamble.connection_count {
            0 => automatic_connections(round_trip, tuned),
            wanted => wanted,
        };
        Preamble { connection_count, ..preamble }
    };
    let said = Cell::new(preamble);
    let say = |conn: &Conn| {
        said.set(numbered(conn));
        said.get()
    };
    let first = dial_place(place, &say, ticket, deadline).map_err(|error| error.to_string())?;
    let address = HostPort::from(first.peer_addr().map_err(|error| error.to_string())?);
    let place = &Place { short_segments: place.short_segments, ..address.into() };
    let (preamble, round_trip) = (said.get(), first.round_trip());
    let connection_count = preamble.connection_count;
    let conns = std::thread::scope(|scope| {
        let dials: Vec<_> = (1..connection_count)
            .map(|connection_index| {
                let preamble = Preamble { connection_index, ..preamble };
                std::thread::Builder::new().name("pccl-dial".into()).stack_size(STACK_BYTES).spawn_scoped(
                    scope,
                    move || {
                        dial_place(place, &|_| preamble, ticket, deadline).map_err(|error| error.to_string())
                    },
                )
            })
            .collect();
        let others = dials.into_iter().map(|dial| {
            let thread = dial.map_err(|error| format!("cannot start a thread: {error}"))?;
            thread.join().map_err(|_| "a dial panicked".to_owned())?
        });
        std::iter::once(Ok(first)).chain(others).collect::<Result<Vec<_>, String>>()
    })?;
    for conn in &conns[1..] {
        tune_data_socket(conn, round_trip);
    }
    Ok(conns)
}

/// Connections of edges that others have dialed, and that no link has taken yet. They may come before the plan that
/// explains them.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    conns: Vec<(Preamble, Conn, Instant)>,
}

impl Waiting {
    /// Adds a connection. If there are too many, one goes of the network that most of them come from.
    pub(crate) fn add(&mut self, preamble: Preamble, conn: Conn) {
        // Without an address it is broken, and its reader finds that.
        let network = |conn: &Conn| {
            let address = conn.peer_addr().map_or(Ipv4Addr::UNSPECIFIED.into(), |address| address.ip());
            Network::of(address)
        };
        self.conns.retain(|(_, _, since)| since.elapsed() < WAITING_TIMEOUT);
        self.conns.push((preamble, conn, Instant::now()));
        if self.conns.len() > MAX_WAITING {
            let all = self.conns.iter().enumerate().map(|(index, (_, conn, _))| (index, network(conn)));
            if let Some(index) = all.collect::<Crowd<usize>>().one_too_many(MAX_WAITING, MAX_WAITING) {
                let (preamble, ..) = self.conns.remove(index);
                log::debug!("closing a connection that says it is of {:032x}: too many wait", preamble.from);
            }
        }
    }

    /// Closes connections that belong to epochs before `epoch`, but for those of `awaited` edges.
    pub(crate) fn forget_before(&mut self, epoch: GroupEpoch, awaited: &[Side]) {
        self.conns.retain(|(preamble, _, _)| {
            preamble.epoch >= epoch.0 || awaited.iter().any(|edge| is_of(preamble, edge))
        });
    }

    /// All connections of an edge, in order, once they are complete.
    pub(crate) fn take(&mut self, edge: &Side) -> Option<Vec<Conn>> {
        let newest = self.conns.iter().rev().find(|(preamble, _, _)| is_of(preamble, edge))?;
        let count = newest.0.connection_count;
        let belongs = |preamble: &Preamble| is_of(preamble, edge) && preamble.connection_count == count;
        let is_here = |index: u16| {
            self.conns.iter().any(|(preamble, _, _)| belongs(preamble) && preamble.connection_index == index)
        };
        if !(0..count).all(is_here) {
            return None;
        }
        let (of_edge, kept): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.conns).into_iter().partition(|(p, _, _)| is_of(p, edge));
        self.conns = kept;
        let mut taken: Vec<_> = of_edge.into_iter().filter(|(preamble, _, _)| belongs(preamble)).collect();
        taken.sort_by_key(|(preamble, _, since)| (preamble.connection_index, std::cmp::Reverse(*since)));
        taken.dedup_by_key(|(preamble, _, _)| preamble.connection_index);
        Some(taken.into_iter().map(|(_, conn, _)| conn).collect())
    }
}

fn is_of(preamble: &Preamble, side: &Side) -> bool {
    let (edge, count) = (side.edge, preamble.connection_count);
    preamble.role == side.dialed_as()
        && preamble.from == edge.peer
        && preamble.link_generation == edge.generation
        && (count == edge.connections || edge.connections == 0)
        && count <= limits::MAX_POOL_CONNECTIONS
        && preamble.connection_index < count
}

/// Whether frames to `next` carry checksums.
pub(crate) fn wants_checksums(config: &Config, me: Identity, own: &Member, next: &Member) -> bool {
    match config.settings.frame_checksums {
        FrameChecksums::Always => true,
        FrameChecksums::Never => false,
        // A record that was damaged on its way does not open.
        FrameChecksums::Automatic if config.run_keys.is_some() && me.wire != WireMode::Off => false,
        FrameChecksums::Automatic => {
            let loopback = next.hosts.host.as_str() == "localhost"
                || next.hosts.host.as_str().parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
            !loopback && own.hosts.host != next.hosts.host
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::edge::Edge;
    use super::*;
    use tinysockets::preamble::Role;

    #[test]
    fn long_paths_get_more_connections() {
        let connections = |is_paced, has_room| {
            move |ms| automatic_connections(Duration::from_millis(ms), Tuned { is_paced, has_room })
        };
        for has_room in [true, false] {
            assert_eq!([0, 2, 20, 50, 150, 1_000_000].map(connections(false, has_room)), [1, 1, 1, 3, 8, 8]);
        }
        assert_eq!([0, 2, 20, 50, 60, 80, 150].map(connections(true, false)), [1, 1, 1, 1, 1, 4, 8]);
        assert_eq!([0, 60, 80, 150, 151, 300, 1000].map(connections(true, true)), [1, 1, 2, 3, 4, 6, 8]);
    }

    #[test]
    fn a_pool_is_taken_when_it_is_complete_and_its_sender_may_choose_the_number() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback");
        let mut waiting = Waiting::default();
        let add = |waiting: &mut Waiting, connection_index, connection_count| {
            let stream =
                std::net::TcpStream::connect(listener.local_addr().expect("bound")).expect("connect");
            let data = Preamble::new(Role::Data);
            let preamble =
                Preamble { from: 7, link_generation: 1, connection_index, connection_count, ..data };
            waiting.add(preamble, stream.into());
        };
        let edge = |connections| Side { edge: Edge { peer: 7, generation: 1, connections }, is_out: false };
        add(&mut waiting, 0, 3);
        add(&mut waiting, 2, 3);
        assert!(waiting.take(&edge(0)).is_none());
        add(&mut waiting, 1, 3);
        assert!(waiting.take(&edge(2)).is_none(), "another number was agreed on");
        let other = Side { edge: Edge { peer: 8, ..edge(0).edge }, ..edge(0) };
        assert!(waiting.take(&other).is_none());
        assert!(
            waiting.take(&Side { is_out: true, ..edge(0) }).is_none(),
            "of the edge in the other direction"
        );
        assert_eq!(waiting.take(&edge(0)).map(|conns| conns.len()), Some(3));
        assert!(waiting.take(&edge(0)).is_none());
        // The connections of a newer dial count, whatever an older one left.
        add(&mut waiting, 0, 2);
        add(&mut waiting, 0, 1);
        assert_eq!(waiting.take(&edge(0)).map(|conns| conns.len()), Some(1));
        add(&mut waiting, 0, 0);
        add(&mut waiting, 3, 2);
        assert!(waiting.take(&edge(0)).is_none(), "such connections are of no pool");
    }
}
