//! The functions of `pccl_samples.h`.

use crate::{
    failure::{Failure, Outcome, call},
    raw,
    registry::{Registry, new_key},
    types::{Handle, ResultCode, code},
};
use parking_lot::Mutex;
use pccl::Remedy;
use pccl_samples::{Claims, Error, words_for};
use std::sync::Arc;

/// All samplers of the process.
static SAMPLERS: Registry<Mutex<Claims>> = Registry::new("sampler");

fn failed(error: Error) -> Failure {
    match error {
        Error::Argument(text) => Failure::argument(text),
        // As when a peer is lost: the others have the same failure, and the step is made again.
        Error::TakenTwice { .. } => {
            Failure::with(code::RANK_CONNECTION_LOST, "WorldChanged", Remedy::Retry, error.to_string())
        }
        Error::Damaged(_) => Failure::argument(error.to_string()),
    }
}

fn with<T>(samples: Handle, work: impl FnOnce(&mut Claims) -> Result<T, Error>) -> Outcome<T> {
    work(&mut SAMPLERS.get(samples)?.lock()).map_err(failed)
}

fn length(count: u64) -> Outcome<usize> {
    usize::try_from(count).map_err(|_| Failure::argument(format!("{count} items")))
}

/// The numbers of a ledger, copied.
///
/// # Safety
/// If it is not null, `words` points to `count` of them.
unsafe fn words_of(words: *const u64, count: u64) -> Outcome<Vec<u64>> {
    // SAFETY: by the contract of this function.
    unsafe { raw::items(words, length(count)?, "words") }
}

/// Copies what has room for `capacity` numbers.
///
/// # Safety
/// If they are not null, there is room for `capacity` numbers, and for the count.
unsafe fn give(all: &[u64], to: *mut u64, capacity: u64, count_out: *mut u64) -> Outcome {
    raw::check(count_out, "count_out")?;
    if all.len() as u64 > capacity {
        return Err(Failure::argument(format!("room for {capacity} numbers, there are {}", all.len())));
    }
    if !all.is_empty() {
        raw::check(to, "the array")?;
    }
    // SAFETY: by the contract of this function.
    unsafe { raw::write_items(all, to, count_out) };
    Ok(())
}

/// `pcclSamplesCreate`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclSamplesCreate(
    length: u64,
    seed: *const u64,
    epochs: u64,
    batch: u64,
    members: u64,
    samples_out: *mut Handle,
) -> ResultCode {
    call(|| {
        raw::check(samples_out, "samples_out")?;
        // SAFETY: by the contract of this function.
        let seed = if seed.is_null() { None } else { Some(unsafe { raw::read(seed, "seed") }?) };
        let members = self::length(members)?;
        let claims = Claims::new(length, seed, epochs, batch, members).map_err(failed)?;
        let handle = SAMPLERS.insert(new_key(), Arc::new(Mutex::new(claims)));
        // SAFETY: the same.
        unsafe { raw::write(samples_out, handle) };
        Ok(())
    })
}

/// `pcclSamplesWordsFor`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pcclSamplesWordsFor(members: u64) -> u64 {
    usize::try_from(members).map_or(0, |members| words_for(members) as u64)
}

/// `pcclSamplesGetWords`.
///
/// # Safety
/// As [`pcclSamplesCreate`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclSamplesGetWords(
    samples: Handle,
    words: *mut u64,
    count: u64,
) -> ResultCode {
    call(|| {
        let first = with(samples, |claims| Ok(claims.words()))?;
        if first.len() as u64 != count {
            return Err(Failure::argument(format!("{count} words, there are {}", first.len())));
        }
        let mut copied = 0;
        // SAFETY: by the contract of this function.
        unsafe { give(&first, words, count, &raw mut copied) }
    })
}

/// `pcclSamplesTake`.
///
/// # Safety
/// As [`pcclSamplesCreate`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclSamplesTake(
    samples: Handle,
    words: *const u64,
    word_count: u64,
    rank: u64,
    taken: *mut u64,
    capacity: u64,
    count_out: *mut u64,
) -> ResultCode {
    call(|| {
        // SAFETY: by the contract of this function.
        let words = unsafe { words_of(words, word_count) }?;
        let rank = length(rank)?;
        let found = with(samples, |claims| claims.take(&words, rank))?;
        // SAFETY: the same.
        unsafe { give(&found, taken, capacity, count_out) }
    })
}

/// `pcclSamplesGetCounts`.
///
/// # Safety
/// As [`pcclSamplesCreate`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclSamplesGetCounts(
    samples: Handle,
    words: *const u64,
    word_count: u64,
    used: u64,
    counts: *mut u64,
    capacity: u64,
    count_out: *mut u64,
) -> ResultCode {
    call(|| {
        // SAFETY: by the contract of this function.
        let words = unsafe { words_of(words, word_count) }?;
        let own = with(samples, |claims| claims.counts(&words, used))?;
        // SAFETY: the same.
        unsafe { give(&own, counts, capacity, count_out) }
    })
}

/// `pcclSamplesSettle`.
///
/// # Safety
/// As [`pcclSamplesCreate`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclSamplesSettle(
    samples: Handle,
    words: *const u64,
    word_count: u64,
    sums: *const u64,
    sum_count: u64,
    used_out: *mut u64,
) -> ResultCode {
    call(|| {
        raw::check(used_out, "used_out")?;
        // SAFETY: by the contract of this function.
        let (words, sums) =
            unsafe { (words_of(words, word_count)?, raw::items(sums, length(sum_count)?, "sums")?) };
        let used = with(samples, |claims| claims.settle(&words, &sums))?;
        // SAFETY: the same.
        unsafe { raw::write(used_out, used) };
        Ok(())
    })
}

/// `pcclSamplesCommit`.
///
/// # Safety
/// As [`pcclSamplesCreate`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclSamplesCommit(
    samples: Handle,
    words: *mut u64,
    word_count: u64,
    counted: *mut u64,
    capacity: u64,
    count_out: *mut u64,
) -> ResultCode {
    call(|| {
        raw::check(count_out, "count_out")?;
        // SAFETY: by the contract of this function.
        let mut next = unsafe { words_of(words, word_count) }?;
        let found = with(samples, |claims| {
            // Before anything changes: the caller may come again with more room.
            if claims.settled() > capacity {
                let (all, room) = (claims.settled(), capacity);
                return Err(Error::Argument(format!(
                    "the step has counted {all} samples, and there is room for {room}"
                )));
            }
            claims.ledger(&next)?;
            let order = claims.order();
            let counted = claims.commit(&mut next);
            Ok(counted.into_iter().flat_map(|it| it.range).map(|at| order.sample(at)).collect::<Vec<_>>())
        })?;
        let mut written = 0;
        // SAFETY: the same.
        unsafe {
            give(&next, words, word_count, &raw mut written)?;
            give(&found, counted, capacity, count_out)
        }
    })
}

/// `pcclSamplesGetProgress`.
///
/// # Safety
/// As [`pcclSamplesCreate`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclSamplesGetProgress(
    samples: Handle,
    words: *const u64,
    word_count: u64,
    steps_out: *mut u64,
    counted_out: *mut u64,
    total_out: *mut u64,
) -> ResultCode {
    call(|| {
        for (out, name) in [(steps_out, "steps_out"), (counted_out, "counted_out"), (total_out, "total_out")]
        {
            raw::check(out, name)?;
        }
        // SAFETY: by the contract of this function.
        let words = unsafe { words_of(words, word_count) }?;
        let ledger = with(samples, |claims| claims.ledger(&words))?;
        // SAFETY: the same.
        unsafe {
            raw::write(steps_out, ledger.steps());
            raw::write(counted_out, ledger.counted());
            raw::write(total_out, ledger.total());
        }
        Ok(())
    })
}

/// `pcclSamplesDestroy`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pcclSamplesDestroy(samples: Handle) -> ResultCode {
    call(|| SAMPLERS.remove(samples).map(drop))
}
