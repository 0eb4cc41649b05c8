//! Samples in lock step: each step takes a batch per member, and the vote of its all-reduce counts them.

use crate::{Counted, Error, Ledger, MAX_MEMBERS, Order, words_for};
use std::ops::Range;

/// The samples of a run in lock step.
///
/// The open positions are cut into pieces of a batch, and each member takes the piece of its rank. The all-reduce of
/// the step sums, with the gradients, how many members have taken each piece and how many of its samples they have
/// used. So the outcome that decides of the step decides of its samples, too: what a member that died had taken is
/// open again.
#[derive(Debug, Clone)]
pub struct Claims {
    order: Order,
    total: u64,
    members: usize,
    batch: u64,
    /// The piece that was taken for this step, and its number.
    taken: Option<(usize, Range<u64>)>,
    /// The outcome of the step, until it is part of the state.
    settled: Option<(Ledger, Vec<Counted>)>,
}

impl Claims {
    /// `length` samples, `epochs` times, in an order by `seed`, or as they are. Each member takes up to `batch` of them
    /// in a step; there are never more than `members`. All members of a run give the same.
    ///
    /// # Errors
    /// `Argument` names what makes no sense.
    pub fn new(
        length: u64,
        seed: Option<u64>,
        epochs: u64,
        batch: u64,
        members: usize,
    ) -> Result<Self, Error> {
        let (order, total) = Order::of(length, seed, epochs)?;
        if batch == 0 {
            return Err(Error::Argument("a batch of 0 samples".to_owned()));
        }
        if !(1..=MAX_MEMBERS).contains(&members) {
            return Err(Error::Argument(format!("{members} members: 1 to {MAX_MEMBERS}")));
        }
        Ok(Self { order, total, members, batch, taken: None, settled: None })
    }

    /// The ledger of a run that begins, as it is part of the shared state: a tensor of `u64`, which the caller keeps
    /// and gives to the other methods.
    pub fn words(&self) -> Vec<u64> {
        let mut words = vec![0; words_for(self.members)];
        Ledger::new(self.total, self.members, self.order.key(self.batch)).write(&mut words);
        words
    }

    /// The ledger in `words`.
    ///
    /// # Errors
    /// `Damaged` if there is none in them.
    pub fn ledger(&self, words: &[u64]) -> Result<Ledger, Error> {
        match words.len() == words_for(self.members) {
            true => Ledger::read(words, self.total, self.order.key(self.batch)),
            false => Err(Error::Damaged("it is for another number of members")),
        }
    }

    /// The samples of the member of this rank for the step that begins: a batch, or less, or none at the end. Taken
    /// again before the step has succeeded, they are those of the rank that it has then.
    ///
    /// # Errors
    /// `Damaged` if the words are no ledger; `Argument` for a rank beyond the members.
    pub fn take(&mut self, words: &[u64], rank: usize) -> Result<Vec<u64>, Error> {
        if rank >= self.members {
            let text = format!("rank {rank}, but no more than {} members were expected", self.members);
            return Err(Error::Argument(text));
        }
        let ledger = self.ledger(words)?;
        self.settled = None;
        self.taken = ledger.pieces(self.batch).nth(rank).map(|piece| (rank, piece));
        let positions = self.taken.iter().flat_map(|(_, piece)| piece.clone());
        Ok(positions.map(|position| self.order.sample(position)).collect())
    }

    /// Numbers that the step's all-reduce sums, beside its gradients: how many members have used each piece, and how
    /// many of its samples, the first ones. `used`: how many this member has used of those it took.
    ///
    /// # Errors
    /// `Argument` if it took less, or took them from another ledger; `Damaged` if the words are none.
    pub fn counts(&self, words: &[u64], used: u64) -> Result<Vec<u64>, Error> {
        let mut counts = vec![0; 2 * self.members];
        if used == 0 {
            return Ok(counts);
        }
        let taken = self.taken.as_ref().map_or(0, |(_, piece)| piece.end - piece.start);
        if used > taken {
            return Err(Error::Argument(format!("{used} samples are used, {taken} were taken")));
        }
        let ledger = self.ledger(words)?;
        if let Some((rank, piece)) = &self.taken {
            if ledger.pieces(self.batch).nth(*rank).as_ref() != Some(piece) {
                let text = "the samples were taken before the state was replaced: take them again";
                return Err(Error::Argument(text.to_owned()));
            }
            counts[2 * rank..][..2].copy_from_slice(&[1, used]);
        }
        Ok(counts)
    }

    /// The sums of what all members have given. Returns how many samples the step has used.
    ///
    /// # Errors
    /// `TakenTwice` if the step is to be made again; `Damaged` for sums that cannot be.
    pub fn settle(&mut self, words: &[u64], sums: &[u64]) -> Result<u64, Error> {
        let mut ledger = self.ledger(words)?;
        let pieces: Vec<_> = ledger.pieces(self.batch).take(self.members).collect();
        let mut counted = Vec::new();
        for (sum, piece) in sums.chunks_exact(2).zip(pieces) {
            let (claimants, used) = (sum[0], sum[1]);
            if claimants > 1 {
                return Err(Error::TakenTwice { claimants, start: piece.start });
            }
            if used > claimants * (piece.end - piece.start) {
                return Err(Error::Damaged("more samples are used than a piece has"));
            }
            if used > 0 {
                let range = piece.start..piece.start + used;
                ledger.count(&range)?;
                counted.push(Counted { owner: 0, range });
            }
        }
        ledger.check_room()?;
        ledger.end_step();
        let used = counted.iter().map(|it| it.range.end - it.range.start).sum();
        self.settled = Some((ledger, counted));
        Ok(used)
    }

    /// How many samples [`Claims::commit`] would count.
    pub fn settled(&self) -> u64 {
        let counted = self.settled.iter().flat_map(|(_, counted)| counted);
        counted.map(|it| it.range.end - it.range.start).sum()
    }

    /// The step has succeeded: the ledger is that of the next one. Returns what the step has counted; nothing if no
    /// step was settled since the last time.
    pub fn commit(&mut self, words: &mut [u64]) -> Vec<Counted> {
        let Some((ledger, counted)) = self.settled.take() else { return Vec::new() };
        ledger.write(words);
        self.taken = None;
        counted
    }

    /// The order of the samples.
    pub fn order(&self) -> Order {
        self.order
    }
}
