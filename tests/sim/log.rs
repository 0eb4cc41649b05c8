//! The log of a run: what happened, to be read, compared or counted.

/// The fate of the log of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Logging {
    /// Lines are counted: most of the time of a run would go into text that nobody reads.
    Counted,
    /// Lines are hashed, so that runs can be compared.
    Hashed,
    /// Lines are printed, too.
    Printed,
}

/// The log of a run.
#[derive(Debug)]
pub(crate) struct Log {
    pub(crate) logging: Logging,
    pub(crate) hash: u64,
    pub(crate) lines: u64,
}

impl Log {
    pub(crate) fn line(&mut self, now: u64, text: std::fmt::Arguments<'_>) {
        self.lines += 1;
        if self.logging == Logging::Counted {
            return;
        }
        let text = text.to_string();
        for byte in now.to_le_bytes().iter().chain(text.as_bytes()) {
            self.hash = (self.hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        if self.logging == Logging::Printed {
            println!("{:>10.3} {text}", now as f64 / 1000.0);
        }
    }
}
