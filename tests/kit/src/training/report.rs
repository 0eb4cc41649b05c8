//! Reports of a peer process to its supervisor: one line of `key=value` fields on its stdout for each thing that
//! happens.

use std::{
    fmt,
    io::{self, Write},
};
use thiserror::Error;

/// Starts every line, so that other output cannot be taken for a report.
const TAG: &str = "digits:";
/// Longest line that is looked at, bytes.
pub(crate) const LINE_BYTES_MAX: usize = 4096;

/// Bytes that this peer's collectives moved since it started, payload only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Traffic {
    /// Sent to other peers.
    pub tx_bytes: u64,
    /// Received from other peers.
    pub rx_bytes: u64,
}

/// Something worth a word of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Accepted into the run.
    Connected,
    /// Took over the state of the run from the others.
    Joined,
    /// An all-reduce was aborted, since a peer was lost; it is tried again.
    Aborted,
    /// Another call failed and is tried again.
    Retried,
    /// Nobody else is left; waits for others.
    Alone,
    /// Lost the connection to the run, and made a new one.
    Reconnected,
    /// The shared state of a full member had to be repaired by the others: a defect.
    Drift,
}

impl Event {
    const ALL: [(Self, &'static str); 7] = [
        (Self::Connected, "connected"),
        (Self::Joined, "joined"),
        (Self::Aborted, "aborted"),
        (Self::Retried, "retried"),
        (Self::Alone, "alone"),
        (Self::Reconnected, "reconnected"),
        (Self::Drift, "drift"),
    ];

    fn parse(word: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, name)| *name == word).map(|&(event, _)| event)
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::ALL.iter().find(|(event, _)| event == self).map_or("?", |&(_, name)| name);
        f.write_str(name)
    }
}

/// An outer step is done.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct StepReport {
    /// Outer steps done by the run.
    pub step: u64,
    /// Peers whose deltas were averaged.
    pub world: usize,
    /// Mean loss of this peer's local steps, nats.
    pub loss: f32,
    /// Revision of the shared state at the last sync.
    pub revision: u64,
    /// Moved so far.
    pub traffic: Traffic,
}

/// The run is over for this peer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct FinalReport {
    /// Outer steps done by the run.
    pub step: u64,
    /// Revision of the shared state at the last sync.
    pub revision: u64,
    /// Share of test images classified right, 0 to 1.
    pub accuracy: f64,
    /// Hash of the final shared state.
    pub hash: u64,
    /// All-reduces that failed under this peer.
    pub aborts: u64,
    /// Calls made again after a failure, all-reduces included.
    pub retries: u64,
    /// Times that this peer took over the state of the run.
    pub joins: u64,
    /// Times that the others had to repair this peer's state.
    pub drifts: u64,
    /// Moved in all.
    pub traffic: Traffic,
}

/// One line.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Report {
    /// An outer step is done.
    Step(StepReport),
    /// Something happened, at an outer step.
    Event {
        /// The fault.
        event: Event,
        /// Outer steps done by the run, as far as this peer knows.
        step: u64,
        /// In words, or empty.
        detail: String,
    },
    /// The end, all well on this side.
    Final(FinalReport),
    /// The end, since this peer cannot go on.
    Failed {
        /// In words.
        reason: String,
    },
}

/// Prints the reports of one peer, and counts what the last of them sums up.
#[derive(Debug, Default)]
pub struct Reporter {
    aborts: u64,
    retries: u64,
    joins: u64,
    drifts: u64,
    traffic: Traffic,
}

impl Reporter {
    /// Payload was sent and received.
    pub fn moved(&mut self, tx_bytes: u64, rx_bytes: u64) {
        self.traffic.tx_bytes += tx_bytes;
        self.traffic.rx_bytes += rx_bytes;
    }

    /// Something happened at an outer step.
    pub fn event(&mut self, event: Event, step: u64, detail: impl fmt::Display) {
        self.aborts += u64::from(event == Event::Aborted);
        self.retries += u64::from(matches!(event, Event::Aborted | Event::Retried));
        self.joins += u64::from(event == Event::Joined);
        self.drifts += u64::from(event == Event::Drift);
        print(&Report::Event { event, step, detail: detail.to_string() });
    }

    /// An outer step is done, with the mean loss of this peer's local steps in it.
    pub fn step(&self, step: u64, world: usize, loss: f32, revision: u64) {
        print(&Report::Step(StepReport { step, world, loss, revision, traffic: self.traffic }));
    }

    /// The run is over for this peer. `hash` stands for its final state.
    pub fn finish(&self, step: u64, revision: u64, accuracy: f64, hash: u64) {
        let Self { aborts, retries, joins, drifts, traffic } = *self;
        let report = FinalReport { step, revision, accuracy, hash, aborts, retries, joins, drifts, traffic };
        print(&Report::Final(report));
    }

    /// This peer cannot go on.
    pub fn fail(&self, reason: impl fmt::Display) {
        print(&Report::Failed { reason: reason.to_string() });
    }
}

/// A peer trains on when nobody reads its reports any more; a supervisor's end ends it by other means.
fn print(report: &Report) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{report}").and_then(|()| out.flush());
}

/// Why a line with our tag is not a report.
#[derive(Debug, Error, PartialEq, Eq)]
pub(crate) enum ParseError {
    /// A field is not there.
    #[error("the field '{0}' is missing")]
    Missing(&'static str),
    /// A field does not hold what it should.
    #[error("the field '{0}' has the unusable value '{1}'")]
    Value(&'static str, String),
    /// Neither of the known kinds.
    #[error("unknown kind of report '{0}'")]
    Kind(String),
}

impl Report {
    /// `None`: not a report at all, but other output of the process.
    pub(crate) fn parse(line: &str) -> Option<Result<Self, ParseError>> {
        line.trim_end().strip_prefix(TAG).map(|rest| Self::parse_fields(Fields(rest.trim_start())))
    }

    fn parse_fields(fields: Fields<'_>) -> Result<Self, ParseError> {
        match fields.text("kind")? {
            "step" => Ok(Self::Step(StepReport {
                step: fields.value("step")?,
                world: fields.value("world")?,
                loss: fields.value("loss")?,
                revision: fields.value("revision")?,
                traffic: fields.traffic()?,
            })),
            "event" => {
                let word = fields.text("event")?;
                let event = Event::parse(word).ok_or_else(|| ParseError::Value("event", word.to_owned()))?;
                Ok(Self::Event { event, step: fields.value("step")?, detail: fields.rest("detail")? })
            }
            "final" => Ok(Self::Final(FinalReport {
                step: fields.value("step")?,
                revision: fields.value("revision")?,
                accuracy: fields.value("accuracy")?,
                hash: fields.hash()?,
                aborts: fields.value("aborts")?,
                retries: fields.value("retries")?,
                joins: fields.value("joins")?,
                drifts: fields.value("drifts")?,
                traffic: fields.traffic()?,
            })),
            "failed" => Ok(Self::Failed { reason: fields.rest("reason")? }),
            other => Err(ParseError::Kind(other.to_owned())),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Step(r) => write!(
                f,
                "{TAG} kind=step step={} world={} loss={} revision={} tx={} rx={}",
                r.step, r.world, r.loss, r.revision, r.traffic.tx_bytes, r.traffic.rx_bytes
            ),
            Self::Event { event, step, detail } => {
                write!(f, "{TAG} kind=event event={event} step={step} detail={}", one_line(detail))
            }
            Self::Final(r) => write!(
                f,
                "{TAG} kind=final step={} revision={} accuracy={} hash={:016x} aborts={} retries={} joins={} \
                 drifts={} tx={} rx={}",
                r.step,
                r.revision,
                r.accuracy,
                r.hash,
                r.aborts,
                r.retries,
                r.joins,
                r.drifts,
                r.traffic.tx_bytes,
                r.traffic.rx_bytes
            ),
            Self::Failed { reason } => write!(f, "{TAG} kind=failed reason={}", one_line(reason)),
        }
    }
}

/// Free text may hold anything; a report must stay one line of bounded length.
fn one_line(text: &str) -> String {
    text.chars().take(500).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// The fields of one line. Free text is always the last field.
struct Fields<'a>(&'a str);

impl<'a> Fields<'a> {
    fn text(&self, key: &'static str) -> Result<&'a str, ParseError> {
        let found = self.0.split(' ').find_map(|field| field.strip_prefix(key)?.strip_prefix('='));
        found.ok_or(ParseError::Missing(key))
    }

    fn value<T: std::str::FromStr>(&self, key: &'static str) -> Result<T, ParseError> {
        let text = self.text(key)?;
        text.parse().map_err(|_| ParseError::Value(key, text.to_owned()))
    }

    fn hash(&self) -> Result<u64, ParseError> {
        let text = self.text("hash")?;
        u64::from_str_radix(text, 16).map_err(|_| ParseError::Value("hash", text.to_owned()))
    }

    fn traffic(&self) -> Result<Traffic, ParseError> {
        Ok(Traffic { tx_bytes: self.value("tx")?, rx_bytes: self.value("rx")? })
    }

    /// From `key=` to the end of the line.
    fn rest(&self, key: &'static str) -> Result<String, ParseError> {
        let start = format!("{key}=");
        let found = self.0.find(&format!(" {start}")).map(|at| &self.0[at + 1 + start.len()..]);
        found.map(str::to_owned).ok_or(ParseError::Missing(key))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn samples() -> Vec<Report> {
        let traffic = Traffic { tx_bytes: 12, rx_bytes: u64::MAX };
        let mut all = vec![
            Report::Step(StepReport { step: 3, world: 2, loss: 0.123_456_79, revision: 4, traffic }),
            Report::Final(FinalReport {
                step: 9,
                revision: 10,
                accuracy: 0.961_111_111_111_111_1,
                hash: 0x00ff_0000_1234_5678,
                aborts: 1,
                retries: 2,
                joins: 3,
                drifts: 4,
                traffic,
            }),
            Report::Failed { reason: "no route = kind=step ".to_owned() },
        ];
        for (event, _) in Event::ALL {
            all.push(Report::Event { event, step: 7, detail: "detail=x step=8".to_owned() });
        }
        all
    }

    #[test]
    fn every_report_survives_the_line() {
        for report in samples() {
            let line = report.to_string();
            // A trailing space of free text goes with the line end.
            let expected = match report {
                Report::Failed { reason } => Report::Failed { reason: reason.trim_end().to_owned() },
                other => other,
            };
            assert_eq!(Report::parse(&format!("{line}\r\n")), Some(Ok(expected)), "{line}");
        }
    }

    #[test]
    fn free_text_stays_on_one_bounded_line() {
        let line = Report::Failed { reason: "a\nb\u{1b}[2K".to_owned() + &"x".repeat(9000) }.to_string();
        assert!(!line.contains(['\n', '\u{1b}']) && line.len() < LINE_BYTES_MAX);
    }

    #[test]
    fn other_output_is_not_ours_and_bad_reports_are_named() {
        assert_eq!(Report::parse("listening on port 3"), None);
        assert_eq!(Report::parse("digits:"), Some(Err(ParseError::Missing("kind"))));
        assert_eq!(Report::parse("digits: kind=dance"), Some(Err(ParseError::Kind("dance".to_owned()))));
        assert_eq!(
            Report::parse("digits: kind=step step=-1 world=2"),
            Some(Err(ParseError::Value("step", "-1".to_owned())))
        );
        assert_eq!(
            Report::parse("digits: kind=event event=lunch step=1 detail="),
            Some(Err(ParseError::Value("event", "lunch".to_owned())))
        );
    }

    proptest! {
        #[test]
        fn parsing_is_total(line in any::<String>()) {
            let _ = Report::parse(&line);
            if let Some(Ok(report)) = Report::parse(&format!("digits: {line}")) {
                prop_assert!(report.to_string().starts_with(TAG));
            }
        }

        #[test]
        fn damaged_reports_never_panic(index in 0usize..10, cut in 0usize..200, junk in "[ =a-z0-9]{0,8}") {
            let line = samples()[index].to_string();
            let cut = cut.min(line.len());
            let _ = Report::parse(&line[..cut]);
            let _ = Report::parse(&format!("{}{junk}{}", &line[..cut], &line[cut..]));
        }
    }
}
