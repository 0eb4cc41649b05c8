//! One step of training: collectives that run at the same time, and the update of the state by their results.

use super::{Gradients, Halt, Peer, StepEnd, failure, report};
use crate::{
    event::{Call, Completed, Event},
    jobs::{MANY_TAG, PIPELINED_TAGS},
    tasks::{self, Task},
    workload::Buffer,
};
use pccl::{Algorithm, AsyncReduce, Error, LaunchOptions, ManyOptions, ReduceInfo, Remedy};
use pccl_testkit::random::mix;
use std::time::Duration;

impl Peer {
    pub(super) fn step(&mut self) -> Result<StepEnd, Halt> {
        let (workload, step, ring) = (self.settings.workload, self.revision, self.ring());
        let jobs = workload.concurrent_jobs(step).into_iter().chain(workload.other_jobs(step));
        // All members know the same ring now, and so who is whose neighbour.
        let jobs = jobs.chain(workload.pair_jobs(step).into_iter().filter(|_| ring.len() > 1));
        let mut tasks: Vec<Task> = jobs.map(|job| Task::new(workload, self.me, step, job, &ring)).collect();
        let mut ask = step.is_multiple_of(2);
        while tasks.iter().any(|task| !task.is_done()) {
            if let StepEnd::Alone = self.round(&mut tasks, ask)? {
                return Ok(StepEnd::Alone);
            }
            ask = false;
        }
        let end = match self.settings.gradients {
            Gradients::AtOnce => self.reduce_many(&mut tasks)?,
            Gradients::Pipelined => self.pipeline(&mut tasks)?,
            Gradients::InSegments => self.reduce_in_segments(&mut tasks)?,
        };
        if let StepEnd::Complete = end {
            self.update(&tasks);
        }
        Ok(end)
    }

    /// One operation with many tensors. Sometimes the library tries again by itself, sometimes this loop does.
    fn reduce_many(&self, tasks: &mut Vec<Task>) -> Result<StepEnd, Halt> {
        let (workload, step) = (self.settings.workload, self.revision);
        let retries = if step.is_multiple_of(5) { 0 } else { u32::MAX };
        let mut many = Task::new(workload, self.me, step, workload.many_job(step, MANY_TAG), &[]);
        while !many.is_done() {
            let before = self.ring();
            let options =
                ManyOptions { tag: MANY_TAG, retries, schedule: many.schedule(), ..ManyOptions::default() };
            let result = self.comm.all_reduce_many(&mut many.tensors(), options);
            if let StepEnd::Alone = self.conclude(&mut many, &before, result)? {
                return Ok(StepEnd::Alone);
            }
        }
        tasks.push(many);
        Ok(StepEnd::Complete)
    }

    /// Inner steps: the gradients of each are on their way while the next one computes, and are awaited in it.
    fn pipeline(&self, tasks: &mut Vec<Task>) -> Result<StepEnd, Halt> {
        let (workload, step) = (self.settings.workload, self.revision);
        let jobs = PIPELINED_TAGS.map(|tag| workload.many_job(step, tag));
        let mut inner: Vec<Task> = jobs.map(|job| Task::new(workload, self.me, step, job, &[])).collect();
        let compute = Duration::from_millis(self.settings.step_ms) / 8;
        while inner.iter().any(|task| !task.is_done()) {
            let before = self.ring();
            let results = self.comm.scope(|scope| {
                let (mut results, mut flying) = (Vec::new(), None);
                let mut land = |flight: Option<(usize, Result<AsyncReduce<'_>, Error>)>| {
                    results.extend(flight.map(|(index, one)| (index, one.and_then(AsyncReduce::wait))));
                };
                for (index, task) in inner.iter_mut().enumerate().filter(|(_, task)| !task.is_done()) {
                    let options = LaunchOptions { schedule: task.schedule(), ..task.tag().into() };
                    let launched = scope.all_reduce_many(task.tensors(), options);
                    std::thread::sleep(compute);
                    land(flying.replace((index, launched)));
                }
                land(flying);
                results
            });
            if let StepEnd::Alone = self.conclude_all(&mut inner, &before, results)? {
                return Ok(StepEnd::Alone);
            }
        }
        tasks.append(&mut inner);
        Ok(StepEnd::Complete)
    }

    /// Runs all tasks that are not done yet at the same time. With `ask`, asks meanwhile whether peers are pending.
    fn round(&mut self, tasks: &mut [Task], ask: bool) -> Result<StepEnd, Halt> {
        let before = self.ring();
        tasks.iter_mut().for_each(|task| task.fit(&before));
        let comm = &self.comm;
        let (results, pending) = comm.scope(|scope| {
            let open = tasks.iter_mut().enumerate().filter(|(_, task)| !task.is_done());
            let launched: Vec<_> = open.map(|(index, task)| (index, tasks::launch(scope, task))).collect();
            let pending = ask.then(|| comm.are_peers_pending());
            let wait = |(index, launched): (usize, Result<AsyncReduce<'_>, Error>)| {
                (index, launched.and_then(AsyncReduce::wait))
            };
            (launched.into_iter().map(wait).collect::<Vec<_>>(), pending)
        });
        let end = self.conclude_all(tasks, &before, results);
        match (end, pending) {
            (Ok(end), Some(Ok(pending))) => {
                self.pending = Some(pending);
                Ok(end)
            }
            (Ok(_), Some(Err(error))) => Err(self.lost(&error)),
            (end, _) => end,
        }
    }

    /// Reports the results of calls that ran at the same time. All are reported; the first reason to stop counts.
    fn conclude_all(
        &self,
        tasks: &mut [Task],
        before: &[u128],
        results: Vec<(usize, Result<ReduceInfo, Error>)>,
    ) -> Result<StepEnd, Halt> {
        let mut end = Ok(StepEnd::Complete);
        for (index, result) in results {
            match (self.conclude(&mut tasks[index], before, result), &end) {
                (_, Err(_)) | (Ok(StepEnd::Complete), _) => {}
                (other, Ok(_)) => end = other,
            }
        }
        end
    }

    /// Reports the result of a call and says how to go on.
    fn conclude(
        &self,
        task: &mut Task,
        before: &[u128],
        result: Result<ReduceInfo, Error>,
    ) -> Result<StepEnd, Halt> {
        match result {
            Ok(info) => {
                if !task.has_kept_input() {
                    return Err(Halt::Fatal(format!(
                        "tag {}: a success changed the send buffer",
                        task.tag()
                    )));
                }
                let hash = task.complete();
                report(Event::Completed(Completed {
                    step: self.revision,
                    tag: task.tag(),
                    world: info.world_size,
                    rank: Some(info.rank),
                    pairwise: Some(info.algorithm == Algorithm::Pairwise),
                    hash,
                    before: before.to_vec(),
                    after: self.ring(),
                }));
                Ok(StepEnd::Complete)
            }
            Err(error) => {
                // With an unknown outcome the buffer holds the result; the supervisor is told which.
                let intact = matches!(error, Error::OutcomeUnknown(_)) || task.is_intact();
                report(failure(Call::Collective(task.tag()), self.revision, intact, &error));
                if let Error::OutcomeUnknown(_) = error {
                    report(Event::Unresolved(Completed {
                        step: self.revision,
                        tag: task.tag(),
                        world: before.len(),
                        rank: None,
                        pairwise: None,
                        hash: task.output_hash(),
                        before: before.to_vec(),
                        after: self.ring(),
                    }));
                }
                match error.remedy() {
                    Remedy::Retry => {
                        task.has_failed();
                        Ok(StepEnd::Complete)
                    }
                    Remedy::WaitForPeers => Ok(StepEnd::Alone),
                    _ => Err(self.lost(&error)),
                }
            }
        }
    }

    /// Element-wise and deterministic: equal results keep equal states equal. The last task has the gradient.
    fn update(&mut self, tasks: &[Task]) {
        let noise = tasks.iter().map(Task::shared_hash).fold(0, |all, hash| all ^ hash);
        if let (Buffer::F32(weights), Some(Buffer::F32(gradient))) =
            (&mut self.weights, tasks.last().and_then(|task| task.result().first()))
        {
            for (weight, &slope) in weights.iter_mut().zip(gradient.iter().cycle()) {
                *weight = *weight * 0.9 + slope;
            }
        }
        if let Buffer::F64(momentum) = &mut self.momentum {
            for (index, value) in momentum.iter_mut().enumerate() {
                *value = *value * 0.5 + (noise.rotate_left(index as u32) >> 32) as f64;
            }
        }
        if let Buffer::I64(ballast) = &mut self.ballast {
            change_some(ballast, noise ^ self.revision);
        }
        self.revision += 1;
    }
}

/// Elements of a MiB.
const MIB: usize = (1 << 20) / size_of::<i64>();

/// Changes an eighth of the MiBs, chosen by `noise`: after a few steps hardly one is as it was, and who was away for
/// one step misses few.
fn change_some(ballast: &mut [i64], noise: u64) {
    for (number, piece) in ballast.chunks_mut(MIB).enumerate() {
        let draw = mix(noise ^ mix(number as u64));
        if draw.is_multiple_of(8) {
            for value in piece.iter_mut().step_by(1000) {
                *value = value.wrapping_add(draw as i64);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_changes_some_mebibytes_and_many_steps_change_all() {
        let mut ballast = vec![0; 64 * MIB];
        change_some(&mut ballast, 1);
        let changed =
            |ballast: &[i64]| ballast.chunks(MIB).filter(|piece| piece.iter().any(|x| *x != 0)).count();
        assert!((1..32).contains(&changed(&ballast)));
        (2..100).for_each(|noise| change_some(&mut ballast, noise));
        assert_eq!(changed(&ballast), 64);
    }
}
