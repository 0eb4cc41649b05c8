//! JSON text for programs, of fields in a given order. Hidden characters are escaped, since a terminal would obey them.

use crate::is_hidden;
use std::fmt::Write;

/// An object of values that are JSON already.
pub fn object(fields: &[(&str, String)]) -> String {
    let fields: Vec<String> = fields.iter().map(|(name, value)| format!("{}:{value}", text(name))).collect();
    format!("{{{}}}", fields.join(","))
}

/// A list of values that are JSON already.
pub fn list(items: impl Iterator<Item = String>) -> String {
    format!("[{}]", items.collect::<Vec<_>>().join(","))
}

/// A string with everything escaped that RFC 8259 wants escaped.
pub fn text(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            // DEL, the C1 codes and those that change the direction need no escape, but a terminal would obey them.
            control if is_hidden(control) => {
                // Writing to a string cannot fail.
                let _ = write!(out, "\\u{:04x}", u32::from(control));
            }
            other => out.push(other),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::text;

    #[test]
    fn strings_are_escaped() {
        assert_eq!(text("plain é 漢"), "\"plain é 漢\"");
        assert_eq!(text("a\"b\\c\n\r\t"), r#""a\"b\\c\n\r\t""#);
        assert_eq!(text("\u{0}\u{1b}[2J\u{7f}\u{9b}"), r#""\u0000\u001b[2J\u007f\u009b""#);
    }
}
