//! The search for sites: which peers are a site is found by rates and round trips, or named.
//!
//! Peers are put together one by one, those first whose edge is fastest in its slower direction, and likewise those
//! first whose latency is shortest. Each step of both is a division into sites. No threshold says how near is near: the
//! division is taken that is predicted to be fastest in two levels ([`Loads::by_sites`]). Peers whose sites are named
//! are in these, and the others are put together among themselves.

use super::{
    interfaces::Interfaces,
    loads::{Loads, sites_rate},
    shares::shares_among,
    sites::Sites,
};
use crate::matrix::Matrix;

/// Divisions that are fastest with equal shares, for which the best shares are looked for.
const MOST_SHARED_OUT: usize = 2;

/// How much tensor is reduced in a second in two levels over these sites.
#[derive(Debug, Clone, PartialEq)]
pub struct BySites {
    /// In Mbit.
    pub rate: f64,
    /// The site of each peer, and the shares of sites.
    pub sites: Sites,
}

/// The fastest sites, with the best shares. None if there are no sites, or all peers are in one.
pub(crate) fn best_sites(matrix: &Matrix, interfaces: &Interfaces, named: &[Option<u16>]) -> Option<BySites> {
    let rated = |sites: Sites| Some((sites_rate(matrix, interfaces, &sites)?, sites));
    let mut all: Vec<(f64, Sites)> = divisions(matrix, named).into_iter().filter_map(rated).collect();
    // Stable: the first of equals has the most sites.
    all.sort_by(|a, b| b.0.total_cmp(&a.0));
    all.truncate(MOST_SHARED_OUT);
    let with_shares = all.into_iter().filter_map(|(_, mut sites)| {
        let loads_of = |shares: &[u16]| Loads::by_sites(&sites, shares);
        let shares = shares_among((matrix, interfaces), sites.count(), &loads_of);
        sites.shares = shares;
        Some(BySites { rate: sites_rate(matrix, interfaces, &sites)?, sites })
    });
    with_shares.reduce(|best, other| if other.rate > best.rate { other } else { best })
}

/// All divisions in two levels.
fn divisions(matrix: &Matrix, named: &[Option<u16>]) -> Vec<Sites> {
    let n = matrix.peers();
    let name_of = |peer: usize| named.get(peer).copied().flatten();
    // Numbers above all names, for those without one.
    let apart = |peer: usize| (n + peer) as u16;
    let first_with = |name: u16| (0..n).find(|&peer| name_of(peer) == Some(name)).unwrap_or(0) as u16;
    let begin: Vec<u16> = (0..n).map(|peer| name_of(peer).map_or(apart(peer), first_with)).collect();
    let pairs = || (0..n).flat_map(|i| (i + 1..n).map(move |j| (i, j)));
    let free = || pairs().filter(|&(i, j)| name_of(i).is_none() && name_of(j).is_none());
    let mut by_rate: Vec<(usize, usize)> = free().collect();
    by_rate.sort_by(|a, b| slower(matrix, *b).total_cmp(&slower(matrix, *a)));
    let mut by_latency: Vec<(usize, usize)> = free().filter(|pair| longer(matrix, *pair).is_some()).collect();
    by_latency.sort_by_key(|pair| longer(matrix, *pair));
    let mut found = vec![Sites::new(&begin)];
    for order in [by_rate, by_latency] {
        let mut of = begin.clone();
        for (i, j) in order {
            let (here, there) = (of[i], of[j]);
            if here != there {
                of.iter_mut().filter(|site| **site == there).for_each(|site| *site = here);
                found.push(Sites::new(&of));
            }
        }
    }
    let mut distinct: Vec<Sites> = Vec::new();
    for sites in found.into_iter().filter(Sites::have_two_levels) {
        if !distinct.contains(&sites) {
            distinct.push(sites);
        }
    }
    distinct
}

fn slower(matrix: &Matrix, (i, j): (usize, usize)) -> f64 {
    matrix.rate(i, j).min(matrix.rate(j, i))
}

/// The longer latency of both directions, in microseconds.
fn longer(matrix: &Matrix, (i, j): (usize, usize)) -> Option<u32> {
    Some(matrix.latency_us(i, j)?.max(matrix.latency_us(j, i)?))
}

#[cfg(test)]
#[path = "sites_tests.rs"]
mod tests;
