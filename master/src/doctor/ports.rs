//! The ports that a peer would have here: whether they are free, and whether the master reaches them.

use super::{
    Patient, Report,
    master::Way,
    remedy::{self, what_for},
};
use crate::origin::Origin;
use crate::state::{IdSource, LET_LARGE_PACKETS_PASS};
use pccl_protocol::{Address, C2m, Examine, Examined, Host, M2c, Padding, PeerId, RequestId, Ticket, limits};
use std::{
    io,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use tinysockets::{
    acceptor::{AcceptLimits, Acceptor, Incoming},
    address::HostPort,
    listener::Listener,
    place::own_addresses,
    preamble::{Refusal, Role},
    wire::WireError,
};

/// Listens as a peer would, for somebody whom the master looks for.
pub(super) struct Listening {
    me: PeerId,
    pub(super) p2p_port: u16,
    pub(super) state_port: u16,
    /// Where others may try them, beside where the master sees this machine.
    addresses: Vec<Address>,
    _acceptor: Acceptor,
}

/// The answer of a place that may be the master of the run.
pub(super) enum Asked {
    /// It is.
    Answer(Answer),
    /// It stands by for that of another machine, if that is heard.
    StandsBy { acting: Option<HostPort>, text: String },
}

/// The answer of the master.
pub(super) struct Answer {
    pub(super) told: Examined,
    /// With a run key: what opens the ports of peers for a measurement.
    pub(super) tickets: Vec<Ticket>,
    /// By the clock of this machine, when it came.
    pub(super) came: Duration,
}

/// Listens on the ports of a peer; nothing if that is not possible.
pub(super) fn listen(patient: &Patient, way: &Way, report: &mut Report) -> Option<Listening> {
    let me = match Origin::draw() {
        Ok(origin) => origin.identities().peer_id(0),
        Err(error) => {
            report.failed("identity", format!("no random numbers: {error}"), "give /dev/urandom back");
            return None;
        }
    };
    let data = bind(patient, Role::Data, patient.first_p2p_port, report)?;
    let state = bind(patient, Role::State, patient.first_state_port, report)?;
    let (p2p_port, state_port) = (data.local_port(), state.local_port());
    let has_ipv6 = data.local_addr().is_ipv6() && state.local_addr().is_ipv6();
    let own = own_addresses(patient.bind, has_ipv6, way.me).into_iter().filter_map(Address::new);
    let addresses = match patient.advertised_host {
        Some(_) => Vec::new(),
        None => own.take(limits::MAX_ADDRESSES).collect(),
    };
    let answer = move |incoming: Incoming| match incoming.preamble.role {
        // The reply is all that flows.
        Role::Check if incoming.preamble.to == me.0 => drop(incoming.accept()),
        _ => incoming.refuse(Refusal::WrongDestination),
    };
    let listeners = vec![(Role::Data, data), (Role::State, state)];
    match Acceptor::spawn(
        listeners,
        AcceptLimits::default(),
        way.key.clone().map(Into::into),
        Box::new(answer),
    ) {
        Ok(acceptor) => Some(Listening { me, p2p_port, state_port, addresses, _acceptor: acceptor }),
        Err(error) => {
            let found = format!("cannot accept connections: {error}");
            report.failed("ports", found, "look at the limits of this process (`ulimit -a`)");
            None
        }
    }
}

fn bind(patient: &Patient, role: Role, first: u16, report: &mut Report) -> Option<Listener> {
    let tries = if patient.strict_ports { 1 } else { limits::PORT_TRIES };
    match Listener::bind(patient.bind, first, tries) {
        Ok(listener) => {
            let port = listener.local_port();
            if first != 0 && port != first {
                let found =
                    format!("{first} is taken (by a peer on this machine?), the next free one is {port}");
                let remedy = format!("firewalls have to let {port} through as well, or free {first}");
                report.note(what_for(role), found, remedy);
            }
            Some(listener)
        }
        Err(error) => {
            let remedy = match error.kind() {
                io::ErrorKind::AddrInUse => {
                    "free it (`ss -ltnp` says whose it is), or choose other first ports"
                }
                io::ErrorKind::AddrNotAvailable => "bind to an address that this machine has (`ip address`)",
                _ => "choose other first ports",
            };
            report.failed(what_for(role), error.to_string(), remedy);
            None
        }
    }
}

/// Asks the master how it sees this machine. The question is longer than a packet of the network, and so is the answer.
pub(super) fn ask(
    patient: &Patient,
    way: &mut Way,
    listening: &Listening,
    report: &mut Report,
) -> Option<Asked> {
    let padding = Padding(limits::MAX_PADDING_BYTES as u16);
    let question = C2m::Examine(Examine {
        request: RequestId(1),
        peer: listening.me,
        advertised_host: patient.advertised_host.as_deref().map(Host::new),
        addresses: listening.addresses.clone(),
        p2p_port: listening.p2p_port,
        state_port: listening.state_port,
        padding,
    });
    let deadline = Instant::now() + patient.timeout;
    let (tickets, answer) = match exchange(way, &question, deadline) {
        Ok(answer) => answer,
        Err(error) => {
            no_answer(way, &error, report);
            return None;
        }
    };
    match answer {
        Ok(M2c::Examined(told)) => {
            let came = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            Some(Asked::Answer(Answer { told, tickets, came }))
        }
        Ok(M2c::StandsBy(told)) => {
            let acting = told.acting.and_then(|place| place.as_str().parse().ok());
            Some(Asked::StandsBy { acting, text: told.text.as_str().to_owned() })
        }
        Ok(M2c::Kicked(reason)) => {
            let found = format!("the master does not answer the question: {reason}");
            report.failed(
                "master",
                found,
                "if it is of an older release, install the same one on all machines",
            );
            None
        }
        Ok(other) => {
            let found = format!("the master answers with {}", other.name());
            report.failed("master", found, "install the same release on all machines");
            None
        }
        Err(error) => {
            let found = format!("the master sends what is no packet: {error}");
            report.failed("master", found, "install the same release on all machines");
            None
        }
    }
}

/// Sends the question; the answer, and the tickets that came in front of it.
fn exchange(
    way: &mut Way,
    question: &C2m,
    deadline: Instant,
) -> io::Result<(Vec<Ticket>, Result<M2c, WireError>)> {
    way.stream.send_bytes(&question.to_frame(), deadline)?;
    let mut tickets = Vec::new();
    loop {
        let (kind, body) = way.stream.recv_packet(deadline)?;
        match M2c::from_frame(kind, &body) {
            Ok(M2c::Tickets(given)) => tickets = given.tickets,
            answer => return Ok((tickets, answer)),
        }
    }
}

/// The hello of both sides has passed, and this has not: it is longer.
fn no_answer(way: &Way, error: &io::Error, report: &mut Report) {
    let lower = format!(
        "{LET_LARGE_PACKETS_PASS}; as it is, peers here use short segments once two connections to the same peer have \
         stood still"
    );
    match (error.kind(), way.stream.conn().info()) {
        (io::ErrorKind::TimedOut, Ok(info)) if info.unacked_segments > 0 => {
            let found = format!(
                "short packets reach the master, and long ones do not arrive: {} segments of {} bytes are not \
                 acknowledged",
                info.unacked_segments, info.segment_bytes
            );
            report.failed("largest packet", found, lower);
        }
        (io::ErrorKind::TimedOut, _) => {
            let found = "the master has got a long question and has not answered: it hangs, or long packets do not \
                         come back";
            report.failed("largest packet", found, format!("if `pccl-master status` answers: {lower}"));
        }
        _ => {
            let found = format!("the connection to the master broke: {error}");
            report.failed("master", found, "look at the log of the master");
        }
    }
}

/// How the master sees this machine, and which ports it reaches.
pub(super) fn judge(
    patient: &Patient,
    way: &Way,
    listening: &Listening,
    answer: &Answer,
    report: &mut Report,
) {
    let told = &answer.told;
    let seen = told.seen.as_str();
    let me = way.me.map_or_else(String::new, |me| me.to_string());
    let host = told.hosts.as_str();
    let is_translated = !me.is_empty() && me != seen;
    let others: Vec<String> = told.hosts.others.iter().map(|other| other.ip().to_string()).collect();
    let mut found = format!("others dial {host}");
    if !others.is_empty() {
        found += &format!(" or {}", others.join(" or "));
    }
    if host != seen {
        found += &format!("; the master sees {seen}");
    }
    if is_translated {
        found += &format!("; this machine sends from {me}, so addresses are translated (NAT) on the way");
    }
    report.fine("this machine", found);
    for (role, port) in [(Role::Data, listening.p2p_port), (Role::State, listening.state_port)] {
        let is_state = role == Role::State;
        let Some(unreached) = told.unreached.iter().find(|unreached| unreached.is_state == is_state) else {
            report.fine(
                what_for(role),
                format!("{port}, the master reaches it at {}", told.hosts.listed(port)),
            );
            continue;
        };
        let mut remedy = format!("on this machine {}", remedy::open(port, None));
        if is_translated {
            remedy += &format!("; on the router forward {seen}:{port} to {me}:{port}");
        }
        if patient.advertised_host.is_some() {
            remedy += &format!("; and look whether {host} is this machine: it was advertised");
        } else {
            remedy +=
                "; if others reach this machine under another address, advertise that (advertised_host)";
        }
        report.is_outbound_only |= !told.require_reachable;
        remedy += match told.require_reachable {
            true => {
                "; as it is, a peer here is refused: this master takes only peers that others can dial \
                 (--require-reachable), and drops one that they do not reach"
            }
            false => {
                "; as it is, a peer here is outbound-only: it dials all of its connections itself, and a group takes \
                 no more of such peers than of others"
            }
        };
        let found = format!("the master does not reach it: {}", unreached.text);
        report.failed(what_for(role), found, remedy);
    }
}
