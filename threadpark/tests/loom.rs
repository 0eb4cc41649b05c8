//! Every interleaving of small programs, by the model checker:
//! `RUSTFLAGS="--cfg loom" cargo test -p threadpark --test loom --release`.
#![cfg(loom)]

use std::time::Instant;

use loom::{
    cell::UnsafeCell,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};
use threadpark::{
    Parker,
    futex::{Fallback, Futex, Wait},
    primitive::AtomicU32,
};

/// A platform that orders nothing: each wait ends at once, as a spurious wake. The mutex of [`Fallback`] would hide an
/// ordering that the parker lacks; here only the parker's own operations make data visible.
#[derive(Default)]
struct Spin;

impl Futex for Spin {
    fn wait(&self, _word: &AtomicU32, _expected: u32, deadline: Option<Instant>) -> Wait {
        thread::yield_now();
        if deadline.is_some() { Wait::TimedOut } else { Wait::Returned }
    }

    fn wake_one(&self, _word: &AtomicU32) {}
}

/// A plain cell that one thread writes before its unpark and the owner reads after its park. The checker reports any
/// access that is not ordered.
struct Published(UnsafeCell<u32>);

// SAFETY: the point of these tests: accesses are ordered by the token, and the checker verifies it.
unsafe impl Sync for Published {}

impl Published {
    fn new() -> Self {
        Self(UnsafeCell::new(0))
    }

    fn write(&self, value: u32) {
        // SAFETY: the only writer; the reader is ordered after it by the token. The checker verifies both.
        self.0.with_mut(|cell| unsafe { *cell = value });
    }

    fn read(&self) -> u32 {
        // SAFETY: ordered after the only write by the token, as the checker verifies.
        self.0.with(|cell| unsafe { *cell })
    }
}

fn park_sees_what_was_published<F: Futex>() {
    loom::model(|| {
        let parker = Parker::with_futex(F::default());
        let unparker = parker.unparker();
        let data = Arc::new(Published::new());
        let waker = {
            let data = Arc::clone(&data);
            thread::spawn(move || {
                data.write(7);
                unparker.unpark();
            })
        };
        parker.park();
        assert_eq!(data.read(), 7);
        waker.join().unwrap();
    });
}

/// Two wakers whose tokens may merge: the owner parks until it has seen both, and never sleeps for ever (the checker
/// reports a deadlock). The count is relaxed, so only the tokens make it visible.
///
/// Three threads and a mutex have too many interleavings to try all: three preemptions at most (waits do not count as
/// such). That finds whatever three ill-timed interruptions can cause, in seconds.
fn merged_tokens_publish_both<F: Futex>() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let parker = Parker::with_futex(F::default());
        let done = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
        let wakers: Vec<_> = (0..2)
            .map(|index| {
                let (done, unparker) = (Arc::clone(&done), parker.unparker());
                thread::spawn(move || {
                    done[index].store(1, Ordering::Relaxed);
                    unparker.unpark();
                })
            })
            .collect();
        while done.iter().map(|flag| flag.load(Ordering::Relaxed)).sum::<usize>() < 2 {
            parker.park();
        }
        for waker in wakers {
            waker.join().unwrap();
        }
    });
}

/// A wake that races with the end of a wait: its token is consumed by this park or kept for the next.
fn a_token_survives_the_deadline<F: Futex>() {
    loom::model(|| {
        let parker = Parker::with_futex(F::default());
        let unparker = parker.unparker();
        let data = Arc::new(Published::new());
        let waker = {
            let data = Arc::clone(&data);
            thread::spawn(move || {
                data.write(7);
                unparker.unpark();
            })
        };
        if !parker.park_until(Instant::now()) {
            parker.park();
        }
        assert_eq!(data.read(), 7);
        waker.join().unwrap();
        assert!(!parker.park_until(Instant::now()), "one unpark left two tokens");
    });
}

/// Two parks need two tokens; the owner answers in between, so that they cannot merge.
fn a_parker_is_used_again<F: Futex>() {
    loom::model(|| {
        let (left, right) = (Parker::with_futex(F::default()), Parker::with_futex(F::default()));
        let (to_left, to_right) = (left.unparker(), right.unparker());
        let other = thread::spawn(move || {
            to_left.unpark();
            right.park();
            to_left.unpark();
        });
        left.park();
        to_right.unpark();
        left.park();
        other.join().unwrap();
        assert!(!left.park_until(Instant::now()));
    });
}

/// The owner drops its parker as soon as it is woken, while the waker may still be inside `unpark`.
#[test]
fn the_parker_may_go_while_it_is_woken() {
    loom::model(|| {
        let parker = Parker::with_futex(Fallback::default());
        let unparker = parker.unparker();
        let waker = thread::spawn(move || unparker.unpark());
        parker.park();
        drop(parker);
        waker.join().unwrap();
    });
}

#[test]
fn park_sees_what_was_published_without_a_mutex() {
    park_sees_what_was_published::<Spin>();
}

#[test]
fn park_sees_what_was_published_by_the_fallback() {
    park_sees_what_was_published::<Fallback>();
}

#[test]
fn merged_tokens_publish_both_without_a_mutex() {
    merged_tokens_publish_both::<Spin>();
}

#[test]
fn merged_tokens_publish_both_by_the_fallback() {
    merged_tokens_publish_both::<Fallback>();
}

#[test]
fn a_token_survives_the_deadline_without_a_mutex() {
    a_token_survives_the_deadline::<Spin>();
}

#[test]
fn a_token_survives_the_deadline_by_the_fallback() {
    a_token_survives_the_deadline::<Fallback>();
}

#[test]
fn a_parker_is_used_again_without_a_mutex() {
    a_parker_is_used_again::<Spin>();
}

#[test]
fn a_parker_is_used_again_by_the_fallback() {
    a_parker_is_used_again::<Fallback>();
}
