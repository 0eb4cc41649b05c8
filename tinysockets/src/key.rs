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

/// The environment variable from which programs take the name of their run.
pub const NAME_VARIABLE: &str = "PCCL_RUN_NAME";

/// Most characters of the name of a run.
const MAX_RUN_NAME: usize = 64;

/// Tells keys of named runs from all else that is derived from a run key.
const NAME_LABEL: &str = "PCCL key of the run named ";

/// The value of this variable of the environment; `None` if it is not set, or empty.
fn from_variable<T: FromStr<Err: fmt::Display>>(variable: &str) -> Result<Option<T>, String> {
    match std::env::var(variable) {
        Ok(text) if text.trim().is_empty() => Ok(None),
        Ok(text) => text.trim().parse().map(Some).map_err(|error| format!("{variable}: {error}")),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(_)) => Err(format!("{variable}: not a text")),
    }
}

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

    /// The bytes, for what is keyed with them. A caller that prints or stores them gives the secret away.
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

/// The secret of a run. A holder of it takes part; nobody else gets a byte in or out. Only [`RunKey::to_text`] shows
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
        from_variable(KEY_VARIABLE)
    }

    /// The key as text, for those who are to have it: 64 hexadecimal digits.
    #[must_use]
    pub fn to_text(&self) -> String {
        self.0.bytes().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Its bytes, still secret.
    #[must_use]
    pub fn secret(&self) -> &SecretKey {
        &self.0
    }

    /// The key that the run of this name proves: another one for each name, and this one itself without a name.
    #[must_use]
    pub fn of_run(&self, name: &RunName) -> Self {
        if name.is_empty() { self.clone() } else { Self(self.0.derive(NAME_LABEL, name.0.as_bytes())) }
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

/// The name of a run, by which runs with the same key are told apart: it is a part of every proof of the key. Empty for
/// a run without a name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunName(String);

/// The text is no [`RunName`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the name of a run has 1 to {MAX_RUN_NAME} characters: letters from a to z, digits, and -_.")]
pub struct RunNameError;

/// Why a name without a key is refused.
const NAME_WITHOUT_KEY: &str = "the run has a name and no run key: the name tells runs with the same key apart, and \
                                nothing proves it without one; give the key as well, or no name";

impl RunName {
    /// Whether it is that of a run without a name.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name of the environment: empty if the variable is not set, or empty.
    pub fn from_environment() -> Result<Self, String> {
        Ok(from_variable(NAME_VARIABLE)?.unwrap_or_default())
    }

    /// Refuses a name where there is no key: nothing would prove it.
    pub fn check_key(&self, has_key: bool) -> Result<(), String> {
        if has_key || self.is_empty() { Ok(()) } else { Err(NAME_WITHOUT_KEY.to_owned()) }
    }
}

impl FromStr for RunName {
    type Err = RunNameError;

    fn from_str(text: &str) -> Result<Self, RunNameError> {
        let is_good = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let is_name = (1..=MAX_RUN_NAME).contains(&text.len()) && text.bytes().all(is_good);
        if is_name { Ok(Self(text.to_owned())) } else { Err(RunNameError) }
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

    /// Those that the run of this name accepts, see [`RunKey::of_run`].
    #[must_use]
    pub fn of_run(&self, name: &RunName) -> Self {
        Self { used: self.used.of_run(name), second: self.second.as_ref().map(|second| second.of_run(name)) }
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

/// Where the master of a run is, and the name and the key of the run if it has them. As text `host:port`,
/// `pccl://host:port`, `pccl://host:port#key` or `pccl://host:port/name#key`; the key is shown to nobody. Several
/// masters, of which one acts and the others stand by, are `host:port,host:port`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunAddress {
    /// The master, or the first of several.
    pub master: HostPort,
    /// The others.
    pub others: Vec<HostPort>,
    /// The name of the run, as far as the address holds one.
    pub name: Option<RunName>,
    /// The key, as far as the address holds one.
    pub key: Option<RunKey>,
}

/// Why a text is no [`RunAddress`]. It does not repeat text that may be a key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RunAddressError {
    /// The part in front of the key.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The key.
    #[error("the part of the address behind `#`: {0}")]
    Key(#[from] KeyError),
    /// The name of the run.
    #[error("the part of the address behind `/`: {0}")]
    Name(#[from] RunNameError),
}

impl RunAddress {
    /// All masters.
    pub fn masters(&self) -> impl Iterator<Item = &HostPort> {
        std::iter::once(&self.master).chain(&self.others)
    }

    /// The key and the name of the run: these ones, or else those of the address, or those of the environment.
    pub fn key_and_name(
        &self,
        key: Option<RunKey>,
        name: Option<RunName>,
    ) -> Result<(Option<RunKey>, RunName), String> {
        let key = key.or_else(|| self.key.clone());
        let name = name.or_else(|| self.name.clone());
        let key = key.map_or_else(RunKey::from_environment, |key| Ok(Some(key)))?;
        let name = name.map_or_else(RunName::from_environment, Ok)?;
        Ok((key, name))
    }

    /// The key that is to be proven, see [`RunAddress::key_and_name`]. A name without a key is an error.
    pub fn key_of_run(&self, key: Option<RunKey>, name: Option<RunName>) -> Result<Option<RunKey>, String> {
        let (key, name) = self.key_and_name(key, name)?;
        name.check_key(key.is_some())?;
        Ok(key.map(|key| key.of_run(&name)))
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
        // Another scheme is left where it is: the address is refused in words for it.
        let (address, name) = match address.split_once('/').filter(|_| !address.contains("://")) {
            // As a browser would write it.
            Some((address, "")) => (address, None),
            Some((address, name)) => (address, Some(name)),
            None => (address, None),
        };
        let mut masters = address.split(',');
        let master = masters.next().unwrap_or_default().parse()?;
        let others = masters.map(str::parse).collect::<Result<_, AddressError>>()?;
        Ok(Self {
            master,
            others,
            name: name.map(str::parse).transpose()?,
            key: key.map(str::parse).transpose()?,
        })
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
            let plain =
                RunAddress { master: HostPort::new("host", 7), others: Vec::new(), name: None, key: None };
            assert_eq!(address(text).unwrap(), plain);
        }
        let several = address("one:7,[::1]:8").unwrap();
        assert_eq!(several.masters().map(ToString::to_string).collect::<Vec<_>>(), ["one:7", "[::1]:8"]);
        assert!(address("one:7,").is_err());
        for text in ["tcp://host:7", "http://[::1]:7/name"] {
            assert!(
                address(text).unwrap_err().to_string().contains("without the part up to `://`"),
                "{text}"
            );
        }
        for text in ["host:7#", "host:7#ab", &format!("host#{digits}"), &format!("http://host:7#{digits}")] {
            assert!(!address(text).unwrap_err().to_string().contains("abab"), "{text}");
        }
        let other = RunKey::from_bytes([1; KEY_BYTES]);
        let no_name = Some(RunName::default());
        let used = with.key_of_run(Some(other.clone()), no_name);
        assert_eq!(used, Ok(Some(other)), "what is said otherwise counts first");
    }

    #[test]
    fn a_name_makes_another_key_of_a_key_and_of_each_that_is_accepted() {
        let name = |text: &str| text.parse::<RunName>().unwrap();
        let (one, other) = (RunKey::from_bytes([1; KEY_BYTES]), RunKey::from_bytes([2; KEY_BYTES]));
        assert_eq!(one.of_run(&RunName::default()), one);
        assert_eq!(one.of_run(&name("a")), one.of_run(&name("a")));
        let keys = [one.clone(), one.of_run(&name("a")), one.of_run(&name("b")), other.of_run(&name("a"))];
        let differ = |at: usize| !keys[at + 1..].contains(&keys[at]);
        assert!((0..keys.len()).all(differ));
        // HMAC-SHA256 of the label and the name, by another program.
        assert_eq!(keys[1].to_text(), "645966afbe97bcafc3ab42b663ee6a0d2033bd6f2b53b8260521545af1c8d899");
        let accepted = AcceptedKeys { used: one.clone(), second: Some(other.clone()) }.of_run(&name("a"));
        assert_eq!((&accepted.used, accepted.second.as_ref()), (&keys[1], Some(&keys[3])));
        assert!(!accepted.accepts(&one) && !accepted.accepts(&other));
    }

    #[test]
    fn an_address_may_hold_the_name_of_the_run_and_a_name_needs_a_key() {
        let key = RunKey::from_bytes([1; KEY_BYTES]);
        let address = |text: &str| text.parse::<RunAddress>();
        let named = address("pccl://one:7,two:8/A-1_.x").unwrap();
        let name = "A-1_.x".parse::<RunName>().unwrap();
        assert_eq!((named.others.len(), named.name.as_ref()), (1, Some(&name)));
        assert_eq!(named.key_of_run(Some(key.clone()), None), Ok(Some(key.of_run(&name))));
        let said: RunName = "B".parse().unwrap();
        let used = named.key_of_run(Some(key.clone()), Some(said.clone()));
        assert_eq!(used, Ok(Some(key.of_run(&said))), "what is said otherwise counts first");
        assert!(said.check_key(false).unwrap_err().contains("no run key"));
        assert!(said.check_key(true).is_ok() && RunName::default().check_key(false).is_ok());
        let both = address(&format!("one:7/A#{}", key.to_text())).unwrap();
        assert_eq!(both.key_of_run(None, None), Ok(Some(key.of_run(&"A".parse().unwrap()))));
        let longest = "n".repeat(MAX_RUN_NAME);
        assert!(longest.parse::<RunName>().is_ok());
        for bad in ["", "a b", "a/b", "a,b", "ä", "a\n", &format!("{longest}n")] {
            assert_eq!(bad.parse::<RunName>(), Err(RunNameError), "{bad:?}");
        }
        assert!(matches!(address("one:7/a/b"), Err(RunAddressError::Name(_))));
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
