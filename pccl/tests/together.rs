//! Peers of a test that are threads of its process and call at the same time.

use pccl::Communicator;
use std::{
    borrow::Borrow,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    thread,
};

/// Each of these peers calls, in a thread of its own; results in their order. A peer that panics closes all of them: no
/// other goes on waiting for it, and the test ends with the panic.
pub(crate) fn together<C, R>(peers: &[C], call: impl Fn(usize, &Communicator) -> R + Sync) -> Vec<R>
where
    C: Borrow<Communicator> + Sync,
    R: Send,
{
    let run = |index: usize| {
        let result = catch_unwind(AssertUnwindSafe(|| call(index, peers[index].borrow())));
        if result.is_err() {
            peers.iter().for_each(|peer| peer.borrow().close());
        }
        result
    };
    let results: Vec<_> = thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> = (0..peers.len()).map(|index| scope.spawn(move || run(index))).collect();
        threads.into_iter().map(|thread| thread.join().expect("it catches its panics")).collect()
    });
    results.into_iter().map(|result| result.unwrap_or_else(|panic| resume_unwind(panic))).collect()
}
