//! Threads that plan rings, so that the loop never waits for one: one for those that callers wait for, one for those
//! that nobody waits for.

use crate::state::{Input, PlanKey};
use mio::Waker;
use parking_lot::Mutex;
use pccl_planner::Job;
use std::{
    collections::BTreeMap,
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

struct Task {
    plan: PlanKey,
    job: Job,
    dropped: Arc<AtomicBool>,
}

/// A thread and its queue.
struct Worker {
    tasks: Sender<Task>,
    thread: JoinHandle<()>,
}

/// See the module's documentation. Threads are started when there is something to plan.
pub(crate) struct Planner {
    waker: Arc<Waker>,
    answers: Arc<Mutex<Vec<Input>>>,
    /// Plans without an answer.
    open: BTreeMap<PlanKey, Arc<AtomicBool>>,
    urgent: Option<Worker>,
    background: Option<Worker>,
}

impl Planner {
    pub(crate) fn new(waker: Arc<Waker>) -> Self {
        let (open, answers) = (BTreeMap::new(), Arc::default());
        Self { waker, answers, open, urgent: None, background: None }
    }

    /// Has a ring planned.
    pub(crate) fn plan(&mut self, plan: PlanKey, job: Job, background: bool) {
        let dropped = Arc::new(AtomicBool::new(false));
        let task = Task { plan, job, dropped: Arc::clone(&dropped) };
        let slot = if background { &mut self.background } else { &mut self.urgent };
        if slot.is_none() {
            *slot = Worker::start(&self.answers, &self.waker)
                .map_err(|error| log::error!("cannot start a thread that plans rings: {error}"))
                .ok();
        }
        // Without a thread the state's deadline ends the wait.
        if let Some(worker) = slot
            && worker.tasks.send(task).is_ok()
        {
            self.open.insert(plan, dropped);
        }
    }

    /// Nobody wants this plan any more.
    pub(crate) fn drop_plan(&mut self, plan: PlanKey) {
        if let Some(dropped) = self.open.remove(&plan) {
            dropped.store(true, Ordering::Relaxed);
        }
    }

    /// The answers that have come since the last call.
    pub(crate) fn take_answers(&mut self) -> Vec<Input> {
        let answers = mem::take(&mut *self.answers.lock());
        for answer in &answers {
            if let Input::Planned { plan, .. } = answer {
                self.open.remove(plan);
            }
        }
        answers
    }
}

impl Drop for Planner {
    fn drop(&mut self) {
        self.open.values().for_each(|dropped| dropped.store(true, Ordering::Relaxed));
        for worker in [self.urgent.take(), self.background.take()].into_iter().flatten() {
            drop(worker.tasks);
            let _ = worker.thread.join();
        }
    }
}

impl Worker {
    fn start(answers: &Arc<Mutex<Vec<Input>>>, waker: &Arc<Waker>) -> std::io::Result<Self> {
        let (tasks, queue) = channel();
        let (answers, waker) = (Arc::clone(answers), Arc::clone(waker));
        let thread =
            thread::Builder::new().name("pccl-plan".into()).spawn(move || work(&queue, &answers, &waker))?;
        Ok(Self { tasks, thread })
    }
}

fn work(queue: &Receiver<Task>, answers: &Mutex<Vec<Input>>, waker: &Waker) {
    while let Ok(Task { plan, job, dropped }) = queue.recv() {
        let deadline = Instant::now() + job.budget;
        let mut left = || match dropped.load(Ordering::Relaxed) {
            true => Duration::ZERO,
            false => deadline.saturating_duration_since(Instant::now()),
        };
        if left().is_zero() {
            continue;
        }
        // A defect of the planner costs the better ring, not the master.
        let result = catch_unwind(AssertUnwindSafe(|| job.run(&mut left)))
            .unwrap_or_else(|_| Err("internal error of the planner".into()));
        answers.lock().push(Input::Planned { plan, result });
        let _ = waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mio::{Poll, Token};
    use pccl_planner::JobLink;

    /// Peers spread over a plane, which for many of them keeps a search busy.
    fn job(peers: usize, budget: Duration) -> Job {
        let place = |peer: usize| [peer * 7_919 % 1_009, peer * 104_729 % 1_013];
        let apart = |at: usize| {
            let (a, b) = (place(at / peers), place(at % peers));
            let squares = (0..2).map(|axis| (a[axis] as f64 - b[axis] as f64).powi(2));
            squares.sum::<f64>().sqrt() as u32
        };
        Job {
            names: (0..peers).map(|peer| peer.to_string()).collect(),
            present: (0..peers).collect(),
            links: (0..peers * peers)
                .map(|at| Some(JobLink { kbit_s: 100_000, latency_us: 10 + apart(at) }))
                .collect(),
            places: (0..peers).collect(),
            seed: 1,
            exact_peers: 16,
            budget,
        }
    }

    fn planner() -> (Poll, Planner) {
        let poll = Poll::new().expect("poll");
        let waker = Waker::new(poll.registry(), Token(0)).expect("waker");
        (poll, Planner::new(Arc::new(waker)))
    }

    fn answer(planner: &mut Planner) -> Input {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            assert!(Instant::now() < deadline, "no answer");
            if let Some(answer) = planner.take_answers().pop() {
                return answer;
            }
            thread::yield_now();
        }
    }

    #[test]
    fn what_is_urgent_does_not_wait_for_the_background() {
        let (_poll, mut planner) = planner();
        planner.plan(PlanKey(1), job(300, Duration::from_secs(3_600)), true);
        planner.plan(PlanKey(2), job(6, Duration::from_secs(60)), false);
        let Input::Planned { plan, result } = answer(&mut planner) else { panic!("another input") };
        assert_eq!((plan, result.map(|answer| answer.order.len())), (PlanKey(2), Ok(6)));
        // The end of the planner does not wait for the hour.
        let began = Instant::now();
        drop(planner);
        assert!(began.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn a_dropped_plan_ends_early() {
        let (_poll, mut planner) = planner();
        planner.plan(PlanKey(1), job(300, Duration::from_secs(3_600)), true);
        planner.drop_plan(PlanKey(1));
        planner.plan(PlanKey(2), job(5, Duration::from_secs(60)), true);
        loop {
            if let Input::Planned { plan: PlanKey(2), .. } = answer(&mut planner) {
                break;
            }
        }
    }
}
