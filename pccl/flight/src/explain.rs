//! From the files of many to one story: which belong together, who told what, by which clock.

use crate::{
    Entry, File, Header,
    align::align,
    incident, report,
    story::{Story, Teller},
};
use pccl_protocol::RunId;
use std::collections::{BTreeMap, BTreeSet};

/// The extent of an explanation.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Show every event of the time line, not only the most telling ones.
    pub all: bool,
    /// The run whose identity begins with this; by default the one with the newest event.
    pub run: Option<String>,
    /// Which of the failures that lie apart, 1 being the oldest; by default the newest.
    pub incident: Option<usize>,
}

/// The story, and what was wrong with the files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explained {
    /// To be read by people. Begins with the first cause.
    pub text: String,
    /// Files that were skipped, or used in part.
    pub warnings: Vec<String>,
}

/// Explains what went wrong from the contents of files: pairs of a name, for warnings, and the text.
///
/// # Errors
/// A sentence if no file can be used, or if `options` name something that is not there.
pub fn explain(
    files: impl IntoIterator<Item = (String, String)>,
    options: &Options,
) -> Result<Explained, String> {
    let mut warnings = Vec::new();
    let mut parsed = Vec::new();
    for (name, text) in files {
        match File::parse(&text) {
            Ok((file, problem)) => {
                warnings.extend(problem.map(|problem| format!("{name}: {problem}; using the rest")));
                parsed.push(file);
            }
            Err(error) => warnings.push(format!("{name}: skipped: {error}")),
        }
    }
    if parsed.is_empty() {
        let reasons = if warnings.is_empty() { String::new() } else { format!(" ({})", warnings.join("; ")) };
        return Err(format!("there is no file of a flight recorder that can be read{reasons}"));
    }
    let (mut tellers, mut notes) = choose(merge(parsed), options.run.as_deref())?;
    notes.extend(align(&mut tellers));
    let story = Story::new(tellers, notes);
    let incidents = incident::find(&story);
    let chosen = match options.incident {
        None => incidents.len().checked_sub(1),
        Some(number) if (1..=incidents.len()).contains(&number) => Some(number - 1),
        Some(number) => {
            return Err(format!(
                "there is no failure number {number}: the files tell of {}",
                incidents.len()
            ));
        }
    };
    Ok(Explained { text: report::write(&story, &incidents, chosen, options.all), warnings })
}

/// Files of one recorder overlap: puts them together.
fn merge(files: Vec<File>) -> Vec<Teller> {
    let mut tellers: BTreeMap<_, (Header, BTreeMap<u64, Entry>)> = BTreeMap::new();
    for file in files {
        let header = file.header;
        let key = (header.role, header.host.clone(), header.pid, header.instance, header.started_us);
        let (newest, entries) = tellers.entry(key).or_insert_with(|| (header.clone(), BTreeMap::new()));
        if header.written_us >= newest.written_us {
            *newest = header;
        }
        entries.extend(file.entries.into_iter().map(|entry| (entry.sequence, entry)));
    }
    let teller = |(header, entries): (Header, BTreeMap<u64, Entry>)| Teller {
        header,
        entries: entries.into_values().collect(),
        offset_us: 0,
    };
    tellers.into_values().map(teller).collect()
}

/// Keeps the recorders of one run, and of those that it is tied to by peers that went from one to the other.
fn choose(tellers: Vec<Teller>, run: Option<&str>) -> Result<(Vec<Teller>, Vec<String>), String> {
    let runs: Vec<BTreeSet<RunId>> = tellers.iter().map(Teller::runs).collect();
    let matching =
        |teller: usize| run.is_none_or(|run| runs[teller].iter().any(|id| id.to_string().starts_with(run)));
    let newest =
        (0..tellers.len()).filter(|&index| matching(index)).max_by_key(|&index| tellers[index].last_time());
    let Some(newest) = newest else {
        let known: BTreeSet<String> = runs.iter().flatten().map(ToString::to_string).collect();
        let known: Vec<String> = known.into_iter().collect();
        return Err(format!(
            "no file is of a run {}; there are: {}",
            run.unwrap_or_default(),
            known.join(", ")
        ));
    };
    let mut together = runs[newest].clone();
    loop {
        let more: BTreeSet<RunId> =
            runs.iter().filter(|runs| !runs.is_disjoint(&together)).flatten().copied().collect();
        if more.is_subset(&together) {
            break;
        }
        together.extend(more);
    }
    let others: BTreeSet<String> =
        runs.iter().flatten().filter(|run| !together.contains(run)).map(ToString::to_string).collect();
    let mut notes = Vec::new();
    if !others.is_empty() {
        let others: Vec<String> = others.into_iter().collect();
        notes.push(format!("there are files of other runs too, see them with --run: {}", others.join(", ")));
    }
    // Recorders that never heard of a run are kept: they may be peers that could not reach this one.
    let keep =
        |index: usize| runs[index].is_empty() || !runs[index].is_disjoint(&together) || index == newest;
    let kept = tellers.into_iter().enumerate().filter(|(index, _)| keep(*index)).map(|(_, teller)| teller);
    Ok((kept.collect(), notes))
}

#[cfg(test)]
#[path = "explain_tests.rs"]
mod tests;
