//! From the files of many to one story: which belong together, who told what, by which clock.

use crate::{Entry, File, Header, Role, What, align::align, incident, report};
use pccl_protocol::{Named, PeerId, RunId};
use std::collections::{BTreeMap, BTreeSet};

/// What to explain.
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

/// One recorder with all that its files hold.
#[derive(Debug)]
pub(super) struct Teller {
    /// The head of its newest file.
    pub(super) header: Header,
    pub(super) entries: Vec<Entry>,
    /// To be added to its clock.
    pub(super) offset_us: i64,
}

impl Teller {
    /// The time of an entry by its own clock, in microseconds since 1970.
    pub(super) fn own_time(&self, entry: &Entry) -> i64 {
        // Far beyond any real time, and sums of a few of them still fit.
        let bounded = |value: u64| value.min(1 << 60) as i64;
        bounded(self.header.started_us) + bounded(entry.at_us)
    }

    /// The time of an entry by the common clock.
    pub(super) fn time(&self, entry: &Entry) -> i64 {
        self.own_time(entry).saturating_add(self.offset_us)
    }

    /// The peer that it was when it recorded this entry.
    pub(super) fn identity_at(&self, index: usize) -> Option<PeerId> {
        let mut identities = self.entries[..=index].iter().rev().filter_map(registered);
        match identities.next() {
            Some(peer) => Some(peer),
            None if self.entries.iter().any(|entry| registered(entry).is_some()) => None,
            None => self.header.peer,
        }
    }

    /// Every peer that it has been.
    pub(super) fn identities(&self) -> BTreeSet<PeerId> {
        self.entries.iter().filter_map(registered).chain(self.header.peer).collect()
    }

    /// Who it is, in words.
    pub(super) fn label(&self) -> String {
        match (self.header.role, self.header.peer) {
            (Role::Master, _) => format!("master ({})", self.header.host),
            (Role::Peer, Some(peer)) => {
                format!("peer {}", Named(peer, &self.header.name, &self.header.host))
            }
            (Role::Peer, None) => {
                format!("unregistered peer ({}, pid {})", self.header.host, self.header.pid)
            }
        }
    }

    fn runs(&self) -> BTreeSet<RunId> {
        let of_entries = self.entries.iter().filter(|entry| entry.event.what == What::Registered);
        let runs = of_entries.filter_map(|entry| u128::from_str_radix(entry.event.text.as_deref()?, 16).ok());
        runs.map(RunId).chain(self.header.run).collect()
    }

    fn last_time(&self) -> i64 {
        self.entries.last().map_or(0, |entry| self.own_time(entry))
    }
}

fn registered(entry: &Entry) -> Option<PeerId> {
    if entry.event.what == What::Registered { entry.event.peer } else { None }
}

/// Everything that is told about one run, by one clock.
#[derive(Debug)]
pub(super) struct Story {
    pub(super) tellers: Vec<Teller>,
    /// All entries in order: time, teller, index of the entry.
    pub(super) order: Vec<(i64, usize, usize)>,
    /// Hosts of the peers as far as they are known.
    pub(super) hosts: BTreeMap<PeerId, String>,
    /// What the reader should know about clocks and files.
    pub(super) notes: Vec<String>,
}

impl Story {
    pub(super) fn entry(&self, index: usize) -> &Entry {
        let (_, teller, entry) = self.order[index];
        &self.tellers[teller].entries[entry]
    }

    pub(super) fn teller(&self, index: usize) -> &Teller {
        &self.tellers[self.order[index].1]
    }

    /// A peer, in words.
    pub(super) fn peer(&self, peer: PeerId) -> String {
        match self.hosts.get(&peer) {
            Some(host) => format!("peer {peer} ({host})"),
            None => format!("peer {peer}"),
        }
    }
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
    let (tellers, notes) = choose(merge(parsed), options.run.as_deref())?;
    let story = story(tellers, notes);
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

fn story(mut tellers: Vec<Teller>, mut notes: Vec<String>) -> Story {
    notes.extend(align(&mut tellers));
    let mut order: Vec<(i64, usize, usize)> = Vec::new();
    let mut hosts = BTreeMap::new();
    for (index, teller) in tellers.iter().enumerate() {
        order.extend(teller.entries.iter().enumerate().map(|(i, entry)| (teller.time(entry), index, i)));
        for peer in teller.identities() {
            hosts.entry(peer).or_insert_with(|| teller.header.host.clone());
        }
        let told = teller.entries.iter().filter(|entry| entry.event.what == What::PeerRegistered);
        for entry in told {
            if let (Some(peer), Some(host)) = (entry.event.peer, &entry.event.text) {
                hosts.insert(peer, host.to_string());
            }
        }
        if teller.header.dropped > 0 {
            notes.push(format!(
                "{}: {} older events had been overwritten",
                teller.label(),
                teller.header.dropped
            ));
        }
    }
    order.sort_unstable();
    Story { tellers, order, hosts, notes }
}

/// A span of time with its sign, in words.
pub(super) fn micros_text(us: i64) -> String {
    let (sign, us) = (if us < 0 { '-' } else { '+' }, us.unsigned_abs());
    format!("{sign}{}.{:06} s", us / 1_000_000, us % 1_000_000)
}

#[cfg(test)]
#[path = "explain_tests.rs"]
mod tests;
