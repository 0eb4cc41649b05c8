//! The samples of a run: which ones a member trains on, and which ones a round has counted.

use crate::Settings;
use pccl::Error;
use pccl_samples::{Counted, Holding, Ledger, Member, Order, words_for};
use std::collections::VecDeque;

/// Rounds whose samples are kept for an audit.
const MAX_ROUNDS: usize = 1000;

/// An error of the ledger as one of the run.
pub(crate) fn failed(error: pccl_samples::Error) -> Error {
    match error {
        pccl_samples::Error::Argument(text) => Error::InvalidArgument(text),
        error => Error::System(error.to_string().into()),
    }
}

/// The data set of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DataSet {
    pub(crate) order: Order,
    total: u64,
    members: usize,
    /// Samples that this member wants to hold at a time.
    pub(crate) wants: u64,
}

impl DataSet {
    /// That of the settings; `None` if they name none.
    ///
    /// # Errors
    /// `InvalidArgument` if it makes no sense.
    pub(crate) fn of(settings: &Settings) -> Result<Option<Self>, Error> {
        if settings.samples == 0 {
            return Ok(None);
        }
        let (order, total) =
            Order::of(settings.samples, settings.samples_seed, settings.samples_epochs).map_err(failed)?;
        let (members, wants) = (settings.samples_members, settings.samples_held);
        Ok(Some(Self { order, total, members, wants }))
    }

    /// The ledger of a run that begins, as it is shared.
    pub(crate) fn words(&self) -> Vec<u64> {
        let mut words = vec![0; words_for(self.members)];
        Ledger::new(self.total, self.members, self.order.key(0)).write(&mut words);
        words
    }

    pub(crate) fn ledger(&self, words: &[u64]) -> Result<Ledger, Error> {
        Ledger::read(words, self.total, self.order.key(0)).map_err(failed)
    }

    /// The end of a round, or what comes before the first one.
    pub(crate) fn settle(&self, words: &mut [u64], members: &[Member]) -> Result<Vec<Counted>, Error> {
        if members.len() > self.members {
            let (have, most) = (members.len(), self.members);
            return Err(Error::InvalidArgument(format!("{have} members, but samples_members is {most}")));
        }
        let mut ledger = self.ledger(words)?;
        let counted = ledger.settle(members);
        ledger.write(words);
        Ok(counted)
    }
}

/// The ledger after a sync, for the caller's side.
#[derive(Debug)]
pub(crate) struct News {
    /// The number by which the ledger knows this member.
    pub(crate) owner: u128,
    pub(crate) ledger: Ledger,
    /// The samples that the round before has counted.
    pub(crate) counted: Option<(u64, Vec<Counted>)>,
    /// The own contribution to it was dropped.
    pub(crate) is_dropped: bool,
}

/// The samples of a member.
#[derive(Debug)]
pub(crate) struct Samples {
    data_set: DataSet,
    holding: Holding,
    counted: u64,
    /// The newest rounds, with what they have counted.
    rounds: VecDeque<(u64, Vec<Counted>)>,
}

impl Samples {
    pub(crate) fn new(data_set: DataSet) -> Self {
        Self { data_set, holding: Holding::default(), counted: 0, rounds: VecDeque::new() }
    }

    pub(crate) fn take(&mut self, most: u64) -> Vec<u64> {
        let positions = self.holding.take(most);
        positions.into_iter().map(|position| self.data_set.order.sample(position)).collect()
    }

    /// Whether the step has to be forgotten, see [`Holding::train`].
    pub(crate) fn train(&mut self, count: u64) -> Result<bool, Error> {
        self.holding.train(count).map_err(|outstanding| {
            let text =
                format!("a step on {count} samples, but only {outstanding} were taken and not trained on");
            Error::InvalidArgument(text)
        })
    }

    pub(crate) fn trained(&self) -> u64 {
        self.holding.trained()
    }

    pub(crate) fn outstanding(&self) -> u64 {
        self.holding.outstanding()
    }

    pub(crate) fn forget(&mut self) {
        self.holding.forget();
    }

    /// After a sync. Whether what was trained has to be forgotten, see [`Holding::refresh`].
    pub(crate) fn hear(&mut self, news: News) -> bool {
        self.counted = news.ledger.counted();
        if let Some(counted) = news.counted {
            self.keep(counted);
        }
        let is_lost = self.holding.refresh(news.owner, &news.ledger);
        if news.is_dropped {
            self.holding.forget();
        }
        is_lost || news.is_dropped
    }

    pub(crate) fn is_over(&self) -> bool {
        self.counted == self.data_set.total
    }

    fn keep(&mut self, counted: (u64, Vec<Counted>)) {
        if self.rounds.len() == MAX_ROUNDS {
            self.rounds.pop_front();
        }
        self.rounds.push_back(counted);
    }

    /// The samples that a round has counted.
    pub(crate) fn counted(&self, round: u64) -> Option<Vec<u64>> {
        let (_, counted) = self.rounds.iter().find(|(number, _)| *number == round)?;
        let positions = counted.iter().flat_map(|it| it.range.clone());
        Some(positions.map(|position| self.data_set.order.sample(position)).collect())
    }
}
