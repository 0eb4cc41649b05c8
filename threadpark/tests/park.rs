//! The behaviour of parker and unparker, the same suite on every platform that this target can build.
#![cfg(not(loom))]

use std::{
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use proptest::prelude::*;
use threadpark::{
    Parker, Unparker,
    futex::{Fallback, Futex, Native},
};

/// Long enough never to pass on a busy machine; a lost wake fails after it instead of hanging.
const WATCHDOG: Duration = Duration::from_secs(60);

fn parker<F: Futex>() -> Parker<F> {
    Parker::with_futex(F::default())
}

fn park_watched<F: Futex>(parker: &Parker<F>) {
    assert!(parker.park_timeout(WATCHDOG), "no wake within {WATCHDOG:?}: a wake was lost");
}

fn a_wake_before_the_park_is_kept<F: Futex>() {
    let parker = parker::<F>();
    parker.unparker().unpark();
    parker.park();
}

fn several_wakes_are_one_token<F: Futex>() {
    let parker = parker::<F>();
    let unparker = parker.unparker();
    unparker.unpark();
    unparker.clone().unpark();
    parker.unparker().unpark();
    assert!(parker.park_timeout(Duration::ZERO));
    assert!(!parker.park_timeout(Duration::ZERO));
}

fn a_token_beats_a_past_deadline<F: Futex>() {
    let parker = parker::<F>();
    let past = Instant::now();
    assert!(!parker.park_until(past));
    parker.unparker().unpark();
    assert!(parker.park_until(past));
    assert!(!parker.park_until(past));
}

fn a_timeout_lasts_to_its_deadline<F: Futex>() {
    let parker = parker::<F>();
    let deadline = Instant::now() + Duration::from_millis(20);
    assert!(!parker.park_until(deadline));
    assert!(Instant::now() >= deadline);
}

fn an_endless_timeout_is_no_deadline<F: Futex>() {
    let parker = parker::<F>();
    let unparker = parker.unparker();
    let waker = thread::spawn(move || unparker.unpark());
    assert!(parker.park_timeout(Duration::MAX));
    waker.join().unwrap();
}

fn the_unparker_outlives_the_parker<F: Futex>() {
    let parker = parker::<F>();
    let unparker = parker.unparker();
    drop(parker);
    unparker.unpark();
    unparker.unpark();
}

/// Two threads wake each other in turn; one lost wake stops both.
fn ping_pong_loses_no_wake<F: Futex>() {
    const ROUNDS: u64 = 20_000;
    let (left, right) = (parker::<F>(), parker::<F>());
    let (to_left, to_right) = (left.unparker(), right.unparker());
    let ball = AtomicU64::new(0);
    let ball = &ball;
    thread::scope(|scope| {
        scope.spawn(move || {
            for round in 0..ROUNDS {
                park_watched(&right);
                // Relaxed on purpose: the token alone has to carry the visibility.
                assert_eq!(ball.load(Ordering::Relaxed), 2 * round + 1);
                ball.store(2 * round + 2, Ordering::Relaxed);
                to_left.unpark();
            }
        });
        for round in 0..ROUNDS {
            ball.store(2 * round + 1, Ordering::Relaxed);
            to_right.unpark();
            park_watched(&left);
            assert_eq!(ball.load(Ordering::Relaxed), 2 * round + 2);
        }
    });
}

/// Several producers count up and wake; the consumer parks only while it has not seen everything. The consumer must see
/// the count of a producer from before its wake, although that wake may have merged with another's.
fn merged_wakes_lose_nothing<F: Futex>() {
    const PRODUCERS: u64 = 3;
    const EACH: u64 = 5_000;
    let consumer = parker::<F>();
    let counts: [AtomicU64; PRODUCERS as usize] = Default::default();
    thread::scope(|scope| {
        for count in &counts {
            let unparker: Unparker<F> = consumer.unparker();
            scope.spawn(move || {
                for value in 1..=EACH {
                    count.store(value, Ordering::Relaxed);
                    unparker.unpark();
                }
            });
        }
        while counts.iter().map(|count| count.load(Ordering::Relaxed)).sum::<u64>() < PRODUCERS * EACH {
            park_watched(&consumer);
        }
    });
}

/// Wakes that race with deadlines: each token is consumed exactly once, by the park that timed out last or the next.
fn wakes_at_the_deadline_are_kept<F: Futex>() {
    const ROUNDS: u32 = 2_000;
    let (sleeper, waker) = (parker::<F>(), parker::<F>());
    let (to_sleeper, to_waker) = (sleeper.unparker(), waker.unparker());
    thread::scope(|scope| {
        scope.spawn(move || {
            for _ in 0..ROUNDS {
                park_watched(&waker);
                to_sleeper.unpark();
            }
        });
        for round in 0..ROUNDS {
            to_waker.unpark();
            if !sleeper.park_timeout(Duration::from_micros(u64::from(round % 50))) {
                park_watched(&sleeper);
            }
            assert!(!sleeper.park_timeout(Duration::ZERO), "a token was left over in round {round}");
        }
    });
}

/// Any sequence of wakes and instant parks behaves like a flag.
fn one_thread_sees_a_flag<F: Futex>(steps: &[bool]) {
    let parker = parker::<F>();
    let unparker = parker.unparker();
    let mut token = false;
    for &wake in steps {
        if wake {
            unparker.unpark();
            token = true;
        } else {
            assert_eq!(parker.park_timeout(Duration::ZERO), token);
            token = false;
        }
    }
}

macro_rules! suite {
    ($platform:ident, $futex:ty, $($test:ident),* $(,)?) => {
        mod $platform {
            use super::*;
            $(#[test] fn $test() { super::$test::<$futex>(); })*

            proptest! {
                #![proptest_config(ProptestConfig {
                    cases: 64,
                    failure_persistence: None,
                    ..ProptestConfig::default()
                })]
                #[test]
                fn one_thread_sees_a_flag(steps in prop::collection::vec(any::<bool>(), 0..40)) {
                    super::one_thread_sees_a_flag::<$futex>(&steps);
                }
            }
        }
    };
}

macro_rules! on_all_platforms {
    ($($test:ident),* $(,)?) => {
        suite!(native, Native, $($test),*);
        suite!(fallback, Fallback, $($test),*);
    };
}

on_all_platforms!(
    a_wake_before_the_park_is_kept,
    several_wakes_are_one_token,
    a_token_beats_a_past_deadline,
    a_timeout_lasts_to_its_deadline,
    an_endless_timeout_is_no_deadline,
    the_unparker_outlives_the_parker,
    ping_pong_loses_no_wake,
    merged_wakes_lose_nothing,
    wakes_at_the_deadline_are_kept,
);
