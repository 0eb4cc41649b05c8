//! Byte encoding shared by every packet: big-endian integers, bounded lists and strings, and the frame
//! `u32 length · u16 kind · body` that carries one packet over a stream.
//!
//! Decoding is total. A [`Reader`] never panics, and no length field causes an allocation before it has been
//! compared with the limit of its item type *and* with the bytes that are really there.

use byteorder::{BigEndian, ByteOrder};

/// Bytes in front of a packet body: `u32` length of kind and body, `u16` kind.
pub const FRAME_HEADER_BYTES: usize = 6;

/// Why bytes could not be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The input ended inside a field.
    #[error("input ends inside {what}: {needed} bytes needed, {left} left")]
    Truncated {
        /// The field that was being read.
        what: &'static str,
        /// Bytes that the field needs.
        needed: usize,
        /// Bytes that were left.
        left: usize,
    },
    /// A length field exceeds the limit of its kind.
    #[error("{what} has length {len}, at most {max} allowed")]
    TooLong {
        /// The field with the length.
        what: &'static str,
        /// The length that was announced.
        len: u64,
        /// The limit.
        max: usize,
    },
    /// A field holds a value that has no meaning.
    #[error("{what} has the undefined value {value}")]
    BadValue {
        /// The field.
        what: &'static str,
        /// The value found.
        value: u64,
    },
    /// A string field is not UTF-8.
    #[error("{what} is not valid UTF-8")]
    NotUtf8 {
        /// The field.
        what: &'static str,
    },
    /// Bytes were left over after the last field.
    #[error("{left} bytes left over after the last field")]
    Trailing {
        /// Number of bytes left over.
        left: usize,
    },
}

/// A value with a fixed encoding.
pub trait Encode {
    /// Appends the encoding of `self` to `out`.
    fn encode(&self, out: &mut Vec<u8>);
}

/// A value that can be read back from its encoding.
pub trait Decode: Sized {
    /// Reads one value from the front of `reader`.
    fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError>;
}

/// A type that may stand in a list; names how many a list may hold.
pub trait ListItem {
    /// Name of the list in error messages.
    const LIST: &'static str;
    /// Most items that a list of this type may hold.
    const MAX_ITEMS: usize;
}

/// Decodes a whole buffer; leftover bytes are an error.
pub fn decode_exact<T: Decode>(bytes: &[u8]) -> Result<T, WireError> {
    let mut reader = Reader::new(bytes);
    let value = T::decode(&mut reader)?;
    reader.finish()?;
    Ok(value)
}

/// Encodes `kind` and `body` as one frame, ready to be written to a stream.
pub fn frame(kind: u16, body: &impl Encode) -> Vec<u8> {
    let mut out = vec![0; FRAME_HEADER_BYTES];
    body.encode(&mut out);
    let len = u32::try_from(out.len() - 4).expect("packet limits keep every body far below 4 GiB");
    BigEndian::write_u32(&mut out[0..4], len);
    BigEndian::write_u16(&mut out[4..6], kind);
    out
}

/// A cursor over received bytes.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Starts reading at the front of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Bytes not yet read.
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Takes the next `n` bytes.
    pub fn take(&mut self, n: usize, what: &'static str) -> Result<&'a [u8], WireError> {
        if n > self.rest.len() {
            return Err(WireError::Truncated { what, needed: n, left: self.rest.len() });
        }
        let (head, rest) = self.rest.split_at(n);
        self.rest = rest;
        Ok(head)
    }

    /// Fails if bytes are left over.
    pub fn finish(&self) -> Result<(), WireError> {
        if self.rest.is_empty() { Ok(()) } else { Err(WireError::Trailing { left: self.rest.len() }) }
    }

    /// Reads a `u32` length and checks it against `max` and against the bytes that are left.
    pub fn length(&mut self, max: usize, what: &'static str) -> Result<usize, WireError> {
        let len = BigEndian::read_u32(self.take(4, what)?) as usize;
        if len > max {
            return Err(WireError::TooLong { what, len: len as u64, max });
        }
        if len > self.rest.len() {
            return Err(WireError::Truncated { what, needed: len, left: self.rest.len() });
        }
        Ok(len)
    }

    /// Reads a string of at most `max` bytes. One with a [hidden character](is_hidden) is refused: it may be shown.
    pub fn string(&mut self, max: usize, what: &'static str) -> Result<String, WireError> {
        let len = self.length(max, what)?;
        let bytes = self.take(len, what)?;
        let text = std::str::from_utf8(bytes).map_err(|_| WireError::NotUtf8 { what })?;
        match text.chars().find(|character| is_hidden(*character)) {
            None => Ok(text.to_owned()),
            Some(hidden) => Err(WireError::BadValue { what, value: u64::from(u32::from(hidden)) }),
        }
    }
}

/// Whether a character moves the reader's cursor or changes the order of what is read: control characters, the
/// separators of lines and paragraphs, and those that change the direction of text. With one of them a text from
/// elsewhere could show a person lines that nobody has written, in a log, a table or an error.
#[must_use]
pub fn is_hidden(character: char) -> bool {
    let is_directional = matches!(
        character,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    character.is_control() || matches!(character, '\u{2028}' | '\u{2029}') || is_directional
}

/// Appends a `u32` length and the bytes of `text`.
pub fn put_string(out: &mut Vec<u8>, text: &str) {
    put_length(out, text.len());
    out.extend_from_slice(text.as_bytes());
}

fn put_length(out: &mut Vec<u8>, len: usize) {
    let len = u32::try_from(len).expect("lists and strings are bounded far below 2^32 items");
    len.encode(out);
}

macro_rules! integer {
    ($($ty:ty),*) => {$(
        impl Encode for $ty {
            fn encode(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_be_bytes());
            }
        }
        impl Decode for $ty {
            fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError> {
                let bytes = reader.take(size_of::<$ty>(), stringify!($ty))?;
                let mut array = [0; size_of::<$ty>()];
                array.copy_from_slice(bytes);
                Ok(Self::from_be_bytes(array))
            }
        }
    )*};
}

integer!(u8, u16, u32, u64, u128);

impl Encode for bool {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
}

impl Decode for bool {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        match u8::decode(reader)? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(WireError::BadValue { what: "bool", value: other.into() }),
        }
    }
}

impl<const N: usize> Encode for [u8; N] {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }
}

impl<const N: usize> Decode for [u8; N] {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let mut array = [0; N];
        array.copy_from_slice(reader.take(N, "byte array")?);
        Ok(array)
    }
}

impl<T: Encode> Encode for Option<T> {
    fn encode(&self, out: &mut Vec<u8>) {
        self.is_some().encode(out);
        if let Some(value) = self {
            value.encode(out);
        }
    }
}

impl<T: Decode> Decode for Option<T> {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(if bool::decode(reader)? { Some(T::decode(reader)?) } else { None })
    }
}

impl<T: Encode> Encode for Vec<T> {
    fn encode(&self, out: &mut Vec<u8>) {
        put_length(out, self.len());
        for item in self {
            item.encode(out);
        }
    }
}

impl<T: Decode + ListItem> Decode for Vec<T> {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        // Every item takes at least one byte, so `length` also bounds the list by the bytes that are there.
        let len = reader.length(T::MAX_ITEMS, T::LIST)?;
        let mut items = Self::new();
        for _ in 0..len {
            items.push(T::decode(reader)?);
        }
        Ok(items)
    }
}

/// Cuts a byte stream into frames, for a reader that never blocks.
///
/// At most one frame of at most `max_frame_bytes` (kind and body) is held back while it is incomplete.
#[derive(Debug)]
pub struct FrameParser {
    buffer: Vec<u8>,
    start: usize,
    max_frame_bytes: usize,
}

impl FrameParser {
    /// A parser for frames whose kind and body together have at most `max_frame_bytes`.
    pub fn new(max_frame_bytes: usize) -> Self {
        Self { buffer: Vec::new(), start: 0, max_frame_bytes }
    }

    /// Adds received bytes.
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.start > 0 {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// Takes the next complete frame: kind and body. `Ok(None)` means that more bytes are needed.
    pub fn next_frame(&mut self) -> Result<Option<(u16, &[u8])>, WireError> {
        let waiting = &self.buffer[self.start..];
        if waiting.len() < 4 {
            return Ok(None);
        }
        let len = BigEndian::read_u32(waiting) as usize;
        check_frame_length(len, self.max_frame_bytes)?;
        if waiting.len() < 4 + len {
            return Ok(None);
        }
        let begin = self.start;
        self.start += 4 + len;
        let whole = &self.buffer[begin..self.start];
        Ok(Some((BigEndian::read_u16(&whole[4..6]), &whole[FRAME_HEADER_BYTES..])))
    }

    /// Lets go of memory that is not needed for what is held back.
    pub fn give_memory_back(&mut self) {
        self.buffer.drain(..self.start);
        self.start = 0;
        self.buffer.shrink_to_fit();
    }

    /// Bytes that the next frame takes with its length field, as far as that has arrived.
    pub fn next_bytes(&self) -> Option<usize> {
        let prefix = self.buffer[self.start..].first_chunk::<4>()?;
        Some(4 + u32::from_be_bytes(*prefix) as usize)
    }

    /// Bytes held back because their frame is incomplete.
    pub fn pending_bytes(&self) -> usize {
        self.buffer.len() - self.start
    }
}

/// Checks the length field of a frame (kind and body).
pub fn check_frame_length(len: usize, max_frame_bytes: usize) -> Result<(), WireError> {
    if len < 2 {
        return Err(WireError::BadValue { what: "frame length", value: len as u64 });
    }
    if len > max_frame_bytes {
        return Err(WireError::TooLong { what: "frame", len: len as u64, max: max_frame_bytes });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    impl ListItem for u32 {
        const LIST: &'static str = "numbers";
        const MAX_ITEMS: usize = 8;
    }

    #[test]
    fn a_list_longer_than_its_limit_is_refused_before_it_is_read() {
        let mut bytes = Vec::new();
        9u32.encode(&mut bytes);
        let error = decode_exact::<Vec<u32>>(&bytes).unwrap_err();
        assert_eq!(error, WireError::TooLong { what: "numbers", len: 9, max: 8 });
    }

    #[test]
    fn a_text_that_a_terminal_would_obey_is_refused() {
        let decode = |text: &str| {
            let mut bytes = Vec::new();
            put_string(&mut bytes, text);
            Reader::new(&bytes).string(64, "text")
        };
        for text in ["plain é 漢", "👩\u{200d}🚀", "שלום"] {
            assert_eq!(decode(text).as_deref(), Ok(text));
        }
        let directions = "\u{61c}\u{200e}\u{200f}\u{202a}\u{202e}\u{2066}\u{2069}".chars();
        for hidden in "\0\n\r\t\u{1b}\u{7f}\u{85}\u{9b}\u{2028}\u{2029}".chars().chain(directions) {
            let refused = WireError::BadValue { what: "text", value: hidden as u64 };
            assert_eq!(decode(&format!("x){hidden}forged")), Err(refused), "{hidden:?}");
        }
    }

    #[test]
    fn frames_shorter_than_their_kind_are_refused() {
        let mut parser = FrameParser::new(64);
        parser.feed(&[0; 8]);
        assert!(parser.next_frame().is_err());
    }

    #[test]
    fn oversized_frames_are_refused_before_their_body_arrives() {
        let mut parser = FrameParser::new(64);
        parser.feed(&u32::MAX.to_be_bytes());
        assert!(matches!(parser.next_frame(), Err(WireError::TooLong { .. })));
    }

    proptest! {
        #[test]
        fn frames_survive_any_fragmentation(
            bodies in prop::collection::vec((any::<u16>(), prop::collection::vec(any::<u8>(), 0..40)), 0..10),
            piece in 1usize..50,
        ) {
            struct Raw(Vec<u8>);
            impl Encode for Raw {
                fn encode(&self, out: &mut Vec<u8>) { out.extend_from_slice(&self.0); }
            }
            let mut stream = Vec::new();
            for (kind, body) in &bodies {
                stream.extend(frame(*kind, &Raw(body.clone())));
            }
            let mut parser = FrameParser::new(64);
            let mut seen = Vec::new();
            for chunk in stream.chunks(piece) {
                parser.feed(chunk);
                while let Some((kind, body)) = parser.next_frame().unwrap() {
                    seen.push((kind, body.to_vec()));
                }
            }
            prop_assert_eq!(seen, bodies);
            prop_assert_eq!(parser.pending_bytes(), 0);
        }
    }
}
