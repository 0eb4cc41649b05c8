//! Failures, and the state of the run: results, verdicts, status, logs.

use crate::{
    communicator::enter,
    failure::{self, Failure, call},
    logging, raw,
    types::{Handle, RESULT_NAMES, ResultCode, code},
};
use std::ffi::{CStr, c_char, c_int, c_void};

const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => c"unknown",
};

/// `pcclGetVersion`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pcclGetVersion() -> *const c_char {
    VERSION.as_ptr()
}

/// `pcclGetResultName`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pcclGetResultName(result: ResultCode) -> *const c_char {
    let name = usize::try_from(result).ok().and_then(|index| RESULT_NAMES.get(index));
    name.unwrap_or(&c"unknown").as_ptr()
}

/// `pcclGetLastError`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pcclGetLastError() -> *const c_char {
    failure::last_text()
}

/// `pcclGetLastRemedy`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pcclGetLastRemedy() -> c_int {
    failure::last_remedy()
}

/// `pcclGetLastCause`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pcclGetLastCause() -> *const c_char {
    failure::last_cause()
}

/// `pcclGetLastCulprits`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says; there is room for `capacity` peers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclGetLastCulprits(
    culprits: *mut [u8; 16],
    capacity: usize,
    count_out: *mut usize,
) -> ResultCode {
    call(|| {
        // SAFETY: by the contract of this function.
        unsafe { raw::write_peers(failure::last_culprits().into_iter(), culprits, capacity, count_out) }
    })
}

/// `pcclGetLastVerdict`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclGetLastVerdict(
    comm: Handle,
    buffer: *mut c_char,
    capacity: usize,
    length_out: *mut usize,
) -> ResultCode {
    call(|| {
        let verdict = enter(comm)?.inner().last_verdict();
        let text = verdict.map_or_else(String::new, |verdict| verdict.to_string());
        // SAFETY: by the contract of this function.
        unsafe { raw::write_text(&text, buffer, capacity, length_out) }
    })
}

/// `pcclSetLogCallback`.
///
/// # Safety
/// The callback is null or may be called with `user` from any thread until it has been replaced.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclSetLogCallback(
    level: c_int,
    callback: Option<logging::Callback>,
    user: *mut c_void,
) -> ResultCode {
    call(|| logging::set_callback(level, callback, user))
}

/// `pcclWriteLog`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclWriteLog(level: c_int, text: *const c_char) -> ResultCode {
    call(|| {
        // SAFETY: by the contract of this function.
        logging::write(level, &unsafe { raw::text(text, "text") }?)
    })
}

/// `pcclGetStatus`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclGetStatus(
    comm: Handle,
    as_json: bool,
    buffer: *mut c_char,
    capacity: usize,
    length_out: *mut usize,
) -> ResultCode {
    call(|| {
        let status = enter(comm)?.connected()?.status();
        let status = status.map_err(|error| Failure::of(&error, code::INVALID_USAGE))?;
        let text = if as_json { pccl_master::status_to_json(&status) } else { status.to_string() };
        // SAFETY: by the contract of this function.
        unsafe { raw::write_text(&text, buffer, capacity, length_out) }
    })
}

/// `pcclReport`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclReport(comm: Handle, name: *const c_char, value: f64) -> ResultCode {
    call(|| {
        // SAFETY: by the contract of this function.
        let name = unsafe { raw::text(name, "name") }?;
        let reported = enter(comm)?.inner().report(&name, value);
        reported.map_err(|error| Failure::of(&error, code::INVALID_ARGUMENT))
    })
}

/// `pcclDoctor`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclDoctor(comm: Handle, passed_out: *mut bool) -> ResultCode {
    call(|| {
        let comm = enter(comm)?;
        raw::check(passed_out, "passed_out")?;
        let report = comm.inner().doctor();
        // SAFETY: by the contract of this function.
        unsafe { raw::write(passed_out, report.passed()) };
        *comm.report.lock() = report;
        Ok(())
    })
}

/// `pcclGetDoctorReport`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclGetDoctorReport(
    comm: Handle,
    as_json: bool,
    buffer: *mut c_char,
    capacity: usize,
    length_out: *mut usize,
) -> ResultCode {
    call(|| {
        let report = enter(comm)?.report.lock().clone();
        let text = if as_json { report.to_json() } else { report.to_string() };
        // SAFETY: by the contract of this function.
        unsafe { raw::write_text(&text, buffer, capacity, length_out) }
    })
}

/// `pcclDumpFlight`.
///
/// # Safety
/// As for all functions here: pointers are null or point to what the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pcclDumpFlight(
    comm: Handle,
    directory: *const c_char,
    buffer: *mut c_char,
    capacity: usize,
    length_out: *mut usize,
) -> ResultCode {
    call(|| {
        let comm = enter(comm)?;
        // SAFETY: by the contract of this function.
        let directory = unsafe { raw::text(directory, "directory") }?;
        let path = comm.inner().dump_flight(directory);
        let path = path.map_err(|error| Failure::of(&error, code::INTERNAL_ERROR))?;
        // SAFETY: by the contract of this function.
        unsafe { raw::write_text(&path.to_string_lossy(), buffer, capacity, length_out) }
    })
}
