//! The way to the master: address, name, connection, proof of the key.

use super::{Patient, Report, remedy};
use crate::operate;
use pccl_protocol::limits::MAX_PACKET_BYTES;
use std::{
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};
use tinysockets::{
    address::{HostPort, canonical},
    conn::Conn,
    dial::{DialError, dial, introduce},
    key::{RunAddress, RunKey},
    place::{own_address, why_unusable},
    preamble::{Preamble, Role},
    stream::PacketStream,
};

/// A connection to the master, and what is known of it.
#[derive(Debug)]
pub(super) struct Way {
    pub(super) stream: PacketStream,
    pub(super) key: Option<RunKey>,
    /// The address of this machine at this end of it.
    pub(super) me: Option<IpAddr>,
    pub(super) round_trip: Duration,
}

/// Reaches a master as a peer does; nothing if it cannot be reached.
pub(super) fn reach(
    patient: &Patient,
    target: &HostPort,
    key: Option<RunKey>,
    report: &mut Report,
) -> Option<Way> {
    let addresses = resolve(patient, target, report)?;
    let conn = connect(patient, target, &addresses, report)?;
    let round_trip = conn.round_trip();
    let preamble = Preamble::new(Role::Control);
    let deadline = Instant::now() + patient.timeout;
    let me = conn.local_addr().ok().map(|address| canonical(address).ip());
    let from = me.map(|me| me.to_string());
    match introduce(conn, target, &preamble, key.as_ref().map(RunKey::secret), deadline) {
        Ok(conn) => {
            let found = format!("{target} answers in {}", millis(round_trip));
            report.fine("master", found).numbers.push(us(round_trip));
            security(&conn, target, report);
            let stream = PacketStream::new(conn, MAX_PACKET_BYTES);
            Some(Way { stream, key, me, round_trip })
        }
        Err(error) => {
            report.failed("master", error.to_string(), remedy::of_master(&error, from.as_deref()));
            None
        }
    }
}

/// Where masters may be, and the key of the run.
pub(super) fn address(patient: &Patient, report: &mut Report) -> Option<(Vec<HostPort>, Option<RunKey>)> {
    let parsed: RunAddress = match operate::address(&patient.master) {
        Ok(address) => address,
        Err(error) => {
            report.failed("address", error, "write it as host:port, or as pccl://host:port#key");
            return None;
        }
    };
    let hosts: Vec<&str> = parsed.masters().map(|master| master.host.as_str()).collect();
    if let Some(why) = hosts.into_iter().chain(patient.advertised_host.as_deref()).find_map(why_unusable) {
        report.failed(
            "address",
            why,
            "give peers and doctor the address under which all machines reach the master",
        );
        return None;
    }
    match parsed.key_of_run(patient.run_key.clone(), patient.run_name.clone()) {
        Ok(key) => Some((parsed.masters().cloned().collect(), key)),
        Err(error) => {
            let remedy = "a run key is 64 hexadecimal digits, as `pccl-master --new-key` prints them, and a run with a \
                          name needs one";
            report.failed("run key", error, remedy);
            None
        }
    }
}

fn resolve(patient: &Patient, target: &HostPort, report: &mut Report) -> Option<Vec<SocketAddr>> {
    let began = Instant::now();
    match target.resolve(began + patient.timeout) {
        Ok(addresses) => {
            let shown: Vec<String> = addresses.iter().map(|address| address.ip().to_string()).collect();
            if target.host.parse::<IpAddr>().is_err() {
                let took = millis(began.elapsed());
                report.fine("name", format!("{} is {} (in {took})", target.host, shown.join(", ")));
            }
            Some(addresses)
        }
        Err(source) => {
            let error = DialError::Unresolved { target: target.clone(), source };
            report.failed("name", error.to_string(), remedy::of_master(&error, None));
            None
        }
    }
}

/// Connects to the first of the addresses that answers, each with the whole time.
fn connect(
    patient: &Patient,
    target: &HostPort,
    addresses: &[SocketAddr],
    report: &mut Report,
) -> Option<Conn> {
    let mut vain: Vec<DialError> = Vec::new();
    for address in addresses {
        match dial(&HostPort::from(*address), Instant::now() + patient.timeout) {
            Ok(conn) => {
                for error in vain {
                    let remedy = "take that address from the name, or make it work: it costs whoever connects a moment";
                    report.note("name", error.to_string(), remedy);
                }
                return Some(conn);
            }
            Err(error) => vain.push(error),
        }
    }
    for (error, address) in vain.iter().zip(addresses) {
        let me = own_address(*address).map(|me| me.to_string());
        report.failed("master", error.to_string(), remedy::of_master(error, me.as_deref()));
    }
    if vain.is_empty() {
        report.failed("name", format!("{} has no address", target.host), "give the address in digits");
    }
    None
}

fn security(conn: &Conn, target: &HostPort, report: &mut Report) {
    let is_here = conn.peer_addr().is_ok_and(|address| canonical(address).ip().is_loopback());
    match conn.suite() {
        Some(suite) => drop(report.fine("security", format!("run key, encrypted with {suite}"))),
        None if is_here => drop(report.fine("security", "no run key, and a master on this machine")),
        None => {
            let found = format!("no run key: whoever reaches {target} takes part, and nothing is encrypted");
            report.note("security", found, "start master and peers with a run key (`pccl-master --new-key`)");
        }
    }
}

/// A time as people read it.
pub(super) fn millis(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1000.0)
}

/// A round trip as a number of a finding.
pub(super) fn us(time: Duration) -> (&'static str, i64) {
    ("round_trip_us", i64::try_from(time.as_micros()).unwrap_or(i64::MAX))
}
