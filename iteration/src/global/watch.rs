//! Knowledge of one who waits, by its own clock: who lives, and whether there is progress. Clocks of two hosts are
//! never compared; a member lives as long as its key changes.

use super::IterationConfig;
use crate::protocol::{Facts, Member, Waiting};
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// How many of those who wait look around at every turn; the others do so rarely, in case that all these die.
const WATCHERS: i64 = 8;
/// Turns between two looks of the others.
const RARELY: u32 = 10;
/// Added to the time of one turn for each member, so that a large run does not burden its store.
const TURN_PER_MEMBER: Duration = Duration::from_millis(1);

/// Observations of one wait.
#[derive(Debug)]
pub(super) struct Watch {
    turn: Duration,
    look_at_hearts: Duration,
    inactive_after: Duration,
    no_progress: Duration,
    seen: BTreeMap<Member, (Option<Vec<u8>>, Instant)>,
    hearts_due: Instant,
    look_due: Instant,
    present: usize,
    progress_at: Instant,
}

impl Watch {
    pub(super) fn new(config: &IterationConfig, members: usize, now: Instant) -> Self {
        let members = u32::try_from(members).unwrap_or(u32::MAX);
        let turn = config.poll_interval.max(TURN_PER_MEMBER.saturating_mul(members));
        Self {
            turn,
            look_at_hearts: config.heartbeat_interval.min(config.inactive_after / 4),
            inactive_after: config.inactive_after,
            no_progress: config.no_progress,
            seen: BTreeMap::new(),
            hearts_due: now,
            look_due: now + turn * RARELY,
            present: 0,
            progress_at: now,
        }
    }

    /// How long to wait for news.
    pub(super) fn turn(&self) -> Duration {
        self.turn
    }

    /// How long there was no progress.
    pub(super) fn quiet(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.progress_at)
    }

    /// Takes note of who is there.
    pub(super) fn note(&mut self, waiting: &Waiting, now: Instant) {
        if waiting.present != self.present {
            self.present = waiting.present;
            self.progress_at = now;
        }
    }

    /// Whether it is time to look around rather than to ask for a decision only.
    pub(super) fn should_look(&mut self, waiting: &Waiting, now: Instant) -> bool {
        let is_due = waiting.place <= WATCHERS || now >= self.look_due;
        if is_due {
            self.look_due = now + self.turn * RARELY;
        }
        is_due
    }

    /// The members whose signs of life are to be read now.
    pub(super) fn hearts_to_read(&mut self, waiting: &Waiting, now: Instant) -> Vec<Member> {
        if now < self.hearts_due || waiting.missing.is_empty() {
            return Vec::new();
        }
        self.hearts_due = now + self.look_at_hearts;
        waiting.missing.clone()
    }

    /// Takes note of a sign of life.
    pub(super) fn saw_heart(&mut self, member: Member, value: Option<Vec<u8>>, now: Instant) {
        match self.seen.get_mut(&member) {
            Some((old, _)) if *old == value => {}
            Some(entry) => *entry = (value, now),
            None => drop(self.seen.insert(member, (value, now))),
        }
    }

    /// The facts that follow from the observations.
    pub(super) fn facts(&self, now: Instant) -> Facts {
        let silent = |since: Instant| now.saturating_duration_since(since) >= self.inactive_after;
        let inactive = self.seen.iter().filter(|(_, (_, since))| silent(*since));
        Facts {
            expired: self.quiet(now) >= self.no_progress,
            inactive: inactive.map(|(member, _)| member.clone()).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_a_large_run_few_look_at_every_turn_and_the_others_after_some() {
        let began = Instant::now();
        let waiting = |place| Waiting { wake: "w".into(), missing: Vec::new(), present: 0, place };
        let looks = |place| {
            let mut watch = Watch::new(&IterationConfig::default(), 1000, began);
            let turn = watch.turn();
            (1..=40).filter(|i| watch.should_look(&waiting(place), began + turn * *i)).count()
        };
        assert_eq!(looks(WATCHERS), 40);
        assert_eq!(looks(WATCHERS + 1), 4);
    }
}
