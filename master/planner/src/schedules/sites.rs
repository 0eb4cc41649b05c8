//! Sites: peers near each other, far from all others.

/// Which peers are together, and what sites own.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sites {
    /// The site of each peer, by its number. Sites are numbered from 0, in the order of their first peers.
    pub of: Vec<u16>,
    /// The share of each site, by its number, in parts of [`SHARE_PARTS`](super::SHARE_PARTS). Empty: each peer owns
    /// the same.
    pub shares: Vec<u16>,
}

impl Sites {
    /// Peers with equal numbers are in one site.
    pub fn new(of: &[u16]) -> Self {
        let mut seen = Vec::new();
        let mut number = |name: &u16| {
            let known = seen.iter().position(|other| other == name);
            let at = known.unwrap_or_else(|| {
                seen.push(*name);
                seen.len() - 1
            });
            u16::try_from(at).unwrap_or(u16::MAX)
        };
        Self { of: of.iter().map(&mut number).collect(), shares: Vec::new() }
    }

    /// Number of sites.
    pub fn count(&self) -> usize {
        self.of.iter().max().map_or(0, |last| usize::from(*last) + 1)
    }

    /// Whether there are several sites, one of them with several peers.
    pub fn have_two_levels(&self) -> bool {
        (2..self.of.len()).contains(&self.count())
    }

    /// Peers of each site.
    pub(crate) fn sizes(&self) -> Vec<f64> {
        let mut sizes = vec![0.0; self.count()];
        self.of.iter().for_each(|site| sizes[usize::from(*site)] += 1.0);
        sizes
    }
}
