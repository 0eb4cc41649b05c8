//! The measurements of the edges between peers. An edge that could not be measured is a fact, too.

use crate::state::groups::edges::EdgeEnds;
use crate::state::types::{Options, Timestamp};
use pccl_protocol::{PeerId, ProbeRate, ProbeResult};
use std::collections::BTreeMap;

/// The last that was found out about an edge, and when.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct Finding {
    at: Timestamp,
    /// Rate and latency, if it could be measured.
    rate: Option<ProbeRate>,
    /// The rate is only supposed, and to be measured at the next opportunity.
    is_supposed: bool,
}

/// See the module's documentation.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Measured {
    edges: BTreeMap<EdgeEnds, Finding>,
    /// The rates of edges in kbit/s while all members of a group sent to all, and when; nothing if that was not
    /// measured.
    crowded: BTreeMap<EdgeEnds, (Timestamp, Option<u64>)>,
}

impl Measured {
    /// Number of edges of which something is known.
    pub(crate) fn len(&self) -> usize {
        self.edges.len()
    }

    /// Notes how a probe ended. A rate of nothing is none.
    pub(crate) fn note(&mut self, ends: EdgeEnds, result: &ProbeResult, at: Timestamp) {
        let rate = match result {
            ProbeResult::Measured(rate) => Some(*rate).filter(|rate| rate.kbit_s > 0),
            ProbeResult::Failed(_) => None,
        };
        self.edges.insert(ends, Finding { at, rate, is_supposed: false });
    }

    /// Supposes that an edge is no faster than this, if it has a rate.
    pub(crate) fn suspect(&mut self, ends: EdgeEnds, kbit_s: u64) {
        let Some(finding) = self.edges.get_mut(&ends) else { return };
        if let Some(rate) = finding.rate.as_mut().filter(|rate| rate.kbit_s > kbit_s) {
            rate.kbit_s = kbit_s.max(1);
            finding.is_supposed = true;
        }
    }

    /// The rate of an edge, however old, if it has one.
    pub(crate) fn rate(&self, ends: EdgeEnds) -> Option<ProbeRate> {
        self.edges.get(&ends)?.rate
    }

    /// Every edge that has a rate between these peers, by their places.
    pub(crate) fn among(&self, peers: &[PeerId]) -> Vec<(u16, u16, ProbeRate)> {
        let places: BTreeMap<PeerId, u16> = peers.iter().copied().zip(0..).collect();
        let known = self
            .edges
            .iter()
            .filter_map(|((from, to), finding)| Some((*places.get(from)?, *places.get(to)?, finding.rate?)));
        known.collect()
    }

    /// Whether an edge has to be measured: nothing is known of it, or what is known is old. A failure is tried again as
    /// early as an edge that could not be built.
    pub(crate) fn wants_probe(&self, ends: EdgeEnds, now: Timestamp, options: &Options) -> bool {
        let expiry = |finding: &Finding| match finding.rate {
            Some(_) => options.rate_expiry,
            None => options.forbidden_expiry,
        };
        self.edges.get(&ends).is_none_or(|f| f.is_supposed || f.at + expiry(f) <= now)
    }

    /// Notes how a probe ended that was one of many at the same time.
    pub(crate) fn note_crowded(&mut self, ends: EdgeEnds, result: &ProbeResult, at: Timestamp) {
        let kbit_s = match result {
            ProbeResult::Measured(rate) => Some(rate.kbit_s),
            ProbeResult::Failed(_) => None,
        };
        self.crowded.insert(ends, (at, kbit_s));
    }

    /// The rate of an edge in kbit/s while all members of its group sent to all.
    pub(crate) fn crowded(&self, ends: EdgeEnds) -> Option<u64> {
        self.crowded.get(&ends)?.1
    }

    /// Whether an edge has to be measured again while all send to all.
    pub(crate) fn wants_crowd(&self, ends: EdgeEnds, now: Timestamp, options: &Options) -> bool {
        let expiry = |known: bool| if known { options.rate_expiry } else { options.forbidden_expiry };
        self.crowded.get(&ends).is_none_or(|(at, kbit_s)| *at + expiry(kbit_s.is_some()) <= now)
    }

    /// A peer has gone, and its edges with it.
    pub(crate) fn forget(&mut self, id: PeerId) {
        self.edges.retain(|ends, _| ends.0 != id && ends.1 != id);
        self.crowded.retain(|ends, _| ends.0 != id && ends.1 != id);
    }

    pub(crate) fn forget_all(&mut self) {
        self.edges.clear();
        self.crowded.clear();
    }
}
