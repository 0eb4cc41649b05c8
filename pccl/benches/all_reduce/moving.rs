//! A pair of hosts that is slow, and then another one: what `optimize_topology` finds, and how soon the ring avoids the
//! new pair by what operations show, without probes. See `docs/topology/README.md`.

use crate::{
    Args,
    best_ring::best_ring,
    fleet::{Fleet, Setup},
    median,
};
use pccl_testkit::lab::{Lab, Route};
use std::{error::Error, io, path::Path};

const HOSTS: usize = 5;
const ROUTE: Route = Route { delay_ms: 5.0, rate_mbit: 200.0, loss_pct: 0.0 };
/// Between the two hosts of the slow pair, in both directions.
const SLOW_MBIT: f64 = 20.0;
/// The rates at which the others send to each other, by how far the receiver is ahead: the two directions of a pair
/// differ.
const RATES_MBIT: [f64; HOSTS] = [0.0, 200.0, 160.0, 180.0, 140.0];
/// Sizes of the operations, in KiB. Those of 1 MiB take as long for the way as for the bytes.
const SIZES_KIB: [usize; 2] = [16 << 10, 4 << 10];
/// Operations after a move, and those of them that the ring may take to follow.
const OPERATIONS: usize = 8;
const LATE: usize = 3;
/// Part of the rate of the best ring that has to be reached; 0.965 of it can be payload.
const ENOUGH: f64 = 0.85;

type Pair = (usize, usize);

fn rate(from: usize, to: usize, slow: Pair) -> f64 {
    let is_slow = (from, to) == slow || (to, from) == slow;
    if is_slow { SLOW_MBIT } else { RATES_MBIT[(to + HOSTS - from) % HOSTS] }
}

fn set_rates(lab: &mut Lab, slow: Pair) -> io::Result<()> {
    for (from, to) in (0..HOSTS * HOSTS).map(|at| (at / HOSTS, at % HOSTS)).filter(|(from, to)| from != to) {
        lab.set_rate(from, to, rate(from, to, slow))?;
    }
    Ok(())
}

/// The rate of the slowest edge of the best ring if all these pairs are slow, by trying all.
fn best_rate(slow: &[Pair]) -> f64 {
    best_ring(HOSTS, &|from, to| slow.iter().map(|pair| rate(from, to, *pair)).fold(f64::INFINITY, f64::min))
}

struct Course {
    fleet: Fleet,
    bytes: usize,
    /// Pairs that are slow, or were when they were measured: without probes nobody knows that one is fast again.
    slow: Vec<Pair>,
    too_slow: usize,
}

impl Course {
    /// Hosts in the order of the ring.
    fn ring(&mut self) -> io::Result<Vec<usize>> {
        self.fleet.tell_all("rank")?;
        let ranks: Vec<f64> = self.fleet.answers()?.into_iter().map(|(rank, _)| rank).collect();
        let mut hosts: Vec<usize> = (0..HOSTS).collect();
        hosts.sort_by(|a, b| ranks[*a].total_cmp(&ranks[*b]));
        Ok(hosts)
    }

    /// The load that every edge carries in one operation, as parts of the best ring's rate.
    fn shares(&mut self, operations: usize) -> io::Result<Vec<f64>> {
        let mbit = 2.0 * (HOSTS - 1) as f64 / HOSTS as f64 * self.bytes as f64 * 8e-6;
        let best = best_rate(&self.slow);
        let command = format!("in_place {} 1", self.bytes);
        (0..operations).map(|_| Ok(mbit / self.fleet.measure(&command)?.seconds / best)).collect()
    }

    /// Prints shares; the median of those after the first `late` ones has to be enough.
    fn judge(&mut self, name: &str, shares: &[f64], late: usize) -> io::Result<()> {
        let list: Vec<String> = shares.iter().map(|share| format!("{share:.2}")).collect();
        let median = median(shares[late..].iter().copied());
        let verdict = if median >= ENOUGH { "" } else { "  TOO SLOW" };
        self.too_slow += usize::from(median < ENOUGH);
        let (best, ring) = (best_rate(&self.slow), self.ring()?);
        println!("  {name:<44}{best:>5} {:<42}{median:>5.2}{verdict}  {ring:?}", list.join(" "));
        Ok(())
    }
}

/// Lets the slow pair move about, for each size.
pub(crate) fn run(program: &Path, args: &Args) -> Result<(), Box<dyn Error>> {
    println!(
        "{HOSTS} hosts, {} ms apart, {SLOW_MBIT} Mbit/s in the slow pair; rate of each operation as a part of the\n\
         best ring's, which is given in Mbit/s (after the move without the pair that was slow before, since nobody\n\
         knows that it is fast again); the median leaves the first {LATE} operations after the move out",
        ROUTE.delay_ms
    );
    let mut too_slow = 0;
    for kib in SIZES_KIB {
        println!("{kib} KiB of float32");
        let mut lab = Lab::up(program, HOSTS, ROUTE, None)?;
        let slow = (1, 2);
        set_rates(&mut lab, slow)?;
        let setup = Setup { lab: Some(&lab), ..Setup::here(args, HOSTS) };
        let fleet = Fleet::start(setup)?;
        let mut course = Course { fleet, bytes: kib << 10, slow: vec![slow], too_slow: 0 };
        let shares = course.shares(2)?;
        let before = course.ring()?;
        println!("  in the order of acceptance {before:?}: {shares:.2?}");
        let optimized = course.fleet.measure("optimize")?.seconds;
        let shares = course.shares(5)?;
        course.judge(&format!("after optimize_topology ({optimized:.1} s)"), &shares, 0)?;
        let ring = course.ring()?;
        let slow = (ring[0], ring[1]);
        set_rates(&mut lab, slow)?;
        course.slow.push(slow);
        let shares = course.shares(OPERATIONS)?;
        course.judge(&format!("{slow:?} is the slow pair"), &shares, LATE)?;
        too_slow += course.too_slow;
        course.fleet.end()?;
    }
    if too_slow == 0 {
        Ok(())
    } else {
        Err(format!("{too_slow} times below {ENOUGH} of the best ring").into())
    }
}
