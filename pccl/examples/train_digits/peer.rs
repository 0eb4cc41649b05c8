//! One peer of the training: the loop of the README, around a model that learns.
//!
//! It is DiLoCo (Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", 2023,
//! arXiv:2311.08105): each peer takes many local steps, the peers average how far they have moved, and that average is
//! the gradient of a Nesterov step on the shared parameters.

use crate::{
    Args, Failure,
    data::{self, Split},
    model,
};
use pccl::{Communicator, Error, PeerId, ReduceOp, Remedy, SharedState, SyncStrategy};
use pccl_testkit::{
    random::Rng,
    training::{Event, Reporter},
};
use std::time::{Duration, Instant};

/// The outer step. Of a small grid, the values whose worst test accuracy over six seeds was among the best after 30, 60
/// and 100 steps alike (0.96 to 0.97).
const OUTER_RATE: f32 = 0.7;
const OUTER_MOMENTUM: f32 = 0.7;

/// What makes up the state of the training: the same on every peer, and handed to newcomers.
struct Training {
    params: Vec<f32>,
    momentum: Vec<f32>,
    /// Outer steps done, one element: a tensor like the others, so that it travels with them.
    step: [u64; 1],
    /// Revision of the next sync. It counts syncs, not steps: a sync after a failed step has a new one too.
    revision: u64,
}

/// One peer: the training, and what only this peer has.
struct Peer {
    training: Training,
    data: Split,
    /// Number of this peer: which data it trains on.
    shard: u64,
    seed: u64,
    pace: Duration,
    /// Who this peer was at its last sync: another identity is a newcomer, who may receive state.
    synced_as: Option<PeerId>,
    connected: bool,
    report: Reporter,
}

/// Takes part in a run until its last outer step, and reports on stdout; `Ok(false)` after a failure that is reported.
pub(crate) fn run(args: &Args) -> Result<bool, Failure> {
    let mut builder = Communicator::builder(args.master.as_deref().unwrap_or_default());
    if let Some(host) = &args.advertised_host {
        builder = builder.advertised_host(host);
    }
    let comm = builder.build()?;
    let params = model::init(args.seed);
    let momentum = vec![0.0; params.len()];
    let mut peer = Peer {
        training: Training { params, momentum, step: [0], revision: 0 },
        data: data::load()?,
        shard: args.shard,
        seed: args.seed,
        pace: args.pace(),
        synced_as: None,
        connected: false,
        report: Reporter::default(),
    };

    // Connects, waits until there are two peers, and makes steps. What fails is made good, and the step is made again.
    let ended = comm.run(
        &mut peer,
        2,
        |peer| peer.training.step[0] < args.steps,
        |comm, peer| peer.outer_step(comm).inspect_err(|error| peer.failed(error)),
    );
    if let Err(error) = ended {
        peer.report.fail(error);
        return Ok(false);
    }
    let Training { params, step, revision, .. } = &peer.training;
    let accuracy = model::accuracy(params, &peer.data.test);
    peer.report.finish(step[0], revision.saturating_sub(1), accuracy, peer.training.hash());
    Ok(true)
}

impl Peer {
    fn outer_step(&mut self, comm: &Communicator) -> Result<(), Error> {
        self.sync(comm)?;

        let (mut moved, loss) = self.train_locally();
        let reduced = comm.all_reduce(&mut moved, ReduceOp::Avg).inspect_err(|error| {
            self.report.event(Event::Aborted, self.training.step[0], format!("all-reduce: {error}"));
        })?;
        self.training.apply(&moved);
        self.report.moved(reduced.tx_bytes, reduced.rx_bytes);
        self.report.step(self.training.step[0], reduced.world_size, loss, self.training.revision - 1);

        // At the end of the step: a newcomer begins with the sync, and so do the others after this.
        if comm.are_peers_pending()? {
            comm.update_topology()?;
        }
        Ok(())
    }

    /// Proves that all peers hold the same state, and hands it to newcomers.
    fn sync(&mut self, comm: &Communicator) -> Result<(), Error> {
        let is_newcomer = comm.id() != self.synced_as;
        if is_newcomer {
            let event = if self.connected { Event::Reconnected } else { Event::Connected };
            self.connected = true;
            self.report.event(event, self.training.step[0], format!("world {}", comm.world().global_size));
        }
        let Training { params, momentum, step, revision } = &mut self.training;
        let mut state = SharedState::new(*revision);
        state.tensor("parameters", params)?.tensor("momentum", momentum)?.tensor("step", step)?;
        let synced = comm.sync_shared_state(&mut state, SyncStrategy::EnforcePopular)?;
        *revision = synced.revision + 1;

        self.synced_as = comm.id();
        self.report.moved(synced.tx_bytes, synced.rx_bytes);
        if synced.rx_bytes > 0 {
            let event = if is_newcomer { Event::Joined } else { Event::Drift };
            self.report.event(
                event,
                self.training.step[0],
                format!("{} bytes of state received", synced.rx_bytes),
            );
        }
        Ok(())
    }

    /// Many local steps on this peer's part of the data: how far they moved the parameters, and their mean loss.
    fn train_locally(&self) -> (Vec<f32>, f32) {
        let started = Instant::now();
        let step = self.training.step[0];
        let samples = data::shard_of(&self.data.train, self.shard, step);
        let mut local = self.training.params.clone();
        let mut rng = Rng::keyed(&[self.seed, self.shard, step]);
        let loss = model::train(&mut local, &self.data.train, &samples, &mut rng);
        std::thread::sleep(self.pace.saturating_sub(started.elapsed()));
        let moved = self.training.params.iter().zip(&local).map(|(shared, local)| shared - local);
        (moved.collect(), loss)
    }

    /// Tells of a failed step, unless the all-reduce has; the loop makes it good.
    fn failed(&mut self, error: &Error) {
        let step = self.training.step[0];
        match error.remedy() {
            Remedy::WaitForPeers => self.report.event(Event::Alone, step, "waiting for other peers"),
            Remedy::Retry if !matches!(error, Error::Aborted(_)) => {
                self.report.event(Event::Retried, step, error)
            }
            _ => {}
        }
    }
}

impl Training {
    /// One Nesterov step along the averaged distance.
    ///
    /// Only multiplications and additions of f32, element by element, each rounded once: equal inputs give equal bytes
    /// on every machine, which is what lets the states of all peers agree.
    fn apply(&mut self, moved: &[f32]) {
        for ((param, momentum), slope) in self.params.iter_mut().zip(&mut self.momentum).zip(moved) {
            *momentum = OUTER_MOMENTUM * *momentum + slope;
            *param -= OUTER_RATE * (slope + OUTER_MOMENTUM * *momentum);
        }
        self.step[0] += 1;
    }

    /// FNV-1a (64 bits) over the bytes of all tensors: the proof, told by each peer at the end, that they are equal.
    ///
    /// Deliberately not the hash of the library, which is what is on trial here.
    fn hash(&self) -> u64 {
        let floats = self.params.iter().chain(&self.momentum).flat_map(|value| value.to_bits().to_le_bytes());
        floats.chain(self.step[0].to_le_bytes()).fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        })
    }
}

#[test]
fn the_outer_step_is_nesterovs() {
    let mut training = Training { params: vec![1.0, -2.0], momentum: vec![0.0, 4.0], step: [6], revision: 0 };
    let before = training.hash();
    training.apply(&[2.0, 1.0]);
    // momentum: 0.7*0+2 = 2, 0.7*4+1 = 3.8; moves: 0.7*(2+0.7*2) = 2.38, 0.7*(1+0.7*3.8) = 2.562
    assert!((training.params[0] + 1.38).abs() < 1e-6 && (training.params[1] + 4.562).abs() < 1e-6);
    assert_eq!((training.momentum[0], training.step), (2.0, [7]));
    assert_ne!(training.hash(), before);
}
