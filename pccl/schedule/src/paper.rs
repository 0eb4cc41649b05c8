//! The programs of all ranks, carried out on paper: on names of contributions instead of numbers.

use super::{
    plan::{Frame, Unit},
    program::Program,
    step::{Hop, Input, Step},
};
use std::{borrow::Cow, collections::BTreeMap};

/// A step of one rank, with the unit that it is for.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    /// The index of the run.
    pub(crate) part: usize,
    /// The unit of it.
    pub(crate) unit: Unit,
    /// The step.
    pub(crate) step: Step,
}

/// All steps of one rank, unit by unit.
pub(crate) fn nodes(program: &Program) -> Vec<Node> {
    let of_unit = |(first, unit, steps): (Frame, Unit, Cow<'_, [Step]>)| {
        let node = |step: &Step| Node { part: first.part, unit: unit.clone(), step: step.clone() };
        steps.iter().map(node).collect::<Vec<_>>()
    };
    program.units().flat_map(of_unit).collect()
}

/// Something that came out of contributions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    /// The contribution of a rank.
    Of(usize),
    /// The fold of these, at least two, from the left.
    Fold(Vec<Self>),
}

impl Value {
    /// The fold of these, in this order. The first of them may be a fold itself, which then goes on.
    pub(crate) fn fold(values: Vec<Self>) -> Option<Self> {
        let mut values = values.into_iter();
        let first = values.next()?;
        let mut all = match first {
            Self::Fold(all) => all,
            one @ Self::Of(_) => vec![one],
        };
        all.extend(values);
        Some(if all.len() == 1 { all.remove(0) } else { Self::Fold(all) })
    }
}

/// A rank, the index of a run, and the first slot of a unit of it.
pub(crate) type Place = (usize, usize, usize);
/// Where a value goes, the rank that it comes from, and its stage.
type Way = (Place, usize, usize);

/// Carries out the programs of all ranks, given by their nodes, and returns the result of each unit on each rank that
/// has one.
///
/// # Errors
/// Says which program is wrong if a value goes to nobody, comes twice, or is waited for for ever, or if a rank has two
/// results for one unit.
pub(crate) fn run(programs: &[Vec<Node>]) -> Result<BTreeMap<Place, Value>, String> {
    let mut nodes: Vec<(usize, &Node)> = Vec::new();
    for (rank, of_rank) in programs.iter().enumerate() {
        nodes.extend(of_rank.iter().map(|node| (rank, node)));
    }
    // The nodes that wait for a value, and for how many each waits.
    let mut waiting: BTreeMap<Way, Vec<usize>> = BTreeMap::new();
    let mut missing = vec![0; nodes.len()];
    for (index, (rank, node)) in nodes.iter().enumerate() {
        for way in ways_in(*rank, node) {
            waiting.entry(way).or_default().push(index);
            missing[index] += 1;
        }
    }
    let mut ready: Vec<usize> = (0..nodes.len()).filter(|index| missing[*index] == 0).collect();
    let (mut results, mut sent) = (BTreeMap::new(), BTreeMap::new());
    while let Some((rank, node)) = ready.pop().map(|index| nodes[index]) {
        let value = value_of(rank, node, &sent).ok_or_else(|| format!("rank {rank} folds nothing"))?;
        for Hop { rank: to, stage, .. } in &node.step.sends {
            let way: Way = (place(*to, node), rank, *stage);
            let Some(takers) = waiting.get(&way).filter(|_| *to != rank) else {
                return Err(format!("rank {rank} sends at stage {stage} what rank {to} does not take"));
            };
            if sent.insert(way, value.clone()).is_some() {
                return Err(format!("rank {rank} sends twice at stage {stage} to rank {to}"));
            }
            for index in takers {
                missing[*index] -= 1;
                ready.extend((missing[*index] == 0).then_some(*index));
            }
        }
        if node.step.is_result && results.insert(place(rank, node), value).is_some() {
            return Err(format!("rank {rank} has two results for one unit"));
        }
    }
    match nodes.iter().zip(missing).find(|(_, missing)| *missing > 0) {
        Some(((rank, node), _)) => {
            Err(format!("rank {rank} waits for ever for one of {:?}", node.step.inputs))
        }
        None => Ok(results),
    }
}

fn place(rank: usize, node: &Node) -> Place {
    (rank, node.part, node.unit.slots.start)
}

fn ways_in(rank: usize, node: &Node) -> impl Iterator<Item = Way> + '_ {
    node.step.inputs.iter().filter_map(move |input| match input {
        Input::Own => None,
        Input::Received(hop) => Some((place(rank, node), hop.rank, hop.stage)),
    })
}

/// The fold of the inputs of a node, if all of them are there.
fn value_of(rank: usize, node: &Node, sent: &BTreeMap<Way, Value>) -> Option<Value> {
    let value = |input: &Input| match input {
        Input::Own => Some(Value::Of(rank)),
        Input::Received(hop) => sent.get(&(place(rank, node), hop.rank, hop.stage)).cloned(),
    };
    let lists = node.step.lists().map(|list| Value::fold(list.iter().map(value).collect::<Option<_>>()?));
    Value::fold(lists.collect::<Option<_>>()?)
}

mod binomial;
mod tests;
