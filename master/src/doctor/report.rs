//! The findings, as a table and as JSON.

use super::remedy::what_for;
use pccl_protocol::json;
use std::fmt;
use tinysockets::preamble::Role;

/// How bad something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// As it should be.
    Fine,
    /// Works, but somebody should know.
    Note,
    /// This machine could not take part, or not with everybody.
    Failed,
}

impl Health {
    const fn text(self) -> &'static str {
        match self {
            Self::Fine => "ok",
            Self::Note => "note",
            Self::Failed => "FAILED",
        }
    }
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    /// The thing looked at: `master`, `port for tensors`, `peer NAME`.
    pub subject: String,
    /// How it is.
    pub health: Health,
    /// The result, in words.
    pub found: String,
    /// The remedy, in words.
    pub remedy: Option<String>,
    /// The measured values, by names with their units: `round_trip_us`.
    pub numbers: Vec<(&'static str, i64)>,
}

/// All that was found, in the order in which a connection needs it. Findings that would come after a failure that ends
/// everything are missing. Shows as a table.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Report {
    /// See [`Finding`].
    pub findings: Vec<Finding>,
    /// Its ports are not reached, and the master takes such peers.
    pub(super) is_outbound_only: bool,
}

fn is_port(subject: &str) -> bool {
    [Role::Data, Role::State].into_iter().any(|role| what_for(role) == subject)
}

impl Report {
    /// Whether nothing failed.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.findings.iter().all(|finding| finding.health != Health::Failed)
    }

    /// One line of JSON, without a line end. Fields may be added in later versions, none is ever renamed.
    #[must_use]
    pub fn to_json(&self) -> String {
        let finding = |finding: &Finding| {
            let numbers: Vec<(&str, String)> =
                finding.numbers.iter().map(|(name, value)| (*name, value.to_string())).collect();
            json::object(&[
                ("subject", json::text(&finding.subject)),
                ("health", json::text(&finding.health.text().to_lowercase())),
                ("found", json::text(&finding.found)),
                ("remedy", finding.remedy.as_deref().map_or("null".to_owned(), json::text)),
                ("numbers", json::object(&numbers)),
            ])
        };
        json::object(&[
            ("passed", self.passed().to_string()),
            ("findings", json::list(self.findings.iter().map(finding))),
        ])
    }

    /// A failure under this subject does not keep this machine from taking part.
    pub(super) fn excuse(&mut self, subject: &str) {
        for finding in self.findings.iter_mut().filter(|finding| finding.subject == subject) {
            if finding.health == Health::Failed {
                finding.health = Health::Note;
            }
        }
    }

    /// In one sentence, whether this machine could take part as it is; nothing if nothing failed.
    #[must_use]
    pub fn verdict(&self) -> Option<&'static str> {
        if self.passed() {
            return None;
        }
        let failed = self.findings.iter().filter(|finding| finding.health == Health::Failed);
        Some(match self.is_outbound_only && failed.clone().all(|finding| is_port(&finding.subject)) {
            true => "as it is, this machine takes part as an outbound-only peer",
            false => "this machine could not take part as it is",
        })
    }

    pub(super) fn fine(&mut self, subject: impl Into<String>, found: impl Into<String>) -> &mut Finding {
        self.add(Health::Fine, subject.into(), found.into(), None)
    }

    pub(super) fn note(
        &mut self,
        subject: impl Into<String>,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> &mut Finding {
        self.add(Health::Note, subject.into(), found.into(), Some(remedy.into()))
    }

    pub(super) fn failed(
        &mut self,
        subject: impl Into<String>,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> &mut Finding {
        self.add(Health::Failed, subject.into(), found.into(), Some(remedy.into()))
    }

    fn add(
        &mut self,
        health: Health,
        subject: String,
        found: String,
        remedy: Option<String>,
    ) -> &mut Finding {
        let at = self.findings.len();
        self.findings.push(Finding { subject, health, found, remedy, numbers: Vec::new() });
        &mut self.findings[at]
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.findings.iter().map(|finding| finding.subject.chars().count()).max().unwrap_or(0);
        for Finding { subject, health, found, remedy, .. } in &self.findings {
            writeln!(f, "{:6}  {subject:width$}  {found}", health.text())?;
            if let Some(remedy) = remedy {
                writeln!(f, "{:6}  {:width$}  -> {remedy}", "", "")?;
            }
        }
        let failed = self.findings.iter().filter(|finding| finding.health == Health::Failed).count();
        match failed {
            0 => writeln!(f, "nothing failed"),
            1 => writeln!(f, "1 thing failed"),
            _ => writeln!(f, "{failed} things failed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_a_table_and_a_line_of_json() {
        let mut report = Report::default();
        report.fine("name", "no name").numbers.push(("round_trip_us", -7));
        report.note("a port", "taken", "free \"it\"");
        assert!(report.passed());
        assert_eq!(
            report.to_string(),
            "ok      name    no name\nnote    a port  taken\n                -> free \"it\"\nnothing failed\n"
        );
        report.failed("x", "y", "z");
        assert!(!report.passed() && report.to_string().ends_with("1 thing failed\n"));
        assert_eq!(
            report.to_json(),
            concat!(
                r#"{"passed":false,"findings":["#,
                r#"{"subject":"name","health":"ok","found":"no name","remedy":null,"numbers":{"round_trip_us":-7}},"#,
                r#"{"subject":"a port","health":"note","found":"taken","remedy":"free \"it\"","numbers":{}},"#,
                r#"{"subject":"x","health":"failed","found":"y","remedy":"z","numbers":{}}]}"#
            )
        );
    }
}
