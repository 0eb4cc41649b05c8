//! A training that survives the loss of every master: when none can be had, its peers agree through a store on the last
//! checkpoint that all of them hold, load it, and go on as soon as there is a master again.
//!
//! ```sh
//! pccl-master --store-only 127.0.0.1:29500 --store-file /var/tmp/store    # outlives all masters
//! pccl-master --listen 127.0.0.1:48148                                    # may be killed, and started again
//! cargo run -p pccl --example resume -- 127.0.0.1:48148 127.0.0.1:29500 RANK PEERS DIRECTORY    # each peer
//! ```

use pccl::{
    Checkpoint, Communicator, Error, IterationConfig, Policy, Reason, ReduceOp, Resume, SharedState,
    SyncStrategy,
};
use std::{fs, path::PathBuf, time::Duration};

type AnyError = Box<dyn std::error::Error + Send + Sync>;

/// Steps of the training.
const STEPS: u64 = 60;
/// Steps between two checkpoints.
const SAVED_EVERY: u64 = 5;

struct Training {
    rank: usize,
    peers: usize,
    /// Where this peer keeps its checkpoints.
    directory: PathBuf,
    weights: Vec<f32>,
    /// Steps made; also the revision of the shared state.
    step: u64,
}

impl Training {
    fn new(rank: usize, peers: usize, directory: PathBuf) -> std::io::Result<Self> {
        fs::create_dir_all(&directory)?;
        Ok(Self { rank, peers, directory, weights: vec![0.0; 1000], step: 0 })
    }

    /// One step: the same state on all peers, each one's change, and the mean of these.
    fn make_step(&mut self, comm: &Communicator) -> Result<(), Error> {
        let mut state = SharedState::new(self.step);
        state.tensor("weights", &mut self.weights)?;
        comm.sync_shared_state(&mut state, SyncStrategy::EnforcePopular)?;
        self.step = state.revision();
        let goal = self.rank as f32;
        let mut change: Vec<f32> = self.weights.iter().map(|weight| 0.1 * (goal - weight)).collect();
        comm.all_reduce(&mut change, ReduceOp::Avg)?;
        self.weights.iter_mut().zip(&change).for_each(|(weight, change)| *weight += change);
        self.step += 1;
        if comm.are_peers_pending()? {
            comm.update_topology()?;
        }
        Ok(())
    }

    fn file(&self, tag: &str) -> PathBuf {
        self.directory.join(tag)
    }

    fn save(&self) -> std::io::Result<()> {
        let bytes: Vec<u8> = self.weights.iter().flat_map(|weight| weight.to_le_bytes()).collect();
        // Either the whole checkpoint has its name, or none has.
        fs::write(self.file("unfinished"), bytes)?;
        fs::rename(self.file("unfinished"), self.file(&format!("step-{}", self.step)))
    }

    /// The checkpoints that this peer could go on from.
    fn checkpoints(&self) -> std::io::Result<Vec<Checkpoint>> {
        let mut held = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            let tag = entry?.file_name().to_string_lossy().into_owned();
            if let Some(revision) = tag.strip_prefix("step-").and_then(|step| step.parse().ok()) {
                held.push(Checkpoint { revision, tag });
            }
        }
        Ok(held)
    }

    /// Goes back to what all have agreed on; to the beginning if they have nothing in common.
    fn load(&mut self, checkpoint: Option<&Checkpoint>) -> std::io::Result<()> {
        let Some(Checkpoint { revision, tag }) = checkpoint else {
            (self.step, self.weights) = (0, vec![0.0; self.weights.len()]);
            return Ok(());
        };
        let bytes = fs::read(self.file(tag))?;
        let numbers = bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        (self.step, self.weights) = (*revision, numbers.collect());
        Ok(())
    }
}

/// Trains to the end, whatever happens to masters. `tell` hears of each step, and `resumed` of each agreement.
fn train(
    comm: &Communicator,
    training: &mut Training,
    tell: impl Fn(u64),
    resumed: impl Fn(&Resume),
) -> Result<(), AnyError> {
    let peers = training.peers;
    loop {
        let made = comm.run(
            training,
            peers,
            |training| training.step < STEPS,
            |comm, training| {
                training.make_step(comm)?;
                if training.step % SAVED_EVERY == 0 {
                    let failed =
                        |error: std::io::Error| Error::System(Reason::new(error.kind(), error.to_string()));
                    training.save().map_err(failed)?;
                }
                tell(training.step);
                Ok(())
            },
        );
        match made {
            // No master was to be had for as long as the connect time-out.
            Err(Error::ConnectFailed(_) | Error::MasterLost(_)) => {
                let resume = comm.agree_on_resume(&training.checkpoints()?)?;
                training.load(resume.checkpoint.as_ref())?;
                resumed(&resume);
            }
            other => return Ok(other?),
        }
    }
}

/// How the peers of this training agree.
fn agreement(peers: usize) -> IterationConfig {
    // A peer that is cut off from the master and from all others must not go on alone.
    let policy = Policy::StrictMajority;
    IterationConfig { run: "resume-example".into(), world_size: peers, policy, ..Default::default() }
}

fn communicator(
    master: &str,
    store: &str,
    rank: usize,
    config: IterationConfig,
    patience: Duration,
) -> Result<Communicator, Error> {
    let builder = Communicator::builder(master).first_ports(0, 0).connect_timeout(patience);
    builder.resume_over(store, &rank.to_string(), config).build()
}

fn main() -> Result<(), AnyError> {
    env_logger::init();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [master, store, rank, peers, directory] = arguments.as_slice() else {
        return Err("arguments: MASTER STORE RANK PEERS DIRECTORY".into());
    };
    let (rank, peers) = (rank.parse()?, peers.parse()?);
    let comm = communicator(master, store, rank, agreement(peers), Duration::from_secs(20))?;
    let mut training = Training::new(rank, peers, PathBuf::from(directory).join(rank.to_string()))?;
    let resumed = |resume: &Resume| match &resume.checkpoint {
        Some(checkpoint) => println!("resuming from {}", checkpoint.tag),
        None => println!("beginning anew"),
    };
    train(&comm, &mut training, |step| println!("step {step}"), resumed)?;
    println!("weights are {}", training.weights[0]);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use pccl_iteration::{ServerConfig, StoreServer};
    use pccl_testkit::process::{Process, Signal};
    use std::{
        io::{BufRead, BufReader},
        process::{self, Command},
        sync::{Condvar, Mutex},
        thread,
        time::Instant,
    };

    const PEERS: usize = 3;
    /// Says where the master of a test listens; set in its process only.
    const LISTEN: &str = "PCCL_RESUME_MASTER";
    const PATIENCE: Duration = Duration::from_secs(120);

    /// The process of a master: this program, told by its environment what to do.
    #[test]
    fn master() {
        if let Ok(listen) = std::env::var(LISTEN) {
            let master = pccl::Master::launch(pccl::MasterConfig { listen, ..Default::default() }).unwrap();
            println!("listens on {}", master.local_addr());
            master.wait().unwrap();
        }
    }

    fn start_master(listen: &str) -> (Process, String) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "tests::master", "--nocapture"]).env(LISTEN, listen);
        let mut process = Process::start(&mut command).unwrap();
        let lines = BufReader::new(process.output().unwrap()).lines();
        let mut said = lines.map(|line| line.unwrap());
        let line = said.find_map(|line| line.split_once("listens on ").map(|(_, at)| at.to_owned()));
        (process, line.expect("it says where it listens"))
    }

    fn store(beside_master: bool) -> StoreServer {
        let listen = "127.0.0.1:0".into();
        StoreServer::launch(ServerConfig { listen, beside_master, ..Default::default() }).unwrap()
    }

    /// The facts that peers and the killer of masters tell each other.
    #[derive(Default)]
    struct Stage {
        said: Mutex<Said>,
        changed: Condvar,
    }

    #[derive(Default)]
    struct Said {
        step: u64,
        /// No step is made behind this one.
        hold_at: u64,
        resumed: Vec<Option<Checkpoint>>,
    }

    impl Stage {
        fn wait(&self, until: impl Fn(&mut Said) -> bool) {
            let deadline = Instant::now() + PATIENCE;
            let mut said = self.said.lock().unwrap();
            while !until(&mut said) {
                let left = deadline.saturating_duration_since(Instant::now());
                assert!(!left.is_zero(), "nothing has happened for too long");
                said = self.changed.wait_timeout(said, left).unwrap().0;
            }
        }

        fn change(&self, change: impl FnOnce(&mut Said)) {
            change(&mut self.said.lock().unwrap());
            self.changed.notify_all();
        }
    }

    fn quick(peers: usize) -> IterationConfig {
        let time = Duration::from_millis;
        IterationConfig {
            heartbeat_interval: time(100),
            inactive_after: time(20_000),
            no_progress: time(60_000),
            poll_interval: time(20),
            ..agreement(peers)
        }
    }

    #[test]
    fn a_training_survives_the_loss_of_all_masters_and_ends_as_if_nothing_had_happened() {
        let store = store(false);
        let store = store.local_addr().to_string();
        let directory = std::env::temp_dir().join(format!("pccl-resume-{}", process::id()));
        let stage = Stage::default();
        stage.change(|said| said.hold_at = 23);
        let (mut process, address) = start_master("127.0.0.1:0");
        let (results, resumed) = thread::scope(|scope| {
            let peer = |rank: usize| {
                let (stage, address, store, directory) = (&stage, &address, &store, &directory);
                scope.spawn(move || {
                    let comm =
                        communicator(address, store, rank, quick(PEERS), Duration::from_secs(8)).unwrap();
                    let mut training = Training::new(rank, PEERS, directory.join(rank.to_string())).unwrap();
                    let tell = |step| {
                        if rank == 1 && step == 20 {
                            // Its disk has lost what it wrote last.
                            fs::remove_file(training_file(directory, rank, 20)).unwrap();
                        }
                        stage.change(|said| said.step = said.step.max(step));
                        stage.wait(|said| step < said.hold_at);
                    };
                    let resumed = |resume: &Resume| {
                        stage.change(|said| said.resumed.push(resume.checkpoint.clone()));
                    };
                    train(&comm, &mut training, tell, resumed).unwrap();
                    assert_eq!(comm.global_iteration().unwrap().decision().entries.len(), PEERS);
                    training.weights
                })
            };
            let peers: Vec<_> = (0..PEERS).map(peer).collect();
            for (hold_at, next) in [(23, 41), (41, u64::MAX)] {
                stage.wait(|said| said.step == hold_at);
                process.signal(Signal::Kill).unwrap();
                process.wait().unwrap();
                let agreed = stage.said.lock().unwrap().resumed.len();
                stage.change(|said| (said.step, said.hold_at) = (0, next));
                stage.wait(|said| said.resumed.len() >= agreed + PEERS);
                process = start_master(&address).0;
            }
            let results: Vec<Vec<f32>> = peers.into_iter().map(|peer| peer.join().unwrap()).collect();
            (results, stage.said.lock().unwrap().resumed.clone())
        });
        fs::remove_dir_all(&directory).unwrap();
        assert!(results.iter().all(|weights| *weights == results[0]), "peers ended with different weights");
        // Peers may sum in another order than there.
        let near = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-5;
        assert!(results[0].iter().zip(&uninterrupted()).all(near), "{}", results[0][0]);
        let at = |step: u64| Some(Checkpoint { revision: step, tag: format!("step-{step}") });
        // The first time the newest that all hold is 15, the second time 40.
        assert_eq!(resumed[..PEERS], vec![at(15); PEERS]);
        assert!(resumed.len() >= 2 * PEERS && resumed.last() == Some(&at(40)), "{resumed:?}");
    }

    fn training_file(directory: &std::path::Path, rank: usize, step: u64) -> PathBuf {
        directory.join(rank.to_string()).join(format!("step-{step}"))
    }

    /// The weights after a training without any failure.
    fn uninterrupted() -> Vec<f32> {
        let master =
            pccl::Master::launch(pccl::MasterConfig { listen: "127.0.0.1:0".into(), ..Default::default() });
        let address = master.as_ref().unwrap().local_addr().to_string();
        let directory = std::env::temp_dir().join(format!("pccl-uninterrupted-{}", process::id()));
        let weights = thread::scope(|scope| {
            let peer = |rank: usize| {
                let (address, directory) = (&address, &directory);
                scope.spawn(move || {
                    let comm = Communicator::builder(address).first_ports(0, 0).build().unwrap();
                    let mut training = Training::new(rank, PEERS, directory.join(rank.to_string())).unwrap();
                    train(&comm, &mut training, |_| {}, |_| panic!("no agreement is needed")).unwrap();
                    training.weights
                })
            };
            let peers: Vec<_> = (0..PEERS).map(peer).collect();
            peers.into_iter().map(|peer| peer.join().unwrap()).next_back().unwrap()
        });
        fs::remove_dir_all(&directory).unwrap();
        weights
    }

    #[test]
    fn a_store_that_ends_with_the_master_is_refused() {
        let store = store(true);
        let store = store.local_addr().to_string();
        let comm = communicator("127.0.0.1:1", &store, 0, agreement(1), Duration::from_secs(1)).unwrap();
        let Err(Error::InvalidUsage(text)) = comm.connect() else { panic!("it connects") };
        assert!(text.contains("ends with it") && text.contains("--store-only"), "{text}");
        let error = comm.agree_on_resume(&[]).unwrap_err();
        assert!(error.to_string().contains("--store-only"), "{error}");
    }

    #[test]
    fn settings_without_a_meaning_are_refused() {
        let build =
            |store: &str, config: IterationConfig| communicator("127.0.0.1:1", store, 0, config, PATIENCE);
        assert!(matches!(build("nowhere", agreement(3)), Err(Error::InvalidArgument(_))));
        assert!(matches!(build("127.0.0.1:1", agreement(0)), Err(Error::InvalidArgument(_))));
        let comm = Communicator::builder("127.0.0.1:1").build().unwrap();
        assert!(comm.agree_on_resume(&[]).unwrap_err().to_string().contains("resume_over"));
    }
}
