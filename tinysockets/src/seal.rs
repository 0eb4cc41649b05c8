//! Records: what travels over a connection whose ends have proven that they hold the run key.
//!
//! A record is a header of 4 bytes, the length of what follows, and up to 64 KiB of ciphertext with its tag of 16
//! bytes. The header is authenticated with it. Each direction has a key of its own, and its records are counted: the
//! number is the nonce, so a record that is missing, repeated, moved or taken from elsewhere does not open. After a
//! million records a direction goes over to a new key, which tells nothing about the old one.
//!
//! By its [mode](WireMode), a connection may have records whose bytes are authenticated like the header instead of
//! being encrypted, or none at all behind the answer to its preamble.
//!
//! No input or output here: `Sealer` has bytes to be sent, `Opener` a place for bytes that were received.

use std::{fmt, io};

use crate::{
    cipher::{
        aead::{AES_128_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
        hkdf::{HKDF_SHA256, Prk},
    },
    key::{KEY_BYTES, Secret},
    mode::WireMode,
};

/// Bytes in front of a record.
const HEADER_BYTES: usize = 4;
/// Bytes by which ciphertext is longer than what it was made of.
const TAG_BYTES: usize = 16;
/// Most bytes that go into one record: a frame of 512 KiB with its header fills eight.
pub(crate) const RECORD_BYTES: usize = (64 << 10) + 64;
/// Records that are sent, and received, with one system call where there is this number of them. With one for each,
/// half as much time as the cipher's goes into waking the receiver.
const RECORDS_AT_ONCE: usize = 4;
/// The room that a record takes at most.
const RECORD_ROOM: usize = HEADER_BYTES + RECORD_BYTES + TAG_BYTES;
/// Bytes of a record in which there is nothing: the last step of a handshake.
pub const PROOF_BYTES: usize = HEADER_BYTES + TAG_BYTES;
/// Records that are sealed with one key.
const RECORDS_PER_KEY: u64 = 1 << 20;
/// How far a read for a header may reach beyond it, so that small records come with one system call.
const READ_AHEAD_BYTES: usize = 8 << 10;
/// Behind a record from this length on there are more like it, mostly, so as many are received as may come at once.
const BULK_BYTES: usize = RECORD_BYTES / 2;

/// How records are sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Suite {
    /// AES-128-GCM, where both ends have instructions for it.
    Aes128Gcm = 1,
    /// ChaCha20-Poly1305, which is fast everywhere.
    ChaCha20Poly1305 = 2,
}

impl Suite {
    /// The suite that this machine does fastest.
    pub(crate) fn preferred() -> Self {
        #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
        let has_aes = is_x86_feature_detected!("aes") && is_x86_feature_detected!("pclmulqdq");
        #[cfg(target_arch = "aarch64")]
        let has_aes = std::arch::is_aarch64_feature_detected!("aes");
        #[cfg(not(any(target_arch = "x86", target_arch = "x86_64", target_arch = "aarch64")))]
        let has_aes = false;
        if has_aes { Self::Aes128Gcm } else { Self::ChaCha20Poly1305 }
    }

    pub(crate) fn from_byte(byte: u8) -> Option<Self> {
        [Self::Aes128Gcm, Self::ChaCha20Poly1305].into_iter().find(|suite| *suite as u8 == byte)
    }

    fn algorithm(self) -> &'static Algorithm {
        match self {
            Self::Aes128Gcm => &AES_128_GCM,
            Self::ChaCha20Poly1305 => &CHACHA20_POLY1305,
        }
    }
}

impl fmt::Display for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Aes128Gcm => "AES-128-GCM",
            Self::ChaCha20Poly1305 => "ChaCha20-Poly1305",
        })
    }
}

/// The result of a handshake: both directions of one end.
pub struct Seal {
    pub(crate) suite: Suite,
    pub(crate) mode: WireMode,
    pub(crate) sealer: Sealer,
    pub(crate) opener: Opener,
}

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Seal({}, {})", self.suite, self.mode)
    }
}

impl Seal {
    /// From the secrets of the two directions, as this end uses them.
    pub(crate) fn new(
        suite: Suite,
        mode: WireMode,
        send: [u8; KEY_BYTES],
        receive: [u8; KEY_BYTES],
    ) -> io::Result<Self> {
        let keys = Keys::new(suite, Secret(send))?;
        let sealer = Sealer { keys, mode, out: Vec::new(), start: 0, end: 0 };
        let opener = Opener {
            keys: Keys::new(suite, Secret(receive))?,
            mode,
            bytes: Vec::new(),
            plain: 0..0,
            start: 0,
            end: 0,
            is_bulk: false,
            is_broken: false,
        };
        Ok(Self { suite, mode, sealer, opener })
    }
}

/// The keys of one direction, one after the other.
struct Keys {
    suite: Suite,
    secret: Secret,
    key: LessSafeKey,
    /// Number of the next record.
    next: u64,
}

impl Keys {
    fn new(suite: Suite, secret: Secret) -> io::Result<Self> {
        let key = Prk::new_less_safe(HKDF_SHA256, &secret.0)
            .expand(&[b"PCCL record key"], suite.algorithm())
            .map(|key| LessSafeKey::new(UnboundKey::from(key)))
            .map_err(|_| io::Error::other("no key can be made"))?;
        Ok(Self { suite, secret, key, next: 0 })
    }

    /// The nonce of the next record, and its key.
    fn next(&mut self) -> io::Result<(&LessSafeKey, Nonce)> {
        let number = self.next;
        if number > 0 && number.is_multiple_of(RECORDS_PER_KEY) {
            let mut secret = Secret([0; KEY_BYTES]);
            Prk::new_less_safe(HKDF_SHA256, &self.secret.0)
                .expand(&[b"PCCL next secret"], HKDF_SHA256)
                .and_then(|next| next.fill(&mut secret.0))
                .map_err(|_| io::Error::other("no key can be made"))?;
            *self = Self::new(self.suite, secret)?;
        }
        self.next = number.checked_add(1).ok_or_else(|| io::Error::other("too many records"))?;
        let mut nonce = [0; NONCE_LEN];
        nonce[NONCE_LEN - 8..].copy_from_slice(&number.to_be_bytes());
        Ok((&self.key, Nonce::assume_unique_for_key(nonce)))
    }
}

/// Makes records, a few at a time.
pub(crate) struct Sealer {
    keys: Keys,
    mode: WireMode,
    /// The records that are being sent: what is left of them lies in `start..end`.
    out: Vec<u8>,
    start: usize,
    end: usize,
}

impl Sealer {
    /// An empty record.
    pub(crate) fn proof(&mut self) -> io::Result<[u8; PROOF_BYTES]> {
        self.seal(0, |_, _| ())?;
        let mut proof = [0; PROOF_BYTES];
        proof.copy_from_slice(self.waiting());
        self.sent(PROOF_BYTES);
        Ok(proof)
    }

    /// Sealed bytes that are left to be sent.
    pub(crate) fn waiting(&self) -> &[u8] {
        &self.out[self.start..self.end]
    }

    /// This number of the bytes that wait has been sent.
    pub(crate) fn sent(&mut self, bytes: usize) {
        self.start += bytes;
    }

    /// Makes the next records, of at most this number of bytes; returns of how many. Nothing must wait. `fill` is told
    /// how many of the bytes it has given, and fills the place that it gets with those that follow.
    pub(crate) fn seal(
        &mut self,
        at_most: usize,
        mut fill: impl FnMut(usize, &mut [u8]),
    ) -> io::Result<usize> {
        debug_assert!(self.waiting().is_empty(), "records are sent one after the other");
        let taken = at_most.min(RECORDS_AT_ONCE * RECORD_BYTES);
        let records = taken.div_ceil(RECORD_BYTES).max(1);
        let room = taken + records * (HEADER_BYTES + TAG_BYTES);
        if self.out.len() < room {
            self.out.resize(room, 0);
        }
        (self.start, self.end) = (0, 0);
        let (mut end, mut done) = (0, 0);
        for _ in 0..records {
            let count = (taken - done).min(RECORD_BYTES);
            let (record, rest) = self.out[end..].split_at_mut(HEADER_BYTES + count);
            record[..HEADER_BYTES].copy_from_slice(&header(count));
            fill(done, &mut record[HEADER_BYTES..]);
            let (open, secret) = record.split_at_mut(self.mode.open_bytes(count));
            let (key, nonce) = self.keys.next()?;
            let tag = key
                .seal_in_place_separate_tag(nonce, Aad::from(open), secret)
                .map_err(|_| io::Error::other("a record could not be sealed"))?;
            rest[..TAG_BYTES].copy_from_slice(tag.as_ref());
            end += HEADER_BYTES + count + TAG_BYTES;
            done += count;
        }
        self.end = end;
        Ok(taken)
    }
}

impl WireMode {
    /// How much of the front of a record of this number of bytes is authenticated and not encrypted.
    fn open_bytes(self, bytes: usize) -> usize {
        match self {
            Self::Encrypt | Self::Off => HEADER_BYTES,
            Self::Integrity => HEADER_BYTES + bytes,
        }
    }
}

/// The header of a record of this number of bytes.
fn header(bytes: usize) -> [u8; HEADER_BYTES] {
    // At most `RECORD_BYTES`, so nothing is cut off.
    ((bytes + TAG_BYTES) as u32).to_be_bytes()
}

/// Opens records, one after the other.
pub(crate) struct Opener {
    keys: Keys,
    mode: WireMode,
    bytes: Vec<u8>,
    /// Authentic bytes that were not taken yet.
    plain: std::ops::Range<usize>,
    /// The bytes that were received behind them.
    start: usize,
    end: usize,
    /// The last record was a long one.
    is_bulk: bool,
    /// A record was not authentic: nothing that follows is.
    is_broken: bool,
}

impl Opener {
    /// Authentic bytes.
    pub(crate) fn plain(&self) -> &[u8] {
        &self.bytes[self.plain.clone()]
    }

    /// This number of them is not needed any more.
    pub(crate) fn take(&mut self, bytes: usize) {
        self.plain.start += bytes.min(self.plain.len());
    }

    /// Whether there are authentic bytes, or a whole record that can be opened.
    pub(crate) fn is_ready(&self) -> bool {
        self.is_broken || !self.plain.is_empty() || self.record().map_or(true, |record| record.is_some())
    }

    /// Length of the first record, without its header, if it is there as a whole.
    fn record(&self) -> Result<Option<usize>, usize> {
        let received = &self.bytes[self.start..self.end];
        let Some(header) = received.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let length = u32::from_be_bytes(*header) as usize;
        if !(TAG_BYTES..=RECORD_BYTES + TAG_BYTES).contains(&length) {
            return Err(length);
        }
        Ok((received.len() >= HEADER_BYTES + length).then_some(length))
    }

    /// Opens the next record if it is there. Everything authentic must have been taken.
    pub(crate) fn open(&mut self) -> io::Result<bool> {
        debug_assert!(self.plain.is_empty(), "one record after the other");
        let broken = |text: String| io::Error::new(io::ErrorKind::InvalidData, text);
        if self.is_broken {
            return Err(broken("the connection brought a record that is not authentic".to_owned()));
        }
        let length = match self.record() {
            Ok(Some(length)) => length,
            Ok(None) => return Ok(false),
            Err(length) => {
                self.is_broken = true;
                return Err(broken(format!("a record of {length} bytes: not one of this protocol")));
            }
        };
        let body = self.start + HEADER_BYTES;
        let (key, nonce) = self.keys.next()?;
        let record = &mut self.bytes[self.start..body + length];
        let (open, secret) = record.split_at_mut(self.mode.open_bytes(length - TAG_BYTES));
        let opened = key.open_in_place(nonce, Aad::from(open), secret);
        if opened.is_err() {
            self.is_broken = true;
            let text =
                "a record is not authentic: its bytes were changed on their way, or do not belong here";
            return Err(broken(text.to_owned()));
        }
        self.plain = body..body + length - TAG_BYTES;
        self.start = body + length;
        self.is_bulk = length >= BULK_BYTES;
        Ok(true)
    }

    /// A place for what is received next: the rest of the record, and what stands behind it as far as that is ours and
    /// little, or among long records. Everything authentic must have been taken, and no whole record be there.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        // The rest is a part of a record: less than a header mostly, and never more than a read ahead.
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        self.plain = 0..0;
        let first = self.bytes[..self.end].first_chunk::<HEADER_BYTES>();
        let first = first.map_or(0, |header| HEADER_BYTES + u32::from_be_bytes(*header) as usize);
        let wanted = match self.mode {
            // The bytes behind the last record are not for us.
            WireMode::Off => first.clamp(HEADER_BYTES, RECORD_ROOM),
            WireMode::Encrypt | WireMode::Integrity if self.is_bulk || first >= RECORD_ROOM => {
                RECORDS_AT_ONCE * RECORD_ROOM
            }
            WireMode::Encrypt | WireMode::Integrity => (first + HEADER_BYTES).max(READ_AHEAD_BYTES),
        };
        if self.bytes.len() < wanted {
            self.bytes.resize(wanted, 0);
        }
        &mut self.bytes[self.end..wanted]
    }

    /// Whether `record` is an empty record, the next one.
    pub(crate) fn is_proof(&mut self, record: &[u8]) -> bool {
        let Some((head, tag)) = record.split_first_chunk::<HEADER_BYTES>() else { return false };
        let Ok(mut tag) = <[u8; TAG_BYTES]>::try_from(tag) else { return false };
        let Ok((key, nonce)) = self.keys.next() else { return false };
        *head == header(0) && key.open_in_place(nonce, Aad::from(head), &mut tag).is_ok()
    }

    /// This number of bytes was received into that place.
    pub(crate) fn received(&mut self, bytes: usize) {
        self.end += bytes;
    }
}

#[cfg(test)]
mod tests;
