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
use pccl::{Communicator, Error, PeerId, Remedy, SharedState, SyncInfo, SyncStrategy};
use pccl_testkit::{
    random::Rng,
    training::{Event, Reporter},
};
use std::time::{Duration, Instant};

/// The outer step. Of a small grid, the values whose worst test accuracy over six seeds was among the best after 30, 60
/// and 100 steps alike (0.96 to 0.97).
const OUTER_RATE: f32 = 0.7;
const OUTER_MOMENTUM: f32 = 0.7;

/// A weight that counts for nothing beside any other.
const NEXT_TO_NOTHING: f64 = f64::MIN_POSITIVE;

/// The state of the training: the same on every peer, and handed to newcomers.
struct Training {
    params: Vec<f32>,
    momentum: Vec<f32>,
    /// Outer steps done, one element: a tensor like the others, so that it travels with them.
    step: [u64; 1],
    /// Revision of the next sync: one more whenever the state has changed.
    revision: u64,
}

/// One peer: the training, and what only this peer has.
struct Peer {
    training: Training,
    local: Local,
    /// The identity of this peer at its last sync: another identity is a newcomer, who may receive state.
    synced_as: Option<PeerId>,
    connected: bool,
    report: Reporter,
}

/// The data that this peer trains on, and the way that it trains.
struct Local {
    data: Split,
    /// Number of this peer: which data it trains on.
    shard: u64,
    seed: u64,
    pace: Duration,
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
        local: Local { data: data::load()?, shard: args.shard, seed: args.seed, pace: args.pace() },
        synced_as: None,
        connected: false,
        report: Reporter::default(),
    };

    // Connects, waits until there are two peers, and makes steps. Each failure is made good, and the step is made
    // again.
    let ended = comm.run_with_state(
        &mut peer,
        2,
        |peer| peer.training.shared().map(|(state, _)| state),
        |peer| peer.training.step[0] < args.steps,
        |comm, peer| peer.outer_step(comm).inspect_err(|error| peer.failed(error)),
    );
    if let Err(error) = ended {
        peer.report.fail(error);
        return Ok(false);
    }
    let Training { params, step, revision, .. } = &peer.training;
    let accuracy = model::accuracy(params, &peer.local.data.test);
    peer.report.finish(step[0], revision.saturating_sub(1), accuracy, peer.training.hash());
    Ok(true)
}

impl Peer {
    fn outer_step(&mut self, comm: &Communicator) -> Result<(), Error> {
        self.greet(comm);
        let (mut state, revision) = self.training.shared()?;
        let synced = comm.sync_shared_state(&mut state, SyncStrategy::EnforcePopular)?;
        *revision = synced.revision;

        // Newcomers fetch the state from here while this peer computes. The others do not wait for a newcomer that
        // comes with it.
        let params = || state.view("parameters").unwrap_or_default();
        let (step, mut loss) = (state.view("step").map_or(0, |step: &[u64]| step[0]), None);
        let (mut moved, weight) = match synced.came_ahead {
            true => (vec![0.0; params().len()], NEXT_TO_NOTHING),
            false => (comm.lend_state(&state, || self.local.train(params(), step, &mut loss))?, 1.0),
        };
        // Before the state changes: nothing is moved to newcomers that hold it already, and what was computed stays.
        while comm.are_peers_pending()? {
            comm.update_topology()?;
            let again = comm.sync_shared_state(&mut state, SyncStrategy::EnforcePopular)?;
            self.report.moved(again.tx_bytes, again.rx_bytes);
        }
        self.synced(comm, &synced);
        let reduced = comm.weighted_average(&mut moved, weight, ()).inspect_err(|error| {
            self.report.event(Event::Aborted, self.training.step[0], format!("all-reduce: {error}"));
        })?;
        self.training.apply(&moved);
        self.report.moved(reduced.tx_bytes, reduced.rx_bytes);
        if let Some(loss) = loss {
            self.report.step(self.training.step[0], reduced.world_size, loss, synced.revision);
        }
        Ok(())
    }

    /// Tells when this peer is another one than at its last sync.
    fn greet(&mut self, comm: &Communicator) {
        if comm.id() != self.synced_as {
            let event = if self.connected { Event::Reconnected } else { Event::Connected };
            self.connected = true;
            self.report.event(event, self.training.step[0], format!("world {}", comm.world().global_size));
        }
    }

    /// Tells what a sync has moved.
    fn synced(&mut self, comm: &Communicator, synced: &SyncInfo) {
        let is_newcomer = comm.id() != self.synced_as;
        self.synced_as = comm.id();
        self.report.moved(synced.tx_bytes, synced.rx_bytes);
        let event = if is_newcomer { Event::Joined } else { Event::Drift };
        if synced.came_ahead || synced.rx_bytes > 0 {
            let before = if synced.came_ahead { ", the rest before it was let in" } else { "" };
            let text = format!("{} bytes of state received in the sync{before}", synced.rx_bytes);
            self.report.event(event, self.training.step[0], text);
        }
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

impl Local {
    /// Many local steps on this peer's part of the data: how far they moved the parameters, and their mean loss.
    fn train(&self, params: &[f32], step: u64, loss: &mut Option<f32>) -> Vec<f32> {
        let started = Instant::now();
        let samples = data::shard_of(&self.data.train, self.shard, step);
        let mut local = params.to_vec();
        let mut rng = Rng::keyed(&[self.seed, self.shard, step]);
        *loss = Some(model::train(&mut local, &self.data.train, &samples, &mut rng));
        std::thread::sleep(self.pace.saturating_sub(started.elapsed()));
        params.iter().zip(&local).map(|(shared, local)| shared - local).collect()
    }
}

impl Training {
    /// The state that all peers share, and the revision of the next sync.
    fn shared(&mut self) -> Result<(SharedState<'_>, &mut u64), Error> {
        let Self { params, momentum, step, revision } = self;
        let mut state = SharedState::new(*revision);
        state.tensor("parameters", params)?.tensor("momentum", momentum)?.tensor("step", step)?;
        Ok((state, revision))
    }

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
        self.revision += 1;
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
