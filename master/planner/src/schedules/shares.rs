//! How much of a tensor each peer owns in pairwise exchange, so that all of it is fast: whose edges are slow owns less.
//!
//! If peer i owns the part `x_i`, the edge i -> j carries `x_j + x_i`: what i contributes to the part of j, and the
//! result of its own. With `z_i = x_i * rate`, where the rate is how much tensor is reduced in a second, every limit is
//! linear in z: the edge carries `z_i + z_j`, and the sum of all z is the rate. So it is with sites that own parts,
//! where what an edge carries also has parts that are the same whoever owns what: a constant times the sum of all z.

use super::{
    interfaces::Interfaces,
    loads::{Loads, may_exchange},
    simplex::{Row, greatest_sum},
};
use crate::matrix::Matrix;

/// Whole parts of a tensor that shares are given in.
pub const SHARE_PARTS: u16 = 1000;
/// So near to the best rate is as good. Memory and work of an owner grow with its share, and rates are not measured
/// better.
const GOOD: f64 = 0.97;
/// Memory of an owner for the contributions of all others, at most, in sizes of the tensor.
const CONTRIBUTIONS_MAX: f64 = 2.0;
/// Halvings of a range of shares: finer than the parts.
const HALVINGS: usize = 10;

/// A network: its edges, and what they have in common.
type Network<'a> = (&'a Matrix, &'a Interfaces);
/// The loads of edges if owners have these shares; equal ones if there are none. It is symmetric, and linear in shares.
type LoadsOf<'a> = dyn Fn(&[u16]) -> Loads + 'a;

/// The share that each peer should own in pairwise exchange, by its number; empty for equal shares. None if there is no
/// exchange.
pub(crate) fn best_shares(matrix: &Matrix, interfaces: &Interfaces) -> Option<Vec<u16>> {
    let n = matrix.peers();
    let loads_of = |shares: &[u16]| Loads::pairwise(n, shares);
    may_exchange(matrix).then(|| shares_among((matrix, interfaces), n, &loads_of))
}

/// Parts of [`SHARE_PARTS`] by number of owner, which sum up to all of them; empty for equal shares. Of all that are
/// nearly as fast as possible, those whose largest is smallest, and of these those whose smallest is largest.
pub(crate) fn shares_among(network: Network<'_>, owners: usize, loads_of: &LoadsOf<'_>) -> Vec<u16> {
    let rate_of = |shares: &[u16]| loads_of(shares).mbit_s(network.0, network.1);
    let Some(equal) = rate_of(&[]) else { return Vec::new() };
    let limits = limits(network, owners, loads_of);
    let good = GOOD * rates(&limits, 0.0, largest_of(owners)).iter().sum::<f64>();
    if equal >= good {
        return Vec::new();
    }
    let shares = whole_parts(&rate_of, &even_rates(&limits, good));
    if rate_of(&shares) > Some(equal) { shares } else { Vec::new() }
}

/// The largest share of one of `n` owners.
fn largest_of(n: usize) -> f64 {
    (CONTRIBUTIONS_MAX / (n - 1) as f64).min(1.0)
}

/// The limits of edges, interfaces and uplinks.
fn limits((matrix, interfaces): Network<'_>, owners: usize, loads_of: &LoadsOf<'_>) -> Vec<Row> {
    let n = matrix.peers();
    let all_of_one = |owner: usize| {
        let shares: Vec<u16> = (0..owners).map(|other| u16::from(other == owner)).collect();
        loads_of(&shares)
    };
    let loads: Vec<Loads> = (0..owners).map(all_of_one).collect();
    let row = |most: f64, part: &dyn Fn(&Loads) -> f64| Row { parts: loads.iter().map(part).collect(), most };
    let mut rows = Vec::new();
    for i in 0..n {
        let edges = (i + 1..n).map(|j| (j, matrix.rate(i, j).min(matrix.rate(j, i))));
        rows.extend(edges.map(|(j, most)| row(most, &|loads| loads.part(i, j))));
    }
    for place in (0..n).filter(|&peer| matrix.group(peer) == peer) {
        let most = interfaces.sends[place].min(interfaces.receives[place]);
        rows.push(row(most, &|loads| loads.across(|peer| matrix.group(peer) == place)));
    }
    for uplink in &interfaces.uplinks {
        let most = uplink.sends.min(uplink.receives);
        rows.push(row(most, &|loads| loads.across(|peer| uplink.behind[peer])));
    }
    rows
}

/// The best rates of all peers' parts, each of which is at least and at most such a part of all.
fn rates(limits: &[Row], least: f64, most: f64) -> Vec<f64> {
    greatest_sum(limits[0].parts.len(), &between(limits, least, most))
}

/// These conditions, and that each is at least and at most such a part of all.
fn between(limits: &[Row], least: f64, most: f64) -> Vec<Row> {
    let n = limits[0].parts.len();
    let mut rows = limits.to_vec();
    for peer in 0..n {
        let of_all = |sign: f64, part: f64| {
            let parts = (0..n).map(|other| sign * (f64::from(u8::from(other == peer)) - part)).collect();
            Row { parts, most: 0.0 }
        };
        rows.extend((most < 1.0).then(|| of_all(1.0, most)));
        rows.extend((least > 0.0).then(|| of_all(-1.0, least)));
    }
    rows
}

/// The most even rates whose sum is `good`.
fn even_rates(limits: &[Row], good: f64) -> Vec<f64> {
    let equal = 1.0 / limits[0].parts.len() as f64;
    let reach = |least: f64, most: f64| {
        Some(rates(limits, least, most)).filter(|rates| rates.iter().sum::<f64>() >= good)
    };
    let (mut below, mut most) = (equal, largest_of(limits[0].parts.len()));
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(below, most);
        *if reach(0.0, middle).is_some() { &mut most } else { &mut below } = middle;
    }
    let (mut least, mut above) = (0.0, equal);
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(least, above);
        *if reach(middle, most).is_some() { &mut least } else { &mut above } = middle;
    }
    rates(limits, least, most)
}

/// The largest whole parts that are not too large, and what is left goes where it slows down least, or else to the
/// largest remainder: a small share may have to be that small.
fn whole_parts(rate_of: &dyn Fn(&[u16]) -> Option<f64>, rates: &[f64]) -> Vec<u16> {
    let all: f64 = rates.iter().sum();
    let exact: Vec<f64> = rates.iter().map(|rate| rate / all * f64::from(SHARE_PARTS)).collect();
    let mut shares: Vec<u16> = exact.iter().map(|part| *part as u16).collect();
    for _ in shares.iter().sum()..SHARE_PARTS {
        let with_one_more = |peer: usize| {
            let mut shares = shares.clone();
            shares[peer] += 1;
            rate_of(&shares).unwrap_or(0.0)
        };
        let remainder = |peer: usize| exact[peer] - f64::from(shares[peer]);
        let less = (0..shares.len()).filter(|&peer| remainder(peer) > 0.0);
        let next = less.map(|peer| (peer, with_one_more(peer), remainder(peer)));
        let best = next.reduce(|best, next| if (next.1, next.2) > (best.1, best.2) { next } else { best });
        if let Some((peer, ..)) = best {
            shares[peer] += 1;
        }
    }
    shares
}

#[cfg(test)]
#[path = "shares_tests.rs"]
mod tests;
