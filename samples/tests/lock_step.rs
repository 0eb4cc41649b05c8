//! Runs in lock step in which members die in the middle of steps, join, use less than they took, and do not agree about
//! who is there: each sample of each epoch is counted once.

use pccl_samples::{Claims, Counted, Error, words_for};
use proptest::prelude::*;

const LENGTH: u64 = 97;
const EPOCHS: u64 = 3;
const MEMBERS: usize = 6;

fn member() -> Member {
    let claims = Claims::new(LENGTH, Some(5), EPOCHS, 8, MEMBERS).expect("claims");
    let words = claims.words();
    Member(claims, words)
}

/// A member, with its part of the shared state.
#[derive(Clone)]
struct Member(Claims, Vec<u64>);

impl Member {
    fn take(&mut self, rank: usize) -> Result<Vec<u64>, Error> {
        self.0.take(&self.1, rank)
    }

    fn counts(&self, used: u64) -> Result<Vec<u64>, Error> {
        self.0.counts(&self.1, used)
    }

    fn settle(&mut self, sums: &[u64]) -> Result<u64, Error> {
        self.0.settle(&self.1, sums)
    }

    fn commit(&mut self) -> Vec<Counted> {
        self.0.commit(&mut self.1)
    }

    fn counted(&self) -> u64 {
        self.0.ledger(&self.1).expect("a ledger").counted()
    }
}

/// A step of one member: the rank at which it sees itself, how much of its batch it uses, and whether it dies before
/// the reduce.
type Turn = (usize, u64, bool);

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn each_sample_of_each_epoch_is_counted_once(
        steps in prop::collection::vec(prop::collection::vec((0..MEMBERS, 0_u64..9, any::<bool>()), 1..=MEMBERS), 1..40)
    ) {
        // All members that live have the same words, so one stands for their state.
        let mut state = member();
        let mut counted = vec![0_u32; LENGTH as usize];
        let whole: Vec<Turn> = (0..MEMBERS).map(|rank| (rank, 8, false)).collect();
        let mut steps = steps.into_iter();
        let mut last = 0;
        while state.counted() < LENGTH * EPOCHS {
            let step = steps.next().unwrap_or_else(|| whole.clone());
            let mut members: Vec<_> = step.iter().map(|_| state.clone()).collect();
            let mut sums = vec![0; 2 * MEMBERS];
            for (member, (rank, used, dies)) in members.iter_mut().zip(&step) {
                let taken = member.take(*rank).expect("samples");
                prop_assert!(taken.len() <= 8);
                if !dies {
                    let counts = member.counts((*used).min(taken.len() as u64)).expect("counts");
                    sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
                }
            }
            let mut ranks: Vec<_> = step.iter().filter(|it| !it.2 && it.1 > 0).map(|it| it.0).collect();
            ranks.sort_unstable();
            let is_double = ranks.windows(2).any(|pair| pair[0] == pair[1]);
            let Some(survivor) = members.first_mut() else { continue };
            match survivor.settle(&sums) {
                Ok(used) => {
                    let order = survivor.0.order();
                    let samples = survivor.commit();
                    let positions: Vec<_> = samples.iter().flat_map(|it| it.range.clone()).collect();
                    prop_assert_eq!(positions.len() as u64, used);
                    positions.into_iter().for_each(|at| counted[order.sample(at) as usize] += 1);
                    state = survivor.clone();
                }
                Err(error) => {
                    prop_assert!(matches!(error, Error::TakenTwice { .. }) && is_double, "{}", error);
                }
            }
            let now = state.counted();
            prop_assert!(now >= last);
            last = now;
        }
        prop_assert!(counted.iter().all(|count| u64::from(*count) == EPOCHS), "{:?}", counted);
        prop_assert!(state.take(0).expect("samples").is_empty());
    }

    #[test]
    fn words_that_are_no_ledger_are_refused(words in prop::collection::vec(any::<u64>(), 0..words_for(2)),
                                            at in 0..words_for(MEMBERS), bit in 0..64) {
        prop_assert!(pccl_samples::Ledger::read(&words, LENGTH * EPOCHS, 0).is_err());
        let mut claims = member();
        claims.1[at] ^= 1_u64 << bit;
        // Whatever it says then: no panic, and nothing beyond the data set.
        if let Ok(samples) = claims.take(0) {
            prop_assert!(samples.into_iter().all(|sample| sample < LENGTH));
            let _ = claims.settle(&[1; 2 * MEMBERS]).map(|_| claims.commit());
        }
    }
}

#[test]
fn arguments_that_make_no_sense_are_named() {
    for (words, made) in [
        ("0 samples", Claims::new(0, None, 1, 8, 2)),
        ("epochs", Claims::new(u64::MAX, None, 2, 8, 2)),
        ("batch of 0", Claims::new(10, None, 1, 0, 2)),
        ("0 members", Claims::new(10, None, 1, 8, 0)),
    ] {
        let error = made.expect_err(words).to_string();
        assert!(error.contains(words), "{error}");
    }
    let mut claims = member();
    assert!(claims.take(MEMBERS).expect_err("a rank beyond").to_string().contains("no more than 6"));
    claims.take(0).expect("samples");
    assert!(claims.counts(9).expect_err("more than taken").to_string().contains("8 were taken"));
    assert_eq!(claims.commit(), [], "nothing was settled");
    for (seed, batch, epochs) in
        [(Some(6), 8, EPOCHS), (None, 8, EPOCHS), (Some(5), 4, EPOCHS), (Some(5), 8, 1)]
    {
        let other = Claims::new(LENGTH, seed, epochs, batch, MEMBERS).expect("claims");
        let error = other.ledger(&claims.1).expect_err("of another run").to_string();
        assert!(error.contains("another"), "{error}");
    }
    assert_eq!(words_for(usize::MAX), words_for(pccl_samples::MAX_MEMBERS));
    let mut sums = vec![0; 2 * MEMBERS];
    sums[..2].copy_from_slice(&[1, 4]);
    let mut ahead = claims.clone();
    ahead.settle(&sums).expect("a step");
    ahead.commit();
    claims.1 = ahead.1;
    assert!(claims.counts(8).expect_err("of another state").to_string().contains("take them again"));
}

#[test]
fn a_step_that_fails_leaves_its_samples_open() {
    let mut claims = member();
    let first = claims.take(1).expect("samples");
    claims.settle(&[0; 2 * MEMBERS]).expect("a step of nobody");
    assert_eq!(claims.take(1).expect("samples"), first, "not committed");
    let mut sums = vec![0; 2 * MEMBERS];
    sums[2..4].copy_from_slice(&[1, 8]);
    assert_eq!(claims.settle(&sums), Ok(8));
    claims.commit();
    // The piece before it, which nobody has used, comes first.
    let (order, next) = (claims.0.order(), claims.take(0).expect("samples"));
    assert_eq!(next, (0..8).map(|at| order.sample(at)).collect::<Vec<_>>());
    assert_ne!(claims.take(1).expect("samples"), first);
}
