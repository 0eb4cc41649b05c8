//! Every interleaving of a gate's users, by the model checker:
//! `RUSTFLAGS="--cfg loom" cargo test -p tinysockets --test link_loom --release`.
#![cfg(loom)]

use loom::{cell::UnsafeCell, sync::Arc, thread};
use tinysockets::link::Gate;

/// Memory behind a gate. The checker reports any access that is not ordered.
struct Guarded {
    gate: Gate,
    memory: UnsafeCell<u32>,
}

// SAFETY: the point of these tests: accesses are ordered by the gate, and the checker verifies it.
unsafe impl Sync for Guarded {}
// SAFETY: as above.
unsafe impl Send for Guarded {}

impl Guarded {
    fn new() -> Arc<Self> {
        Arc::new(Self { gate: Gate::new(), memory: UnsafeCell::new(0) })
    }

    /// What a link's thread does: one access under a pass, if the gate is open.
    fn read_as_borrower(&self) -> bool {
        let Some(_pass) = self.gate.enter() else { return false };
        // SAFETY: under a pass the owner does not write; the checker verifies it.
        self.memory.with(|memory| unsafe { *memory });
        true
    }

    /// What the owner does with its memory back.
    fn write_as_owner(&self) {
        // SAFETY: the gate is drained, so nobody else has access; the checker verifies it.
        self.memory.with_mut(|memory| unsafe { *memory += 1 });
    }
}

/// Every interleaving with at most `switches` forced ones; two already find every bug that needs a certain order of two
/// steps, and with three threads there is no end to all of them.
fn check(switches: Option<usize>, program: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = switches;
    model.check(program);
}

#[test]
fn after_the_wait_the_memory_is_the_owners_alone() {
    check(Some(2), || {
        let guarded = Guarded::new();
        let borrowers: Vec<_> = (0..2)
            .map(|_| {
                let guarded = Arc::clone(&guarded);
                thread::spawn(move || guarded.read_as_borrower())
            })
            .collect();
        guarded.gate.close();
        assert!(guarded.gate.wait_drained(None));
        guarded.write_as_owner();
        assert!(!guarded.read_as_borrower(), "nobody enters a closed gate");
        for borrower in borrowers {
            borrower.join().expect("no panic");
        }
    });
}

#[test]
fn a_waiter_that_does_not_close_is_woken_whoever_comes_last() {
    check(Some(2), || {
        let guarded = Guarded::new();
        let borrower = {
            let guarded = Arc::clone(&guarded);
            thread::spawn(move || guarded.read_as_borrower())
        };
        let closer = {
            let guarded = Arc::clone(&guarded);
            thread::spawn(move || guarded.gate.close())
        };
        assert!(guarded.gate.wait_drained(None));
        guarded.write_as_owner();
        borrower.join().expect("no panic");
        closer.join().expect("no panic");
    });
}

#[test]
fn one_borrower_and_the_owner_in_every_interleaving() {
    check(None, || {
        let guarded = Guarded::new();
        let borrower = {
            let guarded = Arc::clone(&guarded);
            thread::spawn(move || guarded.read_as_borrower())
        };
        guarded.gate.close();
        assert!(guarded.gate.wait_drained(None));
        guarded.write_as_owner();
        borrower.join().expect("no panic");
    });
}

#[test]
fn two_waiters_are_both_woken() {
    check(Some(3), || {
        let guarded = Guarded::new();
        let other = {
            let guarded = Arc::clone(&guarded);
            thread::spawn(move || guarded.gate.wait_drained(None))
        };
        guarded.gate.close();
        assert!(guarded.gate.wait_drained(None));
        assert!(other.join().expect("no panic"));
    });
}
