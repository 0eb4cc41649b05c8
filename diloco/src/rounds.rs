//! The thread that makes the rounds: it takes part in each, whatever the caller does meanwhile.

use crate::{
    Averager, Fragments, Outer, RoundReport, Settings, Stats,
    audit::{Audit, Try},
    board::{Board, Posted},
    readiness::{self, Decision, RECORD_BYTES, Record, Rule},
    samples::{DataSet, News},
    settings::Grace,
};
use pccl::{Communicator, Error, PeerId, SyncStrategy};
use pccl_samples::{Counted, Member};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Rounds {
    comm: Arc<Communicator>,
    board: Arc<Board>,
    settings: Settings,
    fragments: Fragments,
    /// The settings that all must have alike.
    text: String,
    averager: Averager,
    /// The samples that the run counts.
    data_set: Option<DataSet>,
    audit: Audit,
    /// For each fragment, the rounds that its outer parameters have seen last.
    changed: Vec<u64>,
    /// The revision of the last sync.
    synced_revision: Option<u64>,
    /// The rounds before a sync that is not over yet, and the bytes that it has fetched.
    came_from: Option<u64>,
    fetched_bytes: u64,
    /// The last call that was made has succeeded.
    is_settled: bool,
    quorum_since: Option<Instant>,
    /// The members whose records are known, and the own rank: somebody may be gone already.
    ring: Vec<PeerId>,
    rank: usize,
    /// A round that is applied here, and that no sync has committed yet.
    unsynced: Option<Unsynced>,
}

/// See [`Rounds::unsynced`].
#[derive(Debug)]
struct Unsynced {
    report: RoundReport,
    /// Whether the own contribution is in it.
    is_in: bool,
    /// The samples that it has counted.
    counted: Vec<Counted>,
    /// The own contribution was one on samples, and changes nothing.
    is_dropped: bool,
}

/// Tells the caller that the rounds are over, also after a panic of an outer step of its own.
struct Ends<'a>(&'a Board);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        let panicked = || Err(Error::System("the thread of the rounds has panicked".to_owned().into()));
        self.0.lock().end.get_or_insert_with(panicked);
        self.0.notify();
    }
}

impl Rounds {
    pub(crate) fn new(
        comm: Arc<Communicator>,
        board: Arc<Board>,
        settings: Settings,
        fragments: Fragments,
        data_set: Option<DataSet>,
        audit: Audit,
    ) -> Self {
        Self {
            text: settings.text(&fragments),
            averager: Averager::new(fragments.elements(), settings.compression),
            changed: vec![0; fragments.count()],
            data_set,
            audit,
            comm,
            board,
            settings,
            fragments,
            synced_revision: None,
            came_from: None,
            fetched_bytes: 0,
            is_settled: false,
            quorum_since: None,
            ring: Vec::new(),
            rank: 0,
            unsynced: None,
        }
    }

    /// Makes rounds until the caller has enough, or something has failed for good.
    pub(crate) fn run(mut self) {
        let (comm, board, min_world) = (self.comm.clone(), self.board.clone(), self.settings.min_world);
        let ends = Ends(&board);
        let ended = self.connect().and_then(|()| {
            comm.run(&mut self, min_world, |it| !it.board.lock().stopping, |_, it| it.round())
        });
        let mut state = board.lock();
        let is_wanted = state.stopping;
        state.end = Some(if is_wanted { Ok(()) } else { ended });
        drop(state);
        drop(ends);
    }

    /// Joins the run, with the outer state fetched beforehand: the others make rounds meanwhile.
    fn connect(&mut self) -> Result<(), Error> {
        // Before the program reports others, of which there may be as many as are left then.
        self.report(&Stats::default())?;
        let mut outer = self.board.outer.lock();
        let rounds = outer.rounds();
        let mut state = outer.shared(rounds, &self.fragments)?;
        self.comm.make_good_with_state(Error::NotConnected.remedy(), self.settings.min_world, &mut state)?;
        self.synced_revision = self.comm.fetched_revision();
        Ok(())
    }

    /// One round, with all that comes before it.
    fn round(&mut self) -> Result<(), Error> {
        let mut synced = std::mem::take(&mut self.is_settled);
        {
            let mut state = self.board.lock();
            state.stats.repeated += u64::from(!synced && state.joined);
        }
        self.quorum_since = None;
        // The waits that were decided since newcomers were let in. All have decided alike, and so all ask alike:
        // between looks that are close together nobody is let in, which saves a round trip before the exchange.
        let mut unasked = readiness::LONGEST_WAIT;
        loop {
            if unasked >= readiness::LONGEST_WAIT {
                while self.comm.are_peers_pending()? {
                    self.comm.update_topology()?;
                }
                unasked = Duration::ZERO;
            }
            // Somebody may have left since the last look, without a failure of anything.
            self.check_company()?;
            let (records, posted) = self.exchange_records(synced)?;
            match self.rule().decide(&records, self.rank)? {
                Decision::Sync => {
                    self.sync(Some(&records))?;
                    synced = true;
                }
                Decision::Wait { time, quorum_in } => {
                    if quorum_in.is_some_and(|it| it.is_zero()) {
                        self.quorum_since.get_or_insert_with(Instant::now);
                    }
                    self.board.wait_for_caller(time, quorum_in);
                    unasked += time;
                }
                Decision::Go { weights } => {
                    self.go(&records, &weights, posted.as_ref())?;
                    self.sync(None)?;
                    self.is_settled = true;
                    return Ok(());
                }
            }
            if self.board.lock().stopping {
                return Ok(());
            }
        }
    }

    fn check_company(&self) -> Result<(), Error> {
        let (have, need) = (self.comm.world().group_size, self.settings.min_world);
        if have >= need {
            return Ok(());
        }
        Err(Error::TooFewPeers { have: have as u32, need: need as u32, in_group: true })
    }

    fn rule(&self) -> Rule {
        let grace = match self.settings.grace {
            Grace::Auto => None,
            Grace::Fixed(grace) => Some(grace),
        };
        Rule { quorum: self.settings.quorum, grace }
    }

    /// The records of all members, and the contribution that the own one speaks of.
    fn exchange_records(&mut self, synced: bool) -> Result<(Vec<Record>, Option<Posted>), Error> {
        let (record, posted) = self.board.record();
        let waited = self.quorum_since.map_or(0, |since| since.elapsed().as_millis());
        let waited_ms = u32::try_from(waited).unwrap_or(u32::MAX);
        let samples_wanted = self.data_set.map_or(0, |data_set| data_set.wants);
        let record = Record { text: self.text.clone(), waited_ms, synced, samples_wanted, ..record };
        let world = self.comm.world();
        let mut bytes = vec![0_u8; RECORD_BYTES * world.group_size];
        match world.group_size {
            1 => bytes.copy_from_slice(&record.encode()),
            _ => drop(self.comm.all_gather(&record.encode(), &mut bytes, ())?),
        }
        let records: Vec<_> = bytes.chunks(RECORD_BYTES).map(Record::decode).collect();
        self.board.lock().stats.members = records.len();
        (self.ring, self.rank) = (world.ring, world.rank);
        Ok((records, posted))
    }

    /// Averages a fragment and applies the outer step.
    fn go(&mut self, records: &[Record], weights: &[f64], posted: Option<&Posted>) -> Result<(), Error> {
        let begun = Instant::now();
        let mut report = self.report_of(records, weights);
        let values = posted.map_or(&[][..], |posted| &posted.values);
        let (mean, unknown) = self.mean(&mut report, weights, values)?;
        let weight = report.weight();
        self.board.outer.lock().advance(
            &self.fragments,
            &self.settings.outer,
            mean.as_deref().map(|mean| (mean, weight)),
        );
        if let Some(changed) = self.changed.get_mut(report.fragment) {
            *changed = report.round + 1;
        }
        report.exchange = begun.elapsed();
        let counting = if mean.is_some() { weights } else { &[] };
        let counted = self.settle(records, counting)?;
        let is_counted = counting.get(self.rank).is_some_and(|weight| *weight > 0.0);
        let is_dropped = !is_counted && posted.is_some_and(|posted| posted.samples > 0);
        self.unsynced = Some(Unsynced { report, is_in: posted.is_some(), counted, is_dropped });
        unknown.map_or(Ok(()), Err)
    }

    /// The report of the next round, before its exchange.
    fn report_of(&self, records: &[Record], weights: &[f64]) -> RoundReport {
        let round = self.board.outer.lock().rounds();
        let named = |is: fn(&Record) -> bool| {
            self.ring.iter().zip(records).filter(move |(_, record)| is(record)).map(|(peer, _)| *peer)
        };
        for peer in named(|record| record.refused) {
            log::warn!("round {round}: the contribution of {peer} is not finite, and left out");
        }
        let contributors = self.ring.iter().copied().zip(weights.iter().copied());
        RoundReport {
            round,
            fragment: self.fragments.of_round(round),
            contributors: contributors.filter(|(_, weight)| *weight > 0.0).collect(),
            stand_ins: named(|record| !record.ready).collect(),
            sent_bytes: 0,
            plain_bytes: 0,
            grace: readiness::waited(records),
            exchange: Duration::ZERO,
        }
    }

    /// The mean of the contributions to a round, if there is one, and the error of a member that does not know whether
    /// the others have it.
    fn mean(
        &mut self,
        report: &mut RoundReport,
        weights: &[f64],
        values: &[f32],
    ) -> Result<(Option<Vec<f32>>, Option<Error>), Error> {
        let (round, ring, rank) = (report.round, &self.ring, self.rank);
        let at = self.fragments.range(report.fragment);
        let is_counted = weights.get(rank).is_some_and(|weight| *weight > 0.0);
        let values = if is_counted { values } else { &[] };
        self.audit.attempt(&Try { round, at: at.clone(), ring, rank, weights, values });
        if report.contributors.is_empty() {
            log::warn!("round {round}: all contributions have weight zero, so nothing changes");
            return Ok((None, None));
        }
        let averaged = self.averager.weighted_mean(&self.comm, at, values, weights)?;
        (report.sent_bytes, report.plain_bytes) = (averaged.sent_bytes, averaged.plain_bytes);
        // All see the same bits, and leave it out alike.
        let is_finite = averaged.mean.iter().all(|value| value.is_finite());
        if !is_finite {
            log::error!("round {round}: the mean is not finite, so nothing changes");
        }
        Ok((is_finite.then_some(averaged.mean), averaged.unknown))
    }

    /// Counts the samples of the contributions that have a weight, and grants new ones.
    fn settle(&self, records: &[Record], weights: &[f64]) -> Result<Vec<Counted>, Error> {
        let Some(data_set) = &self.data_set else { return Ok(Vec::new()) };
        let members = self.ring.iter().zip(records).enumerate().map(|(at, (peer, record))| {
            let is_counted = weights.get(at).is_some_and(|weight| *weight > 0.0);
            let used = if is_counted { record.samples_used } else { 0 };
            Member { owner: peer.0, used, wants: record.samples_wanted }
        });
        data_set.settle(&mut self.board.outer.lock().samples, &members.collect::<Vec<_>>())
    }

    /// The ledger of the outer state, for the caller.
    fn news(&self, outer: &Outer, unsynced: Option<&mut Unsynced>) -> Result<Option<News>, Error> {
        let Some(data_set) = &self.data_set else { return Ok(None) };
        let world = self.comm.world();
        let owner = world.ring.get(world.rank).map_or(0, |peer| peer.0);
        let ledger = data_set.ledger(&outer.samples)?;
        let is_dropped = unsynced.as_ref().is_some_and(|it| it.is_dropped);
        let counted = unsynced.map(|it| (it.report.round, std::mem::take(&mut it.counted)));
        Ok(Some(News { owner, ledger, counted, is_dropped }))
    }

    /// Proves that all members hold the same outer state, or fetches it. Its revision is the number of rounds. Returns
    /// the bytes that were fetched.
    fn prove(&mut self) -> Result<u64, Error> {
        let mut outer = self.board.outer.lock();
        let rounds = outer.rounds();
        let mut state = outer.shared(rounds, &self.fragments)?;
        // After a sync that fails nothing is known of what it has replaced, and all is hashed again.
        if let Some(revision) = self.synced_revision.take() {
            for (fragment, _) in self.changed.iter().enumerate().filter(|(_, changed)| **changed <= revision)
            {
                for key in Outer::keys(fragment) {
                    state.unchanged_since(&key, revision)?;
                }
            }
        }
        let info = self.comm.sync_shared_state(&mut state, SyncStrategy::EnforcePopular)?;
        self.synced_revision = Some(info.revision);
        Ok(info.rx_bytes)
    }

    /// Brings this member to the outer state of all. With the records of members that have not synced, those get
    /// samples to begin with; after the first proof, which is that of a state that was offered to resume.
    fn sync(&mut self, records: Option<&[Record]>) -> Result<(), Error> {
        let came_from = *self.came_from.get_or_insert_with(|| self.board.outer.lock().rounds());
        self.fetched_bytes += self.prove()?;
        if let (Some(records), Some(_)) = (records, &self.data_set) {
            self.settle(records, &[])?;
            self.fetched_bytes += self.prove()?;
        }
        self.came_from = None;
        let fetched_bytes = std::mem::take(&mut self.fetched_bytes);
        let outer = self.board.outer.lock();
        let rounds = outer.rounds();
        let mut unsynced = self.unsynced.take().filter(|it| it.report.round + 1 == rounds);
        let news = self.news(&outer, unsynced.as_mut())?;
        let at = unsynced
            .as_ref()
            .map_or(0..self.fragments.elements(), |it| self.fragments.range(it.report.fragment));
        self.audit.outcome(&outer, at, unsynced.is_some());
        drop(outer);
        match unsynced {
            Some(Unsynced { report, is_in, .. }) => {
                log::info!("{report}");
                let stats = self.board.finish_round(report, is_in, news);
                self.report(&Stats { rounds, ..stats })?;
            }
            None => {
                let counted = rounds == came_from + 1 && self.averager.may_have_counted();
                self.averager.settle(counted);
                if fetched_bytes > 0 {
                    self.changed.fill(rounds);
                    log::info!("took over the outer state after {rounds} rounds");
                }
                self.board.take_over(rounds, counted, news);
            }
        }
        self.lend()
    }

    /// Reports the sums over the rounds to those who look at the run.
    fn report(&self, stats: &Stats) -> Result<(), Error> {
        stats.figures().iter().try_for_each(|(name, value)| self.comm.report(name, *value))
    }

    /// Lends a copy of the outer state to newcomers until it changes: they fetch it before they are let in.
    fn lend(&self) -> Result<(), Error> {
        let mut outer = self.board.outer.lock();
        let rounds = outer.rounds();
        let mut state = outer.shared(rounds, &self.fragments)?;
        if let Some(revision) = self.synced_revision {
            (0..self.fragments.count())
                .flat_map(Outer::keys)
                .try_for_each(|key| state.unchanged_since(&key, revision).map(drop))?;
        }
        self.comm.lend_snapshot(&state)
    }
}
