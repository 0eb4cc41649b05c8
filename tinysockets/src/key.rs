//! Secrets that two ends prove to each other that they have: first of all the run key, the one secret that everybody
//! who takes part in a run has.

use std::{fmt, io, str::FromStr, sync::Arc};

use parking_lot::Mutex;

use crate::{
    address::{AddressError, HostPort},
    cipher::{
        hmac,
        rand::{SecureRandom, SystemRandom},
    },
    wire::{Decode, Encode, ListItem, Reader, WireError},
};

/// Length of a key in bytes; as text it has twice as many characters.
pub const KEY_BYTES: usize = 32;

/// The environment variable from which programs take the key of their run.
pub const KEY_VARIABLE: &str = "PCCL_RUN_KEY";

/// Bytes that are overwritten when they are dropped.
pub(crate) struct Secret(pub(crate) [u8; KEY_BYTES]);

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.fill(0);
        // Or the compiler could see that nobody reads them any more.
        std::hint::black_box(&mut self.0);
    }
}

/// 32 secret bytes. Neither `Debug` nor an error prints them. All copies share one place in
/// memory, which is overwritten when the last of them is gone.
#[derive(Clone)]
pub struct SecretKey(Arc<Secret>);

impl SecretKey {
    /// A new one from the random numbers of the system.
    pub fn generate() -> io::Result<Self> {
        let mut bytes = [0; KEY_BYTES];
        let filled = SystemRandom::new().fill(&mut bytes);
        filled.map_err(|_| io::Error::other("the system has no random numbers"))?;
        Ok(Self::from_bytes(bytes))
    }

    /// The one of these bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; KEY_BYTES]) -> Self {
        Self(Arc::new(Secret(bytes)))
    }

    /// The bytes, for what is keyed with them. Whoever prints or stores them gives the secret away.
    pub fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0.0
    }

    /// The one that only whoever has this one makes of these bytes.
    #[must_use]
    pub fn derive(&self, label: &str, bytes: &[u8]) -> Self {
        let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, self.bytes()));
        context.update(label.as_bytes());
        context.update(bytes);
        let mut derived = Secret([0; KEY_BYTES]);
        derived.0.copy_from_slice(context.sign().as_ref());
        Self(Arc::new(derived))
    }
}

impl PartialEq for SecretKey {
    /// Takes as long for any two keys.
    fn eq(&self, other: &Self) -> bool {
        let differing = self.0.0.iter().zip(&other.0.0).fold(0, |all, (one, other)| all | (one ^ other));
        std::hint::black_box(differing) == 0
    }
}

impl Eq for SecretKey {}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretKey(not shown)")
    }
}

impl Encode for SecretKey {
    fn encode(&self, out: &mut Vec<u8>) {
        self.bytes().encode(out);
    }
}

impl Decode for SecretKey {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self::from_bytes(<[u8; KEY_BYTES]>::decode(reader)?))
    }
}

/// The secret of a run. Whoever has it takes part; nobody else gets a byte in or out. Only [`RunKey::to_text`] shows
/// it.
#[derive(Clone, PartialEq, Eq)]
pub struct RunKey(SecretKey);

/// Why a text is no [`RunKey`]. It does not repeat the text, which may be most of a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Another number of characters.
    #[error(
        "a run key has 64 hexadecimal digits, this has {0} characters; `pccl-master --new-key` makes one"
    )]
    Length(usize),
    /// A character that is no digit.
    #[error(
        "a run key consists of hexadecimal digits, character {0} is none; `pccl-master --new-key` makes one"
    )]
    Digit(usize),
    /// A file with more keys than a run accepts at a time.
    #[error(
        "it has {0} lines: the first one is the run key that is used, a second one is that which is still accepted"
    )]
    Lines(usize),
}

impl RunKey {
    /// A new key from the random numbers of the system.
    pub fn generate() -> io::Result<Self> {
        SecretKey::generate().map(Self)
    }

    /// The key of these bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; KEY_BYTES]) -> Self {
        Self(SecretKey::from_bytes(bytes))
    }

    /// The key of the environment: `None` if the variable is not set, or empty.
    pub fn from_environment() -> Result<Option<Self>, String> {
        match std::env::var(KEY_VARIABLE) {
            Ok(text) if text.trim().is_empty() => Ok(None),
            Ok(text) => text.parse().map(Some).map_err(|error| format!("{KEY_VARIABLE}: {error}")),
            Err(std::env::VarError::NotPresent) => Ok(None),
            Err(std::env::VarError::NotUnicode(_)) => Err(format!("{KEY_VARIABLE}: not a text")),
        }
    }

    /// The key as text, for whoever is to have it: 64 hexadecimal digits.
    #[must_use]
    pub fn to_text(&self) -> String {
        self.0.bytes().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Its bytes, still secret.
    #[must_use]
    pub fn secret(&self) -> &SecretKey {
        &self.0
    }
}

impl From<SecretKey> for RunKey {
    fn from(secret: SecretKey) -> Self {
        Self(secret)
    }
}

impl FromStr for RunKey {
    type Err = KeyError;

    /// Reads 64 hexadecimal digits; blanks around them do not count.
    fn from_str(text: &str) -> Result<Self, KeyError> {
        let text = text.trim();
        let characters = text.chars().count();
        if characters != 2 * KEY_BYTES {
            return Err(KeyError::Length(characters));
        }
        let mut secret = Secret([0; KEY_BYTES]);
        for (i, character) in text.chars().enumerate() {
            let digit = character.to_digit(16).ok_or(KeyError::Digit(i + 1))? as u8;
            secret.0[i / 2] = secret.0[i / 2] << 4 | digit;
        }
        Ok(Self(SecretKey(Arc::new(secret))))
    }
}

impl fmt::Debug for RunKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RunKey(not shown)")
    }
}

/// The keys that a run accepts: the one that is used, and while it replaces another one, that one as well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcceptedKeys {
    /// The one that is used.
    pub used: RunKey,
    /// The one that is accepted beside it.
    pub second: Option<RunKey>,
}

impl From<RunKey> for AcceptedKeys {
    fn from(used: RunKey) -> Self {
        Self { used, second: None }
    }
}

impl AcceptedKeys {
    /// Whether a connection that was opened by this key is accepted.
    #[must_use]
    pub fn accepts(&self, key: &RunKey) -> bool {
        self.used == *key || self.second.as_ref() == Some(key)
    }
}

impl FromStr for AcceptedKeys {
    type Err = KeyError;

    /// Reads the lines of a key file: the key that is used, and if there is one, that which is still accepted.
    fn from_str(text: &str) -> Result<Self, KeyError> {
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        match lines[..] {
            [used] => Ok(Self { used: used.parse()?, second: None }),
            [used, second] => Ok(Self { used: used.parse()?, second: Some(second.parse()?) }),
            [] => Err(KeyError::Length(0)),
            _ => Err(KeyError::Lines(lines.len())),
        }
    }
}

/// The [`AcceptedKeys`] of a run, which change while it goes on. All copies change together.
#[derive(Debug, Clone)]
pub struct RunKeys(Arc<Mutex<AcceptedKeys>>);

impl RunKeys {
    /// These are accepted from the beginning.
    #[must_use]
    pub fn new(keys: AcceptedKeys) -> Self {
        Self(Arc::new(Mutex::new(keys)))
    }

    /// Those that are accepted now.
    #[must_use]
    pub fn accepted(&self) -> AcceptedKeys {
        self.0.lock().clone()
    }

    /// From now on these are accepted.
    pub fn replace(&self, keys: AcceptedKeys) {
        *self.0.lock() = keys;
    }

    /// The one with which a connection to the master begins.
    #[must_use]
    pub fn used(&self) -> RunKey {
        self.0.lock().used.clone()
    }

    /// The one that has been accepted for longest: also those have it to whom the newest is still on its way.
    #[must_use]
    pub fn oldest(&self) -> RunKey {
        let keys = self.accepted();
        keys.second.unwrap_or(keys.used)
    }
}

impl ListItem for SecretKey {
    const LIST: &'static str = "accepted run keys";
    const MAX_ITEMS: usize = 2;
}

/// Where the master of a run is, and the key of the run if it has one. As text `host:port`, `pccl://host:port` or
/// `pccl://host:port#key`; the key is shown to nobody. Several masters, of which one acts and the others stand by, are
/// `host:port,host:port`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunAddress {
    /// The master, or the first of several.
    pub master: HostPort,
    /// The others.
    pub others: Vec<HostPort>,
    /// The key, as far as the address holds one.
    pub key: Option<RunKey>,
}

/// Why a text is no [`RunAddress`]. What may be a key is not repeated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RunAddressError {
    /// The part in front of the key.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The key.
    #[error("the part of the address behind `#`: {0}")]
    Key(#[from] KeyError),
}

impl RunAddress {
    /// All masters.
    pub fn masters(&self) -> impl Iterator<Item = &HostPort> {
        std::iter::once(&self.master).chain(&self.others)
    }

    /// The key to use: this one if there is one, or the one of the address, or that of the environment.
    pub fn key_or(&self, given: Option<RunKey>) -> Result<Option<RunKey>, String> {
        match given.or_else(|| self.key.clone()) {
            Some(key) => Ok(Some(key)),
            None => RunKey::from_environment(),
        }
    }
}

impl FromStr for RunAddress {
    type Err = RunAddressError;

    fn from_str(text: &str) -> Result<Self, RunAddressError> {
        let text = text.strip_prefix("pccl://").unwrap_or(text);
        let (address, key) = match text.split_once('#') {
            Some((address, key)) => (address, Some(key)),
            None => (text, None),
        };
        // As a browser would write it.
        let address = address.strip_suffix('/').unwrap_or(address);
        let mut masters = address.split(',');
        let master = masters.next().unwrap_or_default().parse()?;
        let others = masters.map(str::parse).collect::<Result<_, AddressError>>()?;
        Ok(Self { master, others, key: key.map(str::parse).transpose()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_may_hold_the_key_and_errors_do_not() {
        let digits = "ab".repeat(KEY_BYTES);
        let address = |text: &str| text.parse::<RunAddress>();
        let with = address(&format!("pccl://host:7#{digits}")).unwrap();
        assert_eq!(
            (with.master.clone(), with.key.as_ref()),
            (HostPort::new("host", 7), digits.parse().ok().as_ref())
        );
        assert!(!format!("{with:?}").contains("abab"));
        for text in ["host:7", "pccl://host:7", "pccl://host:7/"] {
            let plain = RunAddress { master: HostPort::new("host", 7), others: Vec::new(), key: None };
            assert_eq!(address(text).unwrap(), plain);
        }
        let several = address("one:7,[::1]:8").unwrap();
        assert_eq!(several.masters().map(ToString::to_string).collect::<Vec<_>>(), ["one:7", "[::1]:8"]);
        assert!(address("one:7,").is_err());
        for text in ["host:7#", "host:7#ab", &format!("host#{digits}"), &format!("http://host:7#{digits}")] {
            assert!(!address(text).unwrap_err().to_string().contains("abab"), "{text}");
        }
        let other = RunKey::from_bytes([1; KEY_BYTES]);
        assert_eq!(with.key_or(Some(other.clone())), Ok(Some(other)), "what is said otherwise counts first");
    }

    #[test]
    fn a_key_survives_as_text_and_two_new_ones_differ() {
        let (one, other) = (RunKey::generate().unwrap(), RunKey::generate().unwrap());
        assert_eq!(one.to_text().parse::<RunKey>().as_ref(), Ok(&one));
        assert_eq!(format!("  {}\n", one.to_text().to_uppercase()).parse::<RunKey>().as_ref(), Ok(&one));
        assert_ne!(one, other);
        let counted: [u8; KEY_BYTES] = std::array::from_fn(|i| i as u8);
        assert_eq!(
            RunKey::from_bytes(counted).to_text(),
            "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
        );
    }

    #[test]
    fn what_is_no_key_is_refused_and_never_repeated() {
        let digits = "ab".repeat(KEY_BYTES);
        for (text, error) in [
            (String::new(), KeyError::Length(0)),
            (digits[1..].to_owned(), KeyError::Length(63)),
            (format!("{digits}0"), KeyError::Length(65)),
            (format!("{}g", &digits[1..]), KeyError::Digit(64)),
            (format!("+{}", &digits[1..]), KeyError::Digit(1)),
            (format!("{}ä", &digits[1..]), KeyError::Digit(64)),
        ] {
            assert_eq!(text.parse::<RunKey>(), Err(error), "{text}");
            assert!(!error.to_string().contains("abab"));
        }
    }

    #[test]
    fn nothing_prints_a_key() {
        let key = RunKey::from_bytes([0xab; KEY_BYTES]);
        let keys = RunKeys::new(key.clone().into());
        let shown = format!("{key:?}{:?}{:?}{keys:?}", Some(key.clone()), key.secret());
        assert!(!shown.to_lowercase().contains("ab"), "{shown}");
    }

    #[test]
    fn a_file_has_the_key_that_is_used_and_the_one_that_is_still_accepted() {
        let (one, other) = (RunKey::from_bytes([1; KEY_BYTES]), RunKey::from_bytes([2; KEY_BYTES]));
        let (first, second) = (one.to_text(), other.to_text());
        let read = |text: &str| text.parse::<AcceptedKeys>();
        assert_eq!(read(&format!("\n{first}\n\n")), Ok(one.clone().into()));
        let both = AcceptedKeys { used: one.clone(), second: Some(other.clone()) };
        assert_eq!(read(&format!("{first}\r\n{second}\n")).as_ref(), Ok(&both));
        assert_eq!(read(""), Err(KeyError::Length(0)));
        assert_eq!(read(&format!("{first}\n{second}\n{first}")), Err(KeyError::Lines(3)));
        assert_eq!(read(&format!("{first}\n{}", &second[1..])), Err(KeyError::Length(63)));
        let keys = RunKeys::new(one.clone().into());
        let copy = keys.clone();
        assert_eq!((keys.used(), keys.oldest()), (one.clone(), one.clone()));
        keys.replace(AcceptedKeys { used: other.clone(), second: Some(one.clone()) });
        assert_eq!((copy.used(), copy.oldest()), (other, one));
    }
}
