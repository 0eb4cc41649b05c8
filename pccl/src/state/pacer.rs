//! How fast lent state goes to newcomers: a pure pacer. Times count from any fixed moment.
//!
//! It gives a share of the measured uplink of this peer, for all newcomers together. The measure is the best rate at
//! which this peer has sent to others lately. As long as there is none, half a second of what goes to newcomers is not
//! paced, and is the measurement. While a collective moves data, only so much goes on that the newcomer does not take
//! this peer for dead.

use std::{collections::BTreeMap, time::Duration};

/// How long the first measurement takes.
const TRIAL: Duration = Duration::from_millis(500);
/// A pause in which a measurement would count time in which nobody wanted anything.
const TRIAL_PAUSE: Duration = Duration::from_millis(100);
/// Bytes per second while a collective moves data.
const FLOOR: f64 = 65_536.0;
/// The duration of one turn: about as many bytes go at a time as take this long.
const TURN: Duration = Duration::from_millis(5);
const TURN_BYTES: std::ops::RangeInclusive<usize> = 16 << 10..=256 << 10;
/// A turn that comes so late is made up for.
const LATE: Duration = Duration::from_millis(20);
/// The part of the measure that is left when a lower rate is seen.
const DECAY: f64 = 0.99;
/// Times that are too short to measure a rate.
const SHORTEST: Duration = Duration::from_millis(50);

/// The permission to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// This number of bytes, now.
    Bytes(usize),
    /// Nothing before this time.
    At(Duration),
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Pacer {
    share: f64,
    /// Bytes per second.
    uplink: Option<f64>,
    trial: Option<Trial>,
    /// When the next bytes may go.
    next: Duration,
}

#[derive(Debug)]
struct Trial {
    since: Duration,
    last: Duration,
    bytes: u64,
}

impl Pacer {
    /// Gives this percentage of the uplink.
    pub(super) fn new(share_pct: u8) -> Self {
        Self { share: f64::from(share_pct) / 100.0, uplink: None, trial: None, next: Duration::ZERO }
    }

    /// This peer has sent to others at this rate, in bytes per second.
    pub(super) fn note_rate(&mut self, rate: f64) {
        let known = self.uplink.unwrap_or(0.0) * DECAY;
        self.uplink = Some(known.max(rate));
    }

    /// Bytes per second, if it is paced.
    fn rate(&self, is_busy: bool) -> Option<f64> {
        match (is_busy, self.uplink) {
            (true, _) => Some(FLOOR),
            (false, uplink) => uplink.map(|uplink| (uplink * self.share).max(FLOOR)),
        }
    }

    /// Somebody wants to send `wanted` bytes. The bytes of the answer count as sent, see [`Pacer::take_back`].
    pub(super) fn ask(&mut self, now: Duration, wanted: usize, is_busy: bool) -> Turn {
        let Some(rate) = self.rate(is_busy) else {
            let bytes = wanted.min(*TURN_BYTES.end());
            self.try_out(now, bytes);
            return Turn::Bytes(bytes);
        };
        if is_busy {
            // A rate that a collective slows down is no measure.
            self.trial = None;
        }
        let usual = (rate * TURN.as_secs_f64()) as usize;
        let bytes = usual.clamp(*TURN_BYTES.start(), *TURN_BYTES.end()).min(wanted);
        // A turn that was put off at a lower rate is not put off any longer than at this one.
        let longest = Duration::from_secs_f64(*TURN_BYTES.end() as f64 / rate);
        self.next = self.next.min(now + longest);
        if self.next > now {
            return Turn::At(self.next);
        }
        self.next = self.next.max(now.saturating_sub(LATE)) + Duration::from_secs_f64(bytes as f64 / rate);
        Turn::Bytes(bytes)
    }

    /// This number of bytes of a turn was not sent.
    pub(super) fn take_back(&mut self, bytes: usize, is_busy: bool) {
        if let Some(rate) = self.rate(is_busy) {
            self.next = self.next.saturating_sub(Duration::from_secs_f64(bytes as f64 / rate));
        } else if let Some(trial) = &mut self.trial {
            trial.bytes = trial.bytes.saturating_sub(bytes as u64);
        }
    }

    fn try_out(&mut self, now: Duration, bytes: usize) {
        let is_broken = |trial: &Trial| now.saturating_sub(trial.last) > TRIAL_PAUSE;
        if self.trial.as_ref().is_none_or(is_broken) {
            self.trial = Some(Trial { since: now, last: now, bytes: 0 });
        }
        let Some(trial) = &mut self.trial else { return };
        let time = now.saturating_sub(trial.since);
        if time >= TRIAL {
            self.uplink = Some(trial.bytes as f64 / time.as_secs_f64());
            self.trial = None;
        } else {
            trial.last = now;
            trial.bytes += bytes as u64;
        }
    }
}

/// Measures what goes over links, from how much has gone over each of them by when. Only times count at whose beginning
/// and end more was waiting: then it is the line that sets the rate.
#[derive(Debug)]
pub(super) struct Gauge<N> {
    /// When, what had gone by then, and whether more was waiting.
    seen: Option<(Duration, BTreeMap<N, u64>, bool)>,
}

impl<N> Default for Gauge<N> {
    fn default() -> Self {
        Self { seen: None }
    }
}

impl<N: Ord> Gauge<N> {
    /// The bytes per second since this was last called, if that can be told.
    pub(super) fn note(&mut self, now: Duration, sent: BTreeMap<N, u64>, waits: bool) -> Option<f64> {
        if self.seen.as_ref().is_some_and(|(since, ..)| now.saturating_sub(*since) < SHORTEST) {
            return None;
        }
        let (since, before, waited) = self.seen.replace((now, sent, waits))?;
        let (_, sent, _) = self.seen.as_ref().filter(|_| waits && waited)?;
        let more = |(name, bytes): (&N, &u64)| bytes.saturating_sub(before.get(name).copied().unwrap_or(0));
        let moved: u64 = sent.iter().map(more).sum();
        (moved > 0).then(|| moved as f64 / (now - since).as_secs_f64())
    }
}

#[cfg(test)]
#[path = "pacer_tests.rs"]
mod tests;
