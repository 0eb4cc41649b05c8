//! Threads that try the listeners of peers, so that the loop never waits for one. A newcomer waits for what is found,
//! so each peer has a thread of its own, as long as there are few; the others are tried together by one more.

use super::tickets::Opener;
use crate::state::Input;
use mio::Waker;
use parking_lot::Mutex;
use pccl_protocol::{GroupId, ReachTarget, RunId};
use std::{
    mem,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tinysockets::{
    preamble::{Preamble, Role},
    reach::{Reach, Target, reach_all},
};

/// Most peers that are tried together.
const BATCH_MAX: usize = 128;
/// Most peers that are tried each by a thread of its own.
const THREADS_MAX: usize = 64;

struct Task {
    target: ReachTarget,
    /// From where it comes who is to be reached: what it says of itself may be anything.
    asker: IpAddr,
    group: GroupId,
    limit: Duration,
    /// In a run with a key.
    opener: Option<Opener>,
}

/// See the module's documentation. Threads end by themselves when this is dropped: a connection that is being tried
/// holds nothing of the master.
pub(crate) struct Reacher {
    desk: Desk,
    /// Of the thread for those who have none of their own.
    tasks: Option<Sender<Task>>,
}

/// State that the threads share.
#[derive(Clone)]
struct Desk {
    run: RunId,
    waker: Arc<Waker>,
    answers: Arc<Mutex<Vec<Input>>>,
    /// Threads that try one peer each.
    busy: Arc<AtomicUsize>,
}

impl Reacher {
    pub(crate) fn new(run: RunId, waker: Arc<Waker>) -> Self {
        Self { desk: Desk { run, waker, answers: Arc::default(), busy: Arc::default() }, tasks: None }
    }

    /// Has both listeners of a peer tried, with what opens its door if that takes something.
    pub(crate) fn reach(
        &mut self,
        (target, asker): (ReachTarget, IpAddr),
        (group, limit): (GroupId, Duration),
        opener: Option<Opener>,
    ) {
        let peer = target.peer;
        let task = Task { target, asker, group, limit, opener };
        let Err(task) = self.alone(task) else { return };
        if self.tasks.is_none() {
            let (tasks, queue) = channel();
            let desk = self.desk.clone();
            match thread::Builder::new().name("pccl-reach".into()).spawn(move || desk.work(&queue)) {
                Ok(_) => self.tasks = Some(tasks),
                // Its findings are a hint: rings do without.
                Err(error) => {
                    log::error!("cannot start a thread that tries listeners: {error}");
                    return self.desk.answer(vec![Input::Reached { peer, closed: Vec::new(), unix_us: 0 }]);
                }
            }
        }
        if let Some(tasks) = &self.tasks {
            let _ = tasks.send(task);
        }
    }

    /// Has one peer tried by a thread of its own, if there may be one more.
    fn alone(&self, task: Task) -> Result<(), Task> {
        let desk = self.desk.clone();
        if desk.busy.load(Ordering::Relaxed) >= THREADS_MAX {
            return Err(task);
        }
        desk.busy.fetch_add(1, Ordering::Relaxed);
        // The thread takes the task over once it runs, so that it is not lost with one that cannot be started.
        let shared = Arc::new(Mutex::new(Some(task)));
        let taken = Arc::clone(&shared);
        let spawned = thread::Builder::new().name("pccl-reach".into()).spawn(move || {
            let task = taken.lock().take();
            desk.try_all(task.as_slice());
            desk.busy.fetch_sub(1, Ordering::Relaxed);
        });
        if spawned.is_err() {
            self.desk.busy.fetch_sub(1, Ordering::Relaxed);
            return shared.lock().take().map_or(Ok(()), Err);
        }
        Ok(())
    }

    /// The findings since the last call.
    pub(crate) fn take_answers(&mut self) -> Vec<Input> {
        mem::take(&mut *self.desk.answers.lock())
    }
}

impl Desk {
    fn work(&self, queue: &Receiver<Task>) {
        while let Ok(first) = queue.recv() {
            let tasks: Vec<Task> = std::iter::once(first).chain(queue.try_iter()).take(BATCH_MAX).collect();
            self.try_all(&tasks);
        }
    }

    fn try_all(&self, tasks: &[Task]) {
        let limit = tasks.iter().map(|task| task.limit).max().unwrap_or_default();
        let targets: Vec<Target> = tasks.iter().flat_map(|task| ports(self.run, task)).collect();
        let results = reach_all(&targets, limit);
        let unix_us = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u64;
        let mut found = Vec::with_capacity(tasks.len());
        for (task, results) in tasks.iter().zip(results.chunks_exact(2)) {
            let why = |(at, result): (usize, &Reach)| match result {
                Reach::Failed(text) => Some((at == 1, text.clone())),
                Reach::Reached(_) | Reach::Unknown(_) => None,
            };
            let closed = results.iter().enumerate().filter_map(why).collect();
            found.push(Input::Reached { peer: task.target.peer, closed, unix_us });
        }
        self.answer(found);
    }

    fn answer(&self, found: Vec<Input>) {
        self.answers.lock().extend(found);
        let _ = self.waker.wake();
    }
}

/// The listeners for data and for state.
fn ports(run: RunId, task: &Task) -> [Target; 2] {
    let ReachTarget { peer, hosts, p2p_port, state_port } = &task.target;
    let preamble = Preamble { run: run.0, to: peer.0, group: task.group.0, ..Preamble::new(Role::Check) };
    [*p2p_port, *state_port].map(|port| Target {
        place: hosts.at(port),
        preamble,
        key: task.opener.as_ref().map(|opener| opener.key(&preamble)),
        asker: Some(task.asker),
    })
}
