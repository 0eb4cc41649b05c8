//! Connections from outside to the ports of peers.

use crate::{
    fleet::{Fleet, sync_command},
    peer::Peer,
};
use pccl_tests::spec::{Spec, StateSpec};
use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
};
use tinysockets::preamble::{Preamble, REPLY_BYTES, Refusal, Reply, Role};

/// The addresses on which a process listens.
fn listeners(peer: &Peer) -> Vec<SocketAddr> {
    let entries = fs::read_dir(format!("/proc/{}/fd", peer.pid())).expect("descriptors");
    let own: Vec<String> = entries
        .filter_map(|entry| Some(fs::read_link(entry.ok()?.path()).ok()?.display().to_string()))
        .collect();
    let tables =
        ["/proc/net/tcp", "/proc/net/tcp6"].map(|table| fs::read_to_string(table).unwrap_or_default());
    let mut ports: Vec<u16> = tables
        .iter()
        .flat_map(|table| table.lines().skip(1))
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let (local, state, inode) = (fields.get(1)?, fields.get(3)?, fields.get(9)?);
            let listens = *state == "0A" && own.contains(&format!("socket:[{inode}]"));
            let (_, port) = local.rsplit_once(':').filter(|_| listens)?;
            u16::from_str_radix(port, 16).ok()
        })
        .collect();
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 2, "one port for data, one for state");
    ports.into_iter().map(|port| ([127, 0, 0, 1], port).into()).collect()
}

fn dial(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(crate::support::PATIENCE)).expect("a time-out");
    stream
}

/// One connection that says nothing blocks every join of the original for ever.
#[test]
fn gap_02_silent_connections_hold_up_nobody() {
    let mut fleet = Fleet::new(2);
    let mut addresses: Vec<_> = fleet.iter().flat_map(listeners).collect();
    addresses.push(fleet.address.parse().expect("an address"));
    let silent: Vec<_> = addresses.iter().flat_map(|&address| (0..20).map(move |_| dial(address))).collect();
    fleet.join(&[]);
    assert_eq!(fleet.reduce(Spec::sum(10_000, 1))[0].number("participants"), 3);
    let (new, old) = ([StateSpec::new("w", 1000, 1)], [StateSpec::new("w", 1000, 2)]);
    let syncs =
        [(1, &new), (0, &old), (0, &old)].map(|(revision, state)| sync_command(revision, "popular", state));
    for answer in fleet.sync(&syncs) {
        assert_eq!(answer.good().list("digests"), [new[0].digest()]);
    }
    drop(silent);
}

/// The original believes any identity that a connection claims, of any run. Here run and destination are checked, and a
/// connection that no ring asks for carries nothing. (An attacker that has spied out a run can still disturb it:
/// connections are not authenticated.)
#[test]
fn gap_12_connections_of_other_runs_and_for_others_are_refused() {
    let mut fleet = Fleet::new(3);
    let run = fleet.master.as_ref().expect("in this process").run_id().0;
    for place in 0..3 {
        let id = fleet[place].id.clone().expect("connected");
        let to = u128::from_str_radix(&id, 16).expect("an identity");
        let mut roles = Vec::new();
        for address in listeners(&fleet[place]) {
            let answer = |preamble: Preamble| {
                let mut stream = dial(address);
                stream.write_all(&preamble.encode()).expect("sent");
                let mut reply = [0; REPLY_BYTES];
                stream.read_exact(&mut reply).expect("an answer");
                (stream, Reply::decode(&reply).expect("an answer of this protocol"))
            };
            let good = |role| Preamble { run, to, from: 7, connection_count: 1, ..Preamble::new(role) };
            for role in [Role::Data, Role::State] {
                match answer(good(role)) {
                    (_, Reply::Refused(Refusal::WrongRole)) => continue,
                    (mut stream, _) => {
                        let _ = stream.write_all(&[0xA5; 300]);
                    }
                }
                roles.push(role);
                let other_run = answer(Preamble { run: run ^ 1, ..good(role) }).1;
                assert_eq!(other_run, Reply::Refused(Refusal::WrongRun));
                let other_peer = answer(Preamble { to: to ^ 1, ..good(role) }).1;
                assert_eq!(other_peer, Reply::Refused(Refusal::WrongDestination));
            }
        }
        assert_eq!(roles.len(), 2, "each port has one role: {roles:?}");
        for answer in fleet.reduce(Spec::sum(10_000, place as u64)) {
            assert_eq!((answer.number("participants"), answer.number("failures")), (3, 0));
        }
    }
}
