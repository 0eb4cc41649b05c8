//! The command that trains, as a program does that goes on from files.

use crate::{Reply, failed, say, usage};
use pccl::{Communicator, Error, ReduceOp, SaveOptions, SharedState, StateFileError, SyncStrategy};
use pccl_tests::pattern;
use std::path::{Path, PathBuf};

/// More than one piece.
const ELEMENTS: usize = 600_000;

struct Training {
    weights: Vec<f32>,
    step: [u64; 1],
    revision: u64,
    file: PathBuf,
    /// Of the first sync: the revision, and what was fetched for it.
    first: Option<(u64, u64)>,
}

impl Training {
    fn state(&mut self) -> Result<SharedState<'_>, Error> {
        let mut state = SharedState::new(self.revision);
        state.tensor("weights", &mut self.weights)?.tensor("step", &mut self.step)?;
        Ok(state)
    }

    /// Goes on from the file, if it is whole.
    fn restore(&mut self, comm: &Communicator) -> Result<u64, Error> {
        let file = self.file.clone();
        let mut state = self.state()?;
        let revision = state.load(file).map_err(StateFileError::into_error)?;
        comm.offer_resume(&state);
        self.revision = revision;
        Ok(revision)
    }

    /// Each weight is the number of steps that were made.
    fn outer_step(&mut self, comm: &Communicator) -> Result<(), Error> {
        let (file, first) = (self.file.clone(), self.first);
        let mut state = self.state()?;
        let synced = comm.sync_shared_state(&mut state, SyncStrategy::EnforcePopular)?;
        // The saved state is the committed one, and newcomers fetch it meanwhile.
        let saved = comm.lend_state(&state, || state.save(&file, &SaveOptions::default()))?;
        saved.map_err(StateFileError::into_error)?;
        while comm.are_peers_pending()? {
            comm.update_topology()?;
            comm.sync_shared_state(&mut state, SyncStrategy::EnforcePopular)?;
        }
        drop(state);
        (self.revision, self.first) = (synced.revision, first.or(Some((synced.revision, synced.rx_bytes))));
        let mut change = vec![1.0_f32; ELEMENTS];
        comm.all_reduce(&mut change, ReduceOp::Avg)?;
        self.weights.iter_mut().zip(&change).for_each(|(weight, change)| *weight += change);
        self.step[0] += 1;
        self.revision += 1;
        Ok(())
    }
}

/// `train FILE STEPS PEERS`: begins when there are that many peers, saves each committed state to the file, and goes on
/// from it at the start. Notes what the file is worth. Answers with the revision and the bytes of the first sync,
/// whether each weight is the number of steps, and a digest of all weights.
pub(crate) fn run(comm: &Communicator, words: &[&str]) -> Reply {
    let &[file, steps, peers] = words else { return Err(usage("FILE STEPS PEERS")) };
    let number = |text: &str| text.parse::<u64>().map_err(|_| usage(text));
    let (steps, peers) = (number(steps)?, number(peers)? as usize);
    let file = Path::new(file).to_owned();
    let mut training = Training { weights: vec![0.0; ELEMENTS], step: [0], revision: 0, file, first: None };
    match training.file.exists().then(|| training.restore(comm)) {
        None => say("note fresh"),
        Some(Ok(revision)) => say(&format!("note restored={revision}")),
        Some(Err(error)) => say(&format!("note damaged -- {error}")),
    }
    let ended = comm.run_with_state(
        &mut training,
        peers,
        Training::state,
        |training| training.step[0] < steps,
        |comm, training| training.outer_step(comm),
    );
    ended.map_err(|error| failed(&error))?;
    let (first, rx_bytes) = training.first.unwrap_or_default();
    let is_right = training.weights.iter().all(|weight| *weight == training.step[0] as f32);
    let bytes: Vec<u8> = training.weights.iter().flat_map(|weight| weight.to_le_bytes()).collect();
    let digest = pattern::digest(&bytes);
    Ok(format!("first={first} rx={rx_bytes} step={} right={is_right} digest={digest}", training.step[0]))
}
