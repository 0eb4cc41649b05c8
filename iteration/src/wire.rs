//! The bytes of a TCPStore: one-byte commands, little-endian lengths.

use crate::store::{MAX_KEYS, MAX_VALUE_BYTES};

/// Longest key on the wire: one byte more than a key of ours, since the client of PyTorch puts a `/` in front.
pub(crate) const MAX_WIRE_KEY_BYTES: usize = 8 * 1024;
/// The number that the first command of a connection carries.
pub(crate) const MAGIC: u32 = 0x3C85_F7CE;
/// Most bytes of one command.
pub(crate) const MAX_COMMAND_BYTES: usize = 64 * 1024 * 1024;

/// The answer that all keys are there.
pub(crate) const READY: u8 = 0;
/// The answer that they are not.
pub(crate) const NOT_READY: u8 = 1;
/// The answer that a wait has ended because all keys are there.
pub(crate) const STOP_WAITING: u8 = 0;
/// The answer that a wait was cancelled.
pub(crate) const WAIT_CANCELLED: u8 = 1;

/// The commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Code {
    Validate = 0,
    Set = 1,
    CompareSet = 2,
    Get = 3,
    Add = 4,
    Check = 5,
    Wait = 6,
    NumKeys = 7,
    Delete = 8,
    Append = 9,
    MultiGet = 10,
    MultiSet = 11,
    CancelWait = 12,
    Ping = 13,
    QueuePush = 14,
    QueuePop = 15,
    QueueLen = 16,
    ListKeys = 17,
    Barrier = 18,
}

impl Code {
    const ALL: [Self; 19] = [
        Self::Validate,
        Self::Set,
        Self::CompareSet,
        Self::Get,
        Self::Add,
        Self::Check,
        Self::Wait,
        Self::NumKeys,
        Self::Delete,
        Self::Append,
        Self::MultiGet,
        Self::MultiSet,
        Self::CancelWait,
        Self::Ping,
        Self::QueuePush,
        Self::QueuePop,
        Self::QueueLen,
        Self::ListKeys,
        Self::Barrier,
    ];

    /// The fields behind the code.
    fn shape(self) -> &'static [Field] {
        use Field::{Bytes, Key, Keys, Number, Pairs, Word};
        match self {
            Self::Validate | Self::Ping => &[Word],
            Self::Set | Self::Append | Self::QueuePush => &[Key, Bytes],
            Self::CompareSet => &[Key, Bytes, Bytes],
            Self::Get | Self::Delete | Self::QueuePop | Self::QueueLen => &[Key],
            Self::Add | Self::Barrier => &[Key, Number],
            Self::Check | Self::Wait | Self::MultiGet => &[Keys],
            Self::MultiSet => &[Pairs],
            Self::NumKeys | Self::CancelWait | Self::ListKeys => &[],
        }
    }
}

enum Field {
    /// 4 bytes.
    Word,
    /// 8 bytes.
    Number,
    Key,
    Bytes,
    /// A number of keys.
    Keys,
    /// A number of keys with values.
    Pairs,
}

/// Finds the end of the command at the front of a buffer, and remembers how far it has looked: a command that comes in
/// small pieces is not read from its beginning again and again.
#[derive(Debug, Default)]
pub(crate) struct Scanner {
    /// Fields of the code that are complete.
    fields: usize,
    /// Strings that are still to come within the present field; `None` before its number is known.
    strings: Option<usize>,
    /// Bytes looked at.
    at: usize,
}

/// A complete command, or that more bytes are needed, or why this is none.
pub(crate) type Scanned = Result<Option<(Code, usize)>, String>;

impl Scanner {
    /// Looks at all bytes there are. Returns the command and its length; starts again behind it.
    pub(crate) fn scan(&mut self, buffer: &[u8]) -> Scanned {
        let Some(code) = buffer.first() else { return Ok(None) };
        let code = *Code::ALL.get(usize::from(*code)).ok_or_else(|| format!("unknown command {code}"))?;
        self.at = self.at.max(1);
        while let Some(field) = code.shape().get(self.fields) {
            if !self.field(field, buffer)? {
                return Ok(None);
            }
            self.fields += 1;
            self.strings = None;
        }
        let length = self.at;
        *self = Self::default();
        Ok(Some((code, length)))
    }

    /// `false`: the field is incomplete.
    fn field(&mut self, field: &Field, buffer: &[u8]) -> Result<bool, String> {
        match field {
            Field::Word => return Ok(self.skip(4, buffer)),
            Field::Number => return Ok(self.skip(8, buffer)),
            Field::Key => return self.string(MAX_WIRE_KEY_BYTES, buffer),
            Field::Bytes => return self.string(MAX_VALUE_BYTES, buffer),
            Field::Keys | Field::Pairs => {}
        }
        let strings_per_item = if matches!(field, Field::Pairs) { 2 } else { 1 };
        if self.strings.is_none() {
            let Some(items) = number(buffer, self.at) else { return Ok(false) };
            let items = usize::try_from(items).unwrap_or(usize::MAX);
            if items > MAX_KEYS {
                return Err(format!("{items} keys in one command, at most {MAX_KEYS} are allowed"));
            }
            self.strings = Some(items * strings_per_item);
            self.at += 8;
        }
        while let Some(left) = self.strings.filter(|left| *left > 0) {
            let is_value = strings_per_item == 2 && left % 2 == 1;
            let max = if is_value { MAX_VALUE_BYTES } else { MAX_WIRE_KEY_BYTES };
            if !self.string(max, buffer)? {
                return Ok(false);
            }
            self.strings = Some(left - 1);
        }
        Ok(true)
    }

    fn skip(&mut self, bytes: usize, buffer: &[u8]) -> bool {
        let is_there = buffer.len() - self.at >= bytes;
        if is_there {
            self.at += bytes;
        }
        is_there
    }

    fn string(&mut self, max: usize, buffer: &[u8]) -> Result<bool, String> {
        let Some(length) = number(buffer, self.at) else { return Ok(false) };
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if length > max {
            return Err(format!("a string of {length} bytes, at most {max} are allowed"));
        }
        if self.at + 8 + length > MAX_COMMAND_BYTES {
            return Err(format!("a command of more than {MAX_COMMAND_BYTES} bytes"));
        }
        Ok(self.skip(8 + length, buffer))
    }
}

fn number(buffer: &[u8], at: usize) -> Option<u64> {
    let bytes = buffer.get(at..at + 8)?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

/// Reads the fields of a command that [`Scanner`] has found complete.
#[derive(Debug)]
pub(crate) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    /// `command` is a whole command with its code.
    pub(crate) fn new(command: &'a [u8]) -> Self {
        Self { rest: command.get(1..).unwrap_or_default() }
    }

    fn take(&mut self, bytes: usize) -> &'a [u8] {
        let (head, rest) = self.rest.split_at(bytes.min(self.rest.len()));
        self.rest = rest;
        head
    }

    pub(crate) fn word(&mut self) -> u32 {
        u32::from_le_bytes(self.take(4).try_into().unwrap_or_default())
    }

    pub(crate) fn number(&mut self) -> i64 {
        i64::from_le_bytes(self.take(8).try_into().unwrap_or_default())
    }

    pub(crate) fn string(&mut self) -> &'a [u8] {
        let length = usize::try_from(self.number()).unwrap_or(usize::MAX);
        self.take(length)
    }

    pub(crate) fn strings(&mut self) -> Vec<&'a [u8]> {
        (0..self.number()).map(|_| self.string()).collect()
    }
}

/// Writes a number.
pub(crate) fn put_number(out: &mut Vec<u8>, number: i64) {
    out.extend_from_slice(&number.to_le_bytes());
}

/// Writes a string with its length.
pub(crate) fn put_string(out: &mut Vec<u8>, bytes: &[u8]) {
    put_number(out, bytes.len() as i64);
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        digits
            .chunks(2)
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
            .collect()
    }

    #[test]
    fn captured_commands_are_cut_in_pieces_of_any_size() {
        let stream = hex("00 cef7853c 0d 7f530000 01 0200000000000000 2f6b 0100000000000000 76
            06 0100000000000000 0200000000000000 2f6b 03 0200000000000000 2f6b
            04 0200000000000000 2f6e 0500000000000000
            02 0200000000000000 2f63 0000000000000000 0100000000000000 41
            12 0400000000000000 2f626172 0100000000000000
            0b 0200000000000000 0100000000000000 61 0100000000000000 62 0100000000000000 63 0000000000000000 0c");
        let wanted = [
            Code::Validate,
            Code::Ping,
            Code::Set,
            Code::Wait,
            Code::Get,
            Code::Add,
            Code::CompareSet,
            Code::Barrier,
            Code::MultiSet,
            Code::CancelWait,
        ];
        for piece in 1..=stream.len() {
            let (mut scanner, mut buffer, mut found) = (Scanner::default(), Vec::new(), Vec::new());
            for bytes in stream.chunks(piece) {
                buffer.extend_from_slice(bytes);
                while let Some((code, length)) = scanner.scan(&buffer).unwrap() {
                    found.push(code);
                    buffer.drain(..length);
                }
            }
            assert_eq!((found.as_slice(), buffer.len()), (wanted.as_slice(), 0), "pieces of {piece}");
        }
    }

    #[test]
    fn lengths_are_bounded_before_anything_is_read() {
        let refused = |text: &str| Scanner::default().scan(&hex(text)).unwrap_err();
        assert!(refused("13").contains("unknown command 19"));
        assert!(refused("ff").contains("unknown command 255"));
        assert!(refused("03 0120000000000000").contains("8193 bytes"));
        assert!(refused("03 ffffffffffffffff").contains("bytes"));
        assert!(refused("01 0000000000000000 0100800000000000").contains("8388609 bytes"));
        assert!(refused("05 0100020000000000").contains("131073 keys"));
        assert!(refused("0b ffffffffffffffff").contains("keys"));
        let mut long = hex("0b 0020000000000000");
        for _ in 0..16 {
            put_string(&mut long, b"");
            put_string(&mut long, &vec![0; 4 << 20]);
        }
        assert!(Scanner::default().scan(&long).unwrap_err().contains("a command of more than"));
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_do_harm(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..300)) {
            let mut scanner = Scanner::default();
            if let Ok(Some((_, length))) = scanner.scan(&bytes) {
                let mut fields = Fields::new(&bytes[..length]);
                let _ = (fields.string(), fields.number(), fields.word());
            }
        }
    }
}
