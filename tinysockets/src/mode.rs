//! How the bulk of a run with a key travels: what its tensors and its shared state are worth protecting from.

use std::{fmt, str::FromStr};

use crate::{
    preamble::{SECURITY_INTEGRITY, SECURITY_KEY, SECURITY_OFF},
    wire::{Decode, Encode, Reader, WireError},
};

/// The protection of the connections of a run with a key over which bulk data travels: tensors, shared state, and what
/// measures their way. Control connections are always encrypted. The master chooses, and each connection proves with
/// its preamble that both of its ends mean the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum WireMode {
    /// Nobody on the way reads or changes it.
    #[default]
    Encrypt,
    /// Somebody on the way can read it, and not change it.
    Integrity,
    /// Both ends prove that they have the key, and then bytes travel as without one: somebody on the way can read and
    /// change them. For private wires.
    Off,
}

impl WireMode {
    /// All of them.
    pub const ALL: &[Self] = &[Self::Encrypt, Self::Integrity, Self::Off];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Encrypt => "encrypt",
            Self::Integrity => "integrity",
            Self::Off => "off",
        }
    }

    /// The security mode in the preamble of a connection for bulk data.
    #[must_use]
    pub const fn security(self) -> u8 {
        match self {
            Self::Encrypt => SECURITY_KEY,
            Self::Integrity => SECURITY_INTEGRITY,
            Self::Off => SECURITY_OFF,
        }
    }

    /// The one of a preamble with this security mode; `None` if that is of a connection without a key.
    pub(crate) fn of(security: u8) -> Option<Self> {
        Self::ALL.iter().copied().find(|mode| mode.security() == security)
    }
}

impl fmt::Display for WireMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for WireMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().copied().find(|mode| mode.name() == text);
        found.ok_or_else(|| format!("`{text}` is no wire mode: use `encrypt`, `integrity` or `off`"))
    }
}

impl Encode for WireMode {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.security());
    }
}

impl Decode for WireMode {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let value = u8::decode(reader)?;
        Self::of(value).ok_or(WireError::BadValue { what: "WireMode", value: value.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_survive_as_text_and_as_bytes() {
        for &mode in WireMode::ALL {
            assert_eq!(mode.to_string().parse(), Ok(mode));
            let mut bytes = Vec::new();
            mode.encode(&mut bytes);
            assert_eq!(WireMode::decode(&mut Reader::new(&bytes)), Ok(mode));
        }
        assert!("none".parse::<WireMode>().unwrap_err().contains("`integrity`"));
        for wrong in [0, 4, 255] {
            assert!(WireMode::decode(&mut Reader::new(&[wrong])).is_err());
        }
    }
}
