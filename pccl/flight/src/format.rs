//! Files of the flight recorder: text, one `key=value` line per fact of the head, one line per event.
//!
//! The parser is total: any text gives a file, or says what is wrong. A file whose head can be read is used as far as
//! its lines can be.

use crate::{Entry, Event, Subject, What, event::named};
use pccl_protocol::{
    Cause, GroupEpoch, GroupId, LinkGeneration, Name, OpId, Pair, PartDescriptor, PeerId, RequestId, RunId,
    SyncId, Tag, WorldEpoch,
};
use pccl_quant::{
    DataType, ReduceOp,
    quantise::{self, Quantisation, Scheme},
};
use std::fmt::{self, Write};

/// First line of a file.
const MAGIC: &str = "pccl-flight 1";
/// Between the head and the events.
const EVENTS: &str = "events";
/// Last line: proof that nothing was cut off.
const END: &str = "end";

named! {
    /// The role of the writer of a file.
    pub enum Role {
        /// A peer.
        Peer = "peer",
        /// A master.
        Master = "master",
    }
}

/// The writer of a file, and why it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Peer or master.
    pub role: Role,
    /// The run, once it is known.
    pub run: Option<RunId>,
    /// The peer, once it is registered.
    pub peer: Option<PeerId>,
    /// Its group.
    pub group: GroupId,
    /// The name of the peer; empty for a master.
    pub name: Name,
    /// Name of the machine.
    pub host: String,
    /// Process.
    pub pid: u32,
    /// Number of the recorder in its process.
    pub instance: u64,
    /// Wall clock at the start of the recorder: microseconds since 1970.
    pub started_us: u64,
    /// When the file was written, in microseconds since that start.
    pub written_us: u64,
    /// Events that had been pushed out of the buffer by then.
    pub dropped: u64,
    /// Why it was written.
    pub why: String,
}

/// One file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// The writer, and why it was written.
    pub header: Header,
    /// In the order of their sequence numbers.
    pub entries: Vec<Entry>,
}

/// Why a text is not a file of a flight recorder.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The first line is wrong.
    #[error("it does not begin with {MAGIC:?}")]
    Magic,
    /// A fact of the head is missing or cannot be read.
    #[error("its head has no valid {0:?}")]
    Head(&'static str),
}

impl File {
    /// The text of the file.
    pub fn to_text(&self) -> String {
        let mut out = String::with_capacity(512 + 96 * self.entries.len());
        // Writing to a string cannot fail.
        let _ = write_head(&mut out, &self.header);
        for entry in &self.entries {
            let _ = write_entry(&mut out, entry);
        }
        let _ = writeln!(out, "{END} {}", self.entries.len());
        out
    }

    /// Reads a file. The second value says what is wrong with it, if anything is.
    ///
    /// # Errors
    /// If the head cannot be read; lines of events that cannot be are left out and counted.
    pub fn parse(text: &str) -> Result<(Self, Option<String>), FormatError> {
        let mut lines = text.lines();
        if lines.next() != Some(MAGIC) {
            return Err(FormatError::Magic);
        }
        let head: Vec<(&str, &str)> = lines
            .by_ref()
            .take_while(|line| *line != EVENTS)
            .filter_map(|line| line.split_once('='))
            .collect();
        let header = parse_head(&head)?;
        let (mut entries, mut bad, mut ended) = (Vec::new(), 0u64, false);
        for line in lines {
            match parse_entry(line) {
                Some(entry) => entries.push(entry),
                None if line.strip_prefix(END).is_some_and(|n| n.trim() == entries.len().to_string()) => {
                    ended = true;
                }
                None => bad += 1,
            }
        }
        entries.sort_by_key(|entry: &Entry| entry.sequence);
        let problem = match (bad, ended) {
            (0, true) => None,
            (0, false) => Some("its end is missing".to_owned()),
            (bad, _) => Some(format!("{bad} of its lines cannot be read")),
        };
        Ok((Self { header, entries }, problem))
    }
}

fn write_head(out: &mut String, header: &Header) -> fmt::Result {
    writeln!(out, "{MAGIC}")?;
    writeln!(out, "role={}", header.role.name())?;
    if let Some(run) = header.run {
        writeln!(out, "run={run}")?;
    }
    if let Some(peer) = header.peer {
        writeln!(out, "peer={peer:#}")?;
    }
    writeln!(out, "group={}", header.group)?;
    writeln!(out, "name={}", header.name)?;
    writeln!(out, "host={}", escape_line(&header.host))?;
    writeln!(out, "pid={}", header.pid)?;
    writeln!(out, "instance={}", header.instance)?;
    writeln!(out, "started_us={}", header.started_us)?;
    writeln!(out, "written_us={}", header.written_us)?;
    writeln!(out, "dropped={}", header.dropped)?;
    writeln!(out, "why={}", escape_line(&header.why))?;
    writeln!(out, "{EVENTS}")
}

fn parse_head(facts: &[(&str, &str)]) -> Result<Header, FormatError> {
    let find = |key: &str| facts.iter().find(|(k, _)| *k == key).map(|(_, value)| *value);
    let number = |key: &'static str| {
        find(key).and_then(|value| value.parse::<u64>().ok()).ok_or(FormatError::Head(key))
    };
    let text = |key: &'static str| find(key).and_then(unescape).ok_or(FormatError::Head(key));
    let id = |key: &'static str| match find(key) {
        None => Ok(None),
        Some(value) => parse_id(value).map(Some).ok_or(FormatError::Head(key)),
    };
    let narrow = |key: &'static str| u32::try_from(number(key)?).map_err(|_| FormatError::Head(key));
    Ok(Header {
        role: find("role").and_then(Role::from_name).ok_or(FormatError::Head("role"))?,
        run: id("run")?.map(RunId),
        peer: id("peer")?.map(PeerId),
        group: GroupId(narrow("group")?),
        name: Name::new(find("name").ok_or(FormatError::Head("name"))?),
        host: text("host")?,
        pid: narrow("pid")?,
        instance: number("instance")?,
        started_us: number("started_us")?,
        written_us: number("written_us")?,
        dropped: number("dropped")?,
        why: text("why")?,
    })
}

fn write_entry(out: &mut String, entry: &Entry) -> fmt::Result {
    let event = &entry.event;
    write!(out, "{} {} {}", entry.sequence, entry.at_us, event.what.name())?;
    if let Some(name) = &event.name {
        write!(out, " name={}", escape(name))?;
    }
    if let Some(peer) = event.peer {
        write!(out, " peer={peer:#}")?;
    }
    if let Some(other) = event.other {
        write!(out, " other={other:#}")?;
    }
    match event.subject {
        None => {}
        Some(Subject::Op(OpId { epoch, tag, attempt })) => {
            write!(out, " op={epoch}.{}.{attempt}", tag.number)?;
            if tag.track > 0 {
                write!(out, ".{}", tag.track)?;
            }
            tag.pair.map_or(Ok(()), |Pair { from, to }| write!(out, ".{from:#}.{to:#}"))?;
        }
        Some(Subject::Tag(tag)) => write!(out, " tag={tag}")?,
        Some(Subject::Epoch(epoch)) => write!(out, " epoch={epoch}")?,
        Some(Subject::World(epoch)) => write!(out, " world={epoch}")?,
        Some(Subject::Request(id)) => write!(out, " request={id}")?,
        Some(Subject::Sync(id)) => write!(out, " sync={id}")?,
        Some(Subject::Beat(sequence)) => write!(out, " beat={sequence}")?,
        Some(Subject::Edge(generation)) => write!(out, " edge={generation}")?,
    }
    if let Some(cause) = event.cause {
        write!(out, " cause={}", escape(&cause.to_string()))?;
    }
    if let Some(count) = event.count {
        write!(out, " count={count}")?;
    }
    if let Some(bytes) = event.bytes {
        write!(out, " bytes={bytes}")?;
    }
    if let Some(part) = event.part {
        write!(out, " part={}.{}.{}", part.data_type.name(), part.op.code(), part.count)?;
        if let Some(quantisation) = part.quantisation {
            let scheme = quantisation.scheme();
            write!(out, ".{}.{}", scheme.algorithm().code(), scheme.parameter())?;
            quantisation.seed().map_or(Ok(()), |seed| write!(out, ".{seed}"))?;
        }
    }
    if let Some(text) = &event.text {
        write!(out, " text={}", escape_line(text))?;
    }
    out.push('\n');
    Ok(())
}

fn parse_entry(line: &str) -> Option<Entry> {
    // No other value contains a space, so the first of these begins the text.
    let (line, text) = match line.split_once(" text=") {
        Some((line, text)) => (line, Some(unescape(text)?)),
        None => (line, None),
    };
    let mut words = line.split(' ');
    let sequence = words.next()?.parse().ok()?;
    let at_us = words.next()?.parse().ok()?;
    let mut event = Event::new(What::from_name(words.next()?)?);
    for word in words {
        let (key, value) = word.split_once('=')?;
        match key {
            "name" => event.name = Some(unescape(value)?.into()),
            "peer" => event.peer = Some(PeerId(parse_id(value)?)),
            "other" => event.other = Some(PeerId(parse_id(value)?)),
            "cause" => {
                let text = unescape(value)?;
                event.cause = Some(*Cause::ALL.iter().find(|cause| cause.to_string() == text)?);
            }
            "count" => event.count = Some(value.parse().ok()?),
            "bytes" => event.bytes = Some(value.parse().ok()?),
            "part" => event.part = Some(parse_part(value)?),
            _ => event.subject = Some(parse_subject(key, value)?),
        }
    }
    event.text = text.map(Into::into);
    Some(Entry { sequence, at_us, event })
}

fn parse_subject(key: &str, value: &str) -> Option<Subject> {
    if key == "op" {
        let mut numbers = value.split('.');
        let epoch = GroupEpoch(numbers.next()?.parse().ok()?);
        let number: u64 = numbers.next()?.parse().ok()?;
        let attempt = numbers.next()?.parse().ok()?;
        let tag = match numbers.next() {
            None => Tag::from(number),
            Some(text) => match parse_id(text).map(PeerId) {
                Some(from) => {
                    let pair = Pair { from, to: PeerId(parse_id(numbers.next()?)?) };
                    Tag { pair: Some(pair), ..number.into() }
                }
                None => Tag { track: text.parse().ok()?, ..number.into() },
            },
        };
        return numbers.next().is_none().then_some(Subject::Op(OpId { epoch, tag, attempt }));
    }
    let number = value.parse().ok()?;
    Some(match key {
        "tag" => Subject::Tag(number),
        "epoch" => Subject::Epoch(GroupEpoch(number)),
        "world" => Subject::World(WorldEpoch(number)),
        "request" => Subject::Request(RequestId(number)),
        "sync" => Subject::Sync(SyncId(number)),
        "beat" => Subject::Beat(number),
        "edge" => Subject::Edge(LinkGeneration(number)),
        _ => return None,
    })
}

fn parse_part(value: &str) -> Option<PartDescriptor> {
    let mut words = value.split('.');
    let name = words.next()?;
    let data_type = DataType::ALL.into_iter().find(|data_type| data_type.name() == name)?;
    let op = ReduceOp::from_code(words.next()?.parse().ok()?)?;
    let count = words.next()?.parse().ok()?;
    let quantisation = match words.next() {
        None => None,
        Some(algorithm) => {
            let algorithm = quantise::Algorithm::from_code(algorithm.parse().ok()?)?;
            let quantisation = Quantisation::new(Scheme::of(algorithm, words.next()?.parse().ok()?)?);
            let seed: Option<u64> = words.next().map(str::parse).transpose().ok()?;
            Some(seed.map_or(quantisation, |seed| quantisation.stochastic(seed)))
        }
    };
    words.next().is_none().then_some(PartDescriptor { count, data_type, op, quantisation })
}

fn parse_id(value: &str) -> Option<u128> {
    let digits = value.len() == 32 && value.bytes().all(|b| b.is_ascii_hexdigit());
    if digits { u128::from_str_radix(value, 16).ok() } else { None }
}

/// A word: neither spaces nor line ends.
fn escape(text: &str) -> String {
    escape_line(text).replace(' ', "\\_")
}

/// A line: no line ends.
fn escape_line(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            c => out.push(c),
        }
    }
    out
}

fn unescape(word: &str) -> Option<String> {
    let mut out = String::with_capacity(word.len());
    let mut chars = word.chars();
    while let Some(c) = chars.next() {
        out.push(match c {
            '\\' => match chars.next()? {
                '\\' => '\\',
                '_' => ' ',
                'n' => '\n',
                'r' => '\r',
                _ => return None,
            },
            c => c,
        });
    }
    Some(out)
}
