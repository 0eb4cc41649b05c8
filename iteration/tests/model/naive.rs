//! The protocol that one writes first: arrivals in one growing text, a winner by writing and reading back, a flag that
//! says "ready", a quorum of half of those whom one believes active. A negative control: the explorer must find what is
//! wrong with it.

use crate::{
    explorer::{Answer, Keys, Next, Op, Process},
    world::World,
};
use std::collections::BTreeSet;

const COUNTER: &str = "global_iteration_counter";
const READY: &str = "global_iteration_ready";
const ARRIVED: &str = "global_iteration_barrier:arrived";
const CONSENSUS: &str = "global_iteration_barrier:consensus";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum At {
    Arrive,
    ChooseActive,
    ReadArrived,
    FullTimeout,
    ReadArrivedAgain,
    SetConsensus,
    GetConsensus,
    AddCounter,
    DeleteReady,
    SetReady,
    DeleteArrived,
    DeleteConsensus,
    WaitReady,
    ReadCounter,
    Over,
}

/// A rank that follows the naive protocol.
#[derive(Clone, Hash)]
pub(crate) struct Rank {
    id: u8,
    ranks: u8,
    rounds: u8,
    round: u8,
    iteration: i64,
    active: BTreeSet<u8>,
    at: At,
    arrived: Vec<(u8, u8)>,
    partial: bool,
    timed_out: bool,
    /// It has lost, and the flag told it to go on.
    lost: bool,
}

/// A round that somebody has won.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Win {
    rank: u8,
    round: u8,
    before: i64,
    active: BTreeSet<u8>,
}

/// The history of a run, and what of it is wrong.
#[derive(Debug, Clone, Hash, Default)]
pub(crate) struct History {
    wins: Vec<Win>,
    /// Before which iteration somebody ended with the counter moved and the flag not set; whether the flag was gone.
    unfinished: Vec<(i64, bool)>,
    /// Losers that went on with the iteration that they were in.
    stale: Vec<(u8, i64)>,
    pub(crate) found: BTreeSet<&'static str>,
}

impl Rank {
    fn is_quorum(&self, count: usize) -> bool {
        count >= usize::max(1, self.active.len() / 2)
    }

    fn has_read(&mut self, value: Option<Vec<u8>>) {
        // The store of the model keeps the round of each arrival beside the rank; the protocol does not see it.
        let text = String::from_utf8(value.unwrap_or_default()).unwrap();
        let entries = text.split(',').filter(|entry| !entry.is_empty());
        self.arrived = entries
            .map(|entry| entry.split_once('.').expect("rank and round"))
            .map(|(rank, round)| (rank.parse().unwrap(), round.parse().unwrap()))
            .collect();
    }

    fn all_active_arrived(&self) -> bool {
        let arrived: BTreeSet<u8> = self.arrived.iter().map(|(rank, _)| *rank).collect();
        self.active.is_subset(&arrived)
    }

    fn won(&mut self, history: &mut History) {
        let own: BTreeSet<u8> =
            self.arrived.iter().filter(|(_, round)| *round >= self.round).map(|(rank, _)| *rank).collect();
        let any: BTreeSet<u8> = self.arrived.iter().map(|(rank, _)| *rank).collect();
        if !self.partial && !self.active.is_subset(&own) {
            history.found.insert("R3");
        }
        if self.partial && self.is_quorum(self.arrived.len()) && !self.is_quorum(any.len()) {
            history.found.insert("R4");
        }
        let win =
            Win { rank: self.id, round: self.round, before: self.iteration, active: self.active.clone() };
        let everybody = usize::from(self.ranks);
        for other in history.wins.iter().filter(|other| other.before == win.before && other.rank != win.rank)
        {
            if other.active.len() == everybody && win.active.len() == everybody {
                history.found.insert("R1");
            }
            if other.active.is_disjoint(&win.active) {
                history.found.insert("R6");
            }
        }
        if history.stale.iter().any(|(rank, before)| *rank != win.rank && *before == win.before) {
            history.found.insert("R2");
        }
        history.wins.push(win);
    }

    fn returns(&mut self, iteration: i64, history: &mut History) {
        if iteration == self.iteration && self.lost {
            history.stale.push((self.id, self.iteration));
        }
        if self.timed_out {
            for (_, flag_gone) in history.unfinished.iter().filter(|(before, _)| *before == self.iteration) {
                history.found.insert(if *flag_gone { "R7" } else { "R8" });
            }
        }
        self.iteration = iteration;
        self.round += 1;
        (self.partial, self.timed_out, self.lost) = (false, false, false);
        self.arrived.clear();
        self.active.clear();
        self.at = if self.round < self.rounds { At::Arrive } else { At::Over };
    }
}

impl Process for Rank {
    type Ghost = History;

    fn next(&self, keys: &Keys, _: &[bool]) -> Next {
        let key = |key: &str| key.to_owned();
        Next::Call(match self.at {
            At::Arrive => Op::Append(key(ARRIVED), format!("{}.{},", self.id, self.round).into_bytes()),
            // Whom it believes active: all, its own half, or itself alone. A wrong belief is a fault.
            At::ChooseActive => return Next::Choose(vec![(0, 0), (1, 1), (2, 1)]),
            At::ReadArrived | At::ReadArrivedAgain => Op::Get(key(ARRIVED)),
            At::FullTimeout => return Next::Choose(vec![(0, 0)]),
            At::SetConsensus => Op::Set(key(CONSENSUS), vec![self.id]),
            At::GetConsensus => Op::Get(key(CONSENSUS)),
            At::AddCounter => Op::Increment(key(COUNTER)),
            At::DeleteReady => Op::Delete(key(READY)),
            At::SetReady => Op::Set(key(READY), b"1".to_vec()),
            At::DeleteArrived => Op::Delete(key(ARRIVED)),
            At::DeleteConsensus => Op::Delete(key(CONSENSUS)),
            At::WaitReady if keys.get(READY).is_some() => return Next::Choose(vec![(0, 0)]),
            At::WaitReady => return Next::Choose(vec![(1, 0)]),
            At::ReadCounter => Op::Get(key(COUNTER)),
            At::Over => return Next::Done,
        })
    }

    fn deliver(&mut self, answer: Answer, history: &mut History) -> Result<(), String> {
        self.at = match (self.at, answer) {
            (At::Arrive, _) => At::ChooseActive,
            (At::ReadArrived, Answer::Value(value)) => {
                self.has_read(value);
                if self.all_active_arrived() { At::SetConsensus } else { At::FullTimeout }
            }
            (At::ReadArrivedAgain, Answer::Value(value)) => {
                self.has_read(value);
                self.partial = true;
                if self.is_quorum(self.arrived.len()) { At::SetConsensus } else { At::ReadCounter }
            }
            (At::SetConsensus, _) => At::GetConsensus,
            (At::GetConsensus, Answer::Value(value)) => {
                if value == Some(vec![self.id]) {
                    At::AddCounter
                } else {
                    At::WaitReady
                }
            }
            (At::AddCounter, _) => {
                self.won(history);
                At::DeleteReady
            }
            (At::DeleteReady, _) => At::SetReady,
            (At::SetReady, _) => At::DeleteArrived,
            (At::DeleteArrived, _) => At::DeleteConsensus,
            (At::DeleteConsensus | At::ReadCounter, answer) => {
                let counter = match answer {
                    Answer::Value(Some(text)) => String::from_utf8(text).unwrap().parse().unwrap(),
                    // The winner has it from its own addition.
                    _ => self.iteration + 1,
                };
                self.returns(counter, history);
                return Ok(());
            }
            (at, answer) => return Err(format!("{at:?} got {answer:?}")),
        };
        Ok(())
    }

    fn choose(&mut self, choice: u8) {
        self.at = match self.at {
            At::ChooseActive => {
                let half = |rank: &u8| choice == 0 || (choice == 1 && rank / 2 == self.id / 2);
                self.active = (0..self.ranks).filter(|rank| half(rank) || *rank == self.id).collect();
                At::ReadArrived
            }
            At::FullTimeout => At::ReadArrivedAgain,
            _ => {
                self.timed_out |= choice == 1;
                self.lost |= choice == 0;
                At::ReadCounter
            }
        };
    }

    fn crash(&self, history: &mut History) -> Option<Self> {
        if matches!(self.at, At::DeleteReady | At::SetReady) {
            history.unfinished.push((self.iteration, self.at == At::SetReady));
        }
        // Started again within 30 s it is taken for the same, and goes on where the counter is.
        let (at, arrived) = (At::Arrive, Vec::new());
        (self.at != At::Over).then(|| Self {
            at,
            arrived,
            partial: false,
            active: BTreeSet::new(),
            ..self.clone()
        })
    }

    fn inspect(_: &Keys, _: &mut History) -> Result<(), String> {
        Ok(())
    }
}

/// A run in iteration 0 whose flag is up. The first `present` of its ranks do something.
pub(crate) fn world(ranks: u8, present: u8, rounds: u8, faults: u8) -> World<Rank> {
    let mut keys = Keys::default();
    keys.set(COUNTER, b"0");
    keys.set(READY, b"1");
    let rank = |id| Rank {
        id,
        ranks,
        rounds,
        round: 0,
        iteration: 0,
        active: BTreeSet::new(),
        at: At::Arrive,
        arrived: Vec::new(),
        partial: false,
        timed_out: false,
        lost: false,
    };
    World::new(keys, (0..present).map(rank).collect(), faults)
}
