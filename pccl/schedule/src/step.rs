//! One step of a rank, and the compilers of steps.

use super::plan::{Frame, Plan};
use pccl_protocol::Algorithm;
use std::fmt::Debug;

/// One end of the way of a value from one rank to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hop {
    /// The stage that the headers of its frames have.
    pub stage: usize,
    /// The other end.
    pub rank: usize,
    /// Elements of a quantised tensor travel as they are.
    pub is_plain: bool,
}

/// A value that a step takes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    /// The elements that this rank has.
    Own,
    /// A value that comes from there.
    Received(Hop),
}

/// A step of one rank for one unit, when all of its inputs are there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The inputs, in the order in which they are folded.
    pub inputs: Vec<Input>,
    /// Where a list of inputs ends that is folded by itself before it is folded with the lists before it; none if all
    /// are one list. The last list goes to the end of the inputs.
    pub cuts: Vec<usize>,
    /// Those to whom the value goes.
    pub sends: Vec<Hop>,
    /// Whether the value is this rank's result.
    pub is_result: bool,
}

/// An algorithm: it says what the rank of a plan does with each unit.
pub trait Compiler: Debug + Send + Sync {
    /// The algorithm, as votes and reports name it.
    fn algorithm(&self) -> Algorithm;

    /// The steps for the unit of a frame, in the order in which they are made. Both ends of a hop name the same stage,
    /// and no two values of a unit come to a rank, or go from it to another one, at the same stage. A step that passes
    /// a value on comes after the one that takes the same in, if there is one.
    fn steps(&self, plan: &Plan, frame: &Frame) -> Vec<Step>;

    /// The step by which the rank folds the elements of a frame to its result, if it does.
    fn folding_step(&self, plan: &Plan, frame: &Frame) -> Option<Step> {
        self.steps(plan, frame).into_iter().find(|step| step.is_result && !step.forwards())
    }

    /// How many values a unit gets from others, at most.
    fn values_max(&self, plan: &Plan) -> usize {
        plan.ranks()
    }

    /// How many hops a chunk makes, if stages count them.
    fn hops(&self, _plan: &Plan) -> Option<usize> {
        None
    }

    /// Whether all units of a chunk have the same steps.
    fn is_by_chunk(&self) -> bool {
        false
    }

    /// Whether the frames of a stage have elements of a quantised tensor as they are.
    fn is_plain(&self, _plan: &Plan, _stage: usize) -> bool {
        false
    }

    /// The only frame that there is, if all tensors travel as one.
    fn whole(&self) -> Option<Frame> {
        None
    }
}

impl Hop {
    /// Of a value that travels in the form of its run.
    pub fn new(rank: usize, stage: usize) -> Self {
        Self { stage, rank, is_plain: false }
    }
}

impl Step {
    /// Of one list of inputs.
    pub fn new(inputs: Vec<Input>, sends: Vec<Hop>, is_result: bool) -> Self {
        Self { inputs, cuts: Vec::new(), sends, is_result }
    }

    /// The lists of inputs: each is folded by itself, and then one list after the other.
    pub fn lists(&self) -> impl Iterator<Item = &[Input]> {
        let ends = self.cuts.iter().copied().chain([self.inputs.len()]);
        ends.scan(0, |start, end| Some(&self.inputs[std::mem::replace(start, end)..end]))
    }

    /// The values of others that it takes in, in the order in which they are folded.
    pub fn received(&self) -> impl Iterator<Item = Hop> + '_ {
        self.inputs.iter().filter_map(|input| match input {
            Input::Received(hop) => Some(*hop),
            Input::Own => None,
        })
    }

    /// Whether nothing of others goes in.
    pub fn is_own(&self) -> bool {
        self.received().next().is_none()
    }

    /// Whether the value is one that has come, as it came.
    pub fn forwards(&self) -> bool {
        matches!(self.inputs[..], [Input::Received(_)])
    }

    /// Whether the value is one that has come, goes on as it came, and is not this rank's result.
    pub fn passes_on(&self) -> bool {
        self.forwards() && !self.is_result
    }

    /// Whether one value is folded with the own elements: every piece of it can be folded when it comes, and it needs
    /// no memory.
    pub fn streams(&self) -> bool {
        self.cuts.is_empty() && matches!(self.inputs[..], [Input::Received(hop), Input::Own] if !hop.is_plain)
    }
}
