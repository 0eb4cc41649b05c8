//! Defects of input files.

use std::fmt;

/// A defect of a file, and the line that has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadInput {
    /// The line, counted from 1.
    pub line: usize,
    text: String,
}

impl BadInput {
    pub(super) fn new(line: usize, text: impl Into<String>) -> Self {
        Self { line, text: text.into() }
    }
}

impl fmt::Display for BadInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.text)
    }
}

impl std::error::Error for BadInput {}
