//! A training that is stopped wholly, master and all, and goes on from files.
//!
//! ```sh
//! cargo run --release --example restart -- /data/run 3 20   # 3 peers, until step 20
//! cargo run --release --example restart -- /data/run 4 40   # goes on at step 20, with one peer more
//! ```
//!
//! Each peer has a file of its own, as if it were on a machine of its own. It saves its state after every fifth step,
//! beside the training. When it starts and finds a file, it loads it and offers it to the run: whoever is fresh, or has
//! an older file, gets the newest of what is offered. To have everything in one program, master and peers are threads.

use pccl::{
    Communicator, Error, Master, MasterConfig, ReduceOp, SaveOptions, Saving, SharedState, StateFileError,
    SyncStrategy,
};
use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    thread,
};

/// A state is saved after as many steps.
const SAVE_EVERY: u64 = 5;

/// The parts of the training.
struct Training {
    weights: Vec<f32>,
    step: [u64; 1],
    revision: u64,
    file: PathBuf,
    /// The file that another thread writes.
    saving: Option<Saving>,
}

impl Training {
    fn new(file: PathBuf) -> Self {
        Self { weights: vec![0.0; 10_000], step: [0], revision: 0, file, saving: None }
    }

    fn state(&mut self) -> Result<SharedState<'_>, Error> {
        let mut state = SharedState::new(self.revision);
        state.tensor("weights", &mut self.weights)?.tensor("step", &mut self.step)?;
        Ok(state)
    }

    /// Goes on from the file, if there is one.
    fn restore(&mut self, comm: &Communicator) -> Result<(), Error> {
        let file = self.file.clone();
        if !file.exists() {
            return Ok(());
        }
        let mut state = self.state()?;
        let revision = state.load(&file).map_err(StateFileError::into_error)?;
        comm.offer_resume(&state);
        self.revision = revision;
        Ok(())
    }

    /// Has the state that the last sync has committed written to the file, once the last one is written.
    fn save(&mut self) -> Result<(), Error> {
        self.await_file()?;
        let (file, options) = (self.file.clone(), SaveOptions::default().shape("weights", &[100, 100]));
        let saving = self.state()?.save_while(file, options);
        self.saving = Some(saving.map_err(StateFileError::into_error)?);
        Ok(())
    }

    fn await_file(&mut self) -> Result<(), Error> {
        let saved = self.saving.take().map(Saving::wait).transpose();
        saved.map(drop).map_err(StateFileError::into_error)
    }
}

fn step(comm: &Communicator, training: &mut Training) -> Result<(), Error> {
    let mut state = training.state()?;
    comm.sync_shared_state(&mut state, SyncStrategy::EnforcePopular)?;
    training.revision = state.revision();
    if training.step[0].is_multiple_of(SAVE_EVERY) {
        // All peers hold this revision now.
        training.save()?;
    }
    let mut change: Vec<f32> = training.weights.iter().map(|weight| 0.1 * (1.0 - weight)).collect();
    comm.all_reduce(&mut change, ReduceOp::Avg)?;
    training.weights.iter_mut().zip(&change).for_each(|(weight, change)| *weight += change);
    training.step[0] += 1;
    training.revision += 1;
    if comm.are_peers_pending()? {
        comm.update_topology()?;
    }
    Ok(())
}

/// One peer, until it has made step `last`. Returns the first step that it has made.
fn peer(master: &str, file: PathBuf, (peers, last): (usize, u64)) -> Result<u64, Error> {
    let comm = Communicator::builder(master).first_ports(0, 0).build()?;
    let mut training = Training::new(file);
    training.restore(&comm)?;
    let mut first = None;
    comm.run(
        &mut training,
        peers,
        |training| training.step[0] < last,
        |comm, training| {
            step(comm, training)?;
            first.get_or_insert(training.step[0]);
            Ok(())
        },
    )?;
    training.await_file()?;
    Ok(first.unwrap_or(training.step[0]))
}

/// One life of the run. Returns the first step of each peer.
fn life(directory: &Path, peers: usize, last: u64) -> Result<Vec<u64>, Error> {
    let config = MasterConfig { listen: "127.0.0.1:0".into(), ..MasterConfig::default() };
    let master = Master::launch(config).expect("a master on this machine");
    let address = master.local_addr().to_string();
    thread::scope(|scope| {
        let start = |number: usize| {
            let (address, file) = (&address, directory.join(format!("peer-{number}.safetensors")));
            scope.spawn(move || peer(address, file, (peers, last)))
        };
        let all: Vec<_> = (0..peers).map(start).collect();
        all.into_iter().map(|peer| peer.join().expect("no panic")).collect()
    })
}

fn main() -> ExitCode {
    env_logger::init();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let parsed = match &arguments[..] {
        [directory, peers, last] => {
            peers.parse().ok().filter(|peers| *peers >= 2).zip(last.parse().ok()).map(|it| (directory, it))
        }
        _ => None,
    };
    let Some((directory, (peers, last))) = parsed else {
        eprintln!(
            "restart DIRECTORY PEERS LAST-STEP: at least 2 peers, since one alone has nobody to reduce with"
        );
        return ExitCode::FAILURE;
    };
    match life(Path::new(directory), peers, last) {
        Ok(first) => {
            println!("the peers have made steps {first:?} to {last}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("restart: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_run_that_was_stopped_wholly_goes_on_from_its_files() {
        let directory = std::env::temp_dir().join(format!("pccl-restart-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("a directory");
        assert_eq!(life(&directory, 3, 12), Ok(vec![1; 3]));
        // The last file is that of step 10. A fourth peer comes with nothing, and one with an older file.
        let old = pccl::StateFile::open(directory.join("peer-0.safetensors")).expect("a file");
        assert_eq!(old.revision(), 10);
        assert_eq!(life(&directory, 4, 20), Ok(vec![11; 4]));
        // All files are lost but one: who has it brings the others along.
        for number in [0, 1, 3] {
            fs::remove_file(directory.join(format!("peer-{number}.safetensors"))).expect("a file");
        }
        assert_eq!(life(&directory, 4, 22), Ok(vec![16; 4]));
        // A damaged file is no reason to begin anew: who has it says so before it connects.
        let file = directory.join("peer-2.safetensors");
        fs::write(&file, "nothing").expect("written");
        let error = peer("127.0.0.1:1", file, (4, 30)).expect_err("damaged");
        assert!(error.to_string().contains("peer-2"), "{error}");
        fs::remove_dir_all(&directory).expect("removed");
    }
}
