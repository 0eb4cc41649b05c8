//! Reports of a peer to its supervisor: one line of text per event, on its standard output.

use std::fmt;

/// One line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    /// When, on the monotonic clock that all processes of the machine share, in microseconds.
    pub(crate) at_us: u64,
    pub(crate) event: Event,
}

/// An event of a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    /// It is a member of the run, under this identity.
    Joined { peer: u128 },
    /// The part of the shared state that it had fetched when it was let in; with all of it, the revision and the
    /// checksum.
    Ahead { whole: Option<(u64, u64)>, rx_bytes: u64 },
    /// A sync of the shared state was committed.
    Synced { revision: u64, hash: u64, rx_bytes: u64 },
    /// The ring was optimised; whether it is another one now, and how long the call took.
    Optimized { changed: bool, took_ms: u64 },
    /// A collective succeeded.
    Completed(Completed),
    /// The master was lost when a collective was complete here. Size and rank are those of the ring before, which is
    /// not to say that all of its members were still there.
    Unresolved(Completed),
    /// A call failed and left the peer in the run.
    Failed { call: Call, step: u64, intact: bool, cause: String, culprits: Vec<u128>, text: String },
    /// The peer is out of the run although it did not leave, and connects again.
    Lost { kind: String, text: String },
    /// It has left the run because it was asked to.
    Left,
    /// It cannot go on.
    Fatal { text: String },
}

/// A call that may fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    Sync,
    /// With its tag.
    Collective(u64),
}

/// A successful collective.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Completed {
    pub(crate) step: u64,
    pub(crate) tag: u64,
    pub(crate) world: usize,
    /// Own place in the ring of the operation; the interfaces for C and Python do not tell it.
    pub(crate) rank: Option<usize>,
    /// Whether it went by pairwise exchange; not known if the outcome is not.
    pub(crate) pairwise: Option<bool>,
    /// Checksum of the result.
    pub(crate) hash: u64,
    /// The ring as the peer knew it before the call, and after it. Members may be lost in between, none can be added.
    pub(crate) before: Vec<u128>,
    pub(crate) after: Vec<u128>,
}

/// Starts every line, so that anything else on the same stream is seen for what it is.
const MARK: &str = "@stress";
/// A collective that went by pairwise exchange.
const PAIRWISE: &str = "pairwise";

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{MARK} {} ", self.at_us)?;
        match &self.event {
            Event::Joined { peer } => write!(f, "joined {peer:032x}"),
            Event::Ahead { whole: Some((revision, hash)), rx_bytes } => {
                write!(f, "ahead {revision} {hash:016x} {rx_bytes}")
            }
            Event::Ahead { whole: None, rx_bytes } => write!(f, "ahead - {rx_bytes}"),
            Event::Synced { revision, hash, rx_bytes } => {
                write!(f, "synced {revision} {hash:016x} {rx_bytes}")
            }
            Event::Optimized { changed, took_ms } => write!(f, "optimized {} {took_ms}", u8::from(*changed)),
            Event::Completed(r) | Event::Unresolved(r) => {
                let (before, after) = (ids(&r.before), ids(&r.after));
                let after = if r.before == r.after { "=" } else { &after };
                let word = if matches!(self.event, Event::Completed(_)) { "completed" } else { "unresolved" };
                let Completed { step, tag, world, hash, .. } = r;
                let rank = r.rank.map_or_else(|| "-".to_owned(), |rank| rank.to_string());
                let way = match r.pairwise {
                    None => "-",
                    Some(true) => PAIRWISE,
                    Some(false) => "other",
                };
                write!(f, "{word} {step} {tag} {world} {rank} {way} {hash:016x} {before} {after}")
            }
            Event::Failed { call, step, intact, cause, culprits, text } => {
                let call = match call {
                    Call::Sync => "sync".to_owned(),
                    Call::Collective(tag) => tag.to_string(),
                };
                let (intact, culprits) = (u8::from(*intact), ids(culprits));
                write!(f, "failed {call} {step} {intact} {cause} {culprits} {}", one_line(text))
            }
            Event::Lost { kind, text } => write!(f, "lost {kind} {}", one_line(text)),
            Event::Left => write!(f, "left"),
            Event::Fatal { text } => write!(f, "fatal {}", one_line(text)),
        }
    }
}

fn ids(list: &[u128]) -> String {
    if list.is_empty() {
        return "-".to_owned();
    }
    list.iter().map(|id| format!("{id:032x}")).collect::<Vec<_>>().join(",")
}

fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

impl Line {
    /// Reads a line.
    ///
    /// # Errors
    /// Says which part is missing or wrong.
    pub(crate) fn parse(line: &str) -> Result<Self, String> {
        let mut words = Words(line);
        if words.next("mark")? != MARK {
            return Err(format!("does not begin with {MARK}"));
        }
        let at_us = words.number("time")?;
        let event = match words.next("event")? {
            "joined" => Event::Joined { peer: words.id("peer")? },
            "ahead" => Event::Ahead { whole: words.whole()?, rx_bytes: words.number("bytes")? },
            "synced" => Event::Synced {
                revision: words.number("revision")?,
                hash: words.hash()?,
                rx_bytes: words.number("bytes")?,
            },
            "optimized" => {
                Event::Optimized { changed: words.number("change")? != 0, took_ms: words.number("time")? }
            }
            "completed" => Event::Completed(words.completed()?),
            "unresolved" => Event::Unresolved(words.completed()?),
            "failed" => Event::Failed {
                call: match words.next("call")? {
                    "sync" => Call::Sync,
                    tag => Call::Collective(tag.parse().map_err(|_| format!("tag {tag:?} is not a number"))?),
                },
                step: words.number("step")?,
                intact: words.number("intact")? != 0,
                cause: words.next("cause")?.to_owned(),
                culprits: words.ids("culprits")?,
                text: words.rest(),
            },
            "lost" => Event::Lost { kind: words.next("kind")?.to_owned(), text: words.rest() },
            "left" => Event::Left,
            "fatal" => Event::Fatal { text: words.rest() },
            other => return Err(format!("unknown event {other:?}")),
        };
        Ok(Self { at_us, event })
    }
}

struct Words<'a>(&'a str);

impl<'a> Words<'a> {
    fn next(&mut self, what: &str) -> Result<&'a str, String> {
        let (word, rest) = self.0.split_once(' ').unwrap_or((self.0, ""));
        self.0 = rest;
        if word.is_empty() { Err(format!("{what} is missing")) } else { Ok(word) }
    }

    fn number(&mut self, what: &str) -> Result<u64, String> {
        let word = self.next(what)?;
        word.parse().map_err(|_| format!("{what} {word:?} is not a number"))
    }

    fn hash(&mut self) -> Result<u64, String> {
        let word = self.next("hash")?;
        u64::from_str_radix(word, 16).map_err(|_| format!("hash {word:?} is not hexadecimal"))
    }

    fn id(&mut self, what: &str) -> Result<u128, String> {
        parse_id(self.next(what)?)
    }

    fn ids(&mut self, what: &str) -> Result<Vec<u128>, String> {
        match self.next(what)? {
            "-" => Ok(Vec::new()),
            list => list.split(',').map(parse_id).collect(),
        }
    }

    /// A revision with its checksum, if there is one.
    fn whole(&mut self) -> Result<Option<(u64, u64)>, String> {
        match self.next("revision")? {
            "-" => Ok(None),
            word => {
                let revision = word.parse().map_err(|_| format!("revision {word:?} is not a number"))?;
                Ok(Some((revision, self.hash()?)))
            }
        }
    }

    fn completed(&mut self) -> Result<Completed, String> {
        let (step, tag) = (self.number("step")?, self.number("tag")?);
        let world = self.number("world")? as usize;
        let rank = match self.next("rank")? {
            "-" => None,
            rank => Some(rank.parse().map_err(|_| format!("rank {rank:?} is not a number"))?),
        };
        let way = self.next("way")?;
        let pairwise = (way != "-").then_some(way == PAIRWISE);
        let (hash, before) = (self.hash()?, self.ids("ring before")?);
        let same = self.0 == "=";
        let after = if same { before.clone() } else { self.ids("ring after")? };
        Ok(Completed { step, tag, world, rank, pairwise, hash, before, after })
    }

    fn rest(&mut self) -> String {
        std::mem::take(&mut self.0).to_owned()
    }
}

fn parse_id(word: &str) -> Result<u128, String> {
    u128::from_str_radix(word, 16).map_err(|_| format!("peer {word:?} is not hexadecimal"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_go_there_and_back() {
        let completed = |after: Vec<u128>| {
            let rank = Some(1).filter(|_| after.len() != 1);
            let pairwise = rank.map(|_| after.len() == 2);
            let before = vec![1, 2];
            Event::Completed(Completed { step: 3, tag: 4, world: 2, rank, pairwise, hash: 5, before, after })
        };
        let failed = |call, culprits| Event::Failed {
            call,
            step: 8,
            intact: true,
            cause: "PeerDied".into(),
            culprits,
            text: "peer died: x (127.0.0.1)".into(),
        };
        let events = [
            Event::Joined { peer: u128::MAX },
            Event::Ahead { whole: Some((7, u64::MAX)), rx_bytes: 12 },
            Event::Ahead { whole: None, rx_bytes: 0 },
            Event::Synced { revision: 7, hash: u64::MAX, rx_bytes: 12 },
            Event::Optimized { changed: true, took_ms: 17 },
            completed(vec![1, 2]),
            completed(vec![2]),
            completed(vec![]),
            match completed(vec![1]) {
                Event::Completed(completed) => Event::Unresolved(completed),
                other => other,
            },
            failed(Call::Sync, vec![]),
            failed(Call::Collective(9), vec![3, 4]),
            Event::Lost { kind: "Silent".into(), text: String::new() },
            Event::Left,
            Event::Fatal { text: "why not".into() },
        ];
        for event in events {
            let line = Line { at_us: 99, event };
            assert_eq!(Line::parse(&line.to_string()), Ok(line));
        }
    }

    #[test]
    fn text_stays_on_one_line() {
        let line = Line { at_us: 1, event: Event::Fatal { text: "two\nlines".into() } };
        assert!(!line.to_string().contains('\n'));
    }

    #[test]
    fn broken_lines_are_refused_with_a_reason() {
        for line in [
            "",
            "hello",
            "@stress",
            "@stress x joined 1",
            "@stress 1 joined",
            "@stress 1 joined z",
            "@stress 1 dance",
        ] {
            assert!(!Line::parse(line).expect_err(line).is_empty());
        }
    }
}
