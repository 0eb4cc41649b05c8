//! The program of one rank: for each part of each tensor, the frames that it waits for, the order in which it folds
//! them, and those to whom it sends what comes out.
//!
//! Every algorithm is a compiler of such programs, of about a screen: [the ring](Program::Ring) of Patarasuk and Yuan
//! (see [`Plan`]), [the tree](Program::Tree) of one or two levels (see [`Ownership`]), and [the exchange of whole
//! contributions](Program::Exchange) for what is small (Thakur, Rabenseifner and Gropp, "Optimization of collective
//! communication operations in MPICH", 2005, section 4.1). A program is not stored: its nodes follow from the plan by
//! formulas. Tests carry out the programs of all ranks on paper.

use super::{
    ownership::Ownership,
    plan::{Frame, Plan, StageKind, Unit},
};
use pccl_protocol::Algorithm;

/// The rank that folds for all, in an exchange in which one does.
const ROOT: usize = 0;

/// See the module's documentation.
#[derive(Debug, Clone, Copy)]
pub enum Program<'a> {
    /// Around the ring.
    Ring(&'a Plan),
    /// Up to the owner of each unit, and down again.
    Tree(&'a Plan, &'a Ownership),
    /// The contribution of each rank to everything is one frame.
    Exchange {
        /// Of the shape of an all-reduce; says which rank is the first in the fold of which elements.
        plan: &'a Plan,
        /// One of those for small operations: all-gather, direct, or reduce and broadcast.
        algorithm: Algorithm,
        /// Bytes of a contribution.
        bytes: usize,
    },
}

/// One end of the way of a value from one rank to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hop {
    /// The other end.
    pub rank: usize,
    /// The stage that the headers of its frames have.
    pub stage: usize,
    /// Elements of a quantised tensor travel as they are.
    pub is_plain: bool,
}

/// A value that a node takes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    /// The elements that this rank has.
    Own,
    /// A value that comes from there.
    Received(Hop),
}

/// A step of one rank for one unit, when all of its inputs are there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The index of the run.
    pub part: usize,
    /// The unit of it.
    pub unit: Unit,
    /// The inputs, in the order in which they are folded: each list by itself, then one list after the other.
    pub inputs: Vec<Vec<Input>>,
    /// Those to whom the value goes.
    pub sends: Vec<Hop>,
    /// Whether the value is this rank's result.
    pub is_result: bool,
}

impl<'a> Program<'a> {
    /// All steps of this rank, unit by unit.
    pub fn nodes(self) -> impl Iterator<Item = Node> + 'a {
        self.units().flat_map(move |(first, unit)| {
            let steps = match self {
                Self::Ring(plan) => ring(plan, first.chunk),
                Self::Tree(plan, ownership) => tree(plan, ownership, &first),
                Self::Exchange { algorithm, .. } => exchange(self.plan(), algorithm, first.chunk),
            };
            let node = move |(inputs, sends, is_result)| Node {
                part: first.part,
                unit: unit.clone(),
                inputs,
                sends,
                is_result,
            };
            steps.into_iter().map(node)
        })
    }

    /// Every frame that this rank sends, with the way of it.
    pub fn sent(self) -> impl Iterator<Item = (Hop, Frame)> + 'a {
        let first = self.units().next().map(|(frame, _)| frame.slot);
        let is_whole = matches!(self, Self::Exchange { .. });
        let nodes = self.nodes().filter(move |node| !is_whole || Some(node.unit.slots.start) == first);
        nodes.flat_map(move |node| {
            let hops = node.sends.clone().into_iter();
            hops.flat_map(move |hop| self.frames(&node, hop.is_plain).into_iter().map(move |it| (hop, it)))
        })
    }

    /// The frames as which the value of a node travels.
    fn frames(self, node: &Node, is_plain: bool) -> Vec<Frame> {
        if let Self::Exchange { bytes, .. } = self {
            return vec![Frame { part: 0, chunk: 0, slot: 0, offset: 0, len: bytes }];
        }
        let frames = self.plan().frames_of_unit(node.part, &node.unit);
        if is_plain {
            return frames.filter_map(|frame| self.plan().plain_frame(&frame)).collect();
        }
        frames.collect()
    }

    fn plan(self) -> &'a Plan {
        match self {
            Self::Ring(plan) | Self::Tree(plan, _) | Self::Exchange { plan, .. } => plan,
        }
    }

    /// Every unit, with its first frame.
    fn units(self) -> impl Iterator<Item = (Frame, Unit)> + 'a {
        let all = self.plan().all_frames().map(move |frame| (frame, self.plan().unit_of(&frame)));
        all.filter(|(frame, unit)| unit.slots.start == frame.slot)
    }
}

/// Inputs, those to whom their fold goes, and whether it is a result.
type Step = (Vec<Vec<Input>>, Vec<Hop>, bool);

/// A value that travels in the form of its run.
fn hop(rank: usize, stage: usize) -> Hop {
    Hop { rank, stage, is_plain: false }
}

/// The steps for each unit of a chunk: what arrives at one stage goes on at the next.
fn ring(plan: &Plan, chunk: usize) -> Vec<Step> {
    let (ranks, rank) = (plan.ranks(), plan.rank());
    let (next, before) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
    let mut steps = Vec::new();
    if plan.start_of(chunk) == rank {
        let sends = plan.sent_chunk(0).map(|_| hop(next, 0)).into_iter().collect();
        steps.push((vec![vec![Input::Own]], sends, !plan.shape().folds() || ranks == 1));
    }
    for stage in (0..plan.stages()).filter(|stage| plan.received_chunk(*stage) == Some(chunk)) {
        let (kind, received) = (plan.stage_kind(stage), Input::Received(hop(before, stage)));
        let inputs = if kind == StageKind::Gather { vec![received] } else { vec![received, Input::Own] };
        let sends = if stage + 1 < plan.stages() { vec![hop(next, stage + 1)] } else { Vec::new() };
        steps.push((vec![inputs], sends, kind != StageKind::Reduce));
    }
    steps
}

/// The steps for the unit that begins with that frame: contributions go up, its result comes down.
fn tree(plan: &Plan, ownership: &Ownership, frame: &Frame) -> Vec<Step> {
    let (ranks, rank, shape) = (plan.ranks(), plan.rank(), plan.shape());
    let parent = ownership.parent(rank, frame);
    let children: Vec<usize> =
        (0..ranks).filter(|other| ownership.parent(*other, frame) == Some(rank)).collect();
    let down = |to: &usize| hop(*to, ranks + rank);
    let down: Vec<Hop> = if shape.distributes() { children.iter().map(down).collect() } else { Vec::new() };
    let mut steps = Vec::new();
    if shape.folds() {
        let inputs = contributions(plan, ownership, frame, &children);
        let sends = parent.map(|parent| vec![up(plan, ownership, frame.part, (rank, parent), parent)]);
        steps.push((inputs, sends.unwrap_or_else(|| down.clone()), parent.is_none()));
    } else if parent.is_none() {
        steps.push((vec![vec![Input::Own]], down.clone(), true));
    }
    if let Some(parent) = parent.filter(|_| shape.distributes()) {
        steps.push((vec![vec![Input::Received(hop(parent, ranks + parent))]], down, true));
    }
    steps
}

/// The way up from one rank to its parent, as the end sees it whose other end is `other`.
fn up(plan: &Plan, ownership: &Ownership, part: usize, (from, parent): (usize, usize), other: usize) -> Hop {
    let is_plain = ownership.is_plain_within(plan, part) && ownership.are_near(from, parent);
    let stage = if is_plain { 2 * plan.ranks() + from } else { from };
    Hop { rank: other, stage, is_plain }
}

/// The contributions to a unit, of others and the own one: the own site is one list, every other site another.
fn contributions(plan: &Plan, ownership: &Ownership, frame: &Frame, children: &[usize]) -> Vec<Vec<Input>> {
    let (rank, start) = (plan.rank(), plan.start_of(frame.chunk));
    let input = |from: &usize| Input::Received(up(plan, ownership, frame.part, (*from, rank), *from));
    let mut children = children.to_vec();
    children.sort_unstable_by_key(|from| ownership.place_among(*from, frame, start));
    let (of_site, over_sites) = ownership.contributors(frame);
    let (turn_in_site, turn_of_site) = ownership.own_turns(start);
    let mut site: Vec<Input> = children[..of_site].iter().map(input).collect();
    site.insert(turn_in_site.min(of_site), Input::Own);
    let mut lists: Vec<Vec<Input>> = children[of_site..].iter().map(|from| vec![input(from)]).collect();
    lists.insert(turn_of_site.min(over_sites), site);
    lists
}

/// The steps for the elements of a chunk, which begin in the fold with the rank of that number. A stage is the rank
/// whose contribution travels, or the number of ranks for the result.
fn exchange(plan: &Plan, algorithm: Algorithm, chunk: usize) -> Vec<Step> {
    let (ranks, rank) = (plan.ranks(), plan.rank());
    let (next, before) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
    let to_all = |stage: usize| (1..ranks).map(|step| hop((rank + step) % ranks, stage)).collect();
    let by_root = algorithm == Algorithm::ReduceBroadcast;
    let from = |whose: usize| if algorithm == Algorithm::AllGather { before } else { whose };
    let input = |whose| {
        if whose == rank { Input::Own } else { Input::Received(hop(from(whose), whose)) }
    };
    let all = vec![(0..ranks).map(|step| input((chunk + step) % ranks)).collect()];
    let own = vec![vec![Input::Own]];
    match algorithm {
        _ if by_root && rank == ROOT => vec![(all, to_all(ranks), true)],
        _ if by_root => vec![
            (own, vec![hop(ROOT, rank)], false),
            (vec![vec![Input::Received(hop(ROOT, ranks))]], Vec::new(), true),
        ],
        Algorithm::AllGather => {
            let mut steps = vec![(all, Vec::new(), true)];
            for whose in (0..ranks).filter(|whose| *whose != next) {
                steps.push((vec![vec![input(whose)]], vec![hop(next, whose)], false));
            }
            steps
        }
        _ => vec![(own, to_all(rank), false), (all, Vec::new(), true)],
    }
}
