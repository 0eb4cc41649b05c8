//! Values of settings as texts, one form for each type.

use std::{fmt::Display, net::IpAddr, path::PathBuf, str::FromStr, time::Duration};
use tinysockets::{
    key::{RunKey, RunName},
    mode::WireMode,
};

/// The text for what is off, or not given. `off` is read as the same.
const NONE: &str = "none";
/// Longest time that a setting may have.
const LONGEST: Duration = Duration::from_secs(86_400);

/// A value that can be given as a text.
pub trait Text: Sized {
    /// The kind of text, in one word.
    const FORM: &'static str;
    /// Its value is shown nowhere.
    const IS_SECRET: bool = false;
    /// Whether any text is a value: then none stands for one that is not given.
    const IS_ANY_TEXT: bool = false;

    /// The value of this text.
    ///
    /// # Errors
    /// The text is none of this form. A secret is not repeated.
    fn from_text(text: &str) -> Result<Self, String>;

    /// A text that is read as this value; of a secret, none.
    fn to_text(&self) -> String;
}

/// A value of a type that has no words for what is wrong.
fn parsed<T: FromStr>(text: &str, what: &str) -> Result<T, String> {
    text.trim().parse().map_err(|_| format!("{text:?}: write {what}"))
}

/// A number with `ms`, `s` or `m` behind it, or plain seconds; at most a day.
fn time_of(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let number_end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(number_end);
    let unit_seconds = match unit.trim() {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        _ => return Err(format!("{text:?}: write a number and a unit (ms, s or m), for instance 10s")),
    };
    let number: f64 = parsed(number, "a number and a unit, for instance 10s")?;
    match Duration::try_from_secs_f64(number * unit_seconds) {
        Ok(time) if time <= LONGEST => Ok(time),
        _ => Err(format!("{text:?}: at most one day")),
    }
}

impl Text for Duration {
    const FORM: &'static str = "TIME";

    fn from_text(text: &str) -> Result<Self, String> {
        time_of(text)
    }

    fn to_text(&self) -> String {
        match self.subsec_nanos() {
            0 => format!("{}s", self.as_secs()),
            _ => format!("{}ms", self.as_secs_f64() * 1000.0),
        }
    }
}

impl Text for bool {
    const FORM: &'static str = "true or false";

    fn from_text(text: &str) -> Result<Self, String> {
        parsed(text, "true or false")
    }

    fn to_text(&self) -> String {
        self.to_string()
    }
}

/// Whole numbers.
macro_rules! numbers {
    ($($type:ty),+) => {
        $(impl Text for $type {
            const FORM: &'static str = "N";

            fn from_text(text: &str) -> Result<Self, String> {
                parsed(text, &format!("a whole number from 0 to {}", Self::MAX))
            }

            fn to_text(&self) -> String {
                self.to_string()
            }
        })+
    };
}
numbers!(u8, u16, u32, u64, usize);

/// Numbers with a fraction.
macro_rules! fractions {
    ($($type:ty),+) => {
        $(impl Text for $type {
            const FORM: &'static str = "X";

            fn from_text(text: &str) -> Result<Self, String> {
                parsed(text, "a number")
            }

            fn to_text(&self) -> String {
                self.to_string()
            }
        })+
    };
}
fractions!(f32, f64);

impl Text for String {
    const FORM: &'static str = "TEXT";
    const IS_ANY_TEXT: bool = true;

    fn from_text(text: &str) -> Result<Self, String> {
        Ok(text.to_owned())
    }

    fn to_text(&self) -> String {
        self.clone()
    }
}

/// Lists, each entry of which is read as one value.
macro_rules! lists {
    ($($type:ty: $form:literal),+) => {
        $(impl Text for Vec<$type> {
            const FORM: &'static str = $form;

            fn from_text(text: &str) -> Result<Self, String> {
                if text.trim().is_empty() || text.trim() == NONE {
                    return Ok(Self::new());
                }
                text.split(',').map(|entry| <$type>::from_text(entry.trim())).collect()
            }

            fn to_text(&self) -> String {
                let entries: Vec<_> = self.iter().map(Text::to_text).collect();
                if entries.is_empty() { NONE.to_owned() } else { entries.join(",") }
            }
        })+
    };
}
lists!(String: "TEXT,...", usize: "N,...");

impl Text for PathBuf {
    const FORM: &'static str = "PATH";

    fn from_text(text: &str) -> Result<Self, String> {
        if text.is_empty() { Err("write a path".to_owned()) } else { Ok(text.into()) }
    }

    fn to_text(&self) -> String {
        self.display().to_string()
    }
}

impl<T: Text> Text for Option<T> {
    const FORM: &'static str = T::FORM;
    const IS_SECRET: bool = T::IS_SECRET;

    fn from_text(text: &str) -> Result<Self, String> {
        let is_none = !T::IS_ANY_TEXT && [NONE, "off"].contains(&text.trim());
        if is_none { Ok(None) } else { T::from_text(text).map(Some) }
    }

    fn to_text(&self) -> String {
        let none = if T::IS_ANY_TEXT { "" } else { NONE };
        self.as_ref().map_or_else(|| none.to_owned(), Text::to_text)
    }
}

impl Text for RunKey {
    const FORM: &'static str = "64 hexadecimal digits";
    const IS_SECRET: bool = true;

    fn from_text(text: &str) -> Result<Self, String> {
        said(text)
    }

    fn to_text(&self) -> String {
        "(a key)".to_owned()
    }
}

impl Text for RunName {
    const FORM: &'static str = "NAME";

    fn from_text(text: &str) -> Result<Self, String> {
        said(text)
    }

    fn to_text(&self) -> String {
        self.as_str().to_owned()
    }
}

impl Text for WireMode {
    const FORM: &'static str = "MODE";

    fn from_text(text: &str) -> Result<Self, String> {
        said(text)
    }

    fn to_text(&self) -> String {
        self.to_string()
    }
}

/// A value whose type says itself what is wrong.
fn said<T: FromStr<Err: Display>>(text: &str) -> Result<T, String> {
    text.trim().parse().map_err(|error: T::Err| error.to_string())
}

impl Text for IpAddr {
    const FORM: &'static str = "ADDRESS";

    fn from_text(text: &str) -> Result<Self, String> {
        parsed(text, "an address in digits")
    }

    fn to_text(&self) -> String {
        self.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        assert_eq!(time_of("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(time_of("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(time_of("2.5"), Ok(Duration::from_millis(2500)));
        assert_eq!(time_of("1 m"), Ok(Duration::from_secs(60)));
        assert_eq!(time_of("0"), Ok(Duration::ZERO));
        for bad in ["", "s", "10 parsecs", "-1s", "1.2.3s", "1e9s", "99999999999999999999999s", "86401s"] {
            assert!(time_of(bad).is_err(), "{bad}");
        }
        for time in [Duration::from_millis(1500), Duration::from_secs(10), Duration::ZERO] {
            assert_eq!(time_of(&time.to_text()), Ok(time));
        }
    }
}
