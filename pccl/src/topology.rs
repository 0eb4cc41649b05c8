//! The result of an optimisation of the ring.

use crate::Schedule;
use pccl_protocol::{Algorithm, OptimizeDone, PeerId};
use std::{fmt, time::Duration};

/// A directed edge with its rate.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct RatedEdge {
    /// Sending end.
    pub from: PeerId,
    /// Receiving end.
    pub to: PeerId,
    /// Its rate, as it was measured.
    pub mbit_s: f64,
}

/// The result of [`Communicator::optimize_topology`](crate::Communicator::optimize_topology). The same on all peers of
/// a group.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Optimized {
    /// The ring of the group is another one than before the call.
    pub changed: bool,
    /// The slowest edge of the ring, which the speed of all-reduces follows. None if an edge of the ring has no rate.
    pub slowest: Option<RatedEdge>,
    /// No ring has a faster slowest edge than this, by what was measured, in Mbit/s. None if no ring was planned.
    pub bound_mbit_s: Option<f64>,
    /// No ring is better, by what was measured.
    pub proven: bool,
    /// Edges between members of the group that could not be measured. No ring uses them.
    pub unmeasured_edges: usize,
    /// The schedule of large all-reduces of the group whose callers did not choose one: [`Schedule::Ring`], or
    /// [`Schedule::Pairwise`] or [`Schedule::Sites`] while all pairs are connected.
    pub schedule: Schedule,
    /// How many per cent faster than around the ring they are predicted to be by pairwise exchange; below 0 if they are
    /// slower. None if an edge has no rate, or the group has fewer than 3 or more than 32 peers, or all are on one
    /// host.
    pub pairwise_gain_pct: Option<i64>,
    /// The same in two levels over sites. None also if there are no sites.
    pub sites_gain_pct: Option<i64>,
    /// Why the ring was not planned, or who stands in the way of one; else empty.
    pub note: String,
    /// Peers of the group.
    pub peers: usize,
}

impl Optimized {
    pub(crate) fn new(done: &OptimizeDone) -> Self {
        let mbit_s = |kbit_s: u64| kbit_s as f64 / 1000.0;
        Self {
            changed: done.changed,
            slowest: done.slowest.map(|edge| RatedEdge {
                from: edge.from,
                to: edge.to,
                mbit_s: mbit_s(edge.kbit_s),
            }),
            bound_mbit_s: Some(mbit_s(done.bound_kbit_s)).filter(|bound| *bound > 0.0),
            proven: done.proven,
            unmeasured_edges: done.unmeasured as usize,
            schedule: match done.schedule {
                Algorithm::Pairwise => Schedule::Pairwise,
                Algorithm::Sites => Schedule::Sites,
                _ => Schedule::Ring,
            },
            pairwise_gain_pct: Some(i64::from(done.pairwise_pct) - 100).filter(|_| done.pairwise_pct > 0),
            sites_gain_pct: Some(i64::from(done.sites_pct) - 100).filter(|_| done.sites_pct > 0),
            note: done.note.as_str().to_owned(),
            peers: done.sizes.group as usize,
        }
    }

    /// About how long an all-reduce of `bytes` bytes takes by this [`schedule`](Self::schedule): around the ring each
    /// edge carries `2 (n - 1) / n` of them, and the slowest one decides. None if it is not known.
    pub fn predicted_time(&self, bytes: u64) -> Option<Duration> {
        let gain_pct = match self.schedule {
            Schedule::Pairwise => self.pairwise_gain_pct,
            Schedule::Sites => self.sites_gain_pct,
            Schedule::Ring | Schedule::Automatic => None,
        };
        let gain_pct = gain_pct.unwrap_or(0);
        let bytes_per_s = self.slowest?.mbit_s * 1e6 / 8.0 * (100 + gain_pct) as f64 / 100.0;
        let n = self.peers.max(1) as f64;
        Duration::try_from_secs_f64(2.0 * (n - 1.0) / n * bytes as f64 / bytes_per_s).ok()
    }
}

/// One line.
impl fmt::Display for Optimized {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ring = if self.changed { "a new ring" } else { "the same ring" };
        write!(f, "optimised: {ring} of {} peers", self.peers)?;
        if let Some(RatedEdge { from, to, mbit_s }) = self.slowest {
            write!(f, ", slowest edge {from} -> {to} with {mbit_s:.1} Mbit/s")?;
        }
        match (self.bound_mbit_s, self.proven) {
            (_, true) => write!(f, ", no ring is better")?,
            (Some(bound), false) => write!(f, ", no ring has more than {bound:.1} Mbit/s")?,
            (None, false) => {}
        }
        if self.unmeasured_edges > 0 {
            write!(f, ", {} edges could not be measured", self.unmeasured_edges)?;
        }
        write!(f, ", large operations go {}", self.schedule.algorithm().in_words())?;
        if self.note.is_empty() { Ok(()) } else { write!(f, " ({})", self.note) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pccl_protocol::{EdgeRate, RequestId, Text, WorldSizes};

    #[test]
    fn the_slowest_edge_sets_the_time() {
        let slowest = Some(EdgeRate { from: PeerId(1), to: PeerId(2), kbit_s: 80_000 });
        let done = OptimizeDone {
            request: RequestId(1),
            sizes: WorldSizes { group: 5, ..WorldSizes::default() },
            changed: true,
            slowest,
            bound_kbit_s: 0,
            proven: true,
            unmeasured: 0,
            schedule: Algorithm::Ring,
            pairwise_pct: 0,
            sites_pct: 0,
            note: Text::default(),
        };
        let report = Optimized::new(&done);
        assert_eq!(
            (report.predicted_time(10_000_000), report.bound_mbit_s),
            (Some(Duration::from_millis(1600)), None)
        );
        let faster = Optimized::new(&OptimizeDone {
            schedule: Algorithm::Pairwise,
            pairwise_pct: 160,
            ..done.clone()
        });
        let over_sites =
            Optimized::new(&OptimizeDone { schedule: Algorithm::Sites, sites_pct: 320, ..done.clone() });
        assert_eq!((over_sites.schedule, over_sites.sites_gain_pct), (Schedule::Sites, Some(220)));
        assert_eq!(over_sites.predicted_time(10_000_000), Some(Duration::from_millis(500)));
        assert_eq!((faster.schedule, faster.pairwise_gain_pct), (Schedule::Pairwise, Some(60)));
        assert_eq!(faster.predicted_time(10_000_000), Some(Duration::from_millis(1000)));
        let slower = Optimized::new(&OptimizeDone { pairwise_pct: 50, ..done.clone() });
        assert_eq!((slower.schedule, slower.pairwise_gain_pct), (Schedule::Ring, Some(-50)));
        assert_eq!(slower.predicted_time(10_000_000), report.predicted_time(10_000_000));
        assert_eq!(Optimized::new(&OptimizeDone { slowest: None, ..done }).predicted_time(1), None);
    }
}
