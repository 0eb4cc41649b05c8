//! The program of one rank: for each part of each tensor, the frames that it waits for, the order in which it folds
//! them, and those to whom it sends what comes out.
//!
//! Every algorithm is a [`Compiler`] of such programs, of about a screen. Steps follow from the plan by formulas. Those
//! of each unit are not stored; where all units of a chunk have the same, or everything travels as one, they are kept.
//! Tests carry out the programs of all ranks on paper.

use super::{
    exchange::Exchange,
    ownership::Ownership,
    plan::{Frame, Plan, Unit},
    ring::Ring,
    runs::Run,
    step::{Compiler, Hop, Step},
};
use pccl_protocol::Algorithm;
use std::{
    borrow::Cow,
    collections::BTreeSet,
    sync::{Arc, OnceLock},
};

/// See the module's documentation.
#[derive(Debug, Clone)]
pub struct Program {
    plan: Plan,
    compiler: Arc<dyn Compiler>,
    is_whole: bool,
    /// Steps that were made before: of the chunks, if all units of a chunk have the same, or of everything as one.
    made: Box<[OnceLock<Vec<Step>>]>,
    /// Where everything travels as one, the steps that fold chunks.
    folding: Box<[OnceLock<Option<Step>>]>,
    traffic: OnceLock<(usize, usize)>,
    first_sent: OnceLock<Vec<(Hop, Frame)>>,
}

/// A frame that comes to this rank.
#[derive(Debug, Clone)]
pub struct Arrival<'a> {
    /// The frame, in the form in which its run travels.
    pub frame: Frame,
    /// All steps of this rank for its unit.
    pub steps: Cow<'a, [Step]>,
    /// The way that it has come.
    pub hop: Hop,
    /// The index of the first step that takes it in.
    pub taker: usize,
    /// The number of its value among those which that step receives.
    pub number: usize,
    /// How many values the steps before that one receive. If there are any, this rank has folded the unit.
    pub before: usize,
}

impl Arrival<'_> {
    /// The first step that takes it in.
    pub fn step(&self) -> &Step {
        &self.steps[self.taker]
    }

    /// Those to whom it goes on as it came.
    pub fn forwards(&self) -> impl Iterator<Item = Hop> + '_ {
        let is_it = |step: &&Step| step.forwards() && step.received().any(|hop| hop == self.hop);
        self.steps.iter().filter(is_it).flat_map(|step| step.sends.iter().copied())
    }
}

impl Program {
    /// By any algorithm.
    pub fn new(plan: Plan, compiler: Arc<dyn Compiler>) -> Self {
        let is_whole = compiler.whole().is_some();
        let kept = if compiler.is_by_chunk() { plan.shape().chunks() } else { usize::from(is_whole) };
        let made = (0..kept).map(|_| OnceLock::new()).collect();
        let folding =
            (0..if is_whole { plan.shape().chunks() } else { 0 }).map(|_| OnceLock::new()).collect();
        let (traffic, first_sent) = (OnceLock::new(), OnceLock::new());
        Self { plan, compiler, is_whole, made, folding, traffic, first_sent }
    }

    /// Around the ring.
    pub fn ring(plan: Plan) -> Self {
        Self::new(plan, Arc::new(Ring))
    }

    /// Up to the owner of each unit, and down again.
    pub fn tree(plan: Plan, ownership: Ownership) -> Self {
        Self::new(plan, Arc::new(ownership))
    }

    /// The contribution of each rank to everything is one frame, by one of the algorithms for small operations:
    /// all-gather, direct, or reduce and broadcast. The plan has the shape of an all-reduce, and says which rank is the
    /// first in the fold of which elements.
    pub fn exchange(plan: Plan, algorithm: Algorithm) -> Self {
        let bytes = |run: &Run| run.descriptor.count as usize * run.descriptor.data_type.size_bytes();
        let bytes = plan.runs().map(bytes).sum();
        Self::new(plan, Arc::new(Exchange { algorithm, bytes }))
    }

    /// The plan that it carries out.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Its algorithm.
    pub fn algorithm(&self) -> Algorithm {
        self.compiler.algorithm()
    }

    /// The steps of this rank for the unit of a frame, in the order in which they are made.
    fn steps(&self, frame: &Frame) -> Cow<'_, [Step]> {
        let make = || self.compiler.steps(&self.plan, frame);
        // Everything as one is of the first chunk.
        match self.made.get(frame.chunk) {
            Some(made) => Cow::Borrowed(made.get_or_init(make)),
            None => Cow::Owned(make()),
        }
    }

    /// Every unit, with its first frame and the steps for it.
    pub fn units(&self) -> impl Iterator<Item = (Frame, Unit, Cow<'_, [Step]>)> + '_ {
        let all = self.plan.all_frames().map(|frame| (frame, self.plan.unit_of(&frame)));
        let firsts = all.filter(|(frame, unit)| unit.slots.start == frame.slot);
        firsts.map(|(frame, unit)| (frame, unit, self.steps(&frame)))
    }

    /// The step by which this rank folds the elements of a frame to its result, if everything travels as one, and if it
    /// does.
    pub fn folding_step(&self, frame: &Frame) -> Option<&Step> {
        let make = || self.compiler.folding_step(&self.plan, frame);
        self.folding.get(frame.chunk)?.get_or_init(make).as_ref()
    }

    /// Every frame that this rank sends, with the way of it.
    pub fn sent(&self) -> Vec<(Hop, Frame)> {
        self.sent_by(|_| true)
    }

    /// Those into which nothing of others goes, from the next rank on, so that not all ranks begin with the same one.
    pub fn first_sent(&self) -> &[(Hop, Frame)] {
        let (rank, ranks) = (self.plan.rank(), self.plan.ranks());
        self.first_sent.get_or_init(|| {
            let mut sent = self.sent_by(Step::is_own);
            sent.sort_by_key(|(hop, _)| (hop.rank + ranks - rank) % ranks);
            sent
        })
    }

    fn sent_by(&self, which: fn(&Step) -> bool) -> Vec<(Hop, Frame)> {
        let mut sent = Vec::new();
        for (first, unit, steps) in self.travelling() {
            for hop in steps.iter().filter(|step| which(step)).flat_map(|step| &step.sends) {
                sent.extend(self.frames(first.part, &unit, *hop).map(|frame| (*hop, frame)));
            }
        }
        sent
    }

    /// How many frames this rank receives and sends.
    pub fn traffic(&self) -> (usize, usize) {
        *self.traffic.get_or_init(|| self.count_traffic())
    }

    fn count_traffic(&self) -> (usize, usize) {
        let (mut received, mut sent) = (0, 0);
        for (first, unit, steps) in self.travelling() {
            let frames = |hop: &Hop| self.frame_count(first.part, &unit, *hop);
            // Several steps may take one value in.
            let values: BTreeSet<Hop> = steps.iter().flat_map(Step::received).collect();
            received += values.iter().map(frames).sum::<usize>();
            sent += steps.iter().flat_map(|step| &step.sends).map(frames).sum::<usize>();
        }
        (received, sent)
    }

    /// How many frames the value of a unit is that goes that way.
    pub fn frame_count(&self, part: usize, unit: &Unit, hop: Hop) -> usize {
        match hop.is_plain {
            true => self.frames(part, unit, hop).count(),
            false if self.is_whole => 1,
            false => unit.slots.len(),
        }
    }

    /// For the log: which frame of the algorithm it is that comes.
    pub fn what(&self, arrival: &Arrival<'_>) -> String {
        let stage = arrival.hop.stage;
        match self.compiler.hops(&self.plan) {
            Some(hops) => format!("stage {stage} of {hops}"),
            None if arrival.step().forwards() => format!("a result at stage {stage}"),
            None => format!("a contribution at stage {stage}"),
        }
    }

    /// The frame with that header, if it is one that comes here.
    pub fn arrival(&self, part: usize, stage: usize, offset: u64, len: u32) -> Option<Arrival<'_>> {
        let frame = self.frame_of(part, stage, offset, len)?;
        let steps = self.steps(&frame);
        let takes = |step: &Step| step.received().enumerate().find(|(_, hop)| hop.stage == stage);
        let (taker, (number, hop)) =
            steps.iter().enumerate().find_map(|(i, step)| Some((i, takes(step)?)))?;
        let before = steps[..taker].iter().map(|step| step.received().count()).sum();
        Some(Arrival { frame, steps, hop, taker, number, before })
    }

    /// The steps for the unit of the frame with that header, and the index of the one whose value this rank sends as
    /// that frame.
    pub fn departure(
        &self,
        part: usize,
        stage: usize,
        offset: u64,
        len: u32,
    ) -> Option<(Cow<'_, [Step]>, usize)> {
        let steps = self.steps(&self.frame_of(part, stage, offset, len)?);
        let index = steps.iter().position(|step| step.sends.iter().any(|hop| hop.stage == stage))?;
        Some((steps, index))
    }

    /// The frames as which the value of a unit travels there.
    pub fn frames(&self, part: usize, unit: &Unit, hop: Hop) -> impl Iterator<Item = Frame> + '_ {
        let whole = self.whole();
        let frames = whole.is_none().then(|| self.plan.frames_of_unit(part, unit)).into_iter().flatten();
        let frames = frames
            .filter_map(move |frame| if hop.is_plain { self.plan.plain_frame(&frame) } else { Some(frame) });
        whole.into_iter().chain(frames)
    }

    /// Whether whole contributions travel, and not units.
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Whether frames of that stage have elements of a quantised tensor as they are.
    pub fn is_plain(&self, stage: usize) -> bool {
        self.compiler.is_plain(&self.plan, stage)
    }

    /// The values that a unit may get from others, at most.
    pub fn values_max(&self) -> usize {
        self.compiler.values_max(&self.plan)
    }

    /// Every unit, or one for all if they travel as one.
    fn travelling(&self) -> impl Iterator<Item = (Frame, Unit, Cow<'_, [Step]>)> + '_ {
        self.units().take(if self.is_whole { 1 } else { usize::MAX })
    }

    /// How many frames there are to keep account of.
    pub fn slots(&self) -> usize {
        if self.is_whole { 1 } else { self.plan.slots() }
    }

    /// The frame that everything is, if there is only one.
    fn whole(&self) -> Option<Frame> {
        self.compiler.whole()
    }

    /// The frame that a header means.
    fn frame_of(&self, part: usize, stage: usize, offset: u64, len: u32) -> Option<Frame> {
        if let Some(whole) = self.whole() {
            let is_it = (part, offset, len as usize) == (whole.part, whole.offset as u64, whole.len);
            return (is_it && len > 0).then_some(whole);
        }
        if self.is_plain(stage) {
            return self.plan.frame_of_plain(part, offset, len);
        }
        self.plan.frame_anywhere(part, offset, len)
    }
}
