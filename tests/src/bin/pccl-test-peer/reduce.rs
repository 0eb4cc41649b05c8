//! The commands that reduce. After each failed attempt they check that what was put in is still there, bit by bit.

use crate::{Reply, buffer::Buffer, failed, failed_with, kind, usage, world};
use pccl::{Communicator, Error, ManyOptions, ReduceInfo, ReduceOptions, Remedy, Schedule, Tensor};
use pccl_tests::{pattern, spec::Spec};
use std::{collections::BTreeSet, time::Instant};

/// A tensor with its input and its memory.
pub(crate) struct Job {
    pub(crate) spec: Spec,
    input: Vec<u8>,
    send: Buffer,
    recv: Option<Buffer>,
}

impl Job {
    fn new(spec: Spec, index: usize) -> Self {
        let input = spec.input(index);
        let send = Buffer::new(spec.data_type, &input);
        // The receive buffer starts with anything: nothing of it may show up in the result.
        let recv = (!spec.in_place).then(|| Buffer::new(spec.data_type, &vec![0xA5; input.len()]));
        Self { spec, input, send, recv }
    }

    pub(crate) fn parse(text: &str, index: usize) -> Result<Self, String> {
        Ok(Self::new(text.parse().map_err(|text: String| usage(&text))?, index))
    }

    pub(crate) fn tensor(&mut self) -> Result<Tensor<'_>, Error> {
        match &mut self.recv {
            None => Ok(self.send.in_place(self.spec.op)),
            Some(recv) => self.send.out_of_place(recv, self.spec.op),
        }
        .map(|tensor| match self.spec.quantisation {
            None => tensor,
            Some(quantisation) => tensor.quantised(quantisation),
        })
    }

    fn options(&self, tag: u64, schedule: Schedule) -> ReduceOptions {
        let options = ReduceOptions::new(self.spec.op).tag(tag).schedule(schedule);
        self.spec.quantisation.map_or(options, |quantisation| options.quantisation(quantisation))
    }

    /// Whether what was put in is still there: after a failure always, after a success out of place.
    fn is_input_intact(&self) -> bool {
        self.send.bytes() == self.input
    }

    /// The input.
    pub(crate) fn input(&self) -> &[u8] {
        &self.input
    }

    /// The present content of the input's place.
    pub(crate) fn sent(&self) -> &[u8] {
        self.send.bytes()
    }

    /// The result.
    pub(crate) fn result(&self) -> &[u8] {
        self.recv.as_ref().unwrap_or(&self.send).bytes()
    }

    fn digest(&self) -> String {
        pattern::digest(self.result())
    }
}

/// The events so far.
struct Story {
    failures: Vec<String>,
    intact: bool,
    longest_ms: u128,
    /// When the last attempt was over, in microseconds of the system's clock.
    over_us: u128,
    text: String,
}

impl Story {
    fn new() -> Self {
        Self { failures: Vec::new(), intact: true, longest_ms: 0, over_us: 0, text: String::new() }
    }

    fn note(&mut self, error: &Error, jobs: &[Job]) {
        self.failures.push(kind(error));
        self.intact &= jobs.iter().all(Job::is_input_intact);
        self.text = error.to_string().replace('\n', " ");
    }

    fn fields(&self) -> String {
        format!(
            "failures={} errors={} restored={} longest_ms={} over_us={}",
            self.failures.len(),
            self.failures.join("|"),
            self.intact,
            self.longest_ms,
            self.over_us
        )
    }
}

fn answer(comm: &Communicator, story: &Story, jobs: &[Job], result: Result<ReduceInfo, Error>) -> Reply {
    let out_of_place_intact = jobs.iter().all(|job| job.spec.in_place || job.is_input_intact());
    match result {
        Ok(info) => {
            let digests: Vec<_> = jobs.iter().map(Job::digest).collect();
            Ok(format!(
                "participants={} own={} algorithm={} tx={} rx={} digests={} sent={out_of_place_intact} {} {} -- {}",
                info.world_size,
                info.rank,
                info.algorithm,
                info.tx_bytes,
                info.rx_bytes,
                digests.join(","),
                story.fields(),
                world(&comm.world()),
                story.text
            ))
        }
        Err(error) => {
            let digests: Vec<_> = jobs.iter().map(Job::digest).collect();
            let fields = format!("digests={} {} {}", digests.join(","), story.fields(), world(&comm.world()));
            Err(failed_with(&error, &fields))
        }
    }
}

fn parse(words: &[&str]) -> Result<(u64, u32, Schedule), String> {
    let (&[_, tag, retries] | &[_, tag, retries, _]) = words else {
        return Err(usage("TENSORS TAG RETRIES [SCHEDULE]"));
    };
    let schedule = match words.get(3) {
        None | Some(&"automatic") => Schedule::Automatic,
        Some(&"ring") => Schedule::Ring,
        Some(&"pairwise") => Schedule::Pairwise,
        Some(&"sites") => Schedule::Sites,
        Some(_) => return Err(usage("schedule")),
    };
    Ok((tag.parse().map_err(|_| usage("tag"))?, retries.parse().map_err(|_| usage("retries"))?, schedule))
}

/// `reduce TENSOR TAG RETRIES [SCHEDULE]`; `announced` says so on a line of its own just before the first attempt.
pub(crate) fn one(comm: &Communicator, index: usize, words: &[&str], announced: bool) -> Reply {
    let (tag, retries, schedule) = parse(words)?;
    let mut jobs = [Job::parse(words[0], index)?];
    let mut story = Story::new();
    if announced {
        crate::say("note begun");
    }
    let result = loop {
        let job = &mut jobs[0];
        let options = job.options(tag, schedule);
        let begun = Instant::now();
        let result = match &mut job.recv {
            None => job.send.all_reduce(comm, options),
            Some(recv) => job.send.all_reduce_into(recv, comm, options),
        };
        story.longest_ms = story.longest_ms.max(begun.elapsed().as_millis());
        story.over_us = std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_micros());
        if let Err(error) = &result {
            story.note(error, &jobs);
        }
        match result {
            Err(error) if error.is_retryable() && story.failures.len() <= retries as usize => {}
            other => break other,
        }
    };
    answer(comm, &story, &jobs, result)
}

/// `many TENSOR,TENSOR,... TAG RETRIES [SCHEDULE]`; with fewer than 100 retries we retry here, and look at the tensors
/// in between.
pub(crate) fn many(comm: &Communicator, index: usize, words: &[&str]) -> Reply {
    let (tag, retries, schedule) = parse(words)?;
    let mut jobs: Vec<_> =
        words[0].split(',').map(|text| Job::parse(text, index)).collect::<Result<_, _>>()?;
    let mut story = Story::new();
    let inside = if retries < 100 { 0 } else { retries };
    let result = loop {
        let result = {
            let tensors: Result<Vec<_>, _> = jobs.iter_mut().map(Job::tensor).collect();
            let mut tensors = tensors.map_err(|error| failed(&error))?;
            comm.all_reduce_many(&mut tensors, ManyOptions { tag, retries: inside, schedule, timeout: None })
        };
        if let Err(error) = &result {
            story.note(error, &jobs);
        }
        match result {
            Err(error) if error.is_retryable() && inside == 0 && story.failures.len() <= retries as usize => {
            }
            other => break other,
        }
    };
    answer(comm, &story, &jobs, result)
}

/// `scope TENSOR@TAG,TENSOR@TAG,... TAG RETRIES [SCHEDULE]`: all at once; those that fail are launched again in the
/// next round.
pub(crate) fn scope(comm: &Communicator, index: usize, words: &[&str]) -> Reply {
    let (_, retries, schedule) = parse(words)?;
    let mut open: Vec<(usize, u64, Job)> = Vec::new();
    for (position, word) in words[0].split(',').enumerate() {
        let (text, tag) = word.split_once('@').ok_or_else(|| usage(word))?;
        open.push((position, tag.parse().map_err(|_| usage(word))?, Job::parse(text, index)?));
    }
    let mut done: Vec<(usize, String)> = Vec::new();
    let mut story = Story::new();
    let mut participants = 0;
    let mut algorithms = BTreeSet::new();
    while !open.is_empty() {
        let results: Vec<Result<ReduceInfo, Error>> = comm.scope(|scope| {
            let mut launched = Vec::new();
            for (_, tag, job) in &mut open {
                let options = job.options(*tag, schedule);
                launched.push(match &mut job.recv {
                    None => job.send.launch(scope, options),
                    Some(recv) => job.send.launch_into(recv, scope, options),
                });
            }
            launched.into_iter().map(|op| op.and_then(pccl::AsyncReduce::wait)).collect()
        });
        let mut failed = Vec::new();
        for ((position, tag, job), result) in std::mem::take(&mut open).into_iter().zip(results) {
            match result {
                Ok(info) => {
                    participants = info.world_size;
                    algorithms.insert(info.algorithm.to_string());
                    done.push((position, job.digest()));
                }
                Err(error) => {
                    let job = [job];
                    story.note(&error, &job);
                    if error.remedy() != Remedy::Retry || story.failures.len() > retries as usize {
                        return Err(failed_with(&error, &story.fields()));
                    }
                    let [job] = job;
                    failed.push((position, tag, job));
                }
            }
        }
        open = failed;
    }
    done.sort();
    let digests: Vec<_> = done.into_iter().map(|(_, digest)| digest).collect();
    let algorithms: Vec<_> = algorithms.into_iter().collect();
    Ok(format!(
        "participants={participants} algorithm={} digests={} {} {}",
        algorithms.join("|"),
        digests.join(","),
        story.fields(),
        world(&comm.world())
    ))
}

/// `busy TENSOR TAG 0`: launches the operation, tries everything that is refused meanwhile, and waits.
pub(crate) fn busy(comm: &Communicator, index: usize, words: &[&str]) -> Reply {
    let (tag, _, schedule) = parse(words)?;
    let mut job = Job::parse(words[0], index)?;
    let (mut second, mut state_tensor) = (vec![0f32; 8], vec![0f32; 8]);
    let (result, refused) = comm.scope(|scope| {
        let options = job.options(tag, schedule);
        let op = match job.send.launch(scope, options) {
            Ok(op) => op,
            Err(error) => return (Err(error), Vec::new()),
        };
        let again = scope.all_reduce(&mut second, options).map(pccl::AsyncReduce::wait);
        let mut state = pccl::SharedState::new(0);
        let sync = state
            .tensor("w", &mut state_tensor)
            .map(drop)
            .and_then(|()| comm.sync_shared_state(&mut state, pccl::SyncStrategy::EnforcePopular));
        let refused =
            [comm.update_topology().err(), comm.wait_for_world(2, None).err(), sync.err(), again.err()];
        let pending = comm.are_peers_pending();
        let mut words: Vec<_> = refused.iter().map(|e| e.as_ref().map_or("none".into(), kind)).collect();
        words.push(pending.map_or_else(|error| kind(&error), |pending| format!("pending:{pending}")));
        (op.wait(), words)
    });
    let refused = refused.join("|");
    answer(comm, &Story::new(), &[job], result).map(|fields| format!("refused={refused} {fields}"))
}
