//! The training loop of one peer, against the few calls that it needs from a communication library.
//!
//! Every peer makes the same calls in the same order; each decision about what to call next follows from what the
//! calls themselves returned, which is the same on every peer:
//!
//! 1. `update_topology` lets newcomers in. A newcomer leaves it out in its first round: `connect` returned because
//!    the others were making that very call.
//! 2. `sync` proves that all hold the same state, and hands it to newcomers. A peer that is alone after it goes
//!    back to 1 until somebody comes.
//! 3. Local training on the peer's own data, then `all_reduce_avg` of the distance moved.
//! 4. The outer step, on the average, the same on every peer.

use std::time::{Duration, Instant};

use log::{info, warn};
use thiserror::Error;

use crate::dataset::{Split, shard_of};
use crate::diloco::{OuterConfig, OuterState};
use crate::model::{self, LocalSgd};
use crate::report::{Event, FinalReport, Report, StepReport, Traffic};
use crate::rng::Rng;

/// Failures in a row of one call after which a peer gives up. Each stands for a lost peer, so this is far more than
/// any run sees; a call that always fails must not be tried for ever.
const RETRIES_MAX: u32 = 100;

/// What a failed call asks of its caller.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum CommError {
    /// Nothing has changed, buffers included; the same call may be made again.
    #[error("{0}")]
    Retry(String),
    /// Too few peers for this call are left; buffers are as before.
    #[error("nobody else is left")]
    Alone,
    /// This peer is no longer part of the run; it may connect again. What it held may be outdated.
    #[error("{0}")]
    Reconnect(String),
    /// Going on makes no sense.
    #[error("{0}")]
    Fatal(String),
}

/// What an all-reduce did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReduceInfo {
    /// Peers that took part, the caller included; the same number on all of them.
    pub(crate) world: usize,
    /// Payload moved by this peer.
    pub(crate) traffic: Traffic,
}

/// What a sync did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SyncInfo {
    /// Revision that all hold now.
    pub(crate) revision: u64,
    /// Payload moved by this peer; received bytes mean that its state was not the common one.
    pub(crate) traffic: Traffic,
}

/// The calls that training needs; all of them block.
pub(crate) trait Collective {
    /// Joins the run; returns when the peers in it have let this one in. Also the way back after
    /// [`CommError::Reconnect`].
    fn connect(&mut self) -> Result<(), CommError>;

    /// Accepted peers, this one included, as the last call left them.
    fn world(&self) -> usize;

    /// Lets in those who wait to join. Returns at once if nobody does and all others make the same call.
    fn update_topology(&mut self) -> Result<(), CommError>;

    /// Makes `state` (parameters, momentum, step) the same on all peers, at the revision `revision`.
    /// A peer with a lower revision than the run, or with other content than most, has its state overwritten.
    fn sync(&mut self, revision: u64, state: &mut OuterState) -> Result<SyncInfo, CommError>;

    /// Replaces `values` by the average over all peers. On any error `values` is what it was before.
    fn all_reduce_avg(&mut self, values: &mut [f32]) -> Result<ReduceInfo, CommError>;
}

/// How a peer trains.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct PeerConfig {
    /// Outer steps of the run.
    pub(crate) steps: u64,
    /// Number of this peer: which data it trains on.
    pub(crate) shard_id: u64,
    /// Seed of the starting parameters, the same on every peer.
    pub(crate) seed: u64,
    /// Between two all-reduces.
    pub(crate) local: LocalSgd,
    /// At each all-reduce.
    pub(crate) outer: OuterConfig,
    /// Shortest time of one outer step.
    pub(crate) pace: Duration,
    /// Between two looks for other peers while alone, and before a failed call is made again.
    pub(crate) pause: Duration,
}

impl PeerConfig {
    /// The settings that the example is tuned for.
    pub(crate) const fn new(steps: u64, shard_id: u64, seed: u64, pace: Duration) -> Self {
        Self {
            steps,
            shard_id,
            seed,
            // Of a small grid, the values whose worst test accuracy over six seeds was among the best after 30, 60
            // and 100 steps alike (0.96 to 0.97).
            local: LocalSgd { learning_rate: 0.2, batch: 16, steps: 20 },
            outer: OuterConfig { learning_rate: 0.7, momentum: 0.7 },
            pace,
            pause: Duration::from_millis(20),
        }
    }
}

/// Why a peer stopped before the end.
#[derive(Debug, Error)]
pub(crate) enum PeerError {
    /// The run cannot go on for this peer.
    #[error("{0}")]
    Comm(String),
    /// Nobody reads the reports any more.
    #[error("cannot report: {0}")]
    Sink(#[from] std::io::Error),
}

/// Takes the reports of a peer.
pub(crate) type Sink<'a> = dyn FnMut(&Report) -> std::io::Result<()> + 'a;

/// What makes a peer leave its round.
enum Detour {
    Alone,
    Reconnect(String),
    Stop(PeerError),
}

impl From<std::io::Error> for Detour {
    fn from(error: std::io::Error) -> Self {
        Self::Stop(error.into())
    }
}

/// Takes part in a run until its last outer step, and returns the shared state with the final report, which has
/// been given to `sink` too.
pub(crate) fn run<C: Collective>(
    comm: &mut C,
    data: &Split,
    config: PeerConfig,
    sink: &mut Sink<'_>,
) -> Result<(OuterState, FinalReport), PeerError> {
    let state = OuterState::new(config.seed);
    let counts = Counts::default();
    let mut peer = Peer {
        comm,
        data,
        config,
        sink,
        state,
        revision: 0,
        newcomer: true,
        sync_next: true,
        pending: None,
        counts,
    };
    peer.connect(Event::Connected)?;
    loop {
        match peer.round() {
            Ok(true) => break,
            Ok(false) => {}
            Err(Detour::Alone) => peer.wait_for_others()?,
            Err(Detour::Reconnect(reason)) => {
                warn!("lost the run, joining it again: {reason}");
                peer.connect(Event::Reconnected)?;
            }
            Err(Detour::Stop(error)) => return Err(error),
        }
    }
    let report = peer.final_report();
    (peer.sink)(&Report::Final(report))?;
    Ok((peer.state, report))
}

#[derive(Default)]
struct Counts {
    aborts: u64,
    retries: u64,
    joins: u64,
    drifts: u64,
    traffic: Traffic,
}

/// Local work that waits to be averaged.
struct Pending {
    delta: Vec<f32>,
    loss: f32,
}

struct Peer<'a, 's, C> {
    comm: &'a mut C,
    data: &'a Split,
    config: PeerConfig,
    sink: &'a mut Sink<'s>,
    state: OuterState,
    /// Revision of the last sync that completed. It counts syncs, not steps: a sync that follows a failed step has
    /// to have a new revision too.
    revision: u64,
    /// Has connected and not synced since: may receive state.
    newcomer: bool,
    /// The latest call let this peer or others in; all of them sync next, without another topology update.
    sync_next: bool,
    pending: Option<Pending>,
    counts: Counts,
}

impl<C: Collective> Peer<'_, '_, C> {
    /// One round; true when the run is over.
    fn round(&mut self) -> Result<bool, Detour> {
        if !self.sync_next {
            self.retrying("topology update", Event::Retried, |peer| peer.comm.update_topology())?;
        }
        self.sync()?;
        if self.state.step() >= self.config.steps {
            return Ok(true);
        }
        if self.comm.world() < 2 {
            return Err(Detour::Alone);
        }
        if self.pending.is_none() {
            self.pending = Some(self.train());
        }
        self.outer_step()?;
        Ok(false)
    }

    fn connect(&mut self, event: Event) -> Result<(), PeerError> {
        self.comm.connect().map_err(|error| PeerError::Comm(format!("cannot join the run: {error}")))?;
        self.newcomer = true;
        self.sync_next = true;
        // Made from a state that may be outdated by now.
        self.pending = None;
        self.event(event, format!("world {}", self.comm.world()))?;
        Ok(())
    }

    /// Alone there is nothing to average with: keep the door open until somebody comes in.
    fn wait_for_others(&mut self) -> Result<(), PeerError> {
        self.event(Event::Alone, "waiting for other peers".to_owned())?;
        loop {
            match self.retrying("topology update", Event::Retried, |peer| peer.comm.update_topology()) {
                Ok(()) | Err(Detour::Alone) => {}
                Err(Detour::Reconnect(reason)) => {
                    warn!("lost the run, joining it again: {reason}");
                    return self.connect(Event::Reconnected);
                }
                Err(Detour::Stop(error)) => return Err(error),
            }
            if self.comm.world() >= 2 {
                self.sync_next = true;
                return Ok(());
            }
            std::thread::sleep(self.config.pause);
        }
    }

    fn sync(&mut self) -> Result<(), Detour> {
        let revision = self.revision + 1;
        let info = self.retrying("sync", Event::Retried, |peer| peer.comm.sync(revision, &mut peer.state))?;
        self.revision = info.revision;
        self.add(info.traffic);
        let received = info.traffic.rx_bytes > 0;
        if received {
            self.pending = None;
        }
        if received && !self.newcomer {
            self.counts.drifts += 1;
            self.event(Event::Drift, format!("{} bytes of state repaired", info.traffic.rx_bytes))?;
        } else if self.newcomer && (received || info.revision > revision) {
            self.counts.joins += 1;
            self.event(Event::Joined, format!("{} bytes of state received", info.traffic.rx_bytes))?;
        }
        self.newcomer = false;
        self.sync_next = false;
        Ok(())
    }

    fn train(&self) -> Pending {
        let started = Instant::now();
        let step = self.state.step();
        let indices = shard_of(&self.data.train, self.config.shard_id, step);
        let mut rng = Rng::from_parts(&[self.config.seed, self.config.shard_id, step]);
        let mut local = self.state.params.clone();
        let loss = self.config.local.train(&mut local, &self.data.train, &indices, &mut rng);
        std::thread::sleep(self.config.pace.saturating_sub(started.elapsed()));
        Pending { delta: self.state.delta_from(&local), loss }
    }

    fn outer_step(&mut self) -> Result<(), Detour> {
        // Taken out for the call and put back when it fails: whoever is alone averages this work later.
        let Some(mut pending) = self.pending.take() else { return Ok(()) };
        let result =
            self.retrying("all-reduce", Event::Aborted, |peer| peer.comm.all_reduce_avg(&mut pending.delta));
        let info = match result {
            Ok(info) => info,
            Err(detour) => {
                self.pending = Some(pending);
                return Err(detour);
            }
        };
        self.state.apply(self.config.outer, &pending.delta);
        self.add(info.traffic);
        let report = StepReport {
            step: self.state.step(),
            world: info.world,
            loss: pending.loss,
            revision: self.revision,
            traffic: self.counts.traffic,
        };
        Ok((self.sink)(&Report::Step(report))?)
    }

    /// Makes a call again for as long as it says that this helps; each failure is an event of the kind `event`.
    fn retrying<T>(
        &mut self,
        what: &str,
        event: Event,
        mut call: impl FnMut(&mut Self) -> Result<T, CommError>,
    ) -> Result<T, Detour> {
        let mut failures = 0;
        loop {
            let reason = match call(self) {
                Ok(value) => return Ok(value),
                Err(CommError::Retry(reason)) => reason,
                Err(CommError::Alone) => return Err(Detour::Alone),
                Err(CommError::Reconnect(reason)) => {
                    return Err(Detour::Reconnect(format!("{what}: {reason}")));
                }
                Err(CommError::Fatal(reason)) => {
                    return Err(Detour::Stop(PeerError::Comm(format!("{what}: {reason}"))));
                }
            };
            failures += 1;
            self.counts.aborts += u64::from(event == Event::Aborted);
            if failures > RETRIES_MAX {
                let why = format!("{what} failed {failures} times in a row, at last: {reason}");
                return Err(Detour::Stop(PeerError::Comm(why)));
            }
            self.counts.retries += 1;
            info!("{what} failed, trying again: {reason}");
            self.event(event, format!("{what}: {reason}"))?;
            std::thread::sleep(self.config.pause);
        }
    }

    fn add(&mut self, traffic: Traffic) {
        self.counts.traffic.tx_bytes += traffic.tx_bytes;
        self.counts.traffic.rx_bytes += traffic.rx_bytes;
    }

    fn event(&mut self, event: Event, detail: String) -> std::io::Result<()> {
        (self.sink)(&Report::Event { event, step: self.state.step(), detail })
    }

    fn final_report(&self) -> FinalReport {
        FinalReport {
            step: self.state.step(),
            revision: self.revision,
            accuracy: model::evaluate(&self.state.params, &self.data.test).accuracy,
            hash: self.state.hash(),
            aborts: self.counts.aborts,
            retries: self.counts.retries,
            joins: self.counts.joins,
            drifts: self.counts.drifts,
            traffic: self.counts.traffic,
        }
    }
}
