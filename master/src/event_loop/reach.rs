//! A thread that tries the listeners of peers, so that the loop never waits for one. Those who register while it is at
//! work are tried together when it is done.

use crate::state::Input;
use mio::Waker;
use parking_lot::Mutex;
use pccl_protocol::{GroupId, ReachTarget, RunId};
use std::{
    mem,
    sync::{
        Arc,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::Duration,
};
use tinysockets::{
    address::HostPort,
    preamble::{Preamble, Role},
    reach::{Reach, Target, reach_all},
};

/// Most peers that are tried together.
const BATCH_MAX: usize = 128;

struct Task {
    target: ReachTarget,
    group: GroupId,
    limit: Duration,
}

/// See the module's documentation. The thread is started with the first peer. It ends by itself when this is dropped:
/// a connection that is being tried holds nothing of the master.
pub(super) struct Reacher {
    run: RunId,
    waker: Arc<Waker>,
    answers: Arc<Mutex<Vec<Input>>>,
    tasks: Option<Sender<Task>>,
}

impl Reacher {
    pub(super) fn new(run: RunId, waker: Arc<Waker>) -> Self {
        Self { run, waker, answers: Arc::default(), tasks: None }
    }

    /// Has both listeners of a peer tried.
    pub(super) fn reach(&mut self, target: ReachTarget, group: GroupId, limit: Duration) {
        if self.tasks.is_none() {
            let (tasks, queue) = channel();
            let (run, answers, waker) = (self.run, Arc::clone(&self.answers), Arc::clone(&self.waker));
            let spawned = thread::Builder::new()
                .name("pccl-reach".into())
                .spawn(move || work(run, &queue, &answers, &waker));
            match spawned {
                Ok(_) => self.tasks = Some(tasks),
                // What it finds is a hint: rings do without.
                Err(error) => return log::error!("cannot start a thread that tries listeners: {error}"),
            }
        }
        if let Some(tasks) = &self.tasks {
            let _ = tasks.send(Task { target, group, limit });
        }
    }

    /// What was found since the last call.
    pub(super) fn take_answers(&mut self) -> Vec<Input> {
        mem::take(&mut *self.answers.lock())
    }
}

fn work(run: RunId, queue: &Receiver<Task>, answers: &Mutex<Vec<Input>>, waker: &Waker) {
    while let Ok(first) = queue.recv() {
        let tasks: Vec<Task> = std::iter::once(first).chain(queue.try_iter()).take(BATCH_MAX).collect();
        let limit = tasks.iter().map(|task| task.limit).max().unwrap_or_default();
        let targets: Vec<Target> = tasks.iter().flat_map(|task| ports(run, task)).collect();
        let results = reach_all(&targets, limit);
        let mut found = Vec::with_capacity(tasks.len());
        for (task, results) in tasks.iter().zip(results.chunks_exact(2)) {
            let why = |(at, result): (usize, &Reach)| match result {
                Reach::Failed(text) => Some((at == 1, text.clone())),
                Reach::Reached | Reach::Unknown(_) => None,
            };
            let closed = results.iter().enumerate().filter_map(why).collect();
            found.push(Input::Reached { peer: task.target.peer, closed });
        }
        answers.lock().extend(found);
        let _ = waker.wake();
    }
}

/// The listeners for data and for state.
fn ports(run: RunId, task: &Task) -> [Target; 2] {
    let ReachTarget { peer, host, p2p_port, state_port } = &task.target;
    [*p2p_port, *state_port].map(|port| Target {
        address: HostPort::new(host.as_str(), port),
        preamble: Preamble { run: run.0, to: peer.0, group: task.group.0, ..Preamble::new(Role::Check) },
    })
}
