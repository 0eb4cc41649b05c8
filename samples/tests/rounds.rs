//! Runs in which members train on what they hold between rounds, miss rounds, die, come back and take samples ahead:
//! each sample of each epoch is counted once, and what is forgotten is not counted.

use pccl_samples::{Holding, Ledger, Member, Order, words_for};
use proptest::prelude::*;

const LENGTH: u64 = 211;
const EPOCHS: u64 = 2;
const MEMBERS: usize = 5;

#[derive(Debug, Clone, Copy)]
enum Event {
    /// A member takes samples ahead.
    Take(usize, u64),
    /// It trains on what it took.
    Train(usize, u64),
    /// It dies; another one comes in its place, or itself as another peer, with what it held.
    Die(usize, bool),
    /// A round, with the contributions of those whose bit is set.
    Round(u8),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        (0..MEMBERS, 1_u64..30).prop_map(|(at, count)| Event::Take(at, count)),
        (0..MEMBERS, 1_u64..30).prop_map(|(at, count)| Event::Train(at, count)),
        (0..MEMBERS, any::<bool>()).prop_map(|(at, back)| Event::Die(at, back)),
        any::<u8>().prop_map(Event::Round),
    ];
    prop::collection::vec(event, 1..200)
}

/// A member, with the samples that its parameters have learned from since its last contribution.
#[derive(Debug, Clone, Default)]
struct Peer {
    owner: u128,
    holding: Holding,
    taken: Vec<u64>,
    learned: Vec<u64>,
}

struct Run {
    ledger: Ledger,
    peers: Vec<Peer>,
    next_owner: u128,
    /// By position: how often it was part of a contribution that counted.
    applied: Vec<u32>,
}

impl Run {
    fn new(wants: u64) -> Self {
        let peers = (1..=MEMBERS as u128).map(|owner| Peer { owner, ..Peer::default() }).collect();
        let mut run = Self {
            ledger: Ledger::new(LENGTH * EPOCHS, MEMBERS, 7),
            peers,
            next_owner: MEMBERS as u128,
            applied: vec![0; (LENGTH * EPOCHS) as usize],
        };
        run.round(0, wants);
        run
    }

    fn train(&mut self, at: usize, count: u64) {
        let peer = &mut self.peers[at];
        let count = count.min(peer.holding.outstanding());
        peer.learned.extend(peer.taken.drain(..count as usize));
        if peer.holding.train(count).expect("taken before") {
            peer.learned.clear();
        }
    }

    fn round(&mut self, contributors: u8, wants: u64) {
        let counts = |at: usize| contributors >> at & 1 == 1;
        let members: Vec<_> = self
            .peers
            .iter()
            .enumerate()
            .map(|(at, peer)| {
                let used = if counts(at) { peer.holding.trained() } else { 0 };
                Member { owner: peer.owner, used, wants }
            })
            .collect();
        let counted = self.ledger.settle(&members);
        let mut sum = 0;
        for (at, peer) in self.peers.iter_mut().enumerate() {
            if counts(at) {
                peer.learned.drain(..).for_each(|position| self.applied[position as usize] += 1);
            }
            sum += members[at].used;
        }
        assert_eq!(counted.iter().map(|it| it.range.end - it.range.start).sum::<u64>(), sum);
        // As a part of the shared state.
        let mut words = vec![0; words_for(MEMBERS)];
        self.ledger.write(&mut words);
        assert_eq!(Ledger::read(&words, LENGTH * EPOCHS, 7).as_ref(), Ok(&self.ledger));
        for peer in &mut self.peers {
            if peer.holding.refresh(peer.owner, &self.ledger) {
                peer.learned.clear();
            }
        }
    }

    fn make(&mut self, event: Event, wants: u64) {
        match event {
            Event::Take(at, count) => {
                let taken = self.peers[at].holding.take(count);
                self.peers[at].taken.extend(taken);
            }
            Event::Train(at, count) => self.train(at, count),
            Event::Die(at, back) => {
                self.next_owner += 1;
                let peer = &mut self.peers[at];
                *peer = Peer {
                    owner: self.next_owner,
                    ..if back { std::mem::take(peer) } else { Peer::default() }
                };
                // The others make a round without it before it is back.
                let absent = self.peers.remove(at);
                self.round(u8::MAX, wants);
                self.peers.insert(at, absent);
                self.round(0, wants);
            }
            Event::Round(contributors) => self.round(contributors, wants),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn each_sample_of_each_epoch_is_part_of_one_contribution(events in events(), wants in 1_u64..60) {
        let mut run = Run::new(wants);
        events.into_iter().for_each(|event| run.make(event, wants));
        let mut turns = 0;
        while run.ledger.counted() < LENGTH * EPOCHS {
            for at in 0..MEMBERS {
                run.make(Event::Take(at, 7), wants);
                run.make(Event::Train(at, 7), wants);
            }
            run.make(Event::Round(u8::MAX), wants);
            turns += 1;
            prop_assert!(turns < 2000, "{:?}", run.ledger);
        }
        prop_assert!(run.applied.iter().all(|count| *count == 1), "{:?}", run.applied);
        let (order, _) = Order::of(LENGTH, Some(1), EPOCHS).expect("a data set");
        let mut samples = vec![0; LENGTH as usize];
        (0..LENGTH * EPOCHS).for_each(|at| samples[order.sample(at) as usize] += 1);
        prop_assert!(samples.iter().all(|count| *count == EPOCHS));
    }
}
