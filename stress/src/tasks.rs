//! A collective of a peer with its buffers, and checksums of what went in.

use crate::{
    coding::Coding,
    workload::{Buffer, Collective, Job, Part, Place, SEND_TAG, Split, Workload, checksum, with_vector},
};
use pccl::{AsyncReduce, Call, Error, LaunchOptions, Quantisation, ReduceOp, Schedule, Scope, Tensor};

/// One collective of a step.
#[derive(Debug)]
pub(crate) struct Task {
    job: Job,
    workload: Workload,
    peer: u128,
    step: u64,
    /// The place that it was prepared for.
    place: Place,
    /// Buffers that are lent to the library: sent, and in place also overwritten.
    data: Vec<Buffer>,
    /// Where results go, if not in place.
    results: Vec<Buffer>,
    /// Checksums of the input, and of what is in its place before there are results.
    input_hash: u64,
    empty_hash: u64,
    result_hash: Option<u64>,
    given_up: bool,
}

impl Task {
    /// Prepares the buffers of `job` for the peer with this identity, which is in this ring.
    pub(crate) fn new(workload: Workload, peer: u128, step: u64, job: Job, ring: &[u128]) -> Self {
        let place = Place::of(peer, ring).unwrap_or(Place { rank: 0, ranks: 1 });
        let data = workload.inputs(peer, step, &job, place);
        let mut results = Vec::new();
        for (part, input) in job.parts.iter().zip(&data) {
            if let Some(count) = job.received(part, place) {
                results.push(input.repeated(count));
            }
        }
        let (input_hash, empty_hash) = (checksum(&data), checksum(&results));
        Self {
            job,
            workload,
            peer,
            step,
            place,
            data,
            results,
            input_hash,
            empty_hash,
            result_hash: None,
            given_up: false,
        }
    }

    /// Prepares it anew if it depends on the ring and that is another one.
    pub(crate) fn fit(&mut self, ring: &[u128]) {
        let fits = Place::of(self.peer, ring) == Some(self.place);
        if !fits && self.job.collective.depends_on_ring() && !self.is_done() {
            *self = Self::new(self.workload, self.peer, self.step, self.job.clone(), ring);
        }
    }

    pub(crate) fn tag(&self) -> u64 {
        self.job.tag
    }

    pub(crate) fn schedule(&self) -> Schedule {
        self.job.schedule
    }

    /// How its only tensor is reduced.
    pub(crate) fn reduction(&self) -> (ReduceOp, Option<Quantisation>) {
        self.job.parts.first().map_or((ReduceOp::Sum, None), |part| (part.op, quantisation(part)))
    }

    pub(crate) fn is_done(&self) -> bool {
        self.result_hash.is_some() || self.given_up
    }

    /// After a failure it is made again, unless only two take part: who it is for may be gone.
    pub(crate) fn has_failed(&mut self) {
        self.given_up = self.job.collective.is_between_two();
    }

    /// Whether what is sent, or worked on in place, is as it was before; and of a reduce-scatter the result, too. The
    /// content of a buffer that was to be received is undefined.
    pub(crate) fn is_intact(&self) -> bool {
        if self.job.collective == Collective::Recv {
            return true;
        }
        let keeps_results = matches!(self.job.collective, Collective::ReduceScatter(_));
        checksum(&self.data) == self.input_hash
            && (!keeps_results || checksum(&self.results) == self.empty_hash)
    }

    /// Whether a success has left alone what was only to be sent.
    pub(crate) fn has_kept_input(&self) -> bool {
        self.results.is_empty() || checksum(&self.data) == self.input_hash
    }

    /// The buffers that the peer puts into it.
    pub(crate) fn input(&self) -> &[Buffer] {
        &self.data
    }

    /// Takes a result that lies elsewhere; [`Task::complete`] goes by it.
    pub(crate) fn take_result(&mut self, result: Buffer) {
        self.results = vec![result];
    }

    /// Checksum of what is where the result goes.
    pub(crate) fn output_hash(&self) -> u64 {
        checksum(self.result())
    }

    /// Notes the success; returns the checksum of the result.
    pub(crate) fn complete(&mut self) -> u64 {
        let hash = self.output_hash();
        self.result_hash = Some(hash);
        hash
    }

    /// The buffers that hold the result after a success.
    pub(crate) fn result(&self) -> &[Buffer] {
        if self.results.is_empty() { &self.data } else { &self.results }
    }

    /// Checksum of a result that is the same on all peers; 0 of any other, and before there is one.
    pub(crate) fn shared_hash(&self) -> u64 {
        self.result_hash.filter(|_| self.job.collective.is_same_for_all()).unwrap_or(0)
    }

    /// The buffers as one operation with many tensors.
    pub(crate) fn tensors(&mut self) -> Vec<Tensor<'_>> {
        let ways: Vec<_> = self.job.parts.iter().map(|part| (part.op, quantisation(part))).collect();
        let with = |tensor, way: Option<Quantisation>| way.into_iter().fold(tensor, Tensor::quantised);
        if self.results.is_empty() {
            let buffers = self.data.iter_mut().zip(ways);
            return buffers
                .map(
                    |(buffer, (op, way))| with_vector!(buffer, data => with(Tensor::in_place(data, op), way)),
                )
                .collect();
        }
        let mut tensors = Vec::new();
        for ((send, recv), (op, way)) in self.data.iter().zip(&mut self.results).zip(ways) {
            macro_rules! pair {
                ($($variant:ident)*) => {
                    match (send, recv) {
                        $((Buffer::$variant(send), Buffer::$variant(recv)) => {
                            tensors.extend(Tensor::out_of_place(send, recv, op).map(|tensor| with(tensor, way)));
                        })*
                        _ => {}
                    }
                };
            }
            pair!(F16 F32 F64 I64 U8);
        }
        tensors
    }
}

fn quantisation(part: &Part) -> Option<Quantisation> {
    part.coding.map(Coding::quantisation)
}

/// Launches `task`, of which an all-reduce has one tensor.
pub(crate) fn launch<'scope, 'env>(
    scope: &'scope Scope<'scope, 'env>,
    task: &'env mut Task,
) -> Result<AsyncReduce<'scope>, Error> {
    let tag = if task.job.collective.is_between_two() { SEND_TAG } else { task.tag() };
    let options = LaunchOptions { schedule: task.schedule(), ..tag.into() };
    scope.launch(call(task)?, options)
}

/// The collective of `task` with its buffers.
fn call(task: &mut Task) -> Result<Call<'_>, Error> {
    let (job, ranks) = (&task.job, task.place.ranks);
    let root = job.root(ranks);
    let counts: Vec<u64> = job.counts(ranks).into_iter().map(|count| count as u64).collect();
    let weight = task.workload.weight(task.peer, task.step, job);
    let Some(part) = job.parts.first() else { return Ok(Call::barrier()) };
    let (op, collective, way) = (part.op, job.collective, quantisation(part));
    let Some(data) = task.data.first_mut() else {
        return Err(Error::InvalidArgument("an operation without tensors".into()));
    };
    macro_rules! pair {
        ($recv:expr, |$send:ident, $into:ident| $make:expr) => {
            pair!($recv, |$send, $into| $make, F16 F32 F64 I64 U8)
        };
        ($recv:expr, |$send:ident, $into:ident| $make:expr, $($variant:ident)*) => {
            match (&*data, $recv) {
                $((Buffer::$variant($send), Buffer::$variant($into)) => {
                    let ($send, $into) = (&$send[..], &mut $into[..]);
                    $make
                })*
                _ => return Err(Error::InvalidArgument("send and receive buffer differ in type".into())),
            }
        };
    }
    let call = match (collective, task.results.first_mut()) {
        (Collective::AllReduce, None) => {
            with_vector!(data, data => Call::all_reduce(vec![Tensor::in_place(data, op)]))
        }
        (Collective::AllReduce, Some(recv)) => {
            let tensor = pair!(recv, |send, recv| Tensor::out_of_place(send, recv, op))?;
            Call::all_reduce(vec![tensor])
        }
        (Collective::Broadcast, _) => with_vector!(data, data => Call::broadcast(&mut data[..], root)),
        (Collective::Reduce, _) => with_vector!(data, data => Call::reduce(&mut data[..], root, op)),
        (Collective::WeightedAverage, _) => {
            with_vector!(data, data => Call::weighted_average(&mut data[..], weight))
        }
        (Collective::AllGather(Split::Equal), Some(recv)) => {
            pair!(recv, |send, recv| Call::all_gather(send, recv))
        }
        (Collective::AllGather(Split::Counts), Some(recv)) => {
            pair!(recv, |send, recv| Call::all_gather_counts(send, recv, &counts))
        }
        (Collective::ReduceScatter(Split::Equal), Some(recv)) => {
            pair!(recv, |send, recv| Call::reduce_scatter(send, recv, op))
        }
        (Collective::ReduceScatter(Split::Counts), Some(recv)) => {
            pair!(recv, |send, recv| Call::reduce_scatter_counts(send, recv, &counts, op))
        }
        (Collective::AllToAll, Some(recv)) => pair!(recv, |send, recv| Call::all_to_all(send, recv)),
        (Collective::Gather, Some(recv)) => pair!(recv, |send, recv| Call::gather(send, recv, root)),
        (Collective::Barrier, _) => Call::barrier(),
        (Collective::Send, _) => with_vector!(data, data => Call::send(&data[..], task.place.next())),
        (Collective::Recv, _) => with_vector!(data, data => Call::recv(&mut data[..], task.place.previous())),
        (
            Collective::AllGather(_)
            | Collective::ReduceScatter(_)
            | Collective::AllToAll
            | Collective::Gather,
            None,
        ) => {
            return Err(Error::InvalidArgument("no buffer for the result".into()));
        }
    };
    Ok(call.quantised(way))
}
