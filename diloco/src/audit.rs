//! A file of all that a member gives to the rounds and of what comes of them. From those of all members
//! `python -m pccl.diloco.audit` computes each round again.
//!
//! The file begins with lines of `name value`, then an empty line. Records follow: a line of words, and as many f32
//! as it says, little-endian. A record of a try is complete before the exchange begins, so a member that is killed in
//! it has told its part.

use crate::{Fragments, Outer, Settings};
use pccl::{Error, PeerId};
use std::{
    fs::File,
    io::{self, Write},
    ops::Range,
    path::Path,
};

/// See the module's documentation. After a write that fails no more is written.
#[derive(Debug)]
pub(crate) struct Audit {
    file: Option<File>,
}

/// A try of a round, as this member takes part in it.
#[derive(Debug)]
pub(crate) struct Try<'a> {
    pub(crate) round: u64,
    pub(crate) at: Range<usize>,
    /// The members, in the order of their ranks.
    pub(crate) ring: &'a [PeerId],
    pub(crate) rank: usize,
    pub(crate) weights: &'a [f64],
    /// The own contribution; empty without weight.
    pub(crate) values: &'a [f32],
}

impl Audit {
    /// Into the file that `settings` name, if they do.
    ///
    /// # Errors
    /// `System` if it exists, or cannot be written.
    pub(crate) fn create(settings: &Settings, fragments: &Fragments) -> Result<Self, Error> {
        let Some(path) = settings.audit.as_deref() else { return Ok(Self { file: None }) };
        let lengths: Vec<_> =
            (0..fragments.count()).map(|it| fragments.range(it).len().to_string()).collect();
        let head = format!(
            "pccl-diloco-audit 1\nfragments {}\ncompression {}\nouter {}\n\n",
            lengths.join(","),
            settings.compression,
            settings.outer
        );
        let fault = |error: io::Error| {
            let advice = match error.kind() {
                io::ErrorKind::AlreadyExists => {
                    ": each start of a process needs a new one, so let the time be in its name"
                }
                _ => "",
            };
            Error::System(format!("audit file {}: {error}{advice}", path.display()).into())
        };
        Ok(Self { file: Some(begin(path, &head).map_err(fault)?) })
    }

    /// Before a try of a round.
    pub(crate) fn attempt(&mut self, it: &Try<'_>) {
        if self.file.is_none() {
            return;
        }
        let ring: Vec<_> = it.ring.iter().map(ToString::to_string).collect();
        let weights: Vec<_> = it.weights.iter().map(|weight| format!("{weight:?}")).collect();
        let words = format!(
            "try {} {} {} {} {} {}",
            it.round,
            it.at.start,
            it.at.end,
            it.rank,
            ring.join(","),
            weights.join(",")
        );
        self.write(&words, &[it.values]);
    }

    /// After a sync: a part of the outer parameters and of the outer momentum, as all members hold them. `is_made`: by
    /// the last try; otherwise the member has them from others.
    pub(crate) fn outcome(&mut self, outer: &Outer, at: Range<usize>, is_made: bool) {
        if self.file.is_none() {
            return;
        }
        let part = |of| <[f32]>::get(of, at.clone()).unwrap_or_default();
        let kind = if is_made { "made" } else { "taken" };
        let words = format!("{kind} {} {} {}", outer.rounds(), at.start, at.end);
        self.write(&words, &[part(&outer.parameters), part(&outer.momentum)]);
    }

    /// One record, in one call of the system: nothing waits in this process.
    fn write(&mut self, words: &str, values: &[&[f32]]) {
        let Some(file) = &mut self.file else { return };
        let count: usize = values.iter().map(|it| it.len()).sum();
        let mut bytes = format!("{words} {count}\n").into_bytes();
        bytes.extend(values.iter().flat_map(|it| it.iter()).flat_map(|value| value.to_le_bytes()));
        if let Err(error) = file.write_all(&bytes) {
            log::error!("the audit file ends here: {error}");
            self.file = None;
        }
    }
}

fn begin(path: &Path, head: &str) -> io::Result<File> {
    let mut file = File::create_new(path)?;
    file.write_all(head.as_bytes())?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_there_is_not_written_over() {
        let path = std::env::temp_dir().join(format!("pccl-audit-test-{}", std::process::id()));
        let settings = Settings { audit: Some(path.clone()), ..Settings::default() };
        let fragments = Fragments::even(10, 1).expect("fragments");
        drop(Audit::create(&settings, &fragments).expect("a new file"));
        let error = Audit::create(&settings, &fragments).expect_err("it is there").to_string();
        std::fs::remove_file(&path).expect("removed");
        assert!(error.contains("each start of a process needs a new one"), "{error}");
    }
}
