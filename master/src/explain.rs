//! `pccl-master explain`: what went wrong, from the files of flight recorders.

use clap::Args;
use pccl_flight::FILE_SUFFIX;
use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

/// Larger files are none of ours.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// Arguments of `explain`.
#[derive(Debug, Args)]
pub(crate) struct Explain {
    /// Directory with files of flight recorders (`PCCL_FLIGHT_DIR` of the peers and the master, collected in one
    /// place).
    dir: PathBuf,

    /// Show every event, not only those around the failure.
    #[arg(long)]
    all: bool,

    /// Explain the run whose identity begins like this; without it, the one with the newest events.
    #[arg(long, value_name = "RUN")]
    run: Option<String>,

    /// Explain this failure of several that lie apart, 1 being the oldest; without it, the newest.
    #[arg(long, value_name = "N")]
    incident: Option<usize>,
}

/// Reads the files and prints the explanation.
pub(crate) fn run(arguments: Explain) -> Result<(), String> {
    let (files, mut warnings) = read_all(&arguments.dir)?;
    let Explain { dir, all, run, incident } = arguments;
    if files.is_empty() {
        warn(&warnings);
        return Err(format!(
            "{} holds no file of a flight recorder (*{FILE_SUFFIX}); they are written after a failure if \
             PCCL_FLIGHT_DIR is set",
            dir.display()
        ));
    }
    let explained = pccl_flight::explain(files, &pccl_flight::Options { all, run, incident });
    let explained = explained.map_err(|error| format!("{}: {error}", dir.display()))?;
    warnings.extend(explained.warnings);
    warn(&warnings);
    match io::stdout().write_all(explained.text.as_bytes()) {
        // A user who pipes the text into `head` has seen enough.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(format!("cannot write to stdout: {error}"))
        }
        _ => Ok(()),
    }
}

type Files = Vec<(String, String)>;

/// Names and contents of all files, and what could not be read.
fn read_all(directory: &Path) -> Result<(Files, Vec<String>), String> {
    let cannot = |error: io::Error| format!("cannot read {}: {error}", directory.display());
    let (mut files, mut warnings) = (Vec::new(), Vec::new());
    for entry in fs::read_dir(directory).map_err(cannot)? {
        let path = entry.map_err(cannot)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !name.ends_with(FILE_SUFFIX) {
            continue;
        }
        match read(&path) {
            Ok(text) => files.push((name, text)),
            Err(error) => warnings.push(format!("{name}: skipped: {error}")),
        }
    }
    files.sort();
    Ok((files, warnings))
}

fn read(path: &Path) -> io::Result<String> {
    let metadata = fs::metadata(path)?;
    if !metadata.is_file() || metadata.len() > MAX_FILE_BYTES {
        return Err(io::Error::other("not a file of a flight recorder"));
    }
    Ok(String::from_utf8_lossy(&fs::read(path)?).into_owned())
}

fn warn(warnings: &[String]) {
    for warning in warnings {
        // Nothing can be done about a stderr that is closed.
        let _ = writeln!(io::stderr(), "pccl-master: {warning}");
    }
}
