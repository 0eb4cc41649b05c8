//! The tree of one or two levels that an [`Ownership`] says: contributions to a unit go up to its owner, and the result
//! comes down. A chunk that only moves goes straight from its source to its owner.
//!
//! Rank `r` contributes at stage `r`, and sends results at stage `n + r`. Elements of a quantised tensor that go up as
//! they are have the stage `2 n + r`.

use super::{
    ownership::Ownership,
    plan::{Frame, Plan},
    step::{Compiler, Hop, Input, Step},
};
use pccl_protocol::Algorithm;

impl Compiler for Ownership {
    fn algorithm(&self) -> Algorithm {
        if self.has_sites() { Algorithm::Sites } else { Algorithm::Pairwise }
    }

    fn steps(&self, plan: &Plan, frame: &Frame) -> Vec<Step> {
        let (ranks, rank, shape) = (plan.ranks(), plan.rank(), plan.shape());
        if shape.only_moves() {
            return straight(plan, frame);
        }
        let parent = self.parent(rank, frame);
        let children: Vec<usize> =
            (0..ranks).filter(|other| self.parent(*other, frame) == Some(rank)).collect();
        let down = |to: &usize| Hop::new(*to, ranks + rank);
        let down: Vec<Hop> =
            if shape.distributes() { children.iter().map(down).collect() } else { Vec::new() };
        let mut steps = Vec::with_capacity(2);
        if shape.folds() {
            let (inputs, cuts) = contributions(plan, self, frame, &children);
            let sends = parent.map(|parent| vec![up(plan, self, frame.part, (rank, parent), parent)]);
            let sends = sends.unwrap_or_else(|| down.clone());
            steps.push(Step { inputs, cuts, sends, is_result: parent.is_none() });
        } else if parent.is_none() {
            steps.push(Step::new(vec![Input::Own], down.clone(), true));
        }
        if let Some(parent) = parent.filter(|_| shape.distributes()) {
            steps.push(Step::new(vec![Input::Received(Hop::new(parent, ranks + parent))], down, true));
        }
        steps
    }

    fn is_plain(&self, plan: &Plan, stage: usize) -> bool {
        stage >= plain_stage(plan, 0)
    }
}

/// The step of this rank for a unit that goes from its source to its owner.
fn straight(plan: &Plan, frame: &Frame) -> Vec<Step> {
    let (source, owner) = (plan.start_of(frame.chunk), plan.shape().owner(frame.chunk));
    match plan.rank() {
        rank if rank == source && rank == owner => vec![Step::new(vec![Input::Own], Vec::new(), true)],
        rank if rank == source => vec![Step::new(vec![Input::Own], vec![Hop::new(owner, source)], false)],
        rank if rank == owner => {
            vec![Step::new(vec![Input::Received(Hop::new(source, source))], Vec::new(), true)]
        }
        _ => Vec::new(),
    }
}

/// The stage at which a rank sends elements of a quantised tensor as they are.
fn plain_stage(plan: &Plan, rank: usize) -> usize {
    2 * plan.ranks() + rank
}

/// The way up from one rank to its parent, as the end sees it whose other end is `other`.
fn up(plan: &Plan, ownership: &Ownership, part: usize, (from, parent): (usize, usize), other: usize) -> Hop {
    let is_plain = ownership.is_plain_within(plan, part) && ownership.are_near(from, parent);
    let stage = if is_plain { plain_stage(plan, from) } else { from };
    Hop { stage, rank: other, is_plain }
}

/// The contributions to a unit, of others and the own one, and where their lists end: the own site is one list, every
/// other site another.
fn contributions(
    plan: &Plan,
    ownership: &Ownership,
    frame: &Frame,
    children: &[usize],
) -> (Vec<Input>, Vec<usize>) {
    let (rank, start) = (plan.rank(), plan.start_of(frame.chunk));
    let mut children = children.to_vec();
    children.sort_unstable_by_key(|from| ownership.place_among(*from, frame, start));
    let input = |from: &usize| Input::Received(up(plan, ownership, frame.part, (*from, rank), *from));
    let (of_site, over_sites) = ownership.contributors(frame);
    let (turn_in_site, turn_of_site) = ownership.own_turns(start);
    let (turn_in_site, turn_of_site) = (turn_in_site.min(of_site), turn_of_site.min(over_sites));
    let (site, others) = children.split_at(of_site);
    let mut inputs: Vec<Input> = others[..turn_of_site].iter().map(input).collect();
    inputs.extend(site[..turn_in_site].iter().map(input));
    inputs.push(Input::Own);
    inputs.extend(site[turn_in_site..].iter().map(input));
    inputs.extend(others[turn_of_site..].iter().map(input));
    // Other sites are lists of one.
    let ends = (1..=over_sites).map(|list| if list > turn_of_site { list + of_site } else { list });
    (inputs, ends.collect())
}
