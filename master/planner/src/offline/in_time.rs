//! A plan within a time that is given, on one thread or two.

use crate::{Certified, EXACT_PEERS_BACKGROUND, Matrix, NoPlan, Objective, Options, Plan, rings::plan};
use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

/// Sets the seed of the second thread apart.
const OTHER_SEED: u64 = 0x5851_f42d_4c95_7f2d;

/// Plans within the budget. For more peers than are planned exactly, a second thread, if asked for, searches with
/// another seed and without proofs, and ends with the first: so what the first proves does not depend on the second.
///
/// # Errors
/// [`NoPlan`] if there is no ring, or none was found.
pub fn plan_in_time(
    matrix: &Matrix,
    options: &Options<'_>,
    budget: Duration,
    two_threads: bool,
) -> Result<Plan, NoPlan> {
    let began = Instant::now();
    let left = || budget.saturating_sub(began.elapsed());
    let exact_peers = options.exact_peers.min(EXACT_PEERS_BACKGROUND);
    if !two_threads || matrix.peers() <= exact_peers {
        return plan(matrix, options, &mut { left });
    }
    let is_over = AtomicBool::new(false);
    let other_options = Options { seed: options.seed ^ OTHER_SEED, prove: false, ..options.clone() };
    let other_left = || if is_over.load(Ordering::Relaxed) { Duration::ZERO } else { left() };
    thread::scope(|scope| {
        let search = || plan(matrix, &other_options, &mut { other_left });
        let other = thread::Builder::new().name("planner".into()).spawn_scoped(scope, search);
        let first = plan(matrix, options, &mut { left });
        is_over.store(true, Ordering::Relaxed);
        // Without a second thread the first one did all there is.
        let other = other.ok().and_then(|thread| thread.join().ok());
        match (first, other) {
            (first, None) => first,
            (Ok(first), Some(Ok(other))) => Ok(better(matrix, options.objective, first, other)),
            (Err(none), Some(other)) => {
                if none.proven {
                    Err(none)
                } else {
                    other
                }
            }
            (first, _) => first,
        }
    })
}

/// The better of two plans, the first of equals, with the better bounds of both.
fn better(matrix: &Matrix, objective: Objective, first: Plan, other: Plan) -> Plan {
    if first.proven && objective != Objective::Bottleneck {
        return first;
    }
    // A figure of which more is better.
    let rate = |plan: &Plan| {
        let value = plan.bottleneck.map_or(0.0, |b| b.value);
        if matrix.is_costs() { -value } else { value }
    };
    let sum = |plan: &Plan| plan.total.map_or(f64::INFINITY, |total| total.value);
    let bound = |plan: &Plan| plan.bottleneck.map(|b| b.bound);
    let sum_bound = |plan: &Plan| plan.total.map_or(0.0, |total| total.bound);
    let (rate_bound, total_bound) = (bound(&first), sum_bound(&first).max(sum_bound(&other)));
    let is_better = match objective {
        Objective::Sum => sum(&other) < sum(&first),
        Objective::Bottleneck => {
            rate(&other) > rate(&first) || (rate(&other) == rate(&first) && sum(&other) < sum(&first))
        }
        // A sum means little next to one with another floor: only if the slowest edge is no slower.
        Objective::Balanced => {
            rate(&other) * crate::EQUALLY_FAST > rate(&first)
                || (rate(&other) >= rate(&first) && sum(&other) < sum(&first))
        }
    };
    let mut best = if is_better { other } else { first };
    if let (Some(b), Some(bound)) = (best.bottleneck.as_mut(), rate_bound) {
        *b = Certified {
            bound: if matrix.is_costs() { bound.max(b.bound) } else { bound.min(b.bound) },
            ..*b
        };
    }
    if objective == Objective::Sum
        && let Some(total) = best.total.as_mut()
    {
        total.bound = total_bound;
    }
    let total_proven = best.total.is_some_and(|total| total.is_proven());
    best.proven = match objective {
        Objective::Sum => total_proven,
        Objective::Bottleneck => best.bottleneck.is_some_and(|bottleneck| bottleneck.is_proven()),
        Objective::Balanced => best.proven,
    };
    best
}
