//! The way to each peer of the run that is up, as a member of it would go.

use super::{
    Patient, Report,
    master::{Way, millis, us},
    ports::{Answer, Listening},
    remedy,
};
use pccl_protocol::{Examined, ExaminedPeer, Named, TicketRole, limits};
use std::{
    sync::atomic::AtomicBool,
    time::{Duration, Instant},
};
use tinysockets::{
    conn::Conn,
    dial::dial_place,
    key::SecretKey,
    link::tune_data_socket,
    preamble::{Preamble, Role},
    probe::{self, Until},
    reach::{Reach, Target, reach_all},
};

/// Time for the rate to one of them, during which a run shares the path with it.
const RATE_TIME: Duration = Duration::from_millis(600);
/// From whom a check comes that is neither the master's, which is 0, nor that of a member.
const NO_MEMBER: u128 = u128::MAX;
/// Time for a port, as peers have it.
const DIAL_TIME: Duration = Duration::from_secs(3);

/// Tries both ports of everybody, and measures the rate to a few.
pub(super) fn look(
    patient: &Patient,
    way: &Way,
    (listening, answer): (&Listening, &Answer),
    report: &mut Report,
) {
    let told = &answer.told;
    if told.peers.is_empty() {
        let found = "nobody is in the run that others dial: whether peers are reached shows when some are";
        report.fine("peers", found);
        return;
    }
    not_tried(listening, answer, report);
    let targets: Vec<Target> = told.peers.iter().flat_map(|peer| ports(way, told, peer)).collect();
    let results = reach_all(&targets, DIAL_TIME.min(patient.timeout));
    for (index, (peer, results)) in told.peers.iter().zip(results.chunks_exact(2)).enumerate() {
        let host = peer.target.hosts.as_str();
        let subject = format!("peer {}", Named(peer.target.peer, &peer.name, host));
        let mut closed = Vec::new();
        let mut round_trip = Duration::ZERO;
        for (result, port) in results.iter().zip([peer.target.p2p_port, peer.target.state_port]) {
            match result {
                Reach::Reached(time) => round_trip = round_trip.max(*time),
                Reach::Failed(why) => closed.push((port, why.clone())),
                Reach::Unknown(why) => drop(report.note(
                    subject.as_str(),
                    format!("was not tried: {why}"),
                    "look at the limits of this process (`ulimit -a`)",
                )),
            }
        }
        for (port, why) in &closed {
            let remedy = format!(
                "on {host} {}; and let this machine out to it. If it has another address for this machine, that peer \
                 has to advertise it (advertised_host)",
                remedy::open(*port, Some(told.seen.as_str()))
            );
            report.failed(subject.as_str(), format!("its port {port} is not reached: {why}"), remedy);
        }
        if !closed.is_empty() || round_trip.is_zero() {
            continue;
        }
        let mut found = format!("{host} is reached, round trip {}", millis(round_trip));
        let mut numbers = vec![us(round_trip)];
        if patient.rates && index < limits::MAX_VISITED {
            match rate(answer, peer) {
                Ok(kbit_s) => {
                    found += &format!(", {} Mbit/s over one connection", kbit_s.div_ceil(1000));
                    numbers.push(("kbit_s", i64::try_from(kbit_s).unwrap_or(i64::MAX)));
                }
                // A peer that does not measure may have good reasons; nothing depends on it.
                Err(why) => found += &format!(", rate not measured: {why}"),
            }
        } else if patient.rates {
            found += &format!(", rate not measured: only those of {} peers are", limits::MAX_VISITED);
        }
        report.fine(subject, found).numbers.extend(numbers);
    }
}

/// A peer that is dialed dials others, and none of them does so for a machine that is not in the run.
fn not_tried(listening: &Listening, answer: &Answer, report: &mut Report) {
    if report.is_outbound_only {
        return;
    }
    let (data, state) = (listening.p2p_port, listening.state_port);
    let found = format!(
        "not tried: whether they reach this machine. The master does, and a firewall may let that in alone; then a \
         peer here costs all others some seconds when it joins ({} in the run now)",
        answer.told.peers.len()
    );
    let remedy = format!("on this machine {}, and the same for {state}", remedy::open(data, None));
    report.note("way from peers", found, remedy);
}

fn preamble(told: &Examined, peer: &ExaminedPeer, from: u128, role: Role) -> Preamble {
    Preamble { run: told.run.0, from, to: peer.target.peer.0, group: peer.group.0, ..Preamble::new(role) }
}

/// The listeners of a peer for data and for state.
fn ports(way: &Way, told: &Examined, peer: &ExaminedPeer) -> [Target; 2] {
    [peer.target.p2p_port, peer.target.state_port].map(|port| Target {
        place: peer.target.hosts.at(port),
        preamble: preamble(told, peer, NO_MEMBER, Role::Check),
        key: way.key.as_ref().map(|key| key.secret().clone()),
        asker: None,
    })
}

/// The preamble of a visit to a peer, and in a run with a key the ticket for it.
fn visit(answer: &Answer, peer: &ExaminedPeer) -> Result<(Preamble, Option<SecretKey>), &'static str> {
    let told = &answer.told;
    let plain = Preamble { connection_count: 1, ..preamble(told, peer, told.peer.0, Role::Probe) };
    let Some(wire) = told.wire else { return Ok((plain, None)) };
    let mut tickets = answer.tickets.iter();
    let ticket = tickets.find(|it| it.to == peer.target.peer && it.role == TicketRole::Probe);
    let ticket = ticket.ok_or("the master has given no ticket for it")?;
    let (security, epoch, link_generation) = (wire.security(), ticket.epoch.0, ticket.generation);
    Ok((Preamble { security, epoch, link_generation, ..plain }, Some(ticket.secret.clone())))
}

/// The rate to a peer in kbit/s, over one connection as an edge of the ring has it.
fn rate(answer: &Answer, peer: &ExaminedPeer) -> Result<u64, String> {
    let (preamble, ticket) = visit(answer, peer)?;
    let place = peer.target.hosts.at(peer.target.p2p_port);
    let deadline = Instant::now() + DIAL_TIME;
    let say = |conn: &Conn| {
        tune_data_socket(conn, conn.round_trip());
        preamble
    };
    let conn = dial_place(&place, &say, ticket.as_ref(), deadline).map_err(|error| error.to_string())?;
    let deadline = Instant::now() + RATE_TIME;
    let until = Until { deadline, is_stable: true, bytes: limits::MAX_VISIT_BYTES };
    Ok(probe::measure(&[conn], until, &AtomicBool::new(false))?.kbit_s)
}
