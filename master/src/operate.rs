//! The operator's side: asking a running master how its run is, removing a peer, choosing a revision, changing the run
//! key, and who leads it.

use pccl_protocol::{
    C2m, GroupId, M2c, Rates, RatesRequest, RequestId, StandBy, Status, is_hidden, limits::MAX_PACKET_BYTES,
};
use std::{
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    time::{Duration, Instant},
};
use tinysockets::{
    address::HostPort,
    dial::dial_with_preamble,
    key::{AcceptedKeys, RunAddress, RunAddressError, RunKey},
    preamble::{Preamble, Role},
    stream::PacketStream,
};

/// Longest answer of the operator's socket that is read, in bytes.
const MAX_ANSWER_BYTES: u64 = 8192;

pub(crate) fn address(master: &str) -> Result<RunAddress, String> {
    master.parse().map_err(|error: RunAddressError| format!("no address of a master: {error}"))
}

/// Asks the master at `master` (`host:port`, or `pccl://host:port/name#key`) for the status of its run, without joining
/// it. Without a `key` that of the address counts, or that of the environment. The name of the run is that of the
/// address, or that of the environment. Of several masters (`host:port,host:port`) the one that acts answers, or else
/// one that stands by says what it has heard.
///
/// # Errors
/// One sentence: why the master cannot be reached within `timeout`, or what it answered instead.
pub fn query_status(master: &str, key: Option<&RunKey>, timeout: Duration) -> Result<Status, String> {
    let mut heard = None;
    let acting = ask(master, key, timeout, &C2m::StatusRequest(RequestId(1)), |answer| match answer {
        M2c::Status(status) if status.lead.acts => Ok(status),
        M2c::Status(status) => {
            heard.get_or_insert(status);
            Err("a status, and stands by")
        }
        other => Err(other.name()),
    });
    acting.or_else(|error| heard.ok_or(error))
}

/// Asks the master at `master` what was measured of the edges of a group, `None` for the first one that there is.
///
/// # Errors
/// As [`query_status`].
pub fn query_rates(
    master: &str,
    key: Option<&RunKey>,
    group: Option<GroupId>,
    timeout: Duration,
) -> Result<Rates, String> {
    let question = RatesRequest { request: RequestId(1), group };
    ask(master, key, timeout, &C2m::RatesRequest(question), |answer| match answer {
        M2c::Rates(rates) => Ok(rates),
        other => Err(other.name()),
    })
}

/// Tells a master that another run is known. Its answer is of no matter.
pub(crate) fn tell_known_run(master: &str, key: Option<&RunKey>, word: StandBy, timeout: Duration) {
    if let Err(error) = ask(master, key, timeout, &C2m::StandBy(word), |answer| Ok(answer.name())) {
        log::debug!("{error}");
    }
}

fn ask<T>(
    master: &str,
    key: Option<&RunKey>,
    timeout: Duration,
    question: &C2m,
    mut take: impl FnMut(M2c) -> Result<T, &'static str>,
) -> Result<T, String> {
    let address = address(master)?;
    let key = address.key_of_run(key.cloned(), None)?;
    let mut errors = Vec::new();
    for target in address.masters() {
        match ask_one(target, key.as_ref(), Instant::now() + timeout, question, &mut take) {
            Ok(answer) => return Ok(answer),
            Err(error) => errors.push(error),
        }
    }
    Err(errors.join("; "))
}

fn ask_one<T>(
    target: &HostPort,
    key: Option<&RunKey>,
    deadline: Instant,
    question: &C2m,
    take: &mut impl FnMut(M2c) -> Result<T, &'static str>,
) -> Result<T, String> {
    let conn = dial_with_preamble(target, &Preamble::new(Role::Control), key.map(RunKey::secret), deadline)
        .map_err(|error| error.to_string())?;
    let failed = |error: io::Error| format!("no answer from the master at {target}: {error}");
    let mut stream = PacketStream::new(conn, MAX_PACKET_BYTES);
    stream.send_bytes(&question.to_frame(), deadline).map_err(failed)?;
    let (kind, body) = stream.recv_packet(deadline).map_err(failed)?;
    let answer = M2c::from_frame(kind, &body)
        .map_err(|error| format!("the master at {target} sent a malformed packet: {error}"))?;
    if let M2c::Kicked(reason) = &answer {
        return Err(format!("the master at {target} refused to answer: {reason}"));
    }
    take(answer).map_err(|name| format!("the master at {target} answered with {name}"))
}

/// Has a running master drop the peer whose identity begins with the hexadecimal digits `peer`. The caller of that peer
/// sees `reason`, and so does every other peer whose operation fails by it. `admin` is the path of the master's
/// operator's socket ([`MasterConfig::admin`](crate::MasterConfig::admin)). Returns what was done, in words.
///
/// # Errors
/// One sentence: why nothing was done.
pub fn remove_peer(admin: &Path, peer: &str, reason: &str, timeout: Duration) -> Result<String, String> {
    let one_line = |text: &str| text.split(is_hidden).collect::<Vec<_>>().join(" ").trim().to_owned();
    let (peer, reason) = (one_line(peer), one_line(reason));
    if peer.is_empty() || peer.contains(' ') || reason.is_empty() {
        return Err("a kick needs the first digits of a peer's identity, and a reason".into());
    }
    if peer.len() + reason.len() > 1500 {
        return Err("the reason is too long, use at most 1400 bytes".into());
    }
    ask_operator(admin, &format!("kick {peer} {reason}"), timeout)
}

/// Has a running master go on from a revision of the shared state, in one group or in all: nothing below is committed.
/// For when nobody who is there holds what a group has committed, or when a peer with a newer state has come too late.
/// `admin` as in [`remove_peer`]. Returns what was done, in words.
///
/// # Errors
/// One sentence: why nothing was done.
pub fn accept_revision(
    admin: &Path,
    group: Option<GroupId>,
    revision: u64,
    timeout: Duration,
) -> Result<String, String> {
    let group = group.map_or(String::new(), |group| format!(" {group}"));
    ask_operator(admin, &format!("accept-revision {revision}{group}"), timeout)
}

/// Has a running master accept other run keys, from now on: the one that is used, and one beside it as long as not
/// everybody has that. The peers that are in hear of them. The name of the run, which the master knows, stays. `admin`
/// as in [`remove_peer`]. Returns what was done, in words.
///
/// # Errors
/// One sentence: why nothing was done.
pub fn rotate_key(admin: &Path, keys: &AcceptedKeys, timeout: Duration) -> Result<String, String> {
    let second = keys.second.as_ref().map_or(String::new(), |second| format!(",{}", second.to_text()));
    ask_operator(admin, &format!("rotate-key {}{second}", keys.used.to_text()), timeout)
}

/// Drops peers and has a running master accept only this key, in one step: none of them hears of it, over whatever
/// connection. They are named, and `admin` is, as in [`remove_peer`]. Returns what was done, in words.
///
/// # Errors
/// One sentence: why nothing was done.
pub fn lock_out(admin: &Path, peers: &[String], key: &RunKey, timeout: Duration) -> Result<String, String> {
    if peers.is_empty() || peers.iter().any(|peer| peer.is_empty() || peer.contains(char::is_whitespace)) {
        return Err("each peer that is locked out is named by the first digits of its identity".into());
    }
    ask_operator(admin, &format!("rotate-key {} {}", key.to_text(), peers.join(" ")), timeout)
}

/// Has a running master step down: one that stands by with a complete copy goes on in its place, and no call of a peer
/// notices more than a pause; the process ends. `admin` as in [`remove_peer`]. Returns who goes on, in words.
///
/// # Errors
/// One sentence: why it goes on, or that nobody has taken over.
pub fn step_down(admin: &Path, timeout: Duration) -> Result<String, String> {
    ask_operator(admin, "step-down", timeout)
}

/// Has a running master end its run, although others stand by. `admin` as in [`remove_peer`]. Returns what was done, in
/// words.
///
/// # Errors
/// One sentence: why nothing was done.
pub fn end_run(admin: &Path, timeout: Duration) -> Result<String, String> {
    ask_operator(admin, "end-run", timeout)
}

/// Has a master that stands by act without the promises of the members: for when half of them or more are lost together
/// with the leader. The caller promises that no other master acts, or will be started again with what it knew:
/// only those that this one reaches are asked. Changes that the lost master made and this one does not know are lost. A
/// master that knows no run begins one. `admin` as in [`remove_peer`]. Returns what was done, in words.
///
/// # Errors
/// One sentence: why nothing was done.
pub fn force_take_over(admin: &Path, timeout: Duration) -> Result<String, String> {
    ask_operator(admin, "take-over", timeout)
}

/// Sends one line to the operator's socket of a master and takes its answer.
fn ask_operator(admin: &Path, request: &str, timeout: Duration) -> Result<String, String> {
    let failed =
        |error: io::Error| format!("cannot reach the operator's socket {}: {error}", admin.display());
    let mut stream = UnixStream::connect(admin).map_err(failed)?;
    stream.set_read_timeout(Some(timeout)).map_err(failed)?;
    stream.set_write_timeout(Some(timeout)).map_err(failed)?;
    stream.write_all(format!("{request}\n").as_bytes()).map_err(failed)?;
    let mut answer = String::new();
    stream.take(MAX_ANSWER_BYTES).read_to_string(&mut answer).map_err(failed)?;
    match answer.trim_end().split_once(' ') {
        Some(("ok", done)) => Ok(done.to_owned()),
        Some(("error", text)) => Err(text.to_owned()),
        _ => Err(format!("{} did not answer as a master does", admin.display())),
    }
}
