//! Before each round the members tell each other how far they are, and all decide alike.

use pccl::Error;
use std::time::Duration;

/// Bytes of a record.
pub(crate) const RECORD_BYTES: usize = 304;
/// Longest text of settings in it.
const MAX_TEXT: usize = 255;
/// The layout of a record; other versions of this library send others.
const VERSION: u8 = 2;

/// Greatest weight of a contribution: more than the steps of a lifetime.
const MAX_WEIGHT: f64 = 1e30;

/// The longest time between two looks at whether a quorum is ready, or a newcomer waits.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_millis(500);
/// The shortest time between two such looks.
const SHORTEST_WAIT: Duration = Duration::from_millis(2);
/// The guess for members that have made no two steps yet, in milliseconds.
const UNKNOWN_WAIT_MS: u32 = 50;

/// The news of a member for the others.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Record {
    /// The settings that all must have alike.
    pub(crate) text: String,
    /// Rounds that its outer state has seen.
    pub(crate) rounds: u64,
    /// The weight of its contribution to the next one.
    pub(crate) weight: f64,
    /// Its time for an inner step; 0 if it has made none.
    pub(crate) step_ms: u32,
    /// Until it will have made enough steps for the next round; 0 if it has.
    pub(crate) due_in_ms: u32,
    /// Since it has known that a quorum is ready.
    pub(crate) waited_ms: u32,
    /// Samples that it has trained on for this contribution, the first ones that it holds.
    pub(crate) samples_used: u64,
    /// Samples that it wants to hold.
    pub(crate) samples_wanted: u64,
    /// It has synced since its group changed or a call failed.
    pub(crate) synced: bool,
    /// It has handed in what it has for this round, be it nothing.
    pub(crate) ready: bool,
    /// That was not finite, and is left out.
    pub(crate) refused: bool,
}

impl Record {
    pub(crate) fn encode(&self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        let flags = u8::from(self.synced) | u8::from(self.ready) << 1 | u8::from(self.refused) << 2;
        let text = self.text.as_bytes();
        let text = text.get(..MAX_TEXT).unwrap_or(text);
        let fields = [VERSION, flags, text.len() as u8, 0].into_iter();
        let numbers = [self.step_ms, self.due_in_ms, self.waited_ms].map(u32::to_le_bytes);
        let fields = fields
            .chain(self.rounds.to_le_bytes())
            .chain(self.weight.to_le_bytes())
            .chain(numbers.into_iter().flatten())
            .chain([self.samples_used, self.samples_wanted].map(u64::to_le_bytes).into_iter().flatten())
            .chain(text.iter().copied());
        bytes.iter_mut().zip(fields).for_each(|(byte, field)| *byte = field);
        bytes
    }

    /// Bytes that are no record of this version are a member with other settings: it is left alone, and leaves.
    pub(crate) fn decode(bytes: &[u8]) -> Self {
        let other = || Self { text: "another version of pccl-diloco".to_owned(), ..Self::default() };
        Self::decode_own(bytes).unwrap_or_else(other)
    }

    fn decode_own(bytes: &[u8]) -> Option<Self> {
        let ([version, flags, length, _], rest) = bytes.split_first_chunk::<4>()?;
        let (rounds, rest) = rest.split_first_chunk()?;
        let (weight, rest) = rest.split_first_chunk()?;
        let (step_ms, rest) = rest.split_first_chunk()?;
        let (due_in_ms, rest) = rest.split_first_chunk()?;
        let (waited_ms, rest) = rest.split_first_chunk()?;
        let (samples_used, rest) = rest.split_first_chunk()?;
        let (samples_wanted, rest) = rest.split_first_chunk()?;
        let weight = f64::from_le_bytes(*weight);
        (*version == VERSION && (0.0..=MAX_WEIGHT).contains(&weight)).then_some(())?;
        Some(Self {
            text: String::from_utf8_lossy(rest.get(..usize::from(*length))?).into_owned(),
            rounds: u64::from_le_bytes(*rounds),
            weight,
            step_ms: u32::from_le_bytes(*step_ms),
            due_in_ms: u32::from_le_bytes(*due_in_ms),
            waited_ms: u32::from_le_bytes(*waited_ms),
            samples_used: u64::from_le_bytes(*samples_used),
            samples_wanted: u64::from_le_bytes(*samples_wanted),
            synced: flags & 1 != 0,
            ready: flags & 2 != 0,
            refused: flags & 4 != 0,
        })
    }
}

/// The next step of all members.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Decision {
    /// Some have not synced: all do.
    Sync,
    /// Look again after this time. A quorum will be ready in `quorum_in`: members that will not be ready by then hand
    /// in what they have at their last step before it. `None` lets nobody hand in early.
    Wait { time: Duration, quorum_in: Option<Duration> },
    /// The round begins, with these weights.
    Go { weights: Vec<f64> },
}

/// When a round begins.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rule {
    /// The part of the members that has to be ready.
    pub(crate) quorum: f64,
    /// How long the others are waited for; `None` goes by the time that they take for a step.
    pub(crate) grace: Option<Duration>,
}

impl Rule {
    /// The decision that follows from the records of all ranks, seen by `rank`.
    ///
    /// # Errors
    /// `InvalidArgument` if the own settings are not those of the run: of the members that have made most rounds, and
    /// among those of most.
    pub(crate) fn decide(self, records: &[Record], rank: usize) -> Result<Decision, Error> {
        let of_run = settings_of_run(records);
        let own = records.get(rank).map(|record| record.text.as_str()).unwrap_or_default();
        if own != of_run {
            let text = format!("this peer trains with {own}; the run trains with {of_run}");
            return Err(Error::InvalidArgument(text));
        }
        if records.iter().any(|record| record.text != of_run) {
            // That one has read the same, and leaves.
            return Ok(Decision::Wait { time: LONGEST_WAIT, quorum_in: None });
        }
        let rounds = records.first().map(|record| record.rounds);
        if records.iter().any(|record| !record.synced || Some(record.rounds) != rounds) {
            return Ok(Decision::Sync);
        }
        let until_quorum = Duration::from_millis(self.until_quorum(records).into());
        // Where all are waited for, each makes all of its steps.
        let quorum_in = (self.quorum < 1.0).then_some(until_quorum);
        if !until_quorum.is_zero() {
            return Ok(Decision::Wait { time: until_quorum.clamp(SHORTEST_WAIT, LONGEST_WAIT), quorum_in });
        }
        let left = self.grace(records).saturating_sub(waited(records));
        if records.iter().all(|record| record.ready) || left.is_zero() {
            return Ok(Decision::Go { weights: records.iter().map(|record| record.weight).collect() });
        }
        // Often enough that the round does not begin much later than it could.
        let time = (self.grace(records) / 8).min(left).clamp(SHORTEST_WAIT, LONGEST_WAIT);
        Ok(Decision::Wait { time, quorum_in })
    }

    /// Milliseconds until enough members have made their steps, as far as they know; 0 if they have.
    fn until_quorum(self, records: &[Record]) -> u32 {
        let mut times: Vec<u32> = records
            .iter()
            .map(|record| match record {
                Record { due_in_ms: 0, .. } => 0,
                Record { step_ms: 0, .. } => UNKNOWN_WAIT_MS,
                record => record.due_in_ms,
            })
            .collect();
        times.sort_unstable();
        let needed = (self.quorum * records.len() as f64).ceil() as usize;
        times.get(needed.clamp(1, records.len().max(1)) - 1).copied().unwrap_or_default()
    }

    fn grace(self, records: &[Record]) -> Duration {
        self.grace.unwrap_or_else(|| {
            let slowest = records.iter().map(|record| record.step_ms).max().unwrap_or_default();
            Duration::from_millis(u64::from(slowest) * 3 / 2)
        })
    }
}

/// How long a quorum has been ready, as the one says that has known it for longest.
pub(crate) fn waited(records: &[Record]) -> Duration {
    Duration::from_millis(records.iter().map(|record| record.waited_ms).max().unwrap_or_default().into())
}

fn settings_of_run(records: &[Record]) -> &str {
    let rounds = records.iter().map(|record| record.rounds).max().unwrap_or_default();
    let old = || records.iter().filter(move |record| record.rounds == rounds);
    let votes = |text: &str| old().filter(|record| record.text == text).count();
    // Of equally many those of the lowest rank: `max_by_key` takes the last.
    old()
        .rev()
        .max_by_key(|record| votes(&record.text))
        .map(|record| record.text.as_str())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn member(due_in_ms: u32, ready: bool) -> Record {
        let (weight, text) = (f64::from(u8::from(ready)), "every 100".to_owned());
        Record { text, step_ms: 40, due_in_ms, ready, weight, synced: true, ..Record::default() }
    }

    const RULE: Rule = Rule { quorum: 0.75, grace: Some(Duration::from_millis(80)) };

    proptest! {
        #[test]
        fn records_come_as_they_went(
            text in "[a-z ]{0,255}", rounds: u64, weight in 0.0..1e30_f64, times: [u32; 3], flags: [bool; 3],
            samples: [u64; 2],
        ) {
            let [step_ms, due_in_ms, waited_ms] = times;
            let [synced, ready, refused] = flags;
            let [samples_used, samples_wanted] = samples;
            let record = Record {
                text, rounds, weight, step_ms, due_in_ms, waited_ms, samples_used, samples_wanted,
                synced, ready, refused,
            };
            prop_assert_eq!(Record::decode(&record.encode()), record);
        }

        #[test]
        fn no_bytes_are_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = Record::decode(&bytes);
        }
    }

    #[test]
    fn a_round_waits_for_a_quorum_then_for_grace_then_for_nobody() {
        let mut records = vec![member(0, true), member(0, true), member(120, false), member(2000, false)];
        // Three of four have to be ready: the third will be in 120 ms.
        let time = Duration::from_millis(120);
        assert_eq!(RULE.decide(&records, 0), Ok(Decision::Wait { time, quorum_in: Some(time) }));
        records[2] = member(0, true);
        let time = Duration::from_millis(10);
        assert_eq!(RULE.decide(&records, 0), Ok(Decision::Wait { time, quorum_in: Some(Duration::ZERO) }));
        records[1].waited_ms = 80;
        assert_eq!(RULE.decide(&records, 3), Ok(Decision::Go { weights: vec![1.0, 1.0, 1.0, 0.0] }));
        records[1].waited_ms = 0;
        records[3].ready = true;
        assert!(matches!(RULE.decide(&records, 3), Ok(Decision::Go { .. })));
    }

    #[test]
    fn with_a_quorum_of_all_the_slowest_decides() {
        let rule = Rule { quorum: 1.0, grace: None };
        let records = vec![member(0, true), member(300, false)];
        let time = Duration::from_millis(300);
        assert_eq!(rule.decide(&records, 0), Ok(Decision::Wait { time, quorum_in: None }));
    }

    #[test]
    fn a_newcomer_makes_all_sync() {
        let mut records = vec![member(0, true), member(0, true)];
        records[1].synced = false;
        assert_eq!(RULE.decide(&records, 0), Ok(Decision::Sync));
        records[1] = Record { rounds: 1, ..member(0, true) };
        assert_eq!(RULE.decide(&records, 0), Ok(Decision::Sync));
    }

    #[test]
    fn a_member_of_another_version_ends_nobody_else() {
        let mut bytes = member(0, true).encode();
        bytes[0] = VERSION + 1;
        let records = [Record { rounds: 3, ..member(0, true) }, Record::decode(&bytes)];
        assert!(matches!(RULE.decide(&records, 0), Ok(Decision::Wait { quorum_in: None, .. })));
        let infinite = Record { weight: f64::INFINITY, ..member(0, true) };
        assert_eq!(Record::decode(&infinite.encode()).text, "another version of pccl-diloco");
    }

    #[test]
    fn a_member_with_other_settings_learns_both() {
        let mut records = vec![member(0, true), member(0, true)];
        // The newcomer has the lower rank, and the run has made rounds.
        records[0].text = "every 50".to_owned();
        records[1].rounds = 7;
        let error = RULE.decide(&records, 0).expect_err("other settings").to_string();
        assert!(error.contains("this peer trains with every 50; the run trains with every 100"), "{error}");
        assert!(matches!(RULE.decide(&records, 1), Ok(Decision::Wait { quorum_in: None, .. })));
    }
}
