//! A writer of JSON: numbers, texts, lists and objects, indented.

use std::fmt::Write;

/// A JSON value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Json {
    Bool(bool),
    Whole(u64),
    /// Written as null if it is not finite.
    Number(f64),
    Text(String),
    List(Vec<Self>),
    Object(Vec<(&'static str, Self)>),
}

impl From<u64> for Json {
    fn from(value: u64) -> Self {
        Self::Whole(value)
    }
}

impl From<&str> for Json {
    fn from(value: &str) -> Self {
        Self::Text(value.to_owned())
    }
}

impl From<String> for Json {
    fn from(value: String) -> Self {
        Self::Text(value)
    }
}

impl From<bool> for Json {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl Json {
    /// The text of the value, with a line break at its end.
    pub(crate) fn write(&self) -> String {
        let mut out = String::new();
        self.write_into(&mut out, 0);
        out.push('\n');
        out
    }

    fn write_into(&self, out: &mut String, depth: usize) {
        match self {
            Self::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
            Self::Whole(value) => drop(write!(out, "{value}")),
            Self::Number(value) if value.is_finite() => drop(write!(out, "{value}")),
            Self::Number(_) => out.push_str("null"),
            Self::Text(text) => write_text(out, text),
            Self::List(items) => write_items(out, depth, '[', ']', items.iter(), |out, item| {
                item.write_into(out, depth + 1);
            }),
            Self::Object(fields) => write_items(out, depth, '{', '}', fields.iter(), |out, (name, value)| {
                write_text(out, name);
                out.push_str(": ");
                value.write_into(out, depth + 1);
            }),
        }
    }
}

fn write_items<T>(
    out: &mut String,
    depth: usize,
    open: char,
    close: char,
    items: impl ExactSizeIterator<Item = T>,
    mut write: impl FnMut(&mut String, T),
) {
    out.push(open);
    let count = items.len();
    for (index, item) in items.enumerate() {
        out.push_str(if index == 0 { "\n" } else { ",\n" });
        out.push_str(&"  ".repeat(depth + 1));
        write(out, item);
    }
    if count > 0 {
        out.push('\n');
        out.push_str(&"  ".repeat(depth));
    }
    out.push(close);
}

fn write_text(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if u32::from(c) < 0x20 => drop(write!(out, "\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_as_json_has_them() {
        let json = Json::Object(vec![
            ("a", Json::List(vec![1u64.into(), Json::Number(0.5), Json::Number(f64::NAN), true.into()])),
            ("b", "x\"\\\n\u{e9}".into()),
            ("c", Json::List(Vec::new())),
        ]);
        let expected = "{\n  \"a\": [\n    1,\n    0.5,\n    null,\n    true\n  ],\n  \"b\": \"x\\\"\\\\\\u000a\u{e9}\",\n  \
                        \"c\": []\n}\n";
        assert_eq!(json.write(), expected);
    }
}
