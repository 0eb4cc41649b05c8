//! The functions of `pccl_diloco.h`.

use crate::{
    communicator::enter,
    failure::{Failure, Outcome, call},
    raw,
    registry::{Registry, new_key},
    types::{Handle, ResultCode, code},
};
use parking_lot::{Mutex, MutexGuard};
use pccl::{Communicator, Error};
use pccl_diloco::{Action, DiLoCo, RoundReport, Settings};
use std::{
    collections::VecDeque,
    ffi::{c_char, c_int},
    sync::Arc,
    time::Duration,
};

/// All members of the process.
static MEMBERS: Registry<Instance> = Registry::new("member of a DiLoCo run");

/// A member: its settings until it has joined, then what it is in the run.
#[derive(Debug)]
struct Instance {
    comm: Arc<Communicator>,
    /// Held by the call that uses it; another one is a mistake.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    settings: Settings,
    run: Option<DiLoCo>,
    /// Reports that the caller has not taken.
    reports: VecDeque<RoundReport>,
}

impl Instance {
    fn lock(&self) -> Outcome<MutexGuard<'_, State>> {
        self.state.try_lock().ok_or_else(|| Failure::usage("another call of this member is under way"))
    }
}

impl State {
    fn run(&mut self) -> Outcome<&mut DiLoCo> {
        self.run.as_mut().ok_or_else(|| Failure::usage("the member has not joined: call pcclDilocoJoin"))
    }
}

/// `pcclDilocoAction_t`.
mod action {
    pub(super) const NONE: std::ffi::c_int = 0;
    pub(super) const CONTRIBUTE: std::ffi::c_int = 1;
    pub(super) const LAND: std::ffi::c_int = 2;
}

/// `pcclDilocoStats_t`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Stats {
    rounds: u64,
    weight: f64,
    rounds_here: u64,
    contributed: u64,
    stood_in: u64,
    repeated: u64,
    sent_bytes: u64,
    plain_bytes: u64,
    exchange_seconds: f64,
    waited_seconds: f64,
    members: u64,
}

fn failed(error: Error) -> Failure {
    Failure::of(&error, code::RANK_CONNECTION_LOST)
}

fn with_run<T>(diloco: Handle, work: impl FnOnce(&mut DiLoCo) -> Result<T, Error>) -> Outcome<T> {
    let member = MEMBERS.get(diloco)?;
    let mut state = member.lock()?;
    work(state.run()?).map_err(failed)
}

fn count_of(count: u64) -> Outcome<usize> {
    usize::try_from(count).map_err(|_| Failure::argument(format!("{count} parameters")))
}

/// `pcclDilocoCreate`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclDilocoCreate(comm: Handle, diloco_out: *mut Handle) -> ResultCode {
    call(|| {
        let comm = enter(comm)?;
        raw::check(diloco_out, "diloco_out")?;
        let instance = Instance { comm: comm.inner(), state: Mutex::default() };
        let handle = MEMBERS.insert(new_key(), Arc::new(instance));
        // SAFETY: by the contract of this function.
        unsafe { raw::write(diloco_out, handle) };
        Ok(())
    })
}

/// `pcclDilocoSet`.
///
/// # Safety
/// As [`pcclDilocoCreate`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclDilocoSet(
    diloco: Handle,
    name: *const c_char,
    value: *const c_char,
) -> ResultCode {
    call(|| {
        let member = MEMBERS.get(diloco)?;
        // SAFETY: by the contract of this function.
        let (name, value) = unsafe { (raw::text(name, "name")?, raw::text(value, "value")?) };
        let mut state = member.lock()?;
        if state.run.is_some() {
            return Err(Failure::usage("the member has joined"));
        }
        state.settings.set(&name, &value).map_err(failed)
    })
}

/// `pcclDilocoJoin`.
///
/// # Safety
/// As [`pcclDilocoCreate`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclDilocoJoin(
    diloco: Handle,
    parameters: *mut f32,
    count: u64,
) -> ResultCode {
    call(|| {
        let member = MEMBERS.get(diloco)?;
        let mut state = member.lock()?;
        if state.run.is_some() {
            return Err(Failure::usage("the member has joined already"));
        }
        // SAFETY: by the contract of this function.
        let parameters = unsafe { raw::slice_mut(parameters, count_of(count)?, "parameters") }?;
        let settings = state.settings.clone();
        let run = DiLoCo::join(member.comm.clone(), settings, parameters).map_err(failed)?;
        state.run = Some(run);
        Ok(())
    })
}

/// `pcclDilocoStep`.
///
/// # Safety
/// As [`pcclDilocoCreate`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclDilocoStep(
    diloco: Handle,
    parameters: *mut f32,
    count: u64,
    weight: f64,
) -> ResultCode {
    call(|| {
        // SAFETY: by the contract of this function.
        let parameters = unsafe { raw::slice_mut(parameters, count_of(count)?, "parameters") }?;
        with_run(diloco, |run| run.step(parameters, weight))
    })
}

/// `pcclDilocoCount`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pcclDilocoCount(diloco: Handle, weight: f64) -> ResultCode {
    call(|| with_run(diloco, |run| run.count(weight)))
}

/// `pcclDilocoNext`.
///
/// # Safety
/// As [`pcclDilocoCreate`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclDilocoNext(
    diloco: Handle,
    action_out: *mut c_int,
    fragment_out: *mut u64,
) -> ResultCode {
    call(|| {
        raw::check(action_out, "action_out")?;
        raw::check(fragment_out, "fragment_out")?;
        let (kind, fragment) = match with_run(diloco, DiLoCo::next_action)? {
            None => (action::NONE, 0),
            Some(Action::Contribute { fragment }) => (action::CONTRIBUTE, fragment as u64),
            Some(Action::Land { fragment }) => (action::LAND, fragment as u64),
        };
        // SAFETY: by the contract of this function.
        unsafe {
            raw::write(action_out, kind);
            raw::write(fragment_out, fragment);
        }
        Ok(())
    })
}

/// `pcclDilocoContribute`.
///
/// # Safety
/// As [`pcclDilocoCreate`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclDilocoContribute(
    diloco: Handle,
    fragment: u64,
    parameters: *const f32,
    count: u64,
) -> ResultCode {
    call(|| {
        // SAFETY: by the contract of this function.
        let parameters = unsafe { raw::slice(parameters, count_of(count)?, "parameters") }?;
        let fragment = usize::try_from(fragment).unwrap_or(usize::MAX);
        with_run(diloco, |run| run.contribute(fragment, parameters))
    })
}

/// `pcclDilocoLand`.
///
/// # Safety
/// As [`pcclDilocoCreate`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclDilocoLand(
    diloco: Handle,
    fragment: u64,
    parameters: *mut f32,
    count: u64,
) -> ResultCode {
    call(|| {
        // SAFETY: by the contract of this function.
        let parameters = unsafe { raw::slice_mut(parameters, count_of(count)?, "parameters") }?;
        let fragment = usize::try_from(fragment).unwrap_or(usize::MAX);
        with_run(diloco, |run| run.land(fragment, parameters))
    })
}

/// `pcclDilocoLoadOuter`.
///
/// # Safety
/// As [`pcclDilocoCreate`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclDilocoLoadOuter(
    diloco: Handle,
    parameters: *mut f32,
    count: u64,
) -> ResultCode {
    call(|| {
        // SAFETY: by the contract of this function.
        let parameters = unsafe { raw::slice_mut(parameters, count_of(count)?, "parameters") }?;
        with_run(diloco, |run| run.load_outer(parameters))
    })
}

/// `pcclDilocoGetStepIndex`.
///
/// # Safety
/// As [`pcclDilocoCreate`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclDilocoGetStepIndex(
    diloco: Handle,
    step_index_out: *mut u64,
) -> ResultCode {
    call(|| {
        raw::check(step_index_out, "step_index_out")?;
        let index = with_run(diloco, |run| Ok(run.step_index()))?;
        // SAFETY: by the contract of this function.
        unsafe { raw::write(step_index_out, index) };
        Ok(())
    })
}

/// `pcclDilocoGetStats`.
///
/// # Safety
/// As [`pcclDilocoCreate`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclDilocoGetStats(diloco: Handle, stats_out: *mut Stats) -> ResultCode {
    call(|| {
        raw::check(stats_out, "stats_out")?;
        let stats = with_run(diloco, |run| Ok(run.stats()))?;
        let stats = Stats {
            rounds: stats.rounds,
            weight: stats.weight,
            rounds_here: stats.rounds_here,
            contributed: stats.contributed,
            stood_in: stats.stood_in,
            repeated: stats.repeated,
            sent_bytes: stats.sent_bytes,
            plain_bytes: stats.plain_bytes,
            exchange_seconds: stats.exchange.as_secs_f64(),
            waited_seconds: stats.waited.as_secs_f64(),
            members: stats.members as u64,
        };
        // SAFETY: by the contract of this function.
        unsafe { raw::write(stats_out, stats) };
        Ok(())
    })
}

/// `pcclDilocoTakeReport`.
///
/// # Safety
/// As [`pcclDilocoCreate`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclDilocoTakeReport(
    diloco: Handle,
    buffer: *mut c_char,
    capacity: usize,
    length_out: *mut usize,
) -> ResultCode {
    call(|| {
        let member = MEMBERS.get(diloco)?;
        let mut state = member.lock()?;
        let newer = state.run()?.take_reports();
        state.reports.extend(newer);
        let text = state.reports.front().map(ToString::to_string).unwrap_or_default();
        // SAFETY: by the contract of this function.
        unsafe { raw::write_text(&text, buffer, capacity, length_out) }?;
        if capacity > text.len() {
            state.reports.pop_front();
        }
        Ok(())
    })
}

/// `pcclDilocoTakeSamples`.
///
/// # Safety
/// As [`pcclDilocoCreate`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclDilocoTakeSamples(
    diloco: Handle,
    samples: *mut u64,
    capacity: u64,
    count_out: *mut u64,
) -> ResultCode {
    call(|| {
        raw::check(count_out, "count_out")?;
        raw::check(samples, "samples")?;
        let taken = with_run(diloco, |run| Ok(run.take_samples(capacity)))?;
        // SAFETY: by the contract of this function; there are no more than `capacity`.
        unsafe { raw::write_items(&taken, samples, count_out) };
        Ok(())
    })
}

/// `pcclDilocoCountSamples`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pcclDilocoCountSamples(diloco: Handle, count: u64) -> ResultCode {
    call(|| with_run(diloco, |run| run.count_samples(count)))
}

/// `pcclDilocoGetSamples`.
///
/// # Safety
/// As [`pcclDilocoCreate`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclDilocoGetSamples(
    diloco: Handle,
    outstanding_out: *mut u64,
    are_over_out: *mut bool,
) -> ResultCode {
    call(|| {
        raw::check(outstanding_out, "outstanding_out")?;
        raw::check(are_over_out, "are_over_out")?;
        let found = with_run(diloco, |run| Ok((run.samples_outstanding(), run.samples_are_over())))?;
        // SAFETY: by the contract of this function.
        unsafe {
            raw::write(outstanding_out, found.0);
            raw::write(are_over_out, found.1);
        }
        Ok(())
    })
}

/// `pcclDilocoGetCountedSamples`.
///
/// # Safety
/// As [`pcclDilocoCreate`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclDilocoGetCountedSamples(
    diloco: Handle,
    round: u64,
    samples: *mut u64,
    capacity: u64,
    count_out: *mut u64,
) -> ResultCode {
    call(|| {
        raw::check(count_out, "count_out")?;
        let counted = with_run(diloco, |run| Ok(run.counted_samples(round)))?;
        let counted = counted.ok_or_else(|| {
            Failure::argument(format!(
                "what round {round} has counted is not known here: it was another's, or long ago"
            ))
        })?;
        if counted.len() as u64 > capacity {
            // SAFETY: by the contract of this function.
            unsafe { raw::write(count_out, counted.len() as u64) };
            return Ok(());
        }
        if !counted.is_empty() {
            raw::check(samples, "samples")?;
        }
        // SAFETY: by the contract of this function; there are no more than `capacity`.
        unsafe { raw::write_items(&counted, samples, count_out) };
        Ok(())
    })
}

/// `pcclDilocoSave`.
///
/// # Safety
/// As [`pcclDilocoCreate`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclDilocoSave(diloco: Handle, path: *const c_char) -> ResultCode {
    call(|| {
        // SAFETY: by the contract of this function.
        let path = unsafe { raw::text(path, "path") }?;
        with_run(diloco, |run| run.save(path))
    })
}

/// `pcclDilocoFinish`.
///
/// # Safety
/// As [`pcclDilocoCreate`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclDilocoFinish(
    diloco: Handle,
    parameters: *mut f32,
    count: u64,
    timeout_ms: u64,
) -> ResultCode {
    call(|| {
        // SAFETY: by the contract of this function.
        let parameters = unsafe { raw::slice_mut(parameters, count_of(count)?, "parameters") }?;
        let within = (timeout_ms != u64::MAX).then(|| Duration::from_millis(timeout_ms));
        with_run(diloco, |run| run.finish(parameters, within))
    })
}

/// `pcclDilocoDestroy`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pcclDilocoDestroy(diloco: Handle) -> ResultCode {
    call(|| {
        let member = MEMBERS.remove(diloco)?;
        // Ends a call of another thread, which waits for the others.
        member.comm.close();
        drop(member);
        Ok(())
    })
}
