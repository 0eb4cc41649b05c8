//! Reports of rounds, and their sums.

use pccl::PeerId;
use std::{fmt, time::Duration};

/// The report of a round.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct RoundReport {
    /// Its number, from 0.
    pub round: u64,
    /// The fragment that it exchanged.
    pub fragment: usize,
    /// Those who contributed, with what their contributions stood for.
    pub contributors: Vec<(PeerId, f64)>,
    /// Those who were not ready: their libraries took part with weight zero.
    pub stand_ins: Vec<PeerId>,
    /// Bytes that this member sent to others.
    pub sent_bytes: u64,
    /// Bytes that it would have sent without compression.
    pub plain_bytes: u64,
    /// From the quorum to the beginning of the exchange: the grace that was used up.
    pub grace: Duration,
    /// How long the exchange took.
    pub exchange: Duration,
}

impl RoundReport {
    /// The sum of the weights.
    pub fn weight(&self) -> f64 {
        self.contributors.iter().map(|(_, weight)| weight).sum()
    }
}

impl fmt::Display for RoundReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "round {} | fragment {} | {} contributors (",
            self.round,
            self.fragment,
            self.contributors.len()
        )?;
        for (at, (peer, weight)) in self.contributors.iter().enumerate() {
            write!(f, "{}{peer} {weight}", if at == 0 { "" } else { ", " })?;
        }
        let ratio = self.plain_bytes as f64 / self.sent_bytes.max(1) as f64;
        let (sent, exchange, grace) = (self.sent_bytes, self.exchange.as_millis(), self.grace.as_millis());
        write!(f, ") | {sent} bytes sent, 1/{ratio:.1} | exchange {exchange} ms after {grace} ms of grace")?;
        if !self.stand_ins.is_empty() {
            let names: Vec<_> = self.stand_ins.iter().map(ToString::to_string).collect();
            write!(f, " | stood in for {}", names.join(", "))?;
        }
        Ok(())
    }
}

/// Sums over the rounds that this member has seen.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Rounds of the run, also those before this member came.
    pub rounds: u64,
    /// The sum of all weights of the run.
    pub weight: f64,
    /// Rounds that this member was in.
    pub rounds_here: u64,
    /// Rounds that it contributed to.
    pub contributed: u64,
    /// Rounds that its library stood in for it.
    pub stood_in: u64,
    /// Rounds that were begun again, after a failure.
    pub repeated: u64,
    /// Bytes sent to others.
    pub sent_bytes: u64,
    /// The same without compression.
    pub plain_bytes: u64,
    /// Time of all exchanges.
    pub exchange: Duration,
    /// Time that the caller waited for results. The rest of `exchange` was hidden behind its inner steps.
    pub waited: Duration,
    /// Members of the run.
    pub members: usize,
}

impl Stats {
    /// The numbers that the status of the master shows.
    pub(crate) fn figures(&self) -> [(&'static str, f64); 7] {
        [
            ("diloco.rounds", self.rounds as f64),
            ("diloco.contributed", self.contributed as f64),
            ("diloco.stood_in", self.stood_in as f64),
            ("diloco.sent_bytes", self.sent_bytes as f64),
            ("diloco.plain_bytes", self.plain_bytes as f64),
            ("diloco.exchange_s", self.exchange.as_secs_f64()),
            ("diloco.waited_s", self.waited.as_secs_f64()),
        ]
    }
}
