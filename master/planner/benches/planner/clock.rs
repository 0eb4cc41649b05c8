//! The time that a thread has had a processor, so that other jobs of the machine do not count.

use std::{
    fs::File,
    os::unix::fs::FileExt,
    time::{Duration, Instant},
};

/// Processor time of this thread, or time on the clock where the system does not tell.
pub(crate) struct Clock {
    file: Option<File>,
    began: Instant,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self { file: File::open("/proc/thread-self/schedstat").ok(), began: Instant::now() }
    }

    pub(crate) fn now(&self) -> Duration {
        let mut text = [0; 64];
        let length = self.file.as_ref().and_then(|file| file.read_at(&mut text, 0).ok()).unwrap_or(0);
        let text = std::str::from_utf8(&text[..length]).unwrap_or("");
        let nanos = text.split_whitespace().next().and_then(|number| number.parse().ok());
        nanos.map_or_else(|| self.began.elapsed(), Duration::from_nanos)
    }
}
