//! A process of the benchmark: the master, a peer, or one end of a plain connection.

use crate::{Args, Result};
use pccl::{Communicator, Master, MasterConfig, SharedState, SyncStrategy};
use pccl_testkit::usage::{cpu_seconds, memory_kib, received_bytes};
use std::{
    io::{BufRead, Write},
    time::{Duration, Instant},
};

const MIB: usize = 1 << 20;

/// A master. Runs until the parent closes the input.
pub(crate) fn serve(listen: &str) -> Result<()> {
    let master = Master::launch(MasterConfig {
        listen: listen.to_owned(),
        insecure: true,
        ..MasterConfig::default()
    })?;
    say(&master.local_addr().to_string())?;
    std::io::stdin().lock().lines().for_each(drop);
    Ok(())
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

/// A peer that prepares and syncs as it is told.
pub(crate) fn peer(master: &str, args: &Args) -> Result<()> {
    let comm = Communicator::builder(master).first_ports(0, 0).state_memory(args.memory_mib * MIB).build()?;
    let mut tensor = content(args.mib);
    comm.connect()?;
    comm.wait_for_world(args.peers, Some(Duration::from_secs(60)))?;
    say("connected")?;
    let mut revision = 0;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["prepare", at, "zeros"] => {
                revision = at.parse()?;
                tensor.fill(0);
                say("prepared")?;
            }
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
            ["sync"] => say(&sync(&comm, &mut tensor, revision)?)?,
            _ => return Err(format!("no command {line:?}").into()),
        }
    }
    Ok(())
}

/// Syncs once and says what that took.
fn sync(comm: &Communicator, tensor: &mut [u64], revision: u64) -> Result<String> {
    let before = memory_kib("VmRSS")?;
    // From now on the peak is that of the sync.
    std::fs::write("/proc/self/clear_refs", "5")?;
    let mut state = SharedState::new(revision);
    state.tensor("w", tensor)?;
    let (began, cpu, wire) = (Instant::now(), cpu_seconds()?, received_bytes("tun0")?);
    let info = comm.sync_shared_state(&mut state, SyncStrategy::EnforcePopular)?;
    let (seconds, cpu, wire) =
        (began.elapsed().as_secs_f64(), cpu_seconds()? - cpu, received_bytes("tun0")? - wire);
    let peak = memory_kib("VmHWM")?.saturating_sub(before);
    Ok(format!("{seconds} {} {peak} {cpu} {wire}", info.rx_bytes))
}
