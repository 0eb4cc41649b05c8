//! A peer that trains: it syncs, lends its state while it computes, lets in who waits, and averages. Waiting stands in
//! for the computing, which no processor of this machine has to do.

use crate::{Args, Result, child};
use pccl::{Communicator, SharedState, SyncStrategy};
use pccl_testkit::usage::{memory_kib, received_bytes};
use std::time::{Duration, Instant};

/// How long a step computes.
const COMPUTE: Duration = Duration::from_secs(10);
/// Elements that each step averages: 8 MiB of them.
const AVERAGED: usize = 2 << 20;
/// MiBs of the state that each step changes, and that lie all over it.
const CHANGED: usize = 4;
const MIB_WORDS: usize = (1 << 20) / 8;
/// A weight that counts for nothing beside any other.
const NEXT_TO_NOTHING: f64 = f64::MIN_POSITIVE;

struct Training {
    weights: Vec<u64>,
    step: [u64; 1],
    revision: u64,
}

impl Training {
    fn shared(&mut self) -> std::result::Result<SharedState<'_>, pccl::Error> {
        let mut state = SharedState::new(self.revision);
        state.tensor("weights", &mut self.weights)?.tensor("step", &mut self.step)?;
        Ok(state)
    }

    /// The same at each peer.
    fn change(&mut self) {
        let mib = self.weights.len() / MIB_WORDS;
        for piece in 0..CHANGED {
            let at = (piece * mib / CHANGED + self.step[0] as usize) % mib * MIB_WORDS;
            self.weights[at..at + MIB_WORDS].iter_mut().for_each(|word| *word = word.rotate_left(1));
        }
        self.step[0] += 1;
        self.revision += 1;
    }
}

/// The boundary of a step: from when the state had been computed with, until nobody waited any more.
struct Boundary {
    seconds: f64,
    rx_bytes: u64,
    wire_bytes: u64,
}

/// Trains until it is killed, and says what each step took. A newcomer begins with a state of zeros.
pub(crate) fn run(master: &str, args: &Args) -> Result<()> {
    let comm = Communicator::builder(master).first_ports(0, 0).state_memory(args.memory_mib << 20).build()?;
    let weights = if args.joins { vec![0; args.mib * MIB_WORDS] } else { child::content(args.mib) };
    let mut training = Training { weights, step: [0], revision: 0 };
    // Each page is one of this process.
    training.weights.iter_mut().for_each(|word| *word = std::hint::black_box(*word));
    let mut averaged = vec![1.0_f32; AVERAGED];
    let before = memory_kib("VmRSS")?;
    comm.run_with_state(
        &mut training,
        args.peers,
        Training::shared,
        |_| true,
        |comm, training| {
            let began = Instant::now();
            let (boundary, joined) = step(comm, training, &mut averaged)?;
            let seconds = began.elapsed().as_secs_f64();
            let Boundary { seconds: boundary, rx_bytes, wire_bytes } = joined.unwrap_or(boundary);
            let peak = memory_kib("VmHWM").unwrap_or(0).saturating_sub(before);
            let world = comm.world().global_size;
            // A parent that is gone ends this process anyway.
            let _ = child::say(&format!("{world} {seconds} {boundary} {rx_bytes} {wire_bytes} {peak}"));
            Ok(())
        },
    )?;
    Ok(())
}

/// The boundary of a step, and of who has just come: its own way through it.
fn step(
    comm: &Communicator,
    training: &mut Training,
    averaged: &mut [f32],
) -> std::result::Result<(Boundary, Option<Boundary>), pccl::Error> {
    let wire = || received_bytes("tun0").unwrap_or(0);
    let (began, before) = (Instant::now(), wire());
    let mut state = training.shared()?;
    if let Some(revision) = comm.fetched_revision() {
        state.unchanged_since("weights", revision)?.unchanged_since("step", revision)?;
    }
    let synced = comm.sync_shared_state(&mut state, SyncStrategy::EnforcePopular)?;
    let (mut weight, mut joined) = (1.0, None);
    if synced.came_ahead {
        let (seconds, wire_bytes) = (began.elapsed().as_secs_f64(), wire() - before);
        joined = Some(Boundary { seconds, rx_bytes: synced.rx_bytes, wire_bytes });
        weight = NEXT_TO_NOTHING;
    } else {
        comm.lend_state(&state, || std::thread::sleep(COMPUTE))?;
    }
    let (began, before, mut rx_bytes) = (Instant::now(), wire(), 0);
    while comm.are_peers_pending()? {
        comm.update_topology()?;
        rx_bytes += comm.sync_shared_state(&mut state, SyncStrategy::EnforcePopular)?.rx_bytes;
    }
    let boundary = Boundary { seconds: began.elapsed().as_secs_f64(), rx_bytes, wire_bytes: wire() - before };
    let revision = state.revision();
    averaged.fill(1.0);
    comm.weighted_average(averaged, weight, ())?;
    training.revision = revision;
    training.change();
    Ok((boundary, joined))
}
