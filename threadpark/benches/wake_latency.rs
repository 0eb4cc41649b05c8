//! Round trips between two threads: this crate against `std::thread::park` and against a condition variable, taken in
//! turns within one run, so that the ratios mean something on a noisy machine. `cargo bench -p threadpark`.
//!
//! Without the argument `--bench`, which cargo passes only when asked for benchmarks, a few rounds run as a check.

use std::{
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use threadpark::{
    Parker, Unparker,
    futex::{Fallback, Futex, Native},
};

/// One direction of a round trip.
trait Wake: Send {
    fn wake(&self);
}

trait Sleep {
    fn sleep(&self);
}

impl<F: Futex> Wake for Unparker<F> {
    fn wake(&self) {
        self.unpark();
    }
}

impl<F: Futex> Sleep for Parker<F> {
    fn sleep(&self) {
        self.park();
    }
}

struct StdPark {
    thread: thread::Thread,
    token: Arc<AtomicBool>,
}

impl Wake for StdPark {
    fn wake(&self) {
        self.token.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

impl Sleep for Arc<AtomicBool> {
    fn sleep(&self) {
        while !self.swap(false, Ordering::Acquire) {
            thread::park();
        }
    }
}

#[derive(Clone, Default)]
struct Flag(Arc<(Mutex<bool>, Condvar)>);

impl Wake for Flag {
    fn wake(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_one();
    }
}

impl Sleep for Flag {
    fn sleep(&self) {
        let guard = self.0.0.lock().unwrap();
        let mut guard = self.0.1.wait_while(guard, |set| !*set).unwrap();
        *guard = false;
    }
}

fn round_trips(rounds: usize, to_other: &impl Wake, own: &impl Sleep, times: &mut Vec<Duration>) {
    for _ in 0..rounds {
        let start = Instant::now();
        to_other.wake();
        own.sleep();
        times.push(start.elapsed());
    }
}

fn echo(rounds: usize, own: &impl Sleep, to_other: &impl Wake) {
    for _ in 0..rounds {
        own.sleep();
        to_other.wake();
    }
}

fn with_parker<F: Futex>(rounds: usize, times: &mut Vec<Duration>) {
    let (left, right) = (Parker::with_futex(F::default()), Parker::with_futex(F::default()));
    let (to_left, to_right) = (left.unparker(), right.unparker());
    thread::scope(|scope| {
        scope.spawn(move || echo(rounds, &right, &to_left));
        round_trips(rounds, &to_right, &left, times);
    });
}

fn with_std_park(rounds: usize, times: &mut Vec<Duration>) {
    let (left, right) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let to_left = StdPark { thread: thread::current(), token: Arc::clone(&left) };
    let own = Arc::clone(&right);
    thread::scope(|scope| {
        let other = scope.spawn(move || echo(rounds, &own, &to_left));
        let to_right = StdPark { thread: other.thread().clone(), token: right };
        round_trips(rounds, &to_right, &left, times);
    });
}

fn with_condvar(rounds: usize, times: &mut Vec<Duration>) {
    let (left, right) = (Flag::default(), Flag::default());
    let (own, to_left) = (right.clone(), left.clone());
    thread::scope(|scope| {
        scope.spawn(move || echo(rounds, &own, &to_left));
        round_trips(rounds, &right, &left, times);
    });
}

fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    sorted[(sorted.len() - 1) * percent / 100]
}

fn main() {
    let full = std::env::args().any(|argument| argument == "--bench");
    let (turns, rounds) = if full { (20, 2_000) } else { (1, 10) };

    type Run = fn(usize, &mut Vec<Duration>);
    let contestants: [(&str, Run); 4] = [
        ("threadpark", with_parker::<Native>),
        ("threadpark, fallback", with_parker::<Fallback>),
        ("std::thread::park", with_std_park),
        ("Mutex + Condvar", with_condvar),
    ];
    let mut times = contestants.map(|_| Vec::new());
    for _ in 0..turns {
        for ((_, run), times) in contestants.iter().zip(&mut times) {
            run(rounds, times);
        }
    }

    let results = times.map(|mut times| {
        times.sort_unstable();
        (percentile(&times, 50), percentile(&times, 99))
    });
    let (base_median, base_p99) = results[0];
    println!("round trip of two wakes, {} samples each; ratios are to threadpark", turns * rounds);
    for ((name, _), (median, p99)) in contestants.iter().zip(results) {
        println!(
            "{name:22} median {:8.2} us ({:5.2}x)   p99 {:8.2} us ({:5.2}x)",
            median.as_secs_f64() * 1e6,
            median.as_secs_f64() / base_median.as_secs_f64(),
            p99.as_secs_f64() * 1e6,
            p99.as_secs_f64() / base_p99.as_secs_f64(),
        );
    }
}
