//! The Linux platform: the futex system call.

#![allow(unsafe_code)]

use std::time::{Duration, Instant};

use super::{Futex, Wait};
use crate::primitive::AtomicU32;

/// A [`Futex`] by the system call of that name, for words that one process alone uses.
///
/// `FUTEX_WAIT_BITSET` rather than `FUTEX_WAIT`, because its deadline is absolute: a wait that a signal interrupts and
/// the caller repeats does not get longer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Linux;

const NANOS_PER_SEC: u64 = 1_000_000_000;

/// `deadline` on CLOCK_MONOTONIC; `None` where it is too far away for the clock to name, which is as good as never.
fn monotonic(deadline: Instant) -> Option<libc::timespec> {
    // `Instant` is this clock, but does not show its reading. Its "now" is taken first, so that a pause between the
    // two readings makes the deadline late by as much, never early.
    let left = deadline.saturating_duration_since(Instant::now());
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a valid, exclusively borrowed timespec for the whole call. The call cannot fail: the clock
    // exists on every Linux and the pointer is valid.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    add(now, left)
}

fn add(now: libc::timespec, left: Duration) -> Option<libc::timespec> {
    let now_nanos = u64::try_from(now.tv_nsec).ok()?;
    let nanos = now_nanos + u64::from(left.subsec_nanos());
    let left_secs = i64::try_from(left.as_secs()).ok()?;
    let carry = i64::try_from(nanos / NANOS_PER_SEC).ok()?;
    let tv_sec = now.tv_sec.checked_add(left_secs)?.checked_add(carry)?;
    let tv_nsec = i64::try_from(nanos % NANOS_PER_SEC).ok()?;
    Some(libc::timespec { tv_sec, tv_nsec })
}

impl Futex for Linux {
    fn wait(&self, word: &AtomicU32, expected: u32, deadline: Option<Instant>) -> Wait {
        let deadline = deadline.and_then(monotonic);
        let timeout = deadline.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: `word` is borrowed for the whole call, so the kernel reads a live, aligned 32-bit word, and it does
        // so atomically. `timeout` is null or points to `deadline`, which outlives the call. The second address is
        // unused by this operation. The kernel writes to none of them.
        let result = unsafe {
            libc::syscall(
                libc::SYS_futex,
                word.as_ptr(),
                libc::FUTEX_WAIT_BITSET | libc::FUTEX_PRIVATE_FLAG,
                expected,
                timeout,
                std::ptr::null::<u32>(),
                libc::FUTEX_BITSET_MATCH_ANY,
            )
        };
        // Of the errors only the passed deadline matters to the caller. EAGAIN (the word differed) and EINTR (a
        // signal) mean "look again"; EINVAL, EFAULT and ENOSYS cannot come from these arguments.
        if result == -1 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ETIMEDOUT) {
            return Wait::TimedOut;
        }
        Wait::Returned
    }

    fn wake_one(&self, word: &AtomicU32) {
        // Between the caller's change of the word and this call the sleeper may have seen the change, returned, and
        // dropped its parker. The word lives all the same: the unparker that calls us shares its ownership.
        // Even were it gone, the kernel takes the address of a wake as a mere key and does not access it; the worst
        // would be a spurious wake of a thread that sleeps on a word at the same address, which every waiter absorbs.
        //
        // SAFETY: `word` is a valid address (borrowed for the call), and this operation reads and writes no memory of
        // ours. Its result, the number of threads woken, is of no interest; it cannot fail with these arguments.
        unsafe {
            libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1_i32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(time: Option<libc::timespec>) -> Option<(i64, i64)> {
        time.map(|time| (time.tv_sec, time.tv_nsec))
    }

    #[test]
    fn nanoseconds_carry_into_seconds() {
        let now = libc::timespec { tv_sec: 7, tv_nsec: 999_999_999 };
        assert_eq!(parts(add(now, Duration::from_nanos(1))), Some((8, 0)));
        assert_eq!(parts(add(now, Duration::new(2, 999_999_999))), Some((10, 999_999_998)));
        assert_eq!(parts(add(now, Duration::ZERO)), Some((7, 999_999_999)));
    }

    #[test]
    fn a_deadline_beyond_the_clock_is_none() {
        let now = libc::timespec { tv_sec: 1, tv_nsec: 0 };
        assert_eq!(parts(add(now, Duration::MAX)), None);
        assert_eq!(parts(add(now, Duration::from_secs(i64::MAX as u64))), None);
    }

    #[test]
    fn a_changed_word_is_not_waited_for() {
        assert_eq!(Linux.wait(&AtomicU32::new(1), 2, None), Wait::Returned);
    }

    #[test]
    fn a_past_deadline_times_out() {
        let word = AtomicU32::new(1);
        assert_eq!(Linux.wait(&word, 1, Some(Instant::now())), Wait::TimedOut);
    }
}
