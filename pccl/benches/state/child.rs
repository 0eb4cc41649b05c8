//! A process of the benchmark: a peer, or one end of a plain connection.

use crate::{Args, Result, plain};
use pccl::{Communicator, SharedState, SyncStrategy};
use std::{
    io::{BufRead, Write},
    time::{Duration, Instant},
};

const MIB: usize = 1 << 20;

pub(crate) fn run(role: &str, args: &Args) -> Result<()> {
    match role.split_once('/') {
        Some(("plain", target)) => plain::send(target, args.mib),
        Some((master, peers)) => peer(master, peers.parse()?, args),
        None => Err(format!("no role {role:?}").into()),
    }
}

pub(crate) fn say(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// Bytes that look like numbers of a model, the same everywhere.
pub(crate) fn content(mib: usize) -> Vec<u64> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..mib * MIB / 8).map(|_| next()).collect()
}

fn peer(master: &str, peers: usize, args: &Args) -> Result<()> {
    let comm = Communicator::builder(master)
        .first_ports(0, 0)
        .bind(std::net::Ipv4Addr::LOCALHOST.into())
        .state_memory(args.memory_mib * MIB)
        .build()?;
    let mut tensor = content(args.mib);
    comm.connect()?;
    comm.wait_for_world(peers, Some(Duration::from_secs(60)))?;
    say("connected")?;
    let mut revision = 0;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["prepare", at, changed] => {
                revision = at.parse()?;
                let changed: usize = changed.parse()?;
                // Spread over the whole tensor.
                for piece in 0..changed {
                    let at = piece * args.mib / changed * MIB / 8;
                    tensor[at..at + MIB / 8].iter_mut().for_each(|word| *word = !*word);
                }
                say("prepared")?;
            }
            ["sync"] => {
                let before = memory_kib("VmRSS")?;
                // From now on the peak is that of the sync.
                std::fs::write("/proc/self/clear_refs", "5")?;
                let mut state = SharedState::new(revision);
                state.tensor("w", &mut tensor)?;
                let began = Instant::now();
                let info = comm.sync_shared_state(&mut state, SyncStrategy::EnforcePopular)?;
                let time = began.elapsed().as_micros();
                let peak = memory_kib("VmHWM")?.saturating_sub(before);
                say(&format!("{time} {} {peak}", info.rx_bytes))?;
            }
            _ => return Err(format!("no command {line:?}").into()),
        }
    }
    Ok(())
}

fn memory_kib(field: &str) -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    let number = line.and_then(|line| line.split_whitespace().next()).ok_or("no such field")?;
    Ok(number.parse()?)
}
