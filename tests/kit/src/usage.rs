//! The system's counts of this process, for benches.

use std::{
    fs, io,
    time::{SystemTime, UNIX_EPOCH},
};

/// Processor time of this process so far, in seconds. The system counts in ticks of 10 ms.
///
/// # Errors
/// Of the operating system.
pub fn cpu_seconds() -> io::Result<f64> {
    const TICKS_PER_SECOND: f64 = 100.0;
    let stat = fs::read_to_string("/proc/self/stat")?;
    // The second field is a name in parentheses that may hold anything; user and system time are fields 14 and 15.
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let ticks: f64 =
        fields.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum();
    Ok(ticks / TICKS_PER_SECOND)
}

/// A field of `/proc/self/status`, such as `VmRSS`, in KiB.
///
/// # Errors
/// Of the operating system; if there is no such field.
pub fn memory_kib(field: &str) -> io::Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.ok_or_else(|| io::Error::other(format!("no field {field}")))
}

/// Bytes that have come in over a network interface, headers included; 0 if there is no such interface.
///
/// # Errors
/// Of the operating system.
pub fn received_bytes(interface: &str) -> io::Result<u64> {
    let all = fs::read_to_string("/proc/self/net/dev")?;
    let line = all.lines().find_map(|line| line.trim_start().strip_prefix(interface)?.strip_prefix(':'));
    Ok(line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0))
}

/// The system's clock, in seconds: the same in all processes.
#[must_use]
pub fn clock_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}
