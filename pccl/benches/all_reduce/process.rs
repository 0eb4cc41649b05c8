//! What the system says about this process.

use std::{
    fs, io,
    time::{SystemTime, UNIX_EPOCH},
};

/// Processor time of this process so far, in seconds. The system counts in ticks of 10 ms.
pub(crate) fn cpu_seconds() -> io::Result<f64> {
    const TICKS_PER_SECOND: f64 = 100.0;
    let stat = fs::read_to_string("/proc/self/stat")?;
    // The second field is a name in parentheses that may hold anything; user and system time are fields 14 and 15.
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let ticks: f64 =
        fields.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum();
    Ok(ticks / TICKS_PER_SECOND)
}

/// The system's clock, in seconds: the same in all processes.
pub(crate) fn clock_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}
