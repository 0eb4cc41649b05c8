//! The story in words.

use crate::{
    Event, Role, What,
    incident::{Incident, Party},
    story::{Story, micros_text},
};
use pccl_protocol::{PeerId, is_hidden};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
};

/// Lines of the time line in front of the first sign, and behind it.
const LINES_BEFORE: usize = 40;
const LINES_AFTER: usize = 120;
/// The time line begins and ends this long before and after the incident.
const MARGIN_US: i64 = 2_000_000;
/// Events that are shown of what a peer did last.
const LAST_EVENTS: usize = 3;

/// Writes the report; `chosen` is the incident that it is about.
pub(super) fn write(story: &Story, incidents: &[Incident], chosen: Option<usize>, all: bool) -> String {
    let mut out = String::new();
    match chosen.and_then(|index| incidents.get(index)) {
        Some(incident) => {
            headline(&mut out, story, incident);
            sufferers(&mut out, story, incident);
            last_seen(&mut out, story, incident);
        }
        None => out.push_str("No failure: the files tell of none.\n"),
    }
    let incident = chosen.and_then(|index| incidents.get(index));
    time_line(&mut out, story, incident, all);
    if incidents.len() > 1 {
        section(&mut out, "All failures in these files (choose one with --incident)");
        for (index, incident) in incidents.iter().enumerate() {
            let time = utc(story.order[incident.sign].0);
            let mark = if Some(index) == chosen { "*" } else { " " };
            line(&mut out, &format!(" {mark}{:>3}  {time}  {}", index + 1, cause(story, incident)));
        }
    }
    if !story.notes.is_empty() {
        section(&mut out, "Notes");
        for note in &story.notes {
            line(&mut out, &format!("  {note}"));
        }
    }
    out
}

fn section(out: &mut String, title: &str) {
    out.push('\n');
    line(out, &format!("{title}:"));
}

fn line(out: &mut String, text: &str) {
    // The text of a file must not break the layout or move the reader's cursor.
    out.extend(text.chars().map(|c| if is_hidden(c) { ' ' } else { c }));
    out.push('\n');
}

/// The first cause in a few words.
fn cause(story: &Story, incident: &Incident) -> String {
    let who = incident
        .culprits
        .iter()
        .map(|party| match party {
            Party::Peer(peer) => story.peer(*peer),
            Party::Master => "the master".to_owned(),
        })
        .collect::<Vec<_>>()
        .join(" and ");
    let primary = &story.entry(incident.verdict.unwrap_or(incident.failures[incident.primary].at)).event;
    let what = match (primary.what, primary.cause) {
        (What::Verdict, Some(cause)) => cause.to_string(),
        (What::PeerLost, _) => "connection to the master lost".to_owned(),
        (What::PeerKicked, _) => format!("dropped: {}", primary.name.as_deref().unwrap_or("no reason")),
        (What::SessionEnded, _) if primary.name.as_deref() == Some("master-lost") => "master lost".to_owned(),
        (What::SessionEnded, _) => "dropped by the master".to_owned(),
        (What::EdgeFault | What::LinkBroken, _) => "edge broken".to_owned(),
        _ => "fault".to_owned(),
    };
    if who.is_empty() { what } else { format!("{what}: {who}") }
}

fn headline(out: &mut String, story: &Story, incident: &Incident) {
    line(out, &format!("First cause: {}", cause(story, incident)));
    let judged = incident.verdict.unwrap_or(incident.failures[incident.primary].at);
    if let Some(text) = &story.entry(judged).event.text {
        line(out, &format!("  {}", text));
    }
    let (time, sign) = (story.order[incident.sign].0, story.entry(incident.sign));
    let teller = story.teller(incident.sign).label();
    line(
        out,
        &format!("  First sign: {}, {teller}: {}", utc(time), describe(story, &sign.event, Role::Peer)),
    );
}

/// Peers that met an error without being at fault, each with its first one.
fn sufferers(out: &mut String, story: &Story, incident: &Incident) {
    let (start, end) = (story.order[incident.sign].0, end_of(story, incident));
    let mut errors: BTreeMap<usize, String> = BTreeMap::new();
    for (at, &(time, teller, index)) in story.order.iter().enumerate() {
        let event = &story.entry(at).event;
        let failed = match event.what {
            What::OpResult | What::SyncResult => event.name.as_deref() != Some("ok"),
            What::SessionEnded => event.name.as_deref() != Some("closed"),
            _ => false,
        };
        let told = &story.tellers[teller];
        let guilty =
            told.identity_at(index).is_some_and(|peer| incident.culprits.contains(&Party::Peer(peer)));
        if failed && !guilty && told.header.role == Role::Peer && (start..=end).contains(&time) {
            let error = describe(story, event, Role::Peer);
            errors
                .entry(teller)
                .or_insert_with(|| format!("{}  {error}", micros_text(time.saturating_sub(start))));
        }
    }
    section(out, "Only suffered");
    if errors.is_empty() {
        line(out, "  nobody, as far as the files tell");
    }
    for (teller, error) in errors {
        line(out, &format!("  {}: {error}", story.tellers[teller].label()));
    }
}

/// The last events of each peer before the first sign; culprits first.
fn last_seen(out: &mut String, story: &Story, incident: &Incident) {
    section(out, "Last events of each before the first sign");
    let mut peers: BTreeSet<PeerId> = story.tellers.iter().flat_map(|teller| teller.identities()).collect();
    let guilty: Vec<PeerId> = incident
        .culprits
        .iter()
        .filter_map(|party| match party {
            Party::Peer(peer) => Some(*peer),
            Party::Master => None,
        })
        .collect();
    peers.retain(|peer| !guilty.contains(peer));
    for peer in guilty.iter().chain(&peers) {
        let mark = if guilty.contains(peer) { "  (cause)" } else { "" };
        line(out, &format!("  {}{mark}", story.peer(*peer)));
        let own = last_of(story, incident, |teller, index, _| {
            story.tellers[teller].identity_at(index) == Some(*peer)
        });
        if own.is_empty() {
            line(out, "    no file of its own that reaches back so far; what the master saw:");
            let seen = last_of(story, incident, |teller, _, event| {
                story.tellers[teller].header.role == Role::Master && event.peer == Some(*peer)
            });
            seen.iter().for_each(|text| line(out, text));
        }
        own.iter().for_each(|text| line(out, text));
    }
}

/// The last few events in front of the first sign that `wanted` takes (teller, index, event).
fn last_of(story: &Story, incident: &Incident, wanted: impl Fn(usize, usize, &Event) -> bool) -> Vec<String> {
    let start = story.order[incident.sign].0;
    let earlier = story.order[..incident.sign].iter().rev();
    let found = earlier.filter_map(|&(time, teller, index)| {
        let event = &story.tellers[teller].entries[index].event;
        let role = story.tellers[teller].header.role;
        wanted(teller, index, event).then(|| {
            format!("    {}  {}", micros_text(time.saturating_sub(start)), describe(story, event, role))
        })
    });
    let mut lines: Vec<String> = found.take(LAST_EVENTS).collect();
    lines.reverse();
    lines
}

fn end_of(story: &Story, incident: &Incident) -> i64 {
    let last = incident.failures.last().map_or(incident.sign, |failure| failure.at);
    story.order[last].0.saturating_add(MARGIN_US)
}

fn time_line(out: &mut String, story: &Story, incident: Option<&Incident>, all: bool) {
    let Some(center) = incident.map(|incident| incident.sign).or(story.order.len().checked_sub(1)) else {
        return;
    };
    let zero = story.order[center].0;
    section(out, &format!("Time line (seconds from {})", utc(zero)));
    let window = match incident {
        Some(incident) if !all => zero.saturating_sub(MARGIN_US)..=end_of(story, incident),
        _ => i64::MIN..=i64::MAX,
    };
    let shown: Vec<usize> = (0..story.order.len())
        .filter(|&at| {
            let event = &story.entry(at).event;
            all || (window.contains(&story.order[at].0) && !event.is_beat())
        })
        .collect();
    let middle = shown.partition_point(|&at| at < center);
    let (first, last) = match all {
        true => (0, shown.len()),
        false => (middle.saturating_sub(LINES_BEFORE), (middle + LINES_AFTER).min(shown.len())),
    };
    if first > 0 {
        line(out, &format!("  ... {first} earlier events, see them with --all"));
    }
    for &at in &shown[first..last] {
        let (time, teller, _) = story.order[at];
        let teller = &story.tellers[teller];
        let text = describe(story, &story.entry(at).event, teller.header.role);
        let mark = if Some(at) == incident.map(|incident| incident.sign) { ">" } else { " " };
        line(out, &format!(" {mark}{}  {}: {text}", micros_text(time.saturating_sub(zero)), teller.label()));
    }
    if last < shown.len() {
        line(out, &format!("  ... {} later events, see them with --all", shown.len() - last));
    }
}

/// One event in words, as its recorder saw it.
fn describe(story: &Story, event: &Event, role: Role) -> String {
    let name = event.name.as_deref().unwrap_or("");
    let peer = event.peer.map(|peer| story.peer(peer)).unwrap_or_default();
    let other = event.other.map(|peer| story.peer(peer)).unwrap_or_default();
    let mut out = match (event.what, role) {
        (What::Sent, Role::Master) => format!("to {peer}: {name}"),
        (What::Received, Role::Master) => format!("from {peer}: {name}"),
        (What::Sent, Role::Peer) => format!("to the master: {name}"),
        (What::Received, Role::Peer) => format!("from the master: {name}"),
        (What::CallBegan, _) => format!("enters {name}"),
        (What::CallEnded, _) => format!("leaves {name}"),
        (What::EdgeFault, _) => format!("edge {peer} -> {other} broken"),
        (What::LinkBroken, _) if name == "in" => format!("connection from {peer} broken"),
        (What::LinkBroken, _) => format!("connection to {peer} broken"),
        (What::Verdict, _) => "verdict".to_owned(),
        (What::PeerRegistered, _) => format!("{peer} registered"),
        (What::PeerAccepted, _) => format!("{peer} accepted"),
        (What::PeerLost, _) => format!("lost {peer}"),
        (What::PeerKicked, _) => format!("drops {peer}: {name}"),
        (What::PeerLeft, _) => format!("{peer} left"),
        (what, _) => {
            let words = what.name().replace('-', " ");
            let words = if name.is_empty() { words } else { format!("{words}: {name}") };
            if peer.is_empty() { words } else { format!("{words} ({peer})") }
        }
    };
    // Writing to a string cannot fail.
    if let (Some(subject), false) = (&event.subject, event.what == What::Verdict) {
        let _ = write!(out, ", {subject}");
    }
    if let Some(part) = &event.part {
        let _ = write!(out, ", {part}");
    }
    if let Some(count) = event.count {
        let _ = match event.what {
            What::OpLaunched | What::SyncVoted | What::SyncPlanned => write!(out, ", {count} tensors"),
            What::RingPlanned => write!(out, ", {count} members"),
            What::PeerRegistered => write!(out, ", group {count}"),
            What::StoodStill => write!(out, " for {count} ms"),
            _ => write!(out, ", {count}"),
        };
    }
    if let (Some(bytes), false) = (event.bytes, event.what == What::Verdict) {
        let _ = write!(out, ", {bytes} bytes");
    }
    if let Some(text) = &event.text {
        let _ = write!(out, ": {text}");
    }
    out
}

/// Microseconds since 1970 as a date and a time.
fn utc(us: i64) -> String {
    let (days, us) = (us.div_euclid(86_400_000_000), us.rem_euclid(86_400_000_000));
    let (hour, minute, second) = (us / 3_600_000_000, us / 60_000_000 % 60, us / 1_000_000 % 60);
    // Days to a date of the Gregorian calendar, counted from 1 March 0000 (Hinnant, "chrono-compatible low-level date
    // algorithms").
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_index + 2) / 5 + 1;
    let month = if month_index < 10 { month_index + 3 } else { month_index - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{:06} UTC", us % 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        assert_eq!(utc(0), "1970-01-01 00:00:00.000000 UTC");
        assert_eq!(utc(951_782_399_999_999), "2000-02-28 23:59:59.999999 UTC");
        assert_eq!(utc(951_782_400_000_000), "2000-02-29 00:00:00.000000 UTC");
        assert_eq!(utc(1_795_235_113_000_001), "2026-11-21 04:25:13.000001 UTC");
        assert_eq!(utc(-1), "1969-12-31 23:59:59.999999 UTC");
    }
}
