//! An all-reduce of a peer with its buffers, and a copy of what went in.

use crate::{
    coding::Coding,
    workload::{Buffer, Job, Part, Workload, checksum, with_vector},
};
use pccl::{AsyncReduce, Error, Quantisation, ReduceOptions, Schedule, Scope, Tensor};

/// One all-reduce of a step.
#[derive(Debug)]
pub(crate) struct Task {
    job: Job,
    /// What is lent to the library: sent, and in place also overwritten.
    data: Vec<Buffer>,
    /// Where results go, if not in place.
    results: Vec<Buffer>,
    /// Checksum of the input.
    input_hash: u64,
    result_hash: Option<u64>,
}

impl Task {
    /// Prepares the buffers of `job` for the peer with this identity.
    pub(crate) fn new(workload: &Workload, peer: u128, step: u64, job: Job) -> Self {
        let data = workload.inputs(peer, step, &job);
        // The own input is no right result of two or more peers, so one that was never written is noticed.
        let results = if job.in_place { Vec::new() } else { data.clone() };
        let input_hash = checksum(&data);
        Self { job, data, results, input_hash, result_hash: None }
    }

    pub(crate) fn tag(&self) -> u64 {
        self.job.tag
    }

    pub(crate) fn schedule(&self) -> Schedule {
        if self.job.pairwise { Schedule::Pairwise } else { Schedule::Automatic }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.result_hash.is_some()
    }

    /// Whether what is sent, or reduced in place, is as it was before.
    pub(crate) fn is_intact(&self) -> bool {
        checksum(&self.data) == self.input_hash
    }

    /// Whether a success has left alone what was only to be sent.
    pub(crate) fn has_kept_input(&self) -> bool {
        self.job.in_place || self.is_intact()
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
        if self.job.in_place { &self.data } else { &self.results }
    }

    /// Checksum of the result, 0 before there is one.
    pub(crate) fn result_hash(&self) -> u64 {
        self.result_hash.unwrap_or(0)
    }

    /// The buffers as one operation with many tensors.
    pub(crate) fn tensors(&mut self) -> Vec<Tensor<'_>> {
        let ways: Vec<_> = self.job.parts.iter().map(|part| (part.op, quantisation(part))).collect();
        let with = |tensor, way: Option<Quantisation>| way.into_iter().fold(tensor, Tensor::quantised);
        if self.job.in_place {
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

/// Launches the first buffer of `task` as an asynchronous all-reduce.
pub(crate) fn launch<'scope, 'env>(
    scope: &'scope Scope<'scope, 'env>,
    task: &'env mut Task,
) -> Result<AsyncReduce<'scope>, Error> {
    let part = &task.job.parts[0];
    let mut options = ReduceOptions::new(part.op).tag(task.job.tag).schedule(task.schedule());
    options.quantisation = quantisation(part);
    let Some(send) = task.data.first_mut() else {
        return Err(Error::InvalidArgument("an operation without tensors".into()));
    };
    macro_rules! pair {
        ($recv:expr, $($variant:ident)*) => {
            match (&*send, $recv) {
                $((Buffer::$variant(send), Buffer::$variant(recv)) => scope.all_reduce_into(send, recv, options),)*
                _ => Err(Error::InvalidArgument("send and receive buffer differ in type".into())),
            }
        };
    }
    match task.results.first_mut() {
        None => with_vector!(send, data => scope.all_reduce(data, options)),
        Some(recv) => pair!(recv, F16 F32 F64 I64 U8),
    }
}
