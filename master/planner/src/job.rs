//! A plan as something that can be handed to another thread: whole numbers in, whole numbers out.

use super::{Link, Matrix, Options, plan};
use std::time::Duration;

/// A directed edge that was measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct JobLink {
    /// Its rate, above 0.
    pub kbit_s: u64,
    /// One way.
    pub latency_us: u32,
}

/// A ring to be planned.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Job {
    /// Names of the peers, for sentences.
    pub names: Vec<String>,
    /// The present ring, as numbers of peers.
    pub present: Vec<usize>,
    /// Row by row: the edge from peer i to peer k is entry i * n + k; `None` cannot be used.
    pub links: Vec<Option<JobLink>>,
    /// Peers with equal numbers are in one place.
    pub places: Vec<usize>,
    /// Decides what the figures leave open.
    pub seed: u64,
    /// Up to this many peers the plan is exact.
    pub exact_peers: usize,
    /// Time for it.
    pub budget: Duration,
}

/// A ring that was planned.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Answer {
    /// Each peer is followed by the one it sends to.
    pub order: Vec<usize>,
    /// This is the present ring.
    pub kept: bool,
    /// No ring is better.
    pub proven: bool,
    /// Ends and rate of its slowest edge.
    pub slowest: Option<(usize, usize, u64)>,
    /// No ring has a faster slowest edge; 0 if not known.
    pub bound_kbit_s: u64,
}

impl Job {
    /// Number of peers.
    pub fn peers(&self) -> usize {
        self.present.len()
    }

    /// Plans the ring. `left` says how much time is left, and is asked often.
    ///
    /// # Errors
    /// Why there is no ring, in a sentence.
    pub fn run(&self, left: &mut dyn FnMut() -> Duration) -> Result<Answer, String> {
        let links: Vec<Option<Link>> = self.links.iter().map(|link| link.map(to_link)).collect();
        let matrix = Matrix::of_links(self.peers(), &links).map_err(|error| error.to_string())?;
        let matrix = matrix.with_places(&self.places);
        let options = Options {
            seed: self.seed,
            exact_peers: self.exact_peers,
            present: Some(&self.present),
            ..Options::default()
        };
        let planned = plan(&matrix, &options, left).map_err(|none| {
            let reasons: Vec<String> = none.obstacles.iter().map(|o| o.describe(&self.names)).collect();
            if reasons.is_empty() {
                "no ring was found over the edges that could be measured".into()
            } else {
                reasons.join("; ")
            }
        })?;
        let rate = |(from, to): (usize, usize)| {
            self.links[from * self.peers() + to].map(|link| (from, to, link.kbit_s))
        };
        let bound = planned.bottleneck.map_or(0.0, |figure| figure.bound * 1000.0);
        Ok(Answer {
            kept: planned.kept || same_ring(&planned.order, &self.present),
            slowest: planned.slowest.and_then(rate),
            proven: planned.proven,
            bound_kbit_s: bound as u64,
            order: planned.order,
        })
    }
}

/// As a matrix takes it.
pub fn to_link(link: JobLink) -> Link {
    Link { mbit_s: link.kbit_s.max(1) as f64 / 1000.0, latency_us: Some(link.latency_us) }
}

/// Whether two orders are the same ring, begun at different places.
fn same_ring(a: &[usize], b: &[usize]) -> bool {
    let Some(start) = a.first().and_then(|first| b.iter().position(|peer| peer == first)) else {
        return false;
    };
    a.len() == b.len() && a.iter().zip(b[start..].iter().chain(&b[..start])).all(|(x, y)| x == y)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(kbit_s: impl Fn(usize, usize) -> u64) -> Job {
        let link = |at: usize| {
            let (from, to) = (at / 4, at % 4);
            let kbit_s = kbit_s(from, to);
            (from != to && kbit_s > 0).then_some(JobLink { kbit_s, latency_us: 100 })
        };
        Job {
            names: (0..4).map(|peer| format!("p{peer}")).collect(),
            present: vec![0, 1, 2, 3],
            links: (0..16).map(link).collect(),
            places: vec![0, 1, 2, 3],
            seed: 1,
            exact_peers: 16,
            budget: Duration::from_secs(1),
        }
    }

    fn run(job: &Job) -> Result<Answer, String> {
        job.run(&mut || Duration::from_secs(1))
    }

    #[test]
    fn a_slow_edge_is_left_out() {
        let answer =
            run(&job(|from, to| if (from, to) == (1, 2) { 10_000 } else { 100_000 })).expect("a ring");
        assert!(!answer.kept && answer.proven, "{answer:?}");
        assert_eq!((answer.bound_kbit_s, answer.slowest.map(|s| s.2)), (100_000, Some(100_000)));
    }

    #[test]
    fn noise_moves_no_ring() {
        for seed in 0..200_u64 {
            let noise = |from: usize, to: usize| {
                let mixed = (seed * 31 + from as u64 * 7 + to as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                95_000 + (mixed >> 40) % 10_000
            };
            assert!(run(&job(noise)).expect("a ring").kept, "seed {seed}");
        }
    }

    #[test]
    fn who_stands_in_the_way_is_named() {
        let text = run(&job(|_, to| if to == 2 { 0 } else { 100_000 })).expect_err("nobody reaches peer 2");
        assert!(text.contains("p2"), "{text}");
    }

    #[test]
    fn rings_are_the_same_wherever_they_begin() {
        assert!(same_ring(&[1, 2, 0], &[0, 1, 2]) && !same_ring(&[2, 1, 0], &[0, 1, 2]));
    }
}
